"""AMAGO's small worlds against plain simulations: Wind, Package Delivery, the meta frozen lake, and its T-Maze reward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recollect.amago.hindsight import Relabeler
from recollect.environments import frozen_lake_meta, registry, tmaze
from recollect.settings.errors import UserError


def make(name: str, count: int, **options: Any) -> Any:
    listed = registry.tasks(name, options, "train")
    world = registry.make_world(name, options, listed * count, np.arange(count, dtype=np.uint64))
    return world, world.reset()[0]


# ----------------------------------------------------------------------------------------------------------------- wind


def test_an_agent_that_knows_the_wind_earns_62_of_75() -> None:
    """Published oracle: 62 (AMAGO figure 5; specification 6.1). Here: the mean of ceil(0.97 / speed) lost steps."""
    world, at = make("wind", 4000)
    blowing = world.get_state()["wind"]
    assert (abs(blowing) <= 0.08).all() and blowing.std() == pytest.approx(0.08 / 3**0.5, rel=0.03)
    total = np.zeros(4000)
    for _ in range(75):
        action = np.clip((np.array([0, 1]) - at - blowing) * 10, -1, 1).astype(np.float32)
        at, reward, terminated, _, _ = world.step(action)
        total += reward
    assert total.mean() == pytest.approx(62, abs=1) and terminated.all()


def test_the_published_winds_are_those_of_their_seed_and_actions_must_be_in_bounds() -> None:
    """The first two numbers of np.random.seed(1337); np.random.uniform(-0.08, 0.08), recorded with numpy 2.4."""
    world, at = make("wind", 50, winds=2)
    blowing = np.unique(world.get_state()["wind"], axis=0)
    expected = np.random.RandomState(1337).uniform(-0.08, 0.08, (2, 2))
    np.testing.assert_allclose(blowing, expected[expected[:, 0].argsort()], atol=1e-7)
    after = world.step(np.tile(np.array([0.5, -1.0], np.float32), (50, 1)))[0]
    np.testing.assert_allclose(after - at, world.get_state()["wind"] + [0.05, -0.1], atol=1e-6)
    for bad in (np.full((50, 2), 1.5, np.float32), np.full((50, 2), np.nan, np.float32), np.zeros((50, 3), np.float32)):
        with pytest.raises(UserError, match=r"in \[-1, 1\] of shape \(50, 2\)"):
            world.step(bad)


# ----------------------------------------------------------------------------------------------------- package delivery


def deliver(state: dict[str, np.ndarray], b: int, action: int, length: int) -> tuple[float, float | None, bool]:
    """One step of a plain simulation that changes row b of the state: reward, what was achieved, whether all is done."""
    at, turn = int(state["position"][b]), int(state["turns"][b, state["position"][b]])
    goals = [float(g) for g in state["goals"][b, :, 0] if not np.isnan(g)]
    reward, achieved = 0.0, None
    if action == 0 and not turn:
        at += 1
    elif action in (1, 2) and turn:
        at = at + 1 if action == turn else 0
    elif 3 <= action <= 6 and not turn:
        if action == state["drop"][b] and state["tries"][b] > 0 and at > 0:
            achieved = float(at)
            state["tries"][b] -= 1
            if goals[state["reached"][b]] == at:
                reward = 1.0
                state["reached"][b] += 1
        else:
            at = 0
    state["position"][b] = at % length
    return reward, achieved, state["reached"][b] == len(goals)


def test_packages_are_delivered_as_in_a_plain_simulation() -> None:
    world, seen = make("package_delivery", 60)
    draws, rewarded, returned, B = np.random.default_rng(0), 0, 0, 60
    for _ in range(179):
        state = world.get_state() | {"goals": world.goals()}
        fork = state["turns"][np.arange(B), state["position"]]
        assert seen[:, :3].tolist() == np.stack([state["position"], state["tries"], fork > 0], 1).tolist()
        good = np.where(fork > 0, fork, 0)
        ahead = np.nan_to_num(state["goals"][np.arange(B), state["reached"], 0], nan=-1) == state["position"]
        action = np.where(ahead & (fork == 0), state["drop"], good)
        action = np.where(draws.random(B) < 0.1, draws.integers(8, size=B), action)
        seen, reward, terminated, _, info = world.step(action)
        for b in range(B):
            before = state["position"][b]
            paid, achieved, done = deliver(state, b, int(action[b]), 30)
            assert reward[b] == paid and terminated[b] == done
            told = info["achieved"][b, 0, 0]
            assert np.isnan(told) if achieved is None else told == achieved
            returned += state["position"][b] == 0 < before < 29
        for name in ("position", "tries", "reached"):
            assert world.get_state()[name].tolist() == state[name].tolist()
        rewarded += int(reward.sum())
        if terminated.any():
            assert (info["success"] == terminated).all()
            seen, _ = world.reset(options={"reset_mask": terminated})
    assert rewarded > 60 and returned > 60


def test_roads_have_the_published_numbers_of_forks_and_packages() -> None:
    world, seen = make("package_delivery", 3000)
    state = world.get_state() | {"goals": world.goals()}
    forks, packages = (state["turns"] > 0).sum(1), (~np.isnan(state["goals"][..., 0])).sum(1)
    for values, expected in ((forks, [3, 4, 5, 6]), (packages, [2, 3, 4]), (state["drop"], [3, 4, 5, 6])):
        found, counts = np.unique(values, return_counts=True)
        assert found.tolist() == expected
        np.testing.assert_allclose(counts / 3000, 1 / len(expected), atol=0.04)
    assert not state["turns"][:, 0].any() and (state["tries"] == 3 * packages).all()
    goals = state["goals"][..., 0]
    assert all((np.diff(row[~np.isnan(row)]) > 0).all() for row in goals)
    at = np.nan_to_num(goals, nan=0).astype(int)
    assert not (np.take_along_axis(state["turns"], at, 1) > 0)[at > 0].any()
    spread = np.bincount(at[at > 0], minlength=30)[1:]
    assert spread.min() > 0.7 * spread.mean()
    shown = seen[:, world.goal_part.where]
    two = packages == 2
    np.testing.assert_array_equal(shown[two, :2], -1)
    np.testing.assert_array_equal(shown[two, 2:], goals[two, :2])


@pytest.mark.parametrize(("name", "steps"), [("goal_maze", 200), ("package_delivery", 179)])
def test_goals_can_be_shown_as_they_were_before_the_step(name: str, steps: int) -> None:
    """As by the seed code, and nothing else is different."""
    (after, seen), (before, seen_later) = make(name, 30), make(name, 30, goals_shown="before")
    where, draws = after.goal_part.where, np.random.default_rng(0)
    rest = np.ones(seen.shape[1], bool)
    rest[where] = False
    earned = 0.0
    np.testing.assert_array_equal(seen, seen_later)
    for _ in range(steps):
        shown = seen[:, where]
        action = draws.integers(after.single_action_space.n, size=30)
        seen, reward, terminated, truncated, _ = after.step(action)
        seen_later, paid, *_ = before.step(action)
        np.testing.assert_array_equal(seen_later[:, where], shown)
        np.testing.assert_array_equal(seen_later[:, rest], seen[:, rest])
        np.testing.assert_array_equal(reward, paid)
        earned += reward.sum()
        if (over := terminated | truncated).any():
            seen, _ = after.reset(options={"reset_mask": over})
            np.testing.assert_array_equal(before.reset(options={"reset_mask": over})[0][over], seen[over])
    assert earned >= 3


def test_dropped_packages_can_be_relabelled() -> None:
    """Forward all the way with the working drop everywhere: each drop is a goal that was achieved."""
    world, seen = make("package_delivery", 1)
    rows: dict[str, list[Any]] = {"observation": [seen[0]], "achieved": [np.full((1, 1), np.nan, np.float32)]}
    goals, action = world.goals()[0], 0
    for t in range(30):
        state = world.get_state()
        turn = int(state["turns"][0, state["position"][0]])
        action = turn or (int(state["drop"][0]) if t % 2 and state["position"][0] else 0)
        if turn == 0 and state["tries"][0] == 0:
            action = 0
        seen, _, terminated, _, info = world.step(np.array([action]))
        rows["observation"].append(seen[0])
        rows["achieved"].append(info["achieved"][0])
        if terminated[0]:
            break
    count = len(rows["observation"])
    original = {name: np.array(values, np.float32) for name, values in rows.items()}
    original |= {
        "previous_action": np.zeros(count, np.int16),
        "reward": np.zeros(count, np.float32),
        "done": np.zeros(count, bool),
        "time": np.arange(count, dtype=np.int32),
        "goals": np.full_like(goals, 29) * np.where(np.isnan(goals), np.nan, 1),
    }
    new = Relabeler("all", world.goal_part)(original, np.random.default_rng(0))
    asked = new["goals"][~np.isnan(new["goals"])].tolist()
    dropped = original["achieved"][~np.isnan(original["achieved"])].tolist()
    assert (
        asked == sorted(asked) and set(asked) <= set(dropped) and new["reward"].sum() == len(asked) and new["done"][-1]
    )


# ---------------------------------------------------------------------------------------------------------- frozen lake


@pytest.mark.parametrize("options", [{}, {"recover": True}, {"hard": True, "slip": 0.2}])
def test_attempts_on_a_lake_are_those_of_a_plain_simulation(options: dict[str, Any]) -> None:
    world, seen = make("frozen_lake_meta", 40, size=4, attempts=3, **options)
    draws, B = np.random.default_rng(0), 40
    limit = {0: 16, 1: 40}[int(options.get("hard", False))]
    assert world.horizon == 3 * limit
    ends: dict[str, int] = {"goal": 0, "hole": 0, "limit": 0}
    for _ in range(world.horizon):
        before = world.get_state()
        action = np.where(draws.random(B) < 0.6, draws.choice([1, 3], size=B), draws.integers(5, size=B))
        seen, reward, terminated, truncated, info = world.step(action)
        after = world.get_state()
        if not options.get("hard"):
            for b in range(B):
                x, y = before["position"][b]
                dx, dy = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)][action[b]]
                nx, ny = min(max(x + dx, 0), 3), min(max(y + dy, 0), 3)
                hole, goal = bool(before["lake"][b, nx, ny]), (nx, ny) == (3, 3)
                paid, over = float(goal), goal or (hole and not options.get("recover"))
                if hole and options.get("recover"):
                    paid, nx, ny = -0.1, x, y
                late = not over and before["attempt_step"][b] + 1 == limit
                ends["goal"] += goal
                ends["hole"] += hole
                ends["limit"] += late
                over = over or late
                assert reward[b] == np.float32(paid)
                assert after["position"][b].tolist() == ([0, 0] if over else [nx, ny])
                assert after["attempt"][b] == before["attempt"][b] + over
                assert seen[b].tolist() == pytest.approx(
                    [*(after["position"][b] / 4), float(over), after["attempt"][b] / 3]
                )
        begins = after["attempt"] > before["attempt"]  # on the lake as it was: cracks last for one attempt
        np.testing.assert_array_equal(after["lake_now"][begins], after["lake"][begins])
        assert terminated.tolist() == (after["attempt"] == 3).tolist() and not truncated.any()
        if terminated.any():
            assert (info["success"][terminated] == after["won"][terminated] / 3).all()
            world.reset(options={"reset_mask": terminated})
    assert options.get("hard") or min(ends.values()) > 0


def test_lakes_can_be_crossed_and_have_gymnasiums_share_of_holes() -> None:
    """0.1696 of the cells are holes in 4000 maps of gymnasium 1.4.0 (generate_random_map(5, seed=0..3999))."""
    world, _ = make("frozen_lake_meta", 4000)
    lakes = world.get_state()["lake"]
    assert frozen_lake_meta.crossable(lakes).all() and not lakes[:, 0, 0].any() and not lakes[:, -1, -1].any()
    assert lakes.mean() == pytest.approx(0.1696, abs=0.005)
    wall = np.zeros((1, 3, 3), bool)
    wall[0, 1] = True
    assert not frozen_lake_meta.crossable(wall)[0]


def test_the_hard_lake_swaps_blurs_and_cracks_as_often_as_it_should() -> None:
    world, _ = make("frozen_lake_meta", 4000, hard=True, size=6)
    assert world.get_state()["swapped"].mean() == pytest.approx(0.5, abs=0.03)
    stay, blurred = np.zeros(4000, np.int64), []
    for _ in range(5):
        seen, *_ = world.step(stay)
        blurred.append((seen[:, :2].round(4) != 0).any(1).mean())
    # At the corner a coordinate moves only where it is off by +1: one of three, for each of two.
    assert np.mean(blurred) == pytest.approx(0.25 * (1 - (2 / 3) ** 2), abs=0.01)
    before = world.get_state()
    world.step(np.ones(4000, np.int64))
    after = world.get_state()
    moved = (after["position"] != 0).any(1)
    cracked = after["lake_now"][:, 0, 0]
    assert cracked[moved].mean() == pytest.approx(0.33, abs=0.03) and not before["lake_now"][:, 0, 0].any()
    swapped = after["swapped"]
    assert (after["position"][moved & swapped] == [0, 1]).all() and (
        after["position"][moved & ~swapped] == [1, 0]
    ).all()
    world.reset()  # whether moves are swapped is drawn anew for each rollout
    assert (world.get_state()["swapped"] != swapped).mean() == pytest.approx(0.5, abs=0.03)


# --------------------------------------------------------------------------------------------------------------- T-Maze


@pytest.mark.quick("10", "400")
@pytest.mark.parametrize("length", [10, 400, 10_000])
def test_amagos_t_maze_pays_for_going_right_and_then_to_the_side_of_the_sign(length: int) -> None:
    """Acceptance test 1 of the specification: right all the way and the right turn 1, the wrong turn 0, always up -1."""
    plans = ("right then sign", "right then other", "up", "left")
    options = {"length": length, "late": "not_right"}
    world = tmaze.World(tmaze.tasks("train", **options) * 4, seeds=np.arange(4, dtype=np.uint64), **options)
    seen, total = world.reset()[0], np.zeros(4)
    sign = seen[:, 1].copy()
    assert (abs(sign) == 1).all() and world.horizon == length + 1
    up, down = 1, 3
    for t in range(length + 1):
        turn = np.where(sign > 0, up, down)
        last = t == length
        action = np.array([turn[0] if last else 0, 4 - turn[1] if last else 0, up, 2])
        seen, reward, terminated, _, _ = world.step(action)
        total += reward
        assert terminated.tolist() == [last] * 4
        if t < length - 1:
            assert not seen.any()  # nothing is seen on the way
    assert seen[0].tolist() == [1, sign[0]] and seen[1].tolist() == [1, -sign[1]]
    assert dict(zip(plans, total, strict=True)) == pytest.approx(
        dict(zip(plans, (1, 0, -1, -1), strict=True)), abs=1e-3
    )
    assert world.optimal_return()[0] == 1


def test_what_is_late_is_an_action_in_one_maze_and_a_place_in_the_other() -> None:
    """Left at the start's wall, then right all the way: one penalty by action, one a step by place."""
    for late, expected in (("not_right", -0.25), ("behind", -1.0)):
        options: dict[str, Any] = {"length": 4, "late": late}
        world = tmaze.World(tmaze.tasks("train", **options), seeds=np.zeros(1), **options)
        world.reset()
        assert sum(float(world.step(np.array([a]))[1][0]) for a in (2, 0, 0, 0)) == expected


