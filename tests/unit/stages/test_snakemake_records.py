"""Where Snakemake keeps a record, on file systems with long names and with short ones."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from recollect.stages import paths
from recollect.stages.snakemake_records import METADATA, record_path
from recollect.stages.stage import Job
from recollect.stages.why import in_words

OF = ("smoke", "dark_room_10x10", "dt.context=5,optimisation.steps=7,optimisation.batch_size=3", "0")


@pytest.mark.parametrize("longest", [143, 255, 0])
def test_a_file_that_was_made_and_is_gone_is_known_whatever_names_the_file_system_takes(
    longest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    METADATA.mkdir(parents=True)
    monkeypatch.setattr(os, "pathconf", lambda path, name: {METADATA: longest}[path])
    policy = paths.policy(*OF)
    assert in_words(Job("train", *OF), "") == "never made"
    # As Snakemake cuts a name: folders that begin with @, each as long as a name may be.
    name = base64.urlsafe_b64encode(policy.as_posix().encode()).decode()
    assert 143 < len(name) < 254
    place = METADATA / f"@{name[:142]}" / name[142:] if longest == 143 else METADATA / name
    assert record_path(policy.as_posix()) == place
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("{}")
    assert in_words(Job("train", *OF), "") == f"missing: {policy} was made and is gone"


def test_where_snakemake_never_ran_nothing_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not record_path("results/a.pdf").exists() and not METADATA.parent.exists()
    assert in_words(Job("train", *OF), "") == "never made"
