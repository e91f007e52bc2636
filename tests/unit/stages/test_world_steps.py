"""config/world_steps.csv, and what forecasts make of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import worlds
from recollect.environments import registry
from recollect.settings.catalogue import known
from recollect.settings.errors import UserError
from recollect.settings.resolve import environment_mapping
from recollect.stages import world_steps
from recollect.stages.estimating import Known
from recollect.stages.machines import machines
from recollect.stages.stage import Job
from recollect.stages.workload import work_of


def test_rows_are_of_environments_that_there_are() -> None:
    rows = world_steps.read()
    assert len({row.env for row in rows}) == len(rows) > 60
    for row in rows:
        assert environment_mapping("paper", row.env)["world"] == row.world and row.world in known("world")
        assert 1 < row.microseconds < 20_000
    assert world_steps.text(rows) == world_steps.path().read_text()


def test_what_several_processes_play_is_what_the_worlds_say() -> None:
    for world, parallel in {(row.world, row.in_two is not None) for row in world_steps.read()}:
        try:
            kind = registry.world_class(world)
        except UserError:  # its package is not installed
            continue
        assert kind.slow == parallel, world


def test_an_environment_has_its_own_time_and_another_of_its_world_the_mean() -> None:
    cpu, gpu = machines()["cpu"], machines()["cuda"]
    rows = [row for row in world_steps.read() if row.world == "partial_bullet"]
    assert rows and all(row.in_two is not None for row in rows) and gpu.processes == 4
    job = Job("train", "paper", rows[0].env, "td3_lstm", 1)
    work = work_of(job)
    steps = work.env_steps
    assert cpu.plays(job, work) == pytest.approx(steps * rows[0].microseconds * 1e-6)
    four = rows[0].microseconds / 4 + max(0.0, (rows[0].in_two or 0.0) - rows[0].microseconds / 2)
    assert gpu.plays(job, work) == pytest.approx(steps * min(four, rows[0].microseconds) * 1e-6)
    mean = sum(row.microseconds for row in rows) / len(rows) * 1e-6
    other = job._replace(env="bullet_ant_f")
    assert other.env not in {row.env for row in rows}
    assert cpu.plays(other, work) == pytest.approx(steps * mean)
    assert cpu.works(job, work) > cpu.plays(job, work)


def test_games_of_seeds_that_are_trained_together_are_played_side_by_side() -> None:
    cpu, gpu = machines()["cpu"], machines()["cuda"]
    for env, shares in (("procgen_memory_miner", (1, 2, 4, 4)), ("mini_grid_Unlock", (1, 1, 1, 1))):
        job = Job("train", "paper", env, "ppo_cnn")
        work = work_of(job)
        for seeds, share in zip((1, 2, 4, 30), shares, strict=True):
            assert gpu.plays(job, work, seeds) == pytest.approx(gpu.plays(job, work) / share)
            assert cpu.plays(job, work, seeds) == cpu.plays(job, work)


def test_more_processes_wait_as_two_do() -> None:
    row = world_steps.read()[0].model_copy(update={"env": "e", "world": "w", "microseconds": 400.0, "in_two": 250.0})
    slower = row.model_copy(update={"env": "f", "in_two": 700.0})
    alone = row.model_copy(update={"env": "g", "in_two": None})
    seconds = world_steps.of_environments([row, slower, alone], 4)
    assert seconds == pytest.approx({"e": 150e-6, "f": 400e-6, "g": 400e-6})
    assert world_steps.of_worlds([row, slower], 4) == pytest.approx({"w": 275e-6})
    assert world_steps.of_environments([row], 1) == pytest.approx({"e": 400e-6})


def test_steps_of_a_world_are_not_carried_over_but_known() -> None:
    """A job was reckoned 10 s, 4 of them its world's, and took 16: what is not the world's took twice as long as reckoned."""
    known = Known(by_rule=10.0, plays=4.0, seconds=16.0, seeds=1)
    assert known.of(by_rule=10.0, plays=4.0) == pytest.approx(16.0)
    assert known.of(by_rule=106.0, plays=100.0) == pytest.approx(112.0)
    assert known.of(by_rule=6.0, plays=0.0) == pytest.approx(12.0)
    # Where it took less than its world alone is said to take, all is carried over.
    assert Known(by_rule=10.0, plays=8.0, seconds=5.0, seeds=1).of(by_rule=20.0, plays=18.0) == pytest.approx(10.0)
    # And where a tenth or less of it is left for all else; of a fifth that fifth is carried over.
    assert Known(by_rule=10.0, plays=8.0, seconds=8.5, seeds=1).of(by_rule=20.0, plays=9.0) == pytest.approx(17.0)
    assert Known(by_rule=10.0, plays=8.0, seconds=10.0, seeds=1).of(by_rule=20.0, plays=9.0) == pytest.approx(20.0)


def test_a_row_that_is_wrong_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = world_steps.path().read_text().splitlines()
    (tmp_path / "world_steps.csv").write_text("\n".join([*text[:2], text[2].replace(text[2].split(",")[2], "-3")]))
    monkeypatch.setattr(world_steps, "config_folder", lambda: tmp_path)
    with pytest.raises(UserError, match="microseconds") as error:
        world_steps.read()
    assert error.value.where.endswith("world_steps.csv, line 3")


def test_the_command_times_what_can_be_played_and_keeps_the_figures_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "world_steps.csv").write_text(world_steps.path().read_text())
    monkeypatch.setenv("RECOLLECT_PROCGEN_PYTHON", str(tmp_path / "nothing"))
    before = {row.env: row for row in world_steps.read()}
    env, gone = "mini_grid_MemoryS11", "mini_grid_Unlock"
    asked, known = [env, "dark_room_10x10", "procgen"], [name for name in before if name != gone]
    monkeypatch.setattr(world_steps, "config_folder", lambda: tmp_path)
    monkeypatch.setattr(worlds, "environments", lambda beginnings: asked if beginnings else known)
    assert worlds.main(["mini_grid", "--seconds", "0.01"]) == 0
    said = capsys.readouterr().out
    assert f"{env}: " in said and "dark_room" not in said and "procgen: not timed" in said
    assert f"1 environments timed, {len(before) - 2} kept" in said
    after = {row.env: row for row in world_steps.read()}
    assert after.keys() == before.keys() - {gone}
    assert [name for name in after if after[name] != before[name]] == [env]
    assert after[env].in_two is None and after[env].instances == 16


@pytest.mark.slow
def test_the_command_knows_the_environments_of_all_figures() -> None:
    found = worlds.environments(["mini_grid", "amago_meta"])
    assert {"mini_grid_MemoryS11", "amago_meta_world_ml45"} <= set(found)
    assert all(env.startswith(("mini_grid", "amago_meta")) for env in found)
    with pytest.raises(UserError, match="no environment's name begins so"):
        worlds.environments(["mini_gird"])
