"""Gymnasium's environments, POPGym, Crafter, emulated games and Meta-World in k attempts, as worlds; with fakes of packages.

Where a package is installed, the same promises are kept by the real one.
"""

from __future__ import annotations

import sys
from collections import Counter
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import fake_amago_packages
import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AutoresetMode

from recollect.amago.hindsight import Relabeler
from recollect.environments import crafter, meta_world_kshot, popgym, registry, retro, retro_worker
from recollect.environments import crafter_instructions as instructions
from recollect.environments.base import World
from recollect.environments.packaged import Plain
from recollect.settings.errors import UserError

SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "gymnasium": ("", {"id": "CartPole-v1", "horizon": 30}),
    "gymnasium, bits": ("", {"id": "Lights-v0", "horizon": 5}),
    "gymnasium, continuous": ("", {"id": "Pendulum-v1", "horizon": 8}),
    "gymnasium, attempts": ("", {"id": "CartPole-v1", "horizon": 12, "attempts": 3}),
    "popgym": ("popgym", {"task": "AutoencodeEasy", "horizon": 12, "timer": True}),
    "crafter": ("crafter", {"horizon": 6}),
    "crafter, textures": ("crafter", {"horizon": 6, "observation": "textures", "tech_tree": True}),
    "crafter, plain": ("crafter", {"horizon": 6, "observation": "render", "instructions": False}),
    "meta_world_kshot": ("metaworld", {"benchmark": "reach", "attempt_steps": 5, "attempts": 2}),
}
REAL = {name: SMALL[name] for name, (package, _) in SMALL.items() if package and find_spec(package) is not None}
if find_spec("stable_retro"):
    REAL |= {
        name: ("stable_retro", {"horizon": 5, "frame_skip": 4, "buttons": "," in name})
        for name in ("retro", "retro, buttons")
    }
cases = [*SMALL, *(f"real {name}" for name in REAL)]


@pytest.fixture
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, Any]]:
    """A world and small options, with the fake packages or with the real ones."""
    name: str = request.param
    if not name.startswith("real "):
        fake_amago_packages.install(monkeypatch)
        return name.partition(",")[0], SMALL[name][1]
    name = name.removeprefix("real ")
    return name.partition(",")[0], REAL[name][1]


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_amago_packages.install(monkeypatch)


everywhere = pytest.mark.parametrize("case", cases, indirect=True)


def make(
    name: str, which: list[int], mode: AutoresetMode = AutoresetMode.DISABLED, split: str = "train", **options: Any
) -> Any:
    listed = registry.tasks(name, options, split)
    world = registry.make_world(
        name, options, [listed[i % len(listed)] for i in which], np.array(which, np.uint64), mode
    )
    return world


def play(world: World, which: list[int], steps: int, seed: int) -> list[list[Any]]:
    """What each step gave; the actions of an instance depend on its number and the step only."""
    found = []
    for step in range(steps):
        actions = np.stack([sampled(world, np.random.default_rng([seed, i, step])) for i in which])
        seen, rewards, terminated, truncated, _ = world.step(actions)
        found.append([seen.tolist(), rewards.tolist(), terminated.tolist(), truncated.tolist()])
        assert world.observation_space.contains(seen) and rewards.dtype == np.float32
        if (terminated | truncated).any():
            found.append([world.reset(options={"reset_mask": terminated | truncated})[0].tolist()])
    return found


def trace(found: list[list[Any]], b: int) -> list[list[Any]]:
    """What `play` found of one instance; that others were reset is left out."""
    kept = []
    ended = False
    for of_all in found:
        part = [values[b] for values in of_all]
        if len(part) == 4:
            ended = part[2] or part[3]
        elif not ended:
            continue
        kept.append(part)
    return kept


def sampled(world: World, draws: np.random.Generator) -> np.ndarray:
    space: Any = world.single_action_space
    if isinstance(space, Discrete):
        return np.asarray(draws.integers(space.n))
    if isinstance(space, MultiBinary):
        return draws.integers(2, size=space.shape)
    return draws.uniform(-1, 1, space.shape).astype(np.float32)


@everywhere
def test_an_instance_does_not_depend_on_the_others_and_a_state_is_played_again(
    case: tuple[str, dict[str, Any]],
) -> None:
    name, options = case
    which = [3, 0, 3]
    first, alone, again = (make(name, some, **options) for some in (which, [0], which))
    assert first.reset()[0][1].tolist() == alone.reset()[0][0].tolist()
    assert first.num_envs == 3 and first.observation_space.contains(first.reset(seed=None)[0])
    alone.reset()
    # Some instance now stands within an episode.
    together, single = play(first, which, 9, 1), play(alone, [0], 9, 1)
    assert trace(together, 1) == trace(single, 0)
    assert first.get_state()["timestep"].any()
    again.reset(seed=77)
    again.set_state(first.get_state())
    assert play(first, which, 12, 2) == play(again, which, 12, 2)


