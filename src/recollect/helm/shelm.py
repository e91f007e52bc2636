"""SHELM: images become the words that are most like them, and a language model reads those; specification 3.3.

Sources: Paischer et al. 2023 and its code. A vision-language model says which `topk` words of a vocabulary are most like an
image; their embeddings are read best first, and the history vector is what the language model makes of the last of them.

- `memory_length` counts inputs, `topk` a step; published: topk times the steps, plus one.
- How the vocabulary is matched and which texts stand around a word is the vocabulary's (config/token_vocabularies.yaml).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from recollect.common.contract import Inputs, facts_of
from recollect.helm import language_history as history
from recollect.helm.asking import Asking
from recollect.helm.method import method_with_history
from recollect.helm.settings import token_vocabulary
from recollect.helm.small_impala import channels_of
from recollect.helm.token_retrieval import TokenRetrieval, Tokens
from recollect.helm.vision.token_vocabulary import TokenVocabulary
from recollect.helm.vision.vision_language import vision_language_model
from recollect.settings.errors import UserError
from recollect.settings.schema import Settings

ACTIONS = "discrete"
OBSERVATIONS = "images"


class Hyperparameters(history.LanguageHyperparameters):
    token_vocabulary: str = Field(
        "clip", description="A name of config/token_vocabularies.yaml, which also says what images are seen with."
    )
    topk: int = Field(1, ge=1, description="Words of an image. Paper: 1, 2 or 4, by task.")
    mem_len: Literal["config"] = Field("config", description="The released SHELM remembers what is configured.")


class TokenReader(history.Reader):
    """Images -> the language model's embeddings of the words that are most like them, K each, best first."""

    def __init__(self, retrieval: TokenRetrieval, embeddings_VD: Tensor) -> None:
        self.retrieval, self.cache = retrieval, retrieval.cache
        self.embeddings_VD = embeddings_VD
        self._newest: Tokens | None = None

    def reading(self, images: np.ndarray, *, learn: bool = False) -> Asking:
        found = yield from self.cache.reading(images)
        self._newest = self.retrieval.tokens(found)
        return self.embeddings_VD[self._newest.lm_ids_NK]

    def traced(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        """The words of the newest images, best first, and their cosines."""
        assert self._newest is not None
        rows = torch.from_numpy(rows_N).to(self.embeddings_VD.device)
        found = {"tokens": self._newest.lm_ids_NK[rows], "token_scores": self._newest.scores_NK[rows]}
        return {name: value.cpu().numpy() for name, value in found.items()}


def make_history(
    settings: Settings, inputs: Inputs, arrays: Mapping[str, np.ndarray] | None = None
) -> history.LanguageHistory:
    """The memory of a run's agent. Raises UserError: the vocabulary is of another language model."""
    hp: Hyperparameters = settings.method.hyperparameters
    words = token_vocabulary(hp.token_vocabulary)
    if words.language_model != hp.language_model:
        raise UserError(
            f"the words are of the language model '{words.language_model}', and '{hp.language_model}' is to read them",
            where=f"config/token_vocabularies.yaml: {hp.token_vocabulary}",
            do="choose a vocabulary of that language model",
        )
    memory = history.memory_of(settings, inputs, tokens=hp.topk)
    model = vision_language_model(
        words.vision_language_model,
        settings.scale,
        model=inputs.get("vision_language_model"),
        device=inputs.device,
    )
    vocabulary = TokenVocabulary.on(inputs.device, inputs.need("token_vocabulary"))
    channels = channels_of(facts_of(settings.environment).image_shape)
    retrieval = TokenRetrieval(model, vocabulary, hp.topk, remembered=hp.cached_frames, channels=channels)
    return history.history_of(TokenReader(retrieval, memory.embeddings_VD), memory, settings, inputs, arrays)


make_trainer, train, train_together, load_policy = method_with_history(make_history)
