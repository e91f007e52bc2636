"""Transformer-XL, for reading: frozen, one or a few tokens at a time, over a memory of the last M.

- Post-norm layers; attention to relative distances with biases of each layer's own; adaptive embeddings.
- Every token attends to exactly M tokens, itself among them. A memory begins full of zeros, which are attended to: their
  keys and values are zero, their distances still count.
- The published code keeps the layers' inputs and projects all of them anew at every step. Projections have no bias, so
  keeping keys and values gives the same, and the zero memory is a zero cache.

Source: Dai et al. 2019 (arXiv 1901.02860); specification 3.4 of HELM for what the published model does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from itertools import pairwise
from typing import Any, Self, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.common.cpu.kernels import Linear
from recollect.common.transfer import sent
from recollect.helm.language import ring_attention
from recollect.helm.language.frozen_products import product
from recollect.helm.language.graphed_step import Read
from recollect.helm.language.token_ring import TokenRing
from recollect.settings.schema import Frozen
from recollect.settings.seeding import seed_of


class TransformerXLSettings(Frozen):
    """Shape; the defaults are those of transfo-xl-wt103 (284 M parameters)."""

    vocabulary: int = Field(default=267_735, ge=1)
    cutoffs: tuple[int, ...] = Field(
        default=(20_000, 40_000, 200_000), description="where the next block of words begins"
    )
    division: int = Field(default=4, ge=1, description="each block's embeddings are so much narrower than the last's")
    width: int = Field(default=1024, ge=2, description="of tokens in all layers; even")
    layers: int = Field(default=18, ge=1)
    heads: int = Field(default=16, ge=1)
    head_width: int = Field(default=64, ge=1)
    inner: int = Field(default=4096, ge=1)
    clamp: int = Field(default=1000, ge=0, description="greater distances count as this one")
    norm_eps: float = Field(default=1e-5, gt=0.0)


class Layer(nn.Module):
    """The parts of one layer; `XLCache` does the work."""

    def __init__(self, settings: TransformerXLSettings) -> None:
        super().__init__()
        d, heads, head_width = settings.width, settings.heads, settings.head_width
        self.qkv = Linear(d, 3 * heads * head_width, bias=False)
        self.positions = Linear(d, heads * head_width, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(heads, head_width))
        self.position_bias = nn.Parameter(torch.zeros(heads, head_width))
        self.attention_out = Linear(heads * head_width, d, bias=False)
        self.norm_attention = nn.LayerNorm(d, eps=settings.norm_eps)
        self.mlp_in = Linear(d, settings.inner)
        self.mlp_out = Linear(settings.inner, d)
        self.norm_mlp = nn.LayerNorm(d, eps=settings.norm_eps)


class TransformerXL(nn.Module):
    """The network. Made under ``torch.device("meta")`` it has shapes only.

    Args:
        seed: of random weights; None leaves them at zero, for those that are loaded.
    """

    def __init__(self, settings: TransformerXLSettings, *, seed: int | None = None) -> None:
        super().__init__()
        self.settings = settings
        edges = [0, *settings.cutoffs, settings.vocabulary]
        rows = [end - start for start, end in pairwise(edges)]
        sizes = [(rows[i], settings.width // settings.division**i) for i in range(len(rows))]
        self.embeddings = nn.ParameterList(torch.zeros(size) for size in sizes)
        self.projections = nn.ParameterList(torch.zeros(settings.width, width) for _, width in sizes)
        self.layers = nn.ModuleList(Layer(settings) for _ in range(settings.layers))
        if seed is not None:
            draw = torch.Generator().manual_seed(seed_of("transformer-xl", seed))
            with torch.no_grad():
                for name, weight in self.named_parameters():
                    if name.startswith("embeddings") or name.endswith("_bias"):
                        weight.normal_(0.0, 0.02, generator=draw)
                    elif weight.ndim == 2:
                        weight.normal_(0.0, weight.shape[1] ** -0.5, generator=draw)

    def table(self) -> Tensor:
        """All token embeddings as the layers see them, [V, D]: projected to one width, times sqrt(D)."""
        scale = math.sqrt(self.settings.width)
        with torch.no_grad():
            return torch.cat([(e @ p.T).mul_(scale) for e, p in zip(self.embeddings, self.projections, strict=True)])

    def hold_products(self, dtype: torch.dtype) -> None:
        """Hold the matrices that tokens are multiplied with so; embeddings, distances and norms stay float32."""
        for module in self.layers:
            layer = cast(Layer, module)
            for part in (layer.qkv, layer.attention_out, layer.mlp_in, layer.mlp_out):
                part.to(dtype)

    def distances(self, length: int) -> list[Tensor]:
        """Per layer [H, Dh, M]: what the distances M-1..0 add to a score, once multiplied with a query."""
        s, device = self.settings, self.projections[0].device
        distance_M = torch.arange(length - 1, -1, -1, dtype=torch.float64).clamp_(max=s.clamp)
        feature = torch.arange(0, s.width, 2, dtype=torch.float64)
        angle = distance_M[:, None] * 10000.0 ** (-feature / s.width)
        code_MD = torch.cat([angle.sin(), angle.cos()], 1).float().to(device)
        with torch.no_grad():
            by_layer = []
            for layer in self.layers:
                distances = cast(Layer, layer).positions(code_MD)
                by_head = distances.view(-1, s.heads, s.head_width)
                by_layer.append(by_head.permute(1, 2, 0).contiguous())
            return by_layer


class XLCache(TokenRing):
    """See `TokenRing`. A row is forgotten by zeroing it: what it attends to then is zeros.

    `read` gives the last layer's state [B, D] at the last of K new tokens. `reset` takes its mask best on the host. On a GPU
    attention is one kernel where that works, which keeps no weights; who asks for them has the newest tokens read once more.
    """

    kind, counted = "Transformer-XL", "written"

    @property
    def heads(self) -> int:
        return int(self.model.settings.heads)

    def _begin(self) -> None:
        self.written_B = torch.zeros(self.batch, dtype=torch.int64)  # slots that are not zero: the newest so many
        self._distances = self.model.distances(self.length)
        scale = self.model.settings.head_width**-0.5
        parts = [cast(Layer, layer) for layer in self.model.layers]
        with torch.no_grad():
            # Of each layer [2, 1, 1, H, Dh]: what queries of contents and of distances have added, before B and K.
            both = [torch.stack([part.content_bias, part.position_bias]) * scale for part in parts]
        self._biases = [bias_2HE[:, None, None] for bias_2HE in both]
        s = self.model.settings
        self._attended = ring_attention.kernel(self._ring.device, self._ring.dtype, s.heads, s.head_width)
        self._codes = [code_HEM.mT.contiguous() for code_HEM in self._distances] if self._attended else []
        self._newest_x: tuple[Tensor, int] | None = (
            None  # what was read last without weights, and how much of it is remembered
        )

    def part(self, first: int, rows: int) -> Self:
        """Some rows as a ring of their own, whose keys and values are these: to save them, and to load them into an empty ring."""
        chosen = copy(self)
        chosen.batch, chosen.written_B = rows, self.written_B[first : first + rows]
        chosen.layers = [kv[:, first : first + rows] for kv in self.layers]
        return chosen

    def reset(self, mask_B: Tensor) -> None:
        on_host = mask_B.cpu()
        self.written_B = self.written_B.masked_fill(on_host, 0)
        rows = on_host.nonzero()[:, 0]
        if len(rows):
            self._ring.index_fill_(2, sent(rows, self._ring.device), 0.0)

    def read(self, x_BKD: Tensor, *, remember: bool = True) -> Tensor:
        h_BD = super().read(x_BKD, remember=remember)
        self._newest_x = (x_BKD, x_BKD.shape[1] * remember) if self._attended else None
        if remember:
            self.written_B = (self.written_B + x_BKD.shape[1]).clamp_(max=self.slots)
        return h_BD

    @torch.no_grad()
    def attention(self) -> Tensor | None:
        if self._newest_x is not None:
            (x_BKD, remembered), attended = self._newest_x, self._attended
            self._attended, self._newest_x = None, None
            self._count.sub_(remembered)
            try:
                _, self.weights = self._read(x_BKD, remember=False)
            finally:
                self._count.add_(remembered)
                self._attended = attended
        return super().attention()

    def _read(self, x_BKD: Tensor, *, remember: bool) -> Read:
        s, device = self.model.settings, x_BKD.device
        B, K, _ = x_BKD.shape
        new_K = self._new_slots(K)
        # Of each new token, the age of each slot: 0 is the oldest. It turns ages into slots of the ring.
        age_SK = (torch.arange(self.slots, device=device)[:, None] - new_K - 1) % self.slots
        age_BHSK = age_SK.expand(B, s.heads, -1, -1)
        looked = []
        h = x_BKD
        for place, (module, kv) in enumerate(zip(self.model.layers, self.layers, strict=True)):
            layer = cast(Layer, module)
            qkv = product(h, layer.qkv.weight).view(B, K, 3, s.heads, s.head_width)
            before = None if remember else kv.index_select(3, new_K)
            kv.index_copy_(3, new_K, qkv[:, :, 1:].permute(2, 0, 3, 1, 4).to(kv.dtype))
            if self._attended is not None:
                biases_2HE = self._biases[place][:, 0, 0]
                y = self._attended(qkv, biases_2HE, kv, self._codes[place], self._count, s.head_width**-0.5)
            else:
                y, weights = self._looked(place, qkv[:, :, 0], kv, age_BHSK)
                looked.append(weights)
            h = layer.norm_attention(h + product(y, layer.attention_out.weight))
            inner = product(h, layer.mlp_in.weight, layer.mlp_in.bias).relu_()
            h = layer.norm_mlp(h + product(inner, layer.mlp_out.weight, layer.mlp_out.bias))
            if before is not None:
                kv.index_copy_(3, new_K, before)
        return h[:, -1], looked

    def _looked(self, place: int, q: Tensor, kv: Tensor, age_BHSK: Tensor) -> tuple[Tensor, Tensor]:
        """What queries [B, K, H, Dh] of a layer read, [B, K, H * Dh], and their weights [B, H, K, slots]."""
        B, K, H, _ = q.shape
        biases, scale = self._biases[place], self.model.settings.head_width**-0.5
        q = torch.add(biases, q, alpha=scale) if q.is_cuda else q * scale + biases  # there one kernel, not two
        q_content, q_position = q.unbind()
        # What distances add to the scores, by age, then by slot.
        q_HRE = q_position.permute(2, 0, 1, 3).flatten(1, 2)
        by_age = torch.bmm(q_HRE, self._distances[place])
        if self.slots > self.length:
            by_age = F.pad(by_age, (self.slots - self.length, 0), value=-math.inf)
        by_age = by_age.view(H, B, K, -1)
        bias = by_age.permute(1, 0, 3, 2).gather(2, age_BHSK).flatten(0, 1)
        # What contents add.
        q_REK = q_content.permute(0, 2, 3, 1).flatten(0, 1)
        k, v = kv.flatten(1, 2)
        if q.is_cuda and k.dtype == torch.float32:
            scores = bias.baddbmm_(k, q_REK)
        else:
            scores = torch.bmm(k, q_REK.to(k.dtype)).float().add_(bias)
        weights = scores.transpose(1, 2).softmax(-1)
        y = torch.bmm(weights.to(v.dtype), v).view(B, H, K, -1)
        return y.transpose(1, 2).reshape(B, K, -1), weights.view(B, H, K, -1)

    def arrays(self) -> dict[str, Tensor]:
        """For a checkpoint: of every layer what was written since each row's last reset, [N, 2, H, Dh]; the rest is zeros."""
        places = self._written()
        layers = {f"cache{i}": kv[:, places[0], :, places[1]].float() for i, kv in enumerate(self.layers)}
        return {"at": torch.tensor(self.count), "written": self.written_B, **layers}

    def load(self, arrays: Mapping[str, Any]) -> None:
        self.count, self.written_B = int(arrays["at"]), torch.as_tensor(arrays["written"]).clone()
        self._count.fill_(self.count)
        places = self._written()
        for i, kv in enumerate(self.layers):
            kv[:, places[0], :, places[1]] = torch.as_tensor(arrays[f"cache{i}"]).to(kv)

    def _written(self) -> Tensor:
        """Row and slot [2, N] of all that was written since the last reset of its row, the newest first."""
        age_S = torch.arange(self.slots)
        row_N, age_N = (age_S < self.written_B[:, None]).nonzero(as_tuple=True)
        return torch.stack([row_N, (self.count - 1 - age_N) % self.slots]).to(self.layers[0].device)
