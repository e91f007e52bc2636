"""Continuous recognition: say of each of 60 images whether it was shown before. A world of our own, not Psychlab's.

It has the structure of Psychlab's level `psychlab_continuous_recognition` (DeepMind Lab; Leibo et al. 2018), which HELM
uses: the first image is new; each later one is new with probability 1/2, else one of those shown before, all equally
likely. The agent fixates a red cross for one step, then an image appears; looking at the left button says "new", at the
right one "old". A right answer pays 1, a wrong one 0, the button flashes green or red, and the agent must look back to
the cross. Always the same answer earns about 30, a perfect memory 60.

What differs from the Lab's level:

- Stimuli are drawn by formulas: 2400 of them, a shape on a pattern, in colors, in place of Brady et al.'s photographs
  of 2400 objects. All differ, but they are more alike than photographs.
- Three actions: 0 stay, 1 look left, 2 look right. The Lab's agent has eleven, most of which do nothing here (it cannot
  walk), looks by angles, and may look up and down. One look to a side reaches the button; `reach` makes it more.
- A step is a step: no frames are skipped, and the fixation lasts one step (the Lab plays four frames per action). The
  horizon is the same, 300 seconds of 7.5 actions, but 60 answers take at least 3 x 60 - 1 steps, and then the
  episode is over.
- The reward is paid, and image and buttons go, when the gaze reaches a button; the flash lasts one step. The Lab flashes when
  a button is looked at, and pays and goes on when the gaze leaves it. Who stays at a button there waits until time is over.
- The view is a flat picture that moves sideways, not a 3D scene. It is grey where the Lab's screen is white, buttons are 10 x
  20 pixels where the Lab's are a tenth of the screen each way, and an episode begins at the cross (the Lab: up to 22.5 degrees
  beside it).
- Images have their channels first. In the released runs they had them last by accident, so HELM's grey image was a mean over the
  wrong axis, 240 numbers instead of 6,400, and the CNN was larger by 34 million parameters.

Source: specification 2.5 of HELM.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pydantic import Field, model_validator

from recollect.environments.base import BaseWorld, Outcome, Task, WorldOptions

GYMNASIUM_IDS: dict[str, dict] = {"recollect/ContinuousRecognition-v0": {}}
SIDE, SIZE, SWING = 80, 60, 35  # pixels of the view, of a stimulus (75 % of it), from the cross to a button
TURN_A = np.array([0, -1, 1], dtype=np.int8)
# Screens: the cross; a stimulus between the buttons; the button that was chosen flashes.
CROSS, IMAGE, RIGHT, WRONG = range(4)
GREY, BLACK, RED, GREEN, WHITE = (128, 128, 128), (0, 0, 0), (255, 0, 0), (0, 255, 0), (235, 235, 235)
# A stimulus is a shape, its color, a pattern, its color: 10 * 8 * 6 * 5.
SHAPE_COLORS = ((200, 30, 30), (30, 140, 40), (40, 60, 200), (230, 190, 20), (150, 40, 170), (20, 170, 180), (240, 120, 20),
                (20, 20, 20))  # fmt: skip
PATTERN_COLORS = ((170, 200, 240), (245, 190, 190), (190, 230, 180), (235, 220, 150), (160, 160, 160))
SHAPES, PATTERNS = 10, 6
STIMULI = SHAPES * len(SHAPE_COLORS) * PATTERNS * len(PATTERN_COLORS)
BEYOND = 2 * STIMULI
SCREEN_OF_FLASH_3 = np.array([WRONG, CROSS, RIGHT])  # of -1, 0, 1
ACTION_NAMES = ("stay", "look left", "look right")


class Options(WorldOptions):
    """Options of continuous recognition; `stimuli`: the first of the 2400, `reach`: looks that reach a button."""

    trials: int = Field(default=60, ge=1)
    stimuli: int = Field(default=STIMULI, ge=1, le=STIMULI)
    reach: int = Field(default=1, ge=1, le=5)
    horizon: int = Field(default=2250, ge=1)

    @model_validator(mode="after")
    def _enough(self) -> Options:
        if self.stimuli < self.trials:
            raise ValueError(f"{self.trials} trials need as many stimuli, there are {self.stimuli}")
        return self


def tasks(split: str, **options: Any) -> list[Task]:
    """One task, in both splits: the order of images is drawn anew in every episode."""
    chosen = Options.parse(options, "continuous_recognition", split)
    return [Task(0, f"{chosen.trials}_trials", split)]


def figures() -> tuple[np.ndarray, np.ndarray]:
    """Which pixels belong to each shape, bool [10, 60, 60], and to each pattern, bool [6, 60, 60]."""
    y, x = np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2
    far, round_, diagonal = np.maximum(abs(x), abs(y)), np.hypot(x, y), abs(x) + abs(y)
    angle = np.arctan2(y, x)
    shapes = [
        round_ < 19,
        far < 17,
        diagonal < 23,
        (y < 15) & (y > 2 * abs(x) - 22),
        (y > -15) & (-y > 2 * abs(x) - 22),
        (round_ < 20) & (round_ > 11),
        (far < 20) & (np.minimum(abs(x), abs(y)) < 6),
        (far < 19) & (abs(abs(x) - abs(y)) < 8),
        round_ < 14 + 7 * np.cos(5 * angle),
        (round_ < 20) & (np.hypot(x - 9, y) > 15),
    ]
    patterns = [
        (y // 6) % 2 == 0,
        (x // 6) % 2 == 0,
        ((x + y) // 8) % 2 == 0,
        ((x // 8) + (y // 8)) % 2 == 0,
        (round_ // 7) % 2 == 0,
        np.hypot(x % 12 - 6, y % 12 - 6) < 4,
    ]
    return np.stack(shapes), np.stack(patterns)


@lru_cache
def stimuli() -> np.ndarray:
    """All stimuli, uint8 [2400, 3, 60, 60]: by shape, color of the shape, pattern, color of the pattern."""
    shapes, patterns = figures()
    drawn = np.empty((SHAPES, len(SHAPE_COLORS), PATTERNS, len(PATTERN_COLORS), 3, SIZE, SIZE), dtype=np.uint8)
    for channel, white in enumerate(WHITE):
        of_shapes, of_patterns = (np.array(c)[:, channel] for c in (SHAPE_COLORS, PATTERN_COLORS))
        around = np.where(patterns[:, None], of_patterns[:, None, None], white)
        drawn[..., channel, :, :] = around
        for i, shape in enumerate(shapes):
            drawn[i][..., channel, shape] = of_shapes[:, None, None, None]
    return drawn.reshape(STIMULI, 3, SIZE, SIZE)


@lru_cache
def screens(reach: int) -> np.ndarray:
    """What is seen of each screen, without a stimulus, from each direction of the gaze, uint8 [4, 2 * reach + 1, 3, 80, 80]."""
    middle = SIDE // 2 + SWING
    wide = np.empty((4, 2, SIDE, SIDE + 2 * SWING, 3), dtype=np.uint8)  # its second axis: which button flashes
    wide[...] = GREY
    wide[CROSS, :, 38:42, middle - 8 : middle + 8] = RED
    wide[CROSS, :, 32:48, middle - 2 : middle + 2] = RED
    for button, x in enumerate((middle - SWING, middle + SWING)):
        columns = slice(x - 5, x + 5)  # buttons have 10 x 20 pixels, beside the image
        wide[IMAGE:, :, 30:50, columns] = BLACK
        wide[RIGHT, button, 30:50, columns] = GREEN
        wide[WRONG, button, 30:50, columns] = RED
    seen = []
    for gaze, offset in zip(range(-reach, reach + 1), offsets(reach), strict=True):
        looked_at = int(gaze > 0)
        seen.append(wide[:, looked_at, :, offset : offset + SIDE])
    channels_last = np.stack(seen, axis=1)
    return np.ascontiguousarray(channels_last.transpose(0, 1, 4, 2, 3))


def offsets(reach: int) -> list[int]:
    """How far the view has moved to the right in each direction of the gaze, from the left button on, pixels."""
    return [SWING + round(SWING * gaze / reach) for gaze in range(-reach, reach + 1)]


class ContinuousRecognition(BaseWorld):
    """Observations: uint8 [B, 3, 80, 80]. Actions: 0 stay, 1 look left, 2 look right."""

    options: Options
    options_model = Options

    def _setup(self) -> None:
        chosen = self.options
        self.horizon = chosen.horizon
        self.single_observation_space = Box(0, 255, (3, SIDE, SIDE), np.uint8)
        self.single_action_space = Discrete(len(TURN_A))
        B = self.num_envs
        self._gaze_B = self._keep_zeros("gaze", np.int8)
        self._answered_B = self._keep_zeros("answered", np.int16)
        # The stimuli that were new, in their order; the rest of a row is far beyond all.
        self._known_BT = self._keep("known", np.full((B, chosen.trials), BEYOND, np.int32))
        self._count_B = self._keep_zeros("count", np.int32)
        self._stimulus_B = self._keep_zeros("stimulus", np.int32)
        self._old_B = self._keep_zeros("old", bool)
        self._shown_B = self._keep_zeros("shown", bool)  # an image is, and is not yet answered
        self._flash_B = self._keep_zeros("flash", np.int8)  # 1: the answer just now was right, -1: wrong
        self._stimuli, self._screens = stimuli(), screens(chosen.reach)

    def _begin(self, index_N: np.ndarray) -> None:
        for array in (self._gaze_B, self._answered_B, self._count_B, self._shown_B, self._flash_B):
            array[index_N] = 0
        self._known_BT[index_N] = BEYOND

    def _advance(self, actions_B: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        reach = self.options.reach
        before_B = self._gaze_B.copy()
        self._gaze_B[:] = np.clip(before_B + TURN_A.take(actions_B), -reach, reach)
        answers_B = self._shown_B & (abs(self._gaze_B) == reach)
        right_B = answers_B & ((self._gaze_B > 0) == self._old_B)
        self._flash_B[:] = np.where(right_B, 1, -1) * answers_B
        self._answered_B += answers_B
        fixated_B = ~self._shown_B & (before_B == 0) & (self._gaze_B == 0)
        self._shown_B &= ~answers_B
        self._show(np.flatnonzero(fixated_B))
        return right_B.astype(np.float32), self._answered_B == self.options.trials

    def _show(self, index_N: np.ndarray) -> None:
        """Begin a trial."""
        count_N = self._count_B[index_N]
        known_NT = self._known_BT[index_N]
        old_N = (self._draw_integers(index_N, 2) == 1) & (count_N > 0)
        choices_N = np.where(old_N, count_N, self.options.stimuli - count_N)
        drawn_N = self._draw_integers(index_N, choices_N)
        # A new one is the drawn_N-th of those that are not known: known ones that lie before it are leapt over.
        before_NT = np.sort(known_NT, axis=1) - np.arange(known_NT.shape[1])
        leapt_N = (before_NT <= drawn_N[:, None]).sum(1)
        place_N = np.where(old_N, drawn_N, count_N)
        again_N = known_NT[np.arange(index_N.size), place_N]
        stimulus_N = np.where(old_N, again_N, drawn_N + leapt_N)
        self._known_BT[index_N, place_N] = stimulus_N
        self._stimulus_B[index_N] = stimulus_N
        self._count_B[index_N] += ~old_N
        self._old_B[index_N] = old_N
        self._shown_B[index_N] = True

    def _observe(self) -> np.ndarray:
        reach = self.options.reach
        screen_B = np.where(self._shown_B, IMAGE, SCREEN_OF_FLASH_3.take(self._flash_B + 1))
        images_B3YX: np.ndarray = self._screens[screen_B, self._gaze_B + reach]
        top = (SIDE - SIZE) // 2
        for gaze, offset in zip(range(-reach, reach + 1), offsets(reach), strict=True):
            index_N = np.flatnonzero(self._shown_B & (self._gaze_B == gaze))
            if not index_N.size:
                continue
            # Which columns of the stimulus are in view, and where.
            left = SWING + top - offset
            first = max(left, 0)
            last = min(left + SIZE, SIDE)
            stimulus_N = self._stimulus_B[index_N]
            seen_N3YX = self._stimuli[stimulus_N, :, :, first - left : last - left]
            images_B3YX[index_N, :, top : top + SIZE, first:last] = seen_N3YX
        return images_B3YX

    def optimal_return(self) -> np.ndarray:
        """Every answer right, as many as there is time for."""
        reach = self.options.reach
        answers = (self.horizon + reach) // (1 + 2 * reach)
        return np.full(self.num_envs, min(self.options.trials, answers), dtype=np.float64)


World = ContinuousRecognition
