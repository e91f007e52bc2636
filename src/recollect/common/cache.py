"""Static key/value cache: one allocation per layer, rows of different lengths, no host synchronisation while stepping.

- Rows may be reset, skipped and prefilled independently; ``lengths_B`` says how many tokens each row holds.
- While all rows are equally long (lockstep episodes) no mask is built and a write is a slice.
- The host knows bounds of the lengths, exact on CPUs. On other devices `reset` reads them back, and a step does only
  when by the bound a row may be full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from recollect.common.kernels import gelu
from recollect.settings.errors import UserError

if TYPE_CHECKING:
    from recollect.common.transformer import Block, Transformer


@dataclass(frozen=True)
class ReadContext:
    """What the cross-attention layers read: keys and values ``[B, H, S, Dh]`` of each layer that reads, and who reads what."""

    layers: list[tuple[Tensor, Tensor] | None]
    attend_B11S: Tensor | None
    factor_B11: Tensor | None

    def select(self, rows_R: Tensor) -> ReadContext:
        """Some rows of the batch."""
        return ReadContext(
            [None if layer is None else (layer[0][rows_R], layer[1][rows_R]) for layer in self.layers],
            None if self.attend_B11S is None else self.attend_B11S[rows_R],
            None if self.factor_B11 is None else self.factor_B11[rows_R],
        )


def context_keys(model: Transformer, context_BSD: Tensor) -> list[tuple[Tensor, Tensor] | None]:
    """Keys and values [B, H, S, Dh] of a context in each layer; None in layers that read none."""
    read: list[tuple[Tensor, Tensor] | None] = []
    for block in cast("list[Block]", list(model.blocks)):
        if block.cross:
            k, v = model.split_heads(block.cross_kv(context_BSD), 2)
            read.append((k.contiguous(), v.contiguous()))
        else:
            read.append(None)
    return read


class KeyValueCache:
    """Keys and values ``[2, B, H, L+1, Dh]`` per layer; the first ``lengths_B`` slots of each row are valid.

    Slot L is never read as a key: padding is written there, and so is what a full row that takes no part would write.
    Make it with `Transformer.make_cache`.
    """

    def __init__(self, model: Transformer, batch: int, length: int, device: torch.device, dtype: torch.dtype) -> None:
        self.model, self.batch, self.length = model, batch, length
        self._blocks = cast("list[Block]", list(model.blocks))
        shape = (2, batch, model.heads, length + 1, model.head_width)
        self.layers = [torch.zeros(shape, device=device, dtype=dtype) for _ in self._blocks]
        self.lengths_B = torch.zeros(batch, dtype=torch.int64, device=device)
        self._rows_B1 = torch.arange(batch, device=device)[:, None]
        self._slots = torch.arange(length + 1, device=device)
        self._shortest = self._longest = 0  # bounds of lengths_B that the host knows
        self.clear_context()

    def reset(self, mask_B: Tensor | np.ndarray | None = None) -> None:
        """Forget all tokens of the rows where the mask is True (None: of all rows). Contexts stay."""
        if mask_B is None:
            self.lengths_B = torch.zeros_like(self.lengths_B)
            self._shortest = self._longest = 0
            return
        self.lengths_B = self.lengths_B.masked_fill(self._mask(mask_B, (self.batch,)), 0)
        self._measure()

    @property
    def lockstep(self) -> int | None:
        """The length of all rows, where the host knows that it is the same."""
        return self._longest if self._shortest == self._longest else None

    def clear_context(self) -> None:
        """From now on no row has a context."""
        self.context: ReadContext | None = None
        """What rows read; None while no row has a context (as far as the host knows)."""
        self._contexts: list[tuple[Tensor, Tensor] | None] = [None] * len(self.layers)
        self._context_mask_BS: Tensor | None = None
        self._has_context_B: Tensor | None = None

    @torch.no_grad()
    def set_context(
        self,
        context_BSD: Tensor,
        mask_BS: Tensor | None = None,
        has_context_B: Tensor | None = None,
        *,
        rows_B: Tensor | np.ndarray | None = None,
    ) -> None:
        """Set what the cross-attention layers read from now on; its keys and values are computed here, once.

        Args:
            context_BSD: context tokens.
            mask_BS: True where a context token is real.
            has_context_B: False: this row has none and skips cross-attention.
            rows_B: change these rows only (only their keys and values are computed); the others keep what they have.

        Raises:
            UserError: shapes that do not fit the cache, or the context that rows keep.
        """
        B, S, _ = context_BSD.shape
        if self.batch != B:
            raise UserError(
                f"a context of {B} rows was given to a cache of {self.batch} rows",
                where="set_context",
                do="give one row each",
            )
        device = self.lengths_B.device
        mask = torch.ones(B, S, dtype=torch.bool) if mask_BS is None else mask_BS
        has = torch.ones(B, dtype=torch.bool) if has_context_B is None else has_context_B
        model = self.model
        if rows_B is None:
            self._contexts = context_keys(model, context_BSD)
        else:
            rows = self._mask(rows_B, (B,))
            if self._context_mask_BS is None:
                self._context_mask_BS, self._has_context_B = torch.zeros_like(mask), torch.zeros_like(has)
                zeros = torch.zeros(B, model.heads, S, model.head_width, device=device, dtype=self.layers[0].dtype)
                self._contexts = [(zeros.clone(), zeros.clone()) if block.cross else None for block in self._blocks]
            if self._context_mask_BS.shape != mask.shape:
                raise UserError(
                    f"rows with contexts of {S} and {self._context_mask_BS.shape[1]} tokens cannot stand in one cache",
                    where="set_context",
                    do="pad contexts to one length, or set all rows at once",
                )
            assert self._has_context_B is not None
            for kept, fresh in zip(self._contexts, context_keys(model, context_BSD[rows]), strict=True):
                if kept is not None and fresh is not None:
                    kept[0][rows], kept[1][rows] = fresh[0].to(kept[0].dtype), fresh[1].to(kept[1].dtype)
            here = rows.to(mask.device)
            mask = torch.where(here[:, None], mask, self._context_mask_BS.to(mask.device))
            has = torch.where(rows.to(has.device), has, self._has_context_B.to(has.device))
        self._context_mask_BS, self._has_context_B = mask, has
        shown, attend, factor = model.prepare_context(context_BSD, mask, has)
        self.context = None if shown is None else ReadContext(self._contexts, attend, factor)

    @torch.no_grad()
    def run(self, x_BTD: Tensor, mask_BT: Tensor | np.ndarray | None) -> Tensor:
        """Append the (real) tokens and give their hidden states; see `Transformer.step` and `Transformer.extend`."""
        model, before_B = self.model, self.lengths_B
        B, T, D = x_BTD.shape
        H, Dh = model.heads, model.head_width
        if self.batch != B:
            raise UserError(
                f"{B} rows were given to a key/value cache of {self.batch} rows",
                where="KeyValueCache",
                do="give one row each",
            )
        n, write_BT, attend = self._longest + T, None, None
        causal = False
        if mask_BT is not None:
            mask_BT = self._mask(mask_BT, (B, T))
            nth_BT = mask_BT.cumsum(1)
            counts_B: Tensor | int = nth_BT[:, -1]
            position_BT = (before_B[:, None] + nth_BT - 1).clamp_(min=0)
            if n > self.length:
                n = self._checked(int((before_B + counts_B).max()))
            write_BT = torch.where(mask_BT, position_BT, self.length) if T > 1 else before_B[:, None]
            attend = self._slots[:n] <= position_BT[:, None, :, None]
        else:
            counts_B = T
            if n > self.length:
                n = self._checked(int(before_B.max()) + T)
            if self._shortest == self._longest:
                causal = T > 1 and n == T
                if T > 1 and not causal:
                    attend = self._slots[:n] <= self._slots[n - T : n, None]
            else:
                write_BT = before_B[:, None] + self._slots[:T]
                attend = self._slots[:n] <= write_BT[:, None, :, None]
        h = x_BTD
        training = model.training
        if training:
            h = model._drop(h, model.p_embedding)
        read = self.context
        contexts = [None] * len(self.layers) if read is None else read.layers
        for kv, context, block in zip(self.layers, contexts, self._blocks, strict=True):
            qkv = block.qkv(block.norm_attention(h)).view(B, T, 3, H, Dh)
            if write_BT is None:
                kv[:, :, :, n - T : n] = qkv[:, :, 1:].permute(2, 0, 3, 1, 4)
            else:
                kv[:, self._rows_B1, :, write_BT] = qkv[:, :, 1:].to(kv.dtype)
            q = qkv[:, :, 0].transpose(1, 2).to(kv.dtype)
            y = self._attention(q, kv[0, :, :, :n], kv[1, :, :, :n], attend, causal)
            h = model._add(h, block.attention_out(y.transpose(1, 2).reshape(B, T, D)))
            if read is not None and context is not None:
                q = block.cross_q(block.norm_cross(h)).view(B, T, H, Dh).transpose(1, 2).to(context[0].dtype)
                y = self._attention(q, *context, read.attend_B11S, False)
                y = block.cross_out(y.transpose(1, 2).reshape(B, T, D))
                h = model._read(block, h, y, read.factor_B11)
            h = model._add(h, block.mlp_out(gelu(block.mlp_in(block.norm_mlp(h)), model._gelu)))
        self.lengths_B = before_B + counts_B
        if mask_BT is None:
            self._shortest, self._longest = self._shortest + T, n
        elif before_B.device.type == "cpu":
            self._measure()
        else:
            self._longest = n
        return model.norm_final(h)

    @torch.no_grad()
    def refill(self, rows_R: Tensor, x_RTD: Tensor, mask_RT: Tensor | None) -> Tensor:
        """Replace all that some rows hold by a block of tokens; only these rows are computed.

        Args:
            rows_R: indices of the rows, each once.
            x_RTD, mask_RT: their tokens; see `Transformer.extend`.

        Returns:
            Hidden states [R, T, D].

        Raises:
            UserError: the block is longer than the cache.
        """
        R, T, _ = x_RTD.shape
        self._checked(T)
        part = KeyValueCache(self.model, R, T, x_RTD.device, self.layers[0].dtype)
        part.context = None if self.context is None else self.context.select(rows_R)
        h_RTD = part.run(x_RTD, mask_RT)
        for own, fresh in zip(self.layers, part.layers, strict=True):
            own[:, rows_R, :, :T] = fresh[:, :, :, :T]
        self.lengths_B = self.lengths_B.index_copy(0, rows_R, part.lengths_B)
        self._measure()
        return h_RTD

    def peek(self, x_BD: Tensor) -> Tensor:
        """Hidden states [B, D] of one more token per row, as by `Transformer.step`; the cache stays as it is."""
        before = self.lengths_B, self._shortest, self._longest
        hidden_BTD = self.run(x_BD[:, None], None)
        self.lengths_B, self._shortest, self._longest = before  # what was written lies behind the valid slots
        return hidden_BTD[:, 0]

    @torch.no_grad()
    def reads(self, x_BD: Tensor, rows_N: Tensor) -> Tensor:
        """How much the newest token of some rows reads each slot; of models without cross-attention, nothing dropped.

        Args:
            x_BD: what `run` was last given.
            rows_N: the rows.

        Returns:
            Attention weights [N, layers, heads, slots], slots up to the longest row's last.
        """
        model, n = self.model, self._longest
        attend = (self._slots[:n] < self.lengths_B[rows_N, None])[:, None, None]
        h, found = x_BD[rows_N][:, None], []
        for kv, block in zip(self.layers, self._blocks, strict=True):
            q = model.split_heads(block.qkv(block.norm_attention(h)), 3)[0].to(kv.dtype)
            y, weights_NHTS = model.plain_attention(q, kv[0, rows_N, :, :n], kv[1, rows_N, :, :n], attend)
            h = h + block.attention_out(y.transpose(1, 2).flatten(2))
            h = h + block.mlp_out(gelu(block.mlp_in(block.norm_mlp(h)), model._gelu))
            found.append(weights_NHTS[:, :, 0])
        return torch.stack(found, 1)

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, attend: Tensor | None, causal: bool) -> Tensor:
        model = self.model
        if model.training and model.p_attention:  # acting with dropout on, as Memory-RL does
            if causal:
                attend = self._slots[: q.shape[2], None] >= self._slots[: q.shape[2]]
            return model.plain_attention(q, k, v, attend)[0]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attend, is_causal=causal)

    def _checked(self, n: int) -> int:
        if n > self.length:
            raise UserError(
                f"a row of the key/value cache would hold {n} tokens, but it was made for {self.length}",
                where="KeyValueCache",
                do="make the cache longer, or reset the rows whose episode is over",
            )
        return n

    def _measure(self) -> None:
        shortest, longest = torch.stack(torch.aminmax(self.lengths_B)).tolist()
        self._shortest, self._longest = int(shortest), int(longest)

    def _mask(self, mask: Tensor | np.ndarray, shape: tuple[int, ...]) -> Tensor:
        result = torch.as_tensor(mask, device=self.lengths_B.device)
        if result.dtype != torch.bool or tuple(result.shape) != shape:
            raise UserError(
                f"a mask of dtype {result.dtype} and shape {tuple(result.shape)} does not fit",
                where="KeyValueCache",
                do=f"give a bool mask of shape {shape}",
            )
        return result
