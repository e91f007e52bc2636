"""A recorded run as tables of Markdown, from its CSV files alone: whoever has them has every word of these tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from recollect.figures.claim_rows import as_many, marked, numbers
from recollect.settings.catalogue import PAPERS

FOLDER = Path("docs/recorded")
PAGES = {paper.name: paper.page for paper in PAPERS.values()}
README = "README.md"
RUN, CLAIMS, NUMBERS = "run", "claims", "numbers"  # files: facts of figures; a row per contrast; a row per point
RUN_AT = "commit of the runs"  # a fact; the runs of a figure may be older than what recorded it
COLUMNS = {
    RUN: ("figures", "what", "value"),
    CLAIMS: (
        "claim", "paper", "headline", "statement", "source", "differs", "figure", "verdict",
        "says", "value", "low", "high", "wanted", "margin", "seeds", "tasks", "contrast", "why", "published", "needed",
    ),
    NUMBERS: ("figure", "title", "of", "panel", "method", "x", "y", "low", "high", "seeds", "tasks"),
}  # fmt: skip
Row = Mapping[str, str]
Made = Mapping[str, Mapping[str, str]]  # figure -> what it was made with; figures that were recorded together share it


def csv_text(file: str, rows: Sequence[Mapping[str, object]]) -> str:
    """A file of a recorded run; numbers with six digits, nothing where there is none."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS[file], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()})
    return text.getvalue()


def read(folder: Path) -> dict[str, list[Row]]:
    """The rows of each file of a recorded run."""
    found: dict[str, list[Row]] = {}
    for file in COLUMNS:
        with (folder / f"{file}.csv").open(newline="", encoding="utf-8") as lines:
            found[file] = list(csv.DictReader(lines))
    return found


def tables(folder: Path) -> dict[tuple[str, str], str]:
    """(page, name of its marks) -> what stands there, of what was recorded of one scale."""
    files = read(folder)
    made, scale = made_with(files), folder.name
    known_for = {row["figure"] for row in files[CLAIMS] if row["headline"]}
    shown = [row for row in files[CLAIMS] if row["figure"] in known_for]
    said = said_of(shown, made, f"{FOLDER}/{scale}")
    found = {(README, f"recorded {scale} headline claims"): _short_claims(shown, said)}
    for folder_of_paper, (paper, page) in PAPERS.items():
        link = f"recorded/{scale}"
        rows = [row for row in files[CLAIMS] if row["paper"] == paper]
        points = [row for row in files[NUMBERS] if row["figure"].startswith(f"{folder_of_paper}_")]
        found[page, f"recorded {scale} claims"] = _claims(rows, said_of(rows or points, made, link))
        found[page, f"recorded {scale} numbers"] = _numbers(points, said_of(points, made, link))
    return found


def made_with(files: Mapping[str, Sequence[Row]]) -> Made:
    """What each figure was made with."""
    facts: dict[str, dict[str, str]] = {}
    for row in files[RUN]:
        facts.setdefault(row["figures"], {})[row["what"]] = row["value"]
    return {figure: known for figures, known in facts.items() for figure in figures.split()}


def said_of(rows: Sequence[Row], made: Made, link: str) -> str:
    """What the figures of these rows were made with, or without rows all figures, and a link to their numbers."""
    shown = dict.fromkeys(row["figure"] for row in rows) or made
    together: dict[str, list[str]] = {}
    for figure in shown:
        known = made[figure]
        seeds = f"seed{'' if known['seeds'].isdigit() else 's'} {known['seeds']}"
        parts = ", ".join(known[part] for part in ("gpu", "processor") if part in known)
        run_at = f"run at commit {known[RUN_AT]}, " if known.get(RUN_AT, known["commit"]) != known["commit"] else ""
        run = f"{seeds}, device {known['device']} ({parts}), {run_at}recorded at commit {known['commit']}"
        together.setdefault(f"Scale `{known['scale']}`, {run}", []).append(f"`{figure}`")
    said = [f"{run}: {', '.join(figures)}" if len(together) > 1 else run for run, figures in together.items()]
    return f"{'. '.join(said)} ([numbers]({link}))."


def _by(rows: Sequence[Row], *names: str) -> list[list[Row]]:
    return [list(group) for _, group in groupby(rows, key=lambda row: [row[name] for name in names])]


def _cells(row: Row) -> tuple[str, str, str]:
    """Difference, interval and what was wanted of a contrast."""
    contrast = {**row, "margin": float(row["margin"])}
    contrast |= {name: float(row[name]) if row[name] else None for name in ("value", "low", "high")}
    return numbers(contrast)[:3]


