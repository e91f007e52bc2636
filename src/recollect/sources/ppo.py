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
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from gymnasium.spaces import Box
from pydantic import Field, model_validator

from recollect.artifacts.checkpoints import part
from recollect.common.advantages import advantages
from recollect.environments import registry
from recollect.environments.base import Task
from recollect.settings.schema import Frozen
from recollect.sources.actor_critics import ActorCritics, exp, log_softmax
from recollect.sources.recording import Inputs, MakeWorld, Recorder, Run, check_tasks, task_generators, tracked


class Hyperparameters(Frozen):
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
    gamma: float = Field(0.99, ge=0, le=1, description="Discount. Paper: 0.99.")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="GAE's λ: 0 trusts the critic, 1 the returns. Paper: 0.95.")
    clip: float = Field(
        0.2, gt=0, description="How far a probability ratio may move before its gradient is cut. Paper: 0.2."
    )
    value_coefficient: float = Field(0.5, ge=0, description="Weight of the critic's squared error. Paper: 0.5.")
    gradient_norm: float = Field(0.5, gt=0, description="Largest norm of one task's gradient. Paper: 0.5.")
    adam_epsilon: float = Field(1e-5, gt=0, description="Adam's ε. Paper: 1e-5.")
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
        20_000, ge=0, description="Steps per task between checkpoints (taken at ends of rollouts); changes no result."
    )

    @model_validator(mode="after")
    def _minibatches_fill_the_rollout(self) -> Hyperparameters:
        if self.rollout % self.minibatch:
            raise ValueError(f"minibatch {self.minibatch} does not divide rollout {self.rollout}")
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
    workers: int | None = None,
) -> dict[str, np.ndarray]:
    """Train one PPO agent per task and return everything it lived through, in time order.

    Args:
        world, options: name and options of the world, as for `recollect.environments.registry.make_world`.
        tasks: of one split, each once; one agent is trained on each.
        hyperparameters: the same for all.
        seed: of the source agents and their worlds.
        run: shows progress, saves checkpoints at the ends of rollouts, and resumes bit-exactly from the newest.
        device: where the networks live; worlds always step on the CPU.
        workers: threads that train a part of the tasks each; changes no bit of the result. None: torch's number of
            threads on the CPU, 1 on a GPU. (Threads within each product would wait for one another at every operation,
            which takes 20 times as long where other jobs share the cores.)

    Returns:
        The arrays of `recollect.common.histories`: observation [N, D], action [N], reward [N], done [N],
        task [N], episode [N] with N = tasks · transitions, tasks ascending.

    Raises:
        UserError: the world's actions are not discrete or its observations no vectors, or a checkpoint does not fit.
    """
    return train_ensembles(
        EnsemblePPO, world, options, tasks, hyperparameters, seed=seed, run=run, device=device, workers=workers
    )


