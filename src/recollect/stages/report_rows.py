"""What the report says of figures and of what their runs left: files, final scores, times, and what is not of today."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from recollect.artifacts.run import TRAIN_SPLIT
from recollect.artifacts.sealed import read_json, read_table, sha256_of, verify
from recollect.figures import registry
from recollect.figures.report import CURRENT, ReportFigure, ReportRun, report_page
from recollect.figures.spec import one_or_more
from recollect.settings.resolve import environment_mapping, figure_settings, method_mapping, played_method
from recollect.stages import paths, provenance, records
from recollect.stages.figure import LOCK
from recollect.stages.inputs import Run, figure_runs
from recollect.stages.stage import Job

FILES = {".pdf": "PDF", ".png": "PNG", ".csv": "CSV", ".json": "JSON"}
LEARNING = "learning"  # split of evaluations on the way


def page(scale: str, figures: Sequence[str], code: str) -> str:
    """The report of some figures, as HTML.

    Args:
        code: fingerprint of the code that writes it.
    """
    _today.cache_clear()
    _drawn.cache_clear()
    drawn_in: dict[Run, list[str]] = {}
    for name in figures:
        for run in figure_runs(scale, name):
            drawn_in.setdefault(run, []).append(name)
    return report_page(
        scale,
        [_figure(scale, name) for name in figures],
        [_run(scale, *run, names) for run, names in drawn_in.items()],
        _facts(code),
    )


def _facts(code: str) -> dict[str, str]:
    facts = {"Commit": commit(), "Recollect": version("recollect"), "Code of this page": code}
    if LOCK.is_file():
        facts["Packages"] = f"sha256 {sha256_of(LOCK)} of {LOCK.as_posix()}"
    return {name: value for name, value in facts.items() if value}


def commit() -> str:
    """The commit of the working directory, and whether files differ from it; nothing where it is not one of git's."""
    try:
        said = [
            subprocess.run(["git", *words], capture_output=True, text=True, check=True, timeout=60).stdout.strip()
            for words in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        ]
    except (OSError, subprocess.SubprocessError):
        return ""
    return said[0] + (" with changes" if said[1] else "")


def _address(scale: str, path: Path) -> str:
    """Of a file, as a link of the report names it."""
    return quote(Path(os.path.relpath(path, paths.report(scale).parent)).as_posix())


def _method_title(scale: str, env: str, method: str) -> str:
    return str(method_mapping(scale, env, method).get("title") or method)


def _environment_title(scale: str, env: str) -> str:
    return str(environment_mapping(scale, env).get("title") or env.replace("_", " "))


def _figure(scale: str, name: str) -> ReportFigure:
    pages = {}
    for env, method, seed in (runs := figure_runs(scale, name)):
        if (page := paths.page(scale, env, method, seed)).is_file():
            title = f"{_method_title(scale, env, method)} on {_environment_title(scale, env)}, seed {seed}"
            pages[title] = _address(scale, page)
    about = read_json(paths.figure(scale, name, ".json"), kind="figure.json")
    return ReportFigure(
        about=about,
        category=figure_settings(scale, name).category or "Figures",
        picture=paths.figure(scale, name, ".png").read_bytes(),
        files={words: _address(scale, paths.figure(scale, name, suffix)) for suffix, words in FILES.items()},
        pages=pages,
        runs=len(runs),
        config=provenance.digest(about["provenance"]["settings"]) if "settings" in about["provenance"] else None,
    )


# -------------------------------------------------------------------------------------------------------------- runs

_Text = Callable[[str, str, str], str]
#: What a figure may read of a run: where it lies, the settings and the code that it is a function of.
_RESULTS: dict[str, tuple[Callable[..., Path], _Text]] = {
    "evaluate": (paths.scores, provenance.evaluate_code),
    "inspect": (paths.trace, provenance.inspect_code),
    "measure": (paths.speed, provenance.measure_code),
}


