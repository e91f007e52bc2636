"""Crafter, a small Minecraft, with or without instructions (Hafner 2021; AMAGO, specification 4.7).

With instructions, an episode asks for one to five goals in order ("collect wood", "travel 10m 10m"); completing one pays 1
and completing the last ends it. Without, Crafter's own reward is paid. Observations are one flat vector each, whose parts
`observation_parts` names: {name: (slice, shape)}.

- `crop`: image [3, 48, 64] without the inventory's part, and the inventory's 16 numbers 0..9; uint8.
- `render`: the image [3, 64, 64]; uint8.
- `textures`: 7 x 9 numbers of what is around (0: nothing, else the material or object + 1), then facing (2), inventory / 10
  (16), position (2, (x - 30) / 60) and daylight; float32.
- With instructions, `goals` follow: K x 3 words, completed ones -3 and padding -1; where observations are bytes, plus 128.

The split `single` asks for each achievement alone, `multi` has the paper's ten prompts, and `lengths` has one task for each
number of goals, which are drawn.

What differs from upstream, and why: upstream splits the travels of the ten prompts into wrong words; at the world's border
the cells of `textures` keep their places (upstream moves them to the corner); images are [C, H, W]. `tech_tree` asks for the
first entries up to the one behind the most advanced that was achieved, and at last for all 13; upstream, for those up to it,
and never for the diamond.

What differs from the package, so that an episode is a function of its word and actions, and can be played again:

- Every tenth step creatures come and go, chunk by chunk. The package goes through a chunk's creatures in the order of their
  addresses in memory, which is another one every time. Ours goes in the order in which they came into the world.
- The noise in images of the night has a generator of its own, started from the word and the step. The package draws it from
  the world's, so that one look more or less changes how its creatures walk.

Neither changes any chance: a creature is as likely to be chosen, and the noise has the same distribution.

What the package does slowly and nobody sees is done faster or not at all, with equal results: images (`crafter_image.py`),
new worlds (`crafter_worlds.py`: 4 ms each, of the package 54), distances, and a map of the whole world at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box, Discrete
from pydantic import Field, model_validator

from recollect.environments import crafter_instructions as instructions
from recollect.environments import crafter_worlds
from recollect.environments.base import Outcome, Task, WorldOptions
from recollect.environments.crafter_image import Painter, around
from recollect.environments.goal_sequences import GoalPart, Shown
from recollect.environments.replayed import ReplayedWorld
from recollect.environments.simulated import needed
from recollect.settings.errors import UserError
from recollect.settings.seeding import generator

ACTIONS, ITEMS = 17, 16
PACKAGES = ("crafter",)
MOST_ACHIEVED = 4  # goals that one step can achieve, of more the first
SPLITS = ("train", "eval", "single", "multi", "lengths")
VIEW = (9, 9)  # the package's, of which the lowest two rows show the inventory
VIEW_YX = (7, 9)
FEATURES = 2 + ITEMS + 2 + 1


class Options(WorldOptions):
    """instructions, observation: see the head of the file.
    fewest_goals, most_goals: of an instruction.
    tech_tree: a third of the instructions are an ordered part of the tech tree, up to one above what was achieved.
    hide_future: only the current goal and those completed are shown.
    goals_shown: as they are `after` the step that led to an observation, or `before` it, as by AMAGO's seed code: there a goal
        that a step completed is seen as completed one step later.
    horizon: steps of an episode (the package: 10,000; AMAGO's example 2500, its paper 2000).
    """

    instructions: bool = True
    observation: Literal["crop", "render", "textures"] = "crop"
    fewest_goals: int = Field(default=1, ge=1)
    most_goals: int = Field(default=5, ge=1)
    tech_tree: bool = False
    hide_future: bool = False
    goals_shown: Shown = "after"
    horizon: int = Field(default=2500, ge=1)

    @model_validator(mode="after")
    def _goals_in_order(self) -> Options:
        if self.fewest_goals > self.most_goals:
            raise ValueError(f"fewest_goals {self.fewest_goals} exceeds most_goals {self.most_goals}")
        return self

    def parts(self) -> dict[str, tuple[slice, tuple[int, ...]]]:
        """The parts of an observation, in order."""
        shapes: dict[str, tuple[int, ...]] = {
            "crop": {"image": (3, 48, 64), "inventory": (ITEMS,)},
            "render": {"image": (3, 64, 64)},
            "textures": {"textures": VIEW_YX, "features": (FEATURES,)},
        }[self.observation]  # type: ignore[assignment]
        if self.instructions:
            shapes = {**shapes, "goals": (self.most_goals, instructions.GOAL_WORDS)}
        found, at = {}, 0
        for name, shape in shapes.items():
            found[name] = (slice(at, at + int(np.prod(shape))), shape)
            at = found[name][0].stop
        return found


def tasks(split: str, **options: Any) -> list[Task]:
    """Tasks of a split; needs no package.

    `train`, `eval`: one task, whose instruction is drawn; `single`, `multi`: fixed instructions; `lengths`: instructions of
    `fewest_goals` to `most_goals` goals, a task each, drawn.
    """
    chosen = Options.parse(options, "crafter", split, SPLITS)
    if split in ("train", "eval"):
        return [Task(0, "any_instruction", split)]
    if split == "lengths":
        lengths = range(chosen.fewest_goals, chosen.most_goals + 1)
        return [Task(i, f"{goals}_goal{'s' * (goals > 1)}", split, {"goals": goals}) for i, goals in enumerate(lengths)]
    single = [(name,) for name in instructions.ACHIEVEMENTS]
    listed: Sequence[tuple[str, ...]] = single if split == "single" else instructions.PROMPTS
    return [Task(i, "+".join(goals), split, {"instruction": goals}) for i, goals in enumerate(listed)]


class Player:
    """One game; see `replayed.Player`. Instructions are the world's."""

    def __init__(self, options: Options) -> None:
        package = needed("crafter", "crafter", family="amago")
        self.options = options
        self.inner = package.Env(reward=True, length=None, seed=0)
        self.inner._obs = lambda: None  # nobody looks at what it would draw
        self._package_balance = self.inner._balance_chunk
        self.inner._balance_chunk = self._balance
        self._noise = np.random.RandomState()
        self._painter = Painter(self.inner, self._noise)

    def begin(self, word: int) -> None:
        self.word = word
        crafter_worlds.begin(self.inner, word)
        self.inner._player.distance = self._distance  # it is asked for every creature at every step
        self.achievements: dict[str, int] = dict(self.inner._player.achievements)
        self.goals: list[str] = []

    def step(self, action: Any) -> tuple[float, bool]:
        inner = self.inner
        kept = inner._sem_view, inner._view
        inner._sem_view = lambda: None  # `look` asks for it where it is needed
        inner._view = VIEW  # a step takes its largest number, once per creature: of a tuple that is quick
        try:
            _, reward, over, info = inner.step(int(action))
        finally:
            inner._sem_view, inner._view = kept
        x, y = info["player_pos"].tolist()
        self.goals = instructions.achieved(self.achievements, info["achievements"], x, y)
        self.achievements = dict(info["achievements"])
        return float(reward), bool(over)

    def render(self) -> np.ndarray:
        """What a person sees, uint8 [378, 378, 3], larger than the agent's image."""
        return self._image((378, 378))

    def look(self) -> np.ndarray:
        """All parts of an observation but the goals, flat [D]."""
        player = self.inner._player
        inventory = np.array(list(player.inventory.values()))
        if self.options.observation != "textures":  # of a crop the inventory is cut off, and given as numbers
            crop = self.options.observation == "crop"
            height = 48 if crop else 64
            size = 3 * height * 64
            seen = np.zeros(size + crop * ITEMS, np.uint8)
            self._painter.draw(self.word, seen[:size].reshape(3, height, 64))
            if crop:
                seen[size:] = inventory
            return seen
        x, y = player.pos.tolist()
        view_YX = around(self.inner._sem_view() + 1, x, y, 0)
        place = (np.array(player.pos) - 30.0) / 60.0
        parts = [view_YX.ravel(), player.facing, inventory / 10, place, [self.inner._world.daylight]]
        return np.concatenate(parts).astype(np.float32)

    def _balance(self, chunk: Any, creatures: Any) -> None:
        """Let creatures of a chunk come and go; the package is given them in the order in which they came into the world."""
        number_XY = self.inner._world._obj_map
        ordered = list(creatures)
        if len(ordered) > 1:
            ordered.sort(key=lambda creature: number_XY[tuple(creature.pos)])
        self._package_balance(chunk, ordered)

    def _distance(self, target: Any) -> int:
        """Steps from the player to a creature or place. Whole numbers of Python are quicker than NumPy's."""
        x, y = self.inner._player.pos.tolist()
        other_x, other_y = getattr(target, "pos", target).tolist()
        return int(abs(other_x - x) + abs(other_y - y))

    def _image(self, size: tuple[int, int] | None = None) -> np.ndarray:
        """The package's image, uint8 [H, W, 3], 64 x 64 if no size is given. It draws nothing from the world's generator."""
        world = self.inner._world
        draws = world.random
        self._noise.seed([self.word, self.inner._step])
        world.random = self._noise
        try:
            image: np.ndarray = self.inner.render(size)
        finally:
            world.random = draws
        return image


class Crafter(ReplayedWorld):
    """With instructions, ``info["achieved"]`` (float32 [B, 4, 3], NaN: none) says at every step what it achieved, and
    ``info["success"]``, where episodes end, which completed their instruction.
    """

    slow = True
    knows_success = False  # but of instructions
    options: Options
    options_model = Options

    def _setup(self) -> None:
        chosen = self.options
        self.observation_parts = parts = chosen.parts()
        longest = max((len(task.data.get("instruction", ())) for task in self.tasks), default=0)
        if chosen.instructions and longest > chosen.most_goals:
            do = f"set most_goals to {longest}, or leave out the split"
            raise UserError(
                f"an instruction of {longest} goals", where="options of the world crafter: most_goals", do=do
            )
        size = max(where.stop for where, _ in parts.values())
        small = chosen.observation != "textures"
        space = Box(0, 255, (size,), np.uint8) if small else Box(-3.0, 128.0, (size,), np.float32)
        self.goal_part: GoalPart | None = None
        K = chosen.most_goals
        if chosen.instructions:
            hide, offset = chosen.hide_future, 128.0 if small else 0.0
            before = chosen.goals_shown == "before"
            self.goal_part = GoalPart(parts["goals"][0], K, instructions.GOAL_WORDS, offset, hide, before)
        self.horizon = chosen.horizon
        self.single_observation_space = space
        self.single_action_space = Discrete(ACTIONS)
        self._play([Player(chosen) for _ in self.tasks])
        self._goals_BKW = self._keep("goals", np.full((self.num_envs, K, instructions.GOAL_WORDS), np.nan, np.float32))
        self._reached_B = self._keep_zeros("reached", np.int64)
        self._before_B = self._keep_zeros("reached_before", np.int64)  # the last step
        self._climbed_B = self._keep_zeros("reached_in_tech_tree", np.int64)

    def goals(self) -> np.ndarray:
        """The instructions of the instances, float32 [B, K, 3], NaN behind the last goal."""
        return self._goals_BKW.copy()

    def _begin(self, index_N: np.ndarray) -> None:
        super()._begin(index_N)
        self._reached_B[index_N] = self._before_B[index_N] = 0
        if not self.options.instructions:
            return
        for b in index_N:
            goals = self.tasks[b].data.get("instruction")
            if not goals:
                goals = self._drawn(int(self._word_B[b]), int(self._climbed_B[b]), self.tasks[b].data.get("goals"))
            self._goals_BKW[b] = np.nan
            self._goals_BKW[b, : len(goals)] = [instructions.numbers(goal) for goal in goals]

    def _drawn(self, word: int, climbed: int, goals: int | None) -> list[str]:
        chosen, draws = self.options, generator("crafter instruction", word)
        fewest, most = (chosen.fewest_goals, chosen.most_goals) if goals is None else (goals, goals)
        if chosen.tech_tree and draws.random() < 1 / 3:
            return instructions.draw_from_tech_tree(draws, fewest, most, climbed)
        return instructions.draw(draws, fewest, most)

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        rewards_B, over_B = super()._advance(actions_B, last_B)
        if not self.options.instructions:
            return rewards_B, over_B
        shape = (self.num_envs, MOST_ACHIEVED, instructions.GOAL_WORDS)
        self._achieved_BMG = np.full(shape, np.nan, np.float32)
        for b, player in enumerate(self.players):
            for m, goal in enumerate(player.goals[:MOST_ACHIEVED]):
                self._achieved_BMG[b, m] = instructions.numbers(goal)
                if goal in instructions.TECH_TREE:
                    climbed = instructions.TECH_TREE.index(goal) + 1
                    self._climbed_B[b] = max(self._climbed_B[b], climbed)
        # The goal that is asked for next, if one is left, is reached by any of the things that were achieved.
        K = self.options.most_goals
        asked_BW = self._goals_BKW[self._row_B, np.minimum(self._reached_B, K - 1)]
        same_BM = (self._achieved_BMG == asked_BW[:, None]).all(-1)
        hit_B = same_BM.any(-1) & (self._reached_B < K)
        self._before_B[:] = self._reached_B
        self._reached_B += hit_B
        goals_B = (~np.isnan(self._goals_BKW[..., 0])).sum(1)
        self._success_B = self._reached_B == goals_B
        return hit_B.astype(np.float32), over_B | self._success_B

    def _observe(self) -> np.ndarray:
        seen_BD = np.stack([player.look() for player in self.players])
        if self.goal_part is None:
            return seen_BD
        reached_B = self._before_B if self.goal_part.before else self._reached_B
        shown = self.goal_part.show(self._goals_BKW, reached_B).astype(seen_BD.dtype)
        return np.concatenate([seen_BD, shown], axis=1)


World = Crafter
