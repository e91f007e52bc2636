"""Folders of episodes: in time order, nothing believed that can be computed, damaged ones refused by name."""

from __future__ import annotations

import json
import logging
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from published_formats import HAS_H5PY, stand_in_for_h5py, write_episodes, write_hdf5

from recollect.settings.errors import UserError
from recollect.sources.columns import Columns
from recollect.sources.published import Form
from recollect.sources.published_recordings import EpisodeRecording

IMAGES = Form((3, 8, 8), np.dtype(np.uint8), np.zeros((3, 8, 8)), np.full((3, 8, 8), 255), actions=15)
LENGTHS = (4, 1, 6, 2, 3, 2, 5, 1, 1, 2, 3)  # more than ten, so that names in alphabetical order are not in time order


@pytest.fixture(autouse=True)
def h5py(monkeypatch):
    """The real h5py where it is installed; else a stand-in, so that the reader's part is tested everywhere."""
    if not HAS_H5PY:
        monkeypatch.setitem(sys.modules, "h5py", stand_in_for_h5py())


def life_of(lengths=LENGTHS, trailing=0):
    """A life of small images."""
    draw = np.random.default_rng(1)
    rows = sum(lengths) + trailing
    done = np.zeros(rows, bool)
    done[np.cumsum(lengths) - 1] = True
    return {
        "observation": draw.integers(256, size=(rows, 3, 8, 8)).astype(np.uint8),
        "action": draw.integers(15, size=rows).astype(np.int8),
        "reward": draw.normal(size=rows).astype(np.float32),
        "done": done,
    }


def columns_of(recording, form=IMAGES, episodes=None):
    columns = Columns()
    for rows in recording.read(np.arange(len(recording.length_M)) if episodes is None else np.array(episodes)):
        columns.append(0, rows, recording.where)
    return columns.arrays()


@pytest.mark.parametrize("one_done", [False, True])
@pytest.mark.parametrize("side_files", [True, False])
@pytest.mark.parametrize("kind", ["hdf5", "npz"])
def test_episodes_come_back_as_they_were_in_time_order(tmp_path, kind, side_files, one_done):
    life = life_of()
    folder = write_episodes(tmp_path / "bigfish", life, kind=kind, side_files=side_files, one_done=one_done)
    recording = EpisodeRecording(folder, IMAGES)
    found = columns_of(recording)
    for name, expected in life.items():
        assert found[name].dtype == expected.dtype
        np.testing.assert_array_equal(found[name], expected)
    assert recording.length_M.tolist() == list(LENGTHS) and recording.left_out == 0
    np.testing.assert_array_equal(np.bincount(found["episode"]), LENGTHS)
    np.testing.assert_allclose(
        recording.return_M, [life["reward"][found["episode"] == m].sum(dtype=np.float64) for m in range(len(LENGTHS))]
    )


def test_the_side_file_says_the_order_where_names_do_not(tmp_path):
    life = life_of()
    names = [f"20231101T{9 - i % 3}_{i}_{n}_7_0.0" for i, n in enumerate(LENGTHS)]  # as the converter of raw episodes
    folder = write_episodes(tmp_path / "maze", life, names=names)
    np.testing.assert_array_equal(columns_of(EpisodeRecording(folder, IMAGES))["reward"], life["reward"])
    (folder / "episode_trjids.json").unlink()
    with pytest.raises(UserError, match="order of the episodes is not known"):
        EpisodeRecording(folder, IMAGES)


def test_some_episodes_can_be_read_and_are_numbered_anew(tmp_path):
    life = life_of()
    recording = EpisodeRecording(write_episodes(tmp_path / "heist", life), IMAGES)
    found = columns_of(recording, episodes=[1, 2, 10])
    np.testing.assert_array_equal(found["reward"], life["reward"][[4, *range(5, 11), *range(27, 30)]])
    assert found["episode"].tolist() == [0] + [1] * 6 + [2] * 3


def test_an_unfinished_last_episode_is_left_out_and_one_elsewhere_is_refused(tmp_path):
    life = life_of((3, 2), trailing=4)
    recording = EpisodeRecording(write_episodes(tmp_path / "a", life), IMAGES)
    assert recording.length_M.tolist() == [3, 2] and recording.left_out == 4
    np.testing.assert_array_equal(columns_of(recording)["action"], life["action"][:5])
    (tmp_path / "a" / "2.hdf5").rename(tmp_path / "a" / "0.hdf5")
    for name in ("trjids", "lengths", "returns"):
        (tmp_path / "a" / f"episode_{name}.json").unlink()
    with pytest.raises(UserError, match="no end, and is not the last") as error:
        EpisodeRecording(tmp_path / "a", IMAGES)
    assert error.value.where.endswith("0.hdf5")


def test_encoded_images_are_read_where_they_are_asked_for(tmp_path):
    life = life_of((4,))
    encoded = np.random.default_rng(0).normal(size=(4, 1, 12)).astype(np.float64)
    folder = write_episodes(tmp_path / "a", life, states_encoded=encoded)
    form = Form(None, np.dtype(np.float32), actions=15)
    found = columns_of(EpisodeRecording(folder, form, "states_encoded"))
    assert found["observation"].dtype == np.float32
    np.testing.assert_array_equal(found["observation"], encoded[:, 0].astype(np.float32))
    with pytest.raises(UserError, match="no dataset states_encoded"):
        plain = EpisodeRecording(write_episodes(tmp_path / "b", life), form, "states_encoded")
        columns_of(plain)


