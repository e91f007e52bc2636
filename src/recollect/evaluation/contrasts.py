"""A contrast of two sets of scores: how large the difference is, how sure that is, and what follows for a claim.

The interval is a paired bootstrap over two crossed levels, seeds and tasks, each stretched for small samples. A bootstrap
over k items spreads too little by sqrt((k - 1) / k). Its percentiles are a normal's, where Student's t with k - 1 degrees of
freedom belongs. Deviations of each level are multiplied to mend both. The tests simulate how often it covers the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from recollect.artifacts.scores import LEARNING
from recollect.common.curve_end import POINTS, WINDOW, part_of_curve

Floats = NDArray[np.float64]
Wanted = Literal["above", "below", "equal"]
Verdict = Literal["holds", "contradicted", "undecided", "not run"]

LEVEL = 0.95
RESAMPLES = 10_000
NORMAL = 1.959964  # its quantile of 97.5 %
T_OF_FEW = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582)  # Student's, of 1 to 5 degrees of freedom
FEWEST_SEEDS = 3
"""From fewer no verdict is given: an interval of two seeds is as wide as twelve of their deviations."""


class Effect(NamedTuple):
    """A mean difference with its interval; NaN bounds: from one seed none can be given."""

    value: float
    low: float
    high: float
    seeds: int
    tasks: int


def task_means(
    scores: pd.DataFrame,
    split: str,
    metric: str,
    episodes: tuple[float, float],
    window: int = WINDOW,
    end: int | None = None,
    points: int = POINTS,
) -> pd.Series:
    """The mean of each task over some episodes of the final evaluation of one run, or over a part of its learning curve.

    Args:
        scores: as `recollect.artifacts.scores` has them.
        split: `learning`: the learning curve, which has one number for all tasks (`recollect.common.curve_end`).
        episodes: from and to which share of the episodes, or of the curve.
        window: evaluations over which the curve is smoothed.
        end: the step at which it ends; None: that of its last evaluation.
        points: of the curve.

    Raises:
        ValueError: there is no such score, or one is not a finite number: a mean would leave it out and say nothing.
    """
    chosen = scores[(scores["split"] == split) & (scores["metric"] == metric)]
    if chosen.empty:
        raise ValueError(f"no {metric} of the split {split}")
    bad = int((~np.isfinite(chosen["value"].to_numpy(float))).sum())
    if bad:
        raise ValueError(f"{bad} of {len(chosen)} scores of {metric} are not finite numbers")
    if split == LEARNING:
        curve = chosen.groupby("step")["value"].mean()
        return pd.Series({0: part_of_curve(curve.index.to_numpy(), curve.to_numpy(), episodes, window, end, points)})
    chosen = chosen[chosen["step"] == chosen["step"].max()]
    count = int(chosen["episode"].max()) + 1
    first, last = (round(share * count) for share in episodes)
    if first == last:
        raise ValueError(f"no episode of {count} lies from {episodes[0]:g} to {episodes[1]:g}")
    return chosen[chosen["episode"].between(first, last - 1)].groupby("task")["value"].mean()


def differences(this_SN: pd.DataFrame, that: pd.DataFrame | float) -> Floats:
    """Differences ``[seeds, tasks]`` to a number, or paired with those of another arm.

    Of two arms with other tasks, e.g. of another length, only the means over tasks are paired.

    Raises:
        ValueError: some seed lacks a task that others have.
    """
    for arm in (this_SN, that):
        if isinstance(arm, pd.DataFrame) and arm.isna().any(axis=None):
            raise ValueError("its seeds have scores of different tasks")
    if isinstance(that, pd.DataFrame) and list(this_SN) != list(that):
        this_SN, that = this_SN.mean(axis=1).to_frame(), that.mean(axis=1).to_frame()
    return (this_SN - that).to_numpy(np.float64)


def paired_effect(difference_SN: Floats, rng: np.random.Generator, resamples: int = RESAMPLES) -> Effect:
    """The mean difference over seeds and tasks.

    Args:
        difference_SN: finite differences of paired scores, ``[seeds, tasks]``.
    """
    difference_SN = np.asarray(difference_SN, dtype=np.float64)
    if difference_SN.ndim != 2 or difference_SN.size == 0 or not np.isfinite(difference_SN).all():
        raise ValueError(f"differences must be finite and [seeds, tasks], not of shape {difference_SN.shape}")
    seeds, tasks = difference_SN.shape
    mean = float(difference_SN.mean())
    if seeds == 1:
        return Effect(mean, np.nan, np.nan, seeds, tasks)
    deviations_R = _resampled(difference_SN.mean(1) - mean, rng, resamples)
    deviations_R += _resampled(difference_SN.mean(0) - mean, rng, resamples)
    low, high = np.quantile(deviations_R, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Effect(mean, mean + float(low), mean + float(high), seeds, tasks)


def _resampled(deviation_K: Floats, rng: np.random.Generator, resamples: int) -> Floats:
    """Means of resamples of one level's deviations, stretched for its size; one item has none, nor says of others."""
    count = len(deviation_K)
    if count == 1:
        return np.zeros(resamples)
    stretch = np.sqrt(count / (count - 1)) * student(count - 1) / NORMAL
    return stretch * deviation_K[rng.integers(0, count, size=(resamples, count))].mean(1)


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, to a thousandth: of many degrees by the expansion around the normal's."""
    if freedom <= len(T_OF_FEW):
        return T_OF_FEW[freedom - 1]
    z, v = NORMAL, freedom
    first = (z**3 + z) / (4 * v)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    return z + first + second + third


def judged(effect: Effect, wanted: Wanted, margin: float) -> tuple[Verdict, str]:
    """The verdict of a fixed rule, and what an undecided one lacks.

    Args:
        wanted: the difference is `above` the margin, `below` minus the margin, or `equal`: within the margin of zero.
        margin: the difference that would count, at least zero; above zero for `equal`.
    """
    if effect.seeds < FEWEST_SEEDS:
        return (
            "undecided",
            f"{'one seed is' if effect.seeds == 1 else f'{effect.seeds} seeds are'} fewer than {FEWEST_SEEDS}",
        )
    if wanted == "equal":
        inside = -margin < effect.low and effect.high < margin
        outside = effect.low > margin or effect.high < -margin
    else:
        low, high = (effect.low, effect.high) if wanted == "above" else (-effect.high, -effect.low)
        inside, outside = low > margin, high < margin
    if inside:
        return "holds", ""
    if outside:
        return "contradicted", ""
    return "undecided", "the interval lies across " + ("a margin" if wanted == "equal" else f"{margin:g}")


def verdict_of(verdicts: Sequence[Verdict], needed: int | None = None) -> Verdict:
    """The verdict of a claim of several contrasts, of which it asserts all or, e.g. for "in most tasks", so many."""
    if "not run" in verdicts:
        return "not run"
    needed = len(verdicts) if needed is None else needed
    if verdicts.count("holds") >= needed:
        return "holds"
    return "contradicted" if len(verdicts) - verdicts.count("contradicted") < needed else "undecided"
