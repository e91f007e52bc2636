"""index: embeddings -> exact search index and its row table (`memory.faiss`, `memory_rows.safetensors`)."""

from __future__ import annotations

from recollect.settings.resolve import resolve
from recollect.stages import paths, provenance
from recollect.stages.inputs import learns_from_histories
from recollect.stages.stage import Job, Resources, Stage


def index(scale: str, env: str, method: str, *, device: str = "cpu") -> None:
    """Build the search index of a method's memory: near-duplicates are dropped."""
    import torch

    from recollect.artifacts.lock import run_lock
    from recollect.artifacts.sealed import read_arrays, sealing, write_arrays
    from recollect.radt.chunks import Chunks, memory_of
    from recollect.radt.memory_index import build_index

    memory = memory_of(resolve(scale, env, method, seed=0))
    known = STAGE.provenance(Job("index", scale, env, method), device)
    source = paths.embeddings(scale, env, method)
    with run_lock(source.parent):
        arrays = read_arrays(source, kind="embeddings")
        entries = Chunks.from_arrays(arrays, source)
        built, kept = build_index(torch.from_numpy(arrays["keys"].copy()).to(device), entries, memory)
        target = paths.index(scale, env, method)
        with sealing(target, kind="index", provenance=known) as temporary:
            built.save(temporary)
        rows = paths.rows(scale, env, method)
        write_arrays(rows, kept.to_arrays(), kind="memory rows", provenance=known)


STAGE = Stage(
    name="index",
    over=("scale", "env", "method"),
    reads=lambda *of: {"embeddings": paths.embeddings(*of)},
    writes={"index": paths.index, "rows": paths.rows},
    settings=provenance.memory_settings,
    modules=lambda scale, env, method: ["recollect.radt.memory_index", *provenance.world_of(scale, env)],
    # The keys, those that are kept, and the index, two of them at a time: twice the embeddings. Meta-World's are 3.7 GB by the
    # forecast. Keys may be compared pair by pair. On a cluster it shares a job with `embed`, so both ask for a GPU or none does.
    asks=Resources((1000, 12000), (30, 120), threads=(1, 4), gpu=learns_from_histories),
    priority=45,
    keeps=True,
    run=index,
)
