"""What a forecast takes as the kernels of an ensemble's update is near the number of operations that the update has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counted_operations import Operations
from torch import Tensor

from recollect.artifacts.run import Run
from recollect.common.work import UPDATE
from recollect.memory_rl import dqn, sac, stacked, td3
from recollect.memory_rl.ensemble import Ensemble
from recollect.memory_rl.lstm_cells import layers_of
from recollect.memory_rl.stacked import StackedLSTM
from recollect.memory_rl.work import kernels, trained
from recollect.settings.resolve import environment_settings
from recollect.settings.schema import EnvironmentSettings, MethodSettings, Settings

LENGTH = 12


def settings_of(kind: str, layers: int, seed: int, algorithm: Any = dqn, **changes: Any) -> Settings:
    content = {
        "sequence": {"kind": kind, "width": 16, "layers": layers, **({"dropout": 0.0} if kind == "gpt" else {})},
        "observation_embedding": 8,
        "action_embedding": 8,
        "train_episodes": 4,
        "batch_size": 4,
        "replay_transitions": 400,
        "precision": "bfloat16" if kind == "gpt" else "float32",  # as on a GPU
        **changes,
    }
    if algorithm is dqn:
        content["merged_passes"] = "never" if kind == "gpt" else "when_exact"  # as where there is dropout
        environment = EnvironmentSettings(name="maze", world="tmaze", options={"variant": "passive", "length": LENGTH})
    else:
        content |= {"network": "flax", "sampled_seq_len": LENGTH}
        options = {"id": "Pendulum-v1", "horizon": LENGTH + 2}
        environment = EnvironmentSettings(name="pendulum", world="gymnasium", options=options)
    hp = algorithm.Hyperparameters.model_validate(content)
    name = algorithm.__name__.rpartition(".")[2]
    method = MethodSettings(name="agent", algorithm=name, data="online", hyperparameters=hp)
    return Settings(scale="smoke", seed=seed, environment=environment, method=method)


def without_steps(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    for own in layers_of(weights):
        x = own.of_inputs(x.flatten(1, 2)).view(*x.shape[:3], -1)[..., : own.w_hidden.shape[2]] * own.w_hidden.sum()
    return x


SEPARATE, IN_TURNS = {"shared_encoder": False}, {"shared_encoder": False, "critics_first": True}


@pytest.mark.quick(
    "gpt-3-recollect.memory_rl.dqn-changes1",
    "lstm-1-recollect.memory_rl.td3-changes10",
    "lstm-1-recollect.memory_rl.sac-changes11",
)
@pytest.mark.parametrize(
    ("kind", "layers", "algorithm", "changes"),
    [
        ("gpt", 1, dqn, {}),
        ("gpt", 3, dqn, {}),
        ("lstm", 1, dqn, {}),
        ("lstm", 3, dqn, {}),
        ("ff", 1, dqn, {}),
        ("gpt", 1, td3, {}),
        ("gpt", 1, td3, SEPARATE),
        ("gpt", 1, td3, IN_TURNS),
        ("lstm", 1, td3, {}),
        ("lstm", 2, td3, SEPARATE),
        ("lstm", 1, td3, IN_TURNS),
        ("lstm", 1, sac, IN_TURNS),
    ],
)
def test_kernels_of_an_update_are_its_operations_to_a_half(
    kind: str, layers: int, algorithm: Any, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a GPU all steps of all members are one kernel, which is counted by its steps; a CPU takes member after member.
    monkeypatch.setattr(StackedLSTM, "forward", lambda self, x, time_RT=None: self.at_once(x.float()))
    monkeypatch.setattr(stacked, "over_time", without_steps)
    members = [algorithm.make_trainer(settings_of(kind, layers, seed, algorithm, **changes)) for seed in range(3)]
    for member in members:
        while not member.at.updates_due:
            member._collect()
    ensemble = Ensemble(members)
    ensemble.update()
    with Operations() as counted:
        ensemble._compute()
    expected, *_ = kernels(settings_of(kind, layers, 0, algorithm, **changes), ensemble.window)
    assert expected / 1.5 < counted.count < expected * 1.5


@pytest.mark.parametrize("actors", [1, 5])
def test_what_a_forecast_counts_of_a_run_is_what_the_run_does(
    actors: int, tmp_path: Path, in_the_repository: None
) -> None:
    schedule = {"train_episodes": 20, "evaluate_every": 5, "evaluation_episodes": 3, "head": [4]}
    settings = settings_of("ff", 1, 0, actors=actors, **schedule)
    settings = settings.model_copy(update={"environment": environment_settings("smoke", "tmaze_active_5")})
    trainer, stepped = dqn.make_trainer(settings), []  # type: ignore[var-annotated]

    def counted(world: Any) -> Any:
        step = world.step

        def counting(actions: np.ndarray) -> Any:
            stepped.append(len(actions))
            return step(actions)

        return counting

    for world in (trainer.world, trainer.evaluation_world):
        world.step = counted(world)  # type: ignore[method-assign]
    trainer.train(Run(tmp_path, tmp_path / "checkpoints", settings_text="same"))
    found = trained(settings)
    assert found.env_steps == sum(stepped) and found.own_steps == trainer.at.env_steps
    assert found.passes == UPDATE * trainer.at.updates + len(stepped)
