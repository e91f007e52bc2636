"""The runs of a sweep: how they are called, how they are made, and what they scored."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from recollect.artifacts.sealed import read_json, read_table, write_json
from recollect.settings.overrides import method_with
from recollect.settings.resolve import resolve
from recollect.stages import paths
from recollect.stages.identity import how_to_make
from recollect.stages.provenance import digest
from recollect.stages.snakemake_command import snakemake_command

if TYPE_CHECKING:
    import pandas as pd

DRY_RUN = frozenset(("-n", "--dry-run", "--dryrun"))
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

    def check(self, cells: Sequence[Cell]) -> None:
        """Raise a UserError where a name, key or value is wrong."""
        for cell in cells:
            resolve(self.scale, self.env, self.name(cell), self.seeds[0])

    def make(self, cells: Sequence[Cell]) -> None:
        """Make what is missing. Raises UserError, before anything runs: a name, key or value is wrong."""
        self.check(cells)
        wanted = [str(path) for _, _, path in self.files(cells)]
        runs, settings = (f"{n} {noun}{'s' * (n != 1)}" for n, noun in ((len(wanted), "run"), (len(cells), "setting")))
        print(f"{runs}: {settings}", file=sys.stderr, flush=True)
        if not any(word in DRY_RUN or re.fullmatch(r"-[FSekpqt]*n[FSekpqt]*", word) for word in self.more):
            self._write_down(wanted)
        status = self.start(snakemake_command("--keep-going", *self.more, "--", *wanted))
        self.failed = self.failed or status != 0

    def _write_down(self, wanted: Sequence[str]) -> None:
        """Say beside the table which runs are wanted, so that `recollect clean` keeps those of a sweep that was killed."""
        file = self.place.with_suffix(".json")
        known = read_json(file, kind="sweep")["runs"] if file.is_file() else []
        if not set(wanted) <= set(known):
            write_json(file, {"runs": [*dict.fromkeys([*known, *wanted])]}, kind="sweep")

    def table(self, cells: Sequence[Cell]) -> pd.DataFrame:
        """A row for each run that is there: what was set, its seed, its final scores."""
        import pandas as pd

        from recollect.stages.final_scores import final_scores

        rows = []
        for cell, seed, path in self.files(cells):
            if path.is_file():
                table = read_table(path, kind="scores", input_from=how_to_make(path))
                scores = final_scores(table, self.scale, self.env, ())
                rows.append({**cell, "seed": seed, **scores})
        return pd.DataFrame(rows)
