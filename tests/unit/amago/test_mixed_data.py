"""Trajectories of others beside a run's own: read as they are, drawn with their share, or alone where nothing is collected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_amago import MAZE, ROOM, run_in, settings_of

from recollect.amago import amago
from recollect.amago.hyperparameters import MixSettings
from recollect.amago.loop import Trainer
from recollect.amago.mixed_data import opened
from recollect.amago.trajectory_files import TrajectoryFiles
from recollect.artifacts.run import Run
from recollect.artifacts.safetensors_format import encode
from recollect.artifacts.set_aside import remove_finished
from recollect.common.contract import Inputs
from recollect.environments import registry
from recollect.settings.errors import UserError

WIND = ("wind", {"horizon": 10, "radius": 0.3})


def world_of(world: tuple[str, dict[str, Any]]) -> Any:
    name, options = world
    return registry.make_world(name, options, registry.tasks(name, options, "train")[:1], np.zeros(1))


def store(path: Path, arrays: dict[str, np.ndarray]) -> None:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        path.write_bytes(b"".join(encode(arrays, {})))


def windy(lengths: tuple[int, ...], ends: str = "terminals", **more: Any) -> dict[str, np.ndarray]:
    """Episodes of Wind's shapes: observation (10 e + t), action t / 100, reward t."""
    episode = np.repeat(np.arange(len(lengths)), lengths)
    t = np.concatenate([np.arange(length) for length in lengths])
    last = np.concatenate([np.arange(length) == length - 1 for length in lengths])
    size = world_of(WIND).single_observation_space.shape[0]
    observations = np.repeat((10 * episode + t)[:, None], size, 1).astype(np.float64)
    given = {"observations": observations, "actions": np.stack([t, t], -1) / 100, "rewards": t[:, None].astype(float)}
    given |= {"terminals": np.zeros(len(t), bool), "timeouts": np.zeros(len(t), bool)}
    return {**given, ends: last, **{name: value(observations) for name, value in more.items()}}


def rows_of(found: TrajectoryFiles, number: int) -> dict[str, np.ndarray]:
    columns, first, rows, _ = found._find(number)
    return {name: column[first : first + rows] for name, column in columns.items()}


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize(
    ("arrays", "seen", "done"),
    [
        (windy((3, 2)), [[0, 1, 2, 2], [10, 11, 11]], True),  # nothing is read of what is behind an end
        (windy((3, 2), "timeouts"), [[0, 1, 2], [10, 11]], False),  # and a step without what followed it is left out
        (windy((3, 2), "timeouts", next_observations=lambda o: o + 1), [[0, 1, 2, 3], [10, 11, 12]], False),
    ],
)
def test_episodes_of_d4rl_become_trajectories(
    arrays: dict[str, np.ndarray], seen: list[list[int]], done: bool, suffix: str, tmp_path: Path
) -> None:
    store(tmp_path / f"all{suffix}", arrays)
    found = opened(MixSettings(path=str(tmp_path), share=0.5), tmp_path / "scratch", world_of(WIND))
    assert len(found) == len(seen)
    for number, values in enumerate(seen):
        rows = rows_of(found, number)
        T = len(values) - 1
        assert rows["observation"][:, 0].tolist() == values and rows["observation"].dtype == np.float32
        assert rows["reward"].tolist() == [0, *range(T)] and rows["time"].tolist() == [*range(T + 1)]
        np.testing.assert_allclose(rows["previous_action"][:, 1], [-2, *(np.arange(T) / 100)], rtol=1e-6)
        assert rows["done"].tolist() == [False] * T + [done]


def test_an_episode_of_minari_has_one_more_observation_than_steps(tmp_path: Path) -> None:
    arrays = windy((4,))
    arrays["terminations"], arrays["truncations"] = arrays.pop("timeouts"), arrays.pop("terminals")
    arrays["observations"] = np.concatenate([arrays["observations"], arrays["observations"][-1:] + 5])
    store(tmp_path / "one.npz", arrays)
    found = opened(MixSettings(path=str(tmp_path / "one.npz"), share=1), tmp_path / "scratch", world_of(WIND))
    assert rows_of(found, 0)["observation"][:, 0].tolist() == [0, 1, 2, 3, 8]
    store(tmp_path / "one.npz", {**arrays, "terminations": np.arange(4) == 1})
    with pytest.raises(UserError, match="one more observation"):
        opened(MixSettings(path=str(tmp_path / "one.npz"), share=1), tmp_path / "scratch", world_of(WIND))


