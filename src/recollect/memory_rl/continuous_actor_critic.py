"""What the actor-critic methods of continuous actions share (td3, sac), beside `history_actor_critic`.

Source: Memory-RL (Ni et al. 2023), section 2.5 of our specification. Networks are as those of the discrete methods, or as in
the released JAX code (`network`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from recollect.common.contract import Facts
from recollect.common.sequence_models import FeedForwardSequence, RecurrentSequence
from recollect.memory_rl.history_actor_critic import ActorCritic, ActorCriticHyperparameters
from recollect.settings.errors import UserError
from recollect.settings.seeding import seed_of


class ContinuousHyperparameters(ActorCriticHyperparameters):
    """What td3 and sac share besides; see also `ActorCriticHyperparameters`."""

    freeze_all: bool = Field(
        True,
        description="A shared encoder learns from the critics' loss only: the actor's gives it no gradient at all (and "
        "`freeze_critic` is on). Separate encoders: no effect, each learns from its own loss. Paper's figures: yes.",
    )

    network: Literal["torch", "flax"] = Field(
        "torch",
        description="`torch`: as the discrete methods have it; `flax`: as the released code of continuous tasks has it. "
        "Every matrix (of an LSTM each gate's), but of a GPT's blocks, begins orthogonal and every bias 0, a gate has one "
        "bias that learns instead of two, whose sum Adam moves twice as far, and a token begins with the observation. Paper: flax.",
    )

    @property
    def observation_first(self) -> bool:
        return self.network == "flax"

    @property
    def freezes(self) -> bool:
        """Whether critics are constants in the actor's loss."""
        return self.freeze_critic or self.freeze_all or not self.shared_encoder

    @property
    def freezes_encoder(self) -> bool:
        """Whether the actor's loss gives its encoder no gradient; an encoder of its own has no other teacher."""
        return self.freeze_all and self.shared_encoder


@torch.no_grad()
def initialised(model: ActorCritic, hp: ContinuousHyperparameters, *, seed: int) -> ActorCritic:
    """The model with the weights that it begins with, see `network`."""
    if hp.network == "torch":
        return model
    draws = torch.Generator().manual_seed(seed_of("orthogonal weights", seed))
    encoders = [model.actor.encoder]
    if model.critic_encoder is not None:
        encoders.append(model.critic_encoder)
    plain: list[nn.Module] = [model.actor.head, model.critics]
    for encoder in encoders:
        plain.append(encoder.embedder)
        if isinstance(encoder.sequence, FeedForwardSequence):
            plain.append(encoder.sequence)
        if isinstance(encoder.sequence, RecurrentSequence):
            orthogonal_gates(encoder.sequence, draws)
    for part in plain:
        orthogonal_linear(part, draws)
    return model


def orthogonal_gates(sequence: RecurrentSequence, draws: torch.Generator) -> None:
    """Make each gate's matrices orthogonal, in place; of its two biases, which are 0, one learns."""
    for name, parameter in sequence.cells.named_parameters():
        if name.startswith("weight"):
            for gate in parameter.split(sequence.output_width):
                nn.init.orthogonal_(gate, generator=draws)
        elif name.startswith("bias_ih"):
            parameter.requires_grad_(False)  # it stays 0, and the other is the one that learns


def orthogonal_linear(part: nn.Module, draws: torch.Generator) -> None:
    """Make the matrices of all linear layers of a module orthogonal, and their biases 0, in place."""
    for layer in part.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, generator=draws)
            layer.bias.zero_()


def constant(head: nn.Module, x: Tensor) -> Tensor:
    """What a head gives, as a function of its inputs alone: its parameters get no gradient."""
    fixed = {name: parameter.detach() for name, parameter in head.named_parameters()}
    y: Tensor = functional_call(head, fixed, (x,))
    return y


def least_q(online: ActorCritic, h_BTH: Tensor, action_BTA: Tensor, hp: ContinuousHyperparameters) -> Tensor:
    """The smaller critic's value [B, T] of the actor's actions, for its loss."""
    if not hp.freezes:
        return torch.minimum(*online.q(h_BTH, action_BTA))
    both = torch.cat([h_BTH.detach(), action_BTA], -1)
    first, second = (constant(head, both)[..., 0] for head in online.critics)
    return torch.minimum(first, second)


def normal(shape: Sequence[int], draws: torch.Generator) -> Tensor:
    """Standard normal numbers, drawn on the CPU so that they are the same on every device."""
    return torch.randn(shape, generator=draws)


def need_continuous(facts: Facts, method: str) -> None:
    if not facts.action_size:
        raise UserError(
            f"{method} gives continuous actions, and this world's are a number of choices",
            where="method",
            do="use a method for discrete actions (dqn, sacd), or another environment",
        )
