"""Procgen is the published tasks, and a world as all others are; played by a stand-in here, and by procgen where it is."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from recollect.environments import procgen, procgen_worker, registry
from recollect.environments.base import World
from recollect.environments.worker import find_python
from recollect.settings.errors import UserError

FAKE = Path(__file__).parents[1] / "fake_procgen_worker.py"
try:
    find_python("procgen")
    MISSING = ""
except UserError as error:
    MISSING = error.what
with_procgen = pytest.mark.skipif(bool(MISSING), reason=f"{MISSING} (`make procgen`, or RECOLLECT_PROCGEN_PYTHON)")
PLAYERS = ["stand-in", pytest.param("procgen", marks=with_procgen)]


@pytest.mark.parametrize("option", ["train_levels", "seen_level", "unseen_level"])
def test_a_level_that_procgen_cannot_count_is_refused(option: str) -> None:
    with pytest.raises(UserError, match=option):
        registry.tasks("procgen", {option: 2**31}, "train")


def test_scores_of_easy_levels_normalise_no_hard_ones() -> None:
    assert "normalisation" in registry.tasks("procgen", {}, "eval")[0].data
    assert "normalisation" not in registry.tasks("procgen", {"difficulty": "hard"}, "eval")[0].data


@pytest.fixture
def player(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who plays: the stand-in, or procgen."""
    if request.param == "stand-in":
        monkeypatch.setenv("RECOLLECT_PROCGEN_PYTHON", sys.executable)
        monkeypatch.setattr(procgen, "SCRIPT", FAKE)
    name: str = request.param
    return name


def make(which: list[int], mode: AutoresetMode = AutoresetMode.DISABLED, split: str = "train", **options: Any) -> World:
    """Instance `number` plays task `number` (around the list) with seed `number`."""
    listed = registry.tasks("procgen", options, split)
    seeds = np.array(which, np.uint64)
    return registry.make_world("procgen", options, [listed[n % len(listed)] for n in which], seeds, mode)


def trace(world: World, which: list[int], steps: int) -> list[list[Any]]:
    """What each step gave each instance; its actions depend on its number and the step only."""
    found, done = [], world._ended_B.copy()
    for step in range(steps):
        if done.any() and world.autoreset_mode is AutoresetMode.DISABLED:
            world.reset(options={"reset_mask": done})
        actions = np.array([np.random.default_rng([n, step]).integers(15) for n in which])
        frames, rewards, terminated, truncated, _ = world.step(actions)
        done = terminated | truncated
        marks = [hashlib.sha256(frame.tobytes()).hexdigest()[:12] for frame in frames]
        found.append(list(zip(marks, rewards.tolist(), terminated.tolist(), truncated.tolist(), strict=True)))
    return found


# ---------------------------------------------------------------------------------------------------------------- tasks


def test_the_tasks_are_the_published_ones() -> None:
    """RA-DT, specification 1.8: twelve and four games, level seeds 0 to 199; then seed 1, and seed 200."""
    listed = {split: registry.tasks("procgen", {}, split) for split in ("train", "seen", "unseen", "eval")}
    assert [len(tasks) for tasks in listed.values()] == [12, 12, 12, 4]
    assert [t.name for t in listed["eval"]] == ["climber", "ninja", "plunder", "jumper"]
    assert [t.name for t in listed["train"]] == [t.name for t in listed["seen"]] == [t.name for t in listed["unseen"]]
    levels = {split: {(t.data["start_level"], t.data["num_levels"]) for t in tasks} for split, tasks in listed.items()}
    assert levels == {"train": {(0, 200)}, "seen": {(1, 1)}, "unseen": {(200, 1)}, "eval": {(200, 1)}}


