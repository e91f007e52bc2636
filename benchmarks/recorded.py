"""The results that git keeps (`docs/recorded/speed.json`), and from them alone the table of docs/speed.md.

`python -m benchmarks --write docs/speed.md` measures and writes both. A run of some benchmarks keeps the rows of the others, with
what those were measured on. `python -m benchmarks.recorded docs/speed.md` makes the table anew from the file, after a change of
goals or limits (`released.yaml`, `limits.yaml`).
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from benchmarks import NAMES, exit_status, released, table
from benchmarks.harness import Goal, Rates, Result
from recollect.artifacts.sealed import write_bytes
from recollect.settings.errors import UserError
from recollect.stages.between_marks import put_between
from recollect.stages.circumstances import commit

PATH = Path("docs/recorded/speed.json")
MARKS = "recorded speed"
HEADER = (
    "work", "ours", "plain form", "ratio to it", "goal", "released code", "ratio to it", "goal", "share of peak",
)  # fmt: skip
Run = dict[str, Any]
"""What a run was measured on: commit, date, and the machine (see `table.machine`)."""


@dataclass(frozen=True)
class Row:
    """A result, of which benchmark, and of which of the runs."""

    benchmark: str
    run: Run
    result: Result


def new_run(machine: Mapping[str, Any]) -> Run:
    """A run that begins now."""
    return {"commit": commit() or "unknown", "date": f"{datetime.date.today()}", **machine}


def content(rows: Sequence[Row]) -> dict[str, Any]:
    """As JSON values: the runs, and rows that name their run by its place. Numbers have six digits."""
    runs = _runs(rows)
    return {
        "runs": runs,
        "rows": [
            _rounded({"benchmark": row.benchmark, "run": runs.index(row.run), **asdict(row.result)}) for row in rows
        ],
    }


def rows_of(kept: Mapping[str, Any]) -> list[Row]:
    """The inverse of `content`."""
    return [Row(row["benchmark"], kept["runs"][row["run"]], _result(row)) for row in kept["rows"]]


def read(path: Path = PATH) -> list[Row]:
    """What was recorded; nothing where there is no file.

    Raises:
        UserError: it is not such a file.
    """
    if not path.is_file():
        return []
    try:
        return rows_of(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, IndexError, TypeError) as error:
        do = "delete it and measure all benchmarks anew; an older version wrote it"
        raise UserError(f"these are no recorded results ({error!r})", where=path, do=do) from error


def merged(kept: Sequence[Row], new: Sequence[Row], measured: Collection[str]) -> list[Row]:
    """The new rows of the benchmarks that were measured, and of all others those that were recorded, in the order of `NAMES`."""
    others = [row for row in kept if row.benchmark not in measured]
    order = list(NAMES)
    chosen = [row for row in (*others, *new) if row.benchmark in NAMES]
    return sorted(chosen, key=lambda row: order.index(row.benchmark))


def page_with(rows: Sequence[Row], page: Path) -> str:
    """The page with its table as it must be.

    Raises:
        UserError: there is no page, or no place in it.
    """
    if not page.is_file():
        raise UserError("there is no such page", where=page, do="name docs/speed.md")
    return put_between(page.read_text(encoding="utf-8"), MARKS, markdown(rows), page)


def write(rows: Sequence[Row], page: Path) -> None:
    """Write the file and the page.

    Raises:
        UserError: see `page_with`.
    """
    text = page_with(rows, page)
    write_bytes(PATH, (json.dumps(content(rows), indent=1, ensure_ascii=False) + "\n").encode())
    write_bytes(page, text.encode())


def markdown(rows: Sequence[Row]) -> str:
    """The table, what keeps missed goals from being met, and what the runs were."""
    if not rows:
        return "No run was recorded yet: `make bench WRITE=docs/speed.md` writes it."
    runs, limits = _runs(rows), list[str]()
    several = len(runs) > 1
    lines = [f"| {' | '.join([*HEADER, *(['run'] if several else [])])} |"]
    lines.append(f"|{'---|' * (len(HEADER) + several)}")
    for row in rows:
        said = table.limits_of(row.result)
        limits += [limit for limit in dict.fromkeys(said) if limit and limit not in limits]
        plain, of_released = (f" ({limits.index(limit) + 1})" if limit else "" for limit in said)
        cells = [*_cells(row.result, plain, of_released), *([_letter(runs.index(row.run))] if several else [])]
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    listed = [f"{number}. {limit[0].upper()}{limit[1:]}." for number, limit in enumerate(limits, 1)]
    if listed:
        lines += ["", "Why goals are missed:", "", *listed]
    return "\n".join([*lines, "", *_said_of_runs(rows, runs)])


def _cells(result: Result, plain_limit: str, released_limit: str) -> tuple[str, ...]:
    """The cells of a row; numbers of its limits stand behind the goals that are missed."""
    plain = ("", "", "" if result.goal is None else _goal(str(result.goal), result.reached, plain_limit))
    if result.against_seconds is not None:
        time = table.absolute(result.against_seconds, result.unit)
        plain = (f"{result.plain}: {time}", table.ratio(result), plain[2])
    line, ratio_to_it = released.line_of(result), released.ratio_of(result)
    others = ("", "", "")
    if line is not None and result.rates is not None and ratio_to_it is not None:
        goal = "" if line.goal is None else _goal(f"≥ {line.goal:g}×", released.met(result), released_limit)
        time = table.absolute(line.scaled(result.rates), line.unit)
        threads = (
            "" if line.threads == result.rates.threads else f", {table.counted(line.threads, 'thread')}, not scaled"
        )
        others = (f"{time} ({line.of}{threads})", _times(ratio_to_it), goal)
    share = table.share(result).strip("–")
    return (result.work, table.absolute(result.ours_seconds, result.unit), *plain, *others, share)


def _times(ratio: float) -> str:
    return f"{ratio:.3g}×" if ratio < 1000 else f"{ratio:,.0f}×"


def _goal(said: str, met: bool | None, numbers: str) -> str:
    return f"{said} ✓" if met else f"{said} ✗{numbers}"


def _said_of_runs(rows: Sequence[Row], runs: Sequence[Run]) -> Iterator[str]:
    several = len(runs) > 1
    for number, run in enumerate(runs):
        rates = [row.result.rates for row in rows if row.run == run and row.result.rates is not None]
        machine = table.machine_text(run, rates).replace("\n", "; ")
        yield f"{f'Run {_letter(number)}: c' if several else 'C'}ommit {run['commit']}, {run['date']}; {machine}."
        if several and number + 1 < len(runs):
            yield ""


def _letter(number: int) -> str:
    return ascii_lowercase[number]


def _runs(rows: Sequence[Row]) -> list[Run]:
    found: list[Run] = []
    for row in rows:
        if row.run not in found:
            found.append(row.run)
    return found


def _result(row: Mapping[str, Any]) -> Result:
    known = {name: value for name, value in row.items() if name not in ("benchmark", "run")}
    known |= {name: tuple(known[name]) for name in ("notes", "ratios")}
    known["goal"] = known["goal"] and Goal(**known["goal"])
    known["rates"] = known["rates"] and Rates(**known["rates"])
    return Result(**known)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the table of a page anew, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recorded",
        description=f"Make the table of a page anew from {PATH}; measures nothing.",
    )
    parser.add_argument("page", type=Path, metavar="PAGE", help="docs/speed.md")
    page = parser.parse_args(arguments).page
    return exit_status(lambda: write_bytes(page, page_with(read(), page).encode()))


if __name__ == "__main__":
    sys.exit(main())
