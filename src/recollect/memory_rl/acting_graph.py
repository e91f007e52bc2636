"""One step of acting as a CUDA graph: some dozens of small kernels, which the host launches at once.

`acting_step` is what a graph holds: a plain function of tensors that stay where they are, which asks the host for nothing. The
tokens come from pinned memory, from which the graph itself copies them, and what a step begins with becomes what the next one
begins with: so a step is little more for the host than the launch. A GPT's graph reads a fixed number of its cache's
slots, so there is one per power of two up to the length of an episode, captured when it is first needed. On a CPU the
function can be called as it is (tests do); it equals `HistoryEncoder.step` up to the order of sums.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from recollect.common.cache import KeyValueCache
from recollect.common.step_graphs import StepGraphs
from recollect.memory_rl.transformer_sequence import TransformerState

FEWEST = 16  # slots that a graph of a GPT reads

Tensors = tuple[Tensor, ...]


@torch.no_grad()
def acting_step(network: Any, token: Tensors, before: Tensors, cache: KeyValueCache | None, end: int) -> Tensor:
    """Outputs [B, A] after one more token per row; `before` becomes what the next step begins with.

    Args:
        network: a `HistoryNetwork`.
        token: action, reward and observation, [B, ...] each.
        before: how many tokens each row has before, int64 [B], of a GPT; else the recurrent state, of models that have one.
        cache: of a GPT, which is written to.
        end: slots of the cache that are read, more than any row's tokens before.
    """
    encoder = network.encoder
    x_BD = encoder.embedder(*token)
    after: Tensors
    if cache is not None:
        (place_B,) = before
        h_BH = cache.step_at(x_BD + encoder.sequence.positions.table_LD[place_B], place_B, end)
        after = (place_B + 1,)
    else:
        h_BH, kept = encoder.sequence.step(x_BD, before)
        after = kept or ()
    for own, one in zip(before, after, strict=True):
        own.copy_(one)
    return network.head(h_BH)


def slots_read(tokens: int, cache: KeyValueCache) -> int:
    """Slots that a graph reads where the longest row has so many tokens before."""
    return min(max(FEWEST, 1 << tokens.bit_length()), cache.length)


class ActingGraph:
    """Steps a network with the rows of one state, in graphs."""

    def __init__(self, network: Any, device: torch.device) -> None:
        self.network, self.device = network, device
        self._sent: Tensors = ()  # the token on the host, where a graph begins to read
        self._token: Tensors = ()  # and on the device
        self._before: Tensors = ()  # and what a step begins with: on the device
        self._graphs = StepGraphs(device)
        self._launched = (
            torch.cuda.Event() if device.type == "cuda" else None
        )  # of the last one, which has read its tokens

    def fits(self, state: Any) -> bool:
        """Whether the next step is one for a graph: a GPT's with a row that fills its context slides, and is none."""
        if isinstance(state, TransformerState):
            return state.seen_B is None and state.longest < state.cache.length
        return state is None or isinstance(state, tuple)

    def step(self, token: Tensors, state: Any) -> tuple[Tensor, Any]:
        """What `HistoryNetwork` says [B, A] after the tokens, on the device until the next step, and the state after them.

        Args:
            token: action, reward and observation, on the host.
            state: of the network's sequence model, always of the same rows. That of the step before is overwritten.
        """
        if not isinstance(state, TransformerState):
            self._fill(token, state or ())
            return self._computed(None, 0), None if state is None else self._before
        cache = state.cache
        self._fill(token, (cache.lengths_B,))
        outputs_BA = self._computed(cache, slots_read(state.longest, cache))
        cache.count(self._before[0])
        state.longest += 1
        return outputs_BA, state

    def _fill(self, token: Tensors, before: Tensors) -> None:
        """Copy what a step begins with to where graphs read it, unless it is there."""
        if not self._token:
            on_gpu = self.device.type == "cuda"
            rooms = tuple(torch.empty_like(one) for one in token)
            self._sent = tuple(one.pin_memory() for one in rooms) if on_gpu else rooms
            self._token = tuple(torch.empty_like(one, device=self.device) for one in token)
            self._before = tuple(torch.empty_like(one, device=self.device) for one in before)
        if self._launched is not None:
            self._launched.synchronize()
        for own, one in zip(self._sent, token, strict=True):
            own.copy_(one)
        for own, one in zip(self._before, before, strict=True):
            if own is not one:
                own.copy_(one, non_blocking=True)

    def _computed(self, cache: KeyValueCache | None, end: int) -> Tensor:
        key = self.network.training, end
        outputs_BA = self._graphs.run(key, partial(self._step, cache, end), self._before)
        if self._launched is not None:
            self._launched.record()
        return outputs_BA

    def _step(self, cache: KeyValueCache | None, end: int) -> Tensor:
        for own, one in zip(self._token, self._sent, strict=True):
            own.copy_(one, non_blocking=True)
        return acting_step(self.network, self._token, self._before, cache, end)
