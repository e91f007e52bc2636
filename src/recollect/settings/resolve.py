"""scale x environment x method -> one resolved `Settings`: the layers of `recollect.settings.layers`, merged and checked.

`*_mapping` functions merge without checking and without importing an algorithm. `resolve` checks everything with the
algorithm's own `Hyperparameters`, so it imports torch. `resolved` is the same as plain JSON values, every default
included: what manifests hold and what is hashed. Snakemake, which must not import torch, is handed them by
`recollect.stages.check`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from recollect.settings import still
from recollect.settings.catalogue import declaration, load, module_of
from recollect.settings.errors import UserError, nearest
from recollect.settings.layers import (
    base_method,
    environment_layers,
    environment_stem,
    figure_layers,
    merged,
    method_layers,
    method_path,
    scale_settings,
    variant_base,
    without_names,
)
from recollect.settings.loading import config_folder, config_path, entries_of, merge, name_in, names, validated
from recollect.settings.overrides import check_values, taken_apart
from recollect.settings.schema import (
    EnvironmentSettings,
    EvaluationSettings,
    FigureSettings,
    LanguageModelSettings,
    MethodSettings,
    PublishedDataSettings,
    Settings,
    SourceSettings,
)
from recollect.settings.still import remembered

__all__ = ["base_method", "environment_stem", "method_path", "names", "scale_settings"]  # of `layers`, for importers

JUDGED_BY = ("episodes", "splits", "seed")
"""What of an environment's `evaluation` a variant may change."""


# --------------------------------------------------------------------------------------------- merged, not checked


@remembered
def environment_mapping(scale: str, env: str) -> dict[str, Any]:
    content = merged(environment_layers(scale, env))
    parameter = name_in(content, "parameter", environment_path(env))
    content.pop("parameter", None)
    if parameter is not None and isinstance(content.get("title"), str):
        value = section(content, "options").get(parameter, "")
        content["title"] = content["title"].replace("{" + parameter + "}", str(value))
    images = content.get("images")
    if isinstance(images, dict) and isinstance(images.get("weights"), str):
        weights = images["weights"].replace("{scale}", scale).replace("{env}", env)
        content["images"] = {**images, "weights": weights}
    return {**content, "name": env}


@remembered
def method_mapping(scale: str, env: str, method: str) -> dict[str, Any]:
    """The merged, unchecked settings of a method, or of a variant of one, in one environment."""
    layers = method_layers(scale, env, method)
    # What stands by name is large, and `layers` has taken out of it what counts here.
    content = merge(*(without_names(layer.content) for layer in layers.own))
    base, _, variant = method.partition(".")
    if variant:
        listed, _ = taken_apart(variant)
        own_title = content.pop("title", base)
        plain_title = f"{own_title}, {listed.replace('_', ' ')}" if listed else own_title
        content = merge(content, {"title": plain_title}, *(without_names(layer.content) for layer in layers.variant))
        subtitle = content.pop("subtitle", None)
        if subtitle is not None and content["title"] == plain_title:  # else it has a title of its own
            content["title"] = f"{own_title}, {subtitle}"
        if layers.changes:  # may concern learning, so it is trained whatever its listed part says
            content = merge(content, *(layer.content for layer in layers.changes))
            content["title"] += f", {variant.removeprefix(listed).lstrip(',')}"
            content.pop("evaluation_only", None)
    return {**without_names(content), "name": method}


