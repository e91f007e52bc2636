"""How fast Recollect is, always as a ratio to the plain way of doing the same in the same minute: `make bench`.

Where the released code was timed, its recorded time stands beside ours, scaled to this machine (`released`).

One file per benchmark; each also says how far the results of the two ways are apart, and no time is taken of a pair that
does not compute the same. `harness` measures, `table` prints, `python -m benchmarks --help` says what can be chosen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from recollect.settings.errors import UserError

NAMES: dict[str, str] = {
    "stepping": "Dark-Room, Key-Door and Visual Match, 1024 instances, against a loop over one plain Python environment",
    "histories": "learning histories of 80 tasks, against one PPO after the other",
    "in_context": "in-context evaluation of 20 tasks, against one task at a time with full recompute",
    "acting": "acting with a key/value cache on T-Maze 1500, against encoding the context anew",
    "online": "Memory-RL's updates and environment steps on T-Maze 1500, against the plain form of the released loop",
    "amago": "AMAGO's updates and acting at the sizes of Dark Key-To-Door, against the plain form",
    "training": "training steps of DT, AD and RA-DT, against the same models on the transformers GPT-2 blocks",
    "packed_sizes": "gradients of packed batches of windows, against batches of exactly their tokens",
    "windows": "batches of windows from 8 M transitions, against sampling trajectory by trajectory",
    "trajectories": "windows of AMAGO's trajectories on disk, against one pickle per trajectory",
    "search": "exact search among 320 000 keys, against a bare matrix product and top-k",
    "history_vectors": "HELM's history vectors with a cache, against a full forward per step",
    "repeated_images": "gradients and history vectors of images that are seen again and again, against every one anew",
    "hopfield": "FrozenHopfield of discrete inputs as a table, against the softmax over the vocabulary",
    "one_actor": "Memory-RL as published: one actor's steps, against the plain policy; and updates",
    "frozen_models": "HELM's frozen models at their published sizes: Transformer-XL, Hopfield network, CLIP",
    "bfloat16": "RA-DT's training steps and HELM's frozen models in bfloat16, where a processor has units for it",
    "dry_run": "time until Snakemake knows what to do",
}
"""Benchmark (the module of the same name in this package) -> what it times."""


def exit_status(work: Callable[[], object]) -> int:
    """Do the work of a command: 0; or 2, when what is wrong was said."""
    try:
        work()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
