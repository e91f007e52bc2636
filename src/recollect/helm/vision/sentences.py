"""Sentence vectors of a frozen language model: the mean of the last states of all tokens, of length one.

Source: Reimers and Gurevych 2019 (mean pooling), which MiniLM's sentence encoder was trained with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from recollect.common.language_models import load_language_model, package_folder
from recollect.settings.errors import UserError
from recollect.settings.resolve import language_model

BATCH = 256


class SentenceEncoder:
    """Texts -> float32 [N, S] by an installed model of config/language_models.yaml that has a tokenizer."""

    def __init__(self, name: str, device: str | torch.device = "cpu") -> None:
        from tokenizers import Tokenizer

        settings = language_model(name)
        path = package_folder(settings) / "tokenizer.json"
        if not path.is_file():
            raise UserError(
                f"the language model '{name}' has no tokenizer", where=path, do="use 'minilm', which has one"
            )
        self.tokenizer: Any = Tokenizer.from_file(str(path))
        self.tokenizer.no_padding()
        self.model = load_language_model(settings, device=device)
        self.tokenizer.enable_truncation(self.model.max_length)

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> Tensor:
        encoded = self.tokenizer.encode_batch(list(texts))
        ids = [torch.tensor(text.ids) for text in encoded]
        embeddings_VD = self.model.embeddings
        device = embeddings_VD.device
        found_ND = torch.zeros(len(ids), self.model.width, device=device)
        for places, padded_NT in padded_batches(ids, BATCH, padding=-1):
            ids_NT = padded_NT.to(device)
            mask_NT = ids_NT >= 0
            tokens_NTD = embeddings_VD[ids_NT.clamp_min(0)]
            states_NTD = self.model.forward(tokens_NTD, mask_NT)
            sums_ND = (states_NTD * mask_NT[..., None]).sum(1)
            means_ND = sums_ND / mask_NT.sum(1, keepdim=True)
            found_ND[places] = F.normalize(means_ND, dim=1)
        return found_ND


def padded_batches(ids: Sequence[Tensor], size: int, *, padding: int) -> Iterator[tuple[list[int], Tensor]]:
    """Places of texts and their ids [N, T]; those of similar lengths together, so that little of a batch is padding."""
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    for first in range(0, len(order), size):
        places = order[first : first + size]
        batch = [ids[i] for i in places]
        yield places, pad_sequence(batch, batch_first=True, padding_value=padding)
