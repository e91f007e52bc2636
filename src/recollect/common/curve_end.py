"""One number of a run that learns by acting: the mean over a part of its learning curve.

Memory-RL (Ni et al. 2023, plotting code of the release) smooths the evaluations of a run by a trailing mean over 10, or over
fewer at the start. It lays them on 300 equally spaced whole steps, and the mean of the last 15 is the run's final value. So
a single evaluation in which the last policy happens to fail counts little. The mean over the whole curve is the area
under it, which says how many steps a run needed. Where a plot ends before the run does, its curve ends with the plot.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WINDOW = 10
POINTS = 300


def grid(end: int, points: int = POINTS) -> NDArray[np.int64]:
    """Equally spaced whole steps from 0 to ``end``."""
    return np.linspace(0, end, points).astype(np.int64)


def end_of(ends: int | Mapping[str, int] | None, environment: str) -> int | None:
    """The last step of an environment's curves by a figure's option `ends`: one for all, or by name. None: where its runs end."""
    return (ends.get(environment) if isinstance(ends, Mapping) else ends) or None


def smoothed(values: Floats, window: int = WINDOW) -> Floats:
    """The trailing mean over ``window`` evaluations, or over as many as there are at the start."""
    return pd.Series(values, dtype=float).rolling(window, min_periods=1).mean().to_numpy()


def on_grid(places: NDArray[np.int64], steps: NDArray[np.int64], values: Floats, window: int = WINDOW) -> Floats:
    """The smoothed curve at some steps, straight between its evaluations at `steps`.

    Before the first evaluation it has the first one's value; behind the last it is NaN.
    """
    return np.interp(places, steps, smoothed(values, window), right=np.nan)


def mean_of_points(curve_P: Floats, first: int, last: int) -> float:
    """The mean over the points from `first` to before `last`; of a curve that stops earlier, over its last so many points.

    Args:
        curve_P: NaN where the run goes no further, as `on_grid` has it.
    """
    there_P = curve_P[np.isfinite(curve_P)]
    count = last - first
    first = max(0, min(first, len(there_P) - count))
    return float(there_P[first : first + count].mean())


def part_of_curve(
    steps: NDArray[np.int64],
    values: Floats,
    part: tuple[float, float],
    window: int = WINDOW,
    end: int | None = None,
    points: int = POINTS,
) -> float:
    """The mean over a part of a run's curve.

    Args:
        steps: of the evaluations, rising, and `values` their means.
        part: from and to which share of the curve; (0.95, 1) is the published final value.
        window: evaluations over which it is smoothed.
        end: the step at which the curve ends; None: that of the last evaluation.
        points: of the curve.

    Raises:
        ValueError: no point of the curve lies in the part.
    """
    first, last = (round(share * points) for share in part)
    if first == last:
        raise ValueError(f"no point of {points} lies from {part[0]:g} to {part[1]:g}")
    places = grid(int(steps[-1]) if end is None else end, points)
    return mean_of_points(on_grid(places, steps, values, window), first, last)
