"""How many updates follow which episode, and where evaluations stand: as counted in Memory-RL's own training loops.

Recorded by running the released loops with stubs for environment, agent and replay, which only count:
`Learner.train` of policies/learner.py at c9b8b39 (10 and 60 episodes, 0.25 updates per step), and `main` of main.py of branch
pybullet_jax at b6c68ef (2 and 6 episodes of at most 25 steps, 0.3 updates per step, an evaluation every 25 steps).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_bullet
import numpy as np
import pytest

from recollect.artifacts.run import Run
from recollect.common.rollout import Episodes
from recollect.memory_rl import dqn, off_policy, sac, td3
from recollect.settings.schema import EnvironmentSettings, MethodSettings, Settings

#: Horizon, episodes between evaluations, first updates, updates in all, episodes at which evaluations stand.
DISCRETE = [(7, 10, [17, 2, 2, 2], 137, [20, 30, 40, 50, 60, 70]), (5, 50, [12, 2, 2, 2], 132, [50])]
#: Of each episode: steps so far, its length, updates after it, whether an evaluation follows.
CONTINUOUS = [
    (25, 25, 0, True), (38, 13, 0, False), (47, 9, 0, False), (72, 25, 8, True), (97, 25, 8, True), (104, 7, 3, True),
    (122, 18, 6, False), (147, 25, 8, True), (172, 25, 8, True), (175, 3, 1, True), (200, 25, 8, True),
]  # fmt: skip
TINY = {"sequence": {"kind": "ff", "width": 4}, "observation_embedding": 2, "action_embedding": 2, "head": [4]}


def counted(
    method: Any, world: dict[str, Any], hp: dict[str, Any], lengths: list[int] | None, folder: Path
) -> list[list[Any]]:
    """[steps so far, length, updates after it, whether an evaluation follows] of each episode of our loop."""
    settings = Settings(
        scale="smoke",
        seed=0,
        environment=EnvironmentSettings(name="world", **world),
        method=MethodSettings(
            name="agent",
            algorithm=method.__name__.rpartition(".")[2],
            data="online",
            hyperparameters=method.Hyperparameters.model_validate({**TINY, **hp}),
        ),
    )
    trainer: off_policy.OffPolicyTrainer = method.make_trainer(settings)
    size, continuous = (
        int(np.prod(trainer.world.single_observation_space.shape)),
        trainer.learner.network.encoder.embedder.action_size,
    )
    left, rows = list(lengths or []), []

    def play_round(warming: bool, count: int) -> Episodes:
        T = left.pop(0) if left else trainer.horizon
        action = np.zeros((1, T, continuous), np.float32) if continuous else np.zeros((1, T), np.int64)
        zero = np.zeros((1, T), np.float32)
        rows.append([trainer.at.env_steps + T, T, 0, False])
        return Episodes(np.zeros((1, T + 1, size)), action, zero, zero.astype(np.uint8), np.array([T]), np.zeros(1))

    def update() -> None:
        trainer.at.updates_due -= 1
        rows[-1][2] += 1

    def evaluate(run: Run) -> None:
        trainer.at.evaluation_due = False
        rows[-1][3] = True

    trainer.play_round, trainer._update, trainer._evaluate = play_round, update, evaluate  # type: ignore[method-assign]
    trainer.replay.add = lambda *given: None  # type: ignore[method-assign]
    while not trainer.done:
        trainer.advance(Run(folder, folder / "checkpoints", settings_text="same"))
    return rows


@pytest.mark.parametrize(("horizon", "every", "updates", "total", "evaluated"), DISCRETE)
def test_the_discrete_loop_counts_as_the_released_one(
    horizon: int, every: int, updates: list[int], total: int, evaluated: list[int], tmp_path: Path
) -> None:
    world = {"world": "tmaze", "options": {"length": horizon - 1}}
    hp = {"train_episodes": 60, "evaluate_every": every}
    rows = counted(dqn, world, hp, None, tmp_path)
    assert len(rows) == 70 and [row[2] for row in rows[9:13]] == updates and sum(row[2] for row in rows) == total
    assert [number for number, row in enumerate(rows, start=1) if row[3]] == evaluated


@pytest.mark.parametrize("method", [td3, sac])
def test_the_continuous_loop_counts_as_the_released_one(
    method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_bullet.install(monkeypatch)
    world = {"world": "partial_bullet", "options": {"robot": "hopper", "observation": "velocities", "horizon": 25}}
    hp = {
        "budget": "steps", "warmup_episodes": 2, "train_episodes": 6, "updates_per_step": 0.3, "evaluate_every": 1,
        "initial_burst": False, "warmup_learns": True,
    }  # fmt: skip
    rows = counted(method, world, hp, [length for _, length, *_ in CONTINUOUS], tmp_path)
    assert [tuple(row) for row in rows] == CONTINUOUS
