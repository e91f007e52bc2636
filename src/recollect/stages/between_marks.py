"""Texts that a command writes into a page of documentation, between two marks that a reader does not see."""

from __future__ import annotations

import re

from recollect.settings.errors import UserError


def marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def names(text: str) -> list[str]:
    """What a page has a place for."""
    return re.findall(r"<!-- (.+?): begin -->", text)


def between(text: str, name: str, where: object) -> str:
    """What stands between the marks of this name.

    Raises:
        UserError: the page has no such marks, or more than one pair.
    """
    return _parts(text, name, where)[1].strip("\n")


def put_between(text: str, name: str, content: str, where: object) -> str:
    """The page with this content between its marks.

    Raises:
        UserError: the page has no such marks, or more than one pair.
    """
    begin, end = marks(name)
    before, _, after = _parts(text, name, where)
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


def _parts(text: str, name: str, where: object) -> tuple[str, str, str]:
    begin, end = marks(name)
    before, *rest = text.split(begin)
    inside, *after = rest[0].split(end) if len(rest) == 1 else ("",)
    if len(rest) != 1 or len(after) != 1:
        raise UserError("there is no place for this text", where=where, do=f"write {begin} and {end} there, once each")
    return before, inside, after[0]
