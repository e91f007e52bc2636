"""Whether an input is the file that it should be: whose it is, and what it was made of.

A file may be whole and yet another one: of another seed, environment or method, or made of histories that have been made
anew since. Its path says what it should be, its manifest what it is. What was merely made under other settings is stale,
which is Snakemake's to say. What a manifest leaves out is not checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from recollect.settings.errors import UserError
from recollect.settings.resolve import method_mapping, section
from recollect.stages import paths

_KEPT = (paths.kept_policy, paths.kept_scores)  # no rule makes these
#: What names a job -> the part of a manifest's settings that holds this name.
_PARTS = {"env": "environment", "method": "method", "figure": "figure"}


def how_to_make(path: Path) -> str:
    if _names(path):
        return f"make it with `snakemake {path.as_posix()}`"
    return "put a whole copy of it there, with its manifest (no command makes it)"


def check(manifests: Mapping[Path, Mapping[str, Any]]) -> None:
    """Check the inputs of one job, which are whole.

    Args:
        manifests: of each input.

    Raises:
        UserError: one is of another environment, method or seed, or was made of other files than those beside it.
    """
    there = {path.as_posix(): manifest["sha256"] for path, manifest in manifests.items()}
    for path, manifest in manifests.items():
        made = manifest["provenance"]
        told = _told(made)
        for name, wanted in _wanted(path, told).items():
            if told.get(name, wanted) != wanted:
                what = f"by its manifest this is of {name} {told[name]}, not of {name} {wanted}"
                do = f"put the file of {name} {wanted} there; or delete this, then {how_to_make(path)}"
                raise UserError(what, where=path, do=do)
        for other, sha256 in _inputs(made).items():
            if other == path.as_posix():  # it stands in the place of its own input
                continue
            now = there.get(other, sha256)
            if now != sha256:
                what = f"this was made of another {other} (sha256 {sha256[:12]}) than the one there (sha256 {now[:12]})"
                do = f"put back the one that it was made of; or delete this, then {how_to_make(path)}"
                raise UserError(what, where=path, do=do)


def _names(path: Path) -> dict[str, str]:
    """The names in the path of what some rule makes; empty where none does."""
    for place in paths.PLACES:
        found = None if place in _KEPT else place.match(path)
        if found is not None:
            return found
    return {}


def _wanted(path: Path, told: Mapping[str, str]) -> dict[str, str]:
    """What an input should be, by its path; of a memory also what embeds it, which its method says."""
    wanted = _names(path)
    if "embedder" in told and {"env", "method"} <= wanted.keys():
        memory = section(method_mapping(wanted["scale"], wanted["env"], wanted["method"]), "memory")
        wanted["embedder"] = _embedder(memory)
    return wanted


def _told(provenance: Mapping[str, Any]) -> dict[str, str]:
    """What a file is, by its manifest: `env`, `method`, `seed`, `figure`, `embedder`, as far as it says so."""
    settings: Any = {}
    with suppress(ValueError, TypeError):
        settings = json.loads(provenance.get("settings") or "{}")
    if not isinstance(settings, dict):
        return {}
    found = {name: settings.get(part) for name, part in _PARTS.items()}
    if "world" in settings:  # the settings of histories are their environment's
        found["env"] = settings
    told = {name: str(part["name"]) for name, part in found.items() if isinstance(part, dict) and "name" in part}
    if "seed" in provenance:
        told["seed"] = str(provenance["seed"])
    if isinstance(settings.get("memory"), dict):
        told["embedder"] = _embedder(settings["memory"])
    # Settings of an index name no method, those of encoded images no environment: what they were made of does.
    for path in _inputs(provenance):
        for place in (paths.histories, paths.embeddings):
            told = {**(place.match(path) or {}), **told}
    return {name: value for name, value in told.items() if name != "scale"}


def _embedder(memory: Mapping[str, Any]) -> str:
    return f"{memory.get('embedder')} (seed {memory.get('embedder_seed', 0)})"


def _inputs(provenance: Mapping[str, Any]) -> dict[str, str]:
    found = provenance.get("inputs")
    return found if isinstance(found, dict) else {}
