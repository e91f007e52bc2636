"""AMAGO's buffer: windows are true pieces of trajectories, drawn as said; the oldest are forgotten; broken files are refused."""

from __future__ import annotations

import itertools
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.amago.batch import Batch
from recollect.amago.cuts import Cut, cut_out
from recollect.amago.recorder import Recorder
from recollect.amago.trajectory_files import UNLIMITED, TrajectoryFiles
from recollect.artifacts.sealed import manifest_path
from recollect.settings.errors import UserError


def trajectory(number: int, steps: int, *, continuous: bool = False) -> dict[str, np.ndarray]:
    """One whose columns say of which it is and at which time: observation (number, t), action t - 1, reward number + t/1000."""
    time = np.arange(steps + 1, dtype=np.int32)
    observation = np.stack([np.full(steps + 1, number), time], -1).astype(np.float32)
    action = time.astype(np.int16) - 1
    return {
        "observation": observation,
        "previous_action": np.stack([action, action], -1).astype(np.float32) if continuous else action,
        "reward": (number + time / 1000).astype(np.float32),
        "done": time == steps,
        "time": time,
    }


def numbers(batch: Batch) -> list[int]:
    return batch.observation_BTD[:, 0, 0].astype(int).tolist()


def check(batch: Batch, lengths: dict[int, int], length: int) -> None:
    rows_B = batch.mask_BT.sum(1)
    assert batch.mask_BT.shape[1] == max(rows_B)
    for b, number in enumerate(numbers(batch)):
        rows, start = int(rows_B[b]), int(batch.time_BT[b, 0])
        assert rows == min(lengths[number], length) + 1
        assert batch.mask_BT[b].tolist() == [t < rows for t in range(batch.mask_BT.shape[1])]
        time = start + np.arange(rows)
        assert batch.time_BT[b, :rows].tolist() == time.tolist()
        assert batch.observation_BTD[b, :rows].tolist() == [[number, t] for t in time]
        assert batch.previous_action_BT[b, :rows].tolist() == (time - 1).tolist()
        np.testing.assert_allclose(batch.reward_BT[b, :rows], number + time / 1000, atol=1e-6)
        # The end is flagged on the last row of a finished trajectory, and nowhere else.
        assert batch.done_BT[b].tolist() == [
            t < rows and start + t == lengths[number] for t in range(len(batch.done_BT[b]))
        ]
        assert not batch.reward_BT[b, rows:].any() and not batch.observation_BTD[b, rows:].any()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=1, max_size=5), st.integers(1, 12))
def test_windows_are_pieces_of_trajectories(
    tmp_path_factory: pytest.TempPathFactory, added: list[list[int]], length: int
) -> None:
    files, lengths = TrajectoryFiles(tmp_path_factory.mktemp("buffer"), 100), {}
    for steps in added:
        some = {len(lengths) + i: count for i, count in enumerate(steps)}
        files.add([trajectory(*item) for item in some.items()])
        lengths |= some
    for counter in range(3):
        check(files.sample(6, length, seed=1, counter=counter), lengths, length)
    assert files.lengths.tolist() == list(lengths.values())


def test_batches_follow_from_seed_and_counter_and_from_nothing_else(tmp_path: Path) -> None:
    first, second = TrajectoryFiles(tmp_path, 50), TrajectoryFiles(tmp_path, 50)
    for i in range(8):
        first.add([trajectory(2 * i, 9), trajectory(2 * i + 1, 20)])
    second.refresh()
    first.sample(5, 7, seed=0, counter=0)
    one, other = (files.sample(30, 7, seed=0, counter=4) for files in (first, second))
    assert numbers(one) == numbers(other) and (one.time_BT == other.time_BT).all()
    assert (
        numbers(first.sample(30, 7, seed=0, counter=5))
        != numbers(one)
        != numbers(first.sample(30, 7, seed=1, counter=4))
    )


def test_every_trajectory_is_as_likely_whatever_its_length_or_each_timestep_is(tmp_path: Path) -> None:
    for weights, expected in (("trajectory", [1 / 3] * 3), ("timestep", [10 / 100, 30 / 100, 60 / 100])):
        files = TrajectoryFiles(tmp_path / weights, 9, weights=weights)  # type: ignore[arg-type]
        files.add([trajectory(0, 10), trajectory(1, 30)])
        files.add([trajectory(2, 60)])
        counts = np.bincount(numbers(files.sample(6000, 5, seed=0, counter=0)), minlength=3) / 6000
        assert np.abs(counts - expected).max() < 0.03
    starts = files.sample(6000, 55, seed=0, counter=1).time_BT[:, 0]
    assert sorted(set(starts.tolist())) == list(range(6))  # of 60 steps, six windows of 55


