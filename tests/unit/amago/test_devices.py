"""AMAGO on several devices, with processes on the CPU: as one device up to rounding, to the bit after any death, no orphan."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import runs, spawned_by, wait_until
from test_processes import rows_of
from tiny_amago import GOALS, MAZE, goes_on_to_the_bit, run_in, settings_of

from recollect.amago import amago, devices, training
from recollect.amago import processes as amago_processes
from recollect.amago.amago import Agent
from recollect.amago.devices import Followers
from recollect.amago.loop import Trainer
from recollect.amago.share import DeviceGone
from recollect.artifacts.lock import run_lock
from recollect.artifacts.run import Run
from recollect.artifacts.sealed import verify
from recollect.common.contract import Inputs
from recollect.settings.errors import UserError

TWO: dict[str, Any] = {"devices": 2, "keep": "last"}
LONG: dict[str, Any] = {**TWO, "epochs": 6, "updates_per_epoch": 20}
OF_PROCESSES = ("gymnasium", {"id": "CartPole-v1", "horizon": 6, "processes": True})  # each environment is one
RARE = {"relabelling": "all", "rare_goals": True, "save_length": 20, "stagger": False, "steps_per_epoch": 20}


def result_in(folder: Path) -> dict[str, bytes]:
    """What a run ends with: its policies, and the files of its buffer."""
    found = {}
    for path in sorted([*folder.rglob("fifo/*.safetensors"), *folder.rglob("policies/*.safetensors")]):
        found[path.name] = path.read_bytes()
    return found


def learn_in(folder: Path, agent: type[Agent] = Agent) -> bool:
    """Whether it went on from a checkpoint."""
    run = run_in(folder)
    with run_lock(run.checkpoint_folder):
        training.train(agent, settings_of(**LONG), Inputs(), run)
    return bool(run.resumed)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a long run ends with."""
    folder = tmp_path_factory.mktemp("undisturbed")
    learn_in(folder)
    return result_in(folder)


def nothing_is_torn(folder: Path) -> None:
    """Every file that has a manifest is whole, and no process of a run is left."""
    assert not devices.running()
    for manifest in folder.rglob("*.manifest.json"):
        path = manifest.with_name(manifest.name.removesuffix(".manifest.json"))
        assert path.exists()
        verify(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "changes"),
    [
        (MAZE, {}),
        (GOALS, RARE),
        (OF_PROCESSES, {}),
    ],
)
def test_a_run_on_two_devices_is_the_run_on_one_up_to_rounding(
    world: Any, changes: dict[str, Any], tmp_path: Path
) -> None:
    policies, tables = [], []
    for count in (1, 2):
        run = run_in(tmp_path / str(count))
        policy = amago.train(settings_of(world, **{**TWO, **changes, "devices": count}), Inputs(), run)
        policies.append(policy.arrays())
        tables.append(run.table())
    one, two = ({name: np.asarray(a, np.float64) for name, a in arrays.items()} for arrays in policies)
    apart = sum(float(((one[name] - two[name]) ** 2).sum()) for name in one) ** 0.5
    assert 0 < apart < 1e-6 * sum(float((a**2).sum()) for a in one.values()) ** 0.5
    assert tables[0]["metric"].tolist() == tables[1]["metric"].tolist()
    np.testing.assert_allclose(tables[1]["value"], tables[0]["value"], rtol=1e-4, atol=1e-5)
    assert rows_of(tables[1], "updates")[tables[1]["step"].max()] == 12
    nothing_is_torn(tmp_path)


@pytest.mark.slow
def test_a_run_on_two_devices_that_is_stopped_within_an_epoch_goes_on_to_the_bit(tmp_path: Path) -> None:
    goes_on_to_the_bit(amago, settings_of(GOALS, **{**TWO, **RARE}), tmp_path)
    nothing_is_torn(tmp_path)


class Told:
    """The end of a pipe, which gives these messages and then ends."""

    def __init__(self, *messages: Any) -> None:
        self.messages = list(messages)

    def recv(self) -> Any:
        if not self.messages:
            raise EOFError
        return self.messages.pop(0)

    def send(self, message: Any) -> None:
        pass


