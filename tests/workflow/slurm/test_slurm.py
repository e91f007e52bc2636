"""`snakemake --profile cluster` on a real SLURM of three virtual nodes (local_slurm.py): what a lab never wants to meet.

The path of a lab that meets nothing of it, and a SIGTERM, is tests/users/test_lab.py.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import fast_yaml
import pytest
from local_slurm import LocalSlurm, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("slurm")]
SMOKE = ["--profile", "cluster", "--config", "scale=smoke"]
# The profile's pace is that of a cluster with hours of work; this machine has two cores.
PACE = ["--slurm-init-seconds-before-status-checks", "2", "--seconds-between-status-checks", "2", "--jobs", "4"]
RUN = "dark_room_10x10/dt/seed_0"
POLICY = f"results/smoke/runs/{RUN}/policy.safetensors"
SCORES = f"results/smoke/runs/{RUN}/scores.parquet"


@pytest.fixture(scope="module")
def with_histories(tmp_path_factory: pytest.TempPathFactory, workflow_in: Callable[[Path], Any]) -> Any:
    """A copy whose run of `dt` has its input, and time to be killed after its first checkpoint."""
    workflow = workflow_in(tmp_path_factory.mktemp("slurm") / "repository")
    workflow.edit("config/scales/smoke.yaml", "steps: 60, batch_size: 8", "steps: 400, batch_size: 8")
    workflow.snakemake("--cores", "2", "data/smoke/dark_room_10x10/histories.safetensors", "--config", "scale=smoke")
    return workflow


@pytest.fixture
def long_run(with_histories: Any, tmp_path: Path) -> Any:
    """A copy of it for one test."""
    shutil.copytree(with_histories.folder, tmp_path / "repository", symlinks=True)
    return replace(with_histories, folder=tmp_path / "repository")


def started(workflow: Any, *arguments: str) -> subprocess.Popen[str]:
    """Snakemake in the background, in a session of its own, as on a login node."""
    log = (workflow.folder / "said").open("w")
    command = ["snakemake", *SMOKE, *PACE, *arguments]
    return subprocess.Popen(
        command, cwd=workflow.folder, env=workflow.environment, stdout=log, stderr=subprocess.STDOUT, text=True
    )


def wait_for_checkpoint(workflow: Any, process: subprocess.Popen[str], newer_than: int = 0) -> int:
    """Wait for a sealed checkpoint of the run; returns its step."""
    folder = workflow.folder / "results/smoke/checkpoints" / RUN

    def newest() -> int:
        assert process.poll() is None, (workflow.folder / "said").read_text()
        names = [path.name for path in folder.glob("step_*.safetensors.manifest.json")]
        return max((int(re.sub(r"\D", "", name.split(".")[0])) for name in names), default=0)

    wait_for(lambda: newest() > newer_than, 300, "no checkpoint")
    assert not (workflow.folder / POLICY).exists(), "too late: the run has ended"
    return newest()


def ended_well(workflow: Any, process: subprocess.Popen[str], seconds: float = 600) -> str:
    """Wait for Snakemake; returns what it said."""
    process.wait(seconds)
    said = (workflow.folder / "said").read_text()
    assert process.returncode == 0, said
    assert "going on from the checkpoint" in (workflow.folder / f"logs/smoke/{RUN}/run.log").read_text()
    assert (workflow.folder / SCORES).exists()
    return said


def of_rule(jobs: list[dict[str, str]], rule: str) -> list[dict[str, str]]:
    """The SLURM jobs of a rule or of a group of rules."""
    return [job for job in jobs if job["Comment"].startswith(f"rule_{rule}_")]


def gpus(job: dict[str, str]) -> str | None:
    return job.get("TresPerJob")


def test_a_job_killed_on_its_node_is_tried_again_and_goes_on(cluster: LocalSlurm, long_run: Any) -> None:
    process = started(long_run, SCORES)
    wait_for_checkpoint(long_run, process)
    (job,) = cluster.queue()
    for pid in cluster.processes(job):
        with suppress(OSError):  # it ends with another of them
            if b"slurmstepd" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
    said = ended_well(long_run, process)
    assert "Trying to restart" in said
    assert [each["JobState"] for each in cluster.jobs()[-2:]] == ["FAILED", "COMPLETED"]


def test_a_node_that_goes_down_is_survived(cluster: LocalSlurm, long_run: Any) -> None:
    process = started(long_run, SCORES)
    wait_for_checkpoint(long_run, process)
    (job,) = cluster.queue()
    node = cluster.jobs()[-1]["NodeList"]
    cluster.break_node(node)
    try:
        wait_for(lambda: cluster.nodes()[node].startswith("down"), 90, f"{node} is not missed")
        # SLURM starts it again by itself, two minutes later; the test need not wait for that.
        wait_for(lambda: cluster.jobs()[-1]["JobState"] == "PENDING", 60, "the job is not queued again")
        cluster.ask("scontrol", "update", f"JobId={job}", "StartTime=now")
        ended_well(long_run, process)
        assert cluster.jobs()[-1]["JobState"] == "COMPLETED"
        assert cluster.jobs()[-1]["NodeList"] != node and cluster.jobs()[-1]["Restarts"] == "1"
    finally:
        cluster.mend_node(node)


def test_ctrl_c_leaves_no_job_and_the_same_command_goes_on(cluster: LocalSlurm, long_run: Any) -> None:
    process = started(long_run, SCORES)
    step = wait_for_checkpoint(long_run, process)
    (job,) = cluster.queue()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0
    wait_for(lambda: not cluster.queue(), 30, "a job outlives its Snakemake")
    wait_for(lambda: not cluster.processes(job), 30, "a process outlives its job")
    assert cluster.jobs()[-1]["JobState"] == "CANCELLED"

    process = started(long_run, SCORES)
    wait_for_checkpoint(long_run, process, newer_than=step)
    ended_well(long_run, process)


def test_seeds_go_as_arrays_where_they_are_asked_for(cluster: LocalSlurm, finished: Any) -> None:
    """One sbatch for all runs. Jobs of a group cannot be in an array, so the profile's groups go."""
    profile = finished.folder / "workflow/profiles/cluster/config.yaml"
    settings = fast_yaml.load(profile.read_text())
    del settings["groups"]
    profile.write_text(fast_yaml.dump(settings))
    runs = [f"results/smoke/runs/tmaze_passive_5/dqn_ff/seed_{seed}/policy.safetensors" for seed in range(3)]
    before = len(cluster.jobs())
    finished.run("snakemake", "--profile", "cluster", *PACE, "--slurm-array-jobs", "run", "--", *runs)
    assert all((finished.folder / run).exists() for run in runs)
    trained = cluster.jobs()[before:]
    assert {job["JobState"] for job in trained} == {"COMPLETED"}
    assert len(trained) == len(runs) and len({job["ArrayJobId"] for job in trained}) == 1


