"""The one kind of error that a user sees: what is wrong, where, and what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

MOST_LISTED = 30  # of known names, in a message


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

    def at(self, where: object) -> UserError:
        """The same error, said of another place."""
        return type(self)(self.what, where=where, do=self.do)

    def __reduce__(self) -> tuple[Any, ...]:  # it goes from process to process
        return partial(type(self), where=self.where, do=self.do), (self.what,)


def shown(path: Path) -> str:
    """A path as a message names it: from the working directory, where it lies below that."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


# What numpy and PyTorch say where more memory is asked for than there is, or than a number can count.
_NO_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "Maximum allowed dimension exceeded",
    "array is too big",
    "Storage size calculation overflowed",
)
# What the system says where a place takes no file, whatever one's rights are.
_NO_PLACE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG)


def unwritable(error: OSError, where: object) -> UserError:
    """What to say of a file that cannot be written, such as on a full disk."""
    do = "free some space or choose a place that can be written, then run the same command again"
    if error.errno == errno.ENAMETOOLONG:
        do = "choose a shorter name; that of a method holds what `--set` changes, unless a variant in its file says it"
    return UserError(f"the file cannot be written: {error}", where=where, do=do)


def as_user_error(error: BaseException) -> UserError | None:
    """What a user can mend although it was not raised as such: no rights, no room on a disk or in memory. None: anything else."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, PermissionError):
        do = "give yourself the right to it, e.g. with `chmod u+rwX`, or ask whose it is"
        return UserError(f"not permitted: {error.strerror}", where=error.filename, do=do)
    if isinstance(error, OSError) and error.errno in _NO_PLACE:
        return unwritable(error, error.filename or "no file is named")
    if isinstance(error, MemoryError) or any(said in str(error) for said in _NO_MEMORY):
        said = " ".join(str(error).split())[:300]
        do = (
            "make smaller what has this size (of a run: batch_size, context, rollout, actors, a replay buffer or a width; "
            "`recollect settings` shows them), or run it where there is more memory"
        )
        return UserError("memory does not suffice", where=said or "no array is named", do=do)
    return None


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known name is nearest to an unknown one, or list what is known.

    Returns:
        ``did you mean 'x'?`` or ``known: a, b, c``; of very many the first.
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return f"known: {', '.join(names[:MOST_LISTED]) or 'none'}{more}"


def nearest_path(typed: str, known: Iterable[str], level: Iterable[str]) -> str:
    """As `nearest`, of keys at any depth: `optimisation.learning_rate`.

    The last words of two keys count, and where these are equally alike the words before them.

    Args:
        typed: the unknown key.
        known: every known key, each with the words that lead to it.
        level: what is listed where none of these is like it.
    """
    above, _, word = typed.rpartition(".")

    def likeness(path: str) -> tuple[float, int]:
        before, _, last = path.rpartition(".")
        alike = SequenceMatcher(None, word, last).ratio() + 0.1 * SequenceMatcher(None, above, before).ratio()
        return alike, -path.count(".")

    best = max(sorted(known), key=likeness, default="")
    if SequenceMatcher(None, word, best.rpartition(".")[2]).ratio() >= 0.6:
        return f"did you mean '{best}'?"
    return f"known: {', '.join(sorted(level)) or 'none'}"
