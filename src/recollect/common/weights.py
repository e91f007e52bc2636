"""Puts stored arrays into a network, and says which one does not fit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from recollect.settings.errors import UserError


def load_arrays(network: nn.Module, arrays: Mapping[str, np.ndarray], *, what: str, where: object, do: str) -> None:
    """Put arrays into a network by name.

    Args:
        network: gets them.
        arrays: parameters and buffers by the network's own names.
        what, where, do: of the error, see `UserError`; `what` is continued with the array's name and shapes.

    Raises:
        UserError: an array is missing, too many or of another shape.
    """
    own = network.state_dict()
    for name in sorted(own.keys() | arrays.keys()):
        expected = tuple(own[name].shape) if name in own else None
        found = tuple(arrays[name].shape) if name in arrays else None
        if expected != found:
            raise UserError(f"{what}: '{name}' has shape {found}, expected {expected}", where=where, do=do)
    network.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in arrays.items()})
