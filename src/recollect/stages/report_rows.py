"""What the report says of figures and of what their runs left: files, final scores, times, and what is not of today."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from recollect.artifacts.sealed import manifest_path, read_json, read_table, sha256_of, verify
from recollect.evaluation.score_table import final_step
from recollect.figures.report import CURRENT, ReportFigure, ReportRun, report_page
from recollect.settings.claims import claims_of
from recollect.settings.errors import UserError
from recollect.settings.resolve import (
    environment_mapping,
    figure_settings,
    method_mapping,
    played_method,
    scale_settings,
    titles,
)
from recollect.settings.still import held_still
from recollect.stages import paths, provenance, records
from recollect.stages.circumstances import commit
from recollect.stages.claims import not_run
from recollect.stages.figure import LOCK
from recollect.stages.final_scores import final_scores
from recollect.stages.identity import how_to_make
from recollect.stages.inputs import Run, figure_runs
from recollect.stages.of_today import differences
from recollect.stages.paths import Place
from recollect.stages.selection import snakemake_for
from recollect.stages.stage import Job

FILES = {".pdf": "PDF", ".png": "PNG", ".csv": "CSV", ".json": "JSON"}


@held_still()
def page(scale: str, figures: Sequence[str], code: str) -> str:
    """The report of some figures, as HTML. The configuration is read once for all runs.

    Args:
        code: fingerprint of the code that writes it.
    """
    drawn_in: dict[Run, list[str]] = {}
    for name in figures:
        for run in figure_runs(scale, name):
            drawn_in.setdefault(run, []).append(name)
    return report_page(
        scale,
        [_figure(scale, name) for name in figures],
        [_run(scale, *run, names) for run, names in drawn_in.items()],
        _facts(code),
        _claims(scale, figures),
    )


def _claims(scale: str, figures: Sequence[str]) -> list[dict[str, Any]]:
    """The claims that some figures show, as they were judged; one that was judged of other figures only says so."""
    wanted = claims_of(scale, tuple(figures))
    if not wanted:
        return []
    path = paths.claims(scale)
    judged = {claim["name"]: claim for claim in read_json(path, kind="claims")["claims"]}
    why = f"not in {path.name}: `{snakemake_for(path, scale, figures)}` judges it"
    shown = [judged.get(claim.name) or not_run(claim, why) for claim in wanted]
    if (scale_settings(scale).published or scale) != "paper":  # of other tasks than the paper's
        shown = [{**claim, "published": []} for claim in shown]
    return shown


def _facts(code: str) -> dict[str, str]:
    facts = {"Commit": commit(), "Recollect": version("recollect"), "Code of this page": code}
    if LOCK.is_file():
        facts["Packages"] = f"sha256 {sha256_of(LOCK)} of {LOCK.as_posix()}"
    return {name: value for name, value in facts.items() if value}


def _address(scale: str, path: Path) -> str:
    return quote(Path(os.path.relpath(path, paths.report(scale).parent)).as_posix())


def _method_title(scale: str, env: str, method: str) -> str:
    return str(method_mapping(scale, env, method).get("title") or method)


def _environment_title(scale: str, env: str) -> str:
    return str(environment_mapping(scale, env).get("title") or env.replace("_", " "))


def _figure(scale: str, name: str) -> ReportFigure:
    runs = figure_runs(scale, name)
    chosen = figure_settings(scale, name)
    called = titles(scale, chosen.environments[0], chosen.methods)
    pages: dict[str, str] = {}
    for env, method, seed in runs:
        page = paths.page(scale, env, method, seed)
        if page.is_file():
            title = f"{called[method]} on {_environment_title(scale, env)}, seed {seed}"
            pages[title] = _address(scale, page)
    about = read_json(paths.figure(scale, name, ".json"), kind="figure.json")
    _check_drawn_together(scale, name, about)
    return ReportFigure(
        about=about,
        category=chosen.category or "Figures",
        picture=paths.figure(scale, name, ".png").read_bytes(),
        files={words: _address(scale, paths.figure(scale, name, suffix)) for suffix, words in FILES.items()},
        pages=pages,
        runs=len(runs),
        config=provenance.digest(about["provenance"]["settings"]) if "settings" in about["provenance"] else None,
    )


def _check_drawn_together(scale: str, name: str, about: dict[str, Any]) -> None:
    """Raise a UserError where a file is not the one that the figure's JSON was written with: a drawing may have been stopped."""
    for suffix in FILES:
        path = paths.figure(scale, name, suffix)
        said = about.get("outputs", {}).get(suffix.removeprefix("."))
        if suffix != ".json" and said != sha256_of(path):
            what = f"this is not the file that {name}.json was written with: a drawing was stopped, or files were mixed"
            raise UserError(what, where=path, do=f"draw it again: `recollect figure --scale {scale} --figure {name}`")


#: What a row of the report is about, and where it lies: the first that is there.
_RESULTS: dict[str, Place] = {"evaluate": paths.scores, "inspect": paths.trace, "measure": paths.speed}


def _run(scale: str, env: str, method: str, seed: int, figures: Sequence[str]) -> ReportRun:
    of = (scale, env, method, str(seed))
    known: dict[str, Any] = {
        "environment": _environment_title(scale, env),
        "env": env,
        "method": _method_title(scale, env, method),
        "name": method,
        "seed": seed,
        "figures": figures,
    }
    rule = next((rule for rule, place in _RESULTS.items() if place(*of).is_file()), None)
    if rule is None:
        return ReportRun(**known, state="not here")
    path = _RESULTS[rule](*of)
    made = verify(path, input_from=how_to_make(path))["provenance"]
    differs = differences(made, Job(rule, *of))
    devices = [made.get("device")]

    played = played_method(scale, env, method)
    trained = paths.train_table(scale, env, played, seed)
    if trained.is_file() and rule != "measure":
        is_online = method_mapping(scale, env, method).get("data") == "online"
        known |= _progress(read_table(trained, kind="train"), is_online)
        learned = verify(trained)["provenance"]
        differs |= differences(learned, Job("train", scale, env, played, str(seed)))
        devices.insert(0, learned.get("device"))
    if rule != "inspect":
        known["scores"] = final_scores(read_table(path, input_from=how_to_make(path)), scale, env, figures)

    jobs = [rule] if played != method or rule == "measure" else ["train", rule]
    took = [records.read(records.place(Job(job, *of))) for job in jobs]
    whole = [record for record in took if record is not None]
    if len(whole) == len(jobs):
        known["seconds"] = sum(record.seconds for record in whole)
        known["resumed"] = any(record.resumed for record in whole)

    files: dict[str, str] = {}
    folder = paths.run_folder(*of)
    if folder.is_dir():
        files["folder"] = f"{_address(scale, folder)}/"
    page = paths.page(*of)
    if page.is_file():
        files["inspect"] = _address(scale, page)
    return ReportRun(
        **known,
        state=f"other {' and '.join(sorted(differs, reverse=True))}" if differs else CURRENT,
        device=" / ".join(dict.fromkeys(str(device) for device in devices if device)) or None,
        config=provenance.digest(made["settings"]) if "settings" in made else None,
        code=made.get("code"),
        manifest=_address(scale, manifest_path(path)),
        files=files,
    )


def _progress(table: pd.DataFrame, is_online: bool) -> dict[str, int | None]:
    """How far a run learned: steps of the environment where it acts, and updates."""
    last = final_step(table)
    logged = table.loc[table["metric"] == "updates", "value"]
    if len(logged):
        updates: int | None = int(logged.max())
    else:
        updates = None if is_online else last
    return {"env_steps": last if is_online else None, "updates": updates}
