"""Reads config files, lays them over each other, and checks the result against a settings model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from recollect.settings.catalogue import own_packages, roots
from recollect.settings.errors import UserError, nearest, nearest_path
from recollect.settings.still import remembered
from recollect.settings.strict_yaml import parsed

Model = TypeVar("Model", bound=BaseModel)

#: A name is a part of paths, so it must not lead out of a folder: no `/`, no `..`.
NAME = re.compile(r"[\w-]+(\.[\w-]+)*")
#: The name of a size of an environment; 050 is no other name of 50.
SIZED = re.compile(r"(.+)_(0|[1-9][0-9]*)")
#: As a value: what the layers below said is taken back, and the default in Python holds again.
DEFAULT = "default"
#: Of the one file of lists that has more than one.
SECTIONS = ("templates", "vocabularies")
#: Groups in which no name has a dot. Behind that of a method stands a variant, and paths of figures and scales have none.
UNDOTTED = ("scales", "methods", "figures")


def config_folder() -> Path:
    """The folder that holds the configuration: ``$RECOLLECT_CONFIG`` or ``config`` in the working directory."""
    return Path(os.environ.get("RECOLLECT_CONFIG", "config"))


def config_folders() -> list[Path]:
    """All folders that hold configuration, in the order in which they are searched: ours, `mine/config`, those of plug-ins."""
    return [config_folder(), *(place / "config" for place in own_packages().values())]


@remembered
def config_path(group: str, name: str) -> Path:
    """The file of a name in a group, e.g. `scales`; where no folder has it, the path that it would have in ours."""
    if not NAME.fullmatch(name):
        what = f"'{name}' cannot be a name in {group}: a name is letters, digits, `_`, `-` and dots between them"
        raise UserError(what, where=config_folder() / group, do=nearest(name, names(group)))
    paths = [folder / group / f"{name}.yaml" for folder in config_folders()]
    there = [path for path in paths if path.is_file()]
    sized = sized_file(name) if there and group == "environments" else None
    if sized is not None and sized.parent != there[0].parent:
        there.insert(0, sized)  # else it would take the place of ours in every figure
    if len(there) > 1:
        what = f"there are two files for '{name}' in {group}"
        raise UserError(what, where=f"{there[0]} and {there[1]}", do="give one of them another name")
    return _rightly_named(there[0]) if there else paths[0]


def sized_file(name: str) -> Path | None:
    """The file of which an environment's name is a size: `tmaze_passive.yaml` of `tmaze_passive_5`. None: of none."""
    numbered = SIZED.fullmatch(name)
    path = config_path("environments", numbered.group(1)) if numbered else None
    return path if path is not None and path.is_file() and "parameter" in read_yaml(path) else None


@remembered
def names(group: str) -> list[str]:
    """All names configured in one group: `scales`, `environments`, `methods` or `figures`."""
    return sorted(
        {_rightly_named(path).stem for folder in config_folders() for path in (folder / group).glob("*.yaml")}
    )


def _rightly_named(path: Path) -> Path:
    """A file of the configuration. Raises UserError: its name has a dot where none may be."""
    if "." in path.stem and path.parent.name in UNDOTTED:
        what = f"'{path.stem}' cannot be a name in {path.parent.name}: a dot may stand in names of environments only"
        raise UserError(what, where=path, do="rename the file")
    return path


def plugin_that_has(group: str, name: str) -> str | None:
    """What installs the plug-in of this repository that has a name, or the name before its `_`; None: none has."""
    folder = roots()["recollect"].parent / "plugins"
    for path in sorted(folder.glob(f"*/*/config/{group}/*.yaml")):
        if name == path.stem or name.startswith(f"{path.stem}_"):
            return f"it comes with a plug-in: run `pip install ./{path.parents[3].relative_to(folder.parent)}`"
    return None


