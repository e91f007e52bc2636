"""The index: faiss and the torch reference give the same exact answer, files are stable, and errors say what to do."""

import tracemalloc
from pathlib import Path

import faiss
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.common.index import MARGIN, FlatIndex, matmul_search
from recollect.settings.errors import UserError


def unit(rng, n, d):
    keys = rng.standard_normal((n, d)).astype(np.float32)
    return keys / np.linalg.norm(keys, axis=1, keepdims=True)


def filled(keys, engine="faiss"):
    index = FlatIndex(keys.shape[1], engine=engine)
    index.add(keys)
    return index


def by_hand(queries, keys, k):
    scores = (queries.astype(np.float64)[:, None] * keys.astype(np.float64)[None]).sum(-1).astype(np.float32)
    ids = np.stack([np.lexsort((np.arange(len(keys)), -row))[:k] for row in scores])
    return np.take_along_axis(scores, ids, 1), ids


@settings(deadline=None, max_examples=25)
@given(
    n=st.integers(1, 200),
    distinct=st.integers(1, 60),
    queries=st.integers(1, 30),
    k=st.integers(1, 40),
    seed=st.integers(0, 999),
)
def test_both_searches_equal_the_definition_also_with_duplicates(n, distinct, queries, k, seed):
    rng = np.random.default_rng(seed)
    keys = unit(rng, distinct, 16)[rng.integers(0, distinct, n)]
    asked = unit(rng, queries, 16)
    asked[0] = keys[0]
    expected_scores, expected_ids = by_hand(asked, keys, min(k, n))
    for scores, ids in (
        filled(keys).search(asked, k),
        filled(keys, "auto").search(asked, k),
        matmul_search(torch.from_numpy(asked), torch.from_numpy(keys), k),
    ):
        assert ids[:, : min(k, n)].tolist() == expected_ids.tolist()
        np.testing.assert_allclose(scores[:, : min(k, n)], expected_scores, rtol=0, atol=1e-7)
        assert (ids[:, n:] == -1).all() and (scores[:, n:] == float("-inf")).all() and ids.shape == (queries, k)


def test_ties_beyond_the_candidates_are_looked_up_in_full():
    rng = np.random.default_rng(0)
    keys = unit(rng, 2000, 32)
    keys[500:1500] = keys[0]  # far more copies than candidates; where the copies stand must not matter
    asked = np.stack([keys[0], keys[1]])
    expected = by_hand(asked, keys, 5)[1].tolist()
    assert expected[0] == [0, 500, 501, 502, 503] and 5 + MARGIN < 1000
    assert filled(keys).search(asked, 5)[1].tolist() == expected
    assert matmul_search(torch.from_numpy(asked), torch.from_numpy(keys), 5)[1].tolist() == expected


@pytest.mark.parametrize("length", [1, 1000])
def test_keys_that_a_float32_product_cannot_tell_apart_are_ranked_exactly(length):
    """Also where keys and queries are no unit vectors, as the released code has them."""
    rng = np.random.default_rng(0)
    asked = unit(rng, 4, 64) * np.float32(length)
    keys = asked[:1] + np.float32(3e-8 * length) * rng.standard_normal((1000, 64), np.float32)
    expected = by_hand(asked, keys, 5)[1].tolist()
    assert filled(keys).search(asked, 5)[1].tolist() == expected
    assert filled(keys, "torch").search(asked, 5)[1].tolist() == expected


@pytest.mark.parametrize("engine", ["faiss", "torch"])
def test_the_answer_does_not_depend_on_how_many_queries_are_asked_at_once(engine):
    rng = np.random.default_rng(1)
    keys, asked = unit(rng, 3000, 48), unit(rng, 64, 48)
    index = filled(keys, engine)
    assert index.backend == {"faiss": "faiss-cpu"}.get(engine, engine)
    scores, ids = index.search(asked, 20)
    for row in range(0, 64, 9):
        alone_scores, alone_ids = index.search(asked[row : row + 1], 20)
        assert torch.equal(alone_scores[0], scores[row]) and torch.equal(alone_ids[0], ids[row])


def test_a_search_ignores_autocast_and_reduced_precision():
    rng = np.random.default_rng(2)
    keys, asked = torch.from_numpy(unit(rng, 500, 64)), torch.from_numpy(unit(rng, 5, 64))
    expected = matmul_search(asked, keys, 10)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = matmul_search(asked, keys, 10)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


