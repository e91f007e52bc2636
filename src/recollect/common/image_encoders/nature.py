"""The CNN of "Human-level control" (DQN): three convolutions, one linear layer, each with ReLU. Images of 36 x 36 or more.

Source: Mnih et al. 2015, as in Stable-Baselines3, which RA-DT's option `nature` takes it from.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from recollect.common.image_encoders.registry import too_small


class Encoder(nn.Module):
    """Images [B, C, H, W] of 0 to 1 -> vectors [B, width], not negative."""

    layers = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride

    def __init__(self, shape_CHW: tuple[int, int, int], width: int) -> None:
        super().__init__()
        before, height, across = shape_CHW
        convolutions: list[nn.Module] = []
        for channels, kernel, stride in self.layers:
            convolutions += [nn.Conv2d(before, channels, kernel, stride), nn.ReLU()]
            before, height, across = channels, (height - kernel) // stride + 1, (across - kernel) // stride + 1
        if min(height, across) < 1:
            raise too_small(shape_CHW, 36)
        self.convolutions = nn.Sequential(*convolutions)
        self.linear = nn.Linear(before * height * across, width)

    def forward(self, frames_BCHW: Tensor) -> Tensor:
        return F.relu(self.linear(self.convolutions(frames_BCHW).flatten(1)))
