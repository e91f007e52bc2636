"""EfficientNet-B3 without its classifier, with trained weights: needs the package torchvision and a sealed file.

Differences from RA-DT's option `efficientnet`: it adds a linear layer to the policy's width, which it trains with the
policy. Here the policy's own embedding of observations, also linear and trained, is that layer, so the 1536 features are
given as they are. As there, images of one channel are repeated to three, and not normalised with the means of ImageNet.

Source: Tan and Le 2019; RA-DT's released encoder.
"""

from __future__ import annotations

import torchvision
from torch import Tensor, nn

from recollect.settings.errors import UserError

FEATURES = 1536


class Encoder(nn.Module):
    """Images [B, C, H, W] of 0 to 1 -> features [B, 1536]."""

    def __init__(self, shape_CHW: tuple[int, int, int], width: int) -> None:
        super().__init__()
        if width != FEATURES or shape_CHW[0] not in (1, 3):
            raise UserError(
                f"EfficientNet-B3 makes {FEATURES} numbers of images with 1 or 3 channels, not {width} of {shape_CHW[0]}",
                where="environment.images",
                do=f"set width: {FEATURES}, or use another encoder",
            )
        whole = torchvision.models.efficientnet_b3(weights=None)
        self.features, self.pool = whole.features, whole.avgpool

    def forward(self, frames_BCHW: Tensor) -> Tensor:
        colours_BCHW = frames_BCHW.expand(-1, 3, -1, -1)
        return self.pool(self.features(colours_BCHW)).flatten(1)
