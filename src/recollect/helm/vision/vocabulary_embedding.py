"""The words that a vision-language model and a language model share, embedded: what SHELM sees with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recollect.common.parts_on_disk import encode_in_parts
from recollect.helm.language.language_vocabulary import vocabulary
from recollect.helm.settings import TokenVocabularySettings, prompt_templates
from recollect.helm.vision.token_vocabulary import embedded, usable
from recollect.helm.vision.vision_language import ClipModel, vision_language_model
from recollect.settings.errors import UserError
from recollect.settings.resolve import language_model

ROWS = 1024  # words per part: CLIP on one core encodes about so many in ten minutes


def hash_of(strings: Sequence[str]) -> str:
    """The sha256 of a vocabulary: its strings by id, as JSON."""
    return hashlib.sha256(json.dumps(list(strings)).encode()).hexdigest()


def embedded_words(
    settings: TokenVocabularySettings,
    scale: str,
    inputs: Mapping[str, Path],
    parts: Path,
    *,
    provenance: dict[str, Any],
    device: str,
    where: str,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Embed the words of a token vocabulary, going on from the parts that were made before.

    Args:
        scale: at which they are embedded; see `vision_language_model`.
        inputs: files of the two models, where they have some.
        provenance: what the vectors are a function of.

    Returns arrays (`embeddings` [V, W], `clip_ids` [V], `lm_ids` [V]), and what they are about.
    Raises UserError: no words are listed or known, or none is known to both models.
    """
    templates, reader = prompt_templates(settings.templates), language_model(settings.language_model)
    sees = vision_language_model(
        settings.vision_language_model, scale, model=inputs.get("vision_language_model"), device=device
    )
    candidates = settings.words or (sees.vocabulary.strings if isinstance(sees, ClipModel) else ())
    if not candidates:
        what = f"the vision-language model '{settings.vision_language_model}' has no vocabulary of its own"
        raise UserError(what, where=where, do="list `words`")
    lm_file = inputs.get("language_model")
    lm_strings = vocabulary(reader, None if lm_file is None else lm_file.parent)
    places, lm_ids = usable(candidates, lm_strings, settings.match)
    if not places:
        do = "choose another match, or words of the language model"
        raise UserError("no word is known to both models", where=where, do=do)
    strings = [lm_strings[i] for i in lm_ids]
    vectors_VW = encode_in_parts(
        np.arange(len(strings)),
        lambda rows: embedded([strings[i].strip() for i in rows], templates, sees.texts),
        parts,
        provenance=provenance,
        rows=ROWS,
        what="words",
    )
    about = {
        "strings": strings,
        "match": settings.match,
        "templates": list(templates),
        "vision_language_model": settings.vision_language_model,
        "language_model": settings.language_model,
        "vocabulary_sha256": {"vision_language_model": hash_of(candidates), "language_model": hash_of(lm_strings)},
    }
    arrays = {
        "embeddings": np.array(vectors_VW),
        "clip_ids": np.array(places, np.int64),
        "lm_ids": np.array(lm_ids, np.int64),
    }
    return arrays, about
