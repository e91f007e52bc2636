"""BERT and its kin as memory: they read [CLS] and the last M inputs of each row anew at every step.

Positions count from [CLS] in each row; padding is never attended to. On a CPU each different window is read once. In
MiniGrid-Memory of size 7 with 12 inputs, 29 % of SHELM's first 2,000 windows are new, and 3 % after 30,000.

Source: HELM's list of what is to be done (specification 3.4, 9.5).
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from recollect.artifacts.checkpoints import joined, part
from recollect.common.language_models import ROBERTA_OFFSET, load_language_model
from recollect.helm.frame_cache import VectorCache, key_of
from recollect.helm.language.encoder import Encoder
from recollect.helm.language.language_vocabulary import vocabulary
from recollect.helm.language.token_window import TokenWindow, check_inputs, check_length, right_aligned, unfit
from recollect.settings.schema import LanguageModelSettings

REMEMBERED = 5000  # windows whose history vectors are kept


class EncoderMemory:
    """See the head of this file and `LanguageMemory`.

    `pooling`: the history vector is the ``mean`` of the states of [CLS] and inputs, or the ``last`` input's.
    """

    def __init__(
        self,
        encoder: Encoder,
        words: tuple[str, ...],
        memory_length: int,
        batch_tokens: int,
        pooling: Literal["mean", "last"],
    ) -> None:
        self.encoder, self.vocabulary, self.embeddings_VD = encoder, words, encoder.embeddings_VD
        self.width = self.output_width = encoder.width
        self.memory_length, self.batch_tokens, self.pooling = memory_length, batch_tokens, pooling
        start = next((i for i, word in enumerate(words) if word in ("[CLS]", "<s>")), 0)
        self._start_D = self.embeddings_VD[start]
        # A GPU would be waited for: it reads whole windows, padding too.
        self.packed = self.embeddings_VD.device.type == "cpu"
        self.cache = VectorCache(REMEMBERED) if self.packed else None
        self.start(0)

    def start(self, batch: int) -> None:
        self.window = TokenWindow(batch, self.memory_length, self.width, self.embeddings_VD.device)
        self._shown: TokenWindow | None = None

    def reset(self, mask_B: Tensor) -> None:
        self.window.reset(mask_B)

    def step(self, inputs_BKD: Tensor) -> Tensor:
        check_inputs(self.window, inputs_BKD, self.batch_tokens)
        K = inputs_BKD.shape[1]
        self.window.make_room(K, kept=self.memory_length - K)
        self.window.append(inputs_BKD)
        self._shown = copy(self.window)
        tokens_BMD = self.window.tokens_BMD
        lengths_B = self.window.lengths_B
        if self.cache is None:
            return self._read(tokens_BMD, lengths_B)
        keys = []
        for row_MD, length in zip(tokens_BMD.numpy(), lengths_B.numpy(), strict=True):
            keys.append(key_of(row_MD[:length]))
        return self.cache.find(keys, lambda rows: self._read(tokens_BMD[rows], lengths_B[rows]))

    def _read(self, tokens_BMD: Tensor, lengths_B: Tensor) -> Tensor:
        """History vectors [B, H] of windows."""
        states, _ = self._states(tokens_BMD, lengths_B)
        return states[:, 0] if self.pooling == "last" else states.sum(1) / (lengths_B + 1)[:, None]

    def _states(self, tokens_BMD: Tensor, lengths_B: Tensor) -> tuple[Tensor, list[Tensor]]:
        start_B1D = self._start_D.expand(len(tokens_BMD), 1, -1)
        if self.packed:
            tokens_BMD = tokens_BMD[:, : int(lengths_B.max())]
        tokens_BTD = torch.cat([start_B1D, tokens_BMD], 1)
        return self.encoder.read(tokens_BTD, lengths_B + 1, last=self.pooling == "last", packed=self.packed)

    def peek(self, inputs_BKD: Tensor) -> Tensor:
        before, self.window = self.window, copy(self.window)  # its tensors are never changed in place
        try:
            return self.step(inputs_BKD)
        finally:
            self.window = before

    def attention(self, rows_N: Tensor | None = None) -> Tensor | None:
        """See `LanguageMemory`; the newest input's, or with `mean` the mean over all of the window. Computed anew."""
        if self._shown is None:
            return None
        shown = self._shown if rows_N is None else self._shown.select(rows_N)
        rows, lengths_B = [], shown.lengths_B
        for map_BHQT in self._states(shown.tokens_BMD, lengths_B)[1]:
            by_query_BQT = map_BHQT.mean(1)
            if by_query_BQT.shape[1] == 1:
                weights_BT = by_query_BQT[:, 0]
            elif self.pooling == "last":
                weights_BT = by_query_BQT.take_along_dim(lengths_B[:, None, None], 1)[:, 0]
            else:
                real_BT = torch.arange(by_query_BQT.shape[1], device=lengths_B.device) <= lengths_B[:, None]
                weights_BT = (by_query_BQT * real_BT[:, :, None]).sum(1) / real_BT.sum(1, keepdim=True)
            rows.append(weights_BT[:, 1:])
        return right_aligned(torch.stack(rows), lengths_B, self.memory_length)

    def arrays(self) -> dict[str, Tensor]:
        arrays = self.window.arrays()
        if self.cache is not None:
            arrays |= joined(read=self.cache.arrays())
        return arrays

    def load(self, arrays: Mapping[str, Any]) -> None:
        self.start(len(arrays["lengths"]))
        self.window.load(arrays)
        if self.cache is not None:
            self.cache.load(part(arrays, "read"))


def encoder_memory(
    settings: LanguageModelSettings,
    *,
    folder: Path | None,
    memory_length: int,
    layers: int | None,
    batch_tokens: int,
    pooling: Literal["mean", "last"],
    dtype: torch.dtype,
    device: str | torch.device,
) -> EncoderMemory:
    """BERT or RoBERTa as memory; see `language_memory`. Raises UserError as `causal_memory`."""
    loaded = load_language_model(settings, folder=folder, layers=layers, device=device)
    published: Any = loaded.model
    config = published.config
    if config.model_type not in ("bert", "roberta"):
        raise unfit(f"A model of type '{config.model_type}' is not read as an encoder.", "Choose BERT or RoBERTa.")
    check_length(memory_length + 1, loaded.max_length, batch_tokens, memory_length)
    encoder = Encoder(
        published.state_dict(),
        heads=config.num_attention_heads,
        norm_eps=config.layer_norm_eps,
        first_position=ROBERTA_OFFSET if config.model_type == "roberta" else 0,
        dtype=dtype,
    )
    return EncoderMemory(encoder, vocabulary(settings, folder), memory_length, batch_tokens, pooling)
