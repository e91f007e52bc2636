"""figure: scores of a grid of runs -> `results/{scale}/figures/{figure}.pdf`, `.png`, `.csv`, `.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recollect.artifacts.sealed import sha256_of
from recollect.figures import reference
from recollect.figures.spec import FigureSpec, figure_spec
from recollect.figures.writing import render
from recollect.settings.resolve import environment_mapping, figure_settings, language_model, method_mapping
from recollect.settings.schema import FigureSettings
from recollect.stages import paths, provenance

LOCK = Path("envs") / "locks" / "base.txt"  # of the repository that the workflow runs in


def runs_of(scale: str, figure: str) -> list[tuple[str, str, int]]:
    """(env, method, seed) of every run that a figure reads."""
    chosen = figure_settings(scale, figure)
    return [(e, m, s) for e in chosen.environments for m in chosen.methods for s in chosen.seeds]


def uses_random_models(scale: str, chosen: FigureSettings) -> bool:
    """Whether a random stand-in took the place of a pretrained model in any run of the figure."""
    for env in chosen.environments:
        for method in chosen.methods:
            kind, name, _ = provenance.embedder_of(scale, env, method)
            if kind == "lm" and language_model(name).source == "random":
                return True
    return False


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
        "references": reference.resolve(chosen.references, environments=chosen.environments, methods=chosen.methods),
        "labels": {
            m: title for m in chosen.methods if (title := method_mapping(scale, chosen.environments[0], m).get("title"))
        },
        "environment_labels": {
            e: title for e in chosen.environments if (title := environment_mapping(scale, e).get("title"))
        },
        "random_models": uses_random_models(scale, chosen),
    }
    return figure_spec(values)


def figure(scale: str, name: str) -> None:
    """Draw one figure from the scores of its runs."""
    spec = spec_of(scale, name)
    files: list[Path] = [paths.scores(scale, *run) for run in runs_of(scale, name)]
    known = provenance.describe(provenance.figure_text(scale, name), provenance.figure_code(scale, name), files)
    drawn_with = {"code_fingerprint": known["code"], "settings": known["settings"], "device": "cpu"}
    if LOCK.is_file():
        drawn_with["environment_lock"] = sha256_of(LOCK)
    render(spec, files, paths.figure(scale, name), drawn_with)
