"""Which worlds, methods, sources of histories, kinds of figures, encoders and so on there are, and in which module each is.

A module is found by what it declares at its top level: one that has `World` and `tasks` is a world, however these two
names came to be there (a class, an assignment, an import). Nothing is imported to find out, so that Snakemake, which
parses with this, needs no torch.

Three places are searched: this package, the user's folder `mine/`, and the packages of plug-ins. A plug-in is an installed
package with an entry point of group `recollect.plugins`, whose value is the package (or the one module) to search.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from recollect.settings.errors import UserError, as_user_error, nearest, shown
from recollect.settings.still import remembered


class Paper(NamedTuple):
    """A paper that is reproduced here."""

    name: str
    page: str
    """What was reproduced of it, from the repository's root."""


PAPERS = {
    "radt": Paper("RA-DT", "docs/radt.md"),
    "memory_rl": Paper("Memory-RL", "docs/memory_rl.md"),
    "amago": Paper("AMAGO", "docs/amago.md"),
    "helm": Paper("HELM", "docs/helm.md"),
}
"""Folder of a paper in this package -> the paper, in the order in which tables have them."""
_FOLDERS = tuple(f"recollect.{folder}" for folder in PAPERS)
PLUGINS = "recollect.plugins"


class Kind(NamedTuple):
    """What is looked for, where in this package, and how it is known."""

    title: str
    packages: tuple[str, ...]
    declares: frozenset[str]
    named_by: str = ""
    """The hyperparameter that names one, where a method has such a part."""


KINDS = {
    "world": Kind("world", ("recollect.environments",), frozenset({"World", "tasks"})),
    "method": Kind("algorithm", _FOLDERS, frozenset({"Hyperparameters", "train", "load_policy"})),
    "source": Kind("source of histories", (*_FOLDERS, "recollect.sources"), frozenset({"Hyperparameters", "generate"})),
    "network": Kind("algorithm with a network of its own", _FOLDERS, frozenset({"build_network"})),
    "figure": Kind("kind of figure", ("recollect.figures",), frozenset({"Options", "draw"})),
    "image encoder": Kind("image encoder", ("recollect.common.image_encoders",), frozenset({"Encoder"})),
    # Parts of AMAGO's agent. Its own ones are no modules: only a user's are found here.
    "time step encoder": Kind("time step encoder", (), frozenset({"Options", "TimestepEncoder"}), "inputs.encoder"),
    "trajectory encoder": Kind("trajectory encoder", (), frozenset({"Options", "TrajectoryEncoder"}), "sequence.kind"),
    "exploration": Kind("exploration", (), frozenset({"Options", "Exploration"}), "exploration.kind"),
}


class Module(NamedTuple):
    name: str
    path: Path


# ------------------------------------------------------------------------------------------------ modules by their names


@remembered
def known(kind: str, name: str | None = None) -> dict[str, str]:
    """The names of one kind (or one name alone), each with its module: `{"dqn": "recollect.memory_rl.dqn", ...}`."""
    modules: dict[str, Module] = {}
    for module in _modules(KINDS[kind], name):
        other = modules.setdefault(module.path.stem, module)
        if other != module:
            what = f"there are two of the kind '{KINDS[kind].title}' named '{module.path.stem}'"
            raise UserError(what, where=f"{other.path} and {module.path}", do="give one of the files another name")
    return {name: module.name for name, module in modules.items()}


def module_of(kind: str, name: str, *, where: object) -> str:
    """The module of this name: `recollect.memory_rl.dqn`, or a UserError that names the nearest one and `where`.

    Where the user has a file of this name that is one of this kind but for some names, the error says which names it lacks.
    """
    modules = known(kind, name)
    if name not in modules:
        do = unfinished(kind, name) or nearest(name, known(kind))
        raise UserError(f"no {KINDS[kind].title} named '{name}'", where=where, do=do)
    return modules[name]


def unfinished(kind: str, name: str) -> str:
    """What to declare in the user's file of this name, if it declares some of what the kind is known by; else nothing."""
    declares = KINDS[kind].declares
    for module in _own_files():
        lacking = declares - declared(module.path).keys() if module.path.stem == name else declares
        if lacking < declares:
            return f"declare {' and '.join(f'`{each}`' for each in sorted(lacking))} in {shown(module.path)}"
    return ""


class CannotImport(UserError):
    """A module that is there cannot be imported: a package is missing, or own code raises."""


def load(kind: str, name: str, *, where: object) -> ModuleType:
    """Import the module of this name; see `module_of`.

    Raises:
        CannotImport: a package is not installed, or own code raises; the error names file and line.
    """
    return imported(module_of(kind, name, where=where), f"the {KINDS[kind].title} '{name}'", where=where)


