"""The bare clone that the users of tests/users come to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from reader import ROOT, User, at_smoke

GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"]
OURS = ("SNAKEMAKE", "DVC", "GIT", "RECOLLECT", "VIRTUAL", "PYTHON", "PYTEST", "MAKE", "MFLAGS")


def clone(folder: Path) -> None:
    """A clone of what git would keep of this working tree; its default is the scale at which users work here."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    origin = folder / "origin"
    for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
        if os.path.lexists(ROOT / name):
            (origin / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, origin / name, follow_symlinks=False)
    config = origin / "config/config.yaml"
    config.write_text(
        config.read_text(encoding="utf-8").replace("scale: demo\n", f"scale: {at_smoke('demo')}\n"), encoding="utf-8"
    )
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "start"], ["clone", "-q", ".", "../clone"]):
        subprocess.run([*GIT, *command], cwd=origin, check=True)


def shell() -> dict[str, str]:
    """This environment without what this project and its tools put there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    ours = str(Path(sys.executable).parent)
    path = [part for part in kept["PATH"].split(os.pathsep) if part != ours]
    return {**kept, "PATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}


@pytest.fixture(scope="session")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The clone that all users have, one after the other: a set-up takes a minute and 2 GB."""
    folder = tmp_path_factory.mktemp("users")
    clone(folder)
    yield folder / "clone"
    shutil.rmtree(folder)


@pytest.fixture
def user(cloned: Path) -> Iterator[Callable[..., User]]:
    """Makes a user who comes to the clone as it was, but for `.venv`."""
    users = []

    def comes(**given: Any) -> User:
        subprocess.run(["git", "checkout", "-q", "."], cwd=cloned, check=True)
        subprocess.run(["git", "clean", "-fdxq", "-e", ".venv"], cwd=cloned, check=True)
        users.append(User(cloned, shell(), **given))
        return users[-1]

    yield comes
    for each in users:
        each.leaves()
