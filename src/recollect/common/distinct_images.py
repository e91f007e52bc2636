"""Images of a rollout or a batch, of which many are the same: each is encoded once.

Agents of grid worlds see the same few images over and over: of 256 moments of MiniGrid-Memory of size 7, 20 to 44 images are
different ones. Features and gradients are those of encoding all of them, up to the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

_TRIED = 4  # steps after which it is asked whether images come again
_GRAIN = 32  # counts are rounded up to it: oneDNN prepares its convolutions for each size of a batch anew


def distinct_rows(rows_ND: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows of a CPU tensor are different ones.

    Returns:
        where each first stands, int64 [M] (M is a multiple of 32: the first row may fill it up), and for every row its
        place among these, int64 [N].
    """
    rows = np.ascontiguousarray(rows_ND.numpy())
    whole_N = rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize))).ravel()
    _, first_M, place_N = np.unique(whole_N, return_index=True, return_inverse=True)
    filled_M = np.concatenate([first_M, np.zeros(-len(first_M) % _GRAIN, np.int64)])
    return torch.from_numpy(filled_M), torch.from_numpy(place_N.reshape(-1))


def first_seen(images_N: np.ndarray, numbers: dict[bytes, int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Where each different image stands first, int64 [F], and which of them each image is, int64 [N].

    `numbers`: of images that were seen before; they are not first, and those that are first are added.
    """
    numbers = {} if numbers is None else numbers
    known = len(numbers)
    which_N = np.zeros(len(images_N), np.int64)
    for n, image in enumerate(images_N):
        which_N[n] = numbers.setdefault(image.tobytes(), len(numbers))
    number_F, first_F = np.unique(which_N, return_index=True)
    return first_F[number_F >= known], which_N


class DistinctImages:
    """Images uint8 [N, ...], equal ones encoded once; on CPUs only, as a GPU would wait for the comparison."""

    def __init__(self, images: Tensor) -> None:
        self.images = images
        self._number_N: np.ndarray | None = None
        if images.device.type == "cpu":
            first_F, number_N = first_seen(images.numpy())
            if len(first_F) <= len(images) // 2:  # else the copy costs more than it saves
                self.images = images[first_F]
                self._number_N = number_N

    def features(self, encoder: Callable[[Tensor], Tensor], moments: Tensor) -> Tensor:
        """What an encoder makes of some moments: [*moments.shape, W]. `moments`: int64, of any shape."""
        rows_M = moments.flatten()
        if self._number_N is None:
            features_MW = encoder(self.images[rows_M])
        else:
            present, place_M = np.unique(self._number_N[rows_M.numpy()], return_inverse=True)
            features_MW = encoder(self.images[present]).index_select(0, torch.from_numpy(place_M))
        return features_MW.view(*moments.shape, -1)


class RolloutFeatures:
    """An encoder for acting: within a rollout, in which its weights stay as they are, it computes each image once.

    Only on CPUs, and only until it is seen that images seldom come again; all else is encoded as it comes.
    """

    def __init__(self, encoder: Callable[[Tensor], Tensor]) -> None:
        self.encoder = encoder
        self._number: dict[bytes, int] | None = None
        self._features_KW = torch.zeros(0)
        self._asked = 0

    @contextmanager
    def rollout(self) -> Iterator[None]:
        """While this is open, the encoder's weights do not change."""
        self._number, self._features_KW, self._asked = {}, torch.zeros(0), 0
        try:
            yield
        finally:
            self._number = None

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Features [N, W] of images uint8 [N, ...]."""
        if self._number is None or images.device.type != "cpu":
            return self.encoder(images)
        known = len(self._number)
        if self._asked >= _TRIED * len(images) and known * 2 > self._asked:
            self._number = None
            return self.encoder(images)
        self._asked += len(images)
        first_F, which_N = first_seen(images.numpy(), self._number)
        if len(first_F):
            features_FW = self.encoder(images[first_F])
            self._features_KW = torch.cat([self._features_KW, features_FW]) if known else features_FW
        return self._features_KW[torch.from_numpy(which_N)]
