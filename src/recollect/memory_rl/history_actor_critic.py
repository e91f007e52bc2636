"""What the actor-critic methods on histories share: an actor and twin critics, on one encoder or on two.

Source: Memory-RL (Ni et al. 2023), sections 2.4 and 2.5 of our specification. Differences:

- One loss and one Adam for everything, also where the encoders are separate (there the released code steps the critics
  first, so its actor reads critics that are one update newer).
- The target is a copy of everything; each method reads of it what its formula says.
- Heads and embedders of continuous methods are initialised as the discrete ones; the released (JAX) ones are orthogonal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from recollect.common.contract import Facts, Inputs, facts_of
from recollect.common.masked_mean import masked_mean
from recollect.memory_rl.heads import POLICY_HEAD_RANGE, Q_HEAD_RANGE, Head
from recollect.memory_rl.history_policy import HistoryNetwork, HistoryPolicy, policy_from
from recollect.memory_rl.off_policy import Learner, OnlineHyperparameters, make_encoder, make_history_network
from recollect.memory_rl.sequence import HistoryEncoder
from recollect.settings.errors import UserError
from recollect.settings.schema import Settings
from recollect.settings.seeding import seed_of


class ActorCriticHyperparameters(OnlineHyperparameters):
    shared_encoder: bool = Field(
        True, description="Actor and critics read one encoder; false: one each. Paper's figures: yes."
    )
    freeze_critic: bool = Field(
        True,
        description="The actor's loss gives no gradient to the critics nor, through them, to the encoder. Paper: yes "
        "(it keeps gradients from exploding). Separate encoders have it in any case.",
    )


class ActorCritic(nn.Module):
    """Actor (encoder and head) and twin critics.

    Args:
        outputs: numbers that the actor's head gives.
        log_alpha: first value of the logarithm of a learned temperature; None: there is none.

    Critics give a value per action where actions are discrete, else one value of (hidden state, action).
    """

    def __init__(
        self, hp: ActorCriticHyperparameters, facts: Facts, outputs: int, *, seed: int, log_alpha: float | None = None
    ) -> None:
        super().__init__()
        self.actor = make_actor(hp, facts, outputs, seed=seed)
        self.critic_encoder: HistoryEncoder | None = None
        if not hp.shared_encoder:
            self.critic_encoder = make_encoder(hp, facts, seed=seed_of("critic encoder", seed))
        width = self.actor.encoder.output_width + facts.action_size
        draws = torch.Generator().manual_seed(seed_of("critic head weights", seed))
        self.critics = nn.ModuleList()
        for _ in range(2):
            self.critics.append(
                Head(width, facts.actions or 1, hp.head, last_range=Q_HEAD_RANGE, fan=hp.head_fan, generator=draws)
            )
        self.log_alpha = None if log_alpha is None else nn.Parameter(torch.tensor(log_alpha))

    def critic_states(self, parts: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Hidden states [B, T, H] of tokens, for the critics."""
        encoder = self.actor.encoder if self.critic_encoder is None else self.critic_encoder
        return encoder(*parts)

    def q(self, h_BTH: Tensor, action_BTA: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Both critics: [B, T, A] over discrete actions, or [B, T] of the given continuous ones."""
        first, second = self.critics
        if action_BTA is None:
            return first(h_BTH), second(h_BTH)
        both = torch.cat([h_BTH, action_BTA], -1)
        return first(both)[..., 0], second(both)[..., 0]


class ActorCriticLearner(Learner):
    """Actor, twin critics and their Polyak copy; a method adds `make`, its loss and how it explores."""

    online: ActorCritic
    target: ActorCritic
    make: Callable[..., ActorCritic]
    """(hp, facts, seed=) -> actor and critics"""

    def __init__(self, hp: ActorCriticHyperparameters, facts: Facts, *, seed: int, device: torch.device | str) -> None:
        self.hp: Any = hp
        online, target = (self.make(hp, facts, seed=seed) for _ in range(2))
        super().__init__(hp, online.actor, online, target, seed=seed, device=device)


def make_actor(hp: ActorCriticHyperparameters, facts: Facts, outputs: int, *, seed: int) -> HistoryNetwork:
    """Encoder and policy head: all that a policy file holds."""
    return make_history_network(
        hp, facts, outputs, last_range=POLICY_HEAD_RANGE, draws="policy head weights", seed=seed
    )


def load_actor(
    settings: Settings, arrays: Mapping[str, Any], inputs: Inputs, *, outputs_per_action: int = 1
) -> HistoryPolicy:
    facts = facts_of(settings.environment)
    outputs = outputs_per_action * (facts.actions or facts.action_size)
    return policy_from(make_actor(settings.method.hyperparameters, facts, outputs, seed=0), arrays, inputs.device)


def first_tokens(parts: tuple[Tensor, Tensor, Tensor], n: int) -> tuple[Tensor, Tensor, Tensor]:
    action, reward, observation = parts
    return action[:, :n], reward[:, :n], observation[:, :n]


@contextmanager
def frozen(module: nn.Module, freeze: bool) -> Iterator[None]:
    """While inside, what is computed with the module gives its parameters no gradient (if `freeze`)."""
    if freeze:
        module.requires_grad_(False)
    try:
        yield
    finally:
        module.requires_grad_(True)


# ---- continuous actions (td3, sac)


class ContinuousHyperparameters(ActorCriticHyperparameters):
    """What td3 and sac share besides; see also `ActorCriticHyperparameters`."""

    freeze_all: bool = Field(
        True,
        description="A shared encoder learns from the critics' loss only: the actor's gives it no gradient at all (and "
        "`freeze_critic` is on). Separate encoders: no effect, each learns from its own loss. Paper's figures: yes.",
    )

    @property
    def freezes(self) -> bool:
        """Whether critics are constants in the actor's loss."""
        return self.freeze_critic or self.freeze_all or not self.shared_encoder

    @property
    def freezes_encoder(self) -> bool:
        """Whether the actor's loss gives its encoder no gradient; an encoder of its own has no other teacher."""
        return self.freeze_all and self.shared_encoder


def critic_losses(q1_BT: Tensor, q2_BT: Tensor, y_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Masked mean of both critics' squared errors (scalar), and metrics."""
    loss = masked_mean((q1_BT - y_BT) ** 2 + (q2_BT - y_BT) ** 2, mask_BT)
    return loss, {
        "critic_loss": loss.detach(),
        "q1": masked_mean(q1_BT.detach(), mask_BT),
        "q2": masked_mean(q2_BT.detach(), mask_BT),
    }


def least_q(online: ActorCritic, h_BTH: Tensor, action_BTA: Tensor, hp: ContinuousHyperparameters) -> Tensor:
    """The smaller critic's value [B, T] of the actor's actions, for its loss."""
    with frozen(online.critics, hp.freezes):
        return torch.minimum(*online.q(h_BTH.detach() if hp.freezes else h_BTH, action_BTA))


def noise_like(x: Tensor, draws: torch.Generator) -> Tensor:
    """Standard normal numbers, drawn on the CPU so that they are the same on every device."""
    return torch.randn(x.shape, generator=draws).to(x.device)


def need_continuous(facts: Facts, method: str) -> None:
    if not facts.action_size:
        raise UserError(
            f"{method} gives continuous actions, and this world's are a number of choices",
            where="method",
            do="use a method for discrete actions (dqn, sacd), or another environment",
        )
