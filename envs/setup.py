"""Make `.venv` (or fill the conda environment that runs this) with exactly what envs/locks/ names.

- Needs Python 3.11 to 3.14 with pip and venv, and the package registry; nothing else. Standard library only, and
  written so that a Python from 3.7 on can read it, if only to say that it is too old.
- Every package is checked against a hash. torch comes by pip, so that pip's own configuration may offer a CPU wheel;
  all the rest by uv, from locks that are complete (no resolver, no build isolation that would fetch unlocked tools).
- `--family cpu` takes torch's CPU build from PyTorch's own index. What is set up later keeps it, until `base` or `gpu`.
- A step whose inputs have not changed is not done again (an unchanged set-up takes a tenth of a second). A step that
  was interrupted is done afresh by the next run.
- One environment holds what runs, draws, tests and lints: the test tools add seconds, a second venv would add minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "envs" / "locks"
WORLDS = ROOT / "envs" / "worlds"
OLDEST, NEWEST = (3, 11), (3, 14)  # for which the locks have wheels
STATE = "recollect-setup.json"
TORCH = {"cpu": "torch-cpu", "base": "torch", "gpu": "torch"}  # the lock of torch; other families keep what is there
SIZES = {
    "torch": "torch (530 MB, and 2.2 GB of NVIDIA's libraries; 190 MB with FAMILY=cpu, or where pip has a CPU wheel)",
    "torch-cpu": "torch for CPUs (190 MB)",
}
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's own; no registry has its CPU wheels for Linux
NETWORK = re.compile(
    r"Connection|resolve host|Name or service|Temporary failure|NameResolution|timed? ?out|dns error|ConnectError"
    r"|error sending request|Failed to fetch|No matching distribution|Max retries|Network is unreachable",
    re.IGNORECASE,
)
HASHES = re.compile(r"DO NOT MATCH THE HASHES|Hash mismatch", re.IGNORECASE)


class Stop(Exception):
    """What is wrong and what to do; printed alone, without a trace."""


class Setup:
    """The steps of a set-up, each with a digest of what it depends on, kept in one small file of the environment.

    Args:
        prefix: the environment's folder.
        family: the rule family whose lock is installed (`base`, `gpu`, ...).
        tools: also install what runs, tests and lints the workflow (not in conda environments: they only run jobs).
    """

    def __init__(self, prefix: Path, family: str, tools: bool) -> None:
        self.prefix, self.family, self.tools = prefix, family, tools
        self.state: dict[str, Any] = {"steps": {}, "running": None, "family": family}
        with contextlib.suppress(OSError, ValueError):
            self.state.update(json.loads((prefix / STATE).read_text()))
        if not os.path.exists(self.python):  # no environment, or its Python has gone
            self.state.update(steps={}, running=None)
        self.done = 0

    # -- the steps ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Do every step that is due, in order."""
        if self.tools:
            self.step("venv", "a new environment", self.make_venv, str(self.prefix), sys.version, sys.base_prefix)
        self.step("uv", "uv, the installer", self.install_uv, *read("uv"))
        if self.family == "gpu" and self.state.get("found"):  # another family took a CPU wheel, for the same lock
            self.state["steps"].pop("torch", None)
        self.step("torch", SIZES[self.torch], self.install_torch, *read(self.torch))
        locks = [self.family, "models", *(["cuda"] if self.torch_wants_cuda() else [])]
        inputs = [self.family, *read(*locks)]
        self.step("packages", ", ".join(locks), lambda again: self.install_packages(locks, again), *inputs)
        if self.tools:
            locks = ["workflow", "dev"]
            self.step("tools", ", ".join(locks), lambda again: self.install(locks, again), *read(*locks))
        self.step("project", "recollect itself", self.install_project, str(ROOT), (ROOT / "pyproject.toml").read_text())
        steps = (f"{name} {done}" for name, done in sorted(self.state["steps"].items()) if name != "bytecode")
        self.step("bytecode", "bytecode, so that every command starts fast", self.compile_packages, *steps)

    def step(self, name: str, said: str, action: Callable[[bool], None], *inputs: str) -> None:
        """Do one step unless nothing changed; a step that was interrupted is done with `again` set."""
        again = self.state["running"] == name
        if not again and self.state["steps"].get(name) == digest(*inputs):
            return
        self.done += 1
        say(f"set-up: {said}" + (" (again: it was not finished)" if again else ""))
        if self.prefix.is_dir() and name != "venv":
            self.state["running"] = name
            self.save()
        action(again)
        self.state["steps"][name], self.state["running"] = digest(*inputs), None
        self.save()

    def save(self) -> None:
        """Write the state in one go: a killed set-up leaves the old or the new file, never half of one."""
        temporary = self.prefix / (STATE + ".tmp")
        temporary.write_text(json.dumps(self.state, indent=1, sort_keys=True) + "\n")
        os.replace(temporary, self.prefix / STATE)

    # -- what they do ------------------------------------------------------------------------------------------

    @property
    def python(self) -> str:
        """The environment's interpreter."""
        return str(self.prefix / "bin" / "python")

    def make_venv(self, again: bool) -> None:
        """Make the venv anew, from nothing: also after a move of the folder or another Python."""
        self.state.update(steps={}, running=None, family=self.family)
        base = getattr(sys, "_base_executable", sys.executable)  # not this venv's own, which goes first
        call([base, "-m", "venv", "--clear", str(self.prefix)])

    def install_uv(self, again: bool) -> None:
        """The one package that pip installs first."""
        if subprocess.call([self.python, "-c", "import pip"], stderr=subprocess.DEVNULL):
            call([self.python, "-m", "ensurepip"])
        self.pip("--only-binary", ":all:", "-r", LOCKS / "uv.txt")

    @property
    def torch(self) -> str:
        """The lock of torch's build: the registry's, or the one for CPUs. Only Linux has two."""
        kept = TORCH.get(self.family, self.state.get("torch", "torch"))
        return kept if sys.platform.startswith("linux") else "torch"

    def install_torch(self, again: bool) -> None:
        """By pip and without what it declares: that comes from the locks.

        Where hashes are asked for, pip prefers an index, which lists them, to a local wheel, which does not; so a
        wheel that its `find-links` offers (a CPU build instead of several GB) is looked for first, and alone; not for `gpu`.
        """
        self.state.pop("cuda", None)
        # To pip a CPU build is a torch like another, so a change of build is forced.
        force = self.state.pop("found", False) or again or self.state.get("torch", self.torch) != self.torch
        self.state["torch"] = self.torch
        options = ["--no-deps", *(["--force-reinstall"] if force else []), "-r", str(LOCKS / (self.torch + ".txt"))]
        if self.family != "gpu" and "find-links=" in self.pip_configuration():
            with contextlib.suppress(Stop):
                self.pip("--quiet", "--no-index", *options[:-1], LOCKS / "torch-cpu.txt")
                self.state["found"] = True
                return say("set-up: torch is the CPU wheel that pip's find-links offers")
            say("set-up: pip's find-links offers no wheel that envs/locks/torch-cpu.txt knows; asking an index")
        if self.torch == "torch":
            return self.pip(*options)
        index = os.environ.get("TORCH_CPU_INDEX") or CPU_INDEX
        try:
            self.pip("--index-url", index, *options)
        except Stop as stop:
            raise Stop(
                f"torch for CPUs could not be had from {index}. {stop}\n"
                "  or: name a mirror of that index: `make setup FAMILY=cpu TORCH_CPU_INDEX=...`;\n"
                "  or: take the registry's build, which comes with NVIDIA's libraries: `make setup FAMILY=base`."
            ) from None

    def install_packages(self, locks: list[str], again: bool) -> None:
        """The family's lock. What only another family needs goes first: faiss-cpu and faiss-gpu share one folder."""
        if self.state["family"] != self.family:
            old = (names(self.state["family"]) | (set() if "cuda" in locks else names("cuda"))) - names(self.family)
            if old:
                self.uv("uninstall", *sorted(old))
            self.state["family"] = self.family
        self.install(locks, again)

    def install(self, locks: list[str], again: bool) -> None:
        """Packages from locks that are complete, with the build tools that the environment itself has."""
        options = ["--require-hashes", "--no-deps", "--no-build-isolation", *(["--reinstall"] if again else [])]
        self.uv("install", *options, *(x for name in locks for x in ("-r", file_of(name))))

    def install_project(self, again: bool) -> None:
        """The package of this repository, in place: an edit needs no set-up."""
        self.uv("install", "--no-deps", "--no-build-isolation", "-e", ROOT)

    def compile_packages(self, again: bool) -> None:
        """Write the packages' bytecode. The installers do not, and where PYTHONDONTWRITEBYTECODE is set nobody would:
        importing torch and pandas then takes 7.7 CPU seconds in every job instead of 3.2 (measured on two cores).
        """
        code = "import compileall, sysconfig; compileall.compile_dir(sysconfig.get_path('purelib'), quiet=2, workers=0)"
        call([self.python, "-c", code])

    def torch_wants_cuda(self) -> bool:
        """Whether the torch that pip found declares NVIDIA's libraries (the registry's build for Linux does)."""
        code = "import importlib.metadata as m; print(*(m.requires('torch') or []), sep='\\n')"
        if "cuda" not in self.state or self.state["cuda"][0] != self.state["steps"].get("torch"):
            declared = subprocess.run([self.python, "-c", code], stdout=subprocess.PIPE, check=True).stdout.decode()
            wanted = sys.platform.startswith("linux") and bool(re.search(r"^(nvidia-|cuda-)", declared, re.MULTILINE))
            self.state["cuda"] = [self.state["steps"].get("torch"), wanted]
        return self.state["cuda"][1]

    def pip(self, *arguments: str | Path) -> None:
        """pip's install, which reads the user's pip configuration (mirrors, local wheels)."""
        call([self.python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-compile",
              "--require-hashes", *map(str, arguments)])  # fmt: skip

    def pip_configuration(self) -> str:
        """How pip is set up here, by files and by the environment: one `key='value'` a line."""
        asked = [self.python, "-m", "pip", "config", "list"]
        return subprocess.run(asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()

    def uv(self, command: str, *arguments: str | Path, python: str | None = None) -> None:
        """uv in this environment, or for another Python; a mirror that pip is set to use is used by uv too."""
        environment = dict(os.environ)
        if not environment.keys() & {"UV_DEFAULT_INDEX", "UV_INDEX_URL"}:
            mirror = re.search(r"^\S*\.index-url='([^']+)'", self.pip_configuration(), re.MULTILINE)
            if mirror:
                environment["UV_DEFAULT_INDEX"] = mirror.group(1)
        uv = str(self.prefix / "bin" / "uv")
        call([uv, "pip", command, "--quiet", "--python", python or self.python, *map(str, arguments)], environment)


class WorldSetup(Setup):
    """The steps for a world that another Python plays: `.venv-WORLD`, from envs/worlds/WORLD.txt.

    There is nothing to build.

    Args:
        world: its name.
        base: the Python that it is made of, a path or a version; one that uv finds, or else fetches.
    """

    def __init__(self, world: str, base: str) -> None:
        super().__init__(ROOT / f".venv-{world}", world, tools=False)
        self.base = base
        self.tool = Setup(ROOT / ".venv", "base", tools=True)

    def run(self) -> None:
        """Do every step that is due, in order."""
        lock = WORLDS / f"{self.family}.txt"
        self.step("venv", f"Python {self.base} for {self.family}", self.make_venv, str(self.prefix), self.base)
        self.step("packages", self.family, lambda again: self.install_lock(lock, again), lock.read_text())

    def make_venv(self, again: bool) -> None:
        """Make the venv anew, from nothing."""
        self.state.update(steps={}, running=None)
        uv = str(self.tool.prefix / "bin" / "uv")
        try:
            call([uv, "venv", "--quiet", "--clear", "--python", self.base, str(self.prefix)])
        except Stop:
            raise Stop(
                f"Python {self.base} is not here, and could not be fetched (see above).\n"
                f"  to do: install it and name it: `make {self.family} WORLD_PYTHON=/its/path/python3.10`; "
                f"or let conda bring it, as envs/worlds/{self.family}.yaml says."
            ) from None

    def install_lock(self, lock: Path, again: bool) -> None:
        """Wheels only, each checked against a hash."""
        options = ["--require-hashes", "--no-deps", "--only-binary", ":all:", *(["--reinstall"] if again else [])]
        self.uv("install", *options, "-r", lock)

    def uv(self, command: str, *arguments: str | Path) -> None:
        """The project's uv, for this environment."""
        self.tool.uv(command, *arguments, python=self.python)


def say(line: str) -> None:
    """One line for the person who waits."""
    print(line, flush=True)


def read(*locks: str) -> list[str]:
    """The texts of some locks: what a step depends on."""
    return [file_of(name).read_text() for name in locks]


def file_of(name: str) -> Path:
    """The file of a lock; the family `cpu` has that of `base`."""
    return LOCKS / f"{'base' if name == 'cpu' else name}.txt"


def names(lock: str) -> set[str]:
    """The packages that a lock names."""
    return set(re.findall(r"^([a-z0-9-]+)==", read(lock)[0], re.MULTILINE))


def digest(*texts: str) -> str:
    """One sha256 over several texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def call(command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run one installer, showing what it says; explain the failures that a person can mend."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, close_fds=False
    )
    last: list[str] = []
    assert process.stderr is not None
    for line in iter(process.stderr.readline, b""):
        sys.stderr.buffer.write(line)
        sys.stderr.flush()
        last = [*last[-200:], line.decode(errors="replace")]
    if process.wait() == 0:
        return
    said = "".join(last)
    if HASHES.search(said):
        raise Stop(
            "A package is not the one that envs/locks names: its sha256 differs (see above).\n"
            "  to do: look at where pip and uv fetch from (`pip config list`); do not switch the check off."
        )
    if NETWORK.search(said):
        raise Stop(
            "The package registry could not be reached, or does not have a package (see above).\n"
            "  to do: look at the network, at HTTPS_PROXY and at `pip config list`, then run the same command again: "
            "it goes on where it stopped."
        )
    raise Stop(f"This failed (see above): {' '.join(command)}\n  to do: mend it and run the same command again.")


def check_python() -> None:
    """Stop early where this Python cannot make the environment."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        raise Stop(
            f"Python {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]} is needed; {sys.executable} is {sys.version.split()[0]}.\n"
            "  to do: install it and run the same target with `make PYTHON=/its/path/python3.11`."
        )
    missing = [x for x in ("venv", "ensurepip") if importlib.util.find_spec(x) is None]
    if missing:
        raise Stop(
            f"{sys.executable} has no module `{missing[0]}`, so it cannot make a virtual environment.\n"
            "  to do: install it (on Debian and Ubuntu: `apt-get install python3-venv`) and run the same command again."
        )


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One set-up at a time: a second one waits for the first and then finds nothing to do.

    The installers inherit the lock, so that one which outlives a killed set-up is waited for too.
    """
    import fcntl

    folder = os.open(str(LOCKS), os.O_RDONLY)
    os.set_inheritable(folder, True)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("set-up: another one is running; waiting for it")
            fcntl.flock(folder, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(folder)


def set_up_world(world: str, python: str) -> int:
    """Make a world's own Python; 0 when it is as its lock says."""
    worlds = sorted(path.stem for path in WORLDS.glob("*.txt"))
    if world not in worlds:
        raise Stop(f"`{world}` has no Python of its own.\n  to do: choose one of {', '.join(worlds)}.")
    setup = WorldSetup(world, python)
    if not (setup.tool.prefix / "bin" / "uv").exists():
        raise Stop(f"There is no {setup.tool.prefix}/bin/uv to make it with.\n  to do: run `make setup` first.")
    setup.run()
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Set up; 0 when the environment is as the locks say."""
    parser = argparse.ArgumentParser(description="Install exactly what envs/locks names.")
    parser.add_argument("--family", help="the rule family, as in envs/FAMILY.yaml (default: the last one, else base)")
    parser.add_argument("--here", action="store_true", help="fill the environment of this Python, for jobs only")
    parser.add_argument("--world", help="a world that another Python plays, as in envs/worlds: make .venv-WORLD")
    parser.add_argument("--python", default="3.10", help="the Python that .venv-WORLD is made of: a path or a version")
    chosen = parser.parse_args(arguments)
    start = time.monotonic()
    try:
        check_python()
        prefix = Path(sys.prefix) if chosen.here else ROOT / ".venv"
        with alone():
            if chosen.world:
                return set_up_world(chosen.world, chosen.python)
            setup = Setup(prefix, chosen.family or "base", tools=not chosen.here)
            setup.family = chosen.family or setup.state["family"]
            families = sorted(path.stem for path in LOCKS.parent.glob("*.yaml"))
            if setup.family not in families:
                raise Stop(f"There is no family `{setup.family}`.\n  to do: choose one of {', '.join(families)}.")
            setup.run()
    except Stop as stop:
        print(f"set-up stopped. {stop}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nset-up interrupted; run the same command again: it goes on where it stopped.", file=sys.stderr)
        return 130
    if setup.done:
        say(f"set-up: done in {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
