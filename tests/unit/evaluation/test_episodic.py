"""Episodic evaluation: every episode is whole, counted once, and starts from an empty memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from playing import play

from recollect.common.acting_state import Acting
from recollect.common.batched_policy import BatchedPolicy
from recollect.common.rollout import play_episodes, score_episodes
from recollect.environments import registry
from recollect.environments.registry import make_world, tasks
from recollect.evaluation import tracing
from recollect.evaluation.episodic import episode_seeds, evaluate, part_returns, rounds
from recollect.settings.errors import UserError
from recollect.settings.schema import EnvironmentSettings, EvaluationSettings

LENGTH = 6


def tmaze(instances: int) -> Any:
    options = {"variant": "passive", "length": LENGTH}
    return make_world("tmaze", options, tasks("tmaze", options, "eval") * instances, np.arange(instances))


class Scripted:
    """Walks right, then turns to the side it saw (or always up)."""

    def __init__(self, remembers: bool) -> None:
        self.remembers, self.starts = remembers, 0

    def start(self, seeds_B: np.ndarray, horizon: int, episodes: int) -> None:
        assert (horizon, episodes) == (LENGTH + 1, 1)
        batch = len(seeds_B)
        self.starts += 1
        self.side, self.fresh = np.zeros(batch), np.ones(batch, bool)

    def reset(self, mask_B: np.ndarray) -> None:
        self.fresh |= mask_B

    def arrays(self) -> dict[str, np.ndarray]:
        return {}

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        self.side = np.where(self.fresh, observation_BD[:, 1], self.side)
        self.fresh[:] = False
        turn = np.where(self.side > 0, 1, 3) if self.remembers else np.ones(len(self.side), np.int64)
        return np.where(observation_BD[:, 0] == 1, turn, 0)


def test_a_policy_that_remembers_scores_one_in_every_episode() -> None:
    scores = play(tmaze(16), Scripted(remembers=True))
    assert scores.return_E.tolist() == [1.0] * 16
    assert scores.length_E.tolist() == [LENGTH + 1] * 16
    assert np.isnan(scores.success_E).all()  # a T-Maze has no notion of success


def test_a_policy_that_guesses_scores_one_or_zero_and_half_on_average() -> None:
    scores = play(tmaze(400), Scripted(remembers=False))
    assert set(scores.return_E.tolist()) == {0.0, 1.0}
    assert abs(scores.return_E.mean() - 0.5) < 0.125  # five standard deviations


def test_more_episodes_than_instances_are_played_in_rounds() -> None:
    policy = Scripted(remembers=True)
    assert len(play(tmaze(4), policy, episodes=10).return_E) == 10
    assert policy.starts == 3


def test_score_rows_hold_every_episode_of_every_split() -> None:
    environment = EnvironmentSettings(
        name="maze",
        world="tmaze",
        options={"variant": "passive", "length": LENGTH},
        evaluation=EvaluationSettings(protocol="episodic", episodes=7, splits=("train", "eval")),
    )
    seen: list[int] = []
    rows = evaluate(Scripted(True), environment, method="m", seed=2, step=30, progress=seen.append)
    assert rows.shape[0] == 14 and seen == [7, 7]
    assert rows["split"].tolist() == ["train"] * 7 + ["eval"] * 7
    assert rows["episode"].tolist() == [*range(7), *range(7)]
    assert set(rows["metric"]) == {"return"} and set(rows["value"]) == {1.0}
    assert set(rows["seed"]) == {2} and set(rows["step"]) == {30} and set(rows["task"]) == {0}
    guess = evaluate(Scripted(False), environment, method="m", seed=2, step=30)["value"]
    assert guess.equals(evaluate(Scripted(False), environment, method="m", seed=2, step=30)["value"])
    assert not guess.equals(evaluate(Scripted(False), environment, method="m", seed=3, step=30)["value"])


def test_no_two_episodes_share_a_seed_and_other_runs_play_others() -> None:
    worlds, actions = [], []
    for name, evaluation_seed, seed in (("maze", 0, 0), ("hall", 0, 0), ("maze", 1, 0), ("maze", 0, 1)):
        evaluation = EvaluationSettings(protocol="episodic", episodes=5, seed=evaluation_seed)
        environment = EnvironmentSettings(name=name, world="tmaze", evaluation=evaluation)
        for split in ("train", "eval"):
            worlds_E, actions_E = episode_seeds(environment, split, range(5), seed)
            worlds += worlds_E.tolist()
        if name == "maze":
            actions += actions_E.tolist()
    assert len({*worlds, *actions}) == len(worlds) + len(actions) == 4 * 2 * 5 + 3 * 5


def test_normalised_returns_stand_beside_the_returns_where_tasks_list_them(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = EnvironmentSettings(
        name="maze",
        world="tmaze",
        options={"variant": "passive", "length": LENGTH},
        evaluation=EvaluationSettings(protocol="episodic", episodes=4),
    )
    known = registry.tasks("tmaze", environment.options, "eval")
    scaled = [replace(task, data={**task.data, "normalisation": {"hns": (-1.0, 3.0)}}) for task in known]
    monkeypatch.setattr(registry, "tasks", lambda *_: scaled)
    rows = evaluate(Scripted(True), environment, method="m", seed=2, step=30)
    assert rows.groupby("metric")["value"].unique().map(list).to_dict() == {"return": [1.0], "hns": [0.5]}


class Still:
    """Stays where it is."""

    def start(self, seeds_B: np.ndarray, horizon: int, episodes: int) -> None:
        self.batch = len(seeds_B)

    def reset(self, mask_B: np.ndarray) -> None:
        pass

    def arrays(self) -> dict[str, np.ndarray]:
        return {}

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        return np.full(self.batch, 4)


def test_each_part_of_an_episode_with_parts_is_scored_as_an_in_context_episode() -> None:
    # In a room of one cell the first step takes the key and the second opens the door: 2 every second step.
    for steps, parts in ((6, 5), (7, 0)):  # 30 steps are no whole number of sevens
        environment = EnvironmentSettings(
            name="room",
            world="meta_key_door",
            options={"size": 1, "episode_steps": steps, "rollout_steps": 30},
            evaluation=EvaluationSettings(protocol="episodic", episodes=3),
        )
        rows = evaluate(Still(), environment, method="m", seed=0, step=1)
        assert rows[rows["metric"] == "return"]["value"].tolist() == [30.0] * 3
        by_part = rows[rows["metric"] == "part_return"]
        assert by_part["value"].tolist() == [6.0] * 3 * parts
        assert by_part["task"].tolist() == [task for task in range(3) for _ in range(parts)]
        assert by_part["episode"].tolist() == [*range(parts)] * 3
    assert part_returns(np.arange(6.0)[None], 3).tolist() == [[1.0, 5.0, 9.0]]


class Ragged:
    """Instance i ends after i + 1 steps, pays 1 per step, and refuses to be stepped after its end.

    Whatever ends at the world's first step fails, and all that ends later succeeds.
    """

    horizon = 4
    single_observation_space = Box(0.0, 10.0, (1,), np.float32)

    def __init__(self) -> None:
        self.num_envs = 3
        self.t, self.ended, self.steps = np.zeros(3, int), np.ones(3, bool), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        mask = options["reset_mask"]
        self.t[mask], self.ended[mask] = 0, False
        return self.t[:, None].astype(np.float32), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        assert not self.ended.any()
        self.t += 1
        self.steps += 1
        terminated, truncated = self.t == np.array([1, 2, 9]), self.t == np.array([9, 9, 3])
        self.ended = terminated | truncated
        success = {"success": np.full(3, self.steps >= 2)} if self.ended.any() else {}
        return self.t[:, None].astype(np.float32), np.ones(3, np.float32), terminated, truncated, success


def test_episodes_of_different_length_are_each_kept_once_and_whole() -> None:
    episodes = play_episodes(Ragged(), lambda observation, reward, done, t, live: observation[:, 0].astype(np.int64))
    assert episodes.length_B.tolist() == [1, 2, 3]
    assert episodes.return_B.tolist() == [1.0, 2.0, 3.0]
    assert episodes.success_B.tolist() == [0.0, 1.0, 1.0]
    assert episodes.terminal_BT.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert episodes.observation_BTD[..., 0].tolist() == [[0, 1, 0, 0], [0, 1, 2, 0], [0, 1, 2, 3]]
    assert episodes.action_BT.tolist() == [[0, 0, 0], [0, 1, 0], [0, 1, 2]]
    assert len(episodes.first(2).length_B) == 2


class Resumable(Ragged):
    def get_state(self) -> dict[str, np.ndarray]:
        return {"t": self.t, "ended": self.ended, "steps": np.array(self.steps)}

    def set_state(self, state: Any) -> None:
        self.t, self.ended, self.steps = state["t"].copy(), state["ended"].copy(), int(state["steps"])


class Echo(Acting):
    """Does what it sees, and what it has done before."""

    acting = ("total",)
    total = 0.0

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        self.total += float(reward_B.sum() + 10 * done_B.sum())
        return (observation_BD[:, 0] + self.total).astype(np.int64)


class Offered:
    """A part of a scoring that keeps every state."""

    def __init__(self, begun: dict[str, np.ndarray]) -> None:
        self.begun, self.states = dict(begun), list[dict[str, np.ndarray]]()

    def take(self) -> dict[str, np.ndarray]:
        return self.begun

    def offer(self, state: Callable[[], dict[str, np.ndarray]]) -> None:
        self.states.append({name: np.array(value) for name, value in state().items()})


def test_who_watches_is_told_what_was_seen_in_front_of_an_action_and_what_came_of_it() -> None:
    told: list[list[np.ndarray]] = []
    whole: Any = Offered({})
    score_episodes(Resumable(), Echo(), whole, lambda *step: told.append([np.array(part) for part in step]))
    seen, did, got, done, live = (np.stack(parts) for parts in zip(*told, strict=True))
    assert seen[..., 0].tolist() == [[0, 0, 0], [0, 1, 1], [0, 0, 2]]  # those that ended before begin another episode
    assert did.tolist() == [[0, 0, 0], [13, 14, 14], [36, 36, 38]] and (got == 1).all()
    assert done.tolist() == [[True, False, False], [True, True, False], [True, False, True]]
    assert live.tolist() == [[True, True, True], [False, True, True], [False, False, True]]


def test_what_had_ended_before_a_kill_is_scored_as_it_was() -> None:
    whole: Any = Offered({})
    expected = score_episodes(Resumable(), Echo(), whole)
    assert expected.success_B.tolist() == [0.0, 1.0, 1.0] and len(whole.states) == 3
    for state in whole.states:
        again: Any = Offered(state)
        found = score_episodes(Resumable(), Echo(), again)
        for name in expected.__dataclass_fields__:
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)


class Dice(BatchedPolicy):
    """Draws its actions, remembers nothing, and knows the most rows that it ever played side by side."""

    most = 0

    def __init__(self, rows_at_once: int | None) -> None:
        self.rows_at_once = rows_at_once

    def begin(self, rows: int) -> None:
        self.most = max(self.most, rows)

    def forget(self, mask_B: np.ndarray) -> None:
        pass

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        self.next_step(done_B)
        return (4 * self.action_chances()[:, 0]).astype(np.int64)

    def arrays(self) -> dict[str, np.ndarray]:
        return {}


def test_an_evaluation_that_does_not_play_all_tasks_cannot_be_traced() -> None:
    evaluation = EvaluationSettings(protocol="episodic", episodes=3)
    options = {"width": 3, "height": 3}
    environment = EnvironmentSettings(name="room", world="dark_room", options=options, evaluation=evaluation)
    tasks = len(registry.tasks("dark_room", options, "train"))
    with pytest.raises(UserError, match=f"3 episodes does not play all {tasks} tasks"):
        tracing.trace(Dice(None), environment, about={}, split="train", tasks=[0], seed=2)


def test_each_row_plays_the_same_episode_however_many_are_played_at_once() -> None:
    environment = EnvironmentSettings(
        name="maze",
        world="tmaze",
        options={"variant": "passive", "length": LENGTH},
        evaluation=EvaluationSettings(protocol="episodic", episodes=7),
    )
    about: dict[str, Any] = {"about": {}, "split": "eval", "tasks": [0], "seed": 2}
    together = evaluate(Dice(None), environment, method="m", seed=2, step=30)
    traced = tracing.trace(Dice(None), environment, **about)
    for rows in (1, 3, 7, 50):
        done: list[int] = []
        policy = Dice(rows)
        assert evaluate(policy, environment, method="m", seed=2, step=30, progress=done.append).equals(together)
        assert policy.most == min(rows, 7) and done[-1] == 7 and sorted(done) == done
        trace = tracing.trace(Dice(rows), environment, **about)
        for name, column in traced.played.arrays().items():
            assert np.array_equal(trace.played.arrays()[name], column), name


class Telling(Dice):
    """Counts how often it is asked of itself."""

    asked = 0

    def traced(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        self.asked += 1
        return {"row": rows_N}

    def maps(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        return {}


def test_rounds_that_no_traced_row_plays_in_are_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "EPISODES", 2)
    environment = EnvironmentSettings(
        name="maze",
        world="tmaze",
        options={"variant": "passive", "length": LENGTH},
        evaluation=EvaluationSettings(protocol="episodic", episodes=7),
    )
    policy = Telling(3)
    trace = tracing.trace(policy, environment, about={}, split="eval", tasks=[0], seed=2)
    assert policy.asked == LENGTH + 1 and len(trace.played) == 2 * policy.asked


class Placing(Dice):
    """Says of each step, as a fact and as a map, whose it is and which."""

    steps = 0

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        self.steps += 1
        return super().act(observation_BD, reward_B, done_B)

    def traced(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        return {"place": np.stack([rows_N, np.full(len(rows_N), self.steps)], 1)}

    maps = traced


def test_a_map_stands_at_the_step_that_it_is_of() -> None:
    environment = EnvironmentSettings(
        name="maze",
        world="tmaze",
        options={"variant": "passive", "length": LENGTH},
        evaluation=EvaluationSettings(protocol="episodic", episodes=3),
    )
    trace = tracing.trace(Placing(None), environment, about={}, split="eval", tasks=[0], seed=2)
    assert trace.map_row.tolist() == list(range(3 * (LENGTH + 1)))
    assert trace.maps["place"].tolist() == trace.facts["place"].tolist()


def test_no_row_is_played_alone_where_there_are_others() -> None:
    """All rows in order, and the rounds of before, unless the last one had a single row."""
    for count in range(2, 40):
        assert rounds(count, None) == [slice(0, count)]
        for at_once in range(2, 42):
            found = rounds(count, at_once)
            assert [row for rows in found for row in range(rows.start, rows.stop)] == list(range(count))
            sizes = [rows.stop - rows.start for rows in found]
            assert min(sizes) > 1 and max(sizes) <= max(at_once, 3)
            if count % at_once != 1:
                assert found == [slice(first, min(first + at_once, count)) for first in range(0, count, at_once)]
    assert rounds(1, 4) == [slice(0, 1)] and rounds(3, 1) == [slice(0, 1), slice(1, 2), slice(2, 3)]
