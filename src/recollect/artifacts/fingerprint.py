"""What code a result is a function of, as one short text: a changed loss retrains, a reworded message does not.

Snakemake does not see edits in imported modules, so each rule carries this fingerprint as a param. It follows the
static imports of the given modules through their source without importing anything, and hashes what runs.

- **Walls.** Only science counts: the four papers, sources of histories, what they share, worlds and evaluation. Settings
  loading, sealed files, progress, locks, stages, commands and figures are plumbing: an edit there makes no run stale. What
  plumbing writes has one version number instead (`recollect.artifacts.formats`), which is part of every fingerprint.
- **Words.** Comments, docstrings, descriptions of settings, and texts that only reach an error, a log or a progress line
  do not count.
- Modules loaded by name (importlib) are not seen: give them as arguments too, e.g. the method's and the world's.
"""

from __future__ import annotations

import ast
import atexit
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

from recollect.artifacts import formats, running_code
from recollect.artifacts.running_code import imports_of, running_text
from recollect.artifacts.sealed import read_json, write_json
from recollect.settings import catalogue
from recollect.settings.errors import UserError, nearest
from recollect.settings.still import remembered

#: What a result is a function of.
SCIENCE = (
    "recollect.radt",
    "recollect.memory_rl",
    "recollect.amago",
    "recollect.helm",
    "recollect.sources",
    "recollect.common",
    "recollect.environments",
    "recollect.evaluation",
    "recollect.settings.seeding",
)
#: What worlds look like. Whatever keeps that gives it as a module: then the functions of worlds that draw count as well.
SCENE = "recollect.environments.scene"
#: What lies among science and yet changes no result: finding worlds by name, gymnasium's view of them, drawing them.
PLUMBING = (
    "recollect.environments.registry",
    "recollect.environments.single",
    SCENE,
    "recollect.environments.drawing",
)
#: Functions and methods of worlds that draw, and do nothing else.
DRAWING = frozenset({"scene", "picture", "render"})


KEPT = Path(".snakemake") / "recollect-files.json"
"""What commands found in files, by their content: parsing took a quarter of the demo's dry run, 3.1 CPU seconds."""
_MOST = 5000  # files that are kept; edits add to them, and beyond it they are collected anew


@remembered
def code_fingerprint(*modules: str) -> str:
    """The first 16 hex digits of a sha256 over all science that the given modules reach.

    Args:
        modules: dotted names, e.g. "recollect.radt.radt", "recollect.environments.dark_room". They count themselves,
            wherever they lie; figures' modules reach other modules of figures, too.

    Raises:
        UserError: a module does not exist, or a file that is reached is not valid Python.
    """
    total = hashlib.sha256(f"formats {formats.VERSION}\n".encode())
    for name, digest in reachable(*modules).items():
        total.update(f"{name} {digest}\n".encode())
    return total.hexdigest()[:16]


def reachable(*modules: str, roots: Mapping[str, Path] | None = None) -> dict[str, str]:
    """The modules that count among those that the given ones reach, themselves included.

    Args:
        modules: dotted names.
        roots: package -> the folder that holds it; default: this package, the user's own folder and plug-ins.

    Returns:
        dotted name -> sha256 of what runs in it, sorted by name.
    """
    folders = catalogue.roots() if roots is None else roots
    for module in modules:
        if _found(folders, module) is None:
            raise _unknown(module, folders)
    found: dict[str, str] = {}
    seen: set[str] = set()
    waiting = [name for module in modules for name in _with_parents(module)]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        file = _found(folders, module) if module in modules or _counts(module, modules) else None
        if file is None:
            continue  # plumbing, a name inside a module, or another package
        left_out = DRAWING if _inside(module, "recollect.environments") and SCENE not in modules else frozenset()
        found[module], imports = _parsed(module, left_out, file)
        waiting.extend(imports)
    return dict(sorted(found.items()))


