"""What an image is to HELM and HELMv2 before a language model can read it: its pixels, or features that a model sees in it.

HELM takes pixels and HELMv2 features. HELMv2's ablation exchanges them, so each method can have either.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from recollect.common.contract import Inputs, facts_of
from recollect.common.transfer import sent
from recollect.helm.language_history import channels_first
from recollect.helm.vision.vision_language import VisionLanguageModel, vision_language_model
from recollect.settings.schema import Settings


class Eyes(Protocol):
    """Images -> vectors of one `width`, in two steps. `images` is the same for all seeds, so several can ask it together."""

    width: int

    def prepare(self, images: np.ndarray) -> Tensor:
        """What `images` takes of images uint8 [N, *shape]."""

    def images(self, prepared: Tensor) -> Tensor:
        """float [N, width]."""


class Pixels:
    """The mean over the first axis of an image (its colours, where channels come first), from 0 to 1 and flat."""

    def __init__(self, shape: tuple[int, ...], device: torch.device | str) -> None:
        self.width, self.device = int(np.prod(shape[1:])), torch.device(device)

    def prepare(self, images: np.ndarray) -> Tensor:
        return sent(images, self.device).float().mean(1).flatten(1) / 255

    def images(self, prepared: Tensor) -> Tensor:
        return prepared


class Features:
    """What a vision-language model makes of images."""

    def __init__(self, model: VisionLanguageModel) -> None:
        self.width, self.images = model.width, model.images

    def prepare(self, images: np.ndarray) -> Tensor:
        return channels_first(images)


def eyes_of(name: str | None, settings: Settings, inputs: Inputs) -> Eyes:
    """Those of a vision-language model (a name of config/vision_language_models.yaml), or for no name the pixels."""
    if name is None:
        return Pixels(facts_of(settings.environment).image_shape, inputs.device)
    given = inputs.get("vision_language_model")
    return Features(vision_language_model(name, settings.scale, model=given, device=inputs.device))
