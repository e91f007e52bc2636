"""scale x environment x method -> one resolved `Settings`.

Order, later wins: the method's `base` chain, the method's file, its entry for this environment, the scale's entry for
the method, the scale's entry for the method in this environment. For an environment: its file, then the scale's entry.
A scale that names another source of histories takes over none of the old one's hyperparameters.

`radt.task_weight_0` is the variant `task_weight_0` of method `radt`: what stands under that name in `variants:` of the
method (or of its bases, or of the scale) is laid over all of this; and over that what a name says in so many words,
`radt.learning_rate=0.001` (see `overrides`).

An environment of any size needs no file of its own: `tmaze_passive_50` is `tmaze_passive.yaml`, whose `parameter: length`
says which option the trailing number sets (or word, where that option is a text).

`*_mapping` functions merge without checking and without importing an algorithm (Snakemake parses with them);
`resolve` checks everything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recollect.settings.catalogue import declaration, load, module_of
from recollect.settings.errors import UserError, nearest
from recollect.settings.loading import config_folder, config_path, merge, names, read_yaml, validated
from recollect.settings.overrides import taken_apart
from recollect.settings.schema import (
    EnvironmentSettings,
    FigureSettings,
    LanguageModelSettings,
    MethodSettings,
    PublishedDataSettings,
    ScaleSettings,
    Settings,
    TokenVocabularySettings,
    VisionLanguageModelSettings,
)
from recollect.settings.still import remembered


@remembered
def scale_settings(scale: str) -> ScaleSettings:
    """The settings of a scale (`smoke`, `demo`, `paper`, or a file of the user's)."""
    path = config_path("scales", scale)
    return validated(ScaleSettings, read_yaml(path), where=path)


@remembered
def environment_mapping(scale: str, env: str) -> dict[str, Any]:
    """The merged, unchecked settings of an environment."""
    stem, value = environment_stem(env)
    path = config_path("environments", stem)
    if value is not None and not path.is_file():
        do = f"{nearest(env, names('environments'))} (or add a file)"
        raise UserError(f"no environment named '{env}'", where=path.parent, do=do)
    content = read_yaml(path)
    if value is not None:
        if "parameter" not in content:
            raise UserError(f"environment '{stem}' takes no size", where=path, do=f"write '{stem}', not '{env}'")
        content = merge(content, {"options": {content["parameter"]: value}})
    overrides = scale_settings(scale).environments
    for layer in (overrides.get(stem, {}), overrides.get(env, {}) if env != stem else {}):
        content = merge(_without_old_source(content, layer), layer)
    parameter = content.pop("parameter", None)
    if parameter is not None and isinstance(content.get("title"), str):
        content["title"] = content["title"].replace("{" + parameter + "}", str(content["options"].get(parameter, "")))
    return merge(content, {"name": env})


@remembered
def environment_stem(env: str) -> tuple[str, int | str | None]:
    """The file that an environment's name stands for, and what the rest of the name sets (None: it is the file's own).

    `tmaze_passive_50` is (`tmaze_passive`, 50). Where the option that the file's `parameter` names is a text, so is the
    rest: `mini_grid_MemoryS11` is (`mini_grid`, `MemoryS11`).
    """
    if config_path("environments", env).is_file():
        return env, None
    head, dot, words = env.partition(".")
    file = config_path("environments", head)
    if dot and file.is_file() and read_yaml(file).get("world") == "gymnasium":
        return head, gymnasium_id(words)
    for place in (found.start() for found in re.finditer("_", env)):
        path = config_path("environments", env[:place])
        if env[place + 1 :] and path.is_file():
            content = read_yaml(path)
            if isinstance((content.get("options") or {}).get(content.get("parameter")), str):
                return env[:place], env[place + 1 :]
    numbered = re.fullmatch(r"(.+)_(\d+)", env)
    return (env, None) if numbered is None else (numbered.group(1), int(numbered.group(2)))


def gymnasium_id(words: str) -> str:
    """The id that `gymnasium.make` takes, of an environment's name behind its first dot.

    `CartPole-v1` is itself, `mygym.Bandit-v0` is `mygym/Bandit-v0`, and `ale_py.ALE.Pong-v5` is `ale_py:ALE/Pong-v5`.
    """
    parts = words.split(".", 2)
    if len(parts) == 3:
        return f"{parts[0]}:{parts[1]}/{parts[2]}"
    return "/".join(parts)


def _without_old_source(content: Mapping[str, Any], layer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings without their source's hyperparameters, where a layer names another source."""
    old, new = content.get("source"), layer.get("source")
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return content
    if new.get("algorithm", old.get("algorithm")) == old.get("algorithm"):
        return content
    return {**content, "source": {key: value for key, value in old.items() if key != "hyperparameters"}}


@remembered
def method_mapping(scale: str, env: str, method: str) -> dict[str, Any]:
    """The merged, unchecked settings of a method, or of a variant of one, in one environment."""
    layers: list[Mapping[str, Any]] = []
    chain: list[str] = []
    base, _, variant = method.partition(".")
    name: str | None = base
    while name is not None:
        if name in chain:
            raise UserError(
                f"the `base` of method '{base}' leads back to '{name}'",
                where=config_path("methods", name),
                do="break the circle",
            )
        chain.append(name)
        name = read_yaml(config_path("methods", name)).get("base")
    overrides = scale_settings(scale).methods
    stem, _ = environment_stem(env)

    def with_environment(layer: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
        here = layer.get("environments") or {}
        if not isinstance(here, Mapping) or not all(isinstance(v, Mapping | None) for v in here.values()):
            raise UserError(
                f"`environments` must map names of environments to settings, not be {here!r}",
                where=where,
                do="write `environments: {<name>: {hyperparameters: ...}}`",
            )
        return [layer, here.get(stem) or {}, (here.get(env) or {}) if env != stem else {}]

    for link in reversed(chain):  # the base first
        own = read_yaml(config_path("methods", link))
        for layer in (own, overrides.get(link, {})):
            layers += with_environment(layer, f"method '{link}' (scale {scale})")
    content = merge({}, *layers)
    if variant:
        listed, changed = taken_apart(variant)
        own_title = content.pop("title", base)
        content["title"] = plain = f"{own_title}, {listed.replace('_', ' ')}" if listed else own_title
        for changes in _variant(layers, base, listed) if listed else ():
            content = merge(content, *with_environment(changes, f"variant '{method}' (scale {scale})"))
        subtitle = content.pop("subtitle", None)
        if subtitle is not None and content["title"] == plain:  # else it has a title of its own
            content["title"] = f"{own_title}, {subtitle}"
        content = merge(content, changed)
        if changed:  # may concern learning, so it is trained whatever its listed part says
            content["title"] += f", {variant.removeprefix(listed).lstrip(',')}"
            content.pop("evaluation_only", None)
    for key in ("environments", "base", "variants"):
        content.pop(key, None)
    return merge(content, {"name": method})


def _variant(layers: list[Mapping[str, Any]], base: str, variant: str) -> list[Mapping[str, Any]]:
    """What some layers say of a variant. Taken from them one by one, so that a `null` is still there to remove."""
    path = method_path(base)
    known: dict[str, list[Mapping[str, Any]]] = {}
    for layer in layers:
        listed = layer.get("variants") or {}
        if not isinstance(listed, Mapping) or not all(isinstance(v, Mapping | None) for v in listed.values()):
            do = "write `variants: {<name>: {hyperparameters: ...}}`"
            raise UserError(f"`variants` must map names to settings, not be {listed!r}", where=path, do=do)
        for name, content in listed.items():
            known.setdefault(str(name), []).append(content or {})
    if variant not in known:
        raise UserError(f"method '{base}' has no variant named '{variant}'", where=path, do=nearest(variant, known))
    return known[variant]


def method_path(method: str) -> Path:
    """The file of a method, or of the method that it is a variant of."""
    return config_path("methods", base_method(method))


def base_method(method: str) -> str:
    """The method that a variant is one of; any other method itself."""
    return method.partition(".")[0]


@remembered
def figure_settings(scale: str, figure: str) -> FigureSettings:
    """The checked settings of a figure at a scale; `seeds` default to the scale's."""
    path = config_path("figures", figure)
    at_scale = scale_settings(scale)
    content = merge(
        {"seeds": list(at_scale.seeds)}, read_yaml(path), at_scale.figures.get(figure, {}), {"name": figure}
    )
    return validated(FigureSettings, content, where=path)


@remembered
def figure_reads(scale: str, figure: str) -> str:
    """What a figure is drawn from: `scores`, or what its kind's file names in a line like ``READS = "traces"``."""
    return declaration("figure", figure_settings(scale, figure).kind, "READS") or "scores"


@remembered
def language_model(name: str) -> LanguageModelSettings:
    """Where the language model of this name comes from."""
    path = config_folder() / "language_models.yaml"
    content = read_yaml(path)
    if name not in content:
        raise UserError(f"no language model named '{name}'", where=path, do=nearest(name, content))
    return validated(LanguageModelSettings, content[name], where=f"{path}: {name}")


@remembered
def vision_language_model(name: str, scale: str | None = None) -> VisionLanguageModelSettings:
    """Where the vision-language model of this name comes from, at a scale that may say how it is trained."""
    path = config_folder() / "vision_language_models.yaml"
    content = read_yaml(path)
    if name not in content:
        raise UserError(f"no vision-language model named '{name}'", where=path, do=nearest(name, content))
    at_scale = scale_settings(scale).vision_language_models.get(name, {}) if scale is not None else {}
    return validated(VisionLanguageModelSettings, merge(content[name], at_scale), where=f"{path}: {name}")


@remembered
def fetched_model(name: str) -> LanguageModelSettings | VisionLanguageModelSettings:
    """A frozen model of either kind; a name that both kinds have is a language model's."""
    seeing = config_folder() / "vision_language_models.yaml"
    if name in read_yaml(config_folder() / "language_models.yaml") or not seeing.is_file():
        return language_model(name)
    return vision_language_model(name) if name in read_yaml(seeing) else language_model(name)


@remembered
def token_vocabulary(name: str) -> TokenVocabularySettings:
    """How the token vocabulary of this name is made."""
    path = config_folder() / "token_vocabularies.yaml"
    content = read_yaml(path).get("vocabularies") or {}
    if name not in content:
        raise UserError(f"no token vocabulary named '{name}'", where=path, do=nearest(name, content))
    return validated(TokenVocabularySettings, content[name], where=f"{path}: vocabularies.{name}")


def prompt_templates(name: str | None) -> tuple[str, ...]:
    """The texts that stand around a word, `{}`; for no name the bare word."""
    if name is None:
        return ("{}",)
    path = config_folder() / "token_vocabularies.yaml"
    known = read_yaml(path).get("templates") or {}
    if name not in known:
        raise UserError(f"no templates named '{name}'", where=path, do=nearest(name, known))
    listed = known[name]
    if not isinstance(listed, list) or not listed or not all(isinstance(t, str) and t.count("{}") == 1 for t in listed):
        do = "write a list of texts with one {} each"
        raise UserError(f"the templates '{name}' are not such texts", where=f"{path}: templates.{name}", do=do)
    return tuple(listed)


@remembered
def published_data(name: str) -> PublishedDataSettings:
    """Where the published data set of this name comes from."""
    path = config_folder() / "published_data.yaml"
    content = read_yaml(path)
    if name not in content:
        raise UserError(f"no published data set named '{name}'", where=path, do=nearest(name, content))
    return validated(PublishedDataSettings, content[name], where=f"{path}: {name}")


def algorithm_module(algorithm: str, *, where: object, does: str = "method") -> Any:
    """The module of an algorithm; importing it is what makes full checking slow (torch).

    Args:
        algorithm: the name of its file.
        where: what to name in the error.
        does: what it must be: a `method`, a `source` of histories or a `network`.
    """
    return load(does, algorithm, where=where)


def uses_gpu(algorithm: str) -> bool:
    """Whether a source of histories learns on a GPU where there is one: its file has the line ``USES_GPU = True``."""
    return declaration("source", algorithm, "USES_GPU") is True


def has_scene(world: str) -> bool:
    """Whether a world can be drawn from above: its file has a function `scene`."""
    return declaration("world", world, "scene") is not None


def resolve(scale: str, env: str, method: str, seed: int) -> Settings:
    """The checked settings of one run.

    Raises:
        UserError: something is unknown, missing or of the wrong type; the message names the file, the key and the cure.
    """
    where = method_path(method) if method == base_method(method) else f"{method_path(method)} (variant '{method}')"
    environment = environment_settings(scale, env)
    content = method_mapping(scale, env, method)
    hyperparameters = content.get("hyperparameters", {})
    shell = validated(MethodSettings, {**content, "hyperparameters": {}}, where=where)
    module = algorithm_module(shell.algorithm, where=where)
    checked = validated(
        module.Hyperparameters, hyperparameters, where=f"{where}: hyperparameters (scale {scale}, env {env})"
    )
    return Settings(
        scale=scale, seed=seed, environment=environment, method=shell.model_copy(update={"hyperparameters": checked})
    )


def environment_settings(scale: str, env: str) -> EnvironmentSettings:
    """The checked settings of an environment."""
    content = environment_mapping(scale, env)
    where = f"{config_path('environments', environment_stem(env)[0])} (scale {scale})"
    checked = validated(EnvironmentSettings, content, where=where)
    module_of("world", checked.world, where=where)
    if checked.images is not None:
        module_of("image encoder", checked.images.encoder, where=f"{where}: images.encoder")
    return checked


def canonical(value: Any) -> str:
    """A settings model or mapping as canonical JSON: equal settings give equal text."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
