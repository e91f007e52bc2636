"""The table of docs/speed.md is what was recorded of runs, nothing of other benchmarks is lost, and what is missed is explained."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks is no part of the package

from benchmarks import NAMES, __main__, recorded, released, table  # noqa: E402
from benchmarks.harness import Comparison, Goal, Rates, Result, Side  # noqa: E402
from recollect.settings.errors import UserError  # noqa: E402

PAGE = Path("docs/speed.md")
BEGIN, END = f"<!-- {recorded.MARKS}: begin -->", f"<!-- {recorded.MARKS}: end -->"
RUN = {
    "commit": "abc", "date": "2026-11-25", "processor": "a processor", "cores": 2, "threads": 1, "load": 0.1,
    "gpu": "none", "python": "3.11", "torch": "2.13",
}  # fmt: skip
LATER = {**RUN, "commit": "def"}
OF_ALL = {row.benchmark for row in recorded.read(ROOT / recorded.PATH)} == set(NAMES)
WAITS = pytest.mark.skipif(not OF_ALL, reason="not all benchmarks were recorded yet")
RATES = Rates(threads=1, gemm_seconds=0.02, peak_gflops=100.0)


def result(work: str, ratio: float = 1.0, **options: Any) -> Result:
    known: dict[str, Any] = {"goal": Goal(2.0), "notes": (), "difference": 0.0, "ours_seconds": 1.0, "rates": RATES}
    known |= {"against_seconds": ratio, "ratios": (ratio,)}
    return Result(**{"work": work, "unit": "", "plain": "the plain way", **known, **options})


def line(**options: Any) -> released.Line:
    known: dict[str, Any] = {
        "of": "a code",
        "unit": "",
        "seconds": 2.5,
        "threads": 1,
        "date": "2026-11-22",
        "gemm_seconds": 0.02,
    }
    return released.Line.model_validate({**known, "goal": 3, "limit": "the sums take as long", **options})


@pytest.mark.usefixtures("in_the_repository")
def test_the_table_of_the_page_is_that_of_the_recorded_runs() -> None:
    said = "run `python -m benchmarks.recorded docs/speed.md`"
    assert PAGE.read_text(encoding="utf-8") == recorded.page_with(recorded.read(), PAGE), said


@WAITS
@pytest.mark.usefixtures("in_the_repository")
def test_every_goal_of_the_released_code_is_met_or_explained() -> None:
    found = {row.result.released: row.result for row in recorded.read() if row.result.released}
    for name, of_line in released.lines().items():
        if of_line.goal is None:
            continue
        met = name in found and released.met(found[name])
        assert met or of_line.limit or of_line.gflop, f"{name}: say in released.yaml what keeps it from its goal"


@pytest.mark.usefixtures("in_the_repository")
def test_what_a_recorded_run_missed_says_why() -> None:
    for row in recorded.read():
        if released.met(row.result) is False:
            assert released.lines()[row.result.released].limit, row.result.work
        if row.result.reached is False:
            assert row.result.work in table.limits(), f"{row.result.work}: say in limits.yaml why"


@WAITS
@pytest.mark.usefixtures("in_the_repository")
def test_limits_are_of_work_that_was_recorded() -> None:
    recorded_work = {row.result.work for row in recorded.read()}
    assert set(table.limits()) <= recorded_work


@pytest.mark.usefixtures("in_the_repository")
def test_what_was_counted_by_hand_is_what_was_computed() -> None:
    for row in recorded.read():
        of_line = released.line_of(row.result)
        if of_line is not None and of_line.gflop is not None and row.result.gflop is not None:
            assert row.result.gflop == pytest.approx(of_line.gflop, rel=0.1), row.result.released


def test_the_file_gives_back_what_was_measured() -> None:
    rows = [
        recorded.Row("stepping", RUN, result("first", notes=("a note",), gflop=2.0)),
        recorded.Row("search", LATER, result("second", goal=None, ratios=(), against_seconds=None, rates=None)),
    ]
    assert recorded.rows_of(json.loads(json.dumps(recorded.content(rows)))) == rows


def test_of_numbers_six_digits_stay() -> None:
    (row,) = recorded.content([recorded.Row("stepping", RUN, result("first", ours_seconds=1.23456789))])["rows"]
    assert row["ours_seconds"] == 1.23457


def test_a_run_of_some_benchmarks_keeps_the_rows_of_the_others_in_order() -> None:
    kept = [recorded.Row(name, RUN, result(f"old {name}")) for name in ("stepping", "search", "gone")]
    new = [recorded.Row(name, LATER, result(f"new {name}")) for name in ("hopfield", "stepping")]
    found = recorded.merged(kept, new, ["stepping", "hopfield"])
    assert [row.result.work for row in found] == ["new stepping", "old search", "new hopfield"]
    assert [row.run["commit"] for row in found] == ["def", "abc", "def"]


def test_the_table_has_a_row_for_each_result_and_says_why_goals_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(released, "lines", lambda: {"of_it": line()})
    monkeypatch.setattr(table, "limits", lambda: {"second": "half of it is not ours"})
    rows = [
        recorded.Row("stepping", RUN, result("first", 4.0)),
        recorded.Row("stepping", RUN, result("second", released="of_it", gflop=50.0)),
        recorded.Row("search", RUN, result("third", goal=None, ratios=(), against_seconds=None)),
    ]
    text = recorded.markdown(rows)
    _, _, first, second, third = text.splitlines()[:5]
    assert first == "| first | 1 s | the plain way: 4 s | 4× [4..4] | ≥ 2× ✓ |  |  |  |  |"
    assert second == (
        "| second | 1 s | the plain way: 1 s | 1× [1..1] | ≥ 2× ✗ (1) | 2.5 s (a code) | 2.5× | ≥ 3× ✗ (2) "
        "| 50 % (all of it: 5×) |"
    )
    assert third == "| third | 1 s |  |  |  |  |  |  |  |"
    assert "1. Half of it is not ours.\n2. The sums take as long." in text
    assert text.splitlines()[-1].startswith("Commit abc, 2026-11-25; a processor; 2 cores, 1 thread")
    assert "load 0.1 when it began; a 1024×1024×1024 matrix product: 107 GFLOP/s" in text


def test_rows_of_several_runs_say_which() -> None:
    rows = [recorded.Row("stepping", RUN, result("first", 4.0)), recorded.Row("search", LATER, result("second", 4.0))]
    lines = recorded.markdown(rows).splitlines()
    assert lines[2].endswith("| a |") and lines[3].endswith("| b |")
    assert lines[-3].startswith("Run a: commit abc") and lines[-1].startswith("Run b: commit def")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a page, where measuring takes no time."""
    monkeypatch.chdir(tmp_path)
    PAGE.parent.mkdir()
    recorded.PATH.parent.mkdir()
    PAGE.write_text(f"# Speed\n\n{BEGIN}\n{END}\n\nthe end\n")
    monkeypatch.setattr(__main__.table, "rates", lambda: RATES)
    return tmp_path


