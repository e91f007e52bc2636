"""Reading a rotary transformer of Llama's architecture from a GGUF file: weights, dequantised, and words.

A GGUF file is data only: nothing in it is run. Of SmolLM2-135M-Instruct (Q4_1) 30 layers are 4 bits a weight, and the
embeddings, which predict words as well and are not used for that here, 8 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from recollect.helm.language.byte_level import text_of
from recollect.helm.language.rotary_transformer import RotaryTransformer, RotaryTransformerSettings
from recollect.settings.errors import UserError

SIZES = {  # our settings -> the file's keys
    "width": "embedding_length",
    "layers": "block_count",
    "heads": "attention.head_count",
    "shared_heads": "attention.head_count_kv",
    "inner": "feed_forward_length",
    "base": "rope.freq_base",
    "norm_eps": "attention.layer_norm_rms_epsilon",
}
JOINED = {  # our layers' weights -> the file's
    "norm_attention": ("attn_norm",),
    "qkv": ("attn_q", "attn_k", "attn_v"),
    "attention_out": ("attn_output",),
    "norm_mlp": ("ffn_norm",),
    "mlp_in": ("ffn_gate", "ffn_up"),
    "mlp_out": ("ffn_down",),
}


class _Reader(gguf.GGUFReader):  # type: ignore[misc]
    """Reads its 250,000 small parts from a plain view of the mapped file, which takes a third of the time."""

    def _get(self, *args: Any, **options: Any) -> Any:
        if isinstance(self.data, np.memmap):
            self.data = np.asarray(self.data)  # type: ignore[assignment]
        return super()._get(*args, **options)


def load(path: Path, *, layers: int | None = None) -> RotaryTransformer:
    """The model of a file, or its first layers.

    Raises:
        UserError: the file is no such model, or has fewer layers.
    """
    settings, tensors, _ = _opened(path)
    settings = settings.shortened(layers)
    with torch.device("meta"):
        model = RotaryTransformer(settings)
    model.load_state_dict(renamed(settings, tensors), assign=True)
    return model.eval().requires_grad_(False)


def words(path: Path) -> tuple[str, ...]:
    """The strings of its tokens, by id; those that begin a word begin with a space."""
    return _opened(path)[2]


@cache  # two answers are read from one file, and reading it takes a second
def _opened(path: Path) -> tuple[RotaryTransformerSettings, dict[str, Any], tuple[str, ...]]:
    try:
        reader = _Reader(path)
        said = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("tokenizer.chat")}
        sizes = {ours: said[f"llama.{theirs}"] for ours, theirs in SIZES.items()}
        head_width = said.get("llama.rope.dimension_count", sizes["width"] // sizes["heads"])
        strings = said["tokenizer.ggml.tokens"]
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise strange(f"it is no GGUF file of a Llama model ({type(error).__name__}: {error})", path) from error
    settings = RotaryTransformerSettings(vocabulary=len(strings), head_width=head_width, **sizes)
    extra = [key for key in said if key.startswith("llama.rope.scaling")]
    if extra or said.get("tokenizer.ggml.model") != "gpt2":
        raise strange(f"it has {extra or 'a tokenizer of another kind'}", path)
    return settings, {tensor.name: tensor for tensor in reader.tensors}, tuple(map(text_of, strings))


def renamed(settings: RotaryTransformerSettings, tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """The first layers' weights under our names, float32."""

    def read(name: str) -> Tensor:
        tensor = tensors[f"{name}.weight"]
        array = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        heads = {"attn_q": settings.heads, "attn_k": settings.shared_heads}.get(name.rpartition(".")[2])
        if heads is not None:  # the file's format pairs neighbours in a head, we its two halves
            array = array.reshape(heads, -1, 2, settings.width).swapaxes(1, 2).reshape(array.shape)
        return torch.from_numpy(np.ascontiguousarray(array))

    found = {"embeddings": read("token_embd"), "norm_final.weight": read("output_norm")}
    for i in range(settings.layers):
        for ours, theirs in JOINED.items():
            found[f"layers.{i}.{ours}.weight"] = torch.cat([read(f"blk.{i}.{name}") for name in theirs])
    return found


def strange(what: str, path: Path) -> UserError:
    return UserError(f"The language model's file cannot be read: {what}.", where=path, do="Install the pinned package.")
