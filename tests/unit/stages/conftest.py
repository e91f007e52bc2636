"""Shared by tests of stages: a figure that the fixture `made` of a file has made once, copied for each test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def few(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The figure "few" in a working directory of the test's own."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RECOLLECT_CONFIG", raising=False)
    return "few"