@lru_cache(maxsize=65536)
def _counts(module: str, given: tuple[str, ...]) -> bool:
    """Whether a module that others import is part of what they compute."""
    if not _inside(module, "recollect"):
        return True  # a stranger's own package
    if module == "recollect" or any(_inside(module, wall) for wall in PLUMBING):
        return False
    draws = any(_inside(name, "recollect.figures") for name in given)
    return any(_inside(module, room) for room in SCIENCE) or (draws and _inside(module, "recollect.figures"))


class _File(NamedTuple):
    """A file as it stands: whoever edits it changes the time or the size."""

    path: str
    mtime_ns: int
    size: int


@lru_cache(maxsize=4096)
def _parsed(module: str, left_out: frozenset[str], at: _File) -> tuple[str, tuple[str, ...]]:
    """The sha256 of what runs in a file without some of its functions, and the modules and packages that it may import."""
    file = Path(at.path)
    content = file.read_bytes()
    known = [_reader(), module.encode(), " ".join(sorted(left_out)).encode(), file.name.encode(), content]
    key = hashlib.sha256(b"\0".join(known)).hexdigest()
    kept = _kept()
    if key not in kept:
        kept[key] = _read(file, module, content, left_out)
    digest, *imports = kept[key]
    return digest, tuple(imports)


def _read(file: Path, module: str, content: bytes, left_out: frozenset[str]) -> list[str]:
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError) as error:
        raise UserError(f"not valid Python: {error}", where=file, do="mend the file") from error
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    holders: list[ast.Module | ast.ClassDef] = [tree, *classes]
    for holder in holders:
        holder.body = [s for s in holder.body if not (isinstance(s, ast.FunctionDef) and s.name in left_out)]
    parent = module if file.name == "__init__.py" else module.rpartition(".")[0]
    imported = {name: None for given in imports_of(tree, parent) for name in _with_parents(given)}
    return [hashlib.sha256(running_text(tree).encode()).hexdigest(), *imported]


@cache
def _reader() -> bytes:
    """What decides how files are read: the code of this module and of `running_code`."""
    return b"".join(Path(file).read_bytes() for file in (__file__, running_code.__file__))


@cache
def _kept() -> dict[str, list[str]]:
    """What earlier commands found here, which grows by what this one finds; a damaged file is made anew."""
    kept: dict[str, list[str]] = {}
    with suppress(UserError):
        kept = read_json(KEPT, kind="files")
    atexit.register(_keep, KEPT.absolute(), kept, len(kept))
    return kept


def _keep(path: Path, kept: dict[str, list[str]], known: int) -> None:
    if len(kept) > known and path.parent.is_dir():
        with suppress(OSError, UserError):  # where nothing can be written, the next command parses again
            write_json(path, kept if len(kept) < _MOST else {}, kind="files")


def _unknown(module: str, folders: Mapping[str, Path]) -> UserError:
    listed: list[str] = []
    for package, folder in folders.items():
        for path in (folder / package).rglob("*.py"):
            listed.append(".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"))
    where = ", ".join((folder / package).as_posix() for package, folder in folders.items())
    return UserError(f"there is no module '{module}'", where=where, do=nearest(module, listed))


def _with_parents(module: str) -> Iterator[str]:
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        yield ".".join(parts[:length])


def _inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def _found(folders: Mapping[str, Path], module: str) -> _File | None:
    folder = folders.get(module.partition(".")[0])
    return None if folder is None else _file(str(folder), module)


@remembered
def _file(folder: str, module: str) -> _File | None:
    base = os.path.join(folder, *module.split("."))  # pathlib's paths take most of the time, a thousand for each run
    for path in (os.path.join(base, "__init__.py"), f"{base}.py"):
        with suppress(OSError):
            status = os.stat(path)
            if S_ISREG(status.st_mode):
                return _File(path, status.st_mtime_ns, status.st_size)
    return None