def test_scores_are_normalised_as_published() -> None:
    """The Procgen paper (arXiv 1912.01588), appendix: Rmin and Rmax of `easy`; six of them in specification 5."""
    listed = {task.name: task for split in ("train", "eval") for task in registry.tasks("procgen", {}, split)}
    scores = {name: task.data["normalisation"]["hns"] for name, task in listed.items()}
    for name, of in {
        "bigfish": (1, 40), "coinrun": (5, 10), "climber": (2, 12.6), "ninja": (3.5, 10), "plunder": (4.5, 30),
        "jumper": (3, 10), "bossfight": (0.5, 13), "caveflyer": (3.5, 12), "chaser": (0.5, 13), "dodgeball": (1.5, 19),
        "fruitbot": (-1.5, 32.4), "heist": (3.5, 10), "leaper": (3, 10), "maze": (5, 10), "miner": (1.5, 13),
        "starpilot": (2.5, 64),
    }.items():  # fmt: skip
        assert scores.pop(name) == of
    assert not scores
    # Specification 3.3: the best return in the published data is the target.
    targets = {name: task.data["target_return"] for name, task in listed.items()}
    assert (targets["bigfish"], targets["coinrun"], targets["starpilot"]) == (40, 10, 67)


def test_the_world_says_what_it_is_without_a_python_that_plays_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RECOLLECT_PROCGEN_PYTHON", raising=False)
    world = make([0])
    assert world.single_observation_space.shape == (3, 64, 64) and world.single_observation_space.dtype == np.uint8
    assert (world.single_action_space.n, world.horizon, make([0], split="seen").horizon) == (15, 6000, 400)  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="make procgen"):
        world.reset()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"games": ["bigfsh"]}, "there is no game 'bigfsh', did you mean 'bigfish'"),
        ({"games": []}, "at least 1 item"),
        ({"difficulty": "extreme"}, "'easy', 'hard' or 'memory'"),
        ({"sticky_actions": 1.0}, "less than 1"),
        ({"game": "maze", "games": ["heist"], "difficulty": "memory"}, "`game: maze` and `games` are both set"),
        ({"stickyness": 0.1}, "did you mean 'sticky_actions'"),
    ],
)
def test_bad_options_are_refused_with_a_hint(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        registry.tasks("procgen", options, "train")


def test_a_split_of_which_options_leave_nothing_is_refused() -> None:
    with pytest.raises(UserError, match=r"the split 'eval' has no task, with the options games: \['bigfish'\]"):
        registry.tasks("procgen", {"games": ["bigfish"]}, "eval")


@pytest.mark.parametrize("levels", [0, 201])
def test_a_level_that_is_learned_from_is_not_called_unseen(levels: int) -> None:
    with pytest.raises(UserError, match="level 200 of split 'unseen' is one of those that are learned from"):
        registry.tasks("procgen", {"train_levels": levels}, "unseen")
    assert registry.tasks("procgen", {"train_levels": levels}, "eval")  # other games


def test_the_memory_mode_is_that_of_helm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HELM, specification 2.2: six games, their limits, levels without end; any other game would abort the worker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RECOLLECT_PROCGEN_PYTHON", raising=False)
    memory: dict[str, Any] = {"difficulty": "memory", "train_levels": 0}
    for split in ("train", "eval"):
        listed = registry.tasks("procgen", memory, split)
        assert [task.name for task in listed] == ["caveflyer", "dodgeball", "heist", "jumper", "maze", "miner"]
        assert all((t.data["start_level"], t.data["num_levels"]) == (0, 0) for t in listed)
        limits = {task.name: registry.make_world("procgen", memory, [task], np.zeros(1)).horizon for task in listed}
        of_memory = {"caveflyer": 1000, "dodgeball": 1000, "heist": 1000, "jumper": 2000, "maze": 500, "miner": 1000}
        assert limits == of_memory
        assert (
            registry.make_world("procgen", memory, listed, np.zeros(6)).horizon == 2000
        )  # none is cut short of its own
    # Specification 8.2: normalised by the returns of the hard mode.
    returns = {task.name: task.data["normalisation"]["hns"] for task in listed}
    of_hard = {"caveflyer": (2, 13.4), "dodgeball": (1.5, 19), "heist": (2, 10), "jumper": (1, 10), "maze": (4, 10)}
    assert returns == {**of_hard, "miner": (1.5, 20)}
    assert [task.name for task in registry.tasks("procgen", {**memory, "game": "maze"}, "eval")] == ["maze"]
    assert make([0], game="maze", horizon=7, **memory).horizon == 7
    with pytest.raises(UserError, match="no game 'bigfish' with a memory mode"):
        registry.tasks("procgen", {**memory, "game": "bigfish"}, "train")
    with pytest.raises(UserError, match="unknown split 'seen'"):
        registry.tasks("procgen", memory, "seen")


@pytest.mark.parametrize("player", PLAYERS, indirect=True)
@pytest.mark.parametrize("game", ["maze", "jumper"])
def test_in_the_memory_mode_every_episode_has_a_level_of_its_own_that_follows_from_the_seed(
    player: str, game: str
) -> None:
    memory: dict[str, Any] = {"difficulty": "memory", "train_levels": 0, "game": game}
    starts = []
    for split in ("train", "eval"):
        world = make([0, 1], split=split, **memory)
        for _ in range(3):
            starts.append(world.reset()[0])
            world.step(np.array([4, 4]))
    assert all((a == b).all() for a, b in zip(starts[:3], starts[3:], strict=True))
    assert len({frame.tobytes() for start in starts[:3] for frame in start}) == 6


def test_the_memory_mode_reaches_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(procgen, "find_python", Path)
    monkeypatch.setattr(procgen, "Worker", lambda *given: asked.append(given[-1]))
    memory = make([0], difficulty="memory", train_levels=0)
    assert memory.worker is None and asked == [{"distribution_mode": "memory"}]  # type: ignore[attr-defined]


def test_the_seed_of_a_game_has_the_31_bits_that_procgen_takes_of_all_of_an_instances() -> None:
    asked: list[int] = []
    world: Any = make([0, 1, 2, 3])
    world._started = SimpleNamespace(ask=lambda what, which: asked.extend(new["seed"] for new in which))
    world._seeds_B[:] = [2**31 + 5, 6 << 32, 2**63 - 1, 7]
    world._make(np.arange(4))
    assert asked == [5, 6, 0, 7]


def test_bad_splits_and_mixed_ones_are_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'unseen'"):
        registry.tasks("procgen", {}, "unsen")
    with pytest.raises(UserError, match="level 200 of split 'seen' is never learned from"):
        registry.tasks("procgen", {"seen_level": 200}, "seen")
    assert registry.tasks("procgen", {"seen_level": 10**6, "train_levels": 0}, "seen")  # all levels are learned from
    mixed = [registry.tasks("procgen", {}, split)[0] for split in ("train", "seen")]
    with pytest.raises(UserError, match="different lengths"):
        registry.make_world("procgen", {}, mixed, np.zeros(2))


# -------------------------------------------------------------------------------------------------------------- playing


@pytest.mark.parametrize("player", PLAYERS, indirect=True)
@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, AutoresetMode.SAME_STEP])
def test_the_same_seeds_and_actions_give_the_same_frames_whoever_else_stands_in_the_batch(
    player: str, mode: AutoresetMode
) -> None:
    which: list[int] = [0, 5, 3, 0]
    options: dict[str, Any] = {"horizon": 30, "sticky_actions": 0.2}
    traces = []
    for _ in range(2):
        world = make(which, mode, **options)
        world.reset()
        traces.append(trace(world, which, 70))
    assert traces[0] == traces[1]
    assert all(step[0] == step[3] for step in traces[0])
    assert len({step[0][0] for step in traces[0]}) > 10  # and the frames change
    alone = make([5], mode, **options)
    alone.reset()
    assert [step[0] for step in trace(alone, [5], 70)] == [step[1] for step in traces[0]]


