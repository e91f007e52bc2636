"""The house's order: who may import whom (design section 2), how long a file may be, and that nothing is ever pickled."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from syntax import statements

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "recollect"

# What each part may import, besides itself.
BASE = {"settings"}
ARTIFACTS = BASE | {"artifacts"}
PAPERS = {"radt", "memory_rl", "amago", "helm"}
SCIENCE = ARTIFACTS | {"environments", "common"}
ALLOWED = {
    "settings": set(),
    "artifacts": BASE,
    "environments": ARTIFACTS,
    "common": ARTIFACTS | {"environments"},
    **{paper: SCIENCE for paper in PAPERS},  # no paper knows another
    "sources": SCIENCE,
    # Evaluation knows what a policy is, and no method.
    "evaluation": SCIENCE,
    "figures": SCIENCE,
    "stages": SCIENCE | PAPERS | {"sources", "evaluation", "figures"},
    "warm": {"artifacts"},
    "jobs": ARTIFACTS,
    "options": BASE | {"stages", "__version__"},
    "commands": BASE | {"stages", "warm", "jobs", "options"},
    "cli": ARTIFACTS | {"stages", "jobs", "options", "commands"},
    "launch": {"artifacts", "warm", "cli"},
    # What Python users import.
    "folders": BASE,
    "given": BASE,
    "api": SCIENCE | {"sources", "evaluation", "stages", "folders", "given"},
    "tables": ARTIFACTS | {"stages", "folders", "given", "api"},
}
LONGEST = 400
PICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
PICKLING = {"to_pickle", "read_pickle", "savez", "savez_compressed", "dump"}  # methods, whatever they are of
OWN_FILES = {"torch": {"load", "save"}, "numpy": {"load", "save", "savez", "savez_compressed"}}
WORDS = PICKLING.union(*OWN_FILES.values())


def modules(folder: Path = PACKAGE) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def part_of(path: Path) -> str:
    """The part a file belongs to: `methods`, `cli`, ..."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(tree: ast.AST, *, of_types: bool = True) -> Iterator[str]:
    """Every module of ours that a file imports, anywhere in it (for types alone too): `recollect.nets.transformer`."""
    for node in statements(tree, of_types=of_types):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "recollect")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "write imports from recollect in full"
            if node.module is not None and node.module.split(".")[0] == "recollect":
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def breaches(part: str, tree: ast.AST) -> list[str]:
    """The imports of a file of this part that the order does not allow."""
    found = []
    for name in imported(tree):
        inside = name.removeprefix("recollect.")
        known = inside.split(".")[0] == part or any(
            inside == allowed or inside.startswith(allowed + ".") for allowed in ALLOWED[part]
        )
        if not known:
            found.append(name)
    return found


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_imports_run_one_way(part: str) -> None:
    files = [path for path in modules() if part_of(path) == part]
    assert files
    wrong = {path.relative_to(PACKAGE).as_posix(): found for path in files if (found := breaches(part, parsed(path)))}
    assert not wrong


# Files of circles that stand today, with imports inside of functions. The list only shrinks.
KNOWN_CIRCLES: set[str] = set()


def imported_files(path: Path) -> set[Path]:
    """The files of ours that a file imports, anywhere in it but for types alone."""
    found: set[Path] = set()
    for name in imported(parsed(path), of_types=False):
        inside = PACKAGE.joinpath(*name.split(".")[1:])
        found |= {inside.with_suffix(".py"), inside.parent.with_suffix(".py")}
    return {file for file in found if file.is_file() and file != path}


def test_no_two_files_of_a_part_import_each_other_in_a_circle() -> None:
    direct = {path: {other for other in imported_files(path) if part_of(other) == part_of(path)} for path in modules()}
    circles: set[str] = set()
    for path in direct:
        seen, waiting = set[Path](), list(direct[path])
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                waiting += direct.get(one, ())
        if path in seen:
            circles.add(path.relative_to(PACKAGE).as_posix())
    assert circles == KNOWN_CIRCLES


def test_every_part_has_its_place_in_the_order() -> None:
    assert {part_of(path) for path in modules()} - {"__init__"} == set(ALLOWED)
    assert not list(imported(parsed(PACKAGE / "__init__.py")))


