"""Check that the package which plans is the one beside the Snakefile; it needs nothing of that package, which may be older."""

from __future__ import annotations

import sys
from pathlib import Path


def check(folder: str) -> None:
    """Stop where this Python has the package of another clone, whose settings and code would be taken for those here.

    Args:
        folder: that of the Snakefile; one without `src/` goes with any package.
    """
    import recollect

    imported, beside = Path(recollect.__path__[0]).resolve(), Path(folder, "src", "recollect").resolve()
    if beside.is_dir() and beside != imported:
        sys.exit(
            f"error: this Python has the package of another place, {imported}\n"
            f"  where: {sys.executable}, beside the rules of {Path(folder).resolve()}\n"
            "  to do: run `make setup` in that folder, then `source .venv/bin/activate`"
        )
