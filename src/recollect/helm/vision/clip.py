"""CLIP: an image encoder (vision transformer or residual network) and a text encoder into one space.

Parameters have the names of the released checkpoints, in the layout of OpenCLIP, so that those are read as they are. The
image encoder's products may be held in half precision (`frozen_products.hold_products`; released: float16 on GPUs).

Source: Radford et al. 2021, section 2.4 and the released model code; counts in specification section 11.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.common.attention import join_heads, split_heads
from recollect.common.cpu.kernels import Linear
from recollect.helm.language.frozen_products import product


@dataclass(frozen=True)
class ClipShape:
    """Sizes of a CLIP. `layers` of the image encoder: a number (vision transformer) or four (residual network)."""

    width: int
    image_width: int
    image_layers: int | tuple[int, int, int, int]
    patch: int = 16
    image_size: int = 224
    text_width: int = 512
    text_layers: int = 12
    vocabulary: int = 49_408
    context: int = 77
    head: int = 64


SHAPES = {
    "clip_vit_b16": ClipShape(width=512, image_width=768, image_layers=12),
    "clip_rn50": ClipShape(width=1024, image_width=64, image_layers=(3, 4, 6, 3)),
}


class QuickGELU(nn.Module):
    """``x * sigmoid(1.702 x)``, with which CLIP was trained."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(1.702 * x).mul_(x)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)  # for its parameters
        self.mlp = nn.Sequential(
            OrderedDict(c_fc=Linear(width, 4 * width), gelu=QuickGELU(), c_proj=Linear(4 * width, width))
        )

    def forward(self, x_NTD: Tensor, causal: bool) -> Tensor:
        """``causal``: a token attends to those before it and itself, else to all."""
        qkv = product(self.ln_1(x_NTD), self.attn.in_proj_weight, self.attn.in_proj_bias)
        q, k, v = split_heads(qkv, 3, self.attn.num_heads)
        y_NTD = join_heads(F.scaled_dot_product_attention(q, k, v, is_causal=causal))
        x_NTD = x_NTD + product(y_NTD, self.attn.out_proj.weight, self.attn.out_proj.bias)
        return x_NTD + self.mlp(self.ln_2(x_NTD).to(self.mlp[0].weight.dtype))


class Transformer(nn.Module):
    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(Block(width, heads) for _ in range(layers))

    def forward(self, x_NTD: Tensor, *, causal: bool = False) -> Tensor:
        for block in self.resblocks:
            x_NTD = block(x_NTD, causal)
        return x_NTD


