"""Window sampling: the chances of episodes, and what may stand in front of the current one in Algorithm Distillation."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare
from test_windows import histories_of

from recollect.common.histories import Histories
from recollect.radt import dt
from recollect.radt.windows import DistillationSampler, WindowSampler, episode_chances

LENGTHS = [[4, 6, 2], [8, 5]]


def rewarded() -> Histories:
    """Episode i pays i at its first step, so that returns are 0..4; the last but one pays in two steps."""
    plain = histories_of(LENGTHS)
    reward = np.zeros(len(plain), np.float32)
    reward[plain.episodes.start] = np.arange(5)
    reward[plain.episodes.start[3] + 1] = 0.0
    return Histories({**plain.arrays(), "reward": reward})


def by_hand(by: str) -> np.ndarray:
    table = rewarded().episodes
    deviation = [np.std([i] + [0.0] * (length - 1)) for i, length in enumerate(table.length)]
    value = {
        "length": table.length,
        "uniform": np.ones(5),
        "return": np.arange(5),
        "return_corrected": np.arange(5) - table.length - min(np.arange(5) - table.length),
        "top": np.array([0, 0, 0, 1, 1]),
        "reward_std": np.array(deviation) - min(deviation),
    }[by]
    return value / value.sum()


@pytest.mark.parametrize("by", ["length", "uniform", "return", "return_corrected", "top", "reward_std"])
def test_episodes_are_drawn_with_the_chances_that_are_promised(by: str) -> None:
    histories = rewarded()
    wanted = by_hand(by)
    np.testing.assert_allclose(episode_chances(histories, by, 2), wanted, atol=1e-6)  # type: ignore[arg-type]
    sampler = WindowSampler(histories, context=3, batch_size=4000, seed=0, episodes_by=by, top=2)  # type: ignore[arg-type]
    batch = sampler.batch(5)
    counts = Counter(batch.episode.tolist())
    assert set(counts) == set(np.flatnonzero(wanted).tolist())
    drawn = np.array([counts[episode] for episode in np.flatnonzero(wanted)])
    assert chisquare(drawn, wanted[wanted > 0] * 4000).pvalue > 1e-3
    np.testing.assert_array_equal(batch.rows, sampler.batch(5).rows)


def test_where_all_returns_are_equal_every_episode_has_the_same_chance() -> None:
    for by in ("return", "reward_std"):
        np.testing.assert_allclose(episode_chances(histories_of(LENGTHS), by, 2), np.full(5, 0.2))
    # The best of equal ones are the first.
    np.testing.assert_array_equal(episode_chances(histories_of(LENGTHS), "top", 2), [0.5, 0.5, 0, 0, 0])


def drawn(batch_size: int = 3000, **chosen: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(task of the current episode, the current episode, the earlier one) of a batch."""
    histories = histories_of([[3, 4, 5, 2], [6], [3, 3]])
    sampler = DistillationSampler(histories, context=4, episodes_back=1, batch_size=batch_size, seed=0, **chosen)  # type: ignore[arg-type]
    batch = sampler.batch(1)
    shown = batch.mask & ~batch.current
    assert ((batch.earlier >= 0) == shown.any(1)).all()
    for row in np.flatnonzero(batch.earlier >= 0)[:50]:  # what stands in front is the end of that episode
        owners = histories.episode_of_row(batch.rows[row][shown[row]])
        assert set(owners.tolist()) == {int(batch.earlier[row])}
        assert batch.rows[row][shown[row]].max() == histories.episodes.start[owners[0]] + (
            histories.episodes.length[owners[0]] - 1
        )
        now = histories.episode_of_row(batch.rows[row][batch.mask[row] & batch.current[row]])
        assert set(now.tolist()) == {int(batch.episode[row])}
    return histories.episodes.task[batch.episode], batch.episode, batch.earlier


def test_an_earlier_episode_of_the_task_may_be_any_other_one() -> None:
    task, episode, earlier = drawn(earlier="task")
    assert (earlier[task == 1] == -1).all()  # a task with one episode
    others = task != 1
    table = histories_of([[3, 4, 5, 2], [6], [3, 3]]).episodes
    assert (table.task[earlier[others]] == task[others]).all() and (earlier != episode)[others].all()
    of_second = earlier[episode == 1]
    assert chisquare([np.sum(of_second == other) for other in (0, 2, 3)]).pvalue > 1e-3
    assert (earlier > episode)[others].any()  # not in the order of the history


def test_an_earlier_episode_of_any_task() -> None:
    _, episode, earlier = drawn(earlier="any")
    assert (earlier >= 0).all() and (earlier != episode).all() and set(earlier.tolist()) == set(range(7))


def test_a_share_of_earlier_episodes_is_random_and_a_share_is_left_out() -> None:
    _, episode, plain = drawn()
    _, same, mixed = drawn(random=0.4)
    np.testing.assert_array_equal(episode, same)
    had = plain >= 0
    changed = (plain != mixed)[had].mean()
    assert 0.25 < changed < 0.45 and (mixed[~had] == -1).all() and (mixed != episode)[had].all()
    _, same, dropped = drawn(drop=0.3)
    np.testing.assert_array_equal(episode, same)
    assert 0.25 < (dropped == -1)[had].mean() < 0.35 and (dropped == plain)[dropped >= 0].all()


def test_without_options_the_draws_are_those_of_the_published_rule() -> None:
    _, episode, earlier = drawn()
    table = histories_of([[3, 4, 5, 2], [6], [3, 3]]).episodes
    np.testing.assert_array_equal(earlier, np.where(episode > table.first_of_task[episode], episode - 1, -1))


def test_the_episodes_that_settings_ask_for_are_drawn() -> None:
    histories = rewarded()
    for top in (1, 3):
        chosen = dt.Hyperparameters(context=3, episodes_by="top", top_episodes=top)
        drawn = WindowSampler(histories, **chosen.sampling(0)).batch(0).episode
        assert set(drawn.tolist()) == set(range(5 - top, 5)) and len(drawn) == chosen.optimisation.batch_size
