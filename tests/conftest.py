"""Shared by all tests: the repository, and a working directory with a configuration of its own."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import preloaded
import pytest
from made_once import made_once

from recollect.settings import catalogue, still

# A property is no benchmark: on a busy machine a first example can take longer than the 200 ms that it is given.
hypothesis.settings.register_profile("recollect", deadline=None)
hypothesis.settings.load_profile("recollect")

if TYPE_CHECKING:
    from local_slurm import LocalSlurm

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests/workflow/slurm"))
# Tests press Ctrl-C in programs that they start. In the background of a script it is ignored, there and in all that is started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Your own code in `mine/` is not what these tests are about. (A test of own code names another folder.)
os.environ["RECOLLECT_MINE"] = "no_own_code"


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test that names parameters in `@pytest.mark.quick` is slow with all others.

    Raises:
        pytest.UsageError: a name that is of none of its parameters; seen where whole files are collected.
    """
    missing: dict[tuple[str, str], set[str]] = {}
    for item in items:
        if (quick := item.get_closest_marker("quick")) is None:
            continue
        assert isinstance(item, pytest.Function)
        names = missing.setdefault((item.location[0], item.originalname), set(quick.args))
        if item.callspec.id in quick.args:
            names.remove(item.callspec.id)
        else:
            item.add_marker("slow")
    if not any("::" in argument for argument in config.args):
        for (file, test), names in missing.items():
            if names:
                raise pytest.UsageError(
                    f"{file}: {test} has no parameters {sorted(names)}, which its mark `quick` names"
                )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage: that was a third of the time of collecting in a fresh clone.

    What stands then, stays: so no collection of garbage looks through all modules and tests again, for a fifth of a second. It
    looks among what is new more seldom, too: that was 2 to 5 % of the time of tests that draw and inspect.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000)


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk() -> Iterator[None]:
    """No test cuts the power, so nothing that this process writes needs to reach the disk at once.

    That took a seventh of the time. Programs that tests start flush their files, and a test holds the order of flush and rename.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: os.fstat(descriptor) and None)
        yield


@pytest.fixture(autouse=True)
def loggers_as_they_were() -> Iterator[None]:
    """A test that runs a command in this process sets the levels of loggers; the next test must not see it."""
    levels = [(logger, logger.level) for logger in (logging.getLogger(), logging.getLogger("recollect"))]
    yield
    for logger, level in levels:
        logger.setLevel(level)


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plug-ins of this repository, as if they were installed."""
    packages = {f"recollect_{name}": ROOT / "plugins" / name / f"recollect_{name}" for name in ("avalon", "psychlab")}
    monkeypatch.setattr(catalogue, "_plugins", lambda: packages)
    for folder in packages.values():
        monkeypatch.syspath_prepend(str(folder.parent))


@pytest.fixture(autouse=True)
def what_is_remembered_ends_with_a_test() -> Iterator[None]:
    """Or another test would not see its own changes."""
    yield
    assert not still._still, "the process still holds still, see recollect.settings.still"


@pytest.fixture
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in the repository itself, with its own configuration, of which each file is read once."""
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("RECOLLECT_CONFIG", raising=False)
    with still.held_still(anew=True):
        yield


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory with a copy of the repository's configuration, which the test may change."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RECOLLECT_CONFIG", raising=False)
    before, still._still = still._still, False  # a change is seen
    yield tmp_path
    still._still = before


@pytest.fixture(scope="session")
def smoke_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory where the offline stages before training were run once at smoke scale (Dark-Room 10x10)."""
    return made_once(tmp_path_factory, "smoke_data", run_smoke_stages)


def run_smoke_stages(folder: Path) -> None:
    shutil.copytree(ROOT / "config", folder / "config")
    env = ["--scale", "smoke", "--env", "dark_room_10x10"]
    for command in (
        ["generate", *env],
        ["train", *env, "--method", "dt", "--seed", "0"],
        ["embed", *env, "--method", "radt"],
        ["index", *env, "--method", "radt"],
    ):
        done = recollect(*command, cwd=folder)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def smoke_workdir(smoke_data: Path, tmp_path: Path) -> Path:
    """A copy of `smoke_data` that the test may change."""
    folder = tmp_path / "work"
    shutil.copytree(smoke_data, folder)
    return folder


def recollect(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of ours as a user would, in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    return preloaded.run("recollect.cli", [*arguments, *threads_of(arguments)], cwd=cwd, env=environment)


def threads_of(arguments: tuple[str, ...]) -> list[str]:
    """One thread for the commands that take `--threads`, where the test says no number."""
    stages = {"generate", "embed", "index", "train", "evaluate"}
    return ["--threads", "1"] if arguments and arguments[0] in stages and "--threads" not in arguments else []


@pytest.fixture
def run_recollect() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`recollect(*arguments, cwd=...)` as a fixture."""
    return recollect


@pytest.fixture(scope="session")
def slurm() -> Iterator[LocalSlurm]:
    """A SLURM of three virtual nodes. One at a time on a machine, however many processes test."""
    from local_slurm import Unavailable, local_slurm

    with (Path(tempfile.gettempdir()) / f"recollect-slurm-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            with local_slurm() as cluster:
                yield cluster
        except Unavailable as reason:
            pytest.skip(f"SLURM cannot be had here: {reason}")


@pytest.fixture
def cluster(slurm: LocalSlurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalSlurm]:
    """That SLURM, its commands on PATH and its queue empty, before and after."""
    from local_slurm import wait_for

    monkeypatch.setenv("PATH", slurm.environment["PATH"])
    assert slurm.queue() == []
    yield slurm
    slurm.ask("scancel", "--full", "--user", str(os.getuid()))
    wait_for(lambda: not slurm.queue(), 60, "the queue does not get empty")
