"""One step of acting as a CUDA graph: some dozens of small kernels, which the host launches at once.

`acting_step` is what a graph holds: a plain function of tensors that stay where they are, which asks the host for nothing and
counts nothing, so that it may be called again. A GPT's graph reads a fixed number of its cache's slots, so there is one per
power of two up to the length of an episode, captured when it is first needed. On a CPU the function can be called as it is
(tests do); it equals `HistoryEncoder.step` up to the order of sums.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor

from recollect.common.cache import KeyValueCache
from recollect.common.cuda_graphs import WARM_UP, beside, captured
from recollect.memory_rl.transformer_sequence import TransformerState

log = logging.getLogger(__name__)
FEWEST = 16  # slots that a graph of a GPT reads

Tensors = tuple[Tensor, ...]


@torch.no_grad()
def acting_step(
    network: Any, token: Tensors, before: Tensors, cache: KeyValueCache | None, end: int
) -> tuple[Tensor, Tensors]:
    """Outputs [B, A] after one more token per row, and the recurrent state after it.

    Args:
        network: a `HistoryNetwork`.
        token: action, reward and observation, [B, ...] each.
        before: how many tokens each row has before, int64 [B], of a GPT; else the recurrent state, of models that have one.
        cache: of a GPT, which is written to.
        end: slots of the cache that are read, more than any row's tokens before.
    """
    encoder = network.encoder
    x_BD, sequence = encoder.embedder(*token), encoder.sequence
    after: Tensors = ()
    if cache is not None:
        (place_B,) = before
        h_BH = cache.step_at(x_BD + sequence.positions.table_LD[place_B], place_B, end)
    else:
        h_BH, kept = sequence.step(x_BD, before)
        after = kept or ()
    return network.head(h_BH), after


@dataclass
class ActingGraph:
    """Steps a network with the rows of one state; where a graph cannot be captured, as the function is.

    Attributes:
        works: whether graphs can be captured here; the first that cannot is warned of, and none is tried again.
    """

    works: ClassVar[bool] = True

    network: Any
    device: torch.device
    _given: tuple[Tensors, Tensors] = ((), ())  # token and what was before, where graphs read them
    _graphs: dict[tuple[bool, int], tuple[torch.cuda.CUDAGraph, tuple[Tensor, Tensors]]] = field(default_factory=dict)

    def fits(self, state: Any) -> bool:
        """Whether the next step is one for a graph: a GPT's with a row that fills its context slides, and is none."""
        if isinstance(state, TransformerState):
            return state.seen_B is None and state.longest < state.cache.length
        return state is None or isinstance(state, tuple)

    def step(self, token: Tensors, state: Any) -> tuple[Tensor, Any]:
        """What `HistoryNetwork` says [B, A] after the tokens, on the device until the next step, and the state after them.

        Args:
            token: action, reward and observation, on the host or the device.
            state: of the network's sequence model, always of the same rows.
        """
        if not isinstance(state, TransformerState):
            self._fill(token, state or ())
            outputs_BA, after = self._computed(None, 0)
            return outputs_BA, None if state is None else after
        cache = state.cache
        self._fill(token, (cache.lengths_B,))
        outputs_BA, _ = self._computed(cache, min(max(FEWEST, 1 << state.longest.bit_length()), cache.length))
        cache.count()
        state.longest += 1
        return outputs_BA, state

    def _fill(self, token: Tensors, before: Tensors) -> None:
        """Copy what a step begins with to where graphs read it."""
        if not self._given[0]:
            here, then = (tuple(torch.empty_like(one, device=self.device) for one in of) for of in (token, before))
            self._given = here, then
        for own, one in zip(chain(*self._given), (*token, *before), strict=True):
            own.copy_(one, non_blocking=True)

    def _computed(self, cache: KeyValueCache | None, end: int) -> tuple[Tensor, Tensors]:
        function = partial(acting_step, self.network, *self._given, cache, end)
        if self.device.type != "cuda" or not ActingGraph.works:
            return function()
        key = self.network.training, end
        if key not in self._graphs:
            try:
                self._graphs[key] = self._captured(function)
            except RuntimeError as error:
                ActingGraph.works = False
                log.warning("acting goes on without CUDA graphs, which is slower: %s", error)
                return function()
        graph, found = self._graphs[key]
        graph.replay()
        return found

    def _captured(self, function: partial[Any]) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, Tensors]]:
        """A graph and where its replay leaves what a step gives. What comes next draws as if there had been no warm-up."""
        drawn = torch.cuda.get_rng_state()
        try:
            for _ in range(WARM_UP):
                beside(function)
            return captured(function)
        finally:
            torch.cuda.set_rng_state(drawn)
