"""What says something about the settings of an environment, a method or a figure, in the order in which it counts.

Of an environment, later wins: its file, the size in its name, the scale's entry for the file, the scale's entry for the
very name. A scale that names another source of histories takes over none of the old one's hyperparameters.

Of a method, later wins, beginning with the last of its `base` chain:

1. the file of the base; in it the entry for this environment's file, then that for the environment's very name;
2. the scale's entry for the base, with the same two entries in it;
3. the same two for each method down to the method itself, so that its file wins over what a scale says of its base;
4. of a variant (`radt.task_weight_0`): what each of these layers says under this name in `variants:`, in the same order,
   after what they say of the variant that is its own `base:`;
5. what the name says in so many words, `radt.learning_rate=0.001` (see `overrides`).

A scale that `extends` another says what the other says, then its own: where an entry of it is named above, both count, the
extended scale's first. So its own `seeds` hold for all figures but those for which it names others itself. An environment of any
size needs no file: `tmaze_passive_50` is `tmaze_passive.yaml`, whose `parameter: length` says what the number (or word) sets.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from recollect.settings.errors import UserError, nearest
from recollect.settings.loading import (
    DEFAULT,
    SIZED,
    config_path,
    entries_in,
    mapping_in,
    merge,
    name_in,
    names,
    overlaid,
    plugin_that_has,
    read_yaml,
    stamp,
    validated,
)
from recollect.settings.overrides import PARTS, check_spelling, taken_apart
from recollect.settings.schema import ScaleSettings
from recollect.settings.still import remembered


class Layer(NamedTuple):
    """Some settings, and where they stand."""

    content: Mapping[str, Any]
    file: Path | None  # None: in no file, see `origin`
    place: tuple[str, ...] = ()  # the keys that lead to the content in that file
    origin: str = ""

    @property
    def where(self) -> str:
        return f"{self.file}: {'.'.join(self.place)}" if self.place else str(self.file)

    def inner(self, *keys: str) -> Layer:
        """What stands in this layer under some keys; empty where nothing does."""
        content: Any = self.content
        for key in keys:
            content = content.get(key) or {}
        return self._replace(content=content, place=(*self.place, *keys))

    def entries(self, key: str) -> Mapping[str, Any]:
        """What it says by names under a key. Raises UserError: that does not map names to settings."""
        return entries_in(self.content, key, self.where)


class MethodLayers(NamedTuple):
    """The layers of a method, of its variant and of the changes in its name, from the lowest to the highest."""

    own: list[Layer]
    variant: list[Layer]
    changes: list[Layer]


OF_ENVIRONMENTS = ("options", "training_options", "source", "images", "evaluation")  # sections that map names to values


def _none_hidden(layers: list[Layer], sections: Iterable[str]) -> list[Layer]:
    """The layers themselves. Raises UserError: a number or a list stands where settings belong, and a higher layer hides it."""
    for key in sections:
        for number, layer in enumerate(layers):
            said = layer.content.get(key)
            if said is None or said == DEFAULT or isinstance(said, Mapping):
                continue
            if any(isinstance(higher.content.get(key), Mapping) for higher in layers[number + 1 :]):
                do = f"write `{key}: {{<name>: <value>}}`"
                raise UserError(f"'{key}' is {said!r}, not settings", where=layer.where, do=do)
    return layers


def merged(layers: Iterable[Layer]) -> dict[str, Any]:
    return merge(*(layer.content for layer in layers))


@remembered
def scale_settings(scale: str) -> ScaleSettings:
    """The checked settings of a scale, in which every name that it overrides is known."""
    files = _scale_files(scale)
    return _scale_settings(tuple((name, path, stamp(path)) for name, path in files.items()))


@cache
def _scale_settings(files: tuple[tuple[str, Path, tuple[int, int]], ...]) -> ScaleSettings:
    content: dict[str, Any] = {"published": files[0][0]} if len(files) > 1 else {}
    for _, path, _ in files:
        content = {key: value for key, value in overlaid(content, read_yaml(path)).items() if value != DEFAULT}
        settings = validated(ScaleSettings, content, where=path)
        _check_overridden(settings, path)
    return settings


def _check_overridden(settings: ScaleSettings, path: Path) -> None:
    named = {"methods": settings.methods, "figures": [*settings.figures, *itertools.chain(*settings.sets.values())]}
    for group, listed in named.items():
        for name in listed:
            if not config_path(group, name).is_file():
                what = f"the scale names '{name}', which is not among the {group}"
                raise UserError(what, where=path, do=nearest(name, names(group)))
    for name in settings.ensembles:
        base = base_method(name)
        listed = _variants(settings, base, path) if base in names("methods") else names("methods")
        if name not in listed:
            what = f"the scale's `ensembles` name '{name}', which is not among the methods and their variants"
            raise UserError(what, where=path, do=nearest(name, listed))
    check_environment_names(Layer({"environments": settings.environments}, path))
    for name, said in settings.methods.items():
        check_environment_names(Layer(said, path, ("methods", name)))


def _variants(settings: ScaleSettings, method: str, path: Path) -> list[str]:
    """A method, and those variants of it that its files or the scale in this file list."""
    chain = _base_chain(method)
    layers = [*map(method_file, chain), *(Layer(settings.methods.get(name) or {}, path) for name in chain)]
    return [method, *(f"{method}.{name}" for layer in layers for name in layer.entries("variants"))]


@remembered
def _scale_files(scale: str) -> dict[str, Path]:
    """Name and file of a scale, after those of the scales that it extends."""
    found: dict[str, Path] = {}
    name: str | None = scale
    while name is not None:
        path = config_path("scales", name)
        if name in found:
            what = f"the `extends` of scale '{scale}' leads back to '{name}'"
            raise UserError(what, where=path, do="break the circle")
        found[name] = path
        name = name_in(read_yaml(path), "extends", path)
    return dict(reversed(found.items()))


def extended_scales(scale: str) -> list[str]:
    """A scale, after the scales that it extends."""
    return list(_scale_files(scale))


def _at_scale(scale: str, group: str, name: str) -> list[Layer]:
    """What a scale, and before it those that it extends, says of a name in one of its groups."""
    scale_settings(scale)  # checked
    found: list[Layer] = []
    for path in _scale_files(scale).values():
        entries = read_yaml(path).get(group, {})
        if entries == DEFAULT:
            found.clear()
        elif name in entries:
            found.append(Layer(entries[name], path, (group, name)))
    return found


# --------------------------------------------------------------------------------------------------- environments


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
    for underscore in re.finditer("_", env):
        stem, rest = env[: underscore.start()], env[underscore.end() :]
        path = config_path("environments", stem)
        if rest and path.is_file():
            content = read_yaml(path)
            if isinstance(mapping_in(content, "options", path).get(name_in(content, "parameter", path) or ""), str):
                return stem, rest
    numbered = SIZED.fullmatch(env)
    return (env, None) if numbered is None else (numbered.group(1), int(numbered.group(2)))


def environment_file(env: str) -> tuple[Path, str, int | str | None]:
    """The file of an environment, and what `environment_stem` says. Raises UserError: there is no such environment."""
    stem, value = environment_stem(env)
    path = config_path("environments", stem)
    if not path.is_file() and names("environments") and not plugin_that_has("environments", stem):
        do = f"{nearest(env, _named_like(env))} (or add the file)"
        raise UserError(f"no configuration named '{env}'", where=path, do=do)
    if value is not None and "parameter" not in read_yaml(path):
        raise UserError(f"environment '{stem}' takes no size", where=path, do=f"write '{stem}', not '{env}'")
    return path, stem, value


def _named_like(env: str) -> list[str]:
    """All names of environments, also those that end in a size or word, with that of a name: `tmaze_passive_50`."""
    known = [*names("environments"), *([f"gym.{env}"] if re.search(r"-v\d+$", env) else [])]
    words = [str(int(word)) if word.isdecimal() else word for word in env.split("_")]
    for name in names("environments"):
        rest = words[name.count("_") + 1 :]
        content = read_yaml(config_path("environments", name))
        whole = not any(re.fullmatch(r"-\d+|-?\d+\.\d+", word) for word in rest)  # which is no size
        if rest and whole and "parameter" in content and content.get("world") != "gymnasium":
            known = [*known, "_".join((name, *rest))]
    return [name for name in known if name != env]


def check_environment_names(layer: Layer) -> None:
    """Refuse names of environments that there are not, in the `environments` of a layer and in those of its variants.

    One of a plug-in of this repository may be named also where that is not installed.
    """
    for name in layer.entries("environments"):
        try:
            read_yaml(environment_file(str(name))[0])
        except UserError as error:
            if plugin_that_has("environments", str(name)):
                continue
            where = layer.inner("environments").where
            raise UserError(f"'{name}' is overridden: {error.what}", where=where, do=error.do) from error
    for variant in layer.entries("variants"):
        check_environment_names(layer.inner("variants", variant))


def gymnasium_id(words: str) -> str:
    """The id that `gymnasium.make` takes, of an environment's name behind its first dot.

    `CartPole-v1` is itself, `mygym.Bandit-v0` is `mygym/Bandit-v0`, and `ale_py.ALE.Pong-v5` is `ale_py:ALE/Pong-v5`.
    """
    parts = words.split(".", 2)
    return f"{parts[0]}:{parts[1]}/{parts[2]}" if len(parts) == 3 else "/".join(parts)


def environment_layers(scale: str, env: str) -> list[Layer]:
    """The layers of an environment, from the lowest to the highest."""
    path, stem, value = environment_file(env)
    layers = [Layer(read_yaml(path), path)]
    if value is not None:
        named = {name_in(layers[0].content, "parameter", path): value}
        layers.append(Layer({"options": named}, None, origin=f"the name '{env}'"))
    for name in dict.fromkeys((stem, env)):
        for layer in _at_scale(scale, "environments", name):
            if _names_another_source(merged(layers), layer.content):
                layers.append(layer._replace(content={"source": {"hyperparameters": DEFAULT}}))
            layers.append(layer)
    return _none_hidden(layers, OF_ENVIRONMENTS)


def _names_another_source(below: Mapping[str, Any], layer: Mapping[str, Any]) -> bool:
    old, new = below.get("source"), layer.get("source")
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return False
    return bool(new.get("algorithm", old.get("algorithm")) != old.get("algorithm"))


# -------------------------------------------------------------------------------------------------------- methods


def method_path(method: str) -> Path:
    """The file of a method, or of the method that it is a variant of."""
    return config_path("methods", base_method(method) or method)


def base_method(method: str) -> str:
    """The method that a variant is one of; any other method itself."""
    return method.partition(".")[0]


def method_layers(scale: str, env: str, method: str) -> MethodLayers:
    """The layers of a method, or of a variant of one, in one environment."""
    base, _, variant = method.partition(".")
    own = _own_layers(scale, env, base)
    if not variant:
        return MethodLayers(_none_hidden(own, PARTS), [], [])
    check_spelling(method)
    stem, _ = environment_stem(env)
    listed, changed = taken_apart(variant)
    of_variant: list[Layer] = []
    for layer in _variant_layers(own, base, listed) if listed else ():
        of_variant += _with_environment(layer, stem, env)
    changes = [Layer(changed, None, origin=f"--set, which made the name '{method}'")] if changed else []
    _none_hidden([*own, *of_variant, *changes], PARTS)
    return MethodLayers(own, of_variant, changes)


@remembered
def _own_layers(scale: str, env: str, method: str) -> list[Layer]:
    """The layers of a method and of its bases in one environment, from the lowest to the highest."""
    stem, _ = environment_stem(env)
    layers: list[Layer] = []
    for name in reversed(_base_chain(method)):
        layers += _with_environment(method_file(name), stem, env)
        for layer in _at_scale(scale, "methods", name):
            layers += _with_environment(layer, stem, env)
    return layers


def method_file(method: str) -> Layer:
    """What the file of a method says. Raises UserError: it names an environment that there is not."""
    path = method_path(method)
    _check_method_file(path, stamp(path))
    return Layer(read_yaml(path), path)


@cache
def _check_method_file(path: Path, stamp: tuple[int, int]) -> None:
    check_environment_names(Layer(read_yaml(path), path))


def _base_chain(method: str) -> list[str]:
    chain: list[str] = []
    name: str | None = method
    while name is not None:
        if name in chain:
            what = f"the `base` of method '{method}' leads back to '{name}'"
            raise UserError(what, where=method_path(name), do="break the circle")
        chain.append(name)
        name = name_in(read_yaml(method_path(name)), "base", method_path(name))
    return chain


def without_names(content: Mapping[str, Any]) -> dict[str, Any]:
    """A method's own settings in a layer: without its base, and without what it says of environments and variants."""
    return {key: value for key, value in content.items() if key not in ("environments", "base", "variants")}