@cache
def _parse(path: Path, stamp: tuple[int, int]) -> dict[str, Any]:
    content = parsed(path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError("the file must hold a mapping of keys to values", where=path, do="correct the file")
    return content


@remembered
def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises UserError: the file is missing, is not YAML or is not a mapping."""
    if not path.is_file():
        raise _missing(path)
    return _parse(path, stamp(path))


def stamp(path: Path) -> tuple[int, int]:
    """What tells whether a file changed since it was read. Raises UserError: there is no such file."""
    try:
        status = path.stat()
    except PermissionError:
        raise
    except OSError as error:  # not there, or a link to itself
        raise _missing(path) from error
    return status.st_mtime_ns, status.st_size


def nothing_here() -> UserError:
    """For where no file of the configuration is."""
    what = "there is no configuration here, so nothing has a name"
    return UserError(
        what, where=config_folder().absolute(), do="run it in a clone, or name its folder: RECOLLECT_CONFIG"
    )


def _missing(path: Path) -> UserError:
    if not names("scales"):
        return nothing_here()
    group = path.parent.name
    do = plugin_that_has(group, path.stem) or f"{nearest(path.stem, names(group))} (or add the file)"
    return UserError(f"no configuration named '{path.stem}'", where=path, do=do)


@remembered
def published_groups(folder: Path | None = None) -> dict[str, tuple[Mapping[str, Any], Path]]:
    """Published figures and tables, unchecked, by name, each with its file (``config/figures/references/*.yaml``).

    Raises:
        UserError: two have one name, or one is no mapping.
    """
    found: dict[str, tuple[Mapping[str, Any], Path]] = {}
    for path in sorted((folder or config_folder() / "figures" / "references").glob("*.yaml")):
        for name, content in read_yaml(path).items():
            if name in found:
                raise UserError(f"two groups are named '{name}'", where=path, do="rename one of them")
            if not isinstance(content, Mapping):
                raise UserError(f"'{name}' is not a mapping", where=path, do="correct the file")
            found[name] = content, path
    return found


def entries_of(file: str, section: str = "") -> dict[str, tuple[Any, Path]]:
    """What the files of one name list, e.g. `language_models`: name -> what is said of it, and in which file."""
    entries: dict[str, tuple[Any, Path]] = {}
    for path in (folder / f"{file}.yaml" for folder in config_folders()):
        content = read_yaml(path) if path.is_file() else {}
        for name in set(content) - set(SECTIONS) if section else ():
            what = f"unknown key '{name}'"
            raise UserError(what, where=path, do=nearest(name, SECTIONS))
        for name, said in (content.get(section) or {} if section else content).items():
            if name in entries:
                where = f"{entries[name][1]} and {path}"
                raise UserError(f"there are two entries '{name}' in {file}", where=where, do="give one another name")
            entries[name] = said, path
    return entries


def mapping_in(content: Mapping[str, Any], key: str, where: object) -> Mapping[str, Any]:
    """What stands under a key of unchecked settings; empty where nothing does. Raises UserError: it is no mapping."""
    found = content.get(key)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        what = f"`{key}` must map names to settings, not be {found!r}"
        raise UserError(what, where=where, do=f"write `{key}: {{<name>: ...}}`")
    return found


def entries_in(content: Mapping[str, Any], key: str, where: object) -> Mapping[str, Any]:
    """The same where each name has a mapping of its own, or nothing. Raises UserError: one has something else."""
    entries = mapping_in(content, key, where)
    for name in entries:
        mapping_in(entries, name, f"{where}: {key}")
    return entries


def name_in(content: Mapping[str, Any], key: str, where: object) -> str | None:
    """The name under a key of unchecked settings; None where there is none. Raises UserError: something else is there."""
    found = content.get(key)
    if not isinstance(found, str | None):
        raise UserError(f"`{key}` must be a name, not {found!r}", where=where, do=f"write `{key}: <name>`")
    return found


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Lay mappings over each other, the last on top.

    Dicts merge (files hold no other mapping), anything else replaces, and the word `default` takes back what lies below.
    """
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if value == DEFAULT:
                result.pop(key, None)
            elif isinstance(value, dict):  # to ask a text whether it is a Mapping takes many times as long
                below = result.get(key)
                result[key] = merge(below if isinstance(below, dict) else {}, value)
            else:
                result[key] = value
    return result


def overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two mappings of one level over each other. The word `default` stays: it takes back what lies below both."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            value = overlaid(old, value)
        result[key] = value
    return result


def validated(
    model: type[Model],
    values: Mapping[str, Any],
    *,
    where: object,
    noun: str = "key",
    beside: Mapping[str, type[BaseModel]] | None = None,
) -> Model:
    """Build a settings model from values of a file; every problem is one `UserError` with key and nearest known one.

    `where`, `noun` (what a field is called) and `beside` are for that error: models of other keys, one of which may be meant.
    """
    if not isinstance(values, Mapping):
        what = f"there must be a mapping of {noun}s to values here, not {values!r}"
        raise UserError(what, where=where, do=f"known {noun}s: {', '.join(model.model_fields)}")
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        problems, hints = [], []
        found = error.errors()
        for item in found:
            if item["type"] == "too_short" and any(_is_inside(other["loc"], item["loc"]) for other in found):
                continue  # what is wrong inside was not counted
            place = ".".join(_keys(item["loc"], values, missing=item["type"] == "missing"))
            if item["type"] == "extra_forbidden":
                problems.append(f"unknown {noun} '{place}'")
                typed = _typed(place, item.get("input"))
                others = [path for key, other in (beside or {}).items() for path in _fields(other, f"{key}.")]
                level = _model_at(model, item["loc"][:-1]).model_fields
                hints.append(nearest_path(typed, [*_fields(model), *others], level))
            elif item["type"] == "missing":
                problems.append(f"missing {noun} '{place}'")
                hints.append(f"add '{place}'")
            elif item["type"] == "tuple_type":
                problems.append(f"'{place}' is {item.get('input')!r}, and must be a list")
                given = item.get("input")
                one = given if isinstance(given, str | int | float) and not isinstance(given, bool) else "..."
                hints.append(f"write `{place}: [{one}]`")
            else:
                message = item["msg"].removeprefix("Value error, ")
                problems.append(f"'{place}' is {item.get('input')!r}: {message}" if place else message)
                hints.append(f"correct '{place}'" if place else f"correct these {noun}s")
        raise UserError("; ".join(problems), where=where, do="; ".join(dict.fromkeys(hints))) from error


def _keys(place: Iterable[Any], values: Any, *, missing: bool) -> list[str]:
    """The keys of a file that lead to a place, without what pydantic calls the choices of a union; the last may be `missing`."""
    *above, last = place or ("",)
    found: list[str] = []
    for key in (*above, last):
        listed = isinstance(values, list | tuple) and isinstance(key, int) and key < len(values)
        if listed or (isinstance(values, Mapping) and key in values):
            values = values[key]
            found.append(str(key))
    return [*found, str(last)] if missing else found


def _is_inside(place: tuple[Any, ...], outer: tuple[Any, ...]) -> bool:
    return len(place) > len(outer) and place[: len(outer)] == outer


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The settings models that a field's annotation names: of `Network | None` it is `Network`."""
    candidates = [annotation, *getattr(annotation, "__args__", ())]
    return [item for item in candidates if isinstance(item, type) and issubclass(item, BaseModel)]


def _model_at(model: type[BaseModel], place: Iterable[Any]) -> type[BaseModel]:
    for key in place:
        field = model.model_fields.get(str(key))
        models = models_in(field.annotation) if field is not None else []
        if not models:
            return model
        model = models[0]
    return model


def _typed(place: str, value: Any) -> str:
    """An unknown key with those below it, as long as there is one: `optimisaton.learning_rate`."""
    while isinstance(value, Mapping) and len(value) == 1:
        [(key, value)] = value.items()
        place = f"{place}.{key}"
    return place


def _fields(model: type[BaseModel], before: str = "") -> Iterator[str]:
    """Every key of a settings model, at any depth."""
    for name, field in model.model_fields.items():
        yield f"{before}{name}"
        for inner in models_in(field.annotation):
            yield from _fields(inner, f"{before}{name}.")
