"""Keys and values of the last L tokens of each row, in a ring: acting may go on for ever.

The token that row b writes as its n-th stands in slot n mod L, so that a full row forgets its oldest token without any
copying. Attention does not mind the order of keys: positions are added to tokens. Rows are reset independently.
Keys of deeper layers still hold what they read of forgotten tokens (AMAGO, specification 3): beyond L tokens this is not
the same as encoding the last L anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

SHORTEST_READ = 64  # slots, of `RingCache.reach`


@dataclass(frozen=True)
class Place:
    """Where one more token of each row is written, and what is read then.

    Attributes:
        slot: of all rows, or int64 ([B], [B]): rows and their slots.
        read: how many slots are read, the first ones.
        attend: bool [B, 1, 1, read], which of them a row reads; None: all.
    """

    slot: int | tuple[Tensor, Tensor]
    read: int
    attend: Tensor | None


class RingCache:
    """One for all layers, of L = `length` tokens; made by a model's `initial_state`."""

    def __init__(
        self,
        layers: int,
        batch: int,
        heads: int,
        length: int,
        head_width: int,
        device: torch.device | str,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.length = length
        shape = (2, batch, heads, length, head_width)
        self.keys_values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self.count_B = np.zeros(batch, np.int64)  # tokens since the last reset, on the host
        self._device = torch.device(device)

    def reset(self, mask_B: np.ndarray) -> None:
        self.count_B = np.where(mask_B, 0, self.count_B)

    def advance(self) -> Place:
        """Count one more token per row."""
        slot_B = self.count_B % self.length
        self.count_B = self.count_B + 1
        filled_B = np.minimum(self.count_B, self.length)
        read = int(filled_B.max())
        # Where all rows write to the same slot, as in lockstep, a slice is faster than indices.
        slot: int | tuple[Tensor, Tensor] = int(slot_B[0])
        if (slot_B != slot_B[0]).any():
            rows = torch.arange(len(slot_B), device=self._device)
            slot = (rows, torch.as_tensor(slot_B, device=self._device))
        attend: Tensor | None = None
        if filled_B.min() < read:
            attend_BS = np.arange(read) < filled_B[:, None]
            attend = torch.as_tensor(attend_BS, device=self._device)[:, None, None]
        return Place(slot, read, attend)

    def reach(self) -> int:
        """How many slots the next token may read, rounded up so that few numbers occur: powers of two, and `length`."""
        needed = min(int(self.count_B.max()) + 1, self.length)
        return min(self.length, max(SHORTEST_READ, 1 << (needed - 1).bit_length()))

    def place_of(self, count_B: Tensor, read: int) -> Place:
        """As `advance` gives it for rows that have so many tokens, int64 [B]; but of one shape for one `read`, and computed
        on the device alone. It counts nothing.

        Args:
            read: `reach()`.
        """
        rows = torch.arange(len(count_B), device=count_B.device)
        slots = torch.arange(read, device=count_B.device)
        return Place((rows, count_B % self.length), read, (slots <= count_B[:, None])[:, None, None])

    def attention(self, layer: int, place: Place, q_BHD: Tensor, k_BHD: Tensor, v_BHD: Tensor) -> Tensor:
        """Write a token's key and value and read all: [B, H, Dh]."""
        keys, values = self.keys_values[layer]
        if isinstance(place.slot, int):
            keys[:, :, place.slot] = k_BHD
            values[:, :, place.slot] = v_BHD
        else:
            rows, slots = place.slot
            keys[rows, :, slots] = k_BHD
            values[rows, :, slots] = v_BHD
        k = keys[:, :, : place.read]
        v = values[:, :, : place.read]
        read = functional.scaled_dot_product_attention(q_BHD[:, :, None], k, v, attn_mask=place.attend)
        return read[:, :, 0]

    def reads(self, layer: int, q_NHD: Tensor, rows_N: Tensor) -> tuple[Tensor, Tensor]:
        """What `attention` gave the newest tokens of some rows, [N, H, Dh], and how much they read of each slot, [N, H, L]."""
        keys, values = self.keys_values[layer][:, rows_N]
        filled_N = torch.as_tensor(self.count_B, device=self._device)[rows_N]
        is_empty_NL = torch.arange(self.length, device=self._device) >= filled_N[:, None]
        score_NHL = (keys @ q_NHD[..., None])[..., 0] / q_NHD.shape[-1] ** 0.5
        weight_NHL = score_NHL.float().masked_fill(is_empty_NL[:, None], -torch.inf).softmax(-1)
        return (weight_NHL.to(values.dtype)[:, :, None] @ values)[:, :, 0], weight_NHL

    def newest_last(self, slots_NKL: Tensor, rows_N: Tensor) -> Tensor:
        """What is in the order of slots [N, K, L] in that of tokens: the newest is the last, and what is before the first is 0."""
        count_N = torch.as_tensor(self.count_B, device=self._device)[rows_N]
        token_NL = count_N[:, None] - self.length + torch.arange(self.length, device=self._device)
        slot_NKL = (token_NL % self.length)[:, None].expand_as(slots_NKL)
        return slots_NKL.gather(2, slot_NKL) * (token_NL >= 0)[:, None]

    def arrays(self) -> dict[str, np.ndarray]:
        """All that `load` needs; slots that nothing was written to are left out."""
        used = min(int(self.count_B.max(initial=0)), self.length)
        arrays = {"count": self.count_B.copy()}
        for i, kept in enumerate(self.keys_values):
            arrays[f"layer/{i}"] = kept[:, :, :, :used].float().cpu().numpy()  # numpy has no bfloat16
        return arrays

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.count_B = np.array(arrays["count"])
        for i, kept in enumerate(self.keys_values):
            stored = torch.as_tensor(np.array(arrays[f"layer/{i}"]))
            kept[:, :, :, : stored.shape[3]] = stored.to(kept)
