"""What differs between two makings of one thing, in words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

MOST = 8  # differences that are named


def differences(then: Any, now: Any, place: str = "") -> Iterator[str]:
    """What differs between two JSON values, key by key: ``method.hyperparameters.context from 100 to 99``."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in sorted({*then, *now}):
            inner = f"{place}.{key}" if place else str(key)
            if key not in then:
                yield f"{inner} is new: {_short(now[key])}"
            elif key not in now:
                yield f"{inner} is gone, it was {_short(then[key])}"
            else:
                yield from differences(then[key], now[key], inner)
    elif then != now:
        yield f"{place} from {_short(then)} to {_short(now)}"


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else text[:57] + "..."


def made_differently(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs between two descriptions of a run: its settings, the modules of its code, its inputs, the rest.

    Args:
        then, now: `settings` as JSON text, `modules` and `inputs` by name with a hash each, and others by name.
    """
    if not then:
        return "what differs was not written down"
    words: list[str] = []
    if then.get("settings") != now.get("settings"):
        before, after = json.loads(then.get("settings") or "{}"), json.loads(now.get("settings") or "{}")
        words += [f"setting {text}" for text in differences(before, after)]
    for kind, said in (("modules", "code of"), ("inputs", "input")):
        before, after = then.get(kind, {}), now.get(kind, {})
        words += [f"{said} {name}" for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    for kind in ("device", "seed"):
        words += differences(then.get(kind), now.get(kind), kind)
    if not words and then.get("code") != now.get("code"):
        words = ["version of files"]
    more = f", and {len(words) - MOST} more" if len(words) > MOST else ""
    return f"different: {', '.join(words[:MOST])}{more}" if words else "nothing that is known differs"
