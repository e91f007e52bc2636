"""Figure kinds by name: a kind is one module of this package with `Options` and `draw`. A new kind is one new file."""

from __future__ import annotations

from typing import Any, Protocol, cast

from pydantic import BaseModel

from recollect.figures.spec import Drawn, FigureSpec
from recollect.settings.catalogue import known, load


class Kind(Protocol):
    """What a figure kind's module offers. With a line ``READS = "traces"`` (or training, or speeds) it draws those, not scores.

    A line ``BY_ENVIRONMENT = ("ends",)`` names options that map environments to something, or something to lists of them. What
    they name is checked before anything runs; what is not drawn counts for nothing.

    A line ``SPLIT = "eval"`` (or learning) says which split of the scores it draws where its options name none. Runs that are not
    evaluated on it are refused before anything runs. ``ROWS = "panels"`` names an option that maps panels to rows, such as
    ``ENV/SPLIT``.

    With a line ``FROM_ABOVE = True`` worlds that have no function `scene` are refused before anything runs.

    A function ``check(figure: FigureSettings)`` raises a UserError where options do not fit together, before anything runs.
    """

    Options: type[BaseModel]

    def draw(self, read: Any, figure: FigureSpec) -> Drawn:
        """Draw the figure of a spec from a score table, or from a list of traces, one per run.

        Raises:
            UserError: a wrong option, or what the figure draws is missing or does not have what it shows.
        """
        ...


def kinds() -> list[str]:
    """The names of all kinds, sorted (none is imported)."""
    return sorted(known("figure"))


def kind(name: str) -> Kind:
    """The module of a kind. Raises UserError: there is none of that name."""
    return cast(Kind, load("figure", name, where="key 'kind' of the figure"))
