"""The inspection page: one HTML file in which a person walks through a traced run, step by step.

The frame of every page is `page.html`, `page.css` and `page.js`, written by hand; this one fills it with `inspection.html`,
`inspection.css` and `inspection.js`. The data is one JSON text. Columns of numbers stand in it as base64 of little-endian
arrays; attention is averaged over layers and rounded to 255 levels of each map's largest value. Nothing is loaded from
anywhere: the page works from a file, and its policy forbids it to ask the network.
"""

from __future__ import annotations

import base64
import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from recollect.common.traces import Trace, without_scene

FOLDER = Path(__file__).parent
NUMBERS = ("similarity", "score", "total_return")


def inspection_page(trace: Trace, *, method: str, environment: str, warning: str = "") -> str:
    """The page of a trace; `warning`: what it says of its numbers above all.

    A UserError says where the world cannot be drawn from above.
    """
    tasks = [_task(trace, entry) for entry in trace.about["tasks"]]
    data = {**heading(trace, method, environment, warning), "tasks": tasks}
    return filled("inspection", data, clickable="charts")


def heading(trace: Trace, method: str, environment: str, warning: str) -> dict[str, Any]:
    about = trace.about
    return {
        "title": f"{method} on {environment}",
        "facts": [f"scale {about['scale']}", f"seed {about['seed']}", f"split {about['split']}"],
        "warning": warning,
    }


def filled(name: str, data: dict[str, Any], *, clickable: str, policy: str = "") -> str:
    """A page with its data.

    Args:
        name: of its own main part, style and script.
        clickable: what a click does something on, in words.
        policy: what it may load besides style and script that stand in it.
    """

    def text(file: str) -> str:
        return (FOLDER / file).read_text(encoding="utf-8")

    parts = {
        "policy": policy,
        "title": html.escape(", ".join([data["title"], data["facts"][1]])),
        "page_style": text("page.css"),
        "style": text(f"{name}.css"),
        "main": text(f"{name}.html"),
        "clickable": clickable,
        "data": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "page_script": text("page.js"),
        "script": text(f"{name}.js"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place.group(1)], text("page.html"))


def _task(trace: Trace, entry: dict[str, Any]) -> dict[str, Any]:
    """One traced task as the page's script reads it."""
    scene, task = entry["scene"], int(entry["index"])
    if scene is None or trace.cell_N2 is None:
        raise without_scene(trace, f"inspection page, task '{entry['name']}'")
    table = trace.played.episodes
    of_task = table.task == task
    first = int(table.start[of_task][0])
    end = first + int(table.length[of_task].sum())
    cells = np.asarray(trace.cell_N2[first:end], np.int64)
    content: dict[str, Any] = {
        **scene,
        "index": task,
        "name": entry["name"],
        "begins": entry.get("begins"),
        "start": [int(start) - first for start in table.start[of_task]] + [end - first],
        "cell": packed(cells[:, 0] * scene["width"] + cells[:, 1], "int32"),
        "action": packed(trace.played.action[first:end], "int16"),
        "reward": packed(trace.played.reward[first:end], "float32"),
        "aim": column_of(trace, "return_to_go", slice(first, end)),
        "read": None,
        "attention": None,
    }
    if "retrieved_episode" in trace.facts:
        read = {name: trace.facts[f"retrieved_{name}"][first:end] for name in ("episode", "first", "end", *NUMBERS)}
        content["read"] = {
            "count": int(read["episode"].shape[1]),
            **{name: packed(values, "float32" if name in NUMBERS else "int16") for name, values in read.items()},
        }
        if "attention" in trace.maps:
            content["attention"] = _attention(trace, "attention", first, end)
    elif "history_attention" in trace.maps:
        content["attention"] = _attention(trace, "history_attention", first, end, int(table.length[of_task].max()))
    return content


def column_of(trace: Trace, fact: str, rows: slice) -> str | None:
    """Numbers that a method may say of its steps; None: it says none."""
    return packed(trace.facts[fact][rows], "float32") if fact in trace.facts else None


def _attention(trace: Trace, name: str, first: int, end: int, last: int | None = None) -> dict[str, Any]:
    """Mean attention over layers on each retrieved step, or on each of so many `last` steps, where there is a map."""
    has_map = (trace.map_row >= first) & (trace.map_row < end)
    weight_MLW = trace.maps[name][has_map].astype(np.float64)
    if last is None:
        weight_MLW = weight_MLW.sum(-1)  # over the tokens of a step
    weight_MW = weight_MLW.mean(1)[:, slice(None) if last is None else slice(-last, None)]
    return {
        "width": int(weight_MW.shape[1]),
        "row": packed(trace.map_row[has_map] - first, "int32"),
        **rounded(weight_MW),
    }


def rounded(weights: np.ndarray) -> dict[str, str]:
    """Maps of attention [..., W] in 255 levels of the largest value of each, `weight`, and that value, `top`."""
    top = weights.max(-1, initial=0.0)
    share = np.divide(weights, top[..., None], out=np.zeros_like(weights), where=top[..., None] > 0)
    return {"top": packed(top, "float32"), "weight": packed(np.rint(255 * share), "uint8")}


def packed(values: np.ndarray, dtype: str) -> str:
    """Base64 of the values as a little-endian array, row after row."""
    wanted = np.dtype(dtype)
    numbers = np.ascontiguousarray(values, wanted.newbyteorder("<"))
    if wanted.kind in "iu" and not np.array_equal(numbers, values):
        raise ValueError(f"values from {np.min(values)} to {np.max(values)} do not fit into {dtype}")
    return base64.b64encode(numbers.tobytes()).decode()
