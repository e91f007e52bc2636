"""The report as a person opens it: from a file, without a network. In a real Chromium (fetched from Debian where none is here)."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import made_results
import pytest
from browser import Page, Unavailable, browser
from made_results import MAZE, ROOM, SCALE, configure, last_score, write_run

from recollect.stages import paths
from recollect.stages.claims import claims
from recollect.stages.report import report

ROOT = Path(__file__).resolve().parents[2]
SHOWN = "[...document.querySelectorAll('tbody tr')].filter((row) => row.offsetHeight > 0)"
COLUMN = f"{SHOWN}.map((row) => row.cells[PLACE].innerText.trim())"
SEED, SCORE, UPDATES = 2, 3, 5
WIDE, PHONE = (1280, 900), (360, 740)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """One tab for all tests of this file."""
    try:
        with browser(tmp_path_factory.mktemp("browser")) as page:
            yield page
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Callable[[], list[str]]], Path]:
    """Makes results in a folder of its own, and their report."""
    done: dict[Any, Path] = {}

    def make(results: Callable[[], list[str]]) -> Path:
        if results not in done:
            folder = tmp_path_factory.mktemp("results")
            shutil.copytree(ROOT / "config", folder / "config")
            before = Path.cwd()
            os.chdir(folder)
            try:
                report(SCALE, results())
            finally:
                os.chdir(before)
            done[results] = folder / paths.report(SCALE)
        return done[results]

    return make


def five() -> list[str]:
    """Five runs, one with an inspection page, one of them elsewhere, in two figures: one by itself beside its caption, one wide."""
    few = made_results.few_runs()
    page = paths.page(SCALE, ROOM, "ad", 1)
    page.parent.mkdir(parents=True)
    page.write_text("<title>inspected</title>")
    shutil.rmtree(paths.run_folder(SCALE, ROOM, "ad", 4))
    wide = configure("wide", [MAZE], ["dqn_gpt"], [0, 1], kind="length_aggregation", options={"lengths": [5]})
    for seed in (0, 1):
        write_run(MAZE, "dqn_gpt", seed)
    picture = ROOT / "docs/figures/memory_rl_passive_tmaze.png"
    warning = "Warning: 2 seeds are few."
    made_results.copy_of(few, wide, picture, caption=f"What wide shows. {warning} Twice.", warnings=[warning])
    return [few, wide]


def claimed() -> list[str]:
    """Five runs and two claims about them, one of several contrasts and one that nobody judged."""
    few = made_results.few_runs()
    says = {"says": "last minus first, by more than can be had", "this": {"env": ROOM, "method": "ad", "episodes": [0.67, 1]},
            "that": {"episodes": [0, 0.33]}, "margin": 50.0}  # fmt: skip
    statement = "It rises by far, and this is a long sentence that must be broken on a phone."
    made_results.claim("rises", few, headline=True)
    made_results.claim("soars", few, contrasts=[says, {**says, "wanted": "below"}], statement=statement)
    claims(SCALE, [few])
    made_results.claim("later", few, paper="HELM")
    return [few]


def two_thousand() -> list[str]:
    return [made_results.many_runs()]


@pytest.fixture
def opened(tab: Page, made: Callable[[Callable[[], list[str]]], Path]) -> Iterator[Callable[..., Path]]:
    """Opens a report in the tab; afterwards nothing must have been asked of a network, and nothing complained of."""
    tab.requests.clear()
    tab.errors.clear()

    def open_(results: Callable[[], list[str]], size: tuple[int, int] = WIDE, **features: str) -> Path:
        look(tab, size, **features)
        tab.open(made(results))
        return made(results)

    yield open_
    look(tab, WIDE)
    assert [url for url in tab.requests if not url.startswith(("file:", "data:"))] == []
    assert tab.errors == []


def look(tab: Page, size: tuple[int, int], medium: str = "", **features: str) -> None:
    """Give the window a size, and the reader a medium and preferences."""
    width, height = size
    tab.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < WIDE[0]
    )
    wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
    tab.call("Emulation.setEmulatedMedia", media=medium, features=wanted)


def column(tab: Page, place: int) -> list[str]:
    """What is to be read in a column, the first line of each cell."""
    return [str(text).split("\n")[0] for text in tab.evaluate(COLUMN.replace("PLACE", str(place)))]


def press(tab: Page, selector: str, which: int = 0) -> None:
    """Click where a thing is on the screen."""
    where = f"document.querySelectorAll({selector!r})[{which}]"
    tab.evaluate(f"{where}.scrollIntoView({{ block: 'center', behavior: 'instant' }})")
    at = tab.evaluate(
        f"(({{ x, y, width, height }}) => [x + width / 2, y + height / 2])({where}.getBoundingClientRect())"
    )
    for kind in ("mousePressed", "mouseReleased"):
        tab.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)


def type_filter(tab: Page, words: str) -> None:
    """Type into the text box, in the place of what stood there."""
    tab.evaluate("document.querySelector('#filter').focus(), document.querySelector('#filter').select()")
    if words:
        tab.call("Input.insertText", text=words)
    else:
        tab.call("Input.dispatchKeyEvent", type="keyDown", key="Delete", windowsVirtualKeyCode=46)


def test_every_figure_is_decoded_and_has_its_caption_beside_or_below_it(tab: Page, opened: Any) -> None:
    opened(five)
    tab.wait("[...document.images].every((image) => image.complete)")
    widths = tab.evaluate("[...document.images].map((image) => [image.naturalWidth, image.clientWidth])")
    assert len(widths) == 2 and all(natural > 900 and shown > 400 for natural, shown in widths)
    captions = tab.evaluate("[...document.querySelectorAll('figcaption')].map((caption) => caption.innerText)")
    assert captions[0].startswith("What few shows.") and captions[1].startswith("What wide shows. Twice.")
    warnings = tab.evaluate("[...document.querySelectorAll('main > .warning')].map((warning) => warning.innerText)")
    narrow, few = (warning.replace("\xa0", " ") for warning in warnings)
    assert narrow == "Warning: interval from 5 seeds is too narrow: nominal 95 %, actual about 87 % (few)."
    assert few == "Warning: 2 seeds are few (wide)."
    cards = "[...document.querySelectorAll('NAME')].map((element) => element.getBoundingClientRect().right)"
    card, picture = (tab.evaluate(cards.replace("NAME", name))[1] for name in ("figure", "img"))
    assert 0 < card - picture < 40  # the wide one leaves no third of its card empty
    side = "[...document.querySelectorAll('NAME')].map((element) => element.getBoundingClientRect().left)"
    pictures, texts = (tab.evaluate(side.replace("NAME", name)) for name in ("img", "figcaption"))
    assert [text > picture + 400 for text, picture in zip(texts, pictures, strict=True)] == [True, False]


def test_the_file_by_itself_shows_the_same(tab: Page, opened: Any, tmp_path: Path) -> None:
    known = "[document.body.innerText, ...[...document.images].map((image) => image.complete && image.naturalWidth)]"
    alone = shutil.copy(opened(five), tmp_path / "sent.html")
    expected = tab.evaluate(known)
    tab.open(alone)
    assert tab.evaluate(known) == expected and all(expected)


def test_every_link_leads_to_a_file_that_is_there(tab: Page, opened: Any) -> None:
    page = opened(five)
    links = tab.evaluate("[...document.querySelectorAll('a[href]')].map((link) => link.href)")
    files = {unquote(urlsplit(link).path) for link in links if not urlsplit(link).fragment}
    assert all(link.startswith("file:") for link in links)
    assert [file for file in files if not Path(file).exists()] == []
    results = page.parent
    for expected in (
        *(results / f"figures/few.{suffix}" for suffix in ("pdf", "png", "csv", "json")),
        results / f"inspect/{ROOM}/ad/seed_1.html",
        results / f"runs/{ROOM}/ad/seed_3/scores.parquet.manifest.json",
    ):
        assert str(expected) in files
    assert f"{results}/runs/{MAZE}/dqn_gpt/seed_1/" in files
    fragments = [urlsplit(link).fragment for link in links if urlsplit(link).fragment]
    assert {"few", "wide", "runs", "provenance"} <= set(fragments)
    assert tab.evaluate(f"{fragments}.every((name) => document.getElementById(name))")


def test_the_inspection_page_of_a_run_opens_from_its_row(tab: Page, opened: Any) -> None:
    opened(five)
    type_filter(tab, "ad seed:1")
    press(tab, "tbody tr:not([hidden]) td.links a", 1)
    tab.wait("document.title === 'inspected'")


def test_a_click_on_a_heading_sorts_by_numbers_there_and_back(tab: Page, opened: Any) -> None:
    opened(five)
    assert column(tab, SEED) == ["0", "1", "2", "3", "4", "0", "1"]
    known = sorted([*(last_score(seed) - 1 for seed in range(4)), *(last_score(seed) for seed in (0, 1))])
    press(tab, "th button", SCORE)
    assert column(tab, SCORE) == [*(f"{score:.2f}".replace("-", "−") for score in known), "–"]
    assert tab.evaluate(f"document.querySelectorAll('th')[{SCORE}].ariaSort") == "ascending"
    press(tab, "th button", SCORE)
    assert column(tab, SCORE) == [
        *(f"{score:.2f}".replace("-", "−") for score in reversed(known)),
        "–",
    ]  # what is unknown stays last
    press(tab, "th button", UPDATES)
    assert column(tab, UPDATES) == ["20", "30", "200", "200", "200", "200", "–"]  # not as words: 20, 200, 30
    press(tab, "th button", 1)
    assert column(tab, 1) == ["AD"] * 5 + ["GPT"] * 2


def test_the_text_box_keeps_the_rows_that_have_every_word(tab: Page, opened: Any) -> None:
    opened(five)
    for words, seeds in (("dqn_gpt", ["0", "1"]), ("seed:0", ["0", "0"]), ("dark-room current", list("0123")),
                         ("NOT HERE", ["4"]), ("nothing like that", []), ("", list("0123401"))):  # fmt: skip
        type_filter(tab, words)
        assert column(tab, SEED) == seeds, words
    type_filter(tab, "dqn_gpt")
    assert tab.evaluate("document.querySelector('#count').innerText") == "2 of 7 runs"
    press(tab, "[data-filter]", 0)
    assert column(tab, SEED) == list("01234")


def test_numbers_are_short_and_named(tab: Page, opened: Any) -> None:
    opened(five)
    text = tab.evaluate("document.body.innerText")
    assert not [word for word in text.split() if "." in word and len(word.partition(".")[2].rstrip("s%,)")) > 4
                and word.replace(".", "").isdigit()]  # fmt: skip
    assert "return, last 3 episodes" in text


@pytest.mark.parametrize("size", [WIDE, PHONE])
def test_claims_stand_first_and_lead_to_their_figure(tab: Page, opened: Any, size: tuple[int, int]) -> None:
    opened(claimed, size)
    top = "document.querySelector('NAME').getBoundingClientRect().top"
    assert tab.evaluate(top.replace("NAME", "#claims tbody tr")) < tab.evaluate(top.replace("NAME", "figure"))
    verdicts = tab.evaluate("[...document.querySelectorAll('#claims .verdict')].map((cell) => cell.innerText)")
    assert [verdict.split(maxsplit=1)[1] for verdict in verdicts] == ["holds", "contradicted", "not run"]
    assert tab.evaluate("document.documentElement.scrollWidth") <= size[0]
    outside = "[...document.querySelectorAll('#claims td')].filter((e) => e.offsetHeight > 0 && "
    assert tab.evaluate(f"{outside} e.getBoundingClientRect().right > {size[0]}).length") == 0
    name = tab.evaluate("getComputedStyle(document.querySelector('#claims td[data-name]'), '::before').content")
    assert (name == '"Difference"') == (size == PHONE)
    # The table of runs is the one that is sorted.
    press(tab, "#runs th button", SEED)
    press(tab, "#runs th button", SEED)
    runs = "[...document.querySelectorAll('#runs tbody tr')].map((row) => row.cells[PLACE].innerText)"
    assert tab.evaluate(runs.replace("PLACE", str(SEED))) == list("43210")
    press(tab, "#claims a")
    assert tab.evaluate("location.hash") == "#few"
    tab.wait(f"Math.abs({top.replace('NAME', 'figure#few')}) < 60")


@pytest.mark.parametrize("results", [five, two_thousand])
def test_on_a_phone_nothing_is_cut_off_and_every_number_has_its_name(tab: Page, opened: Any, results: Any) -> None:
    opened(results, PHONE)
    assert tab.evaluate("document.documentElement.scrollWidth") == PHONE[0]
    outside = "[...document.querySelectorAll('.picture, .narrow img, td, th, p, li, input')].filter((e) => e.offsetHeight > 0 && "
    outside += f"(e.getBoundingClientRect().right > {PHONE[0]} || e.getBoundingClientRect().left < 0)).length"
    assert tab.evaluate(outside) == 0
    wide = "[...document.querySelectorAll('figure:not(.narrow) .picture')].map((e) => [e.scrollWidth, e.clientWidth])"
    assert all(picture == 700 > card for picture, card in tab.evaluate(wide))  # large enough to read, and it scrolls
    before = "getComputedStyle(document.querySelectorAll('tbody td')[PLACE], '::before').content"
    assert tab.evaluate(before.replace("PLACE", str(UPDATES))) == '"Updates"'
    press(tab, "th button", SEED)
    press(tab, "th button", SEED)
    assert column(tab, SEED)[0] == {five: "4", two_thousand: "499"}[results]


def test_on_a_phone_a_link_with_a_long_name_is_broken(tab: Page, opened: Any) -> None:
    opened(five, PHONE)
    link = "document.querySelector('.links a[href*=inspect]')"
    tab.evaluate(f"{link}.textContent = 'DQN with a GPT on Passive T-Maze, carried to the junction, length 10, seed 0'")
    assert tab.evaluate(f"{link}.getBoundingClientRect().right") <= PHONE[0]
    assert tab.evaluate("document.documentElement.scrollWidth") == PHONE[0]


def test_dark_is_dark_and_light_is_light_and_both_can_be_read(tab: Page, opened: Any) -> None:
    color = """((of) => [of(document.body).backgroundColor, ...['h1', 'figcaption', 'td', 'td a', '.warning', '.note'].map(
        (one) => of(document.querySelector(one)).color)])(getComputedStyle)"""
    for scheme, dark in (("light", False), ("dark", True)):
        opened(five, prefers_color_scheme=scheme)
        ground, *texts = (sum(map(float, re.findall(r"\d+", one)[:3])) / 765 for one in tab.evaluate(color))
        assert (ground < 0.2) == dark and (ground > 0.8) != dark
        assert all(abs(text - ground) > 0.35 for text in texts)
        assert tab.evaluate("getComputedStyle(document.images[0]).backgroundColor") == "rgb(255, 255, 255)"


def test_on_paper_there_are_figures_and_rows_and_no_controls_in_the_light_colours(tab: Page, opened: Any) -> None:
    opened(five, (720, 1000), medium="print", prefers_color_scheme="dark")
    heights = tab.evaluate(
        "['#filter', 'nav', 'figure img', 'tbody tr', 'thead'].map((e) => document.querySelector(e).offsetHeight)"
    )
    assert heights[:2] == [0, 0] and min(heights[2:]) > 0
    assert tab.evaluate("getComputedStyle(document.querySelector('tbody tr')).display") == "table-row"
    assert tab.evaluate("getComputedStyle(document.querySelector('h1')).color") == "rgb(26, 26, 26)"
    assert tab.evaluate("document.documentElement.scrollWidth") <= 720


def test_two_thousand_runs_are_shown_in_parts_sorted_at_once_and_all_found(tab: Page, opened: Any) -> None:
    opened(two_thousand)
    assert tab.evaluate("document.querySelector('#count').innerText") == "2,000 runs"
    assert len(column(tab, SEED)) == 200
    begun = tab.evaluate("performance.now()")
    press(tab, "th button", SEED)
    tab.wait(f"document.querySelectorAll('th')[{SEED}].ariaSort === 'ascending'")
    assert tab.evaluate("performance.now()") - begun < 5000  # on a busy machine; it takes a tenth of a second
    assert column(tab, SEED) == [str(seed) for seed in range(50) for _ in range(4)]
    type_filter(tab, f"{ROOM} seed:498")
    assert column(tab, SEED) == ["498", "498"]
    type_filter(tab, "")
    press(tab, "#more")
    assert len(column(tab, SEED)) == 2000
    assert tab.evaluate("document.querySelector('#more').offsetHeight") == 0
