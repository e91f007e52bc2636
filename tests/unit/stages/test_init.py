"""`recollect init`: what it writes is the page's example under another name, is in order, and runs at scale smoke."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from own_files import files_of_the_page

from recollect.artifacts.sealed import read_json
from recollect.settings.errors import UserError
from recollect.stages.check import check
from recollect.stages.check_own import check_own
from recollect.stages.claims import claims
from recollect.stages.init import TEMPLATES, init
from recollect.stages.making import make_job
from recollect.stages.pairs import check_figure
from recollect.stages.settings import checked_figure
from recollect.stages.stage import Job

NUMBERS = itertools.count()
OF_THE_PAGE = {
    "world.py": "corridor.py",
    "environment.yaml": "config/environments/corridor.yaml",
    "method.py": "best_action.py",
    "method.yaml": "config/methods/best_action.yaml",
    "figure.yaml": "config/figures/corridor.yaml",
    "claim.yaml": "config/claims/no_rise.yaml",
}


@pytest.fixture
def mine(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of own files that is not there yet, of a name from which nothing was imported."""
    name = f"begun_{next(NUMBERS)}"
    monkeypatch.setenv("RECOLLECT_MINE", name)
    return workdir / name


def test_the_templates_are_the_examples_of_the_page() -> None:
    assert {path.name for path in TEMPLATES.iterdir()} == {f"{template}.txt" for template in OF_THE_PAGE}
    page = files_of_the_page()
    for template, file in OF_THE_PAGE.items():
        assert (TEMPLATES / f"{template}.txt").read_text() == page[f"mine/{file}"], f"copy {file} of the page"


@pytest.mark.slow
def test_all_that_is_begun_is_in_order_and_runs_at_scale_smoke(mine: Path) -> None:
    said = init("world", "hall", "smoke")
    assert f"{mine.name}/hall.py\n{mine.name}/config/environments/hall.yaml\n" in said
    assert "recollect check --env hall" in said
    init("method", "table_of_halls", "smoke")
    init("figure", "halls", "smoke", env="hall", method="table_of_halls")
    init("claim", "flat", "smoke", figure="halls")
    written = "".join(path.read_text() for path in mine.rglob("*.*") if path.suffix != ".pyc")
    assert "corridor.yaml" not in written and "world: corridor" not in written and "best_action" not in written
    assert check().startswith("the configuration is in order")
    assert "every promise" in list(check_own("smoke", "hall", "table_of_halls"))[-1]
    make_job(Job("figure", "smoke", "halls"), "cpu")
    assert Path("results/smoke/figures/halls.pdf").is_file()
    claims("smoke", ["halls"])
    (claim,) = read_json(Path("results/smoke/claims.json"), kind="claims")["claims"]
    assert claim["name"] == "flat" and claim["verdict"] in ("holds", "undecided")


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (("wolrd", "hall"), {}, "did you mean 'world'"),
        (("world", "tmaze"), {}, "the world 'tmaze' is there already"),
        (("method", "dqn"), {}, "the algorithm 'dqn' is there already"),
        (("world", "dark_room_7x7"), {}, "among the environments already"),
        (("world", "tmaze_passive_5"), {}, "'tmaze_passive_5' is a size of 'tmaze_passive' already"),
        (("world", "my-hall"), {}, "letters, digits and _"),
        (("figure", "../halls"), {}, "cannot be a name"),
        (("world", "true"), {}, "no word that YAML reads as a value"),
        (("method", "no"), {}, "no word that YAML reads as a value"),
        (("world", "__init__"), {}, "cannot be a name"),
        (("figure", "all"), {}, "'all' stands for several figures"),
        (("figure", "radt"), {}, "stands for several figures"),
        (("figure", "headlines"), {}, "stands for several figures"),
        (("figure", "my.halls"), {}, "cannot be a name"),
        (("figure", "halls"), {"env": "dark_room_7x7"}, "a figure is about a method\n.*\n.*--method NAME"),
        (("figure", "halls"), {"method": "radt"}, "a figure is about an environment"),
        (("figure", "halls"), {"env": "dark_rom_7x7", "method": "radt"}, "did you mean"),
        (("figure", "halls"), {"env": "tmaze_passive_5", "method": "radt"}, "no source of histories"),
        (("claim", "flat"), {}, "--figure NAME"),
        (("claim", "flat"), {"figure": "halls"}, "no configuration named 'halls'"),
    ],
)
def test_what_cannot_be_begun_is_refused(
    mine: Path, words: tuple[str, str], options: dict[str, str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        init(*words, "smoke", **options)
    assert not mine.exists()


def test_a_figure_of_episodes_that_each_start_empty_has_no_in_context_episodes(mine: Path) -> None:
    init("figure", "arms", "smoke", env="tmaze_passive_5", method="dqn_lstm")
    drawn = checked_figure("smoke", "arms")
    assert (drawn.kind, drawn.options.last, drawn.caption) == ("bars", "all", "Return per episode.")
    check_figure("smoke", "arms")
    init("figure", "rooms", "smoke", env="dark_room_7x7", method="radt")
    assert checked_figure("smoke", "rooms").caption == "Return of each in-context episode."


def test_what_to_do_next_names_the_scale_that_was_asked_for(mine: Path) -> None:
    said = init("figure", "rooms", "paper", env="dark_room_10x10", method="radt")
    assert "`snakemake results/paper/figures/rooms.pdf`" in said
    assert "`recollect claims --scale paper --figure rooms`" in init("claim", "flat", "paper", figure="rooms")
    assert "radt" in (mine / "config/claims/flat.yaml").read_text()
    assert "table of actions" not in (mine / "config/claims/flat.yaml").read_text()


def test_no_file_is_written_over(mine: Path) -> None:
    mine.mkdir()
    (mine / "hall.py").write_text("# half a world\n")
    with pytest.raises(UserError, match="no file is written over"):
        init("world", "hall", "smoke")
    assert [path.name for path in mine.rglob("*")] == ["hall.py"]


@pytest.mark.parametrize("in_the_way", ["config", "config/environments"])
def test_where_one_file_cannot_be_written_none_stays_and_the_same_command_works_later(
    mine: Path, in_the_way: str
) -> None:
    stands = mine / in_the_way
    stands.parent.mkdir(parents=True)
    stands.touch()
    with pytest.raises(UserError, match="cannot be written"):
        init("world", "hall", "smoke")
    assert not (mine / "hall.py").exists()
    stands.unlink()
    init("world", "hall", "smoke")
    assert (mine / "hall.py").is_file()
