"""Memory makes later episodes pay more, with no training: the toy of specification 9, without learned parts.

The real evaluation plays the real memory in a small room. Its embedder says which cell a window ends in; in place of a
network stands a rule that does what the retrieved window did in the cell of now. It wanders where that window was never there
or paid nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from recollect.environments import registry
from recollect.evaluation.in_context import play_in_context
from recollect.radt.acting import InContextPolicy
from recollect.radt.embedders import Embedder
from recollect.radt.episodic_memory import EpisodicSettings
from recollect.radt.experience import Experience
from recollect.radt.memory_settings import MemorySettings
from recollect.radt.radt import RetrievalPolicy

ROWS, COLUMNS, ACTIONS, EPISODES = 3, 4, 5, 30
SURE = 4.0  # logit of the action that is followed; the others have 0


class CellEmbedder(Embedder):
    """The hidden state of a step is the one-hot of its cell."""

    def __init__(self, memory: MemorySettings) -> None:
        self.memory, self.width, self.tokens = memory, ROWS * COLUMNS, ("s",)
        self.precision = "float32"

    def hidden(self, window: Experience) -> Tensor:
        row_BT, column_BT = window.observation.long().unbind(-1)
        return one_hot(row_BT * COLUMNS + column_BT, self.width).float()[:, :, None]


class Following:
    """Follows the retrieved window from the cell of now: by its last paid action there, else by its last one."""

    def act(self, policy: InContextPolicy, context: Experience, has_context_B: Tensor, changed_B: np.ndarray) -> Tensor:
        now_BD = policy.window(1).observation[:, -1]
        was_here_BS = context.mask & (context.observation == now_BD[:, None]).all(-1)
        steps = was_here_BS.shape[1]
        rank_BS = torch.arange(steps) + steps * (context.reward > 0)
        rank_BS = rank_BS.masked_fill(~was_here_BS, -1)
        action_B1 = context.action.gather(1, rank_BS.argmax(1, keepdim=True)).clamp(max=ACTIONS - 1)
        paid_B1 = context.reward.sum(1, keepdim=True) > 0
        follows_B1 = has_context_B[:, None] & was_here_BS.any(1, keepdim=True) & paid_B1
        return torch.zeros(len(now_BD), ACTIONS).scatter(1, action_B1, SURE * follows_B1.float())


class FollowingPolicy(RetrievalPolicy):
    def begin(self, rows: int) -> None:
        super().begin(rows)
        self.reading = Following()  # type: ignore[assignment]


def first_and_last(tiny: Any, **acting: Any) -> tuple[float, float]:
    """Mean returns of the first episode and of the last five, over tasks whose goal is away from the start."""
    room = tiny(episodes=EPISODES)
    settings = room.settings(
        "radt",
        selection="sample",
        acting=EpisodicSettings(candidates=EPISODES * ROWS * COLUMNS, **acting),
        memory={"stride": 1, "key_context": 1, "pooled_steps": 1, "past": 1, "future": ROWS * COLUMNS},
    )
    tasks = [task for task in registry.tasks("dark_room", room.environment.options, "train") if any(task.data["goal"])]
    policy = FollowingPolicy(room.network(settings), CellEmbedder(settings.method.memory), settings)
    return_TE = play_in_context(policy, room.environment, tasks, seed=0).return_RE
    return float(return_TE[:, 0].mean()), float(return_TE[:, -5:].mean())


@pytest.mark.slow
def test_later_episodes_pay_more_with_what_memory_holds(tiny: Any) -> None:
    first, last = first_and_last(tiny)
    assert last > first + 4


def test_later_episodes_pay_no_more_where_nothing_is_stored(tiny: Any) -> None:
    first, last = first_and_last(tiny, minimum_return=1000)
    assert abs(last - first) < 1


@pytest.mark.slow
def test_later_episodes_pay_less_where_returns_have_no_weight(tiny: Any) -> None:
    assert first_and_last(tiny, return_weight=0)[1] < first_and_last(tiny)[1] - 2
