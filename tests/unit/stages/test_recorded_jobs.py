"""What finished jobs took is written down by a command, and forecasts of a folder in which nothing has run reckon from it."""

from __future__ import annotations

import sys
from pathlib import Path

import fast_yaml
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # benchmarks is no part of the package

from benchmarks import jobs
from recollect.artifacts.sealed import write_json
from recollect.settings.errors import UserError
from recollect.stages import check, recorded_jobs, records
from recollect.stages.estimating import Estimator
from recollect.stages.forecast import forecast, measurements
from recollect.stages.provenance import digest
from recollect.stages.recorded_jobs import RecordedJob
from recollect.stages.records import Record
from recollect.stages.stage import Job
from recollect.stages.table import STAGES

ROOM = "dark_room_10x10"


def finish(stage: str, seed: str, seconds: float, *, device: str = "cpu", scale: str = "smoke") -> None:
    job = Job(stage, scale, ROOM, "dt", seed)
    known = Record(job, seconds, False, 1.0, device, digest(STAGES[stage].settings_text(job)))
    write_json(records.place(job), known._asdict(), kind=records.KIND)


@pytest.fixture
def finished(workdir: Path) -> Path:
    """A working directory in which three seeds of DT were trained and scored on a CPU, and another on a GPU."""
    for seed, seconds in (("0", 10.0), ("1", 40.0), ("2", 12.0)):
        finish("train", seed, seconds)
        finish("evaluate", seed, seconds / 10)
    finish("train", "3", 1e9, device="cuda")
    return workdir


def test_a_job_is_written_down_with_the_median_of_its_seeds_and_jobs_of_other_scales_stay(finished: Path) -> None:
    before, state = {one.job: one for one in recorded_jobs.read()}, check.state()
    assert before and not any(job.scale == "smoke" for job in before)
    assert jobs.main(["smoke"]) == 0
    after = {one.job: one for one in recorded_jobs.read()}
    new = {job: after[job].seconds for job in after.keys() - before.keys()}
    assert new == {Job("train", "smoke", ROOM, "dt"): 12.0, Job("evaluate", "smoke", ROOM, "dt"): 1.2}
    assert {job: after[job] for job in before} == before
    assert check.state() != state  # so what was forecast from the file before is not kept
    finish("train", "1", 11.0)  # it replaces the row of its job
    assert jobs.main(["smoke"]) == 0
    assert {one.job: one for one in recorded_jobs.read()}[Job("train", "smoke", ROOM, "dt")].seconds == 11.0


def test_a_forecast_says_recorded_and_takes_the_seconds_or_carries_them_to_another_size(finished: Path) -> None:
    recorded_jobs.path().unlink()
    jobs.main(["smoke"])
    figure = fast_yaml.load((finished / "config/figures/radt_dark_room_10x10.yaml").read_text())
    small = {**figure, "environments": [ROOM], "methods": ["dt"], "seeds": [7], "references": []}
    (finished / "config/figures/one.yaml").write_text(fast_yaml.dump(small))
    run = Job("run", "smoke", ROOM, "dt", "7")
    found = forecast("smoke", ["one"], measured={}).estimates[run]
    assert (found.seconds, found.source) == (pytest.approx(12.0 + 1.2, rel=0.01), "recorded")  # four digits of its work

    smoke = fast_yaml.load((finished / "config/scales/smoke.yaml").read_text())
    steps = smoke["methods"]["dt"]["hyperparameters"]["optimisation"]["steps"]
    smoke["methods"]["dt"]["hyperparameters"]["optimisation"] |= {"steps": 2 * steps}
    (finished / "config/scales/demo.yaml").write_text(fast_yaml.dump(smoke))  # the same but for twice the updates
    more = forecast("demo", ["one"], measured={}).estimates[run._replace(scale="demo")]
    assert more.source == "recorded" and more.seconds == pytest.approx(2 * 12.0 + 1.2, rel=0.02)


def test_a_toy_run_of_this_machine_does_not_tell_what_a_large_one_takes(finished: Path) -> None:
    """Where recorded jobs are much nearer in size: whoever tries scale `smoke` first is told the same price of the demo."""
    figure = fast_yaml.load((finished / "config/figures/radt_dark_room_10x10.yaml").read_text())
    small = {**figure, "environments": ["dark_room_7x7"], "methods": ["dt"], "seeds": [0], "references": []}
    (finished / "config/figures/one.yaml").write_text(fast_yaml.dump(small))
    measured = measurements()
    assert {job.scale for job in measured} == {"smoke"}
    own, none = (forecast("demo", ["one"], measured=known).estimates for known in (measured, {}))
    run = Job("run", "demo", "dark_room_7x7", "dt", "0")
    assert own[run].source == "recorded" and own[run].seconds == none[run].seconds


def test_scales_without_finished_jobs_and_files_that_are_none_are_refused(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = recorded_jobs.path().read_bytes()
    assert jobs.main(["smoke", "demo"]) == 2
    assert "no job of scale 'demo' was finished" in capsys.readouterr().err
    assert recorded_jobs.path().read_bytes() == before
    recorded_jobs.path().write_text("stage,scale,env,method,seconds,flop,passes,env_steps\ntrain,demo,x,y,fast,1,1,1\n")
    with pytest.raises(UserError, match="seconds") as raised:
        recorded_jobs.read()
    assert "recorded_jobs.csv, line 2" in str(raised.value)


@pytest.mark.usefixtures("workdir")
def test_the_file_of_the_project_is_as_the_command_writes_it() -> None:
    assert recorded_jobs.text(recorded_jobs.read()) == recorded_jobs.path().read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.usefixtures("workdir")
def test_a_job_of_no_counted_size_is_no_measure_for_others() -> None:
    job = Job("train", "smoke", ROOM, "dt")
    before = Estimator({}, "cpu")(job)
    row = RecordedJob(stage="train", scale="demo", env=ROOM, method="dt", seconds=5, flop=0, passes=0, env_steps=0)
    recorded_jobs.path().write_text(recorded_jobs.text([row, *recorded_jobs.read()]))
    assert Estimator({}, "cpu")(job) == before
