"""A user's own encoders and exploration: found by what their files declare, checked, part of the code of a run, and trained."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_amago import collector_of, goes_on_to_the_bit, settings_of

from recollect.amago import amago
from recollect.amago.amago import Agent
from recollect.amago.network import world_shape
from recollect.settings import catalogue
from recollect.settings.errors import UserError
from recollect.stages import provenance

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # benchmarks is no part of the package

from benchmarks.gpu.pretend import PretendGpu

OWN_STEP = '''
"""Everything that is seen, through one layer."""

from pydantic import Field
from torch import cat, nn

from recollect.amago.timestep_encoders import rl2_width
from recollect.settings.schema import Frozen


class Options(Frozen):
    gain: float = Field(1.0, gt=0)


class TimestepEncoder(nn.Module):
    def __init__(self, settings, shape, *, seed):
        super().__init__()
        self.gain = settings.options.gain
        self.layer = nn.Linear(shape.vector + rl2_width(shape, settings.layout), settings.width)
        nn.init.constant_(self.layer.weight, 0.01)
        nn.init.zeros_(self.layer.bias)

    def forward(self, steps, mask_BT=None):
        return self.gain * self.layer(cat([steps.vector, steps.rl2], -1)).tanh()
'''
OWN_TRAJECTORY = '''
"""The mean of what was seen lately: older steps count less."""

import torch
from torch import nn

from recollect.common.sequence_models import SequenceModel
from recollect.settings.schema import Frozen


class Options(Frozen):
    keeps: float = 0.5


class TrajectoryEncoder(SequenceModel):
    def __init__(self, settings, input_width, *, horizon, context, seed):
        super().__init__()
        self.keeps, self.input_width, self.output_width = settings.options.keeps, input_width, settings.width
        self.layer = nn.Linear(input_width, settings.width)
        nn.init.constant_(self.layer.weight, 0.02)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x_BTD, time_BT=None):
        state, outputs = self.initial_state(len(x_BTD)), []
        for x_BD in x_BTD.unbind(1):
            h_BH, state = self.step(x_BD, state)
            outputs.append(h_BH)
        return torch.stack(outputs, 1)

    def initial_state(self, batch, device=None):
        return torch.zeros(batch, self.output_width, device=device)

    def step(self, x_BD, state):
        state = self.keeps * state + self.layer(x_BD)
        return state, state

    def reset(self, state, mask_B):
        return state.masked_fill(torch.as_tensor(mask_B, device=state.device)[:, None], 0.0)

    def state_arrays(self, state):
        return {"mean": state.detach().numpy()}

    def state_from(self, arrays, device=None):
        return torch.as_tensor(arrays["mean"])
'''
OWN_EXPLORATION = '''
"""Every so many steps, the first action."""

import numpy as np

from recollect.amago import exploration
from recollect.settings.schema import Frozen


class Options(Frozen):
    every: int = 3


class Exploration(exploration.Exploration):
    def explored(self, action_B, actor_steps, t_B, kind, actions, draws):
        return np.where(t_B % self.settings.options.every == 0, 0, action_B)
'''
FILES = {"one_layer": OWN_STEP, "fading": OWN_TRAJECTORY, "now_and_then": OWN_EXPLORATION}
CHANGES: dict[str, dict[str, Any]] = {
    "one_layer": {"inputs": {"width": 16, "encoder": "one_layer", "options": {"gain": 2.0}}},
    "fading": {"sequence": {"width": 16, "kind": "fading"}},
    "now_and_then": {"exploration": {"kind": "now_and_then", "options": {"every": 2}}},
}


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A folder of own code, of a name that no other test has imported."""
    folder = tmp_path / "".join(letter if letter.isalnum() else "_" for letter in request.node.name)
    folder.mkdir()
    for name, text in FILES.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.setenv("RECOLLECT_MINE", str(folder))
    return folder


