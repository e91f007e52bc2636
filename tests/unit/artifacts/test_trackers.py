"""Promises of trackers: each gets what a run logs, none can stop a run, and none is there unasked."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from recollect.artifacts import trackers
from recollect.artifacts.live import Live
from recollect.artifacts.trackers import VARIABLE, Tracked, Trackers
from recollect.settings.errors import UserError


@pytest.fixture(autouse=True)
def only_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tracker may leave this folder, whatever this machine is set to."""
    for name in ("WANDB_DIR", "WANDB_PROJECT", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))


class Hyperparameters(BaseModel):
    rate: float = 0.1
    widths: dict[str, int | None] = {"hidden": None}


def tracked(folder: Path, seed: int = 0) -> Tracked:
    names = {"scale": "demo", "env": "room", "method": "dt", "seed": seed}
    return Tracked(names, folder / f"seed_{seed}", Hyperparameters())


def test_tensorboard_has_the_curves_and_after_a_kill_each_step_once(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv(VARIABLE, "tensorboard")
    run = tracked(tmp_path)
    killed = Trackers(run, "a", after=-1)
    for step in range(4):
        killed.log(step, {"loss": 1.0, "eval/return": float(step)})
    killed.close(failed=True)
    going_on = Trackers(run, "a", after=1)  # from the checkpoint of step 1
    for step in range(2, 6):
        going_on.log(step, {"loss": 1.0, "eval/return": float(step)})
    going_on.close(failed=False)
    read = EventAccumulator(str(run.folder)).Reload()
    assert [(event.step, event.value) for event in read.Scalars("eval/return")] == [(s, s) for s in range(6)]


def test_wandb_writes_runs_side_by_side_offline(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv(VARIABLE, "wandb")
    runs = [tracked(tmp_path, seed) for seed in range(2)]
    opened = [Trackers(run, f"seed{i}", after=-1) for i, run in enumerate(runs)]
    for i, one in enumerate(opened):
        one.log(1, {f"loss_of_{i}": 0.5})
    for one in opened:
        one.close(failed=False)
    for i, run in enumerate(runs):
        (file,) = run.folder.glob(f"wandb/offline-run-*/run-seed{i}.wandb")
        patience = time.monotonic() + 30
        while b"loss_of_%d" % i not in (written := file.read_bytes()) and time.monotonic() < patience:
            time.sleep(0.05)  # a process of wandb's own writes it
        assert b"loss_of_%d" % i in written and b"loss_of_%d" % (1 - i) not in written


def test_trackio_writes_runs_side_by_side_into_its_folder(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    monkeypatch.setenv(VARIABLE, "trackio")
    opened = [Trackers(tracked(tmp_path, seed), "a1", after=-1) for seed in range(2)]
    for seed, one in enumerate(opened):
        one.log(7, {"loss": 0.5 + seed})
    for one in opened:
        one.close(failed=False)
    for seed in range(2):
        (row,) = SQLiteStorage.get_logs("recollect", f"demo room dt seed {seed} a1")
        assert row["step"] == 7 and row["loss"] == 0.5 + seed
    assert capsys.readouterr().out == ""  # what a command prints is its answer


class Recorder:
    """Stands in for what a tracker's package gives: keeps what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **named: Any) -> Recorder:
            self.calls.append((name, args, named))
            return self

        return call

    def given(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, named) for called, args, named in self.calls if called == name]


@pytest.mark.parametrize("failed", [False, True])
def test_wandb_is_told_which_run_goes_on_each_step_and_whether_it_failed(
    failed: bool, tmp_path: Path, monkeypatch: Any
) -> None:
    """Also where wandb is not installed."""
    wandb = Recorder()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setenv(VARIABLE, "wandb")
    one = Trackers(tracked(tmp_path, 3), "a1b2", after=-1)
    one.log(7, {"loss": 0.5})
    one.close(failed=failed)
    ((_, begun),) = wandb.given("init")
    assert (begun["id"], begun["resume"], begun["group"]) == ("a1b2", "allow", "demo room dt")
    assert begun["config"] == {
        "scale": "demo",
        "env": "room",
        "method": "dt",
        "seed": 3,
        **Hyperparameters().model_dump(),
    }
    assert wandb.given("log") == [(({"step": 7, "loss": 0.5},), {})]
    assert wandb.given("finish") == [((), {"exit_code": int(failed)})]


@pytest.mark.parametrize("resumed", [False, True])
def test_tensorboard_leaves_out_the_steps_behind_the_checkpoint_and_no_other(
    resumed: bool, tmp_path: Path, monkeypatch: Any
) -> None:
    """Also where TensorBoard is not installed."""
    board = Recorder()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    monkeypatch.setenv(VARIABLE, "tensorboard")
    live = Live(tmp_path, tracked(tmp_path))
    live.begin({step: {"loss": 1.0} for step in range(5)} if resumed else {}, resumed=resumed)
    live.add(5, {"loss": 0.5})
    ((_, named),) = board.given("SummaryWriter")
    assert named["purge_step"] == (5 if resumed else 0)  # from this step on what stands there is thrown away
    assert board.given("add_scalar") == [(("loss", 0.5, 5), {})]


class Fails:
    """A tracker that breaks in one of its three moments."""

    def __init__(self, moment: str) -> None:
        self.moment, self.asked = moment, 0

    def __call__(self, run: Tracked, ident: str, after: int) -> Fails:
        self._do("begin")
        return self

    def log(self, step: int, values: Any) -> None:
        self._do("log")

    def close(self, failed: bool) -> None:
        self._do("close")

    def _do(self, moment: str) -> None:
        self.asked += 1
        if moment == self.moment:
            raise ConnectionError("no way there")


@pytest.mark.parametrize("moment, asked", [("begin", 1), ("log", 2), ("close", 4)])
def test_one_that_fails_is_a_warning_and_is_left_out(
    moment: str, asked: int, tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    bad, good = Fails(moment), Fails("")
    monkeypatch.setattr(trackers, "KINDS", {"bad": bad, "good": good})
    monkeypatch.setenv(VARIABLE, " bad,good, bad")
    with caplog.at_level(logging.WARNING):
        both = Trackers(tracked(tmp_path), "a", after=-1)
        both.log(1, {"loss": 1.0})
        both.log(2, {"loss": 1.0})
        both.close(failed=False)
    assert (bad.asked, good.asked) == (asked, 4)
    assert len(caplog.messages) == 1 and "bad is left out" in caplog.text and "no way there" in caplog.text


def test_one_that_is_not_installed_is_named_with_how_to_install_it(
    tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setenv(VARIABLE, "wandb")
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    Trackers(tracked(tmp_path), "a", after=-1).log(1, {"loss": 1.0})
    assert "`.venv/bin/uv pip install --python .venv/bin/python wandb`" in caplog.text


def test_an_unknown_one_is_refused_with_the_nearest(monkeypatch: Any) -> None:
    monkeypatch.setenv(VARIABLE, "tensorbord")
    with pytest.raises(UserError, match="did you mean 'tensorboard'"):
        trackers.chosen()


def test_without_the_variable_there_is_none(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(trackers, "KINDS", {name: Fails("begin") for name in trackers.KINDS})
    Trackers(tracked(tmp_path), "a", after=-1).log(1, {"loss": 1.0})
    assert not list(tmp_path.iterdir())
