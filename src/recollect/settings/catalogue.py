"""Which worlds, methods, sources of histories, kinds of figures and image encoders there are, and in which module each is.

A module is found by what it declares at its top level: one that has `World` and `tasks` is a world, however these two
names came to be there (a class, an assignment, an import). Nothing is imported to find out, so that Snakemake, which
parses with this, needs no torch.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from recollect.settings.errors import UserError, nearest
from recollect.settings.still import remembered

PAPERS = ("recollect.radt", "recollect.memory_rl", "recollect.amago", "recollect.helm")


class Kind(NamedTuple):
    """What is looked for, where, and how it is known."""

    title: str
    packages: tuple[str, ...]
    declares: frozenset[str]


KINDS = {
    "world": Kind("world", ("recollect.environments",), frozenset({"World", "tasks"})),
    "method": Kind("algorithm", PAPERS, frozenset({"Hyperparameters", "train"})),
    "source": Kind("source of histories", (*PAPERS, "recollect.sources"), frozenset({"Hyperparameters", "generate"})),
    "network": Kind("algorithm with a network of its own", PAPERS, frozenset({"build_network"})),
    "figure": Kind("kind of figure", ("recollect.figures",), frozenset({"Options", "draw"})),
    "image encoder": Kind("image encoder", ("recollect.common.image_encoders",), frozenset({"Encoder"})),
}


def known(kind: str) -> dict[str, str]:
    """The names of one kind, each with its module: `{"dqn": "recollect.memory_rl.dqn", ...}`."""
    wanted = KINDS[kind]
    return {
        path.stem: f"{package}.{path.stem}"
        for package in wanted.packages
        for path in _files(package)
        if wanted.declares <= declared(path).keys()
    }


def module_of(kind: str, name: str, *, where: object) -> str:
    """The module of this name: `recollect.memory_rl.dqn`.

    Args:
        kind: one of `KINDS`.
        where: what to name in the error.

    Raises:
        UserError: there is none; the message names the nearest known one.
    """
    modules = known(kind)
    if name not in modules:
        raise UserError(f"no {KINDS[kind].title} named '{name}'", where=where, do=nearest(name, modules))
    return modules[name]


def declaration(kind: str, name: str, key: str) -> Any:
    """What the module of this name gives as a constant `key`, e.g. `READS = "traces"`.

    Returns:
        the constant; True for a function, a class or anything else that is no constant; None where nothing has this name,
        or there is no such module.
    """
    wanted = KINDS[kind]
    for package in wanted.packages:
        for path in _files(package):
            if path.stem == name:
                return declared(path).get(key)
    return None


def declared(path: Path) -> Mapping[str, Any]:
    """The names at the top level of a file, each with its value where that is a constant, else True."""
    status = path.stat()
    return _declared(path, (status.st_mtime_ns, status.st_size))


@cache
def _declared(path: Path, stamp: tuple[int, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise UserError(f"not valid Python: {error}", where=path, do="mend the file") from error
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            found[statement.name] = True
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            value = statement.value.value if isinstance(statement.value, ast.Constant) else True
            found |= {name: value for name in _names(targets)}
        elif isinstance(statement, ast.ImportFrom):
            found |= {alias.asname or alias.name: True for alias in statement.names}
    return found


def _names(targets: Iterable[ast.expr]) -> list[str]:
    return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]


@remembered
def _files(package: str) -> list[Path]:
    """The modules of a package, besides its `__init__`."""
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations or []) if spec else []
    return sorted(path for folder in folders for path in Path(folder).glob("*.py") if path.stem != "__init__")
