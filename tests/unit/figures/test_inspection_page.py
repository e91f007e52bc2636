"""The inspection page holds exactly what was traced, in one small file that asks nobody for anything."""

from __future__ import annotations

import base64
import html.parser
import json
import re
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_traces import made_trace

from recollect.common.traces import Trace
from recollect.figures.inspection import inspection_page, packed
from recollect.figures.spec import SMOKE_WORDS
from recollect.settings.errors import UserError

NODE = shutil.which("node")

# What the page's script needs of a browser, so that it can be run without one.
BROWSER = """
const made = {}, keys = {};
const element = () => ({ innerHTML: "", textContent: "", value: "", max: "", hidden: false, className: "", dataset: {},
  attributes: {}, handlers: {}, setAttribute(name, value) { this.attributes[name] = value; },
  addEventListener(name, handler) { this.handlers[name] = handler; } });
const document = {
  getElementById: (id) => (made[id] ??= element()),
  addEventListener: (name, handler) => { keys[name] = handler; },
};
const location = { hash: HASH }, history = { replaceState: (state, title, place) => { location.hash = place; } };
document.getElementById("data").textContent = require("fs").readFileSync(0, "utf8");
const press = (key, more) => keys.keydown({ key, target: { tagName: "BODY" }, preventDefault() {}, ...more });
"""


