"""Which finished files are not of today's settings, code or inputs: by their manifests, and those of what they were made of.

It asks what `Stage.is_made` asks, but hashes no file: figures of many runs are warned of in a moment. What is not here, or has no
manifest, counts as of today. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recollect.artifacts.sealed import read_manifest
from recollect.settings.errors import UserError
from recollect.settings.still import held_still
from recollect.stages import evaluate, inspect, measure, train
from recollect.stages.of_data import OF_DATA
from recollect.stages.stage import Job, Stage, making

_OF_RUNS = (train.STAGE, evaluate.STAGE, inspect.STAGE, measure.STAGE)
_STAGES: dict[str, Stage] = {stage.name: stage for stage in (*OF_DATA, *_OF_RUNS)}
_PARTS = ("settings", "code", "inputs")
_MOST_NAMED = 4  # methods in environments, in a message
_Known = dict[Path, tuple[str | None, frozenset[str]]]
"""Of each file its sha256, by its manifest, and in which parts it is not of today"""


def not_of_today(files: Iterable[Path]) -> dict[Path, frozenset[str]]:
    """Those of some files that are not what would be made today, and which of settings, code and inputs differ."""
    known: _Known = {}
    with held_still():
        found = {path: _looked_at(path, known)[1] for path in files if path.is_file()}
    return {path: parts for path, parts in found.items() if parts}


def stale_words(files: Iterable[Path]) -> str:
    """``5 of 6 runs are not of today's settings: dark_room_7x7/radt seeds 1 to 5.``, of scores, traces or speeds; else empty."""
    listed = [path for path in files if path.is_file()]
    stale = not_of_today(listed)
    return words_of(stale, len(listed)) if stale else ""


def words_of(stale: Mapping[Path, frozenset[str]], count: int) -> str:
    """The same of files, some at least, that `not_of_today` found among so many."""
    runs: dict[str, list[int]] = {}
    for path in stale:
        job = _maker(path)
        if job is not None:
            runs.setdefault(f"{job.env}/{job.method}", []).append(int(job.seed))
    named = [f"{run} seed{'s' * (len(seeds) > 1)} {in_words(sorted(seeds))}" for run, seeds in runs.items()]
    more = [f"and {len(named) - _MOST_NAMED} more"] if len(named) > _MOST_NAMED else []
    parts = " or ".join(part for part in _PARTS if any(part in of for of in stale.values()))
    verb = "is" if len(stale) == 1 else "are"
    return f"{len(stale)} of {count} runs {verb} not of today's {parts}: {', '.join(named[:_MOST_NAMED] + more)}."


def differences(made: Mapping[str, Any], job: Job) -> set[str]:
    """Which of `settings` and `code` a file was made of, by its provenance, that today's are not."""
    return {name for name, text in _STAGES[job.stage].today(job.shape).items() if made.get(name) != text}


def in_words(seeds: Sequence[int]) -> str:
    """``0 to 4``, or each of them. They are sorted, and all differ."""
    if len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"{seeds[0]} to {seeds[-1]}"
    return " and ".join(filter(None, (", ".join(map(str, seeds[:-1])), str(seeds[-1]))))


def _looked_at(path: Path, known: _Known) -> tuple[str | None, frozenset[str]]:
    if path in known:
        return known[path]
    known[path] = None, frozenset()  # what is not here says nothing, and what is its own input ends here
    try:
        manifest = read_manifest(path)
    except UserError:
        return known[path]
    made = manifest["provenance"]
    job = _maker(path)
    parts: set[str] = set()
    if job is not None:
        try:
            parts |= differences(made, job)
        except UserError:  # what it was made of is configured no more
            parts.add("settings")
    for name, sha256 in made.get("inputs", {}).items():
        now, of_input = _looked_at(Path(name), known)
        parts |= of_input | ({"inputs"} if now not in (None, sha256) else set())
    known[path] = manifest["sha256"], frozenset(parts)
    return known[path]


def _maker(path: Path) -> Job | None:
    """The job that makes a file; None for one that is fetched or that none makes."""
    return next(making(path, _STAGES.values()), None)
