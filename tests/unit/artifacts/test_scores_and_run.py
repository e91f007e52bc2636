"""Promises of the score table and of a run: checked rows, and a resumed run that ends with the unbroken run's table."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch

from recollect.artifacts.cadence import FREE
from recollect.artifacts.differences import made_differently
from recollect.artifacts.run import SCORING, Run
from recollect.artifacts.scores import SCORE_COLUMNS, SCORE_DTYPES, check_scores, concat_scores, scores_frame
from recollect.artifacts.scoring import Scoring
from recollect.artifacts.sealed import read_table, write_table
from recollect.settings.errors import UserError

RETURNS_TE = np.arange(6.0).reshape(2, 3)


def curve(**labels) -> pd.DataFrame:
    return scores_frame(
        step=10,
        split="eval",
        task=np.array([4, 7])[:, None],
        episode=np.arange(3),
        metric="return",
        value=RETURNS_TE,
        **labels,
    )


# ------------------------------------------------------------------------------------------------ scores


def test_rows_are_built_from_scalars_and_arrays() -> None:
    frame = curve(env="dark_room", method="radt", seed=3)
    assert list(frame.columns) == SCORE_COLUMNS
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == SCORE_DTYPES
    assert frame["task"].tolist() == [4, 4, 4, 7, 7, 7] and frame["episode"].tolist() == [0, 1, 2, 0, 1, 2]
    assert frame["value"].tolist() == [0, 1, 2, 3, 4, 5] and set(frame["seed"]) == {3}


def test_a_score_table_survives_the_disk_unchanged(tmp_path: Path) -> None:
    frame = concat_scores([curve(env="a", method="b", seed=1), curve(env="a", method="c", seed=2)])
    assert len(frame) == 12 and frame.index.tolist() == list(range(12))
    write_table(tmp_path / "s.parquet", frame, kind="scores")
    pd.testing.assert_frame_equal(check_scores(read_table(tmp_path / "s.parquet"), where="disk"), frame)
    empty = concat_scores([])
    assert {name: str(dtype) for name, dtype in empty.dtypes.items()} == SCORE_DTYPES and len(empty) == 0
    pd.testing.assert_frame_equal(concat_scores([empty, frame]), frame)


def test_wrong_tables_are_refused() -> None:
    good = curve(env="a", method="b", seed=1)
    cases = {
        "missing value": good.drop(columns="value"),
        "unknown extra": good.assign(extra=1),
        "'seed' holds numbers that are not int64": good.assign(seed=0.5),
        "'task' holds numbers that are not int32": good.assign(task=2**40),
        "'env' holds int64": good.assign(env=1),
        "'value' holds str": good.assign(value="high"),
        "'metric' has empty cells": good.assign(metric=[None, *["return"] * 5]),
    }
    for what, frame in cases.items():
        with pytest.raises(UserError, match=what) as caught:
            check_scores(frame, where="scores.parquet")
        assert caught.value.where == "scores.parquet"
    assert check_scores(good[SCORE_COLUMNS[::-1]].assign(seed=1.0, value=np.nan), where="x")["seed"].dtype == np.int64


# ------------------------------------------------------------------------------------------------ run


def make_run(folder: Path, settings_text: str = "settings", **more: Any) -> Run:
    return Run(
        folder / "run",
        folder / "checkpoints",
        settings_text=settings_text,
        env="dark_room",
        method="dt",
        seed=5,
        **more,
    )


def train(run: Run, total: int, die_at: int | None = None) -> torch.Tensor:
    """A toy method: its state is a tensor and a counter; it logs each step and is judged now and then."""
    found = run.resume()
    first, weight, seen = (found.step, found.arrays["w"], found.state["seen"]) if found else (0, torch.zeros(3), [])
    for step in range(first + 1, total + 1):
        weight = weight * 0.5 + step
        seen = [*seen, step][-3:]
        run.log(step, loss=float(weight.sum()), rate=1 / step)
        if step % 3 == 0:
            run.log_scores(curve().assign(step=step))
        if run.due(step, 4):
            run.save(step, {"w": weight}, {"seen": seen})
        if step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
    assert seen == list(range(max(1, total - 2), total + 1))
    return weight


def test_the_table_holds_logged_rows_and_scores_in_order_with_the_runs_labels(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.log(1, loss=0.5)
    run.log_scores(curve())
    run.log_scores(curve(env="other", method="radt", seed=9))
    run.log(2, success=float("nan"))
    table = run.table()
    assert {name: str(dtype) for name, dtype in table.dtypes.items()} == SCORE_DTYPES
    assert table["split"].tolist() == ["train", *["eval"] * 12, "train"]
    assert table.loc[0].tolist() == ["dark_room", "dt", 5, 1, "train", -1, -1, "loss", 0.5]
    assert table["seed"].tolist() == [*[5] * 7, *[9] * 6, 5] and table.loc[12, "env"] == "other"
    run.log_scores(curve().drop(columns=["env", "method", "seed"]))
    assert run.table()["method"].tolist()[-6:] == ["dt"] * 6


def test_a_run_killed_at_any_step_ends_with_the_table_and_weights_of_an_unbroken_one(tmp_path: Path) -> None:
    whole = make_run(tmp_path / "whole")
    weight = train(whole, 13)
    code = (
        "import sys; from pathlib import Path; import importlib.util as u;"
        "spec = u.spec_from_file_location('t', sys.argv[1]); t = u.module_from_spec(spec); spec.loader.exec_module(t);"
        "import os\n"
        "for step in (2, 7, 8):\n"
        "    if os.fork() == 0: t.train(t.make_run(Path(sys.argv[2]) / str(step)), 13, die_at=step)\n"
        "    assert os.WTERMSIG(os.wait()[1]) == 9\n"
    )
    subprocess.run([sys.executable, "-c", code, __file__, str(tmp_path)], check=True)
    for step in (2, 7, 8):
        resumed = make_run(tmp_path / str(step))
        assert torch.equal(train(resumed, 13), weight)
        assert resumed.resumed == (step > 4)  # of the first checkpoint
        pd.testing.assert_frame_equal(resumed.table(), whole.table())
        write_table(tmp_path / "a.parquet", resumed.table(), kind="log")
        write_table(tmp_path / "b.parquet", whole.table(), kind="log")
        assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_resume_drops_the_rows_logged_since_and_gives_back_only_what_was_saved(tmp_path: Path, caplog) -> None:
    run = make_run(tmp_path)
    assert run.resume() is None
    run.log(1, loss=1.0)
    run.save(1, {"w": torch.ones(2), "n": np.arange(3)}, {"k": [1, 2]})
    run.log(2, loss=2.0)
    with caplog.at_level(logging.INFO):
        found = run.resume()
    assert found is not None and set(found.arrays) == {"w", "n"} and found.state == {"k": [1, 2]}
    assert run.table()["value"].tolist() == [1.0]
    assert "checkpoint of step 1" in caplog.text


def test_a_table_of_many_metrics_comes_back_from_a_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.log(1, **{f"metric_{i}": float(i) for i in range(300)})
    run.save(1, {}, {})
    again = make_run(tmp_path)
    again.resume()
    pd.testing.assert_frame_equal(again.table(), run.table())


def test_a_checkpoint_of_other_settings_is_not_used_and_this_is_said(tmp_path: Path, caplog) -> None:
    train(make_run(tmp_path, "lr: 1"), 8)
    other = make_run(tmp_path, "lr: 2")
    with caplog.at_level(logging.WARNING):
        assert other.resume() is None
    assert "step 8" in caplog.text and "other settings" in caplog.text
    assert len(other.table()) == 0
    train(other, 5)
    again = make_run(tmp_path, "lr: 2").resume()
    assert again is not None and again.step == 4


def test_a_run_that_begins_afresh_after_all_is_as_if_it_had_never_resumed(tmp_path: Path) -> None:
    train(make_run(tmp_path), 9)
    run = make_run(tmp_path, "other", trust=True)
    assert run.resume() is not None and run.resumed and run.trusted and not run.due(4, 4) and len(run.table())
    run.begin_afresh()
    assert not run.resumed and not run.trusted and not len(run.table())
    assert run.due(4, 4)
    with run.progress(10, "again") as progress:
        assert progress.start == 0
    run.save(4, {"w": torch.zeros(3)}, {"seen": []})
    found = make_run(tmp_path, "other").resume()
    assert found is not None and found.step == 4  # later ones were of a past that is not continued


def test_episodes_are_logged_as_their_frame_would_be(tmp_path: Path) -> None:
    labels: dict[str, Any] = {"env": "maze", "method": "gpt", "seed": 3}
    one, other = (
        Run(tmp_path / name, tmp_path / name, settings_text="same", clock=lambda: 0.0, **labels) for name in "ab"
    )
    points: list[list[Any]] = [[], []]
    for run, seen in zip((one, other), points, strict=True):
        run._show = seen.append  # type: ignore[method-assign]
    draws = np.random.default_rng(0)
    for step in range(0, 40, 10):
        for task in (0, np.arange(5)):
            value_E = draws.random(5)
            one.log_episodes(step, "learning", "return", task, value_E)
            frame = {"split": "learning", "task": task, "episode": np.arange(5), "metric": "return", "value": value_E}
            other.log_scores(scores_frame(**labels, step=step, **frame))
        for run in (one, other):
            run.log(step, loss=0.5 * step)
            if step == 20:
                run.log_scores(scores_frame(step=step, split="eval", task=1, episode=2, metric="success", value=1.0))
                run.save(step, {}, {})
    assert one.table().equals(other.table()) and one.table().dtypes.equals(other.table().dtypes)
    assert points[0] == points[1]


def test_checkpoints_are_due_once_per_interval_even_when_steps_jump(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    due = []
    for step in range(0, 60, 7):
        if run.due(step, 10):
            due.append(step)
            run.save(step, {}, {})
    assert due == [14, 21, 35, 42, 56]
    assert not any(make_run(tmp_path / "never").due(step, 0) for step in range(100))


class Clock:
    """Seconds that a test makes pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.quick("97-8", "97-1800", "1000-90")
