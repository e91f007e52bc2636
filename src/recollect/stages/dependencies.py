"""What each job reads, and what a set of figures needs: the input functions of the rules, in plain Python.

Nothing here imports torch, pandas or an algorithm: Snakemake parses with it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from recollect.settings.catalogue import declaration, load
from recollect.settings.errors import UserError
from recollect.settings.loading import config_folder, validated
from recollect.settings.resolve import (
    environment_mapping,
    fetched_model,
    figure_reads,
    figure_settings,
    has_scene,
    method_mapping,
    names,
    published_data,
    scale_settings,
    token_vocabulary,
    vision_language_model,
)
from recollect.settings.schema import Frozen
from recollect.stages import paths, provenance
from recollect.stages.inputs import (
    demonstration_inputs,
    embedder_inputs,
    figure_runs,
    image_encoder_inputs,
    language_memory_inputs,
    learned_histories,
    memory_method,
    policy_method,
    vision_inputs,
    vision_names,
    vocabulary_inputs,
)
from recollect.stages.packs import JOB_HOURS

Run = tuple[str, str, int]
"""(env, method, seed)"""


class Selection(Frozen):
    """What `snakemake` makes when no target is named: config/config.yaml, and `--config` on the command line."""

    scale: str = Field(description="One of config/scales.")
    figures: tuple[str, ...] = Field(description="Some of config/figures, or `all` of them.")
    job_hours: float = Field(JOB_HOURS, ge=1, description="Longest SLURM job at paper scale; docs/cluster.md.")
    packages: Literal["base", "gpu"] = Field(
        "base", description="With `--sdm conda`: envs/gpu.yaml in place of base.yaml."
    )

    @field_validator("figures", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        """`all`, or one name, as `--config figures=...` gives them."""
        if value == "all":
            return names("figures")
        return [value] if isinstance(value, str) else value


def selection(config: Mapping[str, Any]) -> Selection:
    """The checked selection.

    Raises:
        UserError: an unknown key, scale or figure; the message names the nearest known one.
    """
    chosen = validated(Selection, config, where=f"{config_folder() / 'config.yaml'} or --config")
    scale_settings(chosen.scale)
    for figure in chosen.figures:
        figure_settings(chosen.scale, figure)
    return chosen


def find_commands() -> None:
    """Let jobs find the command `recollect` that belongs to this Python, also where its .venv is not activated."""
    if shutil.which("recollect") is None:
        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])


# ------------------------------------------------------------------------------------------------- inputs of one job


def embed_inputs(scale: str, env: str, method: str) -> dict[str, Path]:
    """What `recollect embed` reads."""
    return {"histories": learned_histories(scale, env), **embedder_inputs(scale, env, method)}


def evaluate_models(scale: str, env: str, method: str) -> dict[str, Path]:
    """What `recollect evaluate` reads besides the run itself: frozen models, which do not travel in the policy."""
    embedder = embedder_inputs(scale, env, method)
    models = {name: path for name, path in embedder.items() if name == "language_model"}
    models |= image_encoder_inputs(scale, env) | demonstration_inputs(scale, env, method)
    return models | language_memory_inputs(scale, env, method) | vision_inputs(scale, env, method)


def embedder_runs(scale: str, env: str) -> set[tuple[str, int]]:
    """(method, seed) of the runs of an environment that some method's memory embeds with."""
    found = (provenance.embedder_of(scale, env, method) for method in names("methods"))
    return {(name, seed) for kind, name, seed in found if kind == "method"}


# ------------------------------------------------------------------------------------------------ what figures need


def runs_of(scale: str, figures: Iterable[str], reads: str | None = None) -> list[Run]:
    """The runs that some figures are about, each once; with `reads` only those whose `scores`, `traces` or `speeds` are drawn."""
    chosen = [figure for figure in figures if reads in (None, figure_reads(scale, figure))]
    return list(dict.fromkeys(run for figure in chosen for run in figure_runs(scale, figure)))


STAGES = (
    *("generate", "fetch", "train_vision_language", "embed_vocabulary", "embed_images", "embed", "index"),
    *("train", "evaluate", "inspect", "page", "measure", "figure"),
)


