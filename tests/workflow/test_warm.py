"""`recollect warm`: jobs that fork from one preloaded process are the jobs that they would be on their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from made_results import ROOM, SCALE, configure, write_run
from processes import runs, wait_until

from recollect import warm as forks
from recollect.artifacts import stopping
from recollect.stages import paths
from recollect.stages.table import STAGES

CALLER = [sys.executable, "-c", "from recollect.launch import main; main()"]
FORKED = [
    sys.executable,
    "-c",
    "import os, sys; from recollect import warm; status = warm.ask(os.environ[warm.ADDRESS], sys.argv[1:]); "
    "sys.exit(99 if status is None else status)",
]
"""Fails where the command that follows would not fork."""
RUN = [
    "--scale",
    "smoke",
    "--env",
    "dark_room_10x10",
    "--method",
    "dt",
    "--seed",
    "1",
    "--device",
    "cpu",
    "--threads",
    "1",
]


BARE = """
import os, sys, time, types
from pathlib import Path
from recollect import warm

def main():
    time.sleep(float(sys.argv[1]))
    Path(sys.argv[2]).touch()

sys.modules["recollect.cli"] = types.SimpleNamespace(main=main)
work = warm._work

def slow_work(*arguments):
    Path(sys.argv[1] + ".forked").touch()
    time.sleep(float(sys.argv[2]))
    work(*arguments)

warm._work = slow_work
warm._PRELOADED = ()
warm.serve(sys.argv[1], os.getppid())
"""
"""A process that forks and has imported nothing; a job `SECONDS FILE` takes as long, then makes the file."""


@contextmanager
def bare(folder: Path, *, slow_to_fork: float = 0.0) -> Iterator[dict[str, str]]:
    """The environment of a caller of such a process."""
    address = str(folder / "socket")
    server = subprocess.Popen([sys.executable, "-c", BARE, address, str(slow_to_fork)])
    try:
        wait_until(lambda: os.path.exists(address), "the socket is there", 60)
        yield {**os.environ, forks.ADDRESS: address}
    finally:
        server.terminate()
        server.wait(10)


@contextmanager
def preloaded(folder: Path) -> Iterator[dict[str, str]]:
    """The environment of a caller whose jobs fork."""
    address = str(folder / "socket")
    server = subprocess.Popen(
        [sys.executable, "-c", forks._SERVER, address, str(os.getpid())],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        wait_until(lambda: os.path.exists(address), "the socket is there", 60)
        yield {**os.environ, "OMP_NUM_THREADS": "1", forks.ADDRESS: address}
    finally:
        server.terminate()
        server.wait(10)


def beneath_warm(job: list[str]) -> list[str]:
    """`recollect warm` with a command that waits for the preloaded process and runs a job."""
    script = (
        "import os, subprocess, sys, time\n"
        f"address = os.environ['{forks.ADDRESS}']\n"
        "while not os.path.exists(address): time.sleep(0.01)\n"
        f"sys.exit(subprocess.call({job!r}))\n"
    )
    return [sys.executable, "-m", "recollect.cli", "warm", sys.executable, "-c", script]


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of callers whose jobs fork from one process, as those of a workflow do."""
    with preloaded(tmp_path_factory.mktemp("warm")) as environment:
        yield environment


def job_of(said: Path) -> int:
    """The pid of the process that trains, from the lock of its run."""
    lock = said / "results/smoke/checkpoints/dark_room_10x10/dt/seed_1/.lock"
    wait_until(lambda: lock.exists() and lock.read_text(), "the run is begun", 60)
    return int(json.loads(lock.read_text())["pid"])


def words_of(command_line: Path) -> bytes:
    try:
        return command_line.read_bytes()
    except OSError:
        return b""


def run_files(folder: Path) -> dict[str, bytes]:
    run = folder / "results/smoke/runs/dark_room_10x10/dt/seed_1"
    return {file.name: file.read_bytes() for file in sorted(run.iterdir()) if not file.name.startswith(".")}


