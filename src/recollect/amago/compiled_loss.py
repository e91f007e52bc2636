"""The loss of updates that become CUDA graphs, through torch.compile: fewer kernels, each of which does more.

What is compiled leads from a window to the loss: encoders, heads, losses and metrics, and with them their gradients. Outside stay
the way of a batch to the device, all draws but dropout, the optimiser and the targets. A shape of windows is compiled where its
graph is about to be captured, so no more shapes are compiled than become graphs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from recollect.amago.network import Network, Window
from recollect.amago.share import Beforehand, Ready
from recollect.amago.terms import Draws
from recollect.common.cuda_graphs import WARM_UP

log = logging.getLogger(__name__)

LossOf = Callable[[Window, Draws, bool], tuple[Tensor, dict[str, Tensor]]]
"""(window, draws, further) -> loss (scalar) and metrics"""


class CompiledLoss:
    """A loss as torch.compile makes it, for windows of which `is_ready` was asked.

    Attributes:
        works: whether it can be compiled here; what cannot is warned of, and nothing is tried again.
    """

    def __init__(self, loss: LossOf, network: Network, device: torch.device) -> None:
        self.network, self.device, self.works = network, device, True

        def plain(
            window: Window, index_KBTG: Tensor, numbers: list[Tensor], further: bool
        ) -> tuple[Tensor, dict[str, Tensor]]:
            return loss(window, Draws(index_KBTG, Ready(numbers)), further)

        self._plain = self._compiled = plain

    def __call__(self, window: Window, draws: Draws, further: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and metrics. `draws`: of actions as a settled `Beforehand`."""
        assert isinstance(draws.actions, Beforehand)
        return self._compiled(window, draws.index_KBTG, draws.actions.kept, further)

    def is_ready(self, window: Window, draws: Draws) -> bool:
        """Whether a graph of the loss of such windows can be captured; compiles it with all metrics, and warms it up.

        Nothing is learned: weights, statistics and the device's generator are what they were.
        """
        if not self.works:
            return False
        weights = [weight for weight in self.network.parameters() if weight.requires_grad]
        before = [(buffer, buffer.clone()) for buffer in self.network.buffers()]
        try:
            if self._compiled is self._plain:
                self._compiled = torch.compile(self._plain, dynamic=False)
            with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
                for _ in range(WARM_UP):
                    loss, _ = self(window, draws, True)
                    torch.autograd.grad(loss, weights, allow_unused=True)
        except Exception as error:  # of a compiler, of whatever kind; or there is none
            self.works = False
            log.warning(
                "`compile` is left off, as the loss cannot be compiled: %s",
                (str(error).strip() or repr(error)).splitlines()[0],
            )
        for buffer, value in before:
            buffer.copy_(value)
        if self.works:
            log.info("the loss of updates is compiled for %d windows of %d steps", *window.mask_BL.shape)
        return self.works