def train_ensembles(
    kind: type[EnsemblePPO],
    world: str,
    options: Mapping[str, Any],
    tasks: Sequence[Task],
    hyperparameters: Hyperparameters,
    *,
    seed: int,
    run: Run | None,
    device: str,
    workers: int | None,
) -> dict[str, np.ndarray]:
    """What `generate` does, with the agents of this kind."""
    check_tasks(tasks)
    checkpoint = run.resume() if run is not None else None
    threads = torch.get_num_threads()
    workers = workers or (1 if torch.device(device).type != "cpu" else threads)
    shards = min(workers, len(tasks)) if checkpoint is None else int(checkpoint.state["shards"])
    ordered = sorted(tasks, key=lambda task: task.index)
    bounds = np.linspace(0, len(ordered), shards + 1).astype(int)
    ensembles = [
        kind(lambda t, s: registry.make_world(world, options, t, s), ordered[a:b], hyperparameters, seed, device=device)
        for a, b in pairwise(bounds)
    ]
    if checkpoint is not None:
        for k, ensemble in enumerate(ensembles):
            ensemble.load(part(checkpoint.arrays, str(k)))
    try:
        torch.set_num_threads(1)
        with (
            ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool,
            tracked(run, hyperparameters.transitions, f"{len(tasks)} {kind.title} agents") as progress,
        ):
            while not ensembles[0].finished:
                list(pool.map(kind.advance, ensembles))
                played = ensembles[0].recorder.length
                if progress is not None:
                    recent = [ensemble.recorder.last_return() for ensemble in ensembles]
                    progress.update(played, episode_return=float(np.average(recent, weights=np.diff(bounds))))
                every = hyperparameters.checkpoint_every
                if run is not None and not ensembles[0].finished and run.due(played, every):
                    arrays = {f"{k}/{n}": a for k, e in enumerate(ensembles) for n, a in e.arrays().items()}
                    run.save(played, arrays, {"algorithm": kind.title, "seed": seed, "shards": shards})
    finally:
        torch.set_num_threads(threads)
    parts = [ensemble.recorder.histories() for ensemble in ensembles]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class EnsemblePPO:
    """E agents in E tasks. ``advance()`` plays one rollout and learns from it; between two calls, ``arrays()`` is all.

    Args:
        make_world: builds the world from the tasks and one uint64 seed per task.
        tasks, hyperparameters, seed, device: see `generate`.
    """

    title: ClassVar[str] = "PPO"

    def __init__(
        self,
        make_world: MakeWorld,
        tasks: Sequence[Task],
        hyperparameters: Hyperparameters,
        seed: int,
        *,
        device: str = "cpu",
    ) -> None:
        self.settings, self.tasks, self.seed, self.device = hyperparameters, list(tasks), seed, torch.device(device)
        self.recorder = Recorder(make_world, self.tasks, hyperparameters.transitions, seed)
        observations = self.recorder.world.single_observation_space
        assert isinstance(observations, Box)
        self.inputs = Inputs(observations, hyperparameters.observation_encoding, hyperparameters.observation_scale)
        self.networks = self._build_networks()
        self.rollouts = 0
        # On a GPU, summing gradients into a table would be in no fixed order, and rows cost nothing there.
        self.learn_on_table = self.device.type == "cpu" and 0 < self.inputs.size <= hyperparameters.minibatch
        self.table_NRD = self.networks.rows(self.inputs.table) if self.inputs.size else None

    def _build_networks(self) -> ActorCritics:
        return ActorCritics(
            task_generators("ppo-weights", self.seed, self.tasks),
            self.inputs.features,
            self.recorder.actions,
            self.settings.hidden,
            self.settings.activation,
            self.device,
        )

    @property
    def finished(self) -> bool:
        """Whether every task has its `transitions`."""
        return self.recorder.length >= self.settings.transitions

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything a bit-exact continuation needs, at the end of a rollout (the histories so far included)."""
        arrays = {f"networks/{name}": array for name, array in self.networks.arrays().items()}
        return arrays | self.recorder.arrays() | {"rollouts": np.array([self.rollouts])}

    def load(self, arrays: dict[str, Any]) -> None:
        """Continue from `arrays()` of another instance with the same settings.

        Raises:
            UserError: the arrays are of other tasks or other settings.
        """
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
        noise_TE = np.stack(
            [g.random(steps, np.float32) for g in task_generators("ppo-actions", self.seed, self.tasks, self.rollouts)],
            axis=1,
        )
        count = len(self.tasks)
        if self.inputs.size:
            table_rows_E = np.arange(count) * self.inputs.size
            log_ERA, value_ER = self._policy(self.table_NRD)
            log_MA, value_M = log_ERA.reshape(-1, self.recorder.actions), value_ER.reshape(-1)
            bounds_MA = np.cumsum(np.exp(log_MA), axis=1)[:, :-1].copy()
            row_TE = np.empty((steps + 1, count), np.int64)
            action_TE = np.empty((steps, count), np.int64)
            for t in range(steps):
                row_E = row_TE[t] = table_rows_E + self.inputs.row(self.recorder.observation)
                action_E = action_TE[t] = (noise_TE[t][:, None] >= bounds_MA.take(row_E, axis=0)).sum(1)
                self.recorder.step(action_E)
            row_TE[steps] = table_rows_E + self.inputs.row(self.recorder.observation)
            return value_M[row_TE], log_MA[row_TE[:-1], action_TE]
        values_TE, logs_TE = np.empty((steps + 1, count), np.float32), np.empty((steps, count), np.float32)
        for t in range(steps + 1):
            features_ED = self.inputs.encode(self.recorder.observation)
            log_ERA, value_ER = self._policy(self.networks.rows_per_task(features_ED[:, None]))
            values_TE[t] = value_ER[:, 0]
            if t < steps:
                log_EA = log_ERA[:, 0]
                action_E = (noise_TE[t][:, None] >= np.cumsum(np.exp(log_EA), axis=1)[:, :-1]).sum(1)
                logs_TE[t] = np.take_along_axis(log_EA, action_E[:, None], axis=1)[:, 0]
                self.recorder.step(action_E)
        return values_TE, logs_TE

    def _learn(self, rollout: slice, values_TE: np.ndarray, log_probabilities_TE: np.ndarray) -> None:
        """All epochs over one rollout."""
        settings, recorded = self.settings, self.recorder
        advantage_TE = advantages(
            recorded.reward[rollout], recorded.done[rollout], values_TE, settings.gamma, settings.gae_lambda
        )
        return_TE = advantage_TE + values_TE[:-1]
        observation_TED, action_TE = recorded.observations[rollout], recorded.action[rollout].astype(np.int64)
        features_TED = None if self.learn_on_table else self.inputs.encode(observation_TED)
        row_TE = self.inputs.row(observation_TED) if self.learn_on_table else None
        orders = [
            np.stack([g.permutation(settings.rollout) for _ in range(settings.epochs)])
            for g in task_generators("ppo-minibatches", self.seed, self.tasks, self.rollouts)
        ]
        order_PTE = np.stack(orders, axis=2)
        for order_TE in order_PTE:
            # One gather per epoch, minibatch by minibatch [M, E, B], so that each minibatch is one contiguous block.
            gathered = [
                self.networks.put(self._minibatches(array, order_TE))
                for array in (action_TE, log_probabilities_TE, advantage_TE, return_TE)
            ]
            rows = self._minibatches(row_TE if features_TED is None else features_TED, order_TE)
            for m, batch in enumerate(zip(*gathered, strict=True)):
                if features_TED is None:
                    self._descend(self.table_NRD, self.networks.put(rows[m]), *batch)
                else:
                    self._descend(self.networks.rows_per_task(rows[m]), None, *batch)

    def _minibatches(self, array_TE: np.ndarray | None, order_TE: np.ndarray) -> np.ndarray:
        assert array_TE is not None
        shuffled = np.take_along_axis(array_TE, order_TE.reshape(order_TE.shape + (1,) * (array_TE.ndim - 2)), axis=0)
        blocks = shuffled.reshape(-1, self.settings.minibatch, *shuffled.shape[1:])
        return np.ascontiguousarray(np.swapaxes(blocks, 1, 2))

    def _descend(
        self,
        x_NRD: torch.Tensor | None,
        row_EB: torch.Tensor | None,
        action_EB: torch.Tensor,
        old_log_EB: torch.Tensor,
        advantage_EB: torch.Tensor,
        return_EB: torch.Tensor,
    ) -> None:
        """One gradient step of every task on its own minibatch.

        Args:
            x_NRD: the networks' inputs: one row per transition, or (with `row_EB`) one per possible observation.
            row_EB: which row of `x_NRD` each transition is; None if they are the rows, in order.
            action_EB, old_log_EB, advantage_EB, return_EB: of the transitions, from the rollout.
        """
        assert x_NRD is not None
        hidden, out_NAR = self.networks.forward(x_NRD)
        d_out_NAR = self._output_gradients(out_NAR, row_EB, action_EB, old_log_EB, advantage_EB, return_EB)
        self.networks.backward(hidden, d_out_NAR)
        self._update()

    def _output_gradients(
        self,
        out_NAR: torch.Tensor,
        row_EB: torch.Tensor | None,
        action_EB: torch.Tensor,
        old_log_EB: torch.Tensor,
        advantage_EB: torch.Tensor,
        return_EB: torch.Tensor,
    ) -> torch.Tensor:
        """Gradients of the loss at the networks' outputs [N, A, R]; for the other arguments see `_descend`."""
        settings, batch = self.settings, action_EB.shape[1]
        rows = out_NAR.shape[2]
        log_EAR = log_softmax(out_NAR[0::2])
        probability_EAR = exp(log_EAR)
        cell_EB = action_EB * rows + (torch.arange(rows, device=self.device) if row_EB is None else row_EB)
        log_EB = log_EAR.flatten(1).gather(1, cell_EB)
        value_ER = out_NAR[1::2, 0]
        value_EB = value_ER if row_EB is None else value_ER.gather(1, row_EB)

        # Surrogate: d/d(log π) of -min(r·A, clip(r)·A) is -r·A, or 0 where the clip is the smaller.
        std_E1, mean_E1 = torch.std_mean(advantage_EB, dim=1, keepdim=True)
        advantage_EB = (advantage_EB - mean_E1) / (std_E1 + 1e-8)
        ratio_EB = exp(log_EB - old_log_EB)
        surrogate_EB = ratio_EB * advantage_EB
        kept_EB = surrogate_EB <= ratio_EB.clamp(1 - settings.clip, 1 + settings.clip) * advantage_EB
        d_log_EB = surrogate_EB.mul_(kept_EB).mul_(-1.0 / batch)
        d_value_EB = (value_EB - return_EB).mul_(2 * settings.value_coefficient / batch)

        # Gradients at the outputs, summed over the transitions that share a row.
        chosen_EAR = torch.zeros_like(log_EAR)
        chosen_EAR.flatten(1).scatter_add_(1, cell_EB, d_log_EB)
        entropy_E1R = -(probability_EAR * log_EAR).sum(1, keepdim=True)
        visits_E1R: torch.Tensor | float = 1.0
        if row_EB is not None:
            visits_E1R = torch.zeros_like(value_ER).scatter_add_(1, row_EB, torch.ones_like(old_log_EB))[:, None]
        d_out_NAR = torch.zeros_like(out_NAR)
        entropy_pull_EAR = (log_EAR + entropy_E1R) * (visits_E1R * (settings.entropy / batch))
        d_out_NAR[0::2] = chosen_EAR + probability_EAR * (entropy_pull_EAR - chosen_EAR.sum(1, keepdim=True))
        if row_EB is None:
            d_out_NAR[1::2, 0] = d_value_EB
        else:
            d_out_NAR[1::2, 0] = torch.zeros_like(value_ER).scatter_add_(1, row_EB, d_value_EB)
        return d_out_NAR

    def _update(self) -> None:
        settings = self.settings
        self.networks.descend(
            learning_rate=settings.learning_rate, gradient_norm=settings.gradient_norm, epsilon=settings.adam_epsilon
        )

    def _policy(self, x_NRD: torch.Tensor | None) -> tuple[np.ndarray, np.ndarray]:
        """Log-probabilities [E, R, A] and values [E, R] of the inputs."""
        assert x_NRD is not None
        _, out_NAR = self.networks.forward(x_NRD)
        log_EAR = log_softmax(out_NAR[0::2])
        return log_EAR.transpose(1, 2).contiguous().cpu().numpy(), out_NAR[1::2, 0].contiguous().cpu().numpy()
