"""Promises of a memory's keys: an embedding that was killed goes on, and ends with the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recollect.artifacts.sealed import manifest_path
from recollect.radt import memory_keys
from recollect.radt.embedders import DomainSpecificEmbedder
from recollect.stages import paths
from recollect.stages.embed import embed

OF = ("smoke", "dark_room_10x10", "radt")


@pytest.mark.slow
def test_an_embedding_that_was_killed_goes_on_and_ends_with_the_same_bytes(
    smoke_workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(smoke_workdir)
    target, parts = paths.embeddings(*OF), paths.memory_checkpoints(*OF)
    # Another size of a batch may round otherwise, so that both have this one.
    monkeypatch.setattr(memory_keys, "BATCH", 8)
    monkeypatch.setattr(memory_keys, "ROWS", 16)
    embed(*OF)
    whole = [target.read_bytes(), manifest_path(target).read_bytes()]
    target.unlink()
    asked, keys = [0], DomainSpecificEmbedder.keys

    def counted(self: Any, window: Any) -> Any:
        asked[0] += 1
        if asked[0] == 6:
            raise KeyboardInterrupt
        return keys(self, window)

    monkeypatch.setattr(DomainSpecificEmbedder, "keys", counted)
    with pytest.raises(KeyboardInterrupt):
        embed(*OF)
    assert len(list(parts.glob("*.safetensors"))) == 2 and not target.exists()
    embed(*OF)
    assert [target.read_bytes(), manifest_path(target).read_bytes()] == whole
    assert not list(parts.glob("*.safetensors"))
