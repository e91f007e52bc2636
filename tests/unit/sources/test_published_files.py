"""Histories from published files: they equal what was written, and files of another task, world or size are refused."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import fast_yaml
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from published_formats import (
    DTYPES,
    HAS_H5PY,
    LAYOUTS,
    NAMES,
    complete,
    lives,
    played,
    stand_in_for_h5py,
    write_episodes,
    write_npz,
)

from recollect.artifacts.sealed import read_arrays, sha256_of, verify
from recollect.common.histories import Histories
from recollect.settings.catalogue import known
from recollect.settings.errors import UserError
from recollect.settings.loading import validated
from recollect.settings.resolve import environment_settings
from recollect.sources import published_files
from recollect.sources.published_files import Hyperparameters, form_of, generate
from recollect.stages.generate import generate as generate_stage
from recollect.stages.stage import Job
from recollect.stages.table import STAGES

ROOM = {"width": 5, "height": 4}  # 16 train tasks, 20 steps an episode
MAZES = {"horizon": 30}


def names_of(world, tasks, order=("door", "key")):
    if world == "maze_runner":
        return [str(task.data["seed"]) for task in tasks]
    cells = [[task.data[name] for name in (("goal",) if world == "dark_room" else order)] for task in tasks]
    return ["_".join(f"[{x},{y}]" for x, y in [(0, 0), *of_task]) for of_task in cells]


def read(folder, world="dark_room", options=ROOM, tasks=None, **chosen):
    tasks = tasks if tasks is not None else published_files.registry.tasks(world, options, "train")
    return generate(world, options, tasks, Hyperparameters(folder=str(folder), **chosen), seed=0)


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        assert found[name].dtype == column.dtype, name
        np.testing.assert_array_equal(found[name], column, err_msg=name)


@pytest.fixture(scope="module")
def room():
    """Tasks and histories of a small Dark-Room; the last episode of each task is not finished."""
    return played("dark_room", ROOM, transitions=215)


@pytest.fixture(scope="module")
def room_files(room, tmp_path_factory):
    tasks, histories = room
    return write_npz(tmp_path_factory.mktemp("room"), names_of("dark_room", tasks), lives(histories).values())


@pytest.fixture
def files(room_files, tmp_path):
    """A copy that the test may change."""
    return Path(shutil.copytree(room_files, tmp_path / "files"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtypes", DTYPES)
def test_histories_equal_the_episodes_that_were_written_in_every_layout(room, tmp_path, layout, dtypes, caplog):
    tasks, histories = room
    folder = write_npz(tmp_path, names_of("dark_room", tasks), lives(histories).values(), layout=layout, dtypes=dtypes)
    with caplog.at_level(logging.INFO):
        found = read(folder)
    assert_equal(found, complete(histories))
    Histories(found).validate(observation_low=0, observation_high=4, actions=5)
    assert (
        "160 episodes (3200 transitions) of 16 tasks; 16 unfinished last episodes (240 transitions) left out"
        in caplog.text
    )
    assert "16 of 16 first episodes played again in our world" in caplog.text


@pytest.mark.quick("npz")
@pytest.mark.parametrize("kind", ["hdf5", "npz"])
def test_folders_of_episodes_give_the_same_histories_as_files(room, tmp_path, kind, monkeypatch):
    if not HAS_H5PY:
        monkeypatch.setitem(sys.modules, "h5py", stand_in_for_h5py())
    tasks, histories = room
    for name, life in zip(names_of("dark_room", tasks), lives(histories).values(), strict=True):
        write_episodes(tmp_path / name, life, kind=kind)
    assert_equal(read(tmp_path, layout="episodes"), complete(histories))


@pytest.mark.parametrize("key_reset", ["sticky", "per_episode"])
@pytest.mark.parametrize("order", [("door", "key"), ("key", "door")])
@pytest.mark.parametrize("final", ["zero", "normal"])
def test_key_door_is_read_in_either_order_of_names_and_semantics(tmp_path, key_reset, order, final):
    options = {**ROOM, "key_reset": key_reset, "final_step_reward": final}
    tasks, histories = played("key_door", options)
    folder = write_npz(tmp_path, names_of("key_door", tasks, order), lives(histories).values())
    assert_equal(read(folder, "key_door", options), complete(histories))


@pytest.mark.slow
def test_mazes_are_read_by_their_seed(tmp_path):
    tasks, histories = played("maze_runner", MAZES, transitions=90)
    folder = write_npz(tmp_path, names_of("maze_runner", tasks), lives(histories).values(), layout="buffer")
    assert_equal(read(folder, "maze_runner", MAZES), complete(histories))
    (folder / "0.npz").rename(folder / "swap")
    (folder / "1.npz").rename(folder / "0.npz")
    (folder / "swap").rename(folder / "1.npz")
    with pytest.raises(UserError, match="2 of 100 files does not go as in the world 'maze_runner': at step") as error:
        read(folder, "maze_runner", MAZES)
    assert error.value.where.endswith("0.npz")


def test_the_eval_split_can_be_read_and_a_random_start_is_not_played_again(tmp_path, caplog):
    tasks, histories = played("dark_room", ROOM, "eval")
    assert (0, 0) in [task.data["goal"] for task in tasks]  # whose episodes start anywhere
    folder = write_npz(tmp_path, names_of("dark_room", tasks), lives(histories).values())
    with caplog.at_level(logging.INFO):
        assert_equal(read(folder, tasks=tasks), complete(histories))
    assert "3 of 4 first episodes played again in our world" in caplog.text
    part = {name: column[np.isin(histories["task"], (1, 2))] for name, column in complete(histories).items()}
    assert_equal(read(folder, tasks=[tasks[2], tasks[1]]), part)


# ------------------------------------------------------------------------------------------------------- refused files


def swap(folder, one, other):
    (folder / one).rename(folder / "swap")
    (folder / other).rename(folder / one)
    (folder / "swap").rename(folder / other)


def test_a_mislabelled_file_is_refused(files, room):
    names = names_of("dark_room", room[0])
    swap(files, f"{names[3]}.npz", f"{names[5]}.npz")
    with pytest.raises(UserError, match="rewards of this file are not those of its task") as error:
        read(files)
    assert Path(error.value.where).name == f"{names[3]}.npz"


def test_a_mislabelled_key_door_file_is_refused_and_one_of_two_candidates_found(tmp_path):
    options = {**ROOM, "key_reset": "sticky"}
    tasks, histories = played("key_door", options)
    task = next(t for t in tasks if t.data["door"] != t.data["key"] and (0, 0) not in t.data.values())
    life = lives(histories)[task.index]
    (right,), (other,) = (names_of("key_door", [task], order) for order in (("door", "key"), ("key", "door")))
    folder = write_npz(tmp_path / "two", [right], [life])
    stray = next(t for t in tasks if set(t.data.values()).isdisjoint(task.data.values()))
    write_npz(folder, [other], [lives(histories)[stray.index]])
    np.testing.assert_array_equal(read(folder, "key_door", options, [task])["action"], life["action"])
    write_npz(folder, [other], [life])
    with pytest.raises(UserError, match=f"which of 2 files is that of the task {task.name}"):
        read(folder, "key_door", options, [task])
    alone = write_npz(tmp_path / "one", [other], [lives(histories)[stray.index]])
    with pytest.raises(UserError, match="are not those of its task"):
        read(alone, "key_door", options, [task])


def changed_files(files, **changes):
    for path in files.glob("*.npz"):
        with np.load(path) as archive:
            arrays = {name: archive[name] for name in archive.files}
        for name, change in changes.items():
            arrays[name] = change(arrays[name])
        np.savez(path, **arrays)
    return files


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": lambda a: (a + 1) % 5}, "of 16 of 16 files does not go as in the world.*after action"),
        ({"observations": lambda a: np.minimum(a[:, ::-1], 3)}, "of 16 of 16 files does not go.*the file sees"),
        ({"rewards": np.zeros_like}, "the file pays 0, our world 1"),
        ({"dones": lambda a: np.roll(a, -1)}, "file's episode ends, our world's does not"),
    ],
)
def test_files_that_go_otherwise_than_our_world_are_refused(files, changes, message):
    with pytest.raises(UserError, match=message) as error:
        read(changed_files(files, **changes))
    assert Path(error.value.where).parent == files


def test_files_can_be_read_without_being_played_again(files, room):
    shifted = changed_files(files, actions=lambda a: (a + 1) % 5)
    np.testing.assert_array_equal(read(shifted, replay=False)["action"], (complete(room[1])["action"] + 1) % 5)


def test_files_of_another_size_are_refused(files):
    small = {"width": 4, "height": 4}
    tasks = published_files.registry.tasks("dark_room", small, "train")
    there = [task for task in tasks if (files / f"{names_of('dark_room', [task])[0]}.npz").exists()]
    with pytest.raises(UserError, match=r"observations is outside of the world \(0 to 3\)"):
        read(files, options=small, tasks=there)
    with pytest.raises(UserError, match="an episode has 20 steps, the environment's have at most 15") as error:
        read(files, options={**ROOM, "horizon": 15})
    assert "keep: {longest: 15}" in error.value.do


def test_a_missing_pickled_or_damaged_file_is_named(files, room):
    name = names_of("dark_room", room[0])[7]
    path = files / f"{name}.npz"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="cut short") as error:
        read(files)
    assert error.value.where == str(path)
    path.rename(path.with_suffix(".pkl"))
    with pytest.raises(UserError, match=r"files of 1 of 16 tasks are missing.*there are pickles instead"):
        read(files)


def test_nothing_is_paid_in_a_file_is_said(files, room, caplog):
    name = names_of("dark_room", room[0])[7]
    with np.load(files / f"{name}.npz") as archive:
        arrays = {key: archive[key] for key in archive.files}
    rows = slice(0, 20)
    still = {key: array[rows].copy() for key, array in arrays.items()}
    still["observations"][:], still["actions"][:], still["rewards"][:] = 0, 4, 0
    np.savez(files / f"{name}.npz", **still)
    with caplog.at_level(logging.INFO):
        read(files)
    assert "1 files without any reward, whose names could not be checked" in caplog.text


# ------------------------------------------------------------------------------------------------------ what is kept


def test_the_best_the_first_and_the_random_share_are_kept_in_time_order(files, room):
    histories = complete(room[1])
    returns = histories["reward"].reshape(16, 10, 20).sum(2)
    best = read(files, keep={"top_p": 0.3})
    assert best["reward"].reshape(16, 3, 20).sum(2).sum() == np.sort(returns, axis=1)[:, -3:].sum()
    assert (best["episode"].reshape(16, 3, 20)[0, :, 0] == [0, 1, 2]).all()
    first = read(files, keep={"first_p": 0.5})
    np.testing.assert_array_equal(first["action"].reshape(16, 5, 20), histories["action"].reshape(16, 10, 20)[:, :5])
    some, again = (read(files, keep={"uniform_p": 0.5})["action"] for _ in range(2))
    np.testing.assert_array_equal(some, again)
    assert some.shape == (16 * 5 * 20,) and (some != first["action"]).any()
    played_EMT, kept_EKT = histories["action"].reshape(16, 10, 1, 20), some.reshape(16, 1, 5, 20)
    places_EM = (played_EMT == kept_EKT).all(3).any(2)
    assert (places_EM.sum(1) == 5).all() and len(np.unique(places_EM, axis=0)) > 10  # each task draws its own
    with pytest.raises(UserError, match="no episode of 10 is kept"):
        read(files, keep={"top_p": 0.05})


def test_value_estimates_at_the_time_limit_are_reported_and_can_be_removed(files, room, caplog):
    """As the released source agent stores them: reward plus discounted value where the time limit ended the episode."""
    histories = complete(room[1])

    def with_estimates(reward_N: np.ndarray) -> np.ndarray:
        """1.75 or, in every second episode, so much that the stored rewards give other returns."""
        row_N = np.arange(len(reward_N), dtype=np.float32)
        return np.where(row_N % 20 == 19, reward_N + 1.75 + row_N // 20 % 2 * 40, reward_N).astype(np.float32)

    estimated = changed_files(files, rewards=with_estimates)
    with caplog.at_level(logging.WARNING):
        stored = read(estimated)
    assert "160 episodes that the time limit ended have a last reward that is no whole number" in caplog.text
    assert stored["reward"][19] == histories["reward"][19] + 1.75
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        removed = read(estimated, last_reward="zero")
    assert not caplog.text and not removed["reward"][histories["done"]].any()
    np.testing.assert_array_equal(removed["reward"][~histories["done"]], histories["reward"][~histories["done"]])
    best = read(estimated, last_reward="zero", keep={"top_p": 0.1})["reward"].reshape(16, 20).sum(1)
    np.testing.assert_array_equal(best, removed["reward"].reshape(16, 10, 20).sum(2).max(1))  # chosen without them
    for name in names_of("dark_room", room[0]):
        with np.load(estimated / f"{name}.npz") as archive:
            life = {key: archive[NAMES[key]] for key in NAMES}
        write_episodes(estimated / "folders" / name, life, kind="npz")
    episodes = read(estimated / "folders", layout="episodes", last_reward="zero", keep={"top_p": 0.1})
    np.testing.assert_array_equal(episodes["reward"].reshape(16, 20).sum(1), best)


def test_long_episodes_are_cut(files, room):
    found = read(files, keep={"longest": 7}, options={**ROOM, "horizon": 20})
    expected = {name: c.reshape(160, 20, *c.shape[1:])[:, :7] for name, c in complete(room[1]).items()}
    np.testing.assert_array_equal(found["observation"], expected["observation"].reshape(-1, 2))
    assert found["done"].reshape(160, 7).sum(0).tolist() == [0] * 6 + [160]
    for longest in (None, 15):
        with pytest.raises(UserError, match="has 20 steps, the environment's have at most 10"):
            read(files, keep={"longest": longest}, options={**ROOM, "horizon": 10})


# ------------------------------------------------------------------------------------------------ worlds, settings


class Made:
    def __init__(self, observations: Any, actions: Any) -> None:
        self.single_observation_space, self.single_action_space = observations, actions


def test_the_form_of_rows_follows_from_the_world():
    images = form_of(Made(Box(0, 255, (3, 64, 64), np.uint8), Discrete(15)))
    assert (images.observation_dtype, images.action_dtype, images.actions) == (np.uint8, np.int8, 15)
    control = form_of(Made(Box(-np.inf, np.inf, (39,), np.float32), Box(-1, 1, (4,), np.float32)))
    assert (control.observation_dtype, control.action_dtype) == (np.float32, np.float32)
    assert control.action_shape == (4,) and control.actions == 0
    assert form_of(Made(Box(0, 9, (2,), np.int16), Discrete(5))).observation_dtype == np.int8
    large = form_of(Made(Box(0, 128, (2,), np.int32), Discrete(200)))  # an int8 ends at 127
    assert (large.observation_dtype, large.action_dtype) == (np.int16, np.int16)
    encoded = form_of(Made(Box(0, 255, (3, 64, 64), np.uint8), Discrete(15)), "states_encoded")
    assert encoded.observation_shape is None and encoded.observation_dtype == np.float32
    with pytest.raises(UserError, match="cannot be read"):
        form_of(Made(Box(0, 9, (2,), np.int16), MultiDiscrete([2, 3])))


def test_a_scale_that_names_published_files_takes_over_nothing_of_the_source_agent(workdir):
    path = workdir / "config/scales/smoke.yaml"
    content = fast_yaml.load(path.read_text())
    chosen = {"algorithm": "published_files", "hyperparameters": {"folder": "somewhere"}}
    content["environments"]["dark_room_10x10"]["source"] = chosen
    path.write_text(fast_yaml.dump(content))
    source = environment_settings("smoke", "dark_room_10x10").source
    assert source is not None and source.split == "train" and "published_files" in known("source")
    assert validated(Hyperparameters, source.hyperparameters, where="here") == Hyperparameters(folder="somewhere")
    assert "epochs" in environment_settings("paper", "dark_room_10x10").source.hyperparameters


# --------------------------------------------------------------------------------------------------- end to end


@pytest.fixture
def published_room(workdir, room_files):
    """A working directory with an environment that reads published files, at its own scale; and its folder."""
    (workdir / "config/scales/mine.yaml").write_text("{description: mine, seeds: [0]}")
    folder = workdir / "downloads/room"
    shutil.copytree(room_files, folder)

    def say(folder=folder, **more):
        source = {"algorithm": "published_files", "hyperparameters": {"folder": str(folder), **more}}
        entry = {"world": "dark_room", "options": ROOM, "source": source}
        (workdir / "config/environments/room.yaml").write_text(fast_yaml.dump(entry))

    say()
    return workdir, folder, say


def test_recollect_generate_writes_the_published_episodes_and_says_what_it_read(published_room, room, run_recollect):
    workdir, folder, _ = published_room
    done = run_recollect("generate", "--scale", "mine", "--env", "room", cwd=workdir)
    assert done.returncode == 0, done.stderr
    assert "160 episodes (3200 transitions) of 16 tasks" in done.stderr
    path = workdir / "data/mine/room/histories.safetensors"
    assert_equal(read_arrays(path, kind="histories"), complete(room[1]))
    inputs = verify(path)["provenance"]["inputs"]
    assert inputs == {str(file): sha256_of(file) for file in sorted(folder.iterdir())}
    assert sorted(p.name for p in path.parent.iterdir()) == [
        "histories.safetensors",
        "histories.safetensors.manifest.json",
    ]


@pytest.mark.slow
def test_histories_of_files_are_of_today_as_long_as_the_files_are(published_room):
    _, folder, _ = published_room
    job = Job("generate", "mine", "room")
    generate_stage("mine", "room")
    assert STAGES["generate"].is_made(job)
    path = sorted(folder.iterdir())[0]
    content = path.read_bytes()
    path.write_bytes(content + b"\0")
    assert not STAGES["generate"].is_made(job)
    path.write_bytes(content)
    assert STAGES["generate"].is_made(job)
    path.unlink()
    assert not STAGES["generate"].is_made(job)


@pytest.mark.slow
def test_both_layouts_of_the_same_data_give_the_same_file(published_room, room):
    workdir, _, say = published_room
    path = workdir / "data/mine/room/histories.safetensors"
    tasks, histories = room
    written = set()
    for layout in LAYOUTS:
        say(write_npz(workdir / layout, names_of("dark_room", tasks), lives(histories).values(), layout=layout))
        generate_stage("mine", "room")
        written.add(sha256_of(path))
    for name, life in zip(names_of("dark_room", tasks), lives(histories).values(), strict=True):
        write_episodes(workdir / "episodes" / name, life, kind="npz")
    say(workdir / "episodes", layout="episodes")
    generate_stage("mine", "room")
    assert written == {sha256_of(path)}


def test_files_that_changed_since_they_were_fetched_are_refused(published_room):
    workdir, folder, say = published_room
    fetched = workdir / "data/published/dark_room"
    shutil.copytree(folder, fetched / "5x4")
    say("data/published/dark_room/5x4")
    with pytest.raises(UserError, match="an input is missing") as error:
        generate_stage("mine", "room")
    assert error.value.where == "data/published/dark_room/index.json"
    from recollect.artifacts.sealed import write_json

    hashes = {f"5x4/{path.name}": sha256_of(path) for path in folder.iterdir()}
    write_json(
        fetched / "index.json", {"repository": "a/b", "revision": "0" * 40, "files": hashes}, kind="published data"
    )
    generate_stage("mine", "room")
    inputs = verify(workdir / "data/mine/room/histories.safetensors")["provenance"]["inputs"]
    assert inputs["data/published/dark_room/index.json"] == sha256_of(fetched / "index.json") and len(inputs) == 17
    path = next((fetched / "5x4").iterdir())
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(UserError, match="not as it was fetched") as error:
        generate_stage("mine", "room")
    assert Path(error.value.where).name == path.name and "recollect fetch --data dark_room" in error.value.do


def test_a_bad_file_leaves_nothing_half_written(published_room, run_recollect):
    workdir, folder, _ = published_room
    path = sorted(folder.iterdir())[-1]
    path.write_bytes(path.read_bytes()[:-5])
    done = run_recollect("generate", "--scale", "mine", "--env", "room", cwd=workdir)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert path.name in done.stderr and "to do: fetch the file again" in done.stderr
    assert [p for p in (workdir / "data").rglob("*") if p.is_file()] == []


def test_manifest_entries_of_folders_follow_their_contents(tmp_path):
    from recollect.sources.published_fetch import hashes

    (tmp_path / "game").mkdir()
    (tmp_path / "game" / "0.npz").write_bytes(b"a")
    (one,) = hashes([tmp_path / "game"]).values()
    (tmp_path / "game" / "0.npz").rename(tmp_path / "game" / "1.npz")
    (other,) = hashes([tmp_path / "game"]).values()
    for name in ("loop", "game/loop"):
        (tmp_path / name).symlink_to(tmp_path / name)
        with pytest.raises(UserError, match=r"cannot be read: .*symbolic links"):
            hashes([tmp_path / name.partition("/")[0]])
        (tmp_path / name).unlink()
    assert one != other and len(json.dumps(one)) == 66


def test_the_random_share_is_another_with_another_seed(files):
    tasks = published_files.registry.tasks("dark_room", ROOM, "train")
    chosen = Hyperparameters(folder=str(files), keep={"uniform_p": 0.5})
    first, second, again = (generate("dark_room", ROOM, tasks, chosen, seed=seed)["action"] for seed in (0, 1, 0))
    np.testing.assert_array_equal(first, again)
    assert (first != second).any()
