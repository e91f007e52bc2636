"""The option `goal_seed` of Dark-Room and Dark Key-Door: other goals to train on, and others that are held out."""

from __future__ import annotations

import pytest

from recollect.environments import dark_room, key_door
from recollect.settings.errors import UserError


def cells(world: str, split: str, name: str, **options: int) -> list[tuple[int, int]]:
    module = {"dark_room": dark_room, "key_door": key_door}[world]
    return [task.data[name] for task in module.tasks(split, **options)]


@pytest.mark.parametrize("size", [{}, {"width": 7, "height": 6}])
def test_another_seed_holds_out_other_goals_of_the_same_room(size: dict[str, int]) -> None:
    published = [*cells("dark_room", "train", "goal", **size), *cells("dark_room", "eval", "goal", **size)]
    train = cells("dark_room", "train", "goal", goal_seed=143, **size)
    held_out = cells("dark_room", "eval", "goal", goal_seed=143, **size)
    assert sorted(train + held_out) == sorted(published)
    assert set(held_out) != set(cells("dark_room", "eval", "goal", **size))
    assert cells("dark_room", "eval", "goal", goal_seed=43, **size) == cells("dark_room", "eval", "goal", **size)


def test_doors_follow_the_seed_and_keys_do_not() -> None:
    for split in ("train", "eval"):
        goals = cells("dark_room", split, "goal", goal_seed=143, width=20, height=20)
        assert cells("key_door", split, "door", goal_seed=143, width=20, height=20) == goals
        keys = cells("key_door", split, "key", goal_seed=143, width=20, height=20)
        assert keys == cells("key_door", split, "key", width=20, height=20)


def test_a_seed_that_numpy_refuses_is_the_users_to_mend() -> None:
    with pytest.raises(UserError, match="goal_seed"):
        dark_room.tasks("train", goal_seed=-1)
