"""`python -m benchmarks [NAME ...] [--quick] [--json PATH] [--write PAGE]`: see `make bench`."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks import NAMES, recorded, table
from benchmarks.harness import AT_LEAST, ROUNDS, Comparison, NotTheSame, Result, measure
from recollect.artifacts.sealed import write_json
from recollect.settings.errors import UserError, nearest

THREADS = 1  # as the released code was timed


def comparisons(name: str, quick: bool) -> Iterator[Comparison]:
    """The comparisons of one benchmark, each made when it is asked for."""
    yield from importlib.import_module(f"benchmarks.{name}").comparisons(quick)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and return the exit status."""
    chosen = arguments_of(arguments)
    try:
        check(chosen)
        kept = recorded.read() if chosen.write else []
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    torch.set_num_threads(chosen.threads)
    machine = table.machine()
    run_now = recorded.new_run(machine)
    print(table.machine_text(machine, [table.rates()]), end="\n\n", flush=True)
    names = list(dict.fromkeys(chosen.names or NAMES))
    found, failures = run(names, chosen.quick, chosen.rounds)
    results = [result for of_benchmark in found.values() for result in of_benchmark]
    # Of toy sizes the released code was not timed.
    print(table.text(results, with_released=not chosen.quick))
    if chosen.quick:
        print("\nSizes were shrunk (--quick): these are not results.")
    rows = [recorded.Row(name, run_now, result) for name, of_name in found.items() for result in of_name]
    if chosen.json:
        content = {**recorded.content(rows), "quick": chosen.quick, "failures": list(failures.values())}
        write_json(chosen.json, content, kind="benchmarks")
    if chosen.write:
        whole = [name for name in names if name not in failures]
        rows = recorded.merged(kept, [row for row in rows if row.benchmark in whole], whole)
        recorded.write(rows, chosen.write)
        print(f"\n{recorded.PATH}\n{chosen.write}")
    for name, failure in failures.items():
        print(f"error: {name}: {failure}", file=sys.stderr)
        if chosen.write:
            print(f"What was recorded of {name} stays.", file=sys.stderr)
    return 1 if failures else 0


def arguments_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What is asked for."""
    known = "\n".join(f"  {name:10} {what}" for name, what in NAMES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Time Recollect against the plain way of doing the same. Benchmarks:\n" + known,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which benchmarks; all if none is named")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that all works, not how fast it is")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"times each pair is measured (default {ROUNDS})")
    parser.add_argument("--threads", type=int, default=THREADS, help=f"threads of both sides (default {THREADS})")
    parser.add_argument("--json", metavar="PATH", help="also write the results to a file")
    parser.add_argument(
        "--write",
        type=Path,
        metavar="PAGE",
        help=f"also write the results to {recorded.PATH}, and from there the table of a page (docs/speed.md); "
        "rows of benchmarks that are not named stay",
    )
    return parser.parse_args(arguments)


def check(chosen: argparse.Namespace) -> None:
    """Refuse what cannot be done, before anything is measured.

    Raises:
        UserError: an unknown name, or results that cannot be written.
    """
    for name in chosen.names:
        if name not in NAMES:
            raise UserError(f"unknown benchmark '{name}'", where="python -m benchmarks", do=nearest(name, NAMES))
    if chosen.write and chosen.quick:
        raise UserError("toy sizes are no results", where="--write", do="leave out --quick")
    if chosen.write:
        recorded.page_with([], chosen.write)  # it has a place for the table


def run(names: Sequence[str], quick: bool, rounds: int) -> tuple[dict[str, list[Result]], dict[str, str]]:
    """Measure benchmark after benchmark: results of each, and which could not be measured to its end and why."""
    found: dict[str, list[Result]] = {name: [] for name in names}
    failures: dict[str, str] = {}
    began = time.perf_counter()
    for name in names:
        try:
            for comparison in comparisons(name, quick):
                rates = None if quick else table.rates()
                result = measure(comparison, rounds=1 if quick else rounds, at_least=0.0 if quick else AT_LEAST)
                found[name].append(replace(result, rates=rates))
                elapsed = time.perf_counter() - began
                print(f"{elapsed:5.0f} s  {' | '.join(table.row(found[name][-1]))}", file=sys.stderr, flush=True)
        except (NotTheSame, UserError) as error:  # the other benchmarks can still be run
            failures[name] = str(error)
    return found, failures


if __name__ == "__main__":
    sys.exit(main())