@everywhere
def test_episodes_end_at_the_horizon_at_the_latest(case: tuple[str, dict[str, Any]]) -> None:
    name, options = case
    world = make(name, [1, 2], **options)
    world.reset()
    since = np.zeros(2, int)
    for step in range(2 * world.horizon):
        actions = np.stack([sampled(world, np.random.default_rng([5, i, step])) for i in range(2)])
        _, _, terminated, truncated, _ = world.step(actions)
        since += 1
        ended = terminated | truncated
        assert (ended | (since < world.horizon)).all() and not (terminated & truncated).any()
        since[ended] = 0
        if ended.any():
            world.reset(options={"reset_mask": ended})


@pytest.mark.parametrize("name", ["popgym", "crafter", "meta_world_kshot"])
def test_a_missing_package_is_named_with_what_to_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, options = SMALL[name]
    for module in [module for module in sys.modules if module.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"needs the package '{package}'") as refused:
        make(name, [0], **options)
    assert "FAMILY=" in refused.value.do


# ------------------------------------------------------------------------------------------------ gymnasium and POPGym


def test_gymnasium_is_played_as_it_is() -> None:
    """The same seed and actions in the package's own environment give the same numbers."""
    world = make("gymnasium", [4], id="Pendulum-v1", horizon=300)
    seen = world.reset()[0][0]
    plain = gymnasium.make("Pendulum-v1").unwrapped
    expected, _ = plain.reset(seed=int(world.get_state()["word"][0]))
    for step in range(250):  # beyond the package's own limit of 200
        np.testing.assert_allclose(seen, expected, atol=1e-6)
        action = np.sin(np.array([step], np.float32))
        observations, reward, terminated, truncated, _ = world.step(action[None])
        seen, (expected, paid, *_) = observations[0], plain.step(2 * action)  # its torque is bounded by 2
        assert reward[0] == pytest.approx(paid, abs=1e-6) and not terminated.any() and not truncated.any()


def test_an_environment_that_does_not_exist_or_is_of_another_kind_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be made"):
        make("gymnasium", [0], id="NoSuchThing-v7")
    with pytest.raises(UserError, match="cannot be made"):
        make("gymnasium", [0], id="CartPole-v1", arguments={"no_such_argument": 1})
    with pytest.raises(UserError, match="needs the package 'no_such_package'"):
        make("gymnasium", [0], package="no_such_package")

    class Endless(gymnasium.Env):
        observation_space: Any = Discrete(3)
        action_space: Any = Box(-np.inf, np.inf, (2,))

    with pytest.raises(UserError, match="neither choices nor bits nor numbers"):
        Plain(Endless(), "test")


def test_bits_are_played_as_bits_and_anything_else_is_refused(fakes: None) -> None:
    world = make("gymnasium", [0, 1], id="Lights-v0", horizon=9)
    assert world.single_action_space == MultiBinary(3)
    world.reset()
    for pressed in ([[1, 0, 1], [0, 0, 0]], [[1, 1, 1], [0, 1, 0]]):
        seen, reward, *_ = world.step(np.array(pressed))
        assert reward.tolist() == [sum(row) for row in pressed] and seen[:, 1:4].tolist() == pressed
    for wrong in (np.array([[1, 0, 2], [0, 0, 0]]), np.zeros(2, int), np.zeros((2, 3))):
        with pytest.raises(UserError, match=r"bits, 0 or 1, of shape \(2, 3\)"):
            world.step(wrong)


def test_observations_are_flat_and_several_choices_are_one_number() -> None:
    class Mixed(gymnasium.Env):
        observation_space: Any = Dict({"a": Discrete(3), "b": Box(-1, 5, (2, 2))})
        action_space: Any = MultiDiscrete([2, 3, 2], start=[1, 0, 5])

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return {"a": 1, "b": np.array([[1, 2], [3, 4]])}, {}

        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action)
            return (
                {"a": 2, "b": np.full((2, 2), action[1])},
                float(100 * action[0] + 10 * action[1] + action[2]),
                False,
                True,
                {},
            )

    player = Plain(Mixed(), "test", timer=10)
    seen, _ = player.reset(seed=0)
    assert seen.tolist() == [0, 1, 0, 1, 2, 3, 4, 0] and seen.dtype == np.float32
    assert player.observation_space.contains(seen) and player.action_space == Discrete(12)
    steps = [player.step(action) for action in (0, 1, 4, 11)]
    assert [step[1:4] for step in steps] == [(paid, False, True) for paid in (105, 106, 125, 226)]
    assert steps[-1][0][:-1].tolist() == [0, 0, 1, 2, 2, 2, 2] and steps[-1][0][-1] == np.float32(0.4)


