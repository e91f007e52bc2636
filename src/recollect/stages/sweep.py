"""sweep: a grid of changed settings as runs, each under the name that `--set` gives it, and a table of their final scores.

Snakemake makes what is missing, so a sweep that was killed goes on, and one with more values makes no more than these.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recollect.artifacts.sealed import check_writable, read_table, sealing
from recollect.settings.errors import UserError
from recollect.settings.overrides import grid, method_with
from recollect.settings.resolve import resolve
from recollect.stages import paths
from recollect.stages.provenance import describe, digest

if TYPE_CHECKING:
    import pandas as pd

LONGEST = 200  # letters of a file's name; systems take 255 bytes
Cells = Mapping[str, Mapping[str, str]]
"""The name of each changed method -> key -> value, as they stand in names."""


def sweep(
    scale: str,
    env: str,
    method: str,
    seeds: Sequence[int],
    changes: Sequence[str],
    *,
    more: Sequence[str] = (),
    start: Callable[[Sequence[str]], int],
) -> str:
    """Make the runs of a grid, write the table of their final scores as CSV, and give it as text, a mean over seeds a row.

    Args:
        changes: `KEY=VALUE,VALUE`, for each key.
        more: words for Snakemake.
        start: runs a command and returns its exit status.

    Raises:
        UserError: a name, key or value is wrong (then nothing was run), or runs failed.
    """
    cells = {method_with(method, [f"{key}={value}" for key, value in cell.items()]): cell for cell in grid(changes)}
    for name in cells:
        resolve(scale, env, name, seeds[0])
    place = _place(scale, env, method, cells)
    check_writable(place)
    files = {(name, seed): paths.scores(scale, env, name, seed) for name in cells for seed in dict.fromkeys(seeds)}
    print(f"{len(files)} runs: {len(cells)} settings, {len(set(seeds))} seeds", file=sys.stderr, flush=True)
    status = start([sys.executable, "-m", "snakemake", "--keep-going", *more, "--", *map(str, files.values())])
    there = {run: path for run, path in files.items() if path.is_file()}
    missing = f"{len(files) - len(there)} of {len(files)} runs are not there"
    text = missing
    if there:
        table = _table(scale, env, cells, there)
        with sealing(place, kind="sweep", provenance=describe("", "", there.values())) as temp:
            table.to_csv(temp, index=False, float_format="%.6g", lineterminator="\n")
        keys = list(next(iter(cells.values())))
        means = table.drop(columns="seed").groupby(keys, sort=False).mean().reset_index()
        text = f"{means.to_string(index=False, float_format='{:.4g}'.format)}\n\nof each seed: {place}"
    if status:
        do = "mend it, then give the same command again: what is made is kept"
        raise UserError(f"{missing}\n{text}", where="Snakemake's messages above", do=do)
    return text


def _place(scale: str, env: str, method: str, cells: Cells) -> Path:
    """The CSV of a sweep, whose name says the grid; of a long one it says a part, and a hash of the whole."""
    values: dict[str, dict[str, None]] = {}
    for cell in cells.values():
        for key, value in cell.items():
            values.setdefault(key, {})[value] = None
    said = ",".join(f"{key}={','.join(each)}" for key, each in values.items())
    name = f"{method},{said}" if "." in method else f"{method}.{said}"
    return paths.sweep(scale, env, name if len(name) <= LONGEST else f"{name[: LONGEST - 20]}-{digest(said)}")


def _table(scale: str, env: str, cells: Cells, files: Mapping[tuple[str, int], Path]) -> pd.DataFrame:
    """A row for each run: what was set, its seed, its final scores."""
    import pandas as pd

    from recollect.stages.report_rows import final_scores

    rows = []
    for (name, seed), path in files.items():
        scores = final_scores(read_table(path, kind="scores"), scale, env, ())
        rows.append({**cells[name], "seed": seed, **scores})
    return pd.DataFrame(rows)
