"""What of one's own is found: in `mine/`, in installed plug-ins, by what a file declares, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import gymnasium
import pytest

from recollect.jobs import reported
from recollect.settings import catalogue
from recollect.settings.catalogue import declaration, declared, known, module_of, roots
from recollect.settings.errors import UserError
from recollect.settings.loading import config_path, names
from recollect.settings.resolve import environment_settings, scale_settings
from recollect.stages.seeds import together

WORLD = """
from recollect.environments.base import World as BaseWorld

class World(BaseWorld):
    pass

@print
def tasks(split):
    pass
"""


@pytest.fixture
def mine(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory's own folder, empty."""
    monkeypatch.delenv("RECOLLECT_MINE")
    folder = workdir / "mine"
    (folder / "config" / "environments").mkdir(parents=True)
    return folder


def test_a_module_is_found_by_the_names_that_it_declares_and_is_not_imported(mine: Path) -> None:
    (mine / "corridor.py").write_text(WORLD)
    (mine / "wrapped.py").write_text("from functools import partial\nfrom x import World\ntasks = partial(print)\n")
    (mine / "optional.py").write_text("try:\n    from x import World, tasks\nexcept ImportError:\n    raise\n")
    (mine / "helper.py").write_text("# World = tasks\ndef make():\n    World = tasks = 1\n")
    worlds = known("world")
    assert {name: worlds[name] for name in worlds if worlds[name].startswith("mine.")} == {
        name: f"mine.{name}" for name in ("corridor", "wrapped", "optional")
    }
    assert "registry" not in worlds and "base" not in worlds
    assert roots()["mine"] == mine.parent and (roots()["recollect"] / "recollect" / "cli.py").is_file()


