"""Where a setting comes from: the file and line of each layer that says something of it, or the line of its default."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel

from recollect.settings.layers import Layer
from recollect.settings.loading import DEFAULT


class Origin(NamedTuple):
    value: Any
    where: str


def said_of(path: Sequence[str], layers: Iterable[Layer]) -> list[Origin]:
    """What some layers (lowest first) say of the setting that these keys lead to, the one that counts first."""
    origins: list[Origin] = []
    for layer in reversed(list(layers)):
        value: Any = layer.content
        depth = 0
        while depth < len(path) and isinstance(value, Mapping) and path[depth] in value:
            value = value[path[depth]]
            depth += 1
        if depth == 0 or (depth < len(path) and isinstance(value, Mapping)):
            continue  # the layer says nothing of it
        origins.append(Origin(value, _place(layer, path[:depth])))
        if value == DEFAULT or depth < len(path):
            break  # what lower layers said is taken back
    return origins


def _place(layer: Layer, path: Sequence[str]) -> str:
    """`config/scales/demo.yaml:36`."""
    if layer.file is None:
        return layer.origin
    line = line_of(layer.file, (*layer.place, *path))
    return f"{layer.file}:{line}" if line else str(layer.file)


def line_of(file: Path, path: Sequence[str]) -> int | None:
    """The line of a YAML file on which some nested keys lead to a value; None where they do not."""
    node = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    line = None
    for key in path:
        entry = _entry(node, key)
        if entry is None:
            return line
        line = entry[0].start_mark.line + 1
        node = entry[1]
    return line


def _entry(node: yaml.Node | None, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    """(key, value) in a mapping, or in what it merges with `<<`."""
    if not isinstance(node, yaml.MappingNode):
        return None
    merged: list[yaml.Node] = []
    for name, value in node.value:
        if name.value == str(key):
            return name, value
        if name.value == "<<":
            merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
    for other in merged:
        entry = _entry(other, key)
        if entry is not None:
            return entry
    return None


def default_of(path: Sequence[str], settings: Any) -> str:
    """`default of src/recollect/memory_rl/dqn.py:41`: where the default of a setting stands that no layer names."""
    fields: list[tuple[type[BaseModel], str]] = []
    for key in path:
        if isinstance(settings, BaseModel):
            fields.append((type(settings), key))
            settings = getattr(settings, key)
        else:
            settings = settings[key]
    model, key = fields[-1]
    own_default = model.model_fields[key].get_default(call_default_factory=True)
    if key == path[-1] and own_default != settings and len(fields) > 1:
        model, key = fields[-2]  # whose default sets its parts to other values than their own defaults
    return _line_of_field(model, key)


def description_of(path: Sequence[str], settings: Any) -> str:
    """What the setting that these keys lead to does, in its declaration's words; empty where it has none."""
    said = ""
    for key in path:
        if not isinstance(settings, BaseModel):
            break  # inside a mapping, which has one description
        said = type(settings).model_fields[key].description or ""
        settings = getattr(settings, key)
    return said


def _line_of_field(model: type[BaseModel], name: str) -> str:
    for owner in model.__mro__:
        if name in inspect.get_annotations(owner):
            lines, first = inspect.getsourcelines(owner)
            numbers = [number for number, line in enumerate(lines, first) if re.match(rf"\s+{name}\s*:", line)]
            file = os.path.relpath(inspect.getsourcefile(owner) or "")
            return f"default of {file}:{numbers[0]}" if numbers else f"default of {file}"
    return f"default of {model.__qualname__}"
