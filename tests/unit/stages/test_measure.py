"""Measuring speeds: real learning and acting on the clock, and nothing of any run is touched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fast_yaml
import numpy as np
import pytest

from recollect.amago import speed as amago_speed
from recollect.amago.loop import Trainer
from recollect.artifacts.sealed import read_table, verify, write_arrays
from recollect.common.contract import Inputs
from recollect.environments import registry
from recollect.evaluation import speed
from recollect.evaluation.in_context import Moment
from recollect.settings.errors import UserError
from recollect.settings.resolve import resolve
from recollect.settings.schema import EnvironmentSettings
from recollect.stages import inputs, measure, paths
from recollect.stages.plan import plan
from recollect.stages.selection import check_targets
from recollect.stages.stage import Job
from recollect.stages.table import STAGES
from recollect.stages.workload import work_of

ROOM = "dark_room_10x10"
SMOKE = ("smoke", ROOM)
METRICS = ["samples_per_second", "steps_per_second_alone", "steps_per_second_together"]


@pytest.fixture
def histories(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with random histories of two episodes per task, and little to measure."""
    tasks, steps = 80, 200
    draws = np.random.default_rng(0)
    arrays = {
        "observation": draws.integers(10, size=(tasks * steps, 2)).astype(np.int8),
        "action": draws.integers(5, size=tasks * steps).astype(np.int8),
        "reward": draws.integers(2, size=tasks * steps).astype(np.float32),
        "done": np.tile(np.arange(steps) % 100 == 99, tasks),
        "task": np.repeat(np.arange(tasks, dtype=np.int32), steps),
        "episode": np.tile(np.arange(steps, dtype=np.int32) // 100, tasks),
    }
    write_arrays(paths.histories(*SMOKE), arrays, kind="histories")
    monkeypatch.setattr(speed, "STEPS", 8)
    return workdir


@pytest.mark.slow
def test_speeds_are_measured_and_no_run_is_left_behind(histories: Path) -> None:
    measure.measure(*SMOKE, "dt", 0)
    table = read_table(paths.speed(*SMOKE, "dt", 0), kind="speed")
    assert table["metric"].tolist() == METRICS and (table["value"] > 0).all() and np.isfinite(table["value"]).all()
    assert set(table["split"]) == {"speed"} and set(table["method"]) == {"dt"} and set(table["step"]) == {8}
    known = verify(paths.speed(*SMOKE, "dt", 0))["provenance"]
    assert STAGES["measure"].is_made(Job("measure", *SMOKE, "dt", "0"))
    assert "CPU" in known["machine"] and paths.histories(*SMOKE).as_posix() in known["inputs"]
    assert not (histories / "results/smoke/runs").exists() and not (histories / "results/smoke/checkpoints").exists()


def test_the_clock_leaves_out_the_first_quarter(workdir: Path) -> None:
    clock = speed.Clock(Path("nowhere"))
    clock.at = [(1, 0.0), (2, 10.0), (4, 11.0), (8, 13.0)]  # ten seconds of compiling, then two steps a second
    assert clock.steps_per_second(8) == pytest.approx(6 / 3)


def test_samples_are_windows_of_all_rows_of_a_batch(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = resolve(*SMOKE, "dt", 3)
    played: list[tuple[int, int]] = []

    def acting(policy: Any, environment: Any, tasks: list[Any], seed: int) -> float:
        played.append((len(tasks), seed))
        return float(len(tasks))

    def train(brief: Any, inputs: Any, clock: speed.Clock) -> None:
        clock.at = [(0, 0.0), (speed.STEPS // 4, 100.0), (speed.STEPS, 110.0)]

    monkeypatch.setattr(speed, "acting_speed", acting)
    table = speed.speeds(settings, train, Inputs(), workdir)  # type: ignore[arg-type]
    steps_per_second = 0.75 * speed.STEPS / 10
    count = len(registry.tasks(settings.environment.world, settings.environment.options, "eval"))
    samples = steps_per_second * settings.method.hyperparameters.optimisation.batch_size
    assert table["value"].tolist() == pytest.approx([samples, 1, count])
    assert played == [(1, 3), (count, 3)]


def test_the_first_episode_is_not_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of three and two episodes of two steps: a second each but for those of the first, which take a hundred."""
    now = [7.0]
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def play(policy: Any, environment: Any, tasks: Any, *, seed: int, watch: Callable[[Moment], None]) -> None:
        of_no_use = np.zeros(2)
        for episode in range(environment.evaluation.episodes):
            for _ in range(2):
                now[0] += 1.0 if episode else 100.0
                playing_B = np.array([True, episode < 2])
                watch(Moment(of_no_use, of_no_use, of_no_use, of_no_use, np.full(2, episode), playing_B))

    monkeypatch.setattr(speed, "play_in_context", play)
    environment = EnvironmentSettings(name="room", world="dark_room")
    assert speed.acting_speed(None, environment, [], 0) == pytest.approx(4 / 3)


def test_amagos_updates_are_measured_and_nothing_is_collected(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now: list[float] = [0.0]
    made: list[int] = []
    learn = Trainer.learn

    def learned(trainer: Trainer, results: dict[str, float]) -> None:
        before = trainer.at.updates
        learn(trainer, results)
        made.append(trainer.at.updates - before)
        now[0] += 2.5 if made[:-1] else 100.0  # seconds of a call; in the first, something is compiled

    monkeypatch.setattr(amago_speed, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(Trainer, "learn", learned)
    monkeypatch.setattr(Trainer, "collect", None)
    job = ("smoke", "amago_pendulum_8", "amago_transformer")
    measure.measure(*job, 0)
    table = read_table(paths.speed(*job, 0), kind="speed")
    assert table["metric"].tolist() == ["updates_per_second"] and table["value"].tolist() == [20 / 2.5]
    assert made == [5, 5, 20]  # two updates per second would be 20 in ten seconds
    assert not (workdir / "results/smoke/runs").exists() and not (workdir / "results/smoke/checkpoints").exists()
    with pytest.raises(UserError, match="updates are not measured of 'amago_transformer' on 'amago_maze_11'"):
        measure.measure("smoke", "amago_maze_11", "amago_transformer", 0)
    work = [work_of(Job("measure", "smoke", f"amago_pendulum_{length}", job[2], "0")) for length in (8, 16)]
    assert work[1].flop > 2 * work[0].flop > 0 and not work[0].env_steps and work[0].timed == amago_speed.SECONDS


def test_what_neither_acts_in_context_nor_says_how_fast_it_updates_is_refused(workdir: Path) -> None:
    with pytest.raises(UserError, match="does not learn from histories and act in context, and does not say how fast"):
        measure.measure("smoke", "tmaze_passive_5", "dqn_ff", 0)


def test_a_figure_of_speeds_needs_no_run(workdir: Path) -> None:
    (workdir / "config/figures/mine.yaml").write_text(
        fast_yaml.dump({"kind": "throughput", "environments": [ROOM], "methods": ["radt", "dt"], "seeds": [0]})
    )
    made = plan("smoke", ["mine"])
    speeds = [paths.speed(*SMOKE, m, 0) for m in ("radt", "dt")]
    assert made.files("measure") == list(inputs.figure_inputs("smoke", "mine").values()) == speeds
    embedders = [job[1:] for job in made.needs if job.stage == "run"]
    assert embedders == [(*SMOKE, "dt", "0", "")] and made.files("evaluate") == []
    assert made.files("index", "index") == [paths.index(*SMOKE, "radt")]
    check_targets([paths.speed(*SMOKE, "radt", 0).as_posix()])
    with pytest.raises(UserError, match="'radt'"):
        check_targets([paths.speed(*SMOKE, "rdt", 0).as_posix()])
