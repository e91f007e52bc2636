"""Stepping a world: 1024 instances at once, against a loop over one environment written in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.harness import Comparison, Goal, Side
from benchmarks.plain_match import PlainMatch
from recollect.environments import registry

BATCH = 1024


class PlainRoom:
    """One Dark-Room (or, with a key, Key-Door) as a gym environment is usually written: integers and one step per call."""

    moves = ((-1, 0), (0, 1), (1, 0), (0, -1), (0, 0))

    def __init__(self, data: dict[str, Any], size: int = 10, horizon: int = 100) -> None:
        self.goal: tuple[int, int] = data["goal"] if "goal" in data else data["door"]
        self.key: tuple[int, int] | None = data.get("key")
        self.size, self.horizon = size, horizon

    def reset(self) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode at the top left."""
        self.x = self.y = self.t = 0
        self.has_key = self.key is None
        return self.observation(), {"timestep": 0}

    def observation(self) -> np.ndarray:
        """(row, column)."""
        return np.array([self.y, self.x], dtype=np.int16)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Walk, and be paid."""
        at_key = (self.x, self.y) == self.key
        down, right = self.moves[action]
        self.y = min(max(self.y + down, 0), self.size - 1)
        self.x = min(max(self.x + right, 0), self.size - 1)
        self.t += 1
        here = (self.x, self.y)
        reward = 0.0
        if not self.has_key:
            if at_key or here == self.key:
                self.has_key, reward = True, 1.0
        elif here == self.goal:
            reward = 1.0
        return self.observation(), reward, False, self.t >= self.horizon, {"timestep": self.t}


def trace_of_room(room: PlainRoom, actions: np.ndarray) -> np.ndarray:
    """Observation, reward and end of every step [T, 4], starting anew at every end."""
    room.reset()
    trace = np.empty((len(actions), 4))
    for t, action in enumerate(actions.tolist()):
        observation, reward, _, ended, _ = room.step(action)
        trace[t] = (*observation, reward, ended)
        if ended:
            room.reset()
    return trace


def comparisons(quick: bool) -> Iterator[Comparison]:
    """Dark-Room, Key-Door and Visual Match."""
    for name, title in (("dark_room", "Dark-Room"), ("key_door", "Key-Door")):
        yield comparison(name, title, batch=16 if quick else BATCH, steps=150 if quick else 1000)
    yield visual_match(batch=16 if quick else BATCH, episodes=1 if quick else 10)


def comparison(name: str, title: str, *, batch: int, steps: int) -> Comparison:
    """Both play the same kind of random actions, with a reset at every horizon."""
    # Where the goal is the start cell the start is random; that task is left out so that both play the same.
    key = "goal" if name == "dark_room" else "door"
    tasks = [task for task in registry.tasks(name, {}, "train") if task.data[key] != (0, 0)]
    played = [tasks[i % len(tasks)] for i in range(batch)]
    world = registry.make_world(name, {}, played, np.arange(batch, dtype=np.uint64))
    actions_TB = np.random.default_rng(0).integers(0, 5, (steps, batch))
    room, one_by_one = PlainRoom(played[0].data), actions_TB[:, 0].tolist()

    def ours() -> None:
        world.reset()
        for actions_B in actions_TB:
            _, _, _, truncated_B, _ = world.step(actions_B)
            if truncated_B[0]:
                world.reset(options={"reset_mask": truncated_B})

    def plain() -> None:
        room.reset()
        for action in one_by_one:
            _, _, _, ended, _ = room.step(action)
            if ended:
                room.reset()

    def difference() -> float:
        world.reset()
        trace_TB4 = np.empty((min(steps, 250), batch, 4))
        for t, actions_B in enumerate(actions_TB[:250]):
            observation_B2, reward_B, _, truncated_B, _ = world.step(actions_B)
            trace_TB4[t] = np.column_stack([observation_B2, reward_B, truncated_B])
            if truncated_B.any():
                world.reset(options={"reset_mask": truncated_B})
        rooms = range(0, batch, max(1, batch // 64))
        return max(
            float(abs(trace_of_room(PlainRoom(played[b].data), actions_TB[:250, b]) - trace_TB4[:, b]).max())
            for b in rooms
        )

    return Comparison(
        work=f"stepping {title}, batch {batch}",
        unit="steps",
        plain="loop over one plain Python environment",
        ours=Side(ours, batch * steps),
        against=Side(plain, steps),
        difference=difference,
        goal=Goal(1000),
        released="dark_room_stepping" if name == "dark_room" else "",
    )


def visual_match(*, batch: int, episodes: int) -> Comparison:
    """Whole episodes of random actions, with images."""
    world = registry.make_world(
        "visual_match", {}, registry.tasks("visual_match", {}, "train") * batch, np.arange(batch, dtype=np.uint64)
    )
    game = PlainMatch()
    actions_TB = np.random.default_rng(0).integers(0, 4, (game.horizon, batch))
    one_by_one = actions_TB[:, 0].tolist()

    def ours() -> None:
        for _ in range(episodes):
            world.reset()
            for actions_B in actions_TB:
                world.step(actions_B)

    def plain() -> None:
        for _ in range(episodes):
            game.reset()
            for action in one_by_one:
                game.step(action)

    def difference() -> float:
        """Ours is played first, and the plain game in the rooms that ours drew."""
        world.reset()
        rooms = [world.get_state()["board"]]
        steps = []
        for t, actions_B in enumerate(actions_TB):
            steps.append(world.step(actions_B))
            if t + 1 in (15, 15 + game.length):
                rooms.append(world.get_state()["board"])
        worst = 0.0
        for b in range(0, batch, max(1, batch // 64)):
            game.reset(np.stack([room_BC[b] for room_BC in rooms]))
            for (image_B, reward_B, end_B, _, info), action in zip(steps, actions_TB[:, b].tolist(), strict=True):
                image, reward, ended, _, told = game.step(action)
                wrong = ended != end_B[b] or (ended and told["success"] != info["success"][b])
                apart = np.abs(image - image_B[b].astype(int)).max(), abs(reward - reward_B[b]), 255 * wrong
                worst = max(worst, *map(float, apart))
        return worst

    return Comparison(
        work=f"stepping Visual Match, batch {batch}",
        unit="steps",
        plain="loop over one plain Python environment",
        ours=Side(ours, batch * episodes * game.horizon),
        against=Side(plain, episodes * game.horizon),
        difference=difference,
        released="visual_match_stepping",
    )
