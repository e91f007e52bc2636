"""Acting with a transformer: a static key/value cache, one allocation per layer, rows of different lengths.

- `KeyValueCache.step` and `extend` equal the full forward over all tokens of a row so far.
- Rows may be reset, skipped and prefilled independently; ``lengths_B`` says how many tokens each row holds.
- While all rows are equally long (lockstep episodes) no mask is built and a write is a slice.
- Stepping never waits for the device. The host knows bounds of the lengths, exact on CPUs. On other devices `reset` reads
  them back, and a step does only when by the bound a row may be full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from recollect.common.attention import Attention, KeysValues, ReadContext, join_heads, plain_attention, split_heads
from recollect.common.transformer import Transformer
from recollect.settings.errors import UserError


class KeyValueCache:
    """Keys and values ``[2, B, H, L+1, Dh]`` per layer; the first ``lengths_B`` slots of each row are valid. Slot L is
    never read as a key: padding is written there, and so is what a full row that takes no part would write.
    """

    def __init__(
        self,
        model: Transformer,
        batch: int,
        length: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        weight = model.norm_final.weight
        device, dtype = torch.device(device or weight.device), dtype or weight.dtype
        self.model, self.batch, self.length = model, batch, length
        shape = (2, batch, model.heads, length + 1, model.head_width)
        self.layers = [torch.zeros(shape, device=device, dtype=dtype) for _ in model.blocks]
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

    # ---------------------------------------------------------------- contexts

    def clear_context(self) -> None:
        self.context: ReadContext | None = None
        """What rows read; None while no row has a context (as far as the host knows)."""
        self._context_keys: list[KeysValues | None] = [None] * len(self.layers)
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
        if mask_BS is None:
            mask_BS = torch.ones(B, S, dtype=torch.bool)
        if has_context_B is None:
            has_context_B = torch.ones(B, dtype=torch.bool)
        if rows_B is None:
            self._context_keys = self.model.context_keys(context_BSD)
            self._context_mask_BS, self._has_context_B = mask_BS, has_context_B
        else:
            self._replace_context(context_BSD, mask_BS, has_context_B, self._mask(rows_B, (B,)))
        context = self.model.context(context_BSD, self._context_mask_BS, self._has_context_B)
        self.context = None
        if context is not None:
            self.context = ReadContext(self._context_keys, context.attend_B11S, context.factor_B11)

    def _replace_context(self, context_BSD: Tensor, mask_BS: Tensor, has_context_B: Tensor, rows_B: Tensor) -> None:
        if self._context_mask_BS is None:
            self._context_mask_BS = torch.zeros_like(mask_BS)
            self._has_context_B = torch.zeros_like(has_context_B)
            model = self.model
            zeros = self.layers[0].new_zeros(self.batch, model.heads, context_BSD.shape[1], model.head_width)
            self._context_keys = [(zeros.clone(), zeros.clone()) if block.cross else None for block in model.layers()]
        if self._context_mask_BS.shape != mask_BS.shape:
            S, kept = mask_BS.shape[1], self._context_mask_BS.shape[1]
            raise UserError(
                f"rows with contexts of {S} and {kept} tokens cannot stand in one cache",
                where="set_context",
                do="pad contexts to one length, or set all rows at once",
            )
        fresh_keys = self.model.context_keys(context_BSD[rows_B])
        for own, fresh in zip(self._context_keys, fresh_keys, strict=True):
            if own is not None and fresh is not None:
                for held, new in zip(own, fresh, strict=True):
                    held[rows_B] = new.to(held.dtype)
        assert self._has_context_B is not None
        rows_B1 = rows_B.to(mask_BS.device)[:, None]
        self._context_mask_BS = torch.where(rows_B1, mask_BS, self._context_mask_BS.to(mask_BS.device))
        rows_B = rows_B.to(has_context_B.device)
        self._has_context_B = torch.where(rows_B, has_context_B, self._has_context_B.to(has_context_B.device))

    # ---------------------------------------------------------------- tokens

    def step(self, x_BD: Tensor, active_B: Tensor | None = None) -> Tensor:
        """One token per row: ``h_BD``, equal to the last hidden state of the full forward over the row's tokens so far.

        Args:
            x_BD: token embeddings; the position of row b's token is ``lengths_B[b]``.
            active_B: rows that take part; the others keep their cache and their output means nothing.

        Raises:
            UserError: an active row is full.
        """
        return self.extend(x_BD[:, None], None if active_B is None else active_B[:, None])[:, 0]

    @torch.no_grad()
    def extend(self, x_BTD: Tensor, mask_BT: Tensor | np.ndarray | None) -> Tensor:
        """Append a block of tokens to every row: ``h_BTD`` (outputs at padding mean nothing, but are finite).

        Args:
            x_BTD: token embeddings; the t-th real token of row b has position ``lengths_B[b] + t``.
            mask_BT: True where a token is real; padding may stand left or right. None: all are.

        Raises:
            UserError: a row would grow longer than the cache.
        """
        B, T, _ = x_BTD.shape
        if self.batch != B:
            raise UserError(
                f"{B} rows were given to a key/value cache of {self.batch} rows",
                where="KeyValueCache",
                do="give one row each",
            )
        if mask_BT is None:
            attention = self._all_rows(T)
            h_BTD = self.model.through(x_BTD, attention)
            self.lengths_B = self.lengths_B + T
            self._shortest, self._longest = self._shortest + T, attention.end
            return h_BTD
        mask_BT = self._mask(mask_BT, (B, T))
        nth_BT = mask_BT.cumsum(1)
        attention = self._some_rows(mask_BT, nth_BT)
        h_BTD = self.model.through(x_BTD, attention)
        self.lengths_B = self.lengths_B + nth_BT[:, -1]
        if self.lengths_B.device.type == "cpu":
            self._measure()
        else:
            self._longest = attention.end
        return h_BTD

    def _all_rows(self, T: int) -> _CachedAttention:
        end = self._longest + T
        if end > self.length:
            end = self._checked(int(self.lengths_B.max()) + T)
        if self._shortest != self._longest:
            place_BT = self.lengths_B[:, None] + self._slots[:T]
            return _CachedAttention(self, end, place_BT, self._slots[:end] <= place_BT[:, None, :, None])
        if T == 1:
            return _CachedAttention(self, end)
        if end == T:
            return _CachedAttention(self, end, is_causal=True)
        return _CachedAttention(self, end, attend=self._slots[:end] <= self._slots[end - T : end, None])

    def _some_rows(self, mask_BT: Tensor, nth_BT: Tensor) -> _CachedAttention:
        """How the tokens attend where the mask is True; ``nth_BT`` counts them from 1."""
        T = mask_BT.shape[1]
        end = self._longest + T
        if end > self.length:
            end = self._checked(int((self.lengths_B + nth_BT[:, -1]).max()))
        position_BT = (self.lengths_B[:, None] + nth_BT - 1).clamp_(min=0)
        attend = self._slots[:end] <= position_BT[:, None, :, None]
        # Padding goes to the slot that is never read; a single token of an idle row, behind the row's last.
        place_BT = self.lengths_B[:, None] if T == 1 else torch.where(mask_BT, position_BT, self.length)
        return _CachedAttention(self, end, place_BT, attend)

    def step_at(self, x_BD: Tensor, place_B: Tensor, end: int) -> Tensor:
        """`step` of all rows as a function of tensors, for CUDA graphs; it counts nothing, see `count`.

        Args:
            place_B: int64, ``lengths_B``.
            end: slots that are read, more than any row holds and at most the cache's length.
        """
        attend = self._slots[:end] <= place_B[:, None, None, None]
        return self.model.through(x_BD[:, None], _CachedAttention(self, end, place_B[:, None], attend))[:, 0]

    def count(self, lengths_B: Tensor) -> None:
        """All rows hold a token more, which `step_at` wrote; their lengths are counted already."""
        self.lengths_B = lengths_B
        self._shortest, self._longest = self._shortest + 1, self._longest + 1

    @torch.no_grad()
    def refill(self, rows_R: Tensor, x_RTD: Tensor, mask_RT: Tensor | None) -> Tensor:
        """Replace all that rows R hold by a block of tokens [R, T, D]; only these are computed. See `extend`."""
        R, T, _ = x_RTD.shape
        self._checked(T)
        rows = KeyValueCache(self.model, R, T, x_RTD.device, self.layers[0].dtype)
        rows.context = None if self.context is None else self.context.select(rows_R)
        h_RTD = rows.extend(x_RTD, mask_RT)
        for own, fresh in zip(self.layers, rows.layers, strict=True):
            own[:, rows_R, :, :T] = fresh[:, :, :, :T]
        self.lengths_B = self.lengths_B.index_copy(0, rows_R, rows.lengths_B)
        self._measure()
        return h_RTD

    def peek(self, x_BD: Tensor) -> Tensor:
        """Hidden states [B, D] of one more token per row, as by `step`; the cache stays as it is."""
        before = self.lengths_B, self._shortest, self._longest
        hidden_BTD = self.extend(x_BD[:, None], None)
        self.lengths_B, self._shortest, self._longest = before  # what was written lies behind the valid slots
        return hidden_BTD[:, 0]

    @torch.no_grad()
    def reads(self, x_BD: Tensor, rows_N: Tensor) -> Tensor:
        """How much the newest token of some rows reads each slot; of models without cross-attention, nothing dropped.

        Args:
            x_BD: what `step` was last given.
            rows_N: the rows.

        Returns:
            Attention weights [N, layers, heads, slots], slots up to the longest row's last.
        """
        model, end = self.model, self._longest
        attend = (self._slots[:end] < self.lengths_B[rows_N, None])[:, None, None]
        h = x_BD[rows_N][:, None]
        weights = []
        for kv, block in zip(self.layers, model.layers(), strict=True):
            q = split_heads(block.qkv(block.norm_attention(h)), 3, model.heads)[0].to(kv.dtype)
            k, v = kv[:, rows_N, :, :end]
            y, weights_NHTS = plain_attention(q, k, v, attend, model.drop_attention)
            h = h + block.attention_out(join_heads(y))
            h = h + block.feed_forward(h)
            weights.append(weights_NHTS[:, :, 0])
        return torch.stack(weights, 1)

    # ---------------------------------------------------------------- going on

    def state_arrays(self) -> dict[str, Any]:
        """See `acting_state.Acting`; slots that nothing was written to are left out."""
        used = int(self.lengths_B.max())
        bounds = np.array([self._shortest, self._longest])  # kept, as they decide how attention is computed
        found: dict[str, Any] = {"lengths": self.lengths_B, "bounds": bounds}
        found |= {f"layer/{i}": kv[:, :, :, :used] for i, kv in enumerate(self.layers)}
        for i, keys_values in enumerate(self._context_keys):
            if keys_values is not None:
                found |= {f"keys/{i}": keys_values[0], f"values/{i}": keys_values[1]}
        read = self.context
        masks = {"mask": self._context_mask_BS, "has_context": self._has_context_B}
        if read is not None:
            masks |= {"attend": read.attend_B11S, "factor": read.factor_B11, "reads": torch.ones(())}
        return found | {name: mask for name, mask in masks.items() if mask is not None}

    def load_state(self, arrays: Mapping[str, Any], device: torch.device | str | None = None) -> None:
        device = self.lengths_B.device
        self.lengths_B = arrays["lengths"].to(device, copy=True)
        self._shortest, self._longest = arrays["bounds"].tolist()
        self.clear_context()
        for i, kv in enumerate(self.layers):
            stored = arrays[f"layer/{i}"]
            kv[:, :, :, : stored.shape[3]] = stored.to(device)
        on_device = {}
        for name, stored in arrays.items():
            if isinstance(stored, Tensor) and not name.startswith("layer/"):
                on_device[name] = stored.to(device, copy=True)
        for i in range(len(self.layers)):
            if f"keys/{i}" in on_device:
                self._context_keys[i] = on_device[f"keys/{i}"], on_device[f"values/{i}"]
        self._context_mask_BS = on_device.get("mask")
        self._has_context_B = on_device.get("has_context")
        if "reads" in on_device:
            self.context = ReadContext(self._context_keys, on_device.get("attend"), on_device.get("factor"))

    # ---------------------------------------------------------------- checks

    def _checked(self, tokens: int) -> int:
        if tokens > self.length:
            raise UserError(
                f"a row of the key/value cache would hold {tokens} tokens, but it was made for {self.length}",
                where="KeyValueCache",
                do="make the cache longer, or reset the rows whose episode is over",
            )
        return tokens

    def _measure(self) -> None:
        self._shortest, self._longest = torch.stack(torch.aminmax(self.lengths_B)).tolist()

    def _mask(self, mask: Tensor | np.ndarray, shape: tuple[int, ...]) -> Tensor:
        result = torch.as_tensor(mask, device=self.lengths_B.device)
        if result.dtype != torch.bool or tuple(result.shape) != shape:
            raise UserError(
                f"a mask of dtype {result.dtype} and shape {tuple(result.shape)} does not fit",
                where="KeyValueCache",
                do=f"give a bool mask of shape {shape}",
            )
        return result


class _CachedAttention(Attention):
    """New tokens write their keys and values to the cache, then attend to all that it holds.

    Args:
        place_BT: slot of each token; None: the last T of those that are read, in every row.
        attend: True where a token reads a slot; None: everywhere.
        is_causal: there are no slots but those of the new tokens.
    """

    def __init__(
        self,
        cache: KeyValueCache,
        end: int,
        place_BT: Tensor | None = None,
        attend: Tensor | None = None,
        *,
        is_causal: bool = False,
    ) -> None:
        super().__init__(cache.model.heads, cache.context)
        self.cache, self.end = cache, end
        self._place_BT, self._attend, self._is_causal = place_BT, attend, is_causal

    def own(self, layer: int, qkv: Tensor) -> Tensor:
        T = qkv.shape[1]
        kept = self.cache.layers[layer]
        by_head = qkv.unflatten(2, (3, self.heads, -1))
        q = by_head[:, :, 0].transpose(1, 2)
        new = by_head[:, :, 1:]
        if self._place_BT is None:
            kept[:, :, :, self.end - T : self.end] = new.permute(2, 0, 3, 1, 4)
        else:
            rows_B1 = self.cache._rows_B1
            kept[:, rows_B1, :, self._place_BT] = new.to(kept.dtype)
        k, v = kept[:, :, :, : self.end]
        return self._read(q.to(kept.dtype), k, v, self._attend, self._is_causal)

    def context(self, layer: int, q: Tensor, keys_values: Callable[[Tensor], Tensor]) -> Tensor:
        read = self.cache.context
        assert read is not None
        context_keys = read.layers[layer]
        assert context_keys is not None
        k, v = context_keys
        (q,) = split_heads(q, 1, self.heads)
        return self._read(q.to(k.dtype), k, v, read.attend_B11S, False)

    def _read(self, q: Tensor, k: Tensor, v: Tensor, attend: Tensor | None, is_causal: bool) -> Tensor:
        model = self.cache.model
        if model.training and model.p_attention:  # acting with dropout on, as Memory-RL does
            if is_causal:
                place = self.cache._slots[: q.shape[2]]
                attend = place[:, None] >= place
            return join_heads(plain_attention(q, k, v, attend, model.drop_attention)[0])
        return join_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=attend, is_causal=is_causal))
