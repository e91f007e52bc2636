"""`python -m benchmarks.gpu.memory`: how many bytes the tensors of an update have at once, counted on a pretend GPU.

Each line of `make gpu` makes updates at scale `paper` with one and with three rows in a batch, and what they differ by is carried
to the published batch. Counted are tensors, in the precisions of a GPU. Not counted are the driver, workspaces of libraries, and
what an allocator keeps or breaks up. Attention is computed without its dropout, as a CPU else holds all scores at once. Flash
attention never does.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from torch import Tensor
from torch.nn import functional

from benchmarks.gpu import amago
from benchmarks.gpu.case import Case, Part
from benchmarks.gpu.lines import AS_SET, LINES, Line
from benchmarks.gpu.one_line import Cases, subject_of
from benchmarks.gpu.pretend import PretendGpu
from recollect.artifacts.sealed import write_bytes
from recollect.settings.errors import nearest
from recollect.settings.schema import Settings
from recollect.stages.between_marks import put_between

PAGE, MARKS = Path("docs/scale.md"), "gpu memory"
FEW = (1, 3)  # rows of a batch
ROWS = {"supervised": "optimisation.batch_size", "off_policy": "batch_size", "amago": "batch_size"}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.memory", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="LINE", help="none: all")
    parser.add_argument("--write", action="store_true", help=f"put them into {PAGE}; of all lines only")
    chosen = parser.parse_args(arguments)
    for name in chosen.names:
        if name not in counted_lines():
            parser.error(f"unknown line '{name}': {nearest(name, counted_lines())}")
    if chosen.write and chosen.names:
        parser.error("the table has all lines: name none with --write")
    rows = ["| work | rows of a batch | tensors of an update, GB | of them whatever the batch |", "|---|---|---|---|"]
    for name in chosen.names or counted_lines():
        rows.append(row_of(LINES[name]))
        print(rows[-1], flush=True)
    if chosen.write:
        text = put_between(PAGE.read_text(encoding="utf-8"), MARKS, "\n".join(rows), PAGE)
        write_bytes(PAGE, text.encode())


def counted_lines() -> list[str]:
    """Lines that learn in batches of rows, one seed each."""
    return [name for name, line in LINES.items() if line.builds.split(".")[0] in ROWS and not line.extra.get("members")]


def row_of(line: Line) -> str:
    key = ROWS[line.builds.split(".")[0]]
    one, three = (peak(line, {key: rows}) for rows in FEW)
    each = (three - one) / (FEW[1] - FEW[0])
    fixed = one - each * FEW[0]
    batch = published(line, key)
    return f"| {line.what} | {batch} | {(fixed + batch * each) / 1e9:.2g} | {max(fixed, 0) / 1e9:.2g} |"


def peak(line: Line, changes: dict[str, int]) -> int:
    """The most bytes while updates of so many rows are made, with all that the run has on the device."""
    attention = functional.scaled_dot_product_attention

    def flash(*parts: Tensor, dropout_p: float = 0.0, **options: Any) -> Tensor:
        return attention(*parts, **options)

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        gpu = stack.enter_context(PretendGpu())
        stack.enter_context(mock.patch.object(functional, "scaled_dot_product_attention", flash))
        stack.enter_context(mock.patch.object(amago, "UPDATES", 1))  # of a call
        update: Part = subject_of(line, _case(line, Path(folder), changes)).parts[0]
        update.rate()
        return gpu.peak


def published(line: Line, key: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        settings: Settings = _case(line, Path(folder), {}).settings
    found: object = settings.method.hyperparameters
    for name in key.split("."):
        found = getattr(found, name)
    return int(str(found))


def _case(line: Line, folder: Path, changes: dict[str, int]) -> Case:
    """A line as the settings stand, no CUDA graph, whose tensors a pretend GPU would keep for good.

    Each part is called twice: from the second call on the optimiser's numbers are there.
    """
    as_set = line.variants[AS_SET]
    plain = replace(as_set, changes={**as_set.changes, **changes}, extra={})
    case = Cases(line, "cuda", quick=False, folder=folder).case(plain)
    return replace(case, seconds=1e-9, warm=1)


if __name__ == "__main__":
    main()
