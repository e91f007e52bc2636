"""Promises of the code fingerprint: it changes with what runs, and with nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recollect.artifacts.fingerprint import _parsed, code_fingerprint, reachable
from recollect.settings.errors import UserError

NESTED = """VALUE = 1
class C:
    def f(self, x):
        try:
            with x:
                for _ in x:
                    \'\'\'Nothing.\'\'\'
                    import pkg.nest.a
        except ValueError:
            import pkg.nest.b
        else:
            import pkg.nest.c
        finally:
            match x:
                case 1:
                    from pkg.nest import d
"""
FILES = {
    **{f"nest/{name}.py": "" for name in ("__init__", "a", "b", "c", "d", "e")},
    "__init__.py": '"""Package."""\n',
    "train.py": '''"""Trains."""
from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy

from pkg.nets import layers
from .losses import loss

if TYPE_CHECKING:
    from pkg.typing_only import Thing

class Stop(Exception):
    pass

def train(x: Thing) -> float:
    from pkg import late

    return loss(x) + layers.f(x) + late.VALUE
''',
    "losses.py": "from .deep.far import SCALE\n\ndef loss(x):\n    return SCALE * x + 1\n",
    "late.py": NESTED,
    "typing_only.py": "class Thing: ...\n",
    "unreached.py": "X = 1\n",
    "nets/__init__.py": "START = 1\n",
    "nets/layers.py": "def f(x):\n    return x\n",
    "nets/other.py": "Y = 1\n",
    "deep/__init__.py": "from . import inner\n",
    "deep/far.py": "import pkg.circle\nSCALE = 2\n",
    "deep/inner.py": "Z = 1\n",
    "circle.py": "import pkg.train\n",
}
REACHED = {"", ".train", ".losses", ".late", ".nets", ".nets.layers", ".deep", ".deep.far", ".deep.inner", ".circle"}
REACHED |= {".nest", ".nest.a", ".nest.b", ".nest.c", ".nest.d"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "pkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def fingerprint(root: Path) -> str:
    return code_fingerprint("pkg.train", root=root, package="pkg")


def edit(root: Path, name: str, before: str, after: str) -> None:
    path = root / "pkg" / name
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**9))  # as an edit some time later


def test_imports_are_followed_through_packages_functions_relative_names_and_circles(root: Path) -> None:
    assert set(reachable("pkg.train", root=root, package="pkg")) == {f"pkg{name}" for name in REACHED}


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("losses.py", "+ 1", "+ 2"),
        ("losses.py", "SCALE * x + 1", "SCALE * (x + 1)"),
        ("late.py", "VALUE = 1", "VALUE = 2"),
        ("deep/far.py", "SCALE = 2", "SCALE = 2.0"),
        ("deep/inner.py", "Z = 1", "W = 1"),
        ("nets/__init__.py", "START = 1", "START = 2"),
        ("train.py", "x: Thing", "y: Thing"),
        ("circle.py", "import pkg.train", "import pkg.train, pkg.unreached"),
    ],
)
def test_a_change_of_what_runs_changes_it(root: Path, name: str, before: str, after: str) -> None:
    old = fingerprint(root)
    edit(root, name, before, after)
    assert fingerprint(root) != old


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("train.py", '"""Trains."""', '"""Trains a policy.\n\nLonger now.\n"""'),
        ("losses.py", "def loss(x):\n", 'def loss(x):\n    """The loss."""\n    # why\n\n'),
        ("losses.py", "SCALE * x + 1", "(SCALE*x)   + 1  # the same"),
        ("train.py", "(Exception):\n    pass", '(Exception):\n    """Says when to stop."""'),
        ("late.py", "VALUE = 1\n", 'VALUE = 1\n"""What VALUE is."""\n'),
        ("train.py", "pkg.typing_only import Thing", "pkg.unreached import X as Thing"),
        ("late.py", "'''Nothing.'''", "'''Still nothing.'''"),
        ("unreached.py", "X = 1", "X = 2"),
        ("nets/other.py", "Y = 1", "this is not python"),
        ("typing_only.py", "...", "x = 1"),
    ],
)
def test_a_change_of_what_does_not_run_changes_nothing(root: Path, name: str, before: str, after: str) -> None:
    old = fingerprint(root)
    edit(root, name, before, after)
    assert fingerprint(root) == old


def test_it_does_not_depend_on_the_place_the_order_or_the_process(root: Path, tmp_path_factory) -> None:
    other = tmp_path_factory.mktemp("elsewhere")
    (root / "pkg").rename(other / "pkg")
    one = code_fingerprint("pkg.losses", "pkg.unreached", root=other, package="pkg")
    (other / "pkg").rename(root / "pkg")
    assert one == code_fingerprint("pkg.unreached", "pkg.losses", root=root, package="pkg")
    code = "import sys; from recollect.artifacts.fingerprint import code_fingerprint as f;"
    code += "print(f('pkg.losses', 'pkg.unreached', root=sys.argv[1], package='pkg'))"
    said = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, check=True).stdout
    assert said.strip() == one and len(one) == 16


def test_the_code_itself_is_not_run(root: Path) -> None:
    edit(root, "late.py", "VALUE = 1", "raise SystemExit('imported')")
    assert len(fingerprint(root)) == 16


def test_an_unknown_module_and_a_broken_file_are_said(root: Path) -> None:
    with pytest.raises(UserError, match=r"no module 'pkg\.nets\.layer'") as caught:
        code_fingerprint("pkg.nets.layer", root=root, package="pkg")
    assert "did you mean 'pkg.nets.layers'?" in caught.value.do
    with pytest.raises(UserError, match="no module 'numpy'"):
        code_fingerprint("numpy", root=root, package="pkg")
    edit(root, "late.py", "VALUE = 1", "VALUE = = 1")
    with pytest.raises(UserError, match="not valid Python") as caught:
        fingerprint(root)
    assert caught.value.where.endswith("late.py")


def test_this_package_is_followed_by_default_and_its_artifacts_do_not_reach_upwards() -> None:
    found = set(reachable("recollect.artifacts.run"))
    assert {"recollect", "recollect.artifacts.sealed", "recollect.settings.errors"} <= found
    assert not any(name.startswith(("recollect.stages", "recollect.methods", "recollect.nets")) for name in found)


def test_a_second_call_parses_nothing_and_is_quick(root: Path) -> None:
    fingerprint(root)
    misses = _parsed.cache_info().misses
    begin = time.perf_counter()
    fingerprint(root)
    assert _parsed.cache_info().misses == misses
    assert time.perf_counter() - begin < 0.2