def test_the_way_back_to_the_sign_is_free() -> None:
    """As in AMAGO's `TMazeAltActive`, whose penalty asks for `time_step > oracle_length`."""
    options: dict[str, Any] = {"variant": "active", "length": 4, "late": "not_right"}
    for batch in (1, 2):  # a single maze has a step of its own
        world = tmaze.World(tmaze.tasks("train", **options) * batch, seeds=np.zeros(batch), **options)
        world.reset()
        rewards = [float(world.step(np.full(batch, a))[1][0]) for a in (2, 2, 0, 0, 0, 0)]
        assert rewards == [0, -0.25, 0, 0, 0, 0]
        assert (world.optimal_return() == 1).all()


def test_as_many_forks_go_on_to_the_left_as_to_the_right() -> None:
    turns = make("package_delivery", 3000)[0].get_state()["turns"]
    found, often = np.unique(turns[turns > 0], return_counts=True)
    assert found.tolist() == [1, 2] and often[0] / often.sum() == pytest.approx(0.5, abs=0.03)


def test_a_swapped_lake_swaps_both_moves_and_no_others() -> None:
    for action, plain, swapped in ((1, [1, 0], [0, 1]), (3, [0, 1], [1, 0]), (2, [0, 0], [0, 0]), (4, [0, 0], [0, 0])):
        world, _ = make("frozen_lake_meta", 200, hard=True, size=6)
        hole = world.get_state()["lake"]
        world.step(np.full(200, action))
        state = world.get_state()
        for b in range(200):
            to = swapped if state["swapped"][b] else plain
            assert state["position"][b].tolist() == ([0, 0] if hole[b][tuple(to)] else to)
