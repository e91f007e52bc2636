"""Episodes recorded from Memory-RL's own Visual Match and Key-to-Door are replayed to the bit.

`memory_rl_rooms.json` was recorded from github.com/twni2016/Memory-RL at c9b8b39 with Pycolab 1.2 and numpy 1.23.5 (its
`tensorflow.nest` and `gym.Env` replaced by stand-ins of a few lines). Of each episode it has the board at the first frame
of each room as Pycolab draws it, the colors of Visual Match's three symbols, the actions (scripted, with noise), the
rewards that are not 0, the CRC-32 of every image (flattened, channels first) and the success of the last step. What is
drawn upstream without a seed (layouts, colors, reward of apples) is put into our state; everything else must follow.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.environments import registry
from recollect.environments.base import World
from recollect.environments.three_rooms import cell, room

RECORDED: list[dict[str, Any]] = json.loads(Path(__file__).with_name("memory_rl_rooms.json").read_text())


def lay_out(world: World, episode: dict[str, Any], phase: int) -> np.ndarray:
    """Put a recorded room in the place of ours; what is then seen."""
    drawing = list(episode["boards"][phase])
    row = next(y for y, line in enumerate(drawing) if "+" in line)
    position = cell(row, drawing[row].index("+"))
    state = world.get_state()
    for symbol, letter in episode.get("colors", {}).items():
        if phase == 0 and any(symbol in line for line in drawing):
            state["color"][0] = ord(letter)
        drawing = [line.replace(symbol, letter.lower() if phase == 0 else letter) for line in drawing]
    if phase == 2 and "has_key" in state and not state["has_key"][0]:
        drawing = [line.replace("d", "D") for line in drawing]
    state["board"][0] = room([line.replace("+", " ") for line in drawing])
    assert phase != 1 or position == state["position"][0]  # where nothing is drawn upstream, nothing is told to ours
    state["position"][0] = position
    state["apple_reward"][0] = episode["apple_reward"]
    world.set_state(state)
    return world.reset(options={"reset_mask": np.zeros(1, dtype=bool)})[0]


@pytest.mark.parametrize("episode", RECORDED, ids=[f"{one['game']}: {one['note']}" for one in RECORDED])
def test_a_recorded_episode_is_replayed_to_the_bit(episode: dict[str, Any]) -> None:
    name, options = episode["game"], {"flat": True, **episode["options"]}
    world = registry.make_world(name, options, registry.tasks(name, options, "train"), np.zeros(1))
    assert world.horizon == len(episode["actions"])
    first: int = options.get("explore_steps", 15)
    begins = {0: 0, first: 1, first + options.get("length", 60): 2}
    world.reset()
    seen = lay_out(world, episode, 0)
    assert seen.dtype == np.uint8
    for t, action in enumerate(episode["actions"]):
        assert zlib.crc32(seen[0].tobytes()) == episode["images"][t], t
        seen, reward, terminated, truncated, info = world.step(np.array([int(action)]))
        assert reward[0] == episode["rewards"].get(str(t), 0.0), t
        assert terminated[0] == (t + 1 == world.horizon)
        assert not truncated[0]
        assert ("success" in info) == terminated[0]
        if t + 1 in begins:
            seen = lay_out(world, episode, begins[t + 1])
    assert zlib.crc32(seen[0].tobytes()) == episode["images"][-1]
    assert info["success"].tolist() == [episode["success"]]


def test_recorded_episodes_have_every_case() -> None:
    """The records would prove little if nobody found a key, ate an apple that grew again, or chose wrong."""
    ends = {(one["game"], one["success"]) for one in RECORDED}
    assert ends == {(game, success) for game in ("key_to_door", "visual_match") for success in (False, True)}
    assert sum(len(one["actions"]) for one in RECORDED) == 1389
    assert any(sum(reward == 1 for reward in one["rewards"].values()) > 10 for one in RECORDED)