def test_other_returns_in_the_side_file_are_said_and_the_rewards_believed(tmp_path, caplog):
    life = life_of()
    folder = write_episodes(tmp_path / "a", life)
    returns = json.loads((folder / "episode_returns.json").read_text())
    (folder / "episode_returns.json").write_text(json.dumps({**returns, "2": 55.0, "3": -1.0}))
    with caplog.at_level(logging.WARNING):
        recording = EpisodeRecording(folder, IMAGES)
    assert "2 of 11 returns are not those of episode_returns.json" in caplog.text
    assert recording.return_M[2] == pytest.approx(life["reward"][5:11].sum(), abs=1e-5)


def broken_folder(tmp_path: Path, change) -> Path:
    folder = write_episodes(tmp_path / "a", life_of((3, 2, 4)))
    change(folder)
    return folder


def rewrite(name, **changes):
    def change(folder):
        life = life_of((3, 2, 4))
        rows = {"0": slice(0, 3), "1": slice(3, 5), "2": slice(5, 9)}[name]
        arrays = {
            "states": life["observation"][rows],
            "actions": life["action"][rows],
            "rewards": life["reward"][rows],
            "dones": life["done"][rows],
        }
        arrays |= {key: f(arrays[key]) for key, f in changes.items() if f is not None}
        write_hdf5(folder / f"{name}.hdf5", {key: arrays[key] for key in arrays if changes.get(key, 0) is not None})

    return change


def side(name, text):
    return lambda folder: (folder / f"episode_{name}.json").write_text(text)


def truncated(folder):
    content = (folder / "1.hdf5").read_bytes()
    (folder / "1.hdf5").write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    ("change", "message", "where"),
    [
        (truncated, "no whole hdf5 file", "1.hdf5"),
        (rewrite("1", states=None), "no dataset states .found: ", "1.hdf5"),
        (rewrite("1", dones=None), "no dataset dones", "1.hdf5"),
        (rewrite("1", actions=lambda a: a + 14), "none of the 15 actions", "1.hdf5"),
        (rewrite("1", actions=lambda a: a[:1]), "actions has 1 rows, rewards has 2", "1.hdf5"),
        (rewrite("1", rewards=lambda a: a * np.nan), "not a finite number", "1.hdf5"),
        (
            rewrite("1", states=lambda a: a[:, :, :4]),
            r"states has shape \(2, 3, 4, 8\), not one of \(N, 3, 8, 8\)",
            "1.hdf5",
        ),
        (rewrite("2", dones=lambda a: np.ones(4, bool)), "ends at step 0 of 4: there is more than one", "2.hdf5"),
        (rewrite("2", dones=lambda a: a[:3]), "dones has 3 rows, rewards has 4", "2.hdf5"),
        (
            rewrite("1", **{n: lambda a: a[-1:] for n in ("states", "actions", "rewards", "dones")}),
            "1 steps, but episode_lengths.json says 2",
            "1.hdf5",
        ),
        (lambda folder: (folder / "1.hdf5").unlink(), "does not fit to the files: no file for 1", "a"),
        (rewrite("0", rewards=lambda a: a[:0]), "has no steps", "0.hdf5"),
        (side("trjids", "{]"), "no JSON file", "episode_trjids.json"),
        (side("trjids", "[0, 1, 2]"), "must map names of episodes to numbers", "episode_trjids.json"),
        (side("trjids", '{"0": 0, "1": 1}'), "not in it: 2", "a"),
        (side("trjids", '{"0": 0, "1": 1, "2": 1}'), "two episodes have the same number", "a"),
        (lambda folder: (folder / "3.pkl").write_bytes(pickle.dumps({})), "this is a pickle", "3.pkl"),
        (lambda folder: (folder / "2.npz").write_bytes(b""), "the episode 2 is there twice", "a"),
        (lambda folder: [path.unlink() for path in folder.glob("*.hdf5")], "no episodes", "a"),
    ],
)
def test_a_folder_that_cannot_be_is_refused_by_name(tmp_path, change, message, where):
    folder = broken_folder(tmp_path, change)
    with pytest.raises(UserError, match=message) as error:
        columns_of(EpisodeRecording(folder, IMAGES))
    assert Path(error.value.where).name == where and error.value.do


def test_a_pickled_episode_of_npz_is_refused(tmp_path):
    folder = write_episodes(tmp_path / "a", life_of((3, 2)), kind="npz", side_files=False)
    np.savez(folder / "1.npz", states=np.zeros(2), actions=np.zeros(2), rewards=np.array([{}, {}]), dones=np.ones(2))
    with pytest.raises(UserError, match="pickled objects") as error:
        EpisodeRecording(folder, IMAGES)
    assert error.value.where.endswith("1.npz")


def test_without_h5py_the_message_says_what_to_install_and_npz_is_read(tmp_path, monkeypatch):
    folder = write_episodes(tmp_path / "a", life_of((3, 2)))
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match="h5py, which is not installed") as error:
        EpisodeRecording(folder, IMAGES)
    assert "`.venv/bin/uv pip install --python .venv/bin/python h5py`" in error.value.do
    assert len(EpisodeRecording(write_episodes(tmp_path / "b", life_of((3, 2)), kind="npz"), IMAGES).length_M) == 2


@pytest.mark.skipif(not HAS_H5PY, reason="needs h5py (extra `hdf5`)")
def test_files_of_the_real_hdf5_library_are_read(tmp_path):
    life = life_of()
    recording = EpisodeRecording(write_episodes(tmp_path / "a", life), IMAGES)
    assert (tmp_path / "a" / "0.hdf5").read_bytes().startswith(b"\x89HDF")
    np.testing.assert_array_equal(columns_of(recording)["observation"], life["observation"])
