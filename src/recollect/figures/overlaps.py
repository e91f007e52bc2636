"""Methods that score the same: points stand side by side, and a line that others cover shows on both sides of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.transforms import ScaledTranslation

if TYPE_CHECKING:
    from recollect.figures.method_styles import MethodStyle

#: What an artist is (its `gid`): the line of a method, or the wider one below where others cover it.
MEASURED, RIM = "measured", "rim"
DODGE, DODGE_ROOM = 6.0, 60.0  # points of the page: from one method's mark to the next one's, and for all of a panel
RIM_WIDTH = 1.5  # points of the page, on both sides together
SHORTEST = 6.0  # points of the page: what is covered for less is a crossing


def draw_points(axes: Axes, rows: pd.DataFrame, looks: Mapping[str, MethodStyle]) -> None:
    """Draw a few points of each method side by side, so that none lies on another, with bars for their intervals.

    A line joins three points or more: between two it would show a course that nobody measured.
    """
    places = np.unique(rows["x"].to_numpy(float))
    canvas = axes.get_figure(root=True)
    assert canvas is not None
    apart = min(DODGE, DODGE_ROOM / (len(places) * len(looks)))
    for k, (method, look) in enumerate(looks.items()):
        own = rows[rows["method"] == method]
        x, y = own["x"].to_numpy(float), own["y"].to_numpy(float)
        beside = ScaledTranslation((k - (len(looks) - 1) / 2) * apart / 72, 0, canvas.dpi_scale_trans)
        axes.errorbar(
            x,
            y,
            np.nan_to_num(np.abs(own[["low", "high"]].to_numpy(float).T - y)),
            transform=axes.transData + beside,
            color=look.color,
            linestyle=look.dash if len(x) > 2 else "none",
            marker=look.marker,
            markersize=look.marker_size(),
            markeredgecolor="white",
            elinewidth=1.1,
            zorder=3,
            gid=MEASURED,
        )


def show_hidden(axes: Axes) -> None:
    """Let a line that lies under others show on both sides of them: it is drawn wider where they cover it.

    To be called once the layout stands: what lies on what is a question of points on the page.
    """
    lines = [line for line in axes.lines if line.get_gid() == MEASURED and line.get_linestyle() != "None"]
    lines = [line for line in lines if np.size(line.get_xdata()) > 1]
    canvas = axes.get_figure(root=True)
    assert canvas is not None
    points = [np.asarray(line.get_xydata(), float) for line in lines]
    paths = [line.get_transform().transform(xy) * 72 / canvas.dpi for line, xy in zip(lines, points, strict=True)]
    for k, (line, xy, path) in enumerate(zip(lines, points, paths, strict=True)):
        above = np.zeros(len(path), int)
        for other in paths[k + 1 :]:
            height = np.interp(path[:, 0], other[:, 0], other[:, 1], left=np.nan, right=np.nan)
            above += np.abs(height - path[:, 1]) < line.get_linewidth() / 2
        edges = np.flatnonzero(np.diff(np.concatenate([[0], above > 0, [0]])))
        for start, stop in edges.reshape(-1, 2):
            covered = path[start:stop]
            if np.hypot(*np.diff(covered, axis=0).T).sum() < SHORTEST:
                continue  # two lines that cross
            axes.plot(
                *xy[start:stop].T,
                color=line.get_color(),
                transform=line.get_transform(),
                linewidth=line.get_linewidth() + RIM_WIDTH * above[start:stop].max(),
                solid_capstyle="butt",
                zorder=2.9,
                gid=RIM,
            )
