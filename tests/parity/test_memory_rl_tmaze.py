"""Episodes recorded from Memory-RL's own T-Mazes are replayed to the bit (with a reward at the sign: to 1e-7).

`memory_rl_tmaze.json` was recorded from github.com/twni2016/Memory-RL at c9b8b39 (`envs/tmaze.py`, classes
`TMazeClassicPassive` and `TMazeClassicActive` with the penalty of its configurations, -1/length) with numpy 2.4.6; of
`gym` it needs the base class and two spaces, for which stand-ins of a few lines were put. Of each episode it has the
side of the goal, which upstream draws from numpy's global generator, the actions (the optimal walk, the same to the
other side, uniform ones, and three kinds of noise), and of every step the number of the observation in `shown` and of
the reward in `paid`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.environments import tmaze

RECORDED: list[dict[str, Any]] = json.loads(Path(__file__).with_name("memory_rl_tmaze.json").read_text())
OPTIONS = ("variant", "length", "distract_reward")


@pytest.mark.parametrize("variant", ["passive", "active"])
@pytest.mark.parametrize("length", sorted({one["length"] for one in RECORDED}))
def test_recorded_episodes_are_replayed_step_by_step(variant: str, length: int) -> None:
    chosen = [one for one in RECORDED if (one["variant"], one["length"]) == (variant, length)]
    assert len(chosen) >= 5
    for episode in chosen:
        options = {name: episode[name] for name in OPTIONS}
        world = tmaze.World(tmaze.tasks("train", **options), seeds=np.zeros(1), **options)
        assert world.horizon == len(episode["actions"])
        world.reset()
        state = world.get_state()
        state["goal"][0] = episode["goal"]
        world.set_state(state)
        seen, _ = world.reset(options={"reset_mask": np.zeros(1, dtype=bool)})
        for t, action in enumerate(episode["actions"]):
            assert seen[0].tolist() == episode["shown"][int(episode["observations"][t])], (episode["note"], t)
            seen, reward, terminated, truncated, info = world.step(np.array([int(action)]))
            paid = np.float32(episode["paid"][int(episode["rewards"][t])])
            # A penalty and a reward at the sign are added in float32 here, upstream in float64.
            assert abs(reward[0] - paid) <= (1e-7 if episode["distract_reward"] else 0), (episode["note"], t)
            assert terminated[0] == (t + 1 == world.horizon)
            assert not truncated[0] and not info
        assert seen.dtype == np.float32
        assert seen[0].tolist() == episode["shown"][int(episode["observations"][-1])]


def test_recorded_episodes_have_every_case() -> None:
    """The records would prove little if nobody was late, stood at the sign for a reward, or turned to either side."""
    returns = {
        (one["variant"], one["note"]): sum(one["paid"][int(which)] for which in one["rewards"]) for one in RECORDED
    }
    for variant, worst in (("passive", -1.0), ("active", -251 / 250)):
        assert returns[variant, "optimal"] == 1.0
        assert returns[variant, "on time, the other side"] == 0.0
        assert returns[variant, "always left"] == pytest.approx(worst)
    assert {one["goal"] for one in RECORDED} == {-1, 1}
    assert {tuple(shown) for one in RECORDED for shown in one["shown"]} == {
        (0, -1), (0, 0), (0, 1), (1, -1), (1, 0), (1, 1),
    }  # fmt: skip
    assert any(one["distract_reward"] in one["paid"] for one in RECORDED if one["distract_reward"])
    assert sum(len(one["actions"]) for one in RECORDED) == 5482
