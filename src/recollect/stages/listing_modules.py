"""list: the modules that files of the configuration name, each with its options: worlds, sources of histories, kinds of figures."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from recollect.settings.catalogue import known, load
from recollect.settings.errors import UserError
from recollect.stages.columns import columns
from recollect.stages.declared import READ, entries, summary

WIDTH = 110

#: Group -> the kind of module in the catalogue, and where a file names one.
MODULES = {
    "kinds": ("figure", "`kind:` of a figure"),
    "sources": ("source", "`source: {algorithm: ...}` of an environment"),
    "worlds": ("world", "`world:` of an environment"),
}


def module_names(group: str) -> list[str]:
    """The names of a group, those of the user's own modules among them."""
    return sorted(known(MODULES[group][0]))


def modules_listed(group: str, chosen: Sequence[str]) -> str:
    """What each module is and which options it has; of chosen ones also what these take, their defaults and what they do."""
    kind, where = MODULES[group]
    parts = [f"{group}: {where}"]
    parts += ["\n".join(_entry(kind, name, whole=bool(chosen))) for name in chosen or module_names(group)]
    return "\n\n".join(parts)


def _entry(kind: str, name: str, *, whole: bool) -> Iterator[str]:
    try:
        module: Any = load(kind, name, where=f"recollect list {name}")
        model = _MODELS[kind](module)
    except (UserError, ImportError) as error:
        yield name
        yield f"  ({error.what if isinstance(error, UserError) else error})"
        return
    yield name
    yield from _wrapped(summary(module))
    if kind == "figure":
        yield f"  reads: {READ[getattr(module, 'READS', 'scores')]}"
    options = list(entries(model))
    if not whole:
        yield from _wrapped(f"options: {', '.join(key for key, *_ in options) or 'none'}")
        return
    said = any(row[3] for row in options)
    rows = [("option", "takes", "default", "what it does" if said else ""), *options]
    yield from (f"  {line}" for line in columns(rows))
    if not said and "__doc__" in vars(model) and model.__doc__:  # a world says it in one text
        yield textwrap.indent(f"\n{inspect.cleandoc(model.__doc__)}", "  ")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")


_MODELS: dict[str, Callable[[Any], Any]] = {
    "figure": lambda module: module.Options,
    "source": lambda module: module.Hyperparameters,
    "world": lambda module: module.World.options_model,
}
