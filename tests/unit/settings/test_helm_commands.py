"""Every command of HELM's released README has one of ours, in a table of docs/helm.md, that resolves to what it should run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recollect.cli import app
from recollect.environments import registry
from recollect.helm.settings import token_vocabulary
from recollect.settings.resolve import names, resolve
from recollect.settings.schema import Settings
from recollect.stages.inputs import figure_runs

ROOT = Path(__file__).resolve().parents[3]
#: Specification 9.1: environment, method, its option that names the task, steps of the paper's runs, rollout, learning rate.
RELEASED = [
    ("mini_grid_KeyCorridorS3R1", "helm", {"task": "KeyCorridorS3R1"}, 500_000, 32, 3e-4),
    ("random_maze", "helm", {}, 2_000_000, 128, 1e-4),
    *(
        (f"procgen_memory_{game}", "helm", {"game": game, "difficulty": "memory"}, 25_000_000, 128, 1e-4)
        for game in ("maze", "caveflyer", "dodgeball", "miner", "jumper", "heist")
    ),
    ("mini_grid_RedBlueDoors-6x6", "helmv2", {"task": "RedBlueDoors-6x6"}, 500_000, 128, 3e-4),
    ("mini_world_Sign", "helmv2", {"task": "Sign"}, 500_000, 64, 5e-4),
    ("mini_grid_KeyCorridorS3R1", "shelm", {"task": "KeyCorridorS3R1"}, 500_000, 32, 5e-5),
    ("psychlab", "helm", {}, 10_000_000, 256, 7e-4),
    ("mini_grid_MemoryS11", "shelm", {"task": "MemoryS11"}, 2_000_000, 128, 5e-4),
]


pytestmark = pytest.mark.usefixtures("plugins", "in_the_repository")


def section() -> str:
    text = (ROOT / "docs/helm.md").read_text(encoding="utf-8")
    return text.split("## The commands of the released README")[1].split("\n## ")[0]


def commands() -> list[list[str]]:
    rows = re.findall(r"^\| [^|]+ \| `(recollect train [^`]+)` \|$", section(), re.MULTILINE)
    return [shlex.split(ours) for ours in rows]


def settings_of(words: list[str]) -> Settings:
    told = dict(zip(words[2::2], words[3::2], strict=True))
    return resolve(told["--scale"], told["--env"], told["--method"], int(told["--seed"]))


def test_the_table_has_each_released_command_once_in_its_order() -> None:
    found = [settings_of(words) for words in commands()]
    assert [(s.environment.name, s.method.name) for s in found] == [row[:2] for row in RELEASED]


@pytest.mark.parametrize("number", range(len(RELEASED)), ids=lambda number: "-".join(RELEASED[number][:2]))
def test_each_command_runs_what_the_released_one_should(number: int) -> None:
    env, method, options, steps, rollout, rate = RELEASED[number]
    words = commands()[number]
    settings = settings_of(words)
    hp = settings.method.hyperparameters
    assert (settings.scale, settings.seed, settings.method.algorithm) == ("paper", 0, method)
    assert {name: settings.environment.options[name] for name in options} == options
    assert (hp.steps, hp.rollout, hp.learning_rate) == (steps, rollout, rate)
    assert hp.language_model == "transfo-xl-wt103" and hp.actors == (64 if env == "psychlab" else 16)
    (task,) = registry.tasks(settings.environment.world, settings.environment.options, "train")  # needs no package
    assert task.index == 0
    known = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    assert words[:2] == ["recollect", "train"] and all(word in known for word in words[2::2])


def test_each_command_is_a_run_of_a_figure_at_the_papers_scale() -> None:
    """So that the workflow makes it too; Psychlab's own level has a stand-in there, and SHELM's first command two tasks."""
    figures = [name for name in names("figures") if name.startswith("helm_")]
    runs = {run[:2] for figure in figures for run in figure_runs("paper", figure)}
    for env, method, *_ in RELEASED:
        assert (("continuous_recognition" if env == "psychlab" else env), method) in runs, env


def test_the_words_that_are_prepared_are_those_that_shelm_reads() -> None:
    for name in ("clip", "clip_dmlab"):
        assert f"--vocabulary {name}`" in section()
        assert token_vocabulary(name).vision_language_model == "clip-vit-b16"
    for env, name in (
        ("mini_grid_MemoryS11", "clip"),
        ("continuous_recognition", "clip_dmlab"),
        ("psychlab", "clip_dmlab"),
    ):
        assert resolve("paper", env, "shelm", 0).method.hyperparameters.token_vocabulary == name
