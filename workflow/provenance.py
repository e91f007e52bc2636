"""Carry Snakemake's own records (.snakemake/metadata) in one small sealed file that DVC tracks.

A clone has the artifacts after `dvc pull`, but not the records of how they were made; without them Snakemake would make
them again. So the last DVC stage packs the records (`save`), and the Snakefile calls `restore` while it is parsed.

- restore() acts only when the tracked file is not the one that this folder saved or restored last: a fresh clone,
  `dvc checkout` of another commit, `dvc exp apply`. Otherwise it costs one hash of a small file.
- A record is restored only where it is about the file on disk (same size and sha256, as the artifact's manifest says),
  or where there is no file yet. So a file made here from other settings is not taken for the one that was recorded.
- Packed are the records of finished jobs whose files stand here; what is packed already about other files (which this
  clone never pulled) is kept.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recollect.stages.snakemake_records import METADATA, record_path

STAMP = Path(".snakemake/provenance.sha256")
TRACKED = Path("provenance/snakemake.json.gz")
KIND = "provenance"

Record = dict[str, Any]


def save(tracked: Path = TRACKED) -> int:
    """Pack every record whose job is finished and whose file stands here; run from the repository's root.

    Returns:
        How many records the file holds.

    Raises:
        UserError: the tracked file is damaged.
    """
    from recollect.artifacts import sealed

    restore(tracked)
    records = _unpack(tracked) if tracked.exists() else {}
    for target, record in _local_records():
        if not record.get("incomplete") and Path(target).is_file():
            records[target] = {**record, "job_hash": _job_hash(record), "file": _identity(Path(target))}
    packed = json.dumps(records, sort_keys=True, separators=(",", ":")).encode()
    with sealed.sealing(tracked, kind=KIND) as temporary:
        temporary.write_bytes(gzip.compress(packed, mtime=0))  # without a time in its header: same records, same bytes
    write_whole(STAMP, _sha256(tracked))
    return len(records)


def restore(tracked: Path = TRACKED) -> int:
    """Bring the packed records back to where Snakemake looks for them, if they are not the ones known here.

    Returns:
        How many records were written (0 when there was nothing to do).

    Raises:
        UserError: the tracked file is damaged.
    """
    if not tracked.exists():
        return 0
    sha256 = _sha256(tracked)
    if STAMP.exists() and STAMP.read_text() == sha256:
        return 0
    written, other = 0, []
    for target, record in _unpack(tracked).items():
        path = Path(target)
        if path.exists() and _identity(path) != record["file"]:
            other.append(target)
            continue
        known = {key: value for key, value in record.items() if key != "file"}
        write_whole(record_path(target), json.dumps(known))
        written += 1
    write_whole(STAMP, sha256)
    if other:
        more = f" and {len(other) - 1} more" if len(other) > 1 else ""
        print(f"{tracked}: not about the files here: {other[0]}{more}; their own records stay", file=sys.stderr)
    return written


def _unpack(tracked: Path) -> dict[str, Record]:
    from recollect.artifacts import sealed

    sealed.verify(tracked, kind=KIND)
    records: dict[str, Record] = json.loads(gzip.decompress(tracked.read_bytes()))
    return records


def _local_records() -> Iterator[tuple[str, Record]]:
    """Each of Snakemake's records here, with the path of the file that it is about."""
    for path in sorted(METADATA.rglob("*")):
        if path.is_file():
            # A long name stands in pieces, one folder each, which begin with @.
            name = "".join(part.removeprefix("@") for part in path.relative_to(METADATA).parts)
            try:
                target, record = base64.urlsafe_b64decode(name).decode(), json.loads(path.read_text())
            except ValueError:
                continue  # half-written by a killed Snakemake, or no record at all: as good as none
            yield target, record


def _job_hash(record: Record) -> int:
    """A number that is the same for the files of one job: Snakemake's own differs in each process."""
    key = json.dumps([record.get(part) for part in ("rule", "input", "log", "params", "shellcmd")], sort_keys=True)
    return int(hashlib.sha256(key.encode()).hexdigest()[:15], 16)


def _identity(path: Path) -> Record:
    """Size and sha256 of a file; the sha256 as its manifest says, where it has one, so that gigabytes are not read."""
    size = path.stat().st_size
    try:
        manifest = json.loads(path.with_name(path.name + ".manifest.json").read_text())
        if manifest["size"] == size:
            return {"size": size, "sha256": manifest["sha256"]}
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no manifest (a page, a log) or a broken one: the bytes themselves
    return {"size": size, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_whole(path: Path, text: str) -> None:
    """Write a small text whole or not at all. For files of Snakemake and git, which have no manifest beside them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{os.getpid()}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


if __name__ == "__main__":
    if sys.argv[1:] != ["save"]:
        sys.exit("usage: python workflow/provenance.py save")
    print(f"{TRACKED}: {save()} records packed")
