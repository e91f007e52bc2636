"""Instructions for Crafter: what can be asked for, as three words each, and how sequences of them are drawn (AMAGO, spec 4.7).

Needs no package. Words are numbers 0 to 36; a goal of two words is padded with "pad". "wake up" is never drawn, but it can
be achieved, so hindsight may ask for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

WORDS = (
    "collect", "defeat", "eat", "make", "place", "coal", "diamond", "drink", "iron", "sapling", "stone", "wood", "skeleton",
    "zombie", "cow", "plant", "pickaxe", "sword", "furnace", "table", "travel", "pad", "wake", "up",
    *(f"{metres}m" for metres in range(0, 61, 5)),
)  # fmt: skip
NUMBERS = {word: number for number, word in enumerate(WORDS)}
GOAL_WORDS = 3

# First word: chance, and chances of the words behind it.
KINDS: dict[str, tuple[float, tuple[dict[str, float], ...]]] = {
    "collect": (
        0.3,
        ({"sapling": 0.2, "wood": 0.2, "stone": 0.18, "drink": 0.17, "coal": 0.1, "iron": 0.1, "diamond": 0.05},),
    ),
    "defeat": (0.1, ({"skeleton": 0.4, "zombie": 0.6},)),
    "eat": (0.1, ({"cow": 0.7, "plant": 0.3},)),
    "make": (0.15, ({"iron": 0.1, "stone": 0.3, "wood": 0.6}, {"pickaxe": 0.5, "sword": 0.5})),
    "place": (0.15, ({"furnace": 0.1, "plant": 0.2, "stone": 0.3, "table": 0.4},)),
    "travel": (0.2, ()),
}
TECH_TREE = (
    "collect_wood", "place_table", "make_wood_pickaxe", "collect_coal", "make_wood_sword", "collect_stone",
    "make_stone_pickaxe", "make_stone_sword", "collect_iron", "place_furnace", "make_iron_pickaxe", "make_iron_sword",
    "collect_diamond",
)  # fmt: skip
ACHIEVEMENTS = (
    "collect_coal", "collect_diamond", "collect_drink", "collect_iron", "collect_sapling", "collect_stone", "collect_wood",
    "defeat_skeleton", "defeat_zombie", "eat_cow", "eat_plant", "make_iron_pickaxe", "make_iron_sword", "make_stone_pickaxe",
    "make_stone_sword", "make_wood_pickaxe", "make_wood_sword", "place_furnace", "place_plant", "place_stone", "place_table",
    "wake_up",
)  # fmt: skip
# The paper's ten prompts of several goals.
PROMPTS = (
    ("collect_sapling", "place_plant", "place_plant", "place_plant", "eat_cow"),
    ("travel_10m_10m", "place_stone", "travel_50m_50m", "place_stone"),
    ("make_stone_pickaxe", "collect_stone", "collect_stone", "collect_iron"),
    ("make_stone_pickaxe", "collect_iron"),
    ("make_stone_pickaxe", "collect_iron", "collect_iron"),
    ("collect_wood", "place_table", "make_wood_pickaxe", "collect_coal"),
    ("make_stone_pickaxe", "collect_coal", "collect_iron", "place_furnace", "make_iron_sword"),
    ("collect_drink", "eat_cow", "wake_up", "make_stone_sword", "defeat_zombie"),
    ("make_wood_sword", "defeat_zombie", "defeat_zombie"),
    ("eat_cow", "make_stone_pickaxe", "collect_coal", "make_wood_sword", "defeat_zombie"),
)
CENTER, STRIDE, FARTHEST, NEAR = 32, 5, 60, 2.0  # of the grid that one travels on; how near is there
LONGEST_WAY = 44


def numbers(goal: str) -> list[int]:
    """The three words of a goal like `make_wood_pickaxe`, as numbers."""
    words = [NUMBERS[word] for word in goal.split("_")]
    return words + [NUMBERS["pad"]] * (GOAL_WORDS - len(words))


def text(goal: Sequence[int]) -> str:
    """The goal of three numbers, e.g. `make_wood_pickaxe`."""
    return "_".join(WORDS[int(number)] for number in goal if WORDS[int(number)] != "pad")


def draw(draws: np.random.Generator, fewest: int, most: int) -> list[str]:
    """A random instruction of `fewest` to `most` goals, each independent of the others."""
    kinds = {kind: chance for kind, (chance, _) in KINDS.items()}
    goals = []
    for _ in range(int(draws.integers(fewest, most + 1))):
        kind = _chosen(draws, kinds)
        if kind == "travel":
            goals.append(_draw_way(draws))
            continue
        words = [_chosen(draws, chances) for chances in KINDS[kind][1]]
        goals.append("_".join([kind, *words]))
    return goals


def draw_from_tech_tree(draws: np.random.Generator, fewest: int, most: int, reached: int) -> list[str]:
    """An ordered random part of the first `reached` + 1 entries of the tech tree (0: nothing was achieved so far)."""
    limit = min(reached + 1, len(TECH_TREE))
    count = int(draws.integers(fewest, max(fewest, min(most, limit)) + 1))
    return [TECH_TREE[place] for place in np.sort(draws.choice(max(limit, count), size=count, replace=False))]


def place_near(x: int, y: int) -> str | None:
    """The way that ends here: the nearest place of the grid that one travels on, if it is nearer than 2."""
    nearest = [min(FARTHEST, STRIDE * round(at / STRIDE)) for at in (x, y)]
    return f"travel_{nearest[0]}m_{nearest[1]}m" if np.hypot(x - nearest[0], y - nearest[1]) < NEAR else None


def achieved(before: Mapping[str, int], now: Mapping[str, int], x: int, y: int) -> list[str]:
    """What a step achieved: each achievement whose count has risen, and the place that one is at."""
    found = [name for name, count in now.items() if count > before.get(name, 0)]
    place = place_near(x, y)
    return found if place is None else [*found, place]


def _chosen(draws: np.random.Generator, chances: Mapping[str, float]) -> str:
    return list(chances)[int(draws.choice(len(chances), p=list(chances.values())))]


def _draw_way(draws: np.random.Generator) -> str:
    """A place: a longest distance is drawn, near ones likelier; then the farthest place within it, nearly."""
    weights = np.arange(LONGEST_WAY, 0, -1)
    longest = 1 + int(draws.choice(LONGEST_WAY, p=weights / weights.sum()))
    at = np.arange(0, FARTHEST + 1, STRIDE)
    x, y = (axis.ravel() for axis in np.meshgrid(at, at, indexing="ij"))
    distance = np.hypot(x - CENTER, y - CENTER)
    order = np.argsort(-(distance + draws.random(len(distance))))
    within = order[distance[order] <= longest]
    place = within[0] if len(within) else order[-1]
    return f"travel_{x[place]}m_{y[place]}m"
