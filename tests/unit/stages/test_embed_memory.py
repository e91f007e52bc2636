"""Promises of a memory's keys: an embedding that was killed goes on, and ends with the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recollect.artifacts.inputs import Inputs
from recollect.artifacts.sealed import manifest_path, write_arrays
from recollect.radt import memory_keys
from recollect.radt.embedders import DomainSpecificEmbedder
from recollect.settings.errors import UserError
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
    asked, killed_at, keys = 0, 0, DomainSpecificEmbedder.keys

    def counted(self: Any, window: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == killed_at:
            raise KeyboardInterrupt
        return keys(self, window)

    monkeypatch.setattr(DomainSpecificEmbedder, "keys", counted)
    embed(*OF)
    whole, batches = [target.read_bytes(), manifest_path(target).read_bytes()], asked
    target.unlink()
    asked, killed_at = 0, 6
    with pytest.raises(KeyboardInterrupt):
        embed(*OF)
    assert len(list(parts.glob("*.safetensors"))) == 2 and not target.exists()
    embed(*OF)
    assert asked == batches + 2  # of the part in hand two are asked for again, of the other parts none
    assert [target.read_bytes(), manifest_path(target).read_bytes()] == whole
    assert not list(parts.glob("*.safetensors"))


def test_a_stride_that_no_episode_is_as_long_as_is_refused(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_keys, "load_embedder", lambda *_: None)
    room, path = tiny(), tmp_path / "histories.safetensors"
    write_arrays(path, room.histories(lengths=(2, 3)).arrays(), kind="histories")
    of = room.settings("radt", memory={"stride": 4})
    with pytest.raises(UserError, match="the longest has 3 steps, not 4") as refused:
        memory_keys.memory_entries(of, Inputs(histories=path), tmp_path / "parts", provenance={})
    assert "'radt' in 'room'" in refused.value.where and "memory.stride to 3 or less" in refused.value.do
