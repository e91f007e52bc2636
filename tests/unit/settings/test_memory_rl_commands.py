"""Every command of Memory-RL's released README has one of ours, in a table of docs/memory_rl.md, that sets the same."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from recollect.cli import app
from recollect.environments import partial_bullet, registry
from recollect.figures import captions
from recollect.figures.history_attention import counted
from recollect.settings.resolve import environment_settings, figure_settings, resolve
from recollect.settings.schema import Settings
from recollect.stages.figure import spec_of
from recollect.stages.inputs import figure_runs

ROOT = Path(__file__).resolve().parents[3]
T_MAZE = {"sampled_seq_len": -1, "batch_size": 64, "updates_per_step": 0.25, "evaluate_every": 10}
ROOM = {**T_MAZE, "evaluate_every": 50, "shared_encoder": True, "freeze_critic": True, "alpha": 0.1}
ROBOT: dict[str, Any] = {
    "sampled_seq_len": 64, "batch_size": 256, "updates_per_step": 1.0, "initial_burst": False, "shared_encoder": True,
    "freeze_all": True, "budget": "steps", "train_episodes": 1490, "warmup_episodes": 10, "evaluate_every": 5,
}  # fmt: skip
#: Specification 6 (command 6 with the environment that its text names): environment, horizon, algorithm, sequence
#: model, layers, heads, and other hyperparameters.
RELEASED: list[tuple[str, int, str, str, int, int, dict[str, Any]]] = [
    ("tmaze_passive_50", 51, "dqn", "lstm", 1, 1, {**T_MAZE, "train_episodes": 20000}),
    ("tmaze_passive_1500", 1501, "dqn", "gpt", 1, 1, {**T_MAZE, "train_episodes": 6700}),
    ("tmaze_active_20", 23, "dqn", "gpt", 2, 2, {**T_MAZE, "train_episodes": 40000}),
    ("visual_match_60", 90, "sacd", "gpt", 1, 1, {**ROOM, "train_episodes": 40000}),
    ("key_to_door_120", 145, "sacd", "lstm", 2, 1, {**ROOM, "train_episodes": 40000}),
    ("key_to_door_250", 275, "sacd", "gpt", 2, 2, {**ROOM, "train_episodes": 30000}),
    ("bullet_cheetah_p", 1000, "td3", "lstm", 1, 1, ROBOT),
    ("bullet_cheetah_v", 1000, "td3", "gpt", 1, 1, ROBOT),
]


pytestmark = pytest.mark.usefixtures("in_the_repository")


def table() -> list[tuple[str, list[str]]]:
    """The released command and the words of ours, row by row."""
    section = (
        (ROOT / "docs/memory_rl.md").read_text(encoding="utf-8").split("## The commands of the released README")[1]
    )
    rows = re.findall(r"^\| ([^|]+) \| `(recollect train [^`]+)` \|", section, re.MULTILINE)
    return [(theirs.strip(), shlex.split(ours)) for theirs, ours in rows]


def settings_of(words: list[str]) -> Settings:
    told = dict(zip(words[2::2], words[3::2], strict=True))
    return resolve(told["--scale"], told["--env"], told["--method"], int(told["--seed"]))


def test_the_table_has_each_released_command_once_in_its_order() -> None:
    assert [settings_of(words).environment.name for _, words in table()] == [row[0] for row in RELEASED]


@pytest.mark.parametrize("number", range(len(RELEASED)))
def test_each_command_sets_what_the_released_one_does(number: int) -> None:
    env, horizon, algorithm, kind, layers, heads, expected = RELEASED[number]
    words = table()[number][1]
    settings = settings_of(words)
    hp = settings.method.hyperparameters
    assert (settings.scale, settings.seed, settings.environment.name) == ("paper", 42, env)
    assert (settings.method.algorithm, hp.sequence.kind, hp.sequence.layers) == (algorithm, kind, layers)
    assert kind != "gpt" or (hp.sequence.heads, hp.sequence.dropout, hp.sequence.positions) == (heads, 0.1, "sinusoid")
    assert {name: getattr(hp, name) for name in expected} == expected
    (task,) = registry.tasks(settings.environment.world, settings.environment.options, "train")
    assert task.index == 0
    if not env.startswith("bullet"):  # needs a package
        world = registry.make_world(settings.environment.world, settings.environment.options, [task], np.zeros(1))
        assert world.horizon == horizon
    else:
        assert partial_bullet.Options.parse(settings.environment.options, "partial_bullet").horizon == horizon
    # The command line knows every word of it.
    known = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    assert words[:2] == ["recollect", "train"] and all(word in known for word in words[2::2])


@pytest.mark.parametrize("number", range(len(RELEASED)))
def test_each_command_is_a_run_of_a_figure_at_the_papers_scale(number: int) -> None:
    """So that the workflow makes it too; the figure's seeds may be others."""
    settings = settings_of(table()[number][1])
    wanted = (settings.environment.name, settings.method.name)
    figures = [path.stem for path in (ROOT / "config/figures").glob("memory_rl_*.yaml")]
    assert any(wanted == (env, method) for figure in figures for env, method, _ in figure_runs("paper", figure))
    assert all(figure_settings("paper", figure).seeds == tuple(range(1, 11)) for figure in figures)


