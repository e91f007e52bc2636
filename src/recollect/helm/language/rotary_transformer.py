"""A causal transformer with rotary positions (Llama's architecture), for reading: frozen, a few tokens at a time.

- Pre-norm layers with RMSNorm; several heads of queries share keys and values; gated feed-forward layers (SwiGLU).
- Its memory is a ring: of every layer the keys and values of each row's last M inputs, as of Transformer-XL. A layer sees
  what the one below it made of M inputs, so layer n looks n (M - 1) inputs back.
- Rotary positions count only by their difference. So a key stays as it was written while the ring rolls. Reading step by
  step equals one pass over all inputs in which each attends to M, itself among them.
- Unlike Transformer-XL it has not learned to attend to an empty memory: a row that was reset attends to its own inputs.

Sources: Touvron et al. 2023 (arXiv 2302.13971); rotary positions: Su et al. 2021 (arXiv 2104.09864); shared heads:
Ainslie et al. 2023 (arXiv 2305.13245).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Self, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.common.cpu.kernels import Linear
from recollect.common.rotary import turned
from recollect.common.transfer import sent
from recollect.helm.language.frozen_products import product
from recollect.helm.language.graphed_step import GraphedStep, Read
from recollect.helm.language.token_ring import TokenRing
from recollect.settings.errors import UserError
from recollect.settings.schema import Frozen
from recollect.settings.seeding import seed_of


class RotaryTransformerSettings(Frozen):
    """Shape; the defaults are those of SmolLM2-135M."""

    vocabulary: int = Field(default=49_152, ge=1)
    width: int = Field(default=576, ge=1, description="of tokens in all layers")
    layers: int = Field(default=30, ge=1)
    heads: int = Field(default=9, ge=1, description="of queries")
    shared_heads: int = Field(default=3, ge=1, description="of keys and values; divides `heads`")
    head_width: int = Field(default=64, ge=2, description="even")
    inner: int = Field(default=1536, ge=1)
    base: float = Field(default=100_000.0, gt=1.0, description="the slowest angle turns by about one in so many inputs")
    norm_eps: float = Field(default=1e-5, gt=0.0)

    def shortened(self, layers: int | None) -> RotaryTransformerSettings:
        """The first layers only; None: all of them. Raises UserError if there are not so many."""
        if layers is not None and not 1 <= layers <= self.layers:
            raise UserError(
                f"This language model has {self.layers} layers, not {layers}.",
                where="layers",
                do=f"Set layers to 1..{self.layers}, or to null for all.",
            )
        return self if layers is None else self.model_copy(update={"layers": layers})


class Layer(nn.Module):
    """The parts of one layer; `RotaryCache` does the work. Rows of `qkv` and of `mlp_in` (gate, then value) are joined."""

    def __init__(self, settings: RotaryTransformerSettings) -> None:
        super().__init__()
        d, head_width, eps = settings.width, settings.head_width, settings.norm_eps
        self.norm_attention = nn.RMSNorm(d, eps=eps)
        self.qkv = Linear(d, (settings.heads + 2 * settings.shared_heads) * head_width, bias=False)
        self.attention_out = Linear(settings.heads * head_width, d, bias=False)
        self.norm_mlp = nn.RMSNorm(d, eps=eps)
        self.mlp_in = Linear(d, 2 * settings.inner, bias=False)
        self.mlp_out = Linear(settings.inner, d, bias=False)


class RotaryTransformer(nn.Module):
    """The network. Made under ``torch.device("meta")`` it has shapes only.

    Args:
        seed: of random weights; None leaves matrices at zero, for those that are loaded.
    """

    def __init__(self, settings: RotaryTransformerSettings, *, seed: int | None = None) -> None:
        super().__init__()
        self.settings = settings
        self.embeddings = nn.Parameter(torch.zeros(settings.vocabulary, settings.width))
        self.layers = nn.ModuleList(Layer(settings) for _ in range(settings.layers))
        self.norm_final = nn.RMSNorm(settings.width, eps=settings.norm_eps)
        if seed is not None:
            draw = torch.Generator().manual_seed(seed_of("rotary transformer", seed))
            with torch.no_grad():
                for weight in self.parameters():
                    if weight.ndim == 2:
                        weight.normal_(0.0, weight.shape[1] ** -0.5, generator=draw)


class RotaryCache(TokenRing):
    """See `TokenRing`. What a row wrote before its reset is not seen.

    `read` gives the states [B, K, D] of K new inputs after the last layer and its norm.
    """

    kind, counted = "rotary transformer", "lengths"

    @property
    def heads(self) -> int:
        return int(self.model.settings.shared_heads)

    def _begin(self) -> None:
        # Inputs since each row's reset.
        self.lengths_B = torch.zeros(self.batch, dtype=torch.int64, device=self._count.device)

    def reset(self, mask_B: Tensor) -> None:
        self.lengths_B.masked_fill_(sent(mask_B, self.lengths_B.device), 0)

    def step(self, x_BKD: Tensor) -> Read:
        found = super().step(x_BKD)
        self.lengths_B.add_(x_BKD.shape[1])
        return found

    def _read(self, x_BKD: Tensor, *, remember: bool) -> Read:
        s = self.model.settings
        B, K, _ = x_BKD.shape
        new_K = self._new_slots(K)
        bias_B1KS = self._unseen(K)
        cos_KE, sin_KE = self._angles(K)
        group = s.heads // s.shared_heads
        looked = []
        h = x_BKD
        for module, kv in zip(self.model.layers, self.layers, strict=True):
            layer = cast(Layer, module)
            heads = product(layer.norm_attention(h), layer.qkv.weight).view(B, K, -1, s.head_width)
            q, k, v = heads.transpose(1, 2).split([s.heads, s.shared_heads, s.shared_heads], 1)
            q, k = turned(q, cos_KE, sin_KE), turned(k, cos_KE, sin_KE)
            before = None if remember else kv.index_select(3, new_K)
            kv.index_copy_(3, new_K, torch.stack([k, v]).to(kv.dtype))
            # The queries of heads that share keys and values follow each other, so one product serves them.
            q = (q * s.head_width**-0.5).reshape(B, s.shared_heads, group * K, s.head_width)
            scores = (q.to(kv.dtype) @ kv[0].transpose(2, 3)).view(B, s.heads, K, self.slots).to(self._exact)
            weights = scores.add_(bias_B1KS).softmax(-1)
            y = weights.view(B, s.shared_heads, group * K, self.slots).to(kv.dtype) @ kv[1]
            y = y.view(B, s.heads, K, s.head_width).transpose(1, 2).reshape(B, K, -1)
            h = h + product(y, layer.attention_out.weight)
            gate, value = product(layer.norm_mlp(h), layer.mlp_in.weight).chunk(2, -1)
            h = h + product(F.silu(gate) * value, layer.mlp_out.weight)
            looked.append(weights)
            if before is not None:
                kv.index_copy_(3, new_K, before)
        return self.model.norm_final(h), looked

    def _unseen(self, tokens: int) -> Tensor:
        """[B, 1, K, slots]: minus infinity where a new input does not look, else 0."""
        new_K1 = torch.arange(tokens, device=self.lengths_B.device)[:, None]
        slot_S = torch.arange(self.slots, device=self.lengths_B.device)
        age_KS = (self._count + new_K1 - slot_S) % self.slots  # of later inputs of this step: M or more
        known_BK1 = (self.lengths_B[:, None, None] + new_K1 + 1).clamp(max=self.length)
        return torch.zeros((), device=age_KS.device).where(age_KS < known_BK1, -torch.inf)[:, None]

    def _angles(self, tokens: int, back: int = 0) -> tuple[Tensor, Tensor]:
        """Cosines and sines [K, head_width / 2] of the positions of new inputs, or of those `back` before."""
        s = self.model.settings
        device = self._count.device
        position_K1 = (self._count - back + torch.arange(tokens, device=device)).double()[:, None]
        exponent_E = torch.arange(0, s.head_width, 2, dtype=torch.float64, device=device) / s.head_width
        angle_KE = position_K1 * s.base**-exponent_E
        return angle_KE.cos().to(self._exact), angle_KE.sin().to(self._exact)

    @property
    def _exact(self) -> torch.dtype:
        """Of angles and scores: float32 for narrower numbers."""
        return torch.promote_types(self.layers[0].dtype, torch.float32)

    # ---- steps that were taken before (recollect.helm.language.recalled_steps)

    def of_rows(self, rows: Sequence[int]) -> Self:
        """Some rows as a ring of their own; what it reads this one does not know. Not for CUDA graphs."""
        part = copy(self)
        part.batch = len(rows)
        part.layers = [kv[:, rows] for kv in self.layers]
        part.lengths_B, part._count = self.lengths_B[rows], self._count.clone()
        part._step = GraphedStep(part.step, part._peek, graphed=False)
        return part

    def newest(self, tokens: int) -> Tensor:
        """[B, W]: all that this ring keeps of its last K inputs, whatever their positions: keys are turned back."""
        slot_K = self._new_slots(tokens, back=tokens)
        cos_KE, sin_KE = self._angles(tokens, back=tokens)
        kept = [kv.index_select(3, slot_K) for kv in self.layers]
        return torch.cat([torch.stack([turned(k, cos_KE, -sin_KE), v], 1).flatten(1) for k, v in kept], 1)

    def append(self, newest_BW: Tensor, tokens: int) -> None:
        """Remember K inputs by what `newest` said of them."""
        slot_K = self._new_slots(tokens)
        cos_KE, sin_KE = self._angles(tokens)
        shape = (self.batch, len(self.layers), 2, self.heads, tokens, self.model.settings.head_width)
        for kv, kept in zip(self.layers, newest_BW.view(shape).unbind(1), strict=True):
            k, v = kept.unbind(1)
            kv.index_copy_(3, slot_K, torch.stack([turned(k, cos_KE, sin_KE), v]))
        self._newest = (self.count + tokens - 1) % self.slots
        self.count += tokens
        self._count.add_(tokens)
        self.lengths_B.add_(tokens)

    def looked(self, x_BKD: Tensor) -> None:
        """Say anew how the last K inputs attend, which this ring was not told when it appended them; its memory stays."""
        K = x_BKD.shape[1]
        whole = copy(self)
        whole._count, whole.lengths_B = self._count - K, self.lengths_B - K
        self.weights = whole._read(x_BKD, remember=False)[1]

    def arrays(self) -> dict[str, Tensor]:
        """What will be seen again: of each layer the N slots ``[N, 2, heads, width]`` that rows still look at."""
        rows_N, slots_N = self._written()
        kept = {f"cache{i}": kv[:, rows_N, :, slots_N].float() for i, kv in enumerate(self.layers)}
        return {"count": torch.tensor(self.count), "lengths": self.lengths_B.clone(), **kept}

    def load(self, arrays: Mapping[str, Any]) -> None:
        self.count = int(arrays["count"])
        self._count.fill_(self.count)
        self.lengths_B.copy_(torch.as_tensor(arrays["lengths"]))
        rows_N, slots_N = self._written()
        for i, kv in enumerate(self.layers):
            kv[:, rows_N, :, slots_N] = torch.as_tensor(arrays[f"cache{i}"]).to(kv)

    def _written(self) -> tuple[Tensor, Tensor]:
        """Row and slot of all that the next input may see; the oldest of M is overwritten by then."""
        age_S = (self.count - torch.arange(self.slots, device=self.lengths_B.device)) % self.slots
        known_B1 = self.lengths_B[:, None].clamp(max=self.length - 1)
        rows_N, slots_N = ((age_S >= 1) & (age_S <= known_B1)).nonzero(as_tuple=True)
        return rows_N, slots_N