def test_of_trajectories_of_one_step_each_is_drawn_as_often_by_its_steps(tmp_path: Path) -> None:
    files = TrajectoryFiles(tmp_path, 9, weights="timestep")
    files.add([trajectory(number, 1) for number in range(3)])
    counts = np.bincount(numbers(files.sample(3000, 5, seed=0, counter=0)), minlength=3) / 3000
    assert np.abs(counts - 1 / 3).max() < 0.04


def test_steps_that_weigh_are_those_of_what_is_left_of_a_file(tmp_path: Path) -> None:
    files = TrajectoryFiles(tmp_path, 2, weights="timestep")
    files.add([trajectory(0, 90), trajectory(1, 10), trajectory(2, 30)])  # of which the first is forgotten at once
    assert files.lengths.tolist() == [10, 30]
    assert np.mean(np.array(numbers(files.sample(2000, 5, seed=0, counter=0))) == 1) == pytest.approx(0.25, abs=0.04)


def test_the_oldest_trajectories_are_forgotten_and_their_files_removed(tmp_path: Path) -> None:
    files = TrajectoryFiles(tmp_path, 5)
    for i in range(4):
        files.add([trajectory(3 * i + j, 4) for j in range(3)])
        assert len(files) == min(5, 3 * (i + 1))
    assert sorted(set(numbers(files.sample(300, 4, seed=0, counter=0)))) == [7, 8, 9, 10, 11]
    assert [path.name for path in sorted((tmp_path / "fifo").glob("*.safetensors"))] == [
        "0000000006-3.safetensors",
        "0000000009-3.safetensors",
    ]
    assert len(list((tmp_path / "fifo").iterdir())) == 4  # and their manifests


def test_protected_trajectories_stay_and_do_not_count(tmp_path: Path) -> None:
    files = TrajectoryFiles(tmp_path, 2)
    files.protect([trajectory(90, 4), trajectory(91, 6)])
    for i in range(5):
        files.add([trajectory(i, 4)])
    files = TrajectoryFiles(tmp_path, 2)
    assert len(files) == 4
    assert sorted(set(numbers(files.sample(300, 4, seed=0, counter=0)))) == [3, 4, 90, 91]
    files.clear()
    assert sorted(set(numbers(files.sample(300, 4, seed=0, counter=0)))) == [90, 91]
    files.protect([trajectory(92, 4), trajectory(93, 6)])  # beside the others and not in their place
    for again in (files, TrajectoryFiles(tmp_path, 2)):
        assert sorted(set(numbers(again.sample(300, 4, seed=0, counter=0)))) == [90, 91, 92, 93]


def test_what_a_checkpoint_before_the_beginning_needed_is_not_kept(tmp_path: Path) -> None:
    files = TrajectoryFiles(tmp_path, 2)
    for number in range(4):
        files.add([trajectory(number, 4)])
    files.saved()
    files.clear()
    for number in range(9):
        files.add([trajectory(number, 4)])
    assert firsts(tmp_path) == [7, 8]


def test_a_buffer_goes_back_to_a_checkpoint_though_its_oldest_were_forgotten_since(tmp_path: Path) -> None:
    files = TrajectoryFiles(tmp_path, 4)
    for i in range(4):
        files.add([trajectory(2 * i, 4), trajectory(2 * i + 1, 4)])
    state = files.saved()
    before = files.sample(20, 3, seed=0, counter=7)
    for i in range(4, 9):
        files.add([trajectory(2 * i, 4), trajectory(2 * i + 1, 4)])
    assert min(numbers(files.sample(50, 3, seed=0, counter=7))) == 14
    again = TrajectoryFiles(tmp_path, 4)
    again.load(state)
    after = again.sample(20, 3, seed=0, counter=7)
    assert numbers(after) == numbers(before) and (after.time_BT == before.time_BT).all()
    again.add([trajectory(50, 4)])
    assert sorted(set(numbers(again.sample(99, 3, seed=0, counter=8)))) == [5, 6, 7, 50]
    assert max(firsts(tmp_path)) == 8
    again.load(state)
    assert max(firsts(tmp_path)) == 6  # one alone is removed, too


