"""What a figure is asked to show (`FigureSpec`) and what its kind hands back (`Drawn`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import pandas as pd
from pydantic import BaseModel, Field, model_validator

from recollect.figures.statistics import RESAMPLES, Floats, Interval, Statistic, stratified_bootstrap
from recollect.settings.claims import MARKS
from recollect.settings.loading import validated
from recollect.settings.schema import FigureSettings, Frozen
from recollect.settings.seeding import generator

if TYPE_CHECKING:  # half a second, in every job that scores
    from matplotlib.figure import Figure

#: Columns of the table beside every figure. Published values stand in it as method ``published:<method>`` and constant
#: lines as ``line:<what>``, both with 0 seeds and 0 tasks.
TABLE_COLUMNS = ["panel", "method", "x", "y", "low", "high", "seeds", "tasks"]
PUBLISHED = "published:"
LINE = "line:"
#: Behind the name of a panel whose values are normalised, where the same stand beside it as they are.
NORMALISED = "/normalised"
#: The panel of kinds that sum up other panels in one.
AGGREGATION = "aggregation"

SMOKE_WORDS = "SMOKE: wiring test, not a result"
RANDOM_MODEL = "A random model took the place of a pretrained one."

Model = TypeVar("Model", bound=BaseModel)
#: What is drawn but was not measured, as a row of the table: panel, method, x, y.
ExtraRow = tuple[str, str, float, float]


class ScoreOptions(Frozen):
    """What every kind that aggregates scores can be told, besides its own options."""

    statistic: Statistic = Field("mean", description="Aggregate over seeds (and tasks). Published figures: mean.")
    resamples: int = Field(RESAMPLES, ge=100, description="Bootstrap resamples.")

    def interval(self, scores_SN: Floats, *names: str) -> Interval:
        """The aggregate of scores with its bootstrap interval. The names say what it is of, and seed the resampling."""
        rng = generator("bootstrap", *names)
        return stratified_bootstrap(scores_SN, rng, statistic=self.statistic, resamples=self.resamples)


class Reference(Frozen):
    """A published curve or point, drawn dashed where its scale is the figure's."""

    panel: str = Field(description="The panel it belongs to: an environment, or a panel name of the kind.")
    method: str = Field(description="The method whose colour it takes.")
    x: tuple[float, ...] = Field(min_length=1)
    y: tuple[float, ...] = Field(min_length=1)
    last_five: float | None = Field(None, description="Mean over the last five episodes, where it was read off.")
    source: str = Field(description='Where it is from and how it was read, e.g. "read off the paper\'s figure".')
    reading: str = Field("read off the paper's figure", description="How it was read, for the legend.")
    scale: str = "paper"

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        if len(self.x) != len(self.y):
            raise ValueError(f"x has {len(self.x)} values and y has {len(self.y)}")
        return self

    def rows(self) -> list[ExtraRow]:
        """Of a figure's table."""
        return [(self.panel, PUBLISHED + self.method, x, y) for x, y in zip(self.x, self.y, strict=True)]


class JudgedClaim(Frozen):
    """A published claim as a figure shows it: a mark for its verdict, and few words."""

    short: str
    verdict: str

    @property
    def marked(self) -> str:
        return f"{MARKS[self.verdict]} {self.short}"


class FigureSpec(FigureSettings):
    """One figure at one scale: its settings, and with them all that drawing must know of its runs."""

    scale: str
    references: tuple[Reference, ...] = ()  # type: ignore[assignment]  # the settings name groups of them
    labels: dict[str, str] = Field({}, description="Method name -> name in the legend.")
    environment_labels: dict[str, str] = Field({}, description="Environment -> panel title.")
    published: str | None = Field(None, description="Scale of the published values that are drawn; null: its own.")
    wiring_test: bool = Field(False, description="Its scale is one whose numbers mean nothing.")
    random_models: bool = Field(False, description="A random stand-in took the place of a pretrained model.")
    stand_ins: tuple[str, ...] = Field((), description="Sentences: what took the place of a published part.")
    remarks: tuple[str, ...] = Field((), description="What its worlds say of themselves, for the caption.")
    claims: tuple[JudgedClaim, ...] = Field((), description="The published claims that it shows, judged by its scores.")

    def is_comparable(self, published: Reference) -> bool:
        """Whether a published value was had with the settings of this figure's scale."""
        return published.scale == (self.published or self.scale)

    def label(self, method: str) -> str:
        return self.labels.get(method) or method

    def environment_label(self, environment: str) -> str:
        """The title of an environment."""
        return self.environment_labels.get(environment) or environment.replace("_", " ")

    def panel_title(self, environment: str) -> str:
        """The title of an environment's panel: without the words before the first comma, where all share them."""
        titles = {name: self.environment_label(name).partition(", ") for name in self.environments}
        shared = len(titles) > 1 and all(rest for _, _, rest in titles.values())
        shared &= len({first for first, _, _ in titles.values()}) == 1
        return titles[environment][2] if shared else self.environment_label(environment)

    def panel_label(self, panel: Panel, splits: str | Sequence[str] = "eval") -> str:
        """The title of a panel: its environment, and its tasks where the figure has several splits."""
        name = self.panel_title(panel.environment)
        if len(one_or_more(splits)) < 2:
            return name
        tasks = {"eval": "unseen tasks", "train": "training tasks"}.get(panel.split, panel.split)
        return f"{name}, {tasks}"

    def published_label(self) -> str:
        """The legend's name for published values; it says how they were read."""
        readings = dict.fromkeys(item.reading for item in self.references if self.is_comparable(item))
        return f"published ({' and '.join(readings)})"

    def references_of(self, panel: str) -> list[Reference]:
        """The published values for one panel that are comparable with this figure: those of the same scale."""
        return [item for item in self.references if item.panel == panel and self.is_comparable(item)]


