"""AMAGO with processes that collect: they keep step, all end cleanly, a killed one is noticed, no file is torn."""

from __future__ import annotations

import errno
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from processes import spawned_by, wait_until
from tiny_amago import GOALS, MAZE, collector_of, run_in, settings_of

from recollect.amago import amago, training
from recollect.amago import processes as amago_processes
from recollect.amago.amago import Agent
from recollect.amago.loop import Trainer
from recollect.amago.processes import LearnersEpoch, TrainerWithCollectors
from recollect.amago.trajectory_files import UNLIMITED, TrajectoryFiles
from recollect.artifacts import sealed
from recollect.artifacts.lock import run_lock
from recollect.artifacts.run import Run
from recollect.artifacts.sealed import read_arrays, verify, write_arrays
from recollect.artifacts.stopping import STATUS, saves_on_sigterm
from recollect.common.contract import Inputs
from recollect.settings.errors import UserError


def rows_of(table: Any, metric: str) -> dict[int, float]:
    rows = table[table["metric"] == metric]
    return dict(zip(rows["step"].tolist(), rows["value"].tolist(), strict=True))


@pytest.mark.slow
def test_two_processes_keep_step_and_end_cleanly(tmp_path: Path) -> None:
    """The learner, which here does next to nothing, waits for the steps of each epoch and hears what they returned."""
    run = run_in(tmp_path)
    settings = settings_of(processes=2, epochs=3, steps_per_epoch=24, evaluate_every=100)
    policy = amago.train(settings, Inputs(), run)
    table = run.table()
    assert rows_of(table, "updates") == {96: 3, 192: 6, 288: 9}  # 24 steps of 4 actors, 3 updates
    assert rows_of(table, "training_return").keys() == {96, 192, 288}  # rollouts are of 6 steps
    assert not amago_processes.running()
    files = sorted((tmp_path / "checkpoints" / "buffer" / "fifo").glob("*.safetensors"))
    assert files
    for path in files:
        verify(path, kind="trajectories")
    assert amago.load_policy(settings, policy.arrays(), Inputs()).arrays().keys() == policy.arrays().keys()


@pytest.mark.slow
def test_a_collector_plays_a_world_whose_environments_are_processes(tmp_path: Path) -> None:
    world = ("gymnasium", {"id": "CartPole-v1", "horizon": 6, "processes": True})
    run = run_in(tmp_path)
    amago.train(settings_of(world, processes=2, actors=2, epochs=1, evaluate_every=100), Inputs(), run)
    assert rows_of(run.table(), "training_return") == {18: 6.0}
    assert not amago_processes.running()


@pytest.mark.slow
def test_a_killed_collector_is_noticed_and_tears_no_file(tmp_path: Path) -> None:
    settings = settings_of(processes=2, epochs=100_000, updates_per_epoch=1, steps_per_epoch=12, evaluate_every=100_000)
    folder = tmp_path / "checkpoints" / "buffer" / "fifo"

    class KillingRun(Run):
        killed = False

        def log(self, step: int, **metrics: float) -> None:
            super().log(step, **metrics)
            if not self.killed and len(list(folder.glob("*.json"))) >= 3:
                KillingRun.killed = True
                (process,) = amago_processes.running()
                os.kill(int(process.pid or 0), signal.SIGKILL)

    began = time.monotonic()
    with pytest.raises(UserError, match="collector"):
        amago.train(settings, Inputs(), run_in(tmp_path, KillingRun))
    assert KillingRun.killed
    assert time.monotonic() - began < 60
    assert not amago_processes.running()
    whole = [path for path in folder.glob("*.safetensors") if path.with_name(path.name + ".manifest.json").exists()]
    assert len(whole) >= 3
    for path in whole:
        verify(path, kind="trajectories")
    # What the kill left can be gone on from.
    checkpoint = run_in(tmp_path).resume()
    assert checkpoint is not None
    more = {
        "processes": 2,
        "updates_per_epoch": 1,
        "steps_per_epoch": 12,
        "epochs": checkpoint.state["at"]["epoch"] + 3,
    }
    run = run_in(tmp_path)
    amago.train(settings_of(**more), Inputs(), run)
    table = run.table()
    assert table[table["metric"] == "updates"]["value"].max() > checkpoint.state["at"]["updates"]


