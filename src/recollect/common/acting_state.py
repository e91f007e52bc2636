"""What changes in a policy while it acts, as named arrays: what a scoring that was killed goes on with.

Whatever keeps something from step to step names its attributes that change. One function takes them apart, one puts
them back, bit for bit, into what was started in the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from recollect.artifacts.checkpoints import joined, part

Device = torch.device | str | None


class Acting:
    """A policy, or a part of one.

    Attributes:
        acting: the attributes that change while it acts: arrays, numbers, None, tuples, dictionaries and dataclasses of
            them, and other parts.
    """

    acting: ClassVar[tuple[str, ...]] = ()

    def state_arrays(self) -> dict[str, Any]:
        """Numpy arrays and tensors, which are not copied."""
        found: dict[str, Any] = {}
        for name in self.acting:
            found |= _packed(name, getattr(self, name))
        return found

    def load_state(self, arrays: Mapping[str, Any], device: Device = None) -> None:
        """Put back what `state_arrays` gave, into what was started in the same way.

        Args:
            device: of tensors in whose place there is none now; None: the policy's own.
        """
        device = getattr(self, "device", "cpu") if device is None else device
        for name in self.acting:
            setattr(self, name, _unpacked(name, arrays, getattr(self, name), device))


def says_its_state(policy: Any) -> bool:
    """Whether the very class of a policy says what changes while it acts; what its base class says may not be all."""
    own = vars(type(policy))
    return hasattr(policy, "state_arrays") and ("acting" in own or "state_arrays" in own)


def play_arrays(world: Any, policy: Any) -> dict[str, Any]:
    """The state of a world and of the policy that plays in it."""
    return joined(world=world.get_state(), policy=policy.state_arrays())


def load_play(world: Any, policy: Any, arrays: Mapping[str, Any]) -> None:
    """Put back what `play_arrays` gave; the policy is started."""
    world.set_state(part(arrays, "world"))
    policy.load_state(part(arrays, "policy"))


def _packed(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, np.ndarray | Tensor):
        return {name: value}
    if isinstance(value, bool | int | float | np.generic):
        return {name: np.asarray(value)}
    if hasattr(value, "state_arrays"):
        return joined(**{name: value.state_arrays()})
    found: dict[str, Any] = {}
    for key, inner in _items(value):
        found |= _packed(f"{name}/{key}", inner)
    return found


def _unpacked(name: str, arrays: Mapping[str, Any], now: Any, device: Device) -> Any:
    """The value of this name, of the kind of what stands in its place now."""
    if hasattr(now, "load_state"):
        now.load_state(part(arrays, name), device)
        return now
    if dataclasses.is_dataclass(now) or isinstance(now, tuple | list | dict):
        values = {key: _unpacked(f"{name}/{key}", arrays, inner, device) for key, inner in _items(now)}
        if isinstance(now, tuple | list):
            return type(now)(values.values())
        return values if isinstance(now, dict) else dataclasses.replace(now, **values)  # type: ignore[type-var]
    if name not in arrays:
        return None
    value = arrays[name]
    if isinstance(value, Tensor):
        return value.to(now.device if isinstance(now, Tensor) else device, copy=True)
    return np.array(value, order="K") if value.ndim or isinstance(now, np.ndarray) else value.item()


def _items(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, tuple | list):
        return [(str(place), inner) for place, inner in enumerate(value)]
    return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
