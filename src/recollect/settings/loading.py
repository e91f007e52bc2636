"""Reads config files and merges them: mappings merge, lists replace, `null` removes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from recollect.settings.errors import UserError, nearest
from recollect.settings.still import remembered

Model = TypeVar("Model", bound=BaseModel)


def config_folder() -> Path:
    """The folder that holds the configuration: ``$RECOLLECT_CONFIG`` or ``config`` in the working directory."""
    return Path(os.environ.get("RECOLLECT_CONFIG", "config"))


@cache
def _parse(path: Path, stamp: tuple[int, int]) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"not valid YAML: {' '.join(str(error).split())}", where=path, do="correct the file") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError("the file must hold a mapping of keys to values", where=path, do="correct the file")
    return content


@remembered
def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        UserError: the file is missing, is not YAML or is not a mapping.
    """
    if not path.is_file():
        known = [file.stem for file in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
        do = nearest(path.stem, known)
        raise UserError(f"no configuration named '{path.stem}'", where=path, do=f"{do} (or add the file)")
    status = path.stat()
    return _parse(path, (status.st_mtime_ns, status.st_size))


def merge(base: Mapping[str, Any], *overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Lay overrides over a base: mappings merge, lists and scalars replace, ``None`` removes the key."""
    result: dict[str, Any] = {key: merge(value) if isinstance(value, Mapping) else value for key, value in base.items()}
    for override in overrides:
        for key, value in override.items():
            if value is None:
                result.pop(key, None)
            elif isinstance(value, Mapping):
                below = result.get(key)
                result[key] = merge(below if isinstance(below, Mapping) else {}, value)
            else:
                result[key] = value
    return result


def known_keys(model: type[BaseModel]) -> list[str]:
    """The field names of a settings model."""
    return list(model.model_fields)


def validated(model: type[Model], values: Mapping[str, Any], *, where: object) -> Model:
    """Build a settings model; every problem becomes one `UserError` that names the key and the nearest known one."""
    if not isinstance(values, Mapping):
        what = f"there must be a mapping of keys to values here, not {values!r}"
        raise UserError(what, where=where, do=f"known keys: {', '.join(known_keys(model))}")
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        problems, hints = [], []
        for item in error.errors():
            place = ".".join(str(part) for part in item["loc"])
            if item["type"] == "extra_forbidden":
                problems.append(f"unknown key '{place}'")
                hints.append(nearest(str(item["loc"][-1]), known_keys(_model_at(model, item["loc"][:-1]))))
            elif item["type"] == "missing":
                problems.append(f"missing key '{place}'")
                hints.append(f"add '{place}'")
            else:
                problems.append(f"'{place}' is {item.get('input')!r}: {item['msg']}")
                hints.append(f"correct '{place}'")
        raise UserError("; ".join(problems), where=where, do="; ".join(dict.fromkeys(hints))) from error


def _model_at(model: type[BaseModel], place: Iterable[Any]) -> type[BaseModel]:
    """The nested settings model that a location of a validation error lies in."""
    for part in place:
        field = model.model_fields.get(str(part))
        if field is None:
            return model
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
        models = [item for item in candidates if isinstance(item, type) and issubclass(item, BaseModel)]
        if not models:
            return model
        model = models[0]
    return model
