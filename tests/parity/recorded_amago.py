"""What recorded facts of AMAGO were made from, and how released weights become ours.

Numbers are of a name, the same on every machine and in every version, so that no file holds them. A released module was filled
with them parameter by parameter, under its own names; here the same numbers are put where ours has that parameter.
"""

from __future__ import annotations

import copy
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

LENGTHS = (9, 6, 3, 9)  # time steps of the recorded windows
STEPS, NUMBERS, HORIZON = 9, 3, 12
WIDTH, LAYERS, HEADS, CRITICS, HEAD = 16, 2, 2, 3, 12


def drawn(name: str, *shape: int) -> Tensor:
    """Numbers between -1 and 1, float32: numpy promises that this old generator's numbers stay what they are."""
    return torch.from_numpy(np.random.RandomState(zlib.crc32(name.encode())).uniform(-1, 1, shape).astype(np.float32))


def released(name: str, *shape: int) -> Tensor:
    """A parameter of a released module, under its name there: factors are near 1, everything else near 0."""
    last = name.rpartition(".")[2]
    factor = ("norm" in name and last == "weight") or last in ("gamma", "head_scaler")
    if factor:
        return 1.0 + 0.3 * drawn(name, *shape)
    return (0.2 if "actor/" in name else 0.35) * drawn(name, *shape)  # the seed code bounds log probabilities at -1000


def copy_into(parameter: Tensor, value: Tensor) -> None:
    assert parameter.shape == value.shape
    with torch.no_grad():
        parameter.copy_(value)


def copy_linear(layer: Any, name: str, *, further_inputs: int = 0) -> None:
    """A linear layer or LayerNorm. `further_inputs`: behind ours, that are always zero and ours does not have."""
    shape = list(layer.weight.shape)
    shape[-1] += further_inputs
    weight = released(f"{name}.weight", *shape)
    copy_into(layer.weight, weight[..., : layer.weight.shape[-1]])
    copy_into(layer.bias, released(f"{name}.bias", *layer.bias.shape))


def copy_sigma(layer: Any, name: str, era: str, order: Tensor | None = None) -> None:
    """A sigma-reparametrised layer. `order`: of its outputs, where the released ones stand in another."""
    weight_name, bias_name = ("W", "b") if era == "seed" else ("weight", "bias")
    rows = torch.arange(layer.out_features) if order is None else order
    copy_into(layer.weight, released(f"{name}.{weight_name}", *layer.weight.shape)[rows])
    if layer.bias is not None:
        copy_into(layer.bias, released(f"{name}.{bias_name}", *layer.bias.shape))
    copy_into(layer.gamma, released(f"{name}.gamma", 1))
    u, v = drawn(f"{name}/u", layer.out_features), drawn(f"{name}/v", layer.in_features)
    copy_into(layer.u, (u / u.norm())[rows])
    copy_into(layer.v, v / v.norm())


