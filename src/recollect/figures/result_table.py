"""A typeset table: a row per method, and for each group of environments its mean return, normalised, and as published.

The number of a run is the mean over the group's environments, tasks and last episodes; the table has its mean over seeds
± the standard deviation over seeds (n - 1), or (option `statistic`) the IQM over environments and seeds with its stratified
bootstrap interval. Normalised returns are a metric of the scores (RA-DT: `data_normalised` in Meta-World and DMControl, `hns`
in Procgen; see `recollect.evaluation.normalised_scores`). The best measured number of a column is bold. Published values
stand in a column of their own, and only where they are of the figure's own scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import Field, PositiveInt

from recollect.figures import captions, method_styles, reading, spec, statistics, style
from recollect.figures.captions import count, count_range, episodes_meant
from recollect.figures.spec import (
    NORMALISED,
    PUBLISHED,
    RANDOM_MODEL,
    TABLE_COLUMNS,
    Drawn,
    ExtraRow,
    FigureSpec,
    options_of,
)
from recollect.settings.errors import UserError
from recollect.settings.schema import FigureSettings, Frozen
from recollect.settings.seeding import generator

SPLIT = "eval"  # of its scores, where its options name none
ROW, HEAD, LEFT, BETWEEN = 0.17, 0.18, 1.3, 0.12  # inches: a row, a line of the head, the column of methods, two bands


class Group(Frozen):
    """Environments whose mean is one column."""

    environments: tuple[str, ...] = Field(min_length=1)
    split: str = "eval"


class Options(Frozen):
    metric: str = Field("return", description="Metric of the scores that is shown.")
    groups: dict[str, Group] | None = Field(None, description="Head -> what it is of; null: one per environment.")
    last: PositiveInt | Literal["all"] = Field("all", description="Mean over so many last episodes.")
    normalised: str | None = Field(None, description="Metric of the columns of normalised returns; null: none.")
    statistic: statistics.Statistic = Field(
        "mean",
        description="mean: over environments, then over seeds, ± standard deviation. iqm: over all of them at once.",
    )
    decimals: int = Field(1, ge=0, le=4, description="Of returns.")
    normalised_decimals: int = Field(2, ge=0, le=4, description="Of normalised returns.")


@dataclass(frozen=True)
class Column:
    """A column of numbers: its panel in the figure's table, the head above it and the decimals of its numbers."""

    panel: str
    head: str
    decimals: int
    published: bool = False

    @property
    def width(self) -> float:
        return 0.56 if self.published else 0.86


def draw(scores: pd.DataFrame, figure: FigureSpec) -> Drawn:
    options = options_of(figure, Options)
    groups = _groups(figure, options)
    parts = [_of_group(scores, figure, name, group, options) for name, group in groups.items()]
    table = pd.concat(parts, ignore_index=True)
    blocks = {name: _columns(name, table, figure, options) for name in groups}
    published: list[ExtraRow] = []
    for columns in blocks.values():
        for column in columns:
            if column.published:
                references = figure.references_of(column.panel)
                published += [(column.panel, PUBLISHED + item.method, 1.0, item.y[-1]) for item in references]
    resampled = _resampled(table, groups)
    with style.paper_style():
        canvas = _plot(table, blocks, figure, options.statistic)
        style.finish(canvas, figure, [], _small_print(table, resampled, figure, options.statistic))
    splits = [(environment, group.split) for group in groups.values() for environment in group.environments]
    episodes = episodes_meant(options.last, reading.episodes_played(scores, splits))
    notes = _notes(table, resampled, figure, options, episodes)
    if published:
        sources = dict.fromkeys(item.source for item in figure.references if figure.is_comparable(item))
        notes.append(f"Published: {'; '.join(sources)}.")
    return Drawn(canvas, spec.with_extra_rows(table, published), _meaning(options, episodes), tuple(notes))


def check(figure: FigureSettings) -> None:
    options = options_of(figure, Options)
    if not options.groups:
        return
    grouped = {name for group in options.groups.values() for name in group.environments}
    wrong = sorted(grouped ^ set(figure.environments))
    if wrong:
        what = f"'{wrong[0]}' is in `groups` and not in `environments`, or the other way round"
        raise UserError(what, where=f"options of figure '{figure.name}': groups", do="name it in both")


def _groups(figure: FigureSpec, options: Options) -> dict[str, Group]:
    """What each group of columns is of: the option, or one group per environment."""
    check(figure)
    return options.groups or {
        figure.environment_label(name): Group(environments=(name,)) for name in figure.environments
    }


