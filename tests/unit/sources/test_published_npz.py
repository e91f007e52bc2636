"""Published npz files: every layout gives the same rows, and what is no such file is refused by name and never run."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_formats import DTYPES, LAYOUTS, published

from recollect.settings.errors import UserError
from recollect.sources.columns import Columns
from recollect.sources.published import Form, Keep, cut, kept_episodes
from recollect.sources.published_recordings import NpzRecording

FORM = Form((2,), np.dtype(np.int8), np.zeros(2, np.int16), np.array([3, 5], np.int16), actions=5)


def life_of(lengths=(4, 1, 6), trailing=0, seed=0):
    """A life of episodes of these lengths in a room of 4 x 6 cells."""
    draw = np.random.default_rng(seed)
    rows = sum(lengths) + trailing
    done = np.zeros(rows, bool)
    done[np.cumsum(lengths) - 1] = True
    return {
        "observation": draw.integers((4, 6), size=(rows, 2)).astype(np.int8),
        "action": draw.integers(5, size=rows).astype(np.int8),
        "reward": draw.integers(2, size=rows).astype(np.float32),
        "done": done,
    }


def write(path: Path, arrays: dict[str, Any], **changes: Any) -> Path:
    np.savez_compressed(path, **{**arrays, **changes})
    return path


def columns_of(recording, episodes=None):
    """The histories' columns of (some of) a recording's episodes."""
    columns = Columns()
    chosen = np.arange(len(recording.length_M)) if episodes is None else np.array(episodes)
    for rows in recording.read(chosen):
        columns.append(0, rows, recording.where)
    return columns.arrays()


@pytest.mark.parametrize("compress", [True, False])
def test_every_layout_and_number_type_gives_the_same_bytes(tmp_path, compress):
    life = life_of()
    for layout, dtypes in itertools.product(LAYOUTS, DTYPES):
        arrays = published(life, layout, dtypes)
        (np.savez_compressed if compress else np.savez)(tmp_path / "task.npz", **arrays)
        found = columns_of(NpzRecording(tmp_path / "task.npz", FORM))
        for name, expected in life.items():
            assert (found[name].dtype, found[name].shape) == (expected.dtype, expected.shape), (layout, dtypes, name)
            assert found[name].tobytes() == expected.tobytes(), (layout, dtypes, name)
        assert found["episode"].tolist() == [0] * 4 + [1] + [2] * 6


def test_lengths_and_returns_are_of_the_complete_episodes_and_the_rest_is_counted(tmp_path):
    life = life_of((4, 1, 6), trailing=3)
    life["reward"][0] = 2.0**25  # a sum in float32 would lose single rewards behind it
    recording = NpzRecording(write(tmp_path / "task.npz", published(life)), FORM)
    assert recording.length_M.tolist() == [4, 1, 6] and recording.left_out == 3
    starts = [0, 4, 5, 11]
    assert recording.return_M.tolist() == [
        life["reward"][a:b].sum(dtype=np.float64) for a, b in itertools.pairwise(starts)
    ]
    some = columns_of(recording, [0, 2])
    np.testing.assert_array_equal(some["observation"], life["observation"][[0, 1, 2, 3, 5, 6, 7, 8, 9, 10]])
    assert some["episode"].tolist() == [0] * 4 + [1] * 6  # numbered anew, without gaps


def test_a_last_reward_is_taken_away_only_where_the_time_limit_ended_the_episode(tmp_path: Path) -> None:
    life = life_of((4, 1, 6))
    life["reward"][:] = 2
    recording = NpzRecording(write(tmp_path / "task.npz", published(life)), replace(FORM, unpaid_at=4))
    (rows,) = recording.read(np.arange(3))
    assert rows.reward.tolist() == [2, 2, 2, 0, 2, *[2] * 6] and recording.return_M.tolist() == [6, 2, 12]


def test_continuous_actions_and_real_observations_are_read_as_float32(tmp_path):
    life = life_of((3, 3))
    form = Form((2,), np.dtype(np.float32), action_shape=(4,), action_low=np.full(4, -1.0), action_high=np.ones(4))
    action = np.random.default_rng(0).uniform(-1, 1, (6, 1, 4))
    arrays = published(life) | {"actions": action, "observations": life["observation"][:, None] / 7}
    found = columns_of(NpzRecording(write(tmp_path / "task.npz", arrays), form))
    assert found["action"].dtype == found["observation"].dtype == np.float32
    np.testing.assert_array_equal(found["action"], action[:, 0].astype(np.float32))
    with pytest.raises(UserError, match=r"actions is out of range \(-1 to 1\): row 2 has"):
        arrays["actions"][2, 0, 1] = 1.1
        NpzRecording(write(tmp_path / "task.npz", arrays), form)


def test_next_observations_are_not_needed(tmp_path):
    arrays = published(life_of())
    del arrays["next_observations"]
    assert len(NpzRecording(write(tmp_path / "task.npz", arrays), FORM).length_M) == 3


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", ["observations", "actions"])
def test_what_float32_cannot_hold_is_refused(tmp_path, name):
    arrays = published(life_of())
    arrays = {
        **arrays,
        "actions": np.zeros((11, 3)),
        "observations": np.zeros((11, 4)),
        "next_observations": np.zeros((11, 4)),
    }
    form = Form((4,), np.dtype(np.float32), action_shape=(3,))
    (rows,) = NpzRecording(write(tmp_path / "task.npz", arrays), form).read(np.arange(3))
    assert rows.observation.dtype == rows.action.dtype == np.float32
    arrays[name][7, 1] = 1e300
    with pytest.raises(UserError, match=f"{name} is not finite: row 7 has"):
        list(NpzRecording(write(tmp_path / "far.npz", arrays), form).read(np.arange(3)))


def put(row, value, dtype=None):
    def change(array):
        array = array.astype(dtype or array.dtype)
        array[row] = value
        return array

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dones": lambda a: np.zeros_like(a)}, "no complete episode in 11 transitions"),
        ({"actions": lambda a: a[:-1]}, "actions has 10 rows, rewards has 11"),
        ({"dones": lambda a: a[:-2]}, "dones has 9 rows, rewards has 11"),
        ({"next_observations": lambda a: a[:-1]}, "next_observations has 10 rows, rewards has 11"),
        ({"rewards": put(3, np.nan)}, "rewards is not a finite number: row 3 has nan"),
        ({"rewards": put(3, 1e300, np.float64)}, "rewards is not a finite number: row 3"),
        ({"observations": put((5, 1), np.inf, np.float32)}, "observations is not finite: row 5 has"),
        ({"observations": put((5, 1), 2.5, np.float32)}, "observations is no whole number: row 5 has"),
        (
            {"observations": put((slice(6, 9), 0), 4)},
            r"outside of the world \(0 to \[3, 5\]\): row 6 .*, and 2 rows more",
        ),
        ({"observations": put((0, 0), -1, np.int64)}, "outside of the world"),
        ({"actions": put(2, 5)}, "actions is none of the 5 actions 0 to 4: row 2 has 5"),
        ({"actions": put(2, -1)}, "none of the 5 actions"),
        ({"actions": put(2, 1.5, np.float64)}, "none of the 5 actions"),
        ({"actions": put(2, np.nan, np.float64)}, "actions is not finite"),
        ({"dones": put(2, 0.5, np.float32)}, "dones is neither 0 nor 1: row 2 has 0.5"),
        ({"dones": put(2, np.nan, np.float32)}, "dones is neither 0 nor 1"),
        ({"observations": lambda a: a.reshape(11, 2, 1)}, r"observations has shape \(11, 2, 1\), not one of \(N, 2\)"),
        ({"observations": lambda a: np.stack([a, a, a], 1)}, "observations holds 3 environments side by side"),
        ({"rewards": lambda a: np.stack([a, a], 1)}, "rewards holds 2 environments side by side"),
        ({"observations": lambda a: a[:, :1]}, r"observations has shape \(11, 1\)"),
        ({"rewards": lambda a: np.float32(1)}, r"rewards has shape \(\)"),
        ({"actions": lambda a: a.astype("U3")}, "actions holds <U3, not numbers"),
        ({"rewards": lambda a: a.astype(np.complex64)}, "rewards holds complex64, not numbers"),
    ],
)
def test_a_file_whose_numbers_cannot_be_is_refused_with_the_row(tmp_path, change, message):
    arrays = published(life_of())
    path = write(tmp_path / "task.npz", arrays, **{name: f(arrays[name].copy()) for name, f in change.items()})
    with pytest.raises(UserError, match=message) as error:
        NpzRecording(path, FORM)
    assert error.value.where == str(path) and error.value.do


@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "dones"])
def test_a_file_without_one_of_the_arrays_is_refused(tmp_path, name):
    arrays = published(life_of())
    del arrays[name]
    with pytest.raises(UserError, match=f"no array {name} .found: .*next_observations"):
        NpzRecording(write(tmp_path / "task.npz", arrays), FORM)


def test_an_episode_file_among_task_files_is_told_from_a_broken_one(tmp_path):
    arrays = published(life_of())
    arrays["states"] = arrays.pop("observations")
    with pytest.raises(UserError, match="layout: episodes"):
        NpzRecording(write(tmp_path / "task.npz", arrays), FORM)


@pytest.mark.parametrize("compress", [True, False])
def test_a_truncated_file_is_refused_wherever_it_was_cut(tmp_path, compress):
    whole = tmp_path / "whole.npz"
    (np.savez_compressed if compress else np.savez)(whole, **published(life_of((40, 30))))
    content = whole.read_bytes()
    for size in [0, 1, 4, 30, *range(100, len(content), max(1, len(content) // 40)), len(content) - 1]:
        cut_off = tmp_path / "cut.npz"
        cut_off.write_bytes(content[:size])
        with pytest.raises(UserError, match=r"no whole npz|damaged") as error:
            NpzRecording(cut_off, FORM)
        assert error.value.where == str(cut_off)


@pytest.mark.parametrize("compress", [True, False])
def test_a_file_with_a_flipped_byte_gives_the_same_rows_or_none(tmp_path, compress):
    whole = tmp_path / "whole.npz"
    life = life_of((40, 30))
    (np.savez_compressed if compress else np.savez)(whole, **published(life))
    content, refused = whole.read_bytes(), 0
    for place in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[place] ^= 0x41
        whole.write_bytes(damaged)
        try:
            found = columns_of(NpzRecording(whole, FORM))
        except UserError:
            refused += 1
        else:  # a byte that means nothing, such as a time in the zip's directory
            assert all(found[name].tobytes() == life[name].tobytes() for name in life), place
    assert refused > len(content) / 7 * 0.3


def test_a_file_that_claims_more_than_there_is_memory_is_refused(tmp_path):
    path = write(tmp_path / "task.npz", published(life_of()))
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    assert b"'shape': (11,), " in members["rewards.npy"]
    header = members["rewards.npy"].replace(
        b"'shape': (11,), " + b"}" + b" " * 14, b"'shape': (11" + b"0" * 14 + b",), }"
    )
    assert header != members["rewards.npy"] and len(header) == len(members["rewards.npy"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, header if name == "rewards.npy" else content)
    with pytest.raises(UserError, match="damaged"):
        NpzRecording(path, FORM)


@pytest.mark.parametrize("member", ["observations", "actions", "rewards", "dones"])
def test_what_unpacks_to_more_than_its_shape_may_be_is_refused_by_its_header(tmp_path, member, monkeypatch):
    arrays = published(life_of())
    claimed = {"descr": "<f4", "fortran_order": False, "shape": (2_000_000, *arrays[member].shape[1:])}
    path = tmp_path / "task.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                if name == member:
                    np.lib.format.write_array_header_1_0(file, claimed)
                    file.write(bytes(4 * int(np.prod(claimed["shape"]))))
                else:
                    np.lib.format.write_array(file, array)
    assert path.stat().st_size < 50_000
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("numbers were read"))
    with pytest.raises(UserError, match=r"2000000 rows|has 11 rows, rewards has 2000000") as error:
        NpzRecording(path, FORM)
    assert error.value.where == str(path)


@pytest.mark.parametrize("member", ["actions.npy", "actions", "rewards.npy"])
def test_a_member_that_is_a_pickle_itself_is_refused_and_not_run(tmp_path, member):
    arrays = published(life_of())
    del arrays[member.removesuffix(".npy")]
    path = write(tmp_path / "task.npz", arrays)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(member, pickle.dumps([Payload(tmp_path / "ran")]))
    with pytest.raises(UserError, match="in this npz is a pickle") as error:
        NpzRecording(path, FORM)
    assert "by hand" in error.value.do and not (tmp_path / "ran").exists()


class Payload:
    """Runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", ["task.npz", "task.pkl"])