def _run(scale: str, env: str, method: str, seed: int, figures: Sequence[str]) -> ReportRun:
    of = (scale, env, method)
    played = (*of[:2], played_method(*of), seed)
    known: dict[str, Any] = {
        "environment": _environment_title(scale, env),
        "env": env,
        "method": _method_title(*of),
        "name": method,
        "seed": seed,
        "figures": figures,
    }
    rule = next((rule for rule, (where, _) in _RESULTS.items() if where(*of, seed).is_file()), None)
    if rule is None:
        return ReportRun(**known, state="not here")
    path, code = _RESULTS[rule][0](*of, seed), _RESULTS[rule][1]
    made = verify(path)["provenance"]
    differs = _differences(made, of, provenance.evaluate_settings, code)
    devices = [made.get("device")]
    trained = paths.train_table(*played)
    if trained.is_file() and rule != "measure":
        table = read_table(trained, kind="train")
        is_online = method_mapping(*of).get("data") == "online"
        logged = table.loc[table["metric"] == "updates", "value"]
        known["env_steps"] = int(table["step"].max()) if is_online else None
        known["updates"] = int(logged.max()) if len(logged) else None if is_online else int(table["step"].max())
        learned = verify(trained)["provenance"]
        differs |= _differences(learned, played[:3], provenance.train_settings, provenance.train_code)
        devices.insert(0, learned.get("device"))
    if rule != "inspect":
        known["scores"] = _final_scores(read_table(path), scale, env, figures)
    jobs = [rule] if played[2] != method or rule == "measure" else ["train", rule]
    took = [records.read(records.place(Job(job, *of, str(seed)))) for job in jobs]
    whole = [record for record in took if record is not None]
    if len(whole) == len(jobs):
        known["seconds"] = sum(record.seconds for record in whole)
        known["resumed"] = any(record.resumed for record in whole)
    folder, page = paths.run_folder(*of, seed), paths.page(*of, seed)
    files = {"folder": f"{_address(scale, folder)}/"} if folder.is_dir() else {}
    return ReportRun(
        **known,
        state=f"other {' and '.join(sorted(differs, reverse=True))}" if differs else CURRENT,
        device=" / ".join(dict.fromkeys(str(device) for device in devices if device)) or None,
        config=provenance.digest(made["settings"]) if "settings" in made else None,
        code=made.get("code"),
        manifest=_address(scale, paths.manifest(path)),
        files=files | ({"inspect": _address(scale, page)} if page.is_file() else {}),
    )


@cache
def _today(text: _Text, scale: str, env: str, method: str) -> str:
    """Of all seeds, asked once in each report."""
    return text(scale, env, method)


def _differences(made: dict[str, Any], of: tuple[str, str, str], settings: _Text, code: _Text) -> set[str]:
    """Which of `settings` and `code` a file was made of that today's are not."""
    return {name for name, text in (("settings", settings), ("code", code)) if made.get(name) != _today(text, *of)}


def _final_scores(table: pd.DataFrame, scale: str, env: str, figures: Sequence[str]) -> dict[str, float]:
    """What was scored last, in words -> mean over tasks and episodes; first what the figures draw."""
    # Statistics of training and evaluations on the way stand in the same table.
    ended = table[(table["split"] != LEARNING) & ((table["split"] != TRAIN_SPLIT) | (table["task"] >= 0))]
    rows = table[table["split"] == LEARNING] if ended.empty else ended
    drawn = [(metric, split) for name in figures for metric, split in _drawn(scale, name)]
    metrics = list(dict.fromkeys(metric for metric, _ in drawn if metric in set(rows["metric"])))
    metrics = metrics or sorted(set(rows["metric"]), key=lambda metric: (metric != "return", metric))
    there = list(dict.fromkeys(rows["split"]))
    splits = sorted(there, key=[*dict.fromkeys(split for _, split in drawn), *there].index)
    in_context = (environment_mapping(scale, env).get("evaluation") or {}).get("protocol", "in_context") == "in_context"
    found = {}
    for metric in metrics:
        for split in splits:
            here = rows[(rows["metric"] == metric) & (rows["split"] == split)]
            here = here[here["step"] == here["step"].max()]
            words = metric.replace("_", " ")
            if here.empty:
                continue
            if in_context and (last := here["episode"].max()) > 0:
                here, words = here[here["episode"] == last], f"{words}, episode {last + 1}"
            if len(splits) > 1:
                words += {"eval": ", unseen tasks", "train": ", training tasks"}.get(split, f", {split}")
            found[words] = float(here.groupby("task")["value"].mean().mean())
    return found


@cache
def _drawn(scale: str, figure: str) -> list[tuple[str, str]]:
    """(metric, split) of the scores that a figure draws."""
    chosen = figure_settings(scale, figure)
    fields = registry.kind(chosen.kind).Options.model_fields
    metric, split = (
        one_or_more(chosen.options.get(name) or (fields[name].default if name in fields else other))
        for name, other in (("metric", "return"), ("split", "eval"))
    )
    return [(m, s) for m in metric for s in split]
