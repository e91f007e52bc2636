"""What every image encoder is given: colour images as numbers in [0, 1] on its device."""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.common.transfer import sent
from recollect.settings.errors import UserError


def scaled(images_NCHW: Tensor, device: torch.device) -> Tensor:
    """Float images in [0, 1] on a device, from those or from uint8; a UserError unless they are [N, 3, H, W]."""
    if images_NCHW.ndim != 4 or images_NCHW.shape[1] != 3:
        raise UserError(
            f"images have shape [N, 3, H, W], these {list(images_NCHW.shape)}",
            where="vision-language model",
            do="give colour images with the channels first",
        )
    moved = sent(images_NCHW, device)
    return moved.float() / 255 if moved.dtype == torch.uint8 else moved.float()
