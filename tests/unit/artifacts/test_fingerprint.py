"""Promises of the code fingerprint: it changes with what runs, and with nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recollect.artifacts import fingerprint as module
from recollect.artifacts import running_code
from recollect.artifacts.fingerprint import _parsed, code_fingerprint, reachable
from recollect.artifacts.sealed import read_json
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


def fingerprint(root: Path, *modules: str) -> str:
    """The fingerprint of modules of a package that lies in a folder of the test's."""
    digests = reachable(*(modules or ("pkg.train",)), roots={"pkg": root})
    return " ".join(f"{name} {digest}" for name, digest in digests.items())


def edit(root: Path, name: str, before: str, after: str) -> None:
    path = root / "pkg" / name
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**9))  # as an edit some time later


def test_imports_are_followed_through_packages_functions_relative_names_and_circles(root: Path) -> None:
    assert set(reachable("pkg.train", roots={"pkg": root})) == {f"pkg{name}" for name in REACHED}


def test_files_of_one_text_import_what_stands_beside_each(tmp_path: Path) -> None:
    for package in ("one", "other"):
        folder = tmp_path / "pkg" / package
        folder.mkdir(parents=True)
        for name, text in {"__init__": "", "run": "from .part import X\n", "part": f"X = '{package}'\n"}.items():
            (folder / f"{name}.py").write_text(text)
    found = reachable("pkg.one.run", "pkg.other.run", roots={"pkg": tmp_path})
    assert {"pkg.one.part", "pkg.other.part"} <= set(found)


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
    one = fingerprint(other, "pkg.losses", "pkg.unreached")
    (other / "pkg").rename(root / "pkg")
    assert one == fingerprint(root, "pkg.unreached", "pkg.losses")
    code = "from recollect.artifacts.fingerprint import code_fingerprint as f; print(f('recollect.radt.dt'))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert said == code_fingerprint("recollect.radt.dt") and len(said) == 16


def test_the_code_itself_is_not_run(root: Path) -> None:
    edit(root, "late.py", "VALUE = 1", "raise SystemExit('imported')")
    assert "pkg.late " in fingerprint(root)


def test_an_unknown_module_and_a_broken_file_are_said(root: Path) -> None:
    with pytest.raises(UserError, match=r"no module 'pkg\.nets\.layer'") as caught:
        fingerprint(root, "pkg.nets.layer")
    assert "did you mean 'pkg.nets.layers'?" in caught.value.do
    with pytest.raises(UserError, match="no module 'numpy'"):
        fingerprint(root, "numpy")
    edit(root, "late.py", "VALUE = 1", "VALUE = = 1")
    with pytest.raises(UserError, match="not valid Python") as caught:
        fingerprint(root)
    assert caught.value.where.endswith("late.py")


def test_science_counts_and_plumbing_does_not() -> None:
    found = set(reachable("recollect.memory_rl.dqn", "recollect.environments.tmaze"))
    assert {"recollect.memory_rl.dqn", "recollect.common.optimiser", "recollect.settings.seeding"} <= found
    plumbing = (
        "settings.errors",
        "settings.schema",
        "artifacts",
        "stages",
        "figures",
        "environments.scene",
        "environments.registry",
    )
    assert not [name for name in found if name.startswith(tuple(f"recollect.{part}" for part in plumbing))]
    assert not [name for name in found if name.split(".")[1] in ("radt", "amago", "helm", "sources")]


def test_the_script_that_plays_a_world_in_another_process_counts() -> None:
    for world in ("procgen", "retro"):
        found = reachable(f"recollect.environments.{world}")
        assert {f"recollect.environments.{world}_worker", "recollect.environments.procgen_worker"} <= found.keys()


def test_figures_count_for_figures_only() -> None:
    assert "recollect.figures.statistics" in reachable("recollect.figures.in_context_curve")
    assert "recollect.figures.statistics" not in reachable("recollect.evaluation.in_context")


def test_no_figure_is_part_of_what_science_computes_whoever_imports_it() -> None:
    figure = "recollect.figures.statistics"
    assert not module._counts(figure, ("recollect.evaluation.in_context",))
    assert module._counts(figure, ("recollect.figures.bars",))


def test_functions_that_draw_count_everywhere_but_in_worlds_of_the_package(root: Path) -> None:
    edit(root, "losses.py", "def loss", "def render(x):\n    return x\n\ndef loss")
    before = fingerprint(root)
    edit(root, "losses.py", "    return x\n", "    return 2 * x\n")
    assert fingerprint(root) != before


