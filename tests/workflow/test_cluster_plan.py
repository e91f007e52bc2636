"""What `--profile cluster` would submit, from dry runs: no cluster is needed."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

LOCAL = {"all", "figure", "fetch", "fetch_data", "page", "report_page"}
PAPER = ("--config", "scale=paper", "figures=all")
ONE_RUN = (24 + 4 + 4) * 60  # minutes that one run asks for with its scores and traces


def planned(workflow: Any, *arguments: str) -> list[str]:
    """What Snakemake says of every call of `sbatch` that a plan means; a group's first line names it, a rule's its rule."""
    said = workflow.snakemake("--profile", "cluster", "--dry-run", *arguments).split("\nJob stats:\n")[1]
    blocks = re.split(r"^\[.*\][ \n]", said, flags=re.MULTILINE)[1:]
    names = [re.match(r"(?:Group job|rule|localrule) (\w+)", block) for block in blocks]
    return [block for block, name in zip(blocks, names, strict=True) if name and name[1] not in LOCAL]


def submissions(plan: list[str]) -> Counter[str]:
    """How many calls there are, by kind of group or rule."""
    said = [re.match(r"Group job ([a-z]+)_|rule (\w+):", block) for block in plan]
    return Counter((one[1] or one[2]) if one else "unknown" for one in said)


def minutes_of(block: str) -> int:
    """What a call of `sbatch` asks for: a group's jobs come one after the other."""
    return sum(map(int, re.findall(r"^ *resources: .*runtime=(\d+)", block, re.MULTILINE)))


@pytest.fixture(scope="module")
def paper(finished_once: Any) -> list[str]:
    """The plan of all figures at the scale of the papers."""
    return planned(finished_once[0], *PAPER)


def test_a_run_with_its_scores_is_one_submission_and_a_memory_another(untouched: Any) -> None:
    rules = Counter(line.split()[0] for line in untouched.planned("--config", "scale=smoke"))
    found = submissions(planned(untouched, "--config", "scale=smoke"))
    alone = {"generate": rules["generate"], "embed_vocabulary": rules["embed-vocabulary"]}
    assert found == {"run": rules["train"], "memory": rules["index"], **alone}


@pytest.mark.slow
def test_all_figures_of_the_papers_take_fewer_than_three_thousand_submissions(paper: list[str]) -> None:
    found = submissions(paper)
    assert found["run"] > 1000 and found["memory"] and found["generate"] and not found["unknown"]
    assert found.total() < 3000, found
    trained = re.findall(r"^ *rule train:", "".join(paper), re.MULTILINE)
    assert len(trained) > 5000, "runs are missing from the plan"


@pytest.mark.slow
def test_seeds_that_share_a_submission_ask_for_no_more_than_one_of_them_would(paper: list[str]) -> None:
    runs = [block for block in paper if block.startswith("Group job run_")]
    minutes = [minutes_of(block) for block in runs]
    seeds = [len(set(re.findall(r"seed=(\d+)$", block, re.MULTILINE))) for block in runs]
    assert max(seeds) > 3 and max(minutes) <= ONE_RUN
    # Of what a pack holds only one has the GPU, memory and cores at a time: all ask for the GPU.
    shared = [block for block, count in zip(runs, seeds, strict=True) if count > 1]
    assert not any("gpu=0" in block for block in shared)


@pytest.mark.parametrize("hours", [32, 12])
def test_no_submission_asks_for_more_hours_than_a_job_may_take(hours: int, untouched: Any) -> None:
    target = ["--", "results/paper/figures/radt_dark_room_10x10.pdf"]
    plan = planned(untouched, "--config", "scale=paper", f"job_hours={hours}", *target)
    minutes = [minutes_of(block) for block in plan]
    assert len(plan) > 5 and 60 * hours * 0.7 < max(minutes) <= 60 * hours


@pytest.mark.slow
def test_runs_of_a_day_share_their_submission_with_no_other(paper: list[str]) -> None:
    for name in ("tmaze_passive_1500_dqn_gpt", "procgen_ad", "amago_tmaze_10000_amago_gru"):
        (first, *others) = [block for block in paper if block.startswith(f"Group job run_paper_{name} ")]
        assert others, name
        assert all(len(re.findall(r"^ *rule train:", block, re.MULTILINE)) == 1 for block in (first, *others))


@pytest.mark.slow
def test_without_sizes_of_packs_every_seed_is_a_submission(untouched: Any) -> None:
    target = ["--config", "scale=paper", "--", "results/paper/figures/memory_rl_passive_tmaze.pdf"]
    together, apart = (planned(untouched, *words, *target) for words in ([], ["--group-components", "pack_1=1"]))
    trained = sum(len(re.findall(r"^ *rule train:", block, re.MULTILINE)) for block in together)
    assert submissions(apart)["run"] == trained > submissions(together)["run"]
