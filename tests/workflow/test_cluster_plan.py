"""What `--profile cluster` would submit, from dry runs: no cluster is needed."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

LOCAL = {"all", "figure", "fetch", "fetch_data", "page", "report_page"}


def submissions(workflow: Any, *arguments: str) -> Counter[str]:
    """How many calls of `sbatch` a plan means, by group or rule."""
    said = workflow.snakemake("--profile", "cluster", "--dry-run", *arguments)
    groups = re.findall(r"^\[.*\] Group job ([a-z]+)_", said, re.MULTILINE)
    alone = [rule for rule in re.findall(r"^rule (\w+):", said, re.MULTILINE) if rule not in LOCAL]
    return Counter(groups + alone)


def test_a_run_with_its_scores_is_one_submission_and_a_memory_another(untouched: Any) -> None:
    planned = [line.split()[0] for line in untouched.planned("--config", "scale=smoke")]
    rules = Counter(planned)
    found = submissions(untouched, "--config", "scale=smoke")
    assert found == {"run": rules["train"], "memory": rules["index"], "generate": rules["generate"]}


@pytest.mark.slow
def test_all_figures_of_the_papers_take_fewer_than_three_thousand_submissions(untouched: Any) -> None:
    found = submissions(untouched, "--config", "scale=paper", "figures=all")
    assert found["run"] > 1000 and found["memory"] and found["generate"]
    assert found.total() < 3000, found
