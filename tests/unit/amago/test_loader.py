"""Batches that are prepared ahead: the same ones in the same order, also where a run stops before all were used."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from odd_clock import ends_the_same
from tiny_amago import GOALS, settings_of

from recollect.amago import amago
from recollect.amago.loop import Trainer
from recollect.common.ahead import in_order
from recollect.common.contract import Inputs

RARE: dict[str, Any] = {"relabelling": "some", "rare_goals": True, "steps_per_epoch": 14, "updates_per_epoch": 6}


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("batches")]


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_what_is_made_ahead_comes_in_order_and_never_further_ahead(ahead: int) -> None:
    made: list[int] = []

    def make(n: int) -> int:
        made.append(n)
        return -n

    with closing(in_order(make, range(9), ahead)) as results:
        for n, result in enumerate(results):
            assert result == -n and n + 1 <= len(made) <= n + 1 + ahead
    assert made == list(range(9)) and not threads()


def test_the_next_is_made_while_one_is_used() -> None:
    made = [threading.Event() for _ in range(5)]
    with closing(in_order(lambda n: made[n].set(), range(5), 1)) as results:
        for n, _ in enumerate(results):
            assert made[min(n + 1, 4)].wait(20)


def test_an_error_of_the_thread_is_raised_where_its_batch_is_asked_for_and_no_thread_is_left() -> None:
    def make(n: int) -> float:
        return 1 / (3 - n)

    with closing(in_order(make, range(9), 2)) as results:
        assert [next(results) for _ in range(3)] == [1 / 3, 1 / 2, 1.0]
        with pytest.raises(ZeroDivisionError):
            next(results)
    with closing(in_order(make, range(3), 2)) as results:
        next(results)
    assert not threads()


@pytest.mark.slow
def test_batches_ahead_change_no_byte_and_a_run_stopped_amid_an_epoch_goes_on_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rare goals are counted while batches are drawn: a checkpoint has the counts of the last update, not of the last draw."""
    amid: list[int] = []
    load = Trainer.load

    def watched(trainer: Trainer, arrays: Any, state: Any) -> None:
        amid.append(state["at"]["of_epoch"])
        load(trainer, arrays, state)

    monkeypatch.setattr(Trainer, "load", watched)

    def train(run: Any) -> dict[str, np.ndarray]:
        ahead = 0 if run.folder.name == "whole" else 3
        return amago.train(settings_of(GOALS, batches_ahead=ahead, **RARE), Inputs(), run).arrays()

    assert ends_the_same(train, tmp_path, (9, 5, 7)) == len(amid) > 1
    assert any(amid)
