"""In-context evaluation: tasks in one batch never meet, memory lasts over a task's episodes, and every episode counts once."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from recollect.artifacts.scores import SCORE_COLUMNS
from recollect.environments import registry
from recollect.environments.base import Task
from recollect.environments.base import World as BaseWorld
from recollect.evaluation import in_context
from recollect.evaluation.in_context import evaluate, play_in_context
from recollect.radt.acting import InContextPolicy
from recollect.radt.episodic_memory import EpisodicSettings
from recollect.settings.schema import EnvironmentSettings, EvaluationSettings
from recollect.sources.source_policies import walk

METHODS = ["dt", "ad", "radt", "radt_agnostic"]


class Staggered(BaseWorld):
    """Episodes of a task's own length (`data["length"]`) that pay 1 at each step of the action `data["pays"]`, and succeed
    where their last step is paid.

    Observations: (step, 0), as small whole numbers like those of a 4 x 3 room.
    """

    def _setup(self) -> None:
        self.horizon = 12
        self.single_observation_space = Box(np.zeros(2, np.int16), np.array([2, 3], np.int16), dtype=np.int16)
        self.single_action_space = Discrete(5)
        self.length_B = np.array([task.data["length"] for task in self.tasks])
        self.pays_B = np.array([task.data["pays"] for task in self.tasks])

    def _begin(self, index_N: np.ndarray) -> None:
        pass

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        self._success_B = actions_B == self.pays_B
        return self._success_B.astype(np.float32), self._timestep_B >= self.length_B

    def _observe(self) -> np.ndarray:
        return np.stack([self._timestep_B % 3, self._timestep_B % 4], 1).astype(np.int16)


LENGTHS = [12, 5, 7, 1]


def staggered_tasks() -> list[Task]:
    return [Task(i, f"length_{n}", "eval", {"length": n, "pays": i}) for i, n in enumerate(LENGTHS)]


@pytest.fixture
def staggered(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """Its tasks, while worlds that are to play them are of that kind."""
    make = registry.make_world

    def make_either(name: str, options: Any, tasks: Sequence[Task], seeds: np.ndarray) -> BaseWorld:
        return Staggered(tasks, seeds=seeds) if "length" in tasks[0].data else make(name, options, tasks, seeds)

    monkeypatch.setattr(registry, "make_world", make_either)
    return staggered_tasks()


class Watched:
    """A policy that records what its inner policy is asked, row by row."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.actions: list[np.ndarray] = []
        self.dones: list[np.ndarray] = []
        self.observations: list[np.ndarray] = []

    def start(self, seeds_B: np.ndarray, horizon: int, episodes: int) -> None:
        self.inner.start(seeds_B, horizon, episodes)

    def reset(self, mask_B: np.ndarray) -> None:
        self.inner.reset(mask_B)

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        self.observations.append(np.array(observation_BD))
        self.dones.append(np.array(done_B))
        self.actions.append(np.array(self.inner.act(observation_BD, reward_B, done_B)))
        return self.actions[-1]


class Constant:
    """Always the same action in each row."""

    def __init__(self, action_B: Sequence[int]) -> None:
        self.action_B = np.array(action_B)
        self.forgotten: list[np.ndarray] = []

    def start(self, seeds_B: np.ndarray, horizon: int, episodes: int) -> None:
        assert len(seeds_B) == len(self.action_B)

    def reset(self, mask_B: np.ndarray) -> None:
        self.forgotten.append(mask_B)

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        return self.action_B


def settings_of(room: Any, method: str) -> Any:
    """Actions are drawn, so that a difference in any row's draws is seen as well."""
    if method in ("dt", "ad"):
        return room.settings(method, selection="sample")
    every = 5 if method == "radt" else 1
    # By similarity alone, so that another moment of retrieval finds another window.
    return room.settings(method, selection="sample", retrieve_every=every, acting=EpisodicSettings(return_weight=0))


# ----------------------------------------------------------------------------------------- one batch, task by task


@pytest.mark.quick("radt-merged")
@pytest.mark.parametrize("tokens", ["merged", "interleaved"])
@pytest.mark.parametrize("method", METHODS)
def test_all_tasks_in_one_batch_equal_each_task_alone(tiny: Any, method: str, tokens: str) -> None:
    room = tiny(tokens=tokens)
    tasks = registry.tasks("dark_room", room.environment.options, "train")[1:6]
    settings = settings_of(room, method)
    together = Watched(room.policy(settings, scale=20.0))
    returns = play_in_context(together, room.environment, tasks, seed=3).return_RE
    assert len({tuple(row) for row in np.array(together.actions).T.tolist()}) == len(tasks)  # rows do different things
    assert returns.any()
    for i, task in enumerate(tasks):
        alone = Watched(room.policy(settings, scale=20.0))
        played = play_in_context(alone, room.environment, [task], seed=3).return_RE
        assert played.tolist() == returns[i : i + 1].tolist()
        assert [a[0] for a in alone.actions] == [a[i] for a in together.actions]


