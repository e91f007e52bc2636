"""Promises of real training to those who watch: every method's line has loss and return, and its rows are there at once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import fast_yaml
import pytest

from recollect.artifacts.live import FILE, Live, Points, points_of, read_live
from recollect.artifacts.sealed import read_table
from recollect.artifacts.trackers import KINDS, VARIABLE
from recollect.stages import paths
from recollect.stages.run import ahead
from recollect.stages.train import train

METHODS = [
    pytest.param("tmaze_passive_5", "dqn_ff", "critic_loss evaluation_return", id="dqn"),
    pytest.param("visual_match_6", "sacd_lstm", "actor_loss critic_loss evaluation_return", id="sacd"),
    pytest.param("gym.Pendulum-v1", "td3_ff", "actor_loss critic_loss evaluation_return", id="td3"),
    pytest.param("gym.Pendulum-v1", "sac_ff", "actor_loss critic_loss evaluation_return", id="sac"),
    pytest.param("amago_tmaze_5", "amago_ff", "actor_loss critic_loss evaluation_return training_return", id="amago"),
    pytest.param("random_maze", "ppo_cnn", "loss episode_return", id="ppo"),
    pytest.param("dark_room_10x10", "dt", "loss eval/return", id="dt"),
]


class Heard:
    """A tracker that keeps what it is told, over all runs."""

    points: dict[tuple[Any, ...], Points]

    def __init__(self, run: Any, ident: str, after: int) -> None:
        self.mine = self.points.setdefault(tuple(run.names.values()), {})

    def log(self, step: int, values: Any) -> None:
        self.mine.setdefault(step, {}).update(values)

    def close(self, failed: bool) -> None:
        assert not failed


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What stood in the live file of each run when its table was sealed, and what a tracker was told."""
    seen: dict[str, Any] = {"files": {}, "told": {}}

    class Kept(Heard):
        points = seen["told"]

    def keep(live: Live, done: Any = Live.done) -> None:
        seen["files"][live.path.parent.name] = read_live(live.path)[1]
        done(live)

    monkeypatch.setattr(Live, "done", keep)
    monkeypatch.setitem(KINDS, "trackio", Kept)
    monkeypatch.setenv(VARIABLE, "trackio")
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("env, method, wanted", METHODS)
def test_a_methods_line_has_loss_and_return_and_its_rows_are_there_while_it_learns(
    env: str, method: str, wanted: str, workdir: Path, watched: Any, capsys: Any, request: Any
) -> None:
    if env.startswith("dark_room"):
        shutil.copytree(request.getfixturevalue("smoke_data") / "data", workdir / "data")
    of = ("smoke", env, method, 0)
    train(*of)
    line = [text for text in capsys.readouterr().err.splitlines() if text.startswith("training: ")][-1]
    assert [text.split()[0] for text in line.split(", ") if text.split()[0] in wanted.split()] == wanted.split(), line
    table = points_of(read_table(paths.train_table(*of), kind="train"))
    assert watched["files"]["seed_0"] == table == watched["told"][of]
    assert not (paths.checkpoints(*of) / FILE).exists() and not paths.tracking(*of).exists()


@pytest.mark.slow
def test_seeds_that_are_trained_together_have_rows_of_their_own_and_one_line_of_means(
    workdir: Path, watched: Any, capsys: Any
) -> None:
    file = workdir / "config" / "scales" / "smoke.yaml"
    file.write_text(fast_yaml.dump({**fast_yaml.load(file.read_text()), "ensembles": ["dqn_ff"]}))
    ahead("smoke", "tmaze_passive_5", "dqn_ff", [0, 1])
    line = [text for text in capsys.readouterr().err.splitlines() if text.startswith("training 2 seeds")][-1]
    tables = [points_of(read_table(paths.train_table("smoke", "tmaze_passive_5", "dqn_ff", s))) for s in range(2)]
    assert [watched["files"][f"seed_{seed}"] for seed in range(2)] == tables and tables[0] != tables[1]
    mean = sum(table[max(table)]["critic_loss"] for table in tables) / 2
    assert f"critic_loss {mean:.4g}" in line
