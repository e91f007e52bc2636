"""SHELM's eyes: a frame becomes the k tokens most like it, best first; each different frame is looked at once.

No threshold, no separator, and a word may be retrieved at every step. Source: SHELM (arXiv 2306.09312); specification 3.3,
"Online, per step".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from recollect.helm.frame_cache import FrameCache
from recollect.helm.vision.token_vocabulary import TokenVocabulary
from recollect.helm.vision.vision_language import VisionLanguageModel


@dataclass(frozen=True)
class Tokens:
    """What N frames became, best first: ids in the language model, positions in the vocabulary, cosines."""

    lm_ids_NK: Tensor
    positions_NK: Tensor
    scores_NK: Tensor


class TokenRetrieval:
    """Turns frames ([C, H, W], or [H, W, C] with `channels`) into k tokens each.

    The vocabulary must have been made with the model. The arrays of `cache` are part of the state of a run.
    """

    def __init__(
        self,
        model: VisionLanguageModel,
        vocabulary: TokenVocabulary,
        k: int = 1,
        *,
        remembered: int = 100_000,
        channels: Literal["first", "last"] = "first",
    ) -> None:
        self.model, self.vocabulary, self.k, self.channels = model, vocabulary, k, channels
        self.cache = FrameCache(self._looked_at, remembered, prepare=self._images)

    def __call__(self, frames: np.ndarray) -> Tokens:
        """Tokens of frames uint8 [N, *shape]."""
        return self.tokens(self.cache(frames))

    def tokens(self, found_N2K: Tensor) -> Tokens:
        """Of what the cache has of frames."""
        positions_NK = found_N2K[:, self.k :].long()
        return Tokens(self.vocabulary.lm_ids_V[positions_NK], positions_NK, found_N2K[:, : self.k].float())

    def _images(self, frames: np.ndarray) -> Tensor:
        images = torch.from_numpy(frames)
        return images if self.channels == "first" else images.permute(0, 3, 1, 2)

    def words(self, positions_NK: Tensor) -> list[list[str]]:
        return [[self.vocabulary.strings[i] for i in row] for row in positions_NK.tolist()]

    @torch.inference_mode()
    def _looked_at(self, images: Tensor) -> Tensor:
        """Cosines and positions side by side, float64 [M, 2 k], which holds both exactly."""
        scores_MK, positions_MK = self.vocabulary.nearest(self.model.images(images), self.k)
        return torch.cat([scores_MK.double(), positions_MK.double()], dim=1)
