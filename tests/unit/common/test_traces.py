"""Traces: what comes back from disk is what was written, and each episode is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_traces import made_image_trace, made_trace, write_trace

from recollect.common.traces import Trace
from recollect.settings.errors import UserError


def test_a_trace_of_many_different_images_comes_back_with_each_at_its_step(tmp_path: Path) -> None:
    made = made_image_trace(images=300, episodes=30, horizon=30)
    seen = made.played.observation
    assert len(np.unique(seen.reshape(len(seen), -1), axis=0)) > 256
    np.testing.assert_array_equal(Trace.open(write_trace(made, tmp_path)).played.observation, seen)


def test_the_steps_of_an_episode_are_those_of_its_task() -> None:
    made = made_trace(tasks=(0, 6, 13), episodes=4, horizon=5)
    for task in made.tasks:
        for episode in range(4):
            steps = made.steps(task, episode)
            played = list(zip(made.played.task[steps], made.played.episode[steps], strict=True))
            assert played == [(task, episode)] * 5


@pytest.mark.parametrize("column", ["policy/return_to_go", "map/attention", "cell"])
def test_what_has_another_number_of_rows_than_its_steps_is_refused(tmp_path: Path, column: str) -> None:
    made = made_trace(tasks=(0,), episodes=2, horizon=5)
    short: dict[str, Any] = {"cell_N2": made.cell_N2[:-1]} if made.cell_N2 is not None and column == "cell" else {}
    for kind, prefix in (("facts", "policy/"), ("maps", "map/")):
        values = getattr(made, kind)
        if column.startswith(prefix):
            name = column.removeprefix(prefix)
            short[kind] = values | {name: values[name][:-1]}
    with pytest.raises(UserError, match=f"'{column}' has 9 rows, not 10"):
        Trace.open(write_trace(replace(made, **short), tmp_path))
