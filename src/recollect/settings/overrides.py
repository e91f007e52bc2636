"""Settings changed on the command line: `--set learning_rate=1e-4` makes another method of it.

Results lie under scale, environment, method and seed, and every stage finds out from these names what a run is a function
of. So that results of changed settings are never taken for those of the plain ones, the change is a part of the name:
`amago_transformer.learning_rate=0.0001,sequence.width=64` is a variant that no file lists. It stands wherever a method
does, and two people who set the same get the same name. Commands and Python take every spelling of it for this one; paths
and files of the configuration must have it.

A key is one of the method's `hyperparameters` (which need not be said) or of its `memory`, with dots for parts of it. A
value is a number, true, false, null, a word, or a list of these: `[0.9,0.99]`; the word `default` goes back to the default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from recollect.settings.errors import UserError

PARTS = ("hyperparameters", "memory")  # of a method
COMMA = re.compile(r",(?![^\[]*\])")  # outside brackets
WORD = re.compile(r"[\w.+-]+")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")  # also those that are no JSON: .001, 1., +3
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
EXACT = 2**53  # below it floats are as exact as whole numbers
KEY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def method_with(method: str, changes: Iterable[str] = ()) -> str:
    """The name of a method or variant with settings changed (`KEY=VALUE`; of two about one key the later holds).

    It is the one spelling of that name: keys in the order of the alphabet, numbers as JSON writes them (1e-3 is 0.001), and
    whole ones without a point (1e3 is 1000).

    Raises:
        UserError: a change is none, or a dot stands where no variant is named.
    """
    base, dot, variant = method.partition(".")
    if dot and not variant:  # as of `radt.$VARIANT` in a shell that has no such variable
        what = f"'{method}' ends with a dot, behind which the name of a variant is missing"
        raise UserError(what, where="the name of a method", do=f"name the variant, or write {base}")
    named, chosen = _split(variant)
    for change in changes:
        key, value = _pair(change)
        chosen[key] = value
    said = [f"{key}={written(value)}" for key, value in sorted(chosen.items())]
    if named:
        said.insert(0, named)
    return f"{base}.{','.join(said)}" if said else base


def check_spelling(method: str) -> None:
    """Check that a method is called by the one spelling of its name. Else two spellings of a setting would be two runs.

    Raises:
        UserError: it has another one.
    """
    called = method_with(method)
    if called != method:
        what = f"'{method}' is another spelling of '{called}', which is the name of its results"
        raise UserError(what, where="the name of a method", do=f"write {called}")


def check_values(method: str, resolved: Mapping[str, Any]) -> None:
    """Check that what a name sets is what the run has: `popart=yes` would be a second name of `popart=true`.

    Args:
        method: the name, with or without changed settings.
        resolved: the checked settings of the method.

    Raises:
        UserError: a value was read as another one.
    """
    _, chosen = _split(method.partition(".")[2])
    for key, value in chosen.items():
        words = key.split(".")
        found: Any = resolved
        for word in words if words[0] in PARTS else ["hyperparameters", *words]:
            found = found.get(word, value) if isinstance(found, Mapping) else value
        if value == "default" or isinstance(found, Mapping):
            continue
        called = method_with(method, [f"{key}={written(found)}"])
        if called != method:
            what = f"'{key}={written(value)}' is another spelling of '{key}={written(found)}'"
            raise UserError(what, where="the name of a method", do=f"write {called}")


def axes(changes: Iterable[str]) -> dict[str, list[str]]:
    """Some values of some keys (`KEY=VALUE,VALUE`), each once and as it stands in names."""
    found: dict[str, dict[str, None]] = {}
    for change in changes:
        key, sign, values = change.partition("=")
        for value in COMMA.split(values):
            name, parsed = _pair(f"{key}{sign}{value}")
            found.setdefault(name, {})[written(parsed)] = None
    return {name: list(values) for name, values in found.items()}


def taken_apart(variant: str) -> tuple[str, dict[str, Any]]:
    """The listed variant (or "") and the changed settings, as a layer of a method's mapping."""
    named, chosen = _split(variant)
    layer: dict[str, Any] = {}
    for key, value in chosen.items():
        words = key.split(".")
        if words[0] not in PARTS:
            words.insert(0, "hyperparameters")
        below = layer
        for word in words[:-1]:
            below = below.setdefault(word, {})
            if not isinstance(below, dict):
                raise _wrong(variant, f"'{key}' is a part of something that is set as a whole")
        below[words[-1]] = value
    return named, layer


def _split(variant: str) -> tuple[str, dict[str, Any]]:
    """The listed variant (or ""), and key -> value of each change."""
    named: list[str] = []
    chosen: dict[str, Any] = {}
    for part in COMMA.split(variant):
        if "=" in part:
            key, value = _pair(part)
            chosen[key] = value
        elif part:
            named.append(part)
    return ",".join(named), chosen


def _pair(change: str) -> tuple[str, Any]:
    key, sign, text = (part.strip() for part in change.partition("="))
    key = key.removeprefix("hyperparameters.")
    if not sign or not KEY.fullmatch(key):
        raise _wrong(change, "it is not of the form KEY=VALUE")
    if key in PARTS:
        raise _wrong(change, f"'{key}' has many settings, and one is set at a time")
    inside = re.fullmatch(r"\[(.*)\]", text)
    if inside is None:
        return key, _value(text, change)
    return key, [_value(word.strip(), change) for word in inside[1].split(",") if word.strip()]


def _value(text: str, change: str) -> Any:
    if not WORD.fullmatch(text):
        raise _wrong(change, f"the value {text!r} is neither a number, a word, nor a list of these")
    try:
        value = json.loads(PYTHON_WORDS.get(text, text))
    except json.JSONDecodeError:
        value = float(text) if NUMBER.fullmatch(text) else text
    # A whole number has one name, however it is written.
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < EXACT else value


def _wrong(change: str, what: str) -> UserError:
    do = "write e.g. --set learning_rate=1e-4, --set sequence.width=64, --set further_discounts=[0.9,0.99]"
    return UserError(f"a setting cannot be changed so: {what}", where=f"--set {change}", do=do)


def written(value: Any) -> str:
    """A value of Python's, or of numpy's, as `--set` takes it."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list | tuple):
        return f"[{','.join(written(item) for item in value)}]"
    return value if isinstance(value, str) else json.dumps(value)
