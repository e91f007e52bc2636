"""How long Snakemake thinks before the first job: the paper scale as it is, and 10 000 jobs.

The 10 000 jobs are our rules on a configuration in a temporary folder: one environment, and as many seeds as it takes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from benchmarks.harness import Comparison, Goal, Side
from recollect.settings.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
METHODS = ("dt", "ad", "radt")
BARE = """rule all:
    input: "figure"
rule figure:
    input: expand("scores/{{run}}", run=range({runs}))
    output: "figure"
    shell: "draw"
rule run:
    output: "policy/{{run}}", "scores/{{run}}"
    shell: "run"
"""


def dry_run(folder: Path, scale: str, figure: str) -> int:
    """Number of jobs that our Snakefile would run in a working folder for one figure, or all (`all`)."""
    figures = "all" if figure == "all" else f'["{figure}"]'
    return planned(folder, ROOT / "Snakefile", "--config", f"scale={scale}", f"figures={figures}")


def planned(folder: Path, snakefile: Path, *arguments: str) -> int:
    """Number of jobs of a dry run, in a process of its own.

    Raises:
        UserError: Snakemake refuses.
    """
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(snakefile), "--directory", str(folder)]
    done = subprocess.run(
        [*command, "--cores", "1", "--dry-run", "--quiet", "rules", *arguments],
        cwd=folder,
        env={**os.environ, "RECOLLECT_CONFIG": str(folder / "config")},
        capture_output=True,
        text=True,
    )
    found = re.findall(r"^total\s+(\d+)", done.stdout + done.stderr, re.MULTILINE)
    if done.returncode or not found:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-5:])
        raise UserError(f"the dry run failed:\n{tail}", where=snakefile, do="run `snakemake -n` and mend it")
    return int(found[0])


def working_folder(folder: Path, seeds: int) -> Path:
    """A working folder whose configuration has, at the scale `many`, one figure of so many seeds of each method."""
    shutil.copytree(ROOT / "config", folder / "config")
    if seeds:
        scale = yaml.safe_load((folder / "config/scales/smoke.yaml").read_text(encoding="utf-8"))
        figure = yaml.safe_load((folder / "config/figures/radt_dark_room_10x10.yaml").read_text(encoding="utf-8"))
        for other in (folder / "config/figures").glob("*.yaml"):
            other.unlink()
        for other in (folder / "config/scales").glob("*.yaml"):
            content = yaml.safe_load(other.read_text(encoding="utf-8"))
            write(other, {key: value for key, value in content.items() if key not in ("figures", "sets")})
        many = {**scale, "seeds": list(range(seeds)), "figures": {}, "description": "As many seeds as wanted."}
        write(folder / "config/scales/many.yaml", many)
        write(folder / "config/figures/many.yaml", {**figure, "methods": list(METHODS)})
        write(folder / "config/config.yaml", {"scale": "many", "figures": "many"})
    return folder


def write(path: Path, content: object) -> None:
    """A configuration file."""
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def comparisons(quick: bool) -> Iterator[Comparison]:
    """Many jobs, against Snakemake's own time for as many; and the paper scale, with nothing to compare with."""
    if not (ROOT / "Snakefile").is_file():
        return
    seeds = 10 if quick else 3333
    runs = seeds * len(METHODS)
    count = runs + 5  # a job for each run; histories, embeddings, index, figure, and the target `all`
    note = "a process of its own, from start to end"
    with tempfile.TemporaryDirectory() as temporary:
        many, bare = working_folder(Path(temporary) / "many", seeds), Path(temporary) / "bare"
        bare.mkdir()
        snakefile = bare / "Snakefile"
        snakefile.write_text(BARE.format(runs=runs), encoding="utf-8")
        yield Comparison(
            work=f"dry run of {count} jobs",
            unit="",
            plain="as many bare Snakemake rules",
            ours=Side(lambda: dry_run(many, "many", "many"), 1, cold=True),
            against=Side(lambda: planned(bare, snakefile), 1, cold=True),
            difference=lambda: float(
                abs(dry_run(many, "many", "many") - count) + abs(planned(bare, snakefile) - (runs + 2))
            ),
            goal=Goal(15, "seconds"),
            rounds=1,
            notes=(note,),
        )
        as_it_is = working_folder(Path(temporary) / "paper", 0)
        count = dry_run(as_it_is, "paper", "all")
        yield Comparison(
            work=f"dry run of the paper scale, {count} jobs",
            unit="",
            plain="–",
            ours=Side(lambda: dry_run(as_it_is, "paper", "all"), 1, cold=True),
            against=None,
            difference=lambda: 0.0,
            rounds=1,
            notes=(note,),
        )
