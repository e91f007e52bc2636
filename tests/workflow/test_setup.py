"""Promises of the set-up: what it installs is locked, named nowhere by machine or host, and done once."""

from __future__ import annotations

import ast
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace

import fast_yaml
import pytest
from syntax import statements

ROOT = Path(__file__).resolve().parents[2]
ENVS = ROOT / "envs"
LOCKS = sorted((ENVS / "locks").glob("*.txt"))
ENVIRONMENTS = sorted(ENVS.glob("*.yaml"))
# Used only where a user chose them; see the extras of pyproject.toml.
OPTIONAL = {
    "IPython",
    "h5py",
    "imageio_ffmpeg",
    "minari",
    "optuna",
    "tensorboard",
    "plotext",
    "torchvision",
    "trackio",
    "triton",  # comes with PyTorch for GPUs
    "wandb",
}
IN_WORKERS = {"procgen"}  # imported by scripts that another Python runs; see envs/worlds


def load(name: str) -> ModuleType:
    """envs/NAME.py as a module: it is a script, and in no package."""
    specification = importlib.util.spec_from_file_location(f"envs_{name}", ENVS / f"{name}.py")
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def locking() -> ModuleType:
    return load("lock")


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """envs/setup.py, whose installers only note what they were asked."""
    module = load("setup")
    module.calls = []  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "call", lambda command, environment=None: module.calls.append(command))
    monkeypatch.setattr(module.Setup, "pip_configuration", lambda self: "")
    monkeypatch.setattr(module.Setup, "torch_wants_cuda", lambda self: False)
    monkeypatch.setattr(module.Setup, "compile_packages", lambda self, again: None)
    return module


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A folder that looks like an environment whose Python is there."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    return tmp_path


def packages(lock: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+)==", (ENVS / "locks" / f"{lock}.txt").read_text(), re.MULTILINE))


# ------------------------------------------------------------------------------------------------------------ locks


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_every_package_of_a_lock_is_pinned_and_hashed(path: Path) -> None:
    blocks = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE).strip())
    assert blocks
    for block in blocks:
        requirement, *hashes = [line.strip(" \\") for line in block.splitlines()]
        assert re.match(r"[a-z0-9-]+==[\w.!+]+( ; .+)?$", requirement), requirement
        assert hashes, requirement
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", line) for line in hashes), requirement


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_lock_names_no_host_no_option_and_no_path(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"://|@ |file:|^--|^-", text, re.MULTILINE)
    for word in re.findall(r"\S+", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)):
        assert "/" not in word, word


