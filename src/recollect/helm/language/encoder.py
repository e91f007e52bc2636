"""BERT's encoder, for reading windows fast: post-norm, bidirectional, learned positions; frozen.

Its weights are those of the class in transformers, which is slower. Here only real tokens are computed, as rows are of different
lengths. Products go through `kernels.linear` (twice as fast on AMD processors). Where only some tokens' states are wanted, the
last layer computes only those.

Source: Devlin et al. 2019 (arXiv 1810.04805).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from recollect.common.cpu.packing import gathered_rows, spread_rows
from recollect.helm.language.frozen_products import product

Affine = tuple[Tensor, Tensor]


class Encoder:
    """Reads windows of token embeddings.

    `weights` are named as those of BertModel and RobertaModel of transformers, ``encoder.layer.i`` for each layer kept; the
    first token gets row `first_position` of the position table (RoBERTa: 2). Matrices are held as `dtype`.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        *,
        heads: int,
        norm_eps: float,
        first_position: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.heads, self.norm_eps = heads, norm_eps
        self.embeddings_VD = weights["embeddings.word_embeddings.weight"]
        self.width = self.embeddings_VD.shape[1]
        positions_TD = weights["embeddings.position_embeddings.weight"][first_position:]
        self._places_TD = positions_TD + weights["embeddings.token_type_embeddings.weight"][0]
        self._norm = _affine(weights, "embeddings.LayerNorm")
        count = sum(name.endswith("attention.self.query.weight") for name in weights)
        self.layers = [_layer(weights, f"encoder.layer.{i}", dtype) for i in range(count)]

    @torch.no_grad()
    def read(
        self, x_BTD: Tensor, lengths_B: Tensor, *, last: bool = False, packed: bool = True
    ) -> tuple[Tensor, list[Tensor]]:
        """States of the last layer, and the attention weights of every layer [B, H, T, T] (in its last, see `last`).

        Args:
            x_BTD: token embeddings; positions, type and LayerNorm are added here.
            lengths_B: at least 1; the tokens of a row after so many are padding, which nothing attends to.
            packed: False: padding is computed, too, so that the host need not know where it is.
            last: give the states [B, 1, D] at each row's last token only, and of the last layer the weights [B, H, 1, T].

        Returns:
            States [B, T, D], zero at padding.
        """
        B, T, D = x_BTD.shape
        H, head = self.heads, D // self.heads
        place_T = torch.arange(T, device=x_BTD.device)
        real_BT = place_T < lengths_B[:, None]
        # Real tokens only, one after the other; in attention rows are blocks again, and padding is masked.
        index_N, bias_B11T = None, None
        if not packed or not bool(real_BT.all()):
            index_N = real_BT.flatten().nonzero()[:, 0] if packed else None
            bias_B11T = torch.zeros(B, 1, 1, T, device=x_BTD.device)
            bias_B11T.masked_fill_(~real_BT[:, None, None], float("-inf"))
        h_ND = _rows((x_BTD + self._places_TD[:T]).reshape(B * T, D), index_N)
        h_ND = F.layer_norm(h_ND, (D,), *self._norm, self.norm_eps)
        ends_B = torch.arange(B, device=x_BTD.device) * T + lengths_B - 1
        maps = []
        for number, (qkv, out, norm_attention, mlp_in, mlp_out, norm_mlp) in enumerate(self.layers):
            newest_only = last and number == len(self.layers) - 1
            if newest_only:  # queries of the last tokens only
                weight_ED, bias_E = qkv
                keys_values = _blocks(product(h_ND, weight_ED[D:], bias_E[D:]), index_N, B * T)
                k, v = keys_values.view(B, T, 2, H, head).permute(2, 0, 3, 1, 4)
                h_ND = _blocks(h_ND, index_N, B * T)[ends_B]
                q = product(h_ND, weight_ED[:D], bias_E[:D]).view(B, H, 1, head)
            else:
                joined = _blocks(product(h_ND, *qkv), index_N, B * T)
                q, k, v = joined.view(B, T, 3, H, head).permute(2, 0, 3, 1, 4)
            scores = torch.matmul(q, k.transpose(2, 3)).float().mul_(head**-0.5)
            if bias_B11T is not None:
                scores.add_(bias_B11T)
            weights = scores.softmax(-1)
            maps.append(weights)
            y_ND = torch.matmul(weights.to(v.dtype), v).transpose(1, 2).reshape(-1, D)
            if not newest_only:
                y_ND = _rows(y_ND, index_N)
            h_ND = F.layer_norm(h_ND + product(y_ND, *out), (D,), *norm_attention, self.norm_eps)
            inner_ND = F.gelu(product(h_ND, *mlp_in))
            h_ND = F.layer_norm(h_ND + product(inner_ND, *mlp_out), (D,), *norm_mlp, self.norm_eps)
        if last:
            return h_ND.view(B, 1, D), maps
        states_BTD = _blocks(h_ND, index_N, B * T).view(B, T, D)
        return states_BTD if packed else states_BTD * real_BT[:, :, None], maps


def _affine(weights: Mapping[str, Tensor], name: str) -> Affine:
    return weights[f"{name}.weight"], weights[f"{name}.bias"]


def _layer(weights: Mapping[str, Tensor], name: str, dtype: torch.dtype) -> tuple[Affine, ...]:
    """Query, key and value in one; attention out; its norm; MLP in, out; its norm. Norms are float32, the rest `dtype`."""
    parts = [_affine(weights, f"{name}.attention.self.{part}") for part in ("query", "key", "value")]
    joined = torch.cat([part[0] for part in parts]).to(dtype), torch.cat([part[1] for part in parts]).to(dtype)
    rest = (
        "attention.output.dense",
        "attention.output.LayerNorm",
        "intermediate.dense",
        "output.dense",
        "output.LayerNorm",
    )
    found = [joined]
    for part in rest:
        weight, bias = _affine(weights, f"{name}.{part}")
        held = torch.float32 if part.endswith("LayerNorm") else dtype
        found.append((weight.to(held), bias.to(held)))
    return tuple(found)


def _rows(x: Tensor, index_N: Tensor | None) -> Tensor:
    return x if index_N is None else gathered_rows(x, index_N)


def _blocks(x: Tensor, index_N: Tensor | None, size: int) -> Tensor:
    return x if index_N is None else spread_rows(x, index_N, size)
