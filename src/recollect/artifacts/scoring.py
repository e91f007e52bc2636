"""What a scoring that is killed goes on from: a sealed file beside the run's checkpoints, which goes when it is over.

It holds what the parts that are over gave, and the state of the part that is being played: world, policy, scores so far.
It is of one policy, one set of settings and one code; a damaged or foreign one is passed over, and the scoring begins anew.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from recollect.artifacts.cadence import Cadence
from recollect.artifacts.checkpoints import Checkpoints, part
from recollect.artifacts.sealed import MANIFEST_SUFFIX

log = logging.getLogger(__name__)
Arrays = dict[str, Any]  # numpy arrays and tensors by name


class Scoring:
    """One scoring, in parts that are played one after another.

    Args:
        folder: where its file stands; None: nothing is kept.
        identity: all that it is a function of, asked for when it is needed first.
        cadence: when it is saved.

    Attributes:
        saves: how often it was saved, before it was killed too.
    """

    def __init__(
        self,
        folder: Path | None = None,
        identity: Callable[[], str] | None = None,
        cadence: Cadence | None = None,
    ) -> None:
        self._checkpoints = None if folder is None else Checkpoints(folder)
        self._identity, self._known = identity or str, ""
        self._cadence = cadence
        self.saves = 0
        self._over: dict[str, Arrays] = {}
        self._begun: tuple[str, Arrays] = ("", {})
        if self._checkpoints is not None and self._checkpoints.steps():
            self._go_on(self._checkpoints)

    def _go_on(self, checkpoints: Checkpoints) -> None:
        newest = checkpoints.newest()
        if newest is None or newest.state.get("scoring") != self.identity:
            log.info("what stands in %s is of no use to this scoring, which begins anew", checkpoints.folder)
            self.clear()
            return
        arrays = _as_laid_out(newest.arrays, newest.state["orders"])
        self.saves = newest.step
        for name in newest.state["over"]:
            self._over[name] = part(arrays, f"over/{name}")
        self._begun = newest.state["begun"], part(arrays, "begun")
        log.info("going on from the scoring's checkpoint %d, at %s", self.saves, self._begun[0])

    @property
    def identity(self) -> str:
        self._known = self._known or self._identity()
        return self._known

    def part(self, name: str) -> Part:
        begun: Arrays = {}
        if self._begun[0] == name:
            (_, begun), self._begun = self._begun, ("", {})
        return Part(self, name, self._over.get(name), begun)

    def end(self, name: str, result: Arrays) -> None:
        """A part is over; what it gave is saved with the next."""
        self._over[name] = result

    def due(self, *, early: bool = False) -> bool:
        """Whether the state of the part that is being played is to be saved; asked at every step. `early`: see `Cadence`."""
        return self._checkpoints is not None and self._cadence is not None and self._cadence.due(early=early)

    def save(self, name: str, arrays: Arrays) -> None:
        """Save the state of a part, and what the parts before it gave."""
        assert self._checkpoints is not None and self._cadence is not None
        began = self._cadence.clock()
        found = {f"begun/{key}": array for key, array in arrays.items()}
        for over, result in self._over.items():
            found |= {f"over/{over}/{key}": array for key, array in result.items()}
        plain, orders = _laid_out(found)
        self.saves += 1
        known = {"scoring": self.identity, "begun": name, "over": list(self._over), "orders": orders}
        self._checkpoints.save(self.saves, plain, known)
        self._cadence.saved(began)

    def clear(self) -> None:
        """Leave nothing: the scoring is over, and what it gave stands elsewhere."""
        if self._checkpoints is not None:
            for manifest in self._checkpoints.folder.glob(f"*{MANIFEST_SUFFIX}"):
                manifest.unlink()  # first: killed in between, it is as if there were none
            shutil.rmtree(self._checkpoints.folder, ignore_errors=True)


class Part:
    """A part of a scoring.

    Attributes:
        result: what it gave, where it is over; else None.
    """

    def __init__(self, scoring: Scoring, name: str, result: Arrays | None, begun: Arrays) -> None:
        self.scoring, self.name, self.result, self._begun = scoring, name, result, begun

    def take(self) -> Arrays:
        """The state that it was killed in, to go on from; empty where it begins. It is large, so it is given once."""
        begun, self._begun = self._begun, {}
        return begun

    def offer(self, state: Callable[[], Arrays], *, early: bool = False) -> None:
        """Between two steps: its state may be asked for and saved. `early`: it is small now."""
        if self.scoring.due(early=early):
            self.scoring.save(self.name, state())

    def end(self, result: Arrays) -> Arrays:
        """It is over, and this is what it gave."""
        self.result = result
        self.scoring.end(self.name, result)
        return result


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """A hash of arrays: of a policy that stands in no file yet."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(repr((name, array.dtype.str, array.shape)).encode())
        found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


# A file holds arrays in the order of their axes. What a product of matrices gives can depend, in the last bit, on how they
# lie in memory, so those whose axes lie in another order come back as they were.


def _laid_out(arrays: Arrays) -> tuple[Arrays, dict[str, list[int]]]:
    """The arrays with axes as they lie in memory, and that order, where it is another than that of the axes."""
    plain, orders = {}, {}
    for name, array in arrays.items():
        order = _order(array)
        if order != sorted(order):
            orders[name] = order
            array = _permuted(array, order)
        plain[name] = array
    return plain, orders


def _order(array: Any) -> list[int]:
    """The axes of an array, those with the longest way from one entry to the next first."""
    steps = array.strides if isinstance(array, np.ndarray) else array.stride()
    return sorted(range(array.ndim), key=lambda axis: -steps[axis])


def _as_laid_out(arrays: Arrays, orders: Mapping[str, list[int]]) -> Arrays:
    found = dict(arrays)
    for name, order in orders.items():
        found[name] = _permuted(arrays[name], [order.index(axis) for axis in range(len(order))])
    return found


def _permuted(array: Any, order: list[int]) -> Any:
    return array.transpose(order) if isinstance(array, np.ndarray) else array.permute(order)