def _short_claims(rows: Sequence[Row], said: str) -> str:
    """A row for each claim; headline ones are bold."""
    if not rows:
        return f"No headline claim was judged. {said}"
    lines = ["| | claim | difference (95 % interval), wanted |", "|---|---|---|"]
    for first, found in verdicts(rows):
        link = f"[{first['statement']}](config/claims/{first['claim']}.yaml)"
        link = f"**{link}**" if first["headline"] else link
        paper = first["paper"]
        page = f"[{paper}]({PAGES[paper]})" if paper in PAGES else paper
        lines.append(f"| {marked(first['verdict'])} | {page}: {link} | {found} |")
    return "\n".join([*lines, "", said])


def verdicts(rows: Sequence[Row]) -> Iterator[tuple[Row, str]]:
    """(a row of a claim, what was found of its contrasts) for each claim."""
    for contrasts in _by(rows, "claim"):
        found = []
        for row in contrasts:
            value, interval, wanted = _cells(row)
            found.append(f"{row['says']}: " + (f"{value} ({interval}), {wanted}" if interval else row["why"]))
        yield contrasts[0], "<br>".join(found) + as_many(contrasts[0]["needed"], len(contrasts))


def _claims(rows: Sequence[Row], said: str) -> str:
    """A row for each contrast."""
    if not rows:
        return f"No claim was judged. {said}"
    lines = [
        "| | claim | compared | difference | 95 % interval | wanted |",
        "|---|---|---|---|---|---|",
    ]
    for contrasts in _by(rows, "claim"):
        first = contrasts[0]
        link = f"[{first['statement']}](../config/claims/{first['claim']}.yaml)"
        link = f"**{link}**" if first["headline"] else link
        source = f"{first['source'][0].upper()}{first['source'][1:]}. " if first["source"] else ""
        claim = f"{link}{as_many(first['needed'], len(contrasts))} {source}{first['differs']}".strip()
        if first["published"]:
            claim += f" Published: {first['published']}."
        for row in contrasts:
            value, interval, wanted = _cells(row)
            compared = row["says"] + (f" ({row['why']})" if row["why"] else "")
            verdict = marked(first["verdict"]) if row is first else ""
            if len(contrasts) > 1:
                compared = f"{marked(row['contrast'])[0]} {compared}"
            lines.append(
                f"| {verdict} | {claim if row is first else ''} | {compared} | {value} | {interval} | {wanted} |"
            )
    return "\n".join([*lines, "", said])


def _numbers(rows: Sequence[Row], said: str) -> str:
    """A table for each figure, or for each of its panels where these have other columns; the last column has its interval."""
    if not rows:
        return f"No figure was drawn. {said}"
    parts = []
    for of_figure in _by(rows, "figure"):
        first = of_figure[0]
        parts.append(f"**{first['title']}** (`{first['figure']}`): {first['of']}; {_counts(of_figure)}.")
        tables: dict[tuple[str, ...], list[list[Row]]] = {}
        for line in _by(of_figure, "panel", "method"):
            tables.setdefault(tuple(row["x"] for row in line), []).append(line)
        several = len({row["panel"] for row in of_figure}) > 1
        # Places of bars are no numbers of their own.
        alone = all(len(xs) == 1 for xs in tables)
        if alone:
            tables = {("",): [line for lines in tables.values() for line in lines]}
        for xs, lines in tables.items():
            parts.append(_points(xs, lines, several))
    return "\n\n".join([*parts, said])


def _points(xs: Sequence[str], lines: Sequence[Sequence[Row]], several: bool) -> str:
    panel = [""] if several else []
    heads = [f"{float(x):,.1f}".removesuffix(".0") if x else "value" for x in xs]
    largest = max(abs(float(row["y"])) for line in lines for row in line)
    decimals = 2 if largest < 10 else 1
    table = [f"| {' | '.join([*panel, '', *heads])} |", f"|{'---|' * (len(heads) + len(panel) + 1)}"]
    for line in lines:
        cells = [_number(row["y"], decimals) for row in line]
        last = line[-1]
        if last["low"]:
            cells[-1] += f" ({_number(last['low'], decimals)} to {_number(last['high'], decimals)})"
        names = [last["panel"]] if several else []
        table.append(f"| {' | '.join([*names, last['method'], *cells])} |")
    return "\n".join(table)


def _number(value: str, decimals: int) -> str:
    return f"{float(value):z.{decimals}f}".replace("-", "−")


def _counts(rows: Sequence[Row]) -> str:
    """``5 seeds, 20 tasks``."""
    parts = []
    for name in ("seeds", "tasks"):
        found = sorted({int(row[name]) for row in rows})
        count = str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"
        parts.append(f"{count} {name[:-1] if found == [1] else name}")
    return ", ".join(parts)
