"""Promises of a run that a change of code interrupts: nothing is thrown away, and what is trusted is written down."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from recollect.artifacts.run import Run
from recollect.artifacts.sealed import verify
from recollect.memory_rl import dqn
from recollect.settings.errors import UserError
from recollect.stages import paths, stage
from recollect.stages.run import run
from recollect.stages.train import train

OF = ("smoke", "tmaze_passive_5", "dqn_ff", 0)


@pytest.fixture
def interrupted(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Start the run, and end it as a kill would behind its first checkpoint."""

    def start() -> None:
        save = Run.save

        def stopping(self: Run, step: int, *of: Any) -> None:
            save(self, step, *of)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Run, "save", stopping)
            train(*OF)

    return start


@pytest.fixture
def upgraded(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let the code of one module be another."""

    def upgrade() -> None:
        reachable = stage.reachable
        changed = {"recollect.memory_rl.replay": "f" * 64}
        monkeypatch.setattr(stage, "reachable", lambda *modules: {**reachable(*modules), **changed})
        monkeypatch.setattr(stage, "code_fingerprint", lambda *modules: "another code")

    return upgrade


@pytest.mark.slow
def test_an_upgrade_throws_no_run_away_and_its_checkpoint_can_be_trusted(
    interrupted: Callable[[], None], upgraded: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    run(*OF)
    policy, table = paths.policy(*OF), paths.train_table(*OF)
    whole = [path.read_bytes() for path in (policy, table)]
    policy.unlink()
    for path in paths.checkpoints(*OF).glob("step_*"):
        path.unlink()
    interrupted()
    upgraded()
    interrupted()
    assert "code of recollect.memory_rl.replay" in caplog.text and "--trust-checkpoint" in caplog.text
    caplog.clear()
    caplog.set_level(logging.INFO)
    run(*OF, trust_checkpoint=True)
    assert "going on from the checkpoint" in caplog.text
    assert [path.read_bytes() for path in (policy, table)] == whole
    for path in (policy, table):
        (record,) = verify(path)["provenance"]["trusted_checkpoint"]
        assert record["step"] > 0 and "recollect.memory_rl.replay" in record["differs"]
    caplog.clear()
    run(*OF)
    assert caplog.text.count("kept, it is of today") == 2


def test_a_trusted_checkpoint_that_does_not_fit_is_said(
    interrupted: Callable[[], None], upgraded: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted()
    upgraded()

    def load(*of: object) -> None:
        raise KeyError("a part that is new")

    with monkeypatch.context() as patch:
        patch.setattr("recollect.memory_rl.off_policy.OffPolicyTrainer.load", load)
        with pytest.raises(UserError, match="does not fit today's code"):
            train(*OF, trust_checkpoint=True)
    assert train(*OF) is False  # afresh


def test_no_policy_of_nan_is_sealed(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diverged = SimpleNamespace(arrays=lambda: {"head.weight": np.array([1.0, np.nan], np.float32)})
    monkeypatch.setattr(dqn, "train", lambda *of: diverged)
    with pytest.raises(UserError, match=r"'head\.weight' holds NaN"):
        train(*OF)
    assert not paths.policy(*OF).exists() and not paths.train_table(*OF).exists()
