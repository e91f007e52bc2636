"""What results were made with besides settings and code: a commit, a processor, versions."""

from __future__ import annotations

import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# The pages, of which nothing is made; `recollect record` writes them.
_EXCEPT_PAGES = (".", ":(exclude)docs", ":(exclude,glob)*.md")


def commit(folder: Path | str = ".") -> str:
    """The commit of a folder, and whether files differ from it, other than pages; nothing where it is not one of git's."""
    status = ("status", "--porcelain", "--untracked-files=no", "--", *_EXCEPT_PAGES)
    try:
        said = [
            subprocess.run(
                ["git", *words], cwd=folder, capture_output=True, text=True, check=True, timeout=60
            ).stdout.strip()
            for words in (("rev-parse", "--short=12", "HEAD"), status)
        ]
    except (OSError, subprocess.SubprocessError):
        return ""
    return said[0] + (" with changes" if said[1] else "")


def first_core(told: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """What the system tells of its first core, e.g. `model name` and `flags`; nothing where it does not."""
    try:
        lines = [line.partition(":") for line in told.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in reversed(lines)}


def processor(told: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, and whether it has AVX-512, as far as the system tells: speed and last bits hang on both."""
    known = first_core(told)
    if not known:
        return platform.processor() or platform.machine()
    name = known.get("model name", platform.machine())
    if "flags" not in known:
        return name
    return f"{name} {'with' if 'avx512f' in known['flags'].split() else 'without'} AVX-512"


def made_with(device: str) -> dict[str, str]:
    """What a job of this process is made with; a commit is that of the first job here.

    Args:
        device: cpu or cuda; the name of a GPU is told where it is used.
    """
    return dict(_made_with(device, Path.cwd()))


@cache
def _made_with(device: str, folder: Path) -> dict[str, str]:
    known = {"commit": commit(folder) or "unknown", "processor": processor(), "python": sys.version.split()[0]}
    try:
        known["torch"] = version("torch")
    except PackageNotFoundError:
        known["torch"] = "none"
    if device != "cpu":
        import torch

        known["gpu"] = torch.cuda.get_device_name()
    return known