def _resampled(table: pd.DataFrame, groups: dict[str, Group]) -> pd.DataFrame:
    """The table with environments in the place of tasks: a bootstrap draws seeds anew within each of these."""
    environments = {name: len(group.environments) for name, group in groups.items()}
    return table.assign(tasks=table["panel"].str.removesuffix(NORMALISED).map(environments))


def _notes(
    table: pd.DataFrame, resampled: pd.DataFrame, figure: FigureSpec, options: Options, episodes: str
) -> list[str]:
    """The sentences of the caption that say what the numbers are."""
    seeds = count(len(figure.seeds), "seed")
    tasks = count_range(table["tasks"], "task")
    several = len(figure.seeds) > 1
    if options.statistic == "iqm":
        interval = ", with its 95 % interval" if several else ""
        worlds = count_range(resampled["tasks"], "environment")
        notes = [f"Mean over {tasks} and {episodes}, then interquartile mean over {worlds} and {seeds}{interval}."]
        notes += captions.narrow_intervals(resampled, "iqm")
    elif several:
        notes = [f"Mean over {tasks} and {episodes}, then over {seeds}; ± is the standard deviation over seeds."]
    else:
        notes = [f"Mean over {tasks} and {episodes} of {seeds}."]
    if options.normalised is not None:
        notes.append(f"Normalised: metric '{options.normalised}'.")
    return notes


def _small_print(
    table: pd.DataFrame, resampled: pd.DataFrame, figure: FigureSpec, statistic: statistics.Statistic
) -> list[str]:
    """The lines at the bottom: scale, seeds, tasks, and what the numbers and their bounds are."""
    facts = [f"scale {figure.scale}", count(len(figure.seeds), "seed"), count_range(table["tasks"], "task")]
    if statistic == "iqm":
        facts.append(count_range(resampled["tasks"], "environment"))
    facts.append(captions.STATISTIC_WORDS[statistic])
    if len(figure.seeds) > 1:
        is_mean = statistic == "mean"
        facts[-1] += " ± standard deviation over seeds" if is_mean else captions.band_words(resampled, statistic)
    return [" · ".join(facts), *([RANDOM_MODEL] if figure.random_models else [])]


def _meaning(options: Options, episodes: str) -> dict[str, str]:
    if options.statistic == "iqm":
        aggregate = f"interquartile mean over environments and seeds of the mean over tasks and {episodes}"
        bounds = "bounds of the 95 % stratified bootstrap interval"
    else:
        aggregate = f"mean over environments, tasks and {episodes}, then over seeds"
        bounds = "mean minus and plus the standard deviation"
    return {
        "panel": f"column of the table; '{NORMALISED}' behind it where returns are normalised",
        "x": "1",
        "y": f"{options.metric}: {aggregate}",
        "low, high": f"{bounds} over seeds; empty from one seed",
    }


def _of_group(scores: pd.DataFrame, figure: FigureSpec, name: str, group: Group, options: Options) -> pd.DataFrame:
    """The rows of one group: returns and, where the table has them, normalised returns."""
    of_group = figure.model_copy(update={"environments": group.environments})
    parts = []
    for panel, metric in ((name, options.metric), (name + NORMALISED, options.normalised)):
        if metric is None:
            continue
        rows = reading.last_rows(scores, of_group, metric, group.split)
        for method in figure.methods:
            values_GS, tasks = [], 0
            for environment in group.environments:
                cell = rows[(rows["env"] == environment) & (rows["method"] == method)]
                score_SN, its_tasks = reading.task_means(cell, figure, options.last)
                values_GS.append(score_SN.mean(1))
                tasks += len(its_tasks)
            about = {"panel": panel, "method": method, "x": 1.0, "seeds": len(figure.seeds), "tasks": tasks}
            rng = generator("bootstrap", figure.name, panel, method)
            parts.append({**about, **_aggregated(np.array(values_GS).T, options.statistic, rng)})
    return pd.DataFrame(parts)[TABLE_COLUMNS]


def _aggregated(value_SG: np.ndarray, statistic: statistics.Statistic, rng: np.random.Generator) -> dict[str, float]:
    """One number of the table and its bounds, from the values of all seeds and environments of a group."""
    if statistic == "iqm":
        return statistics.stratified_bootstrap(value_SG, rng, statistic="iqm").numbers()
    value_S = value_SG.mean(1)
    mean = float(value_S.mean())
    spread = float(value_S.std(ddof=1)) if len(value_S) > 1 else np.nan
    return {"y": mean, "low": mean - spread, "high": mean + spread}