def test_actions_beyond_the_worlds_are_read_as_those_at_its_border(tmp_path: Path) -> None:
    store(tmp_path / "wide.npz", {**windy((3,)), "actions": np.array([[-3.0, 0.5], [1.5, -1.0], [0.0, 9.0]])})
    found = opened(MixSettings(path=str(tmp_path / "wide.npz"), share=1), tmp_path / "scratch", world_of(WIND))
    assert rows_of(found, 0)["previous_action"].tolist() == [[-2, -2], [-1, 0.5], [1, -1], [0, 1]]


def test_each_window_is_of_others_with_their_share_and_only_of_them_while_there_is_nothing_else(tmp_path: Path) -> None:
    store(tmp_path / "theirs" / "a.npz", windy((6, 6), next_observations=lambda o: o))
    world = world_of(WIND)
    found = opened(MixSettings(path=str(tmp_path / "theirs"), share=0.25), tmp_path / "scratch", world)
    own = TrajectoryFiles(tmp_path / "own", 10)
    own.beside = found, 0.25
    assert (own.sample(4, 3, seed=0, counter=0).observation_BTD >= 0).all()  # type: ignore[operator]
    own.add([{name: column - 100 if name == "observation" else column for name, column in rows_of(found, 0).items()}])
    theirs = [own.sample(20, 3, seed=0, counter=c).observation_BTD[:, 0, 0] >= 0 for c in range(60)]  # type: ignore[index, call-overload]
    assert np.mean(theirs) == pytest.approx(0.25, abs=0.04)
    assert len({int(each.sum()) for each in theirs}) > 3  # drawn, not counted out


@pytest.mark.parametrize("kind", ["file", "buffer"])
def test_weights_of_the_buffer_are_those_of_other_trajectories_too(kind: str, tmp_path: Path) -> None:
    """Of two steps and 18, by steps a tenth of the windows are of the first, by trajectories a half."""
    store(tmp_path / "theirs.npz", windy((2, 18)))
    path = tmp_path / "theirs.npz"
    if kind == "buffer":
        path = opened(MixSettings(path=str(path), share=1.0), tmp_path / "buffer", world_of(WIND)).folder
    mix = {"path": str(path), "share": 1.0}
    shares = []
    for weights in ("timestep", "trajectory"):
        trainer = Trainer(amago.Agent, settings_of(WIND, mix=mix, buffer_weights=weights), "cpu", run_in(tmp_path))
        drawn = [trainer.store.sample(50, 30, seed=0, counter=c).mask_BT.sum(1) == 3 for c in range(20)]
        shares.append(float(np.mean(drawn)))
    assert shares == [pytest.approx(0.1, abs=0.03), pytest.approx(0.5, abs=0.05)]


def test_of_a_run_that_ended_no_copy_of_other_trajectories_is_left(tmp_path: Path) -> None:
    store(tmp_path / "theirs.npz", windy((9, 7), next_observations=lambda o: o))
    settings = settings_of(WIND, mix={"path": str(tmp_path / "theirs.npz"), "share": 1.0}, epochs=2)

    class Stopped(Run):
        def save(self, *of: Any) -> None:
            super().save(*of)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        amago.train(settings, Inputs(), run_in(tmp_path, Stopped))
    # Of other code: what was left is set aside, but for the copy, which this run has made by then.
    run = Run(tmp_path, tmp_path / "checkpoints", settings_text="other code")
    amago.train(settings, Inputs(), run)
    assert list((tmp_path / "checkpoints" / "mixed").rglob("*.safetensors"))
    assert not list((tmp_path / "checkpoints" / "set_aside").rglob("mixed"))
    remove_finished(run.checkpoint_folder)
    assert {path.name for path in run.checkpoint_folder.iterdir()} == {"policies", "set_aside"}


def test_a_run_learns_from_the_buffer_of_another_without_a_step_of_its_own_and_leaves_it_as_it_is(
    tmp_path: Path,
) -> None:
    other = run_in(tmp_path / "other")
    Trainer(amago.Agent, settings_of(seed=1, steps_per_epoch=20), "cpu", other).collect()
    buffer = other.checkpoint_folder / "buffer"
    before = {path: path.read_bytes() for path in buffer.rglob("*") if path.is_file()}
    assert before
    run = run_in(tmp_path / "offline")
    settings = settings_of(mix={"path": str(buffer), "share": 1.0})
    amago.train(settings, Inputs(), run)
    assert Trainer(amago.Agent, settings, "cpu", run_in(tmp_path / "again")).collector.world.num_envs == 1  # of four
    assert {path: path.read_bytes() for path in buffer.rglob("*") if path.is_file()} == before
    assert not list((tmp_path / "offline").rglob("fifo/*.safetensors"))
    table = run.table()
    assert np.isfinite(table[table["metric"] == "critic_loss"]["value"]).sum() == 4
    evaluated = table[table["metric"] == "evaluation_return"]
    assert evaluated["step"].tolist() == [0, 6, 12]  # in updates: no step of the environment tells them apart


