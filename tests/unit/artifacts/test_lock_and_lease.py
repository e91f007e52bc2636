"""Promises of locks and leases, each with real processes: one writer, one job per device, freed by any death."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import runs, wait_until

from recollect.artifacts import lease, lock
from recollect.artifacts.lease import device_lease, parse_nvidia_smi
from recollect.artifacts.lock import SharedLock, held, run_lock, worker
from recollect.settings.errors import UserError

HOLD_LOCK = """
import sys, time
from recollect.artifacts.lock import run_lock
with run_lock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""
HOLD_LEASE = """
import os, sys, time
from recollect.artifacts.lease import device_lease
with device_lease("cuda", int(sys.argv[3]), sys.argv[1], sys.argv[2].split(",")) as device:
    print(device, os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    time.sleep(60)
"""


@pytest.fixture
def start():
    """Start python code in a process of its own; all are killed at the end."""
    started: list[subprocess.Popen] = []

    def run(code: str, *arguments: object) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def line(process: subprocess.Popen) -> str:
    return process.stdout.readline().strip()


# ------------------------------------------------------------------------------------------------ lock


def test_a_second_holder_is_refused_by_name_and_gets_it_when_the_first_is_killed(tmp_path: Path, start) -> None:
    holder = start(HOLD_LOCK, tmp_path, 60)
    assert line(holder) == "held"
    asked = time.monotonic()
    with pytest.raises(UserError) as caught, run_lock(tmp_path):
        pass
    assert time.monotonic() - asked < lock._ORPHANS_SECONDS / 2  # what lives is not waited for
    assert f"pid {holder.pid}" in caught.value.what and os.uname().nodename in caught.value.what
    assert f"kill {holder.pid}" in caught.value.do
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with run_lock(tmp_path), pytest.raises(UserError, match=f"pid {os.getpid()}"), run_lock(tmp_path):
        pass


def test_locks_of_two_folders_do_not_meet_and_an_error_lets_go(tmp_path: Path) -> None:
    with run_lock(tmp_path / "a"), run_lock(tmp_path / "b"):
        pass
    with pytest.raises(ZeroDivisionError), run_lock(tmp_path / "a"):
        raise ZeroDivisionError
    with run_lock(tmp_path / "a"):
        pass


