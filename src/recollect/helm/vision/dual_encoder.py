"""A vision-language model small enough to be trained here: pictures of tiles and words of any kind in one space.

- Images: a convolution that reads a tile at a time, two that mix neighbours, then mean and maximum over all places, and the
  maximum of what is near. No place has weights of its own, so what is learned in one cell is known in all.
- Texts: the frozen sentence vectors of a small language model, and one trained linear map behind them. So a word that no
  picture was ever called still lies near those that mean the same.
- Loss: CLIP's, between a batch of pictures and all captions (and words that are true of no picture), in both directions; a
  picture has several true captions, so a target is a distribution and not one of them.

It is not CLIP and knows nothing but these tiles; paper scale uses CLIP. Source of the loss: Radford et al. 2021, section 2.3.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.artifacts.checkpoints import joined, part
from recollect.artifacts.run import Run
from recollect.artifacts.sealed import read_arrays, read_metadata
from recollect.common.optimiser import Adam
from recollect.common.weights import load_arrays
from recollect.helm.vision import captioned_tiles
from recollect.helm.vision.scaled_images import scaled
from recollect.helm.vision.sentences import SentenceEncoder
from recollect.helm.vision.untrained import forget
from recollect.settings.errors import UserError
from recollect.settings.schema import Frozen
from recollect.settings.seeding import generator, seed_of

KIND = "vision-language model"
SIDE = captioned_tiles.VIEW * captioned_tiles.TILE


class Hyperparameters(Frozen):
    """Of the training."""

    seed: int = Field(0, description="Of weights, pictures and batches.")
    width: int = Field(64, ge=1, description="Numbers that a picture or text becomes.")
    channels: int = Field(64, ge=1, description="Of the image encoder.")
    pictures: int = Field(8192, ge=1, description="Drawn once and learned from again and again.")
    steps: int = Field(1000, ge=1, description="Batches.")
    batch_size: int = Field(128, ge=2, description="Pictures in one.")
    learning_rate: float = Field(2e-3, gt=0, description="Of Adam; falls to zero along half a cosine.")
    negatives: int = Field(64, ge=0, description="Words of no picture that every batch is compared with.")
    held_out: int = Field(1000, ge=1, description="Pictures of each kind that the result is judged on.")
    checkpoint_every: int = Field(200, ge=1, description="Most steps between checkpoints; they come by time, too.")


class TileEncoder(nn.Module):
    """Pictures [N, 3, 56, 56] in [0, 1] -> [N, width]."""

    def __init__(self, width: int, channels: int) -> None:
        super().__init__()
        tile = captioned_tiles.TILE
        self.tiles = nn.Conv2d(3, 2 * channels, tile, tile)
        self.mix = nn.Conv2d(2 * channels, channels, 1)
        self.neighbours = nn.Conv2d(channels, channels, 3, padding=1)
        self.linear = nn.Linear(6 * channels, width)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        mixed_NCHW = F.relu(self.mix(F.relu(self.tiles(2 * x_NCHW - 1))))
        both_NCP = torch.cat([mixed_NCHW, F.relu(self.neighbours(mixed_NCHW))], 1).flatten(2)
        near_P = torch.from_numpy(captioned_tiles.NEARNESS_YX).to(both_NCP).flatten()
        return self.linear(torch.cat([both_NCP.mean(2), both_NCP.amax(2), (both_NCP * near_P).amax(2)], 1))


class Network(nn.Module):
    """The image encoder, the linear map behind sentence vectors of width S, and the temperature."""

    def __init__(self, width: int, channels: int, sentence_width: int) -> None:
        super().__init__()
        self.image = TileEncoder(width, channels)
        self.text = nn.Linear(sentence_width, width)
        self.log_scale = nn.Parameter(torch.empty(()))

    @torch.no_grad()
    def draw(self, seed: int) -> Network:
        """Weights from a seed: normal(0, sqrt(2 / inputs)), zero biases, a temperature of 1 / 14 as CLIP's."""
        draws = torch.Generator().manual_seed(seed_of("dual encoder", seed))
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.weight.normal_(0.0, math.sqrt(2 / layer.weight[0].numel()), generator=draws)
                layer.bias.zero_()  # type: ignore[union-attr]
        self.log_scale.fill_(math.log(14))
        return self


