"""One agent of Stable-Baselines3's SAC in one task, and all that a bit-exact continuation needs as plain arrays."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from stable_baselines3 import SAC
from stable_baselines3.common.logger import Logger
from stable_baselines3.sac.policies import SACPolicy
from torch import Tensor, nn

from recollect.artifacts.checkpoints import joined, part
from recollect.environments import faults, registry
from recollect.environments.base import Task
from recollect.settings.errors import UserError
from recollect.settings.seeding import seed_of
from recollect.sources.columns import Rows
from recollect.sources.recording import is_played, world_seeds

if TYPE_CHECKING:
    from recollect.sources.sac import Hyperparameters


class OneTask(gymnasium.Env[np.ndarray, np.ndarray]):
    """A world of one instance as SB3 plays it. An episode that ends begins anew within the step.

    Args:
        bootstrap_limit: an end by time is told as such; else as any other end.

    Attributes:
        entries: which numbers of an observation the task has, [D] of the world's.
        rows: what happened since they were taken, one (observation, action, reward, done) per step.
        ends, cut: of each episode that ended, what its last step led to, and whether SB3 bootstraps there.
    """

    def __init__(self, world: str, options: Mapping[str, Any], task: Task, seed: int, bootstrap_limit: bool) -> None:
        self.bootstrap_limit = bootstrap_limit
        self.world = registry.make_world(world, options, [task], world_seeds(seed, [task]))
        seen: Any = self.world.single_observation_space
        acts: Any = self.world.single_action_space
        if not isinstance(seen, Box) or len(seen.shape) != 1 or not is_played(acts):
            raise UserError(
                f"this source plays vectors with continuous actions in [-1, 1], not {seen} with {acts}",
                where=type(self.world).__name__,
                do="use `algorithm: ppo` or `algorithm: source_policies`",
            )
        listed = getattr(self.world, "own_entries", None)
        self.entries = np.arange(seen.shape[0]) if listed is None else listed()[0]
        self.size = int(acts.shape[0])
        own = int(task.data.get("actions", self.size))
        self.observation_space = Box(-np.inf, np.inf, (len(self.entries),), np.float32)
        self.action_space = Box(-1.0, 1.0, (own,), np.float32)
        self.seen = self.world.reset()[0][0]
        self.rows: list[tuple[np.ndarray, np.ndarray, np.float32, bool]] = []
        self.ends: list[np.ndarray] = []
        self.cut: list[bool] = []
        self.episode_return = self.last_return = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """What is seen now: the world has begun anew by itself."""
        return self.seen[self.entries], {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        padded = np.zeros(self.size, np.float32)
        padded[: len(action)] = action
        now, reward, terminated, truncated, _ = self.world.step(padded[None])
        faults.check_step(self.world, now, reward)
        ended = bool(terminated[0] | truncated[0])
        cut = self.bootstrap_limit and bool(truncated[0] & ~terminated[0])
        self.rows.append((self.seen, padded, np.float32(reward[0]), ended))
        self.episode_return += float(reward[0])
        self.seen = led_to = now[0]
        if ended:
            self.ends.append(led_to)
            self.cut.append(cut)
            self.last_return, self.episode_return = self.episode_return, 0.0
            self.seen = self.world.reset(options={"reset_mask": np.ones(1, bool)})[0][0]
        return led_to[self.entries], float(reward[0]), ended and not cut, cut, {}


class ContinualWorldPolicy(SACPolicy):
    """SB3's policy with the layers of Continual World (arXiv 2105.10919), as L2M's released `create_cwnet` has them."""

    def make_actor(self, features_extractor: Any = None) -> Any:
        actor = super().make_actor(features_extractor)
        actor.latent_pi = _layers(actor.features_dim, *actor.net_arch).to(self.device)
        return actor

    def make_critic(self, features_extractor: Any = None) -> Any:
        critic = super().make_critic(features_extractor)
        hidden: list[int] = self.critic_kwargs["net_arch"]
        for number in range(critic.n_critics):
            inputs = critic.q_networks[number][0].in_features
            network = _layers(inputs, *hidden).append(nn.Linear(hidden[-1], 1)).to(self.device)
            setattr(critic, f"qf{number}", network)
            critic.q_networks[number] = network
        return critic


def _layers(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(widths[0], widths[1]), nn.LayerNorm(widths[1]), nn.Tanh()]
    for before, behind in pairwise(widths[1:]):
        layers += [nn.Linear(before, behind), nn.LeakyReLU()]
    return nn.Sequential(*layers)


@contextmanager
def own_draws() -> Iterator[None]:
    """The generators of Python, numpy and torch, which SB3 sets, as they were; and one thread, which is fastest."""
    state, others, threads = np.random.get_state(), random.getstate(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
        np.random.set_state(state)
        random.setstate(others)


class SACAgent:
    """An agent that learns in its task; between calls of `advance`, `arrays()` and the history are all."""

    def __init__(
        self, world: str, options: Mapping[str, Any], task: Task, settings: Hyperparameters, seed: int
    ) -> None:
        self.keys = (seed, task.split, task.index)
        self.env = OneTask(world, options, task, seed, settings.bootstrap_limit)
        with own_draws():
            self.model = SAC(
                "MlpPolicy" if settings.network == "plain" else ContinualWorldPolicy,
                self.env,
                learning_rate=settings.learning_rate,
                buffer_size=min(settings.replay, settings.transitions),
                learning_starts=settings.learning_starts,
                batch_size=settings.batch_size,
                tau=settings.tau,
                gamma=settings.gamma,
                train_freq=settings.train_every,
                gradient_steps=settings.train_every,
                policy_kwargs={"net_arch": list(settings.hidden)},
                seed=seed_of("sac-weights", *self.keys) % 2**32,
                device="cpu",
            )
        self.model.set_logger(Logger(folder=None, output_formats=[]))  # its own makes a folder in /tmp each time

    @property
    def played(self) -> int:
        return int(self.model.num_timesteps)

    @property
    def last_return(self) -> float:
        return self.env.last_return

    def advance(self, steps: int) -> Rows:
        """Play and learn for some steps. Returns what happened, as the world says it."""
        with own_draws():
            self.model.set_random_seed(seed_of("sac-block", *self.keys, self.played) % 2**32)
            self.model.learn(steps, reset_num_timesteps=self.played == 0, log_interval=2**31)
        seen, action, reward, done = zip(*self.env.rows, strict=True)
        self.env.rows.clear()
        return Rows(np.stack(seen), np.stack(action), np.array(reward, np.float32), np.array(done))

    def weights(self) -> dict[str, Tensor]:
        entropy: Any = self.model.log_ent_coef
        return {**self.model.policy.state_dict(), "log_entropy": entropy.detach()}

    def _optimisers(self) -> dict[str, Any]:
        policy = self.model.policy
        known = {"actor": policy.actor.optimizer, "critic": policy.critic.optimizer}
        return {**known, "entropy": self.model.ent_coef_optimizer}

    def arrays(self) -> dict[str, Any]:
        """Everything that a bit-exact continuation needs besides the history. The replay's actions are as SB3 scaled them."""
        env, buffer = self.env, self.model.replay_buffer
        assert buffer is not None
        moments: dict[str, Tensor] = {}
        for name, optimiser in self._optimisers().items():
            for number, state in optimiser.state_dict()["state"].items():
                moments |= {f"{name}/{number}/{key}": tensor for key, tensor in state.items()}
        plain = {
            "played": np.array([self.played]),
            "seen": env.seen,
            "returns": np.array([env.episode_return, env.last_return]),
            "ends": np.array(env.ends, np.float32).reshape(len(env.ends), len(env.seen)),
            "cut": np.array(env.cut, bool),
            "actions": buffer.actions[: buffer.size()].copy(),
        }
        return {**plain, **joined(world=env.world.get_state(), weights=self.weights(), adam=moments)}

    def load(self, arrays: Mapping[str, Any], history: Mapping[str, np.ndarray]) -> None:
        """Continue from `arrays()` and the task's history so far, as `advance` gave it."""
        env, model = self.env, self.model
        weights = part(arrays, "weights")
        with torch.no_grad():
            entropy: Any = model.log_ent_coef
            entropy.copy_(weights.pop("log_entropy"))
        model.policy.load_state_dict(weights)
        for name, optimiser in self._optimisers().items():
            states: dict[int, dict[str, Tensor]] = {}
            for key, tensor in part(part(arrays, "adam"), name).items():
                number, _, kind = key.partition("/")
                states.setdefault(int(number), {})[kind] = tensor
            optimiser.load_state_dict({**optimiser.state_dict(), "state": states})
        env.world.set_state(part(arrays, "world"))
        env.seen = arrays["seen"]
        env.episode_return, env.last_return = arrays["returns"].tolist()
        env.ends, env.cut = list(arrays["ends"]), arrays["cut"].tolist()
        model.num_timesteps = int(arrays["played"][0])
        self._fill_replay(arrays["actions"], history)

    def _fill_replay(self, actions: np.ndarray, history: Mapping[str, np.ndarray]) -> None:
        """Put the newest transitions of the history where they stood in the replay."""
        env, buffer, played = self.env, self.model.replay_buffer, self.played
        assert buffer is not None
        size = buffer.buffer_size
        kept = np.arange(max(0, played - size), played)
        place = kept % size
        done = np.asarray(history["done"])
        led_to = np.concatenate([history["observation"][kept[0] + 1 : played], env.seen[None]])
        ended = np.flatnonzero(done)  # the k-th of them is where the k-th episode ended
        newest = ended >= kept[0]
        led_to[ended[newest] - kept[0]] = np.array(env.ends, np.float32).reshape(-1, led_to.shape[1])[newest]
        cut = np.zeros(played, bool)
        cut[ended] = env.cut
        buffer.observations[place, 0] = history["observation"][kept[0] : played][:, env.entries]
        buffer.next_observations[place, 0] = led_to[:, env.entries]
        buffer.actions[: len(actions)] = actions
        buffer.rewards[place, 0] = history["reward"][kept]
        buffer.dones[place, 0] = done[kept]
        buffer.timeouts[place, 0] = cut[kept]
        buffer.pos, buffer.full = played % size, played >= size
