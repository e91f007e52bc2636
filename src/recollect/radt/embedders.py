"""The frozen embedder g of RA-DT: a window of experience in, one key out.

- Domain-specific: the network of a trained DT; keys are its final hidden states at state tokens.
- Domain-agnostic: FrozenHopfield maps each token to the language model's word space, the frozen language model reads the
  window, keys are its last hidden states at state tokens (RA-DT 4.2, 4.3 of our specification). Its positions count from
  the first real step; upstream counts padding as well.

With `tokens: merged` a timestep is one token for the language model, the mean of the mapped modalities (not in the paper;
a quarter of the work).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from recollect.common.frozen_hopfield import FrozenHopfield, LookupHopfield
from recollect.common.language_models import LanguageModel
from recollect.radt.decision_transformer import DecisionTransformer, Experience, bins_of
from recollect.radt.pooling import Pooling, pooled
from recollect.settings.errors import UserError
from recollect.settings.schema import MemorySettings, ReturnSettings
from recollect.settings.seeding import seed_of

KINDS: dict[str, Pooling] = {
    "state": "s", "action": "a", "reward": "r", "return": "rtg", "all": "all", "last": "last",
}  # fmt: skip


class Embedder(Protocol):
    """Turns windows of experience into keys."""

    width: int

    def keys(
        self,
        window: Experience,
        *,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
        normalise: bool = True,
    ) -> Tensor:
        """Keys [B, width], of length one unless told otherwise; `dropout` is the query dropout of training."""

    def arrays(self) -> dict[str, np.ndarray]:
        """What must travel with a policy for the embedder to be rebuilt (nothing for a language model)."""


def pool(
    hidden_BTKD: Tensor,
    window: Experience,
    memory: MemorySettings,
    tokens: tuple[str, ...],
    dropout: float,
    generator: torch.Generator | None,
    normalise: bool,
) -> Tensor:
    """Keys from hidden states; a merged token stands for every modality."""
    kind, steps = KINDS[memory.pooling], memory.pooled_steps
    if len(tokens) == 1:
        if kind == "last":
            steps, dropout = 1, 0.0
        tokens, kind = ("s",), "s"
    elif kind == "rtg" and kind not in tokens:
        raise UserError(
            "the embedder has no return-to-go tokens to average",
            where="memory.pooling: return",
            do="choose another pooling, or an embedder that is conditioned on returns",
        )
    return pooled(
        hidden_BTKD,
        window.mask,
        tokens=tokens,
        kind=kind,
        steps=steps,
        dropout=dropout,
        generator=generator,
        normalise=normalise,
    )


class DomainSpecificEmbedder:
    """A trained decision transformer, frozen."""

    def __init__(self, network: DecisionTransformer, memory: MemorySettings) -> None:
        self.network, self.memory = network.eval().requires_grad_(False), memory
        self.width = network.settings.transformer.width
        every = ("s", "rtg", "a", "r") if network.settings.return_to_go else ("s", "a", "r")
        self.tokens = ("s",) if network.settings.tokens == "merged" else every

    @torch.no_grad()
    def keys(
        self,
        window: Experience,
        *,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
        normalise: bool = True,
    ) -> Tensor:
        """See `Embedder.keys`."""
        return pool(self.network.hidden(window), window, self.memory, self.tokens, dropout, generator, normalise)

    def arrays(self) -> dict[str, np.ndarray]:
        """The network's parameters."""
        return {f"network/{name}": value.cpu().numpy() for name, value in self.network.state_dict().items()}


class DomainAgnosticEmbedder:
    """FrozenHopfield in front of a frozen language model; knows nothing of the domain but the ranges of its numbers.

    Args:
        model: the language model.
        memory: token layout, inverse temperature, pooling.
        returns: range and bins of return-to-go.
        observation_values: number of values of each entry of an observation (small whole numbers), or empty: raw vectors.
        observation_size: entries of an observation.
        actions: number of discrete actions; one more stands for "none".
        action_size: numbers of a continuous action, which is mapped as it is; 0 where actions are discrete.
    """

    def __init__(
        self,
        model: LanguageModel,
        memory: MemorySettings,
        returns: ReturnSettings,
        *,
        observation_values: tuple[int, ...],
        observation_size: int,
        actions: int,
        action_size: int = 0,
    ) -> None:
        self.model, self.memory, self.returns = model, memory, returns
        self.width = model.width
        self.observation_values = observation_values

        def hopfield(inputs: int, modality: str) -> FrozenHopfield:
            seed = seed_of("frozen hopfield", memory.embedder_seed, modality)
            return FrozenHopfield(model.embeddings, inputs, beta=memory.beta, seed=seed, similarity=memory.similarity)

        sizes = {
            "s": sum(observation_values) or observation_size,
            "rtg": returns.bins,
            "a": action_size or actions + 1,
            "r": memory.reward_bins,
        }
        self.hopfields = {name: hopfield(size, name) for name, size in sizes.items()}
        self.tables = {name: self.hopfields[name].one_hot_table() for name in ("rtg", "a", "r")}
        self.state_table = LookupHopfield(self.hopfields["s"], observation_values) if observation_values else None

    def states(self, observation_BTD: Tensor) -> Tensor:
        """States in word space [B, T, width]."""
        if self.state_table is None:
            return self.hopfields["s"](observation_BTD.float())
        return self.state_table(observation_BTD)

    def actions(self, action: Tensor) -> Tensor:
        """Actions in word space [B, T, width]."""
        if action.is_floating_point():
            return self.hopfields["a"](action.nan_to_num(0.0))
        return self.tables["a"][action]

    @torch.no_grad()
    def keys(
        self,
        window: Experience,
        *,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
        normalise: bool = True,
    ) -> Tensor:
        """See `Embedder.keys`."""
        r = self.returns
        parts = [
            self.states(window.observation),
            self.tables["rtg"][bins_of(window.return_to_go, r.low, r.high, r.bins)],
            self.actions(window.action),
            self.tables["r"][bins_of(window.reward, 0.0, self.memory.reward_high, self.memory.reward_bins)],
        ]
        stacked_BTKD = torch.stack(parts, 2)
        steps = window.mask.shape[1]
        if self.memory.tokens == "merged":
            stacked_BTKD = stacked_BTKD.mean(2, keepdim=True)
        per_step = stacked_BTKD.shape[2]
        # Real steps first: the language model counts positions from its first token, and padding must not shift them.
        order_BT = window.mask.logical_not().to(torch.int8).argsort(dim=1, stable=True)
        mask_BN = window.mask.take_along_dim(order_BT, 1).repeat_interleave(per_step, 1)
        tokens_BND = stacked_BTKD.take_along_dim(order_BT[:, :, None, None], 1).flatten(1, 2)
        hidden_BTKD = self.model.forward(tokens_BND, mask_BN).unflatten(1, (steps, per_step))
        hidden_BTKD = hidden_BTKD.take_along_dim(order_BT.argsort(1)[:, :, None, None], 1)
        tokens = ("s",) if per_step == 1 else ("s", "rtg", "a", "r")
        return pool(hidden_BTKD, window, self.memory, tokens, dropout, generator, normalise)

    def arrays(self) -> dict[str, np.ndarray]:
        """Nothing: the language model is an artifact of its own, and the projections follow from their seeds."""
        return {}
