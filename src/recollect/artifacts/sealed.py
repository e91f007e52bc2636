"""Sealed files: the only way anything is written.

A file is written under a temporary name in its own folder, flushed to disk, renamed, and only then described by a
manifest ``<name>.manifest.json`` with its sha256 and size, sealed the same way. Killed at any instant, what stands
under the final name is the old whole file or the new whole file; a reader that finds file and manifest at odds says so.
A manifest holds its own seal, a hash of all else in it, so that a change inside it is noticed as well.

- Readers verify: existence, manifest, kind, size, sha256 (hashed once per process and version of the file).
- Same content, same bytes: manifests and files carry no time, process or host. The temporary name does (host and
  process), so that the leftovers of a killed process are known as such and swept by the next writer.
- No pickle: arrays are safetensors, tables parquet, the rest JSON.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import platform
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recollect.artifacts.processes import began, lives, stat_of
from recollect.artifacts.safetensors_format import encode, map_arrays, read_header
from recollect.settings.errors import UserError, unwritable

if TYPE_CHECKING:
    import pandas as pd

MANIFEST_FORMAT = 1
MANIFEST_SUFFIX = ".manifest.json"
_CHUNK = 1 << 26  # bytes per write call
_AGAIN = "delete it and run the same command again"
_MANIFEST_FIELDS = {"format": int, "kind": str, "provenance": dict, "sha256": str, "size": int}
_SEAL = "seal"  # manifests of before it was written have none, and are still read
_HOST = re.sub(r"[^A-Za-z0-9]", "_", platform.node()) or "host"
_TEMPORARY = re.compile(rf"^\..+\.{_HOST}-(\d+)-\d+\.tmp(\.[^.]*)?$")
_SAID_ERRORS = {
    errno.EEXIST,
    errno.EFBIG,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.ENAMETOOLONG,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
}
# A file changed this shortly before it is hashed could change again within one tick of the file system's clock.
_SETTLED_NS = 50_000_000
# By so much the clock of a file system may differ from that of processes.
_CLOCKS_SECONDS = 10.0

_counter = itertools.count()
_known_hashes: dict[tuple[int, ...], str] = {}


# --------------------------------------------------------------------------------------------------------- writing


@contextmanager
def sealing(path: str | Path, *, kind: str, provenance: dict[str, Any] | None = None) -> Iterator[Path]:
    """Write one file so that it is whole or absent: ``with sealing("a.pdf", kind="figure") as temp: savefig(temp)``.

    Yields a temporary path in the same folder with the same suffix (for writers that choose the format by suffix).
    When the block ends well, the file is flushed, renamed to ``path`` and its manifest sealed; when it raises, the
    temporary file is removed and what stood at ``path`` before still stands.

    Args:
        path: the final name; its folder is made when missing.
        kind: what the file is, e.g. "histories"; readers may ask for it.
        provenance: JSON-able facts on how it was made (settings, input hashes). No time, process or host: same inputs,
            same bytes.

    Raises:
        UserError: the disk is full, or the place cannot be written.
    """
    target = Path(path)
    # A provenance that cannot be written is refused before the work. What is sealed is what JSON gives back.
    known = json.loads(json.dumps(provenance or {}, allow_nan=False))
    with _place(target) as temp:
        yield temp
        if not temp.is_file():
            raise FileNotFoundError(f"nothing was written to the temporary file of {target}")
        with temp.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = os.fstat(file.fileno()).st_size
    manifest = {
        "format": MANIFEST_FORMAT,
        "kind": kind,
        "provenance": known,
        "sha256": digest,
        "size": size,
    }
    with _place(manifest_path(target)) as temp:
        _write_pieces(temp, [_json_bytes({**manifest, _SEAL: _seal_of(manifest)})])


def write_arrays(
    path: str | Path,
    arrays: dict[str, np.ndarray],
    *,
    kind: str,
    provenance: dict[str, Any] | None = None,
    metadata: dict[str, str] | None = None,
    dtypes: dict[str, str] | None = None,
) -> None:
    """Seal arrays of any shape (booleans, integers, floats) as one safetensors file with texts in its header.

    `dtypes` are safetensors names of arrays that hold raw bits (``{"w": "BF16"}`` with ``w`` in uint16).
    """
    with sealing(path, kind=kind, provenance=provenance) as temp:
        _write_pieces(temp, encode(arrays, metadata or {}, dtypes))


def write_table(path: str | Path, table: pd.DataFrame, *, kind: str, provenance: dict[str, Any] | None = None) -> None:
    """Seal a table as parquet (zstd). The row index is not stored; the same rows give the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = pa.Table.from_pandas(table, preserve_index=False)
    sink = pa.BufferOutputStream()
    # Without the pandas block in the schema: it names versions, and would change bytes that mean the same.
    pq.write_table(arrow.replace_schema_metadata(None), sink, compression="zstd")
    with sealing(path, kind=kind, provenance=provenance) as temp:
        _write_pieces(temp, [memoryview(sink.getvalue())])


