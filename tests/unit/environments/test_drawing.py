"""Worlds can be drawn for people: the picture follows the agent, and drawing changes nothing that is played."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from recollect.environments import registry
from recollect.environments.base import World
from recollect.environments.dark_room import DarkRoom
from recollect.environments.drawing import AGENT, FINER, MOST, WALL, drawn, grid
from recollect.settings.errors import UserError

OURS: dict[str, dict[str, Any]] = {
    "alchemy": {"trials": 2, "trial_steps": 20},
    "continuous_recognition": {"trials": 5, "stimuli": 9},
    "dark_room": {},
    "frozen_lake_meta": {},
    "goal_maze": {"size": 9},
    "key_door": {"width": 3, "height": 3},
    "key_to_door": {},
    "maze_runner": {"size": 9},
    "meta_key_door": {"size": 3},
    "package_delivery": {},
    "random_maze": {"smallest": 9, "largest": 9},
    "tmaze": {"variant": "active", "length": 40},
    "visual_match": {"variant": "active"},
    "wind": {},
}
# Of each the package that plays it.
PACKAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "crafter": ("crafter", {"observation": "textures"}),
    "gymnasium": ("gymnasium", {"id": "CartPole-v1"}),
    "mini_grid": ("minigrid", {}),
}
NEED_NOTHING = ("gymnasium", "mini_grid")
NEED_MORE = {"dm_control", "meta_world", "meta_world_kshot"}  # OpenGL without a screen
BY_IMAGE = {"mini_world", "procgen", "retro"}  # what the agent sees is shown
OTHERS = {"partial_bullet", "popgym"}  # PyBullet's own camera; most of POPGym writes text


def make(name: str, options: dict[str, Any]) -> World:
    tasks = registry.tasks(name, options, "eval")
    return registry.make_world(name, options, [tasks[0], tasks[-1]], np.arange(2, dtype=np.uint64))


def play(name: str, options: dict[str, Any], *, draws: bool) -> tuple[list[Any], list[np.ndarray]]:
    """What 25 random steps gave, and the pictures of the first instance."""
    world, choices = make(name, options), np.random.default_rng(0)
    found: list[Any] = [world.reset()[0].tolist()]
    pictures = [world.render()[0]] if draws else []
    for _ in range(25):
        if isinstance(world.single_action_space, Box):
            action = choices.uniform(-1, 1, (2, *world.single_action_space.shape)).astype(np.float32)
        else:
            action = choices.integers(world.single_action_space.n, size=2)  # type: ignore[attr-defined]
        seen, reward, terminated, truncated, _ = world.step(action)
        found.append([seen.tolist(), reward.tolist(), terminated.tolist(), truncated.tolist()])
        if draws:
            pictures.append(world.render()[0])
        if (terminated | truncated).any():
            found.append(world.reset(options={"reset_mask": terminated | truncated})[0].tolist())
    found.append({name: array.tolist() for name, array in world.get_state().items()})
    return found, pictures


@pytest.mark.quick("dark_room", "key_to_door", "wind")
@pytest.mark.parametrize("name", [*OURS, *NEED_NOTHING, pytest.param("crafter", marks=pytest.mark.slow)])
def test_a_picture_follows_what_happens_and_changes_nothing(name: str) -> None:
    if name in PACKAGES:
        package, options = PACKAGES[name]
        pytest.importorskip(package)
    else:
        options = OURS[name]
    plain, _ = play(name, options, draws=False)
    found, pictures = play(name, options, draws=True)
    assert repr(found) == repr(plain)  # NaN is NaN
    assert {(picture.dtype, picture.shape) for picture in pictures} == {(pictures[0].dtype, pictures[0].shape)}
    assert pictures[0].dtype == np.uint8 and pictures[0].ndim == 3 and pictures[0].shape[2] == 3
    assert len({picture.tobytes() for picture in pictures}) > 1


def test_no_world_is_forgotten_here() -> None:
    assert set(registry.world_names()) == {*OURS, *PACKAGES, *NEED_MORE, *BY_IMAGE, *OTHERS}


@pytest.mark.slow
def test_crafter_at_night_draws_no_number_of_its_games() -> None:
    pytest.importorskip("crafter")
    world: Any = make("crafter", {"observation": "textures"})
    world.reset()
    game = world.players[0].inner
    game._world.daylight = 0.1
    before = game._world.random.get_state()[1].tolist()
    assert world.render()[0].std() > 0
    assert game._world.random.get_state()[1].tolist() == before and game._world.random.get_state()[2] > 0


def test_gymnasium_gives_pictures_where_they_are_asked_for() -> None:
    environment = gymnasium.make("recollect/DarkRoom-v0", render_mode="rgb_array", width=6, height=4)
    at_first = environment.render()
    environment.reset(seed=0)
    environment.step(np.int64(1))
    now: Any = environment.render()
    assert now.dtype == np.uint8 and now.shape == (4 * 64, 6 * 64, 3) and (now != at_first).any()
    assert gymnasium.make("recollect/DarkRoom-v0").render() is None
    several: Any = gymnasium.make_vec("recollect/TMazePassive-v0", num_envs=3, render_mode="rgb_array")
    several.reset()
    assert len(several.render()) == 3 and several.render_mode == "rgb_array"


def test_agents_stand_in_their_cells_and_a_large_world_is_drawn_around_them() -> None:
    walls = np.zeros((5, 7), bool)
    walls[2, 3] = True
    small = grid((5, 7), agent=(1, 6), marks=[("goal 2", 0, 0), ("no such thing", 4, 4)], walls=walls)
    cell = small.shape[0] // 5
    assert tuple(small[int(1.5 * cell), int(6.5 * cell)]) == AGENT
    assert tuple(small[int(2.5 * cell), int(3.5 * cell)]) == WALL
    assert len({tuple(pixel) for pixel in small.reshape(-1, 3).tolist()}) > 5
    wide = grid((3, 1000), agent=(1, 999))
    cell = wide.shape[1] // MOST
    assert tuple(wide[int(1.5 * cell), -cell // 2]) == AGENT and wide.shape[0] == 3 * cell
    assert FINER * cell < 64


class Unseen(DarkRoom):
    def picture(self, b: int) -> Any:
        return None


class Text(DarkRoom):
    def picture(self, b: int) -> Any:
        return "a board in letters"


class Broken(DarkRoom):
    def picture(self, b: int) -> Any:
        raise RuntimeError("no display")


@pytest.mark.parametrize(
    ("world", "said"), [(Unseen, "cannot be drawn"), (Text, "cannot be drawn"), (Broken, "no display")]
)
def test_a_world_that_cannot_be_drawn_says_so(world: type[World], said: str) -> None:
    made = world(registry.tasks("dark_room", {}, "eval")[:1], seeds=np.zeros(1, np.uint64))
    with pytest.raises(UserError, match=said):
        drawn(made, 0)


class Unpictured(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **_: Any) -> Any:
        return np.zeros(1, np.float32), {}


def test_an_environment_of_gymnasium_without_pictures_is_told_what_to_write_and_where() -> None:
    gymnasium.register("Unpictured-v0", Unpictured, max_episode_steps=3)
    options = {"id": "Unpictured-v0"}
    made = registry.make_world(
        "gymnasium", options, registry.tasks("gymnasium", options, "eval"), np.zeros(1, np.uint64)
    )
    with pytest.raises(UserError, match=r"no pictures\n  where: .*test_drawing\.py\n  to do: .*`render`.*`rgb_array`"):
        drawn(made, 0)
