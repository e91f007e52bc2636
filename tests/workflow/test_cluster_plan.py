"""What `--profile cluster` would submit, from dry runs: no cluster is needed."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

LOCAL = {"all", "figure", "fetch", "fetch_data", "page", "claims_table", "report_page"}
PAPER = ("--config", "scale=paper", "figures=all")
ONE_RUN = (24 + 4) * 60  # minutes that one run asks for with its scores


def jobs(workflow: Any, *arguments: str) -> list[str]:
    """What Snakemake says of every job of a plan, and of every group of jobs."""
    said = workflow.snakemake("--profile", "cluster", "--dry-run", *arguments).split("\nJob stats:\n")[1]
    return [block for block in re.split(r"^\[.*\][ \n]", said, flags=re.MULTILINE)[1:] if name_of(block)]


def name_of(block: str) -> str:
    """The rule of a job, or the group."""
    said = re.match(r"(?:Group job|rule|localrule) (\w+)", block)
    return said[1] if said else ""


def planned(workflow: Any, *arguments: str) -> list[str]:
    """The jobs that mean a call of `sbatch`."""
    return [block for block in jobs(workflow, *arguments) if name_of(block) not in LOCAL]


def submissions(plan: list[str]) -> Counter[str]:
    """How many calls there are, by kind of group or rule."""
    return Counter(name_of(block).split("_")[0] for block in plan)


def minutes_of(block: str) -> int:
    """What a call of `sbatch` asks for: a group's jobs come one after the other."""
    return sum(map(int, re.findall(r"^ *resources: .*runtime=(\d+)", block, re.MULTILINE)))


def seeds_of(block: str) -> list[str]:
    """The seeds that a job trains."""
    return re.findall(r"--seed (\d+)", block) if "recollect run" in block else []


@pytest.fixture(scope="module")
def paper(finished_once: Any) -> list[str]:
    """The plan of all figures at the scale of the papers."""
    return jobs(finished_once[0], *PAPER)


@pytest.mark.slow
def test_a_run_with_its_scores_is_one_submission_and_a_memory_another(untouched: Any) -> None:
    all_of_it = ("--config", "scale=smoke", "figures=demo_all")
    rules = Counter(line.split()[0] for line in untouched.planned(*all_of_it))
    found = submissions(planned(untouched, *all_of_it))
    alone = {"generate": rules["generate"], "embed": rules["embed-vocabulary"], "inspect": rules["inspect"]}
    alone["evaluate"] = rules["evaluate"]  # of variants, which play the policies of others
    assert found == {"run": rules["run"], "memory": rules["index"], **alone}


@pytest.mark.slow
def test_all_figures_of_the_papers_take_fewer_than_three_thousand_jobs(paper: list[str]) -> None:
    submitted = [block for block in paper if name_of(block) not in LOCAL]
    found = submissions(submitted)
    assert found["run"] > 600 and found["memory"] and found["generate"]
    # A group of the profile is one call of sbatch for two jobs.
    assert len(submitted) < len(paper) + found["memory"] < 3000, found
    assert sum(len(seeds_of(block)) for block in submitted) > 5000, "runs are missing from the plan"


@pytest.mark.slow
def test_seeds_that_share_a_job_ask_for_no_more_than_one_of_them_would(paper: list[str]) -> None:
    runs = [block for block in paper if seeds_of(block)]
    minutes = [minutes_of(block) for block in runs]
    seeds = [len(set(seeds_of(block))) for block in runs]
    assert max(seeds) > 3 and max(minutes) <= ONE_RUN
    assert all("gpu=1" in block for block in runs)


@pytest.mark.slow
def test_seeds_that_share_a_job_are_made_by_it(finished: Any) -> None:
    folder = "results/paper/runs/tmaze_passive_50/dqn_lstm"
    finished.ran()
    assert " --at-a-time 4 " in finished.snakemake("--cores", "1", "--", f"{folder}/seed_1/scores.parquet")
    (ran,) = finished.ran()
    assert ran.startswith("run tmaze_passive_50 dqn_lstm 1 ")
    scores = [f"{folder}/seed_{seed}/scores.parquet" for seed in ran.split()[3:]]
    assert len(scores) > 1 and all((finished.folder / path).exists() for path in scores)
    # How many of them are at work at a time is no part of what they are.
    assert finished.planned("--config", "seeds_at_a_time=2", "--", *scores) == []


@pytest.mark.slow
@pytest.mark.parametrize("hours", [32, 12])
def test_no_submission_asks_for_more_hours_than_a_job_may_take(hours: int, untouched: Any) -> None:
    target = ["--", "results/paper/figures/radt_dark_room_10x10.pdf"]
    known = "jobs={cpu: {slurm_partition: main}, gpu: {slurm_partition: fast}}"
    plan = planned(untouched, "--config", "scale=paper", f"job_hours={hours}", known, *target)
    minutes = [minutes_of(block) for block in plan]
    assert len(plan) > 5 and 60 * hours * 0.7 < max(minutes) <= 60 * hours
    asked = re.findall(r"^ *resources: (.*)", "\n".join(plan), re.MULTILINE)
    partitions = {("gpu=1" in line, *re.findall(r"slurm_partition=(\w+)", line)) for line in asked}
    assert partitions == {(True, "fast"), (False, "main")}


@pytest.mark.slow
def test_runs_of_a_day_share_their_job_with_no_other(paper: list[str]) -> None:
    def shared(env: str, method: str) -> list[int]:
        runs = [block for block in paper if f"--env {env} --method {method} " in block and seeds_of(block)]
        return [len(seeds_of(block)) for block in runs]

    for env, method in (("procgen", "ad"), ("amago_tmaze_10000", "amago_ff")):
        seeds = shared(env, method)
        assert len(seeds) > 1 and set(seeds) == {1}, (env, method)
    assert shared("tmaze_passive_1500", "dqn_gpt") == [10]  # an ensemble is one job


@pytest.mark.slow
def test_every_seed_may_be_a_job_of_its_own(untouched: Any) -> None:
    target = ["--", "results/paper/figures/memory_rl_passive_tmaze.pdf"]
    together, apart = (
        planned(untouched, "--config", "scale=paper", *words, *target) for words in ([], ["seeds_together=1"])
    )
    trained = sum(len(seeds_of(block)) for block in together)
    assert submissions(apart)["run"] == trained > submissions(together)["run"]


@pytest.mark.slow
def test_what_a_cluster_knows_is_asked_for_by_each_kind_of_job(finished: Any) -> None:
    """The lines marked HERE, as they stand there: each job, and each group of jobs, names one partition."""
    path = finished.folder / "config/config.yaml"
    written, count = re.subn(r"\{\} # HERE: (.*)", r"\1", path.read_text())
    assert count == 2
    path.write_text(written)
    figures = "figures=[radt_attention,memory_rl_attention]"
    kinds = Counter()
    for block in planned(finished, "--config", "scale=paper", figures, "--forceall"):
        asked = re.findall(r"^ *resources: (.*)", block, re.MULTILINE)
        partitions = {found[1] for line in asked if (found := re.search(r"slurm_partition=(\w+)", line))}
        on_gpu = any("gpu=1" in line for line in asked)
        assert partitions == {"gpu" if on_gpu else "main"}, block
        assert all(("gpu_model=a100" in line) == on_gpu for line in asked), block
        kinds[name_of(block).split("_")[0], on_gpu] += 1
    assert kinds["run", True] and kinds["memory", True] and kinds["generate", False]
