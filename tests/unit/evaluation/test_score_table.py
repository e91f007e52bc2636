"""Which rows of a training log become scores, and at which step a kept policy was saved."""

from __future__ import annotations

import pandas as pd

from recollect.artifacts.scores import concat_scores, scores_frame
from recollect.evaluation.score_table import final_step, learning_rows, step_of

ABOUT = {"env": "dark_room_10x10", "method": "radt", "seed": 0}


def logged(step: int, metric: str, value: float) -> pd.DataFrame:
    return scores_frame(step=step, split="train", metric=metric, value=value, **ABOUT)


def test_evaluations_on_training_tasks_are_kept_and_statistics_of_training_are_not() -> None:
    about = {"env": "dark_room_10x10", "method": "radt", "seed": 0, "value": 1.0}
    task = {"task": 3, "episode": 0, "metric": "return"}
    table = concat_scores(
        [
            scores_frame(step=30, split="train", metric="loss", **about),
            scores_frame(step=30, split="train", **task, **about),
            scores_frame(step=30, split="eval", **task, **about),
            scores_frame(step=60, split="train", **task, **about),
        ]
    )
    final = scores_frame(step=60, split="train", **task, **about)
    kept = learning_rows(table, final)
    assert kept[["split", "step", "metric"]].to_numpy().tolist() == [["train", 30, "return"], ["eval", 30, "return"]]


def test_the_step_of_a_kept_policy_is_read_from_the_training_log() -> None:
    rows = [logged(50 * epoch, "epoch", epoch) for epoch in (1, 2, 3, 4)]
    returns = {50: 1.0, 100: 7.0, 150: 7.0, 200: 2.0}
    rows += [logged(step, "evaluation_return", value) for step, value in returns.items()]
    table = concat_scores(rows)
    assert step_of(table, "epoch_000002") == 100
    assert step_of(table, "latest") == final_step(table) == 200
    assert step_of(table, "best") == 150  # the later of equals, as training keeps
    assert final_step(table[:0]) == 0