def test_a_follower_learns_from_its_rows_of_the_very_batches_that_the_first_process_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind a resume, where rare goals were counted before, and where steps and not trajectories are as likely."""
    settings = settings_of(GOALS, **{**TWO, **RARE, "buffer_weights": "timestep"})
    first = Trainer(Agent, settings, "cpu", run_in(tmp_path))
    for number, whole in enumerate(first.collector.collect(60)):
        first.store.add([{name: a if name == "goals" else a[: 6 + number] for name, a in whole.items()}])
    assert len(set(first.store.lengths.tolist())) == 12
    list(first.drawing.batches(0, 5))  # rare goals are counted
    arrays = {name: torch.as_tensor(array).numpy() for name, array in first.agent.arrays().items()}
    told = Told((arrays, first.drawing.rarity(), first.store.folder, []), (5, 4, first.store.listed()))
    first.drawing.rows = None
    batches = [batch for batch, _ in first.drawing.batches(5, 4)]
    seen: list[Any] = []

    class Noting(Agent):
        def step(self, batch: Any, counter: int, *, further: bool = False) -> Any:
            seen.append((batch, counter, further))

    monkeypatch.setattr(devices, "connected", lambda *_: nullcontext())
    monkeypatch.setattr(devices, "use_threads", lambda _: None)
    monkeypatch.setattr(torch.distributed, "TCPStore", lambda *_, **__: None)
    monkeypatch.setattr(devices.Share, "check_same", lambda *_: None)
    with pytest.raises(EOFError):
        devices.learn(Noting, settings, told, 1, "cpu", 0, 1)  # type: ignore[arg-type]
    assert [(counter, further) for _, counter, further in seen] == [(5, False), (6, False), (7, False), (8, True)]
    for batch, (part, _, _) in zip(batches, seen, strict=True):
        np.testing.assert_array_equal(part.whole_mask_BT, batch.mask_BT)
        for name in ("observation_BTD", "previous_action_BT", "reward_BT", "done_BT", "time_BT", "mask_BT"):
            np.testing.assert_array_equal(getattr(part, name), getattr(batch, name)[2:])


class KillingRun(Run):
    """Kills the process of the second device within the updates of its fourth epoch, just behind a checkpoint."""

    def due(self, step: int, every: int) -> bool:
        if step == 70 and not self.resumed:
            self.due_by_hand = True
            return True
        if getattr(self, "due_by_hand", False):
            self.due_by_hand = False
            (follower,) = devices.running()
            os.kill(int(follower.pid or 0), signal.SIGKILL)
        return super().due(step, every)


@pytest.mark.slow
def test_where_a_device_dies_the_run_ends_within_seconds_and_goes_on_to_the_bit(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    settings, killed, began = settings_of(**LONG), run_in(tmp_path, KillingRun), time.monotonic()
    with pytest.raises(UserError, match="the process of device 1 of this run ended with exit code -9") as caught:
        amago.train(settings, Inputs(), killed)
    assert "devices" in str(caught.value.where) and time.monotonic() - began < 60
    nothing_is_torn(tmp_path)
    again = run_in(tmp_path)
    amago.train(settings, Inputs(), again)
    assert again.resumed and result_in(tmp_path) == undisturbed
    assert not torch.distributed.is_initialized()


@pytest.mark.slow
def test_a_device_that_cannot_begin_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "NAME", "amago device that fails")
    settings = settings_of(**TWO)
    trainer = Trainer(Agent, settings, "cpu", run_in(tmp_path))
    assert trainer.followers is not None
    trainer.followers.kind = "none"  # no such device
    with pytest.raises(UserError, match="device 1 of this run ended with exit code 1"):
        trainer.train()
    assert not devices.running()


@pytest.mark.parametrize(
    ("error", "codes", "raised"),
    [
        (torch.OutOfMemoryError("20 GiB"), (devices.APART, devices.APART), "20 GiB"),
        (
            DeviceGone("another device does not answer"),
            (devices.APART, 7),
            "device 2 of this run ended with exit code 7",
        ),
        (RuntimeError("broken"), (7, devices.APART), "device 1 of this run ended with exit code 7"),
        (DeviceGone("another device does not answer"), (devices.APART, devices.APART), "device 1 of this run ended"),
    ],
)
def test_an_error_of_the_first_process_is_raised_and_not_said_to_be_the_others(
    error: Exception, codes: tuple[int, ...], raised: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it fails, the others end because of it; where another fails, that one is named."""

    def begin(followers: Followers, *_: Any) -> None:
        for code in codes:
            process = multiprocessing.get_context("fork").Process(target=os._exit, args=(code,))
            process.start()
            process.join()
            followers.processes.append(process)

    monkeypatch.setattr(Followers, "_begin", begin)
    monkeypatch.setattr(devices, "connected", lambda *_: nullcontext())
    followers = Followers(Agent, settings_of(devices=3), tmp_path, "cpu")
    expected = type(error) if raised in str(error) else UserError
    with pytest.raises(expected, match=raised), followers.at_work():
        raise error