@pytest.mark.parametrize("whole", [8, 90, 1800, 100_000])
@pytest.mark.parametrize("pieces", [97, 1000])
def test_a_kill_costs_less_than_a_tenth_and_five_minutes_whatever_the_scale(
    tmp_path: Path, whole: float, pieces: int
) -> None:
    clock = Clock()
    run = make_run(tmp_path, clock=clock)
    run._checkpoints = Mock(folder=tmp_path)  # type: ignore[assignment]
    lost = saved_at = 0.0
    saves = 0
    for step in range(1, 4 * pieces + 1):
        clock.now = step * whole / (4 * pieces) if step % 7 else clock.now + 0.1 * whole / pieces
        lost = max(lost, clock.now - saved_at)
        if run.due(step, 10**9):
            run.save(step, {}, {})
            saved_at, saves = clock.now, saves + 1
    assert lost <= max(1.0, min(300, whole / 10)) + 2 * whole / (4 * pieces)
    assert saves <= 12 * np.log(whole) + whole / 120 + 3


@pytest.mark.parametrize("every", [0, 1])
def test_the_time_that_checkpoints_take_is_a_twentieth_at_most(tmp_path: Path, every: int) -> None:
    clock = Clock()
    run = make_run(tmp_path, clock=clock)
    run._checkpoints = Mock(folder=tmp_path)  # type: ignore[assignment]
    run._checkpoints.save.side_effect = lambda *of: setattr(clock, "now", clock.now + 5)
    writing = 0
    for step in range(2000):
        clock.now += 1
        if run.due(step, every):
            run.save(step, {}, {})
            writing += 5
    assert 50 < writing <= clock.now / 20 + FREE


