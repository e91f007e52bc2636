"""The workflow fetches published data before it reads them, and does not where a user has put the files elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

HISTORIES = "data/mine/dark_room_10x10/histories.safetensors"


def planned(make: Callable[[str], Any], name: str, folder: str) -> list[str]:
    workflow = make(name)
    source = f"{{algorithm: published_files, hyperparameters: {{folder: {folder}}}}}"
    text = f"{{description: mine, seeds: [0], environments: {{dark_room_10x10: {{source: {source}}}}}}}"
    (workflow.folder / "config/scales/mine.yaml").write_text(text)
    return workflow.planned(HISTORIES)


@pytest.mark.slow
def test_published_data_are_fetched_once_before_histories_are_read(real_workflow: Callable[[str], Any]) -> None:
    commands = planned(real_workflow, "hub", "data/published/dark_room/10x10")
    assert commands == ["fetch --data dark_room", "generate dark_room_10x10"]


@pytest.mark.slow
def test_files_that_lie_elsewhere_are_read_and_nothing_is_fetched(real_workflow: Callable[[str], Any]) -> None:
    assert planned(real_workflow, "own", "downloads/dark_room/10x10") == ["generate dark_room_10x10"]