class DualEncoder:
    """A trained one, frozen: a `VisionLanguageModel`. Texts are sentence vectors of the language model of this name."""

    def __init__(self, network: Network, language_model: str, device: str | torch.device) -> None:
        self.network = network.to(device).eval().requires_grad_(False)
        self.language_model, self.device = language_model, torch.device(device)
        self.width = network.text.out_features

    @classmethod
    def open(cls, model: Path, device: str | torch.device = "cpu", untrained: int | None = None) -> DualEncoder:
        """Read a sealed file; `untrained`: see `vision_language_model`.

        Raises UserError: it is missing, corrupted or another kind of file.
        """
        arrays = read_arrays(model, kind=KIND)
        about = json.loads(read_metadata(model).get("about", "{}"))
        do = "make it again: `recollect train-vision-language`"
        if not {"width", "channels", "sentence_width", "language_model"} <= about.keys():
            raise UserError("this is no dual encoder", where=model, do=do)
        with torch.device("meta"):
            network = Network(about["width"], about["channels"], about["sentence_width"])
        network = network.to_empty(device="cpu")
        load_arrays(network, arrays, what="the weights do not fit the network", where=model, do=do)
        if untrained is not None:
            forget(network.image, untrained)
        return cls(network, about["language_model"], device)

    @torch.inference_mode()
    def images(self, images_NCHW: Tensor) -> Tensor:
        """float32 [N, width] of colour images, uint8 or float in [0, 1]; those of another size are resized."""
        x_NCHW = scaled(images_NCHW, self.device)
        if x_NCHW.shape[2:] != (SIDE, SIDE):
            x_NCHW = F.interpolate(x_NCHW, (SIDE, SIDE), mode="bilinear", align_corners=False, antialias=True)
        return self.network.image(x_NCHW)

    @torch.inference_mode()
    def texts(self, strings: Sequence[str]) -> Tensor:
        """float32 [N, width] of texts."""
        return self.network.text(self._sentences(strings))

    @cached_property
    def _sentences(self) -> SentenceEncoder:
        return SentenceEncoder(self.language_model, self.device)  # who only looks at images does without it


def targets(weights_NC: Tensor) -> Tensor:
    """Rows that sum to one; a row of zeros (nothing is true) stays one of zeros."""
    return weights_NC / weights_NC.sum(1, keepdim=True).clamp_min(1e-12)


def contrastive_loss(images_NW: Tensor, texts_TW: Tensor, weights_NT: Tensor, scale: Tensor) -> Tensor:
    """CLIP's symmetric loss where a picture has several captions and a caption several pictures.

    `weights_NT` is how true each text is of each picture. A text that is true of no picture only serves as a wrong answer.
    """
    logits_NT = scale * F.normalize(images_NW, dim=1) @ F.normalize(texts_TW, dim=1).T
    of_images = -(targets(weights_NT) * logits_NT.log_softmax(1)).sum(1).mean()
    weights_TN = targets(weights_NT.T)
    true_T = weights_TN.sum(1)
    of_texts = -(weights_TN * logits_NT.T.log_softmax(1)).sum(1).sum() / true_T.sum().clamp_min(1)
    return (of_images + of_texts) / 2


