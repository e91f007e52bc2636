"""What the actor-critic methods on histories share: an actor and twin critics, on one encoder or on two.

Source: Memory-RL (Ni et al. 2023), sections 2.4 and 2.5 of our specification. Differences:

- One Adam for everything. It steps each parameter by itself, so with one encoder this equals the released code. Separate
  encoders: there the critics step first, and the actor reads critics that are one update newer (`critics_first`).
- The target is a copy of what the method's formula reads of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from recollect.common.contract import Facts, Inputs, facts_of
from recollect.common.masked_mean import Mean, masked_mean
from recollect.memory_rl.heads import POLICY_HEAD_RANGE, Q_HEAD_RANGE, Head
from recollect.memory_rl.history_policy import HistoryNetwork, HistoryPolicy, policy_from
from recollect.memory_rl.hyperparameters import OffPolicyHyperparameters
from recollect.memory_rl.learner import Learner, Turn
from recollect.memory_rl.networks import make_encoder, make_history_network
from recollect.memory_rl.replay import Batch
from recollect.memory_rl.sequence import HistoryEncoder
from recollect.settings.schema import Settings
from recollect.settings.seeding import seed_of

CRITIC_METRICS = ("critic_loss", "q1", "q2")
CRITICS: Turn = ("critics",)
ACTOR: Turn = ("actor",)


class ActorCriticHyperparameters(OffPolicyHyperparameters):
    shared_encoder: bool = Field(
        True, description="Actor and critics read one encoder; false: one each. Paper's figures: yes."
    )
    freeze_critic: bool = Field(
        True,
        description="The actor's loss gives no gradient to the critics nor, through them, to the encoder. Paper: yes "
        "(it keeps gradients from exploding). Separate encoders have it in any case.",
    )
    critics_first: bool = Field(
        False,
        description="Separate encoders: the critics step first, and the actor's loss reads the stepped ones. Paper's "
        "code: yes.",
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
    """Actor, twin critics and their Polyak copy; a method adds `make`, its losses and how it explores."""

    online: ActorCritic
    target: ActorCritic
    make: Callable[..., ActorCritic]
    """(hp, facts, seed=) -> actor and critics"""

    def __init__(self, hp: ActorCriticHyperparameters, facts: Facts, *, seed: int, device: torch.device | str) -> None:
        self.hp: Any = hp
        online, target = (self.make(hp, facts, seed=seed) for _ in range(2))
        if not self.reads_target_actor:
            del target.actor
        target.log_alpha = None
        super().__init__(hp, online.actor, online, target, seed=seed, device=device)

    @property
    def reads_target_actor(self) -> bool:
        """Whether the losses read a slow copy of the actor or of its encoder."""
        return True

    @property
    def turns(self) -> tuple[Turn, ...]:
        return (CRITICS, ACTOR) if self.hp.critics_first and not self.hp.shared_encoder else ((),)

    def losses(self, batch: Batch, noise: tuple[Tensor, ...], turn: Turn) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The critics' loss, the actor's (with all that is learned beside it), and metrics.

        In the actor's turn nothing is read of the critics' loss, so that it needs no targets.
        """
        raise NotImplementedError

    def loss(self, batch: Batch, noise: tuple[Tensor, ...], turn: Turn) -> tuple[Tensor, dict[str, Tensor]]:
        critic_loss, actor_loss, metrics = self.losses(batch, noise, turn)
        if not turn:
            return critic_loss + actor_loss, metrics
        of_critics = turn == CRITICS
        seen = {name: value for name, value in metrics.items() if (name in CRITIC_METRICS) == of_critics}
        return critic_loss if of_critics else actor_loss, seen


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


def of_rows(value: Tensor, x: Tensor) -> Tensor:
    """A number as a factor of x [B, ...]: a scalar as it is; [k] of as many members, each as that of its own rows."""
    if not value.dim():
        return value
    own = value[:, None].expand(-1, len(x) // len(value))
    return own.reshape(-1, *[1] * (x.dim() - 1))


def critic_losses(
    q1_BT: Tensor, q2_BT: Tensor, y_BT: Tensor, mask_BT: Tensor, mean: Mean = masked_mean
) -> tuple[Tensor, dict[str, Tensor]]:
    """Masked mean of both critics' squared errors (scalar, as `mean` gives it), and metrics."""
    loss = mean((q1_BT - y_BT) ** 2 + (q2_BT - y_BT) ** 2, mask_BT)
    return loss, {
        "critic_loss": loss.detach(),
        "q1": mean(q1_BT.detach(), mask_BT),
        "q2": mean(q2_BT.detach(), mask_BT),
    }