def test_where_runs_are_saved_one_after_another_the_time_of_all_counts(tmp_path: Path) -> None:
    due = []
    for began in (None, 0.0):
        clock = Clock()
        run = make_run(tmp_path / str(began), clock=clock)
        clock.now = 30.0
        run.save(1, {}, {}, began=began)
        clock.now += 100.0
        due.append(run.due(2, 0))
    assert due == [True, False], "after saves of 30 seconds, 100 seconds are too few"


def test_a_run_of_seconds_is_saved_by_steps_as_often_as_it_says(tmp_path: Path) -> None:
    clock = Clock()
    run = make_run(tmp_path, clock=clock)
    run._checkpoints = Mock(folder=tmp_path)  # type: ignore[assignment]
    run._checkpoints.save.side_effect = lambda *of: setattr(clock, "now", clock.now + 0.05)
    saves = []
    for step in range(1, 40):
        clock.now += 0.01
        if run.due(step, 2):
            run.save(step, {}, {})
            saves.append(step)
    assert saves == list(range(2, 40, 2))


def test_a_run_stopped_at_odd_moments_of_an_odd_clock_ends_with_the_same_bytes(tmp_path: Path) -> None:
    whole = make_run(tmp_path / "whole")
    weight = train(whole, 40)
    draws = np.random.default_rng(0)
    for _ in range(4):
        clock = Clock()
        run = make_run(tmp_path, clock=clock)
        stop = int(draws.integers(1, 40))

        def odd(step: int, every: int, run: Run = run, clock: Clock = clock, stop: int = stop) -> bool:
            clock.now += draws.choice([0.1, 2.0, 300.0])
            if step == stop:
                raise KeyboardInterrupt
            return Run.due(run, step, 10**9)

        run.due = odd  # type: ignore[method-assign]
        with suppress(KeyboardInterrupt):
            train(run, 40)
    last = make_run(tmp_path)
    assert train(last, 40).tolist() == weight.tolist() and last.resumed
    pd.testing.assert_frame_equal(last.table(), whole.table())


