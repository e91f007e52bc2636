"""The page of a run that sees images shows each of them with the very words that were read in its place."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import test_inspection_page as pages
from made_traces import WORDS, made_image_trace, write_trace
from test_inspection_page import Page, needs_node, unpacked

from recollect.common.traces import Trace, different
from recollect.figures import token_page as module
from recollect.figures.spec import SMOKE_WORDS
from recollect.figures.token_page import pixels_of, png, token_page


def page_of(trace: Trace, **options: Any) -> str:
    return token_page(trace, method="SHELM", environment="MiniGrid", **options)


def run_script(text: str, then: str, monkeypatch: pytest.MonkeyPatch, hash_: str = "") -> Any:
    more = "closest() { return null; }, scrollTop: 0, setAttribute("
    monkeypatch.setattr(pages, "BROWSER", pages.BROWSER.replace("setAttribute(", more))
    return pages.run_script(text, then, hash_)


def pictures_of(task: dict[str, Any]) -> np.ndarray:
    """The different images of a page, uint8 [F, H, W, 3], read by another reader of PNGs."""
    files = [io.BytesIO(base64.b64decode(text)) for text in task["images"]]
    return np.stack([np.rint(255 * matplotlib.image.imread(file, format="png")) for file in files]).astype(np.uint8)


# ------------------------------------------------------------------------------------------------------------ images


def test_a_png_has_the_very_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 9, 3), dtype=np.uint8)
    read = matplotlib.image.imread(io.BytesIO(png(pixels)), format="png")
    np.testing.assert_array_equal(np.rint(255 * read), pixels)


def test_channels_are_found_at_either_end() -> None:
    first = np.random.default_rng(0).integers(0, 256, (2, 3, 6, 8), dtype=np.uint8)
    np.testing.assert_array_equal(pixels_of(first), pixels_of(first.transpose(0, 2, 3, 1)))
    assert pixels_of(first[:, :1]).shape == (2, 6, 8, 3)


def test_a_trace_keeps_each_different_image_once_and_gives_all_of_them_back(tmp_path: Path) -> None:
    trace = made_image_trace(episodes=200, images=3)
    path = write_trace(trace, tmp_path)
    again = Trace.open(path)
    np.testing.assert_array_equal(again.played.observation, trace.played.observation)
    assert again.about == trace.about and again.shows_images
    observations = trace.played.observation.nbytes
    rest = sum(values.nbytes for values in (*trace.facts.values(), *trace.maps.values())) + 50 * len(trace.played)
    assert path.stat().st_size < rest + observations / 10
    assert write_trace(trace, tmp_path).read_bytes() == path.read_bytes()


def test_different_images_are_in_the_order_of_their_first_appearance() -> None:
    images = np.array([[7], [3], [7], [9], [3]], np.uint8)
    found, which = different(images)
    assert found.ravel().tolist() == [7, 3, 9] and which.tolist() == [0, 1, 0, 2, 1]


# ------------------------------------------------------------------------------------------------------------ the file


def test_a_page_holds_what_was_traced() -> None:
    trace = made_image_trace()
    trace.maps["history_attention"] = trace.maps["history_attention"] * np.linspace(1, 0.4, 4)[:, None]
    data = Page(page_of(trace)).data
    (task,) = data["tasks"]
    assert task["start"] == [0, 7, 14, 21] and task["traced"] == 3 and data["actions"] == ["left", "right", "forward"]
    shown = pictures_of(task)[unpacked(task["image"], "<i4")]
    np.testing.assert_array_equal(shown, trace.played.observation.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(unpacked(task["action"], "<i2"), trace.played.action)
    np.testing.assert_array_equal(unpacked(task["value"], "<f4"), trace.facts["value"])
    np.testing.assert_array_equal(unpacked(task["outputs"]["log"], "<f4").reshape(-1, 3), trace.facts["outputs"])
    tokens = task["tokens"]
    said = np.array(tokens["words"])[unpacked(tokens["word"], "<i4").reshape(-1, 2)]
    assert said.tolist() == np.array(WORDS)[trace.facts["tokens"] - 100].tolist()
    np.testing.assert_array_equal(unpacked(tokens["score"], "<f4").reshape(-1, 2), trace.facts["token_scores"])
    assert tokens["entropy"] is None
    attention = task["attention"]
    assert attention["layers"] == ["first of 4", "middle of 4", "last of 4"] and attention["steps"] == 5
    weight = (
        unpacked(attention["weight"], "u1").reshape(-1, 3, 5)
        / 255
        * unpacked(attention["top"], "<f4").reshape(-1, 3, 1)
    )
    np.testing.assert_allclose(weight, trace.maps["history_attention"][:, [0, 1, 3]], atol=2e-3)


@pytest.mark.parametrize("mixture", [False, True])
def test_words_and_images_are_counted(mixture: bool) -> None:
    trace = made_image_trace(mixture=mixture, episodes=6)
    tokens = Page(page_of(trace)).data["tasks"][0]["tokens"]
    read = (trace.facts["tokens"] - 100)[:, : 1 if mixture else 2]
    found = {tokens["words"][entry["word"]]: entry for entry in tokens["statistics"]["histogram"]}
    images, which = different(trace.played.observation)
    assert set(found) == {WORDS[i] for i in np.unique(read)}
    for i in np.unique(read):
        with_it = which[(read == i).any(1)]
        entry = found[WORDS[i]]
        assert (entry["steps"], entry["images"]) == ((read == i).sum(), len(np.unique(with_it)))
        assert entry["image"] == np.bincount(with_it).argmax()
    said = tokens["statistics"]
    assert (said["images"], said["words"]) == (len(images), len(found)) and said["per_image"] == len(found) / len(
        images
    )
    counts = [entry["steps"] for entry in said["frequent"]]
    assert counts == sorted(np.bincount(which).tolist(), reverse=True)
    assert all(which[entry["row"]] == entry["image"] for entry in said["frequent"])


def test_one_layer_is_shown_once_and_two_twice() -> None:
    for layers, names in ((1, ["only"]), (2, ["first of 2", "last of 2"])):
        task = Page(page_of(made_image_trace(layers=layers))).data["tasks"][0]
        assert task["attention"]["layers"] == names


def test_a_long_trace_is_cut_after_whole_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_STEPS", 15)
    (task,) = Page(page_of(made_image_trace(episodes=5))).data["tasks"]
    assert task["start"] == [0, 7, 14] and task["traced"] == 5 and len(unpacked(task["reward"], "<f4")) == 14
    monkeypatch.setattr(module, "MOST_STEPS", 3)
    assert Page(page_of(made_image_trace(episodes=5))).data["tasks"][0]["start"] == [0, 7]


def test_a_page_asks_nobody_for_anything_and_names_cannot_break_it() -> None:
    name = "</script><script>alert(1)</script><!-- {{data}}"
    trace = made_image_trace()
    trace.about["words"]["100"] = name
    text = page_of(trace)
    page = Page(text)
    assert "://" not in text and not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|import)\s*\(|@import|url\(", text)
    assert len(page.scripts) == 2 and name in page.data["tasks"][0]["tokens"]["words"]
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    assert not any({"src", "href"} & set(attributes) for _, attributes in page.tags)
    assert text == page_of(trace)


def test_a_wiring_test_says_so() -> None:
    assert Page(page_of(made_image_trace(), warning=SMOKE_WORDS)).data["warning"] == SMOKE_WORDS
    assert Page(page_of(made_image_trace())).data["warning"] == ""


# ---------------------------------------------------------------------------------------------------------- the script


@needs_node
def test_the_page_says_which_words_are_read_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = made_image_trace()
    said = run_script(
        page_of(trace),
        """return ['words', 'text', 'said', 'actions', 'attention', 'attention-said'].map(
             (id) => made[id].innerHTML || made[id].textContent);""",
        monkeypatch,
        "#task=0&episode=2&step=3",
    )
    rows = np.arange(7, 10)
    words = [[WORDS[i] for i in row] for row in trace.facts["tokens"][rows] - 100]
    assert re.findall(r"<b>(\w+)</b>", said[0]) == words[-1]
    assert [float(x) for x in re.findall(r"<span>([\d.]+)</span>", said[0])] == pytest.approx(
        trace.facts["token_scores"][9], abs=0.006
    )
    runs = [" ".join(words[0])]
    for one in (" ".join(two) for two in words[1:]):
        runs += [one] if one != runs[-1] else []
    assert re.findall(r'title="[^"]*">([\w ]+?)(?: <small>[^<]*</small>)?</span>', said[1]) == runs
    action, value = trace.played.action[9], trace.facts["value"][9]
    assert f"<dd>{('left', 'right', 'forward')[action]}</dd>" in said[2] and f"<dd>{value:.3f}</dd>" in said[2]
    odds = np.exp(trace.facts["outputs"][9].astype(float))
    shares = [float(x) for x in re.findall(r"<span>([\d.]+) %</span>", said[3])]
    assert shares == pytest.approx(100 * odds / odds.sum(), abs=0.6)
    assert said[3].count("chosen") == 1
    # Row 8 has a map: two steps of the episode, and three before it began.
    assert (
        said[4].count('class="attend"') == 2
        and "50 % before the episode" in said[5]
        and "computed at step 2" in said[5]
    )


@needs_node
def test_a_mixture_is_named_by_its_heaviest_word(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = made_image_trace(mixture=True)
    note, text = run_script(
        page_of(trace),
        "return [made['words-note'].textContent, made['text'].innerHTML];",
        monkeypatch,
        "#episode=1&step=1",
    )
    assert note.startswith(f"entropy {trace.facts['token_entropy'][0]:.2f} nats")
    assert f">{WORDS[trace.facts['tokens'][0, 0] - 100]}</span>" in text


@needs_node
def test_a_method_without_words_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    note, hidden = run_script(
        page_of(made_image_trace(method="helmv2", reads=False)),
        "return [made['words-note'].textContent, ['text-card', 'statistics-card', 'attention-card'].map((id) => made[id].hidden)];",
        monkeypatch,
    )
    assert note.startswith("No words") and hidden == [True, True, True]


@needs_node
@pytest.mark.parametrize("chosen", [{}, {"mixture": True, "layers": 1}, {"reads": False}], ids=str)
def test_every_step_can_be_drawn(chosen: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = run_script(
        page_of(made_image_trace(**chosen)),
        """let count = 0;
        go({ episode: 0, step: 0 }, true);
        do {
          count++;
          const text = Object.entries(made).map(([id, part]) => (id === "data" ? "" : part.innerHTML + part.textContent));
          if (/NaN|undefined|Infinity/.test(text.join("").replace(/base64,[^"]*/g, ""))) return location.hash;
        } while (move(1));
        goRow(15);
        return [count, at.episode, at.step];""",
        monkeypatch,
    )
    assert drawn == [21, 2, 1]
