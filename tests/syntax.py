"""Where a Python file imports something: among its statements, which are a tenth of its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def statements(tree: ast.AST, *, of_types: bool = True) -> Iterator[ast.AST]:
    """The tree and all statements in it, wherever they stand.

    Args:
        of_types: also those below `if TYPE_CHECKING:`.
    """
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and not of_types and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        for inside in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, inside, ())
            waiting += inner if isinstance(inner, list) else ()
