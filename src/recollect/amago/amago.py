"""AMAGO (Grigsby, Fan, Zhu 2024, arXiv 2310.09971): off-policy actor-critic over whole rollouts, for many discounts at once.

With states s of one sequence model, discounts g, critics Q and policies pi (specification 1.8; PopArt scales left out):

    y      = r + g (1 - done) min over 2 random critics of Q_target(s', pi_target(s'))       mean where there is no pg
    critic = mean (Q(s, a) - y)^2                                    its gradient trains the encoders
    pg     = - min over all critics of Q(s, pi(s))                   Q and the state it reads are constants
    fbc    = - [mean Q(s, a) - mean Q(s, pi(s)) > threshold] log pi(a | s)
    loss   = online_coefficient pg + offline_coefficient fbc + critic_weight critic

One AdamW on everything; then the targets (of the heads only) follow. What differs from the released code, and why:

- Critics are read as constants in pg; upstream keeps a third copy of them, whose gradients (in newer versions) also
  count in the clipped norm. Discrete critics read the state only, so one pass gives Q(s, a) and Q(s, pi(s)).
- The last real step of a short window has no action and is not in the actor's loss (`actor_mask: upstream`: it is).
- Targets follow after the optimiser's step (`targets_first: true`: before it, as newer versions do).
- InputNorm, exploration and the mixture policy have switches of their own. Losses of validation data are not computed, so
  that they cannot move PopArt's statistics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from recollect.amago import loop as amago_loop
from recollect.amago import terms
from recollect.amago.ensembles import ActionCritics, DiscreteCritics
from recollect.amago.exploration import ExplorationSettings
from recollect.amago.network import Network, Window, WorldShape, world_shape
from recollect.amago.policy import AmagoPolicy
from recollect.amago.policy_distributions import ClippedSoftmax, Distribution, make_distribution
from recollect.amago.terms import Draws, Heads, masked_mean
from recollect.amago.timestep_encoders import InputSettings
from recollect.amago.trajectory_encoders import TrajectoryEncoderSettings
from recollect.amago.trajectory_files import Batch
from recollect.artifacts.checkpoints import part
from recollect.artifacts.run import Run
from recollect.common.contract import Inputs
from recollect.common.optimiser import Adam
from recollect.settings.errors import UserError
from recollect.settings.schema import Frozen, Settings
from recollect.settings.seeding import seed_of


class AgentHyperparameters(Frozen):
    """Networks, loss and optimiser. Defaults are those of the seed code."""

    inputs: InputSettings = InputSettings()
    sequence: TrajectoryEncoderSettings = TrajectoryEncoderSettings()
    head: tuple[int, ...] = Field((256, 256), min_length=1, description="Hidden widths of actor and critics.")
    critics: int = Field(4, ge=1, description="Critics in the ensemble. Paper: 4.")
    critics_in_target: int = Field(2, ge=1, description="How many, drawn with replacement, make a target.")
    discount: float = Field(0.999, gt=0, lt=1, description="Of the policy that acts; the last of all discounts.")
    further_discounts: tuple[float, ...] = Field(
        (0.1, 0.9, 0.95, 0.97, 0.99, 0.995), description="Learned besides (multi-gamma); (): none. Code: these."
    )
    discount_feature: Literal["seed", "head"] = Field("seed", description="What critics of (s, a) read for a discount.")
    reward_multiplier: float = Field(10.0, gt=0, description="Of rewards in the loss. Paper: 10 to 100.")
    popart: bool = Field(True, description="Targets are normalised, per discount.")
    critic_weight: float = Field(10.0, ge=0, description="Paper: 10.")
    online_coefficient: float = Field(
        1.0, ge=0, description="Of the policy gradient. Paper: 1; multi-binary actions: 0."
    )
    offline_coefficient: float = Field(0.1, ge=0, description="Of filtered behaviour cloning. Paper: 0.1.")
    filter: Literal["binary", "exp", "leaky"] = Field(
        "binary", description="How advantage weighs cloning. Paper: binary."
    )
    filter_threshold: float = Field(1e-3, description="Advantage above which an action is cloned (binary). Newer: 0.")
    filter_beta: float = Field(2.0, gt=0, description="Slope (leaky) or inverse temperature (exp).")
    fake_filter: bool = Field(False, description="Clone everything; with online_coefficient 0 there are no critics.")
    use_target_actor: bool = Field(True, description="Targets read the target's policy, not the online one.")
    polyak: float = Field(0.003, gt=0, le=1, description="How far targets move at each update. Paper: 0.003.")
    probabilities: tuple[float, float] = Field((0.001, 0.99), description="Bounds of a discrete policy's.")
    soft_buffer_action: bool = Field(False, description="Q(s, a) as of a clipped one-hot action (newest upstream).")
    continuous: Literal["normal", "mixture", "mixture_upstream", "beta"] = Field(
        "normal", description="Policy over continuous actions; mixtures need online_coefficient 0."
    )
    actor_mask: Literal["fixed", "upstream"] = Field("fixed", description="See the head of the method's file.")
    targets_first: bool = Field(False, description="See the head of the method's file.")
    learning_rate: float = Field(1e-4, gt=0, description="AdamW's. Paper: 1e-4 (MazeRunner, Package: 3e-4).")
    weight_decay: float = Field(1e-3, ge=0, description="Paper: 1e-3 (MazeRunner, Package, Crafter: 1e-4).")
    gradient_clip: float = Field(1.0, gt=0, description="Largest norm of all gradients. Paper: 1.")
    warmup: int | None = Field(None, ge=0, description="Updates over which the rate rises; null: those of 10 epochs.")
    precision: Literal["float32", "bfloat16"] = Field("float32", description="Of encoders, on GPUs.")

    @property
    def discounts(self) -> tuple[float, ...]:
        """All of them; the last one acts."""
        return (*self.further_discounts, self.discount)

    @model_validator(mode="after")
    def _check(self) -> AgentHyperparameters:
        if self.continuous.startswith("mixture") and self.online_coefficient:
            raise ValueError("no gradient passes through draws of a mixture: set online_coefficient to 0")
        if self.sequence.kind == "transformer" and self.sequence.width % self.sequence.heads:
            raise ValueError(f"a width of {self.sequence.width} cannot be split into {self.sequence.heads} heads")
        return self


class Hyperparameters(AgentHyperparameters, amago_loop.LoopHyperparameters):
    """Of AMAGO; see also `AgentHyperparameters` and `LoopHyperparameters`."""

    exploration: ExplorationSettings = ExplorationSettings()


def distribution_of(hp: AgentHyperparameters, shape: WorldShape) -> Distribution:
    """The policy's distribution.

    Raises:
        UserError: a policy gradient is asked for, and none passes through its draws.
    """
    low, high = hp.probabilities
    made = make_distribution(shape.steps.kind, shape.steps.actions, hp.continuous, low=low, high=high)
    if hp.online_coefficient and not made.reparameterises:
        raise UserError(
            f"no gradient passes through draws of a {type(made).__name__.lower()} policy",
            where="hyperparameters: online_coefficient",
            do="set it to 0",
        )
    return made


def make_network(hp: Hyperparameters, shape: WorldShape, *, seed: int) -> Network:
    """The network for a world; its parameters are a function of the seed."""
    draws = torch.Generator().manual_seed(seed_of("amago critics", seed))
    options: dict[str, Any] = {
        "critics": hp.critics, "hidden": hp.head, "activation": hp.inputs.activation, "draws": draws,
    }  # fmt: skip
    width, size = hp.sequence.width, shape.steps.actions
    critics: nn.Module
    if shape.steps.kind == "discrete":
        critics = DiscreteCritics(width, len(hp.discounts), size, **options)
    else:
        critics = ActionCritics(width, hp.discounts, size, feature=hp.discount_feature, **options)
    return Network(hp, shape, critics, distribution_of(hp, shape).parameters, seed=seed)


def loss_of(
    network: Network,
    target: Heads,
    window: Window,
    draws: Draws,
    hp: AgentHyperparameters,
    policy: Distribution,
    *,
    further: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss (scalar) and metrics (`further`: all of them); PopArt's statistics move."""
    popart, action = network.popart, window.action
    s_BLE = network.states(window)
    s_BTE, next_BTE = s_BLE[:, :-1], s_BLE[:, 1:].detach()
    raw_BTGP = network.actor(s_BTE)
    log_pi_BTG = terms.log_prob_of_taken(window, raw_BTGP, policy)
    if terms.clones_only(hp):
        return terms.cloning_loss(hp, window, log_pi_BTG)

    def next_values(raw_BTGP: Tensor) -> Tensor:
        return popart(q_of_policy(target.critics, next_BTE, raw_BTGP, policy, draws))

    y_BTG = terms.targets(network, target, window, next_BTE, draws, hp, next_values)

    if policy.kind == "discrete":
        assert isinstance(policy, ClippedSoftmax)
        q_CBTGA = network.critics(s_BTE)
        one_hot_BTA = nn.functional.one_hot(action, policy.size).float()
        chosen_BTA = policy.clipped(one_hot_BTA) if hp.soft_buffer_action else one_hot_BTA
        q_CBTG = (q_CBTGA * chosen_BTA[..., None, :]).sum(-1)
        q_pi_CBTG = (q_CBTGA.detach() * policy.probabilities(raw_BTGP)).sum(-1)
    else:
        q_CBTG = network.critics(s_BTE, action[..., None, :].float())
        q_pi_CBTG = q_of_policy(network.critics, s_BTE.detach(), raw_BTGP, policy, draws)
    critic_loss = masked_mean((popart.normalised(q_CBTG) - popart.normalise(y_BTG)) ** 2, window.mask_BL[:, 1:])

    weight_BTG = terms.cloning_weight(hp, (q_CBTG.mean(0) - q_pi_CBTG.mean(0)).detach())
    gained_CBTG = popart.normalised(q_pi_CBTG) if hp.online_coefficient else None
    actor_loss = terms.actor_loss(hp, window, weight_BTG, log_pi_BTG, gained_CBTG)
    shown_CBTG = popart(q_CBTG.detach())
    metrics = terms.metrics_of(network, window, actor_loss, critic_loss, weight_BTG, shown_CBTG, y_BTG, log_pi_BTG)
    if further:
        metrics |= terms.further_metrics(network, window, policy, raw_BTGP, shown_CBTG, y_BTG)
    return actor_loss + hp.critic_weight * critic_loss, metrics


