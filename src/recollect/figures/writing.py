"""Files of a figure: ``.pdf``, ``.png``, ``.csv`` of exactly what is drawn, and ``.json``, its manifest.

Everything is drawn in memory first, so that a figure that cannot be drawn leaves no file behind; each file is then
sealed on its own, the manifest last. PDF and PNG hold no date and no version, so that the same scores give the same
bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from recollect.artifacts.sealed import sealing, sha256_of, write_json
from recollect.figures import captions, registry
from recollect.figures.reading import read_scores, read_speeds
from recollect.figures.spec import LINE, PUBLISHED, TABLE_COLUMNS, Drawn, FigureSpec
from recollect.figures.style import paper_style
from recollect.figures.trace_reading import read_traces
from recollect.settings.catalogue import own_line
from recollect.settings.errors import UserError, shown

SUFFIXES = (".pdf", ".png", ".csv", ".json")


def render(
    figure: FigureSpec,
    files: Sequence[Path | str],
    out_stem: Path | str,
    provenance: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
) -> Drawn:
    """Draw a figure from what its runs have and write its four files (none where there is an error).

    Args:
        files: score tables of the runs, or what else the kind reads; recorded with their sha256.
        out_stem: path of the files without suffix.
        provenance: what the caller knows: ``code_fingerprint``, ``device``, and anything else, recorded as given.
        warnings: what else the caption and the manifest shall warn of.
    """
    kind = registry.kind(figure.kind)
    readers: dict[str, Callable[[Sequence[Path | str]], Any]]
    readers = {"scores": read_scores, "training": read_scores, "traces": read_traces, "speeds": read_speeds}
    drawn = _drawn(kind, readers[getattr(kind, "READS", "scores")](files), figure)
    pictures = {suffix: picture(drawn, figure, suffix) for suffix in (".pdf", ".png")}
    provenance = dict(provenance or {})
    manifest = manifest_of(figure, drawn, files, provenance, warnings)
    stem = Path(out_stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    contents = {**pictures, ".csv": csv_of(drawn.table)}
    for suffix, content in contents.items():
        with sealing(_path(stem, suffix), kind=f"figure{suffix}", provenance=provenance) as temporary:
            temporary.write_bytes(content)
        manifest["outputs"][suffix.removeprefix(".")] = sha256_of(_path(stem, suffix))
    write_json(_path(stem, ".json"), manifest, kind="figure.json", provenance=provenance)
    return drawn


def _drawn(kind: Any, content: Any, figure: FigureSpec) -> Drawn:
    """What a kind draws. Raises UserError: own code fails, or returns something else."""
    where = f"{shown(Path(kind.__file__))}: draw"
    try:
        drawn = kind.draw(content, figure)
    except UserError:
        raise
    except Exception as error:
        if (line := own_line(error)) is None:
            raise
        what = f"the kind of figure '{figure.kind}' fails with {type(error).__name__}: {error}"
        raise UserError(what, where=line, do="mend this line") from error
    if not isinstance(drawn, Drawn):
        what = f"the kind of figure '{figure.kind}' returned a {type(drawn).__name__}"
        raise UserError(what, where=where, do="return a `Drawn`, as `recollect.figures.finishing.finished` makes it")
    if set(drawn.table.columns) != set(TABLE_COLUMNS):
        what = f"the table of a figure has the columns {', '.join(map(str, drawn.table.columns))}"
        raise UserError(what, where=where, do=f"return one with {', '.join(TABLE_COLUMNS)}")
    return drawn


def _path(stem: Path, suffix: str) -> Path:
    return stem.with_name(stem.name + suffix)  # not with_suffix: a figure's name may hold a dot


def picture(drawn: Drawn, figure: FigureSpec, suffix: str) -> bytes:
    """The figure as a PDF or PNG file; the same figure gives the same bytes."""
    title = figure.title or figure.name
    metadata: dict[str, str | None]
    if suffix == ".pdf":
        metadata = {"Title": title, "Creator": "Recollect", "Producer": None, "CreationDate": None}
    else:
        metadata = {"Title": title, "Software": None}
    buffer = io.BytesIO()
    with paper_style():
        drawn.figure.savefig(buffer, format=suffix.removeprefix("."), metadata=metadata)
    return buffer.getvalue()


def csv_of(table: pd.DataFrame) -> bytes:
    """The table as CSV: full precision, ``\\n`` line ends, an empty field where there is no interval."""
    return table[TABLE_COLUMNS].to_csv(index=False, lineterminator="\n").encode()


def manifest_of(
    figure: FigureSpec,
    drawn: Drawn,
    files: Sequence[Path | str],
    provenance: Mapping[str, Any],
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything that a reader needs to trust the figure, or to make it again."""
    rows = captions.measured(drawn.table)
    rest = {key: value for key, value in provenance.items() if key not in ("code_fingerprint", "device")}
    published = sorted({name.removeprefix(PUBLISHED) for name in drawn.table["method"] if name.startswith(PUBLISHED)})
    return {
        "figure": figure.name,
        "kind": figure.kind,
        "title": figure.title,
        "caption": captions.caption(figure, (*drawn.notes, *warnings)),
        "warnings": [*(note for note in drawn.notes if note.startswith(("Warning", "Dropped"))), *warnings],
        "wiring_test": figure.wiring_test,
        "scale": figure.scale,
        "seeds": list(figure.seeds),
        "environments": list(figure.environments),
        "methods": {method: figure.label(method) for method in figure.methods},
        "tasks": {str(panel): int(tasks) for panel, tasks in rows.groupby("panel", sort=False)["tasks"].max().items()},
        "axes": drawn.axes,
        "csv": {
            "columns": TABLE_COLUMNS,
            "method": f"'{PUBLISHED}<method>' are published values, '{LINE}<what>' constant lines; 0 seeds and tasks",
        },
        "options": figure.options,
        "published": [
            item.model_dump(mode="json")
            for item in figure.references
            if figure.is_comparable(item) and item.method in published
        ],
        "inputs": [{"path": Path(file).as_posix(), "sha256": sha256_of(Path(file))} for file in files],
        "outputs": {},
        "code_fingerprint": provenance.get("code_fingerprint"),
        "device": provenance.get("device"),
        "provenance": rest,
    }
