"""Language models without a recurrent state as memory: they read the last inputs of each row as a window.

- `EncoderMemory`: BERT and its kin read [CLS] and the last M inputs anew at every step. Positions count from [CLS] in each
  row; padding is never attended to. On a CPU each different window is read once (in MiniGrid-Memory of size 7 with 12
  inputs, 29 % of the first 2,000 windows of SHELM are new, and 3 % after 30,000).
- `CausalMemory`: GPT-2 keeps keys and values. Its positions are learned and absolute, so a full window cannot roll: the
  older half is forgotten and the newer half read again from position 0. So a row remembers between M/2 and M inputs.

Source: HELM's list of what is to be done (specification 3.4, 9.5).
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from recollect.common.cache import KeyValueCache
from recollect.common.language_models import ROBERTA_OFFSET, load_language_model, vocabulary
from recollect.common.transformer import Transformer, TransformerSettings
from recollect.helm.encoder import Encoder
from recollect.helm.frame_cache import VectorCache, key_of
from recollect.settings.errors import UserError
from recollect.settings.schema import LanguageModelSettings

REMEMBERED = 5000  # windows whose history vectors are kept
GPT2_PARTS = {
    "ln_1": "norm_attention",
    "attn.c_attn": "qkv",
    "attn.c_proj": "attention_out",
    "ln_2": "norm_mlp",
    "mlp.c_fc": "mlp_in",
    "mlp.c_proj": "mlp_out",
}


class TokenWindow:
    """The last inputs of B rows, each from the left: ``tokens_BMD`` and how many of them are real, ``lengths_B``."""

    def __init__(self, batch: int, length: int, width: int, device: torch.device) -> None:
        self.tokens_BMD = torch.zeros(batch, length, width, device=device)
        self.lengths_B = torch.zeros(batch, dtype=torch.int64, device=device)

    def make_room(self, tokens: int, kept: int) -> Tensor:
        """Where there is no room for so many more, forget all but the last `kept`; gives the rows where it was so."""
        length = self.tokens_BMD.shape[1]
        full_B = self.lengths_B + tokens > length
        if bool(full_B.any()):
            drop_B = torch.where(full_B, (self.lengths_B - kept).clamp(min=0), 0)
            source_BM = (torch.arange(length, device=drop_B.device) + drop_B[:, None]).clamp(max=length - 1)
            self.tokens_BMD = self.tokens_BMD[torch.arange(len(drop_B), device=drop_B.device)[:, None], source_BM]
            self.lengths_B = self.lengths_B - drop_B
        return full_B

    def append(self, inputs_BKD: Tensor) -> None:
        """Add to every row; there must be room."""
        (B, K, _), device = inputs_BKD.shape, self.lengths_B.device
        place_BK = self.lengths_B[:, None] + torch.arange(K, device=device)
        self.tokens_BMD = self.tokens_BMD.index_put((torch.arange(B, device=device)[:, None], place_BK), inputs_BKD)
        self.lengths_B = self.lengths_B + K

    def reset(self, mask_B: Tensor) -> None:
        """Forget these rows."""
        self.lengths_B = self.lengths_B.masked_fill(mask_B.to(self.lengths_B.device), 0)


class EncoderMemory:
    """See the head of this file and `LanguageMemory`.

    Args:
        encoder: reads.
        words: its vocabulary.
        memory_length: M.
        batch_tokens: K.
        pooling: the history vector is the ``mean`` of the states of [CLS] and inputs, or the ``last`` input's.
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
        self.cache = VectorCache(REMEMBERED) if self.embeddings_VD.device.type == "cpu" else None
        self.start(0)

    def start(self, batch: int) -> None:
        """See `LanguageMemory`."""
        self.window = TokenWindow(batch, self.memory_length, self.width, self.embeddings_VD.device)
        self._shown: TokenWindow | None = None

    def reset(self, mask_B: Tensor) -> None:
        """See `LanguageMemory`."""
        self.window.reset(mask_B)

    def step(self, inputs_BKD: Tensor) -> Tensor:
        """See `LanguageMemory`."""
        check_inputs(self, inputs_BKD, len(self.window.lengths_B))
        self.window.make_room(inputs_BKD.shape[1], kept=self.memory_length - inputs_BKD.shape[1])
        self.window.append(inputs_BKD)
        self._shown = copy(self.window)
        if self.cache is None:
            return self._read(self.window.tokens_BMD, self.window.lengths_B)
        tokens, lengths = self.window.tokens_BMD.numpy(), self.window.lengths_B.numpy()
        keys = [key_of(row[:length]) for row, length in zip(tokens, lengths, strict=True)]
        return self.cache.find(keys, lambda rows: self._read(self.window.tokens_BMD[rows], self.window.lengths_B[rows]))

    def _read(self, tokens_BMD: Tensor, lengths_B: Tensor) -> Tensor:
        """History vectors [B, H] of windows."""
        states, _ = self._states(tokens_BMD, lengths_B)
        return states[:, 0] if self.pooling == "last" else states.sum(1) / (lengths_B + 1)[:, None]

    def _states(self, tokens_BMD: Tensor, lengths_B: Tensor) -> tuple[Tensor, list[Tensor]]:
        start_B1D = self._start_D.expand(len(tokens_BMD), 1, -1)
        tokens_BTD = torch.cat([start_B1D, tokens_BMD[:, : int(lengths_B.max())]], 1)
        return self.encoder.read(tokens_BTD, lengths_B + 1, last=self.pooling == "last")

    def peek(self, inputs_BKD: Tensor) -> Tensor:
        """See `LanguageMemory`."""
        before, self.window = self.window, copy(self.window)  # its tensors are never changed in place
        try:
            return self.step(inputs_BKD)
        finally:
            self.window = before

    def attention(self) -> Tensor | None:
        """See `LanguageMemory`; the newest input's, or with `mean` the mean over all of the window. Computed anew."""
        if self._shown is None:
            return None
        rows, lengths_B = [], self._shown.lengths_B
        for map_BHQT in self._states(self._shown.tokens_BMD, lengths_B)[1]:
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
        """See `LanguageMemory`."""
        read = {} if self.cache is None else {f"read/{name}": array for name, array in self.cache.arrays().items()}
        return {"tokens": self.window.tokens_BMD, "lengths": self.window.lengths_B, **read}

    def load(self, arrays: Mapping[str, Any]) -> None:
        """See `LanguageMemory`."""
        self.start(len(arrays["lengths"]))
        load_window(self.window, arrays)
        if self.cache is not None:
            self.cache.load({n.removeprefix("read/"): array for n, array in arrays.items() if n.startswith("read/")})


