"""PPO with a convolutional network: the source agent of worlds of images, one agent per task, one task after the other.

- The agent is RA-DT's for Procgen: SB3's ``PPO("CnnPolicy")`` with the IMPALA encoder, from whose features actor and
  critic are one linear layer each; orthogonal start (√2, actor 0.01, critic 1), Adam, rewards divided by the running
  deviation of discounted returns (`normalise_rewards`, as SB3's VecNormalize), and otherwise as `ppo` says.
- An agent plays many games at once, and the episodes of the first few are its history, as published: 5 of 64 are
  about 2 of 25 million steps. They stand in the order in which they ended; unfinished ones are left out.
- Histories hold rewards as the world pays them, and images as uint8 bytes, which go to disk as they are made: 12 kB a
  step, 24 GB for a game at the published size.
- Published: discount 0.99 in the paper (the default here), 0.999 in the configuration.
- All draws are functions of (purpose, seed, split, task index, rollout); a run that is killed goes on bit-exactly from its
  newest checkpoint, taken at ends of rollouts. The end of an episode by a time limit is an end, as Procgen reports it.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.artifacts.checkpoints import joined, part
from recollect.artifacts.finite import check_arrays
from recollect.common.advantages import advantages
from recollect.common.draws import categorical_from_uniform
from recollect.common.image_encoders.registry import encoder_class
from recollect.common.masked_mean import ALL
from recollect.common.optimiser import Adam
from recollect.common.ppo_loss import ppo_loss
from recollect.common.reward_scale import RewardScale
from recollect.environments import faults, registry
from recollect.environments.base import Task, World
from recollect.settings.errors import UserError
from recollect.settings.seeding import generator, seed_of
from recollect.sources.columns import GROWING, Columns, Rows, begun
from recollect.sources.ppo_settings import PPOHyperparameters
from recollect.sources.recording import Run, action_dtype, in_order, mean_of_known, tracked

ACTIONS = "discrete"
OBSERVATIONS = "images"
USES_GPU = True
LARGEST_SCALED_REWARD = 10.0


class Hyperparameters(PPOHyperparameters):
    """The source agent. "Paper" values are those of Procgen (RA-DT appendix; SB3 defaults where silent)."""

    transitions: int = Field(
        25_000_000, gt=0, description="Environment steps of each agent, in all its games. Paper: 25M."
    )
    actors: int = Field(64, gt=0, le=65_536, description="Games that an agent plays at once. Paper: 64.")
    recorded: int = Field(5, gt=0, description="Of how many of them the episodes are kept. Paper: 5.")
    rollout: int = Field(256, gt=0, description="Steps of each game between two learning phases. Paper: 256.")
    minibatch: int = Field(2048, gt=1, description="Transitions per gradient step; must divide a rollout. Paper: 2048.")
    epochs: int = Field(3, gt=0, description="Passes over each rollout. Paper: 3.")
    learning_rate: float = Field(5e-4, gt=0, description="Adam's step size, constant. Paper: 5e-4.")
    entropy: float = Field(0.01, ge=0, description="Weight of the entropy bonus. Paper: 0.01.")
    encoder: str = Field("impala", description="Module under recollect.common.image_encoders. Paper: IMPALA's.")
    width: int = Field(2048, gt=0, description="Features of an image. Paper: 2048.")
    channels: Literal["first", "last"] = Field("first", description="The world's images are [C, H, W] or [H, W, C].")
    normalise_rewards: bool = Field(True, description="Divide rewards by the deviation of returns. Paper: yes.")
    checkpoint_every: int = Field(500_000, ge=0, description="Most steps between checkpoints; they come by time, too.")

    @model_validator(mode="after")
    def _everything_fits(self) -> Hyperparameters:
        if self.actors * self.rollout % self.minibatch:
            raise ValueError(f"minibatch {self.minibatch} does not divide {self.actors} x {self.rollout} steps")
        if self.recorded > self.actors:
            raise ValueError(f"recorded {self.recorded} exceeds actors {self.actors}")
        return self


def generate(
    world: str,
    options: Mapping[str, Any],
    tasks: Sequence[Task],
    hyperparameters: Hyperparameters,
    *,
    seed: int,
    run: Run | None = None,
    device: str = "cpu",
) -> dict[str, np.ndarray]:
    """Train one agent per task; see `recollect.sources.ppo.generate`. The result is mapped from disk.

    Raises:
        UserError: the world does not fit, the disk has no room for the histories, or no episode of a task ended.
    """
    settings, ordered = hyperparameters, in_order(tasks)
    columns, checkpoint = begun(run)
    if checkpoint is None and run is not None:
        shown = registry.make_world(world, options, ordered[:1], np.zeros(1, np.uint64))
        check_room(run.folder, shown, settings, len(ordered))
    first = 0 if checkpoint is None else int(checkpoint.state["task"])
    total = settings.transitions * len(ordered)
    description = f"{len(ordered)} PPO agents, one after the other"
    with tracked(run, total, description, "steps") as progress:
        for number in range(first, len(ordered)):
            agent = ImagePPO(world, options, ordered[number], settings, seed, columns, device)
            if checkpoint is not None and number == first:
                agent.load(checkpoint.arrays)
            while agent.played < settings.transitions:
                agent.advance()
                done = number * settings.transitions + min(agent.played, settings.transitions)
                progress.update(done, episode_return=agent.last_return())
                if run is not None and done < total and run.due(done, settings.checkpoint_every):
                    run.save(done, agent.arrays(), {"task": number, "columns": columns.state()})
            check_arrays(agent.network.state_dict(), f"PPO in {ordered[number].name}")
            if not agent.kept:
                raise UserError(
                    f"no episode of '{ordered[number].name}' ended within {agent.played // settings.actors} steps",
                    where="source.hyperparameters.transitions",
                    do="play longer",
                )
    return columns.arrays()


def check_room(folder: Path, world: World, settings: Hyperparameters, tasks: int) -> None:
    """Raise a UserError unless the disk has room for the histories twice: as they grow, and in the final file.

    What an older run left of its growing ones is written over.
    """
    shape = world.single_observation_space.shape
    needed = 2 * tasks * settings.transitions // settings.actors * settings.recorded * math.prod(shape or ())
    overwritten = sum(path.stat().st_size for path in folder.glob(f"*{GROWING}"))
    free = shutil.disk_usage(folder).free + overwritten
    if needed > free:
        raise UserError(
            f"the histories may need {needed / 1e9:.1f} GB while they are made, and {free / 1e9:.1f} GB are free",
            where=folder,
            do="make room there, or set fewer source.hyperparameters.recorded or transitions",
        )


class ImageActorCritic(nn.Module):
    """Images uint8 [N, C, H, W] -> log-probabilities [N, A] and values [N]."""

    def __init__(self, shape_CHW: tuple[int, int, int], actions: int, settings: Hyperparameters, seed: int) -> None:
        super().__init__()
        with torch.device("meta"):  # so that no layer draws its weights from the global generator
            self.encoder = encoder_class(settings.encoder)(shape_CHW, settings.width)
            self.actor, self.critic = nn.Linear(settings.width, actions), nn.Linear(settings.width, 1)
        self.to_empty(device="cpu")
        draws = torch.Generator().manual_seed(seed)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                gain = 0.01 if layer is self.actor else 1.0 if layer is self.critic else 2**0.5
                nn.init.orthogonal_(layer.weight, gain, generator=draws)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, images_NCHW: Tensor) -> tuple[Tensor, Tensor]:
        features_NW = self.encoder(images_NCHW.float() / 255)
        return F.log_softmax(self.actor(features_NW), dim=1), self.critic(features_NW)[:, 0]


def _tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


class ImagePPO:
    """One agent in E games of one task; ended episodes of the recorded games go to `columns`."""

    def __init__(
        self,
        world: str,
        options: Mapping[str, Any],
        task: Task,
        settings: Hyperparameters,
        seed: int,
        columns: Columns,
        device: str,
    ) -> None:
        self.settings = settings
        self.task = task
        self.columns = columns
        self.device = torch.device(device)
        self.keys = (seed, task.split, task.index)
        E = settings.actors
        seeds_E = np.array([seed_of("source-world", *self.keys, e) for e in range(E)], np.uint64)
        self.world = registry.make_world(world, options, [task] * E, seeds_E)
        space, actions = self.world.single_observation_space, self.world.single_action_space
        fits = isinstance(space, Box) and len(space.shape) == 3 and space.dtype == np.uint8
        if not fits or not isinstance(actions, Discrete) or int(actions.start) != 0:
            raise UserError(
                f"this source plays worlds of images with discrete actions, not of {space} and {actions}",
                where=type(self.world).__name__,
                do="use `algorithm: ppo`",
            )
        assert space.shape is not None
        self.action_dtype = action_dtype(int(actions.n))
        self.last = settings.channels == "last"
        one, two, three = space.shape
        shape_CHW = (three, one, two) if self.last else (one, two, three)
        network = ImageActorCritic(shape_CHW, int(actions.n), settings, seed_of("ppo-images-weights", *self.keys))
        # Channels last in memory, as in `common.image_encoders`.
        self.network = network.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimiser = Adam(self.network.named_parameters(), lr=settings.learning_rate, eps=settings.adam_epsilon)
        self.observation, _ = self.world.reset()
        self.rollouts = self.kept = 0
        self.return_E, self.last_return_E = np.zeros(E), np.full(E, np.nan)
        self.scale = RewardScale(E, LARGEST_SCALED_REWARD, settings.gamma)
        self.open: list[list[tuple[np.ndarray, int, np.float32]]] = [[] for _ in range(settings.recorded)]

    @property
    def played(self) -> int:
        return self.rollouts * self.settings.rollout * self.settings.actors

    def last_return(self) -> float:
        """Mean over the games of the return of their newest episode (0 before the first)."""
        return mean_of_known(self.last_return_E)

    # ---- playing

    def advance(self) -> None:
        """Play one rollout with fixed weights, then learn from it."""
        settings = self.settings
        T, E = settings.rollout, settings.actors
        noise_TE = generator("ppo-actions", *self.keys, self.rollouts).random((T, E), np.float32)
        images = np.empty((T, *self.observation.shape), np.uint8)
        action_TE = np.empty((T, E), np.int64)
        done_TE = np.empty((T, E), bool)
        log_TE = np.empty((T, E), np.float32)
        reward_TE = np.empty((T, E), np.float32)
        value_TE = np.empty((T + 1, E), np.float32)
        for t in range(T):
            images[t] = self.observation
            log_EA, value_E = self._policy(self.observation)
            action_E = categorical_from_uniform(log_EA, noise_TE[t])
            reward_E, done_E = self._step(action_E)
            action_TE[t] = action_E
            done_TE[t] = done_E
            log_TE[t] = np.take_along_axis(log_EA, action_E[:, None], 1)[:, 0]
            reward_TE[t] = self._scaled(reward_E, done_E)
            value_TE[t] = value_E
        _, value_TE[T] = self._policy(self.observation)
        advantage_TE = advantages(reward_TE, done_TE, value_TE, settings.gamma, settings.gae_lambda)
        return_TE = advantage_TE + value_TE[:-1]
        rows = [array_TE.reshape(-1) for array_TE in (action_TE, log_TE, advantage_TE, return_TE)]
        self._learn(images.reshape(T * E, *images.shape[2:]), rows)
        self.rollouts += 1

    def _step(self, action_E: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Play one action per game and write down what the recorded ones saw. Rewards and ends [E]."""
        before = self.observation
        self.observation, reward_E, terminated_E, truncated_E, _ = self.world.step(action_E)
        faults.check_step(self.world, self.observation, reward_E)
        done_E = terminated_E | truncated_E
        self.return_E += reward_E
        for e, episode in enumerate(self.open):
            # A copy: a view would keep the images of all games, until this one's episode ends.
            episode.append((before[e].copy(), int(action_E[e]), reward_E[e]))
            if done_E[e]:
                image, action, reward = zip(*episode, strict=True)
                ends = np.arange(len(episode)) == len(episode) - 1
                rows = Rows(np.stack(image), np.array(action, self.action_dtype), np.array(reward, np.float32), ends)
                self.columns.append(self.task.index, rows, self.task.name)
                self.kept += 1
                episode.clear()
        if done_E.any():
            self.observation, _ = self.world.reset(options={"reset_mask": done_E})
            np.copyto(self.last_return_E, self.return_E, where=done_E)
            self.return_E[done_E] = 0
        return reward_E, done_E

    def _scaled(self, reward_E: np.ndarray, done_E: np.ndarray) -> np.ndarray:
        return self.scale(reward_E, done_E) if self.settings.normalise_rewards else reward_E

    # ---- learning

    def _images(self, images: np.ndarray) -> Tensor:
        batch = torch.from_numpy(images).to(self.device)
        return batch.permute(0, 3, 1, 2) if self.last else batch

    @torch.inference_mode()
    def _policy(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log-probabilities [E, A] and values [E]."""
        log_EA, value_E = self.network(self._images(images))
        return log_EA.cpu().numpy(), value_E.cpu().numpy()

    def _learn(self, images: np.ndarray, rows: list[np.ndarray]) -> None:
        """All epochs over one rollout of N steps; `rows`: action, log-probability, advantage, return, each [N]."""
        settings, draws = self.settings, generator("ppo-minibatches", *self.keys, self.rollouts)
        for _ in range(settings.epochs):
            order_MB = draws.permutation(len(images)).reshape(-1, settings.minibatch)
            for chosen_B in order_MB:
                batch = [torch.from_numpy(row[chosen_B]).to(self.device) for row in rows]
                loss = self._loss(self._images(images[chosen_B]), *batch)
                self.optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.optimiser.parameters, settings.gradient_norm)
                self.optimiser.step()

    def _loss(self, images: Tensor, action_B: Tensor, old_B: Tensor, advantage_B: Tensor, return_B: Tensor) -> Tensor:
        settings = self.settings
        log_BA, value_B = self.network(images)
        return ppo_loss(
            log_BA,
            value_B,
            action_B,
            old_B,
            ALL.standardised(advantage_B),
            return_B,
            clip=settings.clip,
            value_coefficient=settings.value_coefficient,
            entropy=settings.entropy,
        ).loss

    # ---- going on after a kill

    def arrays(self) -> dict[str, np.ndarray | Tensor]:
        """Everything a bit-exact continuation needs, at the end of a rollout, besides the rows in the columns."""
        arrays: dict[str, np.ndarray | Tensor] = {
            "rollouts": np.array([self.rollouts, self.kept]),
            "observation": self.observation,
            "return": self.return_E.copy(),
            "last_return": self.last_return_E.copy(),
            "discounted": self.scale.discounted_E.copy(),
            "moments": self.scale.returns.moments,
        }
        arrays |= joined(
            world=self.world.get_state(),
            network=self.network.state_dict(),
            adam=self.optimiser.arrays(),
        )
        for e, episode in enumerate(self.open):
            if episode:
                image, action, reward = zip(*episode, strict=True)
                arrays[f"open/{e}/image"] = np.stack(image)
                arrays[f"open/{e}/action"] = np.array(action, np.int64)
                arrays[f"open/{e}/reward"] = np.array(reward, np.float32)
        return arrays

    def load(self, arrays: Mapping[str, Any]) -> None:
        copied = {}
        for name, value in arrays.items():
            copied[name] = np.array(np.asarray(value))
        rollouts, kept = copied["rollouts"]
        self.rollouts = int(rollouts)
        self.kept = int(kept)
        self.observation = copied["observation"]
        self.return_E = copied["return"]
        self.last_return_E = copied["last_return"]
        self.scale.discounted_E = copied["discounted"]
        self.scale.returns.moments = copied["moments"]
        self.world.set_state(part(copied, "world"))
        self.network.load_state_dict(_tensors(part(copied, "network")))
        self.optimiser.load(_tensors(part(copied, "adam")))
        for e, episode in enumerate(self.open):
            steps = part(copied, f"open/{e}")
            if steps:
                for image, action, reward in zip(steps["image"], steps["action"], steps["reward"], strict=True):
                    episode.append((image, int(action), reward))
