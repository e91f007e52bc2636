"""Every example of AMAGO's released README has a command of ours, in a table of docs/amago.md, that sets the same."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import fake_amago_packages
import numpy as np
import pytest

from recollect.amago.recorder import Recorder
from recollect.environments import gymnasium, registry, retro
from recollect.settings.resolve import figure_settings, names, resolve
from recollect.settings.schema import Settings
from recollect.stages.inputs import figure_runs

ROOT = Path(__file__).resolve().parents[3]
#: Specification 4 and 5: environment, horizon of our world, context and save length in steps. What else the commands set stands in
#: tests/parity/published_settings/amago.yaml.
RELEASED: list[tuple[str, int, int, int]] = [
    ("amago_gym", 500, 32, 128),
    ("amago_popgym_AutoencodeMedium", 10_000, 2000, 2000),
    ("amago_dark_key_door", 500, 500, 500),
    ("amago_maze_15", 400, 400, 400),
    ("amago_meta_world_reach", 1000, 128, 512),
    ("amago_alchemy", 200, 200, 200),
    ("amago_crafter", 2500, 512, 2500),
    ("amago_mario", 27_000, 128, 512),
    ("amago_tmaze_400", 401, 401, 401),
    ("amago_tmaze_10000", 10_001, 10_001, 10_001),
]


pytestmark = pytest.mark.usefixtures("in_the_repository")


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
    """Alchemy's command sets nothing, and its script how long it evaluates.

    What it resolves to is laid beside the released defaults in published_settings/amago.yaml.
    """
    from recollect.amago.amago import Hyperparameters

    assert resolve("paper", "amago_alchemy", "amago_transformer", 42).method.hyperparameters == Hyperparameters(
        compile=True, evaluation_rollouts=120
    )


def horizon_of(world: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> int:
    """Of the world itself; of its options where it needs a package that has no stand-in."""
    if world == "gymnasium":
        return gymnasium.Options.parse(options, world).horizon
    if world == "retro":
        return retro.Options.parse(options, world).horizon
    fake_amago_packages.install(monkeypatch)
    return registry.make_world(world, options, registry.tasks(world, options, "train")[:1], np.zeros(1)).horizon


@pytest.mark.parametrize("number", range(len(RELEASED)))
def test_each_command_plays_and_remembers_as_many_steps(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    env, horizon, context, save_length = RELEASED[number]
    settings = settings_of(table()[number][1])
    hp = settings.method.hyperparameters
    assert (settings.scale, settings.seed, settings.environment.name, settings.method.algorithm) == (
        "paper", 42, env, "amago",
    )  # fmt: skip
    assert hp.context_of(horizon) == context and hp.save_length_of(horizon) == save_length
    assert horizon_of(settings.environment.world, settings.environment.options, monkeypatch) == horizon


@pytest.mark.parametrize("number", range(len(RELEASED)))
def test_each_command_is_a_run_of_the_figure_beside_it(number: int) -> None:
    figure, words = table()[number]
    settings = settings_of(words)
    assert (settings.environment.name, settings.method.name, settings.seed) in figure_runs("paper", figure)


def test_the_variant_released_has_the_seed_codes_defects() -> None:
    released = resolve("paper", "amago_tmaze_400", "amago_transformer.released", 42).method.hyperparameters
    assert (released.exploration.kind, released.exploration.never_anneals) == ("window", True)
    assert (released.inputs.input_norm, released.actor_mask) == ("upstream", "upstream")


def mean_length(recorder: Recorder, horizon: int) -> float:
    """Of trajectories, in steps, where each rollout has so many."""
    everyone, nothing = np.ones(recorder.actors, bool), np.zeros((recorder.actors, 1))
    lengths: list[int] = []
    for step in range(2 * horizon):
        if step % horizon == 0:
            recorder.begin(everyone, nothing)
        ended = everyone & ((step + 1) % horizon == 0)
        finished = recorder.append(np.zeros(recorder.actors, int), nothing[:, 0], nothing, ended)
        lengths += [len(trajectory["time"]) - 1 for trajectory in finished]
    return float(np.mean(lengths))


def test_amago_2s_values_stay_within_its_bins_and_its_budget_is_the_papers() -> None:
    """Specification 6.4."""
    settings = resolve("paper", "amago_meta_world_ml45", "amago_multi_task", 42)
    hp = settings.method.hyperparameters
    most = 10.0 * 500 * settings.environment.options["attempts"]  # a step pays up to 10
    assert most * hp.reward_multiplier < hp.returns[1]
    assert hp.epochs * hp.steps_per_epoch * hp.actors == pytest.approx(1e8, rel=0.01)
    horizon = 500 * settings.environment.options["attempts"]
    recorder = Recorder(3, hp.save_length_of(horizon), hp.context_of(horizon), stagger=hp.stagger)
    assert hp.buffer * mean_length(recorder, horizon) == pytest.approx(8e6, rel=0.001)
    ours = resolve("paper", "amago_meta_world_reach", "amago_multi_task", 42).method.hyperparameters
    assert (ours.bins, ours.returns, ours.bin_space) == (96, (-100, 15_000), "symlog")


def test_the_four_bars_of_amago_2_differ_in_their_updates_alone() -> None:
    """A true 2x2: whether the actor's loss and the critics' depend on the scale of returns, and nothing else."""
    bars = figure_settings("paper", "amago_2_meta_world").methods
    assert len(bars) == 4
    updates = {"online_coefficient", "offline_coefficient", "critic_loss", "bins", "bin_space", "labels", "returns"}
    updates |= {"value_draws", "target_draws"}  # of an actor's loss and of critics that are not those of AMAGO itself
    kept = []
    for bar in bars:
        hp = resolve("paper", "amago_meta_world_ml45", bar, 42).method.hyperparameters
        kept.append({name: value for name, value in hp.model_dump().items() if name not in updates})
    assert kept[0] == kept[1] == kept[2] == kept[3]
    assert kept[0]["inputs"]["hidden"] == (512, 512) and kept[0]["inputs"]["width"] == 256
    both = [resolve("paper", "amago_meta_world_ml45", bar, 42).method.hyperparameters for bar in bars]
    axes = [(hp.online_coefficient > 0, getattr(hp, "critic_loss", "regression")) for hp in both]
    assert axes == [(False, "bins"), (True, "bins"), (False, "regression"), (True, "regression")]


@pytest.mark.parametrize("method", ["amago_ff", "amago_gru"])
def test_without_memory_and_with_a_gru_there_are_as_many_layers_as_with_the_transformer(method: str) -> None:
    """Released code: cli_utils.py, switch_traj_encoder gives `--memory_size` and `--memory_layers` to every architecture."""
    runs = [
        (env, which)
        for name in names("figures")
        if name.startswith("amago_")
        for env, which, _ in figure_runs("paper", name)
    ]
    compared = {env for env, which in runs if which.partition(".")[0] == method}
    assert len(compared) >= 5
    for env in compared:
        ours, transformer = (
            resolve("paper", env, which, 42).method.hyperparameters for which in (method, "amago_transformer")
        )
        same = {"kind": transformer.sequence.kind}
        assert ours.sequence.model_copy(update=same) == transformer.sequence, env
        assert ours.model_copy(update={"sequence": transformer.sequence}) == transformer, env


def test_meta_world_has_the_papers_encoder_and_reach_that_of_the_released_command() -> None:
    encoders = {}
    for name in ("reach", "reach_five", "drawer-close", "sweep", "pick-place"):
        settings = resolve("paper", f"amago_meta_world_{name}", "amago_transformer", 42)
        inputs = settings.method.hyperparameters.inputs
        encoders[name] = (settings.environment.options["attempts"], inputs.hidden, inputs.width)
    papers = ((256, 256), 200)
    assert encoders.pop("reach") == (2, (512, 512), 256)
    assert encoders.pop("reach_five") == (5, *papers)
    assert set(encoders.values()) == {(2, *papers)}


@pytest.mark.parametrize(("scale", "first_batch"), [("paper", "half"), ("demo", "whole"), ("smoke", "whole")])
def test_statistics_begin_as_released_at_scale_paper_alone(scale: str, first_batch: str) -> None:
    """Also of what is `amago_transformer` in part."""
    for method in ("amago_transformer", "amago_ff", "amago_gru", "amago_multi_task"):
        assert resolve(scale, "amago_tmaze_10", method, 42).method.hyperparameters.first_batch == first_batch


def test_package_delivery_ends_where_its_published_numbers_were_read() -> None:
    hp = resolve("paper", "amago_package_delivery", "amago_transformer", 42).method.hyperparameters
    said = (ROOT / "config/figures/references/amago.yaml").read_text(encoding="utf-8")
    assert f"success after {hp.epochs * hp.updates_per_epoch:,} updates" in said


def test_every_switch_of_the_page_exists_and_has_the_default_and_the_value_that_it_says() -> None:
    from recollect.amago.amago import Hyperparameters

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
