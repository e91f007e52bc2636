"""YAML as configuration is written in it: a key stands once, and nothing holds itself.

YAML forbids a doubled key, but PyYAML takes the last one without a word: what stood under the first is gone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from recollect.settings.errors import UserError

LEVELS = 50  # of mappings and lists in each other
_FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is eight times faster, where PyYAML has it


class _Loader(_FAST):  # type: ignore[misc, valid-type]
    file: Path

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """PyYAML does this first with every mapping: what `<<` merges is put among its keys, and may be among them already."""
        if not hasattr(node, "keys_stand_once"):
            node.keys_stand_once = True  # type: ignore[attr-defined]
            if len({str(key.value) for key, _ in node.value}) < len(node.value):
                self._refuse_doubled(node)
        super().flatten_mapping(node)

    def _refuse_doubled(self, node: yaml.MappingNode) -> None:
        lines: dict[tuple[str, str], int] = {}  # tag and text: 1 and "1" are two keys
        for key, _ in node.value:
            name, line = (key.tag, str(key.value)), key.start_mark.line + 1
            if name in lines:
                what = f"the key '{key.value}' stands twice in one mapping"
                where = f"{self.file}:{lines[name]} and {self.file}:{line}"
                raise UserError(what, where=where, do="remove one of them, or write what both say under one")
            lines[name] = line


def parsed(path: Path) -> Any:
    """What a YAML file holds.

    Raises:
        UserError: it cannot be read, is not YAML, has a key twice, or lies deeper in itself than any configuration does.
    """
    loader = None
    try:
        text = readable(path).decode("utf-8")
        if sum(map(text.count, "[{-?:")) > 10_000 and _opens_deep(text):  # a level takes one of these at least
            raise _too_deep(path)
        loader = _Loader(text)
        loader.file = path
        content = loader.get_single_data()
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"not valid YAML: {' '.join(str(error).split())}", where=path, do="correct the file") from error
    except RecursionError as error:
        raise _too_deep(path) from error
    finally:
        if loader is not None:
            loader.dispose()
    if _is_deeper(content, LEVELS):
        raise _too_deep(path)
    return content


def readable(path: Path) -> bytes:
    """The bytes of a file. Raises UserError: its rights do not allow to read it, or it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        do = "give yourself the right to read it, e.g. with `chmod u+r`, or ask whose file it is"
        raise UserError(f"the file cannot be read: {error.strerror}", where=path, do=do) from error


def _opens_deep(text: str) -> bool:
    """Whether more is open at once than a configuration has: libyaml reads that level in level, until the stack is full."""
    level = 0
    for event in yaml.parse(text, Loader=_FAST):
        if isinstance(event, yaml.CollectionStartEvent):
            level += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            level -= 1
        if level > LEVELS:
            return True
    return False


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether mappings and lists lie deeper in each other; an alias that leads back to what it is in has no end."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(inner, dict | list) and (levels == 0 or _is_deeper(inner, levels - 1)):
            return True
    return False


def _too_deep(path: Path) -> UserError:
    what = (
        f"mappings and lists lie more than {LEVELS} deep in each other, or an alias `*` leads back to what it stands in"
    )
    return UserError(what, where=path, do="correct the file")
