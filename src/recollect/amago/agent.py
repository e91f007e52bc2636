"""AMAGO's agent: network, targets, AdamW and one update. What the critics are and say is the method's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from recollect.amago.batch import Batch
from recollect.amago.compiled_loss import CompiledLoss
from recollect.amago.hyperparameters import AgentHyperparameters, AmagoHyperparameters
from recollect.amago.network import Network, Window, WorldShape, world_shape
from recollect.amago.policy import AmagoPolicy
from recollect.amago.policy_distributions import Distribution, make_distribution
from recollect.amago.share import ALONE, Share, SharedAdam
from recollect.amago.terms import Draws, Heads
from recollect.amago.update_graphs import Quick, UpdateGraphs, hindrance
from recollect.common.contract import Inputs
from recollect.common.optimiser import Adam
from recollect.common.polyak import follow
from recollect.common.precision import tf32
from recollect.common.weights import load_trained, trained_arrays
from recollect.settings.errors import UserError
from recollect.settings.schema import Settings
from recollect.settings.seeding import seed_of

log = logging.getLogger(__name__)


def distribution_of(hp: AgentHyperparameters, shape: WorldShape) -> Distribution:
    low, high = hp.probabilities
    made = make_distribution(shape.steps.kind, shape.steps.actions, hp.continuous, low=low, high=high)
    if hp.online_coefficient and not made.reparameterises:
        raise UserError(
            f"no gradient passes through draws of a {type(made).__name__.lower()} policy",
            where="hyperparameters: online_coefficient",
            do="set it to 0",
        )
    return made


def critic_options(hp: AgentHyperparameters, seed: int) -> dict[str, Any]:
    """What critics of every kind are made with."""
    draws = torch.Generator().manual_seed(seed_of("amago critics", seed))
    return {"critics": hp.critics, "hidden": hp.head, "activation": hp.inputs.activation, "draws": draws}


class Agent:
    """Network, targets, AdamW and one update. All that changes is in `arrays`."""

    make: Callable[..., Network]
    """(hp, shape, seed=) -> network"""
    loss: Callable[..., tuple[Tensor, dict[str, Tensor]]]
    """(network, target, window, draws, hp, distribution, further=) -> loss (scalar) and metrics"""
    graphed: ClassVar[bool] = False
    """Whether the loss asks the device for nothing, and of the host for `draws` alone."""

    def __init__(
        self,
        hp: AmagoHyperparameters,
        shape: WorldShape,
        *,
        seed: int,
        device: torch.device | str,
        share: Share = ALONE,
    ) -> None:
        self.hp, self.seed, self.device, self.share = hp, seed, torch.device(device), share
        self.distribution = distribution_of(hp, shape)
        self.network = self.make(hp, shape, seed=seed).to(self.device)
        self.target = Heads(self.make(hp, shape, seed=seed)).to(self.device).requires_grad_(False)
        adam: type[Adam] | partial[SharedAdam] = Adam
        if not share.alone:
            self.network.to_share(share)
            adam = partial(SharedAdam, share)
        self.optimiser = adam(self.network.named_parameters(), lr=hp.learning_rate, weight_decay=hp.weight_decay)
        self.modules = {"network": self.network, "target": self.target}
        self.targets: list[Tensor] = list(self.target.parameters())
        self.followed: list[Tensor] = [*self.network.actor.parameters(), *self.network.critics.parameters()]
        self._warmup = 10 * hp.updates_per_epoch if hp.warmup is None else hp.warmup
        self.graphs = self._graphs()

    def _graphs(self) -> UpdateGraphs | None:
        """What makes updates where they may be CUDA graphs, which read the step size on the device."""
        if self.device.type != "cuda" or not self.hp.cuda_graphs or not self.graphed:
            return None
        if why := hindrance(self.hp, self.network, self.distribution, self.share):
            log.debug("updates are no CUDA graphs: %s", why)
            return None
        self.optimiser.rate = torch.zeros((), device=self.device)
        return UpdateGraphs(self._computed, self.device, self._quick())

    def _quick(self) -> Quick | None:
        """Updates with a compiled loss, where that is wanted; torch.compile takes no recurrent layers."""
        if not self.hp.compile or self.hp.sequence.kind == "gru":
            return None
        loss = CompiledLoss(self._loss, self.network, self.device)
        return Quick(
            lambda batch, draws: loss.is_ready(self._window(batch), draws),
            lambda batch, draws, further: self._learned(loss(self._window(batch), draws, further)),
        )

    def policy(self) -> AmagoPolicy:
        return AmagoPolicy(self.network, self.distribution, self.hp, self.device)

    def step(self, batch: Batch, counter: int, *, further: bool = False) -> dict[str, Tensor]:
        """One update, in place; with several devices, of all together. `further`: gives all metrics."""
        with tf32(self.hp.tf32, self.device):
            return self._step(batch, counter, further)

    def _step(self, batch: Batch, counter: int, further: bool) -> dict[str, Tensor]:
        network, hp = self.network, self.hp
        network.train()
        network.trajectory_encoder.reseed_dropout(seed_of("dropout", self.seed, counter))
        network.timestep_encoder.augment_draws = self.share.draws(seed_of("shifts", self.seed, counter))
        B, L = batch.mask_BT.shape
        draws = Draws.of(hp, self.seed, counter, B, L - 1, self.device, self.share)
        self.optimiser.set_rate(hp.learning_rate * min(1.0, (counter + 1) / max(1, self._warmup)))
        metrics = (self.graphs or self._computed)(batch, draws, further)
        if further:
            metrics["learning_rate"] = torch.tensor(self.optimiser.lr, dtype=torch.float64)
        return metrics

    def _window(self, batch: Batch) -> Window:
        return self.network.window(batch, self.hp.reward_multiplier, self.device)

    def _loss(self, window: Window, draws: Draws, further: bool) -> tuple[Tensor, dict[str, Tensor]]:
        return self.loss(self.network, self.target, window, draws, self.hp, self.distribution, further=further)

    def _computed(self, batch: Batch, draws: Draws, further: bool) -> dict[str, Tensor]:
        """The update itself: of the host it takes `draws`, and asks the device for nothing."""
        return self._learned(self._loss(self._window(batch), draws, further))

    def _learned(self, found: tuple[Tensor, dict[str, Tensor]]) -> dict[str, Tensor]:
        """What follows a loss: the optimiser's step and that of the targets. Its metrics, and one more."""
        (loss, metrics), hp = found, self.hp
        norm = self.optimiser.backward(loss, clip=hp.gradient_clip)
        if hp.targets_first:
            follow(self.targets, self.followed, hp.polyak)
        self.optimiser.step()
        if not hp.targets_first:
            follow(self.targets, self.followed, hp.polyak)
        return {**metrics, "gradient_norm": norm}

    def arrays(self) -> dict[str, Any]:
        return trained_arrays(self.optimiser, **self.modules)

    def load(self, arrays: Mapping[str, Any]) -> None:
        load_trained(arrays, self.optimiser, **self.modules)


def policy_of(agent: type[Agent], settings: Settings, arrays: Mapping[str, np.ndarray], inputs: Inputs) -> AmagoPolicy:
    hp: Any = settings.method.hyperparameters
    made = agent(hp, world_shape(settings.environment), seed=0, device=inputs.device)
    made.network.load_policy_arrays(arrays)
    return made.policy()
