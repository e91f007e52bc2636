"""What of a file's syntax tree decides what the code computes, as one text.

Left out are docstrings, `pass`, ``if TYPE_CHECKING`` blocks, descriptions of settings, and texts that can only reach a
person: those in a `raise`, in a call that reports (`UserError`, `print`, `log.info`, a progress bar), and those kept in a
variable that nothing else reads. The text is the same under every minor version of Python: fields that are empty, which
is how newer versions add theirs, are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

_BLOCKS = {"body", "orelse", "finalbody"}
_REPORTS = {"UserError", "Progress", "print", "warn"}
_REPORTS_ON = {("log", "debug"), ("log", "info"), ("log", "warning"), ("log", "error"), ("warnings", "warn")}
_LEFT_OUT = {"ctx", "kind", "type_comment"}


def running_text(tree: ast.Module) -> str:
    """The tree without its words; equal texts compute the same."""
    writer = _Writer()
    writer.write(tree, blank=False)
    return "".join(writer.pieces)


def imports_of(tree: ast.Module, parent: str) -> Iterator[str]:
    """The modules that running code may import, wherever it stands; relative names start from the package `parent`.

    ``from a import b`` gives `a` and `a.b`, which may be a module or not.
    """
    for statement in _statements(tree.body):
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield alias.name
        elif isinstance(statement, ast.ImportFrom):
            parts = parent.split(".")
            base = ".".join(parts[: len(parts) - statement.level + 1]) if statement.level else ""
            source = ".".join(part for part in (base, statement.module) if part)
            yield source
            for alias in statement.names:
                yield f"{source}.{alias.name}"


def running(statements: list[ast.stmt]) -> list[ast.stmt]:
    """A block's statements without docstrings, `pass` and what only type checkers read."""
    kept: list[ast.stmt] = []
    for statement in statements:
        match statement:
            case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
                continue
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                kept.extend(running(statement.orelse))
            case _:
                kept.append(statement)
    return kept


def _statements(block: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Every running statement of a block and of the blocks in it (expressions hold none, so they are not searched)."""
    for statement in running(block):
        yield statement
        for holder in [statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]:
            for field in _BLOCKS:
                yield from _statements(getattr(holder, field, None) or [])


class _Writer:
    """Writes a tree down, with its texts or blank."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self._messages: set[str] = set()  # variables of the function at hand that only reports read
        self._in_function = False

    def write(self, node: ast.AST, *, blank: bool) -> None:
        """Add a node and all below it; with `blank` every text in it is left empty."""
        if isinstance(node, ast.Constant):
            self.pieces.append("''" if blank and isinstance(node.value, str) else repr(node.value))
            return
        if isinstance(node, ast.JoinedStr) and blank:
            self.pieces.append("''")
            return
        outermost = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not self._in_function
        if outermost:
            self._in_function, self._messages = True, _message_names(node)
        blank = blank or isinstance(node, ast.Raise) or _is_report(node) or self._is_message(node)
        self._write_fields(node, blank)
        if outermost:
            self._in_function, self._messages = False, set()

    def _write_fields(self, node: ast.AST, blank: bool) -> None:
        self.pieces.append(type(node).__name__)
        self.pieces.append("(")
        is_description = isinstance(node, ast.keyword) and node.arg == "description"
        for field in node._fields:
            value = getattr(node, field, None)
            if value is None or value == [] or field in _LEFT_OUT:
                continue
            self.pieces.append(field)
            if isinstance(value, ast.AST):
                self.write(value, blank=blank or is_description)
            elif isinstance(value, list):
                if isinstance(node, ast.JoinedStr):  # Python 3.12.1 ends f"{a:{b}}" with an empty text
                    value = [item for item in value if not (isinstance(item, ast.Constant) and item.value == "")]
                self._write_list(running(value) if field in _BLOCKS else value, blank)
            else:
                self.pieces.append(repr(value))
        self.pieces.append(")")

    def _write_list(self, items: Sequence[object], blank: bool) -> None:
        for item in items:
            if isinstance(item, ast.AST):
                self.write(item, blank=blank)
            else:
                self.pieces.append(repr(item))
            self.pieces.append(",")

    def _is_message(self, node: ast.AST) -> bool:
        if not self._messages or not isinstance(node, ast.Assign):
            return False
        names = [part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)]
        return bool(names) and self._messages.issuperset(names)


def _message_names(function: ast.AST) -> set[str]:
    """The variables of a function that are read only by errors and reports: ``what = f"..."; raise UserError(what, ...)``."""
    read_by_code: set[str] = set()
    read_by_reports: set[str] = set()
    waiting: list[tuple[ast.AST, bool]] = [(function, False)]
    while waiting:
        node, reports = waiting.pop()
        reports = reports or isinstance(node, ast.Raise) or _is_report(node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            (read_by_reports if reports else read_by_code).add(node.id)
        for child in ast.iter_child_nodes(node):
            waiting.append((child, reports))
    return read_by_reports - read_by_code


def _is_report(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    match node.func:
        case ast.Name(id=name):
            return name in _REPORTS
        case ast.Attribute(value=ast.Name(id=owner), attr=attr):
            return (owner, attr) in _REPORTS_ON or attr == "progress"
    return False
