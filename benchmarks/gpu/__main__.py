"""`python -m benchmarks.gpu [LINE ...]`: see `make gpu`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from benchmarks.gpu import speeds, table, turns
from benchmarks.gpu.lines import COLUMNS, LINES
from benchmarks.gpu.one_line import Measured, Row, Units, measure
from recollect.artifacts.sealed import read_json, write_json
from recollect.artifacts.threads import use_threads
from recollect.settings.errors import UserError, nearest
from recollect.stages import device_speeds

MINUTES = 9.0
PEAKS = "peaks"  # the name of what is measured before the lines
KIND = "benchmarks"
COMPILATION = 60.0  # seconds more for a line whose code is compiled
SIDE_BY_SIDE, CORES, ROOM = 4, 4, 40e9  # most lines at once; cores for each; bytes of the GPU for each
LEAST = 20.0  # seconds that a line's process may take at least: it imports, and makes its inputs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write what forecasts read, and return the exit status: 1 where something failed."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if chosen.profile and chosen.part_of is None and (chosen.json or not (chosen.logs or chosen.one_process)):
        parser.error(
            "--profile says what it saw in --logs FOLDER, or with --one-process here; its rates are none to keep"
        )
    if chosen.of and (chosen.names or chosen.json):
        parser.error("--of measures nothing: it takes neither lines nor --json")
    if chosen.side_by_side is not None and chosen.side_by_side < 1:
        parser.error("--side-by-side is a number of lines: 1 or more")
    if chosen.keep and not chosen.of:
        parser.error("--keep says what to do with --of: name files of numbers with it")
    device = chosen.device or ("cuda" if torch.cuda.is_available() else "cpu")
    side = chosen.side_by_side or _fitting(device)
    asked = Asked(device, chosen.quick, chosen.variants, chosen.rates_only, chosen.profile, chosen.logs, side)
    if chosen.part_of is not None or chosen.one_process:
        use_threads(0)
    if chosen.part_of is not None:
        _measure_here(chosen, asked)
        return 0
    for name in chosen.names:
        if name not in LINES:
            print(f"error: unknown line '{name}': {nearest(name, LINES)}", file=sys.stderr)
            return 2
    if device == "cuda" and not torch.cuda.is_available():
        print("error: PyTorch sees no GPU here: `--device cpu --quick` shows that all works", file=sys.stderr)
        return 2
    if chosen.of:
        found = table.joined([table.Found.from_json(read_json(path, kind=KIND)) for path in chosen.of])
        print(table.text(found))
        print("\n".join(f"written: {path}" for path in speeds.write(found, keep=chosen.keep)))
        return 0
    began = time.perf_counter()
    found = run(chosen.names, asked, 60 * chosen.minutes, keep=chosen.json, apart=not chosen.one_process)
    print(table.text(found))
    print(f"\n{time.perf_counter() - began:.0f} seconds in all.", end="")
    print(" Sizes were shrunk (--quick): these are no results." if chosen.quick else "")
    if not chosen.quick and device != "cpu":
        if chosen.names or chosen.variants or chosen.profile:
            print("Forecasts read runs of all lines in all ways: nothing was written. See `--json` and `--of`.")
        else:
            print(_written(found))
    return int(bool(_missing(found)))


def _fitting(device: str) -> int:
    """How many lines' processes this machine has room for at once."""
    if device == "cpu":
        return 1
    bytes_ = torch.cuda.get_device_properties(0).total_memory
    return max(1, min(SIDE_BY_SIDE, (os.cpu_count() or 1) // CORES, int(bytes_ / ROOM)))


def _missing(found: table.Found) -> list[str]:
    """The lines that failed or were stopped, and `peaks` where there are none; a way that a line has no setting for is none."""
    without = [row for row in found.rows if row.rate is None]
    lines = {row.line for row in without if row.why and not row.why.startswith("no such setting")}
    return sorted(lines if found.peaks else {PEAKS, *lines})


def _written(found: table.Found) -> str:
    """What was written. What an earlier run knows is not given up for one that did not come to its end."""
    missing = _missing(found)
    path = device_speeds.path_of(found.device)
    if missing and path.is_file():
        how = "`--json FILE`, then the same with the names of these lines (peaks: of any), then `--of` both files"
        return f"{path} stays as it is, as some failed or were stopped: {', '.join(missing)}. {how} writes it."
    return "\n".join(f"written: {path}" for path in speeds.write(found))


def _parser() -> argparse.ArgumentParser:
    known = "\n".join(f"  {name:14} {line.what}" for name, line in LINES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description="Time each kind of work of the papers on a GPU. Lines:\n" + known,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="LINE",
        help="which lines; default: all. Forecasts read runs of all lines in all ways",
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda where there is one")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that all works, not how fast it is")
    parser.add_argument("--variants", nargs="+", choices=COLUMNS, help="only these ways; default: all that a line has")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"for all lines together (default {MINUTES:g})")
    parser.add_argument("--rates-only", action="store_true", help="compare nothing with the CPU, which takes long")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="time nothing: list in --logs FOLDER, or here with --one-process, the kernels of each line; not with --json",
    )
    parser.add_argument(
        "--one-process",
        action="store_true",
        help="measure all lines in one process: seconds less for each, but a crash or a hang loses those behind it",
    )
    parser.add_argument(
        "--side-by-side",
        type=int,
        metavar="N",
        help=f"lines that start and compile at once; one is timed at a time (default: as fit the machine, at most {SIDE_BY_SIDE})",
    )
    parser.add_argument("--json", metavar="PATH", help="also write all numbers to a file, after each line")
    parser.add_argument("--logs", metavar="FOLDER", type=Path, help="keep what each line said there, with tracebacks")
    parser.add_argument(
        "--of",
        nargs="+",
        metavar="PATH",
        help="measure nothing: write what forecasts read from such files of one device, of which later ones come first",
    )
    parser.add_argument(
        "--keep", action="store_true", help="with --of: what the device's file has of other lines stays"
    )
    parser.add_argument("--part-of", metavar="PATH", help=argparse.SUPPRESS)  # one line, here: results go to this file
    parser.add_argument("--seconds", type=float, default=LEAST, help=argparse.SUPPRESS)
    return parser


