"""Meta-World: a robot arm manipulates objects, 45 tasks to learn from and 5 held out (ML45; Yu et al. 2019), as RA-DT uses it.

Observations are 39 numbers: hand and objects now and one step ago, and where the goal is (the last three). Episodes last
200 steps (Continual World's limit; the package's own is 500) and never end early. Rewards are dense, 0 to 10 a step.

- Paper (appendix): the same object and goal positions in every episode, goal hidden. Released configuration: new
  positions in every episode, goal shown. Here both are options; the data that were published have new positions.
- The package here is 3.1 (tasks "v3", MuJoCo 3); the paper's is a commit of v2 (mujoco-py 2.0). Physics, the reset of
  the hand and some rewards differ, so returns are close but not the same numbers, and the reference returns below,
  which are those of the v2 data, are approximate for v3.
- "The same positions" are those of one fixed random word, not of the first sub-task of v2's benchmark with seed 1.
- Actions have 4 dimensions, as in the simulator. The paper writes 6, with two that nothing uses.

Source: RA-DT (arXiv 2410.07071), specification 1.6 and 5; numbers from its released code.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from pydantic import Field

from recollect.environments.base import Task
from recollect.environments.simulated import SimulatedOptions, SimulatedWorld, needed

PACKAGES = ("metaworld",)
GOAL = (36, 37, 38)  # entries of an observation
# Task: return of a random policy, mean return of the published data (of pick-place: the highest), highest return in it;
# all of v2 and 200 steps.
TRAIN = {
    "assembly": (92.02, 908.84, 1285.64),
    "basketball": (5.08, 702.4, 1597.02),
    "button-press": (68.25, 1366.96, 1604.52),
    "button-press-topdown": (68.1, 1255.89, 1384.7),
    "button-press-topdown-wall": (73.82, 1264.01, 1388.6),
    "button-press-wall": (21.23, 1438.6, 1614.57),
    "coffee-button": (60.16, 1461.26, 1698.32),
    "coffee-pull": (8.92, 973.07, 1475.07),
    "coffee-push": (8.62, 253.72, 1694.68),
    "dial-turn": (49.74, 1556.25, 1887.33),
    "disassemble": (82.99, 1139.05, 1536.46),
    "door-close": (12.93, 1523.22, 1587.8),
    "door-open": (96.88, 1484.42, 1608.81),
    "drawer-close": (297.9, 1823.24, 1880),
    "drawer-open": (258.2, 1594.88, 1762.81),
    "faucet-close": (508.07, 1741.73, 1798.59),
    "faucet-open": (516.4, 1712.81, 1783.75),
    "hammer": (202.6, 1444.97, 1724.84),
    "handle-press": (130.96, 1824.9, 1929.83),
    "handle-press-side": (170.76, 1808.85, 1897.76),
    "handle-pull": (16.98, 1519.89, 1759.07),
    "handle-pull-side": (5.09, 1484.7, 1710.84),
    "lever-pull": (99.86, 731.48, 1677.2),
    "peg-insert-side": (3.84, 1418.33, 1695.99),
    "peg-unplug-side": (8.2, 1044.82, 1619.82),
    "pick-out-of-hole": (2.73, 891.61, 1588.12),
    "pick-place": (4.63, 1300.69, 1300.69),
    "pick-place-wall": (0, 260.63, 1654.64),
    "plate-slide": (120.86, 1634.72, 1713.08),
    "plate-slide-back": (61.46, 1725.26, 1806.16),
    "plate-slide-back-side": (76.74, 1716.65, 1833.7),
    "plate-slide-side": (34.02, 1598.42, 1748.3),
    "push": (13.79, 1311.81, 1791.22),
    "push-back": (2.33, 645.29, 1564.72),
    "push-wall": (24.91, 1361.09, 1746.7),
    "reach": (333.01, 1842.41, 1905.11),
    "reach-wall": (268.53, 1817.09, 1863.11),
    "shelf-place": (0, 997.24, 1513.33),
    "soccer": (13.44, 255.1, 1706.22),
    "stick-pull": (4.6, 977.54, 1551.37),
    "stick-push": (5.53, 925.04, 1629.26),
    "sweep": (21.74, 1024.95, 1560.82),
    "sweep-into": (28.63, 1638.45, 1815.94),
    "window-close": (117.4, 1395.35, 1559.31),
    "window-open": (86.62, 1480.98, 1717.42),
}
EVAL = {
    "bin-picking": (4.27, 249.41, 1308.6),
    "box-close": (100.89, 550.25, 1127.9),
    "hand-insert": (5.35, 1196.92, 1789.05),
    "door-lock": (226.23, 1589.09, 1831.54),
    "door-unlock": (192.42, 1662.54, 1794.72),
}


class Options(SimulatedOptions):
    horizon: int = Field(default=200, ge=1, le=500)


def tasks(split: str, **options: Any) -> list[Task]:
    """The tasks of a split, by name; needs no package. Reference returns are of the published data."""
    return Options.parse(options, "meta_world").tasks(split, "meta_world", TRAIN, EVAL)


class Simulator:
    """One task of the package; see `simulated.SimulatedWorld`."""

    def __init__(self, name: str) -> None:
        environments = needed("metaworld.env_dict", "meta_world").ALL_V3_ENVIRONMENTS
        self.name = name
        self.inner = environments[f"{name}-v3"]()
        # As its multi-task benchmarks, the goal is seen, which the world then hides; positions follow from `seed`.
        self.inner._partially_observable = False
        self.inner.__dict__.pop("sawyer_observation_space", None)  # made while the goal was hidden; clips observations
        self.inner._freeze_rand_vec, self.inner.seeded_rand_vec, self.inner._set_task_called = False, True, True
        self.policy: Any = None
        # Where three parts of the hand are, as the simulator keeps it: arrays that change with every step.
        parts = ("hand", "rightclaw", "leftclaw")
        self.hand_3, self.right_3, self.left_3 = (self.inner.data.body(part).xpos for part in parts)
        self.inner._get_curr_obs_combined_no_goal = self._hand_and_objects

    def begin(self, word: int) -> None:
        self.inner.seed(word)
        self.seen_D = self.inner.reset()[0]

    def _hand_and_objects(self) -> np.ndarray:
        """The first 18 numbers of an observation, to the bit as the package has them, which finds parts by name each time."""
        apart_3 = self.right_3 - self.left_3
        seen_D = np.zeros(18)
        seen_D[:3] = self.hand_3
        seen_D[3] = min(max(math.sqrt(apart_3.dot(apart_3)) / 0.1, 0.0), 1.0)  # fingers are at most about 0.1 m apart
        positions_N, turns_N = self.inner._get_pos_objects(), self.inner._get_quat_objects()
        for i in range(len(positions_N) // 3):
            first = 4 + 7 * i
            seen_D[first : first + 3] = positions_N[3 * i : 3 * i + 3]
            seen_D[first + 3 : first + 7] = turns_N[4 * i : 4 * i + 4]
        return seen_D

    def step(self, action_A: np.ndarray) -> tuple[float, bool]:
        self.seen_D, reward, _, _, info = self.inner.step(action_A)
        return float(reward), bool(info["success"])

    def render(self) -> np.ndarray:
        self.inner.render_mode = "rgb_array"
        image: np.ndarray = self.inner.render()
        return image

    def look(self) -> np.ndarray:
        return np.asarray(self.seen_D)

    def scripted_action(self) -> np.ndarray:
        """What the package's scripted policy of this task does now, which sees the goal; float32 [A]."""
        if self.policy is None:
            policies = needed("metaworld.policies", "meta_world")
            plain = self.name.replace("peg-insert-side", "peg-insertion-side").title().replace("-", "")
            self.policy = getattr(policies, f"Sawyer{plain}V3Policy")()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its gains are larger than what actions can be
            return np.clip(self.policy.get_action(self.seen_D), -1, 1).astype(np.float32)


class MetaWorld(SimulatedWorld):
    knows_success = True

    options: Options
    options_model = Options

    def _setup(self) -> None:
        chosen = self.options
        self.horizon = chosen.horizon
        self._simulate(
            [Simulator(task.name) for task in self.tasks], observation_size=39, action_size=4, goal_entries=GOAL
        )

    def scripted_actions(self) -> np.ndarray:
        """What the scripted policies would do now, float32 [B, A]."""
        return np.stack([simulator.scripted_action() for simulator in self.players])


World = MetaWorld
