"""A progress bar in a notebook: an element of the page that is renewed, with what `rich.progress.Progress` has that we use."""

from __future__ import annotations

import html
import sys
from typing import Any


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel. Imports nothing: where IPython is not imported, it is none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class NotebookBar:
    """One bar in the output of the cell that runs."""

    def __init__(self) -> None:
        self._said, self._total = "", 0
        self._display: Any = None

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def add_task(self, description: str, *, total: int, completed: int, metrics: str) -> int:
        """Show the bar."""
        from IPython.display import display

        self._said, self._total = description, total
        self._display = display(self._element(completed, metrics), display_id=True)
        return 0

    def update(self, task: int, *, completed: int, total: int, metrics: str) -> None:
        """Renew it."""
        self._total = total
        self._display.update(self._element(completed, metrics))

    def _element(self, completed: int, metrics: str) -> Any:
        from IPython.display import HTML

        bar = f'<progress value="{completed}" max="{max(1, self._total)}"></progress>'
        return HTML(f"{html.escape(self._said)} {bar} {completed}/{self._total} {html.escape(metrics)}")
