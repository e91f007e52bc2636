"""How a command starts: in a process of its own, or as a fork of one that has imported everything (recollect.warm)."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from recollect import warm


def main() -> None:
    """The console script."""
    address = os.environ.get(warm.ADDRESS)
    if address and warm.one_thread(sys.argv):
        status = warm.ask(address, sys.argv)
        if status is not None:
            sys.exit(status)
    run_here()


def run_here() -> None:
    """Run the command of `sys.argv` in this process."""
    from recollect.cli import main as command_line

    command_line()


def serve(address: str) -> NoReturn:
    """Fork a job for each caller; started by `recollect.warm.warm`."""
    warm.serve(address, run_here)
