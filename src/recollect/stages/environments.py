"""Environments of jobs: whether what they say of splits and images goes with their worlds, before anything runs.

A job finds that out when it begins, but the histories that it waits for may take hours before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from recollect.environments import registry
from recollect.settings.errors import UserError, shown
from recollect.settings.resolve import environment_path, environment_settings, method_path, resolve
from recollect.settings.still import held_still
from recollect.stages.networks import check_networks
from recollect.stages.stage import Job
from recollect.stages.train_images import METHOD

if TYPE_CHECKING:
    from recollect.settings.schema import EnvironmentSettings

_JUDGE = ("run", "evaluate")
_MAKE = ("generate", "generate_task")
_SEE = ("train_images", "embed_images")


@held_still()
def check_environments(jobs: Iterable[Job]) -> None:
    """Check the splits that some jobs play, and the image encoders that they train or see with.

    Of a world whose packages are not here nothing is said.

    Raises:
        UserError: there is no such split, images are none for their encoder, or it cannot be trained; the file is named.
    """
    listed = list(jobs)
    judged = set(_of(listed, *_JUDGE))
    for scale, env in _of(listed, *_JUDGE, *_MAKE):
        _check_splits(scale, env, (scale, env) in judged)
    for scale, env in _of(listed, *_SEE):
        with _named_by(env, scale, "images"):
            _check_images(environment_settings(scale, env))
    for scale, env in _of(listed, "train_images"):
        _check_trained(scale, env)


def _of(jobs: Iterable[Job], *stages: str) -> list[tuple[str, str]]:
    """(scale, environment) of the jobs of some stages, each once."""
    return list(dict.fromkeys((job.scale, job.env) for job in jobs if job.stage in stages))


@contextmanager
def _named_by(env: str, scale: str, part: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise error.at(f"{shown(environment_path(env))} (scale {scale}): {part} ({error.where})") from error


def _check_splits(scale: str, env: str, judged: bool) -> None:
    environment = environment_settings(scale, env)
    options = {**environment.options, **environment.training_options}
    splits = [("source.split", options, environment.source.split)] if environment.source is not None else []
    if judged:
        splits += [("evaluation.splits", environment.options, split) for split in environment.evaluation.splits]
    try:
        registry.tasks(environment.world, environment.options, "train")
    except UserError:  # of packages that are not here, or of what `check_pair` refuses
        return
    for part, given, split in splits:
        with _named_by(env, scale, part):
            registry.tasks(environment.world, given, split)


def _check_images(environment: EnvironmentSettings) -> None:
    """Make an encoder as the jobs do that see with it; its weights may be still to be trained."""
    from recollect.common.image_encoders.registry import ImageEncoder, blank_network

    images = environment.images
    if images is None:  # which its stage says
        return
    try:
        tasks = registry.tasks(environment.world, environment.options, "train")
        world = registry.make_world(environment.world, environment.options, tasks[:1], np.zeros(1, np.uint64))
    except UserError:
        return
    shape = tuple(world.single_observation_space.shape or ())
    world.close()
    if images.weights is None or len(shape) != 3:  # which it refuses
        ImageEncoder(images.model_copy(update={"weights": None}), shape)
    else:
        blank_network(images, shape)


def _check_trained(scale: str, env: str) -> None:
    """The encoder learns together with the network of a method, which need not be in any figure."""
    check_networks([Job("run", scale, env, METHOD, "0")])
    if resolve(scale, env, METHOD, seed=0).method.hyperparameters.optimisation.micro_batches > 1:
        what = f"an image encoder learns a batch as a whole, and '{METHOD}' learns it in parts"
        where = f"{shown(method_path(METHOD))}: hyperparameters: optimisation.micro_batches (environment '{env}' at scale {scale})"
        raise UserError(what, where=where, do=f"set optimisation.micro_batches: 1 for '{METHOD}' in '{env}'")
