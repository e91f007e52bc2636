"""Lines of HELM: whole rollouts with their updates, of a run alone and of seeds together, a step of the language model alone,
and CLIP's image encoder.

Frozen models have the published shapes and random weights. MiniGrid is played, and its frames are cached as in a run.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.case import Case, NoSuchSetting, Part, Subject
from benchmarks.gpu.inputs import inputs_of
from recollect.artifacts.sealed import write_arrays
from recollect.common.cuda_graphs import WARM_UP
from recollect.common.weights import arrays_of
from recollect.common.work import FLOAT, known_of
from recollect.evaluation.speed import Clock
from recollect.helm import settings as helm_settings
from recollect.helm import work
from recollect.helm.together import Together, groups_of
from recollect.helm.vision import clip, vision_language
from recollect.settings.resolve import algorithm_module

FEW = WARM_UP + 3  # steps on random inputs on which two devices are compared; a graph is replayed in the last
IMAGES = 16  # of a step of as many games


def learning(case: Case) -> Subject:
    settings = case.settings
    hp: Any = settings.method.hyperparameters
    module = algorithm_module(settings.method.algorithm, where=case.method)
    trainer = module.make_trainer(settings, inputs_of(case))
    memory = trainer.agent.history.memory
    clock = Clock(case.nowhere)
    draws = torch.Generator().manual_seed(0)
    shape = (hp.actors, getattr(hp, "topk", 1), memory.width)
    inputs_BKD = torch.randn(shape, generator=draws).to(case.device)
    own, read = work.trained(settings), work.read(settings)
    steps = hp.actors * hp.rollout
    network = getattr(getattr(memory, "cache", None), "model", None)  # its table of words is not read again
    read_bytes = FLOAT * sum(p.numel() for p in network.layers.parameters()) if network is not None else 0.0
    parts = (
        Part(
            "training",
            "env steps",
            lambda: case.rate(lambda: trainer.advance(clock), steps, least=1),
            own.flop / hp.steps,
        ),
        Part(
            "language model",
            "env steps",
            lambda: case.rate(lambda: memory.step(inputs_BKD), hp.actors),
            read,
            read_bytes / hp.actors + getattr(memory, "row_bytes", 0.0),
        ),
        _mixing(case, trainer.agent.history.reader, hp.actors),
    )

    def numbers() -> np.ndarray:
        memory.start(hp.actors)
        found = [memory.step(inputs_BKD * (n + 1)).double().cpu().numpy().ravel() for n in range(FEW)]
        return np.concatenate(found)

    return Subject(parts, numbers, jobs={"train": {"training": hp.steps}})


def without_memory(case: Case) -> Subject:
    """CNN-PPO and LSTM-PPO: whole rollouts with their updates."""
    settings = case.settings
    hp: Any = settings.method.hyperparameters
    trainer = algorithm_module(settings.method.algorithm, where=case.method).make_trainer(settings, inputs_of(case))
    clock = Clock(case.nowhere)
    own = work.trained(settings)

    def rollout() -> None:
        trainer.advance(clock)

    def numbers() -> np.ndarray:
        rollout()
        return np.asarray(trainer.rollout.value_TE).ravel()

    rate = partial(case.rate, rollout, hp.actors * hp.rollout, least=1)
    part = Part("training", "env steps", rate, own.flop / hp.steps)
    return Subject((part,), numbers, jobs={"train": {"training": hp.steps}})


def begun(case: Case) -> Together:
    """`members` (extra) runs that differ in their seed."""
    module = algorithm_module(case.settings.method.algorithm, where=case.method)
    settings = [case.settings.model_copy(update={"seed": seed}) for seed in range(int(str(case.extra["members"])))]
    clocks = [Clock(case.nowhere) for _ in settings]
    runs = Together(module.make_trainer, settings, inputs_of(case), clocks, lambda place, arrays: None)
    for place in range(len(settings)):
        runs.begin(place)
    return runs


def together(case: Case) -> Subject:
    """Seeds whose language model reads for all; rates count what all of them do."""
    hp: Any = case.settings.method.hyperparameters
    runs = begun(case)
    groups, members = groups_of(runs.trainers), len(runs.trainers)

    def rollout() -> None:
        runs.rollout(groups)
        for failure in runs.failed.values():
            raise failure

    def numbers() -> np.ndarray:
        rollout()
        return np.concatenate([trainer.rollout.value_TE.ravel() for trainer in runs.trainers.values()])

    steps = hp.actors * hp.rollout
    own = work.trained(case.settings)
    part = Part("training", "env steps", lambda: case.rate(rollout, members * steps, least=1), own.flop / hp.steps)
    history = next(iter(runs.trainers.values())).agent.history
    more = () if history is None else (_mixing(case, history.reader, members * hp.actors),)
    return Subject((part, *more), numbers, jobs={"train": {"training": hp.steps}})


def _mixing(case: Case, reader: Any, images: int) -> Part:
    """What HELM makes of new images: mixtures of all words. In MiniGrid few images are new, in Procgen nearly all."""
    hopfield = reader.hopfield
    queries_ND = torch.randn((images, hopfield.width), generator=torch.Generator().manual_seed(0)).to(case.device)
    table = 2 * FLOAT * hopfield.embeddings_VD.numel() / images  # read for their likeness, and for their mean
    flop = 4.0 * hopfield.embeddings_VD.numel()
    return Part("new images", "images", lambda: case.rate(lambda: hopfield.mixed(queries_ND), images), flop, table)


def images(case: Case) -> Subject:
    """CLIP's image encoder as SHELM sees with it, on MiniWorld's frames; compared: what it makes of four. Extra: `precision`."""
    known = helm_settings.vision_language_model("clip-vit-b16")
    if "precision" in case.extra:
        if "precision" not in type(known).model_fields:
            raise NoSuchSetting("precision of a vision-language model")
        known = known.model_copy(update={"precision": case.extra["precision"]})
    if case.scale == "smoke":
        clip.SHAPES["small"] = clip.ClipShape(
            width=32, image_width=64, image_layers=1, text_width=64, text_layers=1, vocabulary=64
        )
        known = known.model_copy(update={"network": "small"})
    path = case.folder / "clip.safetensors"
    if not path.exists():
        _write_clip(clip.SHAPES[known.network], path)
    model = vision_language.ClipModel(known, path, case.device)
    draws = np.random.default_rng(0)
    frames = torch.from_numpy(draws.integers(0, 256, (IMAGES, 3, 60, 80), dtype=np.uint8))
    weights = sum(p.numel() for p in model.network.visual.parameters())
    flop = known_of("images", "clip-vit-b16", 0.0) if known.network != "small" else 2 * weights * 197.0
    part = Part("", "images", lambda: case.rate(lambda: model.images(frames), IMAGES), flop, FLOAT * weights / IMAGES)
    return Subject((part,), lambda: model.images(frames[:4]).double().cpu().numpy().ravel())


def _write_clip(shape: clip.ClipShape, path: Any) -> None:
    """CLIP with random weights of about the released spread."""
    network = clip.Clip(shape)
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.ndim > 1 or name.endswith("class_embedding"):
                weight.normal_(0.0, 0.02, generator=draws)
            elif weight.ndim == 0:
                weight.zero_()
    write_arrays(path, arrays_of(network), kind=vision_language.KIND)