def test_blocks_of_keys_do_not_change_the_answer(monkeypatch):
    rng = np.random.default_rng(3)
    keys, asked = torch.from_numpy(unit(rng, 500, 8)), torch.from_numpy(unit(rng, 5, 8))
    expected = matmul_search(asked, keys, 30)
    monkeypatch.setattr("recollect.common.index.BLOCK_SCORES", {"cpu": 5 * 37})
    monkeypatch.setattr("recollect.common.index.BLOCK_PAIRS", {"cpu": 8 * 11})
    found = matmul_search(asked, keys, 30)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


def test_a_saved_index_answers_the_same_and_two_builds_give_the_same_bytes(tmp_path):
    keys = unit(np.random.default_rng(4), 300, 24)
    index, in_two_parts = filled(keys), filled(keys[:100])
    in_two_parts.add(torch.from_numpy(keys[100:]))
    for name, built in (("keys", index), ("parts", in_two_parts)):
        built.save(tmp_path / f"{name}.faiss")
        assert (tmp_path / f"{name}.faiss").read_bytes() == faiss.serialize_index(index._index).tobytes()
    again = FlatIndex.load(tmp_path / "keys.faiss")
    assert len(again) == 300 and torch.equal(again.keys, torch.from_numpy(keys))
    assert torch.equal(again.search(keys[:7], 9)[1], index.search(keys[:7], 9)[1])


def test_saving_holds_no_second_copy_of_the_keys(tmp_path):
    index = filled(unit(np.random.default_rng(4), 4000, 512))  # 8 MB
    tracemalloc.start()
    index.save(tmp_path / "keys.faiss")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6 and (tmp_path / "keys.faiss").stat().st_size > 8e6


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="it stands for a disk that is full")
def test_a_full_disk_is_an_error_of_the_operating_system_which_sealing_says():
    with pytest.raises(OSError, match="No space left"):
        filled(unit(np.random.default_rng(4), 4000, 512)).save(Path("/dev/full"))


def test_keys_outlive_their_index():
    keys = filled(np.arange(12, dtype=np.float32).reshape(3, 4)).keys
    others = [filled(np.full((3, 4), -1, np.float32)) for _ in range(50)]  # would take memory that was let go
    assert keys.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]] and len(others) == 50
    assert filled(np.zeros((0, 4), np.float32)).keys.shape == (0, 4)


def test_adding_after_a_search_is_seen():
    keys = unit(np.random.default_rng(5), 40, 8)
    index = filled(keys[:20])
    index.search(keys[:1], 3)
    index.add(keys[20:])
    assert index.search(keys[30:31], 1)[1].item() == 30 and index.keys.shape == (40, 8)


def test_bad_use_is_refused(tmp_path, monkeypatch):
    keys = unit(np.random.default_rng(6), 4, 8)
    with pytest.raises(UserError, match="empty"):
        FlatIndex(8).search(keys, 1)
    with pytest.raises(UserError, match="width 8"):
        filled(keys).search(keys[:, :5], 1)
    with pytest.raises(UserError, match="width 8"):
        FlatIndex(8).add(keys[:, :5])
    monkeypatch.delattr(faiss, "StandardGpuResources", raising=False)
    with pytest.raises(UserError, match="no GPU support"):
        FlatIndex(8, device="cuda", engine="faiss")
    with pytest.raises(UserError, match="not finite"):
        FlatIndex(8).add(np.full((1, 8), np.nan, dtype=np.float32))
    with pytest.raises(UserError, match="no such index"):
        FlatIndex.load(tmp_path / "none.faiss")
    (tmp_path / "broken.faiss").write_bytes(b"not an index")
    with pytest.raises(UserError, match="not a readable"):
        FlatIndex.load(tmp_path / "broken.faiss")
    filled(keys).save(tmp_path / "whole.faiss")
    (tmp_path / "short.faiss").write_bytes((tmp_path / "whole.faiss").read_bytes()[:-20])
    with pytest.raises(UserError, match="not a readable"):
        FlatIndex.load(tmp_path / "short.faiss")
    (tmp_path / "l2.faiss").write_bytes(faiss.serialize_index(faiss.IndexFlatL2(8)).tobytes())
    with pytest.raises(UserError, match="not a Flat index of inner products"):
        FlatIndex.load(tmp_path / "l2.faiss")


@pytest.mark.gpu
def test_the_gpu_gives_the_answer_of_the_cpu():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    rng = np.random.default_rng(7)
    keys, asked = unit(rng, 20000, 128), unit(rng, 128, 128)
    keys[1000:3000] = keys[0]
    asked[0] = keys[0]
    index = FlatIndex(128, device="cuda")
    index.add(keys)
    scores, ids = index.search(asked, 50)
    expected_scores, expected_ids = filled(keys).search(asked, 50)
    assert ids.cpu().tolist() == expected_ids.tolist() and torch.equal(scores.cpu(), expected_scores)
