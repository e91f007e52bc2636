"""Takes arrays out of a network, and puts stored ones back, saying which one does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from recollect.artifacts.checkpoints import joined, part
from recollect.common.optimiser import Adam
from recollect.settings.errors import UserError


def arrays_of(network: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().cpu().numpy().copy() for name, value in network.state_dict().items()}


def load_policy_arrays(network: nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Put a policy file's arrays into a network. Raises UserError if they do not fit the settings' network."""
    load_arrays(
        network,
        arrays,
        what="the policy does not fit these settings",
        where="policy arrays",
        do="use the settings and the environment it was trained with, or train it again",
    )


def load_arrays(network: nn.Module, arrays: Mapping[str, np.ndarray], *, what: str, where: object, do: str) -> None:
    """Put arrays into a network by name.

    Args:
        what, where, do: of the error, see `UserError`; `what` is continued with the array's name and shapes.

    Raises:
        UserError: an array is missing, too many or of another shape.
    """
    expected = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    given = {name: tuple(value.shape) for name, value in arrays.items()}
    for name in sorted(expected.keys() | given.keys()):
        if expected.get(name) != given.get(name):
            shapes = f"shape {given.get(name)}, expected {expected.get(name)}"
            raise UserError(f"{what}: '{name}' has {shapes}", where=where, do=do)
    network.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in arrays.items()})


def trained_arrays(adam: Adam, **modules: nn.Module) -> dict[str, Any]:
    """All that an update changes, for a checkpoint: the arrays of each module under its name, and Adam's."""
    return joined(**{name: module.state_dict() for name, module in modules.items()}, adam=adam.arrays())


def load_trained(arrays: Mapping[str, Any], adam: Adam, **modules: nn.Module) -> None:
    """Go on from `trained_arrays`."""
    for name, module in modules.items():
        module.load_state_dict({key: torch.as_tensor(value) for key, value in part(arrays, name).items()})
    adam.load(part(arrays, "adam"))
