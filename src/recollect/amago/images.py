"""AMAGO's convolutional networks: images [N, C, H, W] of bytes -> flat features.

- `nature`: 32, 64, 64 channels, kernels 8, 4, 3, strides 4, 2, 1; `drq`: four of 32 channels, kernel 3, strides 2, 1, 1, 1;
  `gridworld`: 16, 32, 48 channels, kernel 2, stride 1. Activation behind each.
- `impala`: three blocks of 16, 32, 32 channels: convolution, max-pooling by 2, two residual pairs, GroupNorm(4) behind each.

Source: AMAGO (arXiv 2310.09971), specification 1.2. Pixels become x / 128 - 1. Weights of `nature` and `drq` begin with an
orthogonal centre and zeros around it, their biases with zero; the others begin with torch's default.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from recollect.amago.share import RowsOfDraws, Seeded
from recollect.common.feedforward import default_init
from recollect.settings.errors import UserError

CNN = Literal["nature", "drq", "gridworld", "impala"]
LAYERS: dict[str, tuple[tuple[int, int, int], ...]] = {  # channels, kernel, stride
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
    "drq": ((32, 3, 2), (32, 3, 1), (32, 3, 1), (32, 3, 1)),
    "gridworld": ((16, 2, 1), (32, 2, 1), (48, 2, 1)),
}
IMPALA_CHANNELS = (16, 32, 32)


class _Residual(nn.Module):
    """GroupNorm(x + conv(act(conv(act(x)))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.utils.skip_init(nn.Conv2d, channels, channels, 3, padding=1)
        self.second = nn.utils.skip_init(nn.Conv2d, channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(4, channels)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.first(functional.leaky_relu(x))
        return self.norm(x + self.second(functional.leaky_relu(inner)))


class ImageNetwork(nn.Module):
    """See the head of this file.

    Args:
        shape: of an image, [C, H, W] or [H, W, C], whichever end is shorter being the channels.

    Raises:
        UserError: nothing is left of images so small.
    """

    def __init__(self, kind: CNN, shape: tuple[int, ...], draws: torch.Generator) -> None:
        super().__init__()
        self.channels_last = shape[2] < shape[0]
        before, height, width = (shape[2], shape[0], shape[1]) if self.channels_last else shape
        layers: list[nn.Module] = []
        if kind == "impala":
            for channels in IMPALA_CHANNELS:
                first = nn.utils.skip_init(nn.Conv2d, before, channels, 3, padding=1)
                layers += [first, nn.MaxPool2d(3, 2, padding=1), _Residual(channels), _Residual(channels)]
                before, height, width = channels, -(-height // 2), -(-width // 2)
            layers.append(nn.LeakyReLU())
        else:
            for channels, kernel, stride in LAYERS[kind]:
                layers += [nn.utils.skip_init(nn.Conv2d, before, channels, kernel, stride), nn.LeakyReLU()]
                before, height, width = channels, (height - kernel) // stride + 1, (width - kernel) // stride + 1
        if min(height, width) < 1:
            do = "use inputs.cnn: gridworld, or another size"
            raise UserError(f"images of shape {shape} are too small for '{kind}'", where="inputs.cnn", do=do)
        self.layers, self.width = nn.Sequential(*layers), before * height * width
        for layer in self.layers.modules():
            if isinstance(layer, nn.Conv2d):
                _initialise(layer, draws, orthogonal=kind in ("nature", "drq"))

    def forward(self, images: Tensor) -> Tensor:
        """Bytes [..., *shape] -> features [..., width]."""
        flat = images.flatten(0, -4).float() / 128.0 - 1.0
        flat = flat.permute(0, 3, 1, 2) if self.channels_last else flat
        return self.layers(flat).flatten(1).unflatten(0, images.shape[:-3])


@torch.no_grad()
def _initialise(layer: nn.Conv2d, draws: torch.Generator, *, orthogonal: bool) -> None:
    if not orthogonal:
        default_init(layer, draws)
        return
    centre = layer.kernel_size[0] // 2
    gain = math.sqrt(2.0 / (1.0 + 0.01**2))  # of LeakyReLU
    layer.weight.zero_()
    layer.weight[:, :, centre, centre] = nn.init.orthogonal_(
        torch.empty(layer.weight.shape[:2]), gain=gain, generator=draws
    )
    assert layer.bias is not None
    layer.bias.zero_()


def random_shift(images: Tensor, draws: Seeded, *, pad: int = 4, share: float = 0.75) -> Tensor:
    """DrQ-v2's augmentation: images of the last `share` of the sequences are moved by up to `pad` pixels, edges repeated.

    Args:
        images: bytes [B, T, C, H, W]; each image moves by itself, as in the released code.
    """
    B, T, _, H, W = images.shape
    whole, begin = B, 0
    if isinstance(draws, RowsOfDraws):
        whole, begin, draws = draws.share.batch, draws.share.rows.start, draws.whole
    still = max(0, min(math.ceil(whole * (1 - share)), whole - 1))  # sequences of the whole batch that are not moved
    first = min(B, max(0, still - begin))
    corner_NT2 = torch.randint(2 * pad + 1, (whole - still, T, 2), generator=draws)
    shifted = images.clone()
    if first == B:
        return shifted
    # Time and sequences are one axis here, because padding with edges takes no five axes.
    padded = functional.pad(images[first:].float().flatten(0, 1), (pad,) * 4, mode="replicate")
    own = corner_NT2[begin + first - still : begin + B - still].flatten(0, 1).to(images.device)
    y_MH = own[:, :1] + torch.arange(H, device=images.device)
    x_MW = own[:, 1:] + torch.arange(W, device=images.device)
    image_M = torch.arange(len(own), device=images.device)
    cut_MHWC = padded.movedim(1, -1)[image_M[:, None, None], y_MH[:, :, None], x_MW[:, None, :]]
    shifted[first:] = cut_MHWC.movedim(-1, 1).unflatten(0, (B - first, T)).to(images.dtype)
    return shifted
