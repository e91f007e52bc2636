"""claims: the scores of runs -> `results/{scale}/claims.json`, whether each published claim holds at a scale, by a fixed rule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from recollect.settings.claims import Arm, ClaimSettings, ContrastSettings, claims_of
from recollect.settings.errors import UserError
from recollect.settings.resolve import figure_settings
from recollect.stages import paths, provenance
from recollect.stages.stage import Job, Resources, Stage

if TYPE_CHECKING:
    import pandas as pd

Tables = dict[Path, "pd.DataFrame"]
"""Score files, by their paths"""

SEED = 0  # of the resamples, so that a verdict is the same each time


def claims(
    scale: str,
    figures: Sequence[str],
    *,
    strict: Annotated[bool, "Fail unless every claim holds."] = False,
) -> str:
    """Judge the claims that figures show, write them down, and give them as a table of Markdown.

    Raises:
        UserError: as `verdicts`; or with `strict`, a claim does not hold.
    """
    from recollect.artifacts.sealed import write_json

    there = {name: path for name, path in claim_inputs(scale, *figures).items() if path.is_file()}
    code = STAGE.code_text(Job("claims", scale))
    known = provenance.describe(provenance.claims_text(scale, *figures), code, there.values())
    found = verdicts(scale, figures)
    write_json(paths.claims(scale), {"scale": scale, "claims": found}, kind="claims", provenance=known)
    return told(found, strict=strict)


def verdicts(scale: str, figures: Sequence[str]) -> list[dict[str, Any]]:
    """The claims that figures show, each as `judge` gives it.

    Raises:
        UserError: there is no such figure, or its scores are not those that a claim names.
    """
    for figure in figures:
        figure_settings(scale, figure)  # known
    read: Tables = {}
    return [judge(scale, claim, read) for claim in claims_of(scale, tuple(figures))]


def told(found: Sequence[dict[str, Any]], *, strict: bool) -> str:
    """Judged claims as a table of Markdown.

    Raises:
        UserError: with `strict`, one does not hold, or was not run.
    """
    text = table(found)
    open_ = [claim["name"] for claim in found if claim["verdict"] == "not run"]
    failing = [claim["name"] for claim in found if claim["verdict"] not in ("holds", "not run")]
    if strict and (failing or open_):
        what = [f"{len(failing)} of {len(found)} claims do not hold: {', '.join(failing)}"] if failing else []
        what += [f"of {len(open_)} of {len(found)} claims runs are missing: {', '.join(open_)}"] if open_ else []
        do = "look at their figures" if failing else "make the runs: `snakemake claims`"
        raise UserError("; ".join(what) + f"\n{text}", where="claims", do=do)
    return text


def judge(scale: str, claim: ClaimSettings, read: Tables) -> dict[str, Any]:
    """A claim with the effect, interval and verdict of each contrast, as JSON has it.

    Args:
        read: score files that were read already; others are added.
    """
    from recollect.evaluation.contrasts import together

    contrasts = [_judged(scale, claim, contrast, read) for contrast in claim.contrasts]
    verdict = together([contrast["verdict"] for contrast in contrasts], claim.needed)
    said = claim.model_dump(mode="json", exclude={"contrasts"})
    return {**said, "verdict": verdict, "contrasts": contrasts}


def _judged(scale: str, claim: ClaimSettings, contrast: ContrastSettings, read: Tables) -> dict[str, Any]:
    import numpy as np

    from recollect.evaluation.contrasts import differences, judged, paired_effect

    said = contrast.model_dump(mode="json")
    lacking = [path for arm in contrast.arms for path in _files(scale, claim, arm) if not path.is_file()]
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
    """Scores of one side, seeds by tasks."""
    import pandas as pd

    from recollect.artifacts.sealed import read_table
    from recollect.common.curve_end import WINDOW
    from recollect.evaluation.contrasts import task_means

    rows = {}
    drawn = figure_settings(scale, claim.figure)
    window = claim.window or drawn.options.get("window", WINDOW)
    for seed, path in zip(drawn.seeds, _files(scale, claim, arm), strict=True):
        if path not in read:
            read[path] = read_table(path, kind="scores")
        try:
            rows[seed] = task_means(read[path], arm.split, metric, arm.episodes, window)
        except ValueError as error:
            do = f"correct metric, split or episodes of the claim '{claim.name}'"
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
    from recollect.figures.claim_rows import marked, numbers

    lines = [
        "| | claim | contrast | difference | 95 % interval | wanted | seeds × tasks |",
        "|---|---|---|---|---|---|---|",
    ]
    for claim in found:
        said = f"{claim['paper']}: {claim['statement']}" + (f" ({claim['source']})" if claim["source"] else "")
        for contrast in claim["contrasts"]:
            cells = [marked(contrast["verdict"]), said, contrast["says"], *numbers(contrast)]
            lines.append(f"| {' | '.join(cells)} |")
            said = ""
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