def measures(monkeypatch: pytest.MonkeyPatch, difference: float = 0.0) -> None:
    """Each benchmark has two rows, of which the second may differ from the plain way. No time is spent on measuring."""
    side = Side(lambda: None, 1)
    first = Comparison("first", "", "plain", side, side, difference=lambda: 0.0, goal=Goal(0.0))
    second = dataclasses.replace(first, work="second", difference=lambda: difference)
    monkeypatch.setattr(__main__, "comparisons", lambda name, quick: iter([first, second]))
    monkeypatch.setattr(__main__, "AT_LEAST", 0.0)
    monkeypatch.setattr(table, "rates", lambda: RATES)


@pytest.mark.usefixtures("folder")
def test_the_command_writes_the_file_and_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    measures(monkeypatch)
    assert __main__.main(["search", "--write", str(PAGE)]) == 0
    assert [(row.benchmark, row.result.work) for row in recorded.read()] == [("search", "first"), ("search", "second")]
    assert "| first |" in PAGE.read_text() and PAGE.read_text().endswith("the end\n")
    assert recorded.main([str(PAGE)]) == 0
    assert PAGE.read_text() == recorded.page_with(recorded.read(), PAGE)


@pytest.mark.usefixtures("folder")
def test_what_fails_keeps_what_was_recorded_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measures(monkeypatch)
    assert __main__.main(["search", "windows", "--write", str(PAGE)]) == 0
    before = recorded.read()
    measures(monkeypatch, difference=1.0)
    assert __main__.main(["search", "--write", str(PAGE)]) == 1
    assert recorded.read() == before
    assert "What was recorded of search stays." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "page", "said"),
    [
        (["--quick"], f"{BEGIN}\n{END}", "toy sizes are no results"),
        ([], "no marks", "there is no place for this text"),
    ],
)
def test_what_cannot_be_written_is_refused_before_it_is_measured(
    arguments: list[str], page: str, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(__main__, "run", lambda *given: pytest.fail("measured"))
    (folder / PAGE).write_text(page)
    assert __main__.main(["search", *arguments, "--write", str(PAGE)]) == 2
    assert said in capsys.readouterr().err
    assert (folder / PAGE).read_text() == page and not recorded.PATH.exists()


@pytest.mark.usefixtures("folder")
def test_a_file_of_another_form_is_refused() -> None:
    recorded.PATH.write_text('{"rows": [{"work": "first"}], "runs": []}')
    with pytest.raises(UserError, match="no recorded results"):
        recorded.read()
