"""Meta-World's observations are those that its package makes."""

from __future__ import annotations

from importlib.util import find_spec

import fake_amago_packages
import numpy as np
import pytest

from recollect.environments import meta_world
from recollect.environments.meta_world import Simulator


@pytest.mark.skipif(find_spec("metaworld") is None, reason="metaworld is not installed")
@pytest.mark.parametrize("name", [*meta_world.TRAIN, *meta_world.EVAL][::7])
def test_steps_are_those_of_the_package_to_the_bit(name: str) -> None:
    """Which finds the hand by its name at each step."""
    ours, theirs = Simulator(name), Simulator(name)
    del theirs.inner._get_curr_obs_combined_no_goal
    draws = np.random.default_rng(5)
    for word in range(2):
        ours.begin(word)
        theirs.begin(word)
        for _ in range(40):
            assert ours.look().tobytes() == theirs.look().tobytes()
            action_A = draws.uniform(-1, 1, 4).astype(np.float32)
            assert ours.step(action_A) == theirs.step(action_A)


def test_the_hand_is_seen_with_how_far_it_is_open_before_the_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the package: three numbers, 0 to 1 for 0 to 10 cm, and of each object place and turn."""
    fake_amago_packages.install(monkeypatch)
    simulator = Simulator("reach")
    simulator.hand_3[:] = 1, 2, 3
    simulator.inner._get_pos_objects, simulator.inner._get_quat_objects = lambda: [4, 5, 6], lambda: [7, 8, 9, 10]
    for apart, seen in ((0.05, 0.5), (0.2, 1.0), (0.0, 0.0)):
        simulator.right_3[:] = 0, apart, 0
        found = simulator.inner._get_curr_obs_combined_no_goal()
        assert found.tolist() == pytest.approx([1, 2, 3, seen, 4, 5, 6, 7, 8, 9, 10, *[0] * 7])