class VisionTransformer(nn.Module):
    """Images [N, 3, S, S] -> [N, width]: patches and a class token, whose last state is projected."""

    def __init__(self, shape: ClipShape, layers: int) -> None:
        super().__init__()
        inner = shape.image_width
        self.conv1 = nn.Conv2d(3, inner, shape.patch, shape.patch, bias=False)
        self.class_embedding = nn.Parameter(torch.empty(inner))
        self.positional_embedding = nn.Parameter(torch.empty((shape.image_size // shape.patch) ** 2 + 1, inner))
        self.ln_pre, self.ln_post = nn.LayerNorm(inner), nn.LayerNorm(inner)
        self.transformer = Transformer(inner, layers, inner // shape.head)
        self.proj = nn.Parameter(torch.empty(inner, shape.width))

    def forward(self, x_NCHW: Tensor) -> Tensor:
        patches_NTD = self.conv1(x_NCHW.to(self.conv1.weight.dtype)).flatten(2).transpose(1, 2)
        first_N1D = self.class_embedding.expand(len(x_NCHW), 1, -1)
        tokens_NTD = self.ln_pre(torch.cat([first_N1D, patches_NTD], 1) + self.positional_embedding)
        return self.ln_post(self.transformer(tokens_NTD)[:, 0]) @ self.proj


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a short cut; strides are average pools."""

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.stride = stride
        self.downsample: nn.Sequential | None = None
        if stride > 1 or inputs != 4 * planes:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, 4 * planes, 1, bias=False), nn.BatchNorm2d(4 * planes))

    def forward(self, x_NCHW: Tensor) -> Tensor:
        """[N, 4 planes, H / stride, W / stride]."""
        out_NCHW = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x_NCHW))))))
        if self.stride > 1:
            out_NCHW, x_NCHW = F.avg_pool2d(out_NCHW, self.stride), F.avg_pool2d(x_NCHW, self.stride)
        short_NCHW = x_NCHW if self.downsample is None else self.downsample(x_NCHW)
        return F.relu(self.bn3(self.conv3(out_NCHW)) + short_NCHW)


class AttentionPool(nn.Module):
    """The mean of all places attends to them and itself, each with a position."""

    def __init__(self, side: int, inputs: int, heads: int, width: int) -> None:
        super().__init__()
        self.positional_embedding = nn.Parameter(torch.empty(side**2 + 1, inputs))
        self.q_proj, self.k_proj, self.v_proj = (Linear(inputs, inputs) for _ in range(3))
        self.c_proj = Linear(inputs, width)
        self.heads = heads

    def forward(self, x_NCHW: Tensor) -> Tensor:
        """[N, width]."""
        places_NTD = x_NCHW.flatten(2).transpose(1, 2)
        tokens_NTD = torch.cat([places_NTD.mean(1, keepdim=True), places_NTD], 1) + self.positional_embedding
        tokens_NTD = tokens_NTD.to(self.q_proj.weight.dtype)
        q_N1D = self.q_proj(tokens_NTD[:, :1])
        k_NTD = self.k_proj(tokens_NTD)
        v_NTD = self.v_proj(tokens_NTD)
        by_head = [x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (q_N1D, k_NTD, v_NTD)]
        return self.c_proj(F.scaled_dot_product_attention(*by_head).flatten(1))


class ModifiedResNet(nn.Module):
    """Images [N, 3, S, S] -> [N, width]: a stem of three convolutions, average pools for strides, an attention pool."""

    def __init__(self, shape: ClipShape, layers: tuple[int, int, int, int]) -> None:
        super().__init__()
        inner = shape.image_width
        self.conv1 = nn.Conv2d(3, inner // 2, 3, 2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner // 2)
        self.conv2 = nn.Conv2d(inner // 2, inner // 2, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner // 2)
        self.conv3 = nn.Conv2d(inner // 2, inner, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(inner)
        before = inner
        for i, count in enumerate(layers):
            planes = inner * 2**i
            blocks = []
            for j in range(count):
                # All layers but the first begin with a stride.
                stride = 2 if i > 0 and j == 0 else 1
                blocks.append(Bottleneck(before, planes, stride))
                before = 4 * planes
            self.add_module(f"layer{i + 1}", nn.Sequential(*blocks))
        self.attnpool = AttentionPool(shape.image_size // 32, before, before // shape.head, shape.width)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        x_NCHW = F.relu(self.bn1(self.conv1(x_NCHW.to(self.conv1.weight.dtype))))
        x_NCHW = F.relu(self.bn2(self.conv2(x_NCHW)))
        x_NCHW = F.relu(self.bn3(self.conv3(x_NCHW)))
        x_NCHW = F.avg_pool2d(x_NCHW, 2)
        for i in (1, 2, 3, 4):
            x_NCHW = self.get_submodule(f"layer{i}")(x_NCHW)
        return self.attnpool(x_NCHW)


class Clip(nn.Module):
    """Both encoders; make it on the meta device and load weights, none are drawn here."""

    def __init__(self, shape: ClipShape) -> None:
        super().__init__()
        self.shape = shape
        layers = shape.image_layers
        self.visual: nn.Module = (
            VisionTransformer(shape, layers) if isinstance(layers, int) else ModifiedResNet(shape, layers)
        )
        inner = shape.text_width
        self.token_embedding = nn.Embedding(shape.vocabulary, inner)
        self.positional_embedding = nn.Parameter(torch.empty(shape.context, inner))
        self.transformer = Transformer(inner, shape.text_layers, inner // shape.head)
        self.ln_final = nn.LayerNorm(inner)
        self.text_projection = nn.Parameter(torch.empty(inner, shape.width))
        self.logit_scale = nn.Parameter(torch.empty(()))

    def images(self, x_NCHW: Tensor) -> Tensor:
        """[N, width] of preprocessed images [N, 3, S, S]."""
        return self.visual(x_NCHW)

    def texts(self, ids_NT: Tensor, last_N: Tensor) -> Tensor:
        """[N, width] of token ids, read at each text's end of text; what stands behind it is never seen."""
        tokens_NTD = self.token_embedding(ids_NT) + self.positional_embedding[: ids_NT.shape[1]]
        states_NTD = self.transformer(tokens_NTD, causal=True)
        ends_ND = states_NTD[torch.arange(len(ids_NT), device=ids_NT.device), last_N]
        return self.ln_final(ends_ND) @ self.text_projection
