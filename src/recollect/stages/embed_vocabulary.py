"""embed_vocabulary: vision-language model + language model's words -> the words that SHELM sees with
(`data/{scale}/token_vocabularies/{vocabulary}.safetensors`).

Killed at any instant, the same command goes on from the last part and ends with the same bytes.
"""

from __future__ import annotations

import json

from recollect.helm.settings import token_vocabulary
from recollect.stages import paths, provenance
from recollect.stages.inputs import vocabulary_inputs
from recollect.stages.stage import Job, Resources, Stage


def embed_vocabulary(scale: str, name: str, *, device: str = "cpu") -> None:
    """Embed the words that a vision-language model and a language model share."""
    from recollect.artifacts.lock import run_lock
    from recollect.artifacts.sealed import write_arrays
    from recollect.common.parts_on_disk import remove_parts
    from recollect.helm.vision.token_vocabulary import KIND
    from recollect.helm.vision.vocabulary_embedding import embedded_words

    settings = token_vocabulary(name)
    inputs = vocabulary_inputs(scale, name)
    known = STAGE.provenance(Job("embed_vocabulary", scale, name), device)
    folder = paths.vocabulary_checkpoints(scale, name)
    with run_lock(folder):
        arrays, about = embedded_words(
            settings,
            scale,
            inputs,
            folder,
            provenance=known,
            device=device,
            where=f"config/token_vocabularies.yaml: vocabularies.{name}",
        )
        write_arrays(
            paths.token_vocabulary(scale, name),
            arrays,
            kind=KIND,
            provenance=known,
            metadata={"about": json.dumps(about, sort_keys=True)},
        )
        remove_parts(folder)


STAGE = Stage(
    name="embed_vocabulary",
    over=("scale", "vocabulary"),
    reads=vocabulary_inputs,
    writes={"vocabulary": paths.token_vocabulary},
    settings=provenance.vocabulary_settings,
    modules=lambda scale, name: ["recollect.helm.vision.vocabulary_embedding"],
    # CLIP in float32, as it is read and as it is run, and a batch of texts; it reads several for each of ten thousand words.
    asks=Resources((1500, 4000), (60, 480), threads=(1, 4), gpu=True, resumes=True),
    priority=57,
    run=embed_vocabulary,
)
