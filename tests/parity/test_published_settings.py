"""At scale `paper` each run has the published settings, or a table says what differs and why, and docs show it."""

from __future__ import annotations

from pathlib import Path

import pytest
from published_settings import TABLES, compare, page_of, runs_of, written

from recollect.settings.strict_yaml import parsed

GROUP = 'groups: [{runs: ["dark_room_10x10/dt"], settings: {%s}}]\nours: {"*": "not part of this test"}\n'


pytestmark = pytest.mark.usefixtures("in_the_repository")


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_setting_of_every_run_is_as_published_or_listed(path: Path) -> None:
    found = list(compare(parsed(path)))
    assert not found, f"{len(found)} findings; the first: " + "\n".join(found[:40])


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_docs_show_what_differs(path: Path) -> None:
    """Written by `python tests/parity/published_settings.py`."""
    page = page_of(path).read_text(encoding="utf-8")
    assert page == written(page, parsed(path))


def test_policies_that_embed_for_a_figure_are_compared_too() -> None:
    runs = runs_of({"figures": "radt_meta_world"})
    assert ("meta_world", "dt.embedder") in runs and ("meta_world", "radt") in runs


def findings(tmp_path: Path, lines: str, ours: str | None = None) -> list[str]:
    path = tmp_path / "table.yaml"
    text = "figures: radt_training_curve\n" + GROUP % lines
    path.write_text(text if ours is None else text.split("ours:")[0] + f"ours: {{{ours}}}\n", encoding="utf-8")
    return list(compare(parsed(path)))


def test_a_wrong_value_an_unlisted_key_and_an_unused_line_are_found(tmp_path: Path) -> None:
    key = "method.hyperparameters.network.width"
    assert not findings(tmp_path, f'{key}: [512, "table 5"]')
    (wrong,) = findings(tmp_path, f'{key}: [256, "table 5"]')
    assert "dark_room_10x10/dt" in wrong and "512" in wrong and "256" in wrong and "table 5" in wrong
    (unused,) = findings(tmp_path, f'{key}: [512, "table 5"], method.no_such: [1, "table 5"]')
    assert "no run has the line method.no_such" in unused
    assert any(
        "network.layers = 4 stands in no line" in text for text in findings(tmp_path, f'{key}: [512, "table 5"]', "")
    )


def test_a_line_without_a_source_or_a_reason_is_refused(tmp_path: Path) -> None:
    key = "method.hyperparameters.network.width"
    with pytest.raises(AssertionError, match="source"):
        findings(tmp_path, f'{key}: [512, ""]')
    with pytest.raises(AssertionError, match="say why"):
        findings(tmp_path, f'{key}: {{published: 256, ours: 512, source: "table 5"}}')
