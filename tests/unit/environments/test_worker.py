"""A worker of another Python does what it is asked, is reported when it cannot, and is never left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from processes import runs, wait_until

from recollect.environments import procgen_worker, worker
from recollect.environments.worker import Worker, find_python
from recollect.settings.errors import UserError

SCRIPT = Path(__file__).parents[1] / "fake_procgen_worker.py"
FIELDS: Any = {
    "action": ("int32", (2,)),
    "reward": ("float32", (2,)),
    "first": ("bool", (2,)),
    "frame": ("uint8", (2, 3, 64, 64)),
}
GAMES = [{"place": place, "game": "maze", "start_level": place, "num_levels": 1, "seed": 5} for place in range(2)]
PARENT = f"""
import sys, time
from pathlib import Path
from recollect.environments.worker import Worker
started = Worker("procgen", Path(sys.executable), Path({str(SCRIPT)!r}), {FIELDS!r}, {{}})
started.ask("begin", which={GAMES!r})
print(started.pid, flush=True)
time.sleep(600)
"""


STOPPED = f"""
import signal, sys, time
from pathlib import Path
from recollect.environments.worker import Worker
started = Worker("procgen", Path(sys.executable), Path({str(SCRIPT)!r}), {FIELDS!r}, {{}})
started.ask("begin", which={GAMES!r})
stopped = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: stopped.append(1))
print(started.pid, flush=True)
while len(stopped) < 2:
    time.sleep(0.05)
