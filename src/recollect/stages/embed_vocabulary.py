"""embed-vocabulary: vision-language model + language model's words -> the words that SHELM sees with
(`data/{scale}/token_vocabularies/{vocabulary}.safetensors`).

Killed at any instant, the same command goes on from the last part and ends with the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from recollect.artifacts.lock import run_lock
from recollect.artifacts.sealed import write_arrays
from recollect.common import language_models
from recollect.common.encoding import encode_in_parts, remove_parts
from recollect.helm.token_vocabulary import KIND, embedded, usable
from recollect.helm.vision_language import ClipModel, vision_language_model
from recollect.settings.errors import UserError
from recollect.settings.resolve import language_model, prompt_templates, token_vocabulary
from recollect.stages import paths, provenance
from recollect.stages.inputs import vocabulary_inputs

ROWS = 1024  # words per part: CLIP on one core encodes about so many in ten minutes


def hash_of(strings: Sequence[str]) -> str:
    """The sha256 of a vocabulary: its strings by id, as JSON."""
    return hashlib.sha256(json.dumps(list(strings)).encode()).hexdigest()


def embed_vocabulary(scale: str, name: str, *, device: str = "cpu") -> None:
    """Embed the words of a token vocabulary.

    Raises:
        UserError: a name is unknown, a model is missing or corrupted, or no word is known to both models.
    """
    settings, inputs = token_vocabulary(name), vocabulary_inputs(scale, name)
    templates, reader = prompt_templates(settings.templates), language_model(settings.language_model)
    known = provenance.describe(
        provenance.vocabulary_settings(scale, name), provenance.vocabulary_code(), inputs.values(), device
    )
    where = f"config/token_vocabularies.yaml: vocabularies.{name}"
    folder = paths.vocabulary_checkpoints(scale, name)
    with run_lock(folder):
        sees = vision_language_model(
            settings.vision_language_model, model=inputs.get("vision_language_model"), device=device
        )
        candidates = settings.words or (sees.vocabulary.strings if isinstance(sees, ClipModel) else ())
        if not candidates:
            what = f"the vision-language model '{settings.vision_language_model}' has no vocabulary of its own"
            raise UserError(what, where=where, do="list `words`")
        lm_file = inputs.get("language_model")
        lm_strings = language_models.vocabulary(reader, None if lm_file is None else lm_file.parent)
        places, lm_ids = usable(candidates, lm_strings, settings.match)
        if not places:
            do = "choose another match, or words of the language model"
            raise UserError("no word is known to both models", where=where, do=do)
        strings = [lm_strings[i] for i in lm_ids]
        vectors_VW = encode_in_parts(
            np.arange(len(strings)),
            lambda rows: embedded([strings[i] for i in rows], templates, sees.texts),
            folder,
            provenance=known,
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
        write_arrays(
            paths.token_vocabulary(scale, name),
            {
                "embeddings": np.array(vectors_VW),
                "clip_ids": np.array(places, np.int64),
                "lm_ids": np.array(lm_ids, np.int64),
            },
            kind=KIND,
            provenance=known,
            metadata={"about": json.dumps(about, sort_keys=True)},
        )
        remove_parts(folder)
