"""Promises of sealed files and checkpoints under faults: an error or a death at any call, and real SIGKILLs."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from recollect.artifacts.checkpoints import Checkpoints
from recollect.artifacts.sealed import read_arrays, read_json, read_table, write_arrays, write_json, write_table
from recollect.settings.errors import UserError

OLD = {"a": np.arange(5, dtype=np.int32), "b": np.ones((2, 3), dtype=np.float32)}
NEW = {"a": np.arange(7, dtype=np.int32), "b": np.zeros((4, 3), dtype=np.float32)}


def which(found: dict[str, np.ndarray]) -> int | str:
    for number, arrays in enumerate((OLD, NEW)):
        if set(found) == set(arrays) and all(np.array_equal(found[name], arrays[name]) for name in arrays):
            return number
    return "torn"


FAULTY = ("open", "write", "fsync", "replace", "unlink")


class Faults:
    """Counts file-system calls, and fails from the n-th on: once (an error) or for good (the process is dead)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int | None, *, dead: bool, torn: bool) -> None:
        self.count, self.at, self.dead, self.torn, self.calls = 0, at, dead, torn, []
        for name in FAULTY:
            monkeypatch.setattr(os, name, self.wrap(name, getattr(os, name)))

    def wrap(self, name: str, real: Callable) -> Callable:
        def call(*args, **kwargs):
            self.count += 1
            self.calls.append(name)
            if self.at is not None and (self.count == self.at or (self.dead and self.count > self.at)):
                if name == "write" and self.torn and self.count == self.at:
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])  # half of it reaches the disk
                raise OSError(errno.EIO, "injected")
            return real(*args, **kwargs)

        return call


CASES: dict[str, tuple[Callable, Callable]] = {
    "arrays": (
        lambda path, new: write_arrays(path, NEW if new else OLD, kind="t"),
        lambda path: which(read_arrays(path)),
    ),
    "table": (
        lambda path, new: write_table(path, pd.DataFrame({"x": np.full(100, int(new))}), kind="t"),
        lambda path: int(read_table(path)["x"].unique().item()),
    ),
    "json": (
        lambda path, new: write_json(path, int(new), kind="t"),
        lambda path: read_json(path),
    ),
}


