"""Figures that need other episodes, environments or methods than they name are refused before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fast_yaml
import pytest

from recollect.settings.errors import UserError
from recollect.stages.pairs import check_figure
from recollect.stages.settings import checked_figure

TWO = ["dark_room_10x10", "key_door_10x10"]
ROOM = {"environments": ["room"], "methods": ["dqn_lstm"]}


@pytest.mark.parametrize(
    ("figure", "episodes", "said"),
    [
        ({"kind": "in_context_curve", "options": {"average": 4}}, 6, r"6 episodes of 'dt' .* cannot be averaged by 4"),
        ({"kind": "in_context_curve", "options": {"average": 3}}, 6, ""),
        ({"kind": "attention_maps", "methods": ["radt"]}, 2, "takes 3 episodes in context"),
        ({"kind": "attention_maps", "methods": ["radt"]}, 3, ""),
        ({"kind": "state_visitation", **ROOM}, 19, "of 19 episodes does not play all 20 tasks of 'room'"),
        ({"kind": "state_visitation", **ROOM}, 20, ""),
        ({"kind": "bars", "pages": {"dqn_lstm": "room"}, **ROOM}, 19, "does not play all 20 tasks"),
        ({"kind": "bars", **ROOM}, 19, ""),
    ],
)
def test_evaluations_that_lack_the_episodes_of_a_figure_are_refused(
    figure: dict[str, Any], episodes: int, said: str, workdir: Path
) -> None:
    """Else it is found when all its runs have ended."""
    judged = {"protocol": "episodic", "splits": ["eval"]}
    Path("config/environments/room.yaml").write_text(fast_yaml.dump({"world": "dark_room", "evaluation": judged}))
    a_figure(figure, episodes, "room")
    if not said:
        check_figure("late", "own")
        return
    with pytest.raises(UserError, match=said) as refused:
        check_figure("late", "own")
    assert "figures/own.yaml" in refused.value.where


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        ({"kind": "attention_maps", "methods": ["radt", "radt.every_25"]}, "attention is drawn of one method, not 2"),
        ({"kind": "attention_maps", "environments": TWO, "methods": ["radt"]}, "draws one environment, not 2"),
        ({"kind": "state_visitation", "environments": TWO}, "draws one environment, not 2"),
        ({"kind": "history_attention", "methods": ["radt", "dt"]}, "attention is drawn of one method, not 2"),
    ],
)
def test_kinds_that_draw_one_environment_or_method_refuse_several(
    figure: dict[str, Any], said: str, workdir: Path
) -> None:
    a_figure(figure, 4)
    with pytest.raises(UserError, match=said):
        checked_figure("late", "own")


def a_figure(content: dict[str, Any], episodes: int, *more: str) -> None:
    environments = {env: {"evaluation": {"episodes": episodes}} for env in (*TWO, *more)}
    scale = {"description": "late", "extends": "smoke", "seeds": [0], "environments": environments}
    Path("config/scales/late.yaml").write_text(fast_yaml.dump(scale))
    plain = {"title": "Own", "environments": ["dark_room_10x10"], "methods": ["dt"]}
    Path("config/figures/own.yaml").write_text(fast_yaml.dump({**plain, **content}))
