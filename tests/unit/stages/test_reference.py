"""The reference of hyper-parameters is of today's code and tables, and leaves no setting without a description."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field

from recollect.settings.catalogue import known
from recollect.settings.errors import UserError
from recollect.settings.schema import Frozen
from recollect.stages import reference
from recollect.stages.declared import entries

pytestmark = pytest.mark.usefixtures("in_the_repository")


class Inner(Frozen):
    kind: str = Field("a", description="Which.")


class Outer(Frozen):
    inner: Inner = Inner(kind="b")
    mix: Inner | None = Field(None, description="Besides.")
    rate: float = Field(description="How fast.")


@pytest.fixture(scope="module")
def pages() -> dict[Path, str]:
    return reference.pages()


def test_the_pages_are_what_the_command_writes(pages: dict[Path, str]) -> None:
    """Written by `recollect reference`."""
    assert {path.name for path in reference.FOLDER.glob("*.md")} == {path.name for path in pages}
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run `recollect reference`"


def test_every_setting_says_what_it_does(pages: dict[Path, str]) -> None:
    rows = [line.split(" | ") for text in pages.values() for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) > 300
    assert [row[0] for row in rows if not row[3 if len(row) == 4 else 4].strip(" |")] == []


def test_every_kind_of_figure_is_there_with_what_it_draws_and_reads(pages: dict[Path, str]) -> None:
    page = pages[reference.FOLDER / "figures.md"]
    for kind in known("figure"):
        said = page.partition(f"## {kind}\n\n")[2].splitlines()
        assert len(said[0]) > 20 and said[2].startswith("It reads t"), kind


def test_defaults_are_those_of_the_whole_and_what_may_be_absent_is_listed_with_its_parts() -> None:
    found = {key: (takes, default) for key, takes, default, _ in entries(Outer)}
    assert found == {
        "inner.kind": ("str", "b"),
        "mix": ("settings or null", "null"),
        "mix.kind": ("str", "a"),
        "rate": ("float", "required"),
    }


def test_what_is_published_of_a_method_is_its_own_last_word_and_no_ablation() -> None:
    key = "method.hyperparameters.rate"
    groups = [
        {"runs": ["*"], "settings": {key: [1, "a.py:1"]}},
        {"runs": ["*/fast", "*/fast.*"], "settings": {key: [2, "b.py:2"]}},
        {"runs": ["maze/*"], "settings": {key: {"paper": 3, "released": 4, "ours": 3, "source": "table 5"}}},
        {"runs": ["*/fast.rate_9"], "settings": {key: [9, "figure 6"]}},
    ]
    table = {"groups": groups, "ours": {"*.every": "how often"}}
    assert reference._published(key, table, {"*/slow"}) == "1 (a.py:1); paper 3; released 4 (table 5, `maze/*`)"
    assert reference._published(key, table, {"*/fast"}).startswith("2 (b.py:2, `*/fast`); paper 3")
    assert reference._published("method.hyperparameters.every", table, {"*/fast"}) == "not published: how often"


def test_what_is_published_of_a_source_is_of_the_environments_that_learn_with_it() -> None:
    key = "environment.source.hyperparameters.rollout"
    groups = [
        {"runs": ["rooms_*/*", "mazes/*"], "settings": {key: [2048, "a.py:1"]}},
        {"runs": ["games/*"], "settings": {key: [256, "b.py:2"]}},
    ]
    table = {"groups": groups, "ours": {}}
    assert reference._published(key, table, {"rooms_7/*", "rooms_9/*"}) == "2048 (a.py:1, `rooms_*/*`)"
    assert reference._published(key, table, {"games/*"}) == "256 (b.py:2, `games/*`)"
    assert reference._published(key, table, set()) == ""


def test_outside_a_clone_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="clone"):
        reference.write_reference()
