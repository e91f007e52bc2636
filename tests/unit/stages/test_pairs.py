"""What cannot run is refused while it is planned, and stops nothing else: pairs, and own code that cannot be imported."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fast_yaml
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary

from recollect import api
from recollect.figures import registry
from recollect.settings.catalogue import CannotImport
from recollect.settings.errors import UserError
from recollect.settings.still import held_still, prepare
from recollect.stages import check, forecast, pairs, selection, why
from recollect.stages.pairs import _tasks_played, check_figure, check_pair, check_splits
from recollect.stages.plan import plan
from recollect.stages.train import train

WORLD = """
from recollect.environments.dark_room import DarkRoom as World, tasks
"""


@pytest.fixture
def mine(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory's own folder, whose modules this process has not imported; one scale and one figure beside it."""
    monkeypatch.setenv("RECOLLECT_MINE", "mine_of_pairs")
    monkeypatch.syspath_prepend(str(workdir))
    for name in [name for name in sys.modules if name.startswith("mine_of_pairs")]:
        monkeypatch.delitem(sys.modules, name)
    for group, kept in (("scales", "smoke"), ("figures", "amago_dark_key_door"), ("claims", "")):
        for path in Path("config", group).glob("*.yaml"):
            if path.stem != kept:
                path.unlink()
    scale = fast_yaml.load(Path("config/scales/smoke.yaml").read_text())
    Path("config/scales/smoke.yaml").write_text(fast_yaml.dump({**scale, "figures": {}}))
    Path("config/config.yaml").write_text("scale: smoke\nfigures: amago_dark_key_door\n")
    folder = workdir / "mine_of_pairs"
    for group in ("environments", "figures"):
        (folder / "config" / group).mkdir(parents=True)
    return folder


def a_figure(mine: Path, env: str, method: str) -> None:
    content = {"kind": "in_context_curve", "title": "Own", "environments": [env], "methods": [method]}
    (mine / "config/figures/own.yaml").write_text(fast_yaml.dump(content))


def a_world(mine: Path, text: str) -> None:
    (mine / "corridor.py").write_text(WORLD + text)
    (mine / "config/environments/corridor.yaml").write_text("world: corridor\n")
    a_figure(mine, "corridor", "dqn_lstm")


BROKEN = {
    "import nosuchpackage": ("needs the package 'nosuchpackage', which is not installed", "install 'nosuchpackage'"),
    "boom = 1 / 0": ("cannot be imported: ZeroDivisionError: division by zero", "mend the file"),
    "raise SystemExit(0)": ("cannot be imported: SystemExit: 0", "mend the file"),
    "from __future__ import annotations": ("cannot be imported: SyntaxError", "mend the file"),
}


@pytest.mark.parametrize("line", list(BROKEN))
def test_a_world_that_cannot_be_imported_is_named_with_file_and_line_where_it_is_needed(line: str, mine: Path) -> None:
    a_world(mine, line)
    what, do = BROKEN[line]
    needing = (
        check.check,
        lambda: train("smoke", "corridor", "dqn_lstm", 0),
        lambda: plan("smoke", ["own"]),
        lambda: selection.check_targets(["results/smoke/figures/own.pdf"]),
    )
    for command in needing:
        with pytest.raises(CannotImport, match=what) as refused:
            command()
        assert "mine_of_pairs/corridor.py:3 " in refused.value.where
        assert "corridor" in refused.value.where and refused.value.do.startswith(do)


def test_a_world_that_cannot_be_imported_stops_no_figure_that_does_not_show_it(mine: Path) -> None:
    a_world(mine, "boom = 1 / 0")
    resolved = check.resolve_all()
    assert "smoke amago_dark_key_door amago_ff" in resolved and "smoke corridor dqn_lstm" not in resolved
    with held_still():
        prepare(resolved)
        assert plan("smoke", ["amago_dark_key_door"]).needs
        selection.check_targets(["results/smoke/figures/amago_dark_key_door.pdf"])
        with pytest.raises(UserError, match="division by zero"):
            plan("smoke", ["own"])


