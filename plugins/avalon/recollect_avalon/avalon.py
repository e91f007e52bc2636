"""Avalon: survival in generated 3D worlds, twenty tasks (Albrecht et al. 2022), of which SHELM's paper plays some; its
actions are numbers, so no method of HELM here can play it (docs/helm.md). Optional, and written against the package's
interface (`avalon-rl` 1.0.2) without having been run: it needs Linux, an NVIDIA GPU and its own Godot.

Install with `pip install avalon-rl` and `python -m avalon.install_godot_binary` in an environment of your own: it needs
gym 0.25 and much else, so it is in no lock of ours. Where it is missing a run stops before its first job.

- Actions are 21 numbers in [-1, 1]: eighteen for head and hands, and three (grasp left, grasp right, jump) that mean yes
  above 0. The package has eighteen numbers and three bits.
- What is seen is the image alone, without depth and without the body's own state; `depth: true` adds the depth as fourth
  channel.
- Worlds are drawn from the package's training generator with the instance's seed, at one fixed difficulty; its
  curriculum and its 1000 worlds of evaluation are not used. The end of time looks like any other end.
- A resumed run plays the present episode again, which is exact where Godot's physics is.

Source: specification 2.6 of HELM, and the package's published interface.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from pydantic import Field, field_validator

from recollect.environments.base import Task, WorldOptions, check_split
from recollect.environments.replayed import ReplayedWorld
from recollect.settings.errors import UserError, nearest

BASIC = ("EAT", "MOVE", "JUMP", "EXPLORE", "SCRAMBLE", "CLIMB", "DESCEND", "THROW", "AVOID", "HUNT", "FIGHT", "PUSH",
         "STACK", "BRIDGE", "OPEN", "CARRY")  # fmt: skip
COMPOSITIONAL = ("NAVIGATE", "FIND", "GATHER", "SURVIVE")
SIDE, NUMBERS, BITS = 96, 18, 3


class Options(WorldOptions):
    """Options of Avalon.

    Args:
        task: one of the twenty.
        difficulty: of its worlds, 0 to 1.
        depth: show how far things are, as a fourth channel.
        horizon: steps of an episode at most; the package's own limit depends on task and difficulty.
    """

    task: str = "EAT"
    difficulty: float = Field(default=0.0, ge=0, le=1)
    depth: bool = False
    horizon: int = Field(default=9000, ge=1)

    @field_validator("task")
    @classmethod
    def _known(cls, task: str) -> str:
        if task not in (known := BASIC + COMPOSITIONAL):
            raise ValueError(f"there is no task '{task}', {nearest(task, known)}")
        return task


def tasks(split: str, **options: Any) -> list[Task]:
    """One task, in both splits: worlds are drawn anew in every episode. Needs no package."""
    chosen = Options.parse(options, "avalon")
    check_split(split, "avalon")
    return [Task(0, chosen.task, split)]


def find_package() -> Any:
    """The part of the package that makes environments.

    Raises:
        UserError: it is not installed; the message says what to do.
    """
    try:
        return importlib.import_module("avalon.agent.godot.godot_gym")
    except ModuleNotFoundError as error:
        raise UserError(
            f"the world 'avalon' needs the package 'avalon-rl', which is not complete here ({error})",
            where="environment.world: avalon",
            do="in an environment of your own `pip install avalon-rl` and `python -m avalon.install_godot_binary` (Linux "
            "and an NVIDIA GPU only)",
        ) from error


class Player:
    """One Godot; see `replayed.Player`."""

    def __init__(self, options: Options, place: int) -> None:
        package = find_package()
        self.channels = 4 if options.depth else 3
        parameters = package.GodotEnvironmentParams(
            env_index=place,
            training_protocol=package.TrainingProtocolChoice[f"SINGLE_TASK_{options.task}"],
            is_task_curriculum_used=False,
            initial_difficulty=options.difficulty,
            resolution=SIDE,
            is_logging_artifacts_on_error_to_s3=False,
            s3_bucket_name=None,
        )
        self.inner = package.AvalonEnv(parameters)

    def begin(self, word: int) -> None:
        """See `replayed.Player.begin`."""
        self.inner.world_generator.set_seed(word)
        self.inner.seed(word)
        self._see(self.inner.reset())

    def step(self, action: Any) -> tuple[float, bool]:
        """See `replayed.Player.step`."""
        parts = {"real": action[:NUMBERS], "discrete": (action[NUMBERS:] > 0).astype(np.int8)}
        observation, reward, over, _ = self.inner.step(parts)
        self._see(observation)
        return float(reward), bool(over)

    def look(self) -> np.ndarray:
        """See `replayed.Player.look`."""
        return self.seen

    def close(self) -> None:
        """End Godot."""
        self.inner.close()

    def _see(self, observation: Any) -> None:
        # Godot's images stand on their heads.
        self.seen = np.ascontiguousarray(observation["rgbd"][::-1, :, : self.channels].transpose(2, 0, 1))


class Avalon(ReplayedWorld):
    """Avalon in a batch; see :class:`recollect.environments.replayed.ReplayedWorld` and :class:`Options`.

    Observations: uint8 [B, 3, 96, 96]. Actions: float32 [B, 21] in [-1, 1].
    """

    options: Options
    options_model = Options

    def _setup(self) -> None:
        chosen = self.options
        self.horizon = chosen.horizon
        self.single_observation_space = Box(0, 255, (4 if chosen.depth else 3, SIDE, SIDE), np.uint8)
        self.single_action_space = Box(-1.0, 1.0, (NUMBERS + BITS,), np.float32)
        self._play([Player(chosen, place) for place in range(len(self.tasks))])

    def close_extras(self, **kwargs: Any) -> None:
        for player in self.players:
            player.close()


World = Avalon
