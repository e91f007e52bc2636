"""How a command starts: in a process of its own, or as a fork of one that has imported everything (recollect.warm)."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """The console script."""
    answered = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not so beneath nohup and the like
    if answered:
        # Imports may swallow a KeyboardInterrupt, and there is nothing to tidy yet.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from recollect import warm

    address = os.environ.get(warm.ADDRESS)
    if address and warm.can_fork(sys.argv):
        status = warm.ask(address, sys.argv)
        if status is not None:
            sys.exit(status)
    from recollect.artifacts.garbage import collect_rarely

    collect_rarely()
    from recollect.cli import main as command_line

    if answered:
        signal.signal(signal.SIGINT, warm.interrupted)
    command_line()
