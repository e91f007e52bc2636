"""AMAGO's trajectory encoders: vectors of time steps [B, T, D] -> states [B, T, E], causally, and step by step.

- `transformer`: pre-norm with NormFormer's additional norms, sigma-reparametrised linear layers, a learned scale of
  every head's output, LeakyReLU. Positions are those of the step in its rollout, not in the window.
- `gru`: torch's, a linear layer, LayerNorm.
- `ff`: no memory; residual blocks.

Source: AMAGO (arXiv 2310.09971), specification 1.3. `normformer`, `sigma_reparam`, `head_scale` and `activation` turn the
Transformer's additions off (the paper's "naive" ablation). Steps equal the whole pass as long as no more than `context`
tokens are remembered, see `RingCache`. Padding must be on the right; it needs no mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from recollect.amago.ring_cache import RingCache
from recollect.amago.sigma_reparam import SigmaLinear
from recollect.common.cpu.dropout import Dropout
from recollect.common.cpu.kernels import Linear
from recollect.common.encodings import sinusoid
from recollect.common.feedforward import default_init
from recollect.settings.schema import Frozen
from recollect.settings.seeding import seed_of

Activation = Literal["leaky_relu", "relu", "gelu"]
ACTIVATIONS: dict[str, Any] = {
    "leaky_relu": functional.leaky_relu,
    "relu": functional.relu,
    "gelu": functional.gelu,
}


class TrajectoryEncoderSettings(Frozen):
    """Which trajectory encoder, and how large."""

    kind: Literal["transformer", "gru", "ff"] = Field("transformer", description="`ff` has no memory.")
    width: int = Field(256, ge=1, description="Width of states. Paper: 256 (T-Maze, MazeRunner, Package: 128).")
    layers: int = Field(3, ge=1, description="Paper: 3 (T-Maze: 2). GRU: 2, ff: 1 by default upstream.")
    heads: int = Field(8, ge=1, description="Attention heads (transformer). Paper: 8.")
    dropout: float = Field(0.05, ge=0, lt=1, description="Of embeddings and feed-forward layers (transformer).")
    positions: Literal["learned", "sinusoid"] = Field(
        "learned", description="Code of a step's position in its rollout."
    )
    activation: Activation = Field("leaky_relu", description="Naive ablation: gelu.")
    normformer: bool = Field(True, description="LayerNorms behind attention and inside the feed-forward layer.")
    sigma_reparam: bool = Field(True, description="Weights divided by their largest singular value.")
    head_scale: bool = Field(True, description="A learned factor per attention head.")


class TrajectoryEncoder(nn.Module):
    """What the agent knows of a trajectory encoder."""

    output_width: int

    def forward(self, x_BTD: Tensor, time_BT: Tensor) -> Tensor:
        """States [B, T, E]; `time_BT`: steps since each rollout began, int64."""
        raise NotImplementedError

    def initial_state(self, batch: int, device: torch.device | str) -> Any:
        """What `batch` rows remember before their first step."""
        raise NotImplementedError

    def step(self, x_BD: Tensor, time_B: Tensor, state: Any) -> Tensor:
        """State [B, E] after one more time step per row; `state` is changed in place."""
        raise NotImplementedError

    def reset(self, state: Any, mask_B: np.ndarray) -> None:
        """Forget the rows of the mask, in place."""

    def state_arrays(self, state: Any) -> dict[str, np.ndarray]:
        """What a checkpoint needs of a state."""
        return {}

    def load_state(self, state: Any, arrays: Mapping[str, np.ndarray]) -> None:
        """Put it back, in place."""

    def reseed_dropout(self, seed: int) -> None:
        """Restart the dropout stream."""


def plain_linear(inputs: int, outputs: int, draws: torch.Generator, *, bias: bool = True) -> Linear:
    """A linear layer with torch's own initialisation from a generator."""
    layer = Linear(inputs, outputs, bias=bias)
    default_init(layer, draws)
    return layer


