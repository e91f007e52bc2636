"""What the small dual encoder learns from and is judged by: captions of drawn tiles, and other words beside them."""

from __future__ import annotations

from typing import Any

from recollect.artifacts.run import Run
from recollect.helm.language.language_vocabulary import vocabulary
from recollect.helm.vision import dual_encoder
from recollect.helm.vision.captioned_tiles import captions
from recollect.helm.vision.sentences import SentenceEncoder
from recollect.settings.resolve import language_model

COMMON, EVERY = 8000, 8  # of the first so many tokens of the language model, every so manieth word


def trained_encoder(
    chosen: dual_encoder.Hyperparameters, language: str, run: Run
) -> tuple[dual_encoder.DualEncoder, dict[str, Any], dict[str, Any]]:
    """Train a dual encoder behind a language model, or go on with it.

    Returns the encoder, what its weights are about, and how often it is right about pictures that it never saw.
    """
    sentences = SentenceEncoder(language)
    said = {word for caption in captions() for word in caption.split()}
    common = vocabulary(language_model(language))[:COMMON]
    others = [word for word in common if word.isalpha() and len(word) > 2 and word not in said]
    learned, unseen = others[::EVERY], others[EVERY // 2 :: EVERY]
    network = dual_encoder.train(chosen, sentences, learned, run)
    trained = dual_encoder.DualEncoder(network, language, "cpu")
    words = [caption for caption in captions() if " " not in caption]
    judged = dual_encoder.accuracy(trained, [*words, *unseen], chosen)
    about = {
        "width": chosen.width,
        "channels": chosen.channels,
        "sentence_width": network.text.in_features,
        "language_model": language,
    }
    return trained, about, {**judged, "words": len(words), "other_words": len(unseen)}
