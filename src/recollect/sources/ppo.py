"""PPO for the learning histories: one agent per task, all tasks trained at once as a batched ensemble.

- Every agent is SB3 1.5's ``PPO("MlpPolicy")``, the source agent of RA-DT (its code has the class, no command):
  separate actor and critic of two tanh layers of 64, orthogonal start, Adam (eps 1e-5), advantages normalised per
  minibatch, gradient norm clipped to 0.5, GAE, clipped surrogate, entropy bonus.
- What is one per agent there is one per *task* here: weights (a leading axis, ``bmm``), advantage moments, gradient
  norm, minibatch order, random numbers. A task's history depends on the seed and on its own split and index only, not
  on which other tasks are in the ensemble.
- Where the observations are few (a grid), a rollout's policy is tabulated once, so acting is a table look-up, and a
  minibatch larger than the table is computed on the table: the same gradients, summed in another order.
- The end of an episode by time limit is an end (no bootstrapping), as the published environments report it.
- The last rollout is cut at ``transitions`` and not learned from, so a shorter history is a prefix of a longer one.
- Nothing has saved generator state: all draws are functions of (purpose, seed, split, task index, rollout).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from gymnasium.spaces import Box
from pydantic import Field, model_validator

from recollect.artifacts.checkpoints import part
from recollect.artifacts.finite import check_arrays
from recollect.common.advantages import advantages
from recollect.common.draws import categorical_from_uniform
from recollect.environments import registry
from recollect.environments.base import Task, World
from recollect.sources.cpu.actor_critics import ActorCritics
from recollect.sources.cpu.output_gradients import log_softmax, output_gradients
from recollect.sources.ppo_settings import PPOHyperparameters
from recollect.sources.recording import HistoryRecorder, Inputs, MakeWorld, Run, in_order, task_generators, tracked

ACTIONS = "discrete"


class Hyperparameters(PPOHyperparameters):
    """The source agent. "Paper" values are those of Dark-Room 10×10 (RA-DT appendix; SB3 1.5 defaults where silent)."""

    transitions: int = Field(
        100_000, gt=0, description="Environment steps per task = length of its history. Paper: 100K (40×20: 200K)."
    )
    rollout: int = Field(
        2048, gt=1, description="Steps between two learning phases; shorter learns earlier in the history. Paper: 2048."
    )
    minibatch: int = Field(
        64,
        gt=1,
        description="Transitions per gradient step; must divide `rollout`. Larger is faster and smoother. Paper: 64.",
    )
    epochs: int = Field(
        10,
        gt=0,
        description="Passes over each rollout; more learns faster, less on-policy. Paper: 10 (larger grids: 30).",
    )
    learning_rate: float = Field(3e-4, gt=0, description="Adam's step size, constant. Paper: 3e-4.")
    entropy: float = Field(
        0.01, ge=0, description="Weight of the entropy bonus; more explores longer. Paper: 0.01 (40×20: 0.1)."
    )
    hidden: tuple[int, ...] = Field(
        (64, 64), min_length=1, description="Widths of the hidden layers, of actor and critic each. Paper: 64, 64."
    )
    activation: Literal["tanh", "relu"] = Field("tanh", description="Between layers. Paper: tanh.")
    observation_encoding: Literal["number", "one_hot"] = Field(
        "number",
        description="Input: the numbers themselves, or one indicator per value (integer observations). Paper: number.",
    )
    observation_scale: float = Field(
        1.0, gt=0, description="`number` observations are divided by this. Paper: 1 (raw coordinates)."
    )

    checkpoint_every: int = Field(
        20_000,
        ge=0,
        description="Most steps per task between checkpoints (at ends of rollouts); they come by time, too.",
    )

    @model_validator(mode="after")
    def _minibatches_fill_the_rollout(self) -> Hyperparameters:
        if self.rollout % self.minibatch:
            raise ValueError(f"minibatch {self.minibatch} does not divide rollout {self.rollout}")
        return self


def train_ensembles(
    kind: type[EnsemblePPO],
    world: str,
    options: Mapping[str, Any],
    tasks: Sequence[Task],
    hyperparameters: Hyperparameters,
    *,
    seed: int,
    run: Run | None = None,
    workers: int | None = None,
) -> dict[str, np.ndarray]:
    """Train one agent of a kind per task and return everything it lived through, in time order.

    Args:
        tasks: of one split, each once; one agent is trained on each.
        run: shows progress, saves checkpoints at the ends of rollouts, and resumes bit-exactly from the newest.
        workers: threads that train a part of the tasks each; changes no bit of the result. None: torch's number of
            threads (20 times as fast as threads within each product).

    Returns:
        The arrays of `recollect.common.histories`, with N = tasks · transitions rows.

    Raises:
        UserError: the world's actions are not discrete or its observations no vectors, or a checkpoint does not fit.
    """
    ordered = in_order(tasks)
    checkpoint = run.resume() if run is not None else None
    threads = torch.get_num_threads()
    workers = workers or threads
    shards = min(workers, len(tasks)) if checkpoint is None else int(checkpoint.state["shards"])
    bounds = np.linspace(0, len(ordered), shards + 1).astype(int)

    def make_world(some: Sequence[Task], seeds: np.ndarray) -> World:
        return registry.make_world(world, options, some, seeds)

    ensembles = []
    for shard, (first, end) in enumerate(pairwise(bounds)):
        ensemble = kind(make_world, ordered[first:end], hyperparameters, seed)
        if checkpoint is not None:
            ensemble.load(part(checkpoint.arrays, str(shard)))
        ensembles.append(ensemble)
    try:
        torch.set_num_threads(1)
        with (
            ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool,
            tracked(run, hyperparameters.transitions, f"{len(tasks)} {kind.title} agents") as progress,
        ):
            while not ensembles[0].finished:
                list(pool.map(kind.advance, ensembles))
                played = ensembles[0].recorder.length
                recent = [ensemble.recorder.last_return() for ensemble in ensembles]
                progress.update(played, episode_return=float(np.average(recent, weights=np.diff(bounds))))
                if run is not None and not ensembles[0].finished and run.due(played, hyperparameters.checkpoint_every):
                    arrays: dict[str, np.ndarray] = {}
                    for shard, ensemble in enumerate(ensembles):
                        check_arrays(ensemble.networks.arrays(), f"{kind.title} in {world}, step {played}")
                        arrays |= {f"{shard}/{name}": array for name, array in ensemble.arrays().items()}
                    run.save(played, arrays, {"algorithm": kind.title, "seed": seed, "shards": shards})
    finally:
        torch.set_num_threads(threads)
    for ensemble in ensembles:
        check_arrays(ensemble.networks.arrays(), f"{kind.title} in {world}")
    histories = [ensemble.recorder.histories() for ensemble in ensembles]
    return {name: np.concatenate([columns[name] for columns in histories]) for name in histories[0]}


class EnsemblePPO:
    """E agents in E tasks. ``advance()`` plays a rollout and learns from it; between calls ``arrays()`` is all."""

    title: ClassVar[str] = "PPO"

    def __init__(
        self,
        make_world: MakeWorld,
        tasks: Sequence[Task],
        hyperparameters: Hyperparameters,
        seed: int,
    ) -> None:
        self.settings, self.tasks, self.seed = hyperparameters, list(tasks), seed
        self.recorder = HistoryRecorder(make_world, self.tasks, hyperparameters.transitions, seed)
        observations = self.recorder.world.single_observation_space
        assert isinstance(observations, Box)
        self.inputs = Inputs(observations, hyperparameters.observation_encoding, hyperparameters.observation_scale)
        self.networks = self._build_networks()
        self.rollouts = 0
        self.learn_on_table = 0 < self.inputs.size <= hyperparameters.minibatch

    @cached_property
    def table_NRD(self) -> torch.Tensor:
        """The inputs of all possible observations, for every network; only where they can be listed."""
        return self.networks.rows(self.inputs.table)

    def _build_networks(self) -> ActorCritics:
        return ActorCritics(
            task_generators("ppo-weights", self.seed, self.tasks),
            self.inputs.features,
            self.recorder.actions,
            self.settings.hidden,
            self.settings.activation,
            learning_rate=self.settings.learning_rate,
            epsilon=self.settings.adam_epsilon,
        )

    @property
    def finished(self) -> bool:
        return self.recorder.length >= self.settings.transitions

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything a bit-exact continuation needs, at the end of a rollout (the histories so far included)."""
        arrays = {f"networks/{name}": array for name, array in self.networks.arrays().items()}
        return arrays | self.recorder.arrays() | {"rollouts": np.array([self.rollouts])}

    def load(self, arrays: dict[str, Any]) -> None:
        """Continue from `arrays()`. Raises UserError: they are of other tasks or settings."""
        arrays = {name: np.asarray(array) for name, array in arrays.items()}
        self.recorder.load(arrays)
        self.networks.load(part(arrays, "networks"))
        self.rollouts = int(arrays["rollouts"][0])

    def advance(self) -> None:
        """Play one rollout with fixed weights, then learn from it (unless it was the last)."""
        start = self.recorder.length
        steps = min(self.settings.rollout, self.settings.transitions - start)
        values_TE, log_probabilities_TE = self._play(steps)
        if steps == self.settings.rollout and not self.finished:
            self._learn(slice(start, start + steps), values_TE, log_probabilities_TE)
        self.rollouts += 1

    def _play(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Act for `steps` steps. Returns the critic's values [steps + 1, E] and the actions' log-probabilities."""
        noise_TE = self._noise(steps)
        return self._play_from_table(noise_TE) if self.inputs.size else self._play_from_networks(noise_TE)

    def _noise(self, steps: int) -> np.ndarray:
        """The uniform numbers [steps, E] that the actions of a rollout are drawn with."""
        draws = task_generators("ppo-actions", self.seed, self.tasks, self.rollouts)
        return np.stack([draw.random(steps, np.float32) for draw in draws], axis=1)

    def _play_from_table(self, noise_TE: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of few observations: the policy is tabulated once, and its cumulative probabilities with it."""
        steps, count = noise_TE.shape
        log_ERA, value_ER = self._policy(self.table_NRD)
        # The tables of all tasks stand one below the other, in M = E * R rows.
        value_M = value_ER.reshape(-1)
        log_MA = log_ERA.reshape(-1, self.recorder.actions)
        cumulated_MA = np.cumsum(np.exp(log_MA), axis=1)
        bounds_MA = cumulated_MA[:, :-1].copy()
        first_row_E = np.arange(count) * self.inputs.size
        row_TE = np.empty((steps + 1, count), np.int64)
        action_TE = np.empty((steps, count), np.int64)
        for t in range(steps):
            row_E = first_row_E + self.inputs.row(self.recorder.observation)
            passed_EA = noise_TE[t][:, None] >= bounds_MA.take(row_E, axis=0)
            action_E = passed_EA.sum(1)
            row_TE[t] = row_E
            action_TE[t] = action_E
            self.recorder.step(action_E)
        row_TE[steps] = first_row_E + self.inputs.row(self.recorder.observation)
        return value_M[row_TE], log_MA[row_TE[:-1], action_TE]

    def _play_from_networks(self, noise_TE: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of many observations: the networks are asked at every step."""
        steps, count = noise_TE.shape
        values_TE = np.empty((steps + 1, count), np.float32)
        logs_TE = np.empty((steps, count), np.float32)
        for t in range(steps + 1):
            features_ED = self.inputs.encode(self.recorder.observation)
            log_ERA, value_ER = self._policy(self.networks.rows_per_task(features_ED[:, None]))
            values_TE[t] = value_ER[:, 0]
            if t < steps:
                action_E = categorical_from_uniform(log_ERA[:, 0], noise_TE[t])
                logs_TE[t] = np.take_along_axis(log_ERA[:, 0], action_E[:, None], axis=1)[:, 0]
                self.recorder.step(action_E)
        return values_TE, logs_TE

    def _learn(self, rollout: slice, values_TE: np.ndarray, log_probabilities_TE: np.ndarray) -> None:
        settings, recorded = self.settings, self.recorder
        advantage_TE = advantages(
            recorded.reward[rollout], recorded.done[rollout], values_TE, settings.gamma, settings.gae_lambda
        )
        return_TE = advantage_TE + values_TE[:-1]
        observation_TED, action_TE = recorded.observations[rollout], recorded.action[rollout].astype(np.int64)
        on_table = self.learn_on_table
        input_TE = self.inputs.row(observation_TED) if on_table else self.inputs.encode(observation_TED)
        for order_TE in np.moveaxis(self._orders(settings.rollout), 0, 2):
            # One gather per epoch, minibatch by minibatch [M, E, B], so that each minibatch is one contiguous block.
            gathered = [
                self.networks.put(self._minibatches(array, order_TE))
                for array in (action_TE, log_probabilities_TE, advantage_TE, return_TE)
            ]
            inputs_MEB = self._minibatches(input_TE, order_TE)
            for input_EB, *batch in zip(inputs_MEB, *gathered, strict=True):
                if on_table:
                    self._descend(self.table_NRD, self.networks.put(input_EB), *batch)
                else:
                    self._descend(self.networks.rows_per_task(input_EB), None, *batch)

    def _orders(self, count: int) -> np.ndarray:
        """A random order of `count` things for every task and epoch, [E, epochs, count]."""
        draws = task_generators("ppo-minibatches", self.seed, self.tasks, self.rollouts)
        return np.stack([np.stack([draw.permutation(count) for _ in range(self.settings.epochs)]) for draw in draws])

    def _minibatches(self, array_TE: np.ndarray, order_TE: np.ndarray) -> np.ndarray:
        """[T, E, ...] in another order of time, as minibatches [M, E, B, ...]."""
        index_TE = order_TE.reshape(order_TE.shape + (1,) * (array_TE.ndim - 2))
        shuffled = np.take_along_axis(array_TE, index_TE, axis=0)
        blocks = shuffled.reshape(-1, self.settings.minibatch, *shuffled.shape[1:])
        return np.ascontiguousarray(np.swapaxes(blocks, 1, 2))

    def _descend(self, x_NRD: torch.Tensor, row_EB: torch.Tensor | None, *batch: torch.Tensor) -> None:
        """One gradient step of every task on its own minibatch.

        Args:
            x_NRD: the networks' inputs: one row per transition, or (with `row_EB`) one per possible observation.
            row_EB, batch: see `output_gradients`.
        """
        hidden, out_NAR = self.networks.forward(x_NRD)
        self.networks.backward(hidden, self._output_gradients(out_NAR, row_EB, *batch))
        self._update()

    def _output_gradients(
        self, out_NAR: torch.Tensor, row_EB: torch.Tensor | None, *batch: torch.Tensor
    ) -> torch.Tensor:
        settings = self.settings
        return output_gradients(
            out_NAR,
            row_EB,
            *batch,
            clip=settings.clip,
            value_coefficient=settings.value_coefficient,
            entropy=settings.entropy,
        )

    def _update(self) -> None:
        self.networks.descend(self.settings.gradient_norm)

    def _policy(self, x_NRD: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Log-probabilities [E, R, A] and values [E, R] of the inputs."""
        _, out_NAR = self.networks.forward(x_NRD)
        log_EAR = log_softmax(out_NAR[0::2])
        return log_EAR.transpose(1, 2).contiguous().numpy(), out_NAR[1::2, 0].contiguous().numpy()


generate = partial(train_ensembles, EnsemblePPO)
