"""Sources that do not learn: random play is random, and annealed experts go from random to optimal."""

from __future__ import annotations

from functools import partial
from itertools import combinations, pairwise

import numpy as np
import pytest
from odd_clock import ends_the_same

from recollect.artifacts.run import Run
from recollect.environments import registry
from recollect.environments.base import Task
from recollect.environments.maze_runner import distances, maze
from recollect.settings.errors import UserError
from recollect.sources import source_policies
from recollect.sources.recording import HistoryRecorder, world_seeds
from recollect.sources.source_policies import Hyperparameters, walk


def test_random_play_takes_every_action_equally_often_and_repeats_with_its_seed():
    tasks = registry.tasks("dark_room", {}, "train")[:4]
    arrays = source_policies.generate("dark_room", {}, tasks, Hyperparameters(transitions=3000), seed=1)
    np.testing.assert_allclose(np.bincount(arrays["action"], minlength=5) / 12_000, 0.2, atol=0.02)
    again = source_policies.generate("dark_room", {}, tasks[2:3], Hyperparameters(transitions=3000), seed=1)
    np.testing.assert_array_equal(again["action"], arrays["action"][6000:9000])
    other = source_policies.generate("dark_room", {}, tasks[:1], Hyperparameters(transitions=1000), seed=2)
    blocks = [
        *arrays["action"].reshape(12, 1000),
        other["action"],
    ]  # no two are alike, of a task, of several or of seeds
    alike = [(one == other).mean() for one, other in combinations(blocks, 2)]
    np.testing.assert_allclose(alike, 0.2, atol=0.06)


@pytest.mark.quick("dark_room")
@pytest.mark.parametrize("world", ["dark_room", "key_door"])
def test_an_annealed_expert_ends_at_the_optimum(world):
    tasks = registry.tasks(world, {}, "train")[:8]
    settings = Hyperparameters(policy="noise_annealed", transitions=6000)
    arrays = source_policies.generate(world, {}, tasks, settings, seed=0)
    returns = arrays["reward"].reshape(8, 60, 100).sum(2).mean(0)
    best = registry.make_world(world, {}, tasks, np.zeros(8, np.uint64)).optimal_return().mean()
    assert returns[:3].mean() < 0.3 * best
    assert 0.3 * best < returns[25:35].mean() < 0.95 * best
    assert returns[-1] == pytest.approx(best, abs=2)


def test_an_expert_that_is_not_at_random_goes_both_useful_ways_as_often() -> None:
    """Half of the actions are one of five at random; of the others half go south and half go east to a goal on the diagonal."""
    options = {"width": 5, "height": 5, "horizon": 2}
    tasks = [Task(i, "diagonal", "train", {"goal": (2, 2)}) for i in range(4)]
    settings = Hyperparameters(policy="noise_annealed", transitions=2000, first_noise=0.5, last_noise=0.5)
    first = source_policies.generate("dark_room", options, tasks, settings, seed=0)["action"][::2]
    np.testing.assert_allclose(np.bincount(first, minlength=5) / 4000, [0.1, 0.35, 0.35, 0.1, 0.1], atol=0.03)
    late = Hyperparameters(policy="noise_annealed", transitions=2000, power=3)  # of which three quarters are at random
    first = source_policies.generate("dark_room", options, tasks, late, seed=0)["action"][::2]
    np.testing.assert_allclose(np.isin(first, [0, 3, 4]).mean(), 0.6 * 0.75, atol=0.03)


def test_the_expert_of_mazes_goes_the_shortest_way_through_every_goal():
    tasks = registry.tasks("maze_runner", {}, "train")[:12]
    world = registry.make_world("maze_runner", {}, tasks, np.zeros(12, np.uint64))
    expert, draws = source_policies.EXPERTS["maze_runner"](world), np.random.default_rng(0)
    expected = []
    for task in tasks:
        cells = [world.options.start, *task.data["goals"]]
        legs = [distances(maze(task.data["seed"], 15), a)[b] for a, b in pairwise(cells)]
        expected.append(sum(legs))
    observation, _ = world.reset()
    ended, steps = np.zeros(12, bool), np.zeros(12, int)
    taken = set()
    while not ended.all():
        action = expert(observation, draws.random(12))
        taken |= set(action[~ended].tolist())
        observation, _, terminated, truncated, _ = world.step(action)
        assert not truncated.any()
        steps += ~ended
        ended |= terminated
        world.reset(options={"reset_mask": terminated})  # those that have ended play on, uncounted
    assert steps.tolist() == expected
    assert taken == {0, 1, 2, 3}


