"""Figure kinds by name: a kind is one module of this package with `Options` and `draw`. A new kind is one new file."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from pathlib import Path
from typing import Any, Protocol, cast

from pydantic import BaseModel

from recollect.figures.spec import Drawn, FigureSpec
from recollect.settings.errors import UserError, nearest

PACKAGE = "recollect.figures"


class Kind(Protocol):
    """What a figure kind's module offers. With a line ``READS = "traces"`` (or speeds) it draws those, not scores."""

    Options: type[BaseModel]

    def draw(self, read: Any, figure: FigureSpec) -> Drawn:
        """Draw the figure of a spec from a score table, or from a list of traces, one per run."""
        ...


def kinds() -> list[str]:
    """The names of all kinds, found by reading the package's files (none is imported)."""
    folder = Path(__file__).parent
    names = [module.name for module in pkgutil.iter_modules([str(folder)]) if not module.ispkg]
    return [name for name in names if "\ndef draw(" in (folder / f"{name}.py").read_text(encoding="utf-8")]


def kind(name: str) -> Kind:
    """The module of a kind.

    Raises:
        UserError: there is none of that name.
    """
    known = kinds()
    if name not in known:
        raise UserError(f"unknown kind of figure '{name}'", where="key 'kind' of the figure", do=nearest(name, known))
    return cast(Kind, importlib.import_module(f"{PACKAGE}.{name}"))
