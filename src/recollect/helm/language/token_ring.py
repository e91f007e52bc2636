"""What frozen language models remember with: of every layer, keys and values of the last tokens of B rows, in a ring.

A step writes K tokens over the oldest ones. Rows share the ring's place, as all rows read as many tokens per step. On a GPU a
step is one CUDA graph: all that it changes is tensors that stay where they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from recollect.helm.language.graphed_step import GraphedStep, Read
from recollect.settings.errors import UserError


class TokenRing(ABC):
    """The ring of one model.

    Args:
        model: has `settings` (`width`, `head_width`) and `layers`.
        batch: B.
        length: M, how many tokens each one attends to at most.
        tokens: most tokens per step.
        dtype: of the ring. With bfloat16 its products with queries and weights are bfloat16, too; softmaxes are float32.
        graphed: False: no CUDA graph is made.

    Attributes:
        layers: of each layer its keys and values, [2, B, heads, slots, head_width].
        count: of tokens since the start; the next one goes to this slot, modulo `slots`.
        weights: of the last tokens read, [B, H, K, slots] for each layer.

    Raises:
        UserError: it would hold nothing.
    """

    kind: ClassVar[str]
    """Name in messages."""
    counted: ClassVar[str]
    """The array of a checkpoint that has one number for each row."""

    def __init__(
        self,
        model: Any,
        batch: int,
        length: int,
        tokens: int = 1,
        *,
        dtype: torch.dtype = torch.float32,
        graphed: bool = True,
    ) -> None:
        if length < 1 or tokens < 1:
            raise UserError(
                f"a memory of {length} tokens that reads {tokens} at once holds nothing",
                where="memory_length",
                do="give both at least 1",
            )
        device = next(model.parameters()).device
        self.model, self.batch, self.length, self.tokens = model, batch, length, tokens
        self.slots = length + tokens - 1  # of the first of K new tokens, the M - 1 before it must still be there
        shape = (len(model.layers), 2, batch, self.heads, self.slots, model.settings.head_width)
        self._ring = torch.zeros(shape, device=device, dtype=dtype)
        self.layers = list(self._ring.unbind())
        self.count = 0
        self._count = torch.zeros((), dtype=torch.int64, device=device)  # the same
        self.weights: list[Tensor] = []
        self._newest = 0
        self._step = GraphedStep(self.step, self._peek, graphed=graphed)
        self._begin()

    @property
    @abstractmethod
    def heads(self) -> int:
        """Of keys and values."""

    @abstractmethod
    def _begin(self) -> None:
        """Make what is kept besides the ring."""

    @torch.no_grad()
    def read(self, x_BKD: Tensor, *, remember: bool = True) -> Tensor:
        """States after K new tokens, which the next call may overwrite on a GPU.

        Args:
            remember: False: the ring stays as it is.

        Raises:
            UserError: more tokens than the ring was made for, or another number of rows.
        """
        self.check(x_BKD)
        K = x_BKD.shape[1]
        self._newest = (self.count + K - 1) % self.slots
        states, self.weights = self._step(x_BKD) if remember else self._peek(x_BKD)
        if remember:
            self.count += K
        return states

    def check(self, x_BKD: Tensor) -> None:
        """Raise a UserError unless these inputs fit."""
        B, K, D = x_BKD.shape
        if self.batch != B or not 1 <= K <= self.tokens or self.model.settings.width != D:
            raise UserError(
                f"inputs of shape {(B, K, D)} do not fit a memory of {self.batch} rows of width "
                f"{self.model.settings.width} that reads at most {self.tokens} at once",
                where=self.kind,
                do="start it with that many rows, and set batch_tokens to the most inputs per step",
            )

    @torch.no_grad()
    def step(self, x_BKD: Tensor) -> Read:
        """What a CUDA graph holds of `read`: it decides nothing on the host, and all its state is tensors.

        The states, and of each layer the weights [B, H, K, slots].
        """
        states, weights = self._read(x_BKD, remember=True)
        self._count.add_(x_BKD.shape[1])
        return states, weights

    def _peek(self, x_BKD: Tensor) -> Read:
        return self._read(x_BKD, remember=False)

    @abstractmethod
    def _read(self, x_BKD: Tensor, *, remember: bool) -> Read:
        """One pass through the layers; where it does not remember, it puts back what it wrote over."""

    def _new_slots(self, tokens: int, back: int = 0) -> Tensor:
        """Where K new tokens go, [K], or those went that came `back` before."""
        return (self._count - back + torch.arange(tokens, device=self._count.device)) % self.slots

    def attention(self) -> Tensor | None:
        """How much the last token read looked at each of the last M, [L, B, M]: oldest first, mean over heads."""
        if not self.weights:
            return None
        by_slot = torch.stack([weights[:, :, -1].mean(1) for weights in self.weights])
        return by_slot.roll(-self._newest - 1, 2)[:, :, -self.length :]

    @abstractmethod
    def reset(self, mask_B: Tensor) -> None:
        """Forget the rows of a mask."""

    @abstractmethod
    def arrays(self) -> dict[str, Tensor]:
        """For a checkpoint: all that later steps may read."""

    @abstractmethod
    def load(self, arrays: Mapping[str, Any]) -> None:
        """Go on from `arrays`, in a ring that was just made for as many rows."""
