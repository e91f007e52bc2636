"""Forecasts: hours that a person can reckon by hand, and honest about where they come from."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from recollect.artifacts.sealed import write_json
from recollect.settings.errors import UserError
from recollect.stages import paths, plan, try_out
from recollect.stages.forecast import Measurement, forecast, measurements, wall_seconds
from recollect.stages.plan import Job

ROOM = "dark_room_10x10"
RUN = ("smoke", ROOM, "dt", "0")
GENERATE = Job("generate", "smoke", ROOM)
# A pass takes a second, and nothing else takes any time but 10 seconds to start.
MACHINE = {"name": "made up", "startup": 10, "pass": 1, "flop": 1e30, "world": 0, "seconds": {"figure": 5}}
TRAIN = 10 + 60 * 3 + 2 * 300  # 60 updates of three passes; twice on the way, three episodes of 100 steps
EVALUATE = 10 + 300
FIGURE = 10 + 5
GENERATED = {GENERATE: Measurement(100.0, "cpu", None)}


@pytest.fixture
def made(workdir: Path) -> Path:
    """A working directory whose figures `one` and `two` are about two seeds of DT, on a made-up machine."""
    path = workdir / "config/speeds.yaml"
    speeds = yaml.safe_load(path.read_text())
    both = {"cpu": {**MACHINE, "basis": "recorded"}, "cuda": {**MACHINE, "basis": "assumed", "startup": 1000}}
    path.write_text(yaml.safe_dump({**speeds, "machines": both}))
    figure = yaml.safe_load((workdir / "config/figures/radt_dark_room_10x10.yaml").read_text())
    small = {**figure, "environments": [ROOM], "methods": ["dt"], "seeds": [0, 1], "references": []}
    for name in ("one", "two"):
        (workdir / f"config/figures/{name}.yaml").write_text(yaml.safe_dump(small))
    return workdir


def test_a_forecast_of_two_runs_is_what_a_person_reckons(made: Path) -> None:
    cost = forecast("smoke", ["one"], devices=2, measured=GENERATED)
    assert cost.seconds() == 100 + 2 * TRAIN + 2 * EVALUATE + FIGURE
    assert cost.wall == 100 + TRAIN + EVALUATE + FIGURE
    assert forecast("smoke", ["one"], devices=1, measured=GENERATED).wall == cost.seconds()
    assert "2 jobs at a time" in cost.text() and "measured 1" in cost.text() and "recorded 2" in cost.text()


def test_a_run_shared_by_two_figures_is_counted_once(made: Path) -> None:
    cost = forecast("smoke", ["one", "two"], measured=GENERATED)
    assert cost.seconds() == 100 + 2 * TRAIN + 2 * EVALUATE + 2 * FIGURE
    assert cost.seconds(cost.plan.figures["one"]) == cost.seconds(cost.plan.figures["two"]) == cost.seconds() - FIGURE
    assert len(cost.plan.needs) == 1 + 2 + 2 + 2


def test_what_was_measured_beats_what_is_recorded_and_another_size_is_scaled(made: Path) -> None:
    measured = {**GENERATED, Job("train", *RUN): Measurement(7.0, "cpu", 640.0)}
    cost = forecast("smoke", ["one"], measured=measured)
    train = cost.estimates[Job("train", *RUN)]
    assert (train.seconds, train.source) == (7.0, "measured")
    assert cost.estimates[Job("train", "smoke", ROOM, "dt", "1")] == train  # another seed
    assert cost.memory == 640.0 and "of a job that ran here" in cost.text()

    path = made / "config/scales/demo.yaml"  # the same job with twice the updates and nothing else
    smoke = yaml.safe_load((made / "config/scales/smoke.yaml").read_text())
    smoke["methods"]["dt"]["hyperparameters"]["optimisation"] |= {"steps": 120}
    path.write_text(yaml.safe_dump(smoke))
    larger = forecast("demo", ["one"], measured=measured).estimates[Job("train", "demo", *RUN[1:])]
    assert larger.source == "scaled"
    assert larger.seconds == pytest.approx(7.0 * (10 + 120 * 3 + 4 * 300) / TRAIN)


def test_a_cpu_says_nothing_about_a_gpu(made: Path) -> None:
    measured = {**GENERATED, Job("train", *RUN): Measurement(7.0, "cpu", None)}
    job = Job("train", "paper", *RUN[1:])
    on_gpu = forecast("paper", ["one"], measured=measured)
    assert on_gpu.estimates[job].gpu and on_gpu.estimates[job].source == "assumed"
    assert "GPU-hours" in on_gpu.text() and "nothing timed" in on_gpu.text()
    on_cpu = forecast("paper", ["one"], measured=measured, device="cpu")
    assert not on_cpu.estimates[job].gpu and on_cpu.estimates[job].source == "scaled"


def leave_a_run(seconds: float, settings: str, log: str = "$ recollect train") -> None:
    """What a finished training leaves behind, as far as a forecast reads it."""
    write_json(paths.policy(*RUN), {}, kind="policy", provenance={"settings": settings, "device": "cpu"})
    place = Path("logs/smoke") / ROOM / "dt/seed_0"
    place.mkdir(parents=True, exist_ok=True)
    (place / "train.benchmark.jsonl").write_text(json.dumps({"s": seconds, "max_rss": 512.0}) + "\n")
    (place / "train.log").write_text(log)


def test_a_finished_run_counts_only_with_todays_settings_and_if_it_was_timed_whole(made: Path) -> None:
    job = Job("train", *RUN)
    leave_a_run(42.0, plan.settings_text(job))
    assert measurements() == {job: Measurement(42.0, "cpu", 512.0)}
    leave_a_run(42.0, plan.settings_text(job), log="$ recollect train\ngoing on from the checkpoint of step 10")
    assert measurements() == {}
    leave_a_run(42.0, "{}")
    assert measurements() == {}


@pytest.mark.parametrize(
    ("job", "log"),
    [
        (Job("train_vision_language", "demo", "tiles"), "models/tiles"),
        (Job("embed_vocabulary", "demo", "tiles"), "token_vocabularies/tiles"),
        (Job("figure", "demo", "radt_dark_room_10x10"), "figures/radt_dark_room_10x10"),
        (Job("train", "demo", ROOM, "dt.context=5,x=[1]", "0"), f"{ROOM}/dt.context=5,x=[1]/seed_0/train"),
    ],
)
def test_every_kind_of_job_that_leaves_its_seconds_is_found(
    job: Job, log: str, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Job] = []
    monkeypatch.setattr("recollect.stages.forecast._measured", lambda job, path: found.append(job))
    path = Path("logs/demo") / f"{log}.benchmark.jsonl"
    path.parent.mkdir(parents=True)
    path.touch()
    measurements()
    assert found == [job]


def test_seconds_of_training_are_carried_to_the_whole_run(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 12.0, 14.0, 99.0])
    monkeypatch.setattr(try_out, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(try_out, "SECONDS", 13.0)
    watch = try_out.Stopwatch(try_out.settings_of("smoke", "tmaze_passive_5", "dqn_ff"))
    for step in (0, 5, 10):
        watch.log(step, loss=1.0)
    with pytest.raises(try_out._Enough):
        watch.log(15, loss=1.0)
    assert watch.seconds_of(1000) == pytest.approx(
        1000 * 4.0 / 10
    )  # behind the first noted point: 5 to 15 in 4 seconds


def test_devices_bound_only_what_takes_one() -> None:
    first, second, other, last = (Job(name, "smoke") for name in ("first", "second", "other", "last"))
    needs = {first: (), second: (), other: (), last: (first, second, other)}
    seconds = {first: 3.0, second: 4.0, other: 5.0, last: 1.0}.__getitem__
    assert wall_seconds(needs, seconds, lambda job: job not in (other, last), 1) == 3 + 4 + 1
    assert wall_seconds(needs, seconds, lambda job: job not in (other, last), 2) == 5 + 1
    assert wall_seconds(needs, seconds, lambda job: True, 1) == 3 + 4 + 5 + 1


@pytest.mark.parametrize(
    ("scale", "figure", "hint"),
    [("smoke", "radt_dark_rom_10x10", "'radt_dark_room_10x10'"), ("smok", "radt_dark_room_10x10", "'smoke'")],
)
def test_unknown_names_are_refused_with_the_nearest(workdir: Path, scale: str, figure: str, hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        forecast(scale, [figure])


def test_no_devices_are_refused(workdir: Path) -> None:
    with pytest.raises(UserError, match="0 devices"):
        forecast("smoke", ["radt_dark_room_10x10"], devices=0)
