"""Sentence vectors of a frozen language model: the mean of the last states of all tokens, of length one.

Source: Reimers and Gurevych 2019 (mean pooling), which MiniLM's sentence encoder was trained with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

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
        ids = [torch.tensor(encoded.ids) for encoded in self.tokenizer.encode_batch(list(texts))]
        embeddings_VD = self.model.embeddings
        found_ND = torch.zeros(len(ids), self.model.width, device=embeddings_VD.device)
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        for first in range(0, len(order), BATCH):
            places = order[first : first + BATCH]
            ids_NT = torch.nn.utils.rnn.pad_sequence([ids[i] for i in places], batch_first=True, padding_value=-1)
            mask_NT = (ids_NT >= 0).to(embeddings_VD.device)
            states_NTD = self.model.forward(embeddings_VD[ids_NT.clamp_min(0).to(embeddings_VD.device)], mask_NT)
            sums_ND = (states_NTD * mask_NT[..., None]).sum(1)
            found_ND[places] = F.normalize(sums_ND / mask_NT.sum(1, keepdim=True), dim=1)
        return found_ND