class CausalMemory:
    """See the head of this file and `LanguageMemory`.

    Args:
        model: reads; without dropout.
        embeddings_VD: of its tokens.
        places_TD: of its positions.
        words: its vocabulary.
        memory_length: M, at most T.
        batch_tokens: K, at most M/2.
    """

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
        """See `LanguageMemory`."""
        device = self.embeddings_VD.device
        self.window = TokenWindow(batch, self.memory_length, self.width, device)
        self.cache = KeyValueCache(self.model, batch, self.memory_length, device)
        self._shown: TokenWindow | None = None

    def reset(self, mask_B: Tensor) -> None:
        """See `LanguageMemory`."""
        self.window.reset(mask_B)
        self.cache.reset(mask_B.to(self.embeddings_VD.device))

    def step(self, inputs_BKD: Tensor) -> Tensor:
        """See `LanguageMemory`."""
        K = inputs_BKD.shape[1]
        check_inputs(self, inputs_BKD, len(self.window.lengths_B))
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
            again = self.window.tokens_BMD[:, : self._kept] + self._places_TD[: self._kept]
            self.cache.extend(again, full_B[:, None].expand(len(full_B), self._kept))

    def peek(self, inputs_BKD: Tensor) -> Tensor:
        """See `LanguageMemory`. A full row makes its room here already, as its next step would."""
        check_inputs(self, inputs_BKD, len(self.window.lengths_B))
        self._make_room(inputs_BKD.shape[1])
        before = self.window, self.cache
        self.window, self.cache = copy(self.window), copy(self.cache)  # what is written lies behind the real keys
        try:
            return self.step(inputs_BKD)
        finally:
            self.window, self.cache = before

    def attention(self) -> Tensor | None:
        """See `LanguageMemory`; computed anew."""
        if self._shown is None:
            return None
        lengths_B = self._shown.lengths_B
        longest = int(lengths_B.max())
        place_T = torch.arange(longest, device=lengths_B.device)
        with torch.no_grad():
            _, maps = self.model(
                self._shown.tokens_BMD[:, :longest] + self._places_TD[:longest],
                mask_BT=place_T < lengths_B[:, None],
                return_attention=True,
            )
        newest_B111 = (lengths_B - 1)[:, None, None, None]
        rows = [map_BHTT.take_along_dim(newest_B111, 2)[:, :, 0].mean(1) for map_BHTT in maps.self_BHTT]
        return right_aligned(torch.stack(rows), lengths_B, self.memory_length)

    def arrays(self) -> dict[str, Tensor]:
        """See `LanguageMemory`."""
        kept = {f"cache{i}": layer for i, layer in enumerate(self.cache.layers)}
        return {"tokens": self.window.tokens_BMD, "lengths": self.window.lengths_B, **kept}

    def load(self, arrays: Mapping[str, Any]) -> None:
        """See `LanguageMemory`."""
        self.start(len(arrays["lengths"]))
        load_window(self.window, arrays)
        for i, layer in enumerate(self.cache.layers):
            layer.copy_(torch.as_tensor(arrays[f"cache{i}"]))
        self.cache.lengths_B = self.window.lengths_B.clone()
        self.cache.reset(torch.zeros_like(self.window.lengths_B, dtype=torch.bool))  # it measures the lengths


