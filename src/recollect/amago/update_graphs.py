"""Updates as CUDA graphs: over a thousand small kernels, launched at once.

A graph is of one shape of batches, which are padded to their longest window. A run has one where all rollouts are of one length,
or longer than the context. Where they differ, a few shapes that come often are graphs. An update on a batch of another shape
launches its kernels one by one, as all updates do without graphs. Both read and write the same tensors. Rollouts may grow or
shrink while an agent learns: a graph that is no longer replayed makes room for a shape that came often meanwhile.

What the host gives an update is copied to where the graph reads it: the batch, what the loss draws, and the step size. Dropout
comes from the device's generator, which is seeded in front of each update. Metrics that are looked at once an epoch are in
every graph, as they cost less than a graph of their own. The loss in a graph may be a compiled one (`compiled_loss`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from recollect.amago.batch import Batch
from recollect.amago.hyperparameters import AmagoHyperparameters
from recollect.amago.network import Network
from recollect.amago.policy_distributions import Distribution
from recollect.amago.share import Beforehand, Share
from recollect.amago.terms import Draws, of_epoch
from recollect.common.cuda_graphs import WARM_UP, captured, on_side_stream

log = logging.getLogger(__name__)
MOST = 4
"""Graphs of a run. They share their memory, which is that of the largest; each costs a capture and the host's memory of it."""
OFTEN = 200
"""Updates of a form without a graph, in which the graph that waits longest was not replayed, after which it makes room."""

Form = tuple[Any, ...]
"""Names, types and shapes of a batch's arrays."""
Compute = Callable[[Batch, Draws, bool], dict[str, Tensor]]
"""(batch, draws, further) -> metrics: an update, which changes weights and statistics where they are."""


class Quick(NamedTuple):
    """Updates that take less time, and are tried where they are to be captured."""

    is_ready: Callable[[Batch, Draws], bool]
    """Whether updates of such a batch can be captured now; makes what they need, and learns nothing"""
    compute: Compute


def hindrance(hp: AmagoHyperparameters, network: Network, policy: Distribution, share: Share) -> str:
    """Why the updates of an agent cannot be graphs: what asks the device for a number, or draws on the host; "" if nothing does."""
    if not share.alone:
        return "several devices learn together"
    if hp.inputs.own() is not None or hp.sequence.own() is not None:
        return "an encoder is not one of ours"
    if policy.on_host:
        return "actions of this policy are drawn on the host"
    if hp.inputs.augment and network.shape.steps.image:
        return "images are shifted by what the host draws"
    return ""