@pytest.mark.slow
def test_two_processes_learn_from_protected_data_before_they_collect(tmp_path: Path) -> None:
    settings = settings_of(processes=2, epochs=4, steps_per_epoch=12, start_collecting_at_epoch=2, evaluate_every=100)
    folder = tmp_path / "checkpoints" / "buffer"
    TrajectoryFiles(folder, 10).protect(collector_of(settings)[0].collect(12))
    run = run_in(tmp_path)
    amago.train(settings, Inputs(), run)
    table = run.table()
    learned = table[table["metric"] == "updates"]
    assert learned["value"].tolist() == [3, 6, 9, 12]
    assert learned["step"].tolist() == [0, 0, 48, 96]
    assert (table["metric"] == "critic_loss").sum() == 4


def test_a_full_disk_is_one_message_of_the_collector_and_exit_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    settings = settings_of(processes=2, epochs=1, steps_per_epoch=12)
    published(tmp_path, settings)
    monkeypatch.setattr(sealed, "_write_pieces", full)
    monkeypatch.setattr(amago_processes, "end_with_parent", lambda: None)
    ours, its = multiprocessing.Pipe()
    ours.send(0)
    with pytest.raises(SystemExit) as ended:
        amago_processes.collect_alone(None, Agent, settings, tmp_path, its, 0, 1)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith("error: the file cannot be written") and "Traceback" not in said


def test_an_error_in_own_code_is_a_message_of_the_collector_that_names_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / f"mine_{tmp_path.name}" / "world.py"
    own.parent.mkdir()
    own.write_text("def step(*_):\n    return nothing\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RECOLLECT_MINE", own.parent.name)
    step = importlib.import_module(f"{own.parent.name}.world").step
    settings = settings_of(processes=2, epochs=1, steps_per_epoch=12)
    published(tmp_path, settings)
    monkeypatch.setattr(amago_processes, "end_with_parent", lambda: None)
    monkeypatch.setattr(amago_processes, "world_of_part", step)
    ours, its = multiprocessing.Pipe()
    ours.send(0)
    with pytest.raises(SystemExit) as ended:
        amago_processes.collect_alone(None, Agent, settings, tmp_path, its, 0, 1)
    trace, _, message = capsys.readouterr().err.partition("error: ")
    assert ended.value.code == 2 and trace.startswith("Traceback")
    assert message.startswith("your code fails: NameError") and f"where: {own.parent.name}/world.py:2\n" in message


# ---- several collectors


