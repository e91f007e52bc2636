"""The gallery of the documentation site: each picture of docs/figures with its caption and the verdicts on the claims that it
shows, then every figure that can be drawn. Words and numbers are those of config/ and of recorded runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from recollect.figures.claim_rows import marked
from recollect.settings.claims import claims_of
from recollect.settings.resolve import figure_settings, names
from recollect.stages.recorded_tables import CLAIMS, PAGES, Row, made_with, read, said_of, verdicts

PICTURES = Path("docs/figures")


def gallery(recorded: Path) -> str:
    """The page, as Markdown of the folder docs/.

    Args:
        recorded: folder of a scale, e.g. docs/recorded/demo.
    """
    return "\n\n".join(_parts(recorded)) + "\n"


def _parts(recorded: Path) -> Iterator[str]:
    files = read(recorded)
    made, scale = made_with(files), recorded.name
    yield "# Gallery"
    yield (
        f"Pictures of scale `{scale}`: small models, two CPU cores. Below each stand the published claims that it shows, and "
        "[what recorded runs say of them](claims.md). "
        f"`snakemake results/{scale}/figures/FIGURE.pdf` draws a figure by its name, with all that it needs."
    )
    yield said_of([], made, f"recorded/{scale}")
    for paper, page in PAGES.items():
        figures = [figure for figure in names("figures") if figure_settings(scale, figure).category == paper]
        yield f"## {paper}"
        yield f"What was reproduced, and how near it is to the paper: [{paper}]({Path(page).name})."
        for figure in figures:
            if (PICTURES / f"{figure}.png").is_file():
                settings = figure_settings(scale, figure)
                yield f"### {settings.title}"
                yield f"![{settings.title}](figures/{figure}.png)"
                yield f"`{figure}`. {settings.caption.strip()}"
                rows = [row for row in files[CLAIMS] if row["figure"] == figure]
                yield "\n".join(_judged(rows)) if rows else "No claim about this figure is recorded."
        yield f"### All figures of {paper}"
        yield "\n".join(_all(figures))


def _judged(rows: list[Row]) -> Iterator[str]:
    """A row for each claim about a figure."""
    yield "| | claim | difference (95 % interval), wanted |"
    yield "|---|---|---|"
    for row, found in verdicts(rows):
        published = f" Published: {row['published']}." if row["published"] else ""
        claim = f"[{row['statement']}](../config/claims/{row['claim']}.yaml){published}"
        yield f"| {marked(row['verdict'])} | {claim} | {found} |"


def _all(figures: list[str]) -> Iterator[str]:
    """A row for each figure, with the claims that are judged on it at the scale of the papers."""
    yield "| figure | what it shows | claims at scale `paper` |"
    yield "|---|---|---|"
    shown = claims_of("paper")
    for figure in figures:
        claims = [f"[{claim.short}](../config/claims/{claim.name}.yaml)" for claim in shown if claim.figure == figure]
        yield f"| `{figure}` | {figure_settings('paper', figure).title} | {'; '.join(claims)} |"