def write_json(
    path: str | Path, value: Any, *, kind: str, provenance: dict[str, Any] | None = None, compact: bool = False
) -> None:
    """Seal a JSON value (sorted keys, two spaces; NaN and infinity are refused, they are not JSON).

    Args:
        compact: without spaces, so smaller and faster to write.
    """
    content = _json_bytes(value, compact=compact)
    with sealing(path, kind=kind, provenance=provenance) as temp:
        _write_pieces(temp, [content])


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file that git keeps, such as a page, so that it is whole or as before. It gets no manifest.

    Raises:
        UserError: the disk is full, or the place cannot be written.
    """
    with _place(Path(path)) as temp:
        temp.write_bytes(content)


def check_writable(path: str | Path) -> None:
    """Refuse a place where `sealing` could not write, before the work that would be lost. Makes no folder.

    Raises:
        UserError: a folder stands at the path, or the nearest folder above it that is there cannot be written.
    """
    folder = Path(path).parent
    while not os.path.lexists(folder):
        folder = folder.parent
    why = ""
    if os.path.isdir(path):
        why = "a folder stands in its place"
    elif not os.path.isdir(folder):
        why = f"{folder} is no folder"
    elif not os.access(folder, os.W_OK | os.X_OK):
        why = f"{folder} is read-only"
    if why:
        do = "move what is in the way, or get the right to write there, then run the same command again"
        raise UserError(f"the file cannot be written: {why}", where=path, do=do)


# --------------------------------------------------------------------------------------------------------- reading


def verify(path: str | Path, *, kind: str | None = None, input_from: str | None = None) -> dict[str, Any]:
    """Check a sealed file against its manifest (kind, size, sha256), and return the manifest without its seal.

    Args:
        kind: what it must be.
        input_from: of an input, how to get one: "make it with `...`". None: the command that reads it makes it, too.

    Raises:
        UserError: the file or its manifest is missing, damaged, of another kind or cannot be read.
    """
    target = Path(path)
    try:
        return _verified(target, kind, input_from)
    except OSError as error:
        do = "get the right to read it and its folder (`chmod` by its owner), or check the disk, then run this again"
        raise UserError(f"the file cannot be read: {error}", where=target, do=do) from error


def _verified(target: Path, kind: str | None, input_from: str | None) -> dict[str, Any]:
    again = "and run the same command again" if input_from is None else f"and then {input_from}"
    if not target.is_file():
        what = f"the {kind or 'file'} is missing" if input_from is None else "an input is missing"
        raise UserError(what, where=target, do=input_from or "run the command that makes it, or check the path")
    manifest = _read_manifest(target, again)
    if kind is not None and manifest["kind"] != kind:
        do = f"name a file of kind '{kind}' here"
        raise UserError(f"this is of kind '{manifest['kind']}', not '{kind}'", where=target, do=do)
    size = target.stat().st_size
    if size != manifest["size"]:
        what = f"the file has {size} bytes, its manifest says {manifest['size']}: it was cut short or changed"
        raise UserError(what, where=target, do=f"delete it {again}")
    if sha256_of(target) != manifest["sha256"]:
        what = "the file's sha256 is not the one in its manifest: it is corrupted, or its writing was interrupted"
        raise UserError(what, where=target, do=f"delete it {again}")
    return manifest


def read_arrays(path: str | Path, *, kind: str | None = None) -> dict[str, np.ndarray]:
    """The arrays of a sealed safetensors file, verified, as read-only views into a memory map.

    bfloat16 has no numpy dtype and comes back as float32 (exact, a copy).
    """
    verify(path, kind=kind)
    header = read_header(Path(path))
    arrays = map_arrays(Path(path), header)
    for name, entry in header.entries.items():
        if entry.dtype == "BF16":
            arrays[name] = (arrays[name].astype(np.uint32) << np.uint32(16)).view(np.float32)
    return arrays


def read_metadata(path: str | Path) -> dict[str, str]:
    """The texts in the header of a sealed safetensors file, verified."""
    verify(path)
    return read_header(Path(path)).metadata


def read_table(path: str | Path, *, kind: str | None = None, input_from: str | None = None) -> pd.DataFrame:
    """The table of a sealed parquet file, verified (arguments: see there).

    Raises:
        UserError: see `verify`; or it is not a parquet file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    verify(path, kind=kind, input_from=input_from)
    try:
        # ParquetFile and not read_table: a folder named seed=0 above the file must not become a column.
        with pq.ParquetFile(path) as file:
            return file.read(use_threads=False).to_pandas()
    except (pa.ArrowInvalid, OSError) as error:
        do = _AGAIN if input_from is None else f"delete it and then {input_from}"
        raise UserError(f"not a parquet file: {error}", where=path, do=do) from error


