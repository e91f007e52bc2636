"""clean: runs, checkpoints and data of which no figure, sweep or claim of the present configuration has any use.

What is in use is planned, of every configured scale and figure (`plan`), and of every sweep whose files are there. All else that
a job made counts as unused; files that no job makes are never looked at. A scale in which a process is at work is left alone.
"""

from __future__ import annotations

import fcntl
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from recollect.artifacts.lock import run_lock, worker
from recollect.artifacts.sealed import MANIFEST_SUFFIX, read_json, read_manifest
from recollect.artifacts.set_aside import STAY
from recollect.settings.errors import UserError
from recollect.settings.loading import config_folders
from recollect.settings.resolve import names
from recollect.stages import paths
from recollect.stages.amounts import said_bytes
from recollect.stages.claims import claim_inputs
from recollect.stages.paths import Place
from recollect.stages.plan import below, maker, plan
from recollect.stages.selection import default_selection
from recollect.stages.snakemake_records import ALIVE
from recollect.stages.stage import Job
from recollect.stages.table import STAGES

_NO_SCALES = ("published", "models")  # folders of `data` that every scale shares: what was fetched

#: What is kept or goes as a whole -> where its artifacts lie, and folders of it: of its checkpoints, and of what trackers keep.
_KINDS: dict[str, tuple[tuple[Place, ...], tuple[Place, ...]]] = {
    "run": (
        (paths.policy, paths.train_table, paths.scores, paths.trace, paths.kept_scores, paths.page),
        (paths.checkpoints, paths.tracking),
    ),
    "speed": ((paths.speed,), ()),
    "histories": (
        (paths.histories, paths.task_histories, paths.encoded_histories, paths.image_encoder, paths.image_encoder_log),
        (paths.history_checkpoints, paths.encoder_checkpoints, paths.image_checkpoints),
    ),
    "memory": ((paths.embeddings, paths.index, paths.rows), (paths.memory_checkpoints,)),
    "model": ((paths.trained_model, paths.model_accuracy), (paths.model_checkpoints,)),
    "vocabulary": ((paths.token_vocabulary,), (paths.vocabulary_checkpoints,)),
}


class Unit(NamedTuple):
    """What is kept or goes as a whole. `name`: of its environment, model or vocabulary."""

    kind: str
    scale: str
    name: str
    method: str = ""
    seed: str = ""

    def locked(self, files: Iterable[Path]) -> list[Path]:
        """The folders in which a process that makes it, or some of its files, would hold a lock, as far as there was one."""
        named = {**self._asdict(), **dict.fromkeys(("env", "model", "vocabulary"), self.name)}
        folders = {place.of(named) for place in _KINDS[self.kind][1]}
        folders |= {folder for path in files for folder in path.parents}
        return sorted(folder for folder in folders if (folder / ".lock").is_file())


class Unused(NamedTuple):
    """What nothing has a use for, with its files; and scales that are left alone, each with the reason."""

    files: dict[Unit, list[Path]]
    left: dict[str, str]

    def text(self) -> str:
        """For people: a line for all seeds of a run, with their size."""
        groups = defaultdict[Unit, list[Unit]](list)
        for unit in self.files:
            groups[unit._replace(seed="")].append(unit)
        lines = []
        for group, units in sorted(groups.items()):
            seeds = sorted((unit.seed for unit in units if unit.seed), key=int)
            numbers = f" (seed{'s' * (len(seeds) > 1)} {', '.join(seeds)})" if seeds else ""
            size = said_bytes(sum(_size(unit, self.files) for unit in units))
            lines.append(f"{size:>8}  {' '.join(filter(None, group))}{numbers}")
        of = f"figure, sweep or claim of {', '.join(map(str, config_folders()))}"
        total = said_bytes(sum(_size(unit, self.files) for unit in self.files))
        head = f"Of no use to any {of}: {total}" if lines else f"All is of use to some {of}"
        left = [f"left alone: scale {scale}, {why}" for scale, why in sorted(self.left.items())]
        return "\n".join([head, *lines, *left])


def _size(unit: Unit, files: dict[Unit, list[Path]]) -> int:
    return sum(path.stat().st_size for path in files[unit] if path.is_file())


def unused() -> Unused:
    """What may go.

    Raises:
        UserError: there is no configuration, or some of it is wrong; then it is not known what is in use.
    """
    default_selection()  # there is a configuration, and it is in order
    units = {path: unit for path in _files() if (unit := _unit_of(path)) is not None}
    known, there = names("scales"), {unit.scale for unit in units.values()}
    used = _used(scale for scale in known if scale in there)
    left = {scale: f"a process is at work in {place}" for scale, place in busy_scales().items()}
    files: dict[Unit, list[Path]] = defaultdict(list)
    for path, unit in units.items():
        if unit in used:
            continue
        if unit.scale not in known:  # a copy, or a scale that somebody else has
            left.setdefault(unit.scale, "none of that name is configured; delete its folders by hand")
        elif unit.scale not in left:
            files[unit].append(path)
    return Unused(dict(files), left)


