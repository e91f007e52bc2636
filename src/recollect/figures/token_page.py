"""The inspection page of a run that sees images: each image, the words that a language model reads in its place, and why.

As `recollect.figures.inspection`, one HTML file that asks nobody for anything; its own parts are `token_page.html`, `.css` and
`.js`. Images are PNGs inside of it, each different one once. What SHELM and HELM read are words, and the page counts which
words stand for which images; of methods that read none it shows the rest. Specification 9.3 of HELM.
"""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

from recollect.common.traces import Trace, different
from recollect.figures.inspection import column_of, filled, heading, packed, rounded

MOST_STEPS = 3000  # on a page, so that it stays small: the first episodes, at least one of each task
MOST_WORDS, MOST_IMAGES = 24, 12  # in the statistics, the most frequent ones


def token_page(trace: Trace, *, method: str, environment: str, warning: str = "") -> str:
    """The page of a trace whose observations are images; `warning`: what it says of its numbers above all."""
    tasks = trace.about["tasks"]
    data = {
        **heading(trace, method, environment, warning),
        "actions": trace.about.get("actions") or [],
        "tasks": [_task(trace, entry, MOST_STEPS // len(tasks)) for entry in tasks],
    }
    return filled("token_page", data, clickable="images, words and charts", policy="; img-src data:")


def _task(trace: Trace, entry: dict[str, Any], most: int) -> dict[str, Any]:
    """One traced task as the page's script reads it."""
    table, played = trace.played.episodes, trace.played
    of_task = np.flatnonzero(table.task == int(entry["index"]))
    first, ends = int(table.start[of_task[0]]), (table.start + table.length)[of_task]
    kept = max(1, int((ends - first <= most).sum()))
    rows = slice(first, int(ends[kept - 1]))
    images_F, which_N = different(played.observation[rows])
    content: dict[str, Any] = {
        "index": int(entry["index"]),
        "name": entry["name"],
        "traced": len(of_task),
        "start": [*(int(start) - first for start in table.start[of_task[:kept]]), int(ends[kept - 1]) - first],
        "images": [base64.b64encode(png(pixels)).decode() for pixels in pixels_of(images_F)],
        "image": packed(which_N, "int32"),
        "action": packed(played.action[rows], "int16") if played.action.ndim == 1 else None,
        "reward": packed(played.reward[rows], "float32"),
        "value": column_of(trace, "value", rows),
        "outputs": None,
        "tokens": None,
        "attention": _attention(trace, rows),
    }
    outputs = trace.facts.get("outputs")
    if outputs is not None and outputs.ndim == 2 and played.action.ndim == 1:
        content["outputs"] = {"count": int(outputs.shape[1]), "log": packed(outputs[rows], "float32")}
    if "tokens" in trace.facts:
        content["tokens"] = _tokens(trace, rows, which_N)
    return content


def _tokens(trace: Trace, rows: slice, which_N: np.ndarray) -> dict[str, Any]:
    """The words of each step, and which words stand for which images.

    A mixture of all words (HELM) counts as its heaviest one.
    """
    token_NK, score_NK = trace.facts["tokens"][rows], trace.facts["token_scores"][rows]
    mixture = "token_entropy" in trace.facts
    token_W, place_N = np.unique(token_NK, return_inverse=True)
    place_NK = place_N.reshape(token_NK.shape)
    read_NK = place_NK[:, :1] if mixture else place_NK
    steps_W = np.bincount(read_NK.ravel(), minlength=len(token_W))
    seen_F = np.bincount(which_N)
    histogram = []
    for word in np.argsort(-steps_W, kind="stable")[:MOST_WORDS]:
        if not steps_W[word]:
            break
        with_F = np.bincount(which_N[(read_NK == word).any(1)], minlength=len(seen_F))
        about = {"steps": int(steps_W[word]), "images": int((with_F > 0).sum()), "image": int(with_F.argmax())}
        histogram.append({"word": int(word), **about})
    frequent_F = np.argsort(-seen_F, kind="stable")[:MOST_IMAGES]
    row_F = np.unique(which_N, return_index=True)[1]
    words = int((steps_W > 0).sum())
    return {
        "count": int(token_NK.shape[1]),
        "mixture": mixture,
        "words": [trace.about["words"][str(token)] for token in token_W.tolist()],
        "word": packed(place_NK, "int32"),
        "score": packed(score_NK, "float32"),
        "entropy": column_of(trace, "token_entropy", rows),
        "statistics": {
            "steps": len(which_N),
            "images": len(seen_F),
            "words": words,
            "per_image": words / len(seen_F),
            "histogram": histogram,
            "frequent": [{"image": int(f), "steps": int(seen_F[f]), "row": int(row_F[f])} for f in frequent_F],
        },
    }


def _attention(trace: Trace, rows: slice) -> dict[str, Any] | None:
    """What the language model's first, middle and last layer look back at, at the steps that have a map; None: unknown."""
    if "history_attention" not in trace.maps:
        return None
    has_map = (trace.map_row >= rows.start) & (trace.map_row < rows.stop)
    weight_MLS = trace.maps["history_attention"][has_map].astype(np.float64)
    layers = weight_MLS.shape[1]
    # A layer that is two of them has the later name.
    names = {layers - 1: "last", (layers - 1) // 2: "middle", 0: "first"}
    shown = sorted(names)
    return {
        "layers": [f"{names[layer]} of {layers}" if layers > 1 else "only" for layer in shown],
        "steps": int(weight_MLS.shape[2]),
        "row": packed(trace.map_row[has_map] - rows.start, "int32"),
        **rounded(weight_MLS[:, shown]),
    }


def pixels_of(images: np.ndarray) -> np.ndarray:
    """Images [..., C, H, W] or [..., H, W, C], of one or three channels, as [..., H, W, 3]."""
    first = images.shape[-3] in (1, 3) and images.shape[-1] not in (1, 3)
    first = first or (images.shape[-3] == images.shape[-1] and images.shape[-2] != images.shape[-1])
    last = np.moveaxis(images, -3, -1) if first else images
    return np.broadcast_to(last, (*last.shape[:-1], 3))


def png(pixels: np.ndarray) -> bytes:
    """A PNG of pixels uint8 [H, W, 3]."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG", optimize=True)
    return file.getvalue()
