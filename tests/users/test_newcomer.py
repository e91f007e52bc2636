"""A newcomer with a laptop: README from the top, one figure, one change, and what changes (docs/tutorial.md)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reader import at_smoke, blocks

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("slurm")]
README, TUTORIAL, WORKFLOW = "README.md", "docs/tutorial.md", "docs/workflow.md"


def test_a_newcomer_draws_a_figure_changes_one_thing_and_sees_what_changes(user: Callable[..., Any]) -> None:
    you = user()
    said = you.does(README, "One figure, end to end")
    assert four_files(you.folder, "radt_dark_room_10x10"), said

    assert "GPU time" in you.types(README, "recollect forecast --scale paper radt_grid_worlds")
    assert "never made" in you.types(README, "recollect why")
    assert "radt_dark_room_10x10" in you.types(README, "recollect list")
    assert "not judged at scale smoke" in you.types(README, "recollect claims")
    assert "to do: start one" in you.types(README, "recollect watch", status=2)

    # The same from Python, then a video and an inspection page of what it trained.
    you.types(README, 'recollect.train("demo", "dark_room_7x7", "radt")')
    you.does(WORKFLOW, "Videos")
    assert (you.folder / "radt.gif").read_bytes().startswith(b"GIF8")
    you.does(WORKFLOW, "Inspection pages")
    assert (you.folder / "results/smoke/inspect/dark_room_7x7/radt/seed_0.html").is_file()

    you.does(TUTORIAL, "1. Set up")
    you.does(TUTORIAL, "2. Look at the price")
    you.does(TUTORIAL, "3. Draw it")
    assert four_files(you.folder, "amago_dark_key_door")
    assert "hyperparameters.context" in you.does(TUTORIAL, "4. Change one thing")
    assert four_files(you.folder, "short_memory")
    csv = (you.folder / "results/smoke/figures/short_memory.csv").read_text()
    assert all(f",{method}," in csv for method in ("amago_transformer", "amago_transformer.context=10", "amago_ff"))

    assert "up to date" in you.does(TUTORIAL, "6. Ask why")
    you.edits("mine/config/figures/short_memory.yaml", "context=10", "context=20")
    said = you.types(TUTORIAL, "recollect why short_memory")
    (answer,) = [block.text for block in blocks(TUTORIAL) if block.language == "text"]
    for part in re.split(r" \.\.\.\n|\n", at_smoke(answer).strip()):
        assert part.strip() in said, said
    assert you.shell("git status --porcelain --untracked-files=no") == "", "the pages edit no file of the repository"


def four_files(folder: Path, figure: str) -> bool:
    """Whether a figure has all its files."""
    return all(
        (folder / f"results/smoke/figures/{figure}.{suffix}").is_file() for suffix in ("pdf", "png", "csv", "json")
    )
