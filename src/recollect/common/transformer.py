"""The causal transformer that all systems use: pre-LN GPT-2 blocks with optional cross-attention.

- Block: ``x + SelfAttention(LN x)``; ``[x + CrossAttention(LN x, context)]``; ``x + MLP(LN x)``. A LayerNorm ends it.
- Positions are the caller's business (sinusoids, learned tables, time steps); embedding dropout happens here.
- How tokens attend is an object of its own (`recollect.common.attention`): plain, fused, made for CPUs, or over the
  key/value cache with which agents act (`recollect.common.cache`).
- All randomness (initial weights, dropout on the CPU) comes from generators of the module's own, see `reseed_dropout`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.common.attention import (
    Attention,
    AttentionMaps,
    Context,
    FusedAttention,
    KeysValues,
    PlainAttention,
    ReadContext,
    causal,
    join_heads,
    plain_attention,
    split_heads,
)
from recollect.common.cpu.attention import CPUAttention
from recollect.common.cpu.dropout import Dropout
from recollect.common.cpu.kernels import Linear, gelu, linear_part
from recollect.common.recomputed import recomputed
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
    cross_gate: bool = Field(default=False, description="what is read is scaled by a sigmoid of itself (RA-DT option)")
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
        if self.cross_attention == "none":
            return ()
        return tuple(range(self.layers)) if self.cross_attention == "all" else tuple(self.cross_attention)

    @property
    def dropouts(self) -> tuple[float, float, float]:
        own = (self.embedding_dropout, self.residual_dropout, self.attention_dropout)
        first, second, third = (self.dropout if p is None else p for p in own)
        return first, second, third


class Block(nn.Module):
    """The weights of one pre-LN block. `Transformer` uses them, as it attends in more than one way."""

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
            self.cross_gate = Linear(d, d) if settings.cross_gate else None
        self.norm_mlp = nn.LayerNorm(d, eps=eps)
        self.mlp_in = Linear(d, inner)
        self.mlp_out = Linear(inner, d)
        self._gelu = "none" if settings.activation == "gelu" else "tanh"

    def feed_forward(self, h: Tensor) -> Tensor:
        return self.mlp_out(gelu(self.mlp_in(self.norm_mlp(h)), self._gelu))


class Transformer(nn.Module):
    """Causal transformer; its initial weights and dropout stream are functions of the seed."""

    def __init__(self, settings: TransformerSettings, *, seed: int = 0) -> None:
        super().__init__()
        self.settings = settings
        self.width, self.heads, self.head_width = settings.width, settings.heads, settings.width // settings.heads
        self.blocks = nn.ModuleList(Block(settings, i in settings.cross_layers) for i in range(settings.layers))
        self.norm_final = nn.LayerNorm(settings.width, eps=settings.norm_eps)
        self.p_embedding, self.p_residual, self.p_attention = settings.dropouts
        self.dropout = Dropout(seed_of("transformer dropout", seed))
        self.recomputes = False  # whether the backward pass computes activations again, in the place of keeping them
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

    def layers(self) -> list[Block]:
        return cast("list[Block]", list(self.blocks))

    # ---------------------------------------------------------------- whole sequences

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
            has_context_B: False: this row has no context and skips cross-attention. A CPU tensor lets the whole
                computation be skipped when it is False everywhere; a device tensor is never read back.

        Returns:
            ``h_BTD``, zero where the token is padding; or ``(h_BTD, AttentionMaps)``.
        """
        context = self.context(context_BSD, context_mask_BS, has_context_B)
        if return_attention:
            plain = PlainAttention(x_BTD, _needed(mask_BT), context, self.heads, self.drop_attention)
            return self.through(x_BTD, plain), plain.maps
        return self.through(x_BTD, self.attention(x_BTD, mask_BT, context))

    def through(self, x_BTD: Tensor, attention: Attention) -> Tensor:
        """The function itself: all layers on tokens that attend in the given way."""
        h = self.drop(attention.enter(x_BTD), self.p_embedding)
        for layer in range(len(self.blocks)):
            if self.recomputes and torch.is_grad_enabled():
                h = recomputed(partial(self._layer, layer, attention=attention), h, self.dropout)
            else:
                h = self._layer(layer, h, attention)
        return attention.leave(self.norm_final(h))

    def _layer(self, layer: int, h: Tensor, attention: Attention) -> Tensor:
        block = self.layers()[layer]
        y = attention.own(layer, block.qkv(block.norm_attention(h)))
        h = self.add(h, block.attention_out(y))
        if block.cross and attention.reads:
            y = attention.context(layer, block.cross_q(block.norm_cross(h)), block.cross_kv)
            h = self.add_context(block, h, block.cross_out(y), attention.factor)
        return self.add(h, block.feed_forward(h))

    def attention(self, x_BTD: Tensor, mask_BT: Tensor | None = None, context: Context | None = None) -> Attention:
        """The fastest way for such tokens to attend."""
        p = self.p_attention if self.training else 0.0
        mask_BT = _needed(mask_BT)
        if x_BTD.device.type == "cpu" and (p or mask_BT is not None):
            return CPUAttention(mask_BT, context, self.heads, p, self.dropout)
        return FusedAttention(x_BTD, mask_BT, context, self.heads, p)

    def context(
        self, context_BSD: Tensor | None, mask_BS: Tensor | None, has_context_B: Tensor | None
    ) -> Context | None:
        """What cross-attention layers read, see `forward`; None where there are no such layers, or no row has any."""
        if context_BSD is None or not self.settings.cross_layers:
            return None
        return Context.of(context_BSD, mask_BS, has_context_B)

    # ---------------------------------------------------------------- dropout and residuals

    def drop(self, x: Tensor, p: float) -> Tensor:
        return self.dropout(x, p) if p and self.training else x

    def drop_attention(self, weights: Tensor) -> Tensor:
        return self.drop(weights, self.p_attention)

    def add(self, h: Tensor, y: Tensor) -> Tensor:
        return self.dropout.add(h, y, self.p_residual) if self.p_residual and self.training else h + y

    def add_context(self, block: Block, h: Tensor, y: Tensor, factor: Tensor | None) -> Tensor:
        """What cross-attention read, gated, on top of the hidden state or in its place; factor 0: the row has none."""
        if block.cross_gate is not None:
            y = y * torch.sigmoid(block.cross_gate(y))
        if self.settings.cross_residual:
            return self.add(h, y if factor is None else y * factor)
        y = self.drop(y, self.p_residual)
        return y if factor is None else torch.where(factor > 0, y, h)

    # ---------------------------------------------------------------- acting

    def context_keys(self, context_BSD: Tensor) -> list[KeysValues | None]:
        """Keys and values of a context in each layer; None in layers that read none."""
        layers: list[KeysValues | None] = []
        for block in self.layers():
            if not block.cross:
                layers.append(None)
                continue
            k, v = split_heads(block.cross_kv(context_BSD), 2, self.heads)
            layers.append((k.contiguous(), v.contiguous()))
        return layers

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
        dropout: bool = False,
    ) -> Tensor:
        """``forward(...)[:, -1]`` of left-padded rows, for acting: the last layer is computed for that token alone.

        Args:
            read: keys and values of the context (`KeyValueCache.context`), in the place of its tokens.
            dropout: self-attention drops weights as in training, as the released fast attention of RA-DT's baselines
                does; drawn from the stream of `reseed_dropout`.

        Returns:
            h_BD; no gradient.
        """
        if read is None:
            context = self.context(context_BSD, context_mask_BS, has_context_B)
            if context is not None:
                keys_values = self.context_keys(context.tokens_BSD)
                read = ReadContext(keys_values, context.attend_B11S, context.factor_B11)
        real_BT = _needed(mask_BT)
        if real_BT is not None:
            real_BT = real_BT.to(x_BTD.device)
        attend = None if real_BT is None else causal(x_BTD, real_BT)
        h_BTD = x_BTD
        for layer, block in enumerate(self.layers()):
            is_last = layer == len(self.blocks) - 1
            normed_BTD = block.norm_attention(h_BTD)
            k, v = split_heads(linear_part(block.qkv, normed_BTD, self.width, 3 * self.width), 2, self.heads)
            if is_last:  # all tokens give keys and values, one asks
                h_BTD, normed_BTD = h_BTD[:, -1:], normed_BTD[:, -1:]
                attend = None if real_BT is None else real_BT[:, None, None, :]
            (q,) = split_heads(linear_part(block.qkv, normed_BTD, 0, self.width), 1, self.heads)
            is_causal = attend is None and not is_last
            y = self._read_before(q, k, v, attend, is_causal, self.p_attention if dropout else 0.0)
            h_BTD = h_BTD + block.attention_out(join_heads(y))
            context_keys = None if read is None else read.layers[layer]
            if read is not None and context_keys is not None:
                (q,) = split_heads(block.cross_q(block.norm_cross(h_BTD)), 1, self.heads)
                k, v = context_keys
                y = F.scaled_dot_product_attention(q.to(k.dtype), k, v, attn_mask=read.attend_B11S)
                h_BTD = self.add_context(block, h_BTD, block.cross_out(join_heads(y)), read.factor_B11)
            h_BTD = h_BTD + block.feed_forward(h_BTD)
        return self.norm_final(h_BTD)[:, 0]

    def _read_before(self, q: Tensor, k: Tensor, v: Tensor, attend: Tensor | None, is_causal: bool, p: float) -> Tensor:
        if p and q.device.type == "cpu":  # the fused kernel would draw from torch's global generator there
            attend = q.new_ones(q.shape[2], k.shape[2], dtype=torch.bool).tril() if is_causal else attend
            return plain_attention(q, k, v, attend, lambda weights: self.dropout(weights, p))[0]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attend, is_causal=is_causal, dropout_p=p)


def _needed(mask_BT: Tensor | None) -> Tensor | None:
    """The mask; None where the host knows that it hides nothing."""
    if mask_BT is not None and mask_BT.device.type == "cpu" and bool(mask_BT.all()):
        return None
    return mask_BT
