"""Commands that call Snakemake find its file, in the folder they run in or beside the configuration; its jobs find `recollect`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from recollect.stages.rules import find_commands
from recollect.stages.snakemake_command import snakemake_command


def test_the_snakefile_beside_the_configuration_is_called_where_the_folder_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone, here = tmp_path / "clone", tmp_path / "here"
    (clone / "config/scales").mkdir(parents=True)
    (clone / "Snakefile").touch()
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("RECOLLECT_CONFIG", str(clone / "config"))
    assert snakemake_command("--dry-run")[3:] == ["--snakefile", str(clone / "Snakefile"), "--dry-run"]
    (here / "Snakefile").touch()
    assert snakemake_command("--dry-run")[3:] == ["--dry-run"]


def test_jobs_run_the_command_of_this_python_also_where_another_environment_is_activated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = str(Path(sys.executable).parent)
    command = tmp_path / "recollect"
    command.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    find_commands()
    assert shutil.which("recollect") == str(command)  # a command by itself, as the tests of the workflow have one
    (tmp_path / "python").touch(mode=0o755)
    find_commands()
    assert os.environ["PATH"] == f"{own}{os.pathsep}{tmp_path}"
