"""AMAGO's network, and windows of trajectories as it reads them.

    time step -> TimestepEncoder -> TrajectoryEncoder -> state -> MultiGammaActor, an ensemble of critics

Source: AMAGO (arXiv 2310.09971), specification 1. There is one network; targets exist of the heads only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary
from torch import Tensor, nn

from recollect.amago.batch import Batch
from recollect.amago.ensembles import MultiGammaActor
from recollect.amago.hyperparameters import AmagoHyperparameters
from recollect.amago.input_norm import RunningMoments
from recollect.amago.policy_distributions import Kind
from recollect.amago.popart import PopArt
from recollect.amago.share import ALONE, RowsOfDropout, Share
from recollect.amago.timestep_encoders import Steps, StepShape, make_timestep_encoder, rl2_vector
from recollect.amago.trajectory_encoders import TransformerEncoder, make_trajectory_encoder
from recollect.common.contract import is_image
from recollect.common.cpu.dropout import Dropout
from recollect.common.masked_mean import masked_mean
from recollect.common.precision import Precision, autocast
from recollect.common.weights import arrays_of, load_policy_arrays
from recollect.environments import registry
from recollect.environments.goal_sequences import GoalPart
from recollect.settings.errors import UserError
from recollect.settings.schema import EnvironmentSettings
from recollect.settings.seeding import seed_of

MOST_ACTIONS = int(np.iinfo(np.int16).max)  # of discrete ones, which trajectories hold as int16


@dataclass(frozen=True)
class WorldShape:
    """What AMAGO must know of a world: the shape of its time steps, and how its observations are taken apart.

    Attributes:
        goal_part: entries of a flat observation that show a goal sequence.
        image_part: entries of a flat observation that are an image.
        episode_clock: of a world that begins new episodes within a rollout (soft resets), and tells the agent: an entry that
            is 0 at the first observation of each episode and at no other.
    """

    steps: StepShape
    goal_part: GoalPart | None = None
    image_part: slice | None = None
    episode_clock: int | None = None

    @classmethod
    def of(cls, world: Any) -> WorldShape:
        """From a world's spaces (numbers, or an image), and, if it has them, its `goal_part`, `observation_parts` and
        `episode_clock`.

        Raises:
            UserError: actions that AMAGO cannot take.
        """
        space, acts = world.single_observation_space, world.single_action_space
        goals: GoalPart | None = getattr(world, "goal_part", None)
        seen = getattr(world, "observation_parts", {})
        image_part, shape = seen.get("image", (None, ()))
        textures = seen.get("textures", (None, ()))[1]  # they stand first
        image = tuple(space.shape) if is_image(space) else tuple(shape)
        vector = 0 if is_image(space) else int(np.prod(space.shape)) - int(np.prod(shape)) * bool(shape)
        kinds: dict[type, Kind] = {Discrete: "discrete", MultiBinary: "binary", Box: "continuous"}
        unit = not isinstance(acts, Box) or bool((acts.low == -1).all() and (acts.high == 1).all())
        if type(acts) not in kinds or not unit:
            raise UserError(
                f"AMAGO cannot take actions {acts}",
                where="environment.world",
                do="use a world of discrete actions, bits, or numbers in [-1, 1]",
            )
        size = int(acts.n) if isinstance(acts, Discrete) else int(np.prod(acts.shape))
        if isinstance(acts, Discrete) and size > MOST_ACTIONS:
            raise UserError(
                f"AMAGO cannot choose among {size:,} actions",
                where="environment.world",
                do=f"use a world of at most {MOST_ACTIONS:,}",
            )
        steps = StepShape(
            vector=vector - (goals.count * goals.size if goals else 0),
            kind=kinds[type(acts)],
            actions=size,
            horizon=world.horizon,
            image=image,
            goals=(goals.count, goals.size) if goals else (),
            ids=int(np.prod(textures)) * bool(textures),
        )
        return cls(steps, goals, image_part, getattr(world, "episode_clock", None))

    def parts(self, observation: np.ndarray | Tensor, device: torch.device) -> dict[str, Tensor | None]:
        """An observation's vector, image and goals, on the device; leading axes stay."""
        whole = torch.as_tensor(observation).to(device, non_blocking=True)
        image, goals = None, None
        if self.steps.image and self.image_part is None:
            return {"vector": None, "image": whole, "goals": None}
        rest = np.ones(whole.shape[-1], bool)
        if self.image_part is not None:
            image = whole[..., self.image_part].unflatten(-1, self.steps.image)
            rest[self.image_part] = False
        if self.goal_part is not None:
            part = self.goal_part
            goals = (whole[..., part.where].float() - part.offset).unflatten(-1, (part.count, part.size))
            rest[part.where] = False
        if not self.steps.vector:
            return {"vector": None, "image": image, "goals": goals}
        vector = whole
        if not rest.all():
            vector = whole[..., _entries(rest.tobytes(), whole.device)]
        return {"vector": vector.float(), "image": image, "goals": goals}


