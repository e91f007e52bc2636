"""Promises of the progress display: quiet logs, a bar on a terminal."""

from __future__ import annotations

import io
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from recollect.artifacts import stopping
from recollect.artifacts.progress import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_the_first_one_per_interval_and_the_last_line() -> None:
    clock, stream = Clock(), io.StringIO()
    with Progress(100, "train dt", interval=30, stream=stream, clock=clock) as progress:
        for step in range(1, 101):
            clock.now += 1
            progress.update(step, loss=1 / step)
    lines = stream.getvalue().splitlines()
    assert [line.split(" steps")[0] for line in lines] == [
        "train dt: 1/100",
        "train dt: 31/100",
        "train dt: 61/100",
        "train dt: 91/100",
        "train dt: 100/100",
    ]
    assert lines[1] == "train dt: 31/100 steps (31%), 1 steps/s, 69 s left, loss 0.03226"
    assert lines[-1] == "train dt: 100/100 steps (100%), 1 steps/s, took 1 min 40 s, loss 0.01"


def test_the_speed_of_a_resumed_run_leaves_out_what_was_done_before() -> None:
    clock, stream = Clock(), io.StringIO()
    with Progress(1000, "train", start=900, stream=stream, clock=clock) as progress:
        clock.now += 10
        progress.update(950)
    assert stream.getvalue() == "train: 950/1000 steps (95%), 5 steps/s, 10 s left\n"


@pytest.mark.parametrize(
    ("seconds", "said"), [(99, "99 s"), (100, "1 min 40 s"), (5999, "99 min 59 s"), (10_230, "2 h 50 min")]
)
def test_a_time_is_said_in_seconds_minutes_or_hours(seconds: int, said: str) -> None:
    clock, stream = Clock(), io.StringIO()
    with Progress(10, "train", stream=stream, clock=clock) as progress:
        clock.now += seconds
        progress.update(10)
    assert stream.getvalue().endswith(f", took {said}\n")


def test_a_total_that_turns_out_smaller_ends_at_all_of_it() -> None:
    clock, stream = Clock(), io.StringIO()
    with Progress(1680, "training", "updates", stream=stream, clock=clock) as progress:
        for done in range(1, 76):
            clock.now += 1
            progress.total = 1680 if done < 10 else 75
            progress.update(done)
    lines = stream.getvalue().splitlines()
    assert lines[1] == "training: 31/75 updates (41%), 1 updates/s, 44 s left"
    assert lines[-1] == "training: 75/75 updates (100%), 1 updates/s, took 75 s"


def test_an_error_is_told_with_the_place_where_it_stopped() -> None:
    stream = io.StringIO()
    with pytest.raises(KeyError), Progress(10, "embed", "rows", stream=stream, clock=Clock()) as progress:
        progress.update(3)
        raise KeyError
    assert stream.getvalue().splitlines()[-1].startswith("embed: stopped by KeyError at 3/10 rows")


@pytest.mark.parametrize(
    ("goes_on", "said"), [(True, "Ctrl-C, and the same command goes on"), (False, "Ctrl-C at 3/10")]
)
def test_after_ctrl_c_it_is_said_whether_the_same_command_goes_on(goes_on: bool, said: str) -> None:
    stream = io.StringIO()
    with pytest.raises(KeyboardInterrupt), Progress(10, "train", goes_on=goes_on, stream=stream, clock=Clock()) as bar:
        bar.update(3)
        raise KeyboardInterrupt
    assert stream.getvalue().splitlines()[-1].startswith(f"train: stopped by {said}")


def test_a_job_that_sigterm_ended_says_that_it_saved_and_where() -> None:
    stream = io.StringIO()
    with pytest.raises(SystemExit), Progress(10, "train", stream=stream, clock=Clock()) as progress:
        progress.update(3)
        stopping.end()
    assert stream.getvalue().splitlines()[-1].startswith("train: ended by SIGTERM and saved at 3/10 steps")


def test_an_empty_job_is_done_at_once() -> None:
    stream = io.StringIO()
    with Progress(0, "embed", stream=stream):
        pass
    assert stream.getvalue() == "embed: 0/0 steps (100%)\n"


def test_a_terminal_gets_a_bar_with_the_last_state() -> None:
    stream = Terminal()
    with Progress(5, "train [radt]", stream=stream) as progress:
        for step in range(1, 6):
            progress.update(step, loss=0.25)
    shown = stream.getvalue()
    assert "train [radt]" in shown and "5/5" in shown and "loss 0.25" in shown
    assert "steps/s" not in shown


@pytest.mark.parametrize("kernel", [True, False])
def test_a_notebook_gets_a_bar_of_the_page_and_a_shell_of_ipython_lines(
    kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    def display(element: str, **_: Any) -> SimpleNamespace:
        shown.append(element)
        return SimpleNamespace(update=shown.append)

    ipython, page = ModuleType("IPython"), ModuleType("IPython.display")
    shell = SimpleNamespace(kernel="a kernel") if kernel else SimpleNamespace()
    vars(ipython).update(get_ipython=lambda: shell, display=page)
    vars(page).update(display=display, HTML=str)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", page)
    stream = io.StringIO()
    with Progress(9, "train <dt>", start=2, stream=stream, clock=Clock()) as progress:
        progress.total = 4
        progress.update(4, loss=0.25)
    lines = stream.getvalue().splitlines()
    if not kernel:
        assert not shown and lines[-1].startswith("train <dt>: 4/4 steps")
        return
    assert not lines and shown[0] == 'train &lt;dt&gt; <progress value="2" max="9"></progress> 2/9 '
    assert shown[-1] == 'train &lt;dt&gt; <progress value="4" max="4"></progress> 4/4 loss 0.25'
