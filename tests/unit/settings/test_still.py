"""Files are read again each time, until a process says that nothing changes any more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from recollect.settings import still
from recollect.settings.resolve import method_mapping, resolve
from recollect.settings.still import held_still, hold_still, remembered

ROOM = "dark_room_10x10"


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next test finds this process as it was."""
    monkeypatch.setattr(still, "_still", False)


def test_a_function_is_asked_each_time_until_the_process_holds_still() -> None:
    asked: list[str] = []

    @remembered
    def answer(question: str) -> int:
        asked.append(question)
        return len(asked)

    assert [answer("a"), answer("a")] == [1, 2]
    hold_still()
    assert [answer("a"), answer("a"), answer("b"), answer("a")] == [3, 3, 4, 3]


def test_what_was_remembered_in_a_block_is_forgotten_after_it(workdir: Path) -> None:
    path = workdir / "config/methods/dt.yaml"
    for title in ("DT", "Another", "A third"):
        path.write_text(re.sub("title: .*", f"title: {title}", path.read_text(), count=1))
        with held_still():
            assert method_mapping("smoke", ROOM, "dt") is method_mapping("smoke", ROOM, "dt")
            assert method_mapping("smoke", ROOM, "dt")["title"] == title


def test_a_block_about_another_folder_leaves_no_answer_of_it_behind() -> None:
    asked: list[str] = []

    @remembered
    def answer() -> str:
        asked.append("here")
        return f"{len(asked)}"

    with held_still():
        still.prepare({"run": "of here"})
        assert [answer(), answer()] == ["1", "1"]
        with held_still(anew=True):
            assert [answer(), answer()] == ["2", "2"] and still.prepared("run") is None
        assert answer() == "3" and still.prepared("run") == "of here"


def test_nobody_changes_what_is_remembered(workdir: Path) -> None:
    fresh = method_mapping("smoke", ROOM, "radt")
    hold_still()
    first = resolve("smoke", ROOM, "radt", 0)
    assert resolve("smoke", ROOM, "radt", 0) == first
    assert method_mapping("smoke", ROOM, "radt") == fresh
