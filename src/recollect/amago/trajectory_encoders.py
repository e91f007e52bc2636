"""AMAGO's trajectory encoders: sequence models from vectors of time steps [B, T, D] to states [B, T, E].

- `transformer`: pre-norm with NormFormer's additional norms, sigma-reparametrised linear layers, a learned scale of
  every head's output, LeakyReLU. Positions are those of the step in its rollout, not in the training window. With
  `window`, each layer reads so many steps back and no further, so a state still knows of `layers * window` steps.
- `gru`: torch's, a linear layer, LayerNorm.
- `ff`: no memory; residual blocks.

Source: AMAGO (arXiv 2310.09971), specification 1.3. `normformer`, `sigma_reparam`, `head_scale` and `activation` turn the
Transformer's additions off (the paper's "naive" ablation).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from recollect.amago.own_parts import Replaceable
from recollect.amago.ring_cache import Place, RingCache
from recollect.amago.sigma_reparam import SigmaLinear
from recollect.common.cpu.dropout import Dropout
from recollect.common.cpu.kernels import Linear
from recollect.common.feedforward import default_init
from recollect.common.positional_codes import sinusoid
from recollect.common.precision import Precision, in_bfloat16
from recollect.common.rotary import turned
from recollect.common.sequence_models import (
    Device,
    Mask,
    MemorylessSequence,
    RecurrentSequence,
    RecurrentState,
    SequenceModel,
)
from recollect.settings.seeding import seed_of

Activation = Literal["leaky_relu", "relu", "gelu"]
ROTARY_BASE = 10_000.0  # of all published models with rotary positions
ACTIVATIONS: dict[str, Any] = {"leaky_relu": functional.leaky_relu, "relu": functional.relu, "gelu": functional.gelu}


class TrajectoryEncoderSettings(Replaceable):
    PART: ClassVar[str] = "trajectory encoder"
    OURS: ClassVar[tuple[str, ...]] = ("transformer", "gru", "ff")

    kind: str = Field("transformer", description="transformer, gru or ff (no memory); or your own.")
    width: int = Field(256, ge=1, description="Width of states. Paper: 256 (T-Maze, MazeRunner, Package: 128).")
    layers: int = Field(3, ge=1, description="Paper: 3 (T-Maze: 2). GRU: 2, ff: 1 by default upstream.")
    heads: int = Field(8, ge=1, description="Attention heads (transformer). Paper: 8.")
    dropout: float = Field(0.05, ge=0, lt=1, description="Of embeddings and feed-forward layers (transformer).")
    positions: Literal["learned", "sinusoid", "rotary"] = Field(
        "learned", description="Code of a step's position in its rollout. Newer code: sinusoid; rotary turns q and k."
    )
    window: int | None = Field(
        None, ge=1, description="Steps back that attention reaches (transformer); null: all. Newer code: an option."
    )
    activation: Activation = Field("leaky_relu", description="Naive ablation: gelu.")
    normformer: bool = Field(True, description="LayerNorms behind attention and inside the feed-forward layer.")
    sigma_reparam: bool = Field(True, description="Weights divided by their largest singular value.")
    head_scale: bool = Field(True, description="A learned factor per attention head.")

    @model_validator(mode="after")
    def _check(self) -> TrajectoryEncoderSettings:
        if self.kind == "transformer" and self.positions == "rotary" and self.width // self.heads % 2:
            raise ValueError(f"rotary positions turn pairs of numbers: a head cannot have {self.width // self.heads}")
        return self


def turned_by_time(x: Tensor, time: Tensor) -> Tensor:
    """Queries or keys [..., H, Dh] turned by angles that grow with the time [...] of their step."""
    half = x.shape[-1] // 2
    rate_D = ROTARY_BASE ** (-torch.arange(half, device=x.device) / half)
    angle = (time[..., None] * rate_D)[..., None, :]
    return turned(x, angle.cos(), angle.sin()).to(x.dtype)


def plain_linear(inputs: int, outputs: int, draws: torch.Generator, *, bias: bool = True) -> Linear:
    """A linear layer with torch's own initialisation from a generator."""
    layer = Linear(inputs, outputs, bias=bias)
    default_init(layer, draws)
    return layer


