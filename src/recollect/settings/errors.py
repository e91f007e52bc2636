"""The one kind of error that a user sees: what is wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """Something the user can mend. The command line prints it as one message and exits with status 2.

    Args:
        what: what is wrong, in one sentence.
        where: the file, key or command it is about.
        do: what to do about it.
    """

    def __init__(self, what: str, *, where: object, do: str) -> None:
        self.what, self.where, self.do = what, str(where), do
        super().__init__(f"{what}\n  where: {where}\n  to do: {do}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known name is nearest to an unknown one, or list what is known.

    Returns:
        ``did you mean 'x'?`` or ``known: a, b, c``.
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names) or 'none'}"
