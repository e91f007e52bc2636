"""Numbers that recorded facts of AMAGO were made from: of a name, the same on every machine and in every version."""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor


def drawn(name: str, *shape: int) -> Tensor:
    """Numbers between -1 and 1, float32: numpy promises that this old generator's numbers stay what they are."""
    return torch.from_numpy(np.random.RandomState(zlib.crc32(name.encode())).uniform(-1, 1, shape).astype(np.float32))