#: Lengths of the published figures (budget.py of the released code).
LENGTHS: dict[str, tuple[int, ...]] = {
    "tmaze_passive": (50, 100, 250, 500, 750, 1000, 1250, 1500),
    "tmaze_active": (20, 50, 100, 250, 500),
    "visual_match": (60, 120, 250, 500, 750, 1000),
    "key_to_door": (60, 120, 250, 500),
}
FIGURES = {
    "memory_rl_passive_tmaze": "tmaze_passive",
    "memory_rl_active_tmaze": "tmaze_active",
    "memory_rl_visual_match": "visual_match",
    "memory_rl_key_to_door": "key_to_door",
}


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_has_every_published_length(figure: str) -> None:
    """Their budgets stand in tests/parity/published_settings/memory_rl.yaml."""
    task = FIGURES[figure]
    assert sum(map(len, LENGTHS.values())) == 23
    expected = [f"{task}_{length}" for length in LENGTHS[task]]
    if task == "visual_match" and figure != "memory_rl_layers_visual_match":  # ours beside it
        expected += [f"{task}_per_episode_{length}" for length in LENGTHS[task]]
    assert list(figure_settings("paper", figure).environments) == expected


BESIDE = ["memory_rl_visual_match", "memory_rl_visual_match_returns"]


@pytest.mark.quick("memory_rl_visual_match", "memory_rl_attention_rooms")
@pytest.mark.parametrize("figure", [*BESIDE, "memory_rl_curves_visual_match", "memory_rl_attention_rooms"])
def test_visual_match_is_the_released_task_with_ours_beside_it_and_captions_say_which(figure: str) -> None:
    """Released: one drawing when an environment is made (pycolab game of twni2016/Memory-RL c9b8b39)."""
    shown = figure_settings("paper", figure)
    games = [name for name in shown.environments if name.startswith("visual_match")]
    maps = {name: environment_settings("paper", name).options["color_map"] for name in games}
    half = len(games) // 2
    assert list(maps.values()) == ["per_world"] * half + ["per_episode"] * half
    if figure in BESIDE:
        (panel,) = shown.options["beside"].values()
        assert list(panel) == games[half:]
    caption = captions.caption(spec_of("paper", figure), ())
    assert "as released (visual_match_*)." in caption
    assert "is drawn in each episode (visual_match_per_episode_*)." in caption


def test_smaller_scales_keep_their_task() -> None:
    for scale, color_map in (("demo", "shared"), ("smoke", "per_episode")):
        assert environment_settings(scale, "visual_match_6").options["color_map"] == color_map


def test_who_is_carried_is_not_told_its_actions_and_all_learn_with_the_same_settings() -> None:
    """In the corridor that carries, actions do nothing: an agent that is told them keeps the sign in them, without memory."""
    shown = figure_settings("demo", "memory_rl_passive_tmaze")
    assert all(environment_settings("demo", name).options["carried"] for name in shown.environments)
    for env in shown.environments:
        agents = {method: resolve("demo", env, method, 0).method.hyperparameters for method in shown.methods}
        assert [chosen.action_embedding for chosen in agents.values()] == [0] * len(agents)
        gpt, lstm = agents["dqn_gpt"], agents["dqn_lstm"]
        apart = {"sequence", "checkpoint_every"}
        assert gpt.model_dump(exclude=apart) == lstm.model_dump(exclude=apart)
        assert gpt.sequence.width == lstm.sequence.width


#: Specification 5: the step at which a published plot ends, in thousands, by task and length in their order above.
ENDS = {
    "tmaze_passive": (1000, 2000, 4000, 4000, 6000, 8000, 10_000, 10_000),
    "tmaze_active": (800, 2000, 4000, 7000, 7000),
    "visual_match": (3600, 4000, 4000, 5300, 7800, 10_000),
    "key_to_door": (3400, 5800, 7500, 7500),
}
#: And the dotted line of each task; on PyBullet's robots the returns of recurrent agents, of -P and -V.
LINES = {"tmaze_passive": 1 / 2, "tmaze_active": 1 / 2, "visual_match": 1 / 3, "key_to_door": 0}
ROBOT_LINES = {"ant": (348, 1113), "cheetah": (2693, 1980), "hopper": (2133, 1495), "walker": (982, 121)}