def _measure_here(chosen: argparse.Namespace, asked: Asked) -> None:
    """In a process of its own: one line, or the device's peaks, into a file, a JSON value in each row."""
    with open(chosen.part_of, "a", encoding="utf-8") as file:

        def hand_on(found: Row | dict[str, Any]) -> None:
            file.write(json.dumps(asdict(found) if isinstance(found, Row) else found) + "\n")
            file.flush()

        for name in chosen.names:
            _hand_on(name, asked, chosen.seconds, hand_on)


@dataclass(frozen=True)
class Asked:
    """What is asked of every line.

    Args:
        variants: only these; None: all.
        logs: folder that keeps what each line's process said, LINE.log.
        side_by_side: lines whose processes start and compile at once; see `turns`.
    """

    device: str
    quick: bool = False
    variants: Sequence[str] | None = None
    rates_only: bool = False
    profile: bool = False
    logs: Path | None = None
    side_by_side: int = 1

    @property
    def words(self) -> list[str]:
        """The same as options of a command."""
        said = ["--device", self.device, *["--quick"] * self.quick, *["--rates-only"] * self.rates_only]
        said += ["--profile"] * self.profile
        return said + (["--variants", *self.variants] if self.variants else [])


def run(
    names: Sequence[str], asked: Asked, seconds: float, *, keep: str | None = None, apart: bool = True
) -> table.Found:
    """Measure line after line within so many seconds.

    A line gets its share of what is left by its weight; what it does not use goes to those behind it.

    Args:
        names: in this order; none: all, the short ones first.
        keep: a file that has all numbers so far, after each line.
        apart: each line in a process of its own, which is killed after twice its share.
    """
    names = list(names or sorted(LINES, key=lambda name: LINES[name].weight))
    ends, writes = time.perf_counter() + seconds, Lock()
    found = table.Found.of_this_machine(asked.device, asked.quick)
    side = asked.side_by_side if apart else 1
    with (
        tempfile.TemporaryDirectory(prefix="recollect_turns_") as folder,
        ThreadPoolExecutor(side) as pool,
        turns.none_left(Path(folder)),
    ):
        measured_by = partial(_in_a_process, Path(folder)) if apart else _in_this_process
        values, why = measured_by(PEAKS, asked, LEAST, seconds)
        found.peaks.update(*values[:1])
        if why:
            print(f"{PEAKS}: {why}", file=sys.stderr)
        waiting = list(names)

        def one(name: str) -> None:
            left = ends - time.perf_counter()
            with writes:
                share = left * min(1.0, side * LINES[name].weight / sum(LINES[other].weight for other in waiting))
                waiting.remove(name)
            values, why = measured_by(name, asked, share, left) if left >= 1 else ([], "no time was left")
            with writes:
                _take(found, name, values, why)
                print(
                    f"{seconds - ends + time.perf_counter():5.0f} s  {name}{': ' + why if why else ''}", file=sys.stderr
                )
                if keep:
                    write_json(keep, table.joined([found]).as_json(), kind=KIND)

        list((pool.map if side > 1 else map)(one, names))
    return table.joined([found])


