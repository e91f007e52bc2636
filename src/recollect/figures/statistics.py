"""The numbers in the figures: aggregates over seeds and tasks with stratified bootstrap intervals.

Scores of one method form an array ``scores_SN...``: S seeds (independent runs) by N tasks, then any trailing axes
(episodes, thresholds), which are aggregated one by one but share their resamples. The conventions are those of Agarwal
et al. 2021 ("Deep reinforcement learning at the edge of the statistical precipice", the `rliable` library): runs are
resampled with replacement *within each task*, and the interval is the percentile interval of the resampled aggregate.
Ours differs in that the generator is explicit (rliable 1.2 draws from numpy's global one) and that the resampling is
one array operation.

What the interval does not cover: it treats the tasks of one seed as independent. Where a seed is good or bad at all
tasks together, the interval is narrower than it should be, on top of what `ACTUAL_COVERAGE` says for few seeds.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Statistic = Literal["mean", "iqm"]
#: What is drawn around an aggregate: its bootstrap interval, or the range of the seeds.
Band = Literal["bootstrap", "seeds"]

LEVEL = 0.95
RESAMPLES = 2000
#: Elements that one block of resampled scores may hold (32 MB), so that memory does not grow with the resamples.
_BLOCK = 4_000_000


class Interval(NamedTuple):
    """An aggregate and its interval; of the trailing shape of the scores. NaN bounds: no interval exists."""

    value: Floats
    low: Floats
    high: Floats

    def numbers(self) -> dict[str, float]:
        """A single aggregate as the columns `y`, `low` and `high` of a figure's table."""
        return {"y": float(self.value), "low": float(self.low), "high": float(self.high)}

    def columns(self) -> dict[str, Floats]:
        """An aggregate along one axis, as the same columns."""
        return {"y": self.value, "low": self.low, "high": self.high}


def iqm(scores: Floats, axis: int = 0) -> Floats:
    """The interquartile mean, as ``scipy.stats.trim_mean(scores, 0.25)``: a quarter is rounded down to whole scores."""
    ordered = np.sort(np.asarray(scores, dtype=np.float64), axis=axis)
    count = ordered.shape[axis]
    cut = int(0.25 * count)
    return np.take(ordered, np.arange(cut, count - cut), axis=axis).mean(axis=axis)


def stratified_bootstrap(
    scores_SN: Floats, rng: np.random.Generator, *, statistic: Statistic = "mean", resamples: int = RESAMPLES
) -> Interval:
    """Aggregate over seeds and tasks, with the percentile interval of a bootstrap stratified by task.

    Args:
        scores_SN: finite scores, ``[seeds, tasks, ...]``; ``[tasks, 1, ...]`` gives the interval of a run over tasks.

    Returns:
        The aggregate and its bounds, of the trailing shape. With one seed the bounds are NaN: nothing can be resampled.
    """
    scores = _checked(scores_SN)
    seeds, tasks, *trailing = scores.shape
    flat = scores.reshape(seeds, tasks, -1)
    together = scores.reshape(seeds * tasks, -1)
    value = together.mean(0) if statistic == "mean" else iqm(together)
    if seeds == 1:
        nothing = np.full(trailing, np.nan)
        return Interval(value.reshape(trailing), nothing, nothing.copy())
    index_RSN = rng.integers(0, seeds, size=(resamples, seeds, tasks))
    if statistic == "mean":
        resampled = _counts(index_RSN).reshape(resamples, -1) @ together / (seeds * tasks)
    else:
        resampled = _resampled_iqm(flat, index_RSN)
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return Interval(value.reshape(trailing), low.reshape(trailing), high.reshape(trailing))


def seed_range(scores_SN: Floats, *, statistic: Statistic = "mean") -> Interval:
    """Aggregate over seeds and tasks, with the lowest and the highest seed's own aggregate as bounds.

    For few seeds, of which no interval can be trusted (`ACTUAL_COVERAGE`). Shapes and errors: see `stratified_bootstrap`.
    """
    scores = _checked(scores_SN)
    seeds, tasks, *trailing = scores.shape
    aggregate = np.mean if statistic == "mean" else iqm
    by_seed = aggregate(scores.swapaxes(0, 1), axis=0)
    bounds = (by_seed.min(0), by_seed.max(0)) if seeds > 1 else (np.full(trailing, np.nan),) * 2
    return Interval(aggregate(scores.reshape(seeds * tasks, *trailing), axis=0), *bounds)