def test_a_run_beside_other_trajectories_finds_them_anew_when_it_goes_on(tmp_path: Path) -> None:
    store(tmp_path / "theirs.npz", windy((9, 7), next_observations=lambda o: o))
    settings = settings_of(WIND, mix={"path": str(tmp_path / "theirs.npz"), "share": 0.5}, steps_per_epoch=12)
    trainer = Trainer(amago.Agent, settings, "cpu", run_in(tmp_path))
    trainer.epoch()
    batches = [trainer.store.sample(8, 5, seed=0, counter=3)]
    again = Trainer(amago.Agent, settings, "cpu", run_in(tmp_path))
    batches.append(again.store.sample(8, 5, seed=0, counter=3))
    assert again.store.sizes() == trainer.store.sizes() and len(again.store) >= 4
    for name in ("observation_BTD", "previous_action_BT", "reward_BT"):
        np.testing.assert_array_equal(*(getattr(batch, name) for batch in batches))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rewards": None}, "lack 'rewards'"),
        ({"actions": np.zeros((3, 2))}, "columns of episodes have"),
        ({"observations": np.zeros((5, 3))}, r"observations of the world are float32 .* are float32 \(3,\)"),
        ({"actions": np.zeros((5, 3))}, r"previous_actions of the world are .* are float32 \(3,\)"),
        ({"actions": np.array([None] * 5)}, "plain arrays"),
        (windy((0,)), "no steps"),
    ],
)
def test_files_that_do_not_fit_are_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    arrays = {name: value for name, value in {**windy((3, 2)), **change}.items() if value is not None}
    store(tmp_path / "theirs.npz", arrays)
    with pytest.raises(UserError, match=said):
        opened(MixSettings(path=str(tmp_path / "theirs.npz"), share=1), tmp_path / "scratch", world_of(WIND))


@pytest.mark.parametrize("action", [-1, 4, 40_000])
def test_episodes_of_actions_that_the_world_has_not_are_refused(action: int, tmp_path: Path) -> None:
    world = world_of(MAZE)
    seen = np.zeros((3, *world.single_observation_space.shape))
    arrays = {"observations": seen, "actions": np.array([0, 3, 0]), "rewards": np.zeros(3), "terminals": np.ones(3)}
    mix = MixSettings(path=str(tmp_path / "theirs.npz"), share=1)
    store(tmp_path / "theirs.npz", arrays)
    assert len(opened(mix, tmp_path / "scratch", world)) == 3
    store(tmp_path / "theirs.npz", {**arrays, "actions": np.array([0, action, 0])})
    with pytest.raises(UserError, match=f"actions of the world are 0 to 3, those of episodes .*{action}"):
        opened(mix, tmp_path / "scratch", world)


def test_another_worlds_buffer_nothing_at_all_and_a_collector_without_use_are_refused(tmp_path: Path) -> None:
    room = Trainer(amago.Agent, settings_of(ROOM, steps_per_epoch=25), "cpu", run_in(tmp_path / "room"))
    room.collect()
    mix = {"path": str(tmp_path / "room/checkpoints/buffer"), "share": 0.5}
    with pytest.raises(UserError, match="observations of the world are"):
        Trainer(amago.Agent, settings_of(MAZE, mix=mix), "cpu", run_in(tmp_path / "maze"))
    with pytest.raises(UserError, match=r"there are no trajectories.*\n.*\n.*finished has none"):
        Trainer(amago.Agent, settings_of(mix={**mix, "path": str(tmp_path)}), "cpu", run_in(tmp_path / "none"))
    with pytest.raises(ValueError, match="set processes to 1"):
        settings_of(mix={**mix, "share": 1.0}, processes=2)


@pytest.mark.parametrize("change", ["cut", "flipped"])
def test_a_damaged_file_is_refused_by_name(change: str, tmp_path: Path) -> None:
    path = tmp_path / "theirs.npz"
    store(path, windy((6, 6), next_observations=lambda o: o))
    content = bytearray(path.read_bytes())
    if change == "cut":
        del content[len(content) // 2 :]
    else:
        content[100:140] = bytes(40)
    path.write_bytes(content)
    with pytest.raises(UserError, match="not a file of plain arrays"):
        opened(MixSettings(path=str(path), share=1), tmp_path / "scratch", world_of(WIND))