def _take(found: table.Found, name: str, values: list[Any], why: str) -> None:
    """Add what a line's process handed on, and why it did not end well, if so."""
    measured = read(values)
    found.rows.extend(measured.rows)
    found.jobs[name] = table.whole_jobs(name, measured.jobs)
    if why:
        found.rows.append(Row(name, "", COLUMNS[0] if not measured.rows else "the rest", why=why))


def _in_this_process(name: str, asked: Asked, share: float, left: float) -> tuple[list[Any], str]:
    """What a line hands on, and nothing: an error of its own is one of its rows."""
    values: list[Any] = []
    _hand_on(name, asked, share, lambda one: values.append(asdict(one) if isinstance(one, Row) else one))
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # else lines that compile the same code count as its recompilations
    return values, ""


def _hand_on(name: str, asked: Asked, seconds: float, hand_on: Callable[[Any], None]) -> None:
    """Measure a line, or the device's peaks."""
    if name == PEAKS:
        from benchmarks.gpu.device import peaks

        return hand_on(peaks(asked.device))
    compares = not (asked.rates_only or asked.profile)
    return measure(
        name,
        device=asked.device,
        quick=asked.quick,
        seconds=seconds,
        hand_on=hand_on,
        only=asked.variants,
        compares=compares,
        profiles=asked.profile,
    )


def read(values: Iterable[Any]) -> Measured:
    """What a line's process has handed on; a row that came twice as it came last."""
    rows: dict[tuple[str, str], Row] = {}
    jobs: Units = {}
    for value in values:
        if "line" in value:
            row = Row(**value)
            rows[row.part, row.variant] = row
        else:
            jobs.update(value)
    return Measured(list(rows.values()), jobs)


def _in_a_process(turns_of: Path, name: str, asked: Asked, share: float, left: float) -> tuple[list[Any], str]:
    """What a process handed on, and why it did not end well, if so. It is killed after twice its share.

    Args:
        turns_of: the folder of those that are side by side; see `turns`.
    """
    side = asked.side_by_side
    threads = str(max(1, (os.cpu_count() or 1) // side))
    own = {turns.FOLDER: str(turns_of), "TORCHINDUCTOR_COMPILE_THREADS": threads} if side > 1 else {}
    with tempfile.TemporaryDirectory() as folder:
        results, said = Path(folder) / "results", (asked.logs or Path(folder)) / f"{name}.log"
        said.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "benchmarks.gpu", name, "--part-of", str(results)]
        command += ["--seconds", str(share), *asked.words]
        least = LEAST + (COMPILATION if name in LINES and LINES[name].compiles else 0.0)
        limit = min(max(2 * share, least * side), max(left, 1.0))
        why = ""
        with said.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True, env=os.environ | own)
            with turns.taken_part(turns_of, process.pid):
                try:
                    if process.wait(timeout=limit):
                        why = f"its process ended with status {process.returncode}: {_last_words(said)}"
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)  # with the compilers that it started
                    process.wait()
                    why = f"stopped after {limit:.0f} s"
        rows = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
        return [json.loads(row) for row in rows if row.endswith("}")], why


def _last_words(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][:150] if lines else "it said nothing"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