def test_methods_of_worlds_that_draw_do_not_count(tmp_path: Path) -> None:
    folder, found = tmp_path / "recollect/environments", []
    folder.mkdir(parents=True)
    for place, (drawn, played) in enumerate(((1, 1), (2, 1), (2, 2))):
        text = f"class World:\n    def render(self):\n        return {drawn}\n\n    def step(self):\n        return {played}\n"
        (folder / f"w{place}.py").write_text(text)
        found.append(reachable(name := f"recollect.environments.w{place}", roots={"recollect": tmp_path})[name])
    assert found[0] == found[1] != found[2]


def test_files_that_are_kept_are_collected_anew_beyond_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST", 2)
    for kept, left in (({"a": ["1"]}, {"a": ["1"]}), ({"a": ["1"], "b": ["2"]}, {})):
        module._keep(tmp_path / "files.json", kept, 0)
        assert read_json(tmp_path / "files.json", kind="files") == left


def test_what_draws_a_world_counts_only_where_its_pictures_are_kept() -> None:
    world = "recollect.environments.dark_room"
    drawn = reachable(world, module.SCENE)
    assert reachable(world)[world] != drawn[world] and module.SCENE in drawn


def test_the_version_of_file_formats_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_fingerprint("recollect.radt.dt")
    monkeypatch.setattr(module.formats, "VERSION", module.formats.VERSION + 1)
    assert code_fingerprint("recollect.radt.dt") != before


def test_a_second_call_parses_nothing(root: Path) -> None:
    fingerprint(root)
    misses = _parsed.cache_info().misses
    fingerprint(root)
    assert _parsed.cache_info().misses == misses


@pytest.mark.slow
def test_what_an_earlier_command_found_is_not_parsed_again(workdir: Path) -> None:
    kept = workdir / module.KEPT

    def in_a_process_of_its_own(before: str) -> str:
        code = f"import ast; {before}; from recollect.artifacts.fingerprint import code_fingerprint as code"
        command = [sys.executable, "-c", f"{code}; print(code('recollect.memory_rl.dqn'))"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    alone = in_a_process_of_its_own("pass")
    assert not kept.exists(), "no folder of Snakemake's, so nothing is kept"
    kept.parent.mkdir()
    assert in_a_process_of_its_own("pass") == alone and kept.exists()
    assert in_a_process_of_its_own("ast.parse = None") == alone
    kept.write_bytes(kept.read_bytes()[:100])
    assert in_a_process_of_its_own("pass") == alone
    assert in_a_process_of_its_own("ast.parse = None") == alone


def test_what_another_version_of_the_reader_found_is_not_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, list[str]] = {}
    monkeypatch.setattr(module, "_kept", lambda: kept)
    found = []
    for reader in (b"one", b"another"):
        monkeypatch.setattr(module, "_reader", lambda reader=reader: reader)
        _parsed.cache_clear()
        fingerprint(root)
        found.append(len(kept))
    assert found == [len(REACHED), 2 * len(REACHED)]


def test_where_nothing_can_be_written_a_command_ends_well(workdir: Path) -> None:
    (workdir / module.KEPT).parent.mkdir()
    code = "import resource; from recollect.artifacts.fingerprint import code_fingerprint; "
    code += "code_fingerprint('recollect.memory_rl.dqn'); resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "" and not (workdir / module.KEPT).exists()


def test_the_code_that_reads_files_is_part_of_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = module._reader.__wrapped__()
    edited = tmp_path / "running_code.py"
    edited.write_bytes(Path(running_code.__file__).read_bytes() + b"# again\n")
    monkeypatch.setattr(running_code, "__file__", str(edited))
    assert module._reader.__wrapped__() != before


def packages(folder: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_module_that_becomes_a_package_imports_what_stands_in_it(tmp_path: Path) -> None:
    texts = {"__init__": "", "run": "from .part import X\n", "part": "X = 1\n", "run/part": "X = 2\n"}
    package = packages(tmp_path / "pkg", texts)
    assert "pkg.part" in reachable("pkg.run", roots={"pkg": tmp_path})
    (package / "run.py").rename(package / "run/__init__.py")
    assert "pkg.run.part" in reachable("pkg.run", roots={"pkg": tmp_path})


def test_packages_around_a_module_are_its_code_and_two_dots_are_followed(tmp_path: Path) -> None:
    text = "from ..losses import loss\n"
    packages(
        tmp_path / "pkg",
        {"__init__": "A = 1\n", "nets/__init__": "B = 1\n", "nets/other": text, "losses": "loss = 1\n"},
    )
    found = reachable("pkg.nets.other", roots={"pkg": tmp_path})
    assert set(found) == {"pkg", "pkg.nets", "pkg.nets.other", "pkg.losses"}
