"""Published values are data with a source, and reach only the figures that they belong to."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect.figures.reference import groups, resolve
from recollect.figures.spec import Reference
from recollect.settings.errors import UserError

FOLDER = Path(__file__).parents[3] / "config" / "figures" / "references"
METHODS = ["radt", "radt_agnostic", "ad", "dpt", "dt"]


def test_the_papers_table_is_there_with_its_source() -> None:
    group = groups(FOLDER)["radt_figures_3_4"]
    assert len(group.curves) == 6 and all(set(curves) == set(METHODS) for curves in group.curves.values())
    assert group.curves["dark_room_10x10"]["radt"].y == (1, 53, 70, 82)
    assert group.curves["key_door_40x20"]["radt_agnostic"].last_five == 77
    assert (group.scale, group.reading) == ("paper", "read off the paper's figure")


def test_a_figure_gets_the_curves_of_its_panels_and_methods() -> None:
    wanted = [{"published": "radt_figures_3_4"}]
    found = resolve(wanted, panels=["dark_room_10x10"], methods=["ad", "radt"], folder=FOLDER)
    assert [(item.panel, item.method) for item in found] == [("dark_room_10x10", "radt"), ("dark_room_10x10", "ad")]
    assert found[0].x == (1, 10, 20, 40) and found[0].scale == "paper"
    assert found[0].source == "RA-DT figures 3 and 4, read off the paper's figure"


def test_panels_can_be_renamed_and_references_given_in_place() -> None:
    wanted = [{"published": "radt_figures_3_4", "panels": {"dark_room_10x10": "mine"}}]
    (found,) = resolve(wanted, panels=["mine"], methods=["dt"], folder=FOLDER)
    assert found.panel == "mine" and found.y == (4, 8, 7, 6)
    own = {"panel": "p", "method": "m", "x": [1], "y": [2], "source": "a table"}
    assert resolve([own], panels=[], methods=[]) == (Reference(**own),)  # type: ignore[arg-type]


def test_wrong_references_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'radt_figures_3_4'"):
        resolve([{"published": "radt_figure_3_4"}], panels=["a"], methods=["b"], folder=FOLDER)
    with pytest.raises(UserError, match="have no curve for a"):
        resolve([{"published": "radt_figures_3_4"}], panels=["a"], methods=["radt"], folder=FOLDER)
    with pytest.raises(UserError, match="unknown key 'panel'"):
        resolve([{"published": "radt_figures_3_4", "panel": {}}], panels=["a"], methods=["b"], folder=FOLDER)
    with pytest.raises(UserError, match="x has 2 values and y has 1"):
        bad = {"panel": "p", "method": "m", "x": [1, 2], "y": [2], "source": "s"}
        resolve([bad], panels=[], methods=[])
    (tmp_path / "x.yaml").write_text("group:\n  source: s\n  scal: paper\n")
    with pytest.raises(UserError, match="unknown key 'scal'"):
        groups(tmp_path)
