"""HELM: images become mixtures of word embeddings by a frozen Hopfield network; specification 3.1.

Sources: Paischer et al. 2022 and its code. The mean over the first axis of an image (its colours, where channels come first)
goes through a fixed random matrix; what it is most like among a language model's word embeddings is mixed, and read.

- With a `vision_language_model` its features take the place of that mean: one of HELMv2's ablations.
- As released, similarities are cosines (the paper prints the plain product: `similarity: dot`).
- The random matrix is a function of the run's seed and is not stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from recollect.common.contract import Inputs
from recollect.common.frozen_hopfield import FrozenHopfield
from recollect.common.precision import Precision, in_bfloat16
from recollect.helm.asking import Asking
from recollect.helm.eyes import Eyes, Pixels, eyes_of
from recollect.helm.frame_cache import FrameCache
from recollect.helm.language_history import LanguageHistory, LanguageHyperparameters, Reader, history_of, memory_of
from recollect.helm.method import method_with_history
from recollect.settings.schema import Settings
from recollect.settings.seeding import seed_of

ACTIONS = "discrete"
OBSERVATIONS = "images"
NAMED = 4  # words of a mixture that inspection names


class Hyperparameters(LanguageHyperparameters):
    beta: float = Field(100.0, gt=0, description="Sharpness of the mixture: large ones take one word. Released: 100.")
    similarity: Literal["cosine", "dot"] = Field("cosine", description="Released: cosine. Paper: dot.")
    mixture_precision: Precision = Field(
        "float32",
        description="Of the words as they are mixed. bfloat16 halves what is read and moves a mixture by 0.3 % where beta is "
        "10, by 4 % where it is 100; auto: on a GPU.",
    )
    vision_language_model: str | None = Field(
        None,
        description="What images are seen with, a name of config/vision_language_models.yaml; null, the paper's: their pixels.",
    )


class HopfieldReader(Reader):
    """Images -> mixtures of word embeddings, one each; those of `frames` different images are kept."""

    def __init__(
        self,
        embeddings_VD: Tensor,
        eyes: Eyes,
        *,
        beta: float,
        similarity: str,
        seed: int,
        frames: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.eyes = eyes
        self.hopfield = FrozenHopfield(
            embeddings_VD,
            eyes.width,
            beta=beta,
            seed=seed,
            similarity="dot" if similarity == "dot" else "cosine",
            dtype=dtype,
        )
        if isinstance(eyes, Pixels):  # of the two large products, that with all words is the same for all seeds
            self.cache = FrameCache(
                self.hopfield.mixed, frames, prepare=lambda images: self.hopfield.queries(eyes.prepare(images))
            )
        else:
            self.cache = FrameCache(eyes.images, frames, prepare=eyes.prepare, finish=self.hopfield)
        self._newest = np.zeros(0, np.uint8)

    def reading(self, images: np.ndarray, *, learn: bool = False) -> Asking:
        self._newest = images
        mixed_BD = yield from self.cache.reading(images)
        return mixed_BD[:, None]

    def traced(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        """The heaviest words of each mixture, their weights, and the entropy of all weights (nats)."""
        seen_NI = self.eyes.images(self.eyes.prepare(self._newest[rows_N])).float()
        weight_NV = self.hopfield.weights(seen_NI)
        top_NK, token_NK = weight_NV.topk(min(NAMED, weight_NV.shape[1]), dim=1)
        entropy_N = torch.special.entr(weight_NV).sum(1)
        found = {"tokens": token_NK, "token_scores": top_NK, "token_entropy": entropy_N}
        return {name: value.cpu().numpy() for name, value in found.items()}


def make_history(settings: Settings, inputs: Inputs, arrays: Mapping[str, np.ndarray] | None = None) -> LanguageHistory:
    hp: Hyperparameters = settings.method.hyperparameters
    memory = memory_of(settings, inputs)
    reader = HopfieldReader(
        memory.embeddings_VD,
        eyes_of(hp.vision_language_model, settings, inputs),
        beta=hp.beta,
        similarity=hp.similarity,
        seed=seed_of("frozen hopfield", settings.seed),
        frames=hp.cached_frames,
        dtype=torch.bfloat16 if in_bfloat16(hp.mixture_precision, inputs.device) else torch.float32,
    )
    return history_of(reader, memory, settings, inputs, arrays)


make_trainer, train, train_together, load_policy = method_with_history(make_history)