def test_a_pickle_is_refused_under_any_name_and_not_run(tmp_path, name, protocol):
    path = tmp_path / name
    path.write_bytes(pickle.dumps([Payload(tmp_path / "ran")], protocol=protocol))
    with pytest.raises(UserError, match=r"a pickle|no whole npz") as error:
        NpzRecording(path, FORM)
    assert ("by hand" in error.value.do) == (protocol >= 2 or name == "task.pkl")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["observations", "dones", "next_observations"])
def test_an_npz_of_pickled_objects_is_refused_and_not_run(tmp_path, name):
    objects = np.empty(11, object)
    objects[:] = [Payload(tmp_path / "ran") for _ in range(11)]
    path = tmp_path / "task.npz"
    np.savez(path, **{**published(life_of()), name: objects})
    if name == "next_observations":  # which is never read
        NpzRecording(path, FORM)
    else:
        with pytest.raises(UserError, match="pickled objects") as error:
            NpzRecording(path, FORM)
        assert "by hand" in error.value.do and error.value.where == str(path)
    assert not (tmp_path / "ran").exists()


def test_other_kinds_of_files_are_refused(tmp_path):
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "array.npy").rename(tmp_path / "task.npz")
    with pytest.raises(UserError, match="no whole npz"):
        NpzRecording(tmp_path / "task.npz", FORM)
    with zipfile.ZipFile(tmp_path / "task.npz", "w") as archive:
        archive.writestr("actions.npy", b"no array")
        archive.writestr("notes.txt", b"nothing")
    with pytest.raises(UserError, match="no array observations"):
        NpzRecording(tmp_path / "task.npz", FORM)
    with pytest.raises(UserError, match="missing"):
        NpzRecording(tmp_path / "none.npz", FORM)
    (tmp_path / "loop.npz").symlink_to("loop.npz")
    with pytest.raises(UserError, match=r"cannot be read .*symbolic links"):
        NpzRecording(tmp_path / "loop.npz", FORM)


