"""Meta-World's observations are those that its package makes."""

from __future__ import annotations

from importlib.util import find_spec

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