def artifacts(stage: str, scale: str, figures: Iterable[str]) -> list[Path]:
    """What one stage makes for some figures."""
    figures = list(figures)
    runs = runs_of(scale, figures)
    pairs = list(dict.fromkeys((env, method) for env, method, _ in runs))
    contents = {pair: method_mapping(scale, *pair) for pair in pairs}
    remembering = [pair for pair in pairs if contents[pair].get("memory") is not None]
    memories = list(dict.fromkeys((env, memory_method(scale, env, method)) for env, method in remembering))
    if stage == "generate":
        learned = dict.fromkeys(env for env, method in pairs if contents[env, method].get("data") == "histories")
        return [paths.histories(scale, env) for env in learned]
    if stage == "embed_images":
        learned = dict.fromkeys(env for env, method in pairs if contents[env, method].get("data") == "histories")
        return [path for env in learned if (path := learned_histories(scale, env)) != paths.histories(scale, env)]
    if stage == "fetch":
        models = [embedder_inputs(scale, *memory).get("language_model") for memory in memories]
        models += [language_memory_inputs(scale, *pair).get("language_model") for pair in pairs]
        seeing = [file for pair in pairs for file in _files_to_see_with(scale, *pair)]
        wanted = [path for path in (*models, *seeing) if path is not None and path.parts[:2] == ("data", "models")]
        return list(dict.fromkeys(wanted))
    if stage == "train_vision_language":
        seeing = [file for pair in pairs for file in _files_to_see_with(scale, *pair)]
        return [path for path in dict.fromkeys(seeing) if path.parts[:3] == ("data", scale, "models")]
    if stage == "embed_vocabulary":
        chosen = (vision_names(scale, *pair)[0] for pair in pairs)
        return list(dict.fromkeys(paths.token_vocabulary(scale, name) for name in chosen if name is not None))
    if stage == "embed":
        return [paths.embeddings(scale, *memory) for memory in memories]
    if stage == "index":
        return [paths.index(scale, *memory) for memory in memories]
    if stage == "train":
        played = [run for reads in ("scores", "traces") for run in runs_of(scale, figures, reads)]
        trained = ((env, policy_method(scale, env, method), seed) for env, method, seed in played)
        return [paths.policy(scale, *run) for run in dict.fromkeys(trained)]
    if stage == "evaluate":
        return [paths.scores(scale, *run) for run in runs_of(scale, figures, "scores")]
    if stage == "inspect":
        return [paths.trace(scale, *run) for run in runs_of(scale, figures, "traces")]
    if stage == "page":  # of worlds that can be drawn, and of methods that see images
        traced = runs_of(scale, figures, "traces")
        drawable = {env for env, _, _ in traced if has_scene(str(environment_mapping(scale, env).get("world")))}
        return [
            paths.page(scale, *run)
            for run in traced
            if run[0] in drawable or provenance.frozen_models(scale, run[0], run[1])
        ]
    if stage == "measure":
        return [paths.speed(scale, *run) for run in runs_of(scale, figures, "speeds")]
    if stage == "figure":
        return [paths.figure(scale, figure, ".pdf") for figure in figures]
    raise ValueError(f"unknown stage '{stage}', not one of {', '.join(STAGES)}")


def _files_to_see_with(scale: str, env: str, method: str) -> list[Path]:
    """Models behind a method's vision, those that its token vocabulary is made of included."""
    vocabulary, _ = vision_names(scale, env, method)
    behind = {} if vocabulary is None else vocabulary_inputs(scale, vocabulary)
    return [*vision_inputs(scale, env, method).values(), *behind.values()]


def embedders(scale: str, figures: Iterable[str]) -> list[Path]:
    """What must be trained before anything can be embedded: the policies that memories embed with.

    The scores and traces of all runs of those methods that the figures read are named as well: a run is one folder for
    DVC.
    """
    figures = list(figures)
    runs = runs_of(scale, figures)
    of = {(env, method): provenance.embedder_of(scale, env, method) for env, method, _ in runs}
    needed = {(env, name, seed) for (env, _), (kind, name, seed) in of.items() if kind == "method"}
    methods = {(env, name) for env, name, _ in needed}
    policies = [paths.policy(scale, *run) for run in sorted(needed)]
    read = [(paths.scores, run) for run in runs_of(scale, figures, "scores")]
    read += [(paths.trace, run) for run in runs_of(scale, figures, "traces")]
    return policies + [of_run(scale, *run) for of_run, run in read if run[:2] in methods]


