"""`recollect check --env`: what is wrong with a world or a method of one's own is said in a line each, with its file."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import fast_yaml
import pytest
from own_files import files_of_the_page

from recollect.environments import checker
from recollect.settings.errors import UserError
from recollect.stages.check_own import check_own

NUMBERS = itertools.count()
PAYS = "return (self._cell_B == self._goal_B).astype(np.float32), None"
SEES = "return self._cell_B[:, None].copy()"


@pytest.fixture
def own(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of docs/adding.md, in a folder of a new name: its modules were never imported."""
    folder = workdir / f"own_{next(NUMBERS)}"
    monkeypatch.setenv("RECOLLECT_MINE", folder.name)
    for name, text in files_of_the_page().items():
        path = folder / Path(name).relative_to("mine")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("mine.", f"{folder.name}."))
    return folder


def said(own: Path, changed: str, old: str, new: str, method: str | None = None, env: str = "corridor") -> str:
    """What the check says of an environment of the page, where a file differs."""
    path = own / changed
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    lines = []
    with pytest.raises(UserError, match=r"promises? (is|are) not kept"):
        for line in check_own("tiny", env, method):
            lines.append(line)
    assert all("To do: " in line and "\n" not in line for line in lines)
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        (
            PAYS,
            PAYS.replace("np.float32)", "np.float32) / 0"),
            r"corridor\.py: the world gave the reward (nan|inf) at step 1 of",
        ),
        (PAYS, PAYS.removesuffix(", None"), r"_advance: `_advance` must return two things, and it returned an array"),
        (PAYS, "return 1.0, None", r"_advance: the rewards of 4 instances are a `float`"),
        (PAYS, PAYS.replace("float32", "int64"), r"rewards of 4 instances are int64"),
        (PAYS, PAYS.replace("float32", "complex64"), r"_advance: the rewards of 4 instances are an array complex64"),
        (PAYS, PAYS.replace("None", "self._cell_B"), r"the ends of 4 instances are an array int16"),
        (PAYS, PAYS.replace(", None", ", self.nothing"), r"corridor\.py:\d+: `_advance` fails with AttributeError"),
        (
            PAYS,
            PAYS.replace("self._goal_B)", "self._goal_B[0])"),
            "instance . of a batch is not what its task gives alone",
        ),
        (
            PAYS,
            PAYS.replace("_cell_B ==", "_cell_B + 3 * np.random.rand() <"),
            "the same tasks, seeds and actions gave something",
        ),
        (SEES, "return self._cell_B", r"_observe: the observations of 4 instances are an array int16 \(4,\)"),
        (SEES, f"{SEES} + np.int16(100)", "observations hold 10., which is above 8, the bound of the space"),
        (SEES, f"{SEES}.astype(float)", "observations are float64, and `single_observation_space` is int16"),
        (SEES, SEES.removesuffix(".copy()"), r"observations that was returned is written again.*\.copy\(\)"),
        (
            'self._keep_zeros("cell", np.int16)',
            "np.zeros(self.num_envs, np.int16)",
            "from `get_state` gives something else",
        ),
        ("Discrete(3)", "Box(-np.inf, np.inf, (1,))", "actions have no bounds"),
        ("def _observe", "def _look", "the class `World` has no method `_observe`"),
        ("def _advance", "def _advanse", "the class `World` has no method `_advance`"),
        ("self.horizon = self.options.horizon", "pass", r"`_setup` does not set `self\.horizon`"),
        ("self.horizon = self.options.horizon", "self.horizon = 0", r"_setup: `self\.horizon` is 0\. .*at least 1"),
        ("self.horizon = self.options.horizon", "self.horizon = 5.0", r"_setup: `self\.horizon` is 5\.0\."),
        ("Discrete(3)", "Discrete(3, start=1)", r"`self\.single_action_space` is Discrete\(3, start=1\)"),
        ("Discrete(3)", "3", r"_setup: `self\.single_action_space` is 3\."),
        ("Box(0, self._last, (1,), np.int16)", "Discrete(9)", r"`self\.single_observation_space` is Discrete\(9\)"),
        ('"goal_{cell}", split,', '"goal_{cell}", "train",', "tasks of the split 'eval' do not say their place"),
        ("split: str, **options: Any)", "split: str)", r"tasks: `tasks` cannot be called: .*\*\*options\)`"),
        ('"marks": [goal]', '"mark": [goal]', r"picture: what `picture` returns cannot be drawn: .*'mark'"),
    ],
)
def test_a_world_that_breaks_a_promise_is_told_which_and_where(own: Path, old: str, new: str, finding: str) -> None:
    found = said(own, "corridor.py", old, new)
    assert re.search(finding, found) and f"{own.name}/corridor.py" in found


def test_an_option_called_split_is_no_fault_of_the_worlds_file(own: Path) -> None:
    found = said(own, "config/environments/corridor.yaml", "{length: 9}", "{length: 9, split: train}")
    assert found.startswith("options of the world corridor: unknown option 'split'. To do: remove it")


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("    return TablePolicy(table_SA, facts", "    TablePolicy(table_SA, facts", "`train` returned nothing"),
        ('arrays["table"]', 'arrays["tabel"]', r"best_action\.py:\d+: `load_policy` fails with KeyError: 'tabel'"),
        (".argmax(1)", ".argmax(1) + 9", r"corridor\.py: step: actions must be integers in"),
        (
            '"table": self.table_SA}',
            '"table": self.table_SA.tolist()}',
            "'table' of what is saved is a list, and no array",
        ),
        (
            'return {"table": self.table_SA}',
            "return [self.table_SA]",
            "what is saved is a list, and no mapping of names",
        ),
    ],
)
def test_a_method_that_cannot_be_trained_saved_loaded_or_played_is_told_so(
    own: Path, old: str, new: str, finding: str
) -> None:
    assert re.search(finding, said(own, "best_action.py", old, new, method="best_action"))