def scoring_of(run: Run, weight: float = 1.0, step: int = 3) -> Scoring:
    return run.scoring(SimpleNamespace(arrays=lambda: {"w": np.full(2, weight)}), step)


@pytest.mark.parametrize(("text", "weight", "step"), [("other", 1.0, 3), ("settings", 2.0, 3), ("settings", 1.0, 4)])
def test_a_scoring_while_learning_is_of_one_policy_and_one_step_under_these_settings(
    tmp_path: Path, text: str, weight: float, step: int
) -> None:
    scoring_of(make_run(tmp_path)).save("tasks", {"t": np.array(7)})
    assert int(scoring_of(make_run(tmp_path)).part("tasks").take()["t"]) == 7
    assert scoring_of(make_run(tmp_path, text), weight, step).part("tasks").take() == {}
    make_run(tmp_path).save(3, {}, {})
    assert not (tmp_path / "checkpoints" / SCORING).exists(), "no run comes to it again"


def test_a_kill_of_a_scoring_costs_what_was_learned_before_it_too(tmp_path: Path) -> None:
    clock = Clock()
    run = make_run(tmp_path, clock=clock)
    clock.now = 10_000.0
    run.save(1, {}, {})
    clock.now += 200.0
    scoring = scoring_of(run)
    while not scoring.due():
        clock.now += 1.0
    assert 220 < clock.now - 10_000 < 300


# ------------------------------------------------------------------------------------------------ another making


