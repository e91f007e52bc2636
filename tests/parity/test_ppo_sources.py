"""The source agents of the grid worlds learn as fast as they should at the published settings: recorded returns.

Recorded with this project's `ppo` at scale `paper` (RA-DT's appendix; Stable-Baselines3 1.5's defaults) on Dark-Room 10x10:
the mean return of five held-out tasks by tenth of the history, over seeds 0 to 3. The published curve of all tasks ends at
about 76 (read off its figure, PPO on Dark-Room 10x10); these five, whose goals are 9.4 steps away on average, end at about 80.
"""

from __future__ import annotations

import numpy as np
import pytest

from recollect.environments import registry
from recollect.settings.resolve import environment_settings, source_hyperparameters
from recollect.sources import ppo

ENV = "dark_room_10x10"
RECORDED = [7.2, 26.2, 42.6, 51.1, 58.2, 64.5, 69.5, 74.8, 75.6, 78.7]


@pytest.mark.slow
def test_ppo_learns_dark_rooms_as_gradually_as_recorded(root, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 CPU seconds."""
    monkeypatch.chdir(root)
    environment = environment_settings("paper", ENV)
    assert environment.source is not None and environment.source.algorithm == "ppo"
    chosen = source_hyperparameters("paper", ENV, environment.source)
    options = {**environment.options, **environment.training_options}
    tasks = registry.tasks(environment.world, options, "eval")[::4]
    arrays = ppo.generate(environment.world, options, tasks, chosen, seed=0)
    returns_EN = arrays["reward"].reshape(5, 1000, 100).sum(2)
    by_tenth = returns_EN.reshape(5, 10, 100).mean((0, 2))
    # Another machine rounds otherwise, which acts like another seed: seeds 1 to 3 are within SPREAD of seed 0.
    np.testing.assert_allclose(by_tenth, RECORDED, atol=10)
    assert (np.diff(by_tenth) > -3).all()
    # Of tasks whose best return is 90.6 on average; published: about 76 over all tasks.
    assert 71 < returns_EN[:, -50:].mean() < 88
