"""Progress of a long job: a bar on a terminal and in a notebook, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Hashable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from recollect.artifacts.garbage import collect_as_before
from recollect.artifacts.live import headline
from recollect.artifacts.notebook_bar import NotebookBar, in_notebook
from recollect.artifacts.stopping import STATUS

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_open: list[Progress] = []  # the displays of this process, the innermost last


def show(run: Hashable, values: Mapping[str, float]) -> None:
    """Have the open display show what a run logs, as far as it is loss or return; of several runs the means."""
    if _open:
        _open[-1].logged.setdefault(run, {}).update(values)


class Progress:
    """``with Progress(5000, "train radt", "steps") as progress: progress.update(step, loss=loss)``.

    On a terminal a rich bar, in a notebook one of the page; elsewhere the first update, one line per interval, and the
    last state. `update` costs a clock reading between lines, so it may be called every step. `total` may be set anew where
    it is known better later.

    Args:
        start: units done before this process (a resumed run), left out of the speed.
        goes_on: whether who is stopped can go on from a checkpoint.
        interval: seconds between lines where there is no terminal.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        total: int,
        description: str,
        unit: str = "steps",
        *,
        start: int = 0,
        goes_on: bool = False,
        interval: float = 30.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self.description, self.unit = total, description, unit
        self.start, self.interval, self.clock = start, interval, clock
        self.stream: TextIO = stream if stream is not None else sys.stderr
        self.goes_on = goes_on
        self.done = start
        self.metrics: dict[str, float] = {}
        self.logged: dict[Hashable, dict[str, float]] = {}
        self._began = self._last = clock()
        self._printed: tuple[int, int, str] | None = None
        self._bar: Bar | NotebookBar | None = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        collect_as_before()
        self._began = self._last = self.clock()
        _open.append(self)
        if in_notebook():
            self._show(NotebookBar())
        elif self.stream.isatty():
            self._open_bar()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Show the last state; after an error say that it stopped there, after SIGTERM that it is saved."""
        _open.remove(self)
        if self._bar is not None:
            self._show_bar()
            self._bar.stop()
        elif isinstance(error, SystemExit) and error.code == STATUS:
            self._line("ended by SIGTERM and saved at ")
        elif kind is KeyboardInterrupt:
            goes_on = ", and the same command goes on from its last checkpoint," if self.goes_on else ""
            self._line(f"stopped by Ctrl-C{goes_on} at ")
        elif kind is not None:
            self._line(f"stopped by {kind.__name__} at ")
        else:
            self._line("")

    def update(self, done: int, **metrics: float) -> None:
        """Say how many units are done in all, with numbers to show, e.g. ``loss=0.5``."""
        self.done = done
        if metrics:
            self.metrics = metrics
        now = self.clock()
        if self._bar is not None:
            if now - self._last >= 0.1:
                self._last = now
                self._show_bar()
        elif self._printed is None or now - self._last >= self.interval:
            self._last = now
            self._line("")

    def _line(self, before: str) -> None:
        state = (self.done, self.total, before)
        if self._printed == state:
            return
        self._printed = state
        share = f"{100 * self.done / self.total:.0f}%" if self.total else "100%"
        parts = [f"{self.description}: {before}{self.done}/{self.total} {self.unit} ({share})"]
        elapsed, here = self.clock() - self._began, self.done - self.start
        if here > 0 and elapsed > 0:
            parts.append(f"{here / elapsed:.3g} {self.unit}/s")
            if self.done < self.total:
                parts.append(f"{_duration((self.total - self.done) * elapsed / here)} left")
            else:
                parts.append(f"took {_duration(elapsed)}")
        parts += self._metric_texts()
        self.stream.write(", ".join(parts) + "\n")
        self.stream.flush()

    def _metric_texts(self) -> list[str]:
        shown = dict.fromkeys(headline([*self.metrics, *(name for run in self.logged.values() for name in run)]), 0.0)
        for name in shown:
            of_runs = [run[name] for run in self.logged.values() if name in run]
            shown[name] = self.metrics[name] if name in self.metrics else sum(of_runs) / len(of_runs)
        return [f"{name} {float(value):.4g}" for name, value in {**shown, **self.metrics}.items()]

    def _open_bar(self) -> None:
        from rich import progress as rich_progress
        from rich.console import Console

        bar = rich_progress.Progress(
            rich_progress.TextColumn("{task.description}", markup=False),
            rich_progress.BarColumn(),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TimeRemainingColumn(),
            rich_progress.TextColumn("{task.fields[metrics]}", markup=False),
            console=Console(file=self.stream),
        )
        self._show(bar)

    def _show(self, bar: Bar | NotebookBar) -> None:
        self._bar = bar
        self._bar.start()
        self._task = self._bar.add_task(self.description, total=self.total, completed=self.start, metrics="")

    def _show_bar(self) -> None:
        assert self._bar is not None and self._task is not None
        self._bar.update(self._task, completed=self.done, total=self.total, metrics=", ".join(self._metric_texts()))


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02d} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
