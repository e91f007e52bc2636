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
from typing import Any, ClassVar

import torch
from torch import Tensor

from recollect.common.cuda_graphs import WARM_UP, beside, captured
from recollect.memory_rl.transformer_sequence import TransformerSequence, TransformerState

log = logging.getLogger(__name__)
FEWEST = 16  # slots that a graph of a GPT reads

Recurrent = tuple[Tensor, ...]


@dataclass
class Given:
    """What a step reads, where graphs find it.

    Attributes:
        token: action, reward and observation, [B, ...] each.
        place_B: int64, how many tokens each row has before; a GPT's.
        recurrent: the state before, of models that have one.
    """

    token: tuple[Tensor, ...]
    place_B: Tensor
    recurrent: Recurrent


@torch.no_grad()
def acting_step(network: Any, given: Given, state: Any, end: int) -> tuple[Tensor, Recurrent]:
    """Outputs [B, A] after one more token per row, and the recurrent state after it.

    Args:
        network: a `HistoryNetwork`.
        state: of its sequence model; a GPT's cache is written to.
        end: slots of the cache that are read, more than any row's tokens before.
    """
    encoder = network.encoder
    x_BD, sequence = encoder.embedder(*given.token), encoder.sequence
    after: Recurrent = ()
    if isinstance(sequence, TransformerSequence):
        x_BD = x_BD + sequence.positions.table_LD[given.place_B]
        h_BH = state.cache.step_at(x_BD, given.place_B, end)
    else:
        h_BH, kept = sequence.step(x_BD, given.recurrent)
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
    _given: Given | None = None
    _graphs: dict[tuple[bool, int], tuple[torch.cuda.CUDAGraph, tuple[Tensor, Recurrent]]] = field(default_factory=dict)

    def fits(self, state: Any) -> bool:
        """Whether the next step is one for a graph: a GPT's with a row that fills its context slides, and is none."""
        if isinstance(state, TransformerState):
            return state.seen_B is None and state.longest < state.cache.length
        return state is None or isinstance(state, tuple)

    def step(self, token: tuple[Tensor, ...], state: Any) -> tuple[Tensor, Any]:
        """What `HistoryNetwork` says [B, A] after the tokens, on the device until the next step, and the state after them.

        Args:
            token: action, reward and observation, on the host or the device.
            state: of the network's sequence model, always of the same rows.
        """
        gpt = state if isinstance(state, TransformerState) else None
        self._fill(token, state)
        end = 0 if gpt is None else min(max(FEWEST, 1 << gpt.longest.bit_length()), gpt.cache.length)
        outputs_BA, after = self._computed(state, end)
        if gpt is None:
            return outputs_BA, None if state is None else after
        gpt.cache.count()
        gpt.longest += 1
        return outputs_BA, gpt

    def _fill(self, token: tuple[Tensor, ...], state: Any) -> None:
        """Copy what a step begins with to where graphs read it."""
        recurrent: Recurrent = state if isinstance(state, tuple) else ()
        place_B = state.cache.lengths_B if isinstance(state, TransformerState) else torch.zeros(0, dtype=torch.int64)
        if self._given is None:
            parts = [tuple(torch.empty_like(part, device=self.device) for part in of) for of in (token, recurrent)]
            self._given = Given(parts[0], torch.empty_like(place_B, device=self.device), parts[1])
        own = self._given
        for here, there in zip((*own.token, own.place_B, *own.recurrent), (*token, place_B, *recurrent), strict=True):
            here.copy_(there, non_blocking=True)

    def _computed(self, state: Any, end: int) -> tuple[Tensor, Recurrent]:
        assert self._given is not None
        function = partial(acting_step, self.network, self._given, state, end)
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

    def _captured(self, function: partial[Any]) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, Recurrent]]:
        """A graph and where its replay leaves what a step gives; it draws what it would have drawn without the warm-up."""
        drawn = torch.cuda.get_rng_state()
        for _ in range(WARM_UP):
            beside(function)
        graph, found = captured(function)
        torch.cuda.set_rng_state(drawn)
        return graph, found
