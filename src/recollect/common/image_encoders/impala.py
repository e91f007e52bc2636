"""IMPALA's residual CNN, as RA-DT uses it for Procgen (and its source agents, with 2048 features).

Three blocks of 16, 32 and 32 channels: convolution, max-pooling by two, two residual pairs of convolutions; then ReLU,
one linear layer and ReLU. Any image size.

Source: Espeholt et al. 2018; RA-DT's released encoder, from which only the options (spectral norm, wider blocks,
modulation) are left out.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Residual(nn.Module):
    """``x + conv(relu(conv(relu(x))))``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return x_BCHW + self.second(F.relu(self.first(F.relu(x_BCHW))))


class Encoder(nn.Module):
    """Images [B, C, H, W] of 0 to 1 -> vectors [B, width], not negative."""

    channels = (16, 32, 32)

    def __init__(self, shape_CHW: tuple[int, int, int], width: int) -> None:
        super().__init__()
        before, height, across = shape_CHW
        blocks: list[nn.Module] = []
        for channels in self.channels:
            blocks += [
                nn.Conv2d(before, channels, 3, padding=1),
                nn.MaxPool2d(3, 2, padding=1),
                Residual(channels),
                Residual(channels),
            ]
            before, height, across = channels, -(-height // 2), -(-across // 2)
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(before * height * across, width)

    def forward(self, frames_BCHW: Tensor) -> Tensor:
        return F.relu(self.linear(F.relu(self.blocks(frames_BCHW)).flatten(1)))
