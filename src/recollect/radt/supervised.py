"""What DT, AD, DPT and RA-DT share: the optimiser, the schedule, the loop, and experience on a device.

One training step is a pure function of (parameters, optimiser state, seed, step): the batch and the dropout masks are
drawn from (seed, step), so a checkpoint needs no generator state and a resumed run is bit-equal to an unbroken one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from recollect.artifacts.checkpoints import joined, part
from recollect.artifacts.run import Run
from recollect.common.compiled import compiled
from recollect.common.contract import Facts, Inputs
from recollect.common.histories import Histories, blocks_of
from recollect.common.optimiser import Adam
from recollect.common.precision import Precision, autocast
from recollect.common.transfer import map_tensors, sent
from recollect.common.transformer import Transformer
from recollect.radt.acting import InContextPolicy
from recollect.radt.actions import NONE, where
from recollect.radt.ahead import batches
from recollect.radt.decision_transformer import DecisionTransformer
from recollect.radt.experience import Experience, numbers_learned
from recollect.settings.errors import UserError
from recollect.settings.schema import Frozen, Settings
from recollect.settings.seeding import seed_of

AnyPolicy = TypeVar("AnyPolicy", bound=InContextPolicy)


class Optimisation(Frozen):
    """AdamW with warm-up and cosine decay (RA-DT section 3.1 of our specification; defaults are the paper's)."""

    steps: int = Field(100_000, ge=1, description="Gradient steps.")
    batch_size: int = Field(128, ge=1, description="Windows per step.")
    learning_rate: float = Field(1e-4, gt=0, description="Peak learning rate.")
    weight_decay: float = Field(0.01, ge=0, description="On the weights of linear layers only.")
    beta2: float = Field(0.999, ge=0, lt=1, description="AdamW's second moment decay.")
    warmup: int = Field(4000, ge=0, description="Steps of linear warm-up.")
    floor: float = Field(1e-6, ge=0, description="Learning rate that the cosine ends at.")
    clip: float = Field(0.25, gt=0, description="Largest gradient norm.")
    precision: Precision = Field(
        "auto",
        description="Of the network's products in training, and of an embedder's for keys and queries. auto: bfloat16 "
        "autocast on a GPU, float32 on a CPU. Sums, losses, searches and weights are float32.",
    )
    compile: bool = Field(
        False, description="On GPUs network and loss go through torch.compile, for fixed shapes; no effect on CPUs."
    )
    micro_batches: int = Field(
        1,
        ge=1,
        description="Parts of a batch whose gradients are added one after another: less memory, the same step up to "
        "rounding (dropout masks are drawn for each part).",
    )
    recompute: bool = Field(
        False, description="Blocks' activations are computed again in the backward pass: less memory, the same bits."
    )
    ahead: bool | None = Field(
        None, description="A thread makes the next batch while one is learned: the same batches; null: on a GPU."
    )
    checkpoint_every: int = Field(1000, ge=1, description="Most steps between checkpoints; they come by time, too.")
    evaluate_every: int | None = Field(None, ge=1, description="Steps between evaluations in training; null: none.")

    @model_validator(mode="after")
    def _every_part_has_a_window(self) -> Optimisation:
        if self.micro_batches > self.batch_size:
            raise ValueError(f"a batch of {self.batch_size} cannot be learned in {self.micro_batches} micro_batches")
        return self

    def rate(self, step: int) -> float:
        """Learning rate of a step: linear warm-up, then cosine with period `steps`, starting after the warm-up."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        phase = min(1.0, (step - self.warmup) / max(1, self.steps))
        above_floor = self.learning_rate - self.floor
        return self.floor + above_floor * 0.5 * (1 + math.cos(math.pi * phase))


OF_WINDOWS = ("with_context",)  # metrics that are means over windows; others are over their real steps
MOST_ON_A_GPU = 16 << 30  # bytes of observations; Procgen's 24 million vectors would be 74 GB


class ExperienceStore:
    """Learning histories as tensors on the training device; a batch of windows is one fancy index.

    Observations that would fill a GPU stay on the host, mapped as they are; those of each batch are sent.

    Args:
        actions: number of discrete actions; that index stands for "no action" in padding (continuous actions: NaN does).
    """

    def __init__(
        self, histories: Histories, *, actions: int, device: torch.device | str = "cpu", reward_scale: float = 1.0
    ) -> None:
        def column(values: np.ndarray, dtype: torch.dtype) -> Tensor:
            filled = torch.empty(values.shape, dtype=dtype, device=device)
            for rows in blocks_of(values):
                filled[rows] = torch.from_numpy(np.array(values[rows]))
            return filled

        self.no_action: int | float = actions
        action_type = torch.int32
        if histories.action.ndim > 1:  # continuous
            self.no_action = NONE
            action_type = torch.float32
        observation_type = torch.float32
        if np.issubdtype(histories.observation.dtype, np.integer):
            observation_type = torch.int32
        self.observation_type = observation_type
        self.observation: np.ndarray | Tensor = histories.observation
        if torch.device(device).type == "cpu" or 4 * histories.observation.size <= MOST_ON_A_GPU:
            self.observation = column(histories.observation, observation_type)
        self.action = column(histories.action, action_type)
        self.reward = column(histories.reward, torch.float32) / reward_scale
        self.return_to_go = column(histories.return_to_go, torch.float32) / reward_scale
        self.timestep = column(histories.timestep, torch.int32)

    def windows(self, rows_BT: np.ndarray | Tensor, mask_BT: np.ndarray | Tensor) -> Experience:
        """Windows of the rows given; where the mask is False: zeros and the padding action."""
        device = self.reward.device
        rows = sent(rows_BT, device)
        mask = sent(mask_BT, device)
        action = self.action[rows]
        if not action.is_floating_point():
            action = action.long()
        return Experience(
            observation=self.observed(rows_BT, rows) * mask[..., None],
            return_to_go=self.return_to_go[rows] * mask,
            action=where(mask, action, self.no_action),
            reward=self.reward[rows] * mask,
            timestep=self.timestep[rows].long() * mask,
            mask=mask,
        )

    def observed(self, given_BT: np.ndarray | Tensor, rows_BT: Tensor) -> Tensor:
        """Observations of rows, which stand on the device and as they were given."""
        if isinstance(self.observation, Tensor):
            return self.observation[rows_BT]
        # Rows that a search on the device gave are waited for: by the thread that makes batches ahead.
        host_BT = given_BT.cpu().numpy() if isinstance(given_BT, Tensor) else given_BT
        return sent(self.observation[host_BT], self.reward.device).to(self.observation_type)


def open_histories(path: Path, facts: Facts) -> Histories:
    """Learning histories that fit an environment; dimensions of continuous actions that a task lacks are NaN.

    Raises:
        UserError: the file is missing or corrupted, or its observations, actions or episodes are another environment's.
    """
    histories = Histories.open(path)
    wrong = []
    entries = int(np.prod(histories.observation.shape[1:]))
    if entries != facts.observation_size:
        wrong.append(f"observations have {entries} entries, not {facts.observation_size}")
    longest = int(histories.episodes.length.max())
    if longest > facts.horizon:
        wrong.append(f"episodes have up to {longest} steps, not {facts.horizon}")
    size = histories.action.shape[1] if histories.action.ndim > 1 else 0
    if size != facts.action_size:
        kinds = [f"of {numbers} numbers" if numbers else "discrete" for numbers in (size, facts.action_size)]
        wrong.append(f"actions are {kinds[0]}, not {kinds[1]}")
    if wrong:
        raise UserError(
            f"the histories are those of another environment: {'; '.join(wrong)}",
            where=path,
            do="make the histories of this environment again (`recollect generate`)",
        )
    high = np.array(facts.observation_values) - 1 if facts.observation_values else None
    histories.validate(observation_high=high, actions=facts.actions)
    if facts.own_actions and min(facts.own_actions) < facts.action_size:
        own_N1 = np.array(facts.own_actions)[histories.task][:, None]
        is_own_NA = np.arange(facts.action_size) < own_N1
        histories.action = np.where(is_own_NA, histories.action, np.float32(NONE))
    return histories


def open_experience(which: str, settings: Settings, inputs: Inputs, facts: Facts) -> tuple[Histories, ExperienceStore]:
    """Learning histories as a file, and as tensors on the run's device.

    Args:
        which: the input that holds them: `histories` or `demonstrations`.

    Raises:
        UserError: see `open_histories`.
    """
    histories = open_histories(inputs.need(which), facts)
    reward_scale = settings.method.hyperparameters.reward_scale
    store = ExperienceStore(histories, actions=facts.actions, device=inputs.device, reward_scale=reward_scale)
    return histories, store


def make_optimiser(network: nn.Module, settings: Optimisation) -> Adam:
    """AdamW that decays the weights of linear layers and nothing else."""
    linear = {id(module.weight) for module in network.modules() if isinstance(module, nn.Linear)}
    trained = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
    return Adam(
        trained.items(),
        lr=settings.learning_rate,
        betas=(0.9, settings.beta2),
        weight_decay=settings.weight_decay,
        decayed={name for name, parameter in trained.items() if id(parameter) in linear},
    )


def optimiser_arrays(network: nn.Module, optimiser: Adam) -> dict[str, np.ndarray | Tensor]:
    """Parameters and optimiser moments by name: everything that changes in a step."""
    return joined(network=network.state_dict(), optimiser=optimiser.arrays())


def load_optimiser_arrays(network: nn.Module, optimiser: Adam, arrays: Mapping[str, Any]) -> None:
    weights = part(arrays, "network")
    network.load_state_dict({name: torch.as_tensor(value) for name, value in weights.items()})
    optimiser.load(part(arrays, "optimiser"))


def read_back(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Scalars of a device as numbers: the one moment at which the host waits for it."""
    return dict(zip(values, torch.stack([value.detach().float() for value in values.values()]).tolist(), strict=True))


class Gradients:
    """Adds the gradients of a batch to a network's parameters; never waits for the device.

    Args:
        loss_of: batch -> scalar loss, a mean over the numbers that are learned, and metrics.
        learned_of: batch -> the windows whose real steps it learns; needed where there are micro-batches.
    """

    def __init__(
        self,
        loss_of: Callable[[Any], tuple[Tensor, dict[str, Tensor]]],
        settings: Optimisation,
        device: torch.device | str,
        learned_of: Callable[[Any], Experience] | None,
    ) -> None:
        self.loss_of, self.settings, self.device = loss_of, settings, device
        self.learned_of = learned_of
        if settings.micro_batches > 1 and learned_of is None:
            raise UserError(
                "what this trains cannot be learned in parts",
                where="hyperparameters: optimisation.micro_batches",
                do="set optimisation.micro_batches: 1",
            )

    def add(self, batch: Any) -> dict[str, Tensor]:
        """The loss and the metrics of the batch, as tensors."""
        parts = self.settings.micro_batches
        if parts == 1 or self.learned_of is None:
            return self._add(batch, None)
        whole = self.learned_of(batch)
        bounds = [len(whole.mask) * place // parts for place in range(parts + 1)]
        numbers = numbers_learned(whole)
        sums: dict[str, Tensor] = {}
        for first, past in pairwise(bounds):
            rows = map_tensors(batch, itemgetter(slice(first, past)))
            share = numbers_learned(self.learned_of(rows)) / numbers
            windows = (past - first) / len(whole.mask)
            for name, value in self._add(rows, share).items():
                weight = windows if name in OF_WINDOWS else share
                sums[name] = value * weight + sums.get(name, 0.0)
        return sums

    def _add(self, batch: Any, share: Tensor | None) -> dict[str, Tensor]:
        with autocast(self.settings.precision, self.device):
            loss, metrics = self.loss_of(batch)
        (loss if share is None else loss * share).backward()
        return {"loss": loss.detach(), **metrics}


def train_supervised(
    network: DecisionTransformer,
    *,
    batch_of: Callable[[int], Any],
    loss_of: Callable[[Any, Any], tuple[Tensor, dict[str, Tensor]]],
    settings: Optimisation,
    run: Run,
    seed: int,
    device: torch.device | str = "cpu",
    evaluate: Callable[[int], None] | None = None,
    learned_of: Callable[[Any], Experience] | None = None,
    notes_of: Callable[[Any], Mapping[str, float]] | None = None,
) -> None:
    """Train the network in place; resumes from the run's newest checkpoint.

    Args:
        batch_of: a pure function of the step; may be called from another thread.
        loss_of: (network, batch) -> scalar loss and metrics (tensors; read only when logged).
        evaluate: called with the step every `evaluate_every` steps and never changes the network.
        learned_of: see `Gradients`.
        notes_of: batch -> what is logged of how it was made.
    """
    optimiser = make_optimiser(network, settings)
    start = 0
    checkpoint = run.resume()
    if checkpoint is not None:
        load_optimiser_arrays(network, optimiser, checkpoint.arrays)
        start = checkpoint.step
    else:
        run.log(0, parameters=sum(p.numel() for p in network.parameters()))
    for module in network.modules():
        if isinstance(module, Transformer):
            module.recomputes = settings.recompute

    def step_loss(batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return loss_of(network, batch)

    on_gpu = torch.device(device).type == "cuda"
    chosen_loss = compiled(step_loss, device) if settings.compile and on_gpu else step_loss
    gradients = Gradients(chosen_loss, settings, device, learned_of)
    ahead = on_gpu if settings.ahead is None else settings.ahead
    made = batches(batch_of, range(start, settings.steps), device, ahead=ahead)
    network.train()
    log_every = max(1, settings.steps // 200)
    with run.progress(settings.steps, "training") as progress, closing(made):
        for step, batch in made:
            if notes_of is not None:
                run.log(step, **notes_of(batch))
            optimiser.lr = settings.rate(step)
            network.reseed_dropout(seed_of("dropout", seed, step))
            optimiser.zero_grad()
            metrics = gradients.add(batch)
            norm = nn.utils.clip_grad_norm_(network.parameters(), settings.clip)
            optimiser.step()
            done = step + 1
            if done % log_every == 0 or done == settings.steps:
                values = read_back({"gradient_norm": norm, **metrics})
                run.log(done, gradient_norm=values.pop("gradient_norm"), learning_rate=settings.rate(step), **values)
                progress.update(done, loss=values["loss"])
            if evaluate is not None and settings.evaluate_every and done % settings.evaluate_every == 0:
                network.eval()
                evaluate(done)
                network.train()
            if run.due(done, settings.checkpoint_every) and done < settings.steps:
                run.save(done, optimiser_arrays(network, optimiser), {})
    network.eval()


def train_policy(
    policy: AnyPolicy,
    settings: Settings,
    run: Run,
    *,
    batch_of: Callable[[int], Any],
    loss_of: Callable[[Any, Any], tuple[Tensor, dict[str, Tensor]]],
    learned_of: Callable[[Any], Experience],
    notes_of: Callable[[Any], Mapping[str, float]] | None = None,
) -> AnyPolicy:
    """Train a policy's network as the settings say; see `train_supervised`. Gives the policy back."""
    train_supervised(
        policy.network,
        batch_of=batch_of,
        loss_of=loss_of,
        settings=settings.method.hyperparameters.optimisation,
        run=run,
        seed=settings.seed,
        device=policy.device,
        evaluate=lambda step: run.evaluate_policy(policy, step),
        learned_of=learned_of,
        notes_of=notes_of,
    )
    return policy
