"""What calls from Python are given, checked before any work: names, seeds, changed settings, which of several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

from recollect.settings.errors import UserError
from recollect.settings.overrides import written
from recollect.settings.schema import LARGEST_SEED


def check_names(**given: object) -> None:
    """Raise a UserError where a name is no text."""
    for what, name in given.items():
        if not isinstance(name, str):
            raise UserError(f"{name!r} is no name", where=what, do="write it as text; `recollect list` has all")


def several(given: object) -> bool:
    """Whether these are several: a list, a range, an array. A text is one, and so is an array without axes."""
    return isinstance(given, Iterable) and not isinstance(given, str | bytes) and getattr(given, "ndim", 1) > 0


def seed_of(given: Any) -> int:
    """A seed, as Python's number."""
    if isinstance(given, bool) or not isinstance(given, Integral) or not 0 <= int(given) <= LARGEST_SEED:
        raise no_seed(given)
    return int(given)


def no_seed(given: object) -> UserError:
    do = f"name a whole number from 0 to {LARGEST_SEED}; `recollect.train` takes a list of them, too"
    return UserError(f"{given!r} is no seed", where="seed", do=do)


def changed(given: Mapping[str, object] | None) -> list[str]:
    """Settings that differ, each as `KEY=VALUE`."""
    if given is not None and not isinstance(given, Mapping):
        do = 'write a dictionary, changes={"optimisation.learning_rate": 3e-4}'
        raise UserError(f"{given!r} does not say which settings differ", where="changes", do=do)
    words = []
    for key, value in (given or {}).items():
        try:
            words.append(f"{key}={written(value)}")
        except TypeError as error:
            do = "give a number, a text, True, False, None, or a list of these"
            raise UserError(f"{value!r} is no value of a setting", where=f"changes: {key}", do=do) from error
    return words