# ------------------------------------------------------------------------------------------------- which are kept

LENGTH_M, RETURN_M = np.array([3, 9, 3, 3, 3, 9, 3, 3, 3, 3]), np.array([0, 5, 2, 5, 1, 9, 0, 7, 5, 3.0])


def kept(**keep):
    return kept_episodes(LENGTH_M, RETURN_M, Keep(**keep), lambda: np.random.default_rng(1)).tolist()


def test_all_are_kept_by_default_and_nothing_is_drawn():
    assert kept_episodes(LENGTH_M, RETURN_M, Keep(), lambda: pytest.fail("drawn")).tolist() == list(range(10))


def test_the_top_share_is_by_return_in_time_order_and_the_later_of_equals():
    assert kept(top_p=0.2) == [5, 7]
    assert kept(top_p=0.4) == [3, 5, 7, 8]  # of three returns of 5, the last two
    assert kept(top_p=0.29) == [5, 7]  # rounded down


def test_the_first_share_is_the_earliest():
    assert kept(first_p=0.3) == [0, 1, 2]
    assert kept(top_p=0.4, first_p=0.5) == [3, 5]  # one after the other


def test_the_random_share_prefers_long_episodes_and_is_in_time_order():
    drawn = [
        kept_episodes(LENGTH_M, RETURN_M, Keep(uniform_p=0.3), lambda s=s: np.random.default_rng(s)) for s in range(300)
    ]
    assert all(len(one) == 3 and (np.diff(one) > 0).all() for one in drawn)
    counts = np.bincount(np.concatenate(drawn), minlength=10) / 300
    assert counts[[1, 5]].min() > 0.5 > 0.4 > np.delete(counts, [1, 5]).max()
    assert kept(uniform_p=0.3) == kept(uniform_p=0.3)
    best = [  # 5, 7 and 8, of lengths 9, 3 and 3; one of them is drawn
        kept_episodes(LENGTH_M, RETURN_M, Keep(top_p=0.3, uniform_p=0.4), lambda s=s: np.random.default_rng(s))[0]
        for s in range(300)
    ]
    np.testing.assert_allclose(np.bincount(best, minlength=10)[[5, 7, 8]] / 300, [0.6, 0.2, 0.2], atol=0.08)


