"""Commands that call Snakemake find its file, in the folder they run in or beside the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

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
