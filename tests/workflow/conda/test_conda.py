"""`snakemake --sdm conda` makes an environment from envs/, fills it from the locks, and runs jobs in it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
UV = Path(sys.executable).with_name("uv")
FAMILIES = sorted(path.stem for path in (ROOT / "envs").glob("*.yaml"))
SCORES = "results/smoke/runs/tmaze_passive_5/dqn_ff/seed_0/scores.parquet"


@pytest.fixture(scope="module")
def conda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a `conda` whose one channel is local, and a `recollect` that fails: an environment has its own."""
    folder = tmp_path_factory.mktemp("conda")
    packages, channel, commands = folder / "packages", folder / "channel", folder / "root" / "bin"
    command = [
        UV,
        "pip",
        "install",
        "--quiet",
        "--python",
        sys.executable,
        "--target",
        packages,
        "py-rattler",
        "pyyaml",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    code = (
        f"import sys; sys.path[:0] = [{str(HERE)!r}, {str(packages)!r}]; from pathlib import Path; import stand_in; "
        f"stand_in.make_channel(Path({str(channel)!r})); "
        f"stand_in.make_commands(Path({str(commands)!r}), Path({str(packages)!r}), Path({str(channel)!r})); "
        "stand_in.end()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (commands / "recollect").write_text("#!/bin/sh\necho not in the environment >&2\nexit 9\n")
    (commands / "recollect").chmod(0o755)
    return commands


def test_jobs_run_in_an_environment_that_conda_made_and_the_locks_filled(
    conda: Path, real_workflow: Callable[[str], Any]
) -> None:
    workflow = replace(real_workflow("conda"), commands=conda)
    (workflow.folder / "README.md").write_text("of the package\n")
    (workflow.folder / "LICENSE").write_text("of the package\n")
    workflow.run("snakemake", "--sdm", "conda", "--cores", "1", "--show-failed-logs", SCORES, timeout=1800)
    assert (workflow.folder / SCORES).exists()
    (environment,) = (workflow.folder / ".snakemake/conda").glob("*_/")
    assert (environment / "bin/recollect").exists()
    installed = subprocess.run(
        [environment / "bin/python", "-I", "-c", "import importlib.metadata as m; print(m.version('numpy'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"numpy=={installed.stdout.strip()} " in (ROOT / "envs/locks/base.txt").read_text()

    # The environment stays: another job does not make it anew.
    said = workflow.snakemake("--sdm", "conda", "--cores", "1", SCORES.replace("seed_0", "seed_1"))
    assert "Creating conda environment" not in said


@pytest.mark.parametrize("family", FAMILIES)
def test_the_locks_of_an_environment_are_what_its_requirements_resolve_to(family: str, tmp_path: Path) -> None:
    """Resolved anew with the lock as constraints, for the Python of envs/FAMILY.yaml: nothing is missing, nothing differs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python = re.search(r"python=([\d.]+)", (ROOT / "envs" / f"{family}.yaml").read_text())
    assert python
    names = set(re.findall(r"locks/([a-z0-9_-]+)\.txt", (ROOT / "envs" / f"{family}.yaml").read_text()))
    locked = {}
    for name in names:
        pins = re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "envs/locks" / f"{name}.txt").read_text(), re.MULTILINE)
        locked.update({name: version.removesuffix("+cpu") for name, version in pins})
    apart = {
        name for name, _ in re.findall(r"^(\S+)==(\S+)", (ROOT / "envs/locks/models.txt").read_text(), re.MULTILINE)
    }
    replaced = {"faiss-cpu"} - locked.keys()
    wanted = [x for x in [*project["dependencies"], *project["optional-dependencies"].get(family, [])]]
    wanted = [x for x in wanted if re.split(r"[=<>~ ]", x)[0] not in apart | replaced]
    if replaced:
        wanted.append("faiss-gpu")
    (tmp_path / "wanted.in").write_text("\n".join(wanted) + "\n")
    (tmp_path / "pins.txt").write_text("".join(f"{name}=={version}\n" for name, version in locked.items()))
    command = [UV, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", python[1]]
    command += ["--python-platform", "x86_64-manylinux_2_28", "--constraint", tmp_path / "pins.txt"]
    done = subprocess.run([*command, tmp_path / "wanted.in"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    resolved = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", done.stdout, re.MULTILINE))
    if "torch-cpu" in names:  # the registry, which is asked here, has the CUDA build alone
        cuda = re.findall(r"^([a-z0-9-]+)==", (ROOT / "envs/locks/cuda.txt").read_text(), re.MULTILINE)
        resolved = {name: version for name, version in resolved.items() if name not in cuda}
    assert {name: version for name, version in resolved.items() if locked.get(name) != version} == {}
    assert "torch" in resolved
