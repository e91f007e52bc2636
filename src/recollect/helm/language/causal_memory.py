"""GPT-2 as memory: it keeps keys and values of the inputs of each row.

Its positions are learned and absolute, so a full window cannot roll: the older half is forgotten and the newer half read
again from position 0. So a row remembers between M/2 and M inputs.

Source: HELM's list of what is to be done (specification 3.4, 9.5).
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recollect.common.cache import KeyValueCache
from recollect.common.language_models import load_language_model
from recollect.common.transfer import sent
from recollect.common.transformer import Transformer, TransformerSettings
from recollect.helm.language.language_vocabulary import vocabulary
from recollect.helm.language.token_window import TokenWindow, check_inputs, check_length, right_aligned, unfit
from recollect.settings.schema import LanguageModelSettings

GPT2_PARTS = {
    "ln_1": "norm_attention",
    "attn.c_attn": "qkv",
    "attn.c_proj": "attention_out",
    "ln_2": "norm_mlp",
    "mlp.c_fc": "mlp_in",
    "mlp.c_proj": "mlp_out",
}


class CausalMemory:
    """See the head of this file and `LanguageMemory`; `memory_length` is at most T, `batch_tokens` at most M/2."""

    def __init__(
        self,
        model: Transformer,
        embeddings_VD: Tensor,
        places_TD: Tensor,
        words: tuple[str, ...],
        memory_length: int,
        batch_tokens: int,
    ) -> None:
        self.model, self.embeddings_VD, self._places_TD, self.vocabulary = model, embeddings_VD, places_TD, words
        self.width = self.output_width = model.width
        self.memory_length, self.batch_tokens, self._kept = memory_length, batch_tokens, memory_length // 2
        self.start(0)

    def start(self, batch: int) -> None:
        device = self.embeddings_VD.device
        self.window = TokenWindow(batch, self.memory_length, self.width, device)
        self.cache = KeyValueCache(self.model, batch, self.memory_length, device)
        self._shown: TokenWindow | None = None

    def reset(self, mask_B: Tensor) -> None:
        self.window.reset(mask_B)
        self.cache.reset(sent(mask_B, self.embeddings_VD.device))

    def step(self, inputs_BKD: Tensor) -> Tensor:
        K = inputs_BKD.shape[1]
        check_inputs(self.window, inputs_BKD, self.batch_tokens)
        self._make_room(K)
        place_BK = self.window.lengths_B[:, None] + torch.arange(K, device=inputs_BKD.device)
        hidden_BKD = self.cache.extend(inputs_BKD + self._places_TD[place_BK], None)
        self.window.append(inputs_BKD)
        self._shown = copy(self.window)
        return hidden_BKD[:, -1]

    def _make_room(self, tokens: int) -> None:
        full_B = self.window.make_room(tokens, self._kept)
        if bool(full_B.any()):
            self.cache.reset(full_B)
            if not self._kept:  # half of a memory of one token
                return
            again = self.window.tokens_BMD[:, : self._kept] + self._places_TD[: self._kept]
            self.cache.extend(again, full_B[:, None].expand(len(full_B), self._kept))

    def peek(self, inputs_BKD: Tensor) -> Tensor:
        """See `LanguageMemory`. A full row makes its room here already, as its next step would."""
        check_inputs(self.window, inputs_BKD, self.batch_tokens)
        self._make_room(inputs_BKD.shape[1])
        before = self.window, self.cache
        self.window, self.cache = copy(self.window), copy(self.cache)  # what is written lies behind the real keys
        try:
            return self.step(inputs_BKD)
        finally:
            self.window, self.cache = before

    def attention(self, rows_N: Tensor | None = None) -> Tensor | None:
        if self._shown is None:
            return None
        shown = self._shown if rows_N is None else self._shown.select(rows_N)
        lengths_B = shown.lengths_B
        longest = int(lengths_B.max())
        place_T = torch.arange(longest, device=lengths_B.device)
        with torch.no_grad():
            _, maps = self.model(
                shown.tokens_BMD[:, :longest] + self._places_TD[:longest],
                mask_BT=place_T < lengths_B[:, None],
                return_attention=True,
            )
        newest_B111 = (lengths_B - 1)[:, None, None, None]
        rows = [map_BHTT.take_along_dim(newest_B111, 2)[:, :, 0].mean(1) for map_BHTT in maps.self_BHTT]
        return right_aligned(torch.stack(rows), lengths_B, self.memory_length)

    def arrays(self) -> dict[str, Tensor]:
        return self.window.arrays() | {f"cache{i}": layer for i, layer in enumerate(self.cache.layers)}

    def load(self, arrays: Mapping[str, Any]) -> None:
        self.start(len(arrays["lengths"]))
        self.window.load(arrays)
        for i, layer in enumerate(self.cache.layers):
            layer.copy_(torch.as_tensor(arrays[f"cache{i}"]))
        self.cache.lengths_B = self.window.lengths_B.clone()
        self.cache.reset(torch.zeros_like(self.window.lengths_B, dtype=torch.bool))  # it measures the lengths


def causal_memory(
    settings: LanguageModelSettings,
    *,
    folder: Path | None,
    memory_length: int,
    layers: int | None,
    batch_tokens: int,
    dtype: torch.dtype,
    device: str | torch.device,
) -> CausalMemory:
    """GPT-2 as memory; see `language_memory`. Raises UserError: another model, another precision, or it is too small."""
    if dtype != torch.float32:
        raise unfit("A model of GPT-2's kind is read in float32 only.", "Set language_precision: float32.")
    loaded = load_language_model(settings, folder=folder, layers=layers, device=device)
    published: Any = loaded.model
    config = published.config
    if config.model_type != "gpt2":
        raise unfit(f"A model of type '{config.model_type}' is not read as GPT-2.", "Choose another kind for it.")
    check_length(memory_length, loaded.max_length, batch_tokens, memory_length - memory_length // 2)
    weights = published.state_dict()
    model = Transformer(
        TransformerSettings(
            width=config.n_embd,
            layers=len(published.h),
            heads=config.n_head,
            inner_multiple=(config.n_inner or 4 * config.n_embd) // config.n_embd,
            dropout=0.0,
            activation="gelu_tanh",
            norm_eps=config.layer_norm_epsilon,
        )
    )
    model.load_state_dict(gpt2_weights(weights, len(published.h)))
    model.to(device).eval().requires_grad_(False)
    words = vocabulary(settings, folder)
    return CausalMemory(model, loaded.embeddings, weights["wpe.weight"], words, memory_length, batch_tokens)


def gpt2_weights(weights: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """The published weights of GPT-2 under the names of our `Transformer`."""
    ours = {"norm_final.weight": weights["ln_f.weight"], "norm_final.bias": weights["ln_f.bias"]}
    for i in range(layers):
        for theirs, ours_part in GPT2_PARTS.items():
            weight = weights[f"h.{i}.{theirs}.weight"]  # its products are x W, not x W^T
            ours[f"blocks.{i}.{ours_part}.weight"] = weight.T.contiguous() if weight.ndim == 2 else weight
            ours[f"blocks.{i}.{ours_part}.bias"] = weights[f"h.{i}.{theirs}.bias"]
    return ours
