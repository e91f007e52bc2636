"""AMAGO's filters, PopArt and InputNorm against what the released classes gave (amago_statistics.json says which).

PopArt and InputNorm over 100 updates: both count what they begin with as a first sample, so that the first update has the step
one half.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_amago import drawn
from torch import Tensor

from recollect.amago.amago import Hyperparameters
from recollect.amago.input_norm import InputNorm
from recollect.amago.popart import PopArt
from recollect.amago.terms import cloning_weight

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("amago_statistics.json").read_text(encoding="utf-8"))
UPDATES = 100


def mask_of(update: int) -> Tensor:
    return drawn(f"mask {update}", 4, 5) > -0.5


def targets_of(update: int) -> Tensor:
    return drawn(f"targets {update}", 4, 5, 3) * torch.tensor([0.3, 5.0, 80.0]) + torch.tensor([0.0, 1.0, 40.0])


def features_of(update: int) -> Tensor:
    return drawn(f"features {update}", 4, 5, 3) * torch.tensor([0.001, 1.0, 50.0]) + torch.tensor([0.5, 0.0, 100.0])


@pytest.mark.parametrize("name", ["binary", "leaky", "exp"])
def test_filters_weigh_advantages_as_the_released_functions(name: str) -> None:
    hp = Hyperparameters.model_validate({"filter": name, "filter_threshold": 0.0})
    filters = RECORDED["filters"]
    found = cloning_weight(hp, torch.tensor(filters["advantages"]))
    torch.testing.assert_close(found, torch.tensor(filters[name]), rtol=1e-5, atol=1e-8)


def test_popart_is_the_released_one_over_100_updates() -> None:
    popart = PopArt(3)
    rows = {row["update"]: row for row in RECORDED["popart"]}
    for update in range(1, UPDATES + 1):
        popart.update(targets_of(update), mask_of(update))
        if update in rows:
            for name in ("mean", "square", "deviation", "weight", "bias"):
                # The released step is computed in float32, and is wrong in its fourth digit.
                torch.testing.assert_close(
                    getattr(popart, name), torch.tensor(rows[update][name]), rtol=1e-3, atol=2e-3
                )
    assert rows.keys() == {1, 2, 5, 20, UPDATES}


@pytest.mark.parametrize("order", ["fixed", "upstream"])
def test_input_norm_is_the_released_one_over_100_updates(order: Any) -> None:
    norm = InputNorm(3, order=order).train()
    rows = {row["update"]: row for row in RECORDED["input_norm"][order]}
    for update in range(1, UPDATES + 1):
        mask_BT = mask_of(update)
        found_BTD = norm(features_of(update), mask_BT)
        if update in rows:
            row = rows[update]
            torch.testing.assert_close(norm.mean, torch.tensor(row["mean"]), rtol=2e-3, atol=2e-3)
            torch.testing.assert_close(norm.square, torch.tensor(row["square"]), rtol=2e-3, atol=2e-3)
            torch.testing.assert_close(norm.deviation, torch.tensor(row["deviation"]), rtol=3e-3, atol=2e-3)
            torch.testing.assert_close(found_BTD[mask_BT][0], torch.tensor(row["first"]), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", [PopArt, InputNorm])
def test_the_first_batch_counts_one_half_or_replaces_what_was_there(kind: Any, whole: bool) -> None:
    made = kind(1)
    first = float(made.square)
    if whole:  # as PopArt's own paper has it
        made.begin(whole=True)
        made.update(torch.full((1, 1, 1), 3.0), torch.ones(1, 1, dtype=torch.bool))
        assert (float(made.mean), float(made.square)) == pytest.approx((3.0, 9.0))
        return
    made.update(torch.full((1, 1, 1), 3.0), torch.ones(1, 1, dtype=torch.bool))
    assert float(made.mean) == pytest.approx(1.5, rel=1e-3)
    assert float(made.square) == pytest.approx((first + 9) / 2, rel=1e-3)
