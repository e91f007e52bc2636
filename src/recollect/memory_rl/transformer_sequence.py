"""The GPT as a sequence model: `common.transformer` with positions that count from the first token of the window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recollect.common.cache import KeyValueCache
from recollect.common.positional_codes import Positions
from recollect.common.sequence_models import Device, Mask, SequenceModel, Shared
from recollect.common.transformer import Transformer, TransformerSettings
from recollect.settings.errors import UserError


@dataclass
class TransformerState:
    """Key/value cache and, where the context can slide, the last tokens of each row (left aligned)."""

    cache: KeyValueCache
    recent_BLD: Tensor | None  # L = context
    seen_B: Tensor | None  # tokens in recent_BLD
    longest: int = 0  # tokens of the longest row since all were reset
    newest_BD: Tensor | None = None  # the last tokens, with their positions
    cached: bool = True  # False: rows slid out of the cache, all are re-encoded until all are reset


class TransformerSequence(SequenceModel):
    """GPT with a positional code that counts from the first token of the window.

    Args:
        context: longest sequence in tokens.
        slides: rows may live longer than `context`. Then, as in Memory-RL's code, the last `context` tokens are encoded
            anew at every step, with positions from 0; up to there the cache is used. False: a longer row is an error.
    """

    def __init__(self, shape: TransformerSettings, *, positions: str, context: int, slides: bool, seed: int) -> None:
        super().__init__()
        self.input_width = self.output_width = shape.width
        self.context, self.slides = context, slides
        self.transformer = Transformer(shape, seed=seed)
        self.dropout_probability = shape.dropout
        self.positions = Positions(context, shape.width, kind=positions, std=1.0, seed=seed)

    @property
    def random(self) -> bool:
        return self.dropout_probability > 0

    @property
    def shares(self) -> Shared:
        return None if self.random else "rows"

    def forward(self, x_BTD: Tensor, time_BT: Tensor | None = None) -> Tensor:
        T = x_BTD.shape[1]
        if self.context < T:
            raise UserError(
                f"a sequence of {T} tokens for a context of {self.context}",
                where="TransformerSequence",
                do="make the model with a longer context",
            )
        return self.transformer(x_BTD + self.positions.table_LD[:T])

    def initial_state(self, batch: int, device: Device = None) -> TransformerState:
        device = torch.device(device) if device is not None else self.positions.table_LD.device
        cache = KeyValueCache(self.transformer, batch, self.context, device)
        if not self.slides:
            return TransformerState(cache, None, None)
        recent_BLD = torch.zeros(batch, self.context, self.input_width, device=device)
        seen_B = torch.zeros(batch, dtype=torch.int64, device=device)
        return TransformerState(cache, recent_BLD, seen_B)

    def step(self, x_BD: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        if self.slides:
            self._remember(x_BD, state)
        if state.cached and (not self.slides or state.longest < self.context):
            state.longest += 1
            last = self.context - 1  # a full cache says so itself
            lockstep = state.cache.lockstep
            if lockstep is not None:
                position = self.positions.table_LD[min(lockstep, last)]
            else:
                position = self.positions.table_LD[state.cache.lengths_B.clamp(max=last)]
            state.newest_BD = x_BD + position
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

    def state_arrays(self, state: TransformerState) -> dict[str, np.ndarray]:
        """See `SequenceModel`; slots that nothing was written to are left out."""
        lengths_B = state.cache.lengths_B.cpu().numpy()
        used = int(lengths_B.max(initial=0))
        arrays = {"lengths": lengths_B, "longest": np.array([state.longest]), "cached": np.array([state.cached])}
        for i, layer in enumerate(state.cache.layers):
            arrays[f"layer/{i}"] = layer[:, :, :, :used].cpu().numpy()
        if state.recent_BLD is not None and state.seen_B is not None:
            arrays |= {"recent": state.recent_BLD.cpu().numpy(), "seen": state.seen_B.cpu().numpy()}
        return arrays

    def state_from(self, arrays: Mapping[str, np.ndarray], device: Device = None) -> TransformerState:
        tensors = {name: torch.as_tensor(np.array(array)) for name, array in arrays.items()}
        lengths_B = tensors["lengths"]
        state = self.initial_state(len(lengths_B), device)
        cache = state.cache
        for i, layer in enumerate(cache.layers):
            stored = tensors[f"layer/{i}"]
            used = stored.shape[3]
            layer[:, :, :, :used] = stored.to(layer.device)
        cache.lengths_B = lengths_B.to(cache.lengths_B.device)
        no_row_B = torch.zeros(len(lengths_B), dtype=torch.bool)
        cache.reset(no_row_B)  # forgets nothing, but measures the lengths anew
        state.longest = int(tensors["longest"])
        state.cached = bool(tensors["cached"])
        if state.recent_BLD is not None and state.seen_B is not None:
            state.recent_BLD.copy_(tensors["recent"])
            state.seen_B.copy_(tensors["seen"])
        return state

    def reseed_dropout(self, seed: int) -> None:
        self.transformer.reseed_dropout(seed)

    @torch.no_grad()
    def attention(self, state: TransformerState, rows_N: Tensor) -> Tensor:
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
            weights_NLS = torch.stack([layer[every, :, length_N - 1].mean(1) for layer in maps], 1)
        # Left aligned so far; the newest token goes to the right end.
        slot_NC = torch.arange(self.context, device=rows_N.device) - self.context + length_N[:, None]
        slot_N1C = slot_NC.clamp(min=0)[:, None].expand(-1, weights_NLS.shape[1], -1)
        return weights_NLS.gather(2, slot_N1C) * (slot_NC >= 0)[:, None]