def made(rate: float = 1.0, module: str = "aa", file: str = "11") -> dict[str, Any]:
    settings = json.dumps({"method": {"rate": rate}})
    parts = {"settings": settings, "modules": {"recollect.memory_rl.replay": module}, "inputs": {"data/h": file}}
    return {"settings_text": repr(parts), "made_of": parts}


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_checkpoints_of_another_making_are_set_aside_and_what_differs_is_said(tmp_path: Path, caplog) -> None:
    train(make_run(tmp_path, **made()), 9)
    kept = tmp_path / "checkpoints" / "buffer" / "fifo" / "0.safetensors"
    demonstration = tmp_path / "checkpoints" / "buffer" / "protected" / "0.safetensors"
    lock = tmp_path / "checkpoints" / ".lock"  # is held while files move
    growing = tmp_path / "run" / "reward.rows"
    for path in (kept, demonstration, lock, growing):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("rows")
    other = make_run(tmp_path, **made(rate=2.0, module="bb", file="22"))
    with caplog.at_level(logging.WARNING):
        assert other.resume() is None
    (aside,) = (tmp_path / "checkpoints" / "set_aside").iterdir()
    said = caplog.text
    assert "step 8" in said and str(aside) in said and "--trust-checkpoint" in said and "2 such generations" in said
    for word in ("method.rate from 1.0 to 2.0", "code of recollect.memory_rl.replay", "input data/h"):
        assert word in said
    assert {"step_000008.safetensors", "step_000004.safetensors", "buffer/fifo/0.safetensors"} <= set(files_in(aside))
    assert not kept.exists() and not growing.exists() and demonstration.exists() and lock.exists()
    assert (tmp_path / "run" / "set_aside" / aside.name / "reward.rows").read_text() == "rows"


def test_what_is_new_or_gone_is_said_to_differ() -> None:
    """Settings, modules and inputs that only one of two makings has, each way round."""
    then = {"settings": json.dumps({"a": {"x": 1}}), "modules": {"m": "1"}, "inputs": {}}
    now = {"settings": json.dumps({"a": {"x": 1, "y": 2}}), "modules": {"m": "1", "n": "2"}, "inputs": {"f": "3"}}
    assert made_differently(then, now) == "different: setting a.y is new: 2, code of n, input f"
    assert made_differently(now, then) == "different: setting a.y is gone, it was 2, code of n, input f"


def test_settings_that_come_back_go_on_where_they_were(tmp_path: Path) -> None:
    train(make_run(tmp_path, "lr: 1"), 9)
    train(make_run(tmp_path, "lr: 2"), 5)
    found = make_run(tmp_path, "lr: 1").resume()
    assert found is not None and found.step == 8
    found = make_run(tmp_path, "lr: 2").resume()
    assert found is not None and found.step == 4


def test_two_generations_are_kept(tmp_path: Path) -> None:
    for rate in (0, 2, 3, 4):
        train(make_run(tmp_path, f"lr: {rate}"), 4)
    assert len(list((tmp_path / "checkpoints" / "set_aside").iterdir())) == 2
    for rate, step in ((2, 4), (4, 4), (0, None)):
        found = make_run(tmp_path, f"lr: {rate}").resume()
        assert (found.step if found else None) == step


def test_of_generations_set_aside_the_latest_is_trusted(tmp_path: Path) -> None:
    for rate, steps in ((1, 13), (2, 9), (3, 5)):
        train(make_run(tmp_path, f"lr: {rate}"), steps)
    found = make_run(tmp_path, "lr: 3", trust=True).resume()
    assert found is not None and found.step == 8


@pytest.mark.parametrize("begun_afresh", [False, True])
def test_a_trusted_checkpoint_is_gone_on_with_and_this_is_written_down(tmp_path: Path, begun_afresh: bool) -> None:
    train(make_run(tmp_path, **made()), 9)
    if begun_afresh:
        train(make_run(tmp_path, **made(module="bb")), 5)
    told = make_run(tmp_path, **made(module="bb"), trust=True)
    found = told.resume()
    assert found is not None and found.step == 8
    (record,) = told.trusted
    assert record["step"] == 8 and "code of recollect.memory_rl.replay" in record["differs"]
    with pytest.raises(UserError, match="does not fit today's code"), told.going_on():
        raise KeyError("a part that is new")
    train(told, 13)
    # Killed again, with the option or without it: on from its own checkpoint, and still written down.
    for trust in (False, True):
        again = make_run(tmp_path, **made(module="bb"), trust=trust)
        found = again.resume()
        assert found is not None and found.step == 12 and again.trusted == told.trusted
        with pytest.raises(KeyError), again.going_on():
            raise KeyError("an error of the run's own")
    fresh = make_run(tmp_path / "other", trust=True)
    assert fresh.resume() is None and fresh.trusted == []


