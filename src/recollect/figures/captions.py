"""What a figure says about itself in words: the small print below it, the warnings, and the caption in its manifest."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from recollect.figures.spec import LINE, PUBLISHED, RANDOM_MODEL, SMOKE_WORDS, FigureSpec, JudgedClaim
from recollect.figures.statistics import Band, Statistic, actual_coverage, narrow_interval_warning

STATISTIC_WORDS = {"mean": "mean", "iqm": "interquartile mean"}
Words = tuple[str, str]
CURVES: Words = ("bands", "Dashed with open markers")  # how intervals and published values are drawn
CLAIMS = "Claims: "
NARROW_INTERVAL = "Warning"  # what a note begins with that says what an interval does not cover


def count(number: int, noun: str) -> str:
    """``1 seed``, ``3 seeds``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def count_range(numbers: pd.Series, noun: str) -> str:
    """``20 tasks``, or ``5 to 20 tasks`` where it differs."""
    low, high = int(numbers.min()), int(numbers.max())
    return count(high, noun) if low == high else f"{low} to {count(high, noun)}"


def episodes_meant(last: int | str, played: Iterable[int] = ()) -> str:
    """``all episodes``, or ``the last 5 episodes``: as many as there are, where fewer were `played`."""
    if last == "all":
        return "all episodes"
    counts = [min(int(last), number) for number in played] or [int(last)]
    low, high = min(counts), max(counts)
    if high == 1:
        return "the last episode"
    return f"the last {high} episodes" if low == high else f"the last {low} to {high} episodes"


def bounds_meant(statistic: Statistic, band: Band = "bootstrap") -> str:
    """What `low` and `high` are in the table of a figure over seeds and tasks."""
    word = STATISTIC_WORDS[statistic]
    if band == "seeds":
        return f"the lowest and the highest seed's {word} over tasks; empty where there is one seed"
    return f"bounds of the 95 % stratified bootstrap interval of the {word}; empty where there is none"


def measured(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a figure's table that were measured: without published values and constant lines."""
    return table[~table["method"].str.startswith((PUBLISHED, LINE))]


def lines_of(table: pd.DataFrame) -> pd.DataFrame:
    """Seeds and tasks of each measured line. Where a line's runs stop one by one, all of them count."""
    return measured(table).groupby(["panel", "method"], sort=False)[["seeds", "tasks"]].max()


def over_tasks(table: pd.DataFrame) -> bool:
    """Whether all lines are of one seed and have intervals, which then are over its tasks."""
    rows = measured(table)
    return bool(rows["seeds"].max() == 1 and rows["low"].notna().any())


def has_intervals(table: pd.DataFrame) -> bool:
    """Whether a figure has intervals."""
    return bool(lines_of(table)["seeds"].max() > 1) or over_tasks(table)


def narrow_intervals(table: pd.DataFrame, statistic: Statistic) -> list[str]:
    """One warning for each number of seeds in the figure that is too small for its interval, worst case over tasks."""
    worst = lines_of(table).groupby("seeds")["tasks"].min()
    sentences = []
    for seeds, tasks in worst.items():
        sentences.append(narrow_interval_warning(int(str(seeds)), int(tasks), statistic, over_tasks=over_tasks(table)))
    return [f"{NARROW_INTERVAL}: {sentence}." for sentence in sentences if sentence]


def small_print(
    figure: FigureSpec,
    table: pd.DataFrame,
    statistic: Statistic,
    band: Band = "bootstrap",
    over: str = "seeds and tasks",
) -> list[str]:
    """The lines at the bottom of a figure: scale, seeds, tasks and what the band is; `over`: see `finishing.finished`."""
    rows = lines_of(table)
    facts = [f"scale {figure.scale}", count_range(rows["seeds"], "seed"), count_range(rows["tasks"], "task")]
    words = band_words(resampled(table, over), statistic, band) if has_intervals(table) else ""
    facts.append(STATISTIC_WORDS[statistic] + words)
    return [" · ".join(facts), *([RANDOM_MODEL] if figure.random_models else [])]


def resampled(table: pd.DataFrame, over: str) -> pd.DataFrame:
    """The table as its bootstrap sees it: where seeds alone are drawn anew, the mean over a run's tasks is one number."""
    return table.assign(tasks=table["tasks"].clip(upper=1)) if over == "seeds" else table


def band_words(table: pd.DataFrame, statistic: Statistic, band: Band = "bootstrap") -> str:
    """What a band is, in a few words; of too few seeds with what it really covers, in place of 95 %."""
    if band == "seeds":
        return ", lowest to highest seed"
    if over_tasks(table):
        return ", 95 % bootstrap interval over tasks"
    rows = lines_of(table)
    known = [
        actual_coverage(seeds, tasks, statistic) for seeds, tasks in zip(rows["seeds"], rows["tasks"], strict=True)
    ]
    covers = min((share for share in known if share is not None), default=None)
    return f", bootstrap interval (covers {100 * covers:.0f} %)" if covers else ", 95 % bootstrap interval"


def caption(figure: FigureSpec, notes: tuple[str, ...]) -> str:
    """The caption: the author's text, then stand-ins, what worlds say of themselves, what was done and dropped, and warnings."""
    parts = [figure.caption.strip() or figure.title.strip(), *figure.stand_ins, *figure.remarks, *notes]
    parts.append(claims_words(figure.claims))
    if figure.wiring_test:
        parts.insert(0, SMOKE_WORDS)
    return " ".join(part if part.endswith((".", "!", "?")) else part + "." for part in parts if part)


def claims_words(claims: Iterable[JudgedClaim]) -> str:
    """What a caption says of the claims that a figure shows; nothing where there are none."""
    said = "; ".join(f"{claim.short}: {claim.verdict}" for claim in claims)
    return CLAIMS + said if said else ""


def notes_on_method(
    figure: FigureSpec,
    table: pd.DataFrame,
    statistic: Statistic,
    resamples: int,
    over: str,
    words: Words = CURVES,
    band: Band = "bootstrap",
) -> list[str]:
    """The sentences that every kind's caption has: aggregate, interval, counts, warnings and published sources.

    Args: see `finishing.finished`.
    """
    intervals, published = words
    rows = lines_of(table)
    word = STATISTIC_WORDS[statistic]
    counts = f"{count_range(rows['seeds'], 'seed')} and {count_range(rows['tasks'], 'task')}"
    aggregate = f"{word.capitalize()} over {counts}"
    if band == "seeds":
        aggregate += f"; {intervals} reach from the lowest to the highest seed"
    elif has_intervals(table):
        over = "tasks" if over_tasks(table) else over
        aggregate += f"; {intervals} are 95 % percentile bootstrap intervals over {over} ({resamples} resamples)"
    notes = [aggregate + "."]
    if band == "bootstrap":
        notes += narrow_intervals(resampled(table, over), statistic)

    panels = dict.fromkeys(table["panel"])
    sources = dict.fromkeys(item.source for panel in panels for item in figure.references_of(panel))
    if sources and table["method"].str.startswith(PUBLISHED).any():
        notes.append(f"{published}: published values ({'; '.join(sources)}).")
    if figure.random_models:
        notes.append(RANDOM_MODEL)
    return notes
