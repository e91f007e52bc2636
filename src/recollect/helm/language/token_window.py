"""The last inputs of every row, for language models without a recurrent state, and what such a memory may be given."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor

from recollect.common.transfer import sent
from recollect.settings.errors import UserError


class TokenWindow:
    """The last inputs of B rows, each from the left: ``tokens_BMD`` and how many of them are real, ``lengths_B``."""

    def __init__(self, batch: int, length: int, width: int, device: torch.device) -> None:
        self.tokens_BMD = torch.zeros(batch, length, width, device=device)
        self.lengths_B = torch.zeros(batch, dtype=torch.int64, device=device)

    def make_room(self, tokens: int, kept: int) -> Tensor:
        """Where there is no room for so many more, forget all but the last `kept`; gives the rows where it was so."""
        length = self.tokens_BMD.shape[1]
        full_B = self.lengths_B + tokens > length
        if full_B.device.type != "cpu" or bool(full_B.any()):  # a GPU is not asked
            drop_B = torch.where(full_B, (self.lengths_B - kept).clamp(min=0), 0)
            place_M = torch.arange(length, device=drop_B.device)
            row_B1 = torch.arange(len(drop_B), device=drop_B.device)[:, None]
            source_BM = (place_M + drop_B[:, None]).clamp(max=length - 1)
            self.tokens_BMD = self.tokens_BMD[row_B1, source_BM]
            self.lengths_B = self.lengths_B - drop_B
        return full_B

    def append(self, inputs_BKD: Tensor) -> None:
        """Add to every row; there must be room."""
        (B, K, _), device = inputs_BKD.shape, self.lengths_B.device
        place_BK = self.lengths_B[:, None] + torch.arange(K, device=device)
        self.tokens_BMD = self.tokens_BMD.index_put((torch.arange(B, device=device)[:, None], place_BK), inputs_BKD)
        self.lengths_B = self.lengths_B + K

    def reset(self, mask_B: Tensor) -> None:
        self.lengths_B = self.lengths_B.masked_fill(sent(mask_B, self.lengths_B.device), 0)

    def select(self, rows_N: Tensor) -> TokenWindow:
        """Some of its rows, as a window of their own."""
        chosen = copy(self)
        chosen.tokens_BMD, chosen.lengths_B = self.tokens_BMD[rows_N], self.lengths_B[rows_N]
        return chosen

    def arrays(self) -> dict[str, Tensor]:
        return {"tokens": self.tokens_BMD, "lengths": self.lengths_B}

    def load(self, arrays: Mapping[str, Any]) -> None:
        device = self.lengths_B.device
        self.tokens_BMD = torch.as_tensor(arrays["tokens"]).to(device, copy=True)
        self.lengths_B = torch.as_tensor(arrays["lengths"]).to(device, copy=True)


def right_aligned(weights_LBT: Tensor, lengths_B: Tensor, length: int) -> Tensor:
    """[L, B, M] with the newest last: rows of different lengths moved to the right end, zeros before them."""
    place_BM = torch.arange(length, device=lengths_B.device) - (length - lengths_B)[:, None]
    moved = weights_LBT.take_along_dim(place_BM.clamp(min=0, max=weights_LBT.shape[2] - 1)[None], 2)
    return moved * (place_BM >= 0)


def check_inputs(window: TokenWindow, inputs_BKD: Tensor, most: int) -> None:
    B, K, D = inputs_BKD.shape
    rows, _, width = window.tokens_BMD.shape
    if rows != B or not 1 <= K <= most or width != D:
        raise unfit(
            f"Inputs of shape {(B, K, D)} do not fit a memory of {rows} rows of width {width} that reads at most "
            f"{most} at once.",
            "Start it with that many rows, and set batch_tokens to the most inputs per step.",
        )


def check_length(needed: int, positions: int, batch_tokens: int, room: int) -> None:
    """Refuse a memory that is longer than the model's positions, or that a step's inputs do not go into."""
    if needed > positions or not 1 <= batch_tokens <= room:
        raise unfit(
            f"A memory that reads {batch_tokens} inputs at once needs {needed} of the model's {positions} positions, and "
            f"has room for {room} at once.",
            "Change memory_length or batch_tokens.",
        )


def unfit(what: str, do: str) -> UserError:
    return UserError(what, where="language model as memory", do=do)