@pytest.mark.parametrize("player", PLAYERS, indirect=True)
def test_another_seed_gives_other_levels_and_a_fixed_level_is_always_the_same(player: str) -> None:
    games = {"games": ["coinrun"]}
    world = make([0, 0], **games)
    first = world.reset(seed=1)[0]
    assert not np.array_equal(first[0], first[1])  # the seed of an instance is its own
    assert np.array_equal(world.reset(seed=1)[0], first)
    world.step(np.array([4, 4]))
    following = world.reset()[0]
    assert not np.array_equal(following, first)  # the next levels
    assert np.array_equal(world.reset()[0], following)  # nothing was played since
    assert np.array_equal(world.reset(seed=1, options={"reset_mask": np.array([True, False])})[0][0], first[0])
    fixed, other = make([0, 1], split="seen", **games), make([0], split="unseen", **games)
    starts = []
    for _ in range(3):
        starts.append(fixed.reset()[0])
        fixed.step(np.array([7, 8]))
    assert all(np.array_equal(starts[0][0], frame) for start in starts for frame in start)
    assert not np.array_equal(starts[0][0], other.reset()[0][0])


@pytest.mark.parametrize("player", PLAYERS, indirect=True)
def test_a_world_with_a_set_state_goes_on_to_the_bit(player: str) -> None:
    which, options = [1, 4, 1], {"horizon": 25, "sticky_actions": 0.3}
    world, other = make(which, **options), make(which, **options)
    world.reset(seed=8)
    trace(world, which, 33)
    state = world.get_state()
    other.set_state(state)
    assert trace(other, which, 60) == trace(world, which, 60)
    other.set_state(world.get_state())  # within episodes, which a reset ends
    np.testing.assert_array_equal(other.reset()[0], world.reset()[0])
    with pytest.raises(UserError, match="another number of games"):
        make([1]).set_state(state)
    with pytest.raises(UserError, match="the games' states are missing"):
        other.set_state({**state, "games": state["games"][:-1]})
    with pytest.raises(UserError, match="missing"):
        other.set_state({name: array for name, array in state.items() if name != "games"})


