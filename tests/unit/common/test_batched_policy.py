"""The frame of batched policies: who is fresh, who begins, and whose numbers an action is drawn with."""

from __future__ import annotations

import numpy as np

from recollect.common.batched_policy import BatchedPolicy
from recollect.common.draws import ACTION_STREAM, uniform


class Plain(BatchedPolicy):
    """Remembers which rows it was told to forget."""

    def begin(self, rows: int) -> None:
        self.forgotten: list[list[bool]] = []

    def forget(self, mask_B: np.ndarray) -> None:
        self.forgotten.append(mask_B.tolist())

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        return self.action_chances(2)

    def arrays(self) -> dict[str, np.ndarray]:
        return {}


def test_rows_are_fresh_until_they_act_and_an_episode_ends_only_where_one_was_played() -> None:
    policy, never = Plain(), np.zeros(3, bool)
    policy.start(np.arange(3, dtype=np.uint64), 5, 2)
    assert (policy.horizon, policy.episodes) == (5, 2)
    ended_B, begun_B = policy.next_step(np.array([True, False, False]))
    assert not ended_B.any() and begun_B.all()
    ended_B, begun_B = policy.next_step(never)
    assert not ended_B.any() and not begun_B.any()
    policy.reset(never)
    assert policy.forgotten == []
    policy.reset(np.array([False, True, False]))
    assert policy.forgotten == [[False, True, False]]
    ended_B, begun_B = policy.next_step(np.array([True, True, False]))
    assert ended_B.tolist() == [True, False, False] and begun_B.tolist() == [True, True, False]


def test_every_action_takes_numbers_of_its_own_from_the_rows_own_stream() -> None:
    policy, seeds_B = Plain(), np.array([3, 8], np.uint64)
    policy.start(seeds_B)
    drawn = np.stack([policy.act(np.zeros(2), np.zeros(2), np.zeros(2, bool)) for _ in range(3)])
    for n, chances_B in enumerate(drawn.transpose(0, 2, 1).reshape(6, 2)):
        assert (chances_B == uniform(seeds_B, np.full(2, n), ACTION_STREAM)).all()
