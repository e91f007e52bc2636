"""What models of settings declare, in words: for the reference, and for `recollect list`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType, NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from recollect.settings.loading import models_in

Entry = tuple[str, str, str, str]
"""A setting: its key, the values that it takes, its default, what it does."""

READ = {
    "scores": "tables of scores",
    "training": "tables of training",
    "traces": "traces of steps",
    "speeds": "tables of speeds",
}
"""What a kind of figure reads, by its `READS`, in words"""


def summary(module: ModuleType) -> str:
    """The first line that a module says of itself; empty where it says nothing."""
    return next(iter((module.__doc__ or "").strip().splitlines()), "")


def entries(model: type[BaseModel], before: str = "", default: Any = None) -> Iterator[Entry]:
    """Every setting of a model, at any depth.

    Args:
        before: the keys that lead to it.
        default: the model that is the default, where a field's is.
    """
    for name, field in model.model_fields.items():
        value = field.get_default(call_default_factory=True) if default is None else getattr(default, name)
        inner = models_in(field.annotation)
        for below in inner:
            yield from entries(below, f"{before}{name}.", value if isinstance(value, below) else None)
        if not inner or not isinstance(value, BaseModel):
            yield f"{before}{name}", _takes(field.annotation), value_as_yaml(value), field.description or ""


def _takes(annotation: Any) -> str:
    """`int | None` in words: `int or null`."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(value_as_yaml(value) for value in inside)
    if annotation is NoneType:
        return "null"
    if inside and origin in (dict, list, tuple):
        words = ", ".join(dict.fromkeys(_takes(each) for each in inside if each is not ...))
        return f"{'mapping' if origin is dict else 'list'} of {words}"
    if origin is Annotated:
        return _takes(inside[0])
    if inside:
        return " or ".join(_takes(each) for each in inside)
    return "settings" if isinstance(annotation, type) and issubclass(annotation, BaseModel) else _name(annotation)


def _name(annotation: Any) -> str:
    return str(getattr(annotation, "__name__", annotation)).lower()


def value_as_yaml(value: Any) -> str:
    """As YAML has it."""
    if value is PydanticUndefined:
        return "required"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(value_as_yaml, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {value_as_yaml(each)}' for key, each in value.items())}}}"
    return str(value)