class Block(nn.Module):
    """One layer of the Transformer."""

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

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [..., H, Dh]."""
        q, k, v = self.qkv(self.norm_attention(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        return q, k, v

    def attended(self, y: Tensor) -> Tensor:
        """What attention [..., H, Dh] adds to the residual stream."""
        y = y if self.head_scale is None else y * self.head_scale[:, None]
        return self.norm_attended(self.out(y.flatten(-2)))

    def feed_forward(self, x: Tensor) -> Tensor:
        """What the feed-forward layer adds."""
        return self.ff_out(self.norm_inner(self.act(self.ff_in(self.norm_ff(x)))))


class TransformerEncoder(TrajectoryEncoder):
    """See the head of this file.

    Args:
        settings: its shape.
        input_width: D.
        horizon: longest rollout; learned positions are one more, and later steps share the last.
        context: tokens that acting remembers, L.
        seed: of weights and dropout.
    """

    table_TD: Tensor

    def __init__(
        self, settings: TrajectoryEncoderSettings, input_width: int, *, horizon: int, context: int, seed: int
    ) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(seed_of("trajectory encoder", seed))
        self.settings, self.context, self.output_width = settings, context, settings.width
        self.input = plain_linear(input_width, settings.width, draws)
        if settings.positions == "learned":
            self.table_TD = nn.Parameter(torch.empty(horizon + 1, settings.width).normal_(generator=draws))
        else:
            self.register_buffer("table_TD", sinusoid(horizon + 1, settings.width), persistent=False)
        self.blocks = nn.ModuleList(Block(settings, draws) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(settings.width)
        self.dropout = Dropout(seed_of("trajectory encoder dropout", seed))

    def _embed(self, x: Tensor, time: Tensor) -> Tensor:
        return self.input(x) + self.table_TD[time.clamp(max=len(self.table_TD) - 1)]

    def forward(self, x_BTD: Tensor, time_BT: Tensor) -> Tensor:
        """See `TrajectoryEncoder`."""
        p = self.settings.dropout if self.training else 0.0
        h = self._embed(x_BTD, time_BT)
        h = self.dropout(h, p) if p else h
        for block in self.blocks:
            assert isinstance(block, Block)
            q, k, v = (part.transpose(1, 2) for part in block.project(h))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + block.attended(y.transpose(1, 2))
            y = block.feed_forward(h)
            h = self.dropout.add(h, y, p) if p else h + y
        return self.norm(h)

    def initial_state(self, batch: int, device: torch.device | str) -> RingCache:
        """An empty cache."""
        s = self.settings
        return RingCache(s.layers, batch, s.heads, self.context, s.width // s.heads, device)

    @torch.no_grad()
    def step(self, x_BD: Tensor, time_B: Tensor, state: RingCache) -> Tensor:
        """See `TrajectoryEncoder`."""
        state.advance()
        h = self._embed(x_BD, time_B)
        for i, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            h = h + block.attended(state.attention(i, *block.project(h)))
            h = h + block.feed_forward(h)
        return self.norm(h)

    def reset(self, state: RingCache, mask_B: np.ndarray) -> None:
        """See `TrajectoryEncoder`."""
        state.reset(mask_B)

    def state_arrays(self, state: RingCache) -> dict[str, np.ndarray]:
        """See `TrajectoryEncoder`."""
        return state.arrays()

    def load_state(self, state: RingCache, arrays: Mapping[str, np.ndarray]) -> None:
        """See `TrajectoryEncoder`."""
        state.load(arrays)

    def reseed_dropout(self, seed: int) -> None:
        """See `TrajectoryEncoder`."""
        self.dropout.reseed(seed)


class GRUEncoder(TrajectoryEncoder):
    """GRU, linear layer, LayerNorm. A state is the hidden state [layers, B, H] in a list of one."""

    def __init__(self, settings: TrajectoryEncoderSettings, input_width: int, *, seed: int) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(seed_of("trajectory encoder", seed))
        width = self.output_width = settings.width
        # made on "meta" because the default weights would be drawn from the global generator
        on_meta = nn.GRU(input_width, width, num_layers=settings.layers, batch_first=True, device="meta")
        self.cells = on_meta.to_empty(device="cpu")
        with torch.no_grad():
            for parameter in self.cells.parameters():
                parameter.uniform_(-(width**-0.5), width**-0.5, generator=draws)
        self.out = plain_linear(width, width, draws)
        self.norm = nn.LayerNorm(width)

    def forward(self, x_BTD: Tensor, time_BT: Tensor) -> Tensor:
        """See `TrajectoryEncoder`; time is not looked at."""
        return self.norm(self.out(self.cells(x_BTD)[0]))

    def initial_state(self, batch: int, device: torch.device | str) -> list[Tensor]:
        """Zeros."""
        return [torch.zeros(self.cells.num_layers, batch, self.output_width, device=device)]

    @torch.no_grad()
    def step(self, x_BD: Tensor, time_B: Tensor, state: list[Tensor]) -> Tensor:
        """See `TrajectoryEncoder`."""
        y_B1H, state[0] = self.cells(x_BD[:, None], state[0])
        return self.norm(self.out(y_B1H[:, 0]))

    def reset(self, state: list[Tensor], mask_B: np.ndarray) -> None:
        """See `TrajectoryEncoder`."""
        state[0] = state[0].masked_fill(torch.as_tensor(mask_B, device=state[0].device)[None, :, None], 0.0)

    def state_arrays(self, state: list[Tensor]) -> dict[str, np.ndarray]:
        """See `TrajectoryEncoder`."""
        return {"hidden": state[0].cpu().numpy()}

    def load_state(self, state: list[Tensor], arrays: Mapping[str, np.ndarray]) -> None:
        """See `TrajectoryEncoder`."""
        state[0] = torch.as_tensor(np.array(arrays["hidden"])).to(state[0].device)


class FeedForwardEncoder(TrajectoryEncoder):
    """Each time step alone: linear, activation, blocks of x + act(W act(W x)), linear, LayerNorm."""

    def __init__(self, settings: TrajectoryEncoderSettings, input_width: int, *, seed: int) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(seed_of("trajectory encoder", seed))
        width = self.output_width = settings.width
        self.act = ACTIVATIONS[settings.activation]
        self.input = plain_linear(input_width, width, draws)
        pairs = [(plain_linear(width, 4 * width, draws), plain_linear(4 * width, width, draws)) for _ in
                 range(settings.layers)]  # fmt: skip
        self.blocks = nn.ModuleList(nn.ModuleList(pair) for pair in pairs)
        self.out = plain_linear(width, width, draws)
        self.norm = nn.LayerNorm(width)

    def forward(self, x_BTD: Tensor, time_BT: Tensor) -> Tensor:
        """See `TrajectoryEncoder`; time is not looked at."""
        h = self.act(self.input(x_BTD))
        for block in self.blocks:
            assert isinstance(block, nn.ModuleList)
            h = h + self.act(block[1](self.act(block[0](h))))
        return self.norm(self.out(h))

    def initial_state(self, batch: int, device: torch.device | str) -> None:
        """Nothing."""

    @torch.no_grad()
    def step(self, x_BD: Tensor, time_B: Tensor, state: None) -> Tensor:
        """See `TrajectoryEncoder`."""
        return self(x_BD, time_B)


def make_trajectory_encoder(
    settings: TrajectoryEncoderSettings, input_width: int, *, horizon: int, context: int, seed: int
) -> TrajectoryEncoder:
    """The trajectory encoder that the settings describe; arguments as of `TransformerEncoder`."""
    if settings.kind == "transformer":
        return TransformerEncoder(settings, input_width, horizon=horizon, context=context, seed=seed)
    made: type[GRUEncoder | FeedForwardEncoder] = GRUEncoder if settings.kind == "gru" else FeedForwardEncoder
    return made(settings, input_width, seed=seed)