def test_what_lies_beside_ones_own_folder_hides_no_package(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (mine.parent / "this.py").write_text("raise RuntimeError")
    monkeypatch.setattr(sys, "path", [*sys.path])
    catalogue.reach_mine()
    spec, own = (PathFinder.find_spec(name) for name in ("this", "mine"))
    assert spec is not None and Path(str(spec.origin)).parent != mine.parent
    assert own is not None and str(mine) in (own.submodule_search_locations or ())


@pytest.mark.parametrize("kind", catalogue.KINDS)
def test_every_kind_is_found_in_mine(kind: str, mine: Path) -> None:
    (mine / "own.py").write_text("".join(f"def {name}(): pass\n" for name in catalogue.KINDS[kind].declares))
    assert module_of(kind, "own", where="test") == "mine.own"
    with pytest.raises(UserError, match="named 'owm'") as refused:
        module_of(kind, "owm", where="test")
    assert refused.value.do == "did you mean 'own'?"


def test_a_file_that_lacks_a_name_of_its_kind_is_told_which(mine: Path) -> None:
    """A method that can be trained and not played is none, and the error names its file."""
    (mine / "own.py").write_text("class Hyperparameters: pass\ndef train(): pass\n")
    assert "own" not in known("method")
    with pytest.raises(UserError, match="no algorithm named 'own'") as refused:
        module_of("method", "own", where="test")
    assert refused.value.do == "declare `load_policy` in mine/own.py"
    with pytest.raises(UserError, match="no image encoder named 'own'") as refused:
        module_of("image encoder", "own", where="test")
    assert "declare" not in refused.value.do


def test_only_what_can_be_trained_and_played_is_a_method() -> None:
    """The small vision-language model has hyperparameters and a training, and no run is made with it."""
    methods = known("method")
    assert "dual_encoder" not in methods
    assert {module.split(".")[1] for module in methods.values()} >= {"radt", "memory_rl", "amago", "helm"}
    for name, module in methods.items():
        assert {"train", "load_policy"} <= vars(catalogue.load("method", name, where="test")).keys(), module


def test_a_name_that_stands_in_two_places_is_refused_with_both(mine: Path, workdir: Path) -> None:
    (mine / "dark_room.py").write_text(WORLD)
    with pytest.raises(UserError, match="two of the kind 'world' named 'dark_room'") as refused:
        module_of("world", "dark_room", where="test")
    assert "recollect/environments/dark_room.py and " in refused.value.where
    assert refused.value.where.endswith("mine/dark_room.py")
    (mine / "config/environments/random_maze.yaml").write_text("world: random_maze\n")
    with pytest.raises(UserError, match="two files for 'random_maze' in environments") as refused:
        environment_settings("smoke", "random_maze")
    where = refused.value.where
    assert where == f"config/environments/random_maze.yaml and {mine}/config/environments/random_maze.yaml"


def test_a_file_under_the_name_of_a_size_of_another_is_refused_with_both(mine: Path) -> None:
    """Else it would take the place of the published environment in every figure that shows it."""
    path = mine / "config/environments/tmaze_passive_5.yaml"
    path.write_text("world: random_maze\n")
    with pytest.raises(UserError, match="two files for 'tmaze_passive_5'") as refused:
        environment_settings("smoke", "tmaze_passive_5")
    assert refused.value.where == f"config/environments/tmaze_passive.yaml and {path}"
    assert environment_settings("smoke", "tmaze_passive_6").world == "tmaze"


def test_configuration_of_ones_own_is_found_and_named_where_it_is_wrong(mine: Path) -> None:
    path = mine / "config/environments/tiny_room.yaml"
    path.write_text("world: dark_room\noptions: {width: 3}\ntypo: 1\n")
    assert "tiny_room" in names("environments") and config_path("environments", "tiny_room") == path
    with pytest.raises(UserError, match="unknown key 'typo'") as refused:
        environment_settings("smoke", "tiny_room")
    assert str(path) in refused.value.where
    with pytest.raises(UserError, match="no configuration named 'tiny_rom'") as refused:
        environment_settings("smoke", "tiny_rom")
    assert "did you mean 'tiny_room'" in refused.value.do
    (mine / "config/scales").mkdir()
    (mine / "config/scales/mine.yaml").write_text("description: Mine.\nseeds: [3]\n")
    assert scale_settings("mine").seeds == (3,)


def test_another_folder_can_be_named_and_its_name_must_be_a_packages(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workdir / "lab").mkdir()
    (workdir / "lab" / "corridor.py").write_text(WORLD)
    monkeypatch.setenv("RECOLLECT_MINE", str(workdir / "lab"))
    assert module_of("world", "corridor", where="test") == "lab.corridor"
    for wrong in ("my-lab", "recollect"):
        monkeypatch.setenv("RECOLLECT_MINE", str(workdir / wrong))
        with pytest.raises(UserError, match="imported as a package"):
            known("world")


def test_what_a_file_declares_is_its_literals_and_else_true(tmp_path: Path) -> None:
    path = tmp_path / "file.py"
    path.write_text("A = {'x': (1, None)}\nB: int = 3\nC = D = print\nimport os.path as E\nclass F: G = 1\nH: int\n")
    assert declared(path) == {"A": {"x": (1, None)}, "B": 3, "C": True, "D": True, "E": True, "F": True}
    path.write_text("def x(:\n")
    with pytest.raises(UserError, match="not valid Python"):
        declared(path)
    assert declaration("figure", "state_visitation", "READS") == "traces"
    assert declaration("figure", "no_such_kind", "READS") is None


def test_an_installed_package_with_an_entry_point_is_searched(tmp_path: Path) -> None:
    """Its modules and its configuration; a single module, too. Run in a process that finds them on its path."""
    package = tmp_path / "lab" / "things"
    (package / "config" / "figures").mkdir(parents=True)
    (tmp_path / "lab" / "__init__.py").write_text("raise SystemExit('nothing is imported to look for names')\n")
    (package / "corridor.py").write_text(WORLD)
    (package / "config/figures/my_figure.yaml").write_text("kind: bars\n")
    (tmp_path / "single.py").write_text("Hyperparameters = 1\ndef train(): pass\ndef load_policy(): pass\n")
    about = tmp_path / "lab-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lab\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[recollect.plugins]\nlab = lab.things\nother = single\n")
    code = """
from recollect.settings.catalogue import known, roots
from recollect.settings.loading import names
print(known("world")["corridor"], known("method")["single"], "my_figure" in names("figures"), roots()["lab"], roots()["single"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["lab.things.corridor", "single", "True", str(tmp_path), str(tmp_path)], done.stderr


def test_a_world_of_ones_own_is_registered_with_gymnasium(mine: Path) -> None:
    """And plays there, by the id that it declares; in a process of its own, as a user would."""
    (mine / "pair.py").write_text(
        """
