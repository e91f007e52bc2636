"""The words that SHELM sees with: those that a vision-language model and a language model both know, and their vectors.

Made once by `recollect embed-vocabulary`. A word is a string of the vision-language model's vocabulary (or of a list of words)
that the language model has a token for. Its vector is the mean of the text encoder's vectors of all templates with the word
in them, neither it nor they of length one; stored rows are (retrieval is by cosine).

Differences from the released code: words are kept once where several ids of CLIP have the same string (only pieces that are
no text do); vectors of words that the language model does not know are never computed; texts are read in float32, where the
released program, on its GPU, reads them and takes the means over templates in float16. What matches is an option: released code
compares CLIP's strings as they are, and those that end a word end in a space, so "maze" or "corridor" are lost
(`exact`); `stripped` and `cased` find them.

Source: SHELM (arXiv 2306.09312) and its released `prepare_embeddings`; specification 3.3.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from recollect.artifacts.sealed import read_arrays, read_metadata
from recollect.common.index import matmul_search
from recollect.helm.frozen_files import frozen
from recollect.settings.errors import UserError

KIND = "token vocabulary"
Match = Literal["exact", "stripped", "cased"]


@dataclass(frozen=True)
class TokenVocabulary:
    """V words, by position.

    Attributes:
        strings: as the language model spells them.
        lm_ids_V: int64, their ids in the language model.
        embeddings_VW: float32, rows of length one.
        about: how it was made: `match`, `templates`, names and hashes of both vocabularies.
    """

    strings: tuple[str, ...]
    lm_ids_V: Tensor
    embeddings_VW: Tensor
    about: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> TokenVocabulary:
        """Read a sealed file. Raises UserError: it is missing, corrupted or no token vocabulary."""
        arrays = read_arrays(path, kind=KIND)
        about = json.loads(read_metadata(path)["about"])
        lm_ids_V, embeddings_VW = (torch.from_numpy(np.array(arrays[name])) for name in ("lm_ids", "embeddings"))
        return cls(tuple(about.pop("strings")), lm_ids_V, embeddings_VW, about)

    @classmethod
    def on(cls, device: str | torch.device, path: Path) -> TokenVocabulary:
        """A file is read once for each device; whoever asks again gets the same object."""
        return frozen(lambda: cls.open(path).to(device), path, "words", torch.device(device))

    def to(self, device: str | torch.device) -> TokenVocabulary:
        return TokenVocabulary(self.strings, self.lm_ids_V.to(device), self.embeddings_VW.to(device), self.about)

    def nearest(self, queries_NW: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k words most like each query: cosines [N, k] best first, positions [N, k] (of equals the lowest)."""
        if not 1 <= k <= len(self.strings):
            raise UserError(
                f"{k} tokens are asked for, of a vocabulary of {len(self.strings)}",
                where="token vocabulary",
                do=f"ask for 1 to {len(self.strings)}",
            )
        if queries_NW.shape[-1] != self.embeddings_VW.shape[1]:
            raise UserError(
                f"images of width {queries_NW.shape[-1]} meet words of width {self.embeddings_VW.shape[1]}",
                where="token vocabulary",
                do="use the vision-language model that the vocabulary was made with",
            )
        return matmul_search(F.normalize(queries_NW.float(), dim=1), self.embeddings_VW, k, largest=1.0)


def usable(candidates: Sequence[str], known: Sequence[str], match: Match) -> tuple[list[int], list[int]]:
    """Which strings the language model has tokens for: their places among the candidates, ascending, and its ids.

    Args:
        candidates: strings of the vision-language model, by its ids.
        known: strings of the language model, by its ids.
        match: `exact`; `stripped`: without spaces around them; `cased`: and else in lower case, and else capitalised. Where
            the language model's words begin with a space, as GPT-2's do, that spelling comes before the one without.
    """
    ids: dict[str, int] = {}
    for i, string in enumerate(known):
        ids.setdefault(string, i)
    found: dict[int, int] = {}
    for place, string in enumerate(candidates):
        stripped = string.strip()
        spellings = {
            "exact": (string,),
            "stripped": (stripped,),
            "cased": (stripped, stripped.lower(), stripped.capitalize()),
        }[match]
        for spelling in spellings:
            known_as = (spelling,) if match == "exact" else (f" {spelling}", spelling)
            lm_id = next((ids[form] for form in known_as if form in ids), None)
            if spelling and lm_id is not None:
                found.setdefault(lm_id, place)
                break
    pairs = sorted((place, lm_id) for lm_id, place in found.items())
    return [place for place, _ in pairs], [lm_id for _, lm_id in pairs]


def embedded(strings: Sequence[str], templates: Sequence[str], texts: Callable[[Sequence[str]], Tensor]) -> np.ndarray:
    """Vectors float32 [N, W] of words, of length one, along the mean over templates (with one `{}`) of the vectors."""
    filled = [template.replace("{}", string) for string in strings for template in templates]
    mean_NW = texts(filled).float().unflatten(0, (len(strings), len(templates))).mean(1)
    return F.normalize(mean_NW, dim=1).cpu().numpy()