@pytest.mark.parametrize("what", ["put", "take"])
@pytest.mark.parametrize("after", range(6))
def test_a_move_that_was_killed_is_finished(tmp_path: Path, monkeypatch, what: str, after: int) -> None:
    train(make_run(tmp_path, "lr: 1"), 9)
    if what == "take":
        train(make_run(tmp_path, "lr: 2"), 3)
    moved = 0

    def killed(source: Path, target: Path, replace=os.replace) -> None:
        nonlocal moved
        moved += 1
        if moved > after:
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr("recollect.artifacts.set_aside.os.replace", killed)
        make_run(tmp_path, "lr: 2" if what == "put" else "lr: 1").resume()
    found = make_run(tmp_path, "lr: 1").resume()
    assert found is not None and found.step == 8 and found.state == {"seen": [6, 7, 8]}
    assert not list((tmp_path / "checkpoints" / "set_aside").glob(".moving*"))


# ------------------------------------------------------------------------------------------------ divergence


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_or_a_parameter_that_is_no_number_stops_the_run_and_the_last_good_checkpoint_stays(
    tmp_path: Path, wrong: float
) -> None:
    run = make_run(tmp_path)
    good = {"w": torch.ones(2), "played": np.array([np.nan]), "sums/success": torch.tensor(wrong)}
    run.save(1, good, {})
    for name in ("loss", "actor_loss", "gradient_norm"):
        with pytest.raises(UserError, match=f"'{name}' is {wrong}"):
            run.log(2, **{name: wrong})
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        with pytest.raises(UserError, match="'net/w' holds NaN or infinity"):
            run.save(2, {"net/w": torch.tensor([1.0, wrong], dtype=dtype)}, {})
    found = make_run(tmp_path).resume()
    assert found is not None and found.step == 1


def test_progress_starts_where_the_run_resumed(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.save(40, {}, {})
    run.resume()
    progress = run.progress(100, "train", "updates")
    assert (progress.start, progress.total, progress.unit) == (40, 100, "updates")


@pytest.mark.parametrize(
    "columns",
    [
        {"step": 128, "split": "train", "metric": ["loss", "kl"], "value": np.arange(2.0)},
        {
            "step": np.int32(5),
            "split": "eval",
            "task": np.arange(3)[:, None],
            "metric": "return",
            "value": np.zeros((3, 4), np.float32),
        },
        {"step": np.uint8(1), "split": np.array(["a", "b"], object), "metric": "", "value": np.nan},
        {"step": True, "split": "a", "metric": "m", "value": 3},
        {"step": 2.0, "split": "a", "metric": "m", "value": True},
        {"step": [], "split": "a", "metric": "m", "value": []},
    ],
)
def test_rows_that_are_built_as_they_should_be_are_what_a_check_makes_of_them(columns: dict[str, Any]) -> None:
    found = scores_frame(**columns)
    given = {"env": "", "method": "", "seed": -1, "task": -1, "episode": -1, **columns}
    arrays = np.broadcast_arrays(*(np.asarray(given[name]) for name in SCORE_COLUMNS))
    frame = pd.DataFrame({name: array.reshape(-1) for name, array in zip(SCORE_COLUMNS, arrays, strict=True)})
    pd.testing.assert_frame_equal(found, check_scores(frame, where="rows"))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"step": 1.5}, "numbers that are not int64"),
        ({"task": 2**40}, "not int32"),
        ({"split": 3}, "not text"),
        ({"value": "x"}, "not numbers"),
    ],
)
def test_a_row_of_another_type_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        scores_frame(**{"step": 1, "split": "a", "metric": "m", "value": 0.0, **wrong})
