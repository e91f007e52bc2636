"""Promises of sealed files: whole or absent, verified, the same bytes for the same content, never pickled."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis.extra.numpy as hnp
import numpy as np
import pandas as pd
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.artifacts import sealed
from recollect.artifacts.processes import began
from recollect.artifacts.sealed import (
    check_writable,
    manifest_path,
    read_arrays,
    read_json,
    read_metadata,
    read_table,
    sealing,
    sha256_of,
    verify,
    write_arrays,
    write_json,
    write_table,
)
from recollect.settings.errors import UserError

OLD = {"a": np.arange(5, dtype=np.int32), "b": np.ones((2, 3), dtype=np.float32)}
NEW = {"a": np.arange(7, dtype=np.int32), "b": np.zeros((4, 3), dtype=np.float32)}
DTYPES = ["?", "u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", "<c8", ">f4", ">i8"]


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return set(left) == set(right) and all(
        left[name].shape == right[name].shape
        and left[name].dtype == right[name].dtype.newbyteorder("<")
        and np.ascontiguousarray(left[name]).tobytes()
        == np.ascontiguousarray(right[name].astype(right[name].dtype.newbyteorder("<"))).tobytes()
        for name in left
    )


# ------------------------------------------------------------------------------------------------ round trips


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_arrays_of_every_dtype_and_shape_come_back_bit_exactly(data: st.DataObject, tmp_path_factory) -> None:
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    arrays = data.draw(
        st.dictionaries(
            st.text(min_size=1, max_size=5).filter(lambda name: name.isprintable()),
            st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(np.dtype(dtype), shapes)),
            max_size=4,
        )
    )
    path = tmp_path_factory.mktemp("arrays") / "x.safetensors"
    write_arrays(path, arrays, kind="test", metadata={"note": "ü\n"})
    assert same(read_arrays(path, kind="test"), arrays)
    assert read_metadata(path) == {"note": "ü\n"}


def test_files_are_read_by_the_safetensors_library_and_the_reverse(tmp_path: Path) -> None:
    arrays = {
        "flag": np.array([True, False, True]),
        "x": np.arange(6, dtype=np.float64).reshape(2, 3),
        "n": np.int64(3),
    }
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    ours = tmp_path / "ours.safetensors"
    write_arrays(ours, arrays, kind="test", metadata={"b": "2", "a": "1"})
    assert same(safetensors.numpy.load_file(ours), arrays)
    with safetensors.safe_open(ours, framework="numpy") as file:
        assert file.metadata() == {"a": "1", "b": "2"}
    theirs = tmp_path / "theirs.safetensors"
    with sealing(theirs, kind="test") as temp:
        safetensors.numpy.save_file(arrays, temp, metadata={"k": "v"})
    assert same(read_arrays(theirs), arrays) and read_metadata(theirs) == {"k": "v"}


def test_arrays_are_read_only_aligned_views_into_the_file_and_not_copies(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_arrays(path, {"odd": np.ones(3, np.int8), "x": np.arange(1000.0), "f": np.ones((5, 5), np.float32)}, kind="t")
    for array in read_arrays(path).values():
        assert not array.flags.writeable and array.flags.aligned and not array.flags.owndata
        base = array
        while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
            base = base.base
        assert isinstance(base, np.memmap)


def test_a_mapped_array_keeps_its_content_when_the_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_arrays(path, OLD, kind="t")
    before = read_arrays(path)
    write_arrays(path, NEW, kind="t")
    assert same(before, OLD) and same(read_arrays(path), NEW)


def test_non_contiguous_arrays_are_stored_by_their_values(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.int16).reshape(4, 6)
    write_arrays(tmp_path / "x", {"t": array.T, "s": array[::2, ::-3]}, kind="t")
    back = read_arrays(tmp_path / "x")
    np.testing.assert_array_equal(back["t"], array.T)
    np.testing.assert_array_equal(back["s"], array[::2, ::-3])


def test_bfloat16_is_read_as_the_exact_float32(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, np.inf, 0.0, 3.0e38], dtype=np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    write_arrays(tmp_path / "x", {"w": bits}, kind="t", dtypes={"w": "BF16"})
    back = read_arrays(tmp_path / "x")["w"]
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back.view(np.uint32), bits.astype(np.uint32) << 16)


@pytest.mark.parametrize("bad", [np.array([{}], dtype=object), np.array(["text"]), np.zeros(2, dtype=[("a", "i4")])])
def test_what_would_need_pickle_is_refused_and_nothing_is_left(bad: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be stored"):
        write_arrays(tmp_path / "x", {"bad": bad}, kind="t")
    assert list(tmp_path.iterdir()) == []


def test_a_table_comes_back_with_its_dtypes(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {
            "name": ["a", "b", None],
            "n": np.array([1, 2, 3], np.int32),
            "v": [0.1, np.nan, -np.inf],
            "k": pd.Categorical(["x", "y", "x"]),
            "ok": [True, False, True],
        }
    )
    write_table(tmp_path / "seed=3" / "t.parquet", table, kind="scores")
    pd.testing.assert_frame_equal(read_table(tmp_path / "seed=3" / "t.parquet", kind="scores"), table)
    refused(lambda: read_table(tmp_path / "seed=3" / "t.parquet", kind="log"), "kind 'scores', not 'log'", "t.parquet")


def test_json_comes_back_and_nan_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"b": [1, 2.5, None], "a": "ü"}, kind="j")
    assert read_json(tmp_path / "x.json", kind="j") == {"a": "ü", "b": [1, 2.5, None]}
    with pytest.raises(ValueError):
        write_json(tmp_path / "y.json", {"a": float("nan")}, kind="j")
    assert not (tmp_path / "y.json").exists()
    refused(lambda: read_json(tmp_path / "x.json", kind="k"), "kind 'j', not 'k'", "x.json")
    write_json(tmp_path / "z.json", {"b": [1, 2.5, None], "a": "ü"}, kind="j", compact=True)
    assert read_json(tmp_path / "z.json", kind="j") == read_json(tmp_path / "x.json", kind="j")


def test_the_same_content_gives_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    code = """
import sys, numpy as np, pandas as pd
from pathlib import Path
from recollect.artifacts.sealed import write_arrays, write_table, write_json
folder, turned = Path(sys.argv[1]), sys.argv[2] == "turned"
items = [("a", np.arange(3)), ("b", np.ones(2, np.float32)), ("c", np.zeros(1, bool))]
texts = [(f"key{i}", str(i)) for i in range(20)]
turn = (lambda rows: dict(reversed(rows))) if turned else dict
write_arrays(folder / "x.safetensors", turn(items), kind="k", metadata=turn(texts), provenance=turn(texts))
write_table(folder / "x.parquet", pd.DataFrame({"s": ["u", "v"] * 50, "x": np.arange(100) / 7}), kind="k")
write_json(folder / "x.json", turn(texts), kind="k")
"""
    found = []
    names = ("straight", "turned")
    processes = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / name), name]) for name in names]
    assert [process.wait() for process in processes] == [0, 0]
    for name in names:
        found.append({path.name: path.read_bytes() for path in sorted((tmp_path / name).iterdir())})
    assert len(found[0]) == 6
    assert found[0] == found[1]


def test_the_manifest_holds_kind_hash_size_provenance_its_seal_and_nothing_else(tmp_path: Path) -> None:
    with sealing(tmp_path / "figure.pdf", kind="figure", provenance={"seeds": [1, 2]}) as temp:
        assert temp.suffix == ".pdf" and temp.parent == tmp_path
        temp.write_bytes(b"hello")
    assert json.loads(manifest_path(tmp_path / "figure.pdf").read_text()) == {
        "format": 1,
        "kind": "figure",
        "provenance": {"seeds": [1, 2]},
        "seal": "ba9d097364c6274dc9e5eaa3ea010d0517077123886b0d22c77f65a427bac9e2",
        "sha256": "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
        "size": 5,
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.pdf", "figure.pdf.manifest.json"]


def test_sealed_does_not_import_torch_or_pandas() -> None:
    code = (
        "import sys, recollect.artifacts.sealed, recollect.artifacts.lock, recollect.artifacts.lease,"
        " recollect.artifacts.fingerprint, recollect.artifacts.checkpoints;"
        "assert not {'torch', 'pandas', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ------------------------------------------------------------------------------------------------ refusals


def refused(call: Callable[[], object], what: str, where: str) -> UserError:
    with pytest.raises(UserError, match=what) as caught:
        call()
    assert where in caught.value.where
    assert len(caught.value.do) > 10
    return caught.value


def test_damage_is_refused_with_what_where_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    refused(lambda: read_arrays(path, kind="histories"), "histories is missing", "x.safetensors")
    write_arrays(path, OLD, kind="histories")
    refused(lambda: read_arrays(path, kind="policy"), "kind 'histories', not 'policy'", "x.safetensors")

    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert "delete it" in refused(lambda: read_arrays(path), "cut short", "x.safetensors").do
    path.write_bytes(whole)
    assert same(read_arrays(path), OLD)

    manifest = manifest_path(path)
    good = manifest.read_text()
    manifest.write_text(good[:-10])
    refused(lambda: read_arrays(path), "not JSON", "manifest.json")
    manifest.write_text(good.replace('"format": 1', '"format": 2'))
    refused(lambda: read_arrays(path), "format 1", "manifest.json")
    manifest.write_text(json.dumps({"format": 1, "kind": "histories"}))
    refused(lambda: read_arrays(path), "format 1", "manifest.json")
    manifest.unlink()
    assert "delete it" in refused(lambda: read_arrays(path), "no manifest", path.name).do


def test_any_single_flipped_byte_is_refused_even_right_after_a_good_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_arrays(path, OLD, kind="t")
    whole = path.read_bytes()
    for position in range(0, len(whole), 7):
        path.write_bytes(whole)
        read_arrays(path)
        with path.open("r+b") as file:
            file.seek(position)
            file.write(bytes([whole[position] ^ 0x10]))
        refused(lambda: read_arrays(path), "sha256", "x.safetensors")


def test_any_single_flipped_byte_of_a_manifest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, 1, kind="t", provenance={"settings": '{"name": "dt"}', "seed": 0, 10: "a", 9: "ü"})
    manifest = manifest_path(path)
    good, said = manifest.read_bytes(), verify(path)
    for position in range(len(good)):
        flipped = bytes([good[position] ^ (0x10 if position % 3 else 0x01)])
        manifest.write_bytes(good[:position] + flipped + good[position + 1 :])
        refused(lambda: verify(path), "manifest", "x.json")
    manifest.write_bytes(good)
    assert verify(path) == said and "seal" not in said


def test_a_manifest_of_before_manifests_had_seals_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, 1, kind="t", provenance={"seed": 0})
    said = verify(path)
    manifest_path(path).write_text(json.dumps(said, sort_keys=True, indent=2) + "\n")
    assert verify(path) == said
    write_json(path, 2, kind="t", provenance={"seed": 0})
    assert "seal" in json.loads(manifest_path(path).read_text())


def test_what_cannot_be_read_is_said_plainly(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "x.json"
    write_json(path, 1, kind="t")
    manifest_path(path).unlink()
    manifest_path(path).mkdir()
    refused(lambda: verify(path), "cannot be read: .*directory", "x.json")
    manifest_path(path).rmdir()
    write_json(path, 1, kind="t")
    monkeypatch.setattr(sealed, "_known_hashes", {})
    real = Path.open

    def opened(self: Path, *arguments, **options):  # chmod binds no superuser, who may run the tests
        if self == path:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return real(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", opened)
    assert "right to read" in refused(lambda: read_json(path), "cannot be read: .*Permission denied", "x.json").do


def test_a_place_that_cannot_be_written_is_known_before_the_work(tmp_path: Path, monkeypatch) -> None:
    for path in (tmp_path / "x.json", tmp_path / "new" / "deep" / "x.json"):
        check_writable(path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    for wrong in ("file/x.json", "dangling/deep/x.json", "folder"):
        refused(lambda wrong=wrong: check_writable(tmp_path / wrong), "cannot be written", wrong)
    for right in (os.W_OK, os.X_OK):  # each is needed, and root has both
        monkeypatch.setattr(os, "access", lambda folder, mode, right=right: not mode & right)
        assert "right to write" in refused(lambda: check_writable(tmp_path / "x.json"), "read-only", "x.json").do


def test_a_hash_is_computed_once_and_again_when_the_file_changes_behind_its_mtime(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sealed, "_SETTLED_NS", -1)  # as if the file had been written long ago
    path = tmp_path / "x"
    path.write_bytes(b"one")
    hashed = []
    real = sealed.hashlib.file_digest
    monkeypatch.setattr(sealed.hashlib, "file_digest", lambda file, name: hashed.append(name) or real(file, name))
    first = sha256_of(path)
    assert sha256_of(path) == first and len(hashed) == 1
    stat = path.stat()
    for _ in range(1000):  # until the file system's clock has moved on
        path.write_bytes(b"two")
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        if path.stat().st_ctime_ns != stat.st_ctime_ns:
            break
    assert path.stat().st_mtime_ns == stat.st_mtime_ns
    assert sha256_of(path) != first


def test_the_hash_of_a_file_that_was_just_written_is_not_remembered(tmp_path: Path, monkeypatch) -> None:
    """It could change again within one tick of the file system's clock."""
    known: dict[tuple[int, ...], str] = {}
    monkeypatch.setattr(sealed, "_known_hashes", known)
    monkeypatch.setattr(sealed, "_SETTLED_NS", 10**15)  # as if no time had passed
    (tmp_path / "x").write_bytes(b"one")
    sha256_of(tmp_path / "x")
    assert not known