def train(
    settings: Hyperparameters, sentences: Callable[[Sequence[str]], Tensor], others: Sequence[str], run: Run
) -> Network:
    """Train a dual encoder, or go on with it from the run's newest checkpoint, to the same bytes.

    `sentences` gives vectors float32 [N, S] of texts. Each batch draws its wrong answers from the texts `others`.
    """
    captions_CS, others_OS = sentences(captioned_tiles.captions()).clone(), sentences(others).clone()
    scenes = captioned_tiles.draw_scenes(settings.pictures, generator("captioned tiles", settings.seed))
    images_NCHW = torch.from_numpy(scenes.images_NCHW)
    weights_NC = torch.from_numpy(scenes.weights_NC)
    with torch.device("meta"):
        network = Network(settings.width, settings.channels, captions_CS.shape[1])
    network = network.to_empty(device="cpu").draw(settings.seed)
    adam = Adam(network.named_parameters(), lr=settings.learning_rate)
    first, checkpoint = 0, run.resume()
    if checkpoint is not None:
        first = checkpoint.step
        network.load_state_dict(part(checkpoint.arrays, "net"))
        adam.load(part(checkpoint.arrays, "adam"))
    with run.progress(settings.steps, "training a vision-language model") as progress:
        for step in range(first, settings.steps):
            draws = generator("dual encoder batch", settings.seed, step)
            rows = torch.from_numpy(draws.integers(0, len(images_NCHW), settings.batch_size))
            wrong = torch.from_numpy(draws.integers(0, len(others_OS), settings.negatives if len(others_OS) else 0))
            texts_TW = network.text(torch.cat([captions_CS, others_OS[wrong]]))
            said_NT = F.pad(weights_NC[rows], (0, len(wrong)))
            adam.lr = settings.learning_rate * (1 + math.cos(math.pi * step / settings.steps)) / 2
            adam.zero_grad()
            images_NW = network.image(images_NCHW[rows].float() / 255)
            loss = contrastive_loss(images_NW, texts_TW, said_NT, network.log_scale.exp())
            loss.backward()
            adam.step()
            with torch.no_grad():
                network.log_scale.clamp_(max=math.log(100))
            done = step + 1
            progress.update(done, loss=loss.item())
            if run.due(done, settings.checkpoint_every) and done < settings.steps:
                run.save(done, joined(net=network.state_dict(), adam=adam.arrays()), {})
    return network


def accuracy(model: DualEncoder, words: Sequence[str], settings: Hyperparameters) -> dict[str, Any]:
    """How often the words (of `words`) nearest to a picture are true of it, on pictures unlike those learned from.

    Returns:
        For `single` (one thing in view, of a held-out pair of colour and thing or on a held-out cell), `single_known`
        (neither) and `many`: `top_1` and `top_5` (share of pictures with a true word first, or among the first five),
        and `name_first` (the first word is the name of a thing in view; for `single` ones where there is one).
    """
    words_VW = F.normalize(model.texts(words), dim=1)
    kinds: dict[str, dict[str, bool]] = {
        "single": {"held_out": True, "single": True},
        "single_known": {"single": True},
        "many": {},
    }
    found: dict[str, Any] = {}
    for kind, options in kinds.items():
        draws = generator("captioned tiles, held out", settings.seed, kind)
        scenes = captioned_tiles.draw_scenes(settings.held_out, draws, **options)
        images_NW = F.normalize(model.images(torch.from_numpy(scenes.images_NCHW)), dim=1)
        nearest_NK = (images_NW @ words_VW.T).topk(min(5, len(words)), dim=1).indices.cpu().numpy()
        first_true, any_true, name_first = [], [], []
        for row, seen in zip(nearest_NK, scenes.seen, strict=True):
            nearest = [words[i] for i in row]
            names = {thing.name for thing in seen}
            true = {"wall", "floor"} if kind == "many" else set()
            for thing in seen:
                true |= thing.words().keys()
            first_true.append(nearest[0] in true)
            any_true.append(not true.isdisjoint(nearest))
            if names:
                name_first.append(nearest[0] in names)
        found[kind] = {
            "pictures": len(nearest_NK),
            "top_1": float(np.mean(first_true)),
            "top_5": float(np.mean(any_true)),
            "name_first": float(np.mean(name_first or [False])),
        }
    return found
