"""The bare clone that the users of tests/users come to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_once import made_once
from reader import ROOT, User

GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"]


def clone_and_set_up(folder: Path) -> None:
    """Clone what git would keep of this working tree, and set it up once: the longest step, which all users have."""
    kept = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    there = b"\0".join(
        name for name in kept.stdout.split(b"\0") if name and os.path.lexists(os.fsencode(ROOT) + b"/" + name)
    )
    tar = subprocess.run(["tar", "-c", "--null", "-T", "-"], cwd=ROOT, input=there, capture_output=True, check=True)
    origin = folder / "origin"
    origin.mkdir()
    subprocess.run(["tar", "-x"], cwd=origin, input=tar.stdout, check=True)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "start"], ["clone", "-q", ".", "../clone"]):
        subprocess.run([*GIT, *command], cwd=origin, check=True)


def shell_of_a_newcomer() -> dict[str, str]:
    """This environment without what this project and its tools put there."""
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("SNAKEMAKE", "DVC", "GIT", "RECOLLECT", "VIRTUAL"))
    }
    kept.pop("PYTHONPATH", None)
    ours = str(Path(sys.executable).parent)
    path = os.pathsep.join(part for part in kept["PATH"].split(os.pathsep) if part != ours)
    return {**kept, "PATH": path, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}


@pytest.fixture(scope="session")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The clone that all users have, one after the other: a set-up costs each a minute and 2 GB."""
    if "USERS_DEV" in os.environ:
        return Path(os.environ["USERS_DEV"])
    return made_once(tmp_path_factory, "users", clone_and_set_up) / "clone"


@pytest.fixture
def user(cloned: Path) -> Callable[..., User]:
    """Makes a user who comes to the clone as it was, but for `.venv`."""

    def comes(**given: Any) -> User:
        for command in (
            () if "USERS_DEV" in os.environ else (["checkout", "-q", "."], ["clean", "-fdxq", "-e", ".venv"])
        ):
            subprocess.run(["git", *command], cwd=cloned, check=True)
        return User(cloned, shell_of_a_newcomer(), **given)

    return comes