def test_what_a_user_can_mend_is_one_message_of_a_device_and_exit_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise UserError("the file cannot be written: No space left on device", where="buffer", do="free some space")

    monkeypatch.setattr(devices, "learn", full)
    monkeypatch.setattr(devices, "end_with_parent", lambda: None)
    with pytest.raises(SystemExit) as ended:
        devices.follow(None, Agent, settings_of(**TWO), None, 1)  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith("error: the file cannot be written") and "Traceback" not in said


def test_more_devices_than_there_are_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="5 devices cannot share 4 windows"):
        settings_of(devices=5)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match="2 GPUs are asked for, and this process sees 1"):
        Followers(Agent, settings_of(**TWO), tmp_path, "cuda")


@pytest.mark.slow
def test_collectors_play_while_two_devices_learn(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    settings = settings_of(**{**TWO, "processes": 3, "epochs": 3, "steps_per_epoch": 24, "evaluate_every": 100})
    amago.train(settings, Inputs(), run)
    assert rows_of(run.table(), "updates") == {96: 3, 192: 6, 288: 9}
    assert not amago_processes.running()
    nothing_is_torn(tmp_path)


# ---- the first process is killed, or busy


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked up in /proc")
def test_where_the_first_process_is_killed_the_others_end_and_the_run_goes_on_to_the_bit(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    first = multiprocessing.get_context("spawn").Process(target=learn_in, args=(tmp_path,))
    first.start()
    try:
        wait_until(
            lambda: list((tmp_path / "checkpoints").glob("step_*.manifest.json")), "a checkpoint is saved", seconds=60
        )
        (other,) = spawned_by(first.pid)
        os.kill(int(first.pid or 0), signal.SIGKILL)
        first.join()
        wait_until(lambda: not runs(other), "the other process ends", seconds=5)
    finally:
        first.kill()
        first.join()
    assert learn_in(tmp_path) and result_in(tmp_path) == undisturbed
    nothing_is_torn(tmp_path)


class SleepingAgent(Agent):
    """Falls asleep before its eleventh update, as one that waits for a GPU that never answers."""

    def step(self, batch: Any, counter: int, *, further: bool = False) -> Any:
        if counter == 10 and not self.share.rank:
            print("asleep", file=sys.stderr, flush=True)
            time.sleep(60)
        return super().step(batch, counter, further=further)


JOB = """
import sys
from pathlib import Path
import test_devices
from recollect.artifacts.stopping import saves_on_sigterm
if __name__ == "__main__":
    with saves_on_sigterm():
        test_devices.learn_in(Path(sys.argv[1]), getattr(test_devices, sys.argv[2]))
"""


@contextmanager
def job(folder: Path, agent: str) -> Iterator[subprocess.Popen[str]]:
    """`learn_in` as a process with a group of its own, which says all into the file `said`."""
    script = folder / "job.py"
    script.write_text(JOB)
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1]), *sys.path])
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, str(script), str(folder / "run"), agent],
            env={**os.environ, "PYTHONPATH": paths},
            stderr=said,
            start_new_session=True,
            text=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked up in /proc")
def test_a_first_process_that_does_not_notice_a_death_is_ended(tmp_path: Path) -> None:
    with job(tmp_path, "SleepingAgent") as first:
        wait_until(lambda: "asleep" in (tmp_path / "said").read_text(), "the other process sleeps", seconds=60)
        (other,) = spawned_by(first.pid)
        os.kill(other, signal.SIGKILL)
        began = time.monotonic()
        assert first.wait(30) == 2 and time.monotonic() - began < devices.GRACE + 5
    assert "a process of this run has ended" in (tmp_path / "said").read_text()
    nothing_is_torn(tmp_path)


@pytest.mark.slow
def test_sigterm_to_all_processes_lets_the_run_save_and_go_on_to_the_bit(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    with job(tmp_path, "Agent") as first:
        checkpoints = tmp_path / "run" / "checkpoints"
        wait_until(
            lambda: list(checkpoints.glob("step_*.manifest.json")) or first.poll() is not None,
            "a checkpoint is saved",
            60,
        )
        os.killpg(first.pid, signal.SIGTERM)
        assert first.wait(30) == 75
    assert learn_in(tmp_path / "run") and result_in(tmp_path / "run") == undisturbed
