"""Runs trials, some side by side, and goes on whatever they find."""

from __future__ import annotations

import random
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from attack.jobs import Failed, Reference


@dataclass(frozen=True)
class Trial:
    """One attack.

    Args:
        counts: what is counted of it: a kind of trial of which a whole campaign makes so many.
        promise: a row of the table.
        attack: works in a folder that does not exist yet; returns how many trials it was (none: one), or raises.
    """

    counts: str
    promise: str
    name: str
    attack: Callable[[Path], int | None]


@dataclass(frozen=True)
class Result:
    trial: Trial
    trials: int
    failure: str | None


def share_of(wanted: int, share: float) -> int:
    """How many of so many trials are made; one at least."""
    return max(1, round(wanted * share))


def some(trials: Sequence[Trial], share: float, seed: int) -> list[Trial]:
    """A share of some trials, drawn at random, in their order."""
    chosen = random.Random(f"some {seed}").sample(range(len(trials)), share_of(len(trials), share))
    return [trials[i] for i in sorted(chosen)]


def tried(trial: Trial, folder: Path) -> Result:
    """Make one trial in a folder that is gone afterwards. Whatever goes wrong is a failure."""
    try:
        trials, failure = trial.attack(folder) or 1, None
    except Failed as error:
        trials, failure = error.trials, str(error)
    except Exception:
        trials, failure = 1, "the trial itself broke: " + traceback.format_exc(limit=-3).replace("\n", " | ")
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_name(folder.name + ".said").unlink(missing_ok=True)
    return Result(trial, trials, failure)


def run(trials: Iterable[Trial], place: Path, workers: int) -> list[Result]:
    """Make all trials and say how each went; results come in the order of the trials."""
    trials = list(trials)
    began = time.monotonic()
    results: dict[int, Result] = {}
    with ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(tried, trial, place / f"trial_{i:04d}"): i for i, trial in enumerate(trials)}
        for done in as_completed(futures):
            result = done.result()
            results[futures[done]] = result
            went = "held" if result.failure is None else f"FAILED: {result.failure}"
            line = f"{time.monotonic() - began:6.0f} s  {len(results):4d}/{len(trials)}  {result.trial.name}: {went}"
            print(line, file=sys.stderr, flush=True)
    return [results[i] for i in range(len(trials))]


@dataclass(frozen=True)
class Plan:
    """What trials are made from: the reference, the share of the whole campaign, and the seed of all draws."""

    reference: Reference
    share: float = 1.0
    seed: int = 0

    def draws(self, *of: object) -> random.Random:
        """Draws that belong to one trial."""
        return random.Random(" ".join(map(str, (self.seed, *of))))
