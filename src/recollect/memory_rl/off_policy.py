"""The loop of Memory-RL's off-policy methods: whole episodes in, sequence batches out; what differs is the learner.

- Order of work, which with one actor is upstream's to the count:
  1. warm-up episodes with uniform actions;
  2. one burst of floor(ratio * steps) updates;
  3. rounds of one episode per actor, each followed by ceil(ratio * steps of the round) updates;
  4. between these, an evaluation when the number of episodes passes a multiple of `evaluate_every`.
- Where episodes end early, budgets are counted in steps (`budget: steps`), as the released continuous loop does.
- Ours: `actors` episodes are played side by side in one batch. More actors act on older parameters; updates stay
  `updates_per_step` per environment step.
- Ours: all draws (actions, batches, dropout) are functions of (seed, purpose, counter), the two worlds carry their own
  random streams, and everything else is arrays, so a run that is stopped between any two units of work goes on
  bit-exactly. Upstream has no checkpoints.
- Upstream keeps dropout on while collecting and in target passes; see `dropout_while_acting`,
  `dropout_in_targets`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.artifacts.checkpoints import joined, part
from recollect.artifacts.run import Run
from recollect.common.contract import Inputs, facts_of
from recollect.common.learning_curve import log_learning, make_worlds
from recollect.common.precision import tf32
from recollect.common.rollout import Episodes, play_episodes, score_episodes
from recollect.memory_rl.history_policy import HistoryPolicy, reseed_dropout
from recollect.memory_rl.hyperparameters import OffPolicyHyperparameters
from recollect.memory_rl.learner import Learner
from recollect.memory_rl.one_actor import OneActor, play_alone
from recollect.memory_rl.replay import EpisodeReplay
from recollect.settings.schema import Settings
from recollect.settings.seeding import generator, seed_of


@dataclass
class Counters:
    """How far a run is, and what it does next: `updates_due` updates, then the evaluation that is due, then a round."""

    episodes: int = 0  # kept, warm-up included
    env_steps: int = 0  # of these
    explored: int = 0  # steps that the schedule of exploration has counted
    rounds: int = 0
    updates: int = 0
    updates_due: int = 0
    evaluations: int = 0
    evaluation_due: bool = False
    logged_updates: int = 0  # updates that the metric sums hold


class OffPolicyTrainer:
    """A run in units of work (a round of episodes, an update, an evaluation), between any two of which it can stop."""

    def __init__(self, settings: Settings, learner: Learner, device: torch.device | str) -> None:
        hp: OffPolicyHyperparameters = settings.method.hyperparameters
        self.hp = hp
        self.learner = learner
        self.seed = settings.seed
        self.labels = {"env": settings.environment.name, "method": settings.method.name, "seed": settings.seed}
        worlds = make_worlds(settings.environment, settings.seed, hp.actors, hp.evaluation_episodes)
        self.world, self.evaluation_world = worlds
        self.horizon = self.world.horizon
        self.unit = 1 if hp.budget == "episodes" else self.horizon  # of the budget, per episode
        space: Any = self.world.single_observation_space
        capacity = max(hp.replay_transitions, hp.replay_episodes * self.horizon)
        # No more rows than the run can fill: the ring then never turns, and small runs take little memory.
        if hp.budget == "episodes":
            capacity = min(capacity, (hp.warmup_episodes + hp.train_episodes) * (self.horizon + 1))
        action_size = learner.network.encoder.embedder.action_size
        self.replay = EpisodeReplay(capacity, int(np.prod(space.shape)), space.dtype, device, action_size=action_size)
        self.policy = HistoryPolicy(learner.network, device)
        self.alone = OneActor.of(learner.network, self.horizon) if hp.actors == 1 else None
        self.at = Counters()
        self.sums: dict[str, Tensor] = {}

    @property
    def done(self) -> bool:
        due = self.at.updates_due or self.at.evaluation_due
        return not due and self.played >= self.unit * (self.hp.warmup_episodes + self.hp.train_episodes)

    @property
    def played(self) -> int:
        """What the budget counts, so far: episodes, or steps."""
        return self.at.episodes if self.hp.budget == "episodes" else self.at.env_steps

    @property
    def planned_updates(self) -> int:
        """Updates of the whole run, where every episode lasts to the horizon."""
        hp, T = self.hp, self.horizon
        per_round = math.ceil(hp.updates_per_step * hp.actors * T)
        if hp.initial_burst:
            first = math.floor(hp.updates_per_step * hp.warmup_episodes * T)
        else:
            last = (hp.warmup_episodes - 1) % hp.actors + 1
            first = math.ceil(hp.updates_per_step * last * T) if hp.warmup_learns else 0
        rounds, rest = divmod(hp.train_episodes, hp.actors)
        return first + rounds * per_round + math.ceil(hp.updates_per_step * rest * T)

    @property
    def expected_updates(self) -> int:
        """Updates of the whole run, where the episodes to come last as long as those of so far did on average."""
        hp, at = self.hp, self.at
        if self.played < self.unit * hp.warmup_episodes:
            return self.planned_updates
        left = max(0, self.unit * (hp.warmup_episodes + hp.train_episodes) - self.played)
        length = at.env_steps / at.episodes
        rounds, rest = divmod(left if hp.budget == "episodes" else left / length, hp.actors)
        per_round = math.ceil(hp.updates_per_step * hp.actors * length)
        return at.updates + at.updates_due + int(rounds) * per_round + math.ceil(hp.updates_per_step * rest * length)

    def advance(self, run: Run) -> None:
        if self.at.updates_due:
            self._update()
        elif self.at.evaluation_due:
            self._evaluate(run)
        else:
            self._collect()

    def _collect(self) -> None:
        self.keep(self.play_round(*self.next_round()))

    def next_round(self) -> tuple[bool, int]:
        """Whether the next round of episodes is one of the warm-up, and how many episodes of it are kept."""
        hp = self.hp
        left = self.unit * hp.warmup_episodes - self.played
        warming = left > 0
        if not warming:
            left += self.unit * hp.train_episodes
        return warming, min(hp.actors, left)

    def keep(self, episodes: Episodes) -> None:
        """Store a round of episodes, and reckon what is due after it."""
        hp, at = self.hp, self.at
        warming, before = self.next_round()[0], self.played
        steps = int(episodes.length_B.sum())
        self.replay.add(
            episodes.observation_BTD.reshape(*episodes.observation_BTD.shape[:2], -1),
            episodes.action_BT,
            episodes.reward_BT,
            episodes.terminal_BT,
            episodes.length_B,
        )
        at.episodes += len(episodes.length_B)
        at.env_steps += steps
        at.rounds += 1
        every = self.unit * hp.evaluate_every
        if not warming or hp.warmup_learns:
            at.evaluation_due = self.played // every > before // every
        ends_warmup = warming and self.played >= self.unit * hp.warmup_episodes
        if ends_warmup and hp.initial_burst:
            at.updates_due = math.floor(hp.updates_per_step * at.env_steps)
        elif not warming or (ends_warmup and hp.warmup_learns):
            at.updates_due = math.ceil(hp.updates_per_step * steps)

    def play_round(self, warming: bool, count: int) -> Episodes:
        """One episode of each actor with the behaviour policy (or uniform); the first `count` are kept."""
        if self.alone is not None and not warming:
            return self._play_alone(self.alone)
        learner, at, batch = self.learner, self.at, self.world.num_envs
        draws = generator("behaviour", self.seed, at.rounds)
        network = learner.network
        network.train(self.hp.dropout_while_acting)
        reseed_dropout(network, seed_of("dropout while acting", self.seed, at.rounds))
        self.policy.start(np.zeros(batch, np.uint64))
        kept_B = np.arange(batch) < count
        embedder = network.encoder.embedder

        def act(observation: np.ndarray, reward: np.ndarray, done: np.ndarray, t: int, live: np.ndarray) -> np.ndarray:
            if warming:
                if embedder.action_size:
                    return draws.uniform(-1.0, 1.0, (batch, embedder.action_size)).astype(np.float32)
                return draws.integers(embedder.actions, size=batch)
            action = self.explore(self.policy.outputs(observation, reward, done), kept_B & live, draws)
            self.policy.took(action)
            return action

        return play_episodes(self.world, act).first(count)

    def _play_alone(self, actor: OneActor) -> Episodes:
        """`play_round` of a single actor, see `one_actor`."""
        at, learner = self.at, self.learner
        draws = generator("behaviour", self.seed, at.rounds)
        actor.begin(seed_of("dropout while acting", self.seed, at.rounds) if self.hp.dropout_while_acting else None)
        episodes = play_alone(
            self.world, actor, lambda outputs_A, t: learner.explore_one(outputs_A, at.explored + t, draws)
        )
        at.explored += int(episodes.length_B[0])
        return episodes

    def take(self, run: Run, episodes: Episodes) -> None:
        """`advance` with the episodes of the evaluation or round that is next, which were played elsewhere."""
        if self.at.evaluation_due:
            self.judge(run, episodes)
        else:
            self.keep(episodes)

    def explore(self, outputs_BA: Tensor, counted_B: np.ndarray, draws: np.random.Generator) -> np.ndarray:
        """Actions [B] of the behaviour policy; rows that are counted make exploration fall."""
        count_B = self.at.explored + np.cumsum(counted_B) - counted_B
        self.at.explored += int(counted_B.sum())
        return self.learner.explore(outputs_BA, count_B, draws)

    def _update(self) -> None:
        at, hp = self.at, self.hp
        self.learner.online.train()
        batch = self.replay.sample(hp.batch_size, hp.window(self.horizon), seed=self.seed, counter=at.updates)
        for name, value in self.learner.step(batch, at.updates).items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        at.updates += 1
        at.updates_due -= 1
        at.logged_updates += 1

    def _evaluate(self, run: Run) -> None:
        at, world = self.at, self.evaluation_world
        self.policy.start(np.zeros(world.num_envs, np.uint64))
        kept = run.scoring(self.policy, at.evaluations).part("evaluation")
        self.judge(run, score_episodes(world, self.policy, kept))

    def judge(self, run: Run, episodes: Episodes) -> None:
        """Log an evaluation's episodes, with the means of the updates before it."""
        at = self.at
        log_learning(run, episodes, self.labels, at.env_steps, 0)
        means: dict[str, float] = {}
        if at.logged_updates:
            means = {name: float(total) / at.logged_updates for name, total in sorted(self.sums.items())}
        run.log(at.env_steps, evaluation_return=float(episodes.return_B.mean()), updates=at.updates, **means)
        for total in self.sums.values():
            total.zero_()  # in place: they may be views of an ensemble's
        at.logged_updates = 0
        at.evaluations += 1
        at.evaluation_due = False

    def saved(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(arrays, JSON state) from which `load` continues bit-exactly."""
        arrays = joined(
            learner=self.learner.arrays(),
            replay=self.replay.arrays(),
            world=self.world.get_state(),
            evaluation_world=self.evaluation_world.get_state(),
            sums=self.sums,
        )
        return arrays, asdict(self.at)

    def load(self, arrays: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        self.learner.load(part(arrays, "learner"))
        self.replay.load(part(arrays, "replay"))
        self.world.set_state(part(arrays, "world"))
        self.evaluation_world.set_state(part(arrays, "evaluation_world"))
        sums = part(arrays, "sums")
        self.sums = {name: torch.as_tensor(value).to(self.policy.device) for name, value in sums.items()}
        self.at = Counters(**state)

    def train(self, run: Run) -> HistoryPolicy:
        checkpoint = run.resume()
        if checkpoint is not None:
            self.load(checkpoint.arrays, checkpoint.state)
        whole = tf32(False, self.policy.device)  # recurrent layers, too: see `make_encoder`
        with whole, run.progress(self.planned_updates, "training", "updates") as progress:
            while not self.done:
                self.advance(run)
                progress.total = self.expected_updates
                progress.update(self.at.updates)
                if run.due(self.at.updates, self.hp.checkpoint_every) and not self.done:
                    run.save(self.at.updates, *self.saved())
        self.learner.network.eval()
        return self.policy


def trainer_of(
    learner: Callable[..., Learner], settings: Settings, device: torch.device | str = "cpu"
) -> OffPolicyTrainer:
    hp: OffPolicyHyperparameters = settings.method.hyperparameters
    made = learner(hp, facts_of(settings.environment), seed=settings.seed, device=device)
    return OffPolicyTrainer(settings, made, device)


def train_learner(learner: Callable[..., Learner], settings: Settings, inputs: Inputs, run: Run) -> HistoryPolicy:
    return trainer_of(learner, settings, inputs.device).train(run)
