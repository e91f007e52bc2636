"""figure: scores (or traces, or speeds) of a grid of runs -> `results/{scale}/figures/{figure}.pdf`, `.png`, `.csv`, `.json`."""

from __future__ import annotations

from pathlib import Path

from recollect.artifacts.sealed import sha256_of
from recollect.figures import reference
from recollect.figures.spec import FigureSpec, figure_spec, panel_names
from recollect.figures.writing import render
from recollect.settings.resolve import environment_mapping, figure_settings, method_mapping
from recollect.stages import paths, provenance
from recollect.stages.inputs import figure_inputs

LOCK = Path("envs") / "locks" / "base.txt"  # of the repository that the workflow runs in


def spec_of(scale: str, figure: str) -> FigureSpec:
    """The figure as the drawing code wants it: settings, titles and published values."""
    settings = figure_settings(scale, figure)
    environments, methods = settings.environments, settings.methods
    panels = panel_names(environments, settings.options)
    titles = {method: method_mapping(scale, environments[0], method).get("title") for method in methods}
    environment_titles = {env: environment_mapping(scale, env).get("title") for env in environments}
    values = {
        **settings.model_dump(),
        "scale": scale,
        "references": reference.resolve(settings.references, panels=panels, methods=methods),
        "labels": {method: title for method, title in titles.items() if title},
        "environment_labels": {env: title for env, title in environment_titles.items() if title},
        "random_models": any(
            provenance.uses_random_model(scale, env, method) for env in environments for method in methods
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