def section(content: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """The mapping at a path of unchecked settings; empty where nothing stands there, or what is no mapping."""
    found: Any = content
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def played_method(scale: str, env: str, method: str) -> str:
    """The method whose policy is played: a variant that is not trained plays that of what it is a variant of."""
    if not method_mapping(scale, env, method).get("evaluation_only"):
        return method
    return played_method(scale, env, variant_base(scale, env, method))


def titles(scale: str, env: str, methods: Sequence[str]) -> dict[str, str]:
    """What methods are called where they stand beside each other: their titles, with the name behind one that several have."""
    found = {method: str(method_mapping(scale, env, method).get("title") or method) for method in methods}
    shared = {title for title, count in Counter(found.values()).items() if count > 1}
    return {method: f"{title} ({method})" if title in shared else title for method, title in found.items()}


# --------------------------------------------------------------------------------------------------------- checked


def resolve(scale: str, env: str, method: str, seed: int) -> Settings:
    """The checked settings of one run.

    Raises:
        UserError: something is unknown, missing or of the wrong type; the message names the file, the key and the cure.
    """
    where = method_path(method) if method == base_method(method) else f"{method_path(method)} (variant '{method}')"
    environment = environment_settings(scale, env)
    content = dict(method_mapping(scale, env, method))
    judged = content.pop("evaluation", None)
    if judged is not None:
        # A variant that is only judged, or one with changes in its name, which is trained and judged so.
        may = content.get("evaluation_only") or method_layers(scale, env, method).changes
        if not may or not isinstance(judged, Mapping) or not judged.keys() <= {*JUDGED_BY}:
            what = f"`evaluation` of a method may hold {', '.join(JUDGED_BY)} of a variant with `evaluation_only: true`"
            raise UserError(what, where=where, do="write the rest in the environment's `evaluation`")
        laid_over = merge(environment_mapping(scale, env).get("evaluation") or {}, judged)
        evaluation = validated(EvaluationSettings, laid_over, where=f"{where}: evaluation")
        environment = environment.model_copy(update={"evaluation": evaluation})
    models = _own_models(content.get("algorithm"), where=where)
    shell = validated(MethodSettings, {**content, "hyperparameters": {}}, where=where, beside=models)
    if shell.memory is not None and "memory" not in models:
        do = "remove `memory`, or declare `Memory` in the algorithm's module, as recollect/radt/radt.py does"
        raise UserError(f"the algorithm '{shell.algorithm}' has no memory", where=where, do=do)
    own = {}
    for part in models if shell.memory is not None else ("hyperparameters",):
        others = {name: model for name, model in models.items() if name != part}
        at = f"{where}: {part} (scale {scale}, env {env})"
        own[part] = validated(models[part], content.get(part, {}), where=at, beside=others)
    checked = shell.model_copy(update=own)
    if "=" in method:
        check_values(method, checked.model_dump(mode="json"))
    return Settings(scale=scale, seed=seed, environment=environment, method=checked)


def _own_models(algorithm: Any, *, where: object) -> dict[str, type[BaseModel]]:
    """What an algorithm's module checks: its hyperparameters, and its memory where it has one. Of no algorithm: nothing."""
    if not isinstance(algorithm, str):
        return {}
    module = algorithm_module(algorithm, where=where)
    models = {"hyperparameters": module.Hyperparameters, "memory": getattr(module, "Memory", None)}
    return {part: model for part, model in models.items() if model is not None}


def environment_settings(scale: str, env: str) -> EnvironmentSettings:
    """The checked settings of an environment, but for the hyperparameters of its source: see `source_hyperparameters`."""
    content = environment_mapping(scale, env)
    where = f"{environment_path(env)} (scale {scale})"
    checked = validated(EnvironmentSettings, content, where=where)
    module_of("world", checked.world, where=where)
    if checked.images is not None:
        module_of("image encoder", checked.images.encoder, where=f"{where}: images.encoder")
    return checked


def environment_path(env: str) -> Path:
    """The file of an environment, of whatever size or id."""
    return config_path("environments", environment_stem(env)[0])


def with_options(environment: EnvironmentSettings) -> EnvironmentSettings:
    """An environment whose options are the checked model of its world, where the world's module has one."""
    file = environment_path(environment.name)
    model = getattr(load("world", environment.world, where=file).World, "options_model", None)
    if model is None:
        return environment

    def parsed(called: str, options: Mapping[str, Any]) -> Any:
        try:
            return model.parse(options, environment.world)
        except UserError as error:
            raise error.at(f"{file}: {called} (of the world {environment.world})") from error

    options = parsed("options", environment.options)
    if environment.training_options:
        parsed("training_options", {**environment.options, **environment.training_options})
    return environment.model_copy(update={"options": options})


def with_source(scale: str, environment: EnvironmentSettings) -> EnvironmentSettings:
    """An environment whose source of histories has checked hyperparameters, where it has a source."""
    source = environment.source
    if source is None:
        return environment
    checked = source_hyperparameters(scale, environment.name, source)
    return environment.model_copy(update={"source": source.model_copy(update={"hyperparameters": checked})})


def source_hyperparameters(scale: str, env: str, source: SourceSettings) -> Any:
    where = f"{environment_path(env)} (scale {scale}): source"
    module = algorithm_module(source.algorithm, where=f"{where}.algorithm", does="source")
    return validated(module.Hyperparameters, source.hyperparameters, where=f"{where}.hyperparameters")


@remembered
def figure_settings(scale: str, figure: str) -> FigureSettings:
    """The checked settings of a figure at a scale; `seeds` default to the scale's."""
    content = {**merged(figure_layers(scale, figure)), "name": figure}
    return validated(FigureSettings, content, where=config_path("figures", figure))


# ------------------------------------------------------------------------------------------------ checked, as JSON


@remembered
def resolved(scale: str, env: str, method: str) -> dict[str, Any]:
    """The settings of a run of whatever seed, every default included: `{"environment": {...}, "method": {...}}`."""
    prepared = still.prepared(f"{scale} {env} {method}")
    return prepared if prepared is not None else dumped(resolve(scale, env, method, 0))


def dumped(settings: Settings) -> dict[str, Any]:
    """Settings as plain JSON values, without scale and seed."""
    environment = with_options(settings.environment).model_dump(mode="json", warnings=False)
    return {"environment": environment, "method": settings.method.model_dump(mode="json")}


def resolved_environment(scale: str, env: str) -> dict[str, Any]:
    """The settings of an environment, every default included, also those of its source of histories."""
    prepared = still.prepared(f"{scale} {env}")
    if prepared is not None:
        return prepared
    environment = with_source(scale, with_options(environment_settings(scale, env)))
    return environment.model_dump(mode="json", warnings=False)


def canonical(value: Any) -> str:
    """A settings model or mapping as canonical JSON: equal settings give equal text."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


# --------------------------------------------------------------------- what is listed by name in one file of its own


def listed(title: str, name: str, file: str, section: str = "") -> tuple[Any, str]:
    """What a file that lists things by name says of one of them, and where that stands."""
    entries = entries_of(file, section)
    if name not in entries:
        path = config_folder() / f"{file}.yaml"
        raise UserError(f"no {title} named '{name}'", where=path, do=nearest(name, entries))
    said, path = entries[name]
    return said, f"{path}: {section}.{name}" if section else f"{path}: {name}"


def language_model(name: str) -> LanguageModelSettings:
    content, where = listed("language model", name, "language_models")
    return validated(LanguageModelSettings, content, where=where)


def published_data(name: str) -> PublishedDataSettings:
    content, where = listed("published data set", name, "published_data")
    return validated(PublishedDataSettings, content, where=where)


# ------------------------------------------------------------------------------------------------ what modules declare


def algorithm_module(algorithm: str, *, where: object, does: str = "method") -> Any:
    """The module of a `method`, `source` or `network` (`does`); importing it makes full checking slow (torch)."""
    return load(does, algorithm, where=where)


def figure_reads(scale: str, figure: str) -> str:
    """What a figure is drawn from: `scores`, or what its kind's file names in a line like ``READS = "traces"``."""
    return declaration("figure", figure_settings(scale, figure).kind, "READS") or "scores"


def by_task(algorithm: str) -> bool:
    """Whether each task's histories are made by a job of its own: the source's file has the line ``BY_TASK = True``."""
    return declaration("source", algorithm, "BY_TASK") is True


def source_family(algorithm: str) -> str | None:
    """The packages that a source of histories needs besides its world's: its file has a line like ``FAMILY = "sac"``."""
    family: str | None = declaration("source", algorithm, "FAMILY")
    return family


def uses_gpu(algorithm: str) -> bool:
    """Whether a source of histories learns on a GPU where there is one: its file has the line ``USES_GPU = True``."""
    return declaration("source", algorithm, "USES_GPU") is True
