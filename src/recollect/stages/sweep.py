"""sweep: changed settings as runs, each under the name that `--set` gives it, and a table of their final scores.

Settings are every combination of some values, or what a sampler proposes (`search`). Snakemake makes the runs that are
missing, so a sweep that was killed goes on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from recollect.artifacts.sealed import check_writable, sealing
from recollect.settings.errors import UserError
from recollect.settings.overrides import axes
from recollect.stages.provenance import describe
from recollect.stages.search import proposed
from recollect.stages.swept_runs import Cell, Sweep


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
) -> None:
    """Make the runs, write the table of their final scores as CSV, and print it with a mean over seeds in each row.

    Where runs are missing, what is there is printed all the same.

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
        cells = proposed(of, trials)
    table, files = of.table(cells), of.files(cells)
    if len(table):
        there = [path for _, _, path in files if path.is_file()]
        with sealing(of.place, kind="sweep", provenance=describe("", "", there)) as temp:
            table.to_csv(temp, index=False, float_format="%.6g", lineterminator="\n")
        means = table.drop(columns="seed").groupby(list(of.axes), sort=False).mean().reset_index()
        print(f"{means.to_string(index=False, float_format='{:.4g}'.format)}\n\nof each seed: {of.place}")
    missing = f"{len(files) - len(table)} of {len(files)} runs are not there"
    if of.failed:
        what = missing if len(table) < len(files) else "some run was not made anew: the table has its older scores"
        do = "where a run failed, mend what it says; then give the same command again: what is made is kept"
        raise UserError(what, where="Snakemake's messages above", do=do)
    if len(table) < len(files):  # a dry run, for one
        print(missing)