def delete(found: Unused) -> list[str]:
    """Delete what was found, but for what a process is at work on by now, which is returned in words."""
    left, busy = [], busy_scales()
    if _snakemake_lives():
        raise UserError("a Snakemake is at work in this folder", where=ALIVE, do="wait for it to end, or stop it")
    for unit, files in found.files.items():
        try:
            if unit.scale in busy:
                raise UserError("a process is at work", where=busy[unit.scale], do="wait for it to end")
            with ExitStack() as held:
                for folder in unit.locked(files):
                    held.enter_context(run_lock(folder))
                for path in files:
                    path.unlink(missing_ok=True)
        except UserError as error:
            left.append(f"{' '.join(filter(None, unit))} stays: {error.what} ({error.where})")
        else:
            _remove_empty({folder for path in files for folder in path.parents})
    return left


def said_of(found: Unused, left: list[str]) -> str:
    """How a deletion went, of which `left` could not be deleted."""
    if len(left) == len(found.files):
        return "nothing was deleted"
    return "all else is deleted" if left else "deleted"


def busy_scales() -> dict[str, Path]:
    """Scales in whose folders a process is at work, each with one such folder."""
    # `**` follows no links, and `*` does: checkpoints may lie on another disk.
    places = [f"{'*/' * depth}**/.lock" for depth in range(1, 5)]
    locks = {lock for root in ("results", "data") for place in places for lock in Path(root).glob(place)}
    return {lock.parts[1]: lock.parent for lock in locks if worker(lock.parent)}


def _snakemake_lives() -> bool:
    if not ALIVE.is_file():
        return False
    with ALIVE.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _used(scales: Iterable[str]) -> set[Unit]:
    """What figures of these scales, their claims and the sweeps that are there read, and all that this was made of.

    What a scale reads is its own, or no `Unit`: other scales need not be asked.
    """
    files: set[Path] = set()
    for scale in scales:
        files |= _read_and_made(plan(scale, names("figures")).needs)
        files |= set(claim_inputs(scale, *names("figures")).values())
    for file in Path("results").glob("*/sweeps/**/*"):
        swept = _swept(file)
        files |= set(swept)
        try:
            files |= _read_and_made(below(filter(None, (maker(path, file.parts[1]) for path in swept))))
        except UserError as error:
            do = "configure it again; or delete this file, if its runs are wanted no more"
            raise UserError(f"a sweep is of what is configured no more: {error.what}", where=file, do=do) from error
    return {unit for unit in map(_unit_of, files) if unit is not None}


def _swept(file: Path) -> list[Path]:
    """The scores that a file of a sweep is about: a table has those that were there, and beside it stand all that are wanted."""
    if paths.sweep.match(file):
        return [Path(path) for path in read_manifest(file)["provenance"]["inputs"]]
    if paths.sweep_runs.match(file) and not file.name.endswith(MANIFEST_SUFFIX):
        return [Path(path) for path in read_json(file, kind="sweep")["runs"]]
    return []


def _read_and_made(jobs: Iterable[Job]) -> set[Path]:
    return {path for job in jobs for path in (*STAGES[job.stage].makes(job), *STAGES[job.stage].inputs(job).values())}


def _files() -> Iterator[Path]:
    """Every file of data and results; what is a link, a lock, or was put there by a person is none of them."""
    for root in ("results", "data"):
        for folder, _, listed in os.walk(root):
            for name in listed:
                path = Path(folder, name)
                if not path.is_symlink() and not any(part in STAY for part in path.parts):
                    yield path


def _unit_of(path: Path) -> Unit | None:
    """What a file is a part of; None: of nothing that may go."""
    target = path.with_name(path.name.removesuffix(MANIFEST_SUFFIX))
    for kind, (artifacts, folders) in _KINDS.items():
        named = next((found for place in artifacts if (found := place.match(target))), None)
        above = path.parents if path.parts[2:3] in (("checkpoints",), ("tracking",)) else ()
        named = named or next((found for place in folders for folder in above if (found := place.match(folder))), None)
        if named is not None and named["scale"] not in _NO_SCALES:
            name = next(named[key] for key in ("env", "model", "vocabulary") if key in named)
            return Unit(kind, named["scale"], name, named.get("method", ""), named.get("seed", ""))
    return None


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders in which nothing is left, the deepest first; `results` and `data` stay."""
    for folder in sorted(folders, key=lambda folder: -len(folder.parts)):
        if len(folder.parts) > 1 and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