@pytest.mark.parametrize(
    ("low", "high", "dtype", "meant"),
    [
        (-100, 100, "int8", [-100, 0, 50, 100]),
        (-20_000, 20_000, "int16", [-20_000, 0, 10_000, 20_000]),
        (-(2**31), 2**31 - 1, "int32", [-(2**31), 0, 2**30, 2**31 - 1]),
        (0, 255, "uint8", [0, 128, 191, 255]),
        (-3e38, 3e38, "float32", [-3e38, 0, 1.5e38, 3e38]),
        (-2, 2, "float32", [-2, 0, 1, 2]),
    ],
)
def test_actions_are_mapped_onto_bounds_that_are_as_far_apart_as_their_type_has(
    low: float, high: float, dtype: str, meant: list[float]
) -> None:
    class Wide(gymnasium.Env):
        observation_space = Box(-1, 1, (1,), np.float32)
        action_space = Box(low, high, (1,), np.dtype(dtype).type)

    player = Plain(Wide(), "test", timer=10)
    found = [player._meant([share]) for share in (-1.0, 0.0, 0.5, 1.0)]
    assert all(action in Wide.action_space for action in found)
    assert [float(action[0]) for action in found] == pytest.approx(meant, rel=1e-6, abs=0.6)


def test_a_picture_is_drawn_also_of_an_environment_that_was_made_without_pictures() -> None:
    class Drawn(gymnasium.Env[Any, Any]):
        observation_space, action_space = Box(0, 1, (2,), np.float32), Discrete(2)

        def render(self) -> Any:
            return np.ones((4, 5, 3)) if self.render_mode == "rgb_array" else None

    assert Plain(Drawn(), "test").render().shape == (4, 5, 3)


def test_popgym_has_amagos_39_tasks_and_numpys_own_generator_is_left_alone(fakes: None) -> None:
    """Names of the paper: specification 4.2."""
    paper = {"Autoencode", "Battleship", "Concentration", "CountRecall", "HigherLower", "MineSweeper", "MultiarmedBandit",
             "NoisyStatelessCartPole", "NoisyStatelessPendulum", "RepeatFirst", "RepeatPrevious", "StatelessCartPole",
             "StatelessPendulum"}  # fmt: skip
    assert len(popgym.TASKS) == 39 and {name for name, _ in popgym.GAMES.values()} == paper
    with pytest.raises(UserError, match="no task 'RepeatFrist'"):
        popgym.tasks("train", task="RepeatFrist")
    # One to sixteen decks of 52 cards; fields without mines; a field of ships; draws of an arm.
    decks = {"Autoencode": (2, 4, 6), "CountRecall": (1, 2, 4), "HigherLower": (1, 2, 3), "RepeatFirst": (1, 8, 16)}
    lengths = {
        name: tuple(52 * deck - 1 for deck in of) for name, of in (decks | {"RepeatPrevious": (1, 2, 3)}).items()
    }
    lengths |= {"MineSweeper": (4**2 - 2, 6**2 - 6, 8**2 - 10), "Battleship": (8**2, 10**2, 12**2)}
    lengths |= {"MultiarmedBandit": (200, 400, 600), "Concentration": (2 * 52, 4 * 52, 2 * 52)}
    assert {name: popgym.GAMES[name][1] for name in lengths} == lengths
    bounds = {name: popgym.tasks("eval", task=name)[0].data["normalisation"]["from_random"] for name in popgym.TASKS}
    assert all(-1 < low < 0.3 and high == 1 for low, high in bounds.values())
    assert bounds["RepeatFirstHard"][0] == pytest.approx(-0.5, abs=0.03)  # one of four guesses is right
    timed = make("popgym", [0], task="RepeatFirstHard", timer=True)
    timed.reset()
    assert [timed.step(np.array([0]))[0][0, -1] for _ in range(2)] == [np.float32(0.001), np.float32(0.002)]
    before = np.random.get_state()[1].tolist()
    world = make("popgym", [0, 1], task="RepeatFirstHard", horizon=50)
    cards = [world.reset()[0].tolist()]
    for step in range(7):
        seen, _, terminated, truncated, _ = world.step(np.array([step, 3]))
        cards.append(seen.tolist())
        assert terminated.tolist() == [step == 6] * 2 and not truncated.any()  # the package's limit is an end
    assert world.single_action_space.n == 12 and np.shape(cards[0]) == (2, 2 + 4 + 3)
    assert {tuple(map(sum, seen)) for seen in cards} == {(3, 3)}  # three choices, each one-hot
    assert len({str(seen) for seen in cards}) > 4
    assert np.random.get_state()[1].tolist() == before


