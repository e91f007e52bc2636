"""What a table says of a judged claim: marks, numbers and what was wanted, as text. Claims are as `claims.json` has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from recollect.settings.claims import MARKS

Claim = Mapping[str, Any]


class Numbers(NamedTuple):
    """The cells of one contrast."""

    effect: str
    interval: str
    wanted: str
    of: str  # how many seeds and tasks; of what was not run, why


def numbers(contrast: Mapping[str, Any]) -> Numbers:
    """Three digits of each; nothing where it was not measured."""
    below = "< −" if contrast["margin"] else "< "
    wanted = {"above": "> ", "below": below, "equal": "within ±"}[contrast["wanted"]] + f"{contrast['margin']:g}"
    if contrast.get("value") is None:
        return Numbers("", "", wanted, contrast["why"])
    low, high = contrast["low"], contrast["high"]
    interval = "" if low is None else f"{rounded(low)} to {rounded(high)}"
    return Numbers(rounded(contrast["value"]), interval, wanted, f"{contrast['seeds']} × {contrast['tasks']}")


def rounded(value: float) -> str:
    """``0.123``, ``−12.3``, ``1230``; the same of a number and of what docs/recorded has of it."""
    value = float(f"{value:.6g}")
    digits = f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"  # three digits of more would be 1e+03
    return digits.replace("-", "−")


def marked(verdict: str) -> str:
    return f"{MARKS[verdict]} {verdict}"


def of_several(claim: Claim) -> str:
    """How many contrasts must hold, where not all need to; else nothing."""
    return as_many(claim.get("needed"), len(claim["contrasts"]))


def as_many(needed: int | str | None, contrasts: int) -> str:
    """See :func:`of_several`; ``needed``: nothing where all must hold."""
    return f" ({needed} of {contrasts} must hold)" if needed else ""


def counted(claims: Iterable[Claim]) -> str:
    """``7 hold, 1 contradicted, 2 undecided``."""
    found = Counter(claim["verdict"] for claim in claims)
    words = {"holds": "hold" if found["holds"] != 1 else "holds"}
    return ", ".join(f"{found[verdict]} {words.get(verdict, verdict)}" for verdict in MARKS if found[verdict])
