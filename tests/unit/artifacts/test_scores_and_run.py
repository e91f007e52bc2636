"""Promises of the score table and of a run: checked rows, and a resumed run that ends with the unbroken run's table."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from recollect.artifacts.run import Run
from recollect.artifacts.scores import SCORE_COLUMNS, SCORE_DTYPES, check_scores, concat_scores, scores_frame
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


def make_run(folder: Path, settings_text: str = "settings") -> Run:
    return Run(
        folder / "run",
        folder / "checkpoints",
        settings_text=settings_text,
        env="dark_room",
        method="dt",
        seed=5,
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
    run.log(2, loss=float("nan"))
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


def test_checkpoints_are_due_once_per_interval_even_when_steps_jump(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    due = []
    for step in range(0, 60, 7):
        if run.due(step, 10):
            due.append(step)
            run.save(step, {}, {})
    assert due == [14, 21, 35, 42, 56]
    assert not any(make_run(tmp_path / "never").due(step, 0) for step in range(100))


def test_progress_starts_where_the_run_resumed(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.save(40, {}, {})
    run.resume()
    progress = run.progress(100, "train", "updates")
    assert (progress.start, progress.total, progress.unit) == (40, 100, "updates")
