"""The room games as tensors: what is seen, paid and left behind is that of the games themselves, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from recollect.environments import registry
from recollect.environments.three_rooms import ThreeRooms

MATCH, DOOR = "visual_match", "key_to_door"
SHORT = {"explore_steps": 4, "length": 6}
GAMES: list[tuple[str, dict[str, Any]]] = [
    (MATCH, {"length": 30}),
    (MATCH, {**SHORT, "reward_steps": 25, "color_map": "per_world", "respawn": 2, "flat": True}),
    (MATCH, {**SHORT, "variant": "active", "color_map": "per_instance", "crop": False, "final_reward": -2.0}),
    (MATCH, {**SHORT, "color_map": "shared", "respawn": None, "apple_reward": -0.5, "final_reward": 0.0}),
    (MATCH, {"length": 1, "explore_steps": 1, "reward_steps": 1, "apples": 0}),
    (DOOR, {"length": 30, "apples": 22}),
    (DOOR, {**SHORT, "explore_steps": 20, "crop": False, "flat": True, "respawn": 1, "apples": 22}),
    (DOOR, {"length": 40, "explore_steps": 30, "reward_room": "cca", "reward_steps": 40, "apple_reward_high": 3.0}),
]


def games_of(name: str, options: dict[str, Any]) -> list[Any]:
    tasks = registry.tasks(name, options, "train")
    return [
        registry.make_world(name, options, [tasks[0]] * rows, np.arange(rows, dtype=np.uint64) + seed)
        for seed, rows in enumerate((1, 40, 7))
    ]


@pytest.mark.parametrize(("name", "options"), GAMES)
def test_episodes_are_those_of_the_games_themselves(name: str, options: dict[str, Any]) -> None:
    wanted, games = games_of(name, options), games_of(name, options)
    played, draws = games[0].on_device(games, torch.device("cpu")), np.random.default_rng(0)
    earned = 0
    for _ in range(4):
        seen = [game.reset()[0] for game in wanted]
        assert np.array_equal(played.begin(), np.concatenate(seen))
        towards_B = draws.integers(4, size=played.rows)  # walks of some length, which come further than single steps
        for t in range(played.horizon):
            towards_B = np.where(draws.random(played.rows) < 0.4, draws.integers(4, size=played.rows), towards_B)
            observation_BD, reward_B = played.step(torch.from_numpy(towards_B), played.kind(t))
            steps = [game.step(own) for game, own in zip(wanted, np.split(towards_B, [1, 41]), strict=True)]
            there_BD = np.concatenate([step[0] for step in steps]).reshape(played.rows, -1)
            assert np.array_equal(observation_BD.numpy(), there_BD)
            assert reward_B.numpy().tobytes() == np.concatenate([step[1] for step in steps]).tobytes()
            assert observation_BD.dtype == torch.uint8 and reward_B.dtype == torch.float32
            assert all(step[2].all() == (t == played.horizon - 1) for step in steps)
        success_B = played.end()
        assert np.array_equal(success_B, np.concatenate([step[4]["success"] for step in steps]))
        earned += int(success_B.sum())
        for game, other in zip(games, wanted, strict=True):
            state, there = game.get_state(), other.get_state()
            assert state.keys() == there.keys()
            for kept, array in state.items():
                assert np.array_equal(array, there[kept]), kept
    can_earn = options.get("final_reward", 5.0) > 0 and played.horizon > 15
    assert (earned > 0) == can_earn


def test_a_game_goes_on_by_itself_where_it_was_played_on_the_device() -> None:
    name, options = GAMES[5]
    wanted, games = games_of(name, options), games_of(name, options)
    played = games[0].on_device(games, torch.device("cpu"))
    played.begin()
    for t in range(played.horizon):
        played.step(torch.zeros(played.rows, dtype=torch.int64), played.kind(t))
    played.end()
    for game, other in zip(games, wanted, strict=True):
        other.reset()
        for _ in range(other.horizon):
            other.step(np.zeros(other.num_envs, np.int64))
        assert np.array_equal(game.reset()[0], other.reset()[0])
        action_B = np.full(game.num_envs, 2)
        for here, there in zip(game.step(action_B)[:4], other.step(action_B)[:4], strict=True):
            assert np.array_equal(here, there)


@pytest.mark.parametrize(
    "changes", [{"apple_reward_high": 10.0, "fixed_apple_reward": False}, {"one_hot_actions": True}]
)
def test_games_that_draw_while_they_are_played_stay_on_the_host(changes: dict[str, Any]) -> None:
    games: list[ThreeRooms] = games_of(MATCH, changes)
    assert games[0].on_device(games, torch.device("cpu")) is None
