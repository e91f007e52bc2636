"""HELM's agents see the same images again and again: each is encoded once per minibatch or rollout, each window read once.

Against encoding every image of a minibatch, and reading every window. Images are those of MiniGrid-Memory of size 7 under random
turns and steps, of a size that the demo has: a rollout of 64 steps in 32 games, minibatches of 256, windows of 12 words. A word
says whether an image has nothing green, a little, or more, which is about what SHELM's words say there.

And the rooms of Memory-RL: gradients of its image encoder over a batch of 64 episodes of Visual Match 60 by a random agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.harness import Comparison, Side
from recollect.common.distinct_images import DistinctImages, RolloutFeatures
from recollect.common.feedforward import ImageEmbedder
from recollect.common.rollout import play_episodes
from recollect.environments.registry import make_world, tasks
from recollect.helm.language.language_memory import language_memory
from recollect.helm.small_impala import SmallImpala
from recollect.settings.resolve import environment_settings

GAMES = 32


def rollout(steps: int) -> Tensor:
    """Images uint8 [steps * GAMES, 3, 56, 56] of a random agent."""
    options = {"task": "MemoryS7"}
    listed = tasks("mini_grid", options, "train") * GAMES
    world = make_world("mini_grid", options, listed, np.arange(GAMES, dtype=np.uint64))
    draws, (images, _) = np.random.default_rng(0), world.reset()
    seen = []
    for _ in range(steps):
        seen.append(images.copy())
        images, _, terminated, truncated, _ = world.step(draws.integers(0, 3, GAMES))
        if (terminated | truncated).any():
            images, _ = world.reset(options={"reset_mask": terminated | truncated})
    return torch.from_numpy(np.concatenate(seen))


def rooms(episodes: int) -> Tensor:
    """Images uint8 [episodes * steps, 75] of episodes of Visual Match 60 by a random agent."""
    options = environment_settings("paper", "visual_match_60").options
    listed = tasks("visual_match", options, "train") * episodes
    world = make_world("visual_match", options, listed[:episodes], np.arange(episodes, dtype=np.uint64))
    draws = np.random.default_rng(0)
    episodes_played = play_episodes(world, lambda *_: draws.integers(0, 4, episodes))
    return torch.from_numpy(episodes_played.observation_BTD.reshape(-1, 75))


def gradients(encoder: nn.Module, features: Iterable[Tensor]) -> list[Tensor]:
    """Gradients of an encoder's parameters, summed over minibatches of its features."""
    encoder.zero_grad()
    for features_MW in features:
        features_MW.square().mean().backward()
    return [parameter.grad.clone() for parameter in encoder.parameters() if parameter.grad is not None]


def largest_difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Of any gradient, relative to the largest of its parameter."""
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, theirs, strict=True))


def comparisons(quick: bool) -> Iterator[Comparison]:
    """Gradients of an encoder over a rollout, history vectors of an agent that goes on playing, gradients over a batch."""
    images = rollout(8 if quick else 64)
    encoder = SmallImpala((3, 56, 56), 128, channel_scale=1, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1)).split(256)

    def once() -> list[Tensor]:
        distinct = DistinctImages(images)
        return gradients(encoder, (distinct.features(encoder, chosen_M) for chosen_M in order))

    def every() -> list[Tensor]:
        return gradients(encoder, (encoder(images[chosen_M]) for chosen_M in order))

    yield Comparison(
        work="gradients of HELM's image encoder, MiniGrid-Memory",
        unit="images",
        plain="every image",
        ours=Side(once, len(images)),
        against=Side(every, len(images)),
        difference=lambda: largest_difference(once(), every()),
        tolerance=1e-3,
    )

    features, acted_TE = RolloutFeatures(encoder), images.view(-1, GAMES, *images.shape[1:])

    def act_once() -> Tensor:
        with features.rollout():
            return torch.cat([features(images_E) for images_E in acted_TE])

    def act_every() -> Tensor:
        with torch.no_grad():
            return torch.cat([encoder(images_E) for images_E in acted_TE])

    yield Comparison(
        work="features for acting of HELM's image encoder, a rollout of MiniGrid-Memory",
        unit="images",
        plain="every image",
        ours=Side(act_once, len(images)),
        against=Side(act_every, len(images)),
        difference=lambda: float((act_once() - act_every()).abs().max()),
        tolerance=1e-4,
    )

    memory, plain = (language_memory("minilm", memory_length=12, layers=1) for _ in range(2))
    plain.cache = None  # type: ignore[attr-defined]
    played = rollout(8 if quick else 256)
    green_N = ((played[:, 1] > 200) & (played[:, 0] < 50)).flatten(1).sum(1)
    words_TE = ((green_N > 0).long() + (green_N > 20)).view(-1, GAMES)
    new_words_TE = torch.arange(words_TE.numel()).view_as(words_TE)  # the worst that can happen

    def read(model: object, words_TE: Tensor) -> Tensor:
        model.start(GAMES)  # type: ignore[attr-defined]
        vectors = [model.step(model.embeddings_VD[word_E][:, None]) for word_E in words_TE]  # type: ignore[attr-defined]
        return torch.stack(vectors)

    for said, chosen_TE in (("MiniGrid-Memory", words_TE), ("no window twice", new_words_TE)):
        yield Comparison(
            work=f"history vectors of MiniLM's first layer, windows of 12 words, {said}",
            unit="steps",
            plain="every window",
            ours=Side(
                lambda of=chosen_TE: read(memory, of),  # type: ignore[misc]
                chosen_TE.numel(),
                prepare=lambda: memory.cache.load({}),  # type: ignore[attr-defined]
                once=True,
            ),
            against=Side(lambda of=chosen_TE: read(plain, of), chosen_TE.numel(), once=True),  # type: ignore[misc]
            difference=lambda of=chosen_TE: float((read(memory, of) - read(plain, of)).abs().max()),  # type: ignore[misc]
            tolerance=1e-3,
            rounds=3,
        )

    seen = rooms(4 if quick else 64)
    embedder = ImageEmbedder((3, 5, 5), 100, generator=torch.Generator().manual_seed(0))

    def room_gradients(embed: Callable[[Tensor], Tensor]) -> list[Tensor]:
        return gradients(embedder, (embed(batch) for batch in (seen,)))

    yield Comparison(
        work="gradients of Memory-RL's image encoder, Visual Match 60",
        unit="images",
        plain="every image",
        ours=Side(lambda: room_gradients(embedder), len(seen)),
        against=Side(lambda: room_gradients(embedder.every), len(seen)),
        difference=lambda: largest_difference(room_gradients(embedder), room_gradients(embedder.every)),
        tolerance=1e-3,
    )