def test_a_world_that_no_figure_shows_is_checked_as_well(mine: Path) -> None:
    a_world(mine, "boom = 1 / 0")
    (mine / "config/figures/own.yaml").unlink()
    with pytest.raises(CannotImport, match="division by zero") as refused:
        check.check()
    assert "environments/corridor.yaml" in refused.value.where


def test_a_package_that_registers_an_environment_is_named_with_file_and_line(mine: Path) -> None:
    (mine / "bandit.py").write_text("boom = 1 / 0\n")
    options = {"id": "mine/Bandit-v0", "package": "mine_of_pairs.bandit"}
    (mine / "config/environments/bandit.yaml").write_text(fast_yaml.dump({"world": "gymnasium", "options": options}))
    with pytest.raises(UserError, match="division by zero") as refused:
        check_pair("smoke", "bandit", "dqn_lstm")
    assert "mine_of_pairs/bandit.py:1 " in refused.value.where


# ------------------------------------------------------------------------------------------------- options of a figure


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("length_aggregation", {"ends": {"tmaze_pasive_10": 900}}),
        ("length_aggregation", {"lengths": {"tmaze_pasive_10": 10}}),
        ("length_aggregation", {"beside": {"others": ["tmaze_passive_5", "tmaze_pasive_10"]}}),
        ("curve_panels", {"lines": {"tmaze_pasive_10": 0.5}}),
        ("aggregate_curve", {"scales": {"tmaze_pasive_10": [0, 1]}}),
        ("history_attention", {"decision": {"tmaze_pasive_10": [-3, -1]}}),
    ],
)
def test_options_name_environments_that_there_are_drawn_or_not(
    kind: str, options: dict[str, dict[str, Any]], mine: Path
) -> None:
    def written(options: Any) -> None:
        content = {"title": "Own", "kind": kind, "environments": ["tmaze_passive_5"], "methods": ["dqn_lstm"]}
        (mine / "config/figures/own.yaml").write_text(fast_yaml.dump({**content, "options": options}))

    written(options)
    for planning in (check.resolve_all, lambda: plan("smoke", ["own"])):
        with pytest.raises(UserError, match="no configuration named 'tmaze_pasive_10'") as refused:
            planning()
        assert "figures/own.yaml (scale smoke)" in refused.value.where
        assert "did you mean 'tmaze_passive_10'" in refused.value.do
    written(fast_yaml.load(fast_yaml.dump(options).replace("pasive", "passive")))
    assert plan("smoke", ["own"]).needs


def test_what_was_logged_is_not_asked_of_a_method_that_is_not_trained(mine: Path) -> None:
    content = {
        "title": "Own",
        "kind": "training_metrics",
        "environments": ["dark_room_10x10"],
        "methods": ["radt.greedy"],
    }
    (mine / "config/figures/own.yaml").write_text(fast_yaml.dump(content))
    with pytest.raises(UserError, match=r"'radt\.greedy' is not trained, so nothing was logged") as refused:
        plan("smoke", ["own"])
    assert refused.value.do == "name 'radt', whose policy it plays"


# --------------------------------------------------------------------------------------------------------------- pairs

IMPOSSIBLE = {
    ("gym.Acrobot-v1", "radt"): ("no source of histories", "a file of its own with a `source:` section"),
    ("tmaze_passive_5", "dt"): (
        "no source of histories",
        "`source:` section to config/environments/tmaze_passive.yaml",
    ),
    ("gym.Pendulum-v1", "helm"): ("plays discrete actions, and this world's are continuous", "another environment"),
    ("gym.Pendulum-v1", "dqn_lstm"): ("plays discrete actions, and this world's are continuous", "continuous actions"),
    ("gym.CartPole-v1", "td3_gpt"): ("plays continuous actions, and this world's are discrete", "discrete actions"),
    ("gym.CartPole-v1", "ppo_cnn"): ("sees images, and this environment shows numbers", "an environment of images"),
    ("procgen", "sacd_gpt"): (
        "learns from what it plays, and this environment encodes its images",
        "`data: histories`",
    ),
    ("gym.Nope-v1", "dqn_lstm"): ("'Nope-v1' cannot be made: gymnasium knows no such id", "did you mean"),
}


