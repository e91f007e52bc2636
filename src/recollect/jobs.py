"""What a command does around the work of its jobs."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from recollect.settings.errors import UserError, as_user_error


@contextmanager
def job(threads: int, device: str = "cpu", pack: int = 1) -> Iterator[str]:
    """What every job does around its work: end with its scheduler, use its threads, hold its device."""
    from recollect.artifacts.lease import device_lease
    from recollect.artifacts.lock import dies_with_scheduler

    dies_with_scheduler()
    print(f"$ {' '.join(['recollect', *sys.argv[1:]])}", file=sys.stderr, flush=True)
    if device not in ("cpu", "cuda", "auto"):
        raise UserError(f"unknown device '{device}'", where="--device", do="use cpu, cuda or auto")
    if threads:
        os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    with device_lease(device, pack) as held:  # type: ignore[arg-type]
        import torch

        if threads:
            torch.set_num_threads(threads)
        yield held


def together(seeds: list[int], work: Callable[[int], None]) -> None:
    """Do the work of each seed; when all have been tried, say which failed.

    Raises:
        UserError: some failed; of a single one what it raised itself.
    """
    if len(seeds) == 1:
        return work(seeds[0])
    failed: list[int] = []
    for seed in seeds:
        try:
            work(seed)
        except Exception as error:
            failed.append(seed)
            said = as_user_error(error)
            logging.getLogger("recollect").error("seed %d failed: %s", seed, said or error, exc_info=said is None)
    if failed:
        what = f"{len(failed)} of {len(seeds)} runs failed: seeds {', '.join(map(str, failed))}"
        raise UserError(what, where="the messages above", do="mend it and run the same command: what is made is kept")
    return None
