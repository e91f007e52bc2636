"""settings: what a run, an environment or a figure is made with, every default included, and where each value is said."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import yaml
from pydantic import BaseModel

from recollect.settings.catalogue import load
from recollect.settings.errors import UserError, nearest_path
from recollect.settings.layers import Layer, environment_layers, figure_layers, method_layers
from recollect.settings.loading import DEFAULT, config_path, validated
from recollect.settings.origins import default_of, description_of, said_of
from recollect.settings.overrides import method_with
from recollect.settings.resolve import environment_settings, figure_settings, resolve, with_options, with_source
from recollect.stages.pairs import named_by

SHORT = ("", "method.hyperparameters.", "method.", "environment.", "figure.")
"""What need not be said of a key: it is looked for behind each of these in turn."""


def settings(
    scale: str,
    env: str | None = None,
    method: str | None = None,
    figure: str | None = None,
    *,
    changes: Sequence[str] = (),
    why: str | None = None,
    as_json: bool = False,
) -> str:
    """Settings as text, or where one of them (or each below a key) comes from.

    Raises:
        UserError: a name or key is unknown, or a setting is wrong.
    """
    if figure is not None and (env is not None or method is not None):
        do = "leave out --figure for those of a run, or --env and --method for those of the figure"
        raise UserError("settings of a figure and of a run are asked for at once", where="recollect settings", do=do)
    if changes and method is None:
        do = "add --env and --method, or leave out --set"
        raise UserError("--set changes settings of a method, and none is named", where="recollect settings", do=do)
    if figure is not None:
        checked: dict[str, Any] = {"figure": checked_figure(scale, figure)}
    elif env is not None:
        method = method_with(method, changes) if method is not None else None
        checked = _run(scale, env, method)
    else:
        do = "add --env NAME (and --method NAME), or --figure NAME"
        raise UserError("nothing is named whose settings are wanted", where="recollect settings", do=do)
    values = _plain(checked)
    if why is not None:
        layers = {
            "environment": environment_layers(scale, env) if env is not None else [],
            "method": [],
            "figure": figure_layers(scale, figure) if figure is not None else [],
        }
        if env is not None and method is not None:
            layers["method"] = list(chain.from_iterable(method_layers(scale, env, method)))
        lines: list[str] = []
        for path in _paths(why, values):
            lines += _origins(path, values, checked, layers)
        return "\n".join(lines)
    if as_json:
        return json.dumps(values, indent=2, ensure_ascii=False)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120).rstrip()


def run_settings(scale: str, env: str, method: str) -> dict[str, Any]:
    """Every setting of a run under `environment` and `method`, as JSON has it."""
    return _plain(_run(scale, env, method))


def _plain(checked: Mapping[str, BaseModel]) -> dict[str, Any]:
    return {name: model.model_dump(mode="json", warnings=False) for name, model in checked.items()}


def _run(scale: str, env: str, method: str | None) -> dict[str, Any]:
    """The checked settings of an environment, with those of its world and source, and of a method in it."""
    if method is None:
        environment = environment_settings(scale, env)
        return {"environment": with_source(scale, with_options(environment))}
    run = resolve(scale, env, method, seed=0)
    return {"environment": with_source(scale, with_options(run.environment)), "method": run.method}


def checked_figure(scale: str, figure: str) -> Any:
    """The settings of a figure, with those of its kind. Raises UserError: one of them is wrong."""
    chosen = figure_settings(scale, figure)
    file = config_path("figures", figure)
    kind = load("figure", chosen.kind, where=f"{file}: kind")
    checked = chosen.model_copy(update={"options": validated(kind.Options, chosen.options, where=f"{file}: options")})
    if hasattr(kind, "check"):
        with named_by(scale, figure):
            kind.check(chosen)
    return checked


def _paths(key: str, values: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The settings that a key names: one, or all below it."""
    known = {".".join(path): path for path in _below((), values)}
    for prefix in SHORT:
        wanted = f"{prefix}{key}"
        paths = [path for name, path in known.items() if name == wanted or name.startswith(f"{wanted}.")]
        if paths:
            return paths
    same_end = [path for name, path in known.items() if name.endswith(f".{key}")]
    if not same_end:
        ends = {name.removeprefix("method.hyperparameters.") for name in known}
        raise UserError(f"there is no setting '{key}'", where=f"--why {key}", do=nearest_path(key, ends, ends))
    return same_end


def _below(path: tuple[str, ...], value: Any) -> Iterator[tuple[str, ...]]:
    """The keys that lead to each value that is no mapping."""
    if not isinstance(value, Mapping) or not value:
        yield path
        return
    for key, inner in value.items():
        yield from _below((*path, key), inner)


def _origins(
    path: tuple[str, ...],
    values: Mapping[str, Any],
    checked: Mapping[str, BaseModel],
    layers: Mapping[str, Sequence[Layer]],
) -> Iterator[str]:
    """A setting with its value, what it is, the file and line of that value, and what the value takes the place of."""
    group, *inside = path
    value: Any = values
    for key in path:
        value = value[key]
    yield f"{'.'.join(path)}: {_short(value)}"
    description = description_of(inside, checked[group])
    if description:
        yield f"  what it is: {description}"
    origins = said_of(inside, layers[group])
    if group == "environment" and inside[0] == "evaluation":  # a variant may be judged in another way
        origins = said_of(inside, layers["method"]) + origins
    if inside == ["name"]:
        yield "  the name that was asked for"
    elif not origins or origins[0].value == DEFAULT:
        yield f"  {default_of(inside, checked[group])}"
    for position, origin in enumerate(origins):
        if origin.value == DEFAULT:
            yield f"  to which {origin.where} goes back"
        elif position == 0:
            yield f"  {origin.where}"
        else:
            yield f"  in place of {_short(origin.value)} of {origin.where}"


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