@pytest.mark.parametrize("dead", [False, True], ids=["error", "death"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("exists", [False, True], ids=["first write", "overwrite"])
def test_a_fault_at_any_call_leaves_the_old_the_new_or_a_clear_error(
    case: str, dead: bool, exists: bool, tmp_path: Path, monkeypatch
) -> None:
    write, read = CASES[case]
    with monkeypatch.context() as patch:
        faults = Faults(patch, None, dead=dead, torn=True)
        write(tmp_path / "count" / "x", True)
    total = faults.count
    assert total >= 10 and {"write", "fsync", "replace"} <= set(faults.calls)
    seen = []
    for at in range(1, total + 1):
        path = tmp_path / str(at) / "x"
        if exists:
            write(path, False)
        else:
            path.parent.mkdir()
        before = sorted(item.name for item in path.parent.iterdir())
        with monkeypatch.context() as patch:
            Faults(patch, at, dead=dead, torn=True)
            try:
                write(path, True)
                failed = False
            except OSError:
                failed = True
        assert failed or at == total or faults.calls[at - 1] == "unlink"
        try:
            seen.append(read(path))
        except UserError:
            seen.append("refused")
        if not dead and seen[-1] == 0:
            assert sorted(item.name for item in path.parent.iterdir()) == before, "leftovers after an error"
        write(path, True)  # and the next attempt mends it
        assert read(path) == 1
    assert set(seen) <= {0, 1, "refused"}
    if exists:
        assert 0 in seen
    assert seen[-1] == 1  # the last call comes after the seal


def test_data_reaches_the_disk_before_its_name_and_both_before_the_manifest(tmp_path: Path, monkeypatch) -> None:
    events: list[tuple[str, str]] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        events.append(("fsync", "folder" if name == tmp_path else "file"))
        real_fsync(descriptor)

    def replace(source: Path, target: Path) -> None:
        events.append(("replace", Path(target).name))
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_arrays(tmp_path / "x", OLD, kind="t")
    one = [("fsync", "file"), ("replace", "x"), ("fsync", "folder")]
    assert events == [*one, ("fsync", "file"), ("replace", "x.manifest.json"), ("fsync", "folder")]


def test_a_fault_while_saving_a_checkpoint_never_costs_the_one_before(tmp_path: Path, monkeypatch) -> None:
    def fill(folder: Path) -> Checkpoints:
        checkpoints = Checkpoints(folder)
        for step in (1, 2):
            checkpoints.save(step, {"x": np.full(50, step)}, {"step": step})
        return checkpoints

    checkpoints = fill(tmp_path / "count")
    with monkeypatch.context() as patch:
        faults = Faults(patch, None, dead=True, torn=True)
        checkpoints.save(3, {"x": np.full(50, 3)}, {"step": 3})
    seen = []
    for at in range(1, faults.count + 1):
        checkpoints = fill(tmp_path / str(at))
        with monkeypatch.context() as patch:
            Faults(patch, at, dead=True, torn=True)
            with suppress(OSError):
                checkpoints.save(3, {"x": np.full(50, 3)}, {"step": 3})
        found = checkpoints.newest()
        assert found is not None and found.state == {"step": found.step}
        np.testing.assert_array_equal(found.arrays["x"], np.full(50, found.step))
        seen.append(found.step)
        checkpoints.save(4, {"x": np.full(50, 4)}, {"step": 4})
        assert checkpoints.steps() == [found.step, 4], "an unsealed one took the place of the last sealed one"
        files = [path.name for path in checkpoints.folder.iterdir() if not path.name.startswith(".")]
        assert len(files) == 4
    assert sorted(seen) == seen and set(seen) == {2, 3}


KILL_LOOP = """
import json, os, random, signal, sys, time
import numpy as np
from recollect.artifacts.checkpoints import Checkpoints
from recollect.artifacts.sealed import read_arrays, write_arrays
from recollect.settings.errors import UserError
folder, trials = sys.argv[1], int(sys.argv[2])
rng = random.Random(0)
checkpoints = Checkpoints(folder + "/checkpoints")
one = folder + "/one.safetensors"
torn = refused = reached = kills = 0
begin = time.monotonic()
while kills < trials and (kills < 12 or time.monotonic() - begin < 30):  # fewer on a slow disk
    kills += 1
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        found = checkpoints.newest()
        step = found.step if found else 0
        while True:
            step += 1
            arrays = {"x": np.full(20_000, step), "y": np.full(3, step % 100, np.int8)}
            checkpoints.save(step, arrays, {"step": step})
            write_arrays(one, arrays, kind="t")
            os.write(writer, b".")
    os.close(writer)
    assert os.read(reader, 1), "the saving process failed"  # from here it is saving: when that is, is the disk's affair
    time.sleep(0.05 * rng.random())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(reader)
    found = checkpoints.newest()
    step = found.step if found else 0
    if found and not (found.state["step"] == step and (found.arrays["x"] == step).all()):
        torn += 1
    if step < reached:
        torn += 1
    reached = step
    try:
        x = read_arrays(one)["x"]
        torn += not (x == x[0]).all()
    except UserError:
        refused += 1
print(json.dumps({"torn": torn, "kills": kills, "refused": refused, "reached": reached}))
"""


@pytest.mark.slow
def test_dozens_of_kills_in_a_tight_save_loop_tear_nothing_and_lose_no_sealed_step(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILL_LOOP, str(tmp_path), "40"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["torn"] == 0
    assert found["reached"] >= found["kills"] >= 12
    Checkpoints(tmp_path / "checkpoints").save(10**6, {"x": np.ones(1)}, {})
    leftovers = [path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.startswith(".")]
    assert leftovers == []
