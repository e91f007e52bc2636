"""sweep: changed settings as runs, each under the name that `--set` gives it, and a table of their final scores.

Settings are every combination of some values, or what a sampler proposes (`search`). Snakemake makes the runs that are
missing, so a sweep that was killed goes on.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from recollect.artifacts.sealed import check_writable, read_table, sealing
from recollect.settings.errors import UserError
from recollect.settings.overrides import axes, method_with
from recollect.settings.resolve import resolve
from recollect.stages import paths
from recollect.stages.provenance import describe, digest

if TYPE_CHECKING:
    import pandas as pd

LONGEST = 200  # letters of a file's name; systems take 255 bytes
Cell = Mapping[str, str]
"""What is set: key -> value, as they stand in names."""


@dataclass
class Sweep:
    """The runs of a sweep.

    Args:
        axes: key -> its values; in a search also one range, `LOW..HIGH`.
        more: words for Snakemake.
        start: runs a command and returns its exit status.
    """

    scale: str
    env: str
    method: str
    seeds: Sequence[int]
    axes: Mapping[str, Sequence[str]]
    more: Sequence[str]
    start: Callable[[Sequence[str]], int]
    failed: bool = False

    @property
    def place(self) -> Path:
        """The CSV, whose name says the axes; of long ones it says a part, and a hash of the whole."""
        said = ",".join(f"{key}={','.join(values)}" for key, values in self.axes.items())
        name = f"{self.method}{',' if '.' in self.method else '.'}{said}"
        return paths.sweep(self.scale, self.env, name if len(name) <= LONGEST else f"{name[:180]}-{digest(said)}")

    def name(self, cell: Cell) -> str:
        return method_with(self.method, [f"{key}={value}" for key, value in cell.items()])

    def files(self, cells: Sequence[Cell]) -> list[tuple[Cell, int, Path]]:
        """Scores of each cell and seed."""
        runs = itertools.product(cells, dict.fromkeys(self.seeds))
        return [(cell, seed, paths.scores(self.scale, self.env, self.name(cell), seed)) for cell, seed in runs]

    def make(self, cells: Sequence[Cell]) -> None:
        """Make what is missing. Raises UserError, before anything runs: a name, key or value is wrong."""
        for cell in cells:
            resolve(self.scale, self.env, self.name(cell), self.seeds[0])
        wanted = [str(path) for _, _, path in self.files(cells)]
        print(f"{len(wanted)} runs: {len(cells)} settings", file=sys.stderr, flush=True)
        status = self.start([sys.executable, "-m", "snakemake", "--keep-going", *self.more, "--", *wanted])
        self.failed = self.failed or status != 0

    def table(self, cells: Sequence[Cell]) -> pd.DataFrame:
        """A row for each run that is there: what was set, its seed, its final scores."""
        import pandas as pd

        from recollect.stages.report_rows import final_scores

        rows = []
        for cell, seed, path in self.files(cells):
            if path.is_file():
                scores = final_scores(read_table(path, kind="scores"), self.scale, self.env, ())
                rows.append({**cell, "seed": seed, **scores})
        return pd.DataFrame(rows)


def sweep(
    scale: str,
    env: str,
    method: str,
    seeds: Sequence[int],
    changes: Sequence[str],
    *,
    trials: int | None = None,
    more: Sequence[str] = (),
    start: Callable[[Sequence[str]], int],
) -> str:
    """Make the runs, write the table of their final scores as CSV, and give it as text, with a mean over seeds in each row.

    Args:
        changes: `KEY=VALUE,VALUE` for each key; in a search also `KEY=LOW..HIGH`.
        trials: how many settings a sampler proposes; None: every combination.
        more, start: see `Sweep`.

    Raises:
        UserError: a name, key or value is wrong (then nothing was run), or runs failed.
    """
    of = Sweep(scale, env, method, seeds, axes(changes), more, start)
    check_writable(of.place)
    cells: Sequence[Cell]
    if trials is None:
        ranges = [key for key, values in of.axes.items() if any(".." in value for value in values)]
        if ranges:
            what = f"the range of '{ranges[0]}' has no end of values"
            raise UserError(what, where="--set", do="list the values, with commas between them, or add --trials NUMBER")
        cells = [dict(zip(of.axes, values, strict=True)) for values in itertools.product(*of.axes.values())]
        of.make(cells)
    else:
        from recollect.stages.search import proposed

        cells = proposed(of, trials)
    table, files = of.table(cells), of.files(cells)
    text = missing = f"{len(files) - len(table)} of {len(files)} runs are not there"
    if len(table):
        there = [path for _, _, path in files if path.is_file()]
        with sealing(of.place, kind="sweep", provenance=describe("", "", there)) as temp:
            table.to_csv(temp, index=False, float_format="%.6g", lineterminator="\n")
        means = table.drop(columns="seed").groupby(list(of.axes), sort=False).mean().reset_index()
        text = f"{means.to_string(index=False, float_format='{:.4g}'.format)}\n\nof each seed: {of.place}"
    if of.failed:
        do = "mend it, then give the same command again: what is made is kept"
        raise UserError(f"{missing}\n{text}", where="Snakemake's messages above", do=do)
    return text
