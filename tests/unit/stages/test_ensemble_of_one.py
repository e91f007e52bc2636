"""On a GPU one seed is an ensemble, too: it is trained by CUDA graphs, and scored as any other."""

from __future__ import annotations

import logging
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fast_yaml
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # benchmarks is no part of the package

from benchmarks.gpu.pretend import PretendGpu
from recollect.memory_rl.off_policy import OffPolicyTrainer
from recollect.settings.errors import UserError
from recollect.stages import paths, records, run, train, try_out
from recollect.stages.stage import Job

OF = ("smoke", "tmaze_passive_5", "dqn_lstm")


@pytest.fixture
def as_one(workdir: Path) -> Path:
    path = workdir / "config/scales/smoke.yaml"
    path.write_text(fast_yaml.dump({**fast_yaml.load(path.read_text()), "ensembles": [OF[-1]]}))
    return workdir


@pytest.mark.quick("cpu")
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_one_seed_is_trained_by_graphs_on_a_gpu_and_alone_on_a_cpu(
    device: str, as_one: Path, replays: list[Any]
) -> None:
    job = Job("train", *OF, "0")
    with PretendGpu() if device == "cuda" else nullcontext():
        run.run(*OF, 0, device=device)
    assert train.STAGE.is_made(job) and paths.scores(*OF, 0).exists()
    assert (len(replays) > 50) == (device == "cuda")
    record = records.read(records.place(job))
    assert record is not None and (record.seeds, record.device) == (1, device)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_run_is_tried_out_as_it_is_trained(
    device: str, as_one: Path, replays: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(try_out, "SECONDS", 0.0)
    with PretendGpu() if device == "cuda" else nullcontext():
        record = try_out.try_out(Job("train", *OF), device)
    assert record is not None and record.seconds > 0
    assert bool(replays) == (device == "cuda")


def test_what_breaks_it_is_raised(as_one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: OffPolicyTrainer) -> bool:
        raise UserError("a broken world", where="here", do="mend it")

    monkeypatch.setattr(OffPolicyTrainer, "next_round", broken)
    with PretendGpu(), pytest.raises(UserError, match="a broken world"):
        train.train(*OF, 0, device="cuda")


@pytest.mark.slow
def test_what_is_no_ensemble_is_trained_without_graphs(
    as_one: Path, replays: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unlike(*of: Any) -> None:
        raise UserError("these weights cannot be stacked", where="here", do="nothing")

    monkeypatch.setattr("recollect.memory_rl.ensemble.Ensemble", unlike)
    with PretendGpu(), caplog.at_level(logging.WARNING):
        train.train(*OF, 0, device="cuda")
    assert train.STAGE.is_made(Job("train", *OF, "0")) and not replays
    assert "without CUDA graphs, which is slower: these weights cannot be stacked" in caplog.text
