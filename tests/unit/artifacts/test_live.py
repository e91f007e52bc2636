"""Promises of what a run shows while it learns: at once, as its table says, and without a say in the result."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from recollect.artifacts.live import FILE, Live, headline, points_of, read_live
from recollect.artifacts.progress import Progress
from recollect.artifacts.run import Run
from recollect.artifacts.scores import scores_frame
from recollect.artifacts.trackers import Tracked

NAMES = {"scale": "demo", "env": "room", "method": "dt", "seed": 5}


def make_run(folder: Path, *, watched: bool = True, **more: Any) -> Run:
    live = Live(folder / "checkpoints", Tracked(NAMES, folder / "tracking")) if watched else None
    return Run(folder / "run", folder / "checkpoints", settings_text="same", live=live, **more)


def train(run: Run, last: int) -> Run:
    """A toy method from its checkpoint to a step; it is saved at every fifth."""
    found = run.resume()
    for step in range(found.step + 1 if found else 1, last + 1):
        run.log(step, loss=1 / step)
        if step % 2 == 0:
            run.log_scores(
                scores_frame(step=step, split="eval", episode=np.arange(3), metric="return", value=[0, 1, step])
            )
        if step % 5 == 0:
            run.save(step, {}, {})
    return run


def test_what_a_run_logs_can_be_read_at_once(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    train(run, 1)
    file = run.checkpoint_folder / FILE
    assert read_live(file)[1] == {1: {"loss": 1.0}}
    run.log_scores(scores_frame(step=2, split="eval", episode=np.arange(2), metric="return", value=[1, 3]))
    head, points = read_live(file)
    assert points == {1: {"loss": 1.0}, 2: {"eval/return": 2.0}}
    assert NAMES.items() <= head.items()


def test_what_a_kill_threw_away_is_shown_no_more_and_the_rest_is_what_the_table_says(tmp_path: Path) -> None:
    killed = train(make_run(tmp_path), 8)
    file = killed.checkpoint_folder / FILE
    before = read_live(file)
    assert max(before[1]) == 8
    with open(file, "ab") as torn:
        torn.write(b'{"step": 9, "val')
    going_on = make_run(tmp_path)
    going_on.resume()
    head, points = read_live(file)
    assert max(points) == 5 and head == before[0]
    run = train(make_run(tmp_path), 12)
    assert read_live(file)[1] == points_of(run.table())
    pd.testing.assert_frame_equal(run.table(), train(make_run(tmp_path / "whole", watched=False), 12).table())


def test_a_fresh_start_shows_nothing_of_an_earlier_one(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    train(run, 3)
    head = read_live(run.checkpoint_folder / FILE)[0]
    make_run(tmp_path).resume()
    again, points = read_live(run.checkpoint_folder / FILE)
    assert points == {} and again["id"] != head["id"]


def test_where_it_cannot_be_written_a_warning_says_so_and_the_run_is_the_same(tmp_path: Path, caplog: Any) -> None:
    run = make_run(tmp_path)
    (run.checkpoint_folder / FILE / "in_the_way").mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        train(run, 7)
    assert len(caplog.messages) == 1 and "cannot be watched" in caplog.text
    pd.testing.assert_frame_equal(run.table(), train(make_run(tmp_path / "whole", watched=False), 7).table())


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    whole = json.dumps({"step": 1, "values": {"loss": 0.5}})
    (tmp_path / FILE).write_text(f'{{"id": "a"}}\n{whole}\n[1]\n{whole[:-9]}')
    assert read_live(tmp_path / FILE) == ({"id": "a"}, {1: {"loss": 0.5}})
    assert read_live(tmp_path / "missing") == ({}, {})


def test_the_progress_line_shows_what_the_run_logs_and_of_several_runs_the_mean(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(seed), watched=False) for seed in range(2)]
    stream = io.StringIO()
    with Progress(10, "training 2 seeds together", "updates", stream=stream, interval=0) as progress:
        runs[0].log(1, critic_loss=1.0, evaluation_return=4.0, q=9.0)
        progress.update(1)
        runs[1].log(1, critic_loss=3.0, evaluation_return=0.0, q=9.0)
        progress.update(2)
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith("critic_loss 1, evaluation_return 4")
    assert lines[1].endswith("critic_loss 2, evaluation_return 2")
    runs[0].log(2, critic_loss=1.0)  # after the display has ended: nobody is told, nothing breaks


def test_of_displays_one_in_another_the_inner_one_shows_what_is_logged(tmp_path: Path) -> None:
    run, outside, inside = make_run(tmp_path, watched=False), io.StringIO(), io.StringIO()
    with Progress(2, "seeds", stream=outside, interval=0) as outer:
        with Progress(9, "training", stream=inside, interval=0) as inner:
            run.log(1, loss=0.5)
            inner.update(1)
        outer.update(1)
    assert inside.getvalue().splitlines()[-1].endswith("loss 0.5") and "loss" not in outside.getvalue()


def test_what_the_method_itself_says_stands_for_what_was_logged(tmp_path: Path) -> None:
    run, stream = make_run(tmp_path, watched=False), io.StringIO()
    with Progress(10, "training", stream=stream, interval=0) as progress:
        run.log_scores(scores_frame(step=1, split="learning", metric="return", value=0.25))
        run.log(1, loss=0.5, value_loss=7.0)
        progress.update(1, episode_return=0.75)
    assert stream.getvalue().splitlines()[-1].endswith("loss 0.5, episode_return 0.75")


@pytest.mark.parametrize(
    "logged, first",
    [
        ("loss action_accuracy memory_return_mean eval/return", "loss eval/return"),
        ("actor_loss critic_loss q1 learning/return evaluation_return", "actor_loss critic_loss evaluation_return"),
        ("value_loss loss ep_rew_mean learning/return learning/success", "loss learning/return"),
        ("updates", ""),
    ],
)
def test_loss_and_return_come_first(logged: str, first: str) -> None:
    assert headline(logged.split()) == first.split()
