"""Histories of a batch that begin alike: what they share is read once, up to where they part.

In a T-Maze most episodes of a replay are the same walk until the first random action, so 64 of them have a third of the tokens
that they seem to have. A recurrent model goes on from where histories part, one without memory reads each different token once,
and a Transformer, which cannot go on from a state, reads each different row once. Outputs and gradients are those of reading
every row, up to the order of sums. On CPUs only: on a GPU shapes must stay as they are, and rows cost little there.

Several networks may read one batch, each k-th of the rows its own (`recollect.memory_rl.stacked`). Rows of different networks are
never the same, and each network reads as many, filled up with rows that nobody looks at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recollect.common.distinct_images import distinct_rows

STEPS = 16  # of a piece, about, or as many more as it takes until histories part: a recurrent model is called for each
CALL = 64  # steps of a history that a call costs
WORTH = 0.75  # the most of all tokens that may be left; a few long calls are faster per token than many short ones


@dataclass(frozen=True)
class Piece:
    """Some steps of U different histories of each network."""

    histories: int
    steps: int
    parent_R: Tensor | None
    """int64 [k * U]: which history of the piece before each goes on from; None: they begin here."""


@dataclass(frozen=True)
class DistinctHistories:
    """What k networks read of rows of T tokens, and where each row finds its own.

    Of N tokens that are read, the first N / k are the first network's; these stand piece by piece.
    """

    networks: int
    pieces: tuple[Piece, ...]
    token_N: Tensor
    """int64: the tokens that are read, as places in [rows * T]."""
    place_RT: Tensor
    """int64: for each token its place among those that are read."""

    def taken(self, values_RT: Tensor) -> Tensor:
        """What the tokens that are read have of [rows, T, ...]: [N, ...]."""
        return values_RT.flatten(0, 1)[self.token_N]

    def split(self, values_ND: Tensor) -> list[Tensor]:
        """What each piece has of [N, D]: [k * U, L, D] each."""
        parts = values_ND.unflatten(0, (self.networks, -1)).split([one.histories * one.steps for one in self.pieces], 1)
        return [part.reshape(-1, one.steps, part.shape[-1]) for one, part in zip(self.pieces, parts, strict=True)]

    def joined(self, pieces: Sequence[Tensor]) -> Tensor:
        """The other way round."""
        return torch.cat([part.reshape(self.networks, -1, part.shape[-1]) for part in pieces], 1).flatten(0, 1)

    def spread(self, values_ND: Tensor) -> Tensor:
        """Values of the tokens that were read, [N, ...], for all rows: [rows, T, ...]."""
        return values_ND.index_select(0, self.place_RT.flatten()).unflatten(0, self.place_RT.shape)


def distinct_histories(tokens: Sequence[Tensor], networks: int = 1, *, whole: bool = False) -> DistinctHistories | None:
    """What models with memory must read of rows; None: they share too little.

    Args:
        tokens: what makes a token, [rows, T] or [rows, T, D] each, on the CPU.
        whole: rows that differ anywhere share nothing, as a Transformer wants it.
    """
    number_SBT = _numbered(tokens, networks)
    k, B, T = number_SBT.shape
    # Rows that begin alike stand side by side.
    order_SB = np.stack([np.lexsort(number_BT.T[::-1]) for number_BT in number_SBT])
    sorted_SBT = np.take_along_axis(number_SBT, order_SB[:, :, None], 1)
    differs_SBT = sorted_SBT[:, 1:] != sorted_SBT[:, :-1]
    # How many tokens a row shares with the one before it, [k, B - 1].
    alike_SR = np.where(differs_SBT.any(2), differs_SBT.argmax(2), T)
    cuts = np.array([0, T]) if whole else _cuts(alike_SR, T)
    begins_CSB = _begins(alike_SR, cuts)
    histories_C = begins_CSB.sum(2).max(1)
    if (histories_C * np.diff(cuts)).sum() > WORTH * B * T:
        return None
    row_SB = order_SB + B * np.arange(k)[:, None]
    pieces: list[Piece] = []
    tokens_of: list[np.ndarray] = []
    read = 0
    place_RT = np.empty((k * B, T), np.int64)
    group_SB: np.ndarray | None = None  # in the piece before
    for begin, end, begins_SB, U in zip(cuts[:-1], cuts[1:], begins_CSB, histories_C, strict=True):
        step_L = np.arange(begin, end)
        first_SU = np.argsort(~begins_SB, axis=1, kind="stable")[:, :U]  # those that begin; then any that fill up
        parent_R = None
        if group_SB is not None:
            parent_SU = np.take_along_axis(group_SB, first_SU, 1) + pieces[-1].histories * np.arange(k)[:, None]
            parent_R = torch.from_numpy(parent_SU.ravel())
        pieces.append(Piece(int(U), len(step_L), parent_R))
        token_SUL = np.take_along_axis(row_SB, first_SU, 1)[:, :, None] * T + step_L
        tokens_of.append(token_SUL.reshape(k, -1))
        group_SB = begins_SB.cumsum(1) - 1
        place_RT[row_SB, begin:end] = read + group_SB[:, :, None] * len(step_L) + (step_L - begin)
        read += int(U) * len(step_L)
    place_RT += read * np.arange(k).repeat(B)[:, None]
    token_N = np.concatenate(tokens_of, 1).ravel()
    return DistinctHistories(k, tuple(pieces), torch.from_numpy(token_N), torch.from_numpy(place_RT))


def _begins(alike_SR: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """Which rows are no longer the one before them by the end of each piece, bool [C, k, B]."""
    k, others = alike_SR.shape
    begins_CSB = np.ones((len(cuts) - 1, k, others + 1), bool)
    begins_CSB[:, :, 1:] = alike_SR < cuts[1:, None, None]
    return begins_CSB


def _cuts(alike_SR: np.ndarray, T: int) -> np.ndarray:
    """Where pieces begin and end: where what a longer one would read twice costs more than a call."""
    every = np.linspace(0, T, max(1, round(T / STEPS)) + 1).astype(np.int64)
    histories_C = _begins(alike_SR, every).sum(2).max(1)
    cuts = [0]
    for cut, before, behind in zip(every[1:-1], histories_C[:-1], histories_C[1:], strict=True):
        if (behind - before) * (cut - cuts[-1]) > CALL:
            cuts.append(int(cut))
    return np.array([*cuts, T])


def distinct_tokens(tokens: Sequence[Tensor], networks: int = 1) -> DistinctHistories | None:
    """What models without memory must read: see `distinct_histories`."""
    number_SBT = _numbered(tokens, networks)
    k, B, T = number_SBT.shape
    found = [np.unique(number_BT, return_index=True, return_inverse=True) for number_BT in number_SBT]
    U = max(len(first_U) for _, first_U, _ in found)
    if U > WORTH * B * T:
        return None
    token_SU = np.zeros((k, U), np.int64)
    for network, (_, first_U, _) in enumerate(found):
        token_SU[network, : len(first_U)] = first_U
    token_SU += B * T * np.arange(k)[:, None]
    place_SBT = np.stack([place.reshape(B, T) + network * U for network, (_, _, place) in enumerate(found)])
    pieces = (Piece(U, 1, None),)
    return DistinctHistories(k, pieces, torch.from_numpy(token_SU.ravel()), torch.from_numpy(place_SBT.reshape(-1, T)))


def _numbered(tokens: Sequence[Tensor], networks: int) -> np.ndarray:
    """A number for each token [k, B, T], the same for equal ones."""
    rows, T = tokens[0].shape[:2]
    bytes_MK = torch.cat([part.reshape(rows * T, -1).view(torch.uint8) for part in tokens], 1)
    return distinct_rows(bytes_MK)[1].numpy().reshape(networks, -1, T)