@cache
def _entries(chosen: bytes, device: torch.device) -> Tensor:
    """Where a mask (its bytes) is True, on the device once and for all: CUDA graphs read it there."""
    return torch.as_tensor(np.flatnonzero(np.frombuffer(chosen, bool))).to(device)


def world_shape(environment: EnvironmentSettings) -> WorldShape:
    tasks = registry.tasks(environment.world, environment.options, "train")
    return WorldShape.of(registry.make_world(environment.world, environment.options, tasks[:1], np.zeros(1, np.uint64)))


@dataclass(frozen=True)
class Window:
    """A batch on the device: L time steps, L - 1 transitions.

    Attributes:
        steps: [B, L, ...]
        mask_BL: bool, whether a time step is real (padding is on the right).
        action: int64 [B, L - 1] (discrete) or float [B, L - 1, A], taken at time step t.
        reward_BT, done_BT: float32 [B, L - 1], what followed it; rewards are multiplied.
        share, whole_mask_BL: where other devices have other windows of the batch: who they are, and the mask of all windows.
    """

    steps: Steps
    mask_BL: Tensor
    action: Tensor
    reward_BT: Tensor
    done_BT: Tensor
    share: Share = ALONE
    whole_mask_BL: Tensor | None = None

    @property
    def real_BT1(self) -> Tensor:
        """bool [B, L - 1, 1], whether a transition is real."""
        return self.mask_BL[:, 1:, None]

    def mean(self, x: Tensor, *, last_steps: bool = False) -> Tensor:
        """Mean of [..., B, L - 1, any] over real transitions; `last_steps`: and over the last real step of a short window.

        Where windows are a part of a batch, what they add to the mean over all of it.
        """
        steps = slice(None, -1) if last_steps else slice(1, None)
        mask_BT1 = self.mask_BL[:, steps, None]
        if self.whole_mask_BL is None:
            return masked_mean(x, mask_BT1)
        count = self.whole_mask_BL[:, steps].sum() * (x.numel() // mask_BT1.numel())
        return (x * mask_BT1.to(x.dtype)).sum() / count.to(x.dtype).clamp(min=1.0)


class Network(nn.Module):
    """Encoders, actor, critics and PopArt. `parameters`: P of the policy distribution."""

    share: Share = ALONE
    discounts: tuple[float, ...]  # [G]
    discount_G: Tensor

    def to_share(self, share: Share) -> None:
        """Learn from some rows of each batch, with other devices."""
        self.share = share
        module: Any
        for module in self.modules():
            if isinstance(module, RunningMoments):
                module.share = share
            if isinstance(getattr(module, "dropout", None), Dropout):
                module.dropout = RowsOfDropout(share)

    def __init__(
        self, hp: AmagoHyperparameters, shape: WorldShape, critics: nn.Module, parameters: int, *, seed: int
    ) -> None:
        super().__init__()
        self.inputs, self.shape = hp.inputs, shape
        self.precision: Precision = "auto" if hp.precision == "bfloat16" else "float32"  # of the trajectory encoder
        self.timestep_encoder: Any = make_timestep_encoder(hp.inputs, shape.steps, seed=seed)
        self.trajectory_encoder = make_trajectory_encoder(
            hp.sequence,
            hp.inputs.width,
            horizon=shape.steps.horizon,
            context=hp.context_of(shape.steps.horizon),
            seed=seed,
        )
        if isinstance(self.trajectory_encoder, TransformerEncoder) and hp.precision != "float32":
            self.trajectory_encoder.attention_precision = "auto"  # bfloat16 on GPUs only
        draws = torch.Generator().manual_seed(seed_of("amago actor", seed))
        self.discounts, discounts = hp.discounts, len(hp.discounts)
        self.actor = MultiGammaActor(hp.sequence.width, discounts, parameters, hp.head, hp.inputs.activation, draws)
        self.critics = critics
        self.popart = PopArt(discounts, enabled=hp.popart)
        self.register_buffer("discount_G", torch.tensor(hp.discounts), persistent=False)
        for module in self.modules():
            if isinstance(module, RunningMoments):
                module.begin(whole=hp.first_batch == "whole")

    def steps(
        self, observation: np.ndarray | Tensor, previous: Tensor, reward: Tensor, time: Tensor, begins: Tensor
    ) -> Steps:
        """Time steps from observations (numpy, or on any device) and what led to them (tensors on the device).

        Acting and learning both come through here. `begins` tells where an episode begins as far as the caller knows; soft
        resets are added.
        """
        if self.shape.episode_clock is not None:
            clock = torch.as_tensor(observation[..., self.shape.episode_clock])
            begins = begins | (clock == 0).to(begins.device, non_blocking=True)
        rl2 = rl2_vector(self.inputs, self.shape.steps, previous, reward, time, begins)
        parts = self.shape.parts(observation, rl2.device)
        return Steps(rl2=rl2, time=time, **parts)

    def window(self, batch: Batch, reward_multiplier: float, device: torch.device) -> Window:
        # `non_blocking`: a copy to a GPU waits for nothing that the GPU still has to do.
        arrays = (batch.previous_action_BT, batch.reward_BT, batch.done_BT, batch.time_BT, batch.mask_BT)
        on_device = [torch.as_tensor(array).to(device, non_blocking=True) for array in arrays]
        previous, reward_BL, done_BL, time_BL, mask_BL = on_device
        time_BL = time_BL.long()
        whole_mask_BL = None
        if batch.whole_mask_BT is not None:
            whole_mask_BL = torch.as_tensor(batch.whole_mask_BT).to(device, non_blocking=True)
        # A row holds the action that led to it, and what followed that action.
        action = previous[:, 1:]
        if self.shape.steps.kind != "continuous":
            action = action.clamp(min=0).long()
        return Window(
            steps=self.steps(batch.observation_BTD, previous, reward_BL, time_BL, time_BL == 0),
            mask_BL=mask_BL,
            action=action,
            reward_BT=reward_multiplier * reward_BL[:, 1:],
            done_BT=done_BL[:, 1:].float(),
            share=self.share,
            whole_mask_BL=whole_mask_BL,
        )

    def states(self, window: Window) -> Tensor:
        """States [B, L, E]."""
        # Time steps are read in float32: in bfloat16 a clock could not tell steps of a long rollout apart.
        x_BLD = self.timestep_encoder(window.steps, window.mask_BL)
        with autocast(self.precision, window.mask_BL.device):
            return self.trajectory_encoder(x_BLD, window.steps.time).float()

    def _acting(self) -> nn.ModuleDict:
        acting = nn.ModuleDict()
        for name in ("timestep_encoder", "trajectory_encoder", "actor"):
            acting[name] = self.get_submodule(name)
        return acting

    def policy_arrays(self) -> dict[str, np.ndarray]:
        """What acting needs, by name: all but critics and PopArt."""
        return arrays_of(self._acting())

    def load_policy_arrays(self, arrays: Mapping[str, Any]) -> None:
        """Put back what `policy_arrays` gave. Raises UserError if they are of another network."""
        load_policy_arrays(self._acting(), arrays)
