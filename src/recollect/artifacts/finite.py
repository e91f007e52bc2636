"""Numbers that a run must not go on with: NaN and infinity in losses and parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from recollect.settings.errors import UserError

WATCHED = ("loss", "gradient_norm")  # metrics with one of these in their name
_DO = (
    "mend what made it, e.g. with a smaller learning rate; the checkpoints from before it are kept. With the same settings "
    "it happens again"
)


def check_arrays(arrays: Mapping[str, Any], where: object) -> None:
    """Raise a UserError where an array or tensor of floats holds NaN or infinity, or where there is no mapping of such."""
    if not isinstance(arrays, Mapping):
        what = f"what is saved is a {type(arrays).__name__}, and no mapping of names to arrays"
        raise UserError(what, where=where, do="let `arrays` return a dictionary: name -> numpy array or tensor")
    for name, array in arrays.items():
        if isinstance(array, np.ndarray | np.generic):
            wrong = np.issubdtype(array.dtype, np.inexact) and not np.isfinite(array).all()
        else:
            import torch

            if not isinstance(array, torch.Tensor):
                what = f"'{name}' of what is saved is a {type(array).__name__}, and no array or tensor"
                raise UserError(what, where=where, do=f"let `arrays` return numpy arrays or tensors (of '{name}')")
            wrong = array.is_floating_point() and not bool(torch.isfinite(array).all())
        if wrong:
            raise UserError(f"training diverged: '{name}' holds NaN or infinity", where=where, do=_DO)


def check_metric(name: str, value: float, where: object) -> None:
    """Raise a UserError where a loss or the norm of its gradient is NaN or infinite."""
    if not math.isfinite(value) and any(word in name for word in WATCHED):
        raise UserError(f"training diverged: '{name}' is {value}", where=where, do=_DO)
