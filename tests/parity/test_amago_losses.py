"""AMAGO's losses, targets, statistics and gradients against those of the released agents (amago_losses.json).

With the same weights, windows and drawn critics; draws of continuous actions were replaced by the modes, several discrete ones of
the multi-task agent by the likeliest action and those that follow it. What is left of differences is the released running means'
step, which float32 makes wrong in its fourth digit: with it, all is equal to 5e-7. `seed` is commit 514c1c2, `head` 2d85600.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import recorded_amago as recorded
import torch
from torch import Tensor

from recollect.amago import amago, amago_multi_task, terms
from recollect.amago.amago import distribution_of
from recollect.amago.batch import Batch
from recollect.amago.network import WorldShape
from recollect.amago.terms import Heads
from recollect.amago.timestep_encoders import StepShape
from recollect.amago.trajectory_encoders import TrajectoryEncoderSettings, make_trajectory_encoder

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("amago_losses.json").read_text(encoding="utf-8"))
CASES = [(era, case) for era in ("seed", "head") for case in RECORDED[era] if " " in case]
SEQUENCE = {"width": recorded.WIDTH, "layers": recorded.LAYERS, "heads": recorded.HEADS, "dropout": 0.0}
OF_ERA: dict[str, dict[str, Any]] = {
    "seed": {
        "inputs": {"layout": "seed", "input_norm": "upstream"},
        "sequence": {"positions": "learned"},
        "actor_mask": "upstream",
        "discount_feature": "seed",
        "filter_threshold": 1e-3,
    },
    "head": {
        "inputs": {"layout": "head"},
        "sequence": {"positions": "sinusoid"},
        "discount_feature": "head",
        "filter_threshold": 0.0,
    },
}


def hyperparameters(era: str, agent: str) -> Any:
    said = OF_ERA[era]
    content = {
        **said,
        "inputs": {**said["inputs"], "hidden": [10, 10], "width": 8},
        "sequence": {**said["sequence"], **SEQUENCE},
        "head": [recorded.HEAD, recorded.HEAD],
        "critics": recorded.CRITICS,
        "further_discounts": [0.5, 0.9],
        "discount": 0.99,
        "reward_multiplier": 5.0,
    }
    if agent == "multitask":
        return amago_multi_task.Hyperparameters.model_validate({**content, "bins": 9, "returns": [-50.0, 50.0]})
    return amago.Hyperparameters.model_validate({**content, "soft_buffer_action": era == "head"})


def gradient_norm(module: torch.nn.Module) -> float:
    grads = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
    return float(torch.cat(grads).norm())


@pytest.mark.parametrize(("era", "case"), CASES)
def test_losses_targets_statistics_and_gradients_are_the_released_ones(
    era: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, kind = case.split()
    said, hp = RECORDED[era][case], hyperparameters(era, agent)
    module: Any = amago_multi_task if agent == "multitask" else amago
    actions = 4 if kind == "discrete" else 2
    steps = StepShape(vector=recorded.NUMBERS, kind=kind, actions=actions, horizon=recorded.HORIZON)  # type: ignore[arg-type]
    shape = WorldShape(steps)
    network = module.make_network(hp, shape, seed=0)
    target = Heads(module.make_network(hp, shape, seed=1))
    recorded.copy_network(network, target, era)
    batch = Batch(**recorded.windows(kind, actions))
    window = network.window(batch, hp.reward_multiplier, torch.device("cpu"))
    seen: list[Tensor] = []
    ours = terms.targets

    def noting(*arguments: Any) -> Tensor:
        seen.append(ours(*arguments))
        return seen[-1]

    monkeypatch.setattr(terms, "targets", noting)
    loss, metrics = module.loss_of(
        network.train(),
        target,
        window,
        recorded.Draws(3),
        hp,
        recorded.without_chance(distribution_of(hp, shape)),
    )
    loss.backward()
    real = torch.as_tensor(batch.mask_BT[:, 1:])
    torch.testing.assert_close(seen[0][real], torch.tensor(said["targets"]), rtol=1e-4, atol=1e-4)
    for name in ("mean", "square", "weight", "bias"):
        torch.testing.assert_close(
            getattr(network.popart, name), torch.tensor(said["popart"][name]), rtol=1e-3, atol=1e-3
        )
    assert float(metrics["critic_loss"]) == pytest.approx(said["critic_loss"], rel=1e-4)
    assert float(metrics["actor_loss"]) == pytest.approx(said["actor_loss"], rel=1e-4)
    parts = {
        "tstep_encoder": network.timestep_encoder,
        "traj_encoder": network.trajectory_encoder,
        "actor": network.actor,
        "critics": network.critics,
    }
    for name, part in parts.items():
        assert gradient_norm(part) == pytest.approx(said["gradient_norms"][name], rel=2e-4), name


def vectors() -> tuple[Tensor, Tensor]:
    time_BT = torch.arange(recorded.STEPS)[None] + torch.tensor([0, 2, 0, 3])[:, None]
    return recorded.drawn("vectors", len(recorded.LENGTHS), recorded.STEPS, 8), time_BT


@pytest.mark.parametrize("era", ["seed", "head"])
def test_the_transformers_states_are_the_released_ones(era: str) -> None:
    settings = TrajectoryEncoderSettings.model_validate({**SEQUENCE, **OF_ERA[era]["sequence"]})
    encoder = make_trajectory_encoder(settings, 8, horizon=recorded.HORIZON, context=recorded.STEPS, seed=0)
    recorded.copy_transformer(encoder, era)
    found = encoder.eval()(*vectors())[:, [0, 3, 8]]
    torch.testing.assert_close(found, torch.tensor(RECORDED[era]["transformer"]), rtol=1e-4, atol=2e-5)


def test_without_memory_there_are_the_released_layers() -> None:
    """amago/nets/traj_encoders.py, FFTrajEncoder with three layers."""
    settings = TrajectoryEncoderSettings(kind="ff", width=recorded.WIDTH, layers=3)
    encoder: Any = make_trajectory_encoder(settings, 8, horizon=recorded.HORIZON, context=recorded.STEPS, seed=0)
    recorded.copy_linear(encoder.input, "ff/traj_emb")
    for i, (widen, narrow) in enumerate(encoder.blocks):
        recorded.copy_linear(widen, f"ff/traj_blocks.{i}.ff1")
        recorded.copy_linear(narrow, f"ff/traj_blocks.{i}.ff2")
    recorded.copy_linear(encoder.out, "ff/traj_last")
    recorded.copy_linear(encoder.norm, "ff/norm.norm")
    found = encoder.eval()(*vectors())[:, [0, 3, 8]]
    torch.testing.assert_close(found, torch.tensor(RECORDED["seed"]["ff"]), rtol=1e-4, atol=2e-5)


def test_the_gru_has_the_released_layers() -> None:
    """amago/nets/traj_encoders.py, GRUTrajEncoder with three layers."""
    settings = TrajectoryEncoderSettings(kind="gru", width=recorded.WIDTH, layers=3)
    encoder: Any = make_trajectory_encoder(settings, 8, horizon=recorded.HORIZON, context=recorded.STEPS, seed=0)
    cells = [name for name, _ in encoder.named_parameters() if name.rpartition(".")[2].startswith(("weight_", "bias_"))]
    assert len(cells) == 3 * 4
    for name in cells:
        parameter = encoder.get_parameter(name)
        recorded.copy_into(parameter, recorded.released(f"gru/rnn.{name.rpartition('.')[2]}", *parameter.shape))
    recorded.copy_linear(encoder.out, "gru/out")
    recorded.copy_linear(encoder.norm, "gru/out_norm.norm")
    found = encoder.eval()(*vectors())[:, [0, 3, 8]]
    torch.testing.assert_close(found, torch.tensor(RECORDED["seed"]["gru"]), rtol=1e-4, atol=2e-5)