def test_who_goes_on_from_the_newest_checkpoint_can_still_go_back_to_the_one_before(tmp_path: Path) -> None:
    files, states = TrajectoryFiles(tmp_path, 2), []
    for number in range(6):
        files.add([trajectory(number, 4)])
        if number in (2, 4):
            states.append(files.saved())
    files = TrajectoryFiles(tmp_path, 2)
    assert files.load(states[1]) == 0
    for number in range(5, 12):
        files.add([trajectory(number, 4)])
    files = TrajectoryFiles(tmp_path, 2)
    assert files.load(states[0]) == 0
    assert sorted(set(numbers(files.sample(99, 3, seed=0, counter=0)))) == [1, 2]


def firsts(folder: Path) -> list[int]:
    return sorted(int(path.name[:10]) for path in (folder / "fifo").glob("*.safetensors"))


def test_each_of_the_two_kept_checkpoints_can_be_gone_back_to_though_the_buffer_is_full(tmp_path: Path) -> None:
    files = TrajectoryFiles(tmp_path, 4)
    at: list[tuple[dict[str, int], list[int]]] = []
    for i in range(13):
        files.add([trajectory(2 * i, 4), trajectory(2 * i + 1, 4)])
        assert (
            len(firsts(tmp_path)) <= 2 + 2 * 3
        )  # those that can be drawn, and those since the checkpoint before the newest
        if i % 3 == 2:
            at.append((files.saved(), numbers(files.sample(20, 3, seed=0, counter=0))))
    for state, drawn in reversed(at[-2:]):
        files = TrajectoryFiles(tmp_path, 4)
        assert files.load(state) == 0
        assert numbers(files.sample(20, 3, seed=0, counter=0)) == drawn
    # What was gone back to stays when the run goes on and is stopped again.
    files.add([trajectory(18, 4), trajectory(19, 4)])
    files.saved()
    files.add([trajectory(20, 4), trajectory(21, 4)])
    files = TrajectoryFiles(tmp_path, 4)
    assert files.load(at[-2][0]) == 0
    assert numbers(files.sample(20, 3, seed=0, counter=0)) == at[-2][1]


def test_what_another_process_wrote_is_trimmed_but_for_what_the_kept_checkpoints_need(tmp_path: Path) -> None:
    writer, files = TrajectoryFiles(tmp_path, UNLIMITED), TrajectoryFiles(tmp_path, 2)
    states: list[dict[str, int]] = []
    for i in range(9):
        writer.add([trajectory(i, 4)])
        files.refresh()
        if i in (3, 5):
            states.append(files.saved())
        files.trim()
        assert min(firsts(tmp_path)) == (max(0, i - 1) if not states else 2)
    assert files.load(states[0]) == 0 and files.sizes()["buffer_trajectories"] == 2


def buffer_of_four_files(folder: Path) -> dict[str, int]:
    files = TrajectoryFiles(folder, 7)
    for i in range(4):
        files.add([trajectory(2 * i, 4), trajectory(2 * i + 1, 4)])
    return files.saved()


