"""Promises of `recollect.figure` and `recollect.claims`: many runs as one table, and what is missing by name."""

from __future__ import annotations

import warnings
from pathlib import Path

import made_results
import pandas as pd
import pytest
from made_results import ROOM, SCALE

import recollect
from recollect import tables
from recollect.settings.errors import UserError
from recollect.stages import paths
from recollect.stages.claims import claims
from recollect.stages.figure import figure
from recollect.stages.stage import Job


@pytest.fixture
def few(workdir: Path) -> str:
    """A figure of AD and DT, three seeds, all of them scored."""
    name = made_results.configure("few", [ROOM], ["ad", "dt"], range(3), kind="in_context_curve")
    for method in ("ad", "dt"):
        for seed in range(3):
            made_results.write_run(ROOM, method, seed)
    return name


def test_the_scores_of_a_figure_are_those_of_all_its_runs_in_one_table(few: str) -> None:
    found = recollect.figure(SCALE, few)
    table = found.scores
    assert set(zip(table["method"], table["seed"], strict=True)) == {(m, s) for m in ("ad", "dt") for s in range(3)}
    assert len(table) == sum(len(run.scores) for run in found.runs) and not found.missing
    assert repr(found) == f"Figure({SCALE!r}, {few!r}, 6 runs)"


def test_missing_runs_are_named_with_what_makes_them(few: str) -> None:
    for seed in (0, 2):
        paths.scores(SCALE, ROOM, "dt", seed).unlink()
    found = recollect.figure(SCALE, few)
    assert [(run.method, run.seed) for run in found.missing] == [("dt", 0), ("dt", 2)]
    with pytest.raises(UserError, match=r"2 of 6 runs have no scores: .*dt seed 0, .*dt seed 2") as refused:
        _ = found.scores
    assert f"recollect.figure('{SCALE}', '{few}', make=True)" in refused.value.do
    assert len(pd.concat([run.scores for run in found.runs if run not in found.missing]))


def test_runs_that_are_not_of_today_are_listed(few: str) -> None:
    found = recollect.figure(SCALE, few)
    assert found.stale == []
    made_results.method_changed("dt")
    made_results.write_run(ROOM, "dt", 1)
    paths.scores(SCALE, ROOM, "dt", 2).unlink()
    assert [(run.method, run.seed) for run in found.stale] == [("dt", 0)]
    assert [(run.method, run.seed) for run in found.missing] == [("dt", 2)]


def test_claims_judged_by_runs_that_are_not_of_today_warn(few: str) -> None:
    made_results.claim("rises", few)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recollect.claims(SCALE, few)
    made_results.method_changed("ad")
    with pytest.warns(UserWarning, match=f"3 of 3 runs are not of today's settings: {ROOM}/ad seeds 0 to 2"):
        (row,) = recollect.claims(SCALE, few).to_dict("records")
    assert row["verdict"] != "not run"


def test_what_a_figure_draws_is_its_csv(few: str) -> None:
    found = recollect.figure(SCALE, few)
    with pytest.raises(UserError, match=f"not drawn[\\s\\S]*snakemake results/{SCALE}/figures/{few}.pdf"):
        _ = found.drawn
    figure(SCALE, few)
    assert set(found.drawn["method"]) >= {"ad", "dt"} and {"mean", "low", "high"} & set(found.drawn)


def test_a_figure_is_made_on_the_device_that_is_named(few: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(tables, "make_job", lambda *of: asked.append(of))
    recollect.figure(SCALE, few, make=True, device="cpu")
    assert asked == [(Job("figure", SCALE, few), "cpu")]


def test_claims_are_a_row_for_each_contrast_judged_as_the_command_does(few: str, workdir: Path) -> None:
    made_results.claim("rises", few)
    (row,) = recollect.claims(SCALE, few).to_dict("records")
    (judged,) = claims(SCALE, [few])
    (contrast,) = judged["contrasts"]
    assert row["claim"] == "rises" and row["verdict"] == judged["verdict"] == row["contrast_verdict"]
    assert (row["value"], row["low"], row["high"]) == (contrast["value"], contrast["low"], contrast["high"])
    paths.scores(SCALE, ROOM, "ad", 0).unlink()
    (row,) = recollect.claims(SCALE, [few]).to_dict("records")
    assert row["verdict"] == "not run" and pd.isna(row["value"]) and "seed_0" in row["why"]
    assert recollect.claims("smoke", few).empty
    with pytest.raises(UserError, match="did you mean 'few'"):
        recollect.claims(SCALE, "fewer")


@pytest.mark.parametrize("wrong", [{"name": "radt_dark_rom_10x10"}, {"scale": "demmo"}, {"folder": "/nope"}])
def test_an_unknown_figure_scale_or_folder_is_refused(workdir: Path, wrong: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"did you mean|no such folder"):
        recollect.figure(**{"scale": "demo", "name": "radt_dark_room_10x10", **wrong})  # type: ignore[arg-type]
