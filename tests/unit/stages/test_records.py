"""The record of a job says what it took, and what it was made with."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_results import method_changed

from recollect.stages import circumstances, records
from recollect.stages.provenance import digest
from recollect.stages.stage import Job
from recollect.stages.table import STAGES

JOB = Job("train", "smoke", "dark_room_10x10", "dt", "0")


def git(*words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, capture_output=True)


@pytest.fixture
def clone(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(root / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    git("add", "config")
    git("commit", "-qm", "first")
    return tmp_path


def test_a_record_has_the_commit_that_was_there_when_the_job_began(clone: Path) -> None:
    began, settings = circumstances.commit(), STAGES["train"].settings_text(JOB)

    def work() -> None:
        method_changed("dt")
        (clone / "later").write_text("")
        git("add", "later")
        git("commit", "-qm", "second")

    records.timed(STAGES["train"], JOB, "cpu", work)
    assert began and began != circumstances.commit()
    known = records.read(records.place(JOB))
    assert known is not None and known.made_with is not None
    assert known.settings == digest(settings) != digest(STAGES["train"].settings_text(JOB))
    assert known.made_with["commit"] == began and known.made_with["processor"] == circumstances.processor()
    assert known.made_with.keys() == {"commit", "processor", "python", "torch"}


def test_records_of_before_they_said_so_are_still_read(clone: Path) -> None:
    records.timed(STAGES["train"], JOB, "cpu", lambda: None)
    whole = records.read(records.place(JOB))
    assert whole is not None
    old = {name: value for name, value in whole._asdict().items() if name != "made_with"}
    records.write_json(records.place(JOB), old, kind=records.KIND)
    assert records.read(records.place(JOB)) == whole._replace(made_with=None)


@pytest.mark.parametrize(("system", "said"), [("linux", 1024.0), ("darwin", 1.0)])
def test_memory_is_in_millions_of_bytes_whatever_a_system_counts_in(
    clone: Path, monkeypatch: pytest.MonkeyPatch, system: str, said: float
) -> None:
    monkeypatch.setattr(records, "sys", SimpleNamespace(platform=system))
    peak = SimpleNamespace(ru_maxrss=1_000_000)
    monkeypatch.setattr(records, "resource", SimpleNamespace(getrusage=lambda who: peak, RUSAGE_SELF=0))
    records.timed(STAGES["train"], JOB, "cpu", lambda: None)
    known = records.read(records.place(JOB))
    assert known is not None and known.megabytes == said


def test_each_of_several_jobs_beside_each_other_is_said_to_have_taken_its_share(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "time", SimpleNamespace(perf_counter=iter([10.0, 22.0]).__next__))
    monkeypatch.setattr(records, "beside", 3)
    records.timed(STAGES["train"], JOB, "cpu", lambda: None)
    known = records.read(records.place(JOB))
    assert known is not None and known.seconds == 4.0


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            "model name\t: AMD EPYC\nflags\t\t: fpu avx512f avx2\nmodel name\t: AMD EPYC\nflags\t: fpu",
            "AMD EPYC with AVX-512",
        ),
        ("model name\t: AMD EPYC\nflags\t\t: fpu avx2 avx512_no", "AMD EPYC without AVX-512"),
        ("model name\t: Neoverse-N1\nFeatures\t: fp asimd", "Neoverse-N1"),
    ],
)
def test_a_processor_is_told_from_one_of_the_same_name_without_avx_512(told: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(told)
    assert circumstances.processor(tmp_path / "cpuinfo") == said