def test_what_an_environment_draws_from_numpys_global_generator_is_a_stream_of_its_own() -> None:
    """Of each instance: that of a `RandomState` with its seed, whoever else draws; and nobody else's draws change."""

    class Draws(gymnasium.Env[Any, Any]):
        observation_space = Box(0, 1, (2,), np.float32)
        action_space = Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
            return np.array([np.random.normal(), np.random.rand()]), {}

        def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            if action:
                raise RuntimeError
            return np.array([np.random.normal(), np.random.choice(5)]), 0.0, False, False, {}

    one, two = (Plain(Draws(), "mine", own_draws=True) for _ in range(2))
    expected, other, shared = np.random.RandomState(4), np.random.RandomState(5), np.random.RandomState(6)
    np.random.seed(6)
    for _ in range(2):  # the same again in a second episode
        expected.seed(4)
        other.seed(5)
        assert one.reset(seed=4)[0] == pytest.approx([expected.normal(), expected.rand()], rel=1e-6)
        assert two.reset(seed=5)[0] == pytest.approx([other.normal(), other.rand()], rel=1e-6)
        for _ in range(3):
            assert one.step(0)[0] == pytest.approx([expected.normal(), expected.choice(5)], rel=1e-6)
            assert np.random.normal() == shared.normal()  # an odd number of times: half a pair is kept, too
            assert two.step(0)[0] == pytest.approx([other.normal(), other.choice(5)], rel=1e-6)
        with pytest.raises(RuntimeError):
            one.step(1)
        assert np.random.normal() == shared.normal()


# -------------------------------------------------------------------------------------------------------------- Crafter


@pytest.mark.slow
def test_instructions_have_the_published_chances() -> None:
    """Specification 4.7."""
    draws = np.random.default_rng(0)
    drawn = [instructions.draw(draws, 1, 5) for _ in range(6000)]
    lengths = Counter(len(goals) for goals in drawn)
    assert set(lengths) == {1, 2, 3, 4, 5} and min(lengths.values()) > 1080
    goals = Counter(goal for some in drawn for goal in some)
    total = sum(goals.values())
    ways = {goal: count for goal, count in goals.items() if goal.startswith("travel")}
    assert sum(ways.values()) / total == pytest.approx(0.2, abs=0.01)
    expected = {"collect_sapling": 0.06, "collect_diamond": 0.015, "defeat_zombie": 0.06, "eat_plant": 0.03,
                "make_wood_pickaxe": 0.045, "make_iron_sword": 0.0075, "place_table": 0.06, "place_furnace": 0.015}  # fmt: skip
    for goal, chance in expected.items():
        assert goals[goal] / total == pytest.approx(chance, abs=0.006), goal
    assert not {goal for goal in goals if "wake" in goal} and len(goals) > 22
    # A far place needs a large drawn distance, which is rare: most ways lead near the middle, (32, 32).
    far = [np.hypot(*(int(m[:-1]) - 32 for m in goal.split("_")[1:])) for goal in ways for _ in range(ways[goal])]
    assert np.mean(far) == pytest.approx(14, abs=1.5) and max(far) < 45 and min(far) < 4
    assert len(ways) > 100  # of places that are as far any one is drawn, or nearly
    assert all(instructions.text(instructions.numbers(goal)) == goal for goal in goals)


def test_words_are_numbered_as_published_and_prompts_are_the_papers() -> None:
    assert len(instructions.WORDS) == 37
    some = {"collect": 0, "place": 4, "wood": 11, "plant": 15, "travel": 20, "pad": 21, "up": 23, "0m": 24, "60m": 36}
    assert {word: instructions.NUMBERS[word] for word in some} == some
    assert instructions.numbers("collect_wood") == [0, 11, 21] and instructions.numbers("travel_10m_50m") == [
        20,
        26,
        34,
    ]
    single, several = (crafter.tasks(split) for split in ("single", "multi"))
    assert len(single) == 22 and len(several) == 10
    assert several[-1].data["instruction"] == (
        "eat_cow", "make_stone_pickaxe", "collect_coal", "make_wood_sword", "defeat_zombie",
    )  # fmt: skip
    assert set(instructions.TECH_TREE) < set(instructions.ACHIEVEMENTS)
    with pytest.raises(UserError, match="unknown split 'mutli'"):
        crafter.tasks("mutli")


