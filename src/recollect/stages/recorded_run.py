"""record: the results of a scale -> `docs/recorded/{scale}/*.csv`, and from these the tables of README and docs.

What pages say of results is written here and nowhere else: verdicts, numbers, and what they were made with. Pages and pictures
are renewed where a page has marks of that scale (`<!-- recorded demo claims: begin -->`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from recollect.artifacts.sealed import read_json, write_bytes
from recollect.figures import captions
from recollect.figures.spec import AGGREGATION, LINE
from recollect.settings.claims import claims_of
from recollect.settings.errors import UserError
from recollect.settings.resolve import figure_reads, names, scale_settings
from recollect.stages import paths, provenance, recorded_tables, records
from recollect.stages.between_marks import put_between
from recollect.stages.circumstances import commit, made_with
from recollect.stages.claims import verdicts
from recollect.stages.fetch import FETCHED
from recollect.stages.figure import judged_claims, spec_of
from recollect.stages.inputs import figure_inputs
from recollect.stages.of_today import in_words
from recollect.stages.plan import plan
from recollect.stages.recorded_tables import CLAIMS, FOLDER, NUMBERS, RUN, RUN_AT, csv_text
from recollect.stages.records import Record
from recollect.stages.selection import default_selection
from recollect.stages.table import STAGES

MOST_POINTS = 6  # of a curve; of longer ones its beginning, its quarters and its end
USUAL_BOUNDS = "bounds of the 95 %"  # how the meaning of an interval begins; of others a table says what they are
PICTURES = Path("docs/figures")
SECONDS = "seconds of all jobs"
Row = dict[str, object]


def record(scale: str, figures: Sequence[str]) -> str:
    """Write down what the results of some figures say, and renew the pages that show it. Gives what was written, as text.

    What was recorded of other figures stays, with what those were made with.

    Raises:
        UserError: a figure or a run is not there or damaged, or a figure is not of these runs; or a page has no place for its
            tables.
    """
    _check(scale, figures)
    runs = [row for seeds, some in _by_seeds(scale, figures).items() for row in _run(scale, some, seeds)]
    rows = {RUN: runs, CLAIMS: list(_claims(scale, figures)), NUMBERS: []}
    for figure in figures:
        if figure_reads(scale, figure) == "scores":
            rows[NUMBERS] += _numbers(scale, figure)
    folder = FOLDER / scale
    for file, kept in _kept(folder, figures).items():
        rows[file] = [*kept, *rows[file]]
    _in_order(scale, rows)
    contents = {folder / f"{file}.csv": csv_text(file, found).encode() for file, found in rows.items()}
    for path, content in contents.items():
        write_bytes(path, content)
    pages = renewed(folder)
    for page, text in pages.items():
        write_bytes(page, text.encode())
    pictures = PICTURES if scale == default_selection().scale else PICTURES / scale
    shown = [path for figure in figures if (path := pictures / f"{figure}.png").is_file()] if pages else []
    for path in shown:
        write_bytes(path, paths.figure(scale, path.stem, ".png").read_bytes())
    return "\n".join(str(path) for path in (*contents, *pages, *shown))


def _check(scale: str, figures: Sequence[str]) -> None:
    """Figures are of the very scores that are there, and show the claims and verdicts that are recorded with them."""
    read = [paths.figure(scale, figure, f".{suffix}") for figure in figures for suffix in paths.FIGURE_FILES]
    read += [path for figure in figures for path in figure_inputs(scale, figure).values()]
    hashes = provenance.describe("", "", read)["inputs"]
    for figure in figures:
        path = paths.figure(scale, figure, ".json")
        about = read_json(path, kind="figure.json")
        do = f"draw it anew with `snakemake {paths.figure(scale, figure, '.pdf')}`"
        said = captions.claims_words(judged_claims(scale, figure))
        if not (f"{said}." in about["caption"] if said else captions.CLAIMS not in about["caption"]):
            raise UserError("this shows other claims or verdicts than those of today", where=path, do=do)
        for item in about["inputs"]:
            if hashes.get(item["path"]) != item["sha256"]:
                raise UserError(f"this was drawn from another {item['path']} than the one there", where=path, do=do)


def renewed(folder: Path) -> dict[Path, str]:
    """The pages that show a recorded run, with its tables as they must be.

    Raises:
        UserError: a page has marks for one of its tables only.
    """
    found: dict[Path, str] = {}
    for (name, marks), content in recorded_tables.tables(folder).items():
        page = Path(name)
        text = found.get(page) or (page.read_text(encoding="utf-8") if page.is_file() else "")
        if f"<!-- recorded {folder.name} " in text:
            found[page] = put_between(text, marks, content, page)
    return found


def _kept(folder: Path, figures: Sequence[str]) -> dict[str, list[Row]]:
    """What was recorded earlier of other figures that there are."""
    others = set(names("figures")) - set(figures)
    kept: dict[str, list[Row]] = {}
    for file, rows in recorded_tables.read(folder).items() if folder.is_dir() else ():
        kept[file] = []
        column = "figures" if file == RUN else "figure"
        if rows and column not in rows[0]:
            do = f"delete {folder} and record its figures again; an older version wrote it"
            raise UserError(f"there is no column '{column}'", where=folder / f"{file}.csv", do=do)
        for row in rows:
            shown = row[column].split()
            staying = [figure for figure in shown if figure in others]
            is_of_all = file == RUN and row["what"] == SECONDS
            if staying and (staying == shown or not is_of_all):
                kept[file].append({**row, "figures": " ".join(staying)} if file == RUN else dict(row))
    return kept


def _in_order(scale: str, rows: dict[str, list[Row]]) -> None:
    """Numbers in the order of the sets of figures, claims in that of their table."""
    figures = list(dict.fromkeys([*itertools.chain(*default_selection().sets.values()), *names("figures")]))
    rows[NUMBERS].sort(key=lambda row: figures.index(str(row["figure"])))
    recorded = {figure for row in rows[RUN] for figure in str(row["figures"]).split()}
    claims = [claim.name for claim in claims_of(scale, tuple(recorded))]
    rows[CLAIMS] = [row for row in rows[CLAIMS] if row["claim"] in claims]
    rows[CLAIMS].sort(key=lambda row: claims.index(str(row["claim"])))


def _by_seeds(scale: str, figures: Iterable[str]) -> dict[tuple[int, ...], list[str]]:
    """Seeds, ascending -> the figures that are of these."""
    together: dict[tuple[int, ...], list[str]] = {}
    for figure in figures:
        about = read_json(paths.figure(scale, figure, ".json"), kind="figure.json")
        together.setdefault(tuple(sorted(about["seeds"])), []).append(figure)
    return together


def _run(scale: str, figures: Sequence[str], seeds: Sequence[int]) -> Iterator[Row]:
    """What some figures of the same seeds were made with, as the records of their jobs say.

    Where no record says it, a processor and versions are those of this machine.
    """
    found = _records(scale, figures)
    took = [one for one in found if one is not None]
    runs = [one for one in took if one.job.stage not in ("figure", "page")]  # those may be drawn anew at any time
    files = [path for figure in figures for path in figure_inputs(scale, figure).values()]
    here = made_with("cpu")
    known = {
        "scale": scale,
        "commit": commit() or "unknown",
        RUN_AT: _all(runs, "commit"),
        "seeds": in_words(seeds),
        "device": " and ".join(provenance.devices_behind(files)) or "unknown",
        "gpu": _all(runs, "gpu"),
        **{what: _all(runs, what) or here[what] for what in ("processor", "python", "torch")},
    }
    # Of a job that went on from a checkpoint, the time before it is not known.
    if len(took) == len(found) and not any(one.resumed for one in took):
        known[SECONDS] = f"{sum(one.seconds for one in took):.0f}"
    for what, value in known.items():
        if value:
            yield {"figures": " ".join(figures), "what": what, "value": value}


def _all(runs: Iterable[Record], what: str) -> str:
    """All that jobs say of one thing that they were made with."""
    return " and ".join(sorted({one.made_with[what] for one in runs if one.made_with and what in one.made_with}))


def _records(scale: str, figures: Iterable[str]) -> list[Record | None]:
    """What each job behind some figures says of itself; None: its record is not here. What is fetched has none."""
    steps = [
        step for job in plan(scale, figures).needs for part, step in STAGES[job.stage].steps(job) if part not in FETCHED
    ]
    return [records.read(records.place(step)) for step in steps]


def _claims(scale: str, figures: Sequence[str]) -> Iterator[Row]:
    """A row for each contrast of each claim that the figures show, judged by the scores that are there."""
    for claim in verdicts(scale, figures):
        known = {
            name: claim[name] for name in ("paper", "statement", "source", "differs", "figure", "verdict", "needed")
        }
        known |= {"claim": claim["name"], "headline": "yes" if claim["headline"] else ""}
        if scale_settings(scale).published == "paper":
            known["published"] = ", ".join(f"{one['says']} {one['value']:g}" for one in claim["published"])
        for contrast in claim["contrasts"]:
            numbers = {name: contrast.get(name) for name in ("value", "low", "high", "seeds", "tasks")}
            own = {name: contrast[name] for name in ("says", "wanted", "margin", "why")}
            yield {**known, **own, **numbers, "contrast": contrast["verdict"]}


def _numbers(scale: str, figure: str) -> Iterator[Row]:
    """Some points of each line that a figure draws; where it sums lines up in a panel, those of that panel alone."""
    spec = spec_of(scale, figure)
    about = read_json(paths.figure(scale, figure, ".json"), kind="figure.json")
    table = pd.read_csv(paths.figure(scale, figure, ".csv"))
    table["panel"] = table["panel"].fillna("")  # the only one may have no name
    if table["panel"].str.startswith(AGGREGATION).any():
        table = table[table["panel"].str.startswith(AGGREGATION)]
    said = _axis(about["axes"]["y"]) + (f", by {_axis(about['axes']['x'])}" if table["x"].nunique() > 1 else "")
    lines = table[table["method"].str.startswith(LINE)].drop_duplicates(["method", "y"])
    for name, value in zip(lines["method"], lines["y"], strict=True):
        said += f"; {name.removeprefix(LINE)} {value:.4g}"
    bounds = _axis(about["axes"]["low, high"])
    if not bounds.startswith(USUAL_BOUNDS) and captions.measured(table)["low"].notna().any():
        said += f"; bounds: {bounds}"
    known: Row = {"figure": figure, "title": spec.title or figure, "of": said}
    for (panel, method), points in captions.measured(table).groupby(["panel", "method"], sort=False):
        env, *more = str(panel).split("/")
        title = ", ".join([spec.environment_label(env) if env in spec.environments else env, *more])
        own: Row = {**known, "panel": title, "method": spec.label(str(method))}
        for point in _chosen(points.sort_values("x")):
            numbers = {name: None if point[name] != point[name] else point[name] for name in ("x", "y", "low", "high")}
            yield {**own, **numbers, "seeds": int(point["seeds"]), "tasks": int(point["tasks"])}


def _chosen(points: pd.DataFrame) -> Sequence[Mapping[Any, Any]]:
    if len(points) <= MOST_POINTS:
        return points.to_dict("records")
    last = points["x"].iloc[-1]
    places = [(points["x"] - last * quarter / 4).abs().to_numpy().argmin() for quarter in range(5)]
    return points.iloc[list(dict.fromkeys(places))].to_dict("records")


def _axis(meaning: str) -> str:
    """What an axis is, without what only the CSV's reader asks."""
    meaning = meaning.replace(f" (in '{AGGREGATION}' of each run's final value)", " of each run's final value")
    return meaning.removeprefix(f"in '{AGGREGATION}': ").split(";")[0].replace("_", " ")
