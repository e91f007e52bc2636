"""SHELM: images become the words that are most like them, and a language model reads those; specification 3.3.

Sources: Paischer et al. 2023 and its code. A vision-language model says which `topk` words of a vocabulary are most like an
image; their embeddings are read best first, and the history vector is what the language model makes of the last of them.

- There is no threshold, nothing stands between words, and the same word may be read at every step.
- `memory_length` counts inputs, `topk` a step; published: topk times the steps, plus one.
- Ablation: with `untrained_images` the image encoder's weights are random, so that an image has words that do not describe it.
- How the vocabulary is matched and which texts stand around a word is the vocabulary's (config/token_vocabularies.yaml).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from recollect.common.contract import Inputs
from recollect.helm import language_history as history
from recollect.helm.asking import Asking
from recollect.helm.frame_cache import FrameCache
from recollect.helm.method import method_with_history
from recollect.helm.settings import token_vocabulary
from recollect.helm.vision.token_vocabulary import TokenVocabulary
from recollect.helm.vision.vision_language import VisionLanguageModel, vision_language_model
from recollect.settings.errors import UserError
from recollect.settings.schema import Frozen, Settings

ACTIONS = "discrete"
OBSERVATIONS = "images"


class WordHyperparameters(Frozen):
    """What says how an image becomes words."""

    token_vocabulary: str = Field(
        "clip", description="A name of config/token_vocabularies.yaml, which also says what images are seen with."
    )
    topk: int = Field(1, ge=1, description="Words of an image. Paper: 1, 2 or 4, by task.")
    untrained_images: int | None = Field(
        None,
        ge=0,
        description="The image encoder's weights are drawn with this seed, and words say nothing of an image; null, the paper's: "
        "trained ones.",
    )


class Hyperparameters(history.LanguageHyperparameters, WordHyperparameters):
    mem_len: Literal["config"] = Field("config", description="The released SHELM remembers what is configured.")


class TokenReader(history.Reader):
    """Images -> the language model's embeddings of the K words that are most like each, best first.

    The vocabulary must have been made with the model; what `frames` different images are like is kept.
    """

    def __init__(
        self, model: VisionLanguageModel, vocabulary: TokenVocabulary, embeddings_VD: Tensor, *, topk: int, frames: int
    ) -> None:
        self.model, self.vocabulary, self.embeddings_VD, self.topk = model, vocabulary, embeddings_VD, topk
        self.cache = FrameCache(self._looked_at, frames, prepare=history.channels_first)
        self._tokens_BK, self._cosines_BK = torch.zeros(0, topk, dtype=torch.int64), torch.zeros(0, topk)

    @torch.inference_mode()
    def _looked_at(self, images_NCHW: Tensor) -> Tensor:
        """Cosines and positions in the vocabulary side by side, float64 [N, 2 K], which holds both exactly."""
        cosines_NK, positions_NK = self.vocabulary.nearest(self.model.images(images_NCHW), self.topk)
        return torch.cat([cosines_NK.double(), positions_NK.double()], dim=1)

    def reading(self, images: np.ndarray, *, learn: bool = False) -> Asking:
        cosines_BK, positions_BK = (yield from self.cache.reading(images)).split(self.topk, dim=1)
        self._tokens_BK, self._cosines_BK = self.vocabulary.lm_ids_V[positions_BK.long()], cosines_BK.float()
        return self.embeddings_VD[self._tokens_BK]

    def traced(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        """The words of the newest images, best first, and their cosines."""
        rows = torch.from_numpy(rows_N).to(self.embeddings_VD.device)
        found = {"tokens": self._tokens_BK[rows], "token_scores": self._cosines_BK[rows]}
        return {name: value.cpu().numpy() for name, value in found.items()}


def make_history(
    settings: Settings, inputs: Inputs, arrays: Mapping[str, np.ndarray] | None = None
) -> history.LanguageHistory:
    """The memory of a run's agent. Raises UserError: the vocabulary is of another language model."""
    hp: Hyperparameters = settings.method.hyperparameters
    check_settings(settings)
    memory = history.memory_of(settings, inputs, tokens=hp.topk)
    reader = token_reader(settings, inputs, memory.embeddings_VD)
    return history.history_of(reader, memory, settings, inputs, arrays)


def check_settings(settings: Settings) -> None:
    """Raise a UserError where the words are of another language model: before the first job, not when they are embedded."""
    hp: Any = settings.method.hyperparameters
    words = token_vocabulary(hp.token_vocabulary)
    if words.language_model != hp.language_model:
        raise UserError(
            f"the words are of the language model '{words.language_model}', and '{hp.language_model}' is to read them",
            where=f"config/token_vocabularies.yaml: {hp.token_vocabulary}",
            do="choose a vocabulary of that language model",
        )


def token_reader(settings: Settings, inputs: Inputs, embeddings_VD: Tensor) -> TokenReader:
    """What turns images into the words that a method's settings describe, of a language model with these embeddings."""
    hp: Any = settings.method.hyperparameters
    words = token_vocabulary(hp.token_vocabulary)
    model = vision_language_model(
        words.vision_language_model,
        settings.scale,
        model=inputs.get("vision_language_model"),
        device=inputs.device,
        untrained=hp.untrained_images,
    )
    vocabulary = TokenVocabulary.on(inputs.device, inputs.need("token_vocabulary"))
    return TokenReader(model, vocabulary, embeddings_VD, topk=hp.topk, frames=hp.cached_frames)


make_trainer, train, train_together, load_policy = method_with_history(make_history)