@pytest.mark.slow
def test_several_collectors_share_the_actors_and_write_one_numbered_buffer(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    settings = settings_of(processes=4, epochs=3, steps_per_epoch=24, evaluate_every=100)
    amago.train(settings, Inputs(), run)
    table = run.table()
    assert rows_of(table, "updates") == {96: 3, 192: 6, 288: 9}  # as with one collector
    assert rows_of(table, "training_return").keys() == {96, 192, 288}
    assert not amago_processes.running()
    store = TrajectoryFiles(tmp_path / "checkpoints" / "buffer", 10_000)
    files = sorted((tmp_path / "checkpoints" / "buffer" / "fifo").glob("*.safetensors"))
    assert len(files) == 9  # of three collectors in three epochs
    for path in files:
        verify(path, kind="trajectories")
    # Numbers follow one another: nothing is missing, nothing stands in the place of another's.
    numbers = [tuple(map(int, path.stem.split("-"))) for path in files]
    assert [first for first, _ in numbers] == [sum(count for _, count in numbers[:n]) for n in range(9)]
    assert len(store) == sum(count for _, count in numbers) == 4 * 3 * 24 // 6


@pytest.mark.parametrize(("actors", "collectors"), [(4, 1), (12, 5), (3, 3)])
def test_actors_are_shared_as_evenly_as_can_be(actors: int, collectors: int) -> None:
    parts = amago_processes.parts(actors, collectors)
    assert [b for part in parts for b in part.actors] == list(range(actors))
    sizes = [len(part.actors) for part in parts]
    assert max(sizes) - min(sizes) <= 1 and min(sizes) >= 1


def test_who_leaves_collecting_to_others_makes_one_instance_to_know_the_world_by(tmp_path: Path) -> None:
    settings = settings_of(GOALS, processes=3, relabelling="some", stagger=False, save_length=20)
    trainer = TrainerWithCollectors(Agent, settings, "cpu", run_in(tmp_path))
    alone = Trainer(Agent, settings_of(GOALS), "cpu", run_in(tmp_path / "alone"))
    assert (trainer.collector.world.num_envs, alone.collector.world.num_envs) == (1, 4)
    assert trainer.drawing.context == alone.drawing.context and trainer.relabel is not None


def test_more_collectors_than_actors_are_refused() -> None:
    with pytest.raises(ValueError, match="5 collectors cannot share 4 actors"):
        settings_of(processes=6)


def test_a_collector_plays_the_tasks_of_its_actors_with_random_streams_of_its_own(tmp_path: Path) -> None:
    rooms = settings_of(("dark_room", {"height": 4, "width": 4})).environment

    def tasks_of(part: Any) -> list[int]:
        return [task.index for task in amago_processes.world_of_part(rooms, 7, part.actors).tasks]

    (whole,), halves = amago_processes.parts(4, 1), amago_processes.parts(4, 2)
    assert tasks_of(halves[0]) + tasks_of(halves[1]) == tasks_of(whole)
    assert len(set(tasks_of(whole))) == 4
    played: set[str] = set()
    # The same actors, so that only the streams differ; the last collector goes on behind 20 steps.
    for number, steps in ((0, 0), (1, 0), (0, 20)):
        settings = settings_of(GOALS, processes=3, steps_per_epoch=20, epochs=1 + steps // 20)
        part = amago_processes.Part(number, range(2), threading.Lock())
        ours, its = multiprocessing.Pipe()
        ours.send(1)
        folder = tmp_path / f"{number} {steps}"
        published(folder, settings)
        amago_processes.collect(Agent, settings, folder, its, steps, 1, part)
        assert ours.recv()[0] == steps + 20
        (file,) = folder.glob("buffer/fifo/*.safetensors")
        arrays = read_arrays(file)
        played.add(str(arrays["observation"][arrays["time"] == 0].tolist()))
    assert len(played) == 3


@pytest.mark.slow
def test_where_one_collector_is_killed_the_others_end_also_when_it_had_the_turn_to_write(tmp_path: Path) -> None:
    settings = settings_of(processes=4, epochs=100_000, updates_per_epoch=1, steps_per_epoch=12, evaluate_every=100_000)
    folder = tmp_path / "checkpoints" / "buffer" / "fifo"

    class KillingRun(Run):
        def log(self, step: int, **metrics: float) -> None:
            super().log(step, **metrics)
            # Once: the learner may log again before it sees that a collector is gone.
            if not killed and len(list(folder.glob("*.json"))) >= 6:
                collectors = amago_processes.running()
                assert len(collectors) == 3
                # One is killed in its turn: none of the others gets it any more.
                assert learners[0].turn.acquire(timeout=10)
                killed.append(int(collectors[1].pid or 0))
                os.kill(killed[0], signal.SIGKILL)

    learners: list[Any] = []
    killed: list[int] = []
    parts = amago_processes.parts

    def kept(actors: int, collectors: int, turn: Any = None) -> list[Any]:
        found = parts(actors, collectors, turn)
        learners.extend(found if turn is not None else ())
        return found

    began = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(amago_processes, "parts", kept)
        with pytest.raises(UserError, match=r"collector [012] of 3 of this run ended with exit code -9"):
            amago.train(settings, Inputs(), run_in(tmp_path, KillingRun))
    assert time.monotonic() - began < 60
    assert not amago_processes.running()
    for path in folder.glob("*.safetensors"):
        if path.with_name(path.name + ".manifest.json").exists():
            verify(path, kind="trajectories")


def test_a_collector_that_dies_while_it_is_ahead_of_the_others_ends_the_run(tmp_path: Path) -> None:
    """The one that is behind waits for the turn that the dead one had: nothing comes through its pipe."""
    context = multiprocessing.get_context("spawn")
    helpers, ends = [], []
    for part, steps in zip(amago_processes.parts(2, 2), (0, 12), strict=True):
        pipe, other = context.Pipe()
        process = context.Process(target=time.sleep, args=(120,), daemon=True)
        process.start()
        helpers.append(amago_processes._Helper(part, process, pipe, steps))
        ends.append(other)  # held open, as a living collector holds it
    trainer = object.__new__(amago_processes.TrainerWithCollectors)
    trainer.helpers = helpers
    threading.Timer(0.5, helpers[1].process.kill).start()
    gives_up = threading.Timer(30, ends[0].close)  # who does not notice would wait for ever
    gives_up.start()
    with pytest.raises(UserError, match="collector 1 of 2 of this run ended with exit code -9"):
        trainer.hear(12)
    gives_up.cancel()
    for helper in helpers:
        helper.process.kill()
        helper.process.join()


def test_a_collector_whose_death_shows_between_two_looks_ends_the_run() -> None:
    """Its sentinel is ready before the kernel tells its exit code: the look after the wait finds none, the next one does."""

    class Dying:
        def __init__(self, sentinel: int) -> None:
            self.sentinel, self.looks = sentinel, 0

        @property
        def exitcode(self) -> int | None:
            self.looks += 1
            return -9 if self.looks > 2 else None

        def join(self, timeout: float) -> None:
            pass

    context = multiprocessing.get_context("spawn")
    (first, second), (pipe, other), (pipe_of_dead, _) = amago_processes.parts(2, 2), context.Pipe(), context.Pipe()
    sentinel, end = os.pipe()
    os.close(end)
    living = context.Process(target=time.sleep, args=(120,), daemon=True)
    living.start()
    dying = Dying(sentinel)
    trainer = object.__new__(amago_processes.TrainerWithCollectors)
    trainer.helpers = [
        amago_processes._Helper(first, living, pipe, 0),
        amago_processes._Helper(second, dying, pipe_of_dead, 12),
    ]
    gives_up = threading.Timer(30, other.close)
    gives_up.start()
    with pytest.raises(UserError, match="collector 1 of 2 of this run ended with exit code -9"):
        trainer.hear(12)
    gives_up.cancel()
    os.close(sentinel)
    living.kill()
    living.join()


def test_a_learner_counts_steps_and_rollouts_of_all_collectors_and_new_ones_go_on_behind_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = TrainerWithCollectors(Agent, settings_of(processes=3, actors=3), "cpu", run_in(tmp_path))
    for part, ended in zip(amago_processes.parts(3, 2), ([[1.0]], [[4.0], [4.0]]), strict=True):  # of one actor, of two
        ours, its = multiprocessing.Pipe()
        its.send((12, [[*row, np.nan] for row in ended]))
        trainer.helpers.append(amago_processes._Helper(part, SimpleNamespace(exitcode=0), ours, 0))
    trainer.hear(12)
    assert (trainer.at.env_steps, trainer.results) == (36, {"training_return": 3.0})
    begun: list[Any] = []
    context = SimpleNamespace(Lock=threading.Lock, Pipe=multiprocessing.Pipe)
    context.Process = lambda target, args, name: begun.append(args) or SimpleNamespace(start=lambda: None)
    monkeypatch.setattr(multiprocessing, "get_context", lambda kind: context)
    trainer.begin()
    assert [steps for _, _, _, _, _, steps, _, _ in begun] == [12, 12]


class SlowAgent(Agent):
    """Plays 20 steps a second: an epoch of 20 steps is one chunk of a second, behind which a file is written."""

    def policy(self) -> Any:
        policy = super().policy()
        outputs = policy.outputs

        def slow(*arguments: Any) -> Any:
            time.sleep(0.05)
            return outputs(*arguments)

        policy.outputs = slow  # type: ignore[method-assign]
        return policy


def learn_slowly(folder: Path) -> None:
    settings = settings_of(processes=2, epochs=100, updates_per_epoch=1, steps_per_epoch=20, evaluate_every=1000)
    run = run_in(folder)
    with run_lock(run.checkpoint_folder):
        training.train(SlowAgent, settings, Inputs(), run)


def fresh_process(target: Any, *arguments: Any) -> Any:
    """One that inherits no threads' state: products can hang in a fork of a process that has multiplied with several threads."""
    return multiprocessing.get_context("spawn").Process(target=target, args=arguments)


def files_in(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in folder.rglob("*"):
        found[str(path)] = (path.stat().st_size, path.stat().st_mtime_ns)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked up in /proc")
def test_the_collector_of_a_killed_learner_ends_with_it_and_writes_no_more(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    learner = fresh_process(learn_slowly, tmp_path)
    learner.start()
    collector = 0
    try:
        end = time.monotonic() + 60
        while not list(folder.glob("buffer/fifo/*.json")):
            assert learner.is_alive() and time.monotonic() < end
            time.sleep(0.05)
        time.sleep(0.2)  # the collector is in its next chunk
        (collector,) = spawned_by(int(learner.pid or 0))
        for number in (signal.SIGTERM, signal.SIGINT):  # as to all processes of a job: the learner saves first
            os.kill(collector, number)
        time.sleep(0.2)
        assert spawned_by(int(learner.pid or 0)) == [collector]
        os.kill(int(learner.pid or 0), signal.SIGKILL)
        learner.join()
        with run_lock(folder):  # waits for the collector's end, which holds it, too
            before = files_in(folder / "buffer")
            time.sleep(1.3)  # longer than a chunk takes
            assert files_in(folder / "buffer") == before
    finally:
        learner.kill()
        learner.join()
        if collector:
            with suppress(ProcessLookupError):
                os.kill(collector, signal.SIGKILL)


def learn_until_sigterm(folder: Path, agent: type[Agent], steps: int) -> None:
    os.setpgid(0, 0)
    changes: Any = {"processes": 2, "epochs": 4, "updates_per_epoch": 2, "steps_per_epoch": steps}
    run = run_in(folder)
    with saves_on_sigterm(), run_lock(run.checkpoint_folder):
        training.train(agent, settings_of(evaluate_every=1000, **changes), Inputs(), run)


@contextmanager
def learner(*arguments: Any) -> Iterator[Any]:
    process = fresh_process(learn_until_sigterm, *arguments)
    process.start()
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(int(process.pid or 0), signal.SIGKILL)
        process.join()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked up in /proc")
@pytest.mark.parametrize("waits", [0.1, 0.4, 1.0])
def test_sigterm_to_all_processes_while_collectors_begin_is_no_error(waits: float, tmp_path: Path) -> None:
    with learner(tmp_path, Agent, 20) as process:
        wait_until(lambda: spawned_by(process.pid), "a collector")
        time.sleep(waits)
        os.killpg(process.pid, signal.SIGTERM)
        process.join(60)
        assert process.exitcode in (STATUS, -signal.SIGTERM)  # saved, or there was nothing to save yet


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked up in /proc")
def test_a_learner_that_waits_for_its_collectors_saves_within_seconds_of_sigterm(tmp_path: Path) -> None:
    """An epoch takes 25 seconds here. Nothing of it counts, and the evaluation before it is not made again."""
    with learner(tmp_path, SlowAgent, 500) as process:
        wait_until(lambda: list(tmp_path.glob("checkpoints/step_*.json")), "a checkpoint", 120)
        time.sleep(1)
        began = time.monotonic()
        os.kill(process.pid, signal.SIGTERM)
        process.join(60)
        assert process.exitcode == STATUS and time.monotonic() - began < 15
    trainer = TrainerWithCollectors(Agent, settings_of(processes=2), "cpu", run_in(tmp_path))
    trainer.resume()
    assert trainer.at.of_epoch == 0 and trainer.at.evaluated_at == 0 == trainer.at.evaluations - 1


# ---- the collector, in a thread


def published(folder: Path, settings: Any) -> None:
    """What a learner has done before its collectors begin."""
    arrays = collector_of(settings)[1].network.policy_arrays()
    write_arrays(folder / amago_processes.WEIGHTS, arrays, kind="policy")


def collecting(tmp_path: Path, agent: type[Agent] = Agent) -> tuple[Any, threading.Thread]:
    settings = settings_of(MAZE, processes=2, epochs=5, steps_per_epoch=12)
    published(tmp_path, settings)
    ours, its = multiprocessing.Pipe()
    thread = threading.Thread(target=amago_processes.collect, args=(agent, settings, tmp_path, its, 0, 1), daemon=True)
    thread.start()
    return ours, thread


def test_the_collector_is_an_epoch_ahead_of_the_learner_at_most(tmp_path: Path) -> None:
    pipe, thread = collecting(tmp_path)
    assert not pipe.poll(0.3)  # no epoch has begun
    played = 0
    for epoch in range(4):  # of 5
        pipe.send(epoch)
        while played < epoch + 2:
            assert pipe.poll(30)
            played += 1
            steps, ended = pipe.recv()
            assert (steps, len(ended)) == (12 * played, 4 * 2)  # rollouts are of 6 steps
        assert played == 5 or not pipe.poll(0.1)
    thread.join(30)
    assert not thread.is_alive()


def test_a_collector_acts_with_the_newest_weights(tmp_path: Path) -> None:
    """First they are those of an agent that always chooses action 1, then of one that chooses 2."""
    changes: Any = {"sample_actions": False, "exploration": {"kind": "none"}}
    settings = settings_of(MAZE, processes=2, epochs=2, steps_per_epoch=12, **changes)
    network = collector_of(settings)[1].network
    ours, its = multiprocessing.Pipe()
    ours.send(1)  # both epochs may be played
    actions, written = [], TrajectoryFiles.add

    def publish(action: int) -> None:
        bias_GP: Any = network.actor.layers[-1].bias
        with torch.no_grad():
            bias_GP.zero_().view(network.actor.shape)[:, action] = 100.0
        write_arrays(tmp_path / amago_processes.WEIGHTS, network.policy_arrays(), kind="policy")

    def add(store: TrajectoryFiles, trajectories: Any) -> None:
        actions.append({int(a) for t in trajectories for a in t["previous_action"][1:]})
        written(store, trajectories)
        publish(2)

    publish(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrajectoryFiles, "add", add)
        amago_processes.collect(Agent, settings, tmp_path, its, 0, 1)
    assert actions == [{1}, {2}]


def test_a_collector_without_weights_waits_for_its_learners(tmp_path: Path) -> None:
    settings = settings_of(MAZE, processes=2, epochs=1, steps_per_epoch=12)
    ours, its = multiprocessing.Pipe()
    ours.send(0)
    thread = threading.Thread(target=amago_processes.collect, args=(Agent, settings, tmp_path, its, 0, 1), daemon=True)
    thread.start()
    assert not ours.poll(0.5)
    published(tmp_path, settings)
    assert ours.poll(30) and ours.recv()[0] == 12
    thread.join(30)
    assert not thread.is_alive()


def test_collectors_of_a_run_that_is_stopped_again_and_again_do_not_play_the_same_again(tmp_path: Path) -> None:
    """What they wrote since the learner's checkpoint stays, so two restarts from it must not write the same."""
    settings = settings_of(MAZE, processes=2, epochs=2, steps_per_epoch=12)
    published(tmp_path, settings)
    for _restart in range(2):
        ours, its = multiprocessing.Pipe()
        ours.send(1)
        amago_processes.collect(Agent, settings, tmp_path, its, 12, 1)
    first, second = (read_arrays(path) for path in sorted(tmp_path.glob("buffer/fifo/*.safetensors")))
    assert not np.array_equal(first["previous_action"], second["previous_action"])


def test_collectors_that_take_turns_number_their_files_one_behind_the_other(tmp_path: Path) -> None:
    stores = [TrajectoryFiles(tmp_path, UNLIMITED) for _ in range(2)]
    finished, (its, _ours) = collector_of(settings_of(MAZE))[0].collect(6), multiprocessing.Pipe()
    for which in (0, 1, 1, 0):
        amago_processes.write(stores[which], finished, LearnersEpoch(its), threading.Lock())
    assert [file.name[:12] for file in sorted(tmp_path.rglob("*.safetensors"))] == [f"{4 * n:010d}-4" for n in range(4)]


def test_a_learner_gives_its_newest_weights_and_removes_what_is_beyond_the_buffer(tmp_path: Path) -> None:
    settings = settings_of(processes=2, buffer=3)
    trainer = TrainerWithCollectors(Agent, settings, "cpu", run_in(tmp_path))
    collected = TrajectoryFiles(tmp_path / "checkpoints" / "buffer", UNLIMITED)
    for trajectory in collector_of(settings)[0].collect(12)[:5]:
        collected.add([trajectory])
    trainer.at.epoch, trainer.at.of_epoch = 2, 1  # it goes on within an epoch, before which it has evaluated
    trainer.epoch()
    assert (trainer.at.updates, trainer.at.evaluations) == (2, 0)
    newest = read_arrays(tmp_path / "checkpoints" / amago_processes.WEIGHTS, kind="policy")
    assert all(np.array_equal(array, newest[name]) for name, array in trainer.agent.network.policy_arrays().items())
    assert len(list((tmp_path / "checkpoints" / "buffer").rglob("*.safetensors"))) == 3


@pytest.mark.parametrize("epochs_begun", [0, 1])
def test_the_collector_ends_when_its_learner_is_gone(epochs_begun: int, tmp_path: Path) -> None:
    pipe, thread = collecting(tmp_path)
    for epoch in range(epochs_begun):
        pipe.send(epoch)
        assert pipe.poll(30)
    pipe.close()
    thread.join(30)
    assert not thread.is_alive()


def test_the_collector_writes_nothing_when_its_learner_ended_within_a_chunk(tmp_path: Path) -> None:
    pipe, thread = collecting(tmp_path, SlowAgent)
    pipe.send(0)
    time.sleep(0.3)
    pipe.close()
    thread.join(30)
    assert not thread.is_alive()
    assert not list(tmp_path.glob("buffer/fifo/*.safetensors"))
