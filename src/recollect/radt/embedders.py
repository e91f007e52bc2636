"""The frozen embedder g of RA-DT: a window of experience in, one key out.

- Domain-specific: the network of a trained DT; keys are its final hidden states at state tokens.
- Domain-agnostic: FrozenHopfield maps each token to the language model's word space, the frozen language model reads the
  window, keys are its last hidden states at state tokens (RA-DT 4.2, 4.3 of our specification). By default its
  positions count from the first real step; upstream counts padding as well (`memory.padding: counted`, as in
  config/methods/radt.yaml).

With `tokens: merged` a timestep is one token for the language model, the mean of the mapped modalities (not in the paper;
a quarter of the work).
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from recollect.common.frozen_hopfield import FrozenHopfield, LookupHopfield
from recollect.common.language_models import LanguageModel
from recollect.common.precision import Precision, autocast, rounded_once
from recollect.radt.actions import NONE
from recollect.radt.decision_transformer import DecisionTransformer, bins_of
from recollect.radt.experience import Experience
from recollect.radt.memory_settings import MemorySettings
from recollect.radt.pooling import Pooling, pooled
from recollect.settings.errors import UserError
from recollect.settings.schema import ReturnSettings
from recollect.settings.seeding import seed_of

KINDS: dict[str, Pooling] = {
    "state": "s", "action": "a", "reward": "r", "return": "rtg", "all": "all", "last": "last",
}  # fmt: skip


def tokens_of(memory: MemorySettings) -> tuple[str, ...]:
    """What a language model reads of a timestep, each a token."""
    return ("s",) if memory.tokens == "merged" else ("s", "rtg", "a", "r")


class Embedder(ABC):
    """Turns windows of experience into keys. `memory`: which hidden states are averaged; `precision`: of its products."""

    width: int
    memory: MemorySettings
    tokens: tuple[str, ...]
    precision: Precision

    @abstractmethod
    def hidden(self, window: Experience) -> Tensor:
        """Hidden states [B, T, K, width]."""

    @torch.no_grad()
    def keys(
        self,
        window: Experience,
        *,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
        normalise: bool = True,
    ) -> Tensor:
        """Keys [B, width], of length one unless told otherwise; `dropout` is the query dropout of training."""
        kind = KINDS[self.memory.pooling]
        steps = self.memory.pooled_steps
        if len(self.tokens) == 1:
            if kind == "last":
                steps, dropout = 1, 0.0
            kind = "s"
        elif kind == "rtg" and kind not in self.tokens:
            raise UserError(
                "the embedder has no return-to-go tokens to average",
                where="memory.pooling: return",
                do="choose another pooling, or an embedder that is conditioned on returns",
            )
        with autocast(self.precision, window.mask.device):
            hidden_BTKD = self.hidden(window)
        return pooled(
            hidden_BTKD,
            window.mask,
            tokens=self.tokens,
            kind=kind,
            steps=steps,
            dropout=dropout,
            generator=generator,
            normalise=normalise,
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """What must travel with a policy for the embedder to be rebuilt: nothing of a language model, which is an
        artifact of its own; projections follow from their seeds."""
        return {}


class DomainSpecificEmbedder(Embedder):
    def __init__(self, network: DecisionTransformer, memory: MemorySettings, precision: Precision) -> None:
        self.network = network.eval().requires_grad_(False)
        self.memory, self.precision = memory, precision
        self.width = network.settings.transformer.width
        self.tokens = ("s", "rtg", "a", "r") if network.settings.return_to_go else ("s", "a", "r")
        if network.settings.tokens == "merged":
            self.tokens = ("s",)

    @cached_property
    def computing(self) -> DecisionTransformer:
        """The network as `keys` computes with it."""
        return rounded_once(self.network, self.precision, self.network.action_head.weight.device)

    def hidden(self, window: Experience) -> Tensor:
        return self.computing.hidden(window)

    def arrays(self) -> dict[str, np.ndarray]:
        return {f"network/{name}": value.cpu().numpy() for name, value in self.network.state_dict().items()}


class DomainAgnosticEmbedder(Embedder):
    """FrozenHopfield in front of a frozen language model; knows nothing of the domain but the ranges of its numbers.

    Args:
        observation_values: number of values of each entry of an observation (small whole numbers), or empty: raw vectors.
        actions: number of discrete actions; one more stands for "none".
        action_size: numbers of a continuous action, which is mapped as it is; 0 where actions are discrete.
    """

    def __init__(
        self,
        model: LanguageModel,
        memory: MemorySettings,
        precision: Precision,
        returns: ReturnSettings,
        *,
        observation_values: tuple[int, ...],
        observation_size: int,
        actions: int,
        action_size: int = 0,
    ) -> None:
        self.model = model
        self.memory, self.precision = memory, precision
        self.returns = returns
        self.width = model.width
        self.tokens = tokens_of(memory)
        self.no_action = NONE if action_size else actions
        sizes = {
            "s": sum(observation_values) or observation_size,
            "rtg": returns.bins,
            "a": action_size or actions + 1,
            "r": memory.reward_bins,
        }
        self.hopfields = {}
        for modality, size in sizes.items():
            seed = seed_of("frozen hopfield", memory.embedder_seed, modality)
            self.hopfields[modality] = FrozenHopfield(
                model.embeddings, size, beta=memory.beta, seed=seed, similarity=memory.similarity
            )
        self.tables = {name: self.hopfields[name].one_hot_table() for name in ("rtg", "a", "r")}
        self.state_table: LookupHopfield | None = None
        if observation_values:
            self.state_table = LookupHopfield(self.hopfields["s"], observation_values)

    @cached_property
    def computing(self) -> LanguageModel:
        """The language model as `keys` computes with it."""
        model = copy.copy(self.model)
        model.model = rounded_once(model.model, self.precision, model.embeddings.device)
        return model

    def hidden(self, window: Experience) -> Tensor:
        returns, memory = self.returns, self.memory
        asked = window.mask.shape[1]
        if memory.padding == "counted":
            window = window.left_padded(memory.key_context, self.no_action)
        if self.state_table is None:
            state_BTD = self.hopfields["s"](window.observation.float())
        else:
            state_BTD = self.state_table(window.observation)
        if window.action.is_floating_point():
            action_BTD = self.hopfields["a"](window.action.nan_to_num(0.0))
        else:
            action_BTD = self.tables["a"][window.action]
        return_bin_BT = bins_of(window.return_to_go, returns.low, returns.high, returns.bins)
        reward_bin_BT = bins_of(window.reward, 0.0, memory.reward_high, memory.reward_bins)
        return_BTD = self.tables["rtg"][return_bin_BT]
        reward_BTD = self.tables["r"][reward_bin_BT]
        tokens_BTKD = torch.stack([state_BTD, return_BTD, action_BTD, reward_BTD], 2)
        if memory.tokens == "merged":
            tokens_BTKD = tokens_BTKD.mean(2, keepdim=True)
        steps, per_step = tokens_BTKD.shape[1:3]
        if memory.padding == "counted":
            mask_BN = window.mask.repeat_interleave(per_step, 1)
            hidden_BND = self.computing.forward(tokens_BTKD.flatten(1, 2), mask_BN, from_row_0=True)
            return hidden_BND.unflatten(1, (steps, per_step))[:, -asked:]
        # Real steps first: the language model counts positions from its first token, and padding must not shift them.
        order_BT = window.mask.logical_not().to(torch.int8).argsort(dim=1, stable=True)
        mask_BN = window.mask.take_along_dim(order_BT, 1).repeat_interleave(per_step, 1)
        tokens_BTKD = tokens_BTKD.take_along_dim(order_BT[:, :, None, None], 1)
        hidden_BND = self.computing.forward(tokens_BTKD.flatten(1, 2), mask_BN)
        back_BT = order_BT.argsort(1)
        return hidden_BND.unflatten(1, (steps, per_step)).take_along_dim(back_BT[:, :, None, None], 1)
