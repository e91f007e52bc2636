"""The rows of `scores.parquet`: the final evaluation, and every evaluation that was made while the policy learned."""

from __future__ import annotations

import pandas as pd

from recollect.artifacts.run import TRAIN_SPLIT
from recollect.artifacts.scores import NOT_ONE


def final_step(train_table: pd.DataFrame) -> int:
    """The last training step that was logged."""
    return int(train_table["step"].max()) if len(train_table) else 0


def step_of(train_table: pd.DataFrame, checkpoint: str) -> int:
    """The training step at which a kept policy was saved; `checkpoint`: `best`, `latest`, or `epoch_000050`."""
    if checkpoint == "latest":
        return final_step(train_table)
    if checkpoint == "best":
        rows = train_table[train_table["metric"] == "evaluation_return"]
        rows = rows[rows["value"] == rows["value"].max()]
    else:
        epoch = int(checkpoint.removeprefix("epoch_"))
        rows = train_table[(train_table["metric"] == "epoch") & (train_table["value"] == epoch)]
    return int(rows["step"].max())


def learning_rows(train_table: pd.DataFrame, final: pd.DataFrame) -> pd.DataFrame:
    """Evaluations that were made while learning, without those whose split and step the final evaluation repeats.

    The split `train` holds two things: statistics of training, which belong to no single task, and evaluations on the
    training tasks. Only the latter are scores.
    """
    is_statistic = (train_table["split"] == TRAIN_SPLIT) & (train_table["task"] == NOT_ONE)
    rows = train_table[~is_statistic]
    repeated = set(zip(final["split"], final["step"], strict=True))
    is_new = [key not in repeated for key in zip(rows["split"], rows["step"], strict=True)]
    return rows[pd.Series(is_new, rows.index, dtype=bool)]
