"""Whether an input is the file that it should be: whose it is, and what it was made of.

A file may be whole and yet another one: of another seed, environment or method, or made of histories that have been made
anew since. Its path says what it should be, its manifest what it is. What was merely made under other settings is stale,
which is Snakemake's to say. What a manifest leaves out is not checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from recollect.settings.errors import UserError
from recollect.stages.plan import maker
from recollect.stages.stage import Job
from recollect.stages.table import STAGES

#: What names a job -> the part of a manifest's settings that holds this name.
_PARTS = {"env": "environment", "method": "method", "figure": "figure"}


def how_to_make(path: Path) -> str:
    """What makes a file, in words that follow on "then"."""
    if _maker(path) is None:
        return "put a whole copy of it there, with its manifest (no command makes it)"
    return f"make it with `snakemake {path.as_posix()}`"


def check(manifests: Mapping[Path, Mapping[str, Any]]) -> None:
    """Check the inputs of one job, which are whole.

    Args:
        manifests: of each input.

    Raises:
        UserError: one is of another environment, method or seed, or was made of other files than those beside it.
    """
    there = {path.as_posix(): manifest["sha256"] for path, manifest in manifests.items()}
    for path, manifest in manifests.items():
        job = _maker(path)
        if job is not None:
            _check_names(path, job, manifest["provenance"])
        for other, sha256 in _inputs(manifest["provenance"]).items():
            now = there.get(other, sha256)
            if now != sha256:
                what = f"this was made of another {other} (sha256 {str(sha256)[:12]}) than the one there (sha256 {now[:12]})"
                do = f"put back the one that it was made of; or delete this, then {how_to_make(path)}"
                raise UserError(what, where=path, do=do)


def _check_names(path: Path, job: Job, provenance: Mapping[str, Any]) -> None:
    wanted = job.names(STAGES[job.stage].over)
    told = _told(provenance)
    for name, value in wanted.items():
        if told.get(name, value) != value:
            what = f"by its manifest this is of {name} {told[name]}, not of {name} {value}"
            do = f"put the file of {name} {value} there; or delete this, then {how_to_make(path)}"
            raise UserError(what, where=path, do=do)
    # Of a memory the settings name no method, of encoded images no environment: what it was made of does.
    if {"env", "method"} & wanted.keys() <= told.keys():
        return
    today = _makers(STAGES[job.stage].inputs(job).values())
    then = _makers(map(Path, _inputs(provenance)))
    if then and then != today:
        said, wanted_of = ("` and `".join(map(str, sorted(jobs))) for jobs in (then, today))
        what = f"by its manifest this was made of what `{said}` makes, not of what `{wanted_of}` makes"
        do = f"put the right file there; or delete this, then {how_to_make(path)}"
        raise UserError(what, where=path, do=do)


def _told(provenance: Mapping[str, Any]) -> dict[str, str]:
    """The names in a manifest, as those of a job: `env`, `method`, `seed`."""
    settings: Any = {}
    with suppress(ValueError, TypeError):
        settings = json.loads(provenance.get("settings") or "{}")
    if not isinstance(settings, dict):
        return {}
    found = {name: settings.get(part) for name, part in _PARTS.items()}
    if "world" in settings:  # the settings of histories are their environment's
        found["env"] = settings
    told = {name: str(part["name"]) for name, part in found.items() if isinstance(part, dict) and "name" in part}
    return {**told, **({"seed": str(provenance["seed"])} if "seed" in provenance else {})}


def _inputs(provenance: Mapping[str, Any]) -> dict[str, str]:
    found = provenance.get("inputs")
    return found if isinstance(found, dict) else {}


def _makers(files: Iterable[Path]) -> set[Job]:
    """The jobs that make files, whatever the scale."""
    jobs = map(_maker, files)
    return {job._replace(scale="") for job in jobs if job is not None}


def _maker(path: Path) -> Job | None:
    with suppress(UserError):  # it may be of a method that is no longer there
        return maker(path, "")
    return None