@pytest.mark.parametrize(
    ("part", "text", "breach"),
    [
        ("common", "from recollect.radt.chunks import Chunks", True),
        ("common", "from recollect.environments.base import Task", False),
        ("environments", "import recollect.common.index", True),
        ("radt", "from recollect.helm import ppo_cnn", True),
        ("helm", "from recollect.sources.ppo import EnsemblePPO", True),
        ("amago", "def later():\n    from recollect.stages import paths", True),
        ("evaluation", "from recollect.radt import dt", True),
        ("evaluation", "from recollect.common.contract import Policy", False),
        ("stages", "from recollect.radt import dt", False),
        ("settings", "from recollect.artifacts.sealed import verify", True),
        ("cli", "from recollect.stages.train import train", False),
        ("figures", "from recollect import cli", True),
    ],
)
def test_a_breach_is_seen(part: str, text: str, breach: bool) -> None:
    assert bool(breaches(part, ast.parse(text))) == breach


def test_files_stay_readable() -> None:
    lines = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8").count("\n") for path in modules()}
    assert not {name: count for name, count in lines.items() if count > LONGEST}
    vague = {"utils", "util", "helpers", "misc"}
    assert not [name for name in lines if Path(name).stem in vague]


def pickling(tree: ast.AST) -> list[str]:
    """What may write or read a pickle: the modules for it, torch.save and torch.load, numpy's own files, methods that pickle.

    `np.load(..., allow_pickle=False)`, written out, is the one way in: it reads arrays and refuses objects.
    """
    found = []
    imports = [alias for node in statements(tree) if isinstance(node, ast.Import) for alias in node.names]
    called_by = {"np": "numpy"} | {name: name for name in OWN_FILES}
    called_by |= {alias.asname: alias.name for alias in imports if alias.asname}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in PICKLERS]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found += [node.module] if node.module.split(".")[0] in PICKLERS else []
            found += [alias.name for alias in node.names if alias.name in OWN_FILES.get(node.module, set())]
        elif isinstance(node, ast.Call):
            allowed = [ast.unparse(word.value) for word in node.keywords if word.arg == "allow_pickle"]
            name = getattr(node.func, "attr", "")
            if not allowed and name not in WORDS:
                continue
            called = ast.unparse(node.func)
            of = called.rpartition(".")[0]
            of = called_by.get(of, of)
            reads_arrays = (of, name, allowed) == ("numpy", "load", ["False"])
            if (
                (allowed and allowed != ["False"])
                or (of and of != "json" and name in PICKLING)
                or (name in OWN_FILES.get(of, set()) and not reads_arrays)
            ):
                found.append(called)
    return found


def test_nothing_is_pickled_and_one_file_unpickles_in_a_process_of_its_own() -> None:
    wrong = {path.relative_to(PACKAGE).as_posix(): found for path in modules() if (found := pickling(parsed(path)))}
    assert wrong == {"helm/language/published_transformer_xl.py": ["pickle", "torch.load"]}


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("import pickle", True),
        ("def f():\n    from joblib import dump", True),
        ("torch.load(path, weights_only=True)", True),
        ("np.load(path)", True),
        ("np.load(path, allow_pickle=True)", True),
        ("np.load(path, allow_pickle=False)", False),
        ("import numpy as n\nn.load(path)", True),
        ("import torch as t\nt.save(weights, path)", True),
        ("np.savez(path, a=a)", True),
        ("numpy.savez_compressed(path, a=a)", True),
        ("array.dump(path)", True),
        ("read(path, allow_pickle=True)", True),
        ("np.lib.format.read_array(file, allow_pickle=chosen)", True),
        ("from torch import load", True),
        ("from numpy import savez", True),
        ("frame.to_pickle(path)", True),
        ("json.load(file)", False),
        ("json.dump(content, file)", False),
        ("run.save(step, arrays, state)", False),
    ],
)
def test_a_pickle_is_seen(text: str, seen: bool) -> None:
    assert bool(pickling(ast.parse(text))) == seen