def read_json(path: str | Path, *, kind: str | None = None) -> Any:
    """The value of a sealed JSON file, verified."""
    verify(path, kind=kind)
    try:
        return json.loads(Path(path).read_bytes())
    except ValueError as error:
        raise UserError(f"not a JSON file: {error}", where=path, do=_AGAIN) from error


def sha256_of(path: str | Path) -> str:
    """The sha256 of a file's bytes in hex, remembered per process for as long as the file is not touched."""
    with Path(path).open("rb") as file:
        stat = os.fstat(file.fileno())
        # The change time cannot be set by hand, so it also tells of a file edited and put back to its old mtime.
        key = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        if key not in _known_hashes:
            settled = time.time_ns() - stat.st_ctime_ns > _SETTLED_NS
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if not settled:
                return digest
            _known_hashes[key] = digest
    return _known_hashes[key]


def read_manifest(path: str | Path) -> dict[str, Any]:
    """What a file's manifest says, without reading the file.

    Raises:
        UserError: there is none, or it is damaged.
    """
    return _read_manifest(Path(path), "and run the same command again")


def manifest_path(path: str | Path) -> Path:
    target = Path(path)
    return target.with_name(target.name + MANIFEST_SUFFIX)


def remove_sealed(path: str | Path) -> None:
    Path(path).unlink(missing_ok=True)
    manifest_path(path).unlink(missing_ok=True)


# --------------------------------------------------------------------------------------------------------- details


@contextmanager
def _place(target: Path) -> Iterator[Path]:
    """Yield a temporary path; afterwards flush it, rename it to `target` and flush the folder."""
    temp = target.with_name(f".{target.stem[:100]}.{_HOST}-{os.getpid()}-{next(_counter)}.tmp{target.suffix}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep(target.parent)
        yield temp
        _flush(temp)
        os.replace(temp, target)
        _flush(target.parent)  # the rename itself must reach the disk before anything that relies on it
    except OSError as error:
        if error.errno in _SAID_ERRORS:
            raise unwritable(error, target) from error
        raise
    finally:
        with suppress(OSError):
            temp.unlink(missing_ok=True)


def _write_pieces(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(descriptor, rest[:_CHUNK]) :]
    finally:
        os.close(descriptor)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Remove temporary files whose process, on this host, is gone."""
    for entry in os.scandir(folder):
        match = _TEMPORARY.match(entry.name)
        if match and not _may_be_writing(int(match.group(1)), Path(entry.path)):
            Path(entry.path).unlink(missing_ok=True)


def _may_be_writing(pid: int, path: Path) -> bool:
    """Whether a temporary file may be that of a living process with this id, and not of an earlier one that had the id."""
    if pid == os.getpid():
        return True
    if not lives(pid):
        return False
    try:
        ended, start, written = stat_of(pid)[0] in "ZX", began(pid), path.stat().st_mtime
    except OSError:  # no such system, or it has just ended
        return True
    return not ended and written > start - _CLOCKS_SECONDS


def _json_bytes(value: Any, *, compact: bool = False) -> bytes:
    form: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
    return (json.dumps(value, sort_keys=True, allow_nan=False, **form) + "\n").encode()


def _seal_of(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(_json_bytes(manifest)).hexdigest()


def _read_manifest(target: Path, again: str) -> dict[str, Any]:
    path = manifest_path(target)
    both = f"delete it and {target.name}, {again}"
    try:
        content = path.read_bytes()
        manifest = json.loads(content)
    except FileNotFoundError as error:
        what = "the file has no manifest: its writing was interrupted, or it was not made by recollect"
        raise UserError(what, where=target, do=f"delete it {again} (or fetch file and manifest together)") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"the manifest is not JSON ({error})", where=path, do=both) from error
    seal = manifest.pop(_SEAL, None) if isinstance(manifest, dict) else None
    sound = isinstance(manifest, dict) and manifest.keys() == _MANIFEST_FIELDS.keys()
    for field, wanted in _MANIFEST_FIELDS.items():
        sound = sound and isinstance(manifest[field], wanted)
    if not sound or manifest["format"] != MANIFEST_FORMAT:
        what = f"the manifest is not one of format {MANIFEST_FORMAT}"
        raise UserError(what, where=path, do=f"{both} (with the version that made them, if newer)")
    # Byte for byte, so that a name that stands twice or another spelling of a number is noticed, too.
    if seal is not None and content != _json_bytes({**manifest, _SEAL: _seal_of(manifest)}):
        raise UserError("the manifest is not as it was written: it is corrupted or was edited", where=path, do=both)
    return manifest
