"""The inspection page: one HTML file in which a person walks through a traced run, step by step.

The page (`inspection.html`: style and script, written by hand) gets its data as one JSON text. Columns of numbers stand in
it as base64 of little-endian arrays; attention is averaged over layers and rounded to 255 levels of each map's largest
value. Nothing is loaded from anywhere: the page works from a file, and its policy forbids it to ask the network.
"""

from __future__ import annotations

import base64
import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from recollect.common.traces import Trace
from recollect.figures.spec import SMOKE_WORDS
from recollect.settings.errors import UserError

TEMPLATE = Path(__file__).with_name("inspection.html")
MOVING = Path(__file__).with_name("moving.js")  # what the scripts of all pages share
NUMBERS = ("similarity", "score", "total_return")


def inspection_page(trace: Trace, *, method: str, environment: str, wiring_test: bool = False) -> str:
    """The page of a trace.

    Args:
        method, environment: names to show.
        wiring_test: its numbers mean nothing, and the page says so.

    Raises:
        UserError: the world cannot be drawn from above.
    """
    tasks = [_task(trace, entry) for entry in trace.about["tasks"]]
    return filled(TEMPLATE, {**heading(trace, method, environment, wiring_test), "tasks": tasks})


def heading(trace: Trace, method: str, environment: str, wiring_test: bool) -> dict[str, Any]:
    """What a page says at its top."""
    about = trace.about
    return {
        "title": f"{method} on {environment}",
        "facts": [f"scale {about['scale']}", f"seed {about['seed']}", f"split {about['split']}"],
        "warning": SMOKE_WORDS if wiring_test else "",
    }


def filled(template: Path, data: dict[str, Any]) -> str:
    """A page with its data, which has `heading` and whatever its script reads."""
    parts = {
        "{{title}}": html.escape(", ".join([data["title"], data["facts"][1]])),
        "{{moving}}": MOVING.read_text(encoding="utf-8"),
        "{{data}}": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    }
    return re.sub(r"\{\{\w+\}\}", lambda found: parts[found.group()], template.read_text(encoding="utf-8"))


def _task(trace: Trace, entry: dict[str, Any]) -> dict[str, Any]:
    """One traced task as the page's script reads it."""
    scene, task = entry["scene"], int(entry["index"])
    if scene is None or trace.cell_N2 is None:
        raise UserError(
            f"the world of {trace.about['env']} cannot be drawn from above",
            where=f"inspection page, task '{entry['name']}'",
            do="give its file a function `scene` (docs/adding.md)",
        )
    table = trace.played.episodes
    mine = table.task == task
    first = int(table.start[mine][0])
    end = first + int(table.length[mine].sum())
    cells = np.asarray(trace.cell_N2[first:end], np.int64)
    found: dict[str, Any] = {
        **scene,
        "index": task,
        "name": entry["name"],
        "start": [int(start) - first for start in table.start[mine]] + [end - first],
        "cell": packed(cells[:, 0] * scene["width"] + cells[:, 1], "int32"),
        "action": packed(trace.played.action[first:end], "int16"),
        "reward": packed(trace.played.reward[first:end], "float32"),
        "aim": None,
        "read": None,
        "attention": None,
    }
    if "return_to_go" in trace.facts:
        found["aim"] = packed(trace.facts["return_to_go"][first:end], "float32")
    if "retrieved_episode" in trace.facts:
        read = {name: trace.facts[f"retrieved_{name}"][first:end] for name in ("episode", "first", "end", *NUMBERS)}
        found["read"] = {
            "count": int(read["episode"].shape[1]),
            **{name: packed(values, "float32" if name in NUMBERS else "int16") for name, values in read.items()},
        }
        if "attention" in trace.maps:
            found["attention"] = _attention(trace, first, end)
    return found


def _attention(trace: Trace, first: int, end: int) -> dict[str, Any]:
    """Mean attention over layers on each retrieved step, where there is a map."""
    chosen = (trace.map_row >= first) & (trace.map_row < end)
    weight_MW = trace.maps["attention"][chosen].astype(np.float64).sum(-1).mean(1)
    top_M = weight_MW.max(1, initial=0.0)
    scaled = np.divide(weight_MW, top_M[:, None], out=np.zeros_like(weight_MW), where=top_M[:, None] > 0)
    return {
        "width": int(weight_MW.shape[1]),
        "row": packed(trace.map_row[chosen] - first, "int32"),
        "top": packed(top_M, "float32"),
        "weight": packed(np.rint(255 * scaled), "uint8"),
    }


def packed(values: np.ndarray, dtype: str) -> str:
    """Base64 of the values as a little-endian array, row after row."""
    wanted = np.dtype(dtype)
    numbers = np.ascontiguousarray(values, wanted.newbyteorder("<"))
    if wanted.kind in "iu" and not np.array_equal(numbers, values):
        raise ValueError(f"values from {np.min(values)} to {np.max(values)} do not fit into {dtype}")
    return base64.b64encode(numbers.tobytes()).decode()
