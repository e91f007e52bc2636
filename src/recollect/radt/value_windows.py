"""What a retrieved entry is read as: the rows around its cut, found on the device that the histories stand on."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from recollect.common.transfer import sent
from recollect.radt.chunks import Chunks


class ValueWindows:
    """The values of M memory entries. Windows are rows of the histories and a mask, left-padded as by `window_rows`.

    Args:
        length: the settings' ``value_length``, n.
    """

    def __init__(self, chunks: Chunks, length: int, device: torch.device | str = "cpu") -> None:
        def column(values: np.ndarray) -> Tensor:
            return torch.from_numpy(np.array(values)).to(device)

        self.length = length
        self.first_M = column(chunks.value_first)
        self.end_M = column(chunks.value_end)
        self.cut_row_M = column(np.minimum(chunks.origin + chunks.cut, chunks.value_end - 1))

    def whole(self, id_N: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and mask [N, n] of these entries' values."""
        return self._rows(self.first_M[id_N], self.end_M[id_N])

    def shortened(self, id_N: Tensor, chance_N2: Tensor) -> tuple[Tensor, Tensor]:
        """`whole`, of random length: the first step uniform among those up to the cut, the last one uniform among those
        from the cut on (the cut's own step always stays).

        Args:
            chance_N2: numbers in [0, 1), float64, that decide the two ends.
        """
        first_N, end_N, cut_N = self.first_M[id_N], self.end_M[id_N], self.cut_row_M[id_N]
        chance_N2 = sent(chance_N2, first_N.device)
        left_off_N = chance_N2[:, 0] * (cut_N - first_N + 1)
        kept_behind_N = chance_N2[:, 1] * (end_N - cut_N)
        return self._rows(first_N + left_off_N.long(), cut_N + 1 + kept_behind_N.long())

    def _rows(self, first_N: Tensor, end_N: Tensor) -> tuple[Tensor, Tensor]:
        first_N1 = first_N[:, None]
        row_NS = end_N[:, None] + torch.arange(-self.length, 0, device=end_N.device)
        return torch.maximum(row_NS, first_N1), row_NS >= first_N1
