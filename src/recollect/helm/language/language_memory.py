"""Language models as memory: they read what an agent sees, step by step, and are never trained.

Source: HELM (Paischer et al. 2022), section 3; specification sections 3.4 and 9.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from recollect.common.language_models import RANDOM_VOCABULARY
from recollect.common.precision import Precision, in_bfloat16
from recollect.helm.frozen_files import frozen
from recollect.helm.language.causal_memory import causal_memory
from recollect.helm.language.encoder_memory import encoder_memory
from recollect.helm.language.language_vocabulary import vocabulary
from recollect.helm.language.published_transformer_xl import load, shortened
from recollect.helm.language.ring_memory import RingMemory
from recollect.helm.language.rotary_memory import rotary_memory
from recollect.helm.language.transformer_xl import TransformerXL, TransformerXLSettings, XLCache
from recollect.settings.errors import UserError
from recollect.settings.resolve import language_model

RANDOM = TransformerXLSettings(
    vocabulary=RANDOM_VOCABULARY, cutoffs=(64,), division=4, width=64, layers=2, heads=4, head_width=16, inner=128
)


class LanguageMemory(Protocol):
    """A frozen language model that reads one or more input vectors per environment step and says what it makes of all so far.

    Attributes:
        width: D, of input vectors (its token embeddings).
        output_width: H, of history vectors.
        memory_length: M, inputs that it remembers at most, with the newest.
        embeddings_VD: token embeddings as the model sees them (Transformer-XL: already scaled by sqrt(D)).
        vocabulary: V strings, one for each row.

    One whose memory is large says what that of one row takes, `row_bytes`.
    """

    width: int
    output_width: int
    memory_length: int
    embeddings_VD: Tensor
    vocabulary: tuple[str, ...]

    def start(self, batch: int) -> None:
        """Remember nothing, in `batch` rows."""

    def reset(self, mask_B: Tensor) -> None: ...

    def step(self, inputs_BKD: Tensor) -> Tensor:
        """History vectors [B, H] after K more inputs, which are remembered."""

    def peek(self, inputs_BKD: Tensor) -> Tensor:
        """As `step`, but nothing is remembered (bootstrap values)."""

    def attention(self, rows_N: Tensor | None = None) -> Tensor | None:
        """How much the last `step` or `peek` looked at each remembered input: [L, N, M], oldest first, mean over heads.

        `rows_N`: of these rows only, which may cost less; None: of all.
        """

    def arrays(self) -> dict[str, Tensor]: ...

    def load(self, arrays: Mapping[str, Any]) -> None: ...


def language_memory(
    name: str,
    *,
    model: Path | None = None,
    memory_length: int,
    layers: int | None = None,
    batch_tokens: int = 1,
    pooling: Literal["mean", "last"] = "mean",
    precision: Precision = "float32",
    graphed: bool = True,
    device: str | torch.device = "cpu",
) -> LanguageMemory:
    """A language model of config/language_models.yaml as memory of M = `memory_length` inputs, at most K of them a step.

    Args:
        model: the file or folder that the workflow's rule filled; None: from the installed package, or random weights.
        pooling: encoders only. History vector: mean over the window, or the state at the newest input.
        precision: of the matrices and of what is remembered; sums, norms and softmaxes are float32. With bfloat16 a history
            vector of Transformer-XL's shape is off by 1 % of its length, with random weights, over 545 inputs and M = 511.
            A ring in float32 beside matrices in bfloat16 is as far off.
        graphed: on a GPU a step is one CUDA graph (Transformer-XL and SmolLM2).
    """
    settings = language_model(name)
    dtype = torch.bfloat16 if in_bfloat16(precision, device) else torch.float32
    common: dict[str, Any] = {"memory_length": memory_length, "batch_tokens": batch_tokens, "dtype": dtype}
    if settings.kind == "transformer_xl":
        chosen = (name, layers, dtype, torch.device(device))
        network = frozen(lambda: _Network(name, model, layers, dtype, device), model, _Network, *chosen)
        ring = partial(network.ring, length=memory_length, tokens=batch_tokens, dtype=dtype, graphed=graphed)
        return RingMemory(ring, network.table_VD, network.words)
    if settings.kind == "llama":
        return rotary_memory(settings, layers=layers, device=device, graphed=graphed, **common)
    if settings.kind == "gpt2":
        return causal_memory(settings, folder=model, layers=layers, device=device, **common)
    return encoder_memory(settings, folder=model, layers=layers, pooling=pooling, device=device, **common)


class _Network:
    """A Transformer-XL with its words; memories of one process that have the same one share it while any of them lives."""

    def __init__(
        self, name: str, model: Path | None, layers: int | None, dtype: torch.dtype, device: str | torch.device
    ) -> None:
        settings = language_model(name)
        if model is not None:
            network = load(Path(model), layers=layers)
        elif settings.source == "random":
            network = TransformerXL(shortened(RANDOM, layers), seed=0).eval().requires_grad_(False)
        else:
            raise UserError(
                f"The language model '{name}' must be fetched before it can be loaded.",
                where=f"config/language_models.yaml: {name}",
                do="Give the folder that the workflow's rule filled.",
            )
        self.network = network.to(device)
        self.table_VD = self.network.table()
        self.network.hold_products(dtype)
        self.words = vocabulary(settings, model)

    def ring(self, batch: int, **chosen: Any) -> XLCache:
        return XLCache(self.network, batch, **chosen)
