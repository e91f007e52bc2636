"""Killed at any instant, a run goes on and ends with the bytes of a run that was never killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import fast_yaml
import preloaded
import pytest
from made_once import made_once

from recollect.artifacts.stopping import STATUS

RUNS = {
    "dt": ("dark_room_10x10", "dt"),
    "radt": ("dark_room_10x10", "radt"),
    "dqn_gpt": ("tmaze_passive_5", "dqn_gpt"),
    "amago_transformer": ("amago_tmaze_5", "amago_transformer"),
}


def command(name: str) -> list[str]:
    env, method = RUNS[name]
    where = ["--scale", "smoke", "--env", env, "--method", method, "--seed", "1", "--device", "cpu", "--threads", "1"]
    return ["train", *where]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def start(name: str, folder: Path) -> preloaded.Process:
    """Start the training; what it says goes into the file `said` beside the folder."""
    return preloaded.start("recollect.cli", command(name), cwd=folder, env=environment(), said=said_in(folder))


def said_in(folder: Path) -> Path:
    return folder.parent / "said"


def run(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return preloaded.run("recollect.cli", command(name), cwd=folder, env=environment(), timeout=300)


def trained(name: str, folder: Path) -> str:
    """Train to the end; what it said."""
    done = run(name, folder)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture
def whole(smoke_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, bytes]]:
    """The files of a run that was never killed, which is made once and serves as the reference of all tests."""

    def reference(name: str) -> dict[str, bytes]:
        def make(folder: Path) -> None:
            shutil.copytree(smoke_data, folder, dirs_exist_ok=True)
            trained(name, folder)

        return outputs(made_once(tmp_path_factory, f"never_killed_{name}", make), name)

    return reference


def outputs(folder: Path, name: str) -> dict[str, bytes]:
    env, method = RUNS[name]
    run = folder / "results" / "smoke" / "runs" / env / method / "seed_1"
    return {file.name: file.read_bytes() for file in sorted(run.iterdir()) if not file.name.startswith(".")}


def checkpoints(folder: Path, name: str) -> list[Path]:
    env, method = RUNS[name]
    return sorted((folder / "results" / "smoke" / "checkpoints" / env / method / "seed_1").glob("step_*.safetensors"))


def sealed(folder: Path, name: str) -> set[tuple[str, int]]:
    """All that is saved whole of a run that is at work: its checkpoints, and those of a scoring while it learns."""
    env, method = RUNS[name]
    place = folder / "results/smoke/checkpoints" / env / method / "seed_1"
    return {(path.name, path.stat().st_mtime_ns) for path in place.rglob("step_*.manifest.json")}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.quick("dqn_gpt")
def test_resume_after_kill_is_bit_exact(
    name: str, smoke_workdir: Path, whole: Callable[[str], dict[str, bytes]]
) -> None:
    expected = whole(name)
    assert "policy.safetensors" in expected

    moments = random.Random(f"{name} kill")
    kills = resumed = 0
    while kills < 3:
        process = start(name, smoke_workdir)
        before = {path.name for path in checkpoints(smoke_workdir, name)}
        # Killed a random moment after a new checkpoint appears, so that each try gets further than the one before.
        while process.poll() is None and {path.name for path in checkpoints(smoke_workdir, name)} <= before:
            time.sleep(0.002)
        time.sleep(moments.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        said = said_in(smoke_workdir).read_text()
        resumed += "going on from the checkpoint" in said
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, said
        kills += 1
    assert kills, "the run ended before it could be killed: make it longer"
    resumed += "going on from the checkpoint" in trained(name, smoke_workdir)  # or it had just ended, and is kept
    assert resumed
    assert outputs(smoke_workdir, name) == expected


@pytest.mark.parametrize("name", ["dt", *(pytest.param(name, marks=pytest.mark.slow) for name in RUNS if name != "dt")])
def test_sigterm_saves_and_the_run_ends_with_the_same_bytes(
    name: str, smoke_workdir: Path, whole: Callable[[str], dict[str, bytes]]
) -> None:
    expected, said = whole(name), said_in(smoke_workdir)
    known = before = sealed(smoke_workdir, name)
    while known == before:  # none yet; or SIGTERM came while a checkpoint was just being written
        process = start(name, smoke_workdir)
        while process.poll() is None and sealed(smoke_workdir, name) == known:
            time.sleep(0.002)
        time.sleep(0.03)
        before = sealed(smoke_workdir, name)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == STATUS, said.read_text()
        assert "with what was done so far saved" in said.read_text()
        known = sealed(smoke_workdir, name)
    assert "going on from the checkpoint of step" in trained(name, smoke_workdir)
    assert outputs(smoke_workdir, name) == expected


@pytest.mark.slow
def test_a_scoring_that_is_killed_goes_on_with_the_same_bytes(smoke_data: Path, tmp_path: Path) -> None:
    env, method = "dark_room_10x10", "dt.many"
    where = ["--scale", "smoke", "--env", env, "--method", method, "--seed", "0", "--device", "cpu", "--threads", "1"]
    for name in ("whole", "killed"):
        shutil.copytree(smoke_data, tmp_path / name)
        path = tmp_path / name / "config/methods/dt.yaml"
        content = fast_yaml.load(path.read_text())
        content.setdefault("variants", {})["many"] = {"evaluation_only": True, "evaluation": {"episodes": 30}}
        path.write_text(fast_yaml.dump(content))

    def scored(folder: Path) -> tuple[str, bytes]:
        done = preloaded.run("recollect.cli", ["evaluate", *where], cwd=folder, env=environment(), timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stderr, (folder / f"results/smoke/runs/{env}/{method}/seed_0/scores.parquet").read_bytes()

    _, expected = scored(tmp_path / "whole")
    folder = tmp_path / "killed"
    checkpoints = folder / f"results/smoke/checkpoints/{env}/{method}/seed_0/scoring"
    for _ in range(2):
        before = set(checkpoints.glob("*.manifest.json"))
        process = preloaded.start(
            "recollect.cli", ["evaluate", *where], cwd=folder, env=environment(), said=said_in(folder)
        )
        while process.poll() is None and set(checkpoints.glob("*.manifest.json")) <= before:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait(timeout=60) == -signal.SIGKILL, "it ended before it could be killed: make it longer"
    said, found = scored(folder)
    assert "going on from the scoring's checkpoint" in said
    assert found == expected
    assert not checkpoints.exists()


@pytest.mark.slow
def test_a_corrupted_checkpoint_falls_back_to_the_one_before(
    smoke_workdir: Path, whole: Callable[[str], dict[str, bytes]]
) -> None:
    expected = whole("dt")
    process = start("dt", smoke_workdir)
    while process.poll() is None and len(checkpoints(smoke_workdir, "dt")) < 2:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    standing = checkpoints(smoke_workdir, "dt")
    assert len(standing) >= 2
    damaged = bytearray(standing[-1].read_bytes())
    damaged[len(damaged) // 2] ^= 1
    standing[-1].write_bytes(bytes(damaged))
    said = trained("dt", smoke_workdir)
    step = int(standing[-2].stem.removeprefix("step_"))
    assert f"going on from the checkpoint of step {step}" in said
    assert outputs(smoke_workdir, "dt") == expected


def test_two_jobs_on_one_run_never_write_together(smoke_workdir: Path) -> None:
    first = start("dt", smoke_workdir)
    while first.poll() is None and not checkpoints(smoke_workdir, "dt"):
        time.sleep(0.002)
    assert first.poll() is None, "the run ended before a second could start: make it longer"
    first.send_signal(signal.SIGSTOP)  # holds the run folder for as long as the second tries
    try:
        second = run("dt", smoke_workdir)
    finally:
        first.send_signal(signal.SIGCONT)
    assert second.returncode == 2
    assert str(first.pid) in second.stderr
    assert first.wait(timeout=300) == 0


@pytest.mark.quick("data/smoke/dark_room_10x10/histories.safetensors")
@pytest.mark.parametrize(
    "which", ["data/smoke/dark_room_10x10/histories.safetensors", "data/smoke/dark_room_10x10/radt/memory.faiss"]
)
def test_a_flipped_byte_in_an_input_is_refused(which: str, smoke_workdir: Path) -> None:
    path = smoke_workdir / which
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(bytes(damaged))
    refused = run("radt", smoke_workdir)
    assert refused.returncode == 2
    assert which in refused.stderr and "sha256" in refused.stderr
    assert "to do:" in refused.stderr
    assert not (smoke_workdir / "results/smoke/runs/dark_room_10x10/radt").exists()
