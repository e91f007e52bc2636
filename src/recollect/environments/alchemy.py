"""Symbolic Alchemy: find out in ten trials what potions do to stones, and use it (Wang et al. 2021, arXiv 2102.02926).

An episode has one hidden chemistry and 10 trials of 20 steps. A trial has 3 stones and 12 potions. A stone is a corner of
a cube (three latent coordinates of -1 or 1) and is worth their sum, with 12 more at (1, 1, 1): -3, -1, 1 or 15, paid
when it is put into the cauldron. A potion moves a stone along one axis in one direction, if the cube has that edge; it is
used up in any case. A chemistry is drawn of four parts, independent and uniform where nothing else is said:

- the graph: an edge along an axis may ask for values of the other two coordinates (so a graph is a choice of -1, 1 or
  any for each of 6 places). Only those are valid in which all corners hang together; there are 109, with 0, 1, 2 or 3 such
  constraints. First the number of constraints is drawn, then a graph of so many;
- the potion map: which color pair is which axis (6 ways), and which color of a pair is which direction (8 ways);
- the stone map: which end of each perceived feature is which end of its axis (8 ways);
- the rotation: none, or by 45 degrees about one of the three axes, scaled so that features are -1, 0 or 1.

What differs from `dm_alchemy` (level `perceptual_mapping_randomized_with_rotation_and_random_bottleneck`), and why:

- Own implementation, all instances at once; only the random numbers differ. AMAGO's specification says 40 numbers from
  memory; the package's observation has 39 (5 per stone, 2 per potion), and so has ours. Its 40 actions are right.
- The last observation of an episode shows the last trial's items, as there. The end is `terminated`.
- Seeing the chemistry, an action that ends the trial, and fixed chemistries are not built.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box, Discrete
from pydantic import Field

from recollect.environments.base import BaseWorld, Outcome, Task, WorldOptions

GYMNASIUM_IDS: dict[str, dict] = {"recollect/Alchemy-v0": {}}
STONES, POTIONS, AXES = 3, 12, 3
BONUS = 12  # of the best stone
CORNERS_V3 = np.array([[(v >> axis & 1) * 2 - 1 for axis in range(AXES)] for v in range(8)], np.int8)
PERMUTATIONS_P3 = np.array(list(itertools.permutations(range(AXES))), np.int64)
# From aligned to perceived features: none, and by 45 degrees about z, y and x, scaled.
ROTATIONS_R33 = np.array(
    [
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        [[0.5, -0.5, 0], [0.5, 0.5, 0], [0, 0, 1]],
        [[0.5, 0, 0.5], [0, 1, 0], [-0.5, 0, 0.5]],
        [[1, 0, 0], [0, 0.5, -0.5], [0, 0.5, 0.5]],
    ],
    np.float32,
)


class Options(WorldOptions):
    """`bottleneck`: "random" graphs, or the whole cube ("none"). `rotation`: stones may be seen rotated. Without
    `randomized_mapping` colors and features mean the same in every episode.
    """

    trials: int = Field(default=10, ge=1)
    trial_steps: int = Field(default=20, ge=1)
    bottleneck: Literal["random", "none"] = "random"
    rotation: bool = True
    randomized_mapping: bool = True


@cache
def graphs() -> tuple[np.ndarray, np.ndarray]:
    """The valid graphs, fewest constraints first: edges by corner and axis, bool [109, 8, 3], and constraints [109]."""
    valid = []
    # What each axis asks of a corner's place along the two other axes, axis by axis; 0: anything will do.
    for asked in itertools.product((0, -1, 1), repeat=2 * AXES):
        edge_V3 = np.ones((8, AXES), bool)
        for axis in range(AXES):
            others = [other for other in range(AXES) if other != axis]
            for other, value in zip(others, asked[2 * axis :], strict=False):
                if value != 0:
                    edge_V3[:, axis] &= CORNERS_V3[:, other] == value
        if _hangs_together(edge_V3):
            constraints = np.count_nonzero(asked)
            valid.append((constraints, asked, edge_V3))
    valid.sort(key=lambda graph: graph[:2])
    edges = [edge_V3 for _, _, edge_V3 in valid]
    constraints_of = [constraints for constraints, _, _ in valid]
    return np.array(edges), np.array(constraints_of)


def _hangs_together(edge_V3: np.ndarray) -> bool:
    """Whether every corner can be reached from corner 0."""
    seen, waiting = {0}, [0]
    while waiting:
        at = waiting.pop()
        new = {at ^ (1 << axis) for axis in range(AXES) if edge_V3[at, axis]} - seen
        seen |= new
        waiting += sorted(new)
    return len(seen) == 8


def tasks(split: str, **options: Any) -> list[Task]:
    """One task: chemistry and items are drawn anew in every episode."""
    Options.parse(options, "alchemy", split)
    return [Task(0, "any_chemistry", split)]


class Alchemy(BaseWorld):
    """Observations: float32 [B, 39]. Of each stone: three perceived features, worth / 3, 0 (used: 2, 2, 2, 2, 1); then of
    each potion: color / 3 - 1, 0 (used: 1, 1).
    Actions: 0 waits; 1 + 13 s puts stone s into the cauldron, 2 + 13 s + p into potion p. What is used does nothing.
    """

    horizon_terminates = True
    options: Options
    options_model = Options

    def _setup(self) -> None:
        chosen = self.options
        self.horizon = chosen.trials * chosen.trial_steps
        self.single_observation_space = Box(-1.0, 2.0, (5 * STONES + 2 * POTIONS,), np.float32)
        self.single_action_space = Discrete(1 + STONES * (1 + POTIONS))
        B = self.num_envs
        self._edge_GV3, constraints_G = graphs()
        # Graphs of one number of constraints stand together: how many there are, and where they begin.
        counts = np.bincount(constraints_G)
        self._of_count = counts
        self._first_of_count = np.cumsum(counts) - counts
        self._graph_B = self._keep_zeros("graph", np.int64)
        self._axes_B = self._keep_zeros("potion_axes", np.int64)  # which permutation
        self._signs_B3 = self._keep("potion_signs", np.ones((B, AXES), np.int8))
        self._mirror_B3 = self._keep("stone_signs", np.ones((B, AXES), np.int8))
        self._rotation_B = self._keep_zeros("rotation", np.int64)
        self._corner_BS = self._keep_zeros("stones", np.int64, STONES)
        self._potion_BP = self._keep_zeros("potions", np.int64, POTIONS)  # 2 * axis + (direction is 1)
        self._stone_used_BS = self._keep_zeros("stones_used", bool, STONES)
        self._potion_used_BP = self._keep_zeros("potions_used", bool, POTIONS)
        self._worth_V = CORNERS_V3.sum(1).astype(np.float32) + BONUS * (CORNERS_V3 == 1).all(1)

    def _begin(self, index_N: np.ndarray) -> None:
        chosen = self.options
        if chosen.bottleneck == "random":
            count_N = self._draw_integers(index_N, len(self._of_count))
            within_N = self._draw_integers(index_N, self._of_count[count_N])
            self._graph_B[index_N] = self._first_of_count[count_N] + within_N
        if chosen.randomized_mapping:
            self._axes_B[index_N] = self._draw_integers(index_N, len(PERMUTATIONS_P3))
            self._signs_B3[index_N] = CORNERS_V3[self._draw_integers(index_N, 8)]
            self._mirror_B3[index_N] = CORNERS_V3[self._draw_integers(index_N, 8)]
        if chosen.rotation:
            self._rotation_B[index_N] = self._draw_integers(index_N, len(ROTATIONS_R33))
        self._begin_trial(index_N)

    def _begin_trial(self, index_N: np.ndarray) -> None:
        for s in range(STONES):
            self._corner_BS[index_N, s] = self._draw_integers(index_N, 8)
        for p in range(POTIONS):
            self._potion_BP[index_N, p] = self._draw_integers(index_N, 2 * AXES)
        self._stone_used_BS[index_N] = self._potion_used_BP[index_N] = False

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        stone_B, into_B = np.divmod(actions_B - 1, 1 + POTIONS)  # into: 0 the cauldron, 1 + p a potion
        row_B = self._row_B
        acts_B = (actions_B > 0) & ~self._stone_used_BS[row_B, stone_B]

        # Stones that are put into the cauldron are paid and gone.
        sold_B = acts_B & (into_B == 0)
        worth_B = self._worth_V[self._corner_BS[row_B, stone_B]]
        rewards_B = np.where(sold_B, worth_B, np.float32(0))
        self._stone_used_BS[row_B[sold_B], stone_B[sold_B]] = True

        # A potion that is left moves a stone along its axis, if there is an edge and the stone is not there already.
        dips_N = np.flatnonzero(acts_B & (into_B > 0))
        dips_N = dips_N[~self._potion_used_BP[dips_N, into_B[dips_N] - 1]]
        stone_N = stone_B[dips_N]
        place_N = into_B[dips_N] - 1
        axis_N, up_N = np.divmod(self._potion_BP[dips_N, place_N], 2)
        corner_N = self._corner_BS[dips_N, stone_N]
        edge_N = self._edge_GV3[self._graph_B[dips_N], corner_N, axis_N]
        moves_N = edge_N & ((corner_N >> axis_N & 1) != up_N)
        moved_N = corner_N ^ (1 << axis_N)
        self._corner_BS[dips_N, stone_N] = np.where(moves_N, moved_N, corner_N)
        self._potion_used_BP[dips_N, place_N] = True

        over_B = (self._timestep_B % self.options.trial_steps == 0) & (self._timestep_B < self.horizon)
        if over_B.any():
            self._begin_trial(np.flatnonzero(over_B))
        return rewards_B, None

    def _observe(self) -> np.ndarray:
        B = self.num_envs
        stone_BS5 = np.zeros((B, STONES, 5), np.float32)
        latent_BS3 = CORNERS_V3[self._corner_BS]
        aligned_BS3 = (latent_BS3 * self._mirror_B3[:, None]).astype(np.float32)
        rotation_B33 = ROTATIONS_R33[self._rotation_B]
        stone_BS5[..., :3] = np.einsum("bij,bsj->bsi", rotation_B33, aligned_BS3)
        stone_BS5[..., 3] = latent_BS3.sum(-1) / 3
        stone_BS5[self._stone_used_BS] = [2, 2, 2, 2, 1]

        # Two colors are a pair, which stands for an axis; which of them it is stands for the direction.
        potion_BP2 = np.zeros((B, POTIONS, 2), np.float32)
        axis_BP, up_BP = np.divmod(self._potion_BP, 2)
        pair_of_axis_B3 = PERMUTATIONS_P3.argsort(1)[self._axes_B]
        pair_BP = np.take_along_axis(pair_of_axis_B3, axis_BP, 1)
        sign_BP = np.take_along_axis(self._signs_B3, axis_BP, 1)
        is_second_BP = sign_BP == 2 * up_BP - 1
        potion_BP2[..., 0] = (2 * pair_BP + is_second_BP) / 3 - 1
        potion_BP2[self._potion_used_BP] = 1
        return np.concatenate([stone_BS5.reshape(B, -1), potion_BP2.reshape(B, -1)], axis=1)

    def picture(self, b: int) -> dict[str, Any]:
        """Stones above (the lighter, the more one is worth) and potions below, in their colors; what is used is white."""
        red, green, orange, yellow, pink, teal = (
            (200, 40, 40),
            (40, 150, 60),
            (240, 140, 30),
            (235, 215, 60),
            (225, 140, 190),
            (60, 180, 175),
        )
        colors = np.full((2, POTIONS, 3), 255, np.uint8)
        stones_S5, potions_P2 = np.split(self._observe()[b], [5 * STONES])
        for s, stone in enumerate(stones_S5.reshape(STONES, 5)):
            if stone[4] == 0:
                colors[0, s] = 60 + 55 * (stone[3] + 1)
        for p, potion in enumerate(potions_P2.reshape(POTIONS, 2)):
            if potion[1] == 0:
                colors[1, p] = (red, green, orange, yellow, pink, teal)[round(3 * (potion[0] + 1))]
        return {"cells": (2, POTIONS), "colors": colors}


World = Alchemy
