"""What a forecast takes as the kernels of an ensemble's update is near the number of operations that the update has."""

from __future__ import annotations

import re
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from recollect.memory_rl import dqn
from recollect.memory_rl.ensemble import Ensemble
from recollect.memory_rl.stacked import StackedLSTM
from recollect.memory_rl.work import kernels
from recollect.settings.schema import EnvironmentSettings, MethodSettings, Settings

LENGTH = 12
NO_KERNEL = re.compile(  # views, and memory that nothing is written to
    "alias|as_strided|detach|expand|permute|resize_|select|slice|split|squeeze|t|transpose|unbind|unfold|unsqueeze|view|"
    "_reshape_alias|_unsafe_view|empty|empty_like|new_empty|new_empty_strided"
)


class Operations(TorchDispatchMode):
    """Counts operations that write something."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += NO_KERNEL.fullmatch(func._schema.name.partition("::")[2]) is None
        return func(*args, **(kwargs or {}))


def settings_of(kind: str, layers: int, seed: int) -> Settings:
    content = {
        "sequence": {"kind": kind, "width": 16, "layers": layers, **({"dropout": 0.0} if kind == "gpt" else {})},
        "observation_embedding": 8,
        "action_embedding": 8,
        "train_episodes": 4,
        "batch_size": 4,
        "replay_transitions": 400,
        "merged_passes": "never" if kind == "gpt" else "when_exact",  # as where there is dropout
        "precision": "bfloat16" if kind == "gpt" else "float32",  # as on a GPU
    }
    hp = dqn.Hyperparameters.model_validate(content)
    method = MethodSettings(name="agent", algorithm="dqn", data="online", hyperparameters=hp)
    environment = EnvironmentSettings(name="maze", world="tmaze", options={"variant": "passive", "length": LENGTH})
    return Settings(scale="smoke", seed=seed, environment=environment, method=method)


@pytest.mark.parametrize(("kind", "layers"), [("gpt", 1), ("gpt", 3), ("lstm", 1), ("lstm", 3), ("ff", 1)])
def test_kernels_of_an_update_are_its_operations_to_a_half(
    kind: str, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a GPU all members' cells are one product; a CPU takes member after member.
    monkeypatch.setattr(StackedLSTM, "forward", lambda self, x, time_RT=None: self.cell_by_cell(x.float()))
    members = [dqn.make_trainer(settings_of(kind, layers, seed)) for seed in range(3)]
    for member in members:
        while not member.at.updates_due:
            member._collect()
    ensemble = Ensemble(members)
    ensemble.update()
    with Operations() as counted:
        ensemble._compute()
    expected = kernels(settings_of(kind, layers, 0), ensemble.window)
    assert expected / 1.5 < counted.count < expected * 1.5