time.sleep(0.5)
started.ask("step")
print(sum(started.ask("get_state")[0]["sizes"]) > 1000, flush=True)
"""


def start(**options: Any) -> Worker:
    return Worker("procgen", Path(sys.executable), SCRIPT, FIELDS, {}, **options)


def play(playing: Worker, actions: list[int]) -> tuple[list[float], list[bool], list[int]]:
    playing.arrays["action"][:] = actions
    playing.ask("step")
    arrays = playing.arrays
    return arrays["reward"].tolist(), arrays["first"].tolist(), arrays["frame"][:, 0, 0, 0].tolist()


def test_actions_go_out_and_frames_rewards_and_ends_come_back() -> None:
    playing = start()
    playing.ask("begin", which=GAMES)
    assert playing.version == "fake"
    assert playing.arrays["frame"][:, 2, 63, 63].tolist() == [0, 7 * 37 % 256]
    assert playing.arrays["first"].tolist() == [True, True]
    assert play(playing, [4, 0]) == ([0.0, 0.0], [False, False], [5 * 37 % 256, 8 * 37 % 256])
    assert play(playing, [4, -2])[2] == [10 * 37 % 256, 8 * 37 % 256]  # the second game is left as it is
    assert playing.arrays["reward"][0] == 1.0
    assert play(playing, [-2, -1])[1:] == (
        [False, True],
        [10 * 37 % 256, 7 * 37 % 256],
    )  # and here forced to begin anew


def test_states_go_out_and_back_whole() -> None:
    playing = start()
    playing.ask("begin", which=GAMES[:1])
    playing.arrays["action"][:] = [3, -2]
    for _ in range(4):
        playing.ask("step")
    told, data = playing.ask("get_state")
    assert told["sizes"][1] == 0 and sum(told["sizes"]) == len(data) > 1000
    after = [play(playing, [3, -2]) for _ in range(20)]
    playing.ask("set_state", data, sizes=told["sizes"])
    assert [play(playing, [3, -2]) for _ in range(20)] == after


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("crash", r"ended by signal SIGABRT at 'step'; the last that it said:\n    about to fall over"),
        ("raise", "cannot step: KeyError: 'something inside'"),
    ],
)
def test_a_worker_that_dies_or_fails_within_a_step_is_reported_with_what_it_said(
    fault: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECOLLECT_FAKE", fault)
    playing = start()
    playing.ask("begin", which=GAMES)
    play(playing, [0, 0])
    play(playing, [0, 0])
    with pytest.raises(UserError, match=said):
        play(playing, [0, 0])
    assert not runs(playing.pid)
    with pytest.raises(UserError, match="has ended"):
        play(playing, [0, 0])


def test_a_worker_that_was_killed_between_two_steps_is_reported() -> None:
    playing = start()
    playing.ask("begin", which=GAMES)
    os.kill(playing.pid, signal.SIGKILL)
    with pytest.raises(UserError, match="ended by signal SIGKILL at 'step'"):
        play(playing, [0, 0])


@pytest.mark.slow
def test_a_slow_answer_is_waited_for_and_one_that_never_comes_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_FAKE", "slow")
    playing = start(patience=30)
    playing.ask("begin", which=GAMES)
    assert play(playing, [4, 0])[2] == [5 * 37 % 256, 8 * 37 % 256]  # took longer than one wait
    monkeypatch.setenv("RECOLLECT_FAKE", "hang")
    hanging = start(patience=1)
    hanging.ask("begin", which=GAMES)
    with pytest.raises(UserError, match="did not answer 'step' within 1 s"):
        play(hanging, [0, 0])
    assert not runs(hanging.pid)


def test_a_worker_of_another_protocol_is_refused_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_FAKE", "protocol")
    with pytest.raises(UserError, match="protocol 99, not 1"):
        start()
    assert procgen_worker.PROTOCOL == worker.PROTOCOL == 1


def test_a_python_without_the_package_is_told_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_FAKE", "no package")
    with pytest.raises(UserError, match=r"No module named 'procgen'[\s\S]*make procgen"):
        start()


def test_the_real_script_says_so_too_where_procgen_is_missing() -> None:
    script = Path(procgen_worker.__file__)
    with pytest.raises(UserError, match=r"cannot start: ModuleNotFoundError[\s\S]*make procgen"):
        Worker("procgen", Path(sys.executable), script, FIELDS, {})


def test_a_world_that_is_no_longer_used_takes_its_worker_along() -> None:
    playing = start()
    pid = playing.pid
    assert runs(pid)
    del playing
    gc.collect()
    wait_until(lambda: not runs(pid), "the worker ends", seconds=2)


def test_a_killed_parent_leaves_no_worker() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert runs(pid)
    parent.kill()
    parent.wait()
    wait_until(lambda: not runs(pid), "the worker ends", seconds=10)


@pytest.mark.slow
def test_a_killed_parent_leaves_no_worker_even_where_a_child_holds_its_connection() -> None:
    code = PARENT.replace(
        "time.sleep(600)", "import os\nif os.fork() == 0:\n    time.sleep(20)\n    os._exit(0)\ntime.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    time.sleep(0.2)
    parent.kill()
    parent.wait()
    wait_until(lambda: not runs(pid), "the worker ends", seconds=10)


@pytest.mark.slow
def test_a_job_that_is_told_to_stop_can_still_save_its_games() -> None:
    """What stops a job goes to all its processes, as Ctrl-C from a terminal, then SIGTERM from SLURM."""
    job = subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert job.stdout is not None
    pid = int(job.stdout.readline())
    for number in (signal.SIGINT, signal.SIGTERM):
        os.killpg(job.pid, number)
        time.sleep(0.1)  # or the second is told first
    assert job.stdout.readline().strip() == "True" and job.wait(timeout=60) == 0
    wait_until(lambda: not runs(pid), "the worker ends", seconds=10)


def test_a_worker_that_is_told_to_stop_while_it_begins_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Told(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.send_signal(signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Told)
    playing = start()
    playing.ask("begin", which=GAMES)
    assert play(playing, [4, 0])[2] == [5 * 37 % 256, 8 * 37 % 256]
    assert not {signal.SIGINT, signal.SIGTERM} & signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_forked_copy_of_the_parent_does_not_end_the_worker() -> None:
    playing = start()
    playing.ask("begin", which=GAMES)
    child = os.fork()
    if child == 0:
        playing.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert runs(playing.pid)
    assert play(playing, [4, 0])[2] == [5 * 37 % 256, 8 * 37 % 256]


def test_the_python_is_the_one_that_is_named_else_the_one_beside_us_else_it_is_said_how_to_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RECOLLECT_PROCGEN_PYTHON", raising=False)
    with pytest.raises(UserError, match=r"\.venv-procgen/bin/python[\s\S]*make procgen"):
        find_python("procgen")
    (tmp_path / ".venv-procgen/bin").mkdir(parents=True)
    (tmp_path / ".venv-procgen/bin/python").symlink_to(sys.executable)
    assert find_python("procgen") == tmp_path / ".venv-procgen/bin/python"
    monkeypatch.setenv("RECOLLECT_PROCGEN_PYTHON", sys.executable)
    assert find_python("procgen") == Path(sys.executable)
    monkeypatch.setenv("RECOLLECT_PROCGEN_PYTHON", str(tmp_path))
    with pytest.raises(UserError, match="RECOLLECT_PROCGEN_PYTHON="):
        find_python("procgen")
    with pytest.raises(UserError, match="cannot be started"):
        Worker("procgen", tmp_path / "nothing", SCRIPT, FIELDS, {})
