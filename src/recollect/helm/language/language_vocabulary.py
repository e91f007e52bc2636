"""The words of a frozen language model: what its tokens are called. HELM shows them, and SHELM sees with them.

They lie beside the weights: as the lines of a text file or the keys of a JSON file, or, of SmolLM2, in the file of weights.
"""

from __future__ import annotations

import json
from pathlib import Path

from recollect.artifacts.sealed import verify
from recollect.common.language_models import KIND, RANDOM_VOCABULARY, WEIGHTS, package_folder, package_weights
from recollect.helm.language.byte_level import text_of
from recollect.settings.errors import UserError
from recollect.settings.schema import LanguageModelSettings

WORDS = ("vocab.txt", "vocab.json")  # BERT's and Transformer-XL's; GPT-2's and RoBERTa's
MEANING = ("key", "ball", "box", "door", "wall", "floor", "goal", "red", "green", "blue", "purple", "yellow", "grey")


def vocabulary(settings: LanguageModelSettings, folder: Path | None = None) -> tuple[str, ...]:
    """The strings of a model's tokens, by id. Of random models: a few words that mean something, and numbered ones.

    Raises:
        UserError: the model came without them.
    """
    if settings.kind == "llama" and settings.source == "package":
        from recollect.helm.language.rotary_file import words  # imports gguf, which only SmolLM2 needs

        return words(package_weights(settings))
    if folder is not None:
        folder = Path(folder)
        folder = folder.parent if folder.name == WEIGHTS else folder
    elif settings.source == "package":
        folder = package_folder(settings)
    if folder is None or settings.source == "random":
        return (*MEANING, *(f"word{i}" for i in range(len(MEANING), RANDOM_VOCABULARY)))
    file = next((folder / name for name in WORDS if (folder / name).is_file()), None)
    if file is None:
        raise UserError(
            f"The language model has neither {' nor '.join(WORDS)}, so its tokens have no names.",
            where=folder,
            do="Add the file and its sha256 to the model's entry in config/language_models.yaml and fetch it again.",
        )
    if settings.source == "hub":
        verify(file, kind=KIND)
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".txt":
        return tuple(text.removesuffix("\n").split("\n"))
    ids = json.loads(text)
    return tuple(text_of(token) for token in sorted(ids, key=ids.__getitem__))