@dataclass(frozen=True)
class _Update:
    """A captured update: what it reads, and where a replay leaves its metrics."""

    batch: Batch
    draws: Draws
    graph: torch.cuda.CUDAGraph
    names: tuple[str, ...]
    values_M: Tensor

    def replay(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """The update of a batch in host memory; all metrics, which no later update changes."""
        for name, column in _columns(batch).items():
            getattr(self.batch, name).copy_(column, non_blocking=True)
        self.draws.index_KBTG.copy_(draws.index_KBTG, non_blocking=True)
        assert isinstance(self.draws.actions, Beforehand) and isinstance(draws.actions, torch.Generator)
        self.draws.actions.renew(draws.actions)
        self.graph.replay()
        return dict(zip(self.names, self.values_M.clone().unbind(), strict=True))


class UpdateGraphs:
    """Makes the updates of an agent on a GPU.

    Attributes:
        works: whether graphs can be captured here; the first that cannot is warned of, and none is tried again.
        quick: what graphs are made of where it can be; else, and in all other updates, `compute` is.
    """

    def __init__(self, compute: Compute, device: torch.device, quick: Quick | None = None) -> None:
        self.compute, self.device, self.quick = compute, device, quick
        self.works = True
        self._seen: Counter[Form] = Counter()
        self._crowded_out: Counter[Form] = Counter()  # since the graph that waits longest was replayed
        self._drawn: dict[Form, Beforehand] = {}
        self._updates: dict[Form, _Update] = {}  # the one that was replayed last is the last
        self._pool: Any = None

    def __call__(self, batch: Batch, draws: Draws, further: bool) -> dict[str, Tensor]:
        """One update: its metrics.

        Args:
            batch: in host memory.
            draws: `actions` is a generator.
        """
        form = tuple((name, column.dtype, column.shape) for name, column in _columns(batch).items())
        if form not in self._updates and self.works and self._has_room(form):
            self._seen[form] += 1
            if self._seen[form] <= WARM_UP:
                return self._warmed_up(form, batch, draws, further)
            self._capture(form, batch, draws)
        if form not in self._updates:
            return self.compute(batch, draws, further)
        if form == next(iter(self._updates)):
            self._crowded_out.clear()
        update = self._updates[form] = self._updates.pop(form)
        return _wanted(update.replay(batch, draws), further)

    def _has_room(self, form: Form) -> bool:
        """Whether batches of this form may become a graph, in the place of another where there are as many as there may be."""
        if len(self._updates) < MOST:
            return True
        self._crowded_out[form] += 1
        return self._crowded_out[form] > OFTEN

    def _warmed_up(self, form: Form, batch: Batch, draws: Draws, further: bool) -> dict[str, Tensor]:
        assert isinstance(draws.actions, torch.Generator)
        actions = Beforehand(draws.actions, self.device)
        if self._seen[form] == WARM_UP:
            self._drawn[form] = actions
        # Some metrics need draws of their own, and a graph has all metrics.
        metrics = on_side_stream(partial(self.compute, batch, Draws(draws.index_KBTG, actions), True))
        return _wanted(metrics, further)

    def _capture(self, form: Form, batch: Batch, draws: Draws) -> None:
        """Make a graph of the update of batches of this form, where it can be; of too many the one that waits longest goes."""
        self._pool = torch.cuda.graph_pool_handle() if self._pool is None else self._pool
        columns = {name: column.to(self.device, non_blocking=True) for name, column in _columns(batch).items()}
        own_batch: Any = replace(batch, **columns)  # type: ignore[arg-type]
        actions = self._drawn.pop(form)
        actions.settle()
        own_draws = Draws(draws.index_KBTG.clone(), actions)
        made = self._quickly(own_batch, own_draws)
        if made is None:
            try:
                made = self._graph(self.compute, own_batch, own_draws)
            except RuntimeError as error:
                self.works = False
                log.warning("updates go on without CUDA graphs, which is slower: %s", error)
                return
        self._updates[form] = made
        if len(self._updates) > MOST:
            oldest = next(iter(self._updates))
            del self._updates[oldest], self._seen[oldest]
            self._crowded_out.clear()

    def _quickly(self, batch: Batch, draws: Draws) -> _Update | None:
        """A graph of what takes less time; None where there is no such thing."""
        if self.quick is None or not on_side_stream(partial(self.quick.is_ready, batch, draws)):
            return None
        try:
            return self._graph(self.quick.compute, batch, draws)
        except RuntimeError as error:
            self.quick = None
            self._pool = torch.cuda.graph_pool_handle()  # of that one, parts may be taken
            log.warning("`compile` is left off, as no CUDA graph can hold what it makes: %s", error)
            return None

    def _graph(self, compute: Compute, batch: Batch, draws: Draws) -> _Update:
        """An update as a graph. Raises RuntimeError: it cannot be captured."""
        assert isinstance(draws.actions, Beforehand)
        draws.actions.again()

        def update() -> tuple[tuple[str, ...], Tensor]:
            metrics = compute(batch, draws, True)
            return tuple(metrics), torch.stack(list(metrics.values()))

        graph, (names, values_M) = captured(update, self._pool)
        return _Update(batch, draws, graph, names, values_M)


def _wanted(metrics: dict[str, Tensor], further: bool) -> dict[str, Tensor]:
    return {name: value for name, value in metrics.items() if further or not of_epoch(name)}


def _columns(batch: Batch) -> dict[str, Tensor]:
    """The arrays of a batch."""
    return {name: torch.as_tensor(array) for name, array in vars(batch).items() if array is not None}