# ---------------------------------------------------------------------------------- worlds that another Python plays

_PLAY = ("generate", "evaluate", "inspect", "measure")


def check_worlds(jobs: Iterable[tuple[str, Mapping[str, str]]]) -> None:
    """Check that the Pythons and packages are there which play the worlds of some jobs, (rule, wildcards) each.

    Raises:
        UserError: one is missing; the message says how to make it.
    """
    played: dict[str, None] = {}
    for rule, names_of in jobs:
        if rule not in (*_PLAY, "train"):
            continue
        scale, env = names_of["scale"], names_of["env"]
        environment = environment_mapping(scale, env)
        reads_files = (environment.get("source") or {}).get("algorithm") == "published_files"
        only_learns = rule == "train" and not provenance.evaluates_while_training(
            method_mapping(scale, env, names_of["method"])
        )
        if not only_learns and not (rule == "generate" and reads_files):
            played[environment["world"]] = None
    for world in played:
        if declaration("world", world, "find_package") is not None:
            load("world", world, where="environment.world").find_package()


# ----------------------------------------------------------------------------------------------- targets, by their path

_WORD, _ENV, _METHOD = r"[\w-]+", r"[\w-]+(?:\.[\w-]+)*", r"[\w.-]+"
_TARGETS = (
    re.compile(r"data/models/(?P<model>[\w.-]+)(/|$)"),
    re.compile(r"data/published/(?P<dataset>[\w-]+)(/|$)"),
    re.compile(rf"data/(?P<scale>{_WORD})/models/(?P<trained>[\w.-]+)/"),
    re.compile(rf"data/(?P<scale>{_WORD})/token_vocabularies/(?P<vocabulary>{_WORD})\."),
    re.compile(rf"data/(?P<scale>{_WORD})/(?P<env>{_ENV})/(?P<method>{_METHOD})/"),
    re.compile(rf"data/(?P<scale>{_WORD})/(?P<env>{_ENV})/"),
    re.compile(rf"results/(?P<scale>{_WORD})/runs/(?P<env>{_ENV})/(?P<method>{_METHOD})/"),
    re.compile(rf"results/(?P<scale>{_WORD})/(?:inspect|speed)/(?P<env>{_ENV})/(?P<method>{_METHOD})/"),
    re.compile(rf"results/(?P<scale>{_WORD})/figures/(?P<figure>{_WORD})\."),
    re.compile(rf"(?:results|data)/(?P<scale>{_WORD})/"),
)


def check_targets(targets: Iterable[str]) -> None:
    """Check the names in those targets that are paths of artifacts; others are left to Snakemake.

    Raises:
        UserError: a target names a scale, environment, method, figure, model or data set that is not configured.
    """
    for target in targets:
        for pattern in _TARGETS:
            found = pattern.match(target.removeprefix("./"))
            if found is not None:
                _check_names(**found.groupdict())
                break


def _check_names(
    scale: str | None = None,
    env: str | None = None,
    method: str | None = None,
    figure: str | None = None,
    model: str | None = None,
    dataset: str | None = None,
    trained: str | None = None,
    vocabulary: str | None = None,
) -> None:
    if trained is not None and vision_language_model(trained).source != "trained":
        raise UserError(
            f"the vision-language model '{trained}' is not trained here",
            where=config_folder() / "vision_language_models.yaml",
            do=f"ask for {paths.model(trained)}, if it is one that is fetched",
        )
    if vocabulary is not None:
        token_vocabulary(vocabulary)
    if dataset is not None:
        published_data(dataset)
    if model is not None:
        chosen = fetched_model(model)
        if chosen.source != "hub":
            raise UserError(
                f"the model '{model}' comes from source '{chosen.source}' and is not fetched",
                where=config_folder() / "language_models.yaml",
                do="nothing: it is already at hand",
            )
    if scale is None:
        return
    scale_settings(scale)
    if figure is not None:
        figure_settings(scale, figure)
    if env is not None:
        environment_mapping(scale, env)
        if method is not None:
            method_mapping(scale, env, method)
