"""New worlds of Crafter are the package's: grounds, creatures and their order, and what is drawn next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recollect.environments import crafter_worlds

crafter = pytest.importorskip("crafter", reason="crafter is not installed")


def games(area: tuple[int, int]) -> tuple[Any, Any]:
    """Two that draw no image."""
    both = crafter.Env(area=area, length=None, seed=0), crafter.Env(area=area, length=None, seed=0)
    for game in both:
        game._obs = lambda: None
    return both


def inside(game: Any) -> dict[str, Any]:
    """All that a game knows, as plain values."""
    world = game._world
    things = [None if thing is None else told(thing) for thing in world._objects]
    kind, state, *rest = world.random.get_state()
    kept = {name: getattr(game, name) for name in ("_seed", "_episode", "_step", "_last_health", "_unlocked")}
    chunks = {chunk: {world._objects.index(thing) for thing in group} for chunk, group in world._chunks.items()}
    maps = [(number_XY.dtype, number_XY.tolist()) for number_XY in (world._mat_map, world._obj_map)]
    order = list(world._chunks)
    return {**kept, "things": things, "draws": (kind, state.tolist(), rest), "chunks": chunks, "order": order,
            "maps": maps, "names": world._mat_names, "daylight": world.daylight}  # fmt: skip


def told(thing: Any) -> tuple[Any, ...]:
    plain = {name: value for name, value in vars(thing).items() if name not in ("world", "player", "random", "pos")}
    owners = thing.random is thing.world.random, getattr(thing, "player", None) in (None, thing.world._objects[1])
    return type(thing), thing.pos.tolist(), thing.pos.dtype, plain, owners


@pytest.mark.parametrize(
    ("area", "words"), [((64, 64), (0, 7, 123_456_789, 2**31 - 1)), ((50, 23), (1, 2))], ids=["whole", "smaller"]
)
def test_a_new_world_is_the_packages(area: tuple[int, int], words: tuple[int, ...]) -> None:
    """Of a game that was played before as well."""
    ours, plain = games(area)
    seen: set[int] = set()
    for word in words:
        crafter_worlds.begin(ours, word)
        plain._seed, plain._episode = word, 0
        plain.reset()
        assert inside(ours) == inside(plain)
        seen |= set(np.unique(ours._world._mat_map).tolist())
        for action in (1, 2, 3, 4, 5, 6):
            ours.step(action)
    materials = {ours._world._mat_names[number] for number in seen}
    assert area != (64, 64) or materials == set(crafter.constants.materials) - {"table", "furnace"}


def test_cells_near_a_threshold_are_decided_one_by_one_as_in_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is so near in worlds that one meets; here all are."""
    ours, plain = games((64, 64))
    monkeypatch.setattr(crafter_worlds, "CLOSE", np.inf)
    heights, alone = crafter_worlds._heights, []

    def watched(*parts: Any) -> Any:
        alone.append(np.ndim(parts[0]) == 0)
        return heights(*parts)

    monkeypatch.setattr(crafter_worlds, "_heights", watched)
    crafter_worlds.begin(ours, 5)
    plain._seed = 5
    plain.reset()
    assert inside(ours) == inside(plain) and sum(alone) == 64 * 64