def test_the_state_of_a_world_that_was_never_begun_needs_no_python() -> None:
    state = make([0, 1]).get_state()
    assert state["sizes"].tolist() == [0, 0] and state["ended"].all()
    make([0, 1]).set_state(state)


@pytest.mark.parametrize("player", PLAYERS, indirect=True)
def test_evaluated_episodes_are_cut_and_only_who_is_reset_begins_anew(player: str) -> None:
    world = make([0, 1], split="unseen", evaluation_horizon=5, games=["caveflyer", "maze"])
    start = world.reset()[0]
    for step in range(5):
        frames, _, terminated, truncated, _ = world.step(np.full(2, 7))
        assert terminated.tolist() == [False, False] and truncated.tolist() == [step == 4] * 2
    first_again = world.reset(options={"reset_mask": np.array([True, False])})[0]
    assert np.array_equal(first_again[0], start[0])
    assert np.array_equal(first_again[1], frames[1])
    for begin in (world.step, world.send):
        with pytest.raises(UserError, match="1 of 2 instances"):
            begin(np.full(2, 7))
    assert np.array_equal(world.reset(options={"reset_mask": np.array([False, True])})[0], start)


@pytest.mark.parametrize("player", PLAYERS, indirect=True)
def test_where_an_episode_ends_by_itself_the_next_has_begun_and_a_reset_changes_nothing(player: str) -> None:
    world = make([0], games=["bigfish"])
    world.reset()
    for _ in range(1000):
        frames, _, terminated, truncated, _ = world.step(np.array([4]))
        if terminated.any():
            break
    assert terminated[0] and not truncated[0]
    assert np.array_equal(world.reset(options={"reset_mask": terminated})[0], frames)


@pytest.mark.parametrize("player", PLAYERS, indirect=True)
def test_steps_that_were_sent_before_are_the_same_steps_and_worlds_play_side_by_side(player: str) -> None:
    plain, worlds = make([0, 1], sticky_actions=0.3), [make([0, 1], sticky_actions=0.3) for _ in range(2)]
    for world in (plain, *worlds):
        world.reset()
    for step in range(30):
        actions = np.array([step % 15, (7 * step) % 15])
        expected = plain.step(actions)
        for world in worlds:
            world.send(actions)
        for world in worlds:
            found = world.step(actions)
            for one, other in zip(found[:4], expected[:4], strict=True):
                np.testing.assert_array_equal(one, other)
            world.reset(options={"reset_mask": found[2] | found[3]})
        plain.reset(options={"reset_mask": expected[2] | expected[3]})
    worlds[0].send(actions)
    with pytest.raises(ValueError, match="other actions were sent"):
        worlds[0].step((actions + 1) % 15)
    with pytest.raises(UserError):
        worlds[1].send(np.array([0, 99]))