@pytest.mark.parametrize("tech_tree", [False, True])
def test_each_length_has_a_task_whose_instructions_are_drawn_with_so_many_goals(fakes: None, tech_tree: bool) -> None:
    """AMAGO's figure 28, success by the number of goals; the words of the instruction are new in every episode."""
    lengths = crafter.tasks("lengths", fewest_goals=2, most_goals=4)
    assert [(task.name, task.data) for task in lengths] == [(f"{n}_goals", {"goals": n}) for n in (2, 3, 4)]
    world = make("crafter", [0, 1, 2], split="lengths", fewest_goals=2, most_goals=4, horizon=1, tech_tree=tech_tree)
    seen = set()
    for _ in range(20):
        world.reset()
        goals_BKW = world.goals()
        assert (~np.isnan(goals_BKW[..., 0])).sum(1).tolist() == [2, 3, 4]
        seen.add(goals_BKW.tobytes())
    assert len(seen) == 20


def test_the_tech_tree_asks_for_one_more_than_was_achieved() -> None:
    """With nothing achieved for wood alone; behind each achievement for all before it, for it and for the next; at last for all."""
    draws = np.random.default_rng(0)
    for reached in range(14):
        asked = set()
        for _ in range(150):
            goals = instructions.draw_from_tech_tree(draws, 1, 5, reached)
            places = [instructions.TECH_TREE.index(goal) for goal in goals]
            assert places == sorted(set(places)) and 1 <= len(places) <= 5
            asked |= set(places)
        assert asked == set(range(min(reached + 1, 13)))


def test_what_was_achieved_opens_the_next_of_the_tech_tree(fakes: None) -> None:
    """Of one instance, over episodes; the others do not see it."""
    world = make("crafter", [0, 1], horizon=2, tech_tree=True)
    world.reset()
    for actions, reached in (([0, 0], [0, 0]), ([5, 0], [1, 0]), ([8, 0], [2, 0]), ([5, 5], [2, 1])):
        _, _, terminated, truncated, _ = world.step(np.array(actions))  # 5 collects wood, 8 places a table
        assert world.get_state()["reached_in_tech_tree"].tolist() == reached
        if (terminated | truncated).any():
            world.reset(options={"reset_mask": terminated | truncated})
    assert any(world._drawn(word, 2, None) != world._drawn(word, 1, None) for word in range(60))  # and it is asked for
    of_tree = [world._drawn(word, 0, None) == ["collect_wood"] for word in range(300)]  # of others, 1.2 % are this one
    assert np.mean(of_tree) == pytest.approx(0.34, abs=0.06)  # specification 4.7: a third


@pytest.mark.parametrize(
    ("x", "y", "goal"),
    [
        (32, 32, None),
        (30, 31, "travel_30m_30m"),
        (9, 11, "travel_10m_10m"),
        (8, 10, None),
        (63, 61, None),
        (61, 60, "travel_60m_60m"),
    ],
)
def test_a_place_is_reached_within_two_units(x: int, y: int, goal: str | None) -> None:
    assert instructions.place_near(x, y) == goal


def test_an_instruction_is_followed_shown_and_paid(fakes: None) -> None:
    """Collect wood twice and place a table: only in order, once a step."""
    world = make("crafter", [0], horizon=20)
    world.reset()
    world._goals_BKW[0] = np.nan
    world._goals_BKW[0, :3] = [instructions.numbers(goal) for goal in ("collect_wood", "collect_wood", "place_table")]
    rewards, shown = [], []
    for action in (8, 5, 8, 5, 0, 8):
        seen, reward, terminated, _, info = world.step(np.array([action]))
        rewards.append(float(reward[0]))
        shown.append((seen[0, world.goal_part.where].astype(int) - 128).reshape(5, 3)[:, 0].tolist())
    assert rewards == [0, 1, 0, 1, 0, 1] and terminated[0] and info["success"].tolist() == [True]
    assert shown[0] == [-1, -1, 0, 0, 4] and shown[1] == [-1, -1, -3, 0, 4] and shown[-1] == [-1, -1, -3, -3, -3]
    assert (
        info["achieved"][0, 0].tolist() == instructions.numbers("place_table")
        and np.isnan(info["achieved"][0, 1:]).all()
    )
    world.reset()
    world._goals_BKW[0] = np.nan
    world._goals_BKW[0, 0] = instructions.numbers("travel_35m_35m")
    world.players[0].inner._player.pos = np.array([35, 34])
    assert world.step(np.array([5]))[1:3] == (1, True)  # wood is collected besides


def test_every_episode_has_the_instruction_of_its_own_word_and_nothing_of_the_one_before(fakes: None) -> None:
    world, drawn = make("crafter", [0, 1], horizon=1), set()
    for _ in range(8):
        world.reset()
        for word, goals_KW in zip(world.get_state()["word"].tolist(), world.goals(), strict=True):
            asked = [instructions.text(goal) for goal in goals_KW if not np.isnan(goal[0])]
            assert asked == world._drawn(word, 0, None)
            drawn.add(tuple(asked))
    assert len(drawn) > 12


