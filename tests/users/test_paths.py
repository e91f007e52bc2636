"""Every command of the pages that a user reads first is typed on one of the three paths, or it is said why not."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
from reader import INLINE, LEFT_OUT, ROOT, blocks, commands

PATHS = ("test_newcomer", "test_lab", "test_maintainer")
PAGES = ("README.md", "docs/tutorial.md", "docs/commands.md", "CONTRIBUTING.md")
NAMES = {"recollect list", "recollect settings", "recollect sweep"}
"""Of README's table: commands that take more words, which docs/commands.md and the tutorial have."""


def typed() -> set[str]:
    """The commands that the three paths type, by themselves or with their section."""
    found: set[str] = set()
    for path in PATHS:
        known = vars(importlib.import_module(path))
        for node in ast.walk(ast.parse(Path(known["__file__"]).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) > 1:
                page, what = node.args[:2]
                if isinstance(page, ast.Name) and isinstance(what, ast.Constant):
                    if node.func.attr in ("types", "on"):
                        found.add(str(what.value))
                    if node.func.attr == "does":
                        there = [block for block in blocks(known[page.id]) if block.heading == what.value]
                        assert there, f"{path}: {known[page.id]} has no section '{what.value}'"
                        found |= {command for block in there for command in commands(block)}
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_typed_or_left_out_for_a_reason(page: str) -> None:
    nobody = {command for block in blocks(page) for command in commands(block)} - typed() - set(LEFT_OUT)
    assert not nobody, f"no path types {sorted(nobody)}"


def test_what_the_table_of_the_readme_says_is_typed() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.split("| command | what it says or does |")[1].split("\n\n")[0]
    first = [line.split(" | ")[0] for line in table.splitlines()[2:]]
    named = {command for cell in first for command in INLINE.findall(cell)}
    assert len(named) >= 8 and named <= typed() | NAMES


def test_nothing_is_left_out_that_no_page_says() -> None:
    assert set(LEFT_OUT) <= {command for page in PAGES for block in blocks(page) for command in commands(block)}
