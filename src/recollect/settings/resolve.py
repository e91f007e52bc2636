"""scale x environment x method -> one resolved `Settings`.

Order, later wins: the method's `base` chain, the method's file, its entry for this environment, the scale's entry for
the method, the scale's entry for the method in this environment. For an environment: its file, then the scale's entry.
A scale that names another source of histories takes over none of the old one's hyperparameters.

An environment of any size needs no file of its own: `tmaze_passive_50` is `tmaze_passive.yaml`, whose `parameter: length`
says which option the trailing number sets.

`*_mapping` functions merge without checking and without importing an algorithm (Snakemake parses with them);
`resolve` checks everything.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recollect.settings.errors import UserError, nearest
from recollect.settings.loading import config_folder, merge, read_yaml, validated
from recollect.settings.schema import (
    EnvironmentSettings,
    FigureSettings,
    LanguageModelSettings,
    MethodSettings,
    PublishedDataSettings,
    ScaleSettings,
    Settings,
)


def scale_settings(scale: str) -> ScaleSettings:
    """The settings of a scale (`smoke`, `demo`, `paper`, or a file of the user's)."""
    path = config_folder() / "scales" / f"{scale}.yaml"
    return validated(ScaleSettings, read_yaml(path), where=path)


def names(group: str) -> list[str]:
    """All names configured in one group: `scales`, `environments`, `methods` or `figures`."""
    return sorted(path.stem for path in (config_folder() / group).glob("*.yaml"))


def environment_mapping(scale: str, env: str) -> dict[str, Any]:
    """The merged, unchecked settings of an environment."""
    folder = config_folder() / "environments"
    parametrised = re.fullmatch(r"(.+)_(\d+)", env)
    if (folder / f"{env}.yaml").is_file() or parametrised is None:
        stem, content = env, read_yaml(folder / f"{env}.yaml")
    else:
        stem = parametrised.group(1)
        if not (folder / f"{stem}.yaml").is_file():
            raise UserError(
                f"no environment named '{env}'",
                where=folder,
                do=f"{nearest(env, names('environments'))} (or add a file)",
            )
        content = read_yaml(folder / f"{stem}.yaml")
        if "parameter" not in content:
            raise UserError(
                f"environment '{stem}' takes no size", where=folder / f"{stem}.yaml", do=f"write '{stem}', not '{env}'"
            )
        content = merge(content, {"options": {content["parameter"]: int(parametrised.group(2))}})
    overrides = scale_settings(scale).environments
    for layer in (overrides.get(stem, {}), overrides.get(env, {}) if env != stem else {}):
        content = merge(_without_old_source(content, layer), layer)
    parameter = content.pop("parameter", None)
    if parameter is not None and isinstance(content.get("title"), str):
        content["title"] = content["title"].replace("{" + parameter + "}", str(content["options"].get(parameter, "")))
    return merge(content, {"name": env})


def _without_old_source(content: Mapping[str, Any], layer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings without their source's hyperparameters, where a layer names another source."""
    old, new = content.get("source"), layer.get("source")
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return content
    if new.get("algorithm", old.get("algorithm")) == old.get("algorithm"):
        return content
    return {**content, "source": {key: value for key, value in old.items() if key != "hyperparameters"}}


def method_mapping(scale: str, env: str, method: str) -> dict[str, Any]:
    """The merged, unchecked settings of a method in one environment."""
    layers: list[Mapping[str, Any]] = []
    chain: list[str] = []
    name: str | None = method
    while name is not None:
        if name in chain:
            raise UserError(
                f"the `base` of method '{method}' leads back to '{name}'",
                where=config_folder() / "methods" / f"{name}.yaml",
                do="break the circle",
            )
        chain.append(name)
        name = read_yaml(config_folder() / "methods" / f"{name}.yaml").get("base")
    overrides = scale_settings(scale).methods
    stem = re.sub(r"_\d+$", "", env)
    for link in reversed(chain):  # the base first
        own = read_yaml(config_folder() / "methods" / f"{link}.yaml")
        for layer in (own, overrides.get(link, {})):
            here = layer.get("environments") or {}
            if not isinstance(here, Mapping) or not all(isinstance(v, Mapping | None) for v in here.values()):
                raise UserError(
                    f"`environments` must map names of environments to settings, not be {here!r}",
                    where=f"method '{link}' (scale {scale})",
                    do="write `environments: {<name>: {hyperparameters: ...}}`",
                )
            layers += [layer, here.get(stem) or {}, (here.get(env) or {}) if env != stem else {}]
    content = merge({}, *layers)
    content.pop("environments", None)
    content.pop("base", None)
    return merge(content, {"name": method})


def figure_settings(scale: str, figure: str) -> FigureSettings:
    """The checked settings of a figure at a scale; `seeds` default to the scale's."""
    path = config_folder() / "figures" / f"{figure}.yaml"
    at_scale = scale_settings(scale)
    content = merge(
        {"seeds": list(at_scale.seeds)}, read_yaml(path), at_scale.figures.get(figure, {}), {"name": figure}
    )
    return validated(FigureSettings, content, where=path)


def figure_reads(scale: str, figure: str) -> str:
    """What a figure is drawn from: `scores`, or `traces` where its kind's file has the line ``READS = "traces"``."""
    traced = _modules("figures", "\ndef draw(", '\nREADS = "traces"\n')
    return "traces" if figure_settings(scale, figure).kind in traced else "scores"


def language_model(name: str) -> LanguageModelSettings:
    """Where the language model of this name comes from."""
    path = config_folder() / "language_models.yaml"
    content = read_yaml(path)
    if name not in content:
        raise UserError(f"no language model named '{name}'", where=path, do=nearest(name, content))
    return validated(LanguageModelSettings, content[name], where=f"{path}: {name}")


def published_data(name: str) -> PublishedDataSettings:
    """Where the published data set of this name comes from."""
    path = config_folder() / "published_data.yaml"
    content = read_yaml(path)
    if name not in content:
        raise UserError(f"no published data set named '{name}'", where=path, do=nearest(name, content))
    return validated(PublishedDataSettings, content[name], where=f"{path}: {name}")


def algorithm_module(algorithm: str, *, where: object, does: str = "train") -> Any:
    """The module of an algorithm; importing it is what makes full checking slow (torch).

    Args:
        algorithm: its file in recollect.methods.
        where: what to name in the error.
        does: `train` (methods) or `generate` (sources of histories): the function that it must have.
    """
    known = algorithms(does)
    if algorithm not in known:
        what = f"no algorithm named '{algorithm}' can {does}"
        raise UserError(what, where=where, do=nearest(algorithm, known))
    return importlib.import_module(f"recollect.methods.{algorithm}")


def algorithms(does: str) -> list[str]:
    """The algorithms that have a function `does`."""
    return _modules("methods", "\nclass Hyperparameters(", f"\ndef {does}(")


def _modules(package: str, *definitions: str) -> list[str]:
    """Modules of a package that define all of this, found by reading its files (none is imported)."""
    found = importlib.util.find_spec(f"recollect.{package}")
    folders = (found.submodule_search_locations or []) if found else []
    texts = {path.stem: path.read_text(encoding="utf-8") for folder in folders for path in Path(folder).glob("*.py")}
    return sorted(name for name, text in texts.items() if all(definition in text for definition in definitions))


def resolve(scale: str, env: str, method: str, seed: int) -> Settings:
    """The checked settings of one run.

    Raises:
        UserError: something is unknown, missing or of the wrong type; the message names the file, the key and the cure.
    """
    method_path = config_folder() / "methods" / f"{method}.yaml"
    environment = environment_settings(scale, env)
    content = method_mapping(scale, env, method)
    hyperparameters = content.pop("hyperparameters", {})
    shell = validated(MethodSettings, merge(content, {"hyperparameters": {}}), where=method_path)
    module = algorithm_module(shell.algorithm, where=method_path)
    checked = validated(
        module.Hyperparameters, hyperparameters, where=f"{method_path}: hyperparameters (scale {scale}, env {env})"
    )
    return Settings(
        scale=scale, seed=seed, environment=environment, method=shell.model_copy(update={"hyperparameters": checked})
    )


def environment_settings(scale: str, env: str) -> EnvironmentSettings:
    """The checked settings of an environment."""
    content = environment_mapping(scale, env)
    folder = config_folder() / "environments"
    own = (folder / f"{env}.yaml").is_file()
    where = f"{folder / (env if own else re.sub(r'_[0-9]+$', '', env))}.yaml (scale {scale})"
    checked = validated(EnvironmentSettings, content, where=where)
    worlds = _modules("environments", "\nWorld = ", "\ndef tasks(split")
    if checked.world not in worlds:
        raise UserError(f"no world named '{checked.world}'", where=where, do=nearest(checked.world, worlds))
    if checked.images is not None:
        encoders = _modules("nets.image_encoders", "\nclass Encoder(")
        if checked.images.encoder not in encoders:
            what = f"no image encoder named '{checked.images.encoder}'"
            raise UserError(what, where=f"{where}: images.encoder", do=nearest(checked.images.encoder, encoders))
    return checked


def canonical(value: Any) -> str:
    """A settings model or mapping as canonical JSON: equal settings give equal text."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
