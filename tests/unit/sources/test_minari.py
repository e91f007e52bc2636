"""Minari as a source: actions become those of our world. What needs the package itself stands in test_api."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from recollect.common.histories import Histories
from recollect.environments import registry
from recollect.settings.errors import UserError
from recollect.sources import minari

HALF = Box(-0.4, 0.4, (1,), np.float32)
OPTIONS = {"id": "paid/Action-v0", "horizon": 10}


class Action(gymnasium.Env[np.ndarray, np.ndarray]):
    """Pays what is done, which is at most 0.4; an episode has four steps."""

    observation_space, action_space = Box(-np.inf, np.inf, (1,), np.float32), HALF

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.zeros(1, np.float32), float(action[0]), self.t == 4, False, {}


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Histories of a dataset of one episode, whose rewards are its actions, with these actions and their space."""
    if OPTIONS["id"] not in gymnasium.registry:
        gymnasium.register(str(OPTIONS["id"]), entry_point=lambda **_: Action())

    def made(actions: list[float], acts: Box) -> dict[str, np.ndarray]:
        given = np.array(actions, np.float32)
        rows = {
            "observation": np.zeros((len(given), 1), np.float32),
            "action": given[:, None],
            "reward": given,
            "done": np.arange(len(given)) == len(given) - 1,
            "task": np.zeros(len(given), np.int32),
            "episode": np.zeros(len(given), np.int32),
        }
        monkeypatch.setattr(minari, "_read", lambda dataset: (rows, acts))
        tasks = registry.tasks("gymnasium", OPTIONS, "train")
        return minari.generate("gymnasium", OPTIONS, tasks, minari.Hyperparameters(dataset="sum-v0"), seed=0)

    return made


def test_an_action_of_a_dataset_pays_the_same_in_our_world(generated: Any) -> None:
    histories = generated([0.4, -0.4, 0.1, 0.0], HALF)
    np.testing.assert_allclose(histories["action"][:, 0], [1, -1, 0.25, 0], atol=1e-6)
    world = registry.make_world(
        "gymnasium", OPTIONS, registry.tasks("gymnasium", OPTIONS, "train"), np.zeros(1, np.uint64)
    )
    world.reset()
    paid = [world.step(action[None])[1][0] for action in histories["action"]]
    np.testing.assert_allclose(paid, histories["reward"], atol=1e-6)
    wide = generated([1.5, -2.0], Box(-2, 2, (1,), np.float32))  # was refused as out of range
    np.testing.assert_allclose(wide["action"][:, 0], [0.75, -1])


def test_what_our_world_would_write_stays_as_it_is_and_what_has_no_unit_is_refused(generated: Any) -> None:
    actions = [0.3, -1.0, 0.7]
    same = generated(actions, Box(-1, 1, (1,), np.float32))
    assert same["action"][:, 0].tolist() == np.array(actions, np.float32).tolist()
    with pytest.raises(UserError, match="units cannot be compared"):
        generated(actions, Box(-np.inf, np.inf, (1,), np.float32))
    with pytest.raises(UserError, match="out of range"):
        generated([0.9], HALF)
    choices = np.arange(3)
    assert minari.in_units_of(Discrete(3), choices, Discrete(3), "here") is choices


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is read of a dataset of these episodes, as Minari gives them, with three actions from `first` on."""
    monkeypatch.setattr(minari, "folder_of", Path)

    def made(episodes: list[Any], first: int) -> dict[str, np.ndarray]:
        class Dataset:
            observation_space, action_space = Box(-9, 9, (2,), np.float32), Discrete(3, start=first)

            def __iter__(self) -> Any:
                return iter(episodes)

        monkeypatch.setattr(minari, "_minari", lambda: SimpleNamespace(load_dataset=lambda dataset: Dataset()))
        return minari.read("any-v0")

    return made


def test_histories_that_were_written_are_read_again(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is of two steps. The first task has episodes of 2, 1 and 2 steps, of which the last has no end; the other of 3."""
    done = [False, True, True, False, False, False, False, True]
    arrays = {
        "observation": np.arange(16, dtype=np.float32).reshape(8, 2),
        "action": np.array([0, 1, 2, 0, 1, 2, 0, 1], np.int64),
        "reward": np.arange(8, dtype=np.float32),
        "done": np.array(done),
        "task": np.repeat(np.array([0, 4], np.int32), [5, 3]),
        "episode": np.array([0, 0, 1, 2, 2, 0, 0, 0], np.int32),
    }
    collector = ModuleType("minari.data_collector")
    collector.EpisodeBuffer = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "minari.data_collector", collector)
    episodes = list(minari._buffers(Histories(arrays), cut_at=2))
    assert [len(one.observations) - len(one.rewards) for one in episodes] == [1] * 4
    assert [one.truncations.tolist() for one in episodes[:2]] == [[False, True], [False]]
    assert [one.terminations.tolist() for one in episodes[:2]] == [[False, False], [True]]
    for name, array in read(episodes, 0).items():
        np.testing.assert_array_equal(array, arrays[name])


def test_tasks_of_a_dataset_may_be_mixed_and_an_episode_that_another_follows_is_over(read: Any) -> None:
    """As a stranger writes it: actions from -1 on, no infos but of one task, an observation more, ends that nobody has told."""

    def episode(number: int, steps: int, infos: Any, ends: bool = False) -> SimpleNamespace:
        never, last = np.zeros(steps, bool), np.arange(steps) == steps - 1
        return SimpleNamespace(
            id=number, observations=np.full((steps + 1, 2), number) + np.arange(steps + 1)[:, None] / 4,
            actions=np.arange(steps) % 3 - 1, rewards=np.ones(steps), infos=infos,
            terminations=never, truncations=last & ends,
        )  # fmt: skip

    found = read([episode(0, 1, {"task": np.array([1, 1])}, True), episode(1, 2, None), episode(2, 3, {})], -1)
    assert found["task"].tolist() == [0, 0, 0, 0, 0, 1] and found["episode"].tolist() == [0, 0, 1, 1, 1, 0]
    assert found["done"].tolist() == [False, True, False, False, False, True]
    assert found["action"].tolist() == [0, 1, 0, 1, 2, 0]
    assert found["observation"][:, 0].tolist() == [1, 1.25, 2, 2.25, 2.5, 0]
    with pytest.raises(UserError, match="episode 3 name no single task"):
        read([episode(3, 2, {"task": np.array([0, 1, 1])})], 0)
    with pytest.raises(UserError, match="ends before its last step"):
        read([SimpleNamespace(**{**vars(episode(4, 2, None)), "terminations": np.array([True, False])})], 0)


def test_what_a_dataset_does_not_show_is_refused() -> None:
    known: dict[str, Any] = {"world": "dark_room", "options": {}, "name": "room", "split": "train"}
    histories: Any = None  # they are not looked at
    with pytest.raises(UserError, match="shows nothing called 'autor'"):
        minari.write("recollect/x-v0", histories, about={"autor": "me"}, **known)
