"""The causal transformer that all systems use: pre-LN GPT-2 blocks, optional cross-attention, a static KV cache.

- Block: ``x + SelfAttention(LN x)``; ``[x + CrossAttention(LN x, context)]``; ``x + MLP(LN x)``. A LayerNorm ends it.
- Positions are the caller's business (sinusoids, learned tables, time steps); embedding dropout happens here.
- Acting goes through `make_cache`, `step` and `extend`, which equal the full forward.
- Padding costs nothing on CPUs: only real tokens are computed (see `attention.Packing`).
- All randomness (initial weights, dropout on the CPU) comes from generators of the module's own, see `reseed_dropout`.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, overload

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.common.attention import Packing, causal, cross_attention, gather, pack, self_attention, spread, unpack
from recollect.common.cache import KeyValueCache, ReadContext, context_keys
from recollect.common.dropout import Dropout
from recollect.common.kernels import Linear, gelu, linear_part
from recollect.settings.errors import UserError
from recollect.settings.schema import Frozen
from recollect.settings.seeding import seed_of


class TransformerSettings(Frozen):
    """Shape and regularisation of a `Transformer`. ``dropout`` stands for each of the three that is not set itself."""

    width: int = Field(default=128, ge=1, description="model width d; a multiple of heads")
    layers: int = Field(default=2, ge=1)
    heads: int = Field(default=4, ge=1)
    inner_multiple: int = Field(default=4, ge=1, description="MLP inner width / width")
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    embedding_dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    residual_dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    attention_dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    activation: Literal["gelu", "gelu_tanh"] = Field(default="gelu", description="exact or tanh-approximated GELU")
    cross_attention: Literal["none", "all"] | tuple[int, ...] = Field(
        default="none", description="layers that read a context"
    )
    cross_gate: bool = Field(default=False, description="a learned sigmoid gate on what is read (RA-DT option)")
    cross_residual: bool = Field(default=True, description="false: what is read replaces the hidden state (RA-DT)")
    init: Literal["gpt2", "plain"] = Field(default="gpt2", description="gpt2: outputs at 0.02/sqrt(2 layers)")
    norm_eps: float = Field(default=1e-5, gt=0.0)

    @model_validator(mode="after")
    def _check(self) -> TransformerSettings:
        if self.width % self.heads:
            raise UserError(
                f"a transformer of width {self.width} cannot be split into {self.heads} heads",
                where="heads",
                do="choose a width that is a multiple of heads",
            )
        bad = [i for i in self.cross_layers if not 0 <= i < self.layers]
        if bad:
            raise UserError(
                f"cross-attention is asked for in layers {bad}, but there are {self.layers} layers",
                where="cross_attention",
                do=f"name layers between 0 and {self.layers - 1}",
            )
        return self

    @property
    def cross_layers(self) -> tuple[int, ...]:
        """Indices of the layers that have cross-attention."""
        if self.cross_attention == "none":
            return ()
        return tuple(range(self.layers)) if self.cross_attention == "all" else tuple(self.cross_attention)

    @property
    def dropouts(self) -> tuple[float, float, float]:
        """(embedding, residual, attention) dropout probabilities."""
        own = (self.embedding_dropout, self.residual_dropout, self.attention_dropout)
        first, second, third = (self.dropout if p is None else p for p in own)
        return first, second, third


class AttentionMaps(NamedTuple):
    """Attention weights before dropout, one tensor per layer; the cross map is None where there was no context."""

    self_BHTT: list[Tensor]
    cross_BHTS: list[Tensor | None]


class Block(nn.Module):
    """One pre-LN block. The work is done by `Transformer`, which needs the parts in another order when it steps."""

    def __init__(self, settings: TransformerSettings, cross: bool) -> None:
        super().__init__()
        d, inner, eps = settings.width, settings.inner_multiple * settings.width, settings.norm_eps
        self.norm_attention = nn.LayerNorm(d, eps=eps)
        self.qkv = Linear(d, 3 * d)
        self.attention_out = Linear(d, d)
        self.cross = cross
        if cross:
            self.norm_cross = nn.LayerNorm(d, eps=eps)
            self.cross_q = Linear(d, d)
            self.cross_kv = Linear(d, 2 * d)
            self.cross_out = Linear(d, d)
            self.cross_gate = nn.Parameter(torch.zeros(1)) if settings.cross_gate else None
        self.norm_mlp = nn.LayerNorm(d, eps=eps)
        self.mlp_in = Linear(d, inner)
        self.mlp_out = Linear(inner, d)


class Transformer(nn.Module):
    """Causal transformer.

    Args:
        settings: its shape.
        seed: initial weights and the dropout stream are functions of this seed.
    """

    def __init__(self, settings: TransformerSettings, *, seed: int = 0) -> None:
        super().__init__()
        self.settings = settings
        self.width, self.heads, self.head_width = settings.width, settings.heads, settings.width // settings.heads
        self.blocks = nn.ModuleList(Block(settings, i in settings.cross_layers) for i in range(settings.layers))
        self.norm_final = nn.LayerNorm(settings.width, eps=settings.norm_eps)
        embedding, residual, attention = settings.dropouts
        self.p_embedding, self.p_residual, self.p_attention = embedding, residual, attention
        self.dropout = Dropout(seed_of("transformer dropout", seed))
        self._gelu = "none" if settings.activation == "gelu" else "tanh"
        self._initialise(seed)

    def _initialise(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed_of("transformer weights", seed))
        depth_scaled = 0.02 / math.sqrt(2 * self.settings.layers) if self.settings.init == "gpt2" else 0.02
        with torch.no_grad():
            for name, module in self.named_modules():
                if isinstance(module, nn.Linear):
                    std = depth_scaled if name.endswith("_out") else 0.02
                    module.weight.normal_(0.0, std, generator=generator)
                    module.bias.zero_()

    def reseed_dropout(self, seed: int) -> None:
        """Start the dropout stream anew; ``seed_of("dropout", seed, step)`` every step makes a resume draw the same."""
        self.dropout.reseed(seed)

    # ---------------------------------------------------------------- whole sequences

    @overload
    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = ...,
        context_BSD: Tensor | None = ...,
        context_mask_BS: Tensor | None = ...,
        has_context_B: Tensor | None = ...,
        return_attention: Literal[False] = ...,
    ) -> Tensor: ...
    @overload
    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = ...,
        context_BSD: Tensor | None = ...,
        context_mask_BS: Tensor | None = ...,
        has_context_B: Tensor | None = ...,
        return_attention: Literal[True],
    ) -> tuple[Tensor, AttentionMaps]: ...
    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = None,
        context_BSD: Tensor | None = None,
        context_mask_BS: Tensor | None = None,
        has_context_B: Tensor | None = None,
        return_attention: bool = False,
    ) -> Tensor | tuple[Tensor, AttentionMaps]:
        """Hidden states after the final LayerNorm.

        Args:
            x_BTD: token embeddings with positions already added.
            mask_BT: True where a token is real; padding may stand anywhere. None: no padding (the fastest path).
            context_BSD: tokens that the cross-attention layers read, all of them. None: these sub-layers are skipped.
            context_mask_BS: True where a context token is real.
            has_context_B: False: this row has no context and skips cross-attention. A CPU tensor lets the whole
                computation be skipped when it is False everywhere; a device tensor is never read back.
            return_attention: also give the attention maps (slower).

        Returns:
            ``h_BTD``, zero where the token is padding; or ``(h_BTD, AttentionMaps)``.
        """
        B, T, D = x_BTD.shape
        if mask_BT is not None and mask_BT.device.type == "cpu" and bool(mask_BT.all()):
            mask_BT = None
        context, context_attend, factor = self.prepare_context(context_BSD, context_mask_BS, has_context_B)
        if return_attention:
            return self._forward_with_maps(x_BTD, mask_BT, context, context_attend, factor)
        packing, order_BT = None, None
        if mask_BT is not None and x_BTD.device.type == "cpu":
            packing = Packing.of(mask_BT)
            h = pack(x_BTD, packing)
            factor = None if factor is None else factor[packing.row_N, 0]
            if context is not None and packing.order_B is not None and not self._drops_attention:
                context = context[packing.order_B]
                context_attend = None if context_attend is None else context_attend[packing.order_B]
        elif mask_BT is not None:
            # Real tokens first: then the causal mask alone hides all padding, and the fused kernels need no mask.
            mask_BT = mask_BT.to(x_BTD.device)
            order_BT = mask_BT.logical_not().to(torch.int8).argsort(dim=1, stable=True)[:, :, None]
            h = x_BTD.take_along_dim(order_BT, 1)
        else:
            h = x_BTD
        h = self._drop(h, self.p_embedding)
        for block in self.blocks:
            assert isinstance(block, Block)
            y = self._self_attention(block.qkv(block.norm_attention(h)), packing)
            h = self._add(h, block.attention_out(y))
            if block.cross and context is not None:
                y = self._cross_attention(block, block.norm_cross(h), context, context_attend, packing)
                h = self._read(block, h, block.cross_out(y), factor)
            h = self._add(h, block.mlp_out(gelu(block.mlp_in(block.norm_mlp(h)), self._gelu)))
        h = self.norm_final(h)
        if packing is not None:
            return unpack(h, packing, B, T)
        if order_BT is not None:
            assert mask_BT is not None
            back = torch.zeros_like(h).scatter(1, order_BT.expand(B, T, D), h)
            return back.masked_fill(~mask_BT[:, :, None], 0.0)
        return h

    @property
    def _drops_attention(self) -> bool:
        """Whether attention is our own on the CPU, with dropout."""
        return self.training and self.p_attention > 0

    def _self_attention(self, qkv: Tensor, packing: Packing | None) -> Tensor:
        p = self.p_attention if self.training else 0.0
        if p and qkv.device.type == "cpu":
            return self_attention(qkv, self.heads, p, self.dropout, packing)

        def attended(qkv_BTE: Tensor) -> Tensor:
            q, k, v = self.split_heads(qkv_BTE, 3)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=p).transpose(1, 2).flatten(2)

        if packing is None:
            return attended(qkv)
        return gather([attended(block) for block in spread(qkv, packing)], packing)

    def _cross_attention(
        self, block: Block, x: Tensor, context_BSD: Tensor, attend: Tensor | None, packing: Packing | None
    ) -> Tensor:
        p = self.p_attention if self.training else 0.0
        q, kv = block.cross_q(x), block.cross_kv(context_BSD)
        if p and q.device.type == "cpu":
            bias_BS = None
            if attend is not None:
                bias_BS = torch.zeros(context_BSD.shape[:2]).masked_fill_(~attend[:, 0, 0], float("-inf"))
            return cross_attention(q, kv, bias_BS, self.heads, p, self.dropout, packing)

        def attended(q_BTD: Tensor, kv_BSE: Tensor, attend_B11S: Tensor | None) -> Tensor:
            (q,), (k, v) = self.split_heads(q_BTD, 1), self.split_heads(kv_BSE, 2)
            return (
                F.scaled_dot_product_attention(q, k, v, attn_mask=attend_B11S, dropout_p=p).transpose(1, 2).flatten(2)
            )

        if packing is None:
            return attended(q, kv, attend)
        rows = [rows for rows, _ in packing.groups]
        masks = [None] * len(rows) if attend is None else attend.split(rows)
        return gather(
            [attended(*part) for part in zip(spread(q, packing), kv.split(rows), masks, strict=True)], packing
        )

    def _forward_with_maps(
        self,
        x_BTD: Tensor,
        mask_BT: Tensor | None,
        context: Tensor | None,
        context_attend: Tensor | None,
        factor: Tensor | None,
    ) -> tuple[Tensor, AttentionMaps]:
        """The same function written plainly, keeping the attention weights; for inspection, not for speed."""
        attend = causal(x_BTD, mask_BT)
        maps = AttentionMaps([], [])
        h = self._drop(x_BTD, self.p_embedding)
        for block in self.blocks:
            assert isinstance(block, Block)
            q, k, v = self.split_heads(block.qkv(block.norm_attention(h)), 3)
            y, weights = self.plain_attention(q, k, v, attend)
            h = self._add(h, block.attention_out(y.transpose(1, 2).flatten(2)))
            maps.self_BHTT.append(weights)
            if block.cross and context is not None:
                (q,) = self.split_heads(block.cross_q(block.norm_cross(h)), 1)
                k, v = self.split_heads(block.cross_kv(context), 2)
                y, weights = self.plain_attention(q, k, v, context_attend)
                h = self._read(block, h, block.cross_out(y.transpose(1, 2).flatten(2)), factor)
                maps.cross_BHTS.append(weights)
            else:
                maps.cross_BHTS.append(None)
            h = self._add(h, block.mlp_out(gelu(block.mlp_in(block.norm_mlp(h)), self._gelu)))
        h = self.norm_final(h)
        return (h if mask_BT is None else h.masked_fill(~mask_BT[:, :, None].to(h.device), 0.0)), maps

    def plain_attention(self, q: Tensor, k: Tensor, v: Tensor, attend: Tensor | None) -> tuple[Tensor, Tensor]:
        """(y [B,H,T,Dh], weights before dropout [B,H,T,S]); ``attend``: bool, which keys are read."""
        scores = q @ k.transpose(-2, -1) * self.head_width**-0.5
        weights = (scores if attend is None else scores.masked_fill(~attend, float("-inf"))).softmax(-1)
        dropped = self._drop(weights, self.p_attention)
        return dropped @ v, weights

    def split_heads(self, x: Tensor, parts: int) -> Tensor:
        """[B, T, parts*D] to a view [parts, B, H, T, Dh]."""
        return x.view(*x.shape[:2], parts, self.heads, self.head_width).permute(2, 0, 3, 1, 4)

    def _read(self, block: Block, h: Tensor, y: Tensor, factor: Tensor | None) -> Tensor:
        """What cross-attention gave, gated, on top of the hidden state or in its place; factor 0: the row has none."""
        if block.cross_gate is not None:
            y = y * torch.sigmoid(block.cross_gate)
        if self.settings.cross_residual:
            return self._add(h, y if factor is None else y * factor)
        y = self._drop(y, self.p_residual)
        return y if factor is None else torch.where(factor > 0, y, h)

    def _drop(self, x: Tensor, p: float) -> Tensor:
        return self.dropout(x, p) if p and self.training else x

    def _add(self, h: Tensor, y: Tensor) -> Tensor:
        """The residual: h + dropout(y)."""
        return self.dropout.add(h, y, self.p_residual) if self.p_residual and self.training else h + y

    def prepare_context(
        self, context_BSD: Tensor | None, mask_BS: Tensor | None, has_B: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """(context or None, attend mask [B,1,1,S] or None, factor [B,1,1] or None) as the layers need them."""
        if context_BSD is None or not self.settings.cross_layers:
            return None, None, None
        if has_B is not None and has_B.device.type == "cpu":
            if not bool(has_B.any()):
                return None, None, None
            if bool(has_B.all()):
                has_B = None
        device = context_BSD.device
        attend = None
        if mask_BS is not None and (mask_BS.device.type != "cpu" or not bool(mask_BS.all())):
            attend = mask_BS.to(device)
            # A row without any real context token would be a softmax over nothing: it attends, and is then dropped.
            empty_B1 = ~attend.any(dim=1, keepdim=True)
            has_B = ~empty_B1[:, 0] if has_B is None else has_B.to(device) & ~empty_B1[:, 0]
            attend = (attend | empty_B1)[:, None, None, :]
        return context_BSD, attend, None if has_B is None else has_B.to(device)[:, None, None].to(context_BSD.dtype)

    # ---------------------------------------------------------------- the last token of a window

    @torch.no_grad()
    def last(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = None,
        context_BSD: Tensor | None = None,
        context_mask_BS: Tensor | None = None,
        has_context_B: Tensor | None = None,
        read: ReadContext | None = None,
    ) -> Tensor:
        """``forward(...)[:, -1]`` of left-padded rows, for acting: the last layer is computed for that token alone.

        Args:
            x_BTD, mask_BT, context_BSD, context_mask_BS, has_context_B: as in `forward`.
            read: keys and values of the context (`KeyValueCache.context`), in the place of its tokens.

        Returns:
            h_BD; no gradient and no dropout.
        """
        if read is None:
            context, attend, factor = self.prepare_context(context_BSD, context_mask_BS, has_context_B)
            read = None if context is None else ReadContext(context_keys(self, context), attend, factor)
        layers = [None] * len(self.blocks) if read is None else read.layers
        keys_BT = None if mask_BT is None or bool(mask_BT.all()) else mask_BT.to(x_BTD.device)
        h_BTD, seen = x_BTD, None if keys_BT is None else causal(x_BTD, keys_BT)
        for block, keys_values in zip(self.blocks, layers, strict=True):
            assert isinstance(block, Block)
            normed, last = block.norm_attention(h_BTD), block is self.blocks[-1]
            k, v = self.split_heads(linear_part(block.qkv, normed, self.width, 3 * self.width), 2)
            if last:
                h_BTD, normed = h_BTD[:, -1:], normed[:, -1:]
            (q,) = self.split_heads(linear_part(block.qkv, normed, 0, self.width), 1)
            mask = keys_BT[:, None, None, :] if last and keys_BT is not None else seen
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None and not last)
            h_BTD = h_BTD + block.attention_out(y.transpose(1, 2).flatten(2))
            if read is not None and keys_values is not None:
                (q,) = self.split_heads(block.cross_q(block.norm_cross(h_BTD)), 1)
                k, v = keys_values
                y = F.scaled_dot_product_attention(q.to(k.dtype), k, v, attn_mask=read.attend_B11S)
                h_BTD = self._read(block, h_BTD, block.cross_out(y.transpose(1, 2).flatten(2)), read.factor_B11)
            h_BTD = h_BTD + block.mlp_out(gelu(block.mlp_in(block.norm_mlp(h_BTD)), self._gelu))
        return self.norm_final(h_BTD)[:, 0]

    # ---------------------------------------------------------------- one token at a time

    def make_cache(
        self, batch: int, length: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> KeyValueCache:
        """An empty cache for ``batch`` rows of at most ``length`` tokens each."""
        weight = self.norm_final.weight
        return KeyValueCache(self, batch, length, torch.device(device or weight.device), dtype or weight.dtype)

    def step(self, x_BD: Tensor, cache: KeyValueCache, active_B: Tensor | None = None) -> Tensor:
        """One token per row: ``h_BD``, equal to the last hidden state of the full forward over the row's tokens so far.

        Args:
            x_BD: token embeddings; the position of row b's token is ``cache.lengths_B[b]``.
            cache: what `make_cache` gave; it grows by one token in every active row.
            active_B: rows that take part; the others keep their cache and their output means nothing.

        Raises:
            UserError: an active row is full.
        """
        return cache.run(x_BD[:, None], None if active_B is None else active_B[:, None])[:, 0]

    def extend(self, x_BTD: Tensor, mask_BT: Tensor | None, cache: KeyValueCache) -> Tensor:
        """Append a block of tokens to every row: ``h_BTD`` (outputs at padding mean nothing, but are finite).

        Args:
            x_BTD: token embeddings; the t-th real token of row b has position ``cache.lengths_B[b] + t``.
            mask_BT: True where a token is real; padding may stand left or right. None: all are.
            cache: grows by the number of real tokens in every row.

        Raises:
            UserError: a row would grow longer than the cache.
        """
        return cache.run(x_BTD, mask_BT)
