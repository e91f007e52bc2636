"""Vision-language models: images and texts as vectors of one space, never trained by those who see with them.

``source`` in config/vision_language_models.yaml says where one comes from: ``hub`` (CLIP, fetched once at pinned revisions
with checked hashes), ``trained`` (`helm.vision.dual_encoder`, which a rule trains in seconds on pictures of MiniGrid's
tiles), ``random`` (tests only). Nothing here but `provide` uses the network.

Source: Radford et al. 2021; HELMv2 and SHELM as released; specification 3.2 for the preprocessing, which works on float
tensors and does not clamp what the bicubic filter overshoots.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from recollect.artifacts.hub import check_request
from recollect.artifacts.sealed import read_arrays, verify
from recollect.common.language_model_files import fetch_sealed
from recollect.common.weights import load_arrays
from recollect.helm import settings as helm_settings
from recollect.helm.frozen_files import frozen
from recollect.helm.language.frozen_products import hold_products
from recollect.helm.vision.clip import SHAPES, Clip
from recollect.helm.vision.clip_vocabulary import ClipVocabulary
from recollect.helm.vision.dual_encoder import DualEncoder
from recollect.helm.vision.scaled_images import scaled
from recollect.helm.vision.sentences import padded_batches
from recollect.helm.vision.untrained import forget
from recollect.settings.errors import UserError, nearest
from recollect.settings.seeding import seed_of

KIND = "vision-language model"
WEIGHTS, MERGES = "model.safetensors", "merges.txt"
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
BATCH = 128
CPU_IMAGES = 4  # encoded at once on a CPU, so that what flows between two layers stays in its cache


class VisionLanguageModel(Protocol):
    """Frozen encoders of images and of texts into one space."""

    width: int

    def images(self, images_NCHW: Tensor) -> Tensor:
        """float32 [N, width] of colour images, uint8 or float in [0, 1], of any size; not of length one."""

    def texts(self, strings: Sequence[str]) -> Tensor:
        """float32 [N, width] of texts; not of length one."""


def vision_language_model(
    name: str,
    scale: str | None,
    *,
    model: Path | None,
    device: str | torch.device,
    seed: int = 0,
    untrained: int | None = None,
) -> VisionLanguageModel:
    """Load a model of config/vision_language_models.yaml from the `model.safetensors` that a rule made.

    A `random` one needs none, but a seed. A file is read once for the same settings; whoever asks again gets the same object.

    Args:
        scale: what it says of the model holds; None: what the file says.
        untrained: the weights of its image encoder are drawn with this seed instead; None: those of the file.

    Raises:
        UserError: an unknown name, or a file that does not fit.
    """
    settings = helm_settings.vision_language_model(name, scale)
    if settings.source == "random":
        return RandomModel(settings.width, seed if untrained is None else seed_of("untrained", untrained), device)
    if model is None:
        raise UserError(
            f"the vision-language model '{name}' must be made before it can be loaded",
            where="config/vision_language_models.yaml",
            do="give the file that the workflow's rule makes (`recollect fetch` or `recollect train-vision-language`)",
        )

    def opened() -> VisionLanguageModel:
        if settings.source == "trained":
            return DualEncoder.open(model, device, untrained)
        return ClipModel(settings, model, device, untrained)

    return frozen(opened, model, settings.model_dump_json(), torch.device(device), untrained)


class ClipModel:
    """CLIP, read from the files of `provide`: weights, and beside them `merges.txt`, which is read for texts only."""

    def __init__(
        self,
        settings: helm_settings.VisionLanguageModelSettings,
        model: Path,
        device: str | torch.device,
        untrained: int | None = None,
    ) -> None:
        self.fit, self.device, self.folder = settings.fit, torch.device(device), Path(model).parent
        shape = SHAPES[settings.network]
        self.width, self.size = shape.width, shape.image_size
        with torch.device("meta"):
            network = Clip(shape)
        self.network = network.to_empty(device="cpu")
        own = self.network.state_dict()
        counts = {name: np.zeros((), np.int64) for name in own if name.endswith("num_batches_tracked")}
        load_arrays(
            self.network,
            counts | read_arrays(model, kind=KIND),
            what="the weights do not fit the network",
            where=model,
            do="name the network of these weights in config/vision_language_models.yaml",
        )
        if untrained is not None:
            forget(self.network.visual, untrained)
        self.network.to(self.device).eval().requires_grad_(False)
        on_gpu = self.device.type == "cuda"
        precision = settings.precision
        if precision == "auto":
            precision = "float16" if on_gpu else "float32"
        hold_products(self.network.visual, getattr(torch, precision))
        if isinstance(shape.image_layers, tuple):
            # On a CPU convolutions are a tenth faster so.
            self.network.visual.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._images_at_once = BATCH if on_gpu else CPU_IMAGES

    @cached_property
    def vocabulary(self) -> ClipVocabulary:
        verify(self.folder / MERGES, kind=KIND)
        return ClipVocabulary(self.folder / MERGES)

    @torch.inference_mode()
    def images(self, images_NCHW: Tensor) -> Tensor:
        found = [torch.zeros(0, self.width, device=self.device)]
        for part_NCHW in images_NCHW.split(self._images_at_once) if len(images_NCHW) else ():
            fitted_NCHW = preprocessed(scaled(part_NCHW, self.device), self.size, self.fit)
            found.append(self.network.images(fitted_NCHW).float())
        return torch.cat(found)

    @torch.inference_mode()
    def texts(self, strings: Sequence[str]) -> Tensor:
        """See `VisionLanguageModel`; texts are cut at 77 tokens."""
        tokens = self.vocabulary.tokens(strings)
        found_NW = torch.zeros(len(tokens), self.width, device=self.device)
        for places, ids_NT in padded_batches(tokens, BATCH, padding=0):
            last_N = torch.tensor([len(tokens[i]) - 1 for i in places], device=self.device)
            found_NW[places] = self.network.texts(ids_NT.to(self.device), last_N).float()
        return found_NW


class RandomModel:
    """Seeded and senseless: small images through a random matrix, and for each text a vector of its own (for tests)."""

    def __init__(self, width: int, seed: int, device: str | torch.device) -> None:
        self.width, self.seed, self.device = width, seed, torch.device(device)
        self.matrix_IW = torch.from_numpy(self._drawn("images", (3 * 8 * 8, width))).to(self.device)

    def images(self, images_NCHW: Tensor) -> Tensor:
        small_NC88 = F.adaptive_avg_pool2d(scaled(images_NCHW, self.device), 8)
        return small_NC88.flatten(1) @ self.matrix_IW

    def texts(self, strings: Sequence[str]) -> Tensor:
        rows = [self._drawn("text", (self.width,), string) for string in strings]
        return torch.from_numpy(np.stack(rows) if rows else np.zeros((0, self.width), np.float32)).to(self.device)

    def _drawn(self, purpose: str, shape: tuple[int, ...], *keys: str) -> np.ndarray:
        draws = np.random.default_rng(seed_of("random vision-language model", self.seed, purpose, *keys))
        return draws.standard_normal(shape).astype(np.float32)


def preprocessed(images_NCHW: Tensor, size: int, fit: Literal["crop", "squash"]) -> Tensor:
    """CLIP's input [N, 3, size, size] of float images in [0, 1].

    `crop`: bicubic until the shorter side fits, then the centre (as released; a frame of 60 x 80 loses an eighth on the
    left and on the right). `squash`: bicubic to the square, nothing is lost.
    """
    height, width = images_NCHW.shape[2:]
    shorter = min(height, width)
    target = (size * height // shorter, size * width // shorter) if fit == "crop" else (size, size)
    if target != (height, width):
        images_NCHW = F.interpolate(images_NCHW, target, mode="bicubic", align_corners=False)
    top, left = (round((side - size) / 2) for side in target)
    images_NCHW = images_NCHW[:, :, top : top + size, left : left + size]
    # Numbers of the host, colour by colour: a tensor of them would be sent at each call, and waited for.
    return torch.stack([(images_NCHW[:, n] - MEAN[n]) / STD[n] for n in range(len(MEAN))], 1)


def provide(settings: helm_settings.VisionLanguageModelSettings, folder: Path) -> None:
    """Fetch a model's files from the hub and seal them in a folder; those that already stand there are kept.

    Raises:
        UserError: a file is not pinned (the message says what is missing), there is no network, or a hash differs.
    """
    if settings.network not in SHAPES:
        raise UserError(
            f"no network named '{settings.network}'",
            where="config/vision_language_models.yaml",
            do=nearest(settings.network, SHAPES),
        )
    instead = f"name a file of safetensors for {WEIGHTS}"
    for wanted in settings.files.values():
        check_request(wanted.repository, wanted.revision, {wanted.file: wanted.sha256}, instead=instead)
    offline = "check the network and the name; without network use the model 'tiles', which is trained here"
    for name, wanted in settings.files.items():
        fetch_sealed(
            wanted.repository,
            wanted.revision,
            wanted.file,
            wanted.sha256,
            folder / name,
            kind=KIND,
            offline=offline,
        )