def _checked(scores_SN: Floats) -> Floats:
    scores = np.asarray(scores_SN, dtype=np.float64)
    if scores.ndim < 2 or scores.size == 0:
        raise ValueError(f"scores must be a non-empty array [seeds, tasks, ...], not of shape {scores.shape}")
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite")
    return scores


def _counts(index_RSN: NDArray[np.int64]) -> Floats:
    """How often each (seed, task) cell was drawn in each resample, ``[R, S, N]``."""
    resamples, seeds, tasks = index_RSN.shape
    cell = (np.arange(resamples)[:, None, None] * seeds + index_RSN) * tasks + np.arange(tasks)
    return np.bincount(cell.ravel(), minlength=index_RSN.size).reshape(index_RSN.shape).astype(np.float64)


def _resampled_iqm(scores_SNX: Floats, index_RSN: NDArray[np.int64]) -> Floats:
    resamples, seeds, tasks = index_RSN.shape
    width = scores_SNX.shape[2]
    block = max(1, _BLOCK // (seeds * tasks * width))
    parts = []
    for start in range(0, resamples, block):
        drawn = scores_SNX[index_RSN[start : start + block], np.arange(tasks)]
        parts.append(iqm(drawn.reshape(-1, seeds * tasks, width), axis=1))
    return np.concatenate(parts)


#: Real coverage of the nominal 95 % interval for independent Gaussian scores: statistic -> seeds -> tasks -> coverage.
#: One task of 2 or 3 seeds is exact (1 - 2 / 2**seeds: the interval is then the range); the rest is simulated
#: (8 000 to 20 000 trials, about ±0.5 points); the tests repeat it at a smaller size.
ACTUAL_COVERAGE: dict[str, dict[int, dict[int, float]]] = {
    "mean": {
        2: {1: 0.50, 2: 0.67, 5: 0.76, 10: 0.80, 20: 0.82},
        3: {1: 0.75, 2: 0.80, 5: 0.86, 10: 0.87, 20: 0.88},
        4: {1: 0.80, 2: 0.86, 5: 0.88, 10: 0.89, 20: 0.89},
        5: {1: 0.83, 2: 0.87, 5: 0.90, 10: 0.91, 20: 0.91},
        7: {1: 0.87, 2: 0.90, 5: 0.92, 10: 0.92, 20: 0.92},
        10: {1: 0.90, 2: 0.91, 5: 0.92, 10: 0.93, 20: 0.93},
    },
    "iqm": {
        2: {1: 0.50, 2: 0.67, 5: 0.78, 10: 0.81, 20: 0.81},
        3: {1: 0.75, 2: 0.85, 5: 0.87, 10: 0.88, 20: 0.88},
        4: {1: 0.87, 2: 0.89, 5: 0.90, 10: 0.90, 20: 0.90},
        5: {1: 0.90, 2: 0.91, 5: 0.91, 10: 0.91, 20: 0.91},
        7: {1: 0.92, 2: 0.92, 5: 0.92, 10: 0.92, 20: 0.92},
        10: {1: 0.93, 2: 0.93, 5: 0.93, 10: 0.93, 20: 0.93},
    },
}


def actual_coverage(seeds: int, tasks: int, statistic: Statistic) -> float | None:
    """What the nominal 95 % interval really covers (of fewer seeds or tasks, where between two); ``None``: not tabulated."""
    by_seeds = ACTUAL_COVERAGE[statistic]
    if not min(by_seeds) <= seeds <= max(by_seeds):
        return None
    by_tasks = by_seeds[max(tabulated for tabulated in by_seeds if tabulated <= seeds)]
    return by_tasks[max(tabulated for tabulated in by_tasks if tabulated <= tasks)]


def narrow_interval_warning(seeds: int, tasks: int, statistic: Statistic, *, over_tasks: bool = False) -> str | None:
    """The sentence that a figure from ten seeds or fewer carries, or ``None``. `over_tasks`: one run's."""
    if seeds == 1 and over_tasks:
        return "interval over the tasks of 1 seed, which says nothing of other seeds"
    if seeds == 1:
        return "no interval can be given from 1 seed"
    actual = actual_coverage(seeds, tasks, statistic)
    if actual is None:
        return None
    return f"interval from {seeds} seeds is too narrow: nominal 95 %, actual about {100 * actual:.0f} %"
