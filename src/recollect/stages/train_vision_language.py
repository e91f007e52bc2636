"""train-vision-language: nothing -> a small model of images and texts (`data/{scale}/models/{model}/model.safetensors`), and how
often it is right about pictures that it never saw (`accuracy.json` beside it).

Killed at any instant, the same command goes on from the newest checkpoint and ends with the same bytes.
"""

from __future__ import annotations

import json

from recollect.artifacts.lock import run_lock
from recollect.artifacts.run import Run
from recollect.artifacts.sealed import write_arrays, write_json
from recollect.common.language_models import vocabulary
from recollect.helm import dual_encoder
from recollect.helm.captioned_tiles import captions
from recollect.helm.sentences import SentenceEncoder
from recollect.settings.errors import UserError
from recollect.settings.loading import validated
from recollect.settings.resolve import language_model
from recollect.settings.resolve import vision_language_model as model_settings
from recollect.stages import paths, provenance

COMMON, EVERY = 8000, 8  # of the first so many tokens of the language model, every so manieth word


def train_vision_language(scale: str, name: str) -> None:
    """Train a dual encoder, or go on with it.

    Raises:
        UserError: the model is not one that is trained, or a setting is wrong.
    """
    settings = model_settings(name, scale)
    where = f"config/vision_language_models.yaml: {name}"
    if settings.source != "trained":
        what = f"'{name}' comes from source '{settings.source}' and is not trained"
        raise UserError(what, where=where, do="nothing, or fetch it")
    chosen = validated(dual_encoder.Hyperparameters, settings.hyperparameters, where=f"{where}: hyperparameters")
    known = provenance.describe(provenance.vision_language_settings(scale, name), provenance.vision_language_code(), [])
    folder = paths.model_checkpoints(scale, name)
    with run_lock(folder):
        sentences = SentenceEncoder(settings.language_model)
        said = {word for caption in captions() for word in caption.split()}
        common = vocabulary(language_model(settings.language_model))[:COMMON]
        others = [word for word in common if word.isalpha() and len(word) > 2 and word not in said]
        learned, unseen = others[::EVERY], others[EVERY // 2 :: EVERY]
        run = Run(paths.trained_model(scale, name).parent, folder, settings_text=provenance.digest(repr(known)))
        network = dual_encoder.train(chosen, sentences, learned, run)
        trained = dual_encoder.DualEncoder(network, settings.language_model, "cpu")
        words = [caption for caption in captions() if " " not in caption]
        judged = dual_encoder.accuracy(trained, [*words, *unseen], chosen)
        about = {
            "width": chosen.width,
            "channels": chosen.channels,
            "sentence_width": network.text.in_features,
            "language_model": settings.language_model,
        }
        write_json(
            paths.model_accuracy(scale, name),
            {**judged, "words": len(words), "other_words": len(unseen)},
            kind="accuracy",
            provenance=known,
        )
        write_arrays(
            paths.trained_model(scale, name),
            {name: weight.detach().numpy() for name, weight in network.state_dict().items()},
            kind=dual_encoder.KIND,
            provenance=known,
            metadata={"about": json.dumps(about, sort_keys=True)},
        )
