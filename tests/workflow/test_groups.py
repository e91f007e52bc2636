"""What `make test` and `make test-all` run, and where: tests that share SLURM or a browser run in one process, in turn."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE = """
import os, pathlib, pytest
@pytest.mark.xdist_group("server")
@pytest.mark.parametrize("number", range(6))
def test_shares(number):
    pathlib.Path("processes", str(os.getpid())).touch()
"""


@pytest.mark.slow
def test_tests_of_one_group_run_in_one_process(tmp_path: Path) -> None:
    """pytest 9.2 ended that: pytest-xdist 3.8 writes the group where 9.2 no longer looks."""
    (whole,) = re.findall(r"^test-all:.*\n\t.*\$\(BIN\)/pytest (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    (tmp_path / "test_shared.py").write_text(FILE)
    (tmp_path / "processes").mkdir()
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", *whole.split(), "-p", "no:cacheprovider"]
    command.append(f"--basetemp={tmp_path / 'own'}")  # else it clears away what other runs of pytest left in /tmp
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "6 passed" in done.stdout, done.stdout
    assert len(list((tmp_path / "processes").iterdir())) == 1


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.quick("1")
def test_parameters_that_a_test_does_not_name_as_quick_are_slow(number: int, request: pytest.FixtureRequest) -> None:
    assert (request.node.get_closest_marker("slow") is None) == (number == 1)
