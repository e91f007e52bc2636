"""Seeds side by side: so many at a time and no more, one that fails alone, and no process that outlives the command."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processes import runs, wait_until

from recollect import cli
from recollect.artifacts import lease
from recollect.artifacts.stopping import STATUS, saves_on_sigterm
from recollect.stages import records
from recollect.stages import seeds as seeds_of
from recollect.stages.paths import Place
from recollect.stages.rules import StageRule
from recollect.stages.seeds import _how, begin_alone, side_by_side
from recollect.stages.selection import JobResources
from recollect.stages.stage import Resources, Stage

PART = Stage("part", ("seed",), {"made": Place("made/{seed}")}, run=print, asks=Resources((1, 1), (1, 1)))
WHOLE = replace(PART, name="whole", parts=(PART,))


def work(stage: str, names: dict[str, Any], options: dict[str, Any], device: str, threads: int, *rest: Any) -> None:
    """A job that says when it began, waits until it is let go, and fails for seed 1."""
    begin_alone(*rest)
    seed = names["seed"]
    Path(f"begun_{seed}").write_text(f"{os.getpid()} {threads}")
    print("said", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(STATUS))
    while not Path("go").exists():
        time.sleep(0.01)
    os._exit(seed == 1)


@pytest.mark.usefixtures("in_the_repository")
def test_what_waits_for_worlds_shares_a_gpu_and_asks_for_the_memory_of_all() -> None:
    rule = StageRule("run", seeds=(1, 2, 3), at_a_time=4)
    asked = {}
    for env, method in (("amago_wind", "amago_gru"), ("tmaze_passive_50", "dqn_lstm"), ("dark_room_10x10", "radt")):
        names = {"scale": "paper", "env": env, "method": method}
        asked[method] = rule.seeds_at_a_time(names), rule.mem_mb(names, attempt=1)
        assert rule.mem_mb(names, attempt=3) == rule.mem_mb(names, attempt=2) == 2 * rule.mem_mb(names, attempt=1)
    assert asked == {
        "amago_gru": (3, 48000),
        "dqn_lstm": (3, 16000),
        "radt": (1, 16000),
    }  # dqn_lstm: one network for all


@pytest.mark.usefixtures("in_the_repository")
def test_seeds_together_ask_for_the_memory_of_the_processes_that_play_their_games() -> None:
    for seeds, env, megabytes in (
        (30, "procgen_memory_maze", 32000),
        (20, "procgen_memory_maze", 16000),
        (30, "random_maze", 16000),
    ):
        rule = StageRule("run", seeds=tuple(range(seeds)), at_a_time=4)
        assert rule.mem_mb({"scale": "paper", "env": env, "method": "ppo_cnn"}, attempt=1) == megabytes


def begin(seeds: list[int], count: int) -> int:
    """Do the work of seeds in a fork of this process, whose pid is returned."""
    pid = os.fork()
    if not pid:
        status = 1
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run beneath nohup
        try:
            with saves_on_sigterm():
                side_by_side(WHOLE, {"seed": None}, seeds, {}, "cpu", count=count, threads=6, work=work)
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        except KeyboardInterrupt:
            status = 130
        finally:
            os._exit(status)
    return pid


def begun(count: int) -> dict[str, int]:
    """Seed -> pid, of as many as have begun."""
    end = time.monotonic() + 60
    while len(found := [path for path in Path().glob("begun_*") if path.read_text()]) < count:
        assert time.monotonic() < end, "they do not begin"
        time.sleep(0.01)
    return {path.name.removeprefix("begun_"): int(path.read_text().split()[0]) for path in found}


def status(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_seed_that_is_named_twice_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[list[int]] = []
    monkeypatch.setattr(cli, "side_by_side", lambda stage, names, seeds, *rest, **how: asked.append(seeds))
    monkeypatch.setattr(cli, "one", lambda stage, names, *rest: asked.append([names["seed"]]))
    cli._do(WHOLE, {}, seed=[3, 0, 3], at_a_time=2, threads=1)
    assert asked == [[3, 0], [3], [0]]


def test_a_command_holds_as_many_gpus_as_its_job_uses_and_none_where_it_uses_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[tuple[str, int, int]] = []

    @contextmanager
    def device_lease(device: str, pack: int, *, count: int) -> Iterator[str]:
        held.append((device, pack, count))
        yield "cpu"

    monkeypatch.setattr(lease, "device_lease", device_lease)
    monkeypatch.setattr(cli, "one", lambda *of: None)
    for uses, device in ((False, "auto"), (lambda: 0, "auto"), (lambda: 2, "auto"), (False, "cuda"), (True, "cuda")):
        stage = replace(PART, asks=Resources((1, 1), (1, 1), gpu=uses))
        cli._do(stage, {}, device=device, pack=3, threads=1, seed=0)
    assert held == [("cpu", 3, 1), ("cpu", 3, 1), ("auto", 3, 2), ("cuda", 3, 1), ("cuda", 3, 1)]


def test_how_a_seed_ended_is_said_with_the_signal_that_killed_it() -> None:
    assert _how(2, False) == "ended with status 2: its log says why; it is tried once more by itself"
    assert _how(-signal.SIGKILL, False) == "was killed by SIGKILL; it is tried once more by itself"
    assert _how(-signal.SIGTERM, True) == "was killed by SIGTERM"
    assert _how(STATUS, True) == "has saved where it stood and ended"


def test_each_seed_beside_others_has_its_share_of_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many as are at work, which may be fewer than are allowed."""
    monkeypatch.chdir(tmp_path)
    asked: list[tuple[int, int]] = []

    def process(target: Any, args: tuple[Any, ...]) -> Any:
        asked.append(args[4:6])
        return SimpleNamespace(start=lambda: None, exitcode=0, sentinel=None)

    monkeypatch.setattr(seeds_of, "get_context", lambda how: SimpleNamespace(Process=process))
    monkeypatch.setattr(seeds_of.connection, "wait", lambda *waiting, timeout: [])
    for of, at_a_time, threads, share in ((3, 2, 6, 3), (2, 4, 6, 3), (4, 4, 2, 1)):
        asked.clear()
        named = list(range(of))
        side_by_side(WHOLE, {"seed": None}, named, {}, "cpu", count=at_a_time, threads=threads, work=print)
        assert asked == [(share, min(of, at_a_time))] * of


