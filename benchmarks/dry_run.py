"""How long Snakemake thinks before the first job: the paper scale as it is, and 10 000 jobs.

The 10 000 jobs are our rules on a configuration in a temporary folder: one environment, and as many seeds as it takes.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from benchmarks.harness import Comparison, Goal, NotTheSame, Side
from recollect.settings.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
METHODS = ("dt", "ad", "radt")


def dry_run(folder: Path, scale: str, figure: str) -> int:
    """Number of jobs that Snakemake would run in a working folder for one figure, or all (`all`).

    Raises:
        UserError: Snakemake refuses.
    """
    snakemake = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--directory", str(folder)]
    figures = "all" if figure == "all" else f'["{figure}"]'
    done = subprocess.run(
        [
            *snakemake,
            "--cores",
            "1",
            "--dry-run",
            "--quiet",
            "rules",
            "--config",
            f"scale={scale}",
            f"figures={figures}",
        ],
        cwd=folder,
        env={**os.environ, "RECOLLECT_CONFIG": str(folder / "config")},
        capture_output=True,
        text=True,
    )
    found = re.findall(r"^total\s+(\d+)", done.stdout + done.stderr, re.MULTILINE)
    if done.returncode or not found:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-5:])
        raise UserError(f"the dry run failed:\n{tail}", where=ROOT / "Snakefile", do="run `snakemake -n` and mend it")
    return int(found[0])


def working_folder(folder: Path, jobs: int) -> Path:
    """A working folder whose configuration has, at the scale `many`, a figure that needs about so many jobs."""
    shutil.copytree(ROOT / "config", folder / "config")
    if jobs:
        # Each seed of each method is trained and evaluated; histories, memory, embedder and figure come on top.
        seeds = list(range(math.ceil(jobs / (2 * len(METHODS)))))
        scale = yaml.safe_load((folder / "config/scales/smoke.yaml").read_text(encoding="utf-8"))
        scale |= {"seeds": seeds, "description": "As many jobs as a benchmark wants."}
        write(folder / "config/scales/many.yaml", {**scale, "figures": {}})
        figure = yaml.safe_load((folder / "config/figures/radt_dark_room_10x10.yaml").read_text(encoding="utf-8"))
        for other in (folder / "config/figures").glob("*.yaml"):
            other.unlink()
        for other in (folder / "config/scales").glob("*.yaml"):
            content = yaml.safe_load(other.read_text(encoding="utf-8"))
            write(other, {key: value for key, value in content.items() if key != "figures"})
        write(folder / "config/figures/many.yaml", {**figure, "methods": list(METHODS)})
    return folder


def write(path: Path, content: object) -> None:
    """A configuration file."""
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def comparisons(quick: bool) -> Iterator[Comparison]:
    """Two rows, where there is a Snakefile."""
    if not (ROOT / "Snakefile").is_file():
        return
    jobs = 60 if quick else 10_000
    with tempfile.TemporaryDirectory() as temporary:
        many = working_folder(Path(temporary) / "many", jobs)
        count = dry_run(many, "many", "many")
        if not jobs <= count <= 1.1 * jobs + 10:
            raise NotTheSame(f"{count} jobs were planned, not about {jobs}")
        yield row(f"dry run of {count} jobs", many, "many", "many", count, Goal(15, "seconds"))
        as_it_is = working_folder(Path(temporary) / "paper", 0)
        count = dry_run(as_it_is, "paper", "all")
        yield row(f"dry run of the paper scale, {count} jobs", as_it_is, "paper", "all", count, None)


def row(work: str, folder: Path, scale: str, figure: str, count: int, goal: Goal | None) -> Comparison:
    """A dry run; there is no plain way."""
    return Comparison(
        work=work,
        unit="",
        plain="–",
        ours=Side(lambda: dry_run(folder, scale, figure), 1),
        against=None,
        difference=lambda: float(abs(dry_run(folder, scale, figure) - count)),
        goal=goal,
        rounds=3,
        notes=("a process of its own, from start to end",),
    )
