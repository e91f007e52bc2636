"""What learns: the networks of an off-policy method, their Adam and one update. A method adds its loss and how it explores."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recollect.common.masked_mean import Mean, masked_mean
from recollect.common.optimiser import Adam
from recollect.common.polyak import follow
from recollect.common.precision import in_bfloat16, tf32
from recollect.common.transfer import sent
from recollect.common.weights import load_trained, trained_arrays
from recollect.memory_rl.history_policy import HistoryNetwork, reseed_dropout
from recollect.memory_rl.hyperparameters import OffPolicyHyperparameters
from recollect.memory_rl.replay import Batch
from recollect.settings.seeding import seed_of

Turn = tuple[str, ...]
"""A part of an update that steps by itself: what its streams of dropout are named by."""


class Learner:
    """Networks, Adam and one update. All that changes is in `arrays`.

    Args:
        network: what acts, a part of `online` (or all of it).
        online: what Adam trains.
        target: follows the parts of `online` that have the names of its own.
    """

    mean: Mean = staticmethod(masked_mean)
    """Of a loss over a batch; where the batch is that of several members (`recollect.memory_rl.ensemble`), of each."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The parts of an update, in the order in which they step. Here all is one, which needs no name."""
        return ((),)

    def __init__(
        self,
        hp: OffPolicyHyperparameters,
        network: HistoryNetwork,
        online: nn.Module,
        target: nn.Module,
        *,
        seed: int,
        device: torch.device | str,
    ) -> None:
        self.seed, self.device = seed, torch.device(device)
        self.network = network
        self.gradient_clip, self.polyak = hp.gradient_clip, hp.polyak
        self.online, self.target = online.to(device), target.to(device)
        self.target.requires_grad_(False)
        self.optimiser = Adam(self.online.named_parameters(), lr=hp.learning_rate)
        self.targets: list[Tensor] = list(self.target.parameters())
        copied = [self.online.get_submodule(name) for name, _ in self.target.named_children()]
        self.followed: list[Tensor] = [parameter for module in copied for parameter in module.parameters()]

    def products(self) -> AbstractContextManager[None]:
        """The precision of an update's float32 products on a GPU.

        With an encoder in bfloat16 they are in TF32, which is finer still. With a recurrent encoder (`precision` is "tf32") so are
        all but products with its state. Those are in float32, but `lstm_kernels` round weights to 11 bits. Else all are float32.
        """
        precision = self.network.encoder.precision
        recurrent = precision == "tf32"
        return tf32(recurrent or in_bfloat16(precision, self.device), self.device, in_cudnn=not recurrent)

    def noise(self, windows: int, n: int, counter: int) -> tuple[Tensor, ...]:
        """What update number `counter` draws beside dropout: tensors [windows, ...] on the CPU, for windows of n transitions."""
        return ()

    def loss(self, batch: Batch, noise: tuple[Tensor, ...], turn: Turn) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of one turn (scalar) and the metrics that it is told by, on the device: a function of tensors there."""
        raise NotImplementedError

    def explore(self, outputs_BA: Tensor, count_B: np.ndarray, draws: np.random.Generator) -> np.ndarray:
        """Actions [B] of the behaviour policy; `count_B`: exploratory selections made before each."""
        raise NotImplementedError

    def explore_one(self, outputs_A: np.ndarray, count: int, draws: np.random.Generator) -> int:
        """The action that `explore` takes of one row's discrete outputs."""
        return int(self.explore(torch.from_numpy(outputs_A)[None], np.array([count]), draws)[0])

    def drawn_before(self, steps: int, count: int, draws: np.random.Generator) -> np.ndarray | None:
        """What `explore_one` draws in so many steps, [T]. None: that cannot be told beforehand."""
        return None

    def explored(self, outputs_BA: Tensor, drawn_B: Tensor) -> Tensor:
        """The actions int64 [B] that `explore_one` takes of outputs and what was drawn: a function of tensors on the device."""
        raise NotImplementedError

    def step(self, batch: Batch, counter: int) -> dict[str, Tensor]:
        """Update number `counter`, in place. Returns its metrics (scalars, on the device)."""
        windows, n = batch.action_BT.shape[:2]
        noise = tuple(sent(one, self.device) for one in self.noise(windows, n, counter))
        metrics: dict[str, Tensor] = {}
        norms = []
        for turn in self.turns:
            reseed_dropout(self.target, seed_of("dropout in targets", self.seed, counter))
            reseed_dropout(self.online, seed_of("dropout", self.seed, counter, *turn))
            with self.products():
                loss, seen = self.loss(batch, noise, turn)
                norms.append(self.optimiser.backward(loss, clip=self.gradient_clip))
            self.optimiser.step()
            metrics |= seen
        follow(self.targets, self.followed, self.polyak)
        return {**metrics, "gradient_norm": reduce(torch.hypot, norms)}

    def arrays(self) -> dict[str, Any]:
        return trained_arrays(self.optimiser, online=self.online, target=self.target)

    def load(self, arrays: Mapping[str, Any]) -> None:
        load_trained(arrays, self.optimiser, online=self.online, target=self.target)
