"""What a command does around its work and that of its jobs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from recollect.settings.catalogue import message_of
from recollect.settings.errors import UserError
from recollect.settings.still import held_still


@contextmanager
def job(threads: int, device: str = "cpu", pack: int = 1, devices: int = 1) -> Iterator[str]:
    """What every job does around its work: end with its scheduler, save on SIGTERM, use its threads, hold its devices."""
    from recollect.artifacts.freed_memory import keep_freed_memory
    from recollect.artifacts.lease import device_lease
    from recollect.artifacts.lock import dies_with_scheduler
    from recollect.artifacts.stopping import saves_on_sigterm
    from recollect.artifacts.threads import use_threads

    dies_with_scheduler()
    keep_freed_memory()
    print(f"$ {' '.join(['recollect', *sys.argv[1:]])}", file=sys.stderr, flush=True)
    if device not in ("cpu", "cuda", "auto"):
        raise UserError(f"unknown device '{device}'", where="--device", do="use cpu, cuda or auto")
    with saves_on_sigterm(), device_lease(device, pack, count=devices) as held:  # type: ignore[arg-type]
        use_threads(threads)
        yield held


@contextmanager
def reported() -> Iterator[None]:
    """Do the work of a process; what a user can mend becomes one message and exit status 2.

    Before an error in own code stands how it came about.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("recollect").setLevel(logging.INFO)
    try:
        with held_still():  # a command is about the configuration as it stands when it starts
            yield
    except (Exception, SystemExit) as error:
        said = message_of(error)
        if said is None:
            raise
        print(f"error: {said}", file=sys.stderr)
        sys.exit(2)
