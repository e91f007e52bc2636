"""`recollect list`: every name that a command takes, and what it stands for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from recollect.settings.errors import UserError
from recollect.settings.loading import names
from recollect.settings.resolve import figure_settings
from recollect.settings.still import held_still
from recollect.stages.listing import GROUPS, listing
from recollect.stages.listing_modules import MODULES, module_names

OWN = '''"""Own thing."""
from pydantic import Field
from recollect.environments import base
class Options(base.WorldOptions):
    size: int = Field(3, description="How large.")
Hyperparameters = Options
class World:
    options_model = Options
def tasks(split): ...
def draw(scores, figure): ...
def generate(settings): ...
'''


@pytest.fixture(autouse=True)
def as_a_command(workdir: Path) -> Iterator[None]:
    """Files are read once, as in a command."""
    with held_still():
        yield


def row(group: str, name: str) -> str:
    (line,) = [line for line in listing(group, [name]).splitlines() if line.startswith(f"{name} ")]
    return line


def test_every_figure_environment_method_and_claim_has_a_row() -> None:
    for group in ("figures", "methods", "claims", "scales"):
        listed = [line.split()[0] for line in listing(group).splitlines()]
        assert listed == ["name", *names(group)]
    overview = listing()
    assert all(f"recollect list {group}" in overview for group in GROUPS) and "radt_agnostic" in overview


def test_a_scale_shows_the_seeds_that_its_figures_have() -> None:
    for scale in names("scales"):
        drawn = {figure_settings(scale, figure).seeds for figure in names("figures")}
        assert row("scales", scale).count(" figure") >= min(len(drawn), 3)
    assert "0 to 2 (" in row("scales", "demo") and "0 to 4 (" in row("scales", "demo")
    assert "5 to 7 (" in row("scales", "demo_again") and "5 to 9 (" in row("scales", "demo_again")
    assert "30 seeds (" in row("scales", "paper") and "others" in row("scales", "paper")


def test_every_variant_that_a_figure_draws_is_listed() -> None:
    listed = {line.split()[0] for line in listing("variants").splitlines()}
    drawn = {name for figure in names("figures") for name in figure_settings("paper", figure).methods if "." in name}
    assert drawn and drawn <= listed
    assert "its method's" in row("variants", "radt.every_25") and "all" in row("variants", "radt.every_25")
    assert "demo" in row("variants", "ad.greedy") and "paper" not in row("variants", "ad.greedy")
    of_shelm = [line.split()[0] for line in listing("variants", ["shelm"]).splitlines()[1:]]
    assert set(of_shelm) == {name for name in listed if name.startswith("shelm.")}


def test_an_environment_says_id_spaces_and_steps_and_what_is_missing() -> None:
    room = row("environments", "dark_room_10x10")
    assert all(words in room for words in ("recollect/DarkRoom-v0", "int16", "Discrete(5)", "100"))
    maze = row("environments", "tmaze_passive_50")
    assert "recollect/TMazePassive-v0" in maze and "TMazeActive" not in maze and maze.endswith("51")
    assert "CartPole-v1" in row("environments", "gym.CartPole-v1")
    listed = GROUPS["environments"][1]()
    assert listed["tmaze_passive_LENGTH"] == "tmaze_passive" and "gym.ID" in listed


def test_a_missing_package_is_named_and_stops_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from recollect.environments import registry

    def missing(name: str, *rest: object) -> None:
        raise UserError(f"the world '{name}' needs the package 'metaworld'", where="", do="")

    monkeypatch.setattr(registry, "tasks", missing)
    assert "needs the package 'metaworld'" in row("environments", "meta_world")


def test_your_own_are_listed_too(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_MINE", "my_own")
    folder = workdir / "my_own/config/methods"
    folder.mkdir(parents=True)
    (folder / "my_dt.yaml").write_text("base: dt\ntitle: Mine\nvariants: {short: {hyperparameters: {context: 3}}}\n")
    assert "Mine" in row("methods", "my_dt") and "my_dt.short" in listing("variants")


@pytest.mark.parametrize("group", MODULES)
def test_kinds_sources_and_worlds_are_listed_with_their_options_and_yours_among_them(
    group: str, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = workdir / f"own_{group}"
    monkeypatch.setenv("RECOLLECT_MINE", folder.name)
    folder.mkdir()
    (folder / "own_kind.py").write_text(OWN)
    listed, overview = listing(group), listing()
    assert all(f"\n\n{name}\n" in listed and name in overview for name in module_names(group))
    assert "own_kind\n  Own thing." in listed and "options: size" in listed
    assert re.search(r"size +int +3 +How large\.", listing(group, ["own_kind"]))


def test_options_of_a_world_are_told_as_it_tells_them_and_a_missing_package_stops_no_list() -> None:
    said = listing("worlds", ["tmaze"])
    assert re.search(r"length +int +\d+", said) and "length: cells from the start to the junction" in said
    assert re.search(r"window +int +10 +Evaluations in the rolling mean", listing("kinds", ["curve_panels"]))


@pytest.mark.parametrize(
    ("group", "chosen", "nearest"),
    [
        ("kids", [], "kinds"),
        ("kinds", ["bar"], "bars"),
        ("method", [], "methods"),
        ("methods", ["rdt"], "radt"),
        ("environments", ["dark_rom_7x7"], "dark_room_7x7"),
    ],
)
def test_unknown_words_are_answered_with_the_nearest(group: str, chosen: list[str], nearest: str) -> None:
    with pytest.raises(UserError, match=f"did you mean '{nearest}'"):
        listing(group, chosen)
