"""Tiny AMAGO runs for unit tests: networks of a few thousand weights, runs of seconds."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from recollect.amago import amago
from recollect.amago.amago import Agent, distribution_of
from recollect.amago.batch import Batch
from recollect.amago.loop import Collector
from recollect.amago.network import Network, WorldShape, world_shape
from recollect.amago.terms import Draws, Heads
from recollect.amago.timestep_encoders import StepShape
from recollect.artifacts.run import Run
from recollect.common.contract import Inputs
from recollect.common.learning_curve import make_worlds
from recollect.environments.goal_sequences import GoalPart
from recollect.settings.schema import EnvironmentSettings, EvaluationSettings, MethodSettings, Settings

TINY: dict[str, Any] = {
    "inputs": {"hidden": [16], "width": 16},
    "sequence": {"width": 16, "layers": 1, "heads": 2},
    "head": [16],
    "critics": 2,
    "further_discounts": [0.9],
    "discount": 0.99,
    "actors": 4,
    "epochs": 4,
    "steps_per_epoch": 9,
    "updates_per_epoch": 3,
    "batch_size": 4,
    "evaluate_every": 2,
    "evaluation_rollouts": 3,
    "learning_rate": 0.003,
    "warmup": 2,
    "exploration": {"anneal": 100},
}
MAZE = ("tmaze", {"length": 5, "late": "not_right"})
GOALS = ("goal_maze", {"size": 11, "horizon": 20, "most_goals": 2, "mazes": 4})
ROOM = ("meta_key_door", {"size": 3, "episode_steps": 5, "rollout_steps": 23})


def settings_of(
    world: tuple[str, dict[str, Any]] = MAZE,
    *,
    module: Any = amago,
    seed: int = 0,
    protocol: Any = "episodic",
    **changes: Any,
) -> Settings:
    name, options = world
    algorithm = module.__name__.rpartition(".")[2]
    hp = module.Hyperparameters.model_validate({**TINY, **changes})
    return Settings(
        scale="tiny",
        seed=seed,
        environment=EnvironmentSettings(
            name=name, world=name, options=options, evaluation=EvaluationSettings(protocol=protocol, episodes=3)
        ),
        method=MethodSettings(name="agent", algorithm=algorithm, data="online", hyperparameters=hp),
    )


def run_in(folder: Path, kind: Any = Run) -> Any:
    return kind(folder, folder / "checkpoints", settings_text="same")


def collector_of(settings: Settings) -> tuple[Collector, Agent]:
    hp: Any = settings.method.hyperparameters
    agent = Agent(hp, world_shape(settings.environment), seed=0, device="cpu")
    world, _ = make_worlds(settings.environment, 0, hp.actors, 1)
    return Collector(hp, agent.policy(), world, seed=0), agent


class Stopped(Exception):
    """A run was stopped on purpose."""


class StoppingRun(Run):
    """Stops right after its second checkpoint, having gone on working a little."""

    saves = 0

    def save(self, *arguments: Any) -> None:
        super().save(*arguments)
        StoppingRun.saves += 1
        if StoppingRun.saves == 2:
            self.stopping = True

    def log(self, step: int, **metrics: float) -> None:
        if getattr(self, "stopping", False):
            raise Stopped
        super().log(step, **metrics)


def goes_on_to_the_bit(module: Any, settings: Settings, folder: Path, inputs: Inputs | None = None) -> Any:
    """A run that is stopped in its third epoch and one that is not end with the same policy, table and files: policy and table."""
    inputs = Inputs() if inputs is None else inputs
    whole = run_in(folder / "whole")
    policy = module.train(settings, inputs, whole)
    expected = policy.arrays()
    StoppingRun.saves = 0
    with pytest.raises(Stopped):
        module.train(settings, inputs, run_in(folder / "other", StoppingRun))
    again = run_in(folder / "other")
    found = module.train(settings, inputs, again).arrays()
    assert again.resumed and found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert whole.table().equals(again.table())
    first = {p.name: p.read_bytes() for p in (folder / "whole").rglob("fifo/*.safetensors")}
    second = {p.name: p.read_bytes() for p in (folder / "other").rglob("fifo/*.safetensors")}
    assert first == second and first
    return policy, whole.table()


# ---- batches without a world

DISCRETE = WorldShape(StepShape(vector=3, kind="discrete", actions=4, horizon=12))
CONTINUOUS = WorldShape(StepShape(vector=3, kind="continuous", actions=2, horizon=12))
BINARY = WorldShape(StepShape(vector=3, kind="binary", actions=2, horizon=12))
SHAPES = {"discrete": DISCRETE, "continuous": CONTINUOUS, "binary": BINARY}
SHAPES["goals"] = replace(DISCRETE, steps=replace(DISCRETE.steps, goals=(2, 2)), goal_part=GoalPart(slice(3, 7), 2, 2))
"""The last: discrete actions, and a goal sequence behind the three numbers of an observation."""
SMALL: dict[str, Any] = {
    "inputs": {"hidden": [8], "width": 8},
    "sequence": {"width": 8, "layers": 1, "heads": 2, "dropout": 0.0},
    "head": [8, 8],
    "further_discounts": [0.5, 0.9],
    "discount": 0.99,
    "critics": 3,
    "reward_multiplier": 5.0,
}


def small(**changes: Any) -> amago.Hyperparameters:
    return amago.Hyperparameters.model_validate({**SMALL, **changes})


def random_batch(
    kind: str = "discrete", seed: int = 0, lengths: tuple[int, ...] = (6, 4, 2), longest: int = 0
) -> Batch:
    """Windows of real rows and padding as the buffer gives it."""
    draws, L = np.random.default_rng(seed), max(*lengths, longest)
    B = len(lengths)
    mask = np.arange(L) < np.array(lengths)[:, None]
    if kind in ("discrete", "goals"):
        action = draws.integers(4, size=(B, L)).astype(np.int16)
    elif kind == "binary":
        action = draws.integers(2, size=(B, L, 2)).astype(np.int16)
    else:
        action = draws.uniform(-1, 1, (B, L, 2)).astype(np.float32)
    observation = draws.normal(size=(B, L, 3)).astype(np.float32)
    if kind == "goals":
        told = np.array([[1, 2, 3, 4], [3, 4, -1, -1], [5, -3, 1, 2]], np.float32)
        observation = np.concatenate([observation, told[draws.integers(3, size=(B, L))]], -1)
    reward = draws.normal(size=(B, L)).astype(np.float32)
    done = np.zeros((B, L), bool)
    done[np.arange(0, B, 2), np.array(lengths)[::2] - 1] = True
    time = np.arange(L, dtype=np.int32)[None] + draws.integers(0, 3, (B, 1)).astype(np.int32)
    for array in (action, observation, reward, time):
        array[~mask] = 0
    return Batch(observation, action, reward, done, time, mask)


def padded(batch: Batch, length: int) -> Batch:
    """The same windows beside one that is longer."""
    names = ("observation_BTD", "previous_action_BT", "reward_BT", "done_BT", "time_BT", "mask_BT")
    more = length - batch.mask_BT.shape[1]
    wider = {
        name: np.concatenate([array, np.zeros((len(array), more, *array.shape[2:]), array.dtype)], 1)
        for name in names
        if (array := getattr(batch, name)) is not None
    }
    return replace(batch, **wider)


def lively(hp: Any, shape: WorldShape, module: Any = amago, seed: int = 0) -> tuple[Network, Heads]:
    """A network and targets that differ, with statistics that are not the first ones."""
    network, other = (module.make_network(hp, shape, seed=s) for s in (seed, seed + 1))
    with torch.no_grad():
        network.popart.mean.copy_(torch.linspace(-1.0, 2.0, len(hp.discounts)))
        network.popart.square.copy_(torch.linspace(4.0, 9.0, len(hp.discounts)))
        network.popart.weight.mul_(0.7)
        network.popart.bias.add_(0.2)
        network.popart.samples.fill_(50)
    return network, Heads(other)


def draws_of(hp: Any, batch: Batch, seed: int = 0) -> Draws:
    B, L = batch.mask_BT.shape
    return Draws.of(hp, seed, 0, B, L - 1, "cpu")


def window_of(network: Network, batch: Batch, hp: Any) -> Any:
    return network.window(batch, hp.reward_multiplier, torch.device("cpu"))


def computed(network: Network, target: Heads, batch: Batch, hp: Any, shape: WorldShape, module: Any = amago) -> Any:
    return module.loss_of(
        network, target, window_of(network, batch, hp), draws_of(hp, batch), hp, distribution_of(hp, shape)
    )


def gradients(network: Network, loss: Tensor) -> dict[str, float]:
    """The largest gradient of each part."""
    network.zero_grad()
    loss.backward(retain_graph=True)
    modules = {"encoder": network.trajectory_encoder, "step": network.timestep_encoder, "actor": network.actor}
    modules["critics"] = network.critics
    return {
        name: max((float(p.grad.abs().max()) for p in module.parameters() if p.grad is not None), default=0.0)
        for name, module in modules.items()
    }


class Fixed:
    """Draws of which actions take nothing."""

    def __init__(self, index: Tensor) -> None:
        self.index_KBTG, self.actions = index, torch.Generator().manual_seed(0)


def deterministic(policy: Any) -> Any:
    """A policy whose draws are its mode, so that a batch's shape does not change them."""
    policy = copy.copy(policy)
    policy.drawn = lambda raw, uniform: policy.mode(raw)
    if policy.kind != "discrete":
        policy.reparameterised = lambda raw, draws: policy.mode(raw)
    return policy
