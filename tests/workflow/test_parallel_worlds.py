"""A run whose world several processes play is the run in one process: `recollect run`, with a slow world of one's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from recollect.artifacts.sealed import read_table

ROOT = Path(__file__).resolve().parents[2]
WORLD = """
import os
from pathlib import Path
from recollect.environments.tmaze import TMaze, tasks


class World(TMaze):
    slow = True

    def _setup(self) -> None:
        super()._setup()
        with Path("played.txt").open("a") as file:
            print(os.getpid(), self.num_envs, file=file)
"""
ENVIRONMENT = """
world: slow_tmaze
title: Slow T-Maze
options: {variant: passive, length: 6}
evaluation: {protocol: episodic, episodes: 6, splits: [eval]}
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dqn_lstm", "amago_transformer"])
def test_a_run_in_several_processes_is_the_run_in_one(tmp_path: Path, method: str) -> None:
    made = {}
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        (folder / "mine" / "config" / "environments").mkdir(parents=True)
        (folder / "mine" / "slow_tmaze.py").write_text(WORLD)
        (folder / "mine" / "config" / "environments" / "slow_tmaze.yaml").write_text(ENVIRONMENT)
        environment = {**os.environ, "RECOLLECT_CONFIG": str(ROOT / "config"), "CUDA_VISIBLE_DEVICES": ""}
        environment |= {"OMP_NUM_THREADS": "1", "RECOLLECT_WORLD_PROCESSES": str(processes)}
        environment.pop("RECOLLECT_MINE", None)
        of = ("--scale", "smoke", "--env", "slow_tmaze", "--method", method, "--seed", "1")
        command = [sys.executable, "-c", "from recollect.launch import main; main()", "run", *of]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        played = [line.split() for line in (folder / "played.txt").read_text().splitlines()]
        several = {pid for pid, count in played if count != "1"}
        assert len(several) >= processes
        made_there = folder / "results" / "smoke" / "runs" / "slow_tmaze" / method / "seed_1"
        tables = [read_table(made_there / f"{name}.parquet") for name in ("train", "scores")]
        made[processes] = (
            (made_there / "policy.safetensors").read_bytes(),
            *(table.drop(columns="seconds", errors="ignore") for table in tables),
        )
    (one, *ones), (two, *twos) = made[1], made[2]
    assert one == two
    assert len(ones[0]) > 0 and len(ones[1]) >= 6
    for mine, theirs in zip(ones, twos, strict=True):
        pd.testing.assert_frame_equal(mine, theirs)