def test_a_sticky_action_is_the_last_one_that_was_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_PROCGEN_PYTHON", sys.executable)
    monkeypatch.setattr(procgen, "SCRIPT", FAKE)
    world = make([0] * 200, sticky_actions=0.25)
    world._seeds_B[:] = np.arange(200)
    world.reset()
    assert (world.worker.arrays["action"] == 0).all()  # type: ignore[attr-defined]  # no episode was left out by force
    played = []
    for action in (3, 8, 11):
        world.step(np.full(200, action))
        played.append(world.worker.arrays["action"].copy())  # type: ignore[attr-defined]
    assert (played[0] == 3).all()  # at its start an episode has nothing to repeat
    assert set(played[1].tolist()) == {3, 8} and 25 <= (played[1] == 3).sum() <= 75
    again = played[2] != 11
    assert (played[2][again] == played[1][again]).all() and set(played[2][again].tolist()) == {3, 8}
    world.reset()
    world.step(np.full(200, 5))
    assert (world.worker.arrays["action"] == 5).all()  # type: ignore[attr-defined]  # the next episode repeats none of them


class PlainGame:
    """A game as gym3 has it: each pixel says where it is. Its state is a number that actions are added to."""

    def __init__(self, num: int, env_name: str, rand_seed: int, **told: Any) -> None:
        self.told, self.state = {"num": num, "env_name": env_name, **told}, rand_seed

    def act(self, action_1: np.ndarray) -> None:
        self.state += int(action_1[0])

    def observe(self) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
        row, column, colour = np.indices((64, 64, 3), np.uint8)
        seen = (row + 3 * column + 70 * colour + self.state)[None]
        return np.array([self.state / 2], np.float32), {"rgb": seen.astype(np.uint8)}, np.array([self.state % 5 == 0])

    def get_state(self) -> list[bytes]:
        return [bytes([self.state])]

    def set_state(self, states: list[bytes]) -> None:
        (self.state,) = states[0]


def test_games_are_shown_with_their_colours_first_and_upright(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the worker itself: what it makes of a task, and which pixel stands where; also after a state."""
    monkeypatch.setitem(sys.modules, "procgen", SimpleNamespace(ProcgenGym3Env=PlainGame))  # type: ignore[arg-type]
    arrays = {"action": np.array([4, -2, 7]), "reward": np.zeros(3), "first": np.zeros(3, bool)}
    arrays["frame"] = np.zeros((3, *procgen.SHAPE_CHW), np.uint8)
    games = procgen_worker.Games(arrays, {"distribution_mode": "hard"})

    def shown(place: int, state: int) -> bool:
        pixel = arrays["frame"][place, 2, 5, 9]  # row 5, column 9
        return bool(pixel == (5 + 27 + 140 + state) % 256 and arrays["reward"][place] == state / 2)

    levels = {"game": "maze", "start_level": 6, "num_levels": 8}
    games.begin([{"place": place, "seed": 10 + place, **levels} for place in (0, 2)])
    told = {
        "env_name": "maze",
        "start_level": 6,
        "num_levels": 8,
        "distribution_mode": "hard",
        "num": 1,
        "num_threads": 0,
    }
    assert games.games[2].told == told and shown(0, 10) and shown(2, 12) and not arrays["frame"][1].any()
    states = games.get_state()
    games.step()
    assert shown(0, 14) and shown(2, 19) and states == [bytes([10]), b"", bytes([12])]
    games.set_state(states)
    assert shown(0, 10) and shown(2, 12) and arrays["first"].tolist() == [True, False, False]


def test_the_worker_is_ended_with_its_world_and_a_crash_is_the_users_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_PROCGEN_PYTHON", sys.executable)
    monkeypatch.setenv("RECOLLECT_FAKE", "crash")
    monkeypatch.setattr(procgen, "SCRIPT", FAKE)
    world = make([0, 1])
    world.reset()
    with pytest.raises(UserError, match="SIGABRT"):
        trace(world, [0, 1], 5)