def q_of_policy(critics: nn.Module, s_BTE: Tensor, raw_BTGP: Tensor, policy: Distribution, draws: Draws) -> Tensor:
    """Values [C, B, T, G] of what a policy does; the critics are constants."""
    action = policy.reparameterised(raw_BTGP, draws.actions)
    if isinstance(critics, DiscreteCritics):
        return (critics(s_BTE, frozen=True) * action).sum(-1)
    found: Tensor = critics(s_BTE, action, frozen=True)
    return found


class Agent:
    """Network, targets, AdamW and one update. All that changes is in `arrays`.

    Args:
        hp: hyperparameters.
        shape: of the world.
        seed: of the parameters, of dropout and of what the loss draws.
        device: where everything lives.
    """

    make = staticmethod(make_network)
    loss = staticmethod(loss_of)

    def __init__(self, hp: Any, shape: WorldShape, *, seed: int, device: torch.device | str) -> None:
        self.hp, self.seed, self.device = hp, seed, torch.device(device)
        self.distribution = distribution_of(hp, shape)
        self.network = self.make(hp, shape, seed=seed).to(self.device)
        self.target = Heads(self.make(hp, shape, seed=seed)).to(self.device).requires_grad_(False)
        self.optimiser = Adam(self.network.named_parameters(), lr=hp.learning_rate, weight_decay=hp.weight_decay)
        heads: list[nn.Module] = [self.network.actor, self.network.critics]
        self._followed: list[Tensor] = [parameter for head in heads for parameter in head.parameters()]
        self._target: list[Tensor] = list(self.target.parameters())
        self._warmup = 10 * hp.updates_per_epoch if hp.warmup is None else hp.warmup

    def policy(self) -> AmagoPolicy:
        """A policy that acts with the network as it is now and as it changes."""
        return AmagoPolicy(self.network, self.distribution, self.hp, self.device)

    def step(self, batch: Batch, counter: int, *, further: bool = False) -> dict[str, Tensor]:
        """One update, in place; a function of the arrays, the batch and the counter. `further`: gives all metrics."""
        network, hp = self.network, self.hp
        network.train()
        network.trajectory_encoder.reseed_dropout(seed_of("dropout", self.seed, counter))
        network.timestep_encoder.augment_draws = torch.Generator().manual_seed(seed_of("shifts", self.seed, counter))
        window = network.window(batch, hp.reward_multiplier, self.device)
        B, T = window.reward_BT.shape
        draws = Draws.of(hp, self.seed, counter, B, T, self.device)
        loss, metrics = self.loss(network, self.target, window, draws, hp, self.distribution, further=further)
        self.optimiser.zero_grad()
        loss.backward()
        if hp.targets_first:
            self._follow()
        gradients = self.optimiser.gradients()
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, (hp.gradient_clip / (norm + 1e-6)).clamp(max=1.0))
        self.optimiser.lr = hp.learning_rate * min(1.0, (counter + 1) / max(1, self._warmup))
        self.optimiser.step()
        if not hp.targets_first:
            self._follow()
        if further:
            metrics["learning_rate"] = torch.tensor(self.optimiser.lr, dtype=torch.float64)
        return {**metrics, "gradient_norm": norm}

    @torch.no_grad()
    def _follow(self) -> None:
        torch._foreach_lerp_(self._target, self._followed, self.hp.polyak)

    def arrays(self) -> dict[str, Any]:
        """Parameters and buffers of network and targets, and AdamW's moments."""
        found: dict[str, Any] = {}
        for where, module in (("network", self.network), ("target", self.target)):
            found |= {f"{where}/{name}": value.detach() for name, value in module.state_dict().items()}
        return found | {f"adam/{name}": value for name, value in self.optimiser.arrays().items()}

    def load(self, arrays: Mapping[str, Any]) -> None:
        """Put back what `arrays` gave."""
        for name, module in (("network", self.network), ("target", self.target)):
            module.load_state_dict({key: torch.as_tensor(value) for key, value in part(arrays, name).items()})
        self.optimiser.load(part(arrays, "adam"))


def train(settings: Settings, inputs: Inputs, run: Run) -> AmagoPolicy:
    """Train by acting.

    Args:
        settings: of the run; `method.hyperparameters` is a `Hyperparameters`.
        inputs: only the device is read.
        run: logs, scores of the learning curve, checkpoints.
    """
    return amago_loop.train(Agent, settings, inputs.device, run)


def load_policy(settings: Settings, arrays: Mapping[str, np.ndarray], inputs: Inputs) -> AmagoPolicy:
    """The policy that `train` gave, from its arrays.

    Raises:
        UserError: the arrays do not fit the settings.
    """
    return policy_of(Agent, settings, arrays, inputs.device)


def policy_of(agent: Any, settings: Settings, arrays: Mapping[str, np.ndarray], device: str) -> AmagoPolicy:
    """A policy of an agent's class from its arrays."""
    made = agent(settings.method.hyperparameters, world_shape(settings.environment), seed=0, device=device)
    made.network.load_policy_arrays(arrays)
    policy: AmagoPolicy = made.policy()
    return policy