@pytest.mark.quick("radt", "ad")
@pytest.mark.parametrize("method", METHODS)
def test_all_splits_in_one_batch_score_as_one_after_another(
    tiny: Any, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As policies do on a GPU: the same table, in as many steps as one split takes."""

    def by_goal(return_TE: np.ndarray, tasks: list[Task]) -> dict[str, np.ndarray]:
        return {"from_goal": return_TE - [[10 * sum(task.data["goal"])] for task in tasks]}

    monkeypatch.setattr(in_context, "normalised", by_goal)
    room = tiny()
    evaluation = room.environment.evaluation.model_copy(update={"splits": ("eval", "train")})
    environment = room.environment.model_copy(update={"evaluation": evaluation})
    settings = settings_of(room, method)
    tables, steps = [], []
    for joins in (False, True):
        acted = Watched(room.policy(settings, scale=20.0))
        setattr(acted, "joins_splits", joins)  # noqa: B010
        tables.append(evaluate(acted, environment, method=method, seed=3, step=7))
        steps.append(len(acted.actions))
    assert tables[0].equals(tables[1]) and set(tables[0]["split"]) == {"eval", "train"}
    assert "from_goal" in set(tables[0]["metric"])
    assert steps == [2 * 36, 36]


def test_splits_of_other_lengths_are_batches_of_their_own() -> None:
    """Episodes of Procgen's train tasks end after 6000 steps, those of its other tasks after 400: no world has both."""
    splits = ("eval", "train", "seen")
    environment = EnvironmentSettings(name="games", world="procgen", evaluation=EvaluationSettings(splits=splits))
    batches = in_context.batches_of(SimpleNamespace(joins_splits=True), environment)  # type: ignore[arg-type]
    assert [list(tasks_of) for tasks_of in batches] == [["eval", "seen"], ["train"]]
    for tasks_of in batches:
        tasks = [task for tasks in tasks_of.values() for task in tasks]
        world = registry.make_world("procgen", {}, tasks, np.arange(len(tasks), dtype=np.uint64))
        assert world.horizon == (6000 if "train" in tasks_of else 400)


def test_a_memory_that_tasks_share_is_of_one_split(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    room = tiny()
    monkeypatch.setattr(InContextPolicy, "joins_splits", True)
    assert room.policy(room.settings("radt")).joins_splits
    assert not room.policy(room.settings("radt", acting=EpisodicSettings(shared=True))).joins_splits


@pytest.mark.quick("radt", "ad")
@pytest.mark.parametrize("method", METHODS)
def test_episodes_that_end_at_different_steps_change_nothing(tiny: Any, staggered: list[Task], method: str) -> None:
    room = tiny()
    settings = settings_of(room, method)
    together = Watched(room.policy(settings, scale=20.0))
    returns = play_in_context(together, room.environment, staggered, seed=3).return_RE
    for i, task in enumerate(staggered):
        alone = Watched(room.policy(settings, scale=20.0))
        played = play_in_context(alone, room.environment, [task], seed=3).return_RE
        assert played.tolist() == returns[i : i + 1].tolist()
        steps = len(alone.actions)
        assert steps == room.environment.evaluation.episodes * LENGTHS[i]
        assert [a[0] for a in alone.actions] == [a[i] for a in together.actions[:steps]]


def test_another_seed_plays_otherwise(tiny: Any) -> None:
    room = tiny()
    tasks = registry.tasks("dark_room", room.environment.options, "eval")
    played = []
    for seed in (0, 0, 1):
        policy = Watched(room.policy(settings_of(room, "radt")))
        play_in_context(policy, room.environment, tasks, seed=seed)
        played.append(np.array(policy.actions).tolist())
    assert played[0] == played[1] != played[2]


# ----------------------------------------------------------------------------------------------------------- memory


def test_memory_starts_empty_and_lasts_over_the_episodes_of_a_task(tiny: Any) -> None:
    room = tiny(episodes=3)
    tasks = registry.tasks("dark_room", room.environment.options, "eval")
    policy = room.policy(room.settings("radt"))
    counts: list[list[int]] = []

    class Counting(Watched):
        def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
            action_B = super().act(observation_BD, reward_B, done_B)
            counts.append(policy.own.memory.count_E.tolist())
            return action_B

    for _ in range(2):  # the second evaluation begins with nothing again
        counts.clear()
        play_in_context(Counting(policy), room.environment, tasks, seed=0)
        per_episode = 3  # 12 steps, a cut every 4
        assert counts == [[per_episode * (step // 12)] * len(tasks) for step in range(36)]


def test_ad_keeps_the_last_episode_in_front_of_the_current_one(tiny: Any) -> None:
    room = tiny(episodes=3)
    tasks = registry.tasks("dark_room", room.environment.options, "eval")
    policy = room.policy(room.settings("ad"))
    lengths: list[int] = []

    class Measuring(Watched):
        def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
            action_B = super().act(observation_BD, reward_B, done_B)
            lengths.append(int(policy.cached.cache.lengths_B[0]))
            return action_B

    play_in_context(Measuring(policy), room.environment, tasks, seed=0)
    assert lengths == [*range(1, 13), *range(13, 25), *range(13, 25)]


def test_a_task_that_has_played_all_its_episodes_is_told_to_forget(tiny: Any, staggered: list[Task]) -> None:
    room = tiny(episodes=2)
    policy = Constant([0, 0, 0, 0])
    play_in_context(policy, room.environment, staggered, seed=0)
    first = [next(t for t, mask in enumerate(policy.forgotten) if mask[b]) for b in (1, 2, 3)]
    assert not any(mask[0] for mask in policy.forgotten)  # the slowest row plays to the end
    assert first == [8, 12, 0]  # it is asked in each step from the second on: the shortest row ends all the time


# --------------------------------------------------------------------------------------------------------- counting


def test_every_episode_is_counted_once_when_ends_are_staggered(tiny: Any, staggered: list[Task]) -> None:
    room = tiny(episodes=4)
    told: list[int] = []
    # Row i is paid for action i; the last row acts wrongly.
    scores = play_in_context(Constant([0, 1, 2, 0]), room.environment, staggered, seed=0, progress=told.append)
    assert scores.return_RE.tolist() == [[12.0] * 4, [5.0] * 4, [7.0] * 4, [0.0] * 4]
    assert told == [1, 2, 3, 4]  # of the slowest row


def test_success_is_scored_in_every_episode_where_the_world_knows_it(
    tiny: Any, staggered: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    room = tiny(episodes=3)
    monkeypatch.setattr(registry, "tasks", lambda *_: staggered)
    frame = evaluate(Constant([0, 1, 2, 0]), room.environment, method="constant", seed=0, step=0)
    success = frame[frame.metric == "success"]
    place = list(zip(success.task, success.episode, success.value, strict=True))
    assert place == [(task, episode, float(task < 3)) for task in range(4) for episode in range(3)]
    assert len(frame) == 2 * len(success) and set(frame.metric) == {"return", "success"}


class Scripted:
    """Walks to each task's goal and stays: the best that can be done."""

    def __init__(self, goals_B2: np.ndarray) -> None:
        self.goals_B2 = goals_B2

    def start(self, seeds_B: np.ndarray, horizon: int, episodes: int) -> None:
        pass

    def reset(self, mask_B: np.ndarray) -> None:
        pass

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        return walk(observation_BD, self.goals_B2, np.zeros(len(observation_BD)))


@pytest.mark.parametrize("final", ["normal", "zero"])
def test_the_optimal_policy_gets_the_optimal_return_in_every_episode(final: str) -> None:
    environment = EnvironmentSettings(
        name="dark_room_10x10",
        world="dark_room",
        options={"width": 10, "height": 10, "final_step_reward": final},
        evaluation=EvaluationSettings(episodes=3),
    )
    tasks = registry.tasks("dark_room", environment.options, "eval")
    goals_B2 = np.array([task.data["goal"][::-1] for task in tasks])
    returns = play_in_context(Scripted(goals_B2), environment, tasks, seed=0).return_RE
    optimum = registry.make_world("dark_room", environment.options, tasks, np.zeros(20, np.uint64)).optimal_return()
    assert returns.tolist() == [[best] * 3 for best in optimum]
    assert returns.mean() == pytest.approx(90.05 + (final == "normal"))  # specification 1.3


def test_the_score_table_names_each_episode_of_each_task(tiny: Any) -> None:
    room = tiny(episodes=2)
    environment = room.environment.model_copy(
        update={"evaluation": EvaluationSettings(episodes=2, splits=("eval", "train"))}
    )
    tasks = {split: registry.tasks("dark_room", environment.options, split) for split in ("eval", "train")}
    goals = {split: np.array([task.data["goal"][::-1] for task in listed]) for split, listed in tasks.items()}
    batches = iter(["eval", "train"])

    class Either(Scripted):
        def __init__(self) -> None:
            pass

        def start(self, seeds_B: np.ndarray, horizon: int, episodes: int) -> None:
            self.goals_B2 = goals[next(batches)]

    frame = evaluate(Either(), environment, method="scripted", seed=4, step=70)
    assert list(frame.columns) == list(SCORE_COLUMNS)
    assert len(frame) == 2 * (len(tasks["eval"]) + len(tasks["train"]))
    assert set(zip(frame.env, frame.method, frame.seed, frame.step, frame.metric, strict=True)) == {
        ("room", "scripted", 4, 70, "return")
    }
    for split, listed in tasks.items():
        rows = frame[frame.split == split]
        assert list(zip(rows.task, rows.episode, strict=True)) == [(t.index, e) for t in listed for e in range(2)]
    distance = np.repeat(np.abs(goals["eval"]).sum(1), 2)
    away = distance > 0  # where the goal is the start, episodes start at a random cell
    assert frame[frame.split == "eval"].value[away].tolist() == (12 - distance + 1)[away].tolist()


def test_seeds_of_rows_follow_from_the_task_and_not_from_its_place(tiny: Any) -> None:
    environment = tiny().environment
    tasks = registry.tasks("dark_room", environment.options, "train")
    seeds = in_context.row_seeds("world", environment, tasks, 0)
    assert in_context.row_seeds("world", environment, tasks[::-1], 0).tolist() == seeds[::-1].tolist()
    assert len(set(seeds.tolist())) == len(tasks)
    assert in_context.row_seeds("world", environment, tasks[:1], 1)[0] != seeds[0]
    assert in_context.row_seeds("actions", environment, tasks[:1], 0)[0] != seeds[0]
    evaluation = environment.evaluation.model_copy(update={"seed": environment.evaluation.seed + 1})
    for changed in ({"evaluation": evaluation}, {"name": "another"}):
        other = in_context.row_seeds("world", environment.model_copy(update=changed), tasks, 0)
        assert not set(other.tolist()) & set(seeds.tolist())


def test_what_a_policy_draws_does_not_hang_on_its_worlds_draws(
    staggered: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    meet = in_context.world_as_met

    def met(environment: EnvironmentSettings, tasks: list[Task], seeds_B: np.ndarray, policy: Any) -> Any:
        drawn.extend(seeds_B.tolist())
        return meet(environment, tasks, seeds_B, policy)

    class Seeded(Constant):
        def start(self, seeds_B: np.ndarray, horizon: int, episodes: int) -> None:
            drawn.extend(seeds_B.tolist())

    monkeypatch.setattr(in_context, "world_as_met", met)
    environment = EnvironmentSettings(name="room", world="dark_room", evaluation=EvaluationSettings(episodes=1))
    for seed in (0, 1):
        play_in_context(Seeded([0, 0, 0, 0]), environment, staggered, seed=seed)
    assert len(set(drawn)) == len(drawn) == 2 * 2 * len(staggered)


# ------------------------------------------------------------------------------------------------------------ going on


class Noting(Constant):
    """Notes all that it is told."""

    acting = ()

    def __init__(self, action_B: Sequence[int]) -> None:
        super().__init__(action_B)
        self.told: list[list[list[float]]] = []

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        self.told.append([observation_BD.tolist(), reward_B.tolist(), done_B.tolist()])
        return super().act(observation_BD, reward_B, done_B)

    def state_arrays(self) -> dict[str, Any]:
        return {}

    def load_state(self, arrays: Any) -> None:
        assert not arrays


class Kept:
    """A part of a scoring that is saved before every step."""

    result = None

    def __init__(self, begun: dict[str, Any]) -> None:
        self.begun, self.states = begun, []

    def take(self) -> dict[str, Any]:
        return self.begun

    def offer(self, state: Any, *, early: bool = False) -> None:
        self.states.append({name: np.array(value) for name, value in state().items()})


def test_a_policy_that_goes_on_is_told_what_it_would_have_been_told(staggered: list[Task]) -> None:
    environment = EnvironmentSettings(name="room", world="dark_room", evaluation=EvaluationSettings(episodes=2))
    whole, kept = Noting([0, 1, 2, 0]), Kept({})
    scores = play_in_context(whole, environment, staggered, seed=0, kept=kept)  # type: ignore[arg-type]
    assert len(kept.states) == len(whole.told) == 24
    for moment in (1, 5, 12, 23):
        again = Noting([0, 1, 2, 0])
        found = play_in_context(again, environment, staggered, seed=0, kept=Kept(kept.states[moment]))  # type: ignore[arg-type]
        assert again.told == whole.told[moment:]
        assert found.return_RE.tolist() == scores.return_RE.tolist()
        np.testing.assert_array_equal(found.success_RE, scores.success_RE)
