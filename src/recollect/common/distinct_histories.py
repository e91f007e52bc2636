"""Histories of a batch that begin alike: a recurrent model reads what they share once, up to where they part.

In a T-Maze most episodes of a replay are the same walk until the first random action, so 64 of them have a third of the tokens
that they seem to have. A model without memory reads each different token once. Outputs and gradients are those of reading
every row, up to the order of sums. On CPUs only: on a GPU shapes must stay as they are, and rows cost little there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

STEPS = 16  # of a piece, about: a recurrent model is called for each
WORTH = 0.75  # the most of all tokens that may be left; a few long calls are faster per token than many short ones


@dataclass(frozen=True)
class Piece:
    """Some steps of U different histories: U * L tokens."""

    histories: int
    steps: int
    parent_U: Tensor | None
    """int64: which history of the piece before each goes on from; None: they begin here."""


@dataclass(frozen=True)
class DistinctHistories:
    """What is read of B rows of T tokens: N of them, piece by piece, and where each row finds its own."""

    pieces: tuple[Piece, ...]
    token_N: Tensor
    """int64: the tokens that are read, as places in [B * T]; those of one piece behind those of the other."""
    place_BT: Tensor
    """int64: for each token its place among those that are read."""

    def taken(self, values_BT: Tensor) -> Tensor:
        """What the tokens that are read have of [B, T, ...]: [N, ...]."""
        return values_BT.flatten(0, 1)[self.token_N]

    def split(self, values_ND: Tensor) -> list[Tensor]:
        """What each piece has of [N, D]: [U, L, D] each."""
        parts = values_ND.split([piece.histories * piece.steps for piece in self.pieces])
        return [part.view(one.histories, one.steps, -1) for one, part in zip(self.pieces, parts, strict=True)]

    def spread(self, values_ND: Tensor) -> Tensor:
        """Values of the tokens that were read, [N, ...], for all rows: [B, T, ...]."""
        return values_ND.index_select(0, self.place_BT.flatten()).unflatten(0, self.place_BT.shape)


def distinct_histories(tokens: Sequence[Tensor]) -> DistinctHistories | None:
    """What a model with memory must read of rows; None: they share too little.

    Args:
        tokens: what makes a token, [B, T] or [B, T, D] each, on the CPU.
    """
    number_BT = _numbered(tokens)
    B, T = number_BT.shape
    order_B = np.lexsort(number_BT.T[::-1])  # rows that begin alike stand side by side
    sorted_BT = number_BT[order_B]
    differs_BT = sorted_BT[1:] != sorted_BT[:-1]
    alike_B = np.where(differs_BT.any(1), differs_BT.argmax(1), T)  # tokens that a row shares with the one before it
    cuts = np.linspace(0, T, max(1, round(T / STEPS)) + 1).astype(np.int64)
    begins_CB = np.ones((len(cuts) - 1, B), bool)
    begins_CB[:, 1:] = alike_B < cuts[1:, None]  # by the end of a piece, this row is no longer the one before it
    if (begins_CB.sum(1) * np.diff(cuts)).sum() > WORTH * B * T:
        return None
    pieces, tokens, read = [], [], 0
    group_B: np.ndarray | None = None  # in the piece before
    place_BT = np.empty((B, T), np.int64)
    for begin, end, begins_B in zip(cuts[:-1], cuts[1:], begins_CB, strict=True):
        step_L, first_U = np.arange(begin, end), np.flatnonzero(begins_B)
        parent_U = None if group_B is None else torch.from_numpy(group_B[first_U])
        pieces.append(Piece(len(first_U), len(step_L), parent_U))
        tokens.append((order_B[first_U, None] * T + step_L).ravel())
        group_B = begins_B.cumsum() - 1
        place_BT[order_B, begin:end] = read + group_B[:, None] * len(step_L) + (step_L - begin)
        read += len(tokens[-1])
    return DistinctHistories(tuple(pieces), torch.from_numpy(np.concatenate(tokens)), torch.from_numpy(place_BT))


def distinct_tokens(tokens: Sequence[Tensor]) -> DistinctHistories | None:
    """What a model without memory must read: see `distinct_histories`."""
    number_BT = _numbered(tokens)
    _, first_N, place_M = np.unique(number_BT, return_index=True, return_inverse=True)
    if len(first_N) > WORTH * number_BT.size:
        return None
    place_BT = torch.from_numpy(place_M.reshape(number_BT.shape))
    return DistinctHistories((Piece(len(first_N), 1, None),), torch.from_numpy(first_N), place_BT)


def _numbered(tokens: Sequence[Tensor]) -> np.ndarray:
    """A number for each token [B, T], the same for equal ones."""
    B, T = tokens[0].shape[:2]
    columns = [np.ascontiguousarray(part.numpy()).reshape(B * T, -1) for part in tokens]
    bytes_MK = np.concatenate([column.view(np.uint8) for column in columns], 1)
    whole_M = np.ascontiguousarray(bytes_MK).view(np.dtype((np.void, bytes_MK.shape[1]))).ravel()
    number_M: np.ndarray = np.unique(whole_M, return_inverse=True)[1]
    return number_M.reshape(B, T)
