"""How AMAGO's seed code shows goals and prefers rare ones, against what it gave (amago_goals.json says which code)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.amago.cuts import everything
from recollect.amago.hindsight import WAYS, Relabeler, chances
from recollect.environments.goal_sequences import GoalPart

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("amago_goals.json").read_text(encoding="utf-8"))
PART = GoalPart(slice(0, 6), 3, 2, before=True)


@pytest.mark.parametrize("number", range(len(RECORDED["shown"])))
def test_goals_are_shown_as_they_were_before_the_step_as_by_the_seed_code(number: int) -> None:
    said = RECORDED["shown"][number]
    cells = np.array(said["cells"], np.float32)
    rows = len(cells)
    achieved_T12 = np.stack([cells, 2 * cells], -1)[:, None]
    goals_K2 = np.full((3, 2), np.nan, np.float32)
    goals_K2[: len(said["goals"])] = [(goal, 2 * goal) for goal in said["goals"]]
    trajectory = {
        "observation": np.zeros((rows, 6), np.float32),
        "reward": np.zeros(rows, np.float32),
        "time": np.arange(rows),
        "done": np.zeros(rows, bool),
        "achieved": achieved_T12,
        "goals": goals_K2,
    }
    found = Relabeler("some", PART)._played_again(trajectory, goals_K2, everything)
    np.testing.assert_array_equal(found["observation"].reshape(rows, 3, 2), np.array(said["shown"], np.float32))
    np.testing.assert_array_equal(found["reward"], np.array(said["rewards"], np.float32))
    assert bool(found["done"][-1]) == (sum(said["rewards"]) == len(said["goals"]))


@pytest.mark.parametrize("way", WAYS)
def test_chances_follow_from_priorities_as_in_the_released_code(way: str) -> None:
    recorded = RECORDED["chances"]
    for priorities, expected in zip(recorded["priorities"], recorded[way], strict=True):
        np.testing.assert_allclose(chances(np.array(priorities), way), expected, rtol=1e-6)
