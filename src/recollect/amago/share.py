"""What one of several devices has of an update: its rows of the batch, random numbers for them, and sums over all rows.

All devices draw the same batch, and each learns from rows of its own. The losses are means over real steps, of which windows
have different numbers. So the mean of the devices' means is not the mean over the batch: each device divides its own sum by
the count of the whole batch, and gradients and metrics are summed. Up to the order of sums in float32, all is what one device
would compute: statistics (PopArt, InputNorm) are of the whole batch, and whatever is drawn for a row is what that row would get.

Two things are drawn for a device's rows alone: dropout on GPUs, which comes from the device's generator, and actions of a Beta
policy, where a row takes as many random numbers as it happens to need.

All draws of a loss go through `uniform`. Where an update is a CUDA graph, `Beforehand` draws its numbers in front of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from recollect.common.cpu.dropout import Dropout
from recollect.common.optimiser import Adam
from recollect.common.transfer import sent
from recollect.settings.errors import UserError
from recollect.settings.seeding import seed_of


class DeviceGone(RuntimeError):
    """Another device of a run is gone."""


class Share:
    """The part of one device.

    Args:
        rank: its number.
        of: how many there are; 1: nothing is asked of others.
        batch: windows of a whole batch.
    """

    def __init__(self, rank: int = 0, of: int = 1, batch: int = 0) -> None:
        self.rank, self.of, self.batch = rank, of, batch
        self.rows = slice(rank * batch // of, (rank + 1) * batch // of)

    @property
    def alone(self) -> bool:
        return self.of == 1

    def draws(self, seed: int) -> Seeded:
        """Random numbers for rows of a batch."""
        return torch.Generator().manual_seed(seed) if self.alone else RowsOfDraws(seed, self)

    # ---- over all devices: each of these must be called by all, in the same order

    def sums(self, *parts: Tensor) -> list[Tensor]:
        """Each part summed over the devices, by one message for all of them."""
        if self.alone:
            return list(parts)
        flat = torch.cat([part.reshape(-1) for part in parts])
        self._reduce(flat, "SUM")
        return [new.view_as(part) for new, part in zip(flat.split([p.numel() for p in parts]), parts, strict=True)]

    def totals(self, metrics: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same of scalars by name."""
        return dict(zip(metrics, self.sums(*metrics.values()), strict=True))

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """The same, in place."""
        torch._foreach_copy_(list(tensors), self.sums(*tensors))

    def least(self, x_N: Tensor) -> Tensor:
        """The least of the numbers of all devices, of which one may have none."""
        if self.alone:
            return x_N.min()
        found = torch.cat([x_N, x_N.new_full((1,), torch.inf)]).min()
        self._reduce(found, "MIN")
        return found

    def check_same(self, modules: Mapping[str, nn.Module]) -> None:
        """Raises UserError: the devices no longer have the same weights and statistics, to the bit."""
        tensors = [t for module in modules.values() for t in chain(module.parameters(), module.buffers())]
        kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        bits = [t.detach().view(kinds[t.element_size()]).sum(dtype=torch.int64) for t in tensors]
        sums_2N = torch.stack([torch.stack(bits), -torch.stack(bits)])
        self._reduce(sums_2N, "MAX")
        if bool((sums_2N[0] != -sums_2N[1]).any()):
            raise UserError(
                "the devices of this run no longer have the same weights",
                where="hyperparameters: devices",
                do="use devices of one kind, or one; the same command goes on from the last checkpoint",
            )

    @staticmethod
    def _reduce(tensor: Tensor, how: str) -> None:
        from torch import distributed

        try:
            distributed.all_reduce(tensor, getattr(distributed.ReduceOp, how))
        except RuntimeError as error:
            raise DeviceGone("another device does not answer") from error


ALONE = Share()


class RowsOfDraws:
    """Random numbers for a device's rows: those that one device would draw for the whole batch, without other rows'."""

    def __init__(self, seed: int, share: Share) -> None:
        self.share = share
        self.whole = torch.Generator().manual_seed(seed)
        self.own = torch.Generator().manual_seed(seed_of("rows of a device", seed, share.rank))


Seeded = torch.Generator | RowsOfDraws


class Ready:
    """Random numbers that lie ready, in the order in which they are taken."""

    def __init__(self, numbers: list[Tensor]) -> None:
        self._unread = iter(numbers)

    def take(self, shape: tuple[int, ...]) -> Tensor:
        return next(self._unread)


class Beforehand:
    """Random numbers of an update that is a CUDA graph, on the device: drawn in front of it, where it reads them.

    An update before that one draws as it goes, which tells what will be taken, and in which order.

    Attributes:
        kept: where an update reads them, once it is settled.
    """

    def __init__(self, draws: torch.Generator, device: torch.device) -> None:
        self.draws, self.device = draws, device
        self.shapes: list[tuple[int, ...]] = []  # of what was taken
        self.kept: list[Tensor] = []
        self._ready: Ready | None = None

    def take(self, shape: tuple[int, ...]) -> Tensor:
        if self._ready is not None:
            return self._ready.take(shape)
        self.shapes.append(shape)
        return sent(torch.rand(shape, generator=self.draws), self.device)

    def settle(self) -> None:
        """From now on what is taken stands where `renew` draws it; before that it is zeros."""
        self.kept = [torch.zeros(shape, device=self.device) for shape in self.shapes]
        self.again()

    def again(self) -> None:
        """The next one taken is the first."""
        self._ready = Ready(self.kept)

    def renew(self, draws: torch.Generator) -> None:
        """Draw for the next update."""
        for numbers, shape in zip(self.kept, self.shapes, strict=True):
            numbers.copy_(sent(torch.rand(shape, generator=draws), self.device))


Numbers = Seeded | Beforehand | Ready


def uniform(draws: Numbers, shape: Sequence[int], *, rows: int = 0) -> Tensor:
    """Numbers in [0, 1), on the CPU but for those drawn beforehand. `rows`: the axis of `shape` that is the batch's."""
    if isinstance(draws, (Beforehand, Ready)):
        return draws.take(tuple(shape))
    if isinstance(draws, torch.Generator):
        return torch.rand(tuple(shape), generator=draws)
    whole, part = list(shape), draws.share.rows
    whole[rows] = draws.share.batch
    return torch.rand(whole, generator=draws.whole).narrow(rows, part.start, part.stop - part.start)


def own(draws: Numbers) -> torch.Generator:
    """A generator for what cannot be drawn row by row."""
    assert not isinstance(draws, (Beforehand, Ready))
    return draws if isinstance(draws, torch.Generator) else draws.own


class RowsOfDropout(Dropout):
    """Dropout of a device's rows; see the head of this file for what a GPU draws."""

    def __init__(self, share: Share) -> None:
        self._share = share
        super().__init__(0)

    def reseed(self, seed: int) -> None:
        super().reseed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed(seed_of("rows of a device", seed, self._share.rank))

    def keep(self, shape: torch.Size | tuple[int, ...], p: float) -> Tensor:
        return super().keep((self._share.batch, *shape[1:]), p)[self._share.rows]


class SharedAdam(Adam):
    """Adam on gradients that are summed over the devices as soon as there are any."""

    def __init__(self, share: Share, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._share = share

    def gradients(self) -> list[Tensor]:
        found = super().gradients()
        self._share.add_up(found)
        return found
