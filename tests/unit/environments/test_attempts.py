"""Several episodes of one task in a rollout, of any environment of gymnasium's: where they begin, how they end, what is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from recollect.environments import registry
from recollect.environments.attempts import Attempts
from recollect.settings.errors import UserError


class Camera(gymnasium.Env[Any, Any]):
    """An image and the last action; ends after `ends` steps, and is cut by itself after `cut`. A success from shade 128 on."""

    observation_space = Dict({"number": Box(-1, 1, (1,), np.float32), "screen": Box(0, 255, (4, 5, 3), np.uint8)})
    action_space = Discrete(3, start=-1)

    def __init__(self, ends: int = 99, cut: int = 99) -> None:
        self.ends, self.cut = ends, cut

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.shade = 0, int(self.np_random.integers(256))
        return self.seen(0), {}

    def seen(self, action: float) -> dict[str, np.ndarray]:
        image = np.full((4, 5, 3), (self.shade + self.time) % 256, np.uint8)
        return {"number": np.array([action], np.float32), "screen": image}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        self.shade = (self.shade + int(self.np_random.integers(9))) % 256
        ends = self.time == self.ends, self.time == self.cut
        return (
            self.seen(action),
            float(action),
            *ends,
            {"is_success": self.shade >= 128, "shade": self.shade, "of": "x"},
        )


@pytest.fixture(autouse=True)
def camera(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gymnasium.register("AttemptsCamera-v0", Camera, max_episode_steps=7)
    yield
    del gymnasium.registry["AttemptsCamera-v0"]


ATTEMPTS: dict[str, Any] = {"id": "AttemptsCamera-v0", "attempts": 3, "observation": "numbers"}


def make(count: int, **options: Any) -> Any:
    listed = registry.tasks("gymnasium", options, "train")
    return registry.make_world("gymnasium", options, listed * count, np.arange(count, dtype=np.uint64))


def played(world: Any, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What instance 0 sees [T, 2], its rewards, and whether it was terminated and truncated."""
    found: list[tuple[Any, ...]] = []
    for _ in range(steps):
        seen, reward, terminated, truncated, _ = world.step(np.full(world.num_envs, 2))
        found.append((seen[0], reward[0], terminated[0], truncated[0]))
    seen_T, *rest = zip(*found, strict=True)
    return np.stack(seen_T), *map(np.array, rest)


@pytest.mark.parametrize(
    ("options", "length", "terminates"),
    [
        ({"horizon": 4}, 4, False),
        ({"arguments": {"ends": 2}}, 2, True),
        ({"arguments": {"cut": 5}}, 5, False),
        ({}, 7, False),
    ],
)
def test_attempts_follow_one_another_within_a_rollout_that_ends_with_the_last(
    options: dict[str, Any], length: int, terminates: bool
) -> None:
    world = make(2, **ATTEMPTS, **options)
    assert world.horizon == 3 * options.get("horizon", 7)
    first, _ = world.reset()
    assert first[0].tolist() == [0, 1]  # the last action; an episode begins
    seen_TD, reward_T, terminated_T, truncated_T = played(world, 3 * length)
    begins_T = np.isin(np.arange(1, 3 * length + 1), [length, 2 * length])
    assert seen_TD[:, 1].tolist() == begins_T.tolist()
    assert (
        seen_TD[:, 0].tolist() == np.where(begins_T, 0, 1).tolist()
    )  # at a beginning, the first observation of the next
    assert (reward_T == 1).all()
    ends_T = np.arange(1, 3 * length + 1) == 3 * length
    assert terminated_T.tolist() == (ends_T & terminates).tolist()
    assert truncated_T.tolist() == (ends_T & (not terminates)).tolist()


@pytest.mark.parametrize("soft_reset", [None, {"same": True}])
def test_every_attempt_begins_anew_from_the_seed_or_draws_on_as_asked(soft_reset: dict[str, bool] | None) -> None:
    options = {**ATTEMPTS, "observation": "image", "horizon": 3, "soft_reset": soft_reset}
    world, given = make(1, **options), []
    inner = world.inner.envs[0].unwrapped
    plainly = inner.reset
    inner.reset = lambda **asked: given.append(asked) or plainly(**asked)  # type: ignore[func-returns-value]
    shades = [int(world.reset()[0][0, 0, 0, 0])]
    shades += [int(world.step(np.array([1]))[0][0, 0, 0, 0]) for _ in range(8)]
    assert (shades[0] == shades[3] == shades[6]) == (soft_reset is None)
    assert (shades[1:3] == shades[4:6] == shades[7:9]) == (soft_reset is None)
    said = [(each.get("seed"), each.get("options")) for each in given]
    assert said[1:] == 2 * [(given[0]["seed"], None) if soft_reset is None else (None, soft_reset)]


