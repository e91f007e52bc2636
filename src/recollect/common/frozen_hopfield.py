"""FrozenHopfield: any vector as a mixture of a language model's word embeddings, with nothing learned.

``u = P x`` with a fixed random P; similarities of u with every vocabulary row; ``FH(x) = softmax(beta * sim) E``. The
result lies in the convex hull of the word embeddings, so a frozen language model can read it as if it were a token.

- The papers print the plain product ``E P x``; the released codes use the cosine, and so do we by default
  (``similarity="dot"`` is the papers' formula). With the cosine the scale of P does not matter.
- For discrete inputs the mixture takes few values: ``LookupHopfield`` computes each once. Upstream runs a softmax over
  the whole vocabulary for every token of every window.

Sources: HELM (Paischer et al. 2022), section 3; RA-DT (arXiv 2410.07071), domain-agnostic embedder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from recollect.common.cpu.kernels import linear
from recollect.common.precision import full_precision
from recollect.settings.errors import UserError

BLOCK, GPU_BLOCK = 1 << 25, 1 << 27  # similarities held at once (128 MB, and on a GPU 512 MB)
LARGE = 1 << 26  # numbers of a table (256 MB) whose similarities are worth oneDNN's product: another order of sums

MOST_JOINT = 1 << 16  # joint values of discrete inputs whose mixtures stand in a table


def too_many_values(bins: Sequence[int], limit: int = MOST_JOINT) -> UserError:
    return UserError(
        f"A table of {math.prod(bins)} joint values is too large (limit {limit}).",
        where="frozen hopfield",
        do="Let the world show numbers that are no whole ones, or embed with a trained network (memory.embedder: method:NAME).",
    )


def one_hots(values: Tensor, bins: Sequence[int]) -> Tensor:
    """Concatenated one-hots [..., sum(bins)] float32 of integers [..., k] below the k sizes in `bins`."""
    parts = [torch.nn.functional.one_hot(values[..., i].long(), size) for i, size in enumerate(bins)]
    return torch.cat(parts, dim=-1).float()


_tables: WeakValueDictionary[tuple[Any, ...], Tensor] = WeakValueDictionary()


def _rounded(embeddings_VD: Tensor, dtype: torch.dtype) -> Tensor:
    """Embeddings in another precision: one table in a process for all that read the same ones."""
    if embeddings_VD.dtype == dtype:
        return embeddings_VD
    key = (
        embeddings_VD.data_ptr(),
        embeddings_VD.shape,
        embeddings_VD.device,
        dtype,
    )  # whoever holds a table holds these, too
    table_VD = _tables.get(key)
    if table_VD is None:
        table_VD = _tables[key] = embeddings_VD.to(dtype)
    return table_VD


class FrozenHopfield:
    """The direct path: a softmax over the whole vocabulary for every input vector.

    Args:
        embeddings_VD: the language model's word embeddings; decides device and width.
        beta: inverse temperature (RA-DT: 10; HELM: 100).
        seed: of P; make it with ``seed_of("frozen hopfield", run seed, modality)`` so that each modality has its own P.
        similarity: ``cosine`` (released codes) or ``dot`` (papers' formula).
        std: of the entries of P; default sqrt(inputs / D) as in the papers. HELM's code has 1 / sqrt(D). Only comparisons
            give another.
        dtype: of the table that both products read. With bfloat16 a mixture is off by 0.3 % of its length where beta is 1
            or 10, and by 4 % where it is 100 (random words, width 1024).
    """

    def __init__(
        self,
        embeddings_VD: Tensor,
        inputs: int,
        *,
        beta: float = 10.0,
        seed: int = 0,
        similarity: Literal["cosine", "dot"] = "cosine",
        std: float | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.embeddings_VD = embeddings_VD.detach().float()
        self._table_VD = _rounded(self.embeddings_VD, dtype)
        self.vocabulary, self.width = self.embeddings_VD.shape
        self.inputs, self.beta, self.similarity = inputs, beta, similarity
        device = self.embeddings_VD.device
        normal_DI = torch.randn(
            (self.width, inputs), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        if std is None:
            std = math.sqrt(inputs / self.width)
        self.projection_DI = (normal_DI * std).float().to(device)
        self._scale_V = torch.ones(self.vocabulary, device=device)
        if similarity == "cosine":
            self._scale_V = 1 / self.embeddings_VD.norm(dim=1).clamp_min(1e-12)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Mixtures [..., D] of inputs [..., inputs]. A zero vector gives the mean of the embeddings."""
        if x.shape[-1] != self.inputs:
            raise UserError(
                f"FrozenHopfield was made for inputs of width {self.inputs}, not {x.shape[-1]}.",
                where="frozen hopfield",
                do="Check that the observations are those of the environment the policy was trained in.",
            )
        flat_NI = x.reshape(-1, self.inputs).to(self.embeddings_VD.device, torch.float32)
        mixed_ND = flat_NI.new_empty((len(flat_NI), self.width))
        for at in range(0, len(flat_NI), self._rows):
            mixed_ND[at : at + self._rows] = self.mixed(self.queries(flat_NI[at : at + self._rows]))
        return mixed_ND.view(*x.shape[:-1], self.width)

    @property
    def _rows(self) -> int:
        return max(1, (GPU_BLOCK if self.embeddings_VD.is_cuda else BLOCK) // self.vocabulary)

    @torch.no_grad()
    def queries(self, x_NI: Tensor) -> Tensor:
        """What words are compared with, u [N, D]: of the inputs and P alone."""
        with full_precision(x_NI.device.type):
            u_ND = x_NI @ self.projection_DI.T
            if self.similarity == "cosine":
                u_ND = u_ND / u_ND.norm(dim=1, keepdim=True).clamp_min(1e-12)
        return u_ND

    @torch.no_grad()
    def mixed(self, u_ND: Tensor) -> Tensor:
        """Mixtures [N, D] of queries; of the words alone, so that it is the same for every P."""
        mixed_ND = torch.empty_like(u_ND)
        with full_precision(u_ND.device.type):
            for at in range(0, len(u_ND), self._rows):
                weights_NV = self._softmax(u_ND[at : at + self._rows], self._table_VD)
                mixed_ND[at : at + self._rows] = weights_NV.to(self._table_VD.dtype) @ self._table_VD
        return mixed_ND

    def weights(self, x_NI: Tensor) -> Tensor:
        """The softmax weights [N, V] of each vocabulary row (for inspection pages: which words an input becomes)."""
        return self._softmax(self.queries(x_NI), self.embeddings_VD)

    def _softmax(self, u_ND: Tensor, words_VD: Tensor) -> Tensor:
        u_ND = u_ND.to(words_VD.dtype)
        similarities_NV = linear(u_ND, words_VD) if words_VD.numel() >= LARGE else u_ND @ words_VD.T
        logits_NV = self.beta * similarities_NV.float() * self._scale_V
        return logits_NV.softmax(dim=1)

    def one_hot_table(self) -> Tensor:
        """The mixtures [inputs, D] of all one-hot inputs: row i is that of value i."""
        return self(torch.eye(self.inputs, device=self.embeddings_VD.device))

    def joint_table(self, bins: Sequence[int], limit: int = MOST_JOINT) -> Tensor:
        """The mixtures [prod(bins), D] of all concatenated one-hots, the last dimension running fastest.

        Args:
            bins: sizes of the one-hots, ``sum(bins) == inputs``: ``(10, 10)`` for a cell of a 10x10 room.
            limit: largest table that is made.

        Raises:
            UserError: the widths do not fit, or there are more joint values than ``limit``.
        """
        if sum(bins) != self.inputs:
            raise UserError(
                f"One-hots of sizes {tuple(bins)} have width {sum(bins)}, not {self.inputs}.",
                where="frozen hopfield",
                do="Give it the bins that the embedder was made with.",
            )
        if math.prod(bins) > limit:
            raise too_many_values(bins, limit)
        counts = [torch.arange(size, device=self.embeddings_VD.device) for size in bins]
        values = torch.cartesian_prod(*counts).view(-1, len(bins))
        return self(one_hots(values, bins))


class LookupHopfield:
    """The same for discrete inputs: a gather from `joint_table` in place of a softmax over the vocabulary."""

    def __init__(self, hopfield: FrozenHopfield, bins: Sequence[int]) -> None:
        self.bins = tuple(bins)
        self.table_MD = hopfield.joint_table(self.bins)

    def __call__(self, values: Tensor) -> Tensor:
        """Mixtures [..., D] of integers [..., len(bins)]. Padding, out of range, is clipped."""
        if values.shape[-1] != len(self.bins):
            raise UserError(
                f"The table has {len(self.bins)} dimensions, but the inputs have {values.shape[-1]}.",
                where="frozen hopfield",
                do="Give the inputs a last dimension of that size, also where it is 1.",
            )
        joint = torch.zeros(values.shape[:-1], dtype=torch.long, device=self.table_MD.device)
        for i, size in enumerate(self.bins):
            joint = joint * size + values[..., i].to(joint.device).long().clamp(0, size - 1)
        return self.table_MD[joint]
