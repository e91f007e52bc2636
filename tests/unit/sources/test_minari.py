"""Minari as a source: actions become those of our world. What needs the package itself stands in test_api."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

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
