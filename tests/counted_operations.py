"""Counts what an update does, to compare it with the kernels that a forecast takes it to have."""

from __future__ import annotations

import re
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

NO_KERNEL = re.compile(  # views, and memory that nothing is written to
    "alias|as_strided|detach|expand|permute|resize_|select|slice|split|squeeze|t|transpose|unbind|unfold|unsqueeze|view|"
    "_reshape_alias|_unsafe_view|empty|empty_like|new_empty|new_empty_strided"
)


class Operations(TorchDispatchMode):
    """Counts operations that write something."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += NO_KERNEL.fullmatch(func._schema.name.partition("::")[2]) is None
        return func(*args, **(kwargs or {}))
