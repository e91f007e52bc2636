"""How a method's memory settings say that trajectories are cut."""

from __future__ import annotations

from recollect.radt.chunks import ChunkSettings
from recollect.settings.errors import UserError
from recollect.settings.schema import MemorySettings, Settings


def chunk_settings(memory: MemorySettings) -> ChunkSettings:
    return ChunkSettings(stride=memory.stride, context=memory.key_context, past=memory.past, future=memory.future)


def memory_of(settings: Settings) -> MemorySettings:
    """The method's memory settings, which a retrieving method cannot do without."""
    if settings.method.memory is None:
        raise UserError(
            f"'{settings.method.name}' has no memory to retrieve from",
            where=f"config/methods/{settings.method.name}.yaml",
            do="add a `memory:` section (see config/methods/radt.yaml)",
        )
    return settings.method.memory
