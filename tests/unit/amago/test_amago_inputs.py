"""AMAGO's loop in worlds of images, of several parts and of continuous actions: it trains, sees what is there, and goes on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_amago_packages
import fake_worlds
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from tiny_amago import collector_of, goes_on_to_the_bit, run_in, settings_of

from recollect.amago import amago, amago_multi_task
from recollect.amago.batch import padded
from recollect.amago.loop import Trainer
from recollect.amago.network import WorldShape
from recollect.common.contract import Inputs
from recollect.environments import registry
from recollect.settings.errors import UserError

SEES = {"hidden": [16], "width": 16}
CRAFTER: dict[str, Any] = {**SEES, "encoder": "crafter", "goals": "token"}
CROP = ("crafter", {"horizon": 12})
TEXTURES = ("crafter", {"horizon": 12, "observation": "textures"})
SIGNAL = ("signal", {"height": 9, "width": 8})
WIND = ("wind", {"horizon": 10, "radius": 0.3})
CASES: dict[str, tuple[tuple[str, dict[str, Any]], dict[str, Any]]] = {
    "image": (SIGNAL, {"inputs": {**SEES, "cnn": "gridworld"}}),
    "image, augmented": (SIGNAL, {"inputs": {**SEES, "cnn": "gridworld", "augment": True}}),
    "image, newer encoder": (SIGNAL, {"inputs": {**SEES, "cnn": "gridworld", "encoder": "image", "augment": True}}),
    "image, numbers and goals": (CROP, {"inputs": {**CRAFTER, "augment": True}, "relabelling": "some", "rare_goals": True}),
    "textures, numbers and goals": (TEXTURES, {"inputs": CRAFTER, "relabelling": "some"}),
    "continuous": (WIND, {}),
    "continuous, beta": (WIND, {"continuous": "beta", "inputs": {**SEES, "layout": "head"}}),
    "continuous, mixture": (WIND, {"continuous": "mixture", "online_coefficient": 0, "offline_coefficient": 1}),
    "bits": (("gymnasium", {"id": "Lights-v0", "horizon": 10}), {"online_coefficient": 0, "offline_coefficient": 1}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_worlds.install(monkeypatch)
    fake_amago_packages.install(monkeypatch)


def world_of(world: tuple[str, dict[str, Any]], count: int = 2) -> Any:
    name, options = world
    return registry.make_world(name, options, registry.tasks(name, options, "train")[:1] * count, np.arange(count))


@pytest.mark.quick("continuous-recollect.amago.amago", "bits-recollect.amago.amago_multi_task")
@pytest.mark.parametrize(
    ("case", "module"),
    [
        *((case, amago) for case in CASES),
        ("image, augmented", amago_multi_task),
        ("continuous", amago_multi_task),
        ("bits", amago_multi_task),
    ],
)
def test_it_trains_and_a_stopped_run_goes_on_to_the_bit(case: str, module: Any, tmp_path: Path) -> None:
    world, changes = CASES[case]
    settings = settings_of(
        world, module=module, steps_per_epoch=14, epochs=3, updates_per_epoch=2, keep="last", **changes
    )
    policy, table = goes_on_to_the_bit(module, settings, tmp_path)
    losses = table[table["metric"].isin(["actor_loss", "critic_loss", "gradient_norm"])]
    assert len(losses) == 3 * 3 and np.isfinite(losses["value"]).all()
    first = Trainer(module.Agent, settings, "cpu", run_in(tmp_path / "new")).agent.network.policy_arrays()
    learned = [name for name in first if name.startswith("timestep_encoder.") and name.endswith(("weight", "table"))]
    assert learned and all(not np.array_equal(first[name], policy.arrays()[name]) for name in learned)
    again = module.load_policy(settings, policy.arrays(), Inputs())
    observation, rest = world_of(world).reset()[0], (np.zeros(2, np.float32), np.zeros(2, bool))
    for each in (policy, again):
        each.start(np.arange(2, dtype=np.uint64))
    np.testing.assert_array_equal(policy.act(observation, *rest), again.act(observation, *rest))


def test_the_newer_encoder_of_images_refuses_numbers_that_it_would_not_see() -> None:
    with pytest.raises(UserError, match="neither numbers beside it nor goals"):
        collector_of(settings_of(CROP, inputs={**SEES, "encoder": "image"}))


def test_a_world_of_more_actions_than_trajectories_can_hold_is_refused() -> None:
    """As int16, action 40,000 would be -25,536."""
    world = SimpleNamespace(single_observation_space=Box(0, 1, (2,)), single_action_space=Discrete(32_767), horizon=5)
    assert WorldShape.of(world).steps.actions == 32_767
    world.single_action_space = Discrete(32_768)
    with pytest.raises(UserError, match="32,768 actions"):
        WorldShape.of(world)


@pytest.mark.parametrize("case", ["image, numbers and goals", "textures, numbers and goals"])
def test_each_part_of_an_observation_is_seen_as_what_it_is(case: str) -> None:
    """Where one part changes, that part changes alone, and so does the state."""
    world, changes = CASES[case]
    _, agent = collector_of(settings_of(world, **changes))
    made, network = world_of(world), agent.network.eval()
    shape, seen = WorldShape.of(made), made.reset()[0]
    found = shape.parts(seen, torch.device("cpu"))
    expected = {name: seen[:, where].reshape(2, *size) for name, (where, size) in made.observation_parts.items()}
    if "image" in expected:
        np.testing.assert_array_equal(found["image"], expected["image"])
        np.testing.assert_array_equal(found["vector"], expected["inventory"])
    else:
        assert found["image"] is None
        cells = expected["textures"].reshape(2, -1)
        np.testing.assert_array_equal(found["vector"], np.concatenate([cells, expected["features"]], 1))
    np.testing.assert_array_equal(found["goals"], expected["goals"] - float(made.goal_part.offset))

    def state(observation: np.ndarray) -> torch.Tensor:
        nothing = torch.zeros(2)
        steps = network.steps(observation, torch.full((2,), -1), nothing, nothing.long(), nothing.bool())
        return network.timestep_encoder(steps).detach()

    for name_of_part, (where, _) in made.observation_parts.items():
        other = seen.copy()
        if name_of_part == "image":  # new convolutions look at some pixels only
            other[:, where] = 255 - seen[:, where]
        else:
            other[:, where.start] = seen[:, where.start] + 1
        now = shape.parts(other, torch.device("cpu"))
        changed = [name for name in found if found[name] is not None and not torch.equal(found[name], now[name])]
        part = name_of_part if name_of_part in ("image", "goals") else "vector"
        assert changed == [part]
        assert not torch.equal(state(other), state(seen)), part


def test_images_are_shifted_while_learning_and_never_while_acting(tmp_path: Path) -> None:
    settings = settings_of(
        CROP, inputs={**CRAFTER, "augment": True}, sequence={"width": 16, "heads": 2, "dropout": 0.0}
    )
    trainer = Trainer(amago.Agent, settings, "cpu", run_in(tmp_path))
    trainer.store.add(trainer.collector.collect(14))
    network = trainer.agent.network
    window = network.window(
        trainer.store.sample(4, trainer.drawing.context, seed=0, counter=0), 1.0, torch.device("cpu")
    )

    def states(seed: int | None) -> torch.Tensor:
        network.timestep_encoder.augment_draws = None if seed is None else torch.Generator().manual_seed(seed)
        return network.timestep_encoder(window.steps).detach()

    network.train()
    assert torch.equal(states(1), states(1)) and not torch.equal(states(1), states(2))
    assert torch.equal(states(1)[0], states(2)[0])  # the first quarter of the windows stays
    network.eval()
    assert torch.equal(states(1), states(2)) and torch.equal(states(1), states(None))


def test_continuous_actions_are_recorded_as_they_were_played_and_read_as_they_were_chosen() -> None:
    """The states of a recorded rollout, computed whole, give the very actions that were taken without exploration."""
    settings = settings_of(WIND, sample_actions=False, exploration={"kind": "none"})
    collector, agent = collector_of(settings)
    batch = padded([dict(trajectory) for trajectory in collector.collect(20)])
    assert batch.previous_action_BT.dtype == np.float32
    assert (batch.previous_action_BT[:, 0] == -2).all()  # none yet
    with torch.no_grad():
        raw = agent.network.actor(agent.network.eval().states(agent.network.window(batch, 1.0, torch.device("cpu"))))
    chosen = agent.distribution.mode(raw[:, :-1, -1]).numpy()
    real = batch.mask_BT[:, 1:]
    np.testing.assert_allclose(chosen[real], batch.previous_action_BT[:, 1:][real], atol=1e-5)
    assert len(np.unique(chosen[real])) > 20


def test_exploration_moves_continuous_actions_and_keeps_them_inside() -> None:
    settings = settings_of(WIND, sample_actions=False, exploration={"randomize": False, "anneal": 10**9})
    collector, _ = collector_of(settings)
    actions = np.concatenate([trajectory["previous_action"][1:] for trajectory in collector.collect(40)])
    assert actions.shape[1] == 2 and np.abs(actions).max() == 1.0  # noise as wide as the box is cut at its border
    assert actions.std() > 0.4