import numpy as np
from gymnasium.spaces import Box, Discrete
from recollect.environments.base import Task
from recollect.environments.base import World as BaseWorld

GYMNASIUM_IDS = {"mine/Pair-v0": {}}

def tasks(split, **options):
    return [Task(0, "pair", split)]

class World(BaseWorld):
    def _setup(self):
        self.horizon = 2
        self.single_observation_space = Box(0, 1, (1,), np.float32)
        self.single_action_space = Discrete(2)

    def _begin(self, index_N):
        pass

    def _advance(self, actions_B, last_B):
        return actions_B.astype(np.float32), None

    def _observe(self):
        return np.zeros((self.num_envs, 1), np.float32)
"""
    )
    code = """
import gymnasium, recollect.environments
env = gymnasium.make("mine/Pair-v0")
env.reset(seed=0)
print(env.step(1)[1:4], env.step(0)[1:4])
"""
    environment = {key: value for key, value in os.environ.items() if key != "RECOLLECT_MINE"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=mine.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "(1.0, False, False) (0.0, False, True)\n", done.stderr
    assert "mine/Pair-v0" not in gymnasium.registry  # of this process


@pytest.fixture
def failing(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a name that no other test has: what is imported from it stays in this process."""
    folder = workdir / f"mine_{workdir.name}"
    folder.mkdir()
    monkeypatch.setenv("RECOLLECT_MINE", folder.name)
    return folder


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("return nothing", "your code fails: NameError: name 'nothing' is not defined"),
        ("return np.zeros(2) @ np.zeros(3)", "your code fails: ValueError: "),
        ("sys.exit('no')", "your code ends the process, with status 'no'"),
        ("exit(3)", "your code ends the process, with status 3"),
    ],
)
def test_an_error_in_own_code_is_a_message_that_names_its_line_behind_how_it_came_about(
    failing: Path, line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (failing / "rule.py").write_text(f"import sys\nimport numpy as np\ndef update():\n    {line}\n")
    update = catalogue.imported(f"{failing.name}.rule", "the rule", where="test").update
    with pytest.raises(SystemExit) as ended, reported():
        update()
    assert ended.value.code == 2
    trace, _, message = capsys.readouterr().err.partition("error: ")
    assert trace.startswith("Traceback") and line in trace
    assert message.startswith(said) and f"where: {failing.name}/rule.py:4\n" in message


def test_of_several_seeds_the_one_that_own_code_fails_names_the_line_and_the_others_are_made(
    failing: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (failing / "loss.py").write_text("def update(seed):\n    return 1 / (seed - 1)\n")
    update, made = catalogue.imported(f"{failing.name}.loss", "the loss", where="test").update, []
    with pytest.raises(UserError, match="1 of 3 runs failed: seeds 1"):
        together([0, 1, 2], lambda seed: made.append((seed, update(seed))))
    assert [seed for seed, _ in made] == [0, 2]
    assert "Traceback" in capsys.readouterr().err
    (said,) = caplog.messages
    assert (
        said.startswith("seed 1 failed: your code fails: ZeroDivisionError") and f"{failing.name}/loss.py:2\n" in said
    )


def test_a_run_that_is_stopped_while_own_code_is_at_work_and_an_error_of_ours_stay_as_they_are(failing: Path) -> None:
    (failing / "loop.py").write_text("def train(save):\n    save()\n")
    train = catalogue.imported(f"{failing.name}.loop", "the loop", where="test").train

    def stopped() -> None:
        raise SystemExit(75)

    with pytest.raises(SystemExit) as ended, reported():
        train(stopped)
    assert ended.value.code == 75
    with pytest.raises(ZeroDivisionError), reported():
        1 / 0  # noqa: B018


@pytest.mark.parametrize("other", ["mine/corridor.py", "mine/__init__.py", "mine.py"])
def test_a_file_of_the_same_name_elsewhere_is_not_run_in_place_of_ones_own(
    mine: Path, tmp_path: Path, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of another clone that is named in PYTHONPATH."""
    (mine / "corridor.py").write_text(WORLD)
    elsewhere = tmp_path / "elsewhere" / other
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_text(f"{WORLD}# another\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "elsewhere"), *sys.path])
    with pytest.raises(UserError, match="Python finds another `mine` before it") as refused:
        catalogue.load("world", "corridor", where="test")
    assert str(elsewhere) in refused.value.where
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        del sys.modules[name]
