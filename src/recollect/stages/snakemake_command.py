"""How commands call Snakemake: with the Snakefile of this folder, or else with the one beside the configuration."""

from __future__ import annotations

import sys
from pathlib import Path

from recollect.settings.loading import config_folder


def snakemake_command(*words: str) -> list[str]:
    """Snakemake as a command, with these words behind it."""
    beside = config_folder().absolute().parent / "Snakefile"
    elsewhere = beside.is_file() and not Path("Snakefile").is_file()
    return [sys.executable, "-m", "snakemake", *(["--snakefile", str(beside)] if elsewhere else []), *words]
