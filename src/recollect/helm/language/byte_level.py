"""Tokens of vocabularies of bytes, as GPT-2's, RoBERTa's and SmolLM2's are: what text they stand for.

Such a vocabulary writes each byte as one character that can be seen: a space is written as \u0120.
"""

from __future__ import annotations

from tokenizers.decoders import ByteLevel


def text_of(token: str) -> str:
    """A token's text; of some bytes of a character: how they are written, in angle brackets."""
    text: str = ByteLevel().decode([token])
    return f"<{token}>" if "\ufffd" in text else text
