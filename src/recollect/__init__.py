"""Recollect: one workflow that regenerates the results of four lines of research on memory in reinforcement learning.

From Python (docs/python.md): `recollect.run`, `train`, `figure`, `claims`, `histories`, `from_minari`. Nothing heavy is
imported before one is asked for. Where gymnasium is imported already, or asks for a world as
`recollect:recollect/DarkRoom-v0`, it gets to know ours.
"""

import importlib
import sys
from typing import Any

__version__ = "0.1.0"
_API = {
    **dict.fromkeys(("Histories", "Run", "from_minari", "histories", "run", "train"), "recollect.api"),
    **dict.fromkeys(("Figure", "claims", "figure"), "recollect.tables"),
}


def __getattr__(name: str) -> Any:
    if name in _API:
        return getattr(importlib.import_module(_API[name]), name)
    raise AttributeError(f"module 'recollect' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *_API})


if "gymnasium" in sys.modules:
    importlib.import_module("recollect.environments")
