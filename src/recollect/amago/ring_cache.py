"""Keys and values of the last L tokens of each row, in a ring: acting may go on for ever.

The token that row b writes as its n-th stands in slot n mod L, so that a full row forgets its oldest token without any
copying. Attention does not mind the order of keys: positions are added to tokens. Rows are reset independently.
Keys of deeper layers still hold what they read of forgotten tokens (AMAGO, specification 3): beyond L tokens this is not
the same as encoding the last L anew.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


class RingCache:
    """One for all layers, of L = `length` tokens; made by a model's `initial_state`."""

    def __init__(
        self, layers: int, batch: int, heads: int, length: int, head_width: int, device: torch.device | str
    ) -> None:
        self.length = length
        self.keys_values = [torch.zeros(2, batch, heads, length, head_width, device=device) for _ in range(layers)]
        self.count_B = np.zeros(batch, np.int64)  # tokens since the last reset, on the host
        self._device = torch.device(device)

    def reset(self, mask_B: np.ndarray) -> None:
        self.count_B = np.where(mask_B, 0, self.count_B)

    def advance(self) -> None:
        """One more token per row: where it is written, and which slots are read from now on."""
        slot_B = self.count_B % self.length
        self.count_B = self.count_B + 1
        filled_B = np.minimum(self.count_B, self.length)
        self._read = int(filled_B.max())
        # Where all rows write to the same slot, as in lockstep, a slice is faster than indices.
        self._slot: int | tuple[Tensor, Tensor] = int(slot_B[0])
        if (slot_B != slot_B[0]).any():
            rows = torch.arange(len(slot_B), device=self._device)
            self._slot = (rows, torch.as_tensor(slot_B, device=self._device))
        self._attend: Tensor | None = None
        if filled_B.min() < self._read:
            attend_BS = np.arange(self._read) < filled_B[:, None]
            self._attend = torch.as_tensor(attend_BS, device=self._device)[:, None, None]

    def attention(self, layer: int, q_BHD: Tensor, k_BHD: Tensor, v_BHD: Tensor) -> Tensor:
        """Write a token's key and value and read all: [B, H, Dh]."""
        keys, values = self.keys_values[layer]
        if isinstance(self._slot, int):
            keys[:, :, self._slot] = k_BHD
            values[:, :, self._slot] = v_BHD
        else:
            rows, slots = self._slot
            keys[rows, :, slots] = k_BHD
            values[rows, :, slots] = v_BHD
        k = keys[:, :, : self._read]
        v = values[:, :, : self._read]
        read = functional.scaled_dot_product_attention(q_BHD[:, :, None], k, v, attn_mask=self._attend)
        return read[:, :, 0]

    def arrays(self) -> dict[str, np.ndarray]:
        """All that `load` needs; slots that nothing was written to are left out."""
        used = min(int(self.count_B.max(initial=0)), self.length)
        arrays = {"count": self.count_B.copy()}
        for i, kept in enumerate(self.keys_values):
            arrays[f"layer/{i}"] = kept[:, :, :, :used].cpu().numpy()
        return arrays

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.count_B = np.array(arrays["count"])
        for i, kept in enumerate(self.keys_values):
            stored = torch.as_tensor(np.array(arrays[f"layer/{i}"]))
            kept[:, :, :, : stored.shape[3]] = stored.to(kept.device)