class Panel(NamedTuple):
    """One panel of scores: its name in the figure's table and in published values, and what it shows."""

    name: str
    environment: str
    split: str
    metric: str


def one_or_more(value: str | Sequence[str]) -> tuple[str, ...]:
    """The values of an option that takes one or a list."""
    return (value,) if isinstance(value, str) else tuple(value)


def panels_of(
    environments: Sequence[str], splits: str | Sequence[str], metrics: str | Sequence[str] = "return"
) -> list[Panel]:
    """A panel per metric, split and environment, in this order.

    It is named by its environment, and by split and metric where they are not the first: `maze_runner_15x15/train`.
    """
    first_split, first_metric = one_or_more(splits)[0], one_or_more(metrics)[0]
    panels = []
    for metric in one_or_more(metrics):
        for split in one_or_more(splits):
            further = [name for name in (split, metric) if name not in (first_split, first_metric)]
            for environment in environments:
                panels.append(Panel("/".join([environment, *further]), environment, split, metric))
    return panels


def panel_names(environments: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """All panels that published values may name: of `panels_of`, and what the options `panels` and `groups` list."""
    panels = panels_of(environments, options.get("split", "eval"), options.get("metric", "return"))
    names = [panel.name for panel in panels]
    names += options.get("panels") or {}
    for group in options.get("groups") or {}:
        names += [group, group + NORMALISED]
    names.append(AGGREGATION)
    return list(dict.fromkeys(names))


@dataclass(frozen=True)
class Drawn:
    """A drawn figure and exactly what it shows.

    Attributes:
        figure: the matplotlib figure, ready to be saved.
        table: columns `TABLE_COLUMNS`.
        axes: meaning of `panel`, `x`, `y`, `low` and `high`, in words.
        notes: sentences for the caption: how it was aggregated, what was dropped, which interval is too narrow.
    """

    figure: Figure
    table: pd.DataFrame
    axes: dict[str, str]
    notes: tuple[str, ...] = ()


def table_row(panel: str, method: str, x: float, interval: Interval, *, seeds: int, tasks: int) -> dict[str, Any]:
    """A single aggregate as a row of a figure's table."""
    return {"panel": panel, "method": method, "x": float(x), **interval.numbers(), "seeds": seeds, "tasks": tasks}


def with_extra_rows(table: pd.DataFrame, rows: Sequence[ExtraRow]) -> pd.DataFrame:
    """A figure's table with what is drawn but was not measured, which has no interval, no seeds and no tasks."""
    if not rows:
        return table
    extra = pd.DataFrame(rows, columns=TABLE_COLUMNS[:4])
    extra = extra.assign(low=float("nan"), high=float("nan"), seeds=0, tasks=0)
    return pd.concat([table, extra], ignore_index=True)[TABLE_COLUMNS]


def figure_spec(values: Mapping[str, Any]) -> FigureSpec:
    """Check the description of a figure. Raises UserError: an unknown, missing or wrong key."""
    return validated(FigureSpec, values, where=f"figure {values.get('name', '(without name)')}")


def options_of(figure: FigureSettings, model: type[Model]) -> Model:
    """The options of a figure as its kind declares them. Raises UserError: an unknown or wrong option."""
    return validated(model, figure.options, where=f"options of figure '{figure.name}' (kind {figure.kind})")