def encoder_memory(
    settings: LanguageModelSettings,
    *,
    folder: Path | None,
    memory_length: int,
    layers: int | None,
    batch_tokens: int,
    pooling: Literal["mean", "last"],
    device: str | torch.device,
) -> EncoderMemory:
    """BERT or RoBERTa as memory; see `language_memory`.

    Raises:
        UserError: the model is another, or has fewer layers or positions.
    """
    loaded = load_language_model(settings, folder=folder, layers=layers, device=device)
    published: Any = loaded.model
    config = published.config
    if config.model_type not in ("bert", "roberta"):
        raise _unfit(f"A model of type '{config.model_type}' is not read as an encoder.", "Choose BERT or RoBERTa.")
    check_length(memory_length + 1, loaded.max_length, batch_tokens, memory_length)
    encoder = Encoder(
        published.state_dict(),
        heads=config.num_attention_heads,
        norm_eps=config.layer_norm_eps,
        first_position=ROBERTA_OFFSET if config.model_type == "roberta" else 0,
    )
    return EncoderMemory(encoder, vocabulary(settings, folder), memory_length, batch_tokens, pooling)


def causal_memory(
    settings: LanguageModelSettings,
    *,
    folder: Path | None,
    memory_length: int,
    layers: int | None,
    batch_tokens: int,
    device: str | torch.device,
) -> CausalMemory:
    """GPT-2 as memory; see `language_memory`.

    Raises:
        UserError: the model is another, or has fewer layers or positions.
    """
    loaded = load_language_model(settings, folder=folder, layers=layers, device=device)
    published: Any = loaded.model
    config = published.config
    if config.model_type != "gpt2":
        raise _unfit(f"A model of type '{config.model_type}' is not read as GPT-2.", "Choose another kind for it.")
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
    ours = {"norm_final.weight": weights["ln_f.weight"], "norm_final.bias": weights["ln_f.bias"]}
    for i in range(len(published.h)):
        for theirs, part in GPT2_PARTS.items():
            weight = weights[f"h.{i}.{theirs}.weight"]  # its products are x W, not x W^T
            ours[f"blocks.{i}.{part}.weight"] = weight.T.contiguous() if weight.ndim == 2 else weight
            ours[f"blocks.{i}.{part}.bias"] = weights[f"h.{i}.{theirs}.bias"]
    model.load_state_dict(ours)
    model.to(device).eval().requires_grad_(False)
    words = vocabulary(settings, folder)
    return CausalMemory(model, loaded.embeddings, weights["wpe.weight"], words, memory_length, batch_tokens)


def check_inputs(memory: EncoderMemory | CausalMemory, inputs_BKD: Tensor, rows: int) -> None:
    """Refuse inputs of another shape than the memory was made for."""
    B, K, D = inputs_BKD.shape
    if rows != B or not 1 <= K <= memory.batch_tokens or memory.width != D:
        raise _unfit(
            f"Inputs of shape {(B, K, D)} do not fit a memory of {rows} rows of width {memory.width} that reads at most "
            f"{memory.batch_tokens} at once.",
            "Start it with that many rows, and set batch_tokens to the most inputs per step.",
        )


def check_length(needed: int, positions: int, batch_tokens: int, room: int) -> None:
    """Refuse a memory that is longer than the model's positions, or that a step's inputs do not go into."""
    if needed > positions or not 1 <= batch_tokens <= room:
        raise _unfit(
            f"A memory that reads {batch_tokens} inputs at once needs {needed} of the model's {positions} positions, and "
            f"has room for {room} at once.",
            "Change memory_length or batch_tokens.",
        )


def load_window(window: TokenWindow, arrays: Mapping[str, Any]) -> None:
    """Fill a window from what a memory's `arrays` gave."""
    device = window.lengths_B.device
    window.tokens_BMD = torch.as_tensor(arrays["tokens"]).to(device, copy=True)
    window.lengths_B = torch.as_tensor(arrays["lengths"]).to(device, copy=True)


def right_aligned(weights_LBT: Tensor, lengths_B: Tensor, length: int) -> Tensor:
    """[L, B, M] with the newest last: rows of different lengths moved to the right end, zeros before them."""
    place_BM = torch.arange(length, device=lengths_B.device) - (length - lengths_B)[:, None]
    moved = weights_LBT.take_along_dim(place_BM.clamp(min=0, max=weights_LBT.shape[2] - 1)[None], 2)
    return moved * (place_BM >= 0)


def _unfit(what: str, do: str) -> UserError:
    return UserError(what, where="language model as memory", do=do)