@pytest.mark.quick("gym.Acrobot-v1-radt", "gym.Pendulum-v1-helm", "gym.Nope-v1-dqn_lstm")
@pytest.mark.parametrize(("env", "method"), list(IMPOSSIBLE))
def test_a_pair_that_cannot_run_is_refused_by_all_that_plans_and_by_training(
    env: str, method: str, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_figure(mine, env, method)
    what, do = IMPOSSIBLE[env, method]
    planning = (
        check.check,
        lambda: forecast.forecast("smoke", ["own"]),
        lambda: why.why("smoke", ["own"]),
        lambda: selection.check_targets(["results/smoke/figures/own.pdf"]),
    )
    for command in planning:
        with pytest.raises(UserError, match=what) as refused:
            command()
        assert do in refused.value.do
        for named in (f"'{env}'", f"'{method}'", "mine_of_pairs/config/figures/own.yaml"):
            assert named in refused.value.where
    run = f"results/smoke/runs/{env}/{method}/seed_0/policy.safetensors"
    making = (
        lambda: train("smoke", env, method, 0),
        lambda: api.train("smoke", env, method),
        lambda: selection.check_targets([run]),
    )
    for command in making:
        with pytest.raises(UserError, match=what):
            command()
    assert not list(Path().glob("results/smoke/runs/*/*/*/*.safetensors"))


def test_a_package_that_was_installed_since_is_found(mine: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Though neither configuration nor code differ, of which Snakemake keeps what it checked."""
    a_world(mine, "import a_package_of_pairs")
    packages = tmp_path_factory.mktemp("packages")
    with held_still():
        check.check_once()
        with pytest.raises(CannotImport, match="needs the package 'a_package_of_pairs', which is not installed"):
            plan("smoke", ["own"])
    (packages / "a_package_of_pairs.py").touch()
    with pytest.MonkeyPatch.context() as patch, held_still():
        patch.syspath_prepend(str(packages))
        check.check_once()
        assert plan("smoke", ["own"]).needs


def test_what_planning_was_handed_lets_no_pair_pass_that_cannot_run(mine: Path) -> None:
    a_figure(mine, "gym.Pendulum-v1", "dqn_lstm")
    resolved = check.resolve_all()
    with held_still():
        prepare(resolved)
        check_figure("smoke", "amago_dark_key_door")
        with pytest.raises(UserError, match="plays discrete actions"):
            check_figure("smoke", "own")


def test_to_see_what_a_world_shows_only_the_tasks_of_the_judged_split_are_made(mine: Path) -> None:
    """A maze for each of a thousand tasks would be seconds of every check."""
    text = "make_all = tasks\n\n\ndef tasks(split, **options):\n    assert split == 'eval'\n    return make_all(split, **options)\n"
    a_world(mine, text)
    check_pair("smoke", "corridor", "dqn_lstm")


def test_a_world_whose_own_code_raises_is_refused_with_file_and_line(mine: Path) -> None:
    a_world(mine, "def tasks(split, **options):\n    return split.nothing\n")
    with pytest.raises(UserError, match="the world 'corridor' cannot be made: AttributeError") as refused:
        check_pair("smoke", "corridor", "dqn_lstm")
    assert "mine_of_pairs/corridor.py:4" in refused.value.where


def test_published_values_that_a_figure_cannot_show_are_refused_with_its_file_before_it_is_drawn(mine: Path) -> None:
    a_figure(mine, "dark_room_10x10", "radt")
    file = mine / "config/figures/own.yaml"
    file.write_text(file.read_text() + "references: [{published: radt_figure_5}]\n")
    with pytest.raises(UserError, match="'radt_figure_5' have no curve for dark_room_10x10") as refused:
        check.check()
    assert "mine_of_pairs/config/figures/own.yaml" in refused.value.where


def test_an_in_context_curve_of_episodes_that_each_start_empty_is_refused_with_its_file(mine: Path) -> None:
    a_figure(mine, "gym.CartPole-v1", "dqn_lstm")
    file = mine / "config/figures/own.yaml"
    for command in (check.check, lambda: plan("smoke", ["own"])):
        with pytest.raises(UserError, match=r"episodes of 'gym\.CartPole-v1' each start empty") as refused:
            command()
        assert "mine_of_pairs/config/figures/own.yaml" in refused.value.where and "kind: bars" in refused.value.do
    text = file.read_text()
    file.write_text(text + "options: {x: step}\n")
    check_figure("smoke", "own")
    file.write_text(text.replace("in_context_curve", "bars"))
    check_figure("smoke", "own")


def test_a_learning_curve_of_runs_that_are_not_evaluated_while_they_learn_is_refused_before_anything_runs(
    mine: Path,
) -> None:
    file, pages = mine / "config/figures/own.yaml", [("curve_panels", {}), ("bars", {"split": "learning"})]
    for kind, options in pages:
        content = {"kind": kind, "title": "Own", "environments": ["dark_room_10x10"], "options": options}
        file.write_text(fast_yaml.dump({**content, "methods": ["radt", "dt"]}))
        for command in (check.check, lambda: plan("smoke", ["own"])):
            with pytest.raises(UserError, match="'radt' has no learning curve in 'dark_room_10x10'") as refused:
                command()
            assert "mine_of_pairs/config/figures/own.yaml" in refused.value.where
        file.write_text(fast_yaml.dump({**content, "environments": ["tmaze_passive_5"], "methods": ["dqn_lstm"]}))
        check_figure("smoke", "own")


def test_every_kind_of_scores_says_in_its_file_which_split_it_draws_by_itself() -> None:
    for name in registry.kinds():
        kind = registry.kind(name)
        if getattr(kind, "READS", "scores") == "scores":
            split = (kind.Options if name != "result_table" else kind.Group).model_fields["split"]
            assert split.default == kind.SPLIT, name


def test_a_split_that_no_run_is_evaluated_on_is_refused_where_a_figure_is_asked_for(in_the_repository: None) -> None:
    wanted = "results/demo/figures/radt_training_curve.pdf"
    with pytest.raises(UserError, match="evaluated on eval, and not on 'train'") as error:
        selection.check_targets([wanted])
    assert "radt_training_curve.yaml (scale demo)" in str(error.value.where) and "evaluation: splits" in error.value.do
    for figure in ("radt_training_curve", "radt_grid_worlds", "helm_lm_depth", "amago_crafter", "memory_rl_pybullet"):
        check_splits("paper", figure)
    check_splits("demo", "radt_dark_room_10x10")


def test_a_page_that_nothing_can_draw_is_refused_where_it_is_asked_for(mine: Path) -> None:
    a_figure(mine, "gym.CartPole-v1", "dqn_lstm")
    file = mine / "config/figures/own.yaml"
    content = {**fast_yaml.load(file.read_text()), "kind": "bars"}
    file.write_text(fast_yaml.dump({**content, "pages": {"dqn_lstm": "gym.CartPole-v1"}}))
    with pytest.raises(UserError, match="can have no inspection page") as refused:
        plan("smoke", ["own"])
    assert "function `scene`" in refused.value.do and "mine_of_pairs/config/figures/own.yaml" in refused.value.where
    env = "tmaze_passive_5"
    file.write_text(fast_yaml.dump({**content, "environments": [env], "pages": {"dqn_lstm": env}}))
    assert [job.stage for job in plan("smoke", ["own"]).needs].count("page") == 1


def test_visits_in_a_world_without_a_scene_are_refused_before_anything_runs(mine: Path) -> None:
    a_figure(mine, "gym.CartPole-v1", "dqn_lstm")
    file = mine / "config/figures/own.yaml"
    content = {**fast_yaml.load(file.read_text()), "kind": "state_visitation"}
    file.write_text(fast_yaml.dump(content))
    with pytest.raises(UserError, match="cannot be drawn from above") as refused:
        plan("smoke", ["own"])
    assert "kind: state_visitation" in refused.value.where and "own.yaml" in refused.value.where
    file.write_text(fast_yaml.dump({**content, "environments": ["tmaze_passive_5"]}))
    assert plan("smoke", ["own"]).needs


WIND = {"environments": ["amago_wind"], "methods": ["amago_ff"]}  # no number at the end of its name
NO_DRAWING = {
    "a length": (WIND | {"kind": "length_aggregation"}, "no length for amago_wind", "add it under 'lengths'"),
    "a speed's length": (WIND | {"kind": "speed_by_length"}, "no length for amago_wind", "add it under 'lengths'"),
    "a scale": (
        {"kind": "aggregate_curve", "options": {"scales": {}}},
        "no scale of gym.CartPole-v1",
        "name the returns",
    ),
    "a scale of one number": (
        {"kind": "aggregate_curve", "options": {"scales": {"gym.CartPole-v1": [3, 3]}}},
        "the returns of gym.CartPole-v1 that are 0 and 1 are the same, 3",
        "two numbers that differ",
    ),
    "a group": (
        {"kind": "result_table", "options": {"groups": {"All": {"environments": ["tmaze_passive_5"]}}}},
        "'gym.CartPole-v1' is in `groups` and not in `environments`, or the other way round",
        "name it in both",
    ),
    "a row": (
        {"kind": "score_rows", "options": {"panels": {"All": {"tmaze_passive_5": "maze"}}}},
        "the row 'tmaze_passive_5' is of none of the figure's environments",
        "gym.CartPole-v1",
    ),
    "a panel": (
        {"kind": "bars", "options": {"panels": {"All": {"dqn_gpt": "GPT"}}}},
        "'dqn_gpt' is none of the figure's methods",
        "dqn_lstm",
    ),
}


NO_SCORES = {
    "a metric": (
        {"kind": "bars", "options": {"metric": ["return", "sucess"]}},
        "the scores of 'gym.CartPole-v1' have no metric 'sucess'",
        "did you mean 'success'?",
    ),
    "a metric of training": (
        {"kind": "curve_panels", "options": {"metric": "critic_loss"}},
        "the scores of 'gym.CartPole-v1' have no metric 'critic_loss'",
        "known: part_return, return, success",
    ),
    "a normalised return": (
        {"kind": "result_table", "options": {"normalised": "hns"}},
        "the scores of 'gym.CartPole-v1' have no metric 'hns'",
        "known: part_return, return, success",
    ),
    "a task": (
        {"kind": "score_rows", "options": {"panels": {"All": {"gym.CartPole-v1/eval/7": "the eighth"}}}},
        "the row 'gym.CartPole-v1/eval/7' is of no task that is played: 1 of 'eval' are, counted from 0",
        "name one of 0 to 0, or raise `evaluation: episodes` of 'gym.CartPole-v1'",
    ),
}


@pytest.mark.parametrize("case", NO_SCORES)
def test_metrics_and_tasks_that_no_score_is_of_are_refused_before_anything_runs(mine: Path, case: str) -> None:
    wrong, what, do = NO_SCORES[case]
    a_figure(mine, "gym.CartPole-v1", "dqn_lstm")
    file = mine / "config/figures/own.yaml"
    file.write_text(fast_yaml.dump(fast_yaml.load(file.read_text()) | wrong))
    with pytest.raises(UserError) as refused:
        check_figure("smoke", "own")
    assert (refused.value.what, refused.value.do) == (what, do)
    assert "mine_of_pairs/config/figures/own.yaml (scale smoke)" in refused.value.where


def test_metrics_that_an_environment_lists_are_taken(mine: Path) -> None:
    a_figure(mine, "gym.CartPole-v1", "dqn_lstm")
    file = mine / "config/figures/own.yaml"
    content = fast_yaml.load(file.read_text()) | {"kind": "bars", "options": {"metric": ["return", "pole_angle"]}}
    at = {"gym.CartPole-v1": {"options": {"metrics": ["pole_angle"]}}}
    scale = mine / "config/scales/measured.yaml"
    scale.parent.mkdir(exist_ok=True)
    scale.write_text(fast_yaml.dump({"extends": "smoke", "description": "-", "seeds": [0], "environments": at}))
    file.write_text(fast_yaml.dump(content))
    check_figure("measured", "own")


def test_what_an_own_world_or_method_logs_while_it_learns_may_be_drawn(mine: Path) -> None:
    a_world(mine, "")
    file = mine / "config/figures/own.yaml"
    content = fast_yaml.load(file.read_text()) | {"options": {"metric": "rooms_seen"}}
    for kind, refused in (("curve_panels", False), ("bars", True)):  # of a final evaluation all metrics are known
        file.write_text(fast_yaml.dump(content | {"kind": kind}))
        with pytest.raises(UserError, match="no metric 'rooms_seen'") if refused else nullcontext():
            check_figure("smoke", "own")


def test_normalised_returns_are_metrics_and_rows_are_of_tasks_that_are_played() -> None:
    check_figure("paper", "radt_meta_world")  # `normalised: data_normalised`
    check_figure("paper", "amago_crafter")  # 110 episodes of each split: all of its tasks
    check_figure("smoke", "amago_crafter")  # 4 episodes
    assert _tasks_played("smoke", "amago_crafter", "amago_ff", "single") == 4
    assert _tasks_played("paper", "amago_crafter", "amago_ff", "single") == 22


@pytest.mark.parametrize("case", NO_DRAWING)
def test_options_that_cannot_be_drawn_together_are_refused_before_anything_runs(mine: Path, case: str) -> None:
    wrong, what, do = NO_DRAWING[case]
    a_figure(mine, "gym.CartPole-v1", "dqn_lstm")
    file = mine / "config/figures/own.yaml"
    file.write_text(fast_yaml.dump(fast_yaml.load(file.read_text()) | wrong))
    with pytest.raises(UserError) as refused:
        check.check()
    assert what in refused.value.what and do in refused.value.do, refused.value
    assert "mine_of_pairs/config/figures/own.yaml (scale smoke)" in refused.value.where


@pytest.mark.parametrize("kind", ["bars", "score_rows", "result_table"])
def test_a_split_that_a_kind_draws_by_itself_is_refused_where_no_run_is_evaluated_on_it(mine: Path, kind: str) -> None:
    a_figure(mine, "tmaze_passive_5", "dqn_lstm")
    file = mine / "config/figures/own.yaml"
    file.write_text(fast_yaml.dump(fast_yaml.load(file.read_text()) | {"kind": kind, "options": {}}))
    check_splits("smoke", "own")
    scale = mine / "config/scales/trained.yaml"
    scale.parent.mkdir(exist_ok=True)
    at = {"tmaze_passive": {"evaluation": {"splits": ["train"]}}}
    scale.write_text(fast_yaml.dump({"extends": "smoke", "description": "-", "seeds": [0], "environments": at}))
    with pytest.raises(UserError, match="evaluated on train, and not on 'eval'"):
        check_splits("trained", "own")


def test_rows_of_a_split_that_no_run_is_evaluated_on_are_refused(mine: Path) -> None:
    a_figure(mine, "tmaze_passive_5", "dqn_lstm")
    file = mine / "config/figures/own.yaml"
    rows = {"tmaze_passive_5": "all", "tmaze_passive_5/train/0": "one of training"}
    content = fast_yaml.load(file.read_text()) | {"kind": "score_rows", "options": {"panels": {"Rows": rows}}}
    file.write_text(fast_yaml.dump(content))
    with pytest.raises(UserError, match="evaluated on eval, and not on 'train'"):
        check_splits("smoke", "own")


def test_a_policy_that_is_played_otherwise_and_an_own_method_have_a_learning_curve_as_far_as_it_is_known(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_figure(mine, "dark_room_10x10", "radt.greedy")
    file = mine / "config/figures/own.yaml"
    file.write_text(fast_yaml.dump({**fast_yaml.load(file.read_text()), "kind": "curve_panels"}))
    with pytest.raises(UserError, match=r"'radt\.greedy' has no learning curve .*: it plays the policy of 'radt'"):
        check_figure("smoke", "own")
    file.write_text(file.read_text().replace("radt.greedy", "dt"))
    with pytest.raises(UserError, match="it learns from histories"):
        check_figure("smoke", "own")
    monkeypatch.setattr(pairs, "module_of", lambda *of, **where: "mine_of_pairs.method")
    check_figure("smoke", "own")  # only its own code says when it is evaluated


def test_only_of_scores_is_a_split_asked_and_a_method_may_have_splits_of_its_own(mine: Path) -> None:
    a_figure(mine, "tmaze_passive_5", "dqn_lstm")
    file = mine / "config/figures/own.yaml"
    content = fast_yaml.load(file.read_text())
    file.write_text(fast_yaml.dump({**content, "kind": "training_metrics"}))
    check_splits("smoke", "own")  # which draws what was logged, of the split `train`
    file.write_text(fast_yaml.dump({**content, "kind": "bars"}))
    check_splits("smoke", "own")
    method = Path("config/methods/dqn_lstm.yaml")
    judged = {**fast_yaml.load(method.read_text()), "evaluation": {"splits": ["train"]}}
    method.write_text(fast_yaml.dump(judged))
    with pytest.raises(UserError, match="evaluated on train, and not on 'eval'"):
        check_splits("smoke", "own")


GROUPS: dict[str, Any] = {
    "A": {"split": "train", "environments": ["a"]},
    "B": {"environments": ["b"]},
    "C": {"split": None, "environments": ["c"]},
}
ROWS = [("a", "eval"), ("a", "train"), ("b", "train")]
SPLITS: list[tuple[str, dict[str, Any], list[tuple[str, str]]]] = [
    ("result_table", {"groups": {**GROUPS, "D": 1}}, [("a", "train"), ("b", "eval")]),
    ("score_rows", {"panels": {"A": {"a": "", "a/train": "", "b/train/0": ""}, "B": 1}}, ROWS),
    ("score_rows", {"panels": {}}, [("a", "eval"), ("b", "eval")]),
    ("bars", {"split": ["eval", "train"]}, [(env, split) for env in "ab" for split in ("eval", "train")]),
    ("bars", {"split": None}, []),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "drawn"), SPLITS)
def test_the_splits_that_a_figure_draws_are_those_of_its_groups_its_rows_or_the_whole(
    kind: str, options: dict[str, Any], drawn: list[tuple[str, str]]
) -> None:
    """What is no mapping its kind refuses."""
    figure: Any = SimpleNamespace(kind=kind, options=options, environments=["a", "b"])
    assert list(pairs._splits(figure)) == drawn


@pytest.mark.parametrize(
    ("seen", "acts", "spaces"),
    [
        (Box(0, 255, (5, 4, 3), np.uint8), Discrete(3), ("discrete", "images")),
        (Box(0, 1, (5, 4, 3), np.float32), Box(-1, 1, (2,)), ("continuous", "numbers")),
        (Box(0, 255, (128,), np.uint8), MultiBinary(4), ("bits", "numbers")),  # the memory of a console
    ],
)
def test_images_are_three_axes_of_bytes_and_one_world_of_one_task_says_so(
    seen: Any, acts: Any, spaces: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def make_world(world: str, options: Any, tasks: Any, seeds: Any) -> Any:
        calls.append((len(tasks), len(seeds)))
        close = lambda: calls.append("closed")  # noqa: E731
        return SimpleNamespace(single_observation_space=seen, single_action_space=acts, close=close)

    monkeypatch.setattr(pairs.registry, "tasks", lambda world, options, split: [0, 1, 2])
    monkeypatch.setattr(pairs.registry, "make_world", make_world)
    assert pairs._spaces(f"made up {spaces}", "{}", "eval") == spaces
    assert calls == [(1, 1), "closed"]


def test_a_source_is_asked_what_it_plays_as_a_method_is_and_no_world_of_another_environment_of_packages(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "_spaces", lambda *of: pairs.Spaces("continuous", "numbers"))
    path = Path("config/environments/dark_room_10x10.yaml")
    environment = fast_yaml.load(path.read_text())
    del environment["source"]["algorithm"]  # `ppo` where none is named
    path.write_text(fast_yaml.dump(environment))
    with pytest.raises(UserError, match="the source of histories 'ppo' plays discrete actions"):
        check_pair("smoke", "dark_room_10x10", "dt")
    Path("config/environments/apart.yaml").write_text(fast_yaml.dump({**environment, "family": "minigrid"}))
    check_pair("smoke", "apart", "dt")


def test_a_method_that_plays_does_not_see_what_is_encoded_beforehand(mine: Path) -> None:
    with pytest.raises(UserError, match="learns from what it plays, and this environment encodes its images"):
        check_pair("smoke", "procgen", "sacd_gpt")
