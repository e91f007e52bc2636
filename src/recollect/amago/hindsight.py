"""Hindsight relabelling of goal sequences: what a rollout happened to achieve becomes what it was asked for (AMAGO, spec 1.12).

Goal sequences are those of :mod:`recollect.environments.goal_sequences`. The reward of a step is 1 where it achieved the current
goal; the rollout is done when the last one is. A relabeler keeps the n goals (of k) that were truly completed. Among them it
puts h goals that were achieved at other times, in order of time; the other slots keep their goals. It then plays rewards,
ends and what was shown again. Modes: none; some (h uniform in 0 .. k - n); all (k - n); all_or_nothing
(k - n with chance 0.8, else 0).

What differs from upstream, and why:

- A relabelled success is done at the very step that completes it, as a real one is; upstream keeps one step more.
- A trajectory that is not a success keeps its own `done`; upstream marks its last step as the end even where a file
  was cut in mid-rollout. Goals completed before such a cut are not known, so trajectories must begin with their rollout
  (`save_length` of at least the horizon); others are refused.
- The rarity counts of goal importance sampling are kept for the run and saved with it; upstream's are forgotten with
  every loader process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from recollect.amago.cuts import Cut, cut_out, everything
from recollect.amago.trajectory_files import Trajectory
from recollect.environments.goal_sequences import GoalPart, replay_goals
from recollect.settings.errors import UserError

Mode = Literal["none", "some", "all", "all_or_nothing"]


class Relabeler:
    """Relabels trajectories; pass it as `relabel` to `TrajectoryFiles.sample`.

    Args:
        part: how the world's observations show the goal sequence (its `goal_part`).
        importance: rare goals are chosen more often.
    """

    def __init__(self, mode: Mode, part: GoalPart, *, importance: bool = False) -> None:
        self.mode, self.part = mode, part
        self.rarity = Rarity() if importance else None

    def __call__(self, trajectory: Trajectory, draws: np.random.Generator, cut: Cut = everything) -> Trajectory:
        """A window of the relabelled trajectory, a new mapping. The arrays given are not written, and nothing is copied
        that is not in the window.

        Raises:
            UserError: it has no goals, or does not begin with its rollout.
        """
        if self.mode == "none":
            return cut_out(trajectory, cut)
        if "achieved" not in trajectory or "goals" not in trajectory or trajectory["time"][0]:
            what = "only trajectories with goals, from the beginning of their rollout, can be relabelled"
            do = "set relabelling to none, or the saved length to the horizon at least"
            raise UserError(what, where="hindsight", do=do)
        achieved_TMG, goals_KG = trajectory["achieved"], trajectory["goals"]
        k = int((~np.isnan(goals_KG[:, 0])).sum())
        reached_T = replay_goals(goals_KG, achieved_TMG)
        n = int(reached_T[-1])
        if n == k:
            return cut_out(trajectory, cut)
        if self.rarity is not None:
            self.rarity.count(achieved_TMG, draws)
        real_n = np.flatnonzero(np.diff(reached_T)) + 1
        free_T = np.asarray(~np.isnan(achieved_TMG[..., 0]).all(axis=1))
        free_T[0], free_T[real_n] = False, False
        rows_C = np.flatnonzero(free_T)
        h = min(self._wanted(k - n, draws), len(rows_C))
        if not h:
            return cut_out(trajectory, cut)
        if self.rarity is None:
            rows_h = draws.choice(rows_C, size=h, replace=False)
        else:
            rows_h = self.rarity.choose_rows(achieved_TMG, rows_C, h, draws)
        synthetic = {int(row): self._one_goal(achieved_TMG[row], draws) for row in rows_h}
        real = {int(row): goals_KG[i] for i, row in enumerate(real_n)}
        chosen = [goal for _, goal in sorted((synthetic | real).items())]
        new_KG = goals_KG.copy()
        new_KG[: n + h] = chosen
        return self._played_again(trajectory, new_KG, cut)

    def _wanted(self, left: int, draws: np.random.Generator) -> int:
        if self.mode == "some":
            return int(draws.integers(left + 1))
        return left if self.mode == "all" or draws.random() < 0.8 else 0

    def _one_goal(self, achieved_MG: np.ndarray, draws: np.random.Generator) -> np.ndarray:
        goals_NG = achieved_MG[~np.isnan(achieved_MG[:, 0])]
        if self.rarity is None or len(goals_NG) == 1:
            return np.asarray(goals_NG[int(draws.integers(len(goals_NG)))])
        return np.asarray(goals_NG[self.rarity.choose(self.rarity.priority(goals_NG), draws)])

    def _played_again(self, trajectory: Trajectory, goals_KG: np.ndarray, cut: Cut) -> Trajectory:
        """Rewards, ends and what was shown, with another sequence, which ends where it is completed: a window of it."""
        reached_T = replay_goals(goals_KG, trajectory["achieved"])
        is_goal_K = ~np.isnan(goals_KG[:, 0])
        complete = np.flatnonzero(reached_T == is_goal_K.sum())
        rows = len(reached_T)
        if complete.size:
            rows = int(complete[0]) + 1
        reached_T = reached_T[:rows]
        first, end = cut(rows)
        new = {name: np.array(column) for name, column in cut_out(trajectory, lambda _: (first, end)).items()}
        new["goals"] = goals_KG
        new["reward"] = np.diff(reached_T, prepend=0).astype(np.float32)[first:end]
        if complete.size and end == rows:
            new["done"][-1] = True
        seen_T = np.append(0, reached_T[:-1]) if self.part.before else reached_T
        observation = new["observation"]
        shown_TX = self.part.show(np.broadcast_to(goals_KG, (end - first, *goals_KG.shape)), seen_T[first:end])
        observation[:, self.part.where] = shown_TX.astype(observation.dtype)
        return new


WAYS = ("uniform", "least", "median", "top")


def chances(priority_N: np.ndarray, way: str) -> np.ndarray:
    """Chances [N] of a draw: equal, in proportion to what a priority is above the least or the median one, or to the five
    highest priorities (of fewer than five: to the highest alone, as released)."""
    N = len(priority_N)
    weight_N = np.ones(N)
    if way == "least":
        weight_N = priority_N - priority_N.min() + 1e-5
    elif way == "median":
        weight_N = np.maximum(priority_N - np.median(priority_N), 1e-5)
    elif way == "top":
        least_of_top = np.sort(priority_N)[-5 if N >= 5 else -1]
        weight_N = np.where(priority_N >= least_of_top, priority_N, 1e-5)
    return np.asarray(weight_N / weight_N.sum())


class Rarity:
    """How rare achieved goals are: counts per step and per trajectory, and draws that prefer the rare ones.

    A goal's first occurrence counts 1e-7 and each later one 0.001, one that was never counted 0.001; its priority is (-log10 of
    its share) to the fourth power. Counts are taken from a tenth of the trajectories that are no success, and from the first.
    Looked at after each 1000 of these, counts that are large become a tenth. Released code (seed): hindsight.py.
    """

    def __init__(self) -> None:
        self.seen = 0
        self.counts: tuple[dict[bytes, float], dict[bytes, float]] = ({}, {})
        self._which = 0

    def count(self, achieved_TMG: np.ndarray, draws: np.random.Generator) -> None:
        """Count what a trajectory achieved, and choose which of the two counts is used for it."""
        self._which = int(draws.integers(2))
        if self.seen and draws.random() >= 0.1:
            return
        self.seen += 1
        goals_NG = achieved_TMG[~np.isnan(achieved_TMG[..., 0])]
        different_NG, often_N = np.unique(goals_NG, axis=0, return_counts=True)
        for counted, times_N in zip(self.counts, (often_N, np.ones(len(often_N), np.int64)), strict=True):
            for goal_G, times in zip(different_NG, times_N.tolist(), strict=True):
                key = np.asarray(goal_G, np.float32).tobytes()
                counted[key] = counted.get(key, 1e-7 - 1e-3) + 1e-3 * times
            if self.seen > 1000 and counted and (max(counted.values()) > 100 or min(counted.values()) > 1):
                for key in counted:
                    counted[key] /= 10
        if self.seen > 1000:
            self.seen = 0

    def priority(self, goals_NG: np.ndarray) -> np.ndarray:
        """How much each goal is wanted, float64 [N]; 0 for NaN goals."""
        counted = self.counts[self._which]
        total = max(sum(counted.values()), 1e-7)
        different_MG, place_N = np.unique(np.asarray(goals_NG, np.float32), axis=0, return_inverse=True)
        share_M = np.zeros(len(different_MG))
        for m, goal_G in enumerate(different_MG):
            share_M[m] = counted.get(goal_G.tobytes(), 1e-3) / total
        rarity_M = -np.log10(np.clip(share_M, 1e-12, 1.0))
        wanted_M = np.clip(rarity_M**4, 1e-3, 1e5)
        wanted_M[np.isnan(different_MG[:, 0])] = 0.0
        return wanted_M[place_N.reshape(-1)]

    def choose_rows(
        self, achieved_TMG: np.ndarray, rows_C: np.ndarray, count: int, draws: np.random.Generator
    ) -> np.ndarray:
        """Rows whose achieved goals are rare, without replacement, int64 [count]."""
        M, G = achieved_TMG.shape[1:]
        priority_CM = self.priority(achieved_TMG[rows_C].reshape(-1, G)).reshape(-1, M)
        left_C = priority_CM.sum(1)
        chosen = []
        for _ in range(count):
            place = self.choose(left_C, draws)
            chosen.append(int(rows_C[place]))
            left_C, rows_C = np.delete(left_C, place), np.delete(rows_C, place)
        return np.array(chosen, np.int64)

    def choose(self, priority_N: np.ndarray, draws: np.random.Generator) -> int:
        """A place. How chances follow from priorities is drawn for each: 20 %, 10 %, 10 % and 60 % for `WAYS` in order."""
        way = WAYS[int(np.searchsorted([0.2, 0.3, 0.4], draws.random(), side="right"))]
        return int(draws.choice(len(priority_N), p=chances(priority_N, way)))

    def saved(self) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {"seen": np.array([self.seen])}
        for name, counted in zip(("step", "trajectory"), self.counts, strict=True):
            found[f"{name}/count"] = np.array(list(counted.values()), np.float64)
            found[f"{name}/goal"] = np.frombuffer(b"".join(counted), np.uint8).copy()
        return found

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.seen = int(arrays["seen"][0])
        for name, counted in zip(("step", "trajectory"), self.counts, strict=True):
            counted.clear()
            counts_N = arrays[f"{name}/count"]
            goals = np.asarray(arrays[f"{name}/goal"]).tobytes()  # one behind the other
            size = len(goals) // max(1, len(counts_N))
            for n, count in enumerate(counts_N):
                counted[goals[n * size : (n + 1) * size]] = float(count)
