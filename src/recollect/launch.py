"""How a command starts: in a process of its own, or as a fork of one that has imported everything (recollect.warm)."""

from __future__ import annotations

import os
import sys

from recollect import warm


def main() -> None:
    """The console script."""
    address = os.environ.get(warm.ADDRESS)
    if address and warm.one_thread(sys.argv):
        status = warm.ask(address, sys.argv)
        if status is not None:
            sys.exit(status)
    from recollect.cli import main as command_line

    command_line()