class Block(nn.Module):
    def __init__(self, settings: TrajectoryEncoderSettings, draws: torch.Generator) -> None:
        super().__init__()
        d, self.heads = settings.width, settings.heads
        self.act = ACTIVATIONS[settings.activation]
        make: Any = SigmaLinear if settings.sigma_reparam else Linear
        options: dict[str, Any] = {"generator": draws} if settings.sigma_reparam else {}
        self.norm_attention, self.norm_ff = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = make(d, 3 * d, bias=False, **options)
        self.head_scale = nn.Parameter(torch.ones(settings.heads)) if settings.head_scale else None
        self.out = make(d, d, **options)
        self.ff_in, self.ff_out = make(d, 4 * d, **options), make(4 * d, d, **options)
        if not settings.sigma_reparam:
            for layer in (self.qkv, self.out, self.ff_in, self.ff_out):
                default_init(layer, draws)
        extra = settings.normformer
        self.norm_attended = nn.LayerNorm(d) if extra else nn.Identity()
        self.norm_inner = nn.LayerNorm(4 * d) if extra else nn.Identity()

    def project(self, x: Tensor, *, half: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [..., H, Dh]; `half`: in bfloat16."""
        qkv = self.qkv(self.norm_attention(x))
        q, k, v = (qkv.bfloat16() if half else qkv).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        return q, k, v

    def attended(self, y: Tensor) -> Tensor:
        """What attention [..., H, Dh] adds to the residual stream."""
        y = y if self.head_scale is None else y * self.head_scale[:, None]
        return self.norm_attended(self.out(y.flatten(-2)))

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.ff_out(self.norm_inner(self.act(self.ff_in(self.norm_ff(x)))))


class TransformerEncoder(SequenceModel):
    """See the head of this file. Steps equal the whole pass as long as no more than `context` tokens are remembered.

    Args:
        horizon: longest rollout; learned positions are one more, and later steps share the last.
        context: tokens that acting remembers, L; where attention has a window, no more than it reads.
    """

    table_TD: Tensor

    def __init__(
        self, settings: TrajectoryEncoderSettings, input_width: int, *, horizon: int, context: int, seed: int
    ) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(seed_of("trajectory encoder", seed))
        self.settings = settings
        self.context = min(context, settings.window + 1) if settings.window else context
        self.input_width, self.output_width = input_width, settings.width
        self.input = plain_linear(input_width, settings.width, draws)
        if settings.positions == "learned":
            self.table_TD = nn.Parameter(torch.empty(horizon + 1, settings.width).normal_(generator=draws))
        elif settings.positions == "sinusoid":
            self.register_buffer("table_TD", sinusoid(horizon + 1, settings.width), persistent=False)
        self.blocks = nn.ModuleList(Block(settings, draws) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(settings.width)
        self.dropout = Dropout(seed_of("trajectory encoder dropout", seed))
        # PyTorch's flash attention takes no float32. The released one casts to bfloat16, whatever it is given.
        self.attention_precision: Precision = "float32"

    @property
    def random(self) -> bool:
        return self.settings.dropout > 0

    def _embed(self, x: Tensor, time: Tensor) -> Tensor:
        if self.settings.positions == "rotary":
            return self.input(x)
        return self.input(x) + self.table_TD[time.clamp(max=len(self.table_TD) - 1)]

    def _project(self, block: Block, h: Tensor, time: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = block.project(h, half=in_bfloat16(self.attention_precision, h.device))
        if self.settings.positions == "rotary":
            q, k = turned_by_time(q, time), turned_by_time(k, time)
        return q, k, v

    def forward(self, x_BTD: Tensor, time_BT: Tensor | None = None) -> Tensor:
        if time_BT is None:
            time_BT = torch.arange(x_BTD.shape[1], device=x_BTD.device).expand(len(x_BTD), -1)
        p = self.settings.dropout if self.training else 0.0
        h = self._embed(x_BTD, time_BT)
        h = self.dropout(h, p) if p else h
        window, T = self.settings.window, x_BTD.shape[1]
        band_TT = None
        if window is not None and window < T - 1:
            band_TT = torch.ones(T, T, dtype=torch.bool, device=h.device).tril_().triu_(-window)
        for block in self.blocks:
            assert isinstance(block, Block)
            q, k, v = (part.transpose(1, 2) for part in self._project(block, h, time_BT))
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=band_TT, is_causal=band_TT is None)
            h = h + block.attended(y.transpose(1, 2).to(h.dtype))
            y = block.feed_forward(h)
            h = self.dropout.add(h, y, p) if p else h + y
        return self.norm(h)

    def initial_state(self, batch: int, device: Device = None) -> RingCache:
        s = self.settings
        where = device if device is not None else self.norm.weight.device
        dtype = torch.bfloat16 if in_bfloat16(self.attention_precision, where) else torch.float32
        return RingCache(s.layers, batch, s.heads, self.context, s.width // s.heads, where, dtype)

    def step(self, x_BD: Tensor, state: RingCache) -> tuple[Tensor, RingCache]:
        time_B = torch.as_tensor(state.count_B, device=x_BD.device)
        return self.step_at(state.advance(), x_BD, time_B, state), state

    @torch.no_grad()
    def step_at(self, place: Place, x_BD: Tensor, time_B: Tensor, state: RingCache) -> Tensor:
        """States [B, E] of one more token per row, the `time_B`-th of each, int64 [B]; the state counts nothing."""
        h = self._embed(x_BD, time_B)
        for i, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            y = state.attention(i, place, *self._project(block, h, time_B))
            h = h + block.attended(y.to(h.dtype))
            h = h + block.feed_forward(h)
        return self.norm(h)

    @torch.no_grad()
    def reads(self, x_ND: Tensor, state: RingCache, rows_N: Tensor) -> Tensor:
        """How much the newest tokens of some rows, which x became, read of their last tokens: [N, layers, L], the mean over heads.

        L is `context`; the last is the newest token itself, and what lies before the first is zero.
        """
        time_N = torch.as_tensor(state.count_B, device=x_ND.device)[rows_N] - 1
        h = self._embed(x_ND, time_N)
        layers = []
        for i, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            q_NHD, _, _ = self._project(block, h, time_N)
            y, weight_NHL = state.reads(i, q_NHD, rows_N)
            layers.append(weight_NHL.mean(1))
            h = h + block.attended(y.to(h.dtype))
            h = h + block.feed_forward(h)
        return state.newest_last(torch.stack(layers, 1), rows_N)

    def reset(self, state: RingCache, mask_B: Mask) -> RingCache:
        state.reset(np.asarray(mask_B))
        return state

    def state_arrays(self, state: RingCache) -> dict[str, np.ndarray]:
        return state.arrays()

    def state_from(self, arrays: Mapping[str, np.ndarray], device: Device = None) -> RingCache:
        state = self.initial_state(len(arrays["count"]), device)
        state.load(arrays)
        return state

    def reseed_dropout(self, seed: int) -> None:
        self.dropout.reseed(seed)


class GRUEncoder(RecurrentSequence):
    def __init__(self, settings: TrajectoryEncoderSettings, input_width: int, *, seed: int) -> None:
        draws = torch.Generator().manual_seed(seed_of("trajectory encoder", seed))
        width = settings.width
        super().__init__("gru", input_width, width, settings.layers, init="uniform", generator=draws)
        self.out = plain_linear(width, width, draws)
        self.norm = nn.LayerNorm(width)

    def forward(self, x_BTD: Tensor, time_BT: Tensor | None = None) -> Tensor:
        return self.norm(self.out(super().forward(x_BTD)))

    def step(self, x_BD: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        h_BH, after = super().step(x_BD, state)
        return self.norm(self.out(h_BH)), after


class FeedForwardEncoder(MemorylessSequence):
    """Each time step alone: linear, activation, blocks of x + act(W act(W x)), linear, LayerNorm."""

    def __init__(self, settings: TrajectoryEncoderSettings, input_width: int, *, seed: int) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(seed_of("trajectory encoder", seed))
        width = settings.width
        self.input_width, self.output_width = input_width, width
        self.act = ACTIVATIONS[settings.activation]
        self.input = plain_linear(input_width, width, draws)
        self.blocks = nn.ModuleList()
        for _ in range(settings.layers):
            widen = plain_linear(width, 4 * width, draws)
            narrow = plain_linear(4 * width, width, draws)
            self.blocks.append(nn.ModuleList([widen, narrow]))
        self.out = plain_linear(width, width, draws)
        self.norm = nn.LayerNorm(width)

    def forward(self, x_BTD: Tensor, time_BT: Tensor | None = None) -> Tensor:
        h = self.act(self.input(x_BTD))
        for block in self.blocks:
            assert isinstance(block, nn.ModuleList)
            widen, narrow = block
            h = h + self.act(narrow(self.act(widen(h))))
        return self.norm(self.out(h))


def make_trajectory_encoder(
    settings: TrajectoryEncoderSettings, input_width: int, *, horizon: int, context: int, seed: int
) -> SequenceModel:
    """The trajectory encoder that the settings describe; arguments as of `TransformerEncoder`."""
    own = settings.own()
    if own is not None:
        made: SequenceModel = own.TrajectoryEncoder(settings, input_width, horizon=horizon, context=context, seed=seed)
        return made
    if settings.kind == "transformer":
        return TransformerEncoder(settings, input_width, horizon=horizon, context=context, seed=seed)
    if settings.kind == "gru":
        return GRUEncoder(settings, input_width, seed=seed)
    return FeedForwardEncoder(settings, input_width, seed=seed)
