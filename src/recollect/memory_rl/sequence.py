"""Sequence models of the online methods behind one interface: `gpt`, `lstm`, `gru`, `rnn` and `ff` (no memory).

A model maps tokens [B, T, D] to hidden states [B, T, H], causally, and does the same one token at a time with a state
(key/value cache, recurrent state, nothing). Stepping equals the whole-sequence pass. `HistoryEncoder` puts the token
embedder in front.

Source: Memory-RL (Ni et al. 2023) sections 2.7 and 3 of our specification. Dropout follows `train()` / `eval()`; its
draws come from streams that `reseed_dropout` restarts, so that they are a function of a seed and a counter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from recollect.common.cache import KeyValueCache
from recollect.common.encodings import Positions
from recollect.common.feedforward import FeedForward, TokenEmbedder
from recollect.common.precision import Precision, autocast
from recollect.common.transformer import Transformer, TransformerSettings
from recollect.memory_rl.recurrent import Recurrent, RecurrentState
from recollect.settings.errors import UserError
from recollect.settings.schema import Frozen
from recollect.settings.seeding import seed_of

Mask = Tensor | np.ndarray


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


class SequenceModel(nn.Module):
    """What the online methods know of a sequence model. `input_width` and `output_width` are features per token."""

    input_width: int
    output_width: int

    @property
    def random(self) -> bool:
        """Whether the model draws random numbers (dropout) in training mode."""
        return False

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Hidden states [B, T, H] of sequences that start at their first token."""
        raise NotImplementedError

    def initial_state(self, batch: int, device: torch.device | str | None = None) -> Any:
        """The state before the first token of `batch` rows."""
        raise NotImplementedError

    def step(self, x_BD: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Hidden state [B, H] after one more token per row, and the state after it. The given state is used up."""
        raise NotImplementedError

    def reset(self, state: Any, mask_B: Mask) -> Any:
        """The state with the rows where the mask is True at their beginning again."""
        raise NotImplementedError

    def reseed_dropout(self, seed: int) -> None:
        """Restart the dropout stream from a seed."""

    def attention(self, state: Any, rows_N: Tensor) -> Tensor | None:
        """What the newest token of some rows reads: [N, layers, C], the mean over heads; None where nothing attends.

        C is the context in tokens; the last is the newest token itself, and what lies before the first is zero.
        """
        return None


class RecurrentSequence(SequenceModel):
    """LSTM, GRU or RNN. Carries its state over the whole episode, whatever the training window is.

    So does the released code, its JAX branch too: the rolling window there is the GPT's alone.
    """

    def __init__(self, settings: SequenceSettings, input_width: int, *, generator: torch.Generator) -> None:
        super().__init__()
        assert settings.kind in ("lstm", "gru", "rnn")
        kind: Any = settings.kind
        self.stack = Recurrent(
            kind,
            input_width,
            settings.width,
            settings.layers,
            forget_bias=settings.forget_bias,
            generator=generator,
        )
        self.input_width, self.output_width = input_width, settings.width

    def forward(self, x_BTD: Tensor) -> Tensor:
        """See `SequenceModel`."""
        return self.stack(x_BTD)[0]

    def initial_state(self, batch: int, device: torch.device | str | None = None) -> RecurrentState:
        """Zeros."""
        return self.stack.initial_state(batch, device)

    def step(self, x_BD: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """See `SequenceModel`."""
        return self.stack.step(x_BD, state)

    def reset(self, state: RecurrentState, mask_B: Mask) -> RecurrentState:
        """See `SequenceModel`."""
        return self.stack.reset(state, torch.as_tensor(mask_B, device=state[0].device))


class FeedForwardSequence(SequenceModel):
    """Each token alone."""

    def __init__(self, settings: SequenceSettings, input_width: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.layers = FeedForward(input_width, settings.width, settings.layers, generator=generator)
        self.input_width, self.output_width = input_width, settings.width

    def forward(self, x_BTD: Tensor) -> Tensor:
        """See `SequenceModel`."""
        return self.layers(x_BTD)

    def initial_state(self, batch: int, device: torch.device | str | None = None) -> None:
        """Nothing."""

    def step(self, x_BD: Tensor, state: None) -> tuple[Tensor, None]:
        """See `SequenceModel`."""
        return self.layers(x_BD), None

    def reset(self, state: None, mask_B: Mask) -> None:
        """Nothing."""


@dataclass
class TransformerState:
    """Key/value cache and, where the context can slide, the last tokens of each row (left aligned)."""

    cache: Any
    recent_BLD: Tensor | None  # L = context
    seen_B: Tensor | None  # tokens in recent_BLD
    longest: int = 0  # tokens of the longest row since all were reset
    newest_BD: Tensor | None = None  # the last tokens, with their positions
    cached: bool = True  # False: rows slid out of the cache, all are re-encoded until all are reset


class TransformerSequence(SequenceModel):
    """GPT with a positional code that counts from the first token of the window.

    Args:
        settings: its shape.
        input_width: must equal `settings.width`.
        context: longest sequence in tokens (n + 1: transitions of a training window and one token in front).
        slides: rows may live longer than `context`. Then, as in the paper's code, the last `context` tokens are encoded
            anew at every step, with positions from 0; up to there the cache is used. False: a longer row is an error.
        seed: of weights and dropout.
    """

    def __init__(self, settings: SequenceSettings, input_width: int, *, context: int, slides: bool, seed: int) -> None:
        super().__init__()
        if settings.width != input_width:
            raise UserError(
                f"a gpt of width {settings.width} cannot read tokens of width {input_width}",
                where="hyperparameters: sequence.width",
                do=f"set sequence.width to the sum of the embedding widths ({input_width})",
            )
        self.input_width = self.output_width = input_width
        self.context, self.slides = context, slides
        shape = TransformerSettings(
            width=settings.width,
            layers=settings.layers,
            heads=settings.heads,
            dropout=settings.dropout,
            activation="gelu_tanh",
            init="plain",
        )
        self.transformer = Transformer(shape, seed=seed)
        self.dropout_probability = settings.dropout
        self.positions = Positions(context, input_width, kind=settings.positions, std=1.0, seed=seed)

    @property
    def random(self) -> bool:
        """See `SequenceModel`."""
        return self.dropout_probability > 0

    def forward(self, x_BTD: Tensor) -> Tensor:
        """See `SequenceModel`."""
        T = x_BTD.shape[1]
        if self.context < T:
            raise UserError(
                f"a sequence of {T} tokens for a context of {self.context}",
                where="TransformerSequence",
                do="make the model with a longer context",
            )
        return self.transformer(x_BTD + self.positions.table_LD[:T])

    def initial_state(self, batch: int, device: torch.device | str | None = None) -> TransformerState:
        """An empty cache."""
        device = torch.device(device) if device is not None else self.positions.table_LD.device
        recent = torch.zeros(batch, self.context, self.input_width, device=device) if self.slides else None
        seen = torch.zeros(batch, dtype=torch.int64, device=device) if self.slides else None
        return TransformerState(KeyValueCache(self.transformer, batch, self.context, device), recent, seen)

    def step(self, x_BD: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        """See `SequenceModel`."""
        if self.slides:
            self._remember(x_BD, state)
        if state.cached and (not self.slides or state.longest < self.context):
            state.longest += 1
            if (length := state.cache.lockstep) is not None:
                place = self.positions.table_LD[min(length, self.context - 1)]
            else:
                place = self.positions.table_LD[state.cache.lengths_B.clamp(max=self.context - 1)]
            state.newest_BD = x_BD + place  # a full cache says so itself
            return state.cache.step(state.newest_BD), state
        state.cached = False
        assert state.recent_BLD is not None and state.seen_B is not None
        h_BLD = self.forward(state.recent_BLD)  # right padding is harmless: attention is causal
        rows = torch.arange(len(x_BD), device=x_BD.device)
        return h_BLD[rows, state.seen_B - 1], state

    def _remember(self, x_BD: Tensor, state: TransformerState) -> None:
        assert state.recent_BLD is not None and state.seen_B is not None
        full_B = state.seen_B >= self.context
        if state.longest >= self.context or not state.cached:
            shifted = state.recent_BLD.roll(-1, dims=1)
            state.recent_BLD = torch.where(full_B[:, None, None], shifted, state.recent_BLD)
        slot_B = state.seen_B.clamp(max=self.context - 1)
        state.recent_BLD[torch.arange(len(x_BD), device=x_BD.device), slot_B] = x_BD.detach()
        state.seen_B = slot_B + 1

    def reset(self, state: TransformerState, mask_B: Mask) -> TransformerState:
        """See `SequenceModel`."""
        mask = torch.as_tensor(mask_B)
        if bool(mask.all()):
            state.cache.reset(None)
            state.longest, state.cached = 0, True
            if state.seen_B is not None:
                state.seen_B = torch.zeros_like(state.seen_B)
            return state
        state.cache.reset(mask)
        if state.seen_B is not None:
            state.seen_B = state.seen_B.masked_fill(mask.to(state.seen_B.device), 0)
        return state

    def reseed_dropout(self, seed: int) -> None:
        """See `SequenceModel`."""
        self.transformer.reseed_dropout(seed)

    @torch.no_grad()
    def attention(self, state: TransformerState, rows_N: Tensor) -> Tensor:
        """See `SequenceModel`."""
        if state.cached:
            assert state.newest_BD is not None
            length_N = state.cache.lengths_B[rows_N]
            weights_NLS = state.cache.reads(state.newest_BD, rows_N).mean(2)
        else:
            assert state.recent_BLD is not None and state.seen_B is not None
            length_N = state.seen_B[rows_N]
            x_NCD = state.recent_BLD[rows_N] + self.positions.table_LD
            maps = self.transformer(x_NCD, return_attention=True)[1].self_BHTT
            every = torch.arange(len(rows_N), device=rows_N.device)
            weights_NLS = torch.stack([each[every, :, length_N - 1].mean(1) for each in maps], 1)
        slot_NC = torch.arange(self.context, device=rows_N.device) - self.context + length_N[:, None]
        slot_N1C = slot_NC.clamp(min=0)[:, None].expand(-1, weights_NLS.shape[1], -1)
        return weights_NLS.gather(2, slot_N1C) * (slot_NC >= 0)[:, None]


def make_sequence_model(
    settings: SequenceSettings, input_width: int, *, context: int, slides: bool = False, seed: int = 0
) -> SequenceModel:
    """The sequence model that the settings describe.

    Args:
        settings: kind and shape.
        input_width: features per token.
        context: longest window in tokens that is ever encoded at once (gpt).
        slides: whether acting may go on beyond the context (gpt), see `TransformerSequence`; others have no end.
        seed: of the initial weights and the dropout stream.
    """
    if settings.kind == "gpt":
        return TransformerSequence(settings, input_width, context=context, slides=slides, seed=seed)
    draws = torch.Generator().manual_seed(seed_of("sequence weights", seed))
    if settings.kind == "ff":
        return FeedForwardSequence(settings, input_width, generator=draws)
    return RecurrentSequence(settings, input_width, generator=draws)


class HistoryEncoder(nn.Module):
    """Embedder and sequence model: (previous action, reward, observation) per step -> hidden state per step.

    Args:
        embedder: of tokens.
        sequence: reads them.
        precision: of whole sequences; steps are always in float32.
    """

    def __init__(self, embedder: TokenEmbedder, sequence: SequenceModel, *, precision: Precision = "float32") -> None:
        super().__init__()
        self.embedder, self.sequence, self.precision = embedder, sequence, precision
        self.output_width = sequence.output_width

    def forward(self, action_BT: Tensor, reward_BT: Tensor, observation_BTD: Tensor) -> Tensor:
        """Hidden states float32 [B, T, H]; token k is (a_k, r_k, o_k), where a_k led to o_k (index `actions`: none yet)."""
        with autocast(self.precision, reward_BT.device):
            h_BTH: Tensor = self.sequence(self.embedder(action_BT, reward_BT, observation_BTD))
        return h_BTH.float()

    def step(self, action_B: Tensor, reward_B: Tensor, observation_BD: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One token per row: hidden state [B, H] and the state after it."""
        return self.sequence.step(self.embedder(action_B, reward_B, observation_BD), state)