def test_what_was_completed_is_shown_a_step_later_where_that_is_asked_for(fakes: None) -> None:
    world = make("crafter", [0], horizon=20, goals_shown="before")
    world.reset()
    world._goals_BKW[0] = np.nan
    world._goals_BKW[0, :2] = [instructions.numbers(goal) for goal in ("collect_wood", "place_table")]
    shown = []
    for action in (5, 0, 8):
        seen, reward, *_ = world.step(np.array([action]))
        shown.append((seen[0, world.goal_part.where].astype(int) - 128).reshape(5, 3)[3, 0])
    assert shown == [0, -3, -3] and reward[0] == 1
    assert (
        world.reset()[0][0, world.goal_part.where].astype(int) > 128 - 3
    ).all()  # none of the next episode is completed


def test_goals_of_later_are_hidden_where_that_is_asked_for(fakes: None) -> None:
    for hide, shown in ((False, [-1, -1, 0, 0, 4]), (True, [-1, -1, -1, -1, 0])):
        world = make("crafter", [0], hide_future=hide)
        world.reset()
        world._goals_BKW[0] = np.nan
        world._goals_BKW[0, :3] = [
            instructions.numbers(goal) for goal in ("collect_wood", "collect_wood", "place_table")
        ]
        seen = world.step(np.array([0]))[0][0, world.goal_part.where].astype(int) - 128
        assert seen.reshape(5, 3)[:, 0].tolist() == shown


def test_parts_of_an_observation_are_where_they_are_said_to_be(fakes: None) -> None:
    for kind, parts in (
        ("crop", ["image", "inventory", "goals"]),
        ("render", ["image", "goals"]),
        ("textures", ["textures", "features", "goals"]),
    ):
        world = make("crafter", [0], observation=kind)
        seen, inner = world.reset()[0][0], world.players[0].inner
        assert list(world.observation_parts) == parts
        part = {name: seen[where].reshape(shape) for name, (where, shape) in world.observation_parts.items()}
        if kind == "textures":
            np.testing.assert_array_equal(part["textures"], inner._sem_view().T[29:36, 28:37] + 1)
            assert part["features"][:3].tolist() == pytest.approx([0, 1, 0.9]) and part["features"][-1] == 0.5
            assert part["features"][18:20].tolist() == pytest.approx([2 / 60, 2 / 60])  # at (32, 32), counted from 30
            inner._player.pos = np.array([0, 63])  # at a corner what is outside is 0, and the rest keeps its place
            corner = world._observe()[0][:63].reshape(7, 9)
            np.testing.assert_array_equal(corner[:4, 4:], inner._sem_view().T[60:64, :5] + 1)
            assert not corner[4:].any() and not corner[:, :4].any()
        else:
            height = part["image"].shape[1]
            np.testing.assert_array_equal(part["image"], inner.render()[:height].transpose(2, 0, 1))
    part = make("crafter", [0]).observation_parts
    assert [shape for _, shape in part.values()] == [(3, 48, 64), (16,), (5, 3)]
    with pytest.raises(UserError, match="an instruction of 5 goals"):
        make("crafter", list(range(10)), split="multi", most_goals=3)


real_crafter = pytest.mark.skipif(find_spec("crafter") is None, reason="crafter is not installed")


