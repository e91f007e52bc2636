"""Worlds that several processes play: the same numbers as in one process, and processes that neither stay nor vanish unnoticed."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import runs, wait_until

from recollect.artifacts import threads
from recollect.environments import parallel, registry, world_processes
from recollect.environments.base import World
from recollect.environments.drawing import drawn
from recollect.environments.faults import check_step
from recollect.environments.parallel import ParallelWorld
from recollect.settings.errors import UserError
from recollect.settings.resolve import environment_settings

B = 5
WORLDS: dict[str, tuple[str, dict[str, Any]]] = {  # an environment, and a few of its options
    "dark_room": ("dark_room_10x10", {"horizon": 7}),
    "tmaze": ("tmaze_active_20", {}),
    "visual_match": ("visual_match_per_episode_60", {}),
    "goal_maze": ("amago_maze_11", {"horizon": 9}),
    "mini_grid": ("mini_grid_MemoryS5", {}),
    "crafter": ("amago_crafter", {"horizon": 9}),
    "metaworld": ("amago_meta_world_reach", {"attempt_steps": 5, "attempts": 2}),
    "dm_control": ("dm_control", {}),
    "miniworld": ("mini_world_TMaze", {}),
    "pybullet": ("bullet_ant_p", {}),
}
OURS = ("dark_room", "tmaze", "visual_match", "goal_maze", "mini_grid")
HERE = [name for name in WORLDS if name in OURS or find_spec(name)]


@pytest.fixture(autouse=True)
def nobody_stays() -> Iterator[None]:
    """The processes of a test end with it."""
    yield
    for one in world_processes._pools.values():
        one.close()
    world_processes._pools.clear()


def both(name: str) -> tuple[World, World]:
    """The same world, in this process and in two others."""
    env, further = WORLDS[name]
    settings = environment_settings("paper", env)
    world, options = settings.world, {**settings.options, **further}
    listed = registry.tasks(world, options, "train")
    tasks = [listed[b % len(listed)] for b in range(B)]
    seeds = np.arange(B, dtype=np.uint64) + 3
    return (
        registry.make_world(world, options, tasks, seeds),
        ParallelWorld(world, options, tasks, seeds, processes=2),
    )


def best_of(world: World) -> Any:
    """The best return of each instance, or the words and the place that say that it is not known."""
    try:
        return world.optimal_return().tolist()
    except UserError as error:
        return error.what, error.where


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, tuple):
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    else:
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def sampled(world: World, step: int) -> np.ndarray:
    world.single_action_space.seed(step)
    return np.stack([world.single_action_space.sample() for _ in range(world.num_envs)])


@pytest.mark.quick("dark_room")
@pytest.mark.parametrize("name", HERE)
def test_every_instance_plays_what_it_plays_in_one_process(name: str) -> None:
    """Observations, rewards, ends and what is said besides; with episodes begun one by one, and after a resume."""
    alone, together = both(name)
    assert together.horizon == alone.horizon and together.options == alone.options
    assert together.single_observation_space == alone.single_observation_space
    assert together.single_action_space == alone.single_action_space
    assert together.horizon_terminates == alone.horizon_terminates
    assert getattr(together, "observation_parts", {}) == getattr(alone, "observation_parts", {})
    assert getattr(together, "parts", 0) == getattr(alone, "parts", 0)
    assert not hasattr(together, "players_of_nobody")
    assert best_of(together) == best_of(alone)
    assert_same(together.reset(), alone.reset())
    told: list[Any] = [alone, together] if hasattr(alone, "goals") else []
    kept: list[dict[str, np.ndarray]] = []
    for step in range(2 * alone.horizon if alone.horizon < 20 else 20):
        if step == 5:
            kept = [world.get_state() for world in (alone, together)]
            assert_same(*kept)
        actions_B = sampled(alone, step)
        ours, theirs = together.step(actions_B), alone.step(actions_B)
        assert_same(ours, theirs)
        ended_B = theirs[2] | theirs[3]
        if ended_B.any():
            some_B = ended_B & (np.arange(B) != B - 1)  # the last one's next episode is begun with new streams
            if ended_B[B - 1]:
                for world in (alone, together):
                    world.reset(seed=step, options={"reset_mask": ended_B & ~some_B})
            assert_same(*(world.reset(options={"reset_mask": some_B}) for world in (together, alone)))
        for world in told[1:]:
            assert_same(world.goals(), alone.goals())  # type: ignore[attr-defined]
    for world, state in zip((together, alone), kept, strict=True):  # each goes on from the other's state
        world.set_state(state)
    actions_B = sampled(alone, 5)
    assert_same(together.step(actions_B), alone.step(actions_B))
    if name in OURS:  # simulators need OpenGL
        np.testing.assert_equal(*(drawn(world, B - 1) for world in (together, alone)))
    for world in (alone, together):
        world.close()


@pytest.mark.slow
def test_a_world_that_says_nothing_of_how_it_looks_is_drawn_as_it_is_seen() -> None:
    listed = registry.tasks("continuous_recognition", {}, "train")[:1] * 3
    seeds = np.arange(3, dtype=np.uint64)
    alone = registry.make_world("continuous_recognition", {}, listed, seeds)
    together = ParallelWorld("continuous_recognition", {}, listed, seeds, processes=2)
    for world in (alone, together):
        world.reset()
        world.step(np.array([0, 1, 2]))
    for b in range(3):
        np.testing.assert_array_equal(drawn(together, b), drawn(alone, b))


def test_a_number_that_is_not_finite_is_reported_with_task_step_and_the_worlds_file() -> None:
    alone, together = both("tmaze")
    for world in (alone, together):
        world.reset()
        observations, rewards, *_ = world.step(np.zeros(B, np.int64))
        rewards[B - 1] = np.nan
        with pytest.raises(UserError, match="the reward nan at step 1 of task '") as refused:
            check_step(world, observations, rewards)
        assert refused.value.where.endswith("environments/tmaze.py")


@pytest.mark.slow
def test_a_method_of_a_world_is_never_taken_for_what_it_says_of_itself() -> None:
    _, together = both("tmaze")
    assert isinstance(together, ParallelWorld)
    with pytest.raises(RuntimeError, match="`get_state` of the world is a method"):
        together.__getattr__("get_state")


def test_what_a_world_refuses_is_refused_in_its_words() -> None:
    _, world = both("dark_room")
    with pytest.raises(UserError, match="have ended or were never reset") as error:
        world.step(np.zeros(B, np.int64))
    assert "reset them first" in error.value.do
    world.reset()
    with pytest.raises(UserError, match="actions must be integers in"):
        world.step(np.full(B, 9))
    with pytest.raises(UserError, match="actions must be integers in"):
        world.step(np.zeros(B + 1, np.int64))
    with pytest.raises(UserError, match="reset_mask"):
        world.reset(options={"reset_mask": np.ones(2, bool)})
    state = world.get_state()
    with pytest.raises(UserError, match="expected 5"):
        world.set_state({name: array[:4] for name, array in state.items()})
    with pytest.raises(UserError, match="missing"):
        world.set_state({name: array for name, array in state.items() if name != "draws"})
    world.step(np.zeros(B, np.int64))  # it lives on
    with pytest.raises(UserError, match="width"):
        tasks = registry.tasks("dark_room", {}, "train")[:2]
        ParallelWorld("dark_room", {"width": -1}, tasks, np.arange(2, dtype=np.uint64), 2)


@pytest.mark.slow
def test_slow_worlds_are_dealt_out_where_a_job_has_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = registry.tasks("dark_room", {}, "train")[:3]

    def kind(count: int = 3) -> tuple[type[World], int]:
        made = parallel.make_world("dark_room", {}, tasks[:count], np.arange(count, dtype=np.uint64))
        return type(made), len(getattr(made, "_parts", "1"))

    ours = registry.world_class("dark_room")
    monkeypatch.setattr(threads, "_used", 2)
    monkeypatch.delenv(parallel.VARIABLE, raising=False)
    assert kind() == (ours, 1)  # a step of all takes less than a request
    monkeypatch.setattr(ours, "slow", True)
    assert kind() == (ParallelWorld, 2) and kind(1) == (ours, 1)
    with parallel.stepped_in_turn():
        assert kind() == (ParallelWorld, 2) and kind(1) == (ParallelWorld, 1)
    assert kind(1) == (ours, 1)
    monkeypatch.setenv(parallel.VARIABLE, "16")
    assert kind() == (ParallelWorld, 3)
    monkeypatch.setenv(parallel.VARIABLE, "1")
    assert kind() == (ours, 1)
    monkeypatch.setenv(parallel.VARIABLE, "3")
    monkeypatch.setattr(ours, "metrics", (), raising=False)
    assert kind() == (ours, 1)  # it keeps something of all instances at once
    monkeypatch.setenv(parallel.VARIABLE, "two")
    with pytest.raises(UserError, match="'two' is not a number of processes"):
        kind()


def test_a_process_that_dies_is_reported_and_new_worlds_get_new_ones() -> None:
    _, world = both("dark_room")
    world.reset()
    pids = parallel.pool().pids
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(UserError, match="ended by signal SIGKILL"):
        for _ in range(3):
            world.step(np.zeros(B, np.int64))
    wait_until(lambda: not any(map(runs, pids)), "the other process ends, too")
    _, world = both("dark_room")
    world.reset()
    world.step(np.zeros(B, np.int64))
    assert not set(parallel.pool().pids) & set(pids)


def test_worlds_share_processes_and_leave_nothing_there() -> None:
    _, one = both("dark_room")
    _, two = both("tmaze")
    assert len(world_processes._pools) == 1 and len(parallel.pool().pids) == 2
    one.reset()
    two.reset()
    number = one._number  # type: ignore[attr-defined]
    one.close()
    two.step(np.zeros(B, np.int64))
    del two  # one that is collected is closed, too, and not in the middle of another's request
    gc.collect()
    _, three = both("tmaze")
    three.reset()
    for closed in (number, number + 1):
        assert closed not in parallel.pool()._places
        parallel.pool()._places[closed] = [0, 1]
        with pytest.raises(RuntimeError, match="KeyError"):  # the processes know nothing of it, either
            parallel.pool().ask("get_state", closed, [()] * 2)


@pytest.mark.slow
def test_no_answer_is_taken_for_another() -> None:
    """Ctrl-C between a request and its answers ends the processes; a copy of this process may not ask them."""
    _, world = both("dark_room")
    world.reset()
    pool, read = parallel.pool(), world_processes.Pool._answers

    def interrupted(self: world_processes.Pool, connection: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world_processes.Pool, "_answers", interrupted)
        with pytest.raises(KeyboardInterrupt):
            world.step(np.zeros(B, np.int64))
    assert world_processes.Pool._answers is read and not any(map(runs, pool.pids))
    with pytest.raises(UserError, match="have ended"):
        world.step(np.zeros(B, np.int64))
    _, world = both("dark_room")
    parallel.pool()._owner += 1
    with pytest.raises(RuntimeError, match="forked"):
        world.reset()


def several(name: str, count: int, rows: int) -> tuple[list[World], list[World]]:
    """So many worlds of so many instances each, in this process and in two others."""
    env, further = WORLDS[name]
    settings = environment_settings("paper", env)
    options = {**settings.options, **further}
    tasks = [registry.tasks(settings.world, options, "train")[0]] * rows
    seeds = np.arange(count * rows, dtype=np.uint64).reshape(count, rows)
    alone = [registry.make_world(settings.world, options, tasks, own) for own in seeds]
    return alone, [ParallelWorld(settings.world, options, tasks, own, 2) for own in seeds]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_worlds_that_are_stepped_in_turn_play_what_they_play_one_after_the_other(rows: int) -> None:
    """Images of sixteen games are more than a connection holds, so processes wait with their answers until these are read."""
    alone, together = several("mini_grid", 5, rows)
    for one, other in zip(alone, together, strict=True):
        assert_same(other.reset(), one.reset())
    used = {place for world in together for place in parallel.pool()._places[world._number]}  # type: ignore[attr-defined]
    assert used == {0, 1}
    draws = np.random.default_rng(0)
    for step in range(4):
        action_SB = draws.integers(2, size=(5, rows))  # to the left or right: no episode ends
        for world, action_B in zip(together, action_SB, strict=True):
            world.send(action_B)
        if step == 2:  # another request between the two halves of a step
            assert_same(together[4].get_state(), alone[4].get_state() | stepped_once(alone[4], action_SB[4]))
        going = range(5) if step != 2 else range(4)
        for place in going:
            assert_same(together[place].step(action_SB[place]), alone[place].step(action_SB[place]))
    kept = [world.get_state() for world in alone]
    for world, action_B in zip(together, action_SB, strict=True):
        world.send(action_B)
    for world, state in zip(
        together, kept, strict=True
    ):  # what was begun is left, as where a member of an ensemble fails
        world.set_state(state)
    for one, other, action_B in zip(alone, together, action_SB, strict=True):
        assert_same(other.step(action_B), one.step(action_B))


@pytest.mark.slow
def test_episodes_that_begin_in_turn_are_those_that_begin_one_after_the_other() -> None:
    alone, together = several("mini_grid", 4, 3)
    draws = np.random.default_rng(0)
    for _ in range(3):
        mask_SB = draws.random((4, 3)) < 0.6
        for one, other in zip(alone, together, strict=True):
            assert_same(other.reset(seed=5), one.reset(seed=5))
        for world, mask_B in zip(together, mask_SB, strict=True):
            world.send_reset(mask_B)
        with pytest.raises(ValueError, match="another reset was sent"):
            together[0].step(np.zeros(3, np.int64))
        for one, other, mask_B in zip(alone, together, mask_SB, strict=True):
            assert_same(other.reset(options={"reset_mask": mask_B}), one.reset(options={"reset_mask": mask_B}))
            assert_same(other.get_state(), one.get_state())


def stepped_once(world: World, action_B: np.ndarray) -> dict[str, np.ndarray]:
    """Its state after the step."""
    world.step(action_B)
    return world.get_state()


@pytest.mark.slow
def test_a_world_that_fails_in_its_turn_fails_alone() -> None:
    _, worlds = several("dark_room", 3, 1)
    for world in worlds:
        world.reset()
    for step in range(2):
        for world in worlds:
            world.send(np.zeros(1, np.int64))
        with pytest.raises(ValueError, match="has not been asked for"):
            worlds[0].send(np.zeros(1, np.int64))
        with pytest.raises(ValueError, match="another step was sent"):
            worlds[0].step(np.ones(1, np.int64))
        for place, world in enumerate(worlds):
            if place == 1 and step == 1:
                with pytest.raises(UserError, match="have ended or were never reset"):
                    world.step(np.zeros(1, np.int64))
            else:
                world.step(np.zeros(1, np.int64))
        if step == 0:
            worlds[1].set_state({**worlds[1].get_state(), "ended": np.ones(1, bool)})


@pytest.mark.slow
def test_what_cannot_be_sent_is_said_and_the_other_answers_come() -> None:
    _, worlds = several("dark_room", 2, 2)
    pool = parallel.pool()
    numbers = [world._number for world in worlds]  # type: ignore[attr-defined]
    pool.send("say", numbers[0], [("_advance",)] * 2)
    pool.send("get_state", numbers[1], [()] * 2)
    with pytest.raises(RuntimeError, match="a process that plays a world failed"):
        pool.receive(numbers[0])
    assert len(pool.receive(numbers[1])) == 2


OWNER = textwrap.dedent("""
    import os, signal, sys, time
    import numpy as np
    from recollect.environments import parallel, registry, world_processes
    tasks = registry.tasks("dark_room", {}, "train")[:4]
    world = parallel.ParallelWorld("dark_room", {}, tasks, np.arange(4, dtype=np.uint64), 2)
    world.reset()
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    if os.fork() == 0:  # a copy that ends leaves its parent's processes alone
        world_processes._pools.clear()
        del world
        sys.exit()
    os.wait()
    print(*parallel.pool().pids, flush=True)
    while not stopped:
        time.sleep(0.05)
    time.sleep(0.5)
    world.step(np.zeros(4, np.int64))
    print(int(world.get_state()["timestep"].sum()), flush=True)
""")


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    yield process
    process.kill()
    process.wait()


@pytest.mark.slow
def test_a_job_that_is_told_to_stop_can_still_save_its_worlds(owner: subprocess.Popen[str]) -> None:
    """SIGTERM goes to all processes of a job, as from SLURM or `kill -- -PGID`."""
    assert owner.stdout is not None
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    assert len(pids) == 2 and all(map(runs, pids))
    os.killpg(owner.pid, signal.SIGTERM)
    assert owner.stdout.readline().strip() == "4" and owner.wait(timeout=60) == 0
    wait_until(lambda: not any(map(runs, pids)), "its processes end with it")


@pytest.mark.slow
def test_processes_of_a_killed_job_end(owner: subprocess.Popen[str]) -> None:
    assert owner.stdout is not None
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    owner.kill()
    wait_until(lambda: not any(map(runs, pids)), "its processes end")
