"""SHELM's words, read by an LSTM that is trained: an ablation of the frozen language model; specification 8.5.

An image becomes words as in SHELM. What it remembers by is PPO's own LSTM, which reads their embeddings (those of `topk` words side
by side) in the place of the language model; embeddings are not trained. The heads read its output in front of the image's features,
as SHELM's read the history vector.

How the authors made this ablation is not known to us: the LSTM is that of LSTM-PPO, and updates are as there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from recollect.artifacts.checkpoints import joined, part
from recollect.common.contract import Inputs, facts_of
from recollect.common.distinct_images import DistinctImages, RolloutFeatures
from recollect.helm import ppo_lstm
from recollect.helm.language.language_memory import language_memory
from recollect.helm.method import PolicyArrays, check_world, make_network, method_of
from recollect.helm.sampled_policy import packed_outputs
from recollect.helm.shelm import TokenReader, WordHyperparameters, check_settings, token_reader
from recollect.helm.small_impala import ActorCritic
from recollect.settings.schema import Settings

ACTIONS = "discrete"
OBSERVATIONS = "images"


class Hyperparameters(ppo_lstm.Hyperparameters, WordHyperparameters):
    """Of LSTM-PPO, and of SHELM what says how an image becomes words."""

    language_model: str = Field(
        "transfo-xl-wt103", description="Whose embeddings of words are read; a name of config/language_models.yaml."
    )
    cached_frames: int = Field(20_000, ge=1, description="Different images that are kept as read; saves time only.")


class WordReadingAgent(ppo_lstm.RecurrentAgent):
    """Its LSTM reads the words of images, D numbers each; its heads read the LSTM's output in front of the features."""

    def __init__(
        self,
        network: ActorCritic,
        sequences: int,
        device: torch.device | str,
        reader: TokenReader,
        vocabulary: Sequence[str],
    ) -> None:
        super().__init__(network, sequences, device)
        self.reader, self.vocabulary = reader, vocabulary

    def see(self, images: np.ndarray, vectors_BH: Tensor | None = None) -> None:
        super().see(images)
        self.read = self.reading(images)

    def reading(self, images: np.ndarray) -> tuple[Tensor, ...]:
        """The embeddings of the images' words, [B, K * D]."""
        return (self.reader(images).float().flatten(1),)

    def record(self) -> dict[str, Tensor]:
        """The image, the embeddings of its words, and the state in front of it."""
        return {**super().record(), "words": self.read[0]}

    @staticmethod
    def _forward(network: ActorCritic, features: RolloutFeatures, images: Tensor, *remembered: Tensor) -> Tensor:
        words_BD, *state = remembered
        outputs_1BU, hidden_BU, cell_BU = network.unroll(words_BD[None], *state)
        said = network.of_features(features(images), outputs_1BU[0])
        return torch.cat([packed_outputs(*said), hidden_BU, cell_BU], 1)

    def _outputs(self, images: DistinctImages, moments: Mapping[str, Tensor], moment_LS: Tensor) -> Tensor:
        """What the heads read of pieces: [L * S, U + W]."""
        hidden_SU, cell_SU = (moments[name][moment_LS[0]] for name in ("hidden", "cell"))
        outputs_LSU, _, _ = self.network.unroll(moments["words"][moment_LS], hidden_SU, cell_SU)
        features_LSW = images.features(self.network.encoder, moment_LS)
        return torch.cat([outputs_LSU, features_LSW], -1).flatten(0, 1)

    def traced(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        """The words of the newest images, best first, and their cosines."""
        return self.reader.traced(rows_N)

    def words(self, tokens: Sequence[int]) -> list[str]:
        return [self.vocabulary[token] for token in tokens]

    def state_arrays(self) -> dict[str, Any]:
        return super().state_arrays() | joined(frames=self.reader.cache.arrays())

    def load_state(self, arrays: Mapping[str, Any], device: Any = None) -> None:
        super().load_state(arrays, device)
        self.reader.cache.load(part(arrays, "frames"), self.device)

    def load(self, arrays: Mapping[str, Any], images: np.ndarray) -> None:
        super().load(arrays, images)
        self.see(images)


def make_agent(settings: Settings, inputs: Inputs, arrays: PolicyArrays) -> WordReadingAgent:
    hp: Hyperparameters = settings.method.hyperparameters
    facts = facts_of(settings.environment)
    check_world(facts)
    check_settings(settings)
    model = inputs.get("language_model")
    language = language_memory(hp.language_model, model=model, memory_length=1, device=inputs.device)
    reader = token_reader(settings, inputs, language.embeddings_VD)
    network = make_network(settings, facts, arrays, units=hp.units, reads=hp.topk * language.width)
    return WordReadingAgent(network, hp.sequences, inputs.device, reader, language.vocabulary)


make_trainer, train, train_together, load_policy = method_of(make_agent)
