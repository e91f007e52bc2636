"""Images, windows or words into vectors, part by part: neither all of them nor all vectors are ever in memory, and what a
kill costs is the part that was being made.

Each part is a sealed file that says what it was made of. Parts begin at fixed rows and are encoded in fixed batches, so
a run that was killed ends with the bytes of one that was not.

Source: RA-DT (arXiv 2410.07071), released `precompute_img_embeds`, which writes `states_encoded` into every episode's
file and goes on with the files that lack it; specification 2.3 of RA-DT.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from recollect.artifacts.progress import Progress
from recollect.artifacts.sealed import read_arrays, remove_sealed, verify, write_arrays
from recollect.settings.errors import UserError

ROWS = 4096  # of a part, in whole batches: a minute or two of a network on a CPU


def encode_in_parts(
    items: np.ndarray,
    encode: Callable[[np.ndarray], np.ndarray],
    folder: Path,
    *,
    provenance: dict[str, Any],
    rows: int = ROWS,
    what: str = "images",
) -> np.ndarray:
    """Encode N items, going on from the parts that stand in a folder.

    Args:
        items: [N, ...]: images, usually mapped from disk, or the places of what is encoded.
        encode: [n, ...] -> float32 [n, W].
        provenance: what the vectors are a function of; parts made of anything else are made again.
        rows: of a part.
        what: the items' name, which is part of the kind of the parts.

    Returns:
        float32 [N, W], mapped from a file without a name.

    Raises:
        UserError: the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kind = f"vectors of {what}"
    firsts = range(0, len(items), rows)
    parts = {first: folder / f"rows_{first:012d}.safetensors" for first in firsts}
    finished = {first for first, path in parts.items() if _is_finished(path, kind, provenance)}
    done, width = sum(min(rows, len(items) - first) for first in finished), 0
    whole = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (it lives as long as the array)
    with Progress(len(items), f"encoding {what}", what, start=done) as progress:
        for first, path in parts.items():
            if first not in finished:
                made = np.asarray(encode(items[first : first + rows]), np.float32)
                write_arrays(path, {"vectors": made}, kind=kind, provenance=provenance)
                done += len(made)
                progress.update(done)
            part = read_arrays(path, kind=kind)["vectors"]
            width = part.shape[1]
            try:
                whole.write(part.reshape(-1).view(np.uint8).data)
            except OSError as error:
                raise UserError(
                    f"the vectors cannot be written: {error}", where=folder, do="free some space there"
                ) from error
    whole.flush()
    return np.memmap(whole, np.float32, mode="r", shape=(len(items), width))


def remove_parts(folder: Path) -> None:
    """Remove all parts, when what they were made for is sealed."""
    for path in sorted(folder.glob("rows_*.safetensors")):
        remove_sealed(path)


def _is_finished(path: Path, kind: str, provenance: dict[str, Any]) -> bool:
    try:
        return path.is_file() and bool(verify(path, kind=kind)["provenance"] == provenance)
    except UserError:
        return False  # damaged, or its writing was interrupted: it is made again
