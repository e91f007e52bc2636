"""Windows of trajectories, padded to one length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Batch:
    """B windows of at most L rows, padded with zeros on the right to the longest.

    Attributes:
        observation_BTD: [B, L, ...] in the stored dtype.
        previous_action_BT: int [B, L], or float32 [B, L, A]; the action taken at row t stands in row t + 1.
        reward_BT, done_BT, time_BT: [B, L], as in a trajectory.
        mask_BT: bool [B, L], whether a row is real.
        whole_mask_BT: where these windows are some of a batch, the mask of all; else None.
    """

    observation_BTD: np.ndarray
    previous_action_BT: np.ndarray
    reward_BT: np.ndarray
    done_BT: np.ndarray
    time_BT: np.ndarray
    mask_BT: np.ndarray
    whole_mask_BT: np.ndarray | None = None


def padded(windows: list[dict[str, np.ndarray]], rows: slice | None = None) -> Batch:
    """Windows as a batch; `rows`: only these, padded to the longest of all."""
    length_B = np.array([len(window["time"]) for window in windows], np.int64)
    longest, columns = int(length_B.max()), {}
    whole_mask_BT = np.arange(longest) < length_B[:, None]
    part = slice(None) if rows is None else rows
    windows = windows[part]
    for name, first in windows[0].items():
        columns[name] = column = np.zeros((len(windows), longest, *first.shape[1:]), first.dtype)
        for b, window in enumerate(windows):
            column[b, : len(window[name])] = window[name]
    return Batch(
        columns["observation"],
        columns["previous_action"],
        columns["reward"],
        columns["done"],
        columns["time"],
        whole_mask_BT[part],
        None if rows is None else whole_mask_BT,
    )
