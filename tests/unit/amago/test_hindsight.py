"""Relabelled trajectories are ones that the world could have given: nothing changes with no goal, all succeed with all."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.amago import hindsight
from recollect.amago.cuts import cut_at, cut_out, everything
from recollect.amago.hindsight import WAYS, Rarity, Relabeler, chances
from recollect.environments.goal_sequences import GoalPart, replay_goals, shown_goals
from recollect.settings.errors import UserError

NAN = np.nan
PART = GoalPart(slice(1, 7), 3, 2)


def played(goals: list[int], cells: list[int], part: GoalPart = PART) -> dict[str, np.ndarray]:
    """The trajectory of an agent that was in these cells (the first: where it began), asked for these goals.

    Written as a world would, step by step. Cell c is the goal (c, 2 c); the observation is the cell, and the goals.
    """
    goals_KG = np.full((part.count, 2), NAN, np.float32)
    goals_KG[: len(goals)] = [(c, 2 * c) for c in goals]
    reached, rewards, shown, rows = 0, [0.0], [], 1
    shown.append(part.show(goals_KG[None], np.array([0]))[0])
    for cell in cells[1:]:
        hit = reached < len(goals) and cell == goals[reached]
        seen = reached if part.before else reached + hit
        reached += hit
        rewards.append(float(hit))
        shown.append(part.show(goals_KG[None], np.array([seen]))[0])
        rows += 1
        if reached == len(goals):
            break
    achieved = np.array([[(c, 2 * c)] for c in cells[:rows]], np.float32)
    achieved[0] = NAN
    return {
        "observation": np.column_stack([np.array(cells[:rows], np.float32), shown]).astype(np.float32),
        "previous_action": np.arange(rows, dtype=np.int16) - 1,
        "reward": np.array(rewards, np.float32),
        "done": np.array([reached == len(goals) and i == rows - 1 for i in range(rows)]),
        "time": np.arange(rows, dtype=np.int32),
        "achieved": achieved,
        "goals": goals_KG,
    }


def same(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
        assert one[name].dtype == other[name].dtype, name


def asked(trajectory: Any) -> list[int]:
    return [int(goal[0]) for goal in trajectory["goals"] if not np.isnan(goal[0])]


def test_goals_are_shown_with_completed_ones_marked_and_padding_in_front() -> None:
    goals = np.array([[[1, 2], [3, 4], [NAN, NAN]], [[5, 6], [7, 8], [9, 10]]], np.float32)
    assert shown_goals(goals, np.array([0, 1])).tolist() == [
        [[-1, -1], [1, 2], [3, 4]],
        [[-3, -3], [7, 8], [9, 10]],
    ]
    assert shown_goals(goals, np.array([1, 1]), hide_future=True).tolist() == [
        [[-1, -1], [-3, -3], [3, 4]],
        [[-1, -1], [-3, -3], [7, 8]],
    ]
    assert shown_goals(goals, np.array([2, 3]), hide_future=True).tolist()[1] == [[-3, -3]] * 3


def test_goals_count_in_order_and_one_a_row() -> None:
    achieved = np.array([[[1]], [[2]], [[1]], [[1]], [[2]], [[2]]], np.float32)
    assert replay_goals(np.array([[1], [1], [2], [2]], np.float32), achieved).tolist() == [0, 0, 1, 2, 3, 4]
    assert replay_goals(np.array([[2], [9], [1]], np.float32), achieved).tolist() == [0, 1, 1, 1, 1, 1]


cells = st.lists(st.integers(0, 9), min_size=2, max_size=30)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=3),
    cells,
    st.integers(0, 99),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_a_relabelled_trajectory_is_what_the_world_would_have_given(
    goals: list[int], visited: list[int], seed: int, hide: bool, importance: bool, before: bool
) -> None:
    """The oracle plays the same cells with the relabelled goals, step by step."""
    part = GoalPart(PART.where, 3, 2, hide_future=hide, before=before)
    original = played(goals, visited, part)
    copies = {name: column.copy() for name, column in original.items()}
    n = int(original["reward"].sum())
    for mode in ("none", "some", "all", "all_or_nothing"):
        relabel = Relabeler(mode, part, importance=importance)  # type: ignore[arg-type]
        new = relabel(original, np.random.default_rng(seed))
        same(new, played(asked(new), visited, part))
        assert len(asked(new)) == len(goals) and new["reward"].sum() >= n
        same(original, copies)  # nothing was written into what was given
        if mode == "none" or n == len(goals):
            same(new, original)
        elif mode == "all" and len(original["time"]) - 1 >= len(goals):
            assert new["done"][-1] and new["reward"].sum() == len(goals)


def test_returns_are_n_plus_h_and_the_order_is_that_of_time() -> None:
    """Every cell is visited once, so that nothing is completed by chance; goal 3 was, goals 50 and 60 never."""
    original = played([3, 50, 60], list(range(20)))
    outcomes = Counter()
    for seed in range(300):
        new = Relabeler("some", PART)(original, np.random.default_rng(seed))
        total = int(new["reward"].sum())
        outcomes[total - 1] += 1
        done = [goal for goal in asked(new) if goal < 20]
        assert len(done) == total and done == sorted(done) and 3 in done
        assert asked(new)[total:] == [3, 50, 60][total:]
        assert (total == 3) == bool(new["done"][-1])
        if total == 3:
            assert len(new["time"]) - 1 == done[-1]  # cut where the last one is reached
    assert set(outcomes) == {0, 1, 2} and min(outcomes.values()) > 70  # h is uniform


def test_all_or_nothing_is_all_in_four_of_five() -> None:
    original = played([50, 60], list(range(20)))
    all_of = [Relabeler("all_or_nothing", PART)(original, np.random.default_rng(i))["reward"].sum() for i in range(500)]
    assert set(all_of) == {0, 2} and abs(np.mean(all_of) / 2 - 0.8) < 0.06


def test_fewer_candidates_than_goals_relabel_what_there_is() -> None:
    original = played([50, 60, 70], [0, 1, 2])
    new = Relabeler("all", PART)(original, np.random.default_rng(0))
    assert asked(new) == [1, 2, 70] and new["reward"].tolist() == [0, 1, 1] and not new["done"].any()


def test_what_stood_at_the_beginning_is_never_asked_for() -> None:
    """No step led there, so it would complete nothing."""
    original = played([50, 60, 70], [4, 1, 2])
    original["achieved"][0] = [(4, 8)]
    new = Relabeler("all", PART)(original, np.random.default_rng(0))
    assert asked(new) == [1, 2, 70] and new["reward"].tolist() == [0, 1, 1]


def test_a_piece_from_the_middle_of_a_rollout_is_refused() -> None:
    original = played([50], list(range(20)))
    piece = {name: column[5:] if name != "goals" else column for name, column in original.items()}
    with pytest.raises(UserError, match="from the beginning"):
        Relabeler("some", PART)(piece, np.random.default_rng(0))
    same(Relabeler("none", PART)(piece, np.random.default_rng(0)), piece)


class Says(np.random.Generator):
    """A generator whose next number in [0, 1) is known."""

    def __init__(self, bits: Any, said: float) -> None:
        super().__init__(bits)
        self.said = said

    def random(self, *arguments: Any, **more: Any) -> Any:
        return self.said


def test_how_chances_follow_from_rarity_is_drawn_for_each_pick(monkeypatch: pytest.MonkeyPatch) -> None:
    """As released: uniform 20 %, above the least 10 %, above the median 10 %, the five highest 60 %."""
    priority = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 1000.0])
    draws, rarity = np.random.default_rng(0), Rarity()
    counts = Counter(rarity.choose(priority, draws) for _ in range(4000))
    expected = sum(share * chances(priority, way) for way, share in zip(WAYS, (0.2, 0.1, 0.1, 0.6), strict=True))
    found = np.array([counts[n] for n in range(10)]) / 4000
    np.testing.assert_allclose(found, expected, atol=0.02)
    # Of these priorities three ways choose nearly alike, so where each begins and ends is asked for itself.
    ways = list[str]()
    monkeypatch.setattr(hindsight, "chances", lambda N, way: (ways.append(way), chances(N, way))[1])
    for said in (0.0, 0.199, 0.201, 0.299, 0.301, 0.399, 0.401, 0.999):
        rarity.choose(priority, Says(np.random.PCG64(0), said))
    assert ways == [way for way in WAYS for _ in range(2)]


def several(goals: list[int], cells: list[int]) -> dict[str, np.ndarray]:
    """As `played`; at every second step cell 100 + c is achieved besides cell c, and at the others nothing else."""
    found = played(goals, cells)
    more = np.full_like(found["achieved"], NAN)
    more[1::2, 0, 0], more[1::2, 0, 1] = 100 + found["observation"][1::2, 0], 2 * (100 + found["observation"][1::2, 0])
    return {**found, "achieved": np.concatenate([found["achieved"], more], 1)}


@pytest.mark.parametrize("importance", [False, True])
def test_any_goal_of_any_step_may_be_asked_for_whatever_else_the_step_achieved(importance: bool) -> None:
    original, seen = several([50], [0, 1, 2, 3, 4]), set()
    for seed in range(100):
        seen |= set(asked(Relabeler("all", PART, importance=importance)(original, np.random.default_rng(seed))))
    assert seen == {1, 101, 2, 3, 103, 4}


def test_of_several_goals_of_a_step_the_rare_one_is_asked_for_more_often() -> None:
    """Cell 101 is achieved once, cell 1 at every second step."""
    original = several([50], [0, 1, *([2, 1] * 10)])
    original["achieved"][3:, 1] = NAN
    original["achieved"][2::2] = NAN
    original["achieved"][3::2] = NAN  # only the first step is left to choose
    relabel, draws = Relabeler("all", PART, importance=True), np.random.default_rng(0)
    assert relabel.rarity is not None
    common = np.full((30, 1, 2), (1, 2), np.float32)
    for _ in range(100):
        relabel.rarity.count(common, draws)
    rare = np.mean([asked(relabel(original, draws))[0] == 101 for _ in range(300)])
    assert rare > 0.65


def test_priorities_are_the_fourth_power_of_minus_log_10_of_a_goals_share_and_steps_add_theirs_up() -> None:
    rarity, taken = Rarity(), list[np.ndarray]()
    keys = [np.array(goal, np.float32).tobytes() for goal in ((1, 2), (3, 6), (5, 10))]
    rarity.counts = tuple(dict(zip(keys, (9.89, 0.1, 0.01), strict=True)) for _ in range(2))  # type: ignore[assignment]
    goals = np.array([(1, 2), (3, 6), (5, 10), (7, 14), (NAN, NAN), (5, 10)], np.float32)
    expected = np.array([1e-3, 2.0**4, 3.0**4, 4.0**4, 0.0, 3.0**4])  # one that was never counted as 0.001 of 10
    np.testing.assert_allclose(rarity.priority(goals), expected, rtol=1e-6)

    def choose(priority_N: np.ndarray, draws: np.random.Generator) -> int:
        taken.append(priority_N)
        return int(np.argmax(priority_N))

    rarity.choose = choose  # type: ignore[method-assign]
    rows = rarity.choose_rows(goals.reshape(3, 2, 2), np.array([0, 1, 2]), 2, np.random.default_rng(0))
    assert rows.tolist() == [1, 2]
    np.testing.assert_allclose(taken[0], expected.reshape(3, 2).sum(1), rtol=1e-6)
    np.testing.assert_allclose(taken[1], expected.reshape(3, 2).sum(1)[[0, 2]], rtol=1e-6)


def test_rare_goals_are_preferred_and_their_counts_survive_a_restart() -> None:
    """Cell 7 is seen once in 40 steps, the others all the time."""
    original = played([50], [0, *([1, 2, 3] * 6), 7, *([1, 2, 3] * 7)])

    def shares(relabel: Relabeler) -> float:
        draws = np.random.default_rng(1)
        return float(np.mean([asked(relabel(original, draws))[0] == 7 for _ in range(400)]))

    plain, rare = Relabeler("all", PART), Relabeler("all", PART, importance=True)
    assert rare.rarity is not None
    assert shares(plain) < 0.08 < 0.15 < shares(rare)
    again = Rarity()
    again.load(rare.rarity.saved())
    assert again.counts == rare.rarity.counts and again.seen == rare.rarity.seen > 20


def test_goals_are_counted_in_the_first_trajectory_and_then_in_a_tenth() -> None:
    """Which of the two counts serves a trajectory is drawn, too."""
    achieved, draws, rarity, seen = played([50], [0, 1])["achieved"], np.random.default_rng(0), Rarity(), []
    used = []
    for _ in range(2100):
        rarity.count(achieved, draws)
        seen.append(rarity.seen)
        used.append(rarity._which)
    assert seen[0] == 1 and seen[-1] == pytest.approx(210, abs=40)
    assert np.mean(used) == pytest.approx(0.5, abs=0.05)


class CountsEach(np.random.Generator):
    """With it every trajectory is one of the tenth that is counted."""

    def random(self, *arguments: Any, **more: Any) -> Any:
        return 0.0


def test_goals_count_by_step_and_by_trajectory_a_thousandth_each_time_but_the_first_and_not_in_successes() -> None:
    """Released code (seed): hindsight.py, GoalCounter and EpisodeCounter; Relabeler leaves successes alone before it counts."""
    relabel, draws = Relabeler("all", PART, importance=True), CountsEach(np.random.PCG64(0))
    assert relabel.rarity is not None
    one, two = (np.array(goal, np.float32).tobytes() for goal in ((1, 2), (2, 4)))
    relabel(played([1], [0, 1]), draws)
    assert relabel.rarity.counts == ({}, {})
    relabel.rarity.seen = 1000
    relabel.rarity.count(np.full((3, 1, 2), NAN, np.float32), draws)  # of rollouts that achieved nothing
    assert (relabel.rarity.counts, relabel.rarity.seen) == (({}, {}), 0)
    for _ in range(3):
        relabel(played([50], [0, 1, 2, 1, 1]), draws)
    steps, trajectories = relabel.rarity.counts
    assert steps == pytest.approx({one: 8.0001e-3, two: 2.0001e-3})
    assert trajectories == pytest.approx({one: 2.0001e-3, two: 2.0001e-3})
    steps[one] = 1000.0
    relabel.rarity.seen = 999
    for now in (1000.001, 100.0002):  # many are a tenth where they are looked at
        relabel(played([50], [0, 1, 2]), draws)
        assert steps[one] == pytest.approx(now)
    assert trajectories == pytest.approx({one: 4.0001e-3, two: 4.0001e-3}) and relabel.rarity.seen == 0


@pytest.mark.parametrize("importance", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_a_window_of_a_relabelled_trajectory_is_the_one_cut_behind_relabelling(importance: bool, before: bool) -> None:
    part, outcomes = GoalPart(PART.where, 3, 2, before=before), set()
    original = played([3, 50, 60], [*range(20), *range(20)], part)
    for seed in range(60):
        at = np.random.default_rng(seed)
        cut = cut_at(float(at.random()), int(at.integers(1, 45)))
        mode: Any = ("none", "some", "all", "all_or_nothing")[seed % 4]
        whole, window = (
            Relabeler(mode, part, importance=importance)(original, np.random.default_rng(seed), how)
            for how in (everything, cut)
        )
        same(window, cut_out(whole, cut))
        outcomes.add((bool(whole["done"][-1]), bool(window["done"][-1]), len(window["time"]) == len(whole["time"])))
    assert {(True, True, False), (True, False, False), (False, False, False), (True, True, True)} <= outcomes


def test_no_more_of_observations_is_copied_than_the_window() -> None:
    original = played([3, 50, 60], list(range(40)))
    wide = np.zeros((40, 100_000), np.float32)  # 16 MB
    wide[:, :7] = original["observation"]
    original["observation"] = wide
    tracemalloc.start()
    window = Relabeler("all", PART)(original, np.random.default_rng(0), lambda rows: (1, 4))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert window["observation"].shape == (3, 100_000) and peak < 2 * window["observation"].nbytes
