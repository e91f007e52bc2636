"""figure: scores (or traces, or speeds) of a grid of runs -> `results/{scale}/figures/{figure}.pdf`, `.png`, `.csv`, `.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recollect.artifacts.sealed import sha256_of
from recollect.figures import reference, spec
from recollect.figures.spec import FigureSpec, figure_spec
from recollect.figures.writing import render
from recollect.settings.resolve import environment_mapping, figure_settings, method_mapping
from recollect.stages import paths, provenance
from recollect.stages.inputs import figure_inputs

LOCK = Path("envs") / "locks" / "base.txt"  # of the repository that the workflow runs in


def spec_of(scale: str, figure: str) -> FigureSpec:
    """The figure as the drawing code wants it: settings, titles and published values."""
    chosen = figure_settings(scale, figure)
    values: dict[str, Any] = {
        "id": figure,
        "kind": chosen.kind,
        "title": chosen.title,
        "caption": chosen.caption,
        "scale": scale,
        "environments": chosen.environments,
        "methods": chosen.methods,
        "seeds": chosen.seeds,
        "options": chosen.options,
        "references": reference.resolve(
            chosen.references, panels=spec.panel_names(chosen.environments, chosen.options), methods=chosen.methods
        ),
        "labels": {
            m: title for m in chosen.methods if (title := method_mapping(scale, chosen.environments[0], m).get("title"))
        },
        "environment_labels": {
            e: title for e in chosen.environments if (title := environment_mapping(scale, e).get("title"))
        },
        "random_models": any(
            provenance.uses_random_model(scale, env, method) for env in chosen.environments for method in chosen.methods
        ),
    }
    return figure_spec(values)


def figure(scale: str, name: str) -> None:
    """Draw one figure from what its runs have."""
    drawn = spec_of(scale, name)
    files = figure_inputs(scale, name)
    known = provenance.describe(provenance.figure_text(scale, name), provenance.figure_code(scale, name), files)
    drawn_with = {"code_fingerprint": known["code"], "settings": known["settings"], "device": "cpu"}
    if LOCK.is_file():
        drawn_with["environment_lock"] = sha256_of(LOCK)
    render(drawn, files, paths.figure(scale, name), drawn_with)