def _columns(name: str, table: pd.DataFrame, figure: FigureSpec, options: Options) -> list[Column]:
    """The columns of one group, published ones beside ours."""
    columns = []
    kinds = ((name, options.metric, options.decimals), (name + NORMALISED, "normalised", options.normalised_decimals))
    for panel, head, decimals in kinds:
        if (table["panel"] == panel).any():
            columns.append(Column(panel, head, decimals))
            if figure.references_of(panel):
                columns.append(Column(panel, "published", decimals, published=True))
    return columns


def _bands(widths: dict[str, float]) -> list[list[str]]:
    """The groups beside each other as far as a page carries them, then below."""
    bands: list[list[str]] = [[]]
    used = LEFT
    for name, width in widths.items():
        if bands[-1] and used + width > style.DOUBLE_COLUMN:
            bands.append([])
            used = LEFT
        bands[-1].append(name)
        used += width
    return bands


def _plot(
    table: pd.DataFrame, blocks: dict[str, list[Column]], figure: FigureSpec, statistic: statistics.Statistic
) -> Figure:
    widths = {name: sum(column.width for column in columns) for name, columns in blocks.items()}
    bands = _bands(widths)
    width = LEFT + max(sum(widths[name] for name in band) for band in bands)
    height = HEAD * 2 + ROW * len(figure.methods) + 0.06
    canvas = style.blank_figure(width + 0.1, (height + BETWEEN) * len(bands))
    axes = canvas.subplots()
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim((height + BETWEEN) * len(bands) - BETWEEN, 0)
    for i, band in enumerate(bands):
        top = (height + BETWEEN) * i
        for place, method in enumerate(figure.methods):
            axes.text(0.05, top + _row(place), figure.label(method), va="center", fontsize=7)
        left = LEFT
        for name in band:
            middle = left + widths[name] / 2
            axes.text(middle, top + HEAD / 2, name, ha="center", va="center", fontsize=7)
            _rule(axes, left + 0.06, left + widths[name] - 0.06, top + HEAD * 0.98, 0.4)
            for column in blocks[name]:
                centre = left + column.width / 2
                y = top + HEAD * 1.5
                axes.text(centre, y, column.head, ha="center", va="center", fontsize=6.2, color=style.SOFT)
                if column.published:
                    _draw_published(axes, centre, top, column, figure)
                else:
                    _draw_column(axes, centre, top, column, table[table["panel"] == column.panel], statistic)
                left += column.width
        for y, thickness in ((0.0, 0.9), (HEAD * 2, 0.6), (height, 0.9)):
            _rule(axes, 0, left, top + y, thickness)
    return canvas


def _draw_published(axes: Axes, centre: float, top: float, column: Column, figure: FigureSpec) -> None:
    for item in figure.references_of(column.panel):
        if item.method in figure.methods:
            y = top + _row(figure.methods.index(item.method))
            text = _number(item.y[-1], column.decimals)
            axes.text(centre, y, text, ha="center", va="center", fontsize=7, color=style.SOFT, fontstyle="italic")


def _draw_column(
    axes: Axes, centre: float, top: float, column: Column, rows: pd.DataFrame, statistic: statistics.Statistic
) -> None:
    """Draw the measured numbers of a column; `rows` has one per method, in the figure's order."""
    best = rows["y"].max()
    for place, (value, low, high) in enumerate(zip(rows["y"], rows["low"], rows["high"], strict=True)):
        y = top + _row(place)
        weight = "bold" if value == best else "normal"
        number = _number(value, column.decimals)
        spread = (high - low) / 2
        if not np.isfinite(spread):
            axes.text(centre, y, number, ha="center", va="center", fontsize=7, fontweight=weight)
            continue
        axes.text(centre + 0.02, y, number, ha="right", va="center", fontsize=7, fontweight=weight)
        bounds = f"± {_number(spread, column.decimals)}"
        if statistic == "iqm":
            bounds = f"{_number(low, column.decimals)} to {_number(high, column.decimals)}"
        axes.text(centre + 0.06, y, bounds, ha="left", va="center", fontsize=5.8, color=style.SOFT)


def _number(value: float, decimals: int) -> str:
    return f"{value:z.{decimals}f}".replace("-", "−")


def _row(place: int) -> float:
    return HEAD * 2 + 0.03 + ROW * (place + 0.5)


def _rule(axes: Axes, left: float, right: float, y: float, thickness: float) -> None:
    axes.plot([left, right], [y, y], color=method_styles.BLACK, linewidth=thickness, clip_on=False)
