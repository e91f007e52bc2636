"""`make attack`: what docs/reliability.md promises, attacked from outside.

Each module makes trials of one kind. A trial works in a folder of its own, with commands as a person types them, and
says what it found. What is promised stands in the issue's words; a trial never asks how it is done.
"""

from __future__ import annotations

KINDS = {
    "kills": "single jobs of every kind, killed at random moments",
    "trees": "whole Snakemakes, killed, interrupted and started twice",
    "flips": "a byte changed in artifacts, manifests, checkpoints and buffers",
    "swaps": "whole files of another seed, environment, method or history",
    "surroundings": "folders, limits and variables that are not as they should be",
    "bad_input": "configurations and command lines that are wrong",
    "bad_files": "published files that are wrong",
}
"""The modules, in the order in which they are run."""
