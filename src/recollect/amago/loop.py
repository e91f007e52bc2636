"""AMAGO's training loop: epochs of evaluation, collection with many actors, and updates on windows of past trajectories.

Epoch e (specification 2.1): evaluate where e is a multiple of `evaluate_every`; every actor plays `steps_per_epoch` steps,
going on where it stopped; the trajectories that ended are written as one file; `updates_per_epoch` updates. What differs
from upstream, and why:

- A run is a function of its seed. It stops and goes on between any two updates, on a CPU bit-exactly: a checkpoint has the
  networks, the worlds, what every actor remembers and has not finished, exploration, the counts of rare goals, and where the
  buffer stood. With `compile` the first three updates of each shape are not compiled, behind a resume, too, and round otherwise.
- All actors are one batch in one process. More `processes` collect beside learning, and such a run does not follow from its
  seed, see `processes`; updates may be made on several `devices`, see there.
- An evaluation is one rollout of every evaluation instance from its beginning; upstream plays a number of steps.
- Losses on validation rollouts are not computed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.amago.agent import Agent
from recollect.amago.devices import Followers
from recollect.amago.drawing import Drawing, recorder_of, relabeler
from recollect.amago.exploration import make_exploration
from recollect.amago.hyperparameters import AmagoHyperparameters
from recollect.amago.mixed_data import opened
from recollect.amago.network import world_shape
from recollect.amago.policy import AmagoPolicy
from recollect.amago.share import Share
from recollect.amago.trajectory_files import Trajectory, TrajectoryFiles
from recollect.artifacts.checkpoints import POLICIES, joined, part
from recollect.artifacts.run import Run
from recollect.artifacts.sealed import remove_sealed, write_arrays
from recollect.artifacts.set_aside import MADE_ANEW
from recollect.common.learning_curve import log_learning, make_worlds, metrics_of
from recollect.common.rollout import score_episodes
from recollect.environments import faults
from recollect.settings.schema import Settings
from recollect.settings.seeding import generator, seed_of

log = logging.getLogger(__name__)


class Collector:
    """Actors in one batch, whose rollouts and memories go on from call to call. `world` has no autoreset."""

    def __init__(self, hp: AmagoHyperparameters, policy: AmagoPolicy, world: Any, *, seed: int) -> None:
        self.hp = hp
        self.policy = policy
        self.world = world
        self.seed = seed
        B, horizon = world.num_envs, world.horizon
        self.steps_of = policy.network.shape.steps
        self.goals = bool(self.steps_of.goals)
        self.recorder = recorder_of(hp, B, horizon, seed=seed)
        self.exploration = make_exploration(hp.exploration, B, horizon, seed=seed)
        self.actor_steps = 0
        self.time_B = np.zeros(B, np.int64)
        self.reward_B = np.zeros(B, np.float32)
        self.return_B = np.zeros(B)
        self.observation: np.ndarray | None = None
        self.world_metrics: tuple[str, ...] = getattr(world, "metrics", ())
        self.ended: list[list[float]] = []  # return, success and further metrics of rollouts that ended since `results`

    def collect(self, steps: int) -> list[Trajectory]:
        """Play so many steps of every actor: the trajectories that were finished."""
        finished: list[Trajectory] = []
        if self.observation is None:
            self.policy.start(np.zeros(self.world.num_envs, np.uint64))
            self._begin(np.ones(self.world.num_envs, bool))
        assert self.observation is not None
        never_B = np.zeros(self.world.num_envs, bool)
        numbers = self.policy.distribution.uniforms
        for _ in range(steps):
            draws = generator("behaviour", self.seed, self.actor_steps)
            raw_BP = self.policy.outputs(self.observation, self.reward_B, never_B)
            drawn_BU = draws.random((len(never_B), numbers)) if self.hp.sample_actions else None
            action_B, shape = self.policy.chosen(raw_BP, drawn_BU), self.steps_of
            action_B = self.exploration.explored(
                action_B, self.actor_steps, self.time_B, shape.kind, shape.actions, draws
            )
            self.policy.took(action_B)
            self.observation, self.reward_B, terminated_B, truncated_B, info = self.world.step(action_B)
            faults.check_step(self.world, self.observation, self.reward_B)
            done_B = terminated_B | truncated_B
            self.actor_steps += 1
            self.time_B += 1
            self.return_B += self.reward_B
            finished += self.recorder.append(
                action_B,
                self.reward_B,
                self.observation,
                done_B,
                achieved_BMG=info["achieved"] if self.goals else None,
                terminal_B=terminated_B if self.hp.truncation == "bootstrap" else done_B,
            )
            if done_B.any():
                no_success_B = np.full(len(done_B), np.nan)
                success_B = np.asarray(info.get("success", no_success_B), float)
                rows = [self.return_B[done_B], success_B[done_B]]
                rows += [self.world.latest_BM[done_B, m] for m in range(len(self.world_metrics))]
                self.ended += np.stack(rows, 1).tolist()
                self._begin(done_B)
        return finished

    def _begin(self, mask_B: np.ndarray) -> None:
        self.observation, _ = self.world.reset(options={"reset_mask": mask_B})
        world: Any = self.world
        self.recorder.begin(mask_B, self.observation, world.goals() if self.goals else None)
        self.policy.reset(mask_B)
        self.exploration.begin(mask_B)
        self.time_B[mask_B], self.return_B[mask_B] = 0, 0.0

    def results(self) -> dict[str, float]:
        """Means over the rollouts that ended since the last call; empty where none did."""
        ended, self.ended = self.ended, []
        return self.means(ended)

    def means(self, ended: list[list[float]]) -> dict[str, float]:
        """Means over rollouts, which rows of `ended` are of."""
        if not ended:
            return {}
        values, named = np.array(ended), {}
        for m, name in enumerate(("return", "success", *self.world_metrics)):
            if not np.isnan(values[:, m]).any():
                named[f"training_{name}"] = values[:, m].mean()
        return named

    def arrays(self) -> dict[str, np.ndarray]:
        if self.observation is None:
            return {}
        parts = joined(world=self.world.get_state(), policy=self.policy.state_arrays(), recorder=self.recorder.arrays())
        return parts | {
            "observation": self.observation.copy(),
            "time": self.time_B.copy(),
            "reward": self.reward_B.copy(),
            "return": self.return_B.copy(),
            "rollouts": self.exploration.rollouts_B.copy(),
            "actor_steps": np.array([self.actor_steps]),
        }

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        if not arrays:
            return
        self.world.set_state(part(arrays, "world"))
        self.policy.load_state(part(arrays, "policy"))
        self.recorder.load(part(arrays, "recorder"))
        self.observation = np.array(arrays["observation"])
        self.time_B = np.array(arrays["time"])
        self.reward_B = np.array(arrays["reward"])
        self.return_B = np.array(arrays["return"])
        self.exploration.rollouts_B = np.array(arrays["rollouts"])
        self.actor_steps = int(arrays["actor_steps"][0])


@dataclass
class Counters:
    """How far a run is."""

    epoch: int = 0
    of_epoch: int = 0  # updates of this epoch that are done; above 0 it has been collected for
    updates: int = 0
    env_steps: int = 0
    evaluations: int = 0
    evaluated_at: int = -1  # the epoch of the last one
    best: float | None = None  # highest mean return of an evaluation


class Trainer:
    """A run in epochs, between any two updates of which it can stop."""

    def __init__(self, agent: type[Agent], settings: Settings, device: torch.device | str, run: Run) -> None:
        self.hp: AmagoHyperparameters = settings.method.hyperparameters
        hp = self.hp
        self.seed = settings.seed
        self.run = run
        self.labels = {"env": settings.environment.name, "method": settings.method.name, "seed": settings.seed}
        world, self.evaluation_world = make_worlds(
            settings.environment,
            self.seed,
            hp.actors if hp.collects_itself else 1,  # one tells what the world is like
            hp.evaluation_rollouts,
            hp.evaluation_split,
        )
        self.share = Share(0, hp.devices, hp.batch_size)
        shape = world_shape(settings.environment)
        self.agent = agent(hp, shape, seed=self.seed, device=device, share=self.share)
        self.collector = Collector(hp, self.agent.policy(), world, seed=self.seed)
        self.store = TrajectoryFiles(run.checkpoint_folder / "buffer", hp.buffer, weights=hp.buffer_weights)
        if hp.mix is not None:
            scratch = run.checkpoint_folder / MADE_ANEW
            self.store.beside = opened(hp.mix, scratch, world, weights=hp.buffer_weights), hp.mix.share
        self.relabel = relabeler(hp, world, self.collector.recorder.shortest)
        device = self.agent.device
        self.drawing = Drawing(
            hp, self.store, self.relabel, world.horizon, seed=self.seed, device=device, share=self.share
        )
        self.rarity = self.drawing.rarity()  # as of the last update; batches may be drawn ahead
        self.followers = None
        if not self.share.alone:
            self.followers = Followers(agent, settings, run.checkpoint_folder, device.type)
        self.at = Counters()
        self.best: dict[str, np.ndarray] = {}
        # Of an epoch: means over its rollouts, and sums over its updates so far.
        self.results: dict[str, float] = {}
        self.sums: dict[str, Tensor] = {}
        self.counts: Counter[str] = Counter()

    @property
    def step(self) -> int:
        """The number of a checkpoint that is made now."""
        return self.at.epoch * self.hp.updates_per_epoch + self.at.of_epoch

    @property
    def logged_at(self) -> int:
        """The place of a row in the log: steps of the environment, or updates where none are played."""
        return self.at.updates if self.hp.offline else self.at.env_steps

    def epoch(self) -> None:
        if self.at.of_epoch == 0:
            self.collect()
        self.learn(self.results)
        self.at.epoch += 1

    def collect(self) -> None:
        hp, at = self.hp, self.at
        if at.epoch % hp.evaluate_every == 0:
            self.evaluate()
        if at.epoch >= hp.start_collecting_at_epoch and not hp.offline:
            self.store.add(self.collector.collect(hp.steps_per_epoch))
            at.env_steps += hp.steps_per_epoch * hp.actors
        self.results = self.collector.results()

    def learn(self, results: dict[str, float]) -> None:
        """The updates of an epoch, where there are to be any, and its row in the log."""
        hp, at = self.hp, self.at
        updates = 0
        if self.store.ready and at.epoch >= hp.start_learning_at_epoch:
            updates = hp.updates_per_epoch
        sums, counts = self.sums, self.counts
        left = updates - at.of_epoch
        if self.followers is not None and left:
            self.followers.tell(at.updates, left, self.store)
        with closing(self.drawing.batches(at.updates, left)) as batches:
            for batch, self.rarity in batches:
                # Some metrics are looked at once an epoch, at its last update.
                metrics = self.agent.step(batch, at.updates, further=at.of_epoch == updates - 1)
                for name, value in metrics.items():
                    sums[name] = sums[name] + value if name in sums else value
                    counts[name] += 1
                at.updates += 1
                at.of_epoch += 1
                if at.of_epoch < updates and self.run.due(self.step, 0):
                    self.save()
        if self.followers is not None and left:
            self.share.check_same(self.agent.modules)
        means = {name: float(sums[name]) / counts[name] for name in sorted(sums)}
        row = results | means | self.store.sizes()
        self.run.log(self.logged_at, epoch=at.epoch + 1, updates=at.updates, **row)
        self.results, self.sums, self.counts, at.of_epoch = {}, {}, Counter(), 0

    def evaluate(self) -> None:
        """One rollout of every evaluation instance; the policy of the best mean return is kept."""
        at, world = self.at, self.evaluation_world
        seeds_B = np.zeros(world.num_envs, np.uint64)
        for b in range(len(seeds_B)):
            seeds_B[b] = seed_of("learning-curve actions", self.seed, at.evaluations, b)
        policy = self.agent.policy()
        policy.start(seeds_B)
        kept = self.run.scoring(policy, at.evaluations).part("evaluation")
        played = score_episodes(world, policy, kept)
        tasks_B = np.array([task.index for task in world.tasks])
        log_learning(self.run, played, self.labels, self.logged_at, tasks_B, metrics_of(world))
        mean = float(played.return_B.mean())
        at.evaluations += 1
        at.evaluated_at = at.epoch
        if at.best is None or mean >= at.best:
            at.best, self.best = mean, self.agent.network.policy_arrays()
        self.run.log(self.logged_at, evaluation_return=mean)

    def save(self) -> None:
        arrays = joined(
            agent=self.agent.arrays(),
            collector=self.collector.arrays(),
            evaluation_world=_between_episodes(self.evaluation_world.get_state()),
            best=self.best,
            sums=self.sums,
        )
        arrays |= joined(rarity=self.rarity)
        of_epoch = {"results": self.results, "counts": self.counts}
        self.run.save(self.step, arrays, {"at": asdict(self.at), "buffer": self.store.saved(), "epoch": of_epoch})

    def keep(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep a policy beside the checkpoints, for `recollect evaluate --checkpoint`."""
        write_arrays(self.run.checkpoint_folder / POLICIES / f"{name}.safetensors", dict(arrays), kind="policy")

    def load(self, arrays: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        self.agent.load(part(arrays, "agent"))
        self.collector.load(part(arrays, "collector"))
        self.evaluation_world.set_state(part(arrays, "evaluation_world"))
        self.best = part(arrays, "best")
        self.drawing.load(part(arrays, "rarity"))
        self.rarity = self.drawing.rarity()
        self.at = Counters(**state["at"])
        self.results, self.counts = state["epoch"]["results"], Counter(state["epoch"]["counts"])
        for name, value in part(arrays, "sums").items():
            self.sums[name] = torch.as_tensor(value).to(self.agent.device)
        lost = self.load_buffer(state["buffer"])
        if lost:
            self.run.log(self.at.env_steps, buffer_trajectories_lost=lost)

    def load_buffer(self, state: Mapping[str, int]) -> int:
        """Go back to where the buffer stood; returns how many of its trajectories are lost."""
        return self.store.load(state)

    def train(self) -> AmagoPolicy:
        self.resume()
        with self.on_all_devices():
            self.epochs()
        return self.finished()

    @contextmanager
    def on_all_devices(self) -> Iterator[None]:
        """Inside, updates are made on all devices of the run."""
        if self.followers is None:
            yield
            return
        beside = [] if self.store.beside is None else self.store.beside[0].listed()
        arrays = {name: torch.as_tensor(array).cpu().numpy() for name, array in self.agent.arrays().items()}
        with self.followers.at_work(arrays, self.drawing.rarity(), self.store.folder, beside):
            yield

    def resume(self) -> None:
        """Go back to the run's checkpoint; if it has none, forget what an earlier run left."""
        checkpoint = self.run.resume()
        self.store.refresh()  # a generation of checkpoints may have been set aside or taken back
        if checkpoint is not None:
            self.load(checkpoint.arrays, checkpoint.state)
            return
        self.store.clear()
        for path in (self.run.checkpoint_folder / POLICIES).glob("*.safetensors"):
            remove_sealed(path)

    def epochs(self) -> None:
        hp = self.hp
        with self.run.progress(hp.epochs, "training", "epochs", start=self.at.epoch) as progress:
            while self.at.epoch < hp.epochs:
                self.epoch()
                if hp.keep_every and self.at.epoch % hp.keep_every == 0:  # before the checkpoint that goes on behind it
                    self.keep(f"epoch_{self.at.epoch:06d}", self.agent.network.policy_arrays())
                progress.update(self.at.epoch)
                every = hp.checkpoint_every * hp.updates_per_epoch
                if self.run.due(self.step, every) and self.at.epoch < hp.epochs:
                    self.save()

    def finished(self) -> AmagoPolicy:
        """The last evaluation, the policies `best` and `latest`, and the one of them that the run gives."""
        if not self.at.updates:
            log.warning("nothing was learned in %d epochs, as there was no trajectory to learn from", self.hp.epochs)
        self.evaluate()
        self.keep("best", self.best)
        self.keep("latest", self.agent.network.policy_arrays())
        if self.hp.keep == "best":
            self.agent.network.load_policy_arrays(self.best)
        self.agent.network.eval()
        return self.agent.policy()


def _between_episodes(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The state of a world that is reset before it is stepped: packaged worlds would play the steps so far again."""
    return {name: np.zeros_like(array) if name == "timestep" else array for name, array in state.items()}