def imported(module: str, what: str, *, where: object) -> ModuleType:
    """Import a module that is called `what` in an error, which also says `where` it is asked for; see `load`."""
    if module not in sys.modules:
        reach_mine()
    _check_is_mine(module, what)
    try:
        return importlib.import_module(module)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # a script's last line may end the process
        line = own_line(error)
        missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
        at = where if line is None else f"{line} (asked for by {where})"
        if missing and missing.partition(".")[0] not in roots():
            said = f"{what} needs the package '{missing}', which is not installed"
            raise CannotImport(
                said, where=at, do=f"install '{missing}' (ours: see envs/), or correct its name"
            ) from error
        if line is None:
            raise
        said = f"{what} cannot be imported: {type(error).__name__}: {error}"
        raise CannotImport(said, where=at, do="mend the file") from error


def _check_is_mine(module: str, what: str) -> None:
    """Raise a CannotImport where Python finds another file, of other text, in place of the one in the user's folder."""
    mine = mine_folder()
    wanted = mine.parent.joinpath(*module.split(".")).with_suffix(".py")
    if not module.startswith(f"{mine.name}.") or not wanted.is_file():
        return
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    found = spec.origin if spec and spec.origin else getattr(sys.modules.get(mine.name), "__file__", None)
    if not found or Path(found).resolve() == wanted.resolve():
        return
    with suppress(OSError):  # gone since it was imported
        if Path(found).read_bytes() == wanted.read_bytes():
            return
    do = f"take it out of PYTHONPATH, start Python anew, or give the folder `{mine.name}` another name (RECOLLECT_MINE)"
    said = f"{what} is in {shown(wanted)}, and Python finds another `{mine.name}` before it"
    raise CannotImport(said, where=found, do=do)


def own_line(error: BaseException) -> str | None:
    """The last line of own code that led to an error, `mine/corridor.py:3`; None: none did."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename:
        frames.append(traceback.FrameSummary(error.filename, error.lineno, ""))
    last = last_own(frames)
    return None if last is None else f"{shown(Path(last.filename))}:{last.lineno}"


def own_failure(error: BaseException) -> UserError | None:
    """An error in own code as a message that names the line; None: no own code led to it.

    What ends the process counts only where own code says so itself: a run that is stopped may be in the middle of it.
    """
    line = own_line(error)
    if line is None:
        return None
    what = f"your code fails: {type(error).__name__}: {error}"
    if isinstance(error, SystemExit):
        last = traceback.extract_tb(error.__traceback__)[-1]
        if last_own([last]) is None and "_sitebuiltins" not in last.filename:  # of `exit()`
            return None
        what = f"your code ends the process, with status {error.code!r}"
    return UserError(what, where=line, do="mend this line, or what it calls, which the lines above name")


def message_of(error: BaseException) -> UserError | None:
    """What a process says in place of a traceback; None: it is an error of the program.

    How an error in own code came about is printed here, as it goes before the message.
    """
    said = as_user_error(error)
    if said is None:
        said = own_failure(error)
        if said is not None:
            traceback.print_exception(error)
    return said


def last_own(frames: Iterable[traceback.FrameSummary], *also: Path) -> traceback.FrameSummary | None:
    """The last frame that lies in own code, or in another of these places; None: none does."""
    places = (*own_packages().values(), *also)
    own = [frame for frame in frames if any(Path(frame.filename).is_relative_to(place) for place in places)]
    return own[-1] if own else None


def reach_mine() -> None:
    """Let Python find the modules of the user's folder. Its place is the last one, so that it hides no package."""
    folder = str(mine_folder().parent)
    if folder not in sys.path:
        sys.path.append(folder)


def declaration(kind: str, name: str, key: str) -> Any:
    """The constant `key` of this name's module, e.g. `READS = "traces"`; True if it is no literal, None without any."""
    modules = _modules(KINDS[kind], name)
    return declared(modules[0].path).get(key) if modules else None


# --------------------------------------------------------------------------------------------------- places of modules


def mine_folder(at: Path = Path()) -> Path:
    """The user's own folder, which is a package: ``$RECOLLECT_MINE``, or ``mine`` in a folder, the working directory."""
    return _own_folder(os.environ.get("RECOLLECT_MINE") or str(at / "mine"), os.getcwd())


