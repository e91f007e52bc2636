"""The tables of docs/radt.md, "Options of retrieval": every option is in them, with its default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from recollect.radt import radt
from recollect.radt.memory_settings import MemorySettings

PAGE = Path(__file__).resolve().parents[3] / "docs/radt.md"


def rows() -> list[tuple[str, str, str]]:
    """(option, where, default) of every row of the section."""
    section = PAGE.read_text(encoding="utf-8").split("## Options of retrieval\n", 1)[1].split("\n## ", 1)[0]
    found = re.findall(r"^\| `([\w.]+)` \| ([^|]+) \| ([^|]+) \|", section, re.MULTILINE)
    assert len(found) > 60
    return [(option, where.strip(), default.strip()) for option, where, default in found]


def said(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, int | float) else f"`{value}`"


def default_of(model: type[BaseModel], name: str) -> Any:
    first, _, rest = name.partition(".")
    value = model.model_fields[first].get_default(call_default_factory=True)
    return default_of(type(value), rest) if rest else value


def test_every_option_of_the_tables_exists_and_has_the_default_that_they_say() -> None:
    for option, where, default in rows():
        model = MemorySettings if where == "memory" else radt.Hyperparameters
        assert said(default_of(model, option)) == default, option


def test_every_option_of_retrieval_is_in_the_tables_once_and_is_described() -> None:
    named = [option for option, *_ in rows()]
    assert len(named) == len(set(named))
    chosen = radt.Hyperparameters()
    for part in ("retrieval", "acting"):
        fields = type(getattr(chosen, part)).model_fields
        assert {f"{part}.{name}" for name in fields} == {name for name in named if name.startswith(f"{part}.")}
        assert all(field.description for field in fields.values())
    assert set(MemorySettings.model_fields) == {option for option, where, _ in rows() if where == "memory"}
    own = set(radt.Hyperparameters.model_fields) - set(radt.dt.Hyperparameters.model_fields) - {"return_loss"}
    assert own - {"retrieval", "acting"} <= set(named)