def test_all_figures_of_a_task_end_where_the_published_plots_do_and_have_their_lines() -> None:
    published = {
        f"{task}_{length}": 1000 * end
        for task, ends in ENDS.items()
        for length, end in zip(LENGTHS[task], ends, strict=True)
    }
    published |= {
        name.replace("h_", "h_per_episode_"): end for name, end in published.items() if name.startswith("visual")
    }
    figures = [figure_settings("paper", path.stem) for path in (ROOT / "config/figures").glob("memory_rl_*.yaml")]
    ended = [figure for figure in figures if "ends" in figure.options and "bullet" not in figure.environments[0]]
    assert len(ended) == 14
    for figure in ended:
        assert figure.options["ends"] == {name: published[name] for name in figure.environments}
        task = figure.environments[0].rstrip("_0123456789")
        in_returns = figure.title.endswith("returns")
        wanted = "return" if in_returns or task.startswith("tmaze") else "success"
        assert figure.options.get("metric", "return") == wanted
        if not in_returns:
            assert figure.options.get("chance", figure.options.get("lines")) == pytest.approx(LINES[task], abs=1e-4)
    robots = [figure.options for figure in figures if figure.environments[0].startswith("bullet")]
    for options in robots:
        found = {robot: tuple(options["lines"][f"bullet_{robot}_{half}"] for half in "pv") for robot in ROBOT_LINES}
        assert (options["ends"], options["points"], found) == (1_500_000, 100, ROBOT_LINES)
    assert len(robots) == 2


#: Specification 1.6: entries of an observation, all, positions, velocities.
ROBOTS = {"hopper": (15, 9, 6), "walker": (22, 13, 9), "ant": (28, 17, 11), "cheetah": (26, 17, 9)}


@pytest.mark.parametrize("robot", ROBOTS)
def test_each_robot_is_an_environment_with_all_that_is_seen_and_with_either_half(robot: str) -> None:
    for letter, size in zip("fpv", ROBOTS[robot], strict=True):
        options = environment_settings("paper", f"bullet_{robot}_{letter}").options
        chosen = partial_bullet.Options.parse(options, "partial_bullet")
        assert chosen.robot == robot and len(partial_bullet.ROBOTS[robot].seen(chosen.observation)) == size


COLORS = {
    "per_episode": "where the three colors lie is drawn in each episode",
    "per_world": "where the three colors lie is drawn twice, once to train with and once to be evaluated with, as released",
    "shared": "the three colors lie in the same places in all episodes",
}


@pytest.mark.parametrize("scale", ["paper", "demo", "smoke"])
@pytest.mark.quick("smoke")
def test_captions_of_visual_match_say_where_the_colors_lie(scale: str) -> None:
    said = 0
    for path in (ROOT / "config/figures").glob("memory_rl_*.yaml"):
        figure = spec_of(scale, path.stem)
        maps = [environment_settings(scale, e).options["color_map"] for e in figure.environments if "visual_match" in e]
        caption = captions.caption(figure, ()).lower()
        assert caption.count("three colors lie") == len(set(maps)), path.stem
        assert all(COLORS[color_map] in caption for color_map in maps)
        said += len(maps)
    assert said >= 7


@pytest.mark.parametrize("scale", ["paper", "demo"])
def test_marks_of_the_room_games_stand_where_the_second_and_the_last_room_are_first_seen(scale: str) -> None:
    figure = figure_settings(scale, "memory_rl_attention_rooms")
    for env in figure.environments:
        chosen = environment_settings(scale, env)
        task = registry.tasks(chosen.world, chosen.options, "eval")[0]
        world = registry.make_world(chosen.world, chosen.options, [task], np.zeros(1, np.uint64))
        world.reset()
        orchard = []
        for step in range(1, world.horizon + 1):  # it acts on what it sees
            if ord("a") in world.get_state()["board"]:
                orchard.append(step)
            world.step(np.zeros(1, np.int64))
        marks = {name: counted(step, world.horizon) for name, step in figure.options["marks"][env].items()}
        assert marks == {"apples": orchard[0], "last room": orchard[-1] + 1}


@pytest.mark.parametrize("scale", ["paper", "demo", "smoke"])
def test_a_caption_says_that_a_gpt_has_as_many_heads_as_layers_where_it_has(scale: str) -> None:
    figures = [figure_settings(scale, path.stem) for path in (ROOT / "config/figures").glob("memory_rl_layers_*.yaml")]
    assert len(figures) == 4
    for figure in figures:
        gpts = [method for method in figure.methods if "gpt" in method]
        of_runs = [
            resolve(scale, env, method, 0).method.hyperparameters for env in figure.environments for method in gpts
        ]
        as_many = all(chosen.sequence.heads == chosen.sequence.layers for chosen in of_runs)
        assert ("as many heads as layers" in figure.caption) == as_many, figure.name
