"""figure: scores (or traces, or speeds) of a grid of runs -> `results/{scale}/figures/{figure}.pdf`, `.png`, `.csv`, `.json`."""

from __future__ import annotations

import json
import logging
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from recollect.settings.catalogue import module_of
from recollect.settings.claims import ClaimSettings, claims_of
from recollect.settings.errors import UserError
from recollect.settings.resolve import (
    canonical,
    environment_mapping,
    figure_reads,
    figure_settings,
    scale_settings,
    titles,
)
from recollect.settings.still import held_still
from recollect.stages import paths, provenance
from recollect.stages.claims import Tables, judge
from recollect.stages.inputs import figure_inputs
from recollect.stages.of_today import stale_words
from recollect.stages.settings import checked_figure
from recollect.stages.stage import Job, Resources, Stage
from recollect.stages.stand_ins import stand_ins

if TYPE_CHECKING:
    from recollect.figures.spec import FigureSpec, JudgedClaim, Reference
    from recollect.settings.schema import FigureSettings

log = logging.getLogger(__name__)
STALE_WHEN_DRAWN = "Stale when drawn: "  # begins the warning in a figure's JSON
LOCK = Path("envs") / "locks" / "base.txt"  # of the repository that the workflow runs in


def references(settings: FigureSettings) -> tuple[Reference, ...]:
    """The published values that a figure shows. Raises UserError: there are none of that name, or none of its panels."""
    from recollect.figures import reference
    from recollect.figures.spec import panel_names

    panels = panel_names(settings.environments, settings.options)
    return reference.resolve(settings.references, panels=panels, methods=settings.methods)


def spec_of(scale: str, figure: str) -> FigureSpec:
    """The figure as the drawing code wants it: settings, titles and published values."""
    from recollect.figures.spec import figure_spec

    checked_figure(scale, figure)
    settings = figure_settings(scale, figure)
    at_scale = scale_settings(scale)
    environments = settings.environments
    methods = settings.methods
    environment_labels = {env: environment_mapping(scale, env).get("title") for env in environments}
    random_models = False
    for env, method in product(environments, methods):
        random_models |= provenance.uses_random_model(scale, env, method)
    values = {
        **settings.model_dump(exclude={"pages"}),
        "scale": scale,
        "references": references(settings),
        "labels": titles(scale, environments[0], methods),
        "environment_labels": {env: title for env, title in environment_labels.items() if title},
        "published": at_scale.published,
        "wiring_test": at_scale.wiring_test,
        "random_models": random_models,
        "stand_ins": stand_ins(scale, figure),
        "remarks": provenance.remarks(scale, environments),
    }
    return figure_spec(values)


@held_still()
def figure(scale: str, name: str) -> None:
    """Draw a figure from scores, traces or speeds. Runs that are not of today are drawn, and the figure says so."""
    from recollect.artifacts.sealed import sha256_of
    from recollect.figures.writing import render

    drawn = spec_of(scale, name).model_copy(update={"claims": judged_claims(scale, name)})
    files = list(figure_inputs(scale, name).values())
    known = STAGE.provenance(Job("figure", scale, name))
    devices = " and ".join(provenance.devices_behind(files))
    drawn_with = {"code_fingerprint": known["code"], "settings": known["settings"], "device": devices}
    if LOCK.is_file():
        drawn_with["environment_lock"] = sha256_of(LOCK)
    stale = stale_words(files)
    render(drawn, files, paths.figure(scale, name), drawn_with, [STALE_WHEN_DRAWN + stale] if stale else ())
    if stale:
        do = f"`snakemake {paths.figure(scale, name, '.pdf')}` makes them anew"
        log.warning("warning: %s `recollect why --scale %s %s` says what changed; %s.", stale, scale, name, do)


def is_drawn(scale: str, name: str) -> bool:
    """Whether a figure's files are there, whole, and drawn of what is here today."""
    from recollect.artifacts.sealed import read_json, verify

    try:
        known = STAGE.provenance(Job("figure", scale, name))
        for suffix in paths.FIGURE_FILES:
            verify(paths.figure(scale, name, f".{suffix}"))
        about = read_json(paths.figure(scale, name, ".json"), kind="figure.json")
    except UserError:
        return False
    inputs = {item["path"]: item["sha256"] for item in about["inputs"]}
    drawn = (about["code_fingerprint"], about["provenance"].get("settings"), inputs)
    if drawn != (known["code"], known["settings"], known["inputs"]):
        return False
    warned = [note for note in about["warnings"] if note.startswith(STALE_WHEN_DRAWN)]
    return not warned or warned == [STALE_WHEN_DRAWN + stale_words(figure_inputs(scale, name).values())]


def shown_claims(scale: str, name: str) -> list[ClaimSettings]:
    """The published claims that stand below a figure: those that its own scores decide."""
    return claims_of(scale, (name,)) if figure_reads(scale, name) == "scores" else []


def judged_claims(scale: str, name: str) -> tuple[JudgedClaim, ...]:
    """The same with the verdicts of its scores; judged here, so that a figure waits for no run but its own."""
    from recollect.figures.spec import JudgedClaim

    read: Tables = {}
    judged = [judge(scale, claim, read) for claim in shown_claims(scale, name)]
    return tuple(JudgedClaim(short=claim["short"], verdict=claim["verdict"]) for claim in judged)


def settings_text(scale: str, name: str) -> str:
    """Everything in the configuration that a figure depends on besides what its runs do."""
    parts = json.loads(provenance.figure_text(scale, name))
    if shown_claims(scale, name):
        parts |= json.loads(provenance.claims_text(scale, name))
    return canonical({**parts, "stand_ins": stand_ins(scale, name)})


def modules(scale: str, name: str) -> list[str]:
    kind = module_of("figure", figure_settings(scale, name).kind, where=f"figure {name}: kind")
    judging = ["recollect.evaluation.contrasts"] if shown_claims(scale, name) else []
    return [kind, "recollect.figures.writing", "recollect.figures.reference", *judging]


STAGE = Stage(
    name="figure",
    over=("scale", "figure"),
    reads=figure_inputs,
    writes=paths.FIGURE_FILES,
    settings=settings_text,
    modules=modules,
    made=is_drawn,
    # Of 10 M rows of scores, as memory_rl_layers_active_tmaze has at scale paper, 3.7 GB.
    asks=Resources((2000, 5000), (30, 30)),
    local=True,
    run=figure,
)
