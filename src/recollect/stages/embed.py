"""embed: histories + embedder -> keys of every memory entry (`data/{scale}/{env}/{method}/embeddings.safetensors`).

Killed at any instant, the same command goes on from the last part and ends with the same bytes.
"""

from __future__ import annotations

from recollect.settings.resolve import resolve
from recollect.stages import paths, provenance
from recollect.stages.inputs import embed_inputs, learns_from_histories
from recollect.stages.stage import Job, Resources, Stage


def embed(scale: str, env: str, method: str, *, device: str = "cpu") -> None:
    """Compute the keys of a method's memory: embed the key window of every chunk of the histories."""
    from recollect.artifacts.inputs import Inputs
    from recollect.artifacts.lock import run_lock
    from recollect.artifacts.sealed import write_arrays
    from recollect.common.parts_on_disk import remove_parts
    from recollect.radt.chunks import memory_of
    from recollect.radt.memory_keys import memory_entries

    settings = resolve(scale, env, method, seed=0)
    memory_of(settings)  # refuses a method without one, before any file is read
    inputs = Inputs(device=device, **embed_inputs(scale, env, method))
    known = STAGE.provenance(Job("embed", scale, env, method), device)
    target, parts = paths.embeddings(scale, env, method), paths.memory_checkpoints(scale, env, method)
    with run_lock(target.parent):
        arrays = memory_entries(settings, inputs, parts, provenance=known)
        write_arrays(target, arrays, kind="embeddings", provenance=known)
        remove_parts(parts)


def modules(scale: str, env: str, method: str) -> list[str]:
    world, network = provenance.world_of(scale, env), provenance.embedder_network(scale, env, method)
    return ["recollect.radt.memory_keys", *world, *network]


STAGE = Stage(
    name="embed",
    over=("scale", "env", "method"),
    reads=embed_inputs,
    writes={"embeddings": paths.embeddings},
    settings=provenance.memory_settings,
    modules=modules,
    keeps=True,  # the embedder's run may be a new job that made the same policy
    # The histories' columns are on the device. On the host: what is derived of them, some 30 bytes a step (Meta-World's 90 M: 2.7
    # GB), one batch of windows, and one part of the keys.
    asks=Resources((1500, 6000), (60, 240), threads=(1, 4), gpu=learns_from_histories, resumes=True),
    priority=50,
    packages="world",
    run=embed,
)
