"""What code a job can reach, as one short text: a changed loss retrains, a changed comment does not.

Snakemake does not see edits in imported modules, so each rule carries this fingerprint as a param. It follows the
static imports of the given modules through the package's source without importing anything, and hashes the syntax
trees without comments, docstrings, `pass`, positions and ``if TYPE_CHECKING`` blocks.

- Modules loaded by name (importlib) are not seen: give them as arguments too, e.g. the method's and the world's.
- Syntax trees differ between Python's minor versions, and so does the fingerprint.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from recollect.settings.errors import UserError, nearest
from recollect.settings.still import remembered

_SOURCE = Path(__file__).resolve().parents[2]
_BODIES = ("body", "orelse", "finalbody")


@remembered
def code_fingerprint(*modules: str, root: str | Path | None = None, package: str = "recollect") -> str:
    """The first 16 hex digits of a sha256 over every module of the package that the given ones reach.

    Args:
        modules: dotted names, e.g. "recollect.stages.train", "recollect.radt.radt".
        root: the folder that holds the package; default: where this package lies.
        package: the package whose modules count; imports of others are left to the environment's lock file.

    Raises:
        UserError: a module does not exist, or a file that is reached is not valid Python.
    """
    total = hashlib.sha256()
    for name, digest in reachable(*modules, root=root, package=package).items():
        total.update(f"{name} {digest}\n".encode())
    return total.hexdigest()[:16]


def reachable(*modules: str, root: str | Path | None = None, package: str = "recollect") -> dict[str, str]:
    """The modules that the given ones reach (themselves and package ``__init__`` files included) and their sha256.

    Returns:
        dotted name -> sha256 of its syntax tree, sorted by name.
    """
    base = Path(root) if root is not None else _SOURCE
    for module in modules:
        if not _in_package(module, package) or _file(base, module) is None:
            known = [".".join(path.relative_to(base).with_suffix("").parts) for path in (base / package).rglob("*.py")]
            what = f"there is no module '{module}'"
            raise UserError(
                what, where=base / package, do=nearest(module, [k.removesuffix(".__init__") for k in known])
            )
    found: dict[str, str] = {}
    waiting = [name for module in modules for name in _with_parents(module)]
    seen: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        file = _file(base, module)
        if file is None:
            continue
        stat = file.stat()
        found[module], imports = _parsed(file, module, package, stat.st_mtime_ns, stat.st_size)
        waiting.extend(name for imported in imports for name in _with_parents(imported))
    return dict(sorted(found.items()))


@lru_cache(maxsize=4096)
def _parsed(file: Path, module: str, package: str, mtime_ns: int, size: int) -> tuple[str, tuple[str, ...]]:
    """The sha256 of a file's syntax tree, and the names in the package that it may import."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise UserError(f"not valid Python: {error}", where=file, do="mend the file") from error
    tree.body = _bare(tree.body)
    parent = module if file.name == "__init__.py" else module.rpartition(".")[0]
    imports = tuple(name for name in _imports(tree.body, parent) if _in_package(name, package))
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), imports


def _bare(statements: list[ast.stmt]) -> list[ast.stmt]:
    """The statements without what does nothing when the code runs.

    Goes down statement lists only (expressions hold no statements), which is what makes it quick.
    """
    kept: list[ast.stmt] = []
    for statement in statements:
        match statement:
            case ast.Expr(value=ast.Constant(value=str())):
                continue  # a docstring, or another text that stands alone
            case ast.Pass():
                continue  # a class that gets a docstring in place of its `pass` is the same class
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                kept.extend(_bare(statement.orelse))
                continue
        for holder in [statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]:
            for field in _BODIES:
                inner = getattr(holder, field, None)
                if inner:
                    setattr(holder, field, _bare(inner))
        kept.append(statement)
    return kept


def _imports(statements: list[ast.stmt], parent: str) -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            parts = parent.split(".")
            base = ".".join(parts[: len(parts) - statement.level + 1]) if statement.level else ""
            source = ".".join(part for part in (base, statement.module) if part)
            yield source
            # What is imported may be a module of that package; names that are no modules are dropped by the reader.
            yield from (f"{source}.{alias.name}" for alias in statement.names)
        for holder in [statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]:
            for field in _BODIES:
                yield from _imports(getattr(holder, field, None) or [], parent)


def _with_parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def _in_package(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@remembered
def _file(base: Path, module: str) -> Path | None:
    path = base.joinpath(*module.split("."))
    for candidate in (path / "__init__.py", path.with_name(path.name + ".py")):
        if candidate.is_file():
            return candidate
    return None
