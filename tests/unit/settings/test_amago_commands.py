"""Every example of AMAGO's released README has a command of ours, in a table of docs/amago.md, that sets the same."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.environments import registry
from recollect.settings.resolve import resolve
from recollect.settings.schema import Settings
from recollect.stages.inputs import figure_runs

ROOT = Path(__file__).resolve().parents[3]
HORIZON_OPTIONS = {"amago_gym": 500, "amago_crafter": 2500, "amago_mario": 27_000}
DEFAULTS: dict[str, Any] = {
    "epochs": 1000, "actors": 12, "steps_per_epoch": 1000, "updates_per_epoch": 1000, "batch_size": 24, "buffer": 20_000,
    "start_learning_at_epoch": 0, "stagger": True, "relabelling": "none", "rare_goals": False, "sample_actions": True,
    "learning_rate": 1e-4, "weight_decay": 1e-3, "gradient_clip": 1.0, "discount": 0.999, "reward_multiplier": 10.0,
    "further_discounts": (0.1, 0.9, 0.95, 0.97, 0.99, 0.995), "critics": 4, "critics_in_target": 2, "polyak": 0.003,
    "critic_weight": 10.0, "online_coefficient": 1.0, "offline_coefficient": 0.1, "head": (256, 256), "popart": True,
}  # fmt: skip
GRID: dict[str, Any] = {"reward_multiplier": 100.0}
T_MAZE = {**GRID, "discount": 0.9999, "sample_actions": False, "actors": 36, "updates_per_epoch": 600, "buffer": 5000}
#: Specification 4 and 5: environment, horizon, sequence model with width and layers, context and save length in steps,
#: width of the time step encoder, and what differs from the defaults of the released command line.
RELEASED: list[tuple[str, int, tuple[str, int, int], int, int, int, dict[str, Any]]] = [
    ("amago_gym", 500, ("ff", 256, 2), 32, 128, 256, {"reward_multiplier": 1.0}),
    ("amago_popgym_AutoencodeMedium", 209, ("transformer", 256, 3), 209, 209, 200,
     {**GRID, "epochs": 650, "actors": 24, "buffer": 80_000}),
    ("amago_dark_key_door", 500, ("transformer", 256, 3), 500, 500, 64, {**GRID, "epochs": 650}),
    ("amago_maze_15", 400, ("transformer", 128, 3), 400, 400, 128,
     {**GRID, "epochs": 600, "actors": 24, "steps_per_epoch": 400, "learning_rate": 3e-4, "weight_decay": 1e-4,
      "relabelling": "some"}),
    ("amago_meta_world_reach", 1000, ("transformer", 256, 3), 128, 512, 256,
     {"epochs": 700, "steps_per_epoch": 1500, "updates_per_epoch": 700}),
    ("amago_alchemy", 200, ("transformer", 256, 3), 200, 200, 256, {}),
    ("amago_crafter", 2500, ("transformer", 256, 3), 512, 2500, 256,
     {"epochs": 5000, "steps_per_epoch": 2000, "batch_size": 18, "start_learning_at_epoch": 5, "stagger": False,
      "relabelling": "some", "rare_goals": True, "weight_decay": 1e-4}),
    ("amago_mario", 27_000, ("transformer", 256, 3), 128, 512, 256, {}),
    ("amago_tmaze_400", 401, ("transformer", 128, 2), 401, 401, 128, {**T_MAZE, "steps_per_epoch": 800}),
    ("amago_tmaze_10000", 10_001, ("transformer", 128, 2), 10_001, 10_001, 128,
     {**T_MAZE, "steps_per_epoch": 10_000, "batch_size": 18}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("RECOLLECT_CONFIG", raising=False)


def table() -> list[tuple[str, list[str]]]:
    """The figure and the words of our command, row by row."""
    section = (ROOT / "docs/amago.md").read_text(encoding="utf-8").split("## The commands of the released README")[1]
    rows = re.findall(r"^\| [^|]+ \| `(\w+)` \| `(recollect train [^`]+)` \|", section, re.MULTILINE)
    return [(figure, shlex.split(ours)) for figure, ours in rows]


def settings_of(words: list[str]) -> Settings:
    told = dict(zip(words[2::2], words[3::2], strict=True))
    return resolve(told["--scale"], told["--env"], told["--method"], int(told["--seed"]))


def test_the_table_has_each_released_command_once_in_its_order() -> None:
    assert [settings_of(words).environment.name for _, words in table()] == [row[0] for row in RELEASED]


def test_the_defaults_are_those_of_the_released_command_line() -> None:
    from recollect.methods.amago import Hyperparameters

    hp = Hyperparameters()
    assert {name: getattr(hp, name) for name in DEFAULTS} == DEFAULTS
    assert (hp.inputs.hidden, hp.inputs.width, hp.inputs.layout, hp.inputs.goal_width) == ((512, 512), 256, "seed", 32)
    assert (hp.sequence.kind, hp.sequence.width, hp.sequence.layers, hp.sequence.heads) == ("transformer", 256, 3, 8)
    explored = hp.exploration
    assert (explored.kind, explored.start, explored.end, explored.anneal) == ("bilevel", (1, 0.05), (0.8, 0.01), 10**6)


@pytest.mark.parametrize("number", range(len(RELEASED)))
def test_each_command_sets_what_the_released_one_does(number: int) -> None:
    env, horizon, (kind, width, layers), context, save_length, inputs_width, differs = RELEASED[number]
    settings = settings_of(table()[number][1])
    hp = settings.method.hyperparameters
    assert (settings.scale, settings.seed, settings.environment.name, settings.method.algorithm) == (
        "paper", 42, env, "amago",
    )  # fmt: skip
    assert (hp.sequence.kind, hp.sequence.width, hp.sequence.layers) == (kind, width, layers)
    assert hp.context_of(horizon) == context and hp.save_length_of(horizon) == save_length
    assert hp.inputs.width == inputs_width
    expected = DEFAULTS | differs
    assert {name: getattr(hp, name) for name in expected} == expected
    world, options = settings.environment.world, settings.environment.options
    assert registry.tasks(world, options, "train")[0].index == 0
    if world in ("tmaze", "meta_key_door", "goal_maze", "alchemy"):  # the others need packages
        (task,) = registry.tasks(world, options, "train")
        assert registry.make_world(world, options, [task], np.zeros(1)).horizon == horizon
    elif env in HORIZON_OPTIONS:
        parsed = registry.world_class(world)
        assert {**options}.get("horizon", horizon) == HORIZON_OPTIONS[env] and parsed is not None
    elif world == "popgym":
        from recollect.environments.popgym import TASKS

        assert TASKS[options["task"]] == horizon
    else:
        assert (options["benchmark"], options["attempts"] * 500) == ("reach", horizon)


@pytest.mark.parametrize("number", range(len(RELEASED)))
def test_each_command_is_a_run_of_the_figure_beside_it(number: int) -> None:
    figure, words = table()[number]
    settings = settings_of(words)
    assert (settings.environment.name, settings.method.name, settings.seed) in figure_runs("paper", figure)


def test_the_t_mazes_exploration_is_a_window_and_the_seed_codes_never_anneals() -> None:
    hp = resolve("paper", "amago_tmaze_400", "amago_transformer", 42).method.hyperparameters
    assert (hp.exploration.kind, hp.exploration.never_anneals) == ("window", False)
    released = resolve("paper", "amago_tmaze_400", "amago_transformer.released", 42).method.hyperparameters
    assert (released.exploration.kind, released.exploration.never_anneals) == ("window", True)
    assert (released.inputs.input_norm, released.actor_mask) == ("upstream", "upstream")


def test_every_switch_of_the_page_exists_and_has_the_default_and_the_value_that_it_says() -> None:
    from recollect.methods.amago import Hyperparameters

    page = (ROOT / "docs/amago.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| [^|]+ \| `([\w.]+)` \| ([^|]+) \| ([^|]+) \|$", page.split("## Defects of the")[1], re.MULTILINE
    )
    assert len(rows) >= 6
    for option, default, released in rows:
        value: Any = Hyperparameters()
        for name in option.split("."):
            value = getattr(value, name)
        said = str(value).lower() if isinstance(value, bool) else f"`{value}`"
        assert said == default.strip(), option
        changed = json.loads(text) if (text := released.removeprefix("newer: ").strip("` ")) == "true" else text
        layer: dict[str, Any] = {"online_coefficient": 0} if option == "continuous" else {}
        for name in reversed(option.split(".")):
            changed = {name: changed}
        Hyperparameters.model_validate(layer | changed)
