"""LSTM-PPO: HELM's baseline with a trained memory ("Impala-PPO" there), an LSTM between encoder and heads; specification 4.3.

- Each game's rollout is cut where episodes begin. A minibatch is `sequences` of these pieces in random order; the last of a
  pass may be fewer. Each piece begins with the state that was stored when it was played. Gradients flow through a whole piece
  and stop at its ends. Advantages are standardised, and losses averaged, over the steps that are there, not over padding.
- So the number of minibatches of a pass varies with the number of episodes.
- Pieces are padded to the longest of their minibatch; upstream pads to the longest of the rollout, with the same result. On a
  GPU they are padded to one of four lengths, and to as many pieces, so that updates are CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from recollect.common.contract import Inputs, facts_of
from recollect.common.distinct_images import DistinctImages, RolloutFeatures
from recollect.helm.method import PolicyArrays, make_network, method_of
from recollect.helm.on_policy import OnPolicyHyperparameters
from recollect.helm.sampled_policy import Agent, Minibatch, packed_outputs, unpacked_outputs
from recollect.helm.small_impala import ActorCritic
from recollect.settings.schema import Settings

ACTIONS = "discrete"
OBSERVATIONS = "images"
PARTS = (8, 4, 2, 1)  # of a rollout: lengths that pieces are padded to where updates are CUDA graphs


class Hyperparameters(OnPolicyHyperparameters):
    """Of LSTM-PPO; see also `OnPolicyHyperparameters`, of which `batches` is not read."""

    channel_scale: int = Field(1, gt=0, description="Channels of the encoder, times 16 and 32. Paper: 1.")
    width: int = Field(256, gt=0, description="Features of an image. Paper: 256.")
    units: int = Field(256, gt=0, description="Of the LSTM. Paper: 256.")
    sequences: int = Field(16, gt=0, description="Pieces of episodes in a minibatch. Paper: 4, 8 or 16.")

    @model_validator(mode="after")
    def _minibatches_are_of_one_size(self) -> Hyperparameters:
        return self  # they are pieces of episodes, however many these are


class RecurrentAgent(Agent):
    """Remembers by the LSTM of its network. The state is that in front of the image that is seen.

    `read`: what the LSTM gets of that image besides its features; here nothing.
    """

    def __init__(self, network: ActorCritic, sequences: int, device: torch.device | str) -> None:
        super().__init__(network, None, device)
        self.sequences = sequences
        self.read: tuple[Tensor, ...] = ()

    def start(self, batch: int) -> None:
        self._hidden_BU, self._cell_BU = torch.zeros(2, batch, self.network.units, device=self.device).unbind()

    def forget(self, mask_B: np.ndarray) -> None:
        mask_B1 = self.put(mask_B)[:, None]
        self._hidden_BU, self._cell_BU = (s.masked_fill(mask_B1, 0.0) for s in (self._hidden_BU, self._cell_BU))

    def record(self) -> dict[str, Tensor]:
        """The image, and the state in front of it."""
        return {**super().record(), "hidden": self._hidden_BU, "cell": self._cell_BU}

    @torch.no_grad()
    def outputs(self) -> Tensor:
        """See `Agent.outputs`; the image is remembered."""
        said, hidden_BU, cell_BU = self._step(self._images, *self.read)
        self._hidden_BU, self._cell_BU = hidden_BU.clone(), cell_BU.clone()  # a graph's are gone with the next call
        return said

    @torch.no_grad()
    def value(self, images: np.ndarray | None = None) -> np.ndarray:
        """See `Agent.value`; `images` are those that `act` led to."""
        seen = (self._images, *self.read) if images is None else (self.put(images), *self.reading(images))
        return unpacked_outputs(self._step(*seen)[0])[1]

    def reading(self, images: np.ndarray) -> tuple[Tensor, ...]:
        """What the LSTM reads besides the features of images; here nothing."""
        return ()

    def _step(self, *seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the network says of images (and what is read of them), [B, A + 1], and output and cell behind them, [B, U]."""
        whole = self.acting_graph(*seen, self._hidden_BU, self._cell_BU)
        units = self.network.units
        return whole[:, : -2 * units], whole[:, -2 * units : -units], whole[:, -units:]

    @staticmethod
    def _forward(network: ActorCritic, features: RolloutFeatures, images: Tensor, *remembered: Tensor) -> Tensor:
        """What the network says of images, and behind it output and cell, [B, A + 1 + 2 U], from those before."""
        outputs_1BU, hidden_BU, cell_BU = network.unroll(features(images)[None], *remembered)
        return torch.cat([packed_outputs(*network.heads(outputs_1BU[0])), hidden_BU, cell_BU], 1)

    def epoch(
        self,
        images: DistinctImages,
        moments: Mapping[str, Tensor],
        done_TE: np.ndarray,
        batches: int,
        draws: np.random.Generator,
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """See `Agent.epoch`: minibatches of whole pieces, of which padding is left out."""
        for first_S, length_S in self._chosen(done_TE, draws):
            on_host_LS, there_LS = steps_of(first_S, length_S, done_TE.shape[1], length_S.max())
            moment_LS, kept_K = self.put(on_host_LS), self.put(np.flatnonzero(there_LS))
            outputs_MU = self._outputs(images, moments, moment_LS)
            yield moment_LS.flatten()[kept_K], *self.network.heads(outputs_MU[kept_K])

    def minibatches(self, done_TE: np.ndarray, batches: int, draws: np.random.Generator) -> Iterator[Minibatch]:
        """See `Agent.minibatches`: the same minibatches, of `sequences` pieces each, padded to a part of a rollout."""
        steps, games = done_TE.shape
        for first_S, length_S in self._chosen(done_TE, draws):
            absent = (0, self.sequences - len(first_S))
            longest = min(-(-steps // part) for part in PARTS if -(-steps // part) >= length_S.max())
            moment_LS, there_LS = steps_of(np.pad(first_S, absent), np.pad(length_S, absent), games, longest)
            yield Minibatch(self.put(moment_LS), self.put(there_LS))

    def of_minibatch(
        self, images: DistinctImages, moments: Mapping[str, Tensor], minibatch: Minibatch
    ) -> tuple[Tensor, Tensor]:
        """See `Agent.of_minibatch`; moments that only fill up are among them."""
        return self.network.heads(self._outputs(images, moments, minibatch.moment))

    def _chosen(self, done_TE: np.ndarray, draws: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The minibatches of a pass: the first moments [S] of their pieces, and their lengths."""
        first_P, length_P = pieces(done_TE)
        order_P = draws.permutation(len(first_P))
        for chosen_S in np.split(order_P, range(self.sequences, len(order_P), self.sequences)):
            yield first_P[chosen_S], length_P[chosen_S]

    def _outputs(self, images: DistinctImages, moments: Mapping[str, Tensor], moment_LS: Tensor) -> Tensor:
        """What the heads read of pieces: [L * S, U]."""
        features_LSW = images.features(self.network.encoder, moment_LS)
        hidden_SU, cell_SU = (moments[name][moment_LS[0]] for name in ("hidden", "cell"))
        outputs_LSU, _, _ = self.network.unroll(features_LSW, hidden_SU, cell_SU)
        return outputs_LSU.flatten(0, 1)

    def arrays(self) -> dict[str, Any]:
        return super().arrays() | self.state_arrays()

    def state_arrays(self) -> dict[str, Any]:
        return {"hidden": self._hidden_BU, "cell": self._cell_BU}

    def load_state(self, arrays: Mapping[str, Any], device: Any = None) -> None:
        self._hidden_BU, self._cell_BU = (torch.as_tensor(arrays[n]).to(self.device) for n in ("hidden", "cell"))

    def load(self, arrays: Mapping[str, Any], images: np.ndarray) -> None:
        super().load(arrays, images)
        self.load_state(arrays)


def pieces(done_TE: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pieces of a rollout that lie between beginnings of episodes, game after game.

    Returns:
        The moment (t * E + e) of the first step of each, and how many steps it has.
    """
    steps, games = done_TE.shape
    begins_ET = np.ones((games, steps), bool)
    begins_ET[:, 1:] = done_TE[:-1].T
    place_S = np.flatnonzero(begins_ET)  # e * T + t
    length_S = np.diff(place_S, append=done_TE.size)
    return place_S % steps * games + place_S // steps, length_S


def steps_of(first_S: np.ndarray, length_S: np.ndarray, games: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """The moments of pieces side by side [L, S], and which of them are there: behind its end the last moment fills a piece up."""
    step_L1 = np.arange(longest)[:, None]
    last_S = np.maximum(length_S, 1) - 1
    return first_S + games * np.minimum(step_L1, last_S), step_L1 < length_S


def make_agent(settings: Settings, inputs: Inputs, arrays: PolicyArrays) -> RecurrentAgent:
    hp: Hyperparameters = settings.method.hyperparameters
    network = make_network(settings, facts_of(settings.environment), arrays, units=hp.units)
    return RecurrentAgent(network, hp.sequences, inputs.device)


make_trainer, train, train_together, load_policy = method_of(make_agent)