def test_where_files_cannot_be_locked_a_job_says_so_and_stops(tmp_path: Path, monkeypatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    began = False
    with pytest.raises(UserError, match=r"cannot lock files \(No locks available\)") as caught, run_lock(tmp_path):
        began = True
    assert not began and not held() and caught.value.where == str(tmp_path / ".lock")
    assert "NFS v4" in str(caught.value.do)


def test_a_folder_on_a_full_disk_or_of_too_long_a_name_is_refused_by_name(tmp_path: Path, monkeypatch) -> None:
    long = tmp_path / ("a" * 256)
    with pytest.raises(UserError, match=r"cannot be written: .*name too long") as caught, run_lock(long):
        pass
    assert caught.value.where == str(long) and "a shorter name" in caught.value.do

    def pwrite(descriptor: int, data: bytes, offset: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(UserError, match=r"cannot be written: .*No space left") as caught, run_lock(tmp_path):
        pass
    assert caught.value.where == str(tmp_path) and "free some space" in caught.value.do and not held()


def test_who_has_let_go_is_no_worker_though_the_process_lives_on(tmp_path: Path) -> None:
    before = held()
    with pytest.raises(ZeroDivisionError), run_lock(tmp_path):
        assert worker(tmp_path) == os.uname().nodename
        with pytest.raises(UserError), run_lock(tmp_path):
            pass
        assert worker(tmp_path) == os.uname().nodename and held() == before + 1  # who was refused changes nothing
        raise ZeroDivisionError
    assert (tmp_path / ".lock").exists() and worker(tmp_path) == "" and held() == before


def test_who_holds_it_is_named_where_a_killed_holder_left_a_longer_name(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text(json.dumps({"host": "a" * 99, "pid": 10**9}))
    with run_lock(tmp_path):
        with pytest.raises(UserError, match=f"pid {os.getpid()}"), run_lock(tmp_path):
            pass
        assert worker(tmp_path) == os.uname().nodename


def test_a_worker_of_another_host_is_believed_and_one_whose_number_another_process_has_got_is_not(
    tmp_path: Path,
) -> None:
    here, dead = os.uname().nodename, subprocess.Popen(["true"])
    dead.wait()
    now = time.time()
    for host, pid, written, expected in (
        ("another", dead.pid, now, "another"),
        (here, dead.pid, now, ""),
        (here, os.getppid(), now, here),
        (here, os.getppid(), 1.0, ""),  # which began long after the name was written
    ):
        (tmp_path / ".lock").write_text(json.dumps({"host": host, "pid": pid}))
        os.utime(tmp_path / ".lock", (written, written))
        assert worker(tmp_path) == expected


def test_what_a_holder_that_let_go_left_behind_is_waited_for(tmp_path: Path) -> None:
    with run_lock(tmp_path):
        descriptor = SharedLock(tmp_path).descriptor
        assert descriptor is not None
        left = os.dup(descriptor)  # as a process that works for it has one
    threading.Timer(0.3, os.close, [left]).start()
    began = time.monotonic()
    with run_lock(tmp_path):
        assert time.monotonic() - began > 0.1


def test_a_lock_is_shared_by_whatever_path_its_folder_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for held_as, shared_as in ((tmp_path / "a", "a"), ("a", tmp_path / "a"), ("a", "a/../a")):
        with run_lock(held_as):
            assert SharedLock(shared_as).descriptor is not None
        assert SharedLock(shared_as).descriptor is None


def test_another_process_is_given_a_lock_that_its_own_children_do_not_inherit_or_none(tmp_path: Path) -> None:
    assert ForkingPickler.loads(ForkingPickler.dumps(SharedLock(tmp_path))) is None  # of a folder that is not held
    number = os.open(tmp_path, os.O_RDONLY)
    try:
        os.set_inheritable(number, True)  # as a process that is spawned gets it
        assert lock._received(SimpleNamespace(detach=lambda: number)) == number
        assert not os.get_inheritable(number)
    finally:
        os.close(number)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EACCES])
def test_a_lock_that_another_holds_is_told_in_either_way_from_one_that_cannot_be(
    number: int, tmp_path: Path, monkeypatch
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    assert lock.take(0, tmp_path) is False


ORPHAN = """
import os, sys, time
from recollect.artifacts.lock import dies_with_parent, dies_with_scheduler
{call}
print(os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the parent-death signal is Linux's own")
def test_a_job_dies_with_its_killed_parent(start) -> None:
    parent = start(
        "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])",
        ORPHAN.format(call="dies_with_parent()"),
    )
    job = int(line(parent))
    os.kill(job, 0)
    parent.kill()
    wait_until(lambda: not runs(job), "the job ends with its parent")


LATE = """
import multiprocessing, os, time
from recollect.artifacts.lock import dies_with_parent

def work():
    print(os.getpid(), flush=True)
    while os.getppid() == multiprocessing.parent_process().pid:
        time.sleep(0.01)
    dies_with_parent()
    time.sleep(60)

if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=work).start()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the parent-death signal is Linux's own")
def test_a_process_whose_parent_was_killed_before_it_could_ask_ends_too(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(LATE)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        late = int(line(parent))
        parent.kill()
        parent.wait()
        wait_until(lambda: not runs(late), "it ends, too")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the parent-death signal is Linux's own")
def test_a_process_whose_parent_is_another_than_the_one_that_started_it_ends(start) -> None:
    """Whoever takes in orphans need not be process 1."""
    late = start(ORPHAN.format(call="dies_with_parent(parent=os.getppid() + 1)"))
    assert late.wait(timeout=30) == -signal.SIGTERM


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the parents of a process are known from /proc")
def test_a_job_ends_with_its_scheduler_though_another_process_gets_its_number(monkeypatch) -> None:
    ended, told = threading.Event(), iter(["5", "5", "5", "9", "9", "9"])  # when it began; then it has ended

    def refused(pid: int) -> None:
        raise PermissionError(errno.EPERM, "refused")

    monkeypatch.setattr(os, "pidfd_open", refused)
    monkeypatch.setattr(lock, "_ancestor", lambda name: 1)
    monkeypatch.setattr(lock, "_lives_since", lambda pid: next(told, None))
    monkeypatch.setattr(lock, "_WATCH_SECONDS", 0.01)
    monkeypatch.setattr(lock.stopping, "end_at_once", ended.set)
    lock.dies_with_scheduler()
    assert ended.wait(30) and list(told) == ["9", "9"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are known from /proc")
def test_a_process_is_known_by_when_it_began_and_one_that_nobody_waited_for_has_ended() -> None:
    with subprocess.Popen(["sleep", "60"]) as later:
        since = lock._lives_since(later.pid)
        assert since is not None and since == lock._lives_since(later.pid) != lock._lives_since(os.getpid())
        later.kill()
        wait_until(lambda: lock._lives_since(later.pid) is None, "it has ended")
    assert lock._lives_since(later.pid) is None


@pytest.mark.quick("True")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the parents of a process are known from /proc")
@pytest.mark.parametrize("pidfd", [True, False])
def test_a_job_behind_a_shell_dies_with_its_killed_scheduler(pidfd: bool, tmp_path: Path) -> None:
    program = tmp_path / "snakemake"
    program.write_text("import subprocess, sys; subprocess.run(['bash', '-c', sys.argv[1] + '; true'])")
    code = tmp_path / "job.py"
    refused = "" if pidfd else "def refused(pid): raise PermissionError(1, 'refused')\nos.pidfd_open = refused\n"
    code.write_text(ORPHAN.format(call=refused + "dies_with_scheduler()"))
    code_alone = tmp_path / "alone.py"
    code_alone.write_text(ORPHAN.format(call="dies_with_scheduler('no-such-scheduler')"))
    for script, dies in ((code, True), (code_alone, False)):
        command = f"{sys.executable} {script}"
        with subprocess.Popen([sys.executable, program, command], stdout=subprocess.PIPE, text=True) as scheduler:
            job = int(line(scheduler))
            scheduler.kill()
            scheduler.wait()
            if dies:
                wait_until(lambda job=job: not runs(job), "the job ends with its scheduler")
            else:
                time.sleep(0.3)
                os.kill(job, signal.SIGKILL)


# ------------------------------------------------------------------------------------------------ lease


def test_jobs_get_distinct_devices_and_a_killed_one_frees_its_own(tmp_path: Path, start) -> None:
    jobs = [start(HOLD_LEASE, tmp_path, "GPU-a,GPU-b,GPU-c", 1) for _ in range(3)]
    assert sorted(line(job) for job in jobs) == ["cuda GPU-a", "cuda GPU-b", "cuda GPU-c"]
    devices = ["GPU-a", "GPU-b", "GPU-c"]
    with (
        pytest.raises(UserError, match="all 3 devices are taken"),
        device_lease("cuda", 1, tmp_path, devices, wait_seconds=0),
    ):
        pass
    jobs[1].send_signal(signal.SIGKILL)
    jobs[1].wait()
    with device_lease("cuda", 1, tmp_path, devices, wait_seconds=10) as device:
        assert device == "cuda" and os.environ["CUDA_VISIBLE_DEVICES"] in devices
        with pytest.raises(UserError), device_lease("cuda", 1, tmp_path, devices, wait_seconds=0.2):
            pass


def test_packed_jobs_spread_first_then_share_and_never_meet_a_job_that_wants_a_device_alone(tmp_path: Path) -> None:
    devices = ["0", "1"]
    with device_lease("cuda", 2, tmp_path, devices, wait_seconds=0):
        first = os.environ["CUDA_VISIBLE_DEVICES"]
        with device_lease("cuda", 2, tmp_path, devices, wait_seconds=0):
            assert {first, os.environ["CUDA_VISIBLE_DEVICES"]} == {"0", "1"}
            with device_lease("cuda", 2, tmp_path, devices, wait_seconds=0):
                assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
                with pytest.raises(UserError), device_lease("cuda", 1, tmp_path, devices, wait_seconds=0):
                    pass
                with device_lease("cuda", 2, tmp_path, devices, wait_seconds=0):
                    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
                    with pytest.raises(UserError), device_lease("cuda", 2, tmp_path, devices, wait_seconds=0):
                        pass
    with (
        device_lease("cuda", 1, tmp_path, ["0"]),
        pytest.raises(UserError),
        device_lease("cuda", 2, tmp_path, ["0"], wait_seconds=0),
    ):
        pass


def test_a_job_waits_for_a_device(tmp_path: Path, start) -> None:
    with device_lease("cuda", 1, tmp_path, ["GPU-a"]):
        waiting = start(HOLD_LEASE, tmp_path, "GPU-a", 1)
        time.sleep(0.4)
        assert waiting.poll() is None
    assert line(waiting) == "cuda GPU-a"


def test_a_job_that_needs_several_devices_takes_all_of_them_or_none(tmp_path: Path, start) -> None:
    devices = ["GPU-a", "GPU-b", "GPU-c"]
    with device_lease("cuda", 1, tmp_path, devices, count=2, wait_seconds=0) as device:
        assert device == "cuda" and os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
        with (
            pytest.raises(UserError, match="fewer than 2 of 3 devices are free"),
            device_lease("cuda", 1, tmp_path, devices, count=2, wait_seconds=0.2),
        ):
            pass
        # What could not have two holds none: another job gets the third.
        with device_lease("cuda", 1, tmp_path, devices, wait_seconds=0):
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-c"
    # Two slots of one device are no two devices.
    with device_lease("cuda", 2, tmp_path, ["0", "1"], count=2, wait_seconds=0):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
        with device_lease("cuda", 2, tmp_path, ["0", "1"], count=2, wait_seconds=0):
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
            with pytest.raises(UserError), device_lease("cuda", 2, tmp_path, ["0", "1"], wait_seconds=0):
                pass
    # In their order, though the first slot that is free is one of the second.
    with (
        device_lease("cuda", 2, tmp_path, ["0", "1"], wait_seconds=0),
        device_lease("cuda", 2, tmp_path, ["0", "1"], count=2, wait_seconds=0),
    ):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_a_job_that_waits_for_several_devices_gets_them_when_they_are_free(tmp_path: Path, start) -> None:
    one, two = (start(HOLD_LEASE, tmp_path, "GPU-a,GPU-b", 1) for _ in range(2))
    assert sorted([line(one), line(two)]) == ["cuda GPU-a", "cuda GPU-b"]
    for job in (one, two):
        job.send_signal(signal.SIGKILL)
        job.wait()
    with device_lease("cuda", 1, tmp_path, ["GPU-a", "GPU-b"], count=2, wait_seconds=10):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"


def test_more_devices_than_there_are_are_refused_and_a_cpu_is_one_for_all(tmp_path: Path) -> None:
    for wanted in ("cuda", "auto"):
        with (
            pytest.raises(UserError, match="2 GPUs are asked for and there are 1"),
            device_lease(wanted, 1, tmp_path, ["GPU-a"], count=2),
        ):
            pass
    for wanted, listed in (("auto", []), ("cpu", ["GPU-a"])):
        with device_lease(wanted, 1, tmp_path, listed, count=2) as device:
            assert device == "cpu"


@pytest.mark.parametrize("before", [False, True], ids=["begins_in_a_lease", "had_begun"])
def test_a_process_holds_the_devices_with_which_cuda_has_begun_in_it(
    before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA reads the variable once, so a notebook computes on these, whatever is free."""
    begun, devices = [before], ["GPU-a", "GPU-b"]
    monkeypatch.setattr(lease, "_begun", [])
    monkeypatch.setattr(lease, "cuda_has_begun", lambda: begun[0])
    first = "GPU-a" if before else "GPU-b"
    other = nullcontext() if before else device_lease("cuda", 1, tmp_path, ["GPU-a"])
    with other, device_lease("cuda", 1, tmp_path, devices):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == first
        begun[0] = True
    with device_lease("cuda", 1, tmp_path, devices, wait_seconds=0):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == first
    with (
        pytest.raises(UserError, match=r"2 GPUs are asked for and there are 1\n[\s\S]*must start anew"),
        device_lease("cuda", 1, tmp_path, devices, count=2),
    ):
        pass


def test_where_cuda_had_begun_its_first_device_is_waited_for_and_no_other_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with device_lease("cuda", 1, tmp_path, ["GPU-a"]):
        monkeypatch.setattr(lease, "_begun", [])
        monkeypatch.setattr(lease, "cuda_has_begun", lambda: True)
        with (
            pytest.raises(UserError, match="all 1 devices are taken"),
            device_lease("cuda", 1, tmp_path, ["GPU-a", "GPU-b"], wait_seconds=0),
        ):
            pass


def test_visibility_is_put_back_as_it_was(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    with device_lease("cuda", 1, tmp_path, ["3"]):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3,4"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with device_lease("auto", 1, tmp_path, ["3"]) as device:
        assert device == "cuda"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_a_job_that_slurm_gave_a_gpu_does_not_compute_on_the_cpu_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_GPUS", "0,1")
    with pytest.raises(UserError, match="SLURM gave this job a GPU") as refused, device_lease("auto", 1, tmp_path, []):
        pass
    assert "RECOLLECT_DEVICE=cpu" in refused.value.do
    with device_lease("auto", 1, tmp_path, ["GPU-a"]) as device:
        assert device == "cuda"
    with device_lease("cpu", 1, tmp_path, []) as device:
        assert device == "cpu"
    monkeypatch.setenv("RECOLLECT_DEVICE", "cpu")
    with device_lease("auto", 1, tmp_path, ["GPU-a"]) as device:
        assert device == "cpu"
    monkeypatch.setenv("RECOLLECT_DEVICE", "cuda")
    with pytest.raises(UserError, match="'cuda' is not known"), device_lease("auto", 1, tmp_path, ["GPU-a"]):
        pass
    monkeypatch.delenv("RECOLLECT_DEVICE")
    monkeypatch.setenv("SLURM_JOB_GPUS", "")
    with device_lease("auto", 1, tmp_path, []) as device:
        assert device == "cpu"


def test_without_a_gpu_auto_is_the_cpu_and_cuda_is_refused(tmp_path: Path, monkeypatch) -> None:
    with device_lease("auto", 1, tmp_path, []) as device:
        assert device == "cpu"
    with pytest.raises(UserError, match="a GPU is asked for and there is none"), device_lease("cuda", 1, tmp_path, []):
        pass
    monkeypatch.setattr(lease, "_torch_is_cpu_only", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UserError, match="nvidia-smi lists none"), device_lease("cuda", 1, tmp_path):
        pass
    with device_lease("cpu", 1, tmp_path, ["GPU-a"]) as device:
        assert device == "cpu" and "CUDA_VISIBLE_DEVICES" not in os.environ
    with pytest.raises(UserError, match="unknown device"), device_lease("gpu", 1, tmp_path, ["GPU-a"]):  # type: ignore[arg-type]
        pass


def test_a_count_of_0_in_slurm_is_no_gpu_and_an_index_of_0_is_the_first(tmp_path: Path, monkeypatch) -> None:
    for name in ("SLURM_GPUS", "SLURM_GPUS_ON_NODE"):
        monkeypatch.setenv(name, "0")
    with device_lease("auto", 1, tmp_path, []) as device:
        assert device == "cpu"
    monkeypatch.setenv("SLURM_JOB_GPUS", "0")
    with pytest.raises(UserError, match="SLURM gave this job a GPU"), device_lease("auto", 1, tmp_path, []):
        pass


def test_a_torch_for_cpus_only_counts_as_no_gpu(monkeypatch) -> None:
    monkeypatch.setattr(lease.metadata, "version", lambda name: "2.13.0+cpu")
    monkeypatch.setattr(lease, "_nvidia_smi", lambda: "GPU 0: NVIDIA A100 (UUID: GPU-a)\n")
    with pytest.raises(UserError, match="build for CPUs only"), device_lease("cuda"):
        pass
    monkeypatch.setattr(lease.metadata, "version", lambda name: "2.13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert lease._cuda_devices() == ["GPU-a"]


SMI = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0000)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-1111)
  MIG 3g.20gb     Device  0: (UUID: MIG-aaaa)
  MIG 3g.20gb     Device  1: (UUID: MIG-bbbb)
"""


def test_the_devices_of_nvidia_smi_are_named_by_uuid_and_mig_slices_stand_for_their_device() -> None:
    assert parse_nvidia_smi(SMI) == [["GPU-0000"], ["MIG-aaaa", "MIG-bbbb"]]
    assert parse_nvidia_smi("No devices found.\n") == []


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["GPU-0000", "MIG-aaaa", "MIG-bbbb"]),
        ("0", ["GPU-0000"]),
        ("1,0", ["1", "GPU-0000"]),
        ("MIG-bbbb", ["MIG-bbbb"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["GPU-0000"]),
        ("0,0", ["GPU-0000"]),
        ("0,GPU-0000,MIG-bbbb,0", ["GPU-0000", "MIG-bbbb"]),
    ],
)
def test_a_visibility_that_is_already_set_is_what_is_chosen_from(visible, expected, monkeypatch) -> None:
    monkeypatch.setattr(lease, "_torch_is_cpu_only", lambda: False)
    monkeypatch.setattr(lease, "_nvidia_smi", lambda: SMI)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert lease._cuda_devices() == expected


@pytest.mark.parametrize("visible", ["2", "0,2", "1, 7 ,0"])
def test_a_number_that_no_device_has_is_refused_and_believed_where_nobody_lists_them(visible, monkeypatch) -> None:
    monkeypatch.setattr(lease, "_torch_is_cpu_only", lambda: False)
    monkeypatch.setattr(lease, "_nvidia_smi", lambda: SMI)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(UserError, match=r"no GPU [27]: nvidia-smi lists 2, counted from 0") as error:
        lease.usable("auto")
    assert error.value.where == f"CUDA_VISIBLE_DEVICES={visible}" and "up to 1" in error.value.do
    assert lease.usable("cpu") == []
    monkeypatch.setattr(lease, "_nvidia_smi", lambda: "")
    assert lease.usable("cuda") == [name.strip() for name in visible.split(",")]


@pytest.mark.parametrize(
    ("visible", "model"), [("0", "NVIDIA A100-SXM4-40GB"), ("GPU-1111", "NVIDIA H200"), ("MIG-bbbb", ""), ("", "")]
)
def test_the_first_usable_device_is_named_without_cuda(visible: str, model: str, monkeypatch) -> None:
    monkeypatch.setattr(lease, "_torch_is_cpu_only", lambda: False)
    monkeypatch.setattr(lease, "_nvidia_smi", lambda: SMI.replace("1: NVIDIA A100-SXM4-40GB", "1: NVIDIA H200"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert lease.device_model() == model
    assert not lease.cuda_has_begun()


def test_users_with_a_tmpdir_each_share_the_default_folder_and_jobs_of_slurm_do_not_meet(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("RECOLLECT_LEASES", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(lease.tempfile, "tempdir", None)
    assert lease._shared_folder() == Path("/tmp")

    monkeypatch.setattr(lease, "_shared_folder", lambda: tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with ExitStack() as held:
        for job in (None, "77", "78"):  # SLURM keeps its jobs apart: "0" of each is a device of its own
            if job:
                monkeypatch.setenv("SLURM_JOB_ID", job)
            held.enter_context(device_lease("cuda", 1, None, ["0"], wait_seconds=0))
            with pytest.raises(UserError, match="are taken"), device_lease("cuda", 1, None, ["0"], wait_seconds=0):
                pass


@contextmanager
def shared_by_all() -> Iterator[Path]:
    """A folder like /tmp, which pytest's own are not: those are closed to other users."""
    with tempfile.TemporaryDirectory(prefix="recollect-test-") as name:
        folder = Path(name)
        folder.chmod(0o1777)
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_two_users_of_one_machine_do_not_meet_on_a_gpu() -> None:
    with shared_by_all() as folder:
        before = os.umask(0o077)
        try:
            for holder, other in ((0, 65534), (65534, 0)):
                os.seteuid(holder)
                with device_lease("cuda", 1, folder, [f"GPU-{holder}"], wait_seconds=0):
                    os.seteuid(0)
                    os.seteuid(other)
                    with (
                        pytest.raises(UserError, match="are taken"),
                        device_lease("cuda", 1, folder, [f"GPU-{holder}"], wait_seconds=0),
                    ):
                        pass
                with device_lease("cuda", 1, folder, [f"GPU-{holder}"], wait_seconds=0):
                    pass
                os.seteuid(0)
        finally:
            os.seteuid(0)
            os.umask(before)


def test_a_lock_file_is_open_to_all_and_an_old_one_is_not_made_again(tmp_path: Path, monkeypatch) -> None:
    before = os.umask(0o077)
    try:
        with device_lease("cuda", 1, tmp_path, ["GPU-a"]):
            pass
    finally:
        os.umask(before)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o666
    os.utime(file, (0, 0))
    real = os.open

    def protected(path, flags, *more, **others):
        """As the kernel does where fs.protected_regular is set and the file is another user's."""
        if flags & os.O_CREAT and Path(path).exists():
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, flags, *more, **others)

    monkeypatch.setattr(os, "open", protected)
    with device_lease("cuda", 1, tmp_path, ["GPU-a"]):
        assert file.stat().st_mtime > 0  # else it might be cleared out of /tmp while it is held


def test_a_link_in_the_place_of_a_lock_file_is_not_followed(tmp_path: Path) -> None:
    folder, aim = tmp_path / "leases", tmp_path / "aim"
    with device_lease("cuda", 1, folder, ["GPU-a"]):
        pass
    (file,) = folder.iterdir()
    for there in (False, True):
        file.unlink()
        file.symlink_to(aim)
        if there:
            aim.write_text("kept")
        with pytest.raises(UserError, match="lock files of GPUs") as caught, device_lease("cuda", 1, folder, ["GPU-a"]):
            pass
        assert caught.value.where == str(file) and "RECOLLECT_LEASES" in caught.value.do
        assert aim.exists() == there
    assert aim.read_text() == "kept"


def test_a_device_whose_slot_cannot_be_locked_is_let_go(tmp_path: Path) -> None:
    with device_lease("cuda", 2, tmp_path, ["GPU-a"]):
        pass
    (slot,) = tmp_path.glob("*slot0*")
    slot.unlink()
    slot.symlink_to(tmp_path / "aim")
    with pytest.raises(UserError, match="lock files of GPUs"), device_lease("cuda", 2, tmp_path, ["GPU-a"]):
        pass
    with device_lease("cuda", 1, tmp_path, ["GPU-a"], wait_seconds=0) as device:
        assert device == "cuda"


def test_a_file_where_the_lease_folder_should_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "leases").write_text("a file")
    for folder in (tmp_path / "leases", tmp_path / "leases/below"):
        with pytest.raises(UserError, match="lock files of GPUs") as caught, device_lease("cuda", 1, folder, ["GPU-a"]):
            pass
        assert "leases" in caught.value.where