def test_every_task_of_every_split_and_seed_has_a_random_stream_of_its_own() -> None:
    tasks = [task for split in ("train", "eval") for task in registry.tasks("dark_room", {}, split)]
    streams = [world_seeds(seed, tasks) for seed in (0, 1)]
    assert len(np.unique(streams)) == 2 * len(tasks) == 200
    np.testing.assert_array_equal(world_seeds(1, tasks[90:]), streams[1][90:])


def test_walking_goes_a_shortest_way():
    here, there = np.array([[2, 2], [2, 2], [5, 1], [4, 4]]), np.array([[0, 2], [2, 5], [7, 1], [4, 4]])
    assert walk(here, there, np.full(4, 0.5)).tolist() == [0, 1, 2, 4]
    both = walk(np.zeros((2, 2), int), np.full((2, 2), 3), np.array([0.1, 0.9]))
    assert both.tolist() == [2, 1]


def test_vectors_in_other_bounds_are_refused():
    tasks = registry.tasks("key_to_door", {"one_hot_actions": True}, "train")[:1]
    with pytest.raises(UserError, match=r"vectors in \[-1, 1\]; the world has Box\(0") as refused:
        source_policies.generate(
            "key_to_door", {"one_hot_actions": True}, tasks, Hyperparameters(transitions=9), seed=0
        )
    assert refused.value.do.endswith("`source_policies`, which play vectors in [-1, 1].")


def test_of_images_the_source_that_plays_them_is_named():
    tasks = registry.tasks("visual_match", {}, "train")[:1]
    with pytest.raises(UserError, match="needs vectors as observations") as refused:
        source_policies.generate("visual_match", {}, tasks, Hyperparameters(transitions=9), seed=0)
    assert "`ppo_images`" in refused.value.do


def test_a_resumed_run_plays_on_as_if_it_had_not_stopped(tmp_path):
    tasks = registry.tasks("key_door", {}, "train")[:2]
    settings = Hyperparameters(policy="noise_annealed", transitions=3500, checkpoint_every=1000)
    whole = source_policies.generate("key_door", {}, tasks, settings, seed=0)

    saved = []

    class KilledOnce(Run):
        def save(self, step, arrays, state):
            super().save(step, arrays, state)
            saved.append(step)
            if len(saved) == 2:
                raise KeyboardInterrupt

    def run():
        return KilledOnce(tmp_path / "run", tmp_path / "checkpoints", settings_text="same")

    with pytest.raises(KeyboardInterrupt):
        source_policies.generate("key_door", {}, tasks, settings, seed=0, run=run())
    arrays = source_policies.generate("key_door", {}, tasks, settings, seed=0, run=run())
    assert saved == [1000, 2000, 3000]  # it went on and did not begin again
    for name in whole:
        np.testing.assert_array_equal(arrays[name], whole[name])


def test_a_record_that_goes_on_knows_what_was_paid_in_the_episode_that_it_is_in() -> None:
    tasks = [Task(i, "here", "train", {"goal": (1, 0)}) for i in range(2)]
    make = partial(registry.make_world, "dark_room", {"width": 4, "height": 3})  # 12 steps an episode
    whole, again = (HistoryRecorder(make, tasks, 24, seed=0) for _ in range(2))
    for action in [1] + [4] * 15:  # each on the goal from its first step on; in the next episode nobody moves
        whole.step(np.full(2, action))
    whole.step(np.full(2, 1))
    again.load(whole.arrays())
    for recorder in (whole, again):
        for _ in range(7):
            recorder.step(np.full(2, 4))
        assert recorder.last_return() == 8
    for name, array in whole.histories().items():  # the first new row, too, sees where it stood
        np.testing.assert_array_equal(again.histories()[name], array)


def test_a_world_without_an_expert_is_refused_by_name():
    with pytest.raises(UserError, match="'tmaze' has no scripted expert"):
        source_policies.generate("tmaze", {}, [], Hyperparameters(policy="noise_annealed"), seed=0)


@pytest.mark.slow
def test_checkpoints_at_odd_moments_change_nothing(tmp_path):
    tasks = registry.tasks("key_door", {}, "train")[:2]
    settings = Hyperparameters(policy="noise_annealed", transitions=3500)

    def played(run):
        return source_policies.generate("key_door", {}, tasks, settings, seed=0, run=run)

    assert ends_the_same(played, tmp_path, (2, 2)) >= 1
