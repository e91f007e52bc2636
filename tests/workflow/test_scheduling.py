"""What Snakemake does besides jobs costs little: it chooses jobs when one has ended, and not again and again in between; and it
reads an input once.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
JOBS = 8
SNAKEFILE = f"""
import sys

sys.path.insert(0, "{ROOT}/workflow")
import snakemake_internals
from snakemake.scheduling.job_scheduler import JobScheduler

choose = JobScheduler.job_selector


def counted(self, jobs):
    with open("looks", "a") as file:
        file.write(".")
    return choose(self, jobs)


JobScheduler.job_selector = counted


onstart:
    if "{{mended}}":
        snakemake_internals.look_at_ready_jobs_when_one_ends()


rule all:
    input: [f"{{number}}.txt" for number in range({JOBS})]


rule one:
    output: "{{number}}.txt"
    shell: "sleep 0.6; touch {{output}}"
"""


def looks(folder: Path, mended: str, *words: str) -> int:
    """How often Snakemake looks at what is ready, in a run of some jobs of half a second."""
    (folder / "Snakefile").write_text(SNAKEFILE.replace("{mended}", mended), encoding="utf-8")
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--quiet", "all", *words]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    assert len(list(folder.glob("*.txt"))) == JOBS
    return len((folder / "looks").read_text())


@pytest.mark.slow
def test_ready_jobs_are_looked_at_when_a_job_has_ended(tmp_path: Path) -> None:
    assert looks(tmp_path, "yes") <= JOBS + 2


@pytest.mark.slow
def test_jobs_that_the_limit_per_second_holds_back_are_started_later(tmp_path: Path) -> None:
    assert looks(tmp_path, "yes", "--max-jobs-per-timespan", "2/1s") >= JOBS / 2


@pytest.mark.slow
def test_snakemake_by_itself_looks_more_often(tmp_path: Path) -> None:
    """Should this fail, Snakemake has mended it: drop `look_at_ready_jobs_when_one_ends`."""
    assert looks(tmp_path, "") > JOBS + 5


READS = f"""
import sys

sys.path.insert(0, "{ROOT}/workflow")
import snakemake_internals
from snakemake.io import _IOFile

checksum = _IOFile.checksum


async def counted(self, *told, **more):
    with open("reads", "a") as file:
        file.write(self + " ")
    return await checksum(self, *told, **more)


_IOFile.checksum = counted
snakemake_internals.remember_checksums()


rule second:
    input: "first"
    output: [f"{{number}}.txt" for number in range({JOBS})]
    shell: "touch {{output}}"


rule first:
    input: "data"
    output: "first"
    shell: "cp {{input}} {{output}}"
"""


@pytest.mark.slow
def test_an_input_is_read_once_for_all_outputs_of_a_job_and_again_where_it_changed(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(READS, encoding="utf-8")
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--quiet", "all"]
    for content in ("one", "two"):
        (tmp_path / "data").write_text(content)
        (tmp_path / "reads").write_text("")
        subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
        reads = (tmp_path / "reads").read_text().split()
        # The second time `first` is read as it was, to plan, and as it was made.
        assert reads.count("data") == 1 and reads.count("first") <= 2
        assert (tmp_path / "first").read_text() == content
