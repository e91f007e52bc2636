"""Seeds trained together: each run's numbers are those of the run alone, and what befalls one run befalls no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from recollect.artifacts.run import Run
from recollect.common.contract import Inputs
from recollect.common.stacked import StackedLSTM
from recollect.common.sequence_models import RecurrentSequence
from recollect.memory_rl import dqn
from recollect.memory_rl.dqn import Hyperparameters, make_trainer
from recollect.memory_rl.ensemble import Ensemble
from recollect.memory_rl.off_policy import OnlineTrainer
from recollect.settings.errors import UserError
from recollect.settings.schema import EnvironmentSettings, MethodSettings, Settings

SEEDS = (3, 4, 5)
TOLERANCE = 2e-6
"""Of each number, after some updates; what is near zero by the largest of its tensor."""


def settings_of(seed: int, kind: str, **changes: Any) -> Settings:
    content = {
        "sequence": {"kind": kind, "width": 16, "layers": 2, "heads": 2, **changes.pop("sequence", {})},
        "observation_embedding": 8,
        "action_embedding": 8,
        "head": [16],
        "train_episodes": 6,
        "batch_size": 8,
        "evaluate_every": 3,
        "evaluation_episodes": 2,
        "replay_transitions": 200,
        "replay_episodes": 4,
        "checkpoint_every": 5,
        **changes,
    }
    environment = EnvironmentSettings(name="maze", world="tmaze", options={"variant": "passive", "length": 4})
    hp = Hyperparameters.model_validate(content)
    method = MethodSettings(name="agent", algorithm="dqn", data="online", hyperparameters=hp)
    return Settings(scale="smoke", seed=seed, environment=environment, method=method)


def begun(kind: str, **changes: Any) -> list[OnlineTrainer]:
    """Runs that have collected their first episodes."""
    trainers = [make_trainer(settings_of(seed, kind, **changes)) for seed in SEEDS]
    for trainer in trainers:
        while not trainer.at.updates_due:
            trainer._collect()
    return trainers


def difference(one: OnlineTrainer, other: OnlineTrainer) -> float:
    """The largest difference of two runs' networks, optimisers and sums, relative to each tensor's largest number."""
    here, there = (part for part in (one.saved()[0], other.saved()[0]))
    assert here.keys() == there.keys()
    found = 0.0
    for name, value in here.items():
        if name.startswith(("learner", "sums")):
            value, wanted = torch.as_tensor(value).double(), torch.as_tensor(there[name]).double()
            found = max(found, float((value - wanted).abs().max() / wanted.abs().max().clamp(min=1e-3)))
    return found


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gpt", {"sequence": {"dropout": 0.0}}),
        ("gpt", {"sequence": {"dropout": 0.1}}),
        ("lstm", {"gradient_clip": 0.01}),
        ("gru", {}),
        ("ff", {"sampled_seq_len": 2}),
    ],
)
def test_updates_made_together_are_those_of_each_run_alone(kind: str, changes: dict[str, Any]) -> None:
    alone, together = begun(kind, **changes), begun(kind, **changes)
    ensemble = Ensemble(together)
    for _ in range(3):
        ensemble.update()
        for trainer in alone:
            trainer._update()
    for one, other in zip(together, alone, strict=True):
        print(kind, difference(one, other))
        assert one.at == other.at
        assert difference(one, other) < TOLERANCE
