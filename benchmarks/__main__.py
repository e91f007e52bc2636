"""`python -m benchmarks [NAME ...] [--quick] [--json PATH]`: see `make bench`."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Iterator, Sequence

import torch

from benchmarks import NAMES, released, table
from benchmarks.harness import AT_LEAST, ROUNDS, Comparison, NotTheSame, Result, measure
from recollect.artifacts.sealed import write_json
from recollect.settings.errors import UserError, nearest


def comparisons(name: str, quick: bool) -> Iterator[Comparison]:
    """The comparisons of one benchmark, each made when it is asked for."""
    yield from importlib.import_module(f"benchmarks.{name}").comparisons(quick)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and return the exit status."""
    known = "\n".join(f"  {name:10} {what}" for name, what in NAMES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Time Recollect against the plain way of doing the same. Benchmarks:\n" + known,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which benchmarks; all if none is named")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that all works, not how fast it is")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"times each pair is measured (default {ROUNDS})")
    parser.add_argument("--threads", type=int, help="threads of both sides (default: as torch chooses)")
    parser.add_argument("--json", metavar="PATH", help="also write the results to a file")
    chosen = parser.parse_args(arguments)
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    for name in chosen.names:
        if name not in NAMES:
            print(f"error: unknown benchmark '{name}': {nearest(name, NAMES)}", file=sys.stderr)
            return 2
    machine = table.machine()
    print(table.machine_text(machine), end="\n\n", flush=True)
    results, failures = run(chosen.names or list(NAMES), chosen.quick, chosen.rounds)
    # Of toy sizes the released code was not timed.
    print(table.text(results, None if chosen.quick else machine))
    if chosen.quick:
        print("\nSizes were shrunk (--quick): these are not results.")
    if chosen.json:
        content = {"machine": machine, "quick": chosen.quick, "results": [result.as_json() for result in results]}
        if not chosen.quick:
            for result, row in zip(results, content["results"], strict=True):
                row["released"] = result.released
                row["share_of_peak"] = released.share_of(result, machine["peak_gflops"])
                row["ratio_to_released"] = released.ratio_of(result, machine["gemm_seconds"])
        write_json(chosen.json, {**content, "failures": failures}, kind="benchmarks")
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return 1 if failures else 0


def run(names: Sequence[str], quick: bool, rounds: int) -> tuple[list[Result], list[str]]:
    """Measure benchmark after benchmark: results, and what could not be measured and why."""
    results: list[Result] = []
    failures: list[str] = []
    began = time.perf_counter()
    for name in names:
        try:
            for comparison in comparisons(name, quick):
                results.append(measure(comparison, rounds=1 if quick else rounds, at_least=0.0 if quick else AT_LEAST))
                elapsed = time.perf_counter() - began
                print(f"{elapsed:5.0f} s  {' | '.join(table.row(results[-1]))}", file=sys.stderr, flush=True)
        except (NotTheSame, UserError) as error:  # the other benchmarks can still be run
            failures.append(f"{name}: {error}")
    return results, failures


if __name__ == "__main__":
    sys.exit(main())
