"""One line in one variant: resolved settings, made-up inputs, a device; and what a family of lines builds of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu import turns
from recollect.common.cuda_graphs import WARM_UP
from recollect.settings.errors import UserError
from recollect.settings.overrides import method_with
from recollect.settings.resolve import resolve
from recollect.settings.schema import Settings

BYTES_OF_AN_UPDATE = 9 * 4  # of each parameter: read twice; gradient, two moments and itself written and read


class NoSuchSetting(Exception):
    """The code has no such way of computing (yet)."""


@dataclass(frozen=True)
class Case:
    """A method on an environment, as `recollect train` resolves it, with settings changed.

    Args:
        changes, optional: setting -> value, as `recollect train --set` takes them; optional ones where the code has them.
        extra: what is no setting of the method, see `lines.Variant`.
        folder: of made-up inputs, shared by the variants of a line, and of what a run writes.
        seconds: how long each part is timed.
        warm: calls before the clock starts.
    """

    scale: str
    env: str
    method: str
    device: str
    folder: Path
    changes: Mapping[str, object] = field(default_factory=dict)
    optional: Mapping[str, object] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    seconds: float = 1.5
    warm: int = 3

    @cached_property
    def settings(self) -> Settings:
        """Raises NoSuchSetting: one of the changed settings is unknown."""
        kept = {key: value for key, value in self.optional.items() if self._takes({key: value})}
        try:
            return self._resolved({**kept, **self.changes})
        except UserError as error:
            raise NoSuchSetting(error.what) from error

    def _takes(self, changes: Mapping[str, object]) -> bool:
        try:
            self._resolved(changes)
        except UserError:
            return False
        return True

    def _resolved(self, changes: Mapping[str, object]) -> Settings:
        named = method_with(self.method, [f"{key}={value}" for key, value in changes.items()])
        return resolve(self.scale, self.env, named, 0)

    @cached_property
    def nowhere(self) -> Path:
        """A folder of this case's own."""
        path = self.folder / f"case_{len(list(self.folder.glob('case_*')))}"
        path.mkdir()
        return path

    def rate(self, call: Callable[[], object], units: float, *, least: int = WARM_UP + 1) -> float:
        """Units of work per second of repeated calls: of three thirds of the time the middle one, of a long call that one.

        Args:
            units: of one call.
            least: calls that come before, however long they take: in the fourth a function becomes a CUDA graph. One where a call
                makes many updates or steps.
        """
        began = time.perf_counter()
        for made in range(1, self.warm + 1):
            call()
            wait(self.device)
            if made >= least and time.perf_counter() - began > self.seconds:
                break
        with turns.alone():
            return self._timed(call, units)

    def _timed(self, call: Callable[[], object], units: float) -> float:
        """`rate` of calls that are warm."""
        begun = time.perf_counter()
        call()
        wait(self.device)
        # A long graph is launched at once: where nobody waits, the host runs far ahead of the device.
        long = time.perf_counter() - begun > self.seconds / 30
        rates: list[float] = []
        while len(rates) < 3:
            begun, calls = time.perf_counter(), 0
            while calls == 0 or time.perf_counter() - begun < self.seconds / 3:
                call()
                calls += 1
                if long:
                    wait(self.device)
            wait(self.device)
            lasted = time.perf_counter() - begun
            rates.append(calls * units / lasted)
            if lasted > self.seconds:
                return rates[-1]
        return sorted(rates)[1]


@dataclass(frozen=True)
class Part:
    """What is timed of a case: a row of the table.

    Args:
        name: `update`, `env step`, ...; "" where the line has one part.
        unit: what is counted, in the plural.
        rate: units per second, measured when it is called.
        flop, moved: operations, and bytes that have to be read or written, of one unit, at the least.
        often: timed in every way of computing; else as the settings stand and as a graph, because it takes long.
    """

    name: str
    unit: str
    rate: Callable[[], float]
    flop: float = 0.0
    moved: float = 0.0
    often: bool = True


@dataclass(frozen=True)
class Subject:
    """What a family builds of a case.

    Args:
        parts: each is a row.
        jobs: stage -> units of each part (by name) that a whole job of the workflow has; what forecasts are made of.
        numbers: what two devices must agree on: losses and gradient norms, or outputs, of a few steps from the same weights.
    """

    parts: tuple[Part, ...]
    numbers: Callable[[], np.ndarray]
    jobs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def wait(device: str) -> None:
    """Until the device has done all that it was given."""
    if device != "cpu":
        torch.cuda.synchronize()


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """How far two vectors are apart, in lengths of the second."""
    if found.shape != wanted.shape:
        return float("inf")
    return float(np.linalg.norm(found - wanted) / max(float(np.linalg.norm(wanted)), 1e-12))
