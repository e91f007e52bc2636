"""claims: the scores of runs -> `results/{scale}/claims.json`, whether each published claim holds at a scale, by a fixed rule."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from recollect.settings.claims import MARKS, Arm, ClaimSettings, ContrastSettings, claims_of, judged_elsewhere
from recollect.settings.errors import UserError
from recollect.settings.loading import config_path
from recollect.settings.resolve import figure_settings
from recollect.settings.still import held_still
from recollect.stages import paths, provenance
from recollect.stages.columns import columns
from recollect.stages.identity import how_to_make
from recollect.stages.of_today import stale_words
from recollect.stages.selection import default_selection, snakemake_for
from recollect.stages.stage import Job, Resources, Stage

if TYPE_CHECKING:
    import pandas as pd

Tables = dict[Path, "pd.DataFrame"]
"""Score files, by their paths"""

COLUMNS = ("contrast", "difference", "95 % interval", "wanted", "seeds × tasks")
INDENT = 4  # of a contrast below its claim
LONGEST_LINE = 100
SEED = 0  # of the resamples, so that a verdict is the same each time


@held_still()
def claims(scale: str, figures: Sequence[str]) -> list[dict[str, Any]]:
    """Judge the claims that figures show, and write them down.

    Raises:
        UserError: as `verdicts`.
    """
    from recollect.artifacts.sealed import write_json

    there = {name: path for name, path in claim_inputs(scale, *figures).items() if path.is_file()}
    code = STAGE.code_text(Job("claims", scale))
    known = provenance.describe(provenance.claims_text(scale, *figures), code, there.values())
    found = verdicts(scale, figures)
    write_json(paths.claims(scale), {"scale": scale, "claims": found}, kind="claims", provenance=known)
    return found


def verdicts(scale: str, figures: Sequence[str]) -> list[dict[str, Any]]:
    """The claims that figures show, each as `judge` gives it.

    Raises:
        UserError: there is no such figure, or its scores are not those that a claim names.
    """
    for figure in figures:
        figure_settings(scale, figure)  # known
    read: Tables = {}
    return [judge(scale, claim, read) for claim in claims_of(scale, tuple(figures))]


def stale(scale: str, figures: Sequence[str]) -> str:
    """Which runs that claims are judged by are not of today, and what to do; empty where all are."""
    said = stale_words(claim_inputs(scale, *figures).values())
    if not said:
        return ""
    of = () if tuple(figures) == default_selection().figures_at(scale) else figures
    why = f"`{' '.join(['recollect why --scale', scale, *of])}` says what changed"
    return f"{said} {why}; `{snakemake_for(paths.claims(scale), scale, figures)}` makes them anew."


def check_all_hold(scale: str, figures: Sequence[str], found: Sequence[dict[str, Any]]) -> None:
    """What `--strict` promises.

    Raises:
        UserError: one does not hold, or lacks runs; or there is none.
    """
    open_ = [claim["name"] for claim in found if claim["verdict"] == "not run"]
    failing = [claim["name"] for claim in found if claim["verdict"] not in ("holds", "not run")]
    what = [f"{len(failing)} of {len(found)} claims do not hold: {', '.join(failing)}"] if failing else []
    what += [f"{len(open_)} of {len(found)} claims lack runs: {', '.join(open_)}"] if open_ else []
    do = (
        "look at their figures" if failing else f"make the runs: `{snakemake_for(paths.claims(scale), scale, figures)}`"
    )
    if not found:
        what, do = (
            ["no claim is judged"],
            "name a figure with claims, or another scale: `recollect list claims` has all",
        )
    if what:
        raise UserError("; ".join(what), where=f"claims at scale {scale}", do=do)


def judge(scale: str, claim: ClaimSettings, read: Tables) -> dict[str, Any]:
    """A claim with the effect, interval and verdict of each contrast, as JSON has it.

    Args:
        read: score files that were read already; others are added.
    """
    from recollect.evaluation.contrasts import verdict_of

    contrasts = [_judged(scale, claim, contrast, read) for contrast in claim.contrasts]
    verdict = verdict_of([contrast["verdict"] for contrast in contrasts], claim.needed)
    said = claim.model_dump(mode="json", exclude={"contrasts"})
    return {**said, "verdict": verdict, "contrasts": contrasts}


def _judged(scale: str, claim: ClaimSettings, contrast: ContrastSettings, read: Tables) -> dict[str, Any]:
    import numpy as np

    from recollect.evaluation.contrasts import differences, judged, paired_effect

    said = contrast.model_dump(mode="json")
    wanted = dict.fromkeys(path for arm in contrast.arms for path in _files(scale, claim, arm))
    lacking = [path for path in wanted if not path.is_file()]
    if lacking:
        return {**said, "verdict": "not run", "why": f"{len(lacking)} runs are missing, {lacking[0]} for one"}
    this_SN, *that_SN = [_scores(scale, claim, arm, contrast.metric, read) for arm in contrast.arms]
    try:
        difference_SN = differences(this_SN, that_SN[0] if that_SN else cast("float", contrast.that))
    except ValueError as error:
        where = f"{claim.name}: {contrast.says}"
        raise UserError(f"scores cannot be paired: {error}", where=where, do="score all its runs anew") from error
    effect = paired_effect(difference_SN, np.random.default_rng(SEED))
    verdict, why = judged(effect, contrast.wanted, contrast.margin)
    numbers = {name: None if value != value else value for name, value in effect._asdict().items()}  # NaN is no JSON
    return {**said, **numbers, "verdict": verdict, "why": why}


def _scores(scale: str, claim: ClaimSettings, arm: Arm, metric: str, read: Tables) -> pd.DataFrame:
    """Scores of one side, seeds by tasks.

    A learning curve is smoothed, ends and has points by the options of its figure. Without the option `ends` each run's curve
    ends with its last evaluation. (The figure then ends where all its runs do.)
    """
    import pandas as pd

    from recollect.artifacts.sealed import read_table
    from recollect.common.curve_end import POINTS, WINDOW, end_of
    from recollect.evaluation.contrasts import task_means

    rows = {}
    drawn = figure_settings(scale, claim.figure)
    window = claim.window or drawn.options.get("window", WINDOW)
    end = end_of(drawn.options.get("ends"), arm.env)
    points = drawn.options.get("points", POINTS)
    for seed, path in zip(drawn.seeds, _files(scale, claim, arm), strict=True):
        if path not in read:
            read[path] = read_table(path, kind="scores", input_from=how_to_make(path))
        try:
            rows[seed] = task_means(read[path], arm.split, metric, arm.episodes, window, end, points)
        except ValueError as error:
            do = f"correct metric, split or episodes of the claim '{claim.name}', or find out why that run gives it"
            raise UserError(str(error), where=path, do=do) from error
    return pd.DataFrame(rows).T


def _files(scale: str, claim: ClaimSettings, arm: Arm) -> list[Path]:
    """The scores of each seed of one side."""
    return [paths.scores(scale, arm.env, arm.method, seed) for seed in figure_settings(scale, claim.figure).seeds]


def claim_inputs(scale: str, *figures: str) -> dict[str, Path]:
    """The scores that the claims of some figures are judged by, under their paths."""
    found: dict[str, Path] = {}
    for claim in claims_of(scale, figures):
        for contrast in claim.contrasts:
            for arm in contrast.arms:
                found |= {path.as_posix(): path for path in _files(scale, claim, arm)}
    return found


def not_run(claim: ClaimSettings, why: str) -> dict[str, Any]:
    """A claim of which nothing is known, as JSON has it."""
    contrasts = [{**one.model_dump(mode="json"), "verdict": "not run", "why": why} for one in claim.contrasts]
    return {**claim.model_dump(mode="json"), "verdict": "not run", "contrasts": contrasts}


def table(found: Sequence[dict[str, Any]]) -> str:
    """The claims as a table of Markdown, a row for each contrast."""
    from recollect.figures.claim_rows import marked, numbers, of_several

    lines = [f"| | claim | {' | '.join(COLUMNS)} |", f"|---|---{'|---' * len(COLUMNS)}|"]
    for claim in found:
        said = f"{claim['paper']}: {claim['statement']}" + (f" ({claim['source']})" if claim["source"] else "")
        first = [marked(claim["verdict"]), said + of_several(claim)]
        for contrast in claim["contrasts"]:
            mark = f"{MARKS[contrast['verdict']]} " if len(claim["contrasts"]) > 1 else ""
            lines.append(f"| {' | '.join([*first, mark + contrast['says'], *numbers(contrast)])} |")
            first = ["", ""]
    return "\n".join(lines)


def text(scale: str, figures: Sequence[str], found: Sequence[dict[str, Any]]) -> str:
    """The same for a terminal; and which claims about the figures are judged at other scales only."""
    from recollect.figures.claim_rows import counted, marked, numbers, of_several

    rows = [COLUMNS, *((one["says"], *numbers(one)) for claim in found for one in claim["contrasts"])]
    head, *aligned = columns(rows)
    lines = [f"{'':{INDENT}}{head}" if found else f"no claim about these figures is judged at scale {scale}"]
    contrasts = iter(aligned)
    for claim in found:
        named = "; ".join(filter(None, (claim["source"], claim["name"])))
        said = f"{marked(claim['verdict'])}: {claim['paper']}, {claim['statement']} ({named}){of_several(claim)}"
        lines += ["", *textwrap.wrap(said, LONGEST_LINE, subsequent_indent="  ")]
        for one in claim["contrasts"]:
            mark = MARKS[one["verdict"]] if len(claim["contrasts"]) > 1 else ""
            lines.append(f"{mark:>{INDENT - 2}}  {next(contrasts)}")
    lines += ["", counted(found)] if found else []
    elsewhere = judged_elsewhere(scale, tuple(figures))
    if elsewhere:
        cure = f"`{scale}: {{}}` below `scales` of its file would say so, where its figure draws what it compares"
        lines.append(f"not judged at scale {scale} ({cure}):")
        lines += [f"  {config_path('claims', name)}: judged at {', '.join(at)}" for name, at in elsewhere.items()]
    return "\n".join(lines)


STAGE = Stage(
    name="claims",
    over=("scale",),
    reads=claim_inputs,
    writes={"json": paths.claims},
    settings=provenance.claims_text,
    modules=lambda scale, *figures: ["recollect.evaluation.contrasts"],
    asks=Resources((2000, 2000), (30, 30)),
    local=True,
    run=claims,
    rule_words="--write",
)