@cache
def _own_folder(named: str, seen_from: str) -> Path:
    folder = Path(seen_from, named)
    if not folder.name.isidentifier() or folder.name == "recollect":
        what = f"a folder of own code cannot be called '{folder.name}', because its modules are imported as a package"
        raise UserError(what, where=f"RECOLLECT_MINE={folder}", do="give it a name of letters, digits and _")
    return folder


def check_mine_folder() -> None:
    """Raise a UserError where ``$RECOLLECT_MINE`` is a path that leads to no folder; a name alone may be there or not."""
    named = os.environ.get("RECOLLECT_MINE", "")
    if os.sep in named and not Path(named).is_dir():
        do = "correct it, make the folder, or unset the variable"
        raise UserError("RECOLLECT_MINE names no folder", where=f"RECOLLECT_MINE={named}", do=do)


@remembered
def own_packages() -> dict[str, Path]:
    """Packages besides ours that are searched: name -> folder (of a plug-in that is a single module: its file)."""
    mine = mine_folder()
    return {**({mine.name: mine} if mine.is_dir() else {}), **_plugins()}


def roots() -> dict[str, Path]:
    """Top package -> the folder that holds it, for all packages whose modules can be found here."""
    folders = {"recollect": Path(__file__).resolve().parents[2]}
    for package, place in own_packages().items():
        folders[package.partition(".")[0]] = place.parents[package.count(".")]
    return folders


@cache
def _plugins() -> dict[str, Path]:
    places: dict[str, Path] = {}
    for entry in importlib.metadata.entry_points(group=PLUGINS):
        top, *below = entry.module.split(".")
        spec = importlib.util.find_spec(top)
        if spec is None:
            what = f"the plug-in '{entry.name}' names the package '{entry.module}', which is not there"
            raise UserError(what, where=f"entry point of group {PLUGINS}", do="install the plug-in anew, or remove it")
        if spec.submodule_search_locations:
            place = Path(next(iter(spec.submodule_search_locations))).joinpath(*below)
        else:
            place = Path(str(spec.origin))
        places[entry.module] = place if place.exists() else place.with_suffix(".py")
    return places


@remembered
def _modules(kind: Kind, name: str | None = None) -> list[Module]:
    """The modules that declare what this kind is known by: all, or those of one name (no other file is read then)."""
    candidates: list[Module] = []
    source = roots()["recollect"]
    for package in kind.packages:
        folder = source.joinpath(*package.split("."))
        candidates += _ours(package, folder, folder.stat().st_mtime_ns)
    candidates += _own_files()
    named = [module for module in candidates if name in (None, module.path.stem)]
    return [module for module in named if kind.declares <= declared(module.path).keys()]


def _own_files() -> list[Module]:
    """The modules of the user's folder and of plug-ins."""
    modules: list[Module] = []
    for package, place in own_packages().items():
        modules += _files(package, place) if place.is_dir() else [Module(package, place)]
    return modules


@cache
def _ours(package: str, folder: Path, stamp: int) -> list[Module]:
    """The modules of a folder of ours, whose time stamp is another one when it gets another file."""
    return _files(package, folder)


def _files(package: str, folder: Path) -> list[Module]:
    paths = sorted(folder.glob("*.py"))
    return [Module(f"{package}.{path.stem}", path) for path in paths if path.stem != "__init__"]


# ------------------------------------------------------------------------------------------------- what a file declares


def declared(path: Path) -> Mapping[str, Any]:
    """The names at the top level of a file, each with its value where that is a literal, else True."""
    status = path.stat()
    return _declared(path, (status.st_mtime_ns, status.st_size))


@cache
def _declared(path: Path, stamp: tuple[int, int]) -> dict[str, Any]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise UserError(f"not valid Python: {error}", where=path, do="mend the file") from error
    return dict(_declarations(tree.body))


def _declarations(statements: Iterable[ast.stmt | ast.ExceptHandler]) -> Iterator[tuple[str, Any]]:
    for statement in statements:
        match statement:
            case ast.ClassDef() | ast.FunctionDef():
                yield statement.name, True
            case ast.Import() | ast.ImportFrom():
                for alias in statement.names:
                    yield alias.asname or alias.name, True
            case ast.Assign(targets=targets, value=value):
                for name in _names(targets):
                    yield name, _literal(value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                for name in _names([target]):
                    yield name, _literal(value)
            case ast.If() | ast.Try() | ast.With() | ast.ExceptHandler():
                # What may stand there only on some machines counts: importing says what is missing.
                for part in ("body", "handlers", "orelse", "finalbody"):
                    yield from _declarations(getattr(statement, part, []))


def _names(targets: Iterable[ast.expr]) -> list[str]:
    return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]


def _literal(value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError, RecursionError):
        return True