def _with_environment(layer: Layer, stem: str, env: str) -> list[Layer]:
    """A layer of a method, then its entries for an environment's file and for the environment's very name."""
    entries = layer.content.get("environments") or {}  # they were checked with the whole file
    there = [name for name in dict.fromkeys((stem, env)) if name in entries]
    return [layer, *(layer.inner("environments", name) for name in there)]


def _variant_layers(own: Iterable[Layer], base: str, variant: str, above: tuple[str, ...] = ()) -> list[Layer]:
    """What the layers of a method say of one of its variants, after what they say of the variant that is its base."""
    listed = [(layer, name) for layer in own for name in layer.entries("variants")]
    layers = [layer.inner("variants", name) for layer, name in listed if str(name) == variant]
    where = method_path(base)
    if not layers:
        do = nearest(variant, {str(name) for _, name in listed})
        raise UserError(f"method '{base}' has no variant named '{variant}'", where=where, do=do)
    if variant in above:
        what = f"the `base` of the variant '{above[0]}' leads back to '{variant}'"
        raise UserError(what, where=where, do="break the circle")
    below = merged(layers).get("base")
    return layers if below is None else [*_variant_layers(own, base, str(below), (*above, variant)), *layers]


def variant_base(scale: str, env: str, method: str) -> str:
    """What a variant is a variant of: its method, or the variant of it that its `base:` names."""
    below = merged(method_layers(scale, env, method).variant).get("base")
    return base_method(method) if below is None else f"{base_method(method)}.{below}"


# -------------------------------------------------------------------------------------------------------- figures


def figure_layers(scale: str, figure: str) -> list[Layer]:
    """The layers of a figure, from the lowest to the highest; its seeds default to the scale's.

    Where a scale extends another and names seeds, these win over those that the figure has at the other.
    """
    path = config_path("figures", figure)
    of_scale = scale_settings(scale)
    seeds_of = {file: read_yaml(file).get("seeds") for file in _scale_files(scale).values()}
    layers: list[Layer] = []
    for place, (file, seeds) in enumerate(seeds_of.items()):
        if seeds is not None:
            layers.append(Layer({"seeds": seeds}, file))
        if place == 0:
            layers.append(Layer(read_yaml(path), path))
        layers += [layer for layer in _at_scale(scale, "figures", figure) if layer.file == file]
    said: Any = merged(layers).get("seeds")
    whole = isinstance(said, list) and all(isinstance(seed, int) for seed in said)  # others are refused later
    if of_scale.first_seed and whole:
        shifted = [of_scale.first_seed + seed for seed in said]
        layers.append(Layer({"seeds": shifted}, None, origin=f"`first_seed` of the scale '{scale}'"))
    return layers
