"""The safetensors layout, written and read byte by byte.

Why not the library: its writer keeps the metadata in a hash map (so the same content can give other bytes in the next
process) and copies every array once more; its numpy reader copies too. The layout is an 8-byte little-endian header
length, a JSON header, then the raw arrays without gaps, so both directions are short. Files written here are read by
the safetensors library, and the reverse; a test holds that.

Arrays are ordered by item size (largest first), then by name, and the header is padded so that the data starts at a
multiple of 64 bytes: every array of a memory-mapped file is aligned.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recollect.settings.errors import UserError

DTYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype("?"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "BF16": np.dtype("<u2"),  # numpy has no bfloat16: its raw bits
    "F16": np.dtype("<f2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "F32": np.dtype("<f4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
    "C64": np.dtype("<c8"),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}
_ALIGNMENT = 64
_LARGEST_HEADER = 100_000_000  # the library's own limit: a larger length is a broken file, not a header


@dataclass(frozen=True)
class Entry:
    """Where one array lies in a file: format dtype name, shape, and first and last-plus-one byte in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """A checked header: every array lies whole within the file, and the arrays fill it without gaps."""

    entries: dict[str, Entry]
    metadata: dict[str, str]


def dtype_name(name: str, array: np.ndarray) -> str:
    """The format's name of an array's dtype; a UserError where it has none (object, text, date, structured)."""
    found = _NAMES.get(array.dtype.newbyteorder("<"))
    if found is None:
        raise UserError(
            f"an array of dtype {array.dtype} cannot be stored",
            where=name,
            do="convert it to numbers or booleans first (objects would need pickle, which is never used here)",
        )
    return found


def encode(
    arrays: dict[str, np.ndarray], metadata: dict[str, str], dtypes: dict[str, str] | None = None
) -> Iterator[memoryview]:
    """The bytes of a safetensors file, piece by piece (the header, then each array without a copy).

    `dtypes` are names that differ from the array's own, e.g. ``{"w": "BF16"}`` for raw bits in uint16.
    """
    if "__metadata__" in arrays:
        raise ValueError("'__metadata__' is the format's own name and cannot name an array")
    names = {name: (dtypes or {}).get(name) or dtype_name(name, array) for name, array in arrays.items()}
    order = sorted(arrays, key=lambda name: (-DTYPES[names[name]].itemsize, name))
    header: dict[str, Any] = {"__metadata__": {key: metadata[key] for key in sorted(metadata)}} if metadata else {}
    begin = 0
    for name in order:
        end = begin + arrays[name].nbytes
        header[name] = {"dtype": names[name], "shape": list(arrays[name].shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for name in order:
        array = np.ascontiguousarray(arrays[name], dtype=DTYPES[names[name]])
        if array.size:
            yield array.reshape(-1).view(np.uint8).data


def read_header(path: Path) -> Header:
    """Read and check the header of a safetensors file; a UserError where it is broken or a dtype is not known."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LARGEST_HEADER):
            raise _broken(path, f"its first 8 bytes ask for a header of {length} bytes in a file of {size}")
        text = file.read(length)
    try:
        raw = json.loads(text.decode(), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"its header is not JSON ({error})") from error
    if not isinstance(raw, dict):
        raise _broken(path, "its header is not a JSON object")
    metadata = raw.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _broken(path, "its metadata is not a table of texts")
    entries = {name: _entry(path, name, value, 8 + length) for name, value in raw.items()}
    position = 8 + length
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != position:
            raise _broken(path, f"array '{name}' starts at byte {entry.begin}, expected {position}")
        position = entry.end
    if position != size:
        raise _broken(path, f"its arrays end at byte {position}, the file at {size}")
    return Header(entries, metadata)


def map_arrays(path: Path, header: Header) -> dict[str, np.ndarray]:
    """Read-only views into a memory map of the file, one per array (bfloat16 as its raw bits in uint16)."""
    if not header.entries:
        return {}
    whole = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
    return {
        name: whole[entry.begin : entry.end].view(DTYPES[entry.dtype]).reshape(entry.shape)
        for name, entry in header.entries.items()
    }


def _entry(path: Path, name: str, value: Any, data_start: int) -> Entry:
    """One checked header entry, its offsets counted from the start of the file."""
    try:
        dtype, shape, (begin, end) = value["dtype"], value["shape"], value["data_offsets"]
        sound = all(type(number) is int and number >= 0 for number in [*shape, begin, end])
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(path, f"the header entry of array '{name}' is not complete") from error
    if not sound:
        raise _broken(path, f"the header entry of array '{name}' has a size that is not a whole number")
    if dtype not in DTYPES:
        raise UserError(
            f"array '{name}' has dtype {dtype}, which is not read here",
            where=path,
            do=f"store it as one of {[*DTYPES]}",
        )
    if end - begin != math.prod(shape) * DTYPES[dtype].itemsize:
        raise _broken(path, f"array '{name}' of shape {shape} and dtype {dtype} does not fill its {end - begin} bytes")
    return Entry(dtype, tuple(shape), data_start + begin, data_start + end)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _broken(path: Path, why: str) -> UserError:
    return UserError(
        f"not a whole safetensors file: {why}",
        where=path,
        do="delete it and run the command that makes it again (or fetch it again)",
    )
