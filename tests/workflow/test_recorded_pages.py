"""What README and docs say of results is what was recorded, and who is better is said by a claim's file alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from recollect.settings.loading import names
from recollect.stages.between_marks import names as places
from recollect.stages.recorded_run import renewed
from recollect.stages.recorded_tables import FOLDER, tables

ROOT = Path(__file__).resolve().parents[2]
RECORDED = sorted(path.name for path in (ROOT / FOLDER).iterdir() if path.is_dir())
PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("**/*.md"))]

pytestmark = pytest.mark.usefixtures("in_the_repository")
METHOD = re.compile(
    r"(RA-DT|AD|DT|DPT|GPT|LSTM|GRU|AMAGO|AMAGO-2|HELM|HELMv2|SHELM|CNN|CNN-PPO|LSTM-PPO|[Tt]ransformer)('s|s)?"
)
COMPARES = re.compile(
    r"above|below|better|worse|beats?|outperforms?|ahead|behind|superior|inferior|higher|lower|further|comparable"
)
NEAR = 6  # words
NO_COMPARISON = re.compile(r"better half|`[^`]*`|\]\([^)]*\)")  # a choice of actions; code; where a link leads


@pytest.mark.parametrize("scale", RECORDED)
def test_the_tables_of_the_pages_are_those_of_the_recorded_run(scale: str) -> None:
    for page, text in renewed(FOLDER / scale).items():
        assert page.read_text(encoding="utf-8") == text, f"{page}: run `recollect record --scale {scale}`"


def test_every_page_has_a_place_for_its_tables_of_the_demo() -> None:
    for page, name in tables(FOLDER / "demo"):
        assert name in places(Path(page).read_text(encoding="utf-8")), f"{page} lacks the marks of '{name}'"


def prose(text: str) -> Iterator[str]:
    """The paragraphs and items of a page, without code, tables and headings."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(\||#|!\[|<!--).*$", "", text, flags=re.MULTILINE)
    yield from filter(str.strip, re.split(r"\n\s*\n|\n(?=\s*[-*] )", text))


def unproved(text: str) -> list[str]:
    """The sentences that compare methods, in paragraphs that link to no claim."""
    found = []
    for paragraph in prose(text):
        linked = re.findall(r"\((?:\.\./)*config/claims/(\w+)\.yaml\)", paragraph)
        if linked and set(linked) <= set(names("claims")):
            continue
        for sentence in re.split(r"(?<=[.:;!?])\s+", paragraph):
            words = re.findall(r"[\w’'-]+", NO_COMPARISON.sub(" ", sentence))
            methods = [place for place, word in enumerate(words) if METHOD.fullmatch(word)]
            compares = [place for place, word in enumerate(words) if COMPARES.fullmatch(word)]
            if any(abs(one - other) <= NEAR for one in methods for other in compares):
                found.append(" ".join(sentence.split()))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_no_sentence_says_who_is_better_without_its_claim(page: str) -> None:
    do = "leave it out, or link config/claims/ID.yaml in its paragraph"
    assert not unproved(Path(page).read_text(encoding="utf-8")), do


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("RA-DT ends far above DT.", True),
        ("In the mazes an LSTM is no\nworse than a transformer.", True),
        ("RA-DT ends above DT ([claim](config/claims/radt_above_dt.yaml)).", False),
        ("RA-DT ends above DT ([claim](config/claims/no_such_claim.yaml)).", True),
        ("| RA-DT | above DT |", False),
        ("AD draws from the better half of its logits.", False),
        ("DT has 50 steps. The settings below differ.", False),
        ("- RA-DT reads windows;\n- SHELM beats CNN-PPO.", True),
    ],
)
def test_a_comparison_is_seen(text: str, refused: bool) -> None:
    assert bool(unproved(text)) == refused
