"""The safetensors layout, written and read byte by byte.

Why not the library: its writer keeps the metadata in a hash map (so the same content can give other bytes in the next
process) and copies every array once more; its numpy reader copies too. The layout is an 8-byte little-endian header
length, a JSON header, then the raw arrays without gaps, so both directions are short. Whether a file is whole the library
says. Files written here are read by it, and the reverse; a test holds that.

Arrays are ordered by item size (largest first), then by name, and the header is padded so that the data starts at a
multiple of 64 bytes: every array of a memory-mapped file is aligned.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

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


@dataclass(frozen=True)
class Entry:
    """Where one array lies in a file: format dtype name, shape, and first and last-plus-one byte in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """A checked header."""

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
    """Read the header of a safetensors file; a UserError where the file is broken or a dtype is not known."""
    try:
        with safe_open(path, framework="numpy"):
            pass  # the library checks that the arrays have their sizes and fill the file without gaps
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            raw = json.loads(file.read(length), object_pairs_hook=_without_duplicates)
    except (SafetensorError, ValueError) as error:
        raise UserError(
            f"not a whole safetensors file: {error}",
            where=path,
            do="delete it and run the command that makes it again (or fetch it again)",
        ) from error
    metadata = raw.pop("__metadata__", {})
    entries: dict[str, Entry] = {}
    for name, value in raw.items():
        if value["dtype"] not in DTYPES:
            raise UserError(
                f"array '{name}' has dtype {value['dtype']}, which is not read here",
                where=path,
                do=f"store it as one of {[*DTYPES]}",
            )
        begin, end = (8 + length + offset for offset in value["data_offsets"])
        entries[name] = Entry(value["dtype"], tuple(value["shape"]), begin, end)
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


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found
