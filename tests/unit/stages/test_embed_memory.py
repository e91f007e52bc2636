"""Promises of a memory's keys and of their index: what a kill leaves, what is held at once, and on which device."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect.artifacts.inputs import Inputs
from recollect.artifacts.sealed import manifest_path, read_arrays, write_arrays
from recollect.common.index import FlatIndex
from recollect.radt import memory_index, memory_keys
from recollect.radt.chunks import ChunkSettings, cut_chunks
from recollect.radt.embedders import DomainSpecificEmbedder
from recollect.radt.supervised import ExperienceStore
from recollect.settings.errors import UserError
from recollect.stages import paths
from recollect.stages.embed import embed
from recollect.stages.index import index
from recollect.stages.stage import Job
from recollect.stages.table import STAGES

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


def test_each_key_is_that_of_its_window_embedded_alone(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, path = tiny(), tmp_path / "histories.safetensors"
    of, histories = room.settings("radt"), room.histories(tasks=2, lengths=(12, 7))
    write_arrays(path, histories.arrays(), kind="histories")
    embedder = room.embedder(of)
    monkeypatch.setattr(memory_keys, "load_embedder", lambda *_: embedder)
    monkeypatch.setattr(memory_keys, "BATCH", 3)
    monkeypatch.setattr(memory_keys, "ROWS", 6)
    made = memory_keys.memory_entries(of, Inputs(histories=path), tmp_path / "parts", provenance={})
    store, length = ExperienceStore(histories, actions=5), made["key_end"] - made["key_first"]
    assert len(made["keys"]) == 2 * 2 * (3 + 1) and set(length.tolist()) == {2, 4, 8}
    for place, key in enumerate(made["keys"]):
        rows = np.arange(made["key_first"][place], made["key_end"][place])[None]
        wanted = embedder.keys(store.windows(rows, np.ones_like(rows, bool)))[0]
        np.testing.assert_allclose(key, wanted.numpy(), atol=1e-5)


def test_a_budget_of_entries_keeps_whole_episodes_evenly_spaced_over_each_history() -> None:
    length, task = np.array([12] * 9 + [8] * 3), np.repeat([0, 1], [9, 3])
    cut = cut_chunks(length.cumsum() - length, length, task, task * 0.0, ChunkSettings(4, 8, 4, 4))
    kept = memory_keys.evenly_spaced(cut, 9)
    assert kept.episode.tolist() == [0, 0, 0, 4, 4, 4, 8, 8, 8, 9, 9, 10, 10, 11, 11]
    assert kept.cut.tolist() == [0, 4, 8] * 3 + [0, 4] * 3
    assert memory_keys.evenly_spaced(cut, 1).episode.tolist() == [0, 0, 0, 9, 9]  # never none
    assert memory_keys.evenly_spaced(cut, None) is cut


def embedded(copies: int) -> None:
    """Embeddings of four entries, of which so many have the same key."""
    column = np.arange(4)
    entries = cut_chunks(column, column * 0 + 5, column * 0, column * 0.0, ChunkSettings(5, 5, 5, 5))
    keys = np.eye(4, 7, dtype=np.float32)[np.maximum(column - copies + 1, 0)]
    write_arrays(paths.embeddings(*OF), {"keys": keys, **entries.to_arrays()}, kind="embeddings")


def test_keys_are_let_go_before_the_index_is_filled_with_those_that_are_kept(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded(copies=2)
    add, held = FlatIndex.add, []

    def watched(built: FlatIndex, keys: Any) -> None:
        held.extend(
            found.shape for found in gc.get_objects() if type(found) is torch.Tensor and found.shape[1:] == (7,)
        )
        add(built, keys)

    monkeypatch.setattr(FlatIndex, "add", watched)
    index(*OF)
    assert held == [(3, 7)]


def test_each_row_of_a_memory_is_about_the_key_in_the_same_place_of_its_index(workdir: Path) -> None:
    embedded(copies=2)
    index(*OF)
    keys, rows = read_arrays(paths.embeddings(*OF), kind="embeddings")["keys"], read_arrays(paths.rows(*OF))
    found = FlatIndex.load(paths.index(*OF)).keys.numpy()
    assert len(found) == len(rows["episode"]) == 3
    np.testing.assert_array_equal(found, keys[rows["episode"]])  # each of the four entries is of an episode of its own


def test_near_copies_are_searched_for_on_the_device_of_the_job(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded(copies=1)
    asked = []

    def searched(keys: torch.Tensor, *_: Any, **__: Any) -> None:
        asked.append(keys.device.type)
        raise KeyboardInterrupt

    monkeypatch.setattr(memory_index, "deduplicate", searched)
    for device in ("cpu", "meta"):
        with pytest.raises(KeyboardInterrupt):
            index(*OF, device=device)
    assert asked == ["cpu", "meta"]
    for scale, env in (("paper", "meta_world"), ("smoke", "dark_room_10x10")):  # as the other half of a cluster's job
        assert STAGES["index"].on_gpu(Job("index", scale, env, "radt")) is (scale == "paper")
        assert STAGES["embed"].on_gpu(Job("embed", scale, env, "radt")) is (scale == "paper")