def test_a_reset_between_attempts_is_refused_where_there_is_one_attempt() -> None:
    with pytest.raises(UserError, match="soft_reset is about what happens between attempts"):
        registry.tasks("gymnasium", {"id": "CartPole-v1", "soft_reset": {"same": True}}, "train")


def test_a_rollout_of_attempts_goes_on_where_it_stood() -> None:
    whole, other = (make(2, **{**ATTEMPTS, "observation": "whole"}, horizon=4) for _ in range(2))
    whole.reset()
    played(whole, 6)
    other.set_state(whole.get_state())
    for one, two in zip(played(whole, 6), played(other, 6), strict=True):
        np.testing.assert_array_equal(one, two)


def test_worlds_of_ours_have_attempts_by_their_id() -> None:
    world = make(1, id="recollect/DarkRoom-v0", attempts=2, horizon=5, arguments={"width": 4, "height": 3, "task": 2})
    first, _ = world.reset()
    seen_TD, *_ = played(world, 5)
    assert seen_TD[4].tolist() == first[0].tolist() and first[0, -1] == 1
    assert seen_TD[:4, -1].tolist() == [0] * 4


def test_the_success_of_a_rollout_is_the_share_of_all_attempts_also_of_those_that_are_cut() -> None:
    """An attempt that the limit of steps cuts has no success, and one that is not told is none."""
    maze = {"id": "recollect/MazeRunner-v0", "arguments": {"size": 7, "most_goals": 1}, "horizon": 12}
    world, draws = make(40, **maze, attempts=5), np.random.default_rng(0)
    world.reset()
    won_B = np.zeros(40)
    for _ in range(world.horizon):
        _, reward_B, terminated_B, truncated_B, info = world.step(draws.integers(world.single_action_space.n, size=40))
        won_B += reward_B > 0
        ended_B = terminated_B | truncated_B
        if ended_B.any():
            np.testing.assert_allclose(info["success"][ended_B], won_B[ended_B] / 5)
            won_B[ended_B] = -np.inf  # their next step is none of ours
        if np.isinf(won_B).all():
            break
        world.reset(options={"reset_mask": ended_B}) if ended_B.any() else None
    else:
        raise AssertionError("no rollout ended")


@pytest.mark.parametrize("form", [float, np.array, lambda won: np.array([won])])
def test_a_success_may_be_a_number_or_an_array_of_one(form: Any) -> None:
    class Told(Camera):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.ended = getattr(self, "ended", 0) + 1
            return *super().step(action)[:4], {"success": form(float(self.ended < 3))}

    world = Attempts(Told(ends=1), 3, 5, {})
    world.reset(seed=0)
    for _ in range(3):
        *_, info = world.step(0)
    assert info["success"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("name", "arguments", "horizon"),
    [("TMazePassive", {"length": 1500}, 1501), ("KeyToDoor", {"length": 1000}, 1025), ("DarkRoom", {}, 100)],
)
def test_worlds_of_ours_have_their_own_limit_by_their_id(name: str, arguments: Any, horizon: int) -> None:
    assert make(1, id=f"recollect/{name}-v0", arguments=arguments).horizon == horizon


def test_what_is_told_where_episodes_end_is_the_mean_over_attempts() -> None:
    rollout, alone = Attempts(Camera(), 3, 4, {}), Camera()
    rollout.reset(seed=5)
    alone.reset(seed=5)
    shades = []
    for step in range(1, 13):
        *_, truncated, info = rollout.step(1)
        told = alone.step(1)[-1]
        if step % 4 == 0:
            shades.append(told["shade"])
            alone.reset()
    assert truncated and len(set(shades)) == 3
    assert info["shade"] == pytest.approx(np.mean(shades)) and info["of"] == "x"
    assert info["is_success"] == pytest.approx(np.mean([shade >= 128 for shade in shades]))


def test_numbers_that_the_last_attempt_does_not_tell_are_means_over_those_that_did_and_of_success_it_has_none() -> None:
    class Sometimes(Camera):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            seen, reward, terminated, truncated, _ = super().step(action)
            self.ended = getattr(self, "ended", 0) + int(terminated)
            told = {"score": 10.0 * self.ended, "success": True} if terminated and self.ended < 3 else {"other": 1}
            return seen, reward, terminated, truncated, told

    world = Attempts(Sometimes(ends=1), 3, 5, None)
    world.reset(seed=0)
    for _ in range(3):
        *_, terminated, _, info = world.step(0)
    assert terminated and info == {"score": 15.0, "other": 1.0, "success": pytest.approx(2 / 3)}
