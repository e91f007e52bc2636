"""Promises of what counts as running code: words for people do not, everything else does."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recollect.artifacts import running_code
from recollect.artifacts.running_code import running_text

FUNCTION = """
def check(value, known):
    '''Checks.'''
    what = f"{value} is wrong"
    do = "mend it"
    place = "here"
    if value not in known:
        raise UserError(what, where=place, do=do)
    return place
"""


def text(code: str) -> str:
    return running_text(ast.parse(code))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Checks.", "Checks it."),
        ('f"{value} is wrong"', '"not right"'),
        ('f"{value} is wrong"', 'f"{value!r} is wrong, not one of {known}"'),
        ("mend it", "correct it"),
    ],
)
def test_the_words_of_an_error_do_not_count(before: str, after: str) -> None:
    assert before in FUNCTION
    assert text(FUNCTION.replace(before, after)) == text(FUNCTION)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('place = "here"', 'place = "there"'),  # it is returned, too
        ("value not in known", "value in known"),
        ("return place", "return known"),
        ("raise UserError(what", "raise ValueError(what"),
        ("where=place", "where=value"),
    ],
)
def test_everything_else_in_it_counts(before: str, after: str) -> None:
    assert before in FUNCTION
    assert text(FUNCTION.replace(before, after)) != text(FUNCTION)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('log.info("step %d", step)', 'log.info("at step %d", step)', True),
        ('log.info("step %d", step)', 'log.info("step %d", other)', False),
        ("run.log(step, loss=1.0)", "run.log(step, losses=1.0)", False),
        ('run.progress(9, "training")', 'run.progress(9, f"training {name}")', True),
        ('run.progress(9, "training")', 'run.progress(10, "training")', False),
        ('x: int = Field(3, ge=1, description="A.")', 'x: int = Field(3, ge=1, description="B.")', True),
        ('x: int = Field(3, ge=1, description="A.")', 'x: int = Field(4, ge=1, description="A.")', False),
        ('mode = "greedy"', 'mode = "sample"', False),
        ('kinds = {"a": 1}', 'kinds = {"b": 1}', False),
        ("if TYPE_CHECKING:\n    a\nelse:\n    x = 1", "if TYPE_CHECKING:\n    b\nelse:\n    x = 1", True),
        ("if TYPE_CHECKING:\n    a\nelse:\n    x = 1", "if TYPE_CHECKING:\n    a\nelse:\n    x = 2", False),
        ("x = None", "x = 0", False),
        ("x = 1", "x = True", False),
        ("x = [None, 1]", "x = [1, None]", False),
        ("f(a)(b)", "f(a, b)", False),
        ("a - (b - c)", "a - b - c", False),
        ("def f():\n    pass", "def f():\n    '''Nothing.'''", True),
        ("class A:\n    x = 1", "class A:\n    '''Why.'''\n    x = 1  # one", True),
    ],
)
def test_what_counts_elsewhere(one: str, other: str, same: bool) -> None:
    assert (text(one) == text(other)) == same


def test_an_empty_text_that_a_python_puts_into_a_format_counts_nothing() -> None:
    tree = ast.parse('x = f"{a:{b}}"')
    before = running_text(tree)
    (format_spec,) = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)][1:]
    format_spec.values.append(ast.Constant(""))
    assert running_text(tree) == before != running_text(ast.parse('x = f"{a:{c}}"'))


def python_of(version: str) -> str | None:
    """A Python of this minor version: on the path, or one that pyenv keeps."""
    kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python3"))
    for python in (shutil.which(f"python{version}"), *map(str, kept)):
        if python is not None and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
            return python
    return None


@pytest.mark.parametrize(
    "version", [*(pytest.param(each, marks=pytest.mark.slow) for each in ("3.12", "3.13")), "3.14"]
)
def test_the_text_is_the_same_under_another_python(version: str, tmp_path: Path) -> None:
    python = python_of(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    package = Path(running_code.__file__).resolve().parents[1]
    shutil.copy(running_code.__file__, tmp_path / "running_code.py")
    code = (
        "import ast, hashlib, sys; from pathlib import Path; from running_code import running_text\n"
        "total = hashlib.sha256()\n"
        "for path in sorted(Path(sys.argv[1]).rglob('*.py')): total.update(running_text(ast.parse(path.read_bytes())).encode())\n"
        "print(total.hexdigest())"
    )
    said = {
        subprocess.run(
            [each, "-c", code, str(package)], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        for each in (sys.executable, python)
    }
    assert len(said) == 1
