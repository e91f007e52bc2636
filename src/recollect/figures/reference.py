"""Published values that figures are compared with, kept as data in ``config/figures/references/*.yaml``.

A file is one list of groups; a group is one published figure or table, named, with its source and the scale that it is
comparable with. A figure names the groups it wants (``references: [{published: radt_figures_3_4}]``) or gives a
`Reference` in place; curves of panels and methods that it does not draw are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from recollect.figures.spec import Reference
from recollect.settings.errors import UserError, nearest
from recollect.settings.loading import published_groups, validated
from recollect.settings.schema import Frozen
from recollect.settings.still import remembered


class Points(Frozen):
    """Points of one published curve."""

    x: tuple[float, ...] = Field(min_length=1)
    y: tuple[float, ...] = Field(min_length=1)
    last_five: float | None = Field(None, description="Mean over the last five episodes, where it was read off.")


class Group(Frozen):
    """One published figure or table."""

    source: str = Field(description="Paper and figure.")
    reading: str = Field(description='How the numbers were read: "read off the paper\'s figure" or "table".')
    scale: str = Field("paper", description="Scale whose settings are the published ones.")
    x: str = Field(description="Meaning of x.")
    y: str = Field(description="Meaning of y.")
    curves: dict[str, dict[str, Points]] = Field(description="Panel -> method -> points.")


@remembered
def groups(folder: Path | None = None) -> dict[str, Group]:
    """All groups of published values by name; a UserError where a file is malformed or two have a group of one name."""
    return {
        name: validated(Group, content, where=f"{path}, group {name}")
        for name, (content, path) in published_groups(folder).items()
    }


def resolve(
    wanted: Sequence[Mapping[str, Any] | Reference],
    *,
    panels: Sequence[str],
    methods: Sequence[str],
    folder: Path | None = None,
) -> tuple[Reference, ...]:
    """The references of a figure, of its panels and methods only.

    Args:
        wanted: ``{"published": <group>}``, optionally with ``panels`` (panel in the group -> panel of the figure,
            where the names differ), or the fields of a `Reference`.

    Raises:
        UserError: an unknown group, a group without a curve for this figure, or a malformed reference.
    """
    result: list[Reference] = []
    by_name: dict[str, Group] | None = None
    for item in wanted:
        if isinstance(item, Reference):
            result.append(item)
        elif "published" not in item:
            result.append(validated(Reference, item, where="references of a figure"))
        else:
            by_name = groups(folder) if by_name is None else by_name
            result += _of_group(item, by_name, panels, methods)
    return tuple(result)


def _of_group(
    item: Mapping[str, Any], by_name: Mapping[str, Group], panels: Sequence[str], methods: Sequence[str]
) -> list[Reference]:
    name = str(item["published"])
    unknown = sorted(set(item) - {"published", "panels"})
    if unknown:
        do = nearest(unknown[0], ["published", "panels"])
        raise UserError(f"unknown key '{unknown[0]}'", where=f"reference {name}", do=do)
    if name not in by_name:
        do = nearest(name, by_name)
        raise UserError(f"no published values named '{name}'", where="references of a figure", do=do)
    group = by_name[name]
    renamed = dict(item.get("panels") or {})
    source = f"{group.source}, {group.reading}"
    references = []
    for published_panel, curves in group.curves.items():
        panel = renamed.get(published_panel, published_panel)
        for method, points in curves.items():
            if panel in panels and method in methods:
                about = {"panel": panel, "method": method, "source": source}
                about |= {"reading": group.reading, "scale": group.scale}
                references.append(Reference(**points.model_dump(), **about))
    if not references:
        what = f"the published values '{name}' have no curve for {', '.join(panels)}"
        do = f"it has {', '.join(group.curves)}; map names with 'panels', or leave the reference out"
        raise UserError(what, where="references of a figure", do=do)
    return references