@pytest.mark.slow
def test_a_forked_job_writes_the_same_bytes(smoke_workdir: Path, tmp_path: Path, warm: dict[str, str]) -> None:
    alone = tmp_path / "alone"
    shutil.copytree(smoke_workdir, alone)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for folder, env in ((alone, environment), (smoke_workdir, warm)):
        done = subprocess.run([*CALLER, "run", *RUN], cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "$ recollect run --scale smoke" in done.stderr  # its words reach the caller's terminal
    assert run_files(alone) == run_files(smoke_workdir)
    assert "scores.parquet" in run_files(alone)


@pytest.mark.slow
def test_a_forked_figure_is_the_same_picture(workdir: Path, warm: dict[str, str]) -> None:
    configure("forked", [ROOM], ["ad", "dt"], range(3), kind="in_context_curve")
    for method in ("ad", "dt"):
        for seed in range(3):
            write_run(ROOM, method, seed)
    words = ["figure", "--scale", SCALE, "--figure", "forked"]
    files = [paths.figure(SCALE, "forked", suffix) for suffix in (".pdf", ".png", ".csv")]
    drawn = []
    alone = {name: value for name, value in warm.items() if name != forks.ADDRESS}
    for command, env in (([*CALLER, *words], alone), ([*FORKED, "recollect", *words], warm)):
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        drawn.append([file.read_bytes() for file in files])
        for file in files:
            file.unlink()
    assert drawn[0] == drawn[1]


@pytest.mark.slow
def test_jobs_beneath_warm_fork_and_nothing_of_it_stays(smoke_workdir: Path, tmp_path: Path) -> None:
    command = beneath_warm([*CALLER, "train", *RUN])
    # The socket's folder, which stands in the command line of the process that forks; with a name longer than sockets'.
    mark = tmp_path / ("temporary" * 20)
    mark.mkdir()
    env = {**os.environ, "TMPDIR": str(mark)}
    done = subprocess.run(command, cwd=smoke_workdir, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "policy.safetensors" in run_files(smoke_workdir)
    assert not list(mark.glob("recollect-*"))
    assert not [entry for entry in Path("/proc").glob("[0-9]*/cmdline") if str(mark).encode() in words_of(entry)]


REFUSALS = {
    "EPERM": "def refused(*_): raise PermissionError(1, 'Operation not permitted')\nos.pidfd_open = refused\n",
    "ENOSYS": "def refused(*_): raise OSError(38, 'Function not implemented')\nos.pidfd_open = refused\n",
    "missing": "del os.pidfd_open\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["EPERM", "ENOSYS", "missing"])
def test_where_pidfds_are_refused_a_job_ends_once_with_the_same_bytes(
    how: str, smoke_workdir: Path, tmp_path: Path, warm: dict[str, str]
) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(smoke_workdir, whole)
    subprocess.run([*CALLER, "train", *RUN], cwd=whole, env=warm, check=True, capture_output=True)
    (tmp_path / "sitecustomize.py").write_text(f"import os\n{REFUSALS[how]}")
    done = subprocess.run(
        beneath_warm([*CALLER, "train", *RUN]),
        cwd=smoke_workdir,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("$ recollect train") == 1, done.stderr
    assert run_files(smoke_workdir) == run_files(whole)


@pytest.mark.quick("first0")
@pytest.mark.parametrize("first", [[], ["--"]])
def test_the_command_is_run_as_it_was_typed(first: list[str], tmp_path: Path) -> None:
    script = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "--cores", "2", "--config", "a=b", "--", "all"]
    command = [sys.executable, "-m", "recollect.cli", "warm", *first, *script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == "['--cores', '2', '--config', 'a=b', '--', 'all']", done.stderr


def test_the_exit_status_is_the_commands(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "recollect.cli", "warm", "sh", "-c", "exit 7"]
    assert subprocess.run(command, cwd=tmp_path).returncode == 7


def test_behind_a_command_signals_mean_what_they_meant_before(tmp_path: Path) -> None:
    """`recollect sweep --trials` starts one command after the other, and must end when it is told between them."""
    code = (
        "import signal; from recollect.warm import warm\n"
        "numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)\n"
        "before = [signal.getsignal(number) for number in numbers]\n"
        "assert warm(['true']) == 0 and [signal.getsignal(number) for number in numbers] == before"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_an_error_of_a_forked_job_reaches_its_caller(workdir: Path, warm: dict[str, str]) -> None:
    done = subprocess.run([*CALLER, "train", *RUN], cwd=workdir, env=warm, capture_output=True, text=True)
    assert done.returncode == 2
    assert "error: " in done.stderr and "to do: " in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_job_ends_with_its_caller_and_goes_on_later(
    number: signal.Signals, smoke_workdir: Path, tmp_path: Path, warm: dict[str, str]
) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(smoke_workdir, whole)
    subprocess.run([*CALLER, "train", *RUN], cwd=whole, env=warm, check=True, capture_output=True)
    caller = subprocess.Popen([*CALLER, "train", *RUN], cwd=smoke_workdir, env=warm, stderr=subprocess.DEVNULL)
    job = job_of(smoke_workdir)
    assert job != caller.pid, "the job did not fork"
    checkpoints = smoke_workdir / "results/smoke/checkpoints/dark_room_10x10/dt/seed_1"
    wait_until(lambda: list(checkpoints.glob("step_*.manifest.json")), "a checkpoint is saved", 60)
    caller.send_signal(number)
    assert caller.wait(30) != 0
    wait_until(lambda: not runs(job), "the job ends with its scheduler")
    assert not (smoke_workdir / "results/smoke/runs/dark_room_10x10/dt/seed_1/policy.safetensors").exists()
    command = [*CALLER, "train", *RUN]
    again = subprocess.run(command, cwd=smoke_workdir, env=warm, check=True, capture_output=True, text=True)
    assert "going on from the checkpoint" in again.stderr
    assert run_files(smoke_workdir) == run_files(whole)


def test_a_job_ends_with_a_caller_that_died_before_it_had_heard_its_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(stopping, "end_at_once", lambda: ended.append(True))
    job, caller = socket.socketpair()
    with job:
        job.sendall(b"unread")
        caller.close()
        forks._end_with_caller(job.fileno())
    assert ended


def test_a_killed_job_is_no_success(smoke_workdir: Path, warm: dict[str, str]) -> None:
    caller = subprocess.Popen([*CALLER, "train", *RUN], cwd=smoke_workdir, env=warm, stderr=subprocess.DEVNULL)
    os.kill(job_of(smoke_workdir), signal.SIGKILL)
    assert caller.wait(30) == 128 + signal.SIGKILL


@pytest.mark.slow
def test_without_the_process_that_forks_a_command_starts_on_its_own(smoke_workdir: Path, tmp_path: Path) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1", forks.ADDRESS: str(tmp_path / "nobody")}
    done = subprocess.run([*CALLER, "train", *RUN], cwd=smoke_workdir, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "policy.safetensors" in run_files(smoke_workdir)


def test_code_that_changed_since_it_was_imported_is_not_forked(
    warm: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "identity", lambda: ["another"])
    assert forks.ask(warm[forks.ADDRESS], ["recollect", "check"]) is None


def test_the_code_is_another_one_after_any_edit_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "inner/module.py"
    file.parent.mkdir()
    file.write_text("x = 1\n")
    monkeypatch.setattr(forks, "__file__", str(tmp_path / "warm.py"))
    found = [forks.identity()]
    assert forks.identity() == found[0]
    kept = file.stat()
    file.write_text("x = 11\n")
    os.utime(file, ns=(kept.st_atime_ns, kept.st_mtime_ns))  # longer
    found.append(forks.identity())
    os.utime(file, ns=(kept.st_atime_ns, kept.st_mtime_ns + 1))  # as long, and later
    found.append(forks.identity())
    (tmp_path / "more.py").touch()
    found.append(forks.identity())
    assert len({str(one) for one in found}) == 4


def test_only_jobs_of_one_thread_fork_and_what_is_drawn_without_threads() -> None:
    assert forks.can_fork(["recollect", "train", "--threads", "1"])
    assert not forks.can_fork(["recollect", "train", "--threads", "2"])
    assert not forks.can_fork(["recollect", "train"])
    local = {stage.name for stage in STAGES.values() if stage.local}
    assert {name for name in local if forks.can_fork(["recollect", name])} == local - {"fetch", "fetch_data"}


def test_a_caller_that_says_nothing_does_not_hold_up_the_others(tmp_path: Path, warm: dict[str, str]) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(warm[forks.ADDRESS])
        silent.shutdown(socket.SHUT_WR)
        done = subprocess.run(
            [*CALLER, "check", "--threads", "1"], cwd=tmp_path, env=warm, capture_output=True, timeout=60
        )
        assert done.returncode == 2  # `check` knows no --threads: it is the command line that says so


MALFORMED = [b"", b"\n", b"[]\n", b"7\n", b"{}\n", b"\xff\n", b"[" * 10_000 + b"\n", b'{"identity": 1}\n']


def test_a_malformed_message_ends_neither_the_process_that_forks_nor_a_job_in_hand(tmp_path: Path) -> None:
    done = tmp_path / "done"
    with bare(tmp_path) as environment:
        caller = [
            sys.executable,
            "-c",
            "import sys; from recollect import warm\nsys.exit(warm.ask(*sys.argv[1:2], sys.argv[2:]))",
        ]
        at_work = subprocess.Popen([*caller, environment[forks.ADDRESS], "job", "0.5", str(done)])
        for message in MALFORMED:
            with socket.socket(socket.AF_UNIX) as line:
                line.settimeout(10)
                line.connect(environment[forks.ADDRESS])
                socket.send_fds(line, [b"\n"], (0, 1, 2))
                line.sendall(message)
                line.shutdown(socket.SHUT_WR)
                assert line.recv(1) == b"", "it was not hung up on"
        assert at_work.wait(30) == 0
        assert done.exists()


def test_ctrl_c_reaches_a_job_that_is_about_to_fork(tmp_path: Path) -> None:
    done = tmp_path / "done"
    with bare(tmp_path, slow_to_fork=0.5) as environment:
        # These tests themselves may run beneath nohup or in the background, where Ctrl-C is ignored.
        caller = subprocess.Popen(
            [*CALLER, "0.5", str(done), "--threads", "1"],
            env=environment,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        wait_until((tmp_path / "socket.forked").exists, "it has forked")
        caller.send_signal(signal.SIGINT)
        assert caller.wait(30) != 0
        time.sleep(1)
    assert not done.exists()


def test_ctrl_c_ends_a_command_that_swallows_the_interrupt() -> None:
    code = (
        "import signal, time; from recollect import warm\n"
        "assert warm._GRACE <= 5; warm._GRACE = 1\n"
        "signal.signal(signal.SIGINT, warm.interrupted)\n"
        # Short sleeps: a signal that comes right in front of a system call is seen when that ends.
        "try:\n    print('ready', flush=True)\n    while True: time.sleep(0.1)\n"
        "except KeyboardInterrupt:\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == -signal.SIGALRM


def test_what_a_killed_warm_left_is_swept_by_the_next_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}

    def folders() -> set[Path]:
        return set(tmp_path.glob("recollect-*"))

    def started() -> subprocess.Popen[bytes]:
        script = "import sys; from recollect.warm import warm; warm(['sleep', sys.argv[1]])"
        before = folders()
        process = subprocess.Popen([sys.executable, "-c", script, "60"], env=env, start_new_session=True)
        wait_until(
            lambda: any(folder.name.startswith("recollect-warm-") for folder in folders() - before), "it listens"
        )
        return process

    killed = started()
    left = folders()
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert folders() == left != set()
    living = started()
    try:
        assert not folders() & left
        kept = folders()
        subprocess.run([sys.executable, "-c", "from recollect.warm import warm; warm(['true'])"], env=env, check=True)
        assert folders() == kept
    finally:
        os.killpg(living.pid, signal.SIGKILL)
        living.wait()
