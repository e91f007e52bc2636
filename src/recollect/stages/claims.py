"""claims: the scores of runs -> `results/{scale}/claims.json`, whether each published claim holds at a scale, by a fixed rule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from recollect.settings.claims import ArmSettings, ClaimSettings, ContrastSettings, claims_of, sides
from recollect.settings.errors import UserError
from recollect.settings.resolve import figure_settings
from recollect.stages import paths, provenance
from recollect.stages.stage import Job, Resources, Stage

if TYPE_CHECKING:
    import pandas as pd

    from recollect.evaluation.contrasts import Floats

MARKS = {"holds": "✓", "contradicted": "✗", "undecided": "?", "not run": "–"}
SEED = 0  # of the resamples, so that a verdict is the same each time


def claims(
    scale: str,
    figures: Sequence[str],
    *,
    strict: Annotated[bool, "Fail unless every claim holds."] = False,
) -> str:
    """Judge the claims that figures show, write them down, and give them as a table of Markdown.

    Raises:
        UserError: with `strict`, a claim does not hold.
    """
    from recollect.artifacts.sealed import write_json

    chosen = claims_of(scale, tuple(figures))
    there = {name: path for name, path in claim_inputs(scale, *figures).items() if path.is_file()}
    code = STAGE.code_text(Job("claims", scale))
    known = provenance.describe(provenance.claims_text(scale, *figures), code, there.values())
    found = [judge(scale, claim) for claim in chosen]
    write_json(paths.claims(scale), {"scale": scale, "claims": found}, kind="claims", provenance=known)
    text = table(found)
    failing = [claim["name"] for claim in found if claim["verdict"] != "holds"]
    if strict and failing:
        what = f"{len(failing)} of {len(found)} claims do not hold: {', '.join(failing)}"
        raise UserError(f"{what}\n{text}", where=paths.claims(scale), do="look at their figures")
    return text


def judge(scale: str, claim: ClaimSettings) -> dict[str, Any]:
    """A claim with the effect, interval and verdict of each contrast, as JSON has it."""
    from recollect.evaluation.contrasts import together

    contrasts = [_judged(scale, claim, contrast) for contrast in claim.contrasts]
    verdict = together([contrast["verdict"] for contrast in contrasts])
    said = claim.model_dump(mode="json", exclude={"contrasts"})
    return {**said, "verdict": verdict, "contrasts": contrasts}


def _judged(scale: str, claim: ClaimSettings, contrast: ContrastSettings) -> dict[str, Any]:
    import numpy as np

    from recollect.evaluation.contrasts import judged, paired_effect

    seeds = figure_settings(scale, claim.figure).seeds
    said = contrast.model_dump(mode="json")
    lacking = [path for path in _files(scale, claim, contrast) if not path.is_file()]
    if lacking:
        return {**said, "verdict": "not run", "why": f"{len(lacking)} runs are missing, {lacking[0]} for one"}
    this_SN = _scores(scale, contrast.this, contrast.this, contrast.metric, seeds)
    if isinstance(contrast.that, ArmSettings):
        that_SN = _scores(scale, contrast.that, contrast.this, contrast.metric, seeds)
        if list(this_SN) != list(that_SN):  # other tasks, e.g. of another length: only their means can be paired
            this_SN, that_SN = this_SN.mean(axis=1).to_frame(), that_SN.mean(axis=1).to_frame()
        difference_SN: Floats = this_SN.to_numpy(float) - that_SN.to_numpy(float)
    else:
        difference_SN = this_SN.to_numpy(float) - contrast.that
    effect = paired_effect(difference_SN, np.random.default_rng(SEED))
    verdict, why = judged(effect, contrast.wanted, contrast.margin)
    numbers = {name: None if value != value else value for name, value in effect._asdict().items()}  # NaN is no JSON
    return {**said, **numbers, "verdict": verdict, "why": why}


def _scores(scale: str, arm: ArmSettings, default: ArmSettings, metric: str, seeds: Sequence[int]) -> pd.DataFrame:
    """Scores of one side, seeds by tasks, each the mean over the chosen episodes of the final evaluation."""
    import pandas as pd

    from recollect.artifacts.sealed import read_table

    env, method = arm.env or default.env, arm.method or default.method
    split = arm.split or default.split or "eval"
    first, last = arm.episodes or default.episodes or (0.0, 1.0)
    rows = {}
    for seed in seeds:
        path = paths.scores(scale, env, method, seed)
        table = read_table(path, kind="scores")
        table = table[(table["split"] == split) & (table["metric"] == metric)]
        if table.empty:
            do = "correct the claim's `metric` or `split`"
            raise UserError(f"no {metric} of the split {split}", where=path, do=do)
        table = table[table["step"] == table["step"].max()]
        count = int(table["episode"].max()) + 1
        wanted = table["episode"].between(round(first * count), round(last * count) - 1)
        rows[seed] = table[wanted].groupby("task")["value"].mean()
    return pd.DataFrame(rows).T


def _files(scale: str, claim: ClaimSettings, contrast: ContrastSettings) -> list[Path]:
    seeds = figure_settings(scale, claim.figure).seeds
    return [paths.scores(scale, env, method, seed) for env, method in sides(contrast) for seed in seeds]


def claim_inputs(scale: str, *figures: str) -> dict[str, Path]:
    """The scores that the claims of some figures are judged by, under their paths."""
    found: dict[str, Path] = {}
    for claim in claims_of(scale, figures):
        for contrast in claim.contrasts:
            found |= {path.as_posix(): path for path in _files(scale, claim, contrast)}
    return found


def table(found: Sequence[dict[str, Any]]) -> str:
    """The claims as a table of Markdown, a row for each contrast."""
    lines = [
        "| | claim | contrast | difference | 95 % interval | wanted | seeds × tasks |",
        "|---|---|---|---|---|---|---|",
    ]
    for claim in found:
        said = f"{claim['paper']}: {claim['statement']} ({claim['source']})"
        for contrast in claim["contrasts"]:
            mark = f"{MARKS[contrast['verdict']]} {contrast['verdict']}"
            cells = [mark, said, contrast["says"], *_numbers(contrast)]
            lines.append(f"| {' | '.join(cells)} |")
            said = ""
    return "\n".join(lines)


def _numbers(contrast: dict[str, Any]) -> list[str]:
    wanted = {"above": ">", "below": "< −", "equal": "within ±"}[contrast["wanted"]] + f" {contrast['margin']:g}"
    if "value" not in contrast:
        return ["", "", wanted, contrast["why"]]
    low, high = contrast["low"], contrast["high"]
    interval = "" if low is None else f"{low:.3g} to {high:.3g}"
    return [f"{contrast['value']:.3g}", interval, wanted, f"{contrast['seeds']} × {contrast['tasks']}"]


STAGE = Stage(
    name="claims",
    over=("scale",),
    reads=claim_inputs,
    writes={"json": paths.claims},
    settings=provenance.claims_text,
    modules=lambda scale, *figures: ["recollect.evaluation.contrasts", __name__],
    asks=Resources((2000, 2000), (30, 30)),
    local=True,
    run=claims,
)