def test_a_seed_beside_others_is_recorded_with_its_share_of_the_time_and_says_all_into_its_log(tmp_path: Path) -> None:
    pid = os.fork()
    if not pid:
        begin_alone(3, str(tmp_path / "log"))
        print("said", flush=True)
        os._exit(records.beside)
    assert status(pid) == 3 and (tmp_path / "log").read_text() == "said\n"


@pytest.mark.slow
def test_so_many_at_a_time_share_the_threads_and_one_that_fails_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = begin([0, 1, 2], count=2)
    assert begun(2).keys() == {"0", "1"}
    time.sleep(0.3)
    assert begun(2).keys() == {"0", "1"}, "a third began beside them"
    Path("go").touch()
    assert status(command) == 0
    assert begun(3).keys() == {"0", "1", "2"}
    assert {path.read_text().split()[1] for path in Path().glob("begun_*")} == {"3"}
    assert Path("logs/seed_2/whole.log").read_text() == "said\n"


@pytest.mark.parametrize(
    ("number", "wanted"),
    [
        (signal.SIGTERM, STATUS),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, -signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_however_the_command_ends_its_seeds_end(
    number: int, wanted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = begin([0, 2, 3], count=2)
    pids = begun(2)
    os.kill(command, number)
    assert status(command) == wanted
    wait_until(lambda: not any(map(runs, pids.values())), "its processes end with it", seconds=10)
    assert len(begun(2)) == 2, "another began after the signal"


def test_what_only_one_kind_of_job_says_takes_nothing_from_the_other(in_the_repository: None) -> None:
    chosen = JobResources(cpu={"mem_mb": 64000, "runtime": "600"}, gpu={"gpu": 2})
    wildcards = {"scale": "paper", "env": "dark_room_10x10", "method": "radt", "seed": "0"}
    on_gpu, on_cpu = (StageRule(name, jobs=chosen).resources for name in ("run", "generate"))
    own = StageRule("run")
    for attempt in (1, 2):
        said = {name: asked(wildcards, attempt=attempt) for name, asked in on_gpu.items()}
        assert said == {"mem_mb": own.mem_mb(wildcards, attempt), "runtime": own.runtime(wildcards, attempt), "gpu": 2}
        said = {
            name: asked({"scale": "paper", "env": "dark_room_10x10"}, attempt=attempt) for name, asked in on_cpu.items()
        }
        assert said == {"mem_mb": 64000, "runtime": 600, "gpu": 0}