def copy_transformer(encoder: Any, era: str) -> None:
    name = "traj_encoder/tformer"
    if era == "seed":
        copy_into(encoder.table_TD, released(f"{name}.position_embedding.weight", *encoder.table_TD.shape))
    copy_linear(encoder.input, f"{name}.inp")
    copy_linear(encoder.norm, f"{name}.norm.norm")
    attention = "self_attention" if era == "seed" else "attention_layer"
    # Released: of queries, keys and values each, the heads stand beside one another for every entry of a head.
    order = torch.arange(3 * WIDTH).view(3, WIDTH // HEADS, HEADS).transpose(1, 2).flatten()
    for i, block in enumerate(encoder.blocks):
        layer = f"{name}.layers.{i}"
        copy_into(block.head_scale, released(f"{layer}.{attention}.head_scaler", HEADS))
        copy_sigma(block.qkv, f"{layer}.{attention}.qkv_projection", era, order)
        copy_sigma(block.out, f"{layer}.{attention}.out_projection", era)
        copy_sigma(block.ff_in, f"{layer}.ff1", era)
        copy_sigma(block.ff_out, f"{layer}.ff2", era)
        norms = (block.norm_attention, block.norm_attended, block.norm_ff, block.norm_inner)
        for n, norm in enumerate(norms, 1):
            copy_linear(norm, f"{layer}.norm{n}.norm")


def copy_perceptron(layers: nn.ModuleList, name: str, *, further_inputs: int = 0) -> None:
    inner = [f"layers.{i}" for i in range(len(layers) - 2)]
    for layer, place in zip(layers, ("in_layer", *inner, "out_layer"), strict=True):
        copy_linear(layer, f"{name}.{place}", further_inputs=further_inputs if place == "in_layer" else 0)


def copy_critics(critics: Any, name: str) -> None:
    inputs = critics.first_weight.shape[1]
    weight_CIH = released(f"{name}inp_layer.weight", CRITICS, inputs, HEAD)
    copy_into(critics.first_weight, weight_CIH.transpose(1, 2).reshape(CRITICS * HEAD, inputs))
    copy_into(critics.first_bias, released(f"{name}inp_layer.bias", CRITICS * HEAD))
    for place, weight, bias in zip(("core_layers.0", "output_layer"), critics.weights, critics.biases, strict=True):
        copy_into(weight, released(f"{name}{place}.weight", *weight.shape))
        copy_into(bias, released(f"{name}{place}.bias", *bias.shape))


def copy_network(network: Any, target: Any, era: str) -> None:
    """All weights of a network and of its targets. Without goals the seed code has a goal's embedding that is zero."""
    copy_perceptron(network.timestep_encoder.layers, "tstep_encoder/base", further_inputs=int(era == "seed"))
    copy_linear(network.timestep_encoder.norm, "tstep_encoder/out_norm.norm")
    copy_transformer(network.trajectory_encoder, era)
    inside = "" if era == "seed" else "net."
    for heads, which in ((network, ""), (target, "target_")):
        copy_perceptron(heads.actor.layers, f"{which}actor/base")
        copy_critics(heads.critics, f"{which}critics/{inside}")


def windows(kind: str, actions: int) -> dict[str, np.ndarray]:
    """The recorded windows as the buffer gives them: padded with zeros; -1 or -2 is no action yet."""
    B = len(LENGTHS)
    time_BT = np.arange(STEPS)[None] + np.array([0, 2, 0, 3])[:, None]
    mask_BT = np.arange(STEPS)[None] < np.array(LENGTHS)[:, None]
    reward_BT = drawn("rewards", B, STEPS, 1)[..., 0].numpy().copy()
    reward_BT[time_BT == 0] = 0
    done_BT = np.zeros((B, STEPS), bool)
    done_BT[[0, 2], [LENGTHS[0] - 1, LENGTHS[2] - 1]] = True
    if kind == "discrete":
        share_BT = (drawn("actions", B, STEPS).numpy() + 1) / 2
        action = np.minimum((share_BT * actions).astype(np.int16), actions - 1)
        action[time_BT == 0] = -1
    else:
        action = drawn("actions", B, STEPS, actions).numpy().copy()
        action[time_BT == 0] = -2
    observation = 2 * drawn("observations", B, STEPS, NUMBERS).numpy()
    for array in (observation, action, reward_BT, done_BT, time_BT):
        array[~mask_BT] = 0
    return {
        "observation_BTD": observation,
        "previous_action_BT": action,
        "reward_BT": reward_BT,
        "done_BT": done_BT,
        "time_BT": time_BT.astype(np.int32),
        "mask_BT": mask_BT,
    }


def drawn_critics(discounts: int) -> Tensor:
    """Which two critics make a target, int64 [2, B, T, G]: the draws of the released agents were replaced by these."""
    shape = (len(LENGTHS), STEPS - 1, 2, discounts, 1)
    flat = ((drawn("critics", int(np.prod(shape))) + 1) / 2 * CRITICS).long().clamp(max=CRITICS - 1)
    return flat.view(shape)[..., 0].permute(2, 0, 1, 3)


class Draws:
    """Drawn critics, and a generator that nothing recorded depends on."""

    def __init__(self, discounts: int) -> None:
        self.index_KBTG, self.actions = drawn_critics(discounts), torch.Generator().manual_seed(0)


def without_chance(policy: Any) -> Any:
    """A policy whose draws are its modes; of several discrete ones, the likeliest action and those that follow it."""
    policy = copy.copy(policy)
    policy.drawn = lambda raw, uniform: policy.mode(raw)
    discrete = policy.kind == "discrete"
    if not discrete:
        policy.reparameterised = lambda raw, draws: policy.mode(raw)

    def several(raw: Tensor, count: int, draws: torch.Generator) -> list[Tensor]:
        return [(policy.mode(raw) + k) % policy.size if discrete else policy.mode(raw) for k in range(count)]

    policy.several = several
    return policy