class Page(html.parser.HTMLParser):
    """The elements of a page, and the texts of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])


def page_of(trace: Trace, **options: Any) -> str:
    return inspection_page(trace, method="RA-DT", environment="Dark-Room", **options)


def unpacked(text: str, dtype: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)


def run_script(text: str, then: str, hash_: str = "") -> Any:
    """Run the page's script without a browser, then some more; what that returns, as JSON."""
    page = Page(text)
    script = BROWSER.replace("HASH", json.dumps(hash_)) + page.scripts[1].replace('"use strict";', "")
    code = f"{script}\nconsole.log(JSON.stringify((() => {{ {then} }})()));"
    done = subprocess.run(
        ["node", "-e", code], input=page.scripts[0], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


needs_node = pytest.mark.skipif(NODE is None, reason="runs the page's script with node")

# ------------------------------------------------------------------------------------------------------------ the file


def test_a_page_holds_what_was_traced() -> None:
    trace = made_trace(select=2)
    data = Page(page_of(trace)).data
    assert data["title"] == "RA-DT on Dark-Room" and data["facts"] == ["scale demo", "seed 0", "split eval"]
    assert [task["index"] for task in data["tasks"]] == trace.tasks == [0, 6, 13]
    for task in data["tasks"]:
        mine = trace.played.task == task["index"]
        assert task["start"] == list(range(0, 6 * 12 + 1, 12)) and task["actions"][4] == "stay"
        cell = unpacked(task["cell"], "<i4")
        assert (np.stack([cell // 5, cell % 5], 1) == trace.cell_N2[mine]).all()
        assert (unpacked(task["action"], "<i2") == trace.played.action[mine]).all()
        assert (unpacked(task["reward"], "<f4") == trace.played.reward[mine]).all()
        assert (unpacked(task["aim"], "<f4") == 9).all() and task["read"]["count"] == 2
        for name, dtype in (
            ("episode", "<i2"),
            ("first", "<i2"),
            ("end", "<i2"),
            ("similarity", "<f4"),
            ("score", "<f4"),
        ):
            values = unpacked(task["read"][name], dtype).reshape(-1, 2)
            np.testing.assert_array_equal(values, trace.facts[f"retrieved_{name}"][mine])
        weight = unpacked(task["attention"]["weight"], "u1").reshape(-1, task["attention"]["width"]) / 255
        weight = weight * unpacked(task["attention"]["top"], "<f4")[:, None]
        np.testing.assert_allclose(weight, trace.maps["attention"][mine].mean(1).sum(-1), atol=1.5e-3)


def test_a_page_asks_nobody_for_anything() -> None:
    text = page_of(made_trace())
    page = Page(text)
    assert "://" not in text and not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|import)\s*\(|@import|url\(", text)
    for tag, attributes in page.tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base"}
        assert not {"src", "href", "srcset", "data", "action", "onclick", "onload"} & set(attributes), tag
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    assert len(page.scripts) == 2


def test_three_tasks_of_forty_episodes_of_a_hundred_steps_are_below_two_megabytes() -> None:
    trace = made_trace(episodes=40, horizon=100, room=(10, 10), length=50, layers=4, tokens=4)
    assert len(page_of(trace).encode()) < 2_000_000


def test_a_wiring_test_says_so_and_others_do_not() -> None:
    assert Page(page_of(made_trace(), warning=SMOKE_WORDS)).data["warning"] == SMOKE_WORDS
    assert Page(page_of(made_trace())).data["warning"] == ""


def test_names_cannot_break_the_page() -> None:
    name = "</script><script>alert(1)</script><!-- {{data}}"
    text = inspection_page(made_trace(), method=name, environment="a & b")
    page = Page(text)
    assert len(page.scripts) == 2 and page.data["title"] == f"{name} on a & b"
    assert len(text) < 1.1 * len(page_of(made_trace()))


def test_the_same_trace_gives_the_same_page() -> None:
    assert page_of(made_trace()) == page_of(made_trace())


def test_a_world_that_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(UserError, match=r"cannot be drawn from above(.|\n)*function `scene`"):
        page_of(made_trace(scenes=False))


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="70000 do not fit into int16"):
        packed(np.array([0, 70000]), "int16")


# ---------------------------------------------------------------------------------------------------------- the script


@needs_node
def test_the_page_says_what_was_read_at_the_step_that_is_shown() -> None:
    trace = made_trace(length=6)
    said = run_script(
        page_of(trace),
        "return ['agent-said', 'read-said', 'agent', 'read', 'attention'].map((id) => made[id].innerHTML);",
        "#task=6&episode=5&step=9",
    )
    row = trace.steps(6, 4).start + 8
    episode, first, end = (int(trace.facts[f"retrieved_{name}"][row, 0]) for name in ("episode", "first", "end"))
    assert f"<dd>episode {episode + 1}, steps {first + 1} to {end}</dd>" in said[1]
    assert f"<dd>{trace.facts['retrieved_similarity'][row, 0]:.3f}</dd>" in said[1]
    line, column = trace.cell_N2[row]
    action = ("north", "east", "south", "west", "stay")[trace.played.action[row]]
    assert f"<dd>column {column}, row {line}</dd>" in said[0] and f"<dd>{action}</dd>" in said[0]
    total = trace.returns_KE[1, 4]
    sofar = trace.played.reward[trace.steps(6, 4)][:9].sum()
    assert f"<dd>{sofar:.0f} so far, {total:.0f} at the end</dd>" in said[0] and "<dd>9 from here</dd>" in said[0]
    assert said[2].count('class="mark"') == said[3].count('class="mark"') == 1
    assert said[4].count('class="attend"') == end - first
    moved = (np.diff(trace.cell_N2[trace.steps(6, 4)][:9].astype(int), axis=0) != 0).any(1).sum()
    assert said[2].count('class="walk agent"') == moved


@needs_node
def test_the_task_of_highest_return_is_shown_first() -> None:
    trace = made_trace()
    totals = trace.returns_KE.sum(1)
    assert len(set(totals.tolist())) == len(trace.tasks)
    text = page_of(trace)
    assert run_script(text, "return location.hash").startswith(f"#task={trace.tasks[totals.argmax()]}&")
    trace.played.reward[:] *= -1
    assert run_script(page_of(trace), "return location.hash").startswith(f"#task={trace.tasks[totals.argmin()]}&")
    assert run_script(text, "return made.facts.textContent").endswith("the best task first")


@needs_node
def test_keys_walk_through_steps_episodes_and_tasks() -> None:
    places = run_script(
        page_of(made_trace()),
        """const seen = [location.hash];
        for (const key of ["ArrowRight", "End", "ArrowRight", "ArrowLeft", "ArrowUp", "Home", "PageDown", "ArrowDown"]) {
          press(key); seen.push(location.hash);
        }
        press("ArrowRight", { shiftKey: true }); seen.push(location.hash);
        press("x"); press("PageUp"); press("PageUp"); seen.push(location.hash);
        return seen.map((place) => place.match(/\\d+/g).map(Number));""",
    )
    assert places == [
        *([0, 3, 1], [0, 3, 2], [0, 3, 12], [0, 4, 1], [0, 3, 12], [0, 4, 12], [0, 4, 1], [6, 4, 1], [6, 3, 1]),
        *([6, 3, 11], [0, 3, 11]),
    ]


@needs_node
def test_in_the_first_episode_nothing_is_read() -> None:
    said = run_script(
        page_of(made_trace()), "return [made['read'].innerHTML, made['attention-said'].textContent];", "#episode=1"
    )
    assert "its memory is empty" in said[0] and said[1] == "nothing is read"


@needs_node
def test_a_method_without_memory_has_a_page_without_what_it_reads() -> None:
    hidden, steps = run_script(
        page_of(made_trace(method="ad", retrieves=False)),
        "return [[made['read-card'].hidden, made['attention-card'].hidden], made['steps'].innerHTML];",
    )
    assert hidden == [True, True] and 'class="curve agent"' in steps


@needs_node
@pytest.mark.parametrize("context", [5, 30])
def test_a_transformers_page_shows_how_much_it_reads_of_each_step_of_its_episode(context: int) -> None:
    """The first of two layers reads the present step alone, the other all that the context reaches alike."""
    plain = made_trace(method="dqn_gpt", retrieves=False)
    weights = np.zeros((len(plain.played), 2, context), np.float32)
    weights[:, 0, -1] = 1.0
    for row, step in enumerate(plain.played.timestep):
        reach = min(context, step + 1)
        weights[row, 1, context - reach :] = 1 / reach
    maps = {"history_attention": weights}
    trace = Trace(plain.about, plain.played, {}, maps, np.arange(len(plain.played)), plain.cell_N2)
    said = run_script(
        page_of(trace),
        """const first = ['attention', 'agent-title', 'agent'].map((id) => [made[id].innerHTML, made[id].textContent]);
        made["attention"].handlers.click({ target: { dataset: { step: "7" } } });
        return [...first, made['attention-card'].hidden, location.hash];""",
        "#task=6&episode=5&step=9",
    )
    reach = min(context, 9)
    bars = re.findall(r"<title>step (\d+): (\S+) %</title>", said[0][0])
    assert [int(step) for step, _ in bars] == list(range(10 - reach, 10))
    assert [float(share) for _, share in bars] == pytest.approx([50 / reach] * (reach - 1) + [50 + 50 / reach], abs=0.3)
    assert said[1][1].endswith("shaded: attention") and 'class="attend"' in said[2][0]
    assert said[3] is False and said[4].endswith("step=8")


@needs_node
def test_of_several_windows_each_can_be_looked_at() -> None:
    trace = made_trace(select=2, length=4)
    said = run_script(
        page_of(trace),
        """const first = made["read-said"].innerHTML;
        made["choices"].handlers.click({ target: { dataset: { entry: "0" } } });
        return [first, made["read-said"].innerHTML];""",
        "#task=0&episode=6&step=4",
    )
    row = trace.steps(0, 5).start + 3
    for text, entry in zip(said, (1, 0), strict=True):  # the last one, with the highest return, is shown first
        assert f"<dd>{trace.facts['retrieved_similarity'][row, entry]:.3f}</dd>" in text


@needs_node
@pytest.mark.parametrize(("gain", "numbers"), [(1, ["0", "1"]), (-1, ["0", "-1"])])
def test_returns_above_and_below_zero_are_drawn_within_their_charts(gain: int, numbers: list[str]) -> None:
    trace = made_trace(method="ad", retrieves=False)
    trace.played.reward[:] = 0
    trace.played.reward[trace.steps(6, 4).start] = gain
    returns, steps = run_script(
        page_of(trace), "return [made['returns'].innerHTML, made['steps'].innerHTML];", "#task=6&episode=5&step=9"
    )
    for chart in (returns, steps):
        assert re.findall(r'text-anchor="end">(-?\d+)</text>', chart) == numbers
    (bar,) = re.findall(r'class="bar now" x="\S+" y="(\S+)" width="\S+" height="(\S+)"', returns)
    assert (float(bar[0]), float(bar[1])) == (8, 100)
    (curve,) = re.findall(r'class="curve agent" points="([^"]+)"', steps)
    assert {float(place.split(",")[1]) for place in curve.split()} == {12 if gain > 0 else 150}


@needs_node
def test_every_step_of_every_task_can_be_drawn() -> None:
    drawn = run_script(
        page_of(made_trace(select=2, layers=1, tokens=4)),
        """let count = 0;
        made["visits"].checked = true; made["visits"].handlers.change();
        for (let task = 0; task < DATA.tasks.length; task++) {
          go({ task, episode: 0, step: 0 });
          do {
            count++;
            const text = Object.values(made).map((part) => part.innerHTML).join("");
            if (/NaN|undefined|Infinity/.test(text)) return location.hash;
          } while (move(1));
        }
        return count;""",
    )
    assert drawn == 3 * 6 * 12


def test_what_a_task_aimed_at_is_its_own_step_by_step() -> None:
    trace = made_trace()
    aim = np.arange(len(trace.played), dtype=np.float32)
    trace = replace(trace, facts={**trace.facts, "return_to_go": aim})
    for task in Page(page_of(trace)).data["tasks"]:
        assert unpacked(task["aim"], "<f4").tolist() == aim[trace.played.task == task["index"]].tolist()
