"""The last scores of a run in words, for the report, for sweeps and for who made the run by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from recollect.artifacts.run import TRAIN_SPLIT
from recollect.artifacts.scores import LEARNING
from recollect.figures import registry
from recollect.figures.captions import episodes_meant
from recollect.figures.reading import LAST_EPISODES
from recollect.figures.spec import one_or_more
from recollect.settings.resolve import environment_mapping, figure_settings, section
from recollect.settings.still import remembered

if TYPE_CHECKING:
    import pandas as pd


def final_scores(table: pd.DataFrame, scale: str, env: str, figures: Sequence[str]) -> dict[str, float]:
    """What was scored last, in words -> mean over tasks and episodes; first what the figures draw.

    Of agents that learn in context the mean is over their last episodes alone, as many as the figures of bars take.
    """
    # Statistics of training and evaluations on the way stand in the same table.
    on_the_way = table["split"] == LEARNING
    of_training = (table["split"] == TRAIN_SPLIT) & (table["task"] < 0)
    rows = table[~on_the_way & ~of_training]
    if rows.empty:
        rows = table[on_the_way]
    drawn = [pair for name in figures for pair in _drawn(scale, name)]

    there = set(rows["metric"])
    metrics = [metric for metric in dict.fromkeys(metric for metric, _ in drawn) if metric in there]
    if not metrics:
        metrics = sorted(there, key=lambda metric: (metric != "return", metric))
    splits = list(dict.fromkeys(rows["split"]))
    splits.sort(key=[*dict.fromkeys(split for _, split in drawn), *splits].index)
    evaluation = section(environment_mapping(scale, env), "evaluation")
    in_context = evaluation.get("protocol", "in_context") == "in_context"

    found: dict[str, float] = {}
    for metric in metrics:
        for split in splits:
            here = rows[(rows["metric"] == metric) & (rows["split"] == split)]
            if here.empty:
                continue
            here = here[here["step"] == here["step"].max()]
            words = metric.replace("_", " ")
            count = here["episode"].max() + 1
            if in_context and count > 1:
                here = here[here["episode"] >= count - LAST_EPISODES]
                words += f", {episodes_meant(LAST_EPISODES, [count]).removeprefix('the ')}"
            if len(splits) > 1:
                words += {"eval": ", unseen tasks", "train": ", training tasks"}.get(split, f", {split}")
            found[words] = float(here.groupby("task")["value"].mean().mean())
    return found


@remembered
def _drawn(scale: str, figure: str) -> list[tuple[str, str]]:
    """(metric, split) of the scores that a figure draws."""
    chosen = figure_settings(scale, figure)
    fields = registry.kind(chosen.kind).Options.model_fields
    defaults = {"metric": "return", "split": "eval"} | {name: field.default for name, field in fields.items()}
    metrics = one_or_more(chosen.options.get("metric") or defaults["metric"])
    splits = one_or_more(chosen.options.get("split") or defaults["split"])
    return list(itertools.product(metrics, splits))
