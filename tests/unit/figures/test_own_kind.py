"""A kind of figure of one's own that is not as docs/adding.md shows it: one message says what, where and what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from own_files import files_of_the_page

from recollect.artifacts.scores import scores_frame
from recollect.artifacts.sealed import write_table
from recollect.figures.spec import FigureSpec
from recollect.figures.writing import render
from recollect.settings.errors import UserError

DRAWS = 'return Drawn(canvas, table, meaning, ("Mean over seeds and tasks.",))'


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    """Draw with the page's kind, where a line of it differs."""
    folder = tmp_path / f"own_{abs(hash(request.node.name))}"
    folder.mkdir()
    monkeypatch.setenv("RECOLLECT_MINE", str(folder))
    text = files_of_the_page()["mine/first_and_last.py"]
    rows = {"env": "room", "method": "dt", "seed": 0, "step": 0, "split": "eval", "task": 0, "metric": "return"}
    scores = scores_frame(**rows, episode=np.arange(3), value=np.arange(3.0))
    write_table(tmp_path / "scores.parquet", scores, kind="scores")
    figure = FigureSpec.model_validate(
        {"name": "own", "kind": "first_and_last", "scale": "demo", "environments": ["room"], "methods": ["dt"]}
        | {"seeds": [0], "options": {}}
    )

    def draw(old: str, new: str) -> pd.DataFrame:
        assert text.count(old) == 1
        (folder / "first_and_last.py").write_text(text.replace(old, new))
        render(figure, [tmp_path / "scores.parquet"], tmp_path / "figure")
        return pd.read_csv(tmp_path / "figure.csv")

    return draw


def test_columns_may_stand_in_any_order(drawn) -> None:
    table = drawn("[list(TABLE_COLUMNS)]", "[sorted(TABLE_COLUMNS)]")
    assert list(table) == ["panel", "method", "x", "y", "low", "high", "seeds", "tasks"]
    assert table["y"].tolist() == [0.0, 2.0]


@pytest.mark.parametrize(
    ("old", "new", "what", "where", "do"),
    [
        (DRAWS, "return canvas", "returned a Figure", "first_and_last.py: draw", "return a `Drawn`"),
        (
            DRAWS,
            DRAWS.replace("table,", 'table.rename(columns={"y": "mean"}),'),
            "has the columns panel, method, x, mean, low",
            "first_and_last.py: draw",
            "return one with panel, method, x, y, low, high, seeds, tasks",
        ),
        (
            "style.SINGLE_COLUMN",
            "style.SINGLECOLUMN",
            "fails with AttributeError: module .* has no attribute 'SINGLECOLUMN'",
            "first_and_last.py:3",
            "mend this line",
        ),
    ],
)
def test_what_is_no_figure_is_refused_with_the_file_and_nothing_is_written(
    drawn, old: str, new: str, what: str, where: str, do: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=what) as error:
        drawn(old, new)
    assert where in error.value.where and do in error.value.do
    assert not list(tmp_path.glob("figure*"))