def reseal(path: Path, content: bytes) -> None:
    with sealing(path, kind="t") as temp:
        temp.write_bytes(content)


def safetensors_bytes(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        b"\xff" * 100,
        safetensors_bytes(b"{not json", b""),
        safetensors_bytes(b"\xff\xfe", b""),
        safetensors_bytes([1], b""),
        safetensors_bytes({"x": ENTRY}, b"1234567"),
        safetensors_bytes({"x": ENTRY}, b"123456789"),
        safetensors_bytes({"x": {**ENTRY, "shape": [3]}}, b"12345678"),
        safetensors_bytes({"x": {**ENTRY, "shape": [-2]}}, b"12345678"),
        safetensors_bytes({"x": {**ENTRY, "shape": [2.0]}}, b"12345678"),
        safetensors_bytes({"x": {**ENTRY, "data_offsets": [8, 16]}}, b"1234567812345678"),
        safetensors_bytes({"x": ENTRY, "y": ENTRY}, b"12345678"),
        safetensors_bytes({"x": {"dtype": "F32"}}, b""),
        safetensors_bytes({"x": 3}, b""),
        safetensors_bytes({"__metadata__": {"a": 1}}, b""),
        safetensors_bytes(b'{"x":%b,"x":%b}' % (json.dumps(ENTRY).encode(), json.dumps(ENTRY).encode()), b"12345678"),
        safetensors_bytes(b"[" * 20000, b""),
    ],
)
def test_a_sealed_file_that_is_no_whole_safetensors_file_is_refused(content: bytes, tmp_path: Path) -> None:
    reseal(tmp_path / "x.safetensors", content)
    refused(lambda: read_arrays(tmp_path / "x.safetensors"), "not a whole safetensors file", "x.safetensors")