@pytest.mark.parametrize("name", FILES)
def test_an_own_class_is_part_of_the_agent_and_its_file_of_the_code(
    name: str, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector, agent = collector_of(settings_of(**CHANGES[name]))
    parts = [agent.network.timestep_encoder, agent.network.trajectory_encoder, collector.exploration]
    assert [type(part).__module__ for part in parts].count(f"{mine.name}.{name}") == 1
    assert collector.collect(12)
    monkeypatch.setattr(provenance, "method_mapping", lambda *_: {"hyperparameters": CHANGES[name]})
    assert provenance.own_parts("smoke", "env", "method") == [f"{mine.name}.{name}"]


def test_acting_on_a_gpu_is_a_graph_of_our_encoders_alone() -> None:
    """A graph would not see what an encoder of one's own keeps anew at each update, such as statistics."""
    with PretendGpu():
        for changes in ({}, CHANGES["one_layer"], CHANGES["fading"]):
            settings = settings_of(**changes)
            agent = Agent(settings.method.hyperparameters, world_shape(settings.environment), seed=0, device="cuda")
            policy = agent.policy()
            policy.start(np.zeros(2, np.uint64))
            assert (policy._graph is None) == bool(changes)


def test_a_run_with_own_classes_trains_and_a_stopped_one_goes_on_to_the_bit(tmp_path: Path) -> None:
    changes = {key: value for each in CHANGES.values() for key, value in each.items()}
    policy, _ = goes_on_to_the_bit(amago, settings_of(**changes, keep="last"), tmp_path)
    for part in ("timestep_encoder", "trajectory_encoder"):
        weight = policy.arrays()[f"{part}.layer.weight"]
        assert (weight != weight.flat[0]).any()  # it began with one number


def test_an_own_exploration_decides_what_actors_do() -> None:
    collector, _ = collector_of(settings_of(**CHANGES["now_and_then"]))
    finished = collector.collect(12)
    assert finished
    for trajectory in finished:
        assert (trajectory["previous_action"][1::2] == 0).all()


@pytest.mark.parametrize("name", FILES)
def test_unknown_names_and_options_are_refused_and_the_nearest_is_named(name: str) -> None:
    section, changes = next(iter(CHANGES[name].items()))
    key = "encoder" if section == "inputs" else "kind"
    with pytest.raises(UserError, match=f"named '{name}x'[^?]*did you mean '{name}'"):
        settings_of(**{section: {**changes, key: f"{name}x"}})
    with pytest.raises(UserError, match="unknown option 'other'"):
        settings_of(**{section: {**changes, "options": {"other": 1}}})
    with pytest.raises(UserError, match="has no options"):
        settings_of(**{section: {"options": {}}})


def test_a_class_of_another_name_is_asked_for_by_its_own(mine: Path) -> None:
    (mine / "second_move.py").write_text("class Options: ...\n\n\nclass Explore: ...\n")
    with pytest.raises(UserError, match="no exploration named 'second_move'") as error:
        settings_of(exploration={"kind": "second_move"})
    assert error.value.do.startswith("declare `Exploration`") and error.value.do.endswith("second_move.py")


def test_defaults_of_own_options_are_among_the_settings() -> None:
    settings = settings_of(**CHANGES["fading"])
    dumped = settings.method.model_dump(mode="json")["hyperparameters"]
    assert dumped["sequence"]["options"] == {"keeps": 0.5}
    assert amago.Hyperparameters.model_validate(dumped).sequence.options.keeps == 0.5


def test_a_file_that_is_named_like_one_of_ours_is_refused(mine: Path) -> None:
    (mine / "gru.py").write_text(OWN_TRAJECTORY)
    with pytest.raises(UserError, match="one of ours"):
        settings_of(sequence={"kind": "gru"})
    assert settings_of().method.hyperparameters.sequence.kind == "transformer"
    assert catalogue.known("trajectory encoder").keys() == {"fading", "gru"}


def test_own_exploration_is_asked_with_what_ours_is() -> None:
    settings = settings_of(**CHANGES["now_and_then"]).method.hyperparameters.exploration
    own = settings.own().Exploration(settings, 2, 10, seed=0)
    action_B = own.explored(np.array([3, 3]), 0, np.array([0, 1]), "discrete", 4, np.random.default_rng(0))
    assert action_B.tolist() == [0, 3]
