"""Memory-RL's sequence models: `gpt`, `lstm`, `gru`, `rnn` and `ff` (no memory), and the token embedder in front of them.

Source: Memory-RL (Ni et al. 2023) sections 2.7 and 3 of our specification. Recurrent models have orthogonal weights, zero
biases and no dropout. They carry their state over the whole episode, as in the released code, its JAX branch too: the
rolling window there is the GPT's alone.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from recollect.common.distinct_histories import DistinctHistories, distinct_histories, distinct_tokens
from recollect.common.feedforward import TokenEmbedder
from recollect.common.precision import Products, autocast
from recollect.common.sequence_models import FeedForwardSequence, RecurrentSequence, SequenceModel
from recollect.common.transformer import TransformerSettings
from recollect.memory_rl.transformer_sequence import TransformerSequence
from recollect.settings.errors import UserError
from recollect.settings.schema import Frozen
from recollect.settings.seeding import seed_of


class SequenceSettings(Frozen):
    """Which sequence model, and how large. Defaults are Memory-RL's GPT on T-Mazes."""

    kind: Literal["gpt", "lstm", "gru", "rnn", "ff"] = Field(default="gpt", description="`ff` has no memory.")
    width: int = Field(default=128, ge=1, description="Hidden width H. A gpt's must equal the width of its tokens.")
    layers: int = Field(default=1, ge=1, description="Stacked layers.")
    heads: int = Field(default=1, ge=1, description="Attention heads (gpt).")
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0, description="Embedding, residual and attention dropout (gpt).")
    positions: Literal["sinusoid", "learned"] = Field(default="sinusoid", description="Positional code (gpt).")
    forget_bias: float = Field(default=0.0, description="Initial forget-gate bias (lstm). Paper: 0.")

    @model_validator(mode="after")
    def _check(self) -> SequenceSettings:
        if self.kind == "gpt" and self.width % self.heads:
            raise ValueError(f"a gpt of width {self.width} cannot be split into {self.heads} heads")
        return self


class NamedRecurrentSequence(RecurrentSequence):
    """A recurrent model whose layers are called `stack.cells`, as in every policy file of Memory-RL."""

    def _hold(self, cells: Any) -> None:
        self.stack = nn.ModuleDict({"cells": cells})

    @property
    def cells(self) -> Any:  # type: ignore[override]
        return self.stack["cells"]


def make_sequence_model(
    settings: SequenceSettings, input_width: int, *, context: int, slides: bool = False, seed: int = 0
) -> SequenceModel:
    """The sequence model that the settings describe.

    Args:
        context: longest window in tokens that is ever encoded at once (gpt); n + 1 for windows of n transitions.
        slides: whether acting may go on beyond the context (gpt), see `TransformerSequence`; others have no end.

    Raises:
        UserError: a gpt's width is not that of its tokens.
    """
    draws = torch.Generator().manual_seed(seed_of("sequence weights", seed))
    if settings.kind == "ff":
        return FeedForwardSequence(input_width, settings.width, settings.layers, generator=draws)
    if settings.kind != "gpt":
        return NamedRecurrentSequence(
            settings.kind,
            input_width,
            settings.width,
            settings.layers,
            forget_bias=settings.forget_bias,
            generator=draws,
        )
    if settings.width != input_width:
        raise UserError(
            f"a gpt of width {settings.width} cannot read tokens of width {input_width}",
            where="hyperparameters: sequence.width",
            do=f"set sequence.width to the sum of the embedding widths ({input_width})",
        )
    shape = TransformerSettings(
        width=settings.width,
        layers=settings.layers,
        heads=settings.heads,
        dropout=settings.dropout,
        activation="gelu_tanh",
        init="plain",
    )
    return TransformerSequence(shape, positions=settings.positions, context=context, slides=slides, seed=seed)


class HistoryEncoder(nn.Module):
    """Embedder and sequence model. `precision` is of whole sequences; steps are always in float32.

    `tf32`: float32, of which a GPU's products other than those with a recurrent state may be in TF32 (`Learner.products`).
    """

    networks = 1
    """How many read a batch, each its part of the rows; see `recollect.memory_rl.stacked`."""

    def __init__(self, embedder: TokenEmbedder, sequence: SequenceModel, *, precision: Products = "float32") -> None:
        super().__init__()
        self.embedder, self.sequence, self.precision = embedder, sequence, precision
        self.output_width = sequence.output_width

    def forward(self, action_BT: Tensor, reward_BT: Tensor, observation_BTD: Tensor) -> Tensor:
        """Hidden states float32 [B, T, H]; token k is (a_k, r_k, o_k), where a_k led to o_k (index `actions`: none yet)."""
        with autocast(self.precision, reward_BT.device):
            h_BTH: Tensor = self.sequence(self.embedder(action_BT, reward_BT, observation_BTD))
        return h_BTH.float()

    def distinct(self, action_BT: Tensor, reward_BT: Tensor, observation_BTD: Tensor) -> DistinctHistories | None:
        """What has to be read of tokens that several rows share; None: all of them."""
        shares = self.sequence.shares
        if shares is None or reward_BT.device.type != "cpu" or torch.compiler.is_compiling():
            return None
        read = self.embedder.read(action_BT, reward_BT, observation_BTD)
        if shares == "tokens":
            return distinct_tokens(read, self.networks)
        return distinct_histories(read, self.networks, whole=shares == "rows")

    def read(
        self, histories: DistinctHistories, action_BT: Tensor, reward_BT: Tensor, observation_BTD: Tensor
    ) -> Tensor:
        """Hidden states float32 [N, H] of those tokens that `histories` has."""
        state, found = None, []
        with autocast(self.precision, reward_BT.device):
            x_ND = self.embedder(*map(histories.taken, (action_BT, reward_BT, observation_BTD)))
            for piece, x_ULD in zip(histories.pieces, histories.split(x_ND), strict=True):
                if piece.parent_R is not None:
                    state = self.sequence.selected(state, piece.parent_R)
                h_ULH, state = self.sequence.run(x_ULD, state)
                found.append(h_ULH)
        return histories.joined(found).float()

    def step(self, action_B: Tensor, reward_B: Tensor, observation_BD: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self.sequence.step(self.embedder(action_B, reward_B, observation_BD), state)
