"""Several jobs on one device on purpose: what one learns does not depend on who else is there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import preloaded
import pytest

from recollect import cli
from recollect.artifacts import lease

ENV = "tmaze_passive_5"
SEEDS = ("0", "1")


def command(seed: str) -> list[str]:
    run = ["--scale", "smoke", "--env", ENV, "--method", "dqn_ff", "--seed", seed]
    return [sys.executable, "-m", "recollect.cli", "train", *run, "--threads", "1"]


@pytest.mark.slow
def test_packed_seeds_have_the_bytes_of_separate_ones(
    workdir: Path, tmp_path_factory: pytest.TempPathFactory, run_recollect: Callable[..., Any]
) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RECOLLECT_PACK": "2"}
    together = [
        preloaded.start("recollect.cli", command(seed)[3:], cwd=workdir, env=environment, said=workdir / f"said_{seed}")
        for seed in SEEDS
    ]
    assert [process.wait(timeout=300) for process in together] == [0, 0]
    alone = tmp_path_factory.mktemp("alone")
    (alone / "config").symlink_to(workdir / "config")
    for seed in SEEDS:
        done = run_recollect(*command(seed)[3:-2], cwd=alone)
        assert done.returncode == 0, done.stderr
        for name in ("policy.safetensors", "train.parquet"):
            place = Path("results/smoke/runs") / ENV / f"dqn_ff/seed_{seed}" / name
            assert (workdir / place).read_bytes() == (alone / place).read_bytes()
    first, second = (workdir / "results/smoke/runs" / ENV / f"dqn_ff/seed_{s}/policy.safetensors" for s in SEEDS)
    assert first.read_bytes() != second.read_bytes()


def test_the_environment_says_how_many_share_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    @contextmanager
    def held(wanted: str, pack: int = 1, *, count: int = 1) -> Any:
        seen.append(pack)
        raise SystemExit(0)
        yield "cpu"

    monkeypatch.setattr(lease, "device_lease", held)
    monkeypatch.setenv("RECOLLECT_PACK", "3")
    monkeypatch.setattr(sys, "argv", command("0")[2:])
    with pytest.raises(SystemExit):
        cli.main()
    assert seen == [3]
