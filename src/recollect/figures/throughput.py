"""How fast methods learn and act: training samples and environment steps per second, measured by `recollect measure`.

A panel per metric and environment; the caption names the machine. `samples_per_second` counts training windows,
`steps_per_second_alone` acts in one task, as RA-DT's authors measure it (Schmied et al. 2024, figures 32 to 34),
`steps_per_second_together` in all tasks of an evaluation in one batch. `updates_per_second` is of AMAGO (its figure 29).
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import pandas as pd
from pydantic import Field, PositiveInt

from recollect.figures import bars, captions, reading
from recollect.figures.spec import Drawn, FigureSpec, one_or_more, options_of
from recollect.settings.schema import Names

READS = "speeds"
IN_CONTEXT = ("samples_per_second", "steps_per_second_alone", "steps_per_second_together")
LABELS = {
    "samples_per_second": "training samples/s",
    "steps_per_second_alone": "steps/s, one task",
    "steps_per_second_together": "steps/s, all tasks at once",
    "updates_per_second": "updates/s",
}


class Options(bars.Options):
    metric: str | Names = Field(IN_CONTEXT, description="Metrics that are drawn, a panel for each.")
    split: str | Names = Field("speed", description="Of measured speeds.")
    last: PositiveInt | Literal["all"] = Field("all", description="Not of speeds, which have no episodes.")
    metric_labels: dict[str, str] = Field(LABELS, description="Metric -> words.")


def draw(scores: pd.DataFrame, figure: FigureSpec) -> Drawn:
    options = options_of(figure, Options)
    drawn = bars.draw_bars(scores, figure, options)
    word = captions.STATISTIC_WORDS[options.statistic]
    axes = {**drawn.axes, "y": f"metric of the panel (the first: {one_or_more(options.metric)[0]}): {word} over seeds"}
    return dataclasses.replace(drawn, axes=axes, notes=(*drawn.notes[:-1], reading.measured_on(scores)))
