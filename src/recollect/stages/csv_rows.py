"""Tables of config/ that commands write and forecasts read: a CSV file whose rows are settings models."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from recollect.settings.loading import validated
from recollect.settings.schema import Frozen

Row = TypeVar("Row", bound=Frozen)


def read_rows(model: type[Row], path: Path) -> list[Row]:
    """The rows of a file; none where there is no file.

    Raises:
        UserError: the file is not one of these; it says which row.
    """
    if not path.is_file():
        return []
    rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
    return [validated(model, row, where=f"{path}, line {rows.line_num}") for row in rows]


def text_of(model: type[Row], rows: Iterable[Row]) -> str:
    """The file's content, numbers with four digits."""
    made = io.StringIO()
    table = csv.writer(made, lineterminator="\n")
    table.writerow(model.model_fields)
    for row in rows:
        table.writerow([f"{value:.4g}" if isinstance(value, float) else value for _, value in row])
    return made.getvalue()