@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize("damage", ["flipped", "gone", "manifest flipped", "folder"])
def test_what_is_damaged_or_missing_is_left_out_and_said(
    place: int, damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = buffer_of_four_files(tmp_path)
    path = tmp_path / "fifo" / f"{2 * place:010d}-2.safetensors"
    if damage in ("gone", "folder"):
        path.unlink()
        if damage == "folder":
            path.mkdir()
    else:
        broken = path if damage == "flipped" else manifest_path(path)
        data = bytearray(broken.read_bytes())
        data[len(data) // 2] ^= 255
        broken.write_bytes(bytes(data))
    files = TrajectoryFiles(tmp_path, 7)
    left = sorted({1, 2, 3, 4, 5, 6, 7} - {2 * place, 2 * place + 1})
    assert files.load(state) == 7 - len(left)
    assert (str(path) if "flipped" in damage else str(path.parent)) in caplog.text
    for _ in range(2):  # also when the run is stopped and goes on once more
        assert sorted(set(numbers(files.sample(200, 4, seed=0, counter=0)))) == left
        state = files.saved()
        files = TrajectoryFiles(tmp_path, 7)
        assert files.load(state) == (7 - len(left) if state["first"] == 1 else 0)
    files.add([trajectory(8, 4), trajectory(9, 4)])  # numbers go on as if nothing were missing
    assert sorted(set(numbers(files.sample(300, 4, seed=0, counter=1)))) == [*[n for n in left if n > 2], 8, 9]
    for i in range(5, 20):
        files.add([trajectory(2 * i, 4), trajectory(2 * i + 1, 4)])
        files.saved()
    assert damage == "folder" or min(firsts(tmp_path)) >= 24  # what was damaged is forgotten like the others


def test_what_a_kill_left_half_removed_or_half_written_is_swept(tmp_path: Path) -> None:
    state = buffer_of_four_files(tmp_path)
    whole = sorted(path.name for path in (tmp_path / "fifo").iterdir())
    (tmp_path / "fifo" / "0000000000-9.safetensors.manifest.json").write_text("{}")  # its file was removed
    (tmp_path / "fifo" / "0000000008-3.safetensors").write_bytes(b"")  # its manifest was to follow
    again = TrajectoryFiles(tmp_path, 7)
    again.check()
    assert sorted(path.name for path in (tmp_path / "fifo").iterdir()) == whole
    assert again.load(state) == 0
    assert sorted(path.name for path in (tmp_path / "fifo").iterdir()) == whole


def test_continuous_actions_and_goals_come_back(tmp_path: Path) -> None:
    files = TrajectoryFiles(tmp_path, 9)
    goals = np.array([[1.0, 2.0], [np.nan, np.nan]], np.float32)
    files.add([{**trajectory(i, 6, continuous=True), "goals": goals + i} for i in range(3)])
    seen: list[Any] = []

    def look(whole: Any, draws: np.random.Generator, cut: Cut) -> Any:
        seen.append(whole)
        return cut_out(whole, cut)

    batch = files.sample(8, 4, seed=0, counter=0, relabel=look)
    assert batch.previous_action_BT.shape == (8, 5, 2)
    for whole, shown in zip(seen, numbers(batch), strict=True):
        np.testing.assert_array_equal(whole["goals"], goals + shown)


@pytest.mark.slow
def test_two_buffers_that_are_drawn_from_together_leave_half_of_all_file_descriptors_to_others(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(128, 3 * len(os.listdir("/proc/self/fd")))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
        own, others = (TrajectoryFiles(tmp_path / name, UNLIMITED) for name in ("own", "others"))
        for number in range(limit // 2 + 8):
            own.add([trajectory(number, 2)])
            others.add([trajectory(number, 2)])
        own.beside = (others, 0.5)
        for counter in range(limit):
            own.sample(16, 2, seed=0, counter=counter)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert len(own._open) + len(others._open) <= limit // 2


def test_a_relabeler_sees_whole_trajectories_and_cuts_the_window(tmp_path: Path) -> None:
    files = TrajectoryFiles(tmp_path, 9)
    files.add([trajectory(0, 30)])

    def shortened(whole: Any, draws: np.random.Generator, cut: Cut) -> Any:
        assert len(whole["time"]) == 31
        return cut_out({name: column[: 6 + int(draws.integers(3))] for name, column in whole.items()}, cut)

    batch = files.sample(40, 20, seed=0, counter=0, relabel=shortened)
    assert sorted(set(batch.mask_BT.sum(1).tolist())) == [6, 7, 8]


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_broken_file_is_refused(tmp_path: Path, damage: str) -> None:
    TrajectoryFiles(tmp_path, 9).add([trajectory(0, 30)])
    (path,) = (tmp_path / "fifo").glob("*.safetensors")
    data = path.read_bytes()
    path.write_bytes(data[:-5] if damage == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(UserError):
        TrajectoryFiles(tmp_path, 9).sample(1, 5, seed=0, counter=0)


def test_a_reader_sees_what_another_process_has_written_whole(tmp_path: Path) -> None:
    reader, writer = TrajectoryFiles(tmp_path, 3), TrajectoryFiles(tmp_path, 100)
    assert len(reader) == 0
    for i in range(4):
        writer.add([trajectory(i, 5)])
    (tmp_path / "fifo" / "0000000003-1.safetensors.manifest.json").unlink()  # as if it were not written yet
    reader.refresh()
    assert sorted(set(numbers(reader.sample(50, 4, seed=0, counter=0)))) == [0, 1, 2]


def test_trajectories_that_do_not_fit_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    files = TrajectoryFiles(tmp_path, 9)
    good = trajectory(0, 5)
    bad: dict[str, dict[str, np.ndarray]] = {
        "lacks": {name: a for name, a in good.items() if name != "time"},
        "lacks ": {name: a for name, a in good.items() if name != "observation"},
        "rows": {**good, "reward": good["reward"][1:]},
        "rows ": {name: a[:1] for name, a in good.items()},  # no transition
        "different kinds": {**good, "reward": good["reward"].astype(np.float64)},
    }
    for message, wrong in bad.items():
        with pytest.raises(UserError, match=message.strip()):
            files.add([good, wrong])
    assert not list(tmp_path.rglob("*.safetensors"))
    with pytest.raises(UserError, match="no trajectory"):
        files.sample(1, 1, seed=0, counter=0)
    with pytest.raises(UserError, match="a buffer of 0 trajectories"):
        TrajectoryFiles(tmp_path, 0)


def test_windows_of_other_trajectories_are_drawn_apart_from_those_of_its_own(tmp_path: Path) -> None:
    own, other = (TrajectoryFiles(tmp_path / name, 100) for name in ("own", "other"))
    own.add([trajectory(n, 4) for n in range(100)])
    other.add([trajectory(1000 + n, 4) for n in range(100)])
    own.beside = other, 0.5
    drawn = np.array(numbers(own.sample(40, 4, seed=0, counter=0)))
    ours, theirs = drawn[drawn < 1000], drawn[drawn >= 1000] - 1000
    both = min(len(ours), len(theirs))
    assert both > 10 and (ours[:both] == theirs[:both]).mean() < 0.3


def test_other_trajectories_that_achieve_no_goals_are_not_relabelled(tmp_path: Path) -> None:
    own, other = (TrajectoryFiles(tmp_path / name, 9) for name in ("own", "other"))
    own.add([{**trajectory(0, 4), "achieved": np.zeros((5, 1, 2), np.float32)}])
    other.add([trajectory(1, 4)])
    own.beside = other, 0.5
    seen: list[int] = []

    def noting(whole: Any, draws: np.random.Generator, cut: Cut) -> Any:
        seen.append(int(whole["observation"][0, 0]))
        return cut_out(whole, cut)

    drawn = numbers(own.sample(40, 4, seed=0, counter=0, relabel=noting))
    assert 0 < sum(drawn) < 40 and seen == [0] * (40 - sum(drawn))


def test_another_process_draws_the_same_of_what_is_listed_whatever_else_is_there(tmp_path: Path) -> None:
    files, other = TrajectoryFiles(tmp_path, 5), TrajectoryFiles(tmp_path, 100)
    for i in range(3):
        files.add([trajectory(3 * i + j, 4 + j) for j in range(3)])  # of the second file one is forgotten
    other.draw_from(files.listed())
    TrajectoryFiles(tmp_path, 100).add([trajectory(50, 4)])
    for counter in range(3):
        one, same = (each.sample(30, 3, seed=0, counter=counter) for each in (files, other))
        assert numbers(one) == numbers(same) and (one.time_BT == same.time_BT).all()
    assert len(other) == 5


# ------------------------------------------------------------------------------------------------------------- recorder


def record(recorder: Recorder, lengths: list[list[int]], steps: int, *, stop: int | None = None) -> list[Any]:
    """Play: rollout i of actor b lasts lengths[b][i] steps; observation (b, rollout, t)."""
    B = len(lengths)
    rollout, time, found = np.zeros(B, int), np.zeros(B, int), []

    def seen() -> np.ndarray:
        return np.stack([np.arange(B), rollout, time], -1).astype(np.float32)

    recorder.begin(np.ones(B, bool), seen())
    for step in range(steps):
        time += 1
        done = np.array([time[b] == lengths[b][rollout[b]] for b in range(B)])
        found += recorder.append(100 * rollout + time, time / 10, seen(), done)
        if step == stop:
            return found
        rollout += done
        time[done] = 0
        if done.any():
            recorder.begin(done, seen())
    return found


@pytest.mark.parametrize(
    ("stagger", "context", "allowed"), [(False, 6, {20}), (True, 6, set(range(14, 27))), (True, 20, {20})]
)
def test_rollouts_are_cut_with_one_row_of_overlap(stagger: bool, context: int, allowed: set[int]) -> None:
    recorder = Recorder(2, 20, context, stagger=stagger)
    assert recorder.shortest == min(allowed)
    found = record(recorder, [[200], [50, 150]], 200)
    for b in range(2):
        of_actor = [t for t in found if t["observation"][0, 0] == b]
        for before, after in itertools.pairwise(of_actor):
            assert len(before["time"]) - 1 in allowed or before["done"][-1]
            if before["done"][-1]:
                assert after["time"][0] == 0 and after["previous_action"][0] == -1 and not after["reward"][0]
            else:
                assert all((after[name][0] == before[name][-1]).all() for name in after)
        for t in of_actor:
            assert not t["done"][:-1].any() and (t["observation"][:, 2] == t["time"]).all()
            assert (t["previous_action"][1:] == 100 * t["observation"][0, 1] + t["time"][1:]).all()
            np.testing.assert_allclose(t["reward"], t["time"] / 10, atol=1e-6)
        assert sum(len(t["time"]) - 1 for t in of_actor) == 200
    assert (len({len(t["time"]) for t in found if not t["done"][-1]}) > 3) == (len(allowed) > 1)


def test_each_actor_of_each_seed_is_cut_at_lengths_of_its_own() -> None:
    cuts = set()
    for seed in (0, 1):
        found = record(Recorder(3, 20, 6, seed=seed), [[200]] * 3, 200)
        cuts |= {tuple(len(t["time"]) for t in found if t["observation"][0, 0] == b) for b in range(3)}
    assert len(cuts) == 6


def test_a_recorder_continues_where_its_state_was_taken() -> None:
    lengths = [[33, 80], [90, 90]]
    whole = record(Recorder(2, 20, 6), lengths, 60)
    first, second = Recorder(2, 20, 6), Recorder(2, 20, 6)
    begun = record(first, lengths, 60, stop=30)
    second.load(first.arrays())
    for step in range(32, 61):
        time = np.array([step if step <= 33 else step - 33, step])
        seen = np.stack([np.arange(2), [int(step > 33), 0], time], -1).astype(np.float32)
        done = np.array([step == 33, False])
        begun += second.append(np.array([100 * (step > 33), 0]) + time, time / 10, seen, done)
        if step == 33:
            second.begin(done, np.array([[0, 1, 0], [1, 0, 33]], np.float32))
    assert len(begun) == len(whole)
    for ours, theirs in zip(begun, whole, strict=True):
        assert ours.keys() == theirs.keys() and all((ours[name] == theirs[name]).all() for name in ours)


def test_goals_are_those_of_each_rollout_and_none_is_achieved_before_its_first_step() -> None:
    goals_BKG = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    recorder, nothing_BD, found = Recorder(2, 20, 20), np.zeros((2, 1), np.float32), []
    recorder.begin(np.ones(2, bool), nothing_BD, goals_BKG)
    for step in range(1, 5):
        done = np.array([step in (2, 4), step == 4])
        achieved_BMG = np.full((2, 1, 2), step, np.float32)
        found += recorder.append(np.zeros(2, int), nothing_BD[:, 0], nothing_BD, done, achieved_BMG)
        if step == 2:
            recorder.begin(done, nothing_BD, goals_BKG + 100)  # of the first actor alone
        saved, recorder = recorder.arrays(), Recorder(2, 20, 20)
        recorder.load(saved)
    wanted = [(goals_BKG[0], [1, 2]), (goals_BKG[0] + 100, [3, 4]), (goals_BKG[1], [1, 2, 3, 4])]
    for trajectory_, (goals_KG, achieved) in zip(found, wanted, strict=True):
        assert (trajectory_["goals"] == goals_KG).all()
        assert np.isnan(trajectory_["achieved"][0]).all() and trajectory_["achieved"][1:, 0, 0].tolist() == achieved


def test_each_window_of_each_batch_of_each_seed_is_relabelled_with_draws_of_its_own(tmp_path) -> None:
    files, drawn = TrajectoryFiles(tmp_path, 9), []
    files.add([trajectory(0, 30)])

    def noting(whole, draws, cut):
        drawn.append(float(draws.random()))
        return cut_out(whole, cut)

    for seed in (0, 1):
        for counter in (0, 1):
            files.sample(5, 20, seed=seed, counter=counter, relabel=noting)
    assert len(set(drawn)) == 20


def test_lengths_are_drawn_evenly_around_the_one_that_is_asked_for() -> None:
    recorder, B = Recorder(900, 8, 4, seed=0), 900
    nothing_BD = np.zeros((B, 1), np.float32)
    recorder.begin(np.ones(B, bool), nothing_BD)
    finished = []
    while len(finished) < B:
        step = (np.zeros(B, np.int64), nothing_BD[:, 0], nothing_BD, np.zeros(B, bool))
        finished += [len(t["time"]) - 1 for t in recorder.append(*step) if t["time"][0] == 0]
    lengths, often = np.unique(finished, return_counts=True)
    assert lengths.tolist() == list(range(4, 13)) and np.abs(often - 100).max() < 40
