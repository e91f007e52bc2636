"""AD reads while it acts what its training windows have, and no step more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.artifacts.sealed import write_arrays
from recollect.common.contract import Inputs
from recollect.environments import registry
from recollect.evaluation.in_context import play_in_context
from recollect.radt import ad
from recollect.radt.experience import Experience
from recollect.radt.windows import DistillationSampler


@pytest.mark.parametrize(("context", "most"), [(12, 24), (4, 8)])
def test_acting_reads_no_more_steps_than_training_windows_have(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, context: int, most: int
) -> None:
    """Episodes have 12 steps. With `padding: hidden` a step's place is that in what is read."""
    room = tiny(horizon=12, episodes=3)
    policy = room.policy(room.settings("ad", context=context, episodes_back=1))
    embed, places = policy.network.embed, [0]
    positions = embed.positions

    def noted(window: Experience, first_position_B: Any = None) -> Any:
        place_BT = positions(window.mask) + (0 if first_position_B is None else first_position_B[:, None])
        places.append(int(place_BT.max()))
        return type(embed).forward(embed, window, first_position_B)

    monkeypatch.setattr(embed, "forward", noted)
    tasks = registry.tasks("dark_room", room.environment.options, "eval")[:2]
    play_in_context(policy, room.environment, tasks, seed=0)
    assert max(places) == most * policy.network.settings.tokens_per_step - 1


@pytest.mark.parametrize(
    ("chosen", "sampled"),
    [
        ({"episodes_back": 2}, {"episodes_back": 2}),
        ({"earlier": "any"}, {"earlier": "any"}),
        ({"earlier_random": 0.5}, {"random": 0.5}),
        ({"context_drop": 0.5}, {"drop": 0.5}),
    ],
    ids=str,
)
def test_it_learns_the_windows_that_its_settings_name(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: dict[str, Any], sampled: dict[str, Any]
) -> None:
    histories = tiny().histories(lengths=(12, 5))
    write_arrays(tmp_path / "histories.safetensors", histories.arrays(), kind="histories")
    told: dict[str, Any] = {}
    monkeypatch.setattr(ad, "train_policy", lambda *_, **given: told.update(given))
    of = tiny().settings("ad", **{"episodes_back": 1, **chosen}, optimisation={"batch_size": 32})
    ad.train(of, Inputs(histories=tmp_path / "histories.safetensors"), None)  # type: ignore[arg-type]
    window, _ = told["batch_of"](3)
    plain: dict[str, Any] = {"context": 12, "batch_size": 32, "seed": 0, "episodes_back": 1}
    wanted, other = (DistillationSampler(histories, **plain | more).batch(3) for more in (sampled, {}))
    assert np.array_equal(window.mask, wanted.mask)
    assert np.array_equal(window.reward, histories.reward[wanted.rows] * wanted.mask)
    assert not np.array_equal(wanted.rows * wanted.mask, other.rows * other.mask)
