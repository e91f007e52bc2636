"""PPO in images: the loop of HELM, HELMv2, SHELM and their baselines CNN-PPO and LSTM-PPO. What differs is the agent.

Sources: HELM (Paischer et al. 2022), its code, and Stable-Baselines3 1.4, on which that stands; specification 2 and 5.

- One rollout of `rollout` steps in each of `actors` games, then `epochs` passes over it. Rewards are divided by the running
  deviation of discounted returns and clipped (SB3's VecNormalize: the mean is not subtracted, its own discount 0.99);
  logged returns are raw. The end of an episode by time limit is an end (`bootstrap_truncation` is ours).
- Advantages are standardised in each minibatch. AdamW with weight decay; one gradient norm for everything.
- Ours: an image is read once, and what was read of it is kept over the update; upstream reads the last image of a
  rollout again as the first of the next, from the same memory. Language models are not trained, so it is the same.
- Ours: a point of the learning curve is the mean raw return of the last hundred episodes, from when every game has had time
  for one; upstream counts episodes that are not there yet as 0. Metrics are means since the last point.
- Ours: all draws are functions of (seed, purpose, rollout, epoch) and the rest is arrays, so a run that is stopped between
  two rollouts goes on bit-exactly. Upstream has no way to go on.

Shapes: E games, T steps of a rollout, N = T E moments, M moments of a minibatch, A actions, H numbers of a history's vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from recollect.artifacts.checkpoints import joined, part
from recollect.artifacts.run import Run
from recollect.artifacts.scores import LEARNING, scores_frame
from recollect.common.distinct_images import DistinctImages
from recollect.common.learning_curve import world_of
from recollect.common.masked_mean import ALL, Kept
from recollect.common.optimiser import Adam
from recollect.common.ppo_loss import Number
from recollect.common.precision import tf32
from recollect.common.reward_scale import RewardScale, RunningVariance
from recollect.environments import faults
from recollect.helm.on_policy_loss import loss_of
from recollect.helm.rollout import Rollout
from recollect.helm.sampled_policy import Agent
from recollect.helm.schedule import Schedule
from recollect.helm.update_graph import UpdateGraph
from recollect.settings.schema import Frozen, Settings
from recollect.settings.seeding import generator

RECENT = 100  # episodes whose mean return is a point of the learning curve


class OnPolicyHyperparameters(Frozen):
    """What all of them share. Defaults are those of the released `config.json` (specification 6.2)."""

    steps: int = Field(500_000, gt=0, description="Environment steps in all games together. Paper: 500K, 2M, 10M, 25M.")
    actors: int = Field(16, gt=0, le=65_536, description="Games played at once. Paper: 16 (Psychlab 64).")
    rollout: int = Field(128, gt=0, description="Steps of each between two learning phases. Paper: 32 to 256.")
    epochs: int = Field(3, gt=0, description="Passes over each rollout. Paper: 3.")
    batches: int = Field(8, gt=0, description="Minibatches per pass. Paper: 8.")
    learning_rate: float = Field(1e-4, gt=0, description="AdamW's step size. Paper: 1e-5 to 7e-4.")
    learning_rate_schedule: Schedule = Schedule()
    entropy: float = Field(0.05, ge=0, description="Weight of the entropy bonus. Paper: 0.001 to 0.05.")
    entropy_schedule: Schedule = Schedule()
    gamma: float = Field(0.99, ge=0, le=1, description="Discount. Paper: 0.99.")
    gae_lambda: float = Field(0.99, ge=0, le=1, description="GAE's λ. Paper: 0.99.")
    clip: float = Field(0.2, gt=0, description="How far a probability ratio may move. Paper: 0.2.")
    clip_schedule: Literal["none", "linear"] = Field("none", description="linear: to 0 over the run. Paper: none.")
    clip_value: float | None = Field(None, gt=0, description="How far a value may move; null: anywhere. Paper: null.")
    value_coefficient: float = Field(0.5, ge=0, description="Weight of the critic's squared error. Paper: 0.5.")
    gradient_norm: float = Field(0.5, gt=0, description="Largest norm of the gradient. Paper: 0.5.")
    adam_epsilon: float = Field(1e-8, gt=0, description="AdamW's ε. Paper: 1e-8.")
    weight_decay: float = Field(0.01, ge=0, description="AdamW's, on everything that is trained. Paper: 0.01.")
    advantages: Literal["minibatch", "running"] = Field(
        "minibatch", description="Standardised in each minibatch, or over their running deviation. Paper: minibatch."
    )
    target_kl: float | None = Field(
        None, gt=0, description="No further pass where policies differ by 1.5 times this. Paper: null."
    )
    normalise_rewards: bool = Field(True, description="Over the deviation of returns. Paper: all but RandomMaze.")
    clip_reward: float = Field(1.0, gt=0, description="Normalised rewards are clipped to ± this. Paper: 1.")
    bootstrap_truncation: bool = Field(
        False, description="Count the critic's value behind a time limit. Paper: no, it is an end."
    )
    channel_scale: int = Field(4, gt=0, description="Channels of the encoder, times 16 and 32. Paper: 4 (LSTM 1).")
    width: int = Field(1024, gt=0, description="Features of an image. Paper: 1024 (LSTM 256).")
    actor: int = Field(128, gt=0, description="Hidden width of the actor. Paper: 128.")
    critic: int = Field(512, gt=0, description="Hidden width of the critic. Paper: 512.")
    likeliest: bool = Field(False, description="Take the likeliest action in evaluations; drawn ones are the paper's.")
    keep_best: bool = Field(False, description="End with the weights of the best recent return. Paper: an option.")
    log_every: int = Field(5000, ge=1, description="Environment steps between points of the learning curve.")
    tf32: bool = Field(
        False,
        description="While training, a GPU reads the factors of products with ten bits of fraction, but for FrozenHopfield's, "
        "which stay float32. Released: as PyTorch 1.10 does by default, which is yes on GPUs that can.",
    )
    checkpoint_every: int = Field(0, ge=0, description="Most steps between checkpoints; 0: by time alone.")

    @model_validator(mode="after")
    def _minibatches_are_of_one_size(self) -> OnPolicyHyperparameters:
        if self.actors * self.rollout % self.batches or self.actors * self.rollout < 2 * self.batches:
            raise ValueError(f"{self.actors} x {self.rollout} steps make no {self.batches} minibatches of two or more")
        return self


class OnPolicyTrainer:
    """A run in rollouts, between any two of which it can stop."""

    def __init__(self, settings: Settings, agent: Agent) -> None:
        self.hp: OnPolicyHyperparameters = settings.method.hyperparameters
        self.seed, self.agent, hp = settings.seed, agent, self.hp
        self.labels = {"env": settings.environment.name, "method": settings.method.name, "seed": settings.seed}
        E = hp.actors
        self.world = world_of(settings.environment, "train", "training world", self.seed, E)
        self.optimiser = Adam(
            agent.network.named_parameters(), lr=hp.learning_rate, eps=hp.adam_epsilon, weight_decay=hp.weight_decay
        )
        self.graph = self._graph()
        self.rollouts, self.episodes, self.logged_at, self.minibatches = 0, 0, 0, 0
        self.scale, self.advantage_scale = RewardScale(E, hp.clip_reward), RunningVariance()
        self.running = np.zeros((3, E))  # return, length and success of the episodes that are being played
        self.recent = np.zeros((0, 3))  # of the last hundred that ended
        self.sums: dict[str, Tensor] = {}
        self.best_return: float = -np.inf
        self.best: dict[str, np.ndarray] = {}
        self.observation, _ = self.world.reset()
        agent.start(E)
        agent.see(self.observation)

    @property
    def steps(self) -> int:
        return self.rollouts * self.hp.rollout * self.hp.actors

    @property
    def done(self) -> bool:
        return self.steps >= self.hp.steps

    def advance(self, run: Run) -> None:
        """Play a rollout, and learn from it."""
        self.learn(run, *self._play())

    def _play(self) -> tuple[dict[str, Tensor], np.ndarray]:
        with self.playing():
            for _ in range(self.hp.rollout):
                self.look()
                self.step(*self.agent.act())
                self.agent.see(self.observation)
            return self.played()

    # ---- a rollout, step by step: `recollect.helm.together` takes the steps of several runs in turn

    @contextmanager
    def playing(self) -> Iterator[None]:
        """A rollout begins. Weights stay as they are while the block lasts."""
        hp = self.hp
        self.rollout = Rollout(
            generator("ppo actions", self.seed, self.rollouts).random((hp.rollout, hp.actors), np.float32)
        )
        with tf32(hp.tf32, self.agent.device), self.agent.features.rollout():
            yield

    def look(self) -> None:
        """Keep what the agent sees. Called in front of `Agent.act`."""
        self.rollout.saw(self.agent.record())

    def step(self, log_EA: np.ndarray, value_E: np.ndarray) -> None:
        """Act once in every game, by what the agent says of them; it has not seen yet what comes of it, `observation`."""
        self.end_step(self.begin_step(log_EA, value_E))
        self.begin_episodes()

    def begin_step(self, log_EA: np.ndarray, value_E: np.ndarray) -> np.ndarray:
        """The first half of a step: the actions that `end_step` plays. Where another process plays the games, it begins."""
        action_E = self.rollout.drawn(log_EA, value_E)
        self.world.send(action_E)
        return action_E

    def end_step(self, action_E: np.ndarray) -> None:
        hp, agent = self.hp, self.agent
        self.observation, reward_E, terminated_E, truncated_E, info = self.world.step(action_E)
        faults.check_step(self.world, self.observation, reward_E)
        done_E = terminated_E | truncated_E
        self._count(reward_E, done_E, info)
        learned_E: np.ndarray = np.asarray(
            self.scale(reward_E, done_E) if hp.normalise_rewards else reward_E, np.float32
        )
        if hp.bootstrap_truncation and truncated_E.any():
            learned_E = learned_E + hp.gamma * np.where(truncated_E, agent.value(self.observation), 0)
        self.rollout.ended(learned_E, done_E)
        if done_E.any():
            self.world.send_reset(done_E)

    def begin_episodes(self) -> None:
        """Begin episodes where the step that is over ended them. Where another process plays the games, this has begun already."""
        done_E = self.rollout.done_TE[self.rollout.t - 1]
        if done_E.any():
            self.observation, _ = self.world.reset(options={"reset_mask": done_E})
            self.agent.forget(done_E)

    def played(self) -> tuple[dict[str, Tensor], np.ndarray]:
        """The moments of the rollout [T * E, ...], and where episodes ended [T, E]."""
        moments = self.rollout.moments(self.agent.value(), self.hp.gamma, self.hp.gae_lambda, self.agent.put)
        return moments, self.rollout.done_TE

    def learn(self, run: Run, moments: Mapping[str, Tensor], done_TE: np.ndarray) -> None:
        """Learn from a rollout that was played, and log what is due."""
        self.rollouts += 1
        with tf32(self.hp.tf32, self.agent.device):
            if self.hp.keep_best:
                self._keep_if_best()
            self._learn(moments, done_TE)
        began = self.rollouts * self.hp.rollout >= self.world.horizon
        if self.done or (began and self.steps // self.hp.log_every > self.logged_at // self.hp.log_every):
            self._log(run)

    def _count(self, reward_E: np.ndarray, done_E: np.ndarray, info: Mapping[str, Any]) -> None:
        self.running[0] += reward_E
        self.running[1] += 1
        if done_E.any():
            success_E = np.asarray(info["success"], np.float64) if "success" in info else np.full(len(done_E), np.nan)
            self.running[2] = success_E
            self.recent = np.concatenate([self.recent, self.running[:, done_E].T])[-RECENT:]
            self.episodes += int(done_E.sum())
            self.running[:, done_E] = 0

    def _keep_if_best(self) -> None:
        """Keep the weights that played this rollout, if no others did better; games without an episode count 0."""
        returns = self.recent[:, 0]
        mean = returns.sum() / max(len(returns), min(self.hp.actors, RECENT))
        if not self.best or mean > self.best_return:
            self.best_return, self.best = float(mean), self.agent.learned()

    def _learn(self, moments: Mapping[str, Tensor], done_TE: np.ndarray) -> None:
        hp = self.hp
        progress, updates = self.steps / hp.steps, self.rollouts - 1
        self.optimiser.set_rate(hp.learning_rate_schedule.at(hp.learning_rate, progress, updates))
        entropy = hp.entropy_schedule.at(hp.entropy, progress, updates)
        clip = max(hp.clip * (1 - progress), 0.0) if hp.clip_schedule == "linear" else hp.clip
        passes = (generator("ppo minibatches", self.seed, self.rollouts, epoch) for epoch in range(hp.epochs))
        if self.graph is not None:
            learned = self.graph.learn(moments, done_TE, passes, clip=clip, entropy=entropy)
            self._add(learned.sums)
            self.minibatches += learned.minibatches
            return
        constants = {"learning_rate": self.optimiser.lr, "ent_coef": entropy, "clip_range": clip}
        divergences: list[Tensor] = []
        images = DistinctImages(moments["image"])
        for draws in passes:
            for chosen_M, log_MA, value_M in self.agent.epoch(images, moments, done_TE, hp.batches, draws):
                metrics = self._update(chosen_M, log_MA, value_M, moments, clip, entropy)
                divergences.append(metrics["approx_kl"])
                for name, constant in constants.items():
                    metrics[name] = metrics["approx_kl"].new_full((), constant)
                self._add(metrics)
                self.minibatches += 1
            # The mean divergence of all minibatches so far, of earlier passes too.
            if hp.target_kl is not None and float(torch.stack(divergences).mean()) > 1.5 * hp.target_kl:
                break

    def _update(
        self,
        chosen_M: Tensor,
        log_MA: Tensor,
        value_M: Tensor,
        moments: Mapping[str, Tensor],
        clip: Number,
        entropy: Number,
        kept: Kept = ALL,
    ) -> dict[str, Tensor]:
        """One step on those of the chosen moments that are kept, of which the network says this; its metrics."""
        hp = self.hp
        batch = {name: moments[name][chosen_M] for name in ("action", "log", "value", "advantage", "return")}
        raw_M = batch["advantage"]
        batch["advantage"] = self._scaled_advantages(raw_M, kept)
        loss, metrics = loss_of(
            log_MA,
            value_M,
            batch,
            clip=clip,
            entropy=entropy,
            value_coefficient=hp.value_coefficient,
            clip_value=hp.clip_value,
            kept=kept,
        )
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.optimiser.parameters, hp.gradient_norm)
        self.optimiser.step()
        metrics["adv_mean"], metrics["adv_std"] = kept.mean(raw_M), kept.deviation(raw_M)
        return metrics

    def _graph(self) -> UpdateGraph | None:
        """What makes the updates on a GPU, unless they ask it for a number."""
        hp, agent = self.hp, self.agent
        asks = hp.advantages == "running" or hp.target_kl is not None
        if agent.device.type != "cuda" or asks:
            return None
        return UpdateGraph(agent, self.optimiser, self._update, hp.batches)

    def _add(self, metrics: Mapping[str, Tensor]) -> None:
        for name, value in metrics.items():
            self.sums[name] = self.sums[name] + value.double() if name in self.sums else value.double()

    def _scaled_advantages(self, advantage_M: Tensor, kept: Kept = ALL) -> Tensor:
        if self.hp.advantages == "minibatch":
            return kept.standardised(advantage_M)
        if len(advantage_M) < 2:
            return advantage_M
        self.advantage_scale.take_in(advantage_M.cpu().numpy())
        return advantage_M / (self.advantage_scale.variance + 1e-8) ** 0.5

    def _log(self, run: Run) -> None:
        """One point of the learning curve, and the means of all metrics since the last."""
        for column, metric in ((0, "return"), (2, "success")):
            values = self.recent[:, column]
            if len(values) and not np.isnan(values).any():
                place = {**self.labels, "step": self.steps, "split": LEARNING, "task": 0, "episode": 0}
                frame = scores_frame(**place, metric=metric, value=values.mean())
                run.log_scores(frame)
        metrics = {name: float(total) / self.minibatches for name, total in sorted(self.sums.items())}
        if len(self.recent):
            metrics["ep_rew_mean"] = self.recent[:, 0].mean()
            metrics["ep_len_mean"] = self.recent[:, 1].mean()
        run.log(self.steps, episodes=self.episodes, **metrics)
        self.sums, self.minibatches, self.logged_at = {}, 0, self.steps

    # ---- going on after a kill

    def saved(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(arrays, JSON state) from which `load` continues bit-exactly."""
        arrays: dict[str, Any] = {
            "observation": self.observation,
            "running": self.running.copy(),
            "recent": self.recent,
            "discounted": self.scale.discounted_E.copy(),
            "returns": self.scale.returns.moments,
            "advantages": self.advantage_scale.moments,
        }
        arrays |= joined(
            agent=self.agent.arrays(),
            adam=self.optimiser.arrays(),
            world=self.world.get_state(),
            sums=self.sums,
            best=self.best,
        )
        counters = ("rollouts", "episodes", "logged_at", "minibatches")
        return arrays, {name: getattr(self, name) for name in counters} | {"best_return": self.best_return}

    def load(self, arrays: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self.observation = np.array(arrays["observation"])
        self.running = np.array(arrays["running"])
        self.recent = np.array(arrays["recent"])
        self.scale.discounted_E = np.array(arrays["discounted"])
        self.scale.returns.moments = np.array(arrays["returns"])
        self.advantage_scale.moments = np.array(arrays["advantages"])
        self.agent.load(part(arrays, "agent"), self.observation)
        self.optimiser.load(part(arrays, "adam"))
        self.world.set_state(part(arrays, "world"))
        self.sums = {}
        for name, value in part(arrays, "sums").items():
            self.sums[name] = torch.as_tensor(value).to(self.agent.device)
        self.best = {name: np.array(value) for name, value in part(arrays, "best").items()}

    def train(self, run: Run) -> dict[str, np.ndarray]:
        """Go on from the run's checkpoint, if it has one, to the end; the arrays of the policy."""
        checkpoint = run.resume()
        if checkpoint is not None:
            self.load(checkpoint.arrays, checkpoint.state)
        with run.progress(self.hp.steps, "training") as progress:
            while not self.done:
                self.advance(run)
                said = {"episode_return": float(self.recent[:, 0].mean())} if len(self.recent) else {}
                progress.update(min(self.steps, self.hp.steps), **said)
                if run.due(self.steps, self.hp.checkpoint_every) and not self.done:
                    run.save(self.steps, *self.saved())
        return self.best or self.agent.learned()
