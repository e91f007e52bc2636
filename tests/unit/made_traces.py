"""Traces made by hand for tests of figures and pages: agents that walk at random in a room and read their own past."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from recollect.common.histories import Histories
from recollect.common.traces import Trace

ACTIONS = ("north", "east", "south", "west", "stay")
MOVES = np.array([(-1, 0), (0, 1), (1, 0), (0, -1), (0, 0)])


def scene(goal: tuple[int, int], height: int, width: int) -> dict[str, Any]:
    """An empty room with one goal (row, column)."""
    return {"height": height, "width": width, "marks": [["goal", *goal]], "actions": list(ACTIONS), "walls": []}


def made_trace(
    *,
    method: str = "radt",
    seed: int = 0,
    tasks: tuple[int, ...] = (0, 6, 13),
    episodes: int = 6,
    horizon: int = 12,
    room: tuple[int, int] = (4, 5),
    retrieves: bool = True,
    select: int = 1,
    length: int = 6,
    layers: int = 2,
    tokens: int = 1,
    env: str = "dark_room",
    scenes: bool = True,
) -> Trace:
    """Random walks from the top left; from the second episode on a window of an earlier one is read at each step.

    Attention on step w of a window is proportional to 1 + w, twice as much in the second layer's last step; steps before
    the window's first are padding.
    """
    draws = np.random.default_rng([seed, len(method), ord(method[0])])
    steps = len(tasks) * episodes * horizon
    goals = [(int(draws.integers(room[0])), int(draws.integers(1, room[1]))) for _ in tasks]
    action = draws.integers(5, size=(len(tasks), episodes, horizon))
    cell = np.zeros((len(tasks), episodes, horizon + 1, 2), np.int64)
    for step in range(horizon):
        cell[:, :, step + 1] = np.clip(cell[:, :, step] + MOVES[action[:, :, step]], 0, np.array(room) - 1)
    goal = np.array(goals)[:, None, None]
    reward = (cell[:, :, 1:] == goal).all(-1)
    at = np.indices((len(tasks), episodes, horizon))
    observation = cell[:, :, :-1].reshape(steps, 2).astype(np.int16)
    played = Histories(
        {
            "observation": observation,
            "action": action.reshape(steps).astype(np.int64),
            "reward": reward.reshape(steps).astype(np.float32),
            "done": (at[2] == horizon - 1).reshape(steps),
            "task": np.array(tasks, np.int32)[at[0].reshape(steps)],
            "episode": at[1].reshape(steps).astype(np.int32),
        }
    )
    facts = {"return_to_go": np.full(steps, 9.0, np.float32)}
    maps: dict[str, np.ndarray] = {}
    map_row = np.empty(0, np.int64)
    if retrieves:
        episode = at[1].reshape(steps, 1)
        which = np.sort(draws.integers(0, np.maximum(episode, 1), size=(steps, select)), 1)
        found = np.repeat(episode > 0, select, 1)
        first = draws.integers(0, horizon - length + 2, size=(steps, select))
        end = np.minimum(first + length, horizon)
        returns = reward.sum(-1)[at[0].reshape(steps, 1), which].astype(np.float32)
        for name, values in (("episode", which), ("first", first), ("end", end)):
            facts[f"retrieved_{name}"] = np.where(found, values, -1).astype(np.int32)
        numbers = {
            "similarity": draws.random((steps, select)),
            "score": draws.random((steps, select)),
            "total_return": returns,
        }
        for name, values in numbers.items():
            facts[f"retrieved_{name}"] = np.where(found, values, np.nan).astype(np.float32)
        weight = np.tile(1.0 + np.arange(length), (steps, layers, select, 1))
        weight[:, -1, :, -1] *= 2
        step_SKL = end[:, :, None] + np.arange(-length, 0)
        weight = weight * (step_SKL >= first[:, :, None])[:, None] * found[:, None, :, None]
        weight = weight.reshape(steps, layers, select * length)
        weight = weight / np.maximum(weight.sum(-1, keepdims=True), 1e-12)
        shares = np.arange(1.0, tokens + 1) / np.arange(1.0, tokens + 1).sum()
        maps["attention"] = (weight[..., None] * shares).astype(np.float16)
        map_row = np.arange(steps)
    about = {
        "scale": "demo", "env": env, "method": method, "seed": seed, "split": "eval", "horizon": horizon,
        "tasks": [
            {"index": task, "name": f"goal_{task}", "scene": scene(goal, *room) if scenes else None}
            for task, goal in zip(tasks, goals, strict=True)
        ],
    }  # fmt: skip
    return Trace(about, played, facts, maps, map_row, observation.astype(np.int16) if scenes else None)


def write_trace(trace: Trace, folder: Path) -> Path:
    """Seal a trace under the name of its run."""
    env, method, seed = trace.run
    path = folder / f"{env}_{method}_{seed}.safetensors"
    trace.write(path, {})
    return path


WORDS = ("key", "ball", "door", "box", "wall")


def made_image_trace(
    *,
    method: str = "shelm",
    env: str = "grid",
    seed: int = 0,
    episodes: int = 3,
    horizon: int = 7,
    words: int = 2,
    mixture: bool = False,
    layers: int = 4,
    images: int = 4,
    reads: bool = True,
) -> Trace:
    """Episodes of one task in which one of a few images [3, 6, 8] is seen at each step; image i always becomes word i and the
    next ones. A third of the attention is on the step itself, the rest evenly on the four before, zeros included.
    """
    draws = np.random.default_rng([seed, len(method), ord(method[0])])
    steps = episodes * horizon
    pictures = draws.integers(0, 256, (images, 3, 6, 8), dtype=np.uint8)
    which = draws.integers(images, size=steps)
    at = np.indices((episodes, horizon))
    played = Histories(
        {
            "observation": pictures[which],
            "action": draws.integers(3, size=steps),
            "reward": (at[1] == horizon - 1).reshape(steps).astype(np.float32),
            "done": (at[1] == horizon - 1).reshape(steps),
            "task": np.zeros(steps, np.int32),
            "episode": at[0].reshape(steps).astype(np.int32),
        }
    )
    logits = draws.standard_normal((steps, 3)).astype(np.float32)
    facts = {"outputs": logits, "value": draws.standard_normal(steps).astype(np.float32)}
    about: dict[str, Any] = {
        "scale": "demo", "env": env, "method": method, "seed": seed, "split": "eval", "horizon": horizon,
        "actions": ["left", "right", "forward"], "tasks": [{"index": 0, "name": env, "scene": None}],
    }  # fmt: skip
    maps: dict[str, np.ndarray] = {}
    map_row = np.arange(0, steps, 2) if reads else np.empty(0, np.int64)
    if reads:
        place = (which[:, None] + np.arange(words)) % len(WORDS)
        facts["tokens"] = 100 + place
        facts["token_scores"] = (0.3 - 0.1 * np.arange(words) + 0.01 * which[:, None]).astype(np.float32)
        if mixture:
            facts["token_entropy"] = (1.0 + which).astype(np.float32)
        about["words"] = {str(100 + i): word for i, word in enumerate(WORDS)}
        weights = np.broadcast_to(np.array([1, 1, 1, 1, 2]) / 6, (len(map_row), layers, 5))
        maps["history_attention"] = weights.astype(np.float16)
        maps["inputs"] = np.eye(images, 6, dtype=np.float16)[which[map_row]][:, None]
    return Trace(about, played, facts, maps, map_row, None)
