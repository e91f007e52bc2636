"""Finds image encoders by name, and encodes images with them: a frozen network between a world of images and a method.

An encoder is one file of this folder with a class ``Encoder(nn.Module)``: made of (image shape [C, H, W], width), it turns
images [B, C, H, W] of numbers from 0 to 1 into vectors [B, width]. Its name is the file's name. Weights come from a
sealed file (which the stage `train_images` makes, or a user), or are drawn once from a seed and never trained.

Source: RA-DT (arXiv 2410.07071), released `precompute_img_embeds`: images divided by 255, at most 512 at a time,
evaluation mode. Difference: random weights are LeCun-normal, with which features are of about the size 1.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from recollect.artifacts.sealed import read_arrays
from recollect.common.weights import load_arrays
from recollect.settings.catalogue import load
from recollect.settings.errors import UserError
from recollect.settings.schema import ImageSettings
from recollect.settings.seeding import seed_of

KIND = "image encoder"
BATCH = 512


def encoder_class(name: str) -> Any:
    return load("image encoder", name, where="environment.images.encoder").Encoder


class ImageEncoder:
    """Encodes images of one shape.

    Args:
        settings: which encoder, its width and its weights.
        shape: of one image as the world gives it, [C, H, W] or [H, W, C] as `settings.channels` says.
        device: where it runs.

    Raises:
        UserError: an unknown encoder, a package that is missing, images that are none or too small, or weights that are
            missing or do not fit.
    """

    def __init__(self, settings: ImageSettings, shape: tuple[int, ...], *, device: torch.device | str = "cpu") -> None:
        if len(shape) != 3:
            raise UserError(
                f"the observations have shape {shape} and are no images",
                where="environment.images",
                do="remove the section `images`, or use a world of images",
            )
        self.settings = settings
        self.shape = shape
        self.width = settings.width
        self.device = torch.device(device)
        self.network = blank_network(settings, shape)
        if settings.weights is None:
            draw_weights(self.network, seed_of("image encoder", settings.encoder, settings.seed))
        else:
            path = Path(settings.weights)
            load_arrays(
                self.network,
                read_arrays(path, kind=KIND),
                what="the weights do not fit the encoder",
                where=path,
                do="name weights of this encoder and width, for images of this size",
            )
        # Channels last in memory: IMPALA is twice as fast so (601 instead of 279 images of 64 x 64 a second, one core).
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network.to(self.device).eval().requires_grad_(False)

    @torch.inference_mode()
    def __call__(self, frames: np.ndarray) -> np.ndarray:
        """Vectors float32 [N, width] of images uint8 [N, *shape].

        Raises:
            UserError: the images have another shape or type.
        """
        if frames.shape[1:] != self.shape or frames.dtype != np.uint8:
            raise UserError(
                f"images are uint8 of shape {self.shape}, these are {frames.dtype} of shape {frames.shape[1:]}",
                where=f"image encoder {self.settings.encoder}",
                do="encode images of the environment that the encoder was made for",
            )
        encoded = np.zeros((len(frames), self.width), np.float32)
        for first in range(0, len(frames), BATCH):
            batch = torch.from_numpy(np.array(frames[first : first + BATCH])).to(self.device)
            batch = batch if self.settings.channels == "first" else batch.permute(0, 3, 1, 2)
            encoded[first : first + BATCH] = self.network(batch.float() / 255).cpu().numpy()
        return encoded


def blank_network(settings: ImageSettings, shape: tuple[int, ...]) -> nn.Module:
    """An encoder for images of a shape, whose weights are still to be set. Raises UserError: see `ImageEncoder`."""
    first = settings.channels == "first"
    channels, height, width = shape if first else (shape[2], shape[0], shape[1])
    if channels > min(height, width):
        raise UserError(
            f"images of shape {shape} would have {channels} channels",
            where="environment.images.channels",
            do=f"set channels: {'last' if first else 'first'}",
        )
    with torch.device("meta"):  # so that no layer draws its weights from the global generator
        network: nn.Module = encoder_class(settings.encoder)((channels, height, width), settings.width)
    return network.to_empty(device="cpu")


@torch.no_grad()
def draw_weights(network: nn.Module, seed: int) -> None:
    """Weights of convolutions and linear layers from normal(0, 1 / sqrt(inputs)), zero biases.

    Raises:
        UserError: the encoder has other parameters; then it is one that is used trained or not at all.
    """
    draws = torch.Generator().manual_seed(seed)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.weight.normal_(0.0, 1 / math.sqrt(layer.weight[0].numel()), generator=draws)
            if layer.bias is not None:
                layer.bias.zero_()
        elif [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]:
            raise UserError(
                "this image encoder makes no sense with random weights",
                where="environment.images.weights",
                do="name a sealed file of trained weights (docs/formats.md, Image encoders)",
            )


def too_small(shape_CHW: tuple[int, int, int], least: int) -> UserError:
    return UserError(
        f"images of {shape_CHW[1]} x {shape_CHW[2]} are too small for this encoder, which needs {least} x {least}",
        where="environment.images.encoder",
        do="use the encoder `impala`, which takes images of any size",
    )
