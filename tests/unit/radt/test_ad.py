"""AD reads while it acts what its training windows have, and no step more."""

from __future__ import annotations

from typing import Any

import pytest

from recollect.environments import registry
from recollect.evaluation.in_context import play_in_context
from recollect.radt.experience import Experience


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
