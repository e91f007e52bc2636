"""CLIP's words: the byte-pair vocabulary that follows from its list of merges, ids to strings and texts to ids.

Ids: 256 bytes, the same 256 at the end of a word (`</w>`), one for each merge in order, start and end of text.

Source: Radford et al. 2021 (the released byte-pair encoding, 49,408 ids); specification 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recollect.settings.errors import UserError

END_OF_WORD = "</w>"
START, END = "<|startoftext|>", "<|endoftext|>"
MERGES = 48_894
CONTEXT = 77


class ClipVocabulary:
    """CLIP's tokens; `merges.txt` has a line of its version and then one merge per line."""

    def __init__(self, path: Path) -> None:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        self.merges = [tuple(line.split()) for line in lines[1:] if line]
        if len(self.merges) != MERGES or any(len(merge) != 2 for merge in self.merges):
            raise UserError(
                f"this is not CLIP's list of {MERGES} merges, but has {len(self.merges)} lines",
                where=path,
                do="delete it and fetch the model again",
            )
        letters = list(_letters().values())
        words = [*letters, *(letter + END_OF_WORD for letter in letters), *map("".join, self.merges), START, END]
        self.ids = {word: i for i, word in enumerate(words)}

    @cached_property
    def strings(self) -> tuple[str, ...]:
        """What each id decodes to; the end of a word is a space, as upstream has it, and what is no text is U+FFFD."""
        of_letter = {letter: byte for byte, letter in _letters().items()}

        def decoded(word: str) -> str:
            if word in (START, END):
                return word
            stem = word.removesuffix(END_OF_WORD)
            text = bytes(of_letter[letter] for letter in stem).decode("utf-8", errors="replace")
            return text + " " * (stem != word)

        return tuple(decoded(word) for word in self.ids)

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import CLIPTokenizer

        return CLIPTokenizer(vocab=self.ids, merges=self.merges)  # type: ignore[arg-type]

    def tokens(self, texts: Sequence[str]) -> list[Tensor]:
        """int64 ids of each text, with start and end, at most 77."""
        found = self._tokenizer(list(texts), truncation=True, max_length=CONTEXT)["input_ids"]
        return [torch.tensor(ids) for ids in found]


def _letters() -> dict[int, str]:
    """A printable letter for each byte: itself where it is printable, else one from U+0100 on. Ordered as CLIP's ids."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