def test_wrong_formats_are_refused(tmp_path: Path) -> None:
    reseal(tmp_path / "x", safetensors_bytes({"x": {**ENTRY, "dtype": "F8_E4M3", "shape": [8]}}, b"12345678"))
    refused(lambda: read_arrays(tmp_path / "x"), "F8_E4M3", "x")
    reseal(tmp_path / "x.parquet", b"PAR1 but no more than that PAR1")
    refused(lambda: read_table(tmp_path / "x.parquet"), "not a parquet file", "x.parquet")
    reseal(tmp_path / "x.json", b"{")
    refused(lambda: read_json(tmp_path / "x.json"), "not a JSON file", "x.json")


def test_a_provenance_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    worked = False
    with pytest.raises(ValueError), sealing(tmp_path / "x.json", kind="j", provenance={"rate": float("nan")}):
        worked = True
    assert not worked and not list(tmp_path.iterdir())


def test_an_error_in_the_block_leaves_the_old_file_and_no_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, 1, kind="j")
    with pytest.raises(KeyboardInterrupt), sealing(path, kind="j") as temp:
        temp.write_text("half")
        raise KeyboardInterrupt
    with pytest.raises(FileNotFoundError), sealing(path, kind="j"):
        pass
    assert read_json(path) == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_or_a_file_in_place_of_a_folder_is_said_plainly(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_json(tmp_path / "file" / "x.json", 1, kind="j")

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    error = refused(lambda: write_json(tmp_path / "x.json", 1, kind="j"), "No space left", "x.json")
    assert "free some space" in error.do
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_beyond_the_limit_of_ulimit_is_said_plainly(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        refused(lambda: write_json(tmp_path / "x.json", "x" * 2000, kind="j"), "File too large", "x.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_leftovers_of_dead_processes_are_swept_and_those_of_living_ones_are_not(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    gone = tmp_path / f".policy.{sealed._HOST}-{dead.pid}-0.tmp.safetensors"
    parent = tmp_path / f".policy.{sealed._HOST}-{os.getppid()}-0.tmp.safetensors"
    elsewhere = tmp_path / f".policy.another_host-{dead.pid}-0.tmp.safetensors"
    # A living process has the number of the dead one that wrote this, long before it began.
    earlier = tmp_path / f".earlier.{sealed._HOST}-{os.getppid()}-0.tmp.safetensors"
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as begins:  # it writes in its first second
        young = tmp_path / f".policy.{sealed._HOST}-{begins.pid}-0.tmp.safetensors"
        ended = subprocess.Popen(["true"])  # and nobody has asked how
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        unasked = tmp_path / f".policy.{sealed._HOST}-{ended.pid}-0.tmp.safetensors"
        for path in (gone, parent, elsewhere, earlier, young, unasked):
            path.write_text("half")
        os.utime(earlier, (1.0, 1.0))
        write_json(tmp_path / "x.json", 1, kind="j")
        assert not gone.exists() and parent.exists() and elsewhere.exists() and not earlier.exists() and young.exists()
        assert not unasked.exists()
        ended.wait()


def test_a_clock_of_the_file_system_that_is_a_little_late_costs_no_file_that_is_being_written(tmp_path: Path) -> None:
    parent = os.getppid()
    path = tmp_path / f".policy.{sealed._HOST}-{parent}-0.tmp.safetensors"
    for behind, stays in ((5.0, True), (60.0, False)):
        path.write_text("half")
        os.utime(path, (began(parent) - behind,) * 2)
        sealed.sweep(tmp_path)
        assert path.exists() == stays
