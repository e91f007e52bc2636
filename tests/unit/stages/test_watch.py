"""Promises of `recollect watch`: it finds runs by folder or by name, and shows them before, while and after they learn."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from recollect import cli
from recollect.artifacts.live import FILE, Live
from recollect.artifacts.lock import run_lock, worker
from recollect.artifacts.run import Run
from recollect.artifacts.sealed import write_table
from recollect.artifacts.trackers import Tracked
from recollect.figures.live_curves import COLOURS, WatchedRun, page, terminal
from recollect.settings.errors import UserError
from recollect.stages import paths
from recollect.stages.watch import found, state_of, watch

ENV = "tmaze_passive_5"
NAMES = ("scale", "env", "method", "seed")


def begun(seed: int, *, method: str = "dqn_ff", steps: int = 4) -> Run:
    """A run that has logged some steps and has not ended."""
    of = ("smoke", ENV, method, seed)
    folder = paths.checkpoints(*of)
    run = Run(
        paths.run_folder(*of),
        folder,
        settings_text="same",
        live=Live(folder, Tracked(dict(zip(NAMES, of, strict=True)), paths.tracking(*of))),
    )
    run.resume()
    for step in range(10, 10 * steps + 1, 10):
        run.log(step, critic_loss=1 / step, evaluation_return=0.01 * step, q=0.0)
    return run


def ended(seed: int, **more: Any) -> None:
    """A run that has written its training table."""
    run = begun(seed, **more)
    write_table(run.folder / "train.parquet", run.table(), kind="train")
    assert run.live is not None
    run.live.done()


def state(seed: int, method: str = "dqn_ff") -> WatchedRun:
    return state_of(Path(), dict(zip(NAMES, ("smoke", ENV, method, str(seed)), strict=True)))


def test_a_run_is_shown_before_while_and_after_it_learns(workdir: Path) -> None:
    assert state(0).state == "has not begun" and not state(0).ended
    with run_lock(paths.checkpoints("smoke", ENV, "dqn_ff", 0)):
        assert state(0).state == "starting"
        begun(0)
        assert re.fullmatch(r"training on .+, step 40", state(0).state)
        learning = state(0)
    assert state(0).state == "stopped or failed, step 40; the same command goes on"
    ended(0)
    assert state(0).state == "trained, not scored, step 40" and state(0).ended
    paths.scores("smoke", ENV, "dqn_ff", 0).touch()
    assert state(0).state == "trained and scored, step 40"
    assert state(0).points == learning.points and learning.curve("evaluation_return")[0] == [10, 20, 30, 40]


def test_the_lock_of_a_process_that_has_ended_is_nobodys(tmp_path: Path) -> None:
    code = f"from recollect.artifacts.lock import run_lock\nwith run_lock({str(tmp_path)!r}): pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / ".lock").exists() and worker(tmp_path) == ""
    assert worker(tmp_path / "no_such_folder") == ""


def names_of(runs: list[tuple[Path, dict[str, str]]]) -> list[str]:
    return [f"{run['method']} {run['seed']}" for _, run in runs]


def test_runs_are_found_by_folder_and_by_name_each_once(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(0)
    ended(10)
    begun(2)
    ended(0, method="dqn_gpt")
    folder = paths.run_folder("smoke", ENV, "dqn_ff", 0)
    assert names_of(found([folder], {})) == ["dqn_ff 0"]
    assert names_of(found([folder.parent, folder], {})) == ["dqn_ff 0", "dqn_ff 2", "dqn_ff 10"]
    assert names_of(found([paths.checkpoints("smoke", ENV, "dqn_ff", 2)], {})) == ["dqn_ff 2"]
    assert names_of(found([], {"scale": ["smoke"], "env": [ENV], "seed": ["0"]})) == ["dqn_ff 0", "dqn_gpt 0"]
    assert names_of(found([], {})) == ["dqn_ff 2"]  # what is in training, or was when it stopped
    monkeypatch.chdir(workdir.parent)
    assert len(found([workdir / folder.parent], {})) == 3
    assert state_of(*found([workdir / folder], {})[0]).ended


def test_the_lock_that_stays_of_a_deleted_run_is_no_run(workdir: Path) -> None:
    ended(0)
    deleted = paths.run_folder("smoke", ENV, "dqn_ff", 1)
    deleted.mkdir(parents=True)
    (deleted / ".lock").touch()
    assert names_of(found([], {"env": [ENV]})) == ["dqn_ff 0"]


def test_without_a_scale_runs_of_all_scales_are_shown_and_one_to_come_is_of_the_default(workdir: Path) -> None:
    ended(0)  # at scale smoke, and the default is demo
    assert names_of(found([], {"env": [ENV]})) == ["dqn_ff 0"]
    one = {"env": ["tmaze_passive_10"], "method": ["dqn_ff"], "seed": ["3"]}
    assert [run["scale"] for _, run in found([], one)] == ["demo"]
    with pytest.raises(UserError, match="did you mean 'tmaze_passive_10'"):
        found([], {"env": ["tmaze_pasive_10"]})


def test_what_cannot_be_watched_is_said(workdir: Path) -> None:
    with pytest.raises(UserError, match="no run is in training"):
        found([], {})
    with pytest.raises(UserError, match="no folder of runs"):
        found([Path("config/figures")], {})
    with pytest.raises(UserError, match=r"no such run[\s\S]*--env " + ENV):
        found([], {"scale": ["smoke"], "env": [ENV]})
    with pytest.raises(UserError, match="did you mean 'demo'") as refused:
        found([], {"scale": ["demmo"], "env": [ENV]})
    assert refused.value.where == f"--scale demmo --env {ENV}"
    for wrong in ({"env": ["tmaze_pasive_5"]}, {"method": ["dqn_lstmm"]}):
        with pytest.raises(UserError, match=r"did you mean 'tmaze_passive|did you mean 'dqn_lstm'"):
            found([], {"scale": ["smoke"], **wrong})
    folder = Path("results/smoke/runs/tmaze_pasive_5")
    with pytest.raises(UserError, match="did you mean 'tmaze_passive") as refused:
        found([folder], {})
    assert refused.value.where == str(folder)
    ended(0)
    with pytest.raises(UserError, match=r"no run has logged 'critic_los'[\s\S]*did you mean 'critic_loss'"):
        watch([paths.run_folder("smoke", ENV, "dqn_ff", 0)], {}, metrics=["critic_los"], once=True)
    with pytest.raises(UserError, match="did you mean 'tmaze_passive_5'"):
        found([], {"scale": ["smoke"], "env": ["tmaze_pasive_5"], "method": ["dqn_ff"], "seed": ["0"]})
    with pytest.raises(UserError, match=r"'radt.greedy' is not trained[\s\S]*watch 'radt'"):
        found([], {"scale": ["smoke"], "env": ["dark_room_10x10"], "method": ["radt.greedy"], "seed": ["0"]})


def test_a_terminal_shows_every_run_and_a_panel_per_metric(workdir: Path) -> None:
    pytest.importorskip("plotext")
    from rich.console import Console

    begun(0)
    shown = io.StringIO()
    console = Console(file=shown, width=120, height=40)
    console.print(terminal([state(0), state(1)], (), console.width, console.height))
    lines = shown.getvalue().splitlines()
    assert "seed 0" in lines[1] and "0.025" in lines[1] and "0.4" in lines[1]
    assert "seed 1" in lines[2] and "has not begun" in lines[2]
    assert "critic_loss" in lines[3] and "evaluation_return" in lines[3]  # side by side
    assert any("⠀" < sign < "⣿" for line in lines for sign in line)  # a curve, in braille
    assert lines[-1].startswith("Also logged") and lines[-1].rstrip().endswith(": q")
    assert max(map(len, lines)) <= 120


def shown_at(width: int, runs: list[WatchedRun], metrics: Sequence[str] = ()) -> list[str]:
    """The lines of a terminal."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, height=40)
    console.print(terminal(runs, metrics, width, 40))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_a_name_is_never_cut_and_says_its_scale(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotext", None)
    runs = [state(0, "dqn_gpt"), state(0, "dqn_gpt.context=10,learning_rate=0.001")]
    begun(1)
    lines = shown_at(80, [*runs, state(1)])
    assert "…" not in "".join(lines) and max(map(len, lines)) <= 80 and "● smoke" in lines[1]


def test_a_metric_that_no_run_has_logged_so_far_is_said(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotext", None)
    begun(0)
    said = "No run has logged 'critic_los' so far: did you mean 'critic_loss'?"
    assert said in shown_at(120, [state(0)], ["critic_los"])
    assert said.replace("'", "&#x27;") in page([state(0)], ["critic_los"], every=5)


def test_without_the_extra_the_runs_are_shown_without_curves_and_the_page_needs_none(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(0)
    monkeypatch.setitem(sys.modules, "plotext", None)
    runs = [paths.run_folder("smoke", ENV, "dqn_ff", 0)]
    watch(runs, {}, once=True)
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "trained, not scored" in told
        and "0.025" in told
        and "`.venv/bin/uv pip install --python .venv/bin/python plotext`" in told
    )
    with pytest.raises(UserError, match="a folder stands in its place"):
        watch(runs, {}, target=Path("results"))
    watch(runs, {}, target=Path("page.html"))
    assert "trained, not scored" in Path("page.html").read_text()


class Addresses(HTMLParser):
    """Everything that a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [
            str(value) for name, value in attrs if name in ("src", "href", "data") and "#" not in str(value)
        ]


@pytest.mark.slow
def test_a_page_loads_nothing_and_itself_again_as_long_as_a_run_goes_on(workdir: Path) -> None:
    begun(0)
    ended(1)
    for runs, again in (([state(0), state(1)], True), ([state(1)], False)):
        text = page(runs, (), every=5)
        read = Addresses()
        read.feed(text)
        assert not read.loaded and "script" not in read.tags and read.tags.count("svg") == 1
        assert ('http-equiv="refresh"' in text) == again
        assert "evaluation_return" in text and "seed 1" in text
    assert page([state(1)], (), every=5) == page([state(1)], (), every=5)
    odd = WatchedRun("<script>", "a & b", {1: {"<loss": float("nan"), "loss": 1.0}}, ended=True)
    assert odd.curve("<loss") == ([], []) and odd.curve("loss") == ([1], [1.0])
    assert "<script>" not in page([odd], ["<loss"], every=1) and "a &amp; b" in page([odd], (), every=1)


def test_a_curve_has_the_colour_of_its_run() -> None:
    runs = [
        WatchedRun("first", "has not begun", {}, ended=False),
        WatchedRun("second", "", {1: {"loss": 1.0}}, ended=False),
    ]
    table, drawn = page(runs, (), every=5).split("<svg")
    (_, first), (_, second) = COLOURS[:2]
    assert f'{first}">●</td><td>first' in table and f'{second}">●</td><td>second' in table
    assert second in drawn and first not in drawn


def test_the_command_ends_by_itself_where_there_is_no_terminal(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("plotext")
    begun(0)
    words = ["--scale", "smoke", "--env", ENV, "--method", "dqn_ff", "--seed", "0", "--metric", "q"]
    monkeypatch.setattr(sys, "argv", ["recollect", "watch", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    shown = capsys.readouterr().out
    assert not end.value.code and "stopped or failed, step 40" in shown and "critic_loss" in shown
    assert (paths.checkpoints("smoke", ENV, "dqn_ff", 0) / FILE).exists()
