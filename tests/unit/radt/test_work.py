"""What forecasts count of an update and of a step of acting is what the networks compute."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # benchmarks is no part of the package

from benchmarks.training_memory import META, facts_known, windows
from recollect.radt import dpt, work
from recollect.radt.chunks import chunk_settings, memory_of
from recollect.settings.resolve import algorithm_module
from recollect.settings.schema import Settings
from recollect.stages.workload import settings_of

pytestmark = pytest.mark.usefixtures("in_the_repository")
ROOM = "dark_room_10x10"


def counted(settings: Settings) -> float:
    """Operations of an update on one window, of all products forward and backward."""
    chosen, facts = settings.method.hyperparameters, facts_known(settings)
    module = algorithm_module(settings.method.algorithm, where="", does="network")
    network: Any = module.build_network(settings, facts).to(META)
    with FlopCounterMode(display=False) as counter:
        if settings.method.algorithm == "dpt":
            batch = dpt.Batch(windows(facts, 1, chosen.context + 1), windows(facts, 1, chosen.queries))
            logits = dpt.logits_of(network, batch)
        else:
            read = chosen.retrieval.places * chunk_settings(memory_of(settings)).value_length
            has_context = torch.ones(1, dtype=torch.bool, device=META)
            logits, _ = network(windows(facts, 1, chosen.context), windows(facts, 1, read), has_context)
        logits.sum().backward()
    return float(counter.get_total_flops())


@pytest.mark.quick("dark_room_10x10-dpt", "meta_world-radt")
@pytest.mark.parametrize(
    ("env", "method"), [(ROOM, "radt"), ("meta_world", "radt"), (ROOM, "dpt"), (ROOM, "dpt.queries=50")]
)
def test_an_update_is_counted_as_its_network_computes_it(env: str, method: str) -> None:
    """Of retrieved tokens keys and values alone; DPT's queries, but of its context's last layer only keys and values."""
    settings = settings_of("paper", env, method)
    rows = settings.method.hyperparameters.optimisation.batch_size
    row = work.measured(settings, steps=1, episodes=0).flop / rows
    if getattr(settings.method.hyperparameters, "queries", None) == "computed":
        row -= work.query(settings)
    assert row == pytest.approx(counted(settings), rel=0.08)


def test_an_index_without_near_copies_is_counted_with_the_comparison_of_all_entries_with_all() -> None:
    rows, tasks = 90e6, 45
    plain, compared = (
        work.indexed(settings_of("paper", "meta_world", method), rows, tasks)
        for method in ("radt.no_deduplication", "radt")
    )
    entries, width = 90e6 / 50, 512
    assert compared.flop - plain.flop == pytest.approx(2 * width * entries**2)


@pytest.mark.parametrize(
    ("method", "window", "encoded"),
    [
        ("dt.network.padding=hidden", 200, 1),
        ("dt.context=50,network.padding=hidden", 50, fmean(min(step, 50) for step in range(1, 101))),
        ("dt.network.padding=counted", 200, 50.5),
        ("dt", 200, 200),  # attended
        ("ad.network.padding=hidden", 200, 2),  # each episode once more when it ends
        ("ad.network.padding=counted", 200, 150.5),
        ("ad", 200, 200),
    ],
)
def test_a_step_of_acting_is_counted_with_all_that_is_encoded_at_it(method: str, window: int, encoded: float) -> None:
    """Episodes of 100 steps."""
    settings = settings_of("paper", ROOM, method)
    tokens = 4 if settings.method.algorithm == "dt" else 3
    played = work.played(settings)
    one = tokens * work.network(settings, window * tokens).flop
    assert played.flop / played.env_steps == pytest.approx(encoded * one)


def test_dpt_encodes_its_context_once_an_episode_and_asks_with_one_token_a_step() -> None:
    settings = settings_of("paper", ROOM, "dpt")
    played = work.played(settings)
    context = 3 * (100 + 1)
    asked = work.network(settings, 2 * context).flop  # all of the context is attended to, which the rule takes for half
    expected = asked + context / 100 * work.network(settings, context).flop
    assert played.flop / played.env_steps == pytest.approx(expected)
