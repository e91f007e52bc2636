"""HELMv2: image features of a vision-language model, given the scale of word embeddings, are read; specification 3.2.

Sources: Paischer et al. 2022 (workshop paper "Toward Semantic History Compression") and its code.

- As released, features are standardised with the statistics of the games' images of one step (`statistics: batch`), so
  that what one game's image becomes depends on the others. What is published are returns while training, and no released
  program plays a trained HELMv2 (eval.py: SHELM alone, one game, which would give NaN). So an evaluation plays about as many
  games side by side as training did, and standardises with them (`played_statistics: batch`). With `trained` a policy uses
  the statistics of all images of its training: its rows do not depend on each other, and it can play alone.
- Where the features are not as wide as the word embeddings they go through a fixed random matrix first. (Published: CLIP
  RN50 and Transformer-XL, both 1024 wide.)
- With no `vision_language_model` HELM's pixels take the place of its features: one of the paper's ablations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from recollect.common.contract import Inputs
from recollect.common.learning_curve import world_of
from recollect.helm import language_history as history
from recollect.helm.asking import Asking
from recollect.helm.eyes import Eyes, eyes_of
from recollect.helm.feature_rescaling import FeatureRescaling, Statistics, alone
from recollect.helm.frame_cache import FrameCache
from recollect.helm.method import method_with_history
from recollect.settings.schema import Settings
from recollect.settings.seeding import generator, seed_of

ACTIONS = "discrete"
OBSERVATIONS = "images"


class Hyperparameters(history.LanguageHyperparameters):
    vision_language_model: str | None = Field(
        "clip-rn50",
        description="What images are seen with, a name of config/vision_language_models.yaml. Paper: this one. null: their pixels.",
    )
    statistics: Statistics = Field("batch", description="Of what features are standardised with. Released: batch.")
    played_statistics: Literal["batch", "trained"] = Field(
        "batch",
        description="statistics: batch. A trained policy's: of the games that are played side by side, as many as in "
        "training (released: the network has no other), or of all images of its training.",
    )
    calibration: int = Field(2048, ge=2, description="statistics: frozen. Images of random play that they are of.")


class FeatureReader(history.Reader):
    """Images -> features on the scale of word embeddings, one each; those of `frames` images are kept."""

    def __init__(self, eyes: Eyes, embeddings_VD: Tensor, statistics: Statistics, *, seed: int, frames: int) -> None:
        width, device = int(embeddings_VD.shape[1]), embeddings_VD.device
        self.matrix_WD: Tensor | None = None
        if eyes.width != width:
            draws = torch.Generator().manual_seed(seed)
            self.matrix_WD = (torch.randn(eyes.width, width, generator=draws) * eyes.width**-0.5).to(device)
        self.rescaling = FeatureRescaling.like(embeddings_VD, statistics)
        self.training_statistics = (
            FeatureRescaling.like(embeddings_VD, "running") if statistics == "batch" else self.rescaling
        )
        self.cache = FrameCache(eyes.images, frames, prepare=eyes.prepare, finish=self._of_words_width)

    def _of_words_width(self, features_BW: Tensor) -> Tensor:
        features_BW = features_BW.float()
        return features_BW if self.matrix_WD is None else features_BW @ self.matrix_WD

    def reading(self, images: np.ndarray, *, learn: bool = False) -> Asking:
        features_BD = yield from self.cache.reading(images)
        if learn and self.training_statistics is not self.rescaling:
            self.training_statistics.take_in(features_BD)
        return self.rescaling(features_BD, update=learn)[:, None]

    def learned(self) -> dict[str, np.ndarray]:
        """The statistics of all images."""
        return self.training_statistics.arrays()

    def load_learned(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.training_statistics.load_arrays(dict(arrays))


def check_settings(settings: Settings) -> None:
    """Raise a UserError where one game alone is standardised in an evaluation: before the first job, not when all is learned."""
    hp: Hyperparameters = settings.method.hyperparameters
    judged = settings.environment.evaluation
    if _by_batch(hp) and judged.protocol == "episodic" and judged.episodes == 1:
        raise alone()


def _by_batch(hp: Hyperparameters) -> bool:
    return hp.statistics == hp.played_statistics == "batch"


def make_history(
    settings: Settings, inputs: Inputs, arrays: Mapping[str, np.ndarray] | None = None
) -> history.LanguageHistory:
    """The memory of a run's agent; that of a policy has `frozen` statistics, or those of its batch."""
    hp: Hyperparameters = settings.method.hyperparameters
    memory = history.memory_of(settings, inputs)
    reader = FeatureReader(
        eyes_of(hp.vision_language_model, settings, inputs),
        memory.embeddings_VD,
        "frozen" if arrays is not None and not _by_batch(hp) else hp.statistics,
        seed=seed_of("feature projection", settings.seed),
        frames=hp.cached_frames,
    )
    if _by_batch(hp):
        episodes = settings.environment.evaluation.episodes
        reader.rows_together = -(-episodes // max(1, round(episodes / hp.actors)))
    if arrays is None and hp.statistics == "frozen":
        calibrate(reader, settings, hp.calibration)
    return history.history_of(reader, memory, settings, inputs, arrays)


def calibrate(reader: FeatureReader, settings: Settings, images: int) -> None:
    """Take the statistics of so many images of random play (rounded up to whole steps)."""
    games = settings.method.hyperparameters.actors
    world = world_of(settings.environment, "train", "calibration world", settings.seed, games)
    draws = generator("calibration actions", settings.seed)
    actions = int(world.single_action_space.n)  # type: ignore[attr-defined]
    observation, _ = world.reset()
    for _ in range(-(-images // games)):
        reader.training_statistics.take_in(reader.cache(observation))
        observation, _, terminated, truncated, _ = world.step(draws.integers(actions, size=games))
        done = terminated | truncated
        if done.any():
            observation, _ = world.reset(options={"reset_mask": done})


make_trainer, train, train_together, load_policy = method_with_history(make_history)