def test_at_paper_scale_a_gpu_job_asks_for_one_gpu_and_for_what_its_rules_say(
    cluster: LocalSlurm, finished: Any
) -> None:
    """The DAG of a paper's figure through sbatch, with stand-ins for the commands."""
    target = ["--config", "scale=paper", "--", "results/paper/figures/radt_attention.pdf"]
    before = len(cluster.jobs())
    finished.run("snakemake", "--profile", "cluster", *PACE, *target, timeout=1200)
    jobs = cluster.jobs()[before:]
    runs = of_rule(jobs, "run")
    assert runs and {gpus(job) for job in runs} == {"gres:gpu:1"}
    assert {gpus(job) for job in of_rule(jobs, "memory")} <= {"gres:gpu:1"}
    assert {job["Partition"] for job in runs} == {"main"}
    assert {gpus(job) for job in of_rule(jobs, "generate")} == {None}
    assert {job["MinMemoryNode"] for job in runs} == {"16000M"}
    assert {job["NumCPUs"] for job in runs} == {"4"}


def test_runs_that_fail_do_not_cost_the_others_of_their_slurm_job_what_they_made(
    cluster: LocalSlurm, finished: Any, tmp_path: Path
) -> None:
    """Several seeds in one SLURM job, of which all but the first fail."""
    first = "results/paper/runs/tmaze_passive_50/dqn_lstm/seed_1/scores.parquet"
    seeds = finished.planned("--", first)[0].split()[3:]
    assert seeds[0] == "1" and len(seeds) > 1
    command = tmp_path / "bin/recollect"
    command.parent.mkdir()
    command.write_text(
        '#!/bin/sh\nif [ -e broken ] && [ "$1" = run ]; then\n'
        f'  {finished.commands}/recollect $(echo "$*" | sed "s/ --seed [2-9]//g; s/ --seed 10//"); exit 1\nfi\n'
        f'exec {finished.commands}/recollect "$@"\n'
    )
    command.chmod(0o755)
    workflow = replace(finished, commands=command.parent)
    runs = [f"results/paper/runs/tmaze_passive_50/dqn_lstm/seed_{seed}/scores.parquet" for seed in seeds]
    (workflow.folder / "broken").touch()
    before = len(cluster.jobs())
    arguments = ["--profile", "cluster", *PACE, "--", *runs]
    workflow.ran()
    assert workflow.run("snakemake", "--retries", "0", *arguments, check=False).returncode != 0
    (job,) = cluster.jobs()[before:]
    assert job["JobState"] == "FAILED"
    assert [(workflow.folder / run).exists() for run in runs] == [True] + [False] * (len(seeds) - 1)

    (workflow.folder / "broken").unlink()
    workflow.ran()
    workflow.run("snakemake", *arguments)
    assert workflow.ran() == [f"run tmaze_passive_50 dqn_lstm {' '.join(seeds)}"] and len(cluster.jobs()) == before + 2
