"""How much work the methods of this package are; see `recollect.common.work`."""

from __future__ import annotations

from math import ceil
from typing import Any

from recollect.common import work
from recollect.common.work import FLOAT, LEARNING, UPDATE, Net, Work, dense, frozen_parameters, known_of, shape_met
from recollect.helm.settings import token_vocabulary
from recollect.settings.schema import Settings

WORD = 512  # numbers of a word's embedding, where that is not known
PIXELS = 64 * 64  # of an image of a world whose packages are not installed


def network(settings: Settings) -> Net:
    """What is learned (see `helm.small_impala`): two convolutions, a wide layer, an LSTM where there is one, and the heads."""
    hp: Any = settings.method.hyperparameters
    side = int((shape_met(settings).pixels or PIXELS) ** 0.5)
    (kernel1, stride1), (kernel2, stride2) = ((8, 4), (4, 2)) if side > 9 else ((4, 2), (2, 1))
    side1 = (side - kernel1) // stride1 + 1
    side2 = (side1 - kernel2) // stride2 + 1
    channels = 16 * hp.channel_scale
    weights1, weights2 = 3 * channels * kernel1**2, channels * 2 * channels * kernel2**2
    shape, units, words = _memory(settings), getattr(hp, "units", 0), _words(settings)
    read = units if units and not words else hp.width + (units or (shape[1] if shape else 0))
    parts = [dense(side2**2 * 2 * channels, hp.width), dense(read, hp.actor + hp.critic)]
    if units:
        parts.append(dense((words or hp.width) + units, 4 * units))
    flop = 2 * (side1**2 * weights1 + side2**2 * weights2) + sum(part.flop for part in parts)
    return Net(flop, weights1 + weights2 + sum(part.parameters for part in parts))


def trained(settings: Settings) -> Work:
    hp: Any = settings.method.hyperparameters
    net = network(settings)
    updates = hp.steps / (hp.actors * hp.rollout) * hp.epochs * minibatches(settings)
    flop = hp.steps * (net.flop * (1 + hp.epochs * LEARNING) + read(settings))
    saved = work.checkpoints(net.parameters, ring(settings) + _frames(settings))
    return Work(flop, hp.steps / hp.actors + updates * UPDATE, hp.steps, FLOAT * net.parameters, hp.steps, saved)


def minibatches(settings: Settings) -> float:
    """Of one pass over a rollout. LSTM-PPO's are pieces of episodes, of which short episodes make many."""
    hp: Any = settings.method.hyperparameters
    if not getattr(hp, "units", 0):
        return float(hp.batches)
    length = known_of("episode_steps", settings.environment.name, shape_met(settings).horizon)
    pieces = hp.actors * (1 + hp.rollout / length)  # an episode that is being played when a rollout ends is two
    return float(ceil(pieces / hp.sequences))


def played(settings: Settings) -> Work:
    return work.played(settings, network(settings).flop + read(settings))


def read(settings: Settings) -> float:
    """Operations of the frozen models for one more image of one game.

    The language model reads `topk` inputs: 12 D² multiplications in each layer, and with its memory of M, cached, 3 M D
    (contents, distances, values). What comes before it is done for images that were not seen before.
    """
    hp: Any = settings.method.hyperparameters
    name = getattr(hp, "language_model", None)
    if name is None:
        return 0.0
    shape, new = _memory(settings), known_of("new_frames", settings.environment.name, 1.0)
    if _words(settings):
        return new * _eyes(settings)
    if shape is None:
        return 2 * frozen_parameters(name) + new * _eyes(settings)
    layers, width, words = shape
    tokens = getattr(hp, "topk", 1)
    model = 2 * layers * tokens * (12 * width**2 + 3 * (hp.remembered + tokens) * width)
    mixture = 4 * words * width if settings.method.algorithm == "helm" else 0.0  # likeness to all words, and their mean
    return model + new * (mixture + _eyes(settings))


def ring(settings: Settings) -> float:
    """Bytes of a Transformer-XL's keys and values in a checkpoint: of each game at most what an episode wrote."""
    hp: Any = settings.method.hyperparameters
    shape = _memory(settings)
    if shape is None:
        return 0.0
    layers, width, _ = shape
    tokens = getattr(hp, "topk", 1)
    slots = min(hp.remembered + tokens - 1, tokens * shape_met(settings).horizon)
    return FLOAT * 2 * layers * width * slots * hp.actors


def _eyes(settings: Settings) -> float:
    """Operations of a vision-language model for one image."""
    hp: Any = settings.method.hyperparameters
    chosen = getattr(hp, "vision_language_model", None)
    if chosen is None and hasattr(hp, "token_vocabulary"):
        chosen = token_vocabulary(hp.token_vocabulary).vision_language_model
    return known_of("images", chosen, 1e7) if chosen else 0.0


def _memory(settings: Settings) -> tuple[int, int, int] | None:
    """Layers, width and words of the language model, of those that keep keys and values in a ring."""
    hp: Any = settings.method.hyperparameters
    name = getattr(hp, "language_model", "") if hasattr(hp, "remembered") else ""
    width = int(known_of("widths", name, 0)) if name else 0
    if not width:
        return None
    return hp.layers or int(known_of("layers", name, 0)), width, int(known_of("words", name, 0))


def _words(settings: Settings) -> int:
    """Width of the words' embeddings that an LSTM reads in the place of a language model; 0: none does."""
    hp: Any = settings.method.hyperparameters
    if not hasattr(hp, "language_model") or hasattr(hp, "remembered"):
        return 0
    return hp.topk * int(known_of("widths", hp.language_model, WORD))


def _frames(settings: Settings) -> float:
    """Bytes of the images that a checkpoint has as they were read."""
    hp: Any = settings.method.hyperparameters
    shape = _memory(settings)
    if shape is None:
        return 0.0
    kept = min(hp.cached_frames, known_of("new_frames", settings.environment.name, 1.0) * hp.steps)
    return kept * (16 * hp.topk if hasattr(hp, "topk") else FLOAT * shape[1])
