"""AMAGO learns to remember: the sign at the start of a T-Maze decides the turn at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_amago import MAZE, run_in, settings_of

from recollect.evaluation.episodic import play
from recollect.methods import amago
from recollect.methods.contract import Inputs
from recollect.methods.learning_curve import make_worlds

LEARNS: dict[str, Any] = {
    "inputs": {"hidden": [32, 32], "width": 32},
    "sequence": {"width": 32, "layers": 1, "heads": 2},
    "head": [32],
    "discount": 0.99,
    "further_discounts": [0.1, 0.9],
    "reward_multiplier": 100.0,
    "sample_actions": False,
    "polyak": 0.02,
}


def learned(tmp_path: Path, world: Any, episodes: int, **changes: Any) -> tuple[float, Any]:
    """Mean return of the policy after training, and the run's table."""
    settings, run = settings_of(world, **{**LEARNS, **changes}), run_in(tmp_path)
    policy = amago.train(settings, Inputs(), run)
    world_, _ = make_worlds(settings.environment, 99, episodes, 1)
    return float(play(world_, policy).return_E.mean()), run.table()


def test_it_remembers_the_sign_of_a_short_t_maze(tmp_path: Path) -> None:
    mean, _ = learned(
        tmp_path, MAZE, 64, actors=12, epochs=16, steps_per_epoch=48, updates_per_epoch=40, batch_size=24,
        learning_rate=0.003, warmup=20, evaluate_every=4, evaluation_rollouts=32,
        exploration={"kind": "window", "start": [1.0, 0.01], "anneal": 500},
    )  # fmt: skip
    assert mean == 1.0


@pytest.mark.slow
def test_it_remembers_the_sign_for_twenty_steps(tmp_path: Path) -> None:
    mean, _ = learned(
        tmp_path, ("tmaze", {"length": 20, "late": "not_right"}), 64, actors=24, epochs=40, steps_per_epoch=84,
        updates_per_epoch=60, batch_size=24, learning_rate=0.002, warmup=50, evaluate_every=4, evaluation_rollouts=32,
        exploration={"kind": "window", "start": [1.0, 0.01], "anneal": 1500},
    )  # fmt: skip
    assert mean == 1.0