PAID = '"paid": np.array([paid], np.float32)'


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        (
            PAID,
            PAID.replace("[paid]", "[paid, 1]"),
            r"`reset` of 'mine/Bandit-v0' .*: `observation\['paid'\]` is of shape \(2,\), not \(1,\).*`observation_space`",
        ),
        (PAID, PAID.replace("paid", "payd", 1), r"`reset` of 'mine/Bandit-v0' .*: `observation` has no 'paid'"),
        (
            "return self.seen(0.0), {}",
            "return self.seen(0.0)",
            r"`reset` of 'mine/Bandit-v0' returned one `dict`. To do: return 2: `observation, info`",
        ),
        (
            "reward, False, False, {}",
            "reward, False, {}",
            r"`step` of 'mine/Bandit-v0' returned 4 things. To do: return 5",
        ),
        *(
            (
                "self.seen(reward), reward",
                f"self.seen(reward), {wrong}",
                rf"bandit\.py: `step` of 'mine/Bandit-v0' returned the reward .*{said}.*, which is no number. To do: return",
            )
            for wrong, said in (("np.array([reward])", "array"), ("None", "None"), ("str(reward)", "'"))
        ),
        (
            "self.seen(reward), reward",
            "self.seen(reward + 5), reward",
            r"bound of the space. To do: correct `observation_space`",
        ),
        (
            "int(self.np_random.integers(2))",
            "int(np.random.randint(2))",
            r"gave something else at step \d+ .*To do: draw with `self\.np_random`",
        ),
        ("self.pays * float", "self.paysy * float", r"bandit\.py:\d+: `step` fails with AttributeError.*mend the line"),
    ],
)
def test_what_an_environment_of_gymnasiums_kind_breaks_is_said_in_its_own_words_and_not_of_our_lines(
    own: Path, old: str, new: str, finding: str
) -> None:
    found = said(own, "bandit.py", old, new, env="bandit")
    assert re.search(finding, found) and f"{own.name}/bandit.py" in found
    assert "src/recollect" not in found and "_observe" not in found


def test_the_tasks_that_are_evaluated_and_those_of_the_histories_are_tried_too(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def none_found(world: str, options: object, splits: Sequence[str]) -> tuple[()]:
        tried.extend(splits)
        return ()

    monkeypatch.setattr(checker, "findings", none_found)
    for place, other in (("source", {"split": "eval"}), ("evaluation", {"splits": ["eval"]})):
        environment = {"evaluation": {"splits": ["train"]}, "source": {"split": "train"}} | {place: other}
        content = {"description": "d", "seeds": [0], "environments": {"dark_room_10x10": environment}}
        (workdir / "config/scales/mini.yaml").write_text(fast_yaml.dump(content))
        tried.clear()
        assert "every promise" in "".join(check_own("mini", "dark_room_10x10"))
        assert set(tried) == {"train", "eval"}


def test_a_line_of_ours_is_not_to_be_mended(own: Path) -> None:
    found = said(own, "bandit.py", "reward, False, False", "reward, np.zeros(2), False", env="bandit")
    assert "fails with ValueError" in found and "mend the line" not in found


def test_a_method_that_does_not_fit_is_no_promise_of_the_environment(own: Path) -> None:
    with pytest.raises(UserError, match="'ppo_lstm' sees images, and this environment shows numbers"):
        list(check_own("tiny", "corridor", "ppo_lstm"))


@pytest.mark.quick("corridor-best_action")
@pytest.mark.parametrize(
    ("env", "method"), [("corridor", "best_action"), ("corridor", "tried_action"), ("bandit", None)]
)
def test_the_examples_of_the_page_keep_every_promise_and_nothing_is_written(
    own: Path, workdir: Path, env: str, method: str | None
) -> None:
    before = sorted(path for path in workdir.rglob("*") if "__pycache__" not in path.parts)
    (line,) = check_own("tiny", env, method)
    assert "every promise that was tried is kept" in line
    assert sorted(path for path in workdir.rglob("*") if "__pycache__" not in path.parts) == before


@pytest.mark.parametrize(("declares", "lacks"), [("class World", "World"), ("def tasks", "tasks")])
def test_a_misspelt_declaration_is_named_with_its_file(own: Path, declares: str, lacks: str) -> None:
    path = own / "corridor.py"
    path.write_text(path.read_text().replace(declares, f"{declares}es"))
    with pytest.raises(UserError, match=rf"declare `{lacks}` in .*corridor\.py"):
        list(check_own("tiny", "corridor"))


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [("algorithm: ppo", "algorithm: poo", "named 'poo'"), ("transitions:", "transition:", "unknown key 'transition'")],
)
def test_a_source_of_histories_that_is_misspelt_is_told(own: Path, old: str, new: str, wrong: str) -> None:
    path = own / "config/environments/corridor.yaml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError, match=wrong):
        list(check_own("smoke", "corridor"))
