"""A run whose newest checkpoint is damaged goes on from the one before, whatever the method, and ends with the same bytes.

What a run gathers as it acts is at its capacity by then: the oldest was thrown away between the two checkpoints.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import fake_worlds
import numpy as np
import pandas as pd
import pytest
import tiny_amago
import torch

from recollect.amago import amago, amago_multi_task
from recollect.artifacts.run import Run
from recollect.artifacts.sealed import sealing, write_arrays
from recollect.common.contract import Inputs
from recollect.helm import helm, ppo_cnn, ppo_lstm
from recollect.memory_rl import dqn, sac, sacd, td3
from recollect.radt import ad, dpt, dt, radt
from recollect.radt.chunks import chunk_settings, cut_chunks, memory_of
from recollect.radt.embedding import load_embedder
from recollect.radt.memory_index import build_index
from recollect.settings.schema import EnvironmentSettings, EvaluationSettings, MethodSettings, Settings

SAVES = 4  # checkpoints before the kill
HISTORY: dict[str, Any] = {
    "sequence": {"kind": "lstm", "width": 8, "dropout": 0.0},
    "observation_embedding": 4,
    "action_embedding": 4,
    "head": [8],
    "train_episodes": 14,
    "batch_size": 4,
    "evaluation_episodes": 2,
    "evaluate_every": 10,
    "replay_transitions": 20,
    "replay_episodes": 4,
    "checkpoint_every": 4,
}
IMAGES: dict[str, Any] = {
    "channel_scale": 1,
    "width": 16,
    "actor": 8,
    "critic": 8,
    "log_every": 1,
    "steps": 96,
    "actors": 4,
    "rollout": 4,
    "batches": 4,
    "checkpoint_every": 16,
}
OFFLINE = {"optimisation": {"steps": 12, "batch_size": 4, "warmup": 2, "checkpoint_every": 2}}


class Killed(Exception):
    """Stands for a kill."""


class KilledRun(Run):
    """Killed when it is about to write the checkpoint behind the last of `SAVES`, after all that leads to it."""

    saves = 0

    def save(self, *arguments: Any) -> None:
        if self.saves == SAVES:
            raise Killed
        super().save(*arguments)
        self.saves += 1


def online(module: Any, world: str, options: dict[str, Any], **chosen: Any) -> Any:
    environment = EnvironmentSettings(
        name="world", world=world, options=options, evaluation=EvaluationSettings(protocol="episodic", episodes=2)
    )
    algorithm = module.__name__.rpartition(".")[2]
    hp = module.Hyperparameters.model_validate(chosen)
    method = MethodSettings(name="agent", algorithm=algorithm, data="online", hyperparameters=hp)
    return module, Settings(scale="tiny", seed=0, environment=environment, method=method), Inputs()


def offline(tiny: Any, folder: Path, name: str) -> Any:
    room = tiny()
    settings = room.settings(name, **OFFLINE)
    histories = room.histories()
    inputs = Inputs(histories=folder / "histories.safetensors")
    write_arrays(inputs["histories"], histories.arrays(), kind="histories")
    if name == "radt_agnostic":
        memory, table = memory_of(settings), histories.episodes
        chunks = cut_chunks(table.start, table.length, table.task, table.total_return, chunk_settings(memory))
        width = load_embedder(settings, inputs, room.facts).width
        keys = torch.randn(len(chunks), width, generator=torch.Generator().manual_seed(0))
        index, kept = build_index(keys, chunks, memory)
        inputs = Inputs(index=folder / "memory.faiss", rows=folder / "rows.safetensors", **inputs)
        with sealing(inputs["index"], kind="index") as temporary:
            index.save(temporary)
        write_arrays(inputs["rows"], kept.to_arrays(), kind="memory rows")
    return {"dt": dt, "ad": ad, "dpt": dpt, "radt_agnostic": radt}[name], settings, inputs


def of_amago(module: Any, every: int = 1) -> Any:
    small: dict[str, Any] = {"steps_per_epoch": 12, "updates_per_epoch": 1, "buffer": 9, "evaluate_every": 100}
    epochs = every * (SAVES + 1) + 1
    return module, tiny_amago.settings_of(module=module, epochs=epochs, checkpoint_every=every, **small), Inputs()


def case(kind: str, tiny: Any, folder: Path) -> Any:
    """Module, settings and inputs of a run of this kind."""
    maze = {"variant": "passive", "length": 4}
    signal = {"height": 9, "width": 9}
    makes = {
        "dt": lambda: offline(tiny, folder, "dt"),
        "ad": lambda: offline(tiny, folder, "ad"),
        "dpt": lambda: offline(tiny, folder, "dpt"),
        "radt": lambda: offline(tiny, folder, "radt_agnostic"),
        "dqn": lambda: online(dqn, "tmaze", maze, **HISTORY),
        "sacd": lambda: online(sacd, "tmaze", maze, **HISTORY),
        "td3": lambda: online(td3, "aim", {}, **HISTORY),
        "sac": lambda: online(sac, "aim", {}, **HISTORY),
        "amago": lambda: of_amago(amago),
        "amago_multi_task": lambda: of_amago(amago_multi_task),
        "amago_slow_checkpoints": lambda: of_amago(amago, every=2),
        "ppo_cnn": lambda: online(ppo_cnn, "signal", signal, **IMAGES),
        "ppo_lstm": lambda: online(ppo_lstm, "signal", signal, units=12, sequences=2, **IMAGES),
        "helm": lambda: online(helm, "signal", signal, language_model="random", memory_length=3, **IMAGES),
    }
    return makes[kind]()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def run_in(folder: Path, kind: Any = Run) -> Any:
    return kind(folder, folder / "checkpoints", settings_text="same")


QUICK = ("dt", "amago")
SLOW = ("ad", "dpt", "radt", "dqn", "sacd", "td3", "sac", "ppo_cnn", "ppo_lstm", "helm")
AMAGO = ("amago_multi_task", "amago_slow_checkpoints")
KINDS = [*QUICK, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW + AMAGO)]


@pytest.mark.quick("dt")
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_whose_newest_checkpoint_is_damaged_ends_with_the_same_bytes(
    kind: str,
    tiny: Any,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(root)  # the names of models are read from the repository's configuration
    fake_worlds.install(monkeypatch)
    caplog.set_level(logging.INFO)
    module, settings, inputs = case(kind, tiny, tmp_path)
    straight = run_in(tmp_path / "straight")
    expected = module.train(settings, inputs, straight).arrays()
    with pytest.raises(Killed):
        module.train(settings, inputs, run_in(tmp_path / "killed", KilledRun))
    before, newest = sorted((tmp_path / "killed/checkpoints").glob("step_*.safetensors"))
    flip(newest)
    collected = sorted((tmp_path / "killed/checkpoints/buffer/fifo").glob("*.safetensors"))
    assert not collected or not collected[0].name.startswith("0000000000"), "it is not full: make it longer"

    again = run_in(tmp_path / "killed")
    policy = module.train(settings, inputs, again)
    assert f"going on from the checkpoint of step {int(before.stem.removeprefix('step_'))}" in caplog.text
    assert newest.name in caplog.text
    found = policy.arrays()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.asarray(found[name]).tobytes() == np.asarray(value).tobytes(), name
    pd.testing.assert_frame_equal(again.table(), straight.table())