def test_a_share_too_small_keeps_nothing_and_one_out_of_range_is_no_share():
    assert kept(top_p=0.05) == []
    for wrong in (0, 1.2, -0.5):
        with pytest.raises(ValueError, match="top_p"):
            Keep(top_p=wrong)


def test_a_cut_episode_ends_at_the_cut(tmp_path):
    life = life_of((4, 5, 1, 6, 3))
    recording = NpzRecording(write(tmp_path / "task.npz", published(life)), FORM)
    (rows,) = recording.read(np.arange(5))
    short = cut(rows, 3)
    assert np.flatnonzero(short.done).tolist() == [2, 5, 6, 9, 12]
    np.testing.assert_array_equal(short.observation, life["observation"][[0, 1, 2, 4, 5, 6, 9, 10, 11, 12, 16, 17, 18]])
    assert cut(rows, None) is rows


def test_columns_lie_on_disk_without_a_name_so_that_nothing_stays_behind(tmp_path):
    columns = Columns(tmp_path / "new")
    (rows,) = NpzRecording(write(tmp_path / "task.npz", published(life_of())), FORM).read(np.arange(3))
    columns.append(2, rows, "a")
    columns.append(5, rows, "b")
    arrays = columns.arrays()
    assert all(isinstance(array, np.memmap) and not array.flags.writeable for array in arrays.values())
    assert (
        arrays["task"].tolist() == [2] * 11 + [5] * 11 and arrays["episode"].tolist() == ([0] * 4 + [1] + [2] * 6) * 2
    )
    assert list((tmp_path / "new").iterdir()) == []


def test_columns_go_on_with_what_was_written_only(tmp_path):
    (rows,) = NpzRecording(write(tmp_path / "task.npz", published(life_of())), FORM).read(np.arange(3))
    columns = Columns(tmp_path / "new", named=True)
    columns.append(2, rows, "a")
    state = json.loads(json.dumps(columns.state()))
    columns.append(3, rows, "written after the checkpoint")
    columns.state()  # it reaches the disk, too
    again = Columns(tmp_path / "new", named=True)
    assert again.go_on(state)
    again.append(2, rows, "more of the same task")
    assert again.arrays()["episode"].tolist() == [0] * 4 + [1] + [2] * 6 + [3] * 4 + [4] + [5] * 6
    later = again.state()
    assert later["sha256"]["reward"] == hashlib.sha256(rows.reward.tobytes() * 2).hexdigest()
    path = tmp_path / "new" / "observation.rows"
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    assert not Columns(tmp_path / "new", named=True).go_on(later)
