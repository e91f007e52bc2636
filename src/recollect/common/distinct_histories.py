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
    group_CSB = begins_CSB.cumsum(2) - 1
    # Of each history the first row that reads it, [k, U]; behind these any rows, so that each network reads as many.
    first_C = [
        np.argsort(~begins_SB, axis=1, kind="stable")[:, :U]
        for begins_SB, U in zip(begins_CSB, histories_C, strict=True)
    ]
    row_SB = order_SB + B * np.arange(k)[:, None]
    token_N, place_RT = _tokens(first_C, row_SB, cuts), _places(group_CSB, histories_C, row_SB, cuts)
    return DistinctHistories(
        k, _pieces(first_C, group_CSB, cuts), torch.from_numpy(token_N), torch.from_numpy(place_RT)
    )


def _pieces(first_C: Sequence[np.ndarray], group_CSB: np.ndarray, cuts: np.ndarray) -> tuple[Piece, ...]:
    """What is read between cuts; `group_CSB` says which history of a piece each sorted row reads."""
    pieces = [Piece(first_C[0].shape[1], int(cuts[1]), None)]
    for first_SU, before_SB, steps in zip(first_C[1:], group_CSB[:-1], np.diff(cuts)[1:], strict=True):
        parent_SU = (
            np.take_along_axis(before_SB, first_SU, 1) + pieces[-1].histories * np.arange(len(first_SU))[:, None]
        )
        pieces.append(Piece(first_SU.shape[1], int(steps), torch.from_numpy(parent_SU.ravel())))
    return tuple(pieces)


def _tokens(first_C: Sequence[np.ndarray], row_SB: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """The tokens that are read, as places in [rows * T]: network by network, and of each piece by piece."""
    found = []
    for first_SU, begin, end in zip(first_C, cuts[:-1], cuts[1:], strict=True):
        token_SUL = np.take_along_axis(row_SB, first_SU, 1)[:, :, None] * cuts[-1] + np.arange(begin, end)
        found.append(token_SUL.reshape(len(row_SB), -1))
    return np.concatenate(found, 1).ravel()


def _places(group_CSB: np.ndarray, histories_C: np.ndarray, row_SB: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """For each token of each row [rows, T] its place among those that are read."""
    steps_C = np.diff(cuts)
    read_C = histories_C * steps_C  # by one network
    piece_T = np.repeat(np.arange(len(steps_C)), steps_C)
    place_T = (read_C.cumsum() - read_C - cuts[:-1])[piece_T] + np.arange(cuts[-1])  # in the first history of its piece
    place_TSB = group_CSB[piece_T] * steps_C[piece_T, None, None] + place_T[:, None, None]
    place_TSB += read_C.sum() * np.arange(len(row_SB))[:, None]
    place_RT = np.empty((row_SB.size, cuts[-1]), np.int64)
    place_RT[row_SB.ravel()] = place_TSB.reshape(cuts[-1], -1).T
    return place_RT


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