@pytest.mark.parametrize(
    ("package", "observation"),
    [("fake", "textures"), ("fake", "crop"), ("fake", "render"), pytest.param("real", "crop", marks=real_crafter)],
)
def test_an_episode_of_crafter_is_a_function_of_its_word_and_actions(
    package: str, observation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often one looks, and at whatever addresses the creatures lie. Night falls after 148 real steps."""
    if package == "fake":
        fake_amago_packages.install(monkeypatch)
    steps, resumes = (24, 19) if package == "fake" else (200, 170)  # the third goes on from a state of the first
    options: dict[str, Any] = {"instructions": False, "observation": observation, "horizon": 2 * steps}
    first, watched, resumed = (make("crafter", [5], **options) for _ in range(3))
    for world in (first, watched, resumed):
        world.reset()
    creatures, nights = set(), 0
    for step in range(1, steps + 1):
        actions = np.array([1 + step // 3 % 4])  # it walks in squares, or into what is there
        worlds = [first, watched]
        if step > resumes:
            worlds.append(resumed)
        seen, *told = first.step(actions)
        assert not told[1].any()
        for other in worlds[1:]:
            seen_there, *told_there = other.step(actions)
            np.testing.assert_array_equal(seen, seen_there)
            assert told[:3] == told_there[:3]
        watched.render()
        np.testing.assert_array_equal(watched._observe(), watched._observe())
        inner, *others = (world.players[0].inner for world in worlds)
        for other in others:
            np.testing.assert_array_equal(inner._sem_view(), other._sem_view())
            np.testing.assert_array_equal(inner._world._obj_map, other._world._obj_map)
        creatures.add(inner._world._obj_map.tobytes())
        nights += inner._world.daylight < 0.5
        if step == resumes:
            resumed.set_state(first.get_state())
            np.testing.assert_array_equal(resumed._observe(), seen)
    assert nights > steps // 5 and len(creatures) > steps // 3  # neither was missed


def test_crafter_can_be_relabelled(fakes: None) -> None:
    world = make("crafter", [1], horizon=12)
    rows: dict[str, list[Any]] = {
        "observation": [world.reset()[0][0]],
        "achieved": [np.full((4, 3), np.nan, np.float32)],
    }
    world._goals_BKW[0] = np.nan
    world._goals_BKW[0, :2] = instructions.numbers("collect_diamond")
    for action in (1, 5, 1, 1, 8, 2, 2):
        seen, _, _, _, info = world.step(np.array([action]))
        rows["observation"].append(seen[0])
        rows["achieved"].append(info["achieved"][0])
    T = len(rows["observation"])
    original = {name: np.array(values) for name, values in rows.items()} | {
        "previous_action": np.zeros(T, np.int16),
        "reward": np.zeros(T, np.float32),
        "done": np.zeros(T, bool),
        "time": np.arange(T, dtype=np.int32),
        "goals": world.goals()[0],
    }
    new = Relabeler("all", world.goal_part)(original, np.random.default_rng(0))
    asked = [instructions.text(goal) for goal in new["goals"] if not np.isnan(goal[0])]
    assert len(asked) == 2 and set(asked) <= {"collect_wood", "place_table", "travel_35m_35m", "travel_35m_30m"}
    assert new["reward"].sum() == 2 and new["done"][-1] and new["observation"].dtype == np.uint8
    shown = new["observation"][:, world.goal_part.where].astype(int) - 128
    assert shown[0].reshape(5, 3)[3:].tolist() == new["goals"][:2].astype(int).tolist()
    assert shown[-1].reshape(5, 3)[3:].tolist() == [[-3] * 3] * 2


# ------------------------------------------------------------------------------------------------ Meta-World in attempts


def test_attempts_have_the_same_positions_and_success_is_the_share_of_them(fakes: None) -> None:
    world = make("meta_world_kshot", [0, 1], attempt_steps=6, attempts=3)
    assert world.parts == 3 and make("meta_world_kshot", [0], attempts=3).horizon == 1500  # specification 4.5
    first = world.reset()[0]
    assert first[:, 39].tolist() == [1, 1] and not first[:, 36:39].any()
    goals = np.stack([player.now.inner.goal for player in world.players])
    assert abs(goals[0] - goals[1]).max() > 1e-3
    shown = make("meta_world_kshot", [0, 1], goal_shown=True).reset()[0]
    np.testing.assert_allclose(shown[:, 36:39], goals, rtol=1e-6)
    for step in range(18):
        attempt = step // 6
        way = np.zeros((2, 4), np.float32)
        if attempt != 1:  # in the second attempt nothing is done
            way[:, :3] = np.clip(5 * (goals - np.stack([player.now.inner.hand for player in world.players])), -1, 1)
        seen, _, terminated, truncated, info = world.step(way)
        begins = (step + 1) % 6 == 0
        assert seen[:, 39].tolist() == [float(begins)] * 2 and not truncated.any()
        if begins:
            np.testing.assert_array_equal(seen, first)
        np.testing.assert_array_equal(np.stack([player.now.inner.goal for player in world.players]), goals)
        assert terminated.tolist() == [step == 17] * 2
    np.testing.assert_allclose(info["success"], 2 / 3)


def test_splits_have_other_positions_and_benchmarks_their_published_tasks(fakes: None) -> None:
    """Yu et al. 2019: ML10 has 10 and 5 tasks, ML45 45 and 5, of which none is in both."""
    for benchmark, counts in (("reach", (1, 1)), ("ml10", (10, 5)), ("ml45", (45, 5))):
        train, held_out = (
            meta_world_kshot.tasks(split, benchmark=benchmark)[0].data["names"] for split in ("train", "eval")
        )
        assert (len(train), len(held_out)) == counts
        assert benchmark == "reach" or not set(train) & set(held_out)
        assert len(meta_world_kshot.tasks("each", benchmark=benchmark)) == counts[1]
    assert meta_world_kshot.ML10_TRAIN == (
        "reach", "push", "pick-place", "door-open", "drawer-close", "button-press-topdown", "peg-insert-side",
        "window-open", "sweep", "basketball",
    )  # fmt: skip
    assert meta_world_kshot.ML10_EVAL == ("drawer-open", "door-close", "shelf-place", "sweep-into", "lever-pull")
    positions = {}
    for split in ("train", "eval"):
        world = make("meta_world_kshot", [0] * 4, split=split, attempt_steps=1, attempts=1, positions=3)
        found = set()
        for _ in range(10):
            world.reset()
            found |= {player.position for player in world.players}
        positions[split] = found
    assert positions == {"train": {1, 2, 3}, "eval": {4, 5, 6}}
    world = make("meta_world_kshot", [0], split="eval", benchmark="ml10", attempt_steps=1, attempts=1, positions=10)
    drawn = set()
    for word in range(50):
        world.players[0].begin(word)
        drawn.add((world.players[0].now.name, world.players[0].position))
    assert len(drawn) == 50  # each of five tasks at every one of its positions
    with pytest.raises(UserError, match="no benchmark 'ml11'"):
        meta_world_kshot.tasks("train", benchmark="ml11")


# ------------------------------------------------------------------------------------------------------- emulated games


def test_frames_are_shrunk_by_area() -> None:
    np.testing.assert_allclose(retro_worker.shares(4, 2), [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])
    np.testing.assert_allclose(retro_worker.shares(3, 2), [[2 / 3, 1 / 3, 0], [0, 1 / 3, 2 / 3]])
    np.testing.assert_allclose(retro_worker.shares(240, 96).sum(1), 1)


def test_an_action_lasts_eight_frames_and_a_game_27_000_actions_at_most() -> None:
    """Specification 4.8."""
    chosen = retro.Options()
    assert (chosen.frame_skip, chosen.horizon, chosen.border, chosen.buttons) == (8, 27_000, True, False)


def test_starts_are_tasks_and_a_missing_package_or_game_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = {"game": "SuperMarioBros-Nes-v0", "starts": ["Level1-1", "Level8-1"]}
    assert [task.name for task in retro.tasks("starts", **starts)] == ["Level1-1", "Level8-1"]
    (together,) = retro.tasks("train", **starts)
    assert together.data == {"starts": ["Level1-1", "Level8-1"]}
    player, asked = retro.Player.__new__(retro.Player), []
    player.starts = together.data["starts"]
    player.worker = SimpleNamespace(ask=lambda what, which: asked.append(which[0]["start"]))  # type: ignore[assignment]
    for word in range(4):
        player.begin(word)
    assert asked == 2 * ["Level1-1", "Level8-1"]
    if find_spec("stable_retro") is None:
        with pytest.raises(UserError, match="needs the package 'stable_retro'"):
            make("retro", [0])
    else:
        with pytest.raises(UserError, match="no ROM of the game 'SuperMarioBros-Nes-v0'") as refused:
            make("retro", [0], **starts)
        assert "stable_retro.import" in refused.value.do
        with pytest.raises(UserError, match="no game 'NoSuch-Nes'"):
            make("retro", [0], game="NoSuch-Nes")


@pytest.mark.skipif(find_spec("stable_retro") is None, reason="stable_retro is not installed")
def test_airstriker_has_a_border_of_its_console_and_pays() -> None:
    world = make("retro", [0, 1], horizon=60)
    seen = world.reset()[0]
    assert seen.shape == (2, 3, 84, 96) and (seen[:, :, :2] == np.array([8, 8, 201])[:, None, None]).all()
    total = sum(
        world.step(np.random.default_rng(t).integers(world.single_action_space.n, size=2))[1] for t in range(40)
    )
    assert total.sum() > 0


@pytest.mark.skipif(find_spec("stable_retro") is None, reason="stable_retro is not installed")
def test_buttons_do_what_the_consoles_choices_do() -> None:
    """Holding the ship's trigger and a direction pays, and moves what is seen; of 12 bits the console has the first so many."""
    seen = {}
    for pressed in (0, 0b10000000, 0b1000000):
        world = make("retro", [0], horizon=30, buttons=True)
        assert world.single_action_space == MultiBinary(12)
        world.reset()
        for _ in range(12):
            frame = world.step(np.array([[pressed >> i & 1 for i in range(12)]]))[0]
        seen[pressed] = frame.tobytes()
    assert len(set(seen.values())) == 3  # right, left and nothing


def test_an_attempt_that_was_solved_on_the_way_is_a_success(fakes: None) -> None:
    world = make("meta_world_kshot", [0], attempt_steps=12, attempts=1)
    world.reset()
    player = world.players[0].now.inner
    for step in range(12):  # to the goal, and away from it
        way = np.clip(5 * (player.goal - player.hand), -1, 1) if step < 6 else -np.ones(3)
        info = world.step(np.append(way, 0)[None].astype(np.float32))[4]
    np.testing.assert_allclose(info["success"], 1)