def test_torch_is_locked_for_the_registry_and_its_cpu_wheels_apart(locking: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = next(x for x in project["dependencies"] if x.startswith("torch")).removeprefix("torch==")
    registry, cpu = ((ENVS / "locks" / f"{name}.txt").read_text() for name in ("torch", "torch-cpu"))
    assert f"\ntorch=={version} " in registry and f"\ntorch=={version}+cpu " in cpu
    assert set(re.findall(r"sha256:(\w+)", cpu)) == set(locking.TORCH_CPU_WHEELS[version].values())
    assert not set(re.findall(r"sha256:\w+", cpu)) & set(re.findall(r"sha256:\w+", registry))


def test_each_requirement_of_the_project_is_locked_once_where_it_belongs(locking: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in project["dependencies"]:
        name = locking.package(requirement)
        holders = {lock for lock in ("base", "torch", "models") if name in packages(lock)}
        assert len(holders) == 1, f"{name} is in {holders or 'no lock'}: run `make lock`"
    for extra in ("workflow", "dev"):
        for requirement in project["optional-dependencies"][extra]:
            assert locking.package(requirement) in packages(extra) | packages("base"), f"{requirement}: run `make lock`"


def test_families_never_disagree_about_a_version_and_hold_one_faiss_each() -> None:
    seen: dict[str, str] = {}
    for path in LOCKS:
        for name, version in re.findall(r"^([a-z0-9-]+)==([^\s;]+)", path.read_text(), re.MULTILINE):
            version = version.removesuffix("+cpu")
            assert seen.setdefault(name, version) == version, f"{name} in {path.name}"
    assert "faiss-cpu" in packages("base") and "faiss-gpu" not in packages("base")
    assert "faiss-gpu" in packages("gpu") and "faiss-cpu" not in packages("gpu")
    assert not any("torch" in packages(lock) for lock in ("base", "gpu", "workflow", "dev", "models"))


def test_everything_that_src_imports_is_in_a_runtime_lock() -> None:
    imported: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in statements(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                imported.add(node.module.split(".")[0])
    imported -= set(sys.stdlib_module_names) | {"recollect"}
    assert {"numpy", "torch"} <= imported
    families = {path.stem for path in ENVIRONMENTS}
    locked = set().union(*(packages(lock) for lock in families - {"cpu"} | {"torch", "models"}))
    provided = metadata.packages_distributions()
    for module in sorted(imported - OPTIONAL - IN_WORKERS):
        names = {re.sub(r"[-_.]+", "-", name).lower() for name in provided.get(module, [module])}
        assert names & locked, f"src imports {module} ({names}), which no runtime lock holds"


def test_what_is_read_from_a_lock_can_be_written_back(locking: ModuleType) -> None:
    text = "b==2 ; sys_platform == 'linux' \\\n    --hash=sha256:00\nb==1 \\\n    --hash=sha256:01\na==3\n"
    lock = locking.parse("# a note\n" + text)
    assert list(lock) == ["b", "a"]
    assert lock["b"] + lock["a"] == text
    assert locking.pins(lock) == "a==3\nb==1\nb==2 ; sys_platform == 'linux'\n"
    assert locking.package("Ruamel_Yaml.x>=1 ; python_version > '3'") == "ruamel-yaml-x"


# ------------------------------------------------------------------------------- worlds that another Python plays


@pytest.mark.parametrize("world", ["procgen"])
def test_the_python_of_a_world_is_made_once_of_wheels_that_are_checked(
    world: str, setup: ModuleType, prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = setup.WorldSetup(world, "3.10")
    made.prefix = prefix
    made.run()
    venv_, install = setup.calls
    assert venv_[1:] == ["venv", "--quiet", "--clear", "--python", "3.10", str(prefix)]
    assert "--require-hashes" in install and install[install.index("--only-binary") + 1] == ":all:"
    assert install[install.index("--python") + 1] == str(prefix / "bin" / "python")
    assert install[-1] == str(ENVS / "worlds" / f"{world}.txt")
    setup.calls.clear()
    made.run()
    assert setup.calls == []

    def no_python(command: list[str], environment: object = None) -> None:
        raise setup.Stop("no network")

    monkeypatch.setattr(setup, "call", no_python)
    other = setup.WorldSetup(world, "3.9")
    other.prefix = prefix
    with pytest.raises(setup.Stop, match="WORLD_PYTHON="):
        other.run()
    assert setup.main(["--world", "nothing"]) == 1


@pytest.mark.parametrize("path", sorted((ENVS / "worlds").glob("*.txt")), ids=lambda path: path.stem)
def test_the_lock_of_a_world_pins_and_hashes_all_that_it_names(path: Path, locking: ModuleType) -> None:
    test_every_package_of_a_lock_is_pinned_and_hashed(path)
    test_a_lock_names_no_host_no_option_and_no_path(path)
    python, wanted, left_out = locking.WORLDS[path.stem]
    lock = locking.parse(path.read_text())
    assert all(f"{x}" in path.read_text() for x in wanted) and not lock.keys() & set(left_out)
    environment = fast_yaml.load(path.with_suffix(".yaml").read_text())
    assert environment["dependencies"] == [f"python={python}", "pip"]
    assert f"envs/worlds/{path.name}" in path.with_suffix(".yaml").read_text()


# ---------------------------------------------------------------------------------------------- conda environments


@pytest.mark.parametrize("path", ENVIRONMENTS, ids=lambda path: path.stem)
def test_a_conda_environment_is_minimal_and_stamped_with_the_locks_it_names(path: Path, locking: ModuleType) -> None:
    text = path.read_text()
    assert fast_yaml.load(text)["dependencies"] == ["python=3.11", "pip"]
    named = re.findall(r"locks/[a-z0-9_-]+\.txt", text)
    cpu = path.stem == "cpu"
    assert f"locks/{'base' if cpu else path.stem}.txt" in named
    assert ("locks/torch-cpu.txt" if cpu else "locks/torch.txt") in named
    assert all((ENVS / name).is_file() for name in named)
    stamp = re.search(r"^# locks-sha256: (\w+)$", text, re.MULTILINE)
    assert stamp and stamp[1] == locking.digest(named), "run `make lock`: Snakemake would keep an old environment"


@pytest.mark.parametrize("path", ENVIRONMENTS, ids=lambda path: path.stem)
def test_the_script_that_fills_a_conda_environment_calls_the_set_up_for_its_family(path: Path, tmp_path: Path) -> None:
    script = path.with_name(f"{path.stem}.post-deploy.sh")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "bin" / "python").chmod(0o755)
    environment = {**os.environ, "CONDA_PREFIX": str(tmp_path)}
    environment.pop("RECOLLECT_ROOT", None)
    told = subprocess.run(["bash", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.split() == [f"{ROOT}/envs/setup.py", "--here", "--family", path.stem]
    lost = subprocess.run(["bash", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert lost.returncode == 1 and "repository's root" in lost.stderr


# ------------------------------------------------------------------------------------------------------- the steps


def test_a_set_up_does_every_step_once_and_then_none(setup: ModuleType, prefix: Path) -> None:
    first = setup.Setup(prefix, "base", tools=True)
    first.run()
    assert list(json.loads((prefix / setup.STATE).read_text())["steps"]) == sorted(
        ["venv", "uv", "torch", "packages", "tools", "project", "bytecode"]
    )
    setup.calls.clear()
    again = setup.Setup(prefix, "base", tools=True)
    again.run()
    assert (again.done, setup.calls) == (0, [])


def test_packages_have_bytecode_after_the_set_up_even_where_python_is_told_to_write_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    venv.create(tmp_path / "env", symlinks=True, with_pip=False)
    module = load("setup")
    folder = next((tmp_path / "env").glob("lib/python*/site-packages"))
    (folder / "package.py").write_text("x = 1\n")
    (folder / "template.py").write_text("{% not python %}\n")  # some packages carry such files
    module.Setup(tmp_path / "env", "base", tools=False).compile_packages(False)
    assert [path.name.split(".")[0] for path in folder.glob("__pycache__/*.pyc")] == ["package"]


def test_what_pip_and_uv_install_is_always_checked_against_hashes(setup: ModuleType, prefix: Path) -> None:
    setup.Setup(prefix, "base", tools=True).run()
    installs = [command for command in setup.calls if "install" in command]
    assert len(installs) == 5
    *locked, project = installs
    assert all("--require-hashes" in command and "-r" in command for command in locked)
    assert "--no-deps" in project and "--no-build-isolation" in project


def test_only_the_step_whose_lock_changed_is_done_again(
    setup: ModuleType, prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.Setup(prefix, "base", tools=True).run()
    setup.calls.clear()
    read = setup.read
    monkeypatch.setattr(setup, "read", lambda *locks: [*read(*locks), "more"] if "dev" in locks else read(*locks))
    setup.Setup(prefix, "base", tools=True).run()
    (command,) = setup.calls
    assert command[-1].endswith("dev.txt") and "--reinstall" not in command


@pytest.mark.parametrize(
    ("killed_in", "option"), [("torch", "--force-reinstall"), ("packages", "--reinstall"), ("tools", "--reinstall")]
)
def test_a_step_that_was_interrupted_is_done_afresh_and_those_before_it_are_kept(
    setup: ModuleType, prefix: Path, monkeypatch: pytest.MonkeyPatch, killed_in: str, option: str
) -> None:
    step = setup.Setup.step

    def die(self: object, name: str, said: str, action: object, *inputs: str) -> None:
        def killed(again: bool) -> None:
            raise KeyboardInterrupt

        step(self, name, said, killed if name == killed_in else action, *inputs)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(setup.Setup, "step", die)
        setup.Setup(prefix, "base", tools=True).run()
    setup.calls.clear()
    setup.Setup(prefix, "base", tools=True).run()
    assert option in setup.calls[0]
    assert sum(option in command for command in setup.calls) == 1
    assert not any("venv" in command for command in setup.calls)


def test_a_moved_environment_or_a_lost_python_is_made_anew(setup: ModuleType, prefix: Path) -> None:
    setup.Setup(prefix, "base", tools=True).run()
    moved = prefix.with_name(prefix.name + "_moved")
    prefix.rename(moved)
    setup.calls.clear()
    setup.Setup(moved, "base", tools=True).run()
    base = sys._base_executable  # type: ignore[attr-defined]
    assert setup.calls[0] == [base, "-m", "venv", "--clear", str(moved)] and len(setup.calls) == 6
    (moved / "bin" / "python").unlink()
    setup.calls.clear()
    assert setup.Setup(moved, "base", tools=True).state["steps"] == {}


def test_a_python_that_was_named_once_is_kept(tmp_path: Path) -> None:
    def chosen() -> str:
        command = ["make", "--dry-run", "--always-make", "--file", str(ROOT / "Makefile"), "setup"]
        said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        return re.findall(r'^"(.+)" envs/setup.py', said, re.MULTILINE)[0]

    own = tmp_path / ".venv/bin/python"
    assert chosen() != ".venv/bin/python"
    own.parent.mkdir(parents=True)
    own.symlink_to(sys.executable)
    assert chosen() == ".venv/bin/python"
    own.unlink()
    own.symlink_to(tmp_path / "gone")
    assert chosen() != ".venv/bin/python"


def test_a_change_of_family_removes_what_shares_a_folder_first(setup: ModuleType, prefix: Path) -> None:
    setup.Setup(prefix, "base", tools=False).run()
    setup.calls.clear()
    setup.Setup(prefix, "gpu", tools=False).run()
    removal, install = setup.calls
    assert "uninstall" in removal and "faiss-cpu" in removal and "faiss-gpu" not in removal
    assert any(str(part).endswith("gpu.txt") for part in install)


def test_a_local_wheel_is_looked_for_before_the_registry(
    setup: ModuleType, prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup.Setup, "pip_configuration", lambda self: ":env:.find-links='/somewhere'\n")
    environment = setup.Setup(prefix, "base", tools=False)
    environment.install_torch(False)
    (command,) = setup.calls
    assert "--no-index" in command

    def no_wheel(command: list[str], environment: object = None) -> None:
        setup.calls.append(command)
        if "--no-index" in command:
            raise setup.Stop("no wheel")

    monkeypatch.setattr(setup, "call", no_wheel)
    setup.calls.clear()
    environment.install_torch(False)
    assert ["--no-index" in command for command in setup.calls] == [True, False]


def test_a_gpu_gets_no_cpu_wheel_also_where_another_family_took_one(
    setup: ModuleType, prefix: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup.Setup, "pip_configuration", lambda self: ":env:.find-links='/somewhere'\n")
    setup.Setup(prefix, "base", tools=False).run()
    assert "torch is the CPU wheel" in capsys.readouterr().out
    for again in (1, 0):
        setup.calls.clear()
        setup.Setup(prefix, "gpu", tools=False).run()
        asked = [x for x in setup.calls if "torch" in x[-1]]
        assert [x[-1].endswith("/torch.txt") and "--force-reinstall" in x for x in asked] == [True] * again


def test_a_world_without_the_environment_that_makes_its_python_is_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load("setup")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "check_python", lambda: None)
    assert module.main(["--world", "procgen"]) == 1
    said = capsys.readouterr().err
    assert "There is no" in said and "run `make setup` first" in said


def test_the_family_cpu_takes_torchs_cpu_wheel_from_its_own_index_and_nothing_else_in_its_place(
    setup: ModuleType, prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCH_CPU_INDEX", raising=False)
    setup.Setup(prefix, "cpu", tools=False).run()
    (command,) = [x for x in setup.calls if x[-1].endswith("torch-cpu.txt")]
    assert "--require-hashes" in command and command[command.index("--index-url") + 1] == setup.CPU_INDEX
    assert any(x[-3].endswith("base.txt") for x in setup.calls if len(x) > 3)
    setup.calls.clear()
    monkeypatch.setenv("TORCH_CPU_INDEX", "file:///mirror")
    setup.Setup(prefix, "cpu", tools=False).install_torch(False)
    assert setup.calls[0][setup.calls[0].index("--index-url") + 1] == "file:///mirror"

    def unreachable(command: list[str], environment: object = None) -> None:
        raise setup.Stop("No network.")

    monkeypatch.setattr(setup, "call", unreachable)
    with pytest.raises(setup.Stop, match=r"file:///mirror\. No network\.\s.*TORCH_CPU_INDEX=[\s\S]*FAMILY=base"):
        setup.Setup(prefix, "cpu", tools=False).install_torch(False)


def test_a_later_family_keeps_the_cpu_torch_and_base_brings_the_registrys_back(setup: ModuleType, prefix: Path) -> None:
    def installed(family: str) -> list[list[str]]:
        """What is asked of pip and uv about torch and NVIDIA's libraries."""
        setup.calls.clear()
        setup.Setup(prefix, family, tools=False).run()
        return [x for x in setup.calls if "torch" in x[-1] or "uninstall" in x]

    registry, *_ = installed("base")
    assert registry[-1].endswith("/torch.txt") and "--force-reinstall" not in registry
    torch, removal = installed("cpu")
    assert torch[-1].endswith("/torch-cpu.txt") and "--force-reinstall" in torch
    assert "nvidia-cudnn-cu13" in removal and "faiss-cpu" not in removal
    assert not any("torch" in x[-1] for x in installed("amago"))
    torch, *_ = installed("base")
    assert torch[-1].endswith("/torch.txt") and "--force-reinstall" in torch


def test_nvidias_libraries_are_there_exactly_where_the_torch_that_was_found_declares_them(
    setup: ModuleType, prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def declared(command: list[str], **how: object) -> SimpleNamespace:
        """What the newest torch declares: nothing of NVIDIA's, where it is of the CPU lock or a local wheel."""
        torch = [x for x in setup.calls if "torch" in x[-1]][-1]
        return SimpleNamespace(stdout=b"numpy\n" + b"nvidia-cublas\n" * (torch[-1].endswith("/torch.txt")))

    monkeypatch.setattr(setup.Setup, "torch_wants_cuda", load("setup").Setup.torch_wants_cuda)
    monkeypatch.setattr(subprocess, "run", declared)
    monkeypatch.setattr(sys, "platform", "linux")
    local = ":env:.find-links='/somewhere'\n"
    for family, wheels, wanted in (
        ("base", "", True),
        ("amago", "", True),
        ("cpu", "", False),
        ("base", local, False),
        ("gpu", local, True),
    ):
        monkeypatch.setattr(setup.Setup, "pip_configuration", lambda self, wheels=wheels: wheels)
        setup.Setup(prefix, family, tools=False).run()
        installed = [x for x in setup.calls if any(str(word).endswith("/models.txt") for word in x)][-1]
        assert any(str(word).endswith("/cuda.txt") for word in installed) is wanted, family


def test_a_mirror_of_pip_is_used_by_uv_too_and_an_extra_index_is_not(
    setup: ModuleType, prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, str]] = []
    monkeypatch.setattr(setup, "call", lambda command, environment: given.append(environment))
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    monkeypatch.delenv("UV_INDEX_URL", raising=False)
    environment = setup.Setup(prefix, "base", tools=False)
    for configured in ("global.index-url='mirror'\n", "global.extra-index-url='other'\n"):
        monkeypatch.setattr(setup.Setup, "pip_configuration", lambda self, text=configured: text)
        environment.uv("install", "x")
    assert given[0].get("UV_DEFAULT_INDEX") == "mirror"
    assert "UV_DEFAULT_INDEX" not in given[1]


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "sha256"),
        ("Max retries exceeded with url", "network"),
        ("error: something else", "mend it"),
    ],
)
def test_a_failing_installer_is_explained(said: str, word: str) -> None:
    module = load("setup")
    code = f"import sys; print({said!r}, file=sys.stderr); sys.exit(3)"
    with pytest.raises(module.Stop, match=word):
        module.call([sys.executable, "-c", code])


def test_a_python_that_the_locks_do_not_know_and_one_without_venv_are_said_plainly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load("setup")
    for version in ((3, 9, 1), (3, 15, 0)):
        with monkeypatch.context() as patch:
            patch.setattr(module.sys, "version_info", version)
            assert module.main([]) == 1
        assert "Python 3.11 to 3.14 is needed" in capsys.readouterr().err
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None if name == "ensurepip" else object())
    assert module.main([]) == 1
    assert "python3-venv" in capsys.readouterr().err


def test_two_set_ups_are_never_at_work_together(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "LOCKS", tmp_path)
    folder = os.open(tmp_path, os.O_RDONLY)
    with setup.alone(), pytest.raises(BlockingIOError):
        fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(folder)


def test_the_set_up_script_can_be_read_by_a_python_that_is_too_old() -> None:
    ast.parse((ENVS / "setup.py").read_text(), feature_version=(3, 7))


# -------------------------------------------------------------------------------------------------- links, profiles


@pytest.mark.parametrize(
    ("link", "target"), [("profiles", "workflow/profiles"), ("cluster", "workflow/profiles/cluster")]
)
def test_the_links_at_the_root_are_relative_and_resolve(link: str, target: str) -> None:
    assert os.readlink(ROOT / link) == target
    assert (ROOT / link).is_dir()


def profile(name: str, *options: str) -> dict[str, object]:
    """What Snakemake reads in a profile when it is called with these options."""
    import yte

    text = (ROOT / "workflow" / "profiles" / name / "config.yaml").read_text()
    if "__use_yte__: true" not in text:
        settings: dict[str, object] = fast_yaml.load(text)
        return settings
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["snakemake", *options])
        patch.delenv("SNAKEMAKE_PROFILE", raising=False)
        rendered: dict[str, object] = yte.process_yaml(text, require_use_yte=True)
    return rendered


def test_snakemake_alone_uses_all_cores_and_a_chosen_profile_is_not_limited_by_it() -> None:
    default = profile("default")
    assert default["cores"] == "all"
    # The same command goes on after a kill, and a touched memory of gigabytes is the one that it was.
    assert default["rerun-incomplete"] and default["keep-incomplete"]
    assert int(str(default["max-checksum-file-size"])) >= 10**11
    assert "cores" not in profile("default", "--profile", "cluster")


@pytest.mark.parametrize("name", ["gpu", "cluster"])
def test_the_default_profile_overrides_nothing_of_a_chosen_one(name: str) -> None:
    """profiles/default is stronger than --profile, whole keys at a time."""
    assert not profile("default", "--profile", name).keys() & profile(name).keys()
    assert not profile("default", "--profile", name).keys() & {
        "executor",
        "jobs",
        "cores",
        "retries",
        "default-resources",
        "resources",
    }


@pytest.mark.parametrize(("name", "times"), [("gpu", 1), ("cluster", 2)])
def test_a_job_that_failed_is_tried_again_while_others_go_on(name: str, times: int) -> None:
    assert profile(name)["retries"] == times and profile(name)["keep-going"]


@pytest.mark.parametrize("name", ["default", "gpu", "cluster"])
def test_snakemake_knows_every_key_of_a_profile(name: str) -> None:
    from snakemake.cli import get_argument_parser

    known = {option.lstrip("-") for action in get_argument_parser()._actions for option in action.option_strings}
    assert profile(name).keys() <= known


# --------------------------------------------------------------------------------------------------- make, CI, law


def make(*arguments: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def test_help_lists_every_target() -> None:
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets
    listed = re.findall(r"^  make ([a-z-]+) +\S", make("help"), re.MULTILINE)
    assert sorted(listed) == sorted(targets[1].split())
    assert {"demo", "test", "smoke", "lint", "bench", "help", "test-all", "clean-env"} <= set(listed)


@pytest.mark.parametrize(
    ("target", "scale", "figures"),
    [("demo", "demo", "headlines"), ("demo-all", "demo", "demo_all"), ("smoke", "smoke", "demo_all")],
)
def test_a_target_says_its_scale_and_figures_whatever_the_configuration_does(
    target: str, scale: str, figures: str
) -> None:
    snakemake, finished = make("--dry-run", target).splitlines()[-2:]
    assert f" --config scale={scale} figures={figures} " in snakemake
    assert finished.endswith(f"recollect finished --scale {scale} {figures}")


@pytest.mark.parametrize("target", ["demo", "smoke", "test", "test-all", "lint", "bench"])
def test_every_target_sets_up_first(target: str) -> None:
    lines = [line for line in make("--dry-run", target).splitlines() if line.strip()]
    assert "envs/setup.py" in lines[0] and len(lines) > 1


def test_ci_runs_the_tests_and_can_be_executed() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test </dev/null" in script.read_text() and "pipefail" in script.read_text()


def test_the_licence_and_the_citation_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = fast_yaml.load((ROOT / "CITATION.cff").read_text())
    assert citation["license"] == project["license"] == "MIT"
    assert "the Recollect authors" in (ROOT / "LICENSE").read_text()


def test_nothing_of_the_set_up_names_a_registry_host_or_a_path_of_a_machine() -> None:
    named = [*ENVS.rglob("*"), *(ROOT / "workflow").rglob("*"), ROOT / "Makefile", ROOT / ".ci" / "run"]
    named += [ROOT / ".dvc" / "config", ROOT / ".pre-commit-config.yaml", ROOT / "CITATION.cff"]
    for path in named:
        if path.is_file() and path.suffix != ".pyc":
            # PyTorch's index is the one host: no registry has its CPU wheels, and TORCH_CPU_INDEX names a mirror.
            # Papers are cited where they are read.
            allowed = r"https://(download\.pytorch\.org/whl/cpu|arxiv\.org/abs/|openreview\.net/forum)"
            text = re.sub(allowed, "", path.read_text())
            found = re.search(r"https?://|/(home|root|opt|work|mnt)/", text)
            assert found is None, f"{path}: {found and found[0]}"


def test_the_digest_of_a_step_tells_apart_what_only_runs_together_otherwise(setup: ModuleType) -> None:
    assert setup.digest("ab", "c") != setup.digest("a", "bc")
    assert setup.digest("a") == hashlib.sha256(b"a").hexdigest()
