"""report: figures, inspection pages and what their runs left -> `results/{scale}/report.html`, one page to read."""

from __future__ import annotations

from collections.abc import Sequence

from recollect.settings.errors import UserError
from recollect.settings.still import held_still
from recollect.stages import paths, provenance
from recollect.stages.inputs import report_inputs
from recollect.stages.selection import snakemake_for
from recollect.stages.stage import Job, Resources, Stage


@held_still()
def report(scale: str, figures: Sequence[str]) -> None:
    """Write the report: one page with figures, captions, provenance and a table of all runs.

    Their runs may lie elsewhere (in a clone that pulled the figures only); the page then says so.

    Raises:
        UserError: a figure or the verdicts on their claims are missing or damaged.
    """
    from recollect.artifacts.sealed import sealing
    from recollect.stages import report_rows

    claims = paths.claims(scale)
    if [path for path in report_inputs(scale, *figures).values() if not path.is_file()] == [claims]:
        raise UserError(
            "their claims are not judged", where=claims, do=f"make it with `{snakemake_for(claims, scale, figures)}`"
        )
    text = provenance.report_text(scale, *figures)
    code = STAGE.code_text(Job("report", scale))
    known = provenance.describe(text, code, report_inputs(scale, *figures).values())
    html = report_rows.page(scale, figures, code)
    with sealing(paths.report(scale), kind="report", provenance=known) as temporary:
        temporary.write_text(html, encoding="utf-8")


STAGE = Stage(
    name="report",
    over=("scale",),
    reads=report_inputs,
    writes={"html": paths.report},
    settings=provenance.report_text,
    modules=lambda scale, *figures: ["recollect.figures.report"],
    # Seconds; of thousands of runs half a minute.
    asks=Resources((2000, 2000), (30, 30)),
    local=True,
    run=report,
)
