"""A lab with a SLURM: docs/cluster.md, with the lines marked HERE, a node taken back, and jobs in a container.

SLURM is real (tests/workflow/slurm/local_slurm.py). Of the GPUs it only knows that they are there. Apptainer is a stand-in that
says what it was asked and does it outside: no container can be run where these tests run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fast_yaml
import pytest
from local_slurm import LocalSlurm, wait_for
from reader import blocks

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("slurm")]
README, CLUSTER = "README.md", "docs/cluster.md"
SCALE = """
description: The smallest figure with a memory, as jobs for GPUs; the first run is long enough to be taken its node.
extends: smoke
resources: large
methods: {dt: {hyperparameters: {optimisation: {steps: 150}}}}
"""
STAND_IN = """#!/bin/sh
[ "$1" = --version ] && exec echo "apptainer version 1.3.4"
echo "$@" >> CONTAINED
while [ "$1" != bash ] && [ "$1" != sh ]; do shift; done
exec "$@"
"""
RUN = "key_door_10x10/dt/seed_0"


def test_a_lab_edits_two_lines_and_its_figures_are_made_on_slurm(
    user: Callable[..., Any], cluster: LocalSlurm, tmp_path: Path
) -> None:
    you = user(warm=False)
    for command in ("make setup", "source .venv/bin/activate"):
        you.types(README, command)
    config = you.folder / "config/config.yaml"
    config.write_text(re.sub(r"\{\} # HERE: (.*)", r"\1", config.read_text()))
    (example,) = [fast_yaml.load(block.text) for block in blocks(CLUSTER) if block.text.startswith("jobs:")]
    assert fast_yaml.load(config.read_text())["jobs"] == example["jobs"]
    you.edits("config/config.yaml", "scale: smoke", "scale: lab")
    you.edits("config/config.yaml", "figures: headlines", "figures: [radt_grid_worlds]")
    you.edits("config/config.yaml", "container: null", "container: recollect.sif")  # changes nothing by itself
    you.writes("mine/config/scales/lab.yaml", SCALE)
    you.environment["RECOLLECT_DEVICE"] = "cpu"  # the GPUs are there in name only
    # The profile's pace is that of hours of work.
    for setting in ("slurm-init-seconds-before-status-checks", "seconds-between-status-checks"):
        you.edits("workflow/profiles/cluster/config.yaml", f"\n{setting}: 10", f"\n{setting}: 2")

    # On the way SLURM takes back a node: SIGTERM comes, the run saves, and goes on in a job of its own.
    before = len(cluster.jobs())
    at_work = you.started(you.on(README, "snakemake --profile cluster"))
    checkpoints = you.folder / f"results/lab/checkpoints/{RUN}"

    def trains() -> bool:
        assert at_work.poll() is None, (you.folder / ".git/said").read_text()
        return any(checkpoints.glob("step_*.safetensors.manifest.json"))

    wait_for(trains, 600, "no checkpoint")
    (taken,) = [job["JobId"] for job in cluster.jobs() if job["JobState"] == "RUNNING"]
    cluster.ask("scancel", "--signal=TERM", taken)
    wait_for(lambda: taken not in cluster.queue(), 60, "the job does not end")
    log = you.folder / f"logs/lab/{RUN}/run.log"
    assert "with what was done so far saved" in log.read_text()
    you.ended(at_work)
    assert "going on from the checkpoint" in log.read_text()
    assert (you.folder / "results/lab/figures/radt_grid_worlds.pdf").is_file()

    jobs = cluster.jobs()[before:]
    assert {job["JobState"] for job in jobs if job["JobId"] != taken} == {"COMPLETED"}
    kinds = {kind: [job for job in jobs if job["Comment"].startswith(f"rule_{kind}_")] for kind in ("run", "memory")}
    on_gpu = [job for several in kinds.values() for job in several]
    assert [len(several) for several in kinds.values()] == [3, 1]  # the killed one twice
    assert {(job["Partition"], job["TresPerJob"]) for job in on_gpu} == {("gpu", "gres:gpu:a100:1")}
    others = [job for job in jobs if job not in on_gpu]
    assert others and {(job["Partition"], job.get("TresPerJob")) for job in others} == {("main", None)}
    assert not (you.folder / "CONTAINED").exists()

    # Jobs in the image, submitted from outside.
    for name in ("apptainer", "singularity"):
        (tmp_path / name).write_text(STAND_IN)
        (tmp_path / name).chmod(0o755)
    you.environment["PATH"] = f"{tmp_path}:{you.environment['PATH']}"
    (you.folder / "recollect.sif").touch()
    for lost in ("runs/key_door_10x10/radt/seed_0/scores.parquet", "figures/radt_grid_worlds.pdf"):
        (you.folder / "results/lab" / lost).unlink()
    you.types(CLUSTER, "snakemake --profile cluster --sdm apptainer --apptainer-args=--nv --config scale=paper")
    asked = (you.folder / "CONTAINED").read_text()
    assert "--nv" in asked and "recollect.sif" in asked and "recollect run --scale lab --env key_door_10x10" in asked
