"""A researcher who adds a world, a method and a figure (docs/adding.md), sweeps settings, and keeps the project in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("slurm")]
README, ADDING, COMMANDS, CLAIMS = "README.md", "docs/adding.md", "docs/commands.md", "docs/claims.md"
WATCHING, CONTRIBUTING = "docs/watching.md", "CONTRIBUTING.md"


def test_a_researcher_adds_their_own_sweeps_and_leaves_the_project_in_order(user: Callable[..., Any]) -> None:
    """What tests/workflow/test_adding.py does with the page's files stage by stage, Snakemake does here."""
    you = user()
    for command in ("make setup", "source .venv/bin/activate"):
        you.types(README, command)

    you.does(ADDING, "An environment that gymnasium has")
    for heading in ("A world", "What it looks like", "A method", "A scale", "A figure"):
        you.does(ADDING, heading)
    you.types(ADDING, "recollect check")
    you.types(ADDING, "snakemake --cores 2 results/tiny/figures/corridor.pdf")
    drawn = (you.folder / "results/tiny/figures/corridor.csv").read_text()
    assert "corridor,best_action,3.0," in drawn
    assert "Box 1 int16" in you.shell("recollect list environments corridor")
    you.types(ADDING, "recollect check --env corridor --method best_action --scale tiny")
    assert "Your own" in you.does(CLAIMS, "A claim of your own")

    you.does(COMMANDS, "What can be named")
    you.does(COMMANDS, "A check")
    assert "optimisation.learning_rate" in you.does(COMMANDS, "What can be set")
    assert "learning_rate" in you.does(COMMANDS, "A sweep")
    assert "2 seeds are fewer than 3" in you.does(COMMANDS, "Two methods")
    unused = you.types(COMMANDS, "recollect clean --unused -n")
    assert "gym.CartPole-v1" in unused and "sequence.width" not in unused
    watch = you.on(WATCHING, "recollect watch results/demo/runs/tmaze_carried_10 --page runs.html")
    # The demo's runs are not there; those of the sweep are.
    you.shell(watch.replace("tmaze_carried_10", "tmaze_passive_5"))
    assert "<svg" in (you.folder / "runs.html").read_text()

    # What is generated is what is there, and style and types are in order, with one's own files beside them.
    you.types(CONTRIBUTING, "recollect schema")
    you.types(COMMANDS, "recollect reference")
    you.types(CONTRIBUTING, "make docs")
    assert (you.folder / "site/tutorial.html").is_file()
    you.types(CONTRIBUTING, "make lint")
    assert you.shell("git status --porcelain --untracked-files=no") == ""

    you.types(ADDING, "snakemake --cores 2 results/tiny/figures/corridor.pdf")  # now with the claim
    you.shell("recollect record --scale tiny corridor")
    assert "cpu" in (you.folder / "docs/recorded/tiny/run.csv").read_text()
    assert you.shell("git status --porcelain --untracked-files=no") == "", "no page has marks of that scale"
