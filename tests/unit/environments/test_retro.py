"""Games of consoles play as the package plays them, though nothing is drawn that nobody sees, and are played side by side."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from recollect.environments import registry, retro, retro_worker
from recollect.environments.base import World
from recollect.environments.worker import Worker
from recollect.settings.errors import UserError

with_retro = pytest.mark.skipif(find_spec("stable_retro") is None, reason="stable_retro is not installed")
GAME = "Airstriker-Genesis-v0"
# Plays as the package does, frame by frame, in a process of its own: there can be one emulator in each.
PLAIN = """
import sys
import numpy as np
import stable_retro
from recollect.environments.retro_worker import Shrinker
buttons, skip = sys.argv[1] == "buttons", 4
kind = stable_retro.Actions.FILTERED if buttons else stable_retro.Actions.DISCRETE
game = stable_retro.make("Airstriker-Genesis-v0", use_restricted_actions=kind, render_mode="rgb_array")
shrinker = Shrinker(game.observation_space.shape[:2], (84, 96))
shown = lambda frame: np.rint(shrinker.whole(frame)).astype(np.uint8)
frames, rewards, ends = [shown(game.reset()[0])], [], []
for action in np.load(sys.argv[2]):
    paid = 0.0
    for _ in range(skip):
        frame, reward, over, _, _ = game.step(action[: game.num_buttons].astype("int8") if buttons else int(action))
        paid += float(reward)
        if over:
            break
    rewards.append(paid)
    ends.append(over)
    frames.append(shown(game.reset()[0] if over else frame))
np.savez(sys.argv[3], frames=frames, rewards=rewards, ends=ends)
"""


@pytest.mark.parametrize("seen", [(224, 320), (240, 256), (210, 160), (144, 160), (84, 96), (60, 70)])
def test_frames_shrunk_in_blocks_are_those_of_whole_products(seen: tuple[int, int]) -> None:
    shrinker = retro_worker.Shrinker(seen, (84, 96))
    draws = np.random.default_rng(1)
    for most in (256, 256, 256, 9, 2):
        frame_HWC = draws.integers(0, most, (*seen, 3), np.uint8)
        whole_CYX = shrinker.whole(frame_HWC)
        assert np.rint(shrinker.shrunk(frame_HWC)).tobytes() == np.rint(whole_CYX).tobytes()
    shrinker.use_blocks_of(8)  # also where the library adds in another order, but for rounding
    np.testing.assert_allclose(shrinker.shrunk(frame_HWC), whole_CYX, rtol=1e-12, atol=1e-12)


def make(count: int, mode: AutoresetMode = AutoresetMode.DISABLED, **options: Any) -> World:
    options = {"game": GAME, "frame_skip": 4, "border": False, "horizon": 1000, **options}
    listed = registry.tasks("retro", options, "train") * count
    return registry.make_world("retro", options, listed, np.arange(count, dtype=np.uint64), mode)


def test_a_game_that_the_worker_would_not_find_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package lists games of four integrations, and plays those of one unless it is told otherwise."""

    def listed(*inttype: Any) -> list[str]:
        return [GAME, "Own-Nes"] if inttype else [GAME]

    def rom(game: str, *_: Any) -> str:
        raise FileNotFoundError

    data = SimpleNamespace(
        list_games=listed,
        get_romfile_path=lambda *_: "rom",
        list_states=lambda *_: ["Level1"],
        Integrations=SimpleNamespace(ALL=15),
    )
    monkeypatch.setitem(sys.modules, "stable_retro", SimpleNamespace(data=data))
    retro.check_game(GAME)
    with pytest.raises(UserError, match="there is no game 'Own-Nes'"):
        retro.check_game("Own-Nes")
    with pytest.raises(UserError, match=f"the game '{GAME}' has no start 'Level9'"):
        make(1, starts=["Level1", "Level9"])
    data.get_romfile_path = rom
    with pytest.raises(UserError, match=f"there is no ROM of the game '{GAME}'"):
        make(1)


class Console:
    """Stands in for a game of the package: its frame t is of shade t and pays t, and it is over at its seventh."""

    system = "Nes"

    def __init__(self, game: str, use_restricted_actions: str, render_mode: str) -> None:
        self.kind, self.time, self.start, self.pressed = use_restricted_actions, 0, "Level1", [0, 0]
        self.action_space = SimpleNamespace(n=9)
        self.observation_space = SimpleNamespace(shape=(168, 192, 3))
        self.em = SimpleNamespace(step=self.play, set_button_mask=self.press)
        self.data = SimpleNamespace(
            update_ram=self.noted, current_reward=lambda: self.known, is_done=lambda: self.known == 7
        )

    def load_state(self, start: str, where: str) -> None:
        self.start = f"{start} of {where}"

    def reset(self) -> tuple[np.ndarray, dict[str, Any]]:
        self.time = self.known = 0
        return self.get_screen(apply_rotation=True), {}

    def press(self, mask: Any, player: int) -> None:
        self.pressed[player] = mask

    def play(self) -> None:
        self.time += 1

    def noted(self) -> None:
        self.known = self.time

    def action_to_array(self, action: Any) -> list[Any]:
        return [np.atleast_1d(action).tolist(), ["second player"]]

    def get_screen(self, apply_rotation: bool) -> np.ndarray:
        return np.full((168, 192, 3), [self.time, 100, 200], np.uint8)


@pytest.mark.parametrize("buttons", [False, True])
def test_an_action_is_held_for_its_frames_whose_rewards_are_summed_up_to_the_end(
    buttons: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the worker itself, also where the package is not: what it asks of a game, and what it shows of it."""
    package = SimpleNamespace(
        make=Console,
        Actions=SimpleNamespace(FILTERED="bits", DISCRETE="choices"),
        data=SimpleNamespace(Integrations=SimpleNamespace(DEFAULT="the default")),
    )
    monkeypatch.setitem(sys.modules, "stable_retro", package)  # type: ignore[arg-type]
    arrays = {name: np.zeros(1, np.int64) for name in ("actions", "reward", "first")}
    arrays |= {"action": np.arange(12 if buttons else 1), "frame": np.zeros((1, *retro.SHAPE_CHW), np.uint8)}
    game = retro_worker.Game(arrays, {"game": "Mario", "frame_skip": 4, "border": True, "buttons": buttons})
    assert (game.inner.kind, arrays["actions"][0]) == ("bits" if buttons else "choices", 9)
    game.begin([{"start": None}])
    assert game.inner.start == "Level1"
    game.begin([{"start": "Level2"}])
    assert game.inner.start == "Level2 of the default"
    inside, whole = arrays["frame"][0][:, 2:-2, 2:-2], arrays["frame"][0]
    for frames, reward, over in ((4, 1 + 2 + 3 + 4, False), (7, 5 + 6 + 7, True)):
        game.step()
        assert (game.inner.time, arrays["reward"][0], arrays["first"][0]) == (frames, reward, over)
        assert game.inner.pressed == [list(range(9 if buttons else 1)), ["second player"]]
        assert (inside == np.array([frames, 100, 200])[:, None, None]).all()
        color = np.array([191, 40, 17])[:, None, None]  # specification 4.8: a border of 2 pixels in that of the console
        assert all((side == color).all() for side in (whole[:, :2], whole[:, -2:], whole[..., :2], whole[..., -2:]))
    game.begin([{"start": None}])
    assert (inside[0] == 0).all()


def test_games_are_told_together_and_that_one_is_over_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    class Told:
        """Stands in for a player whose game is over at once, and pays."""

        def __init__(self, *of: Any) -> None:
            self.worker = SimpleNamespace(arrays={"actions": [5]})

        def begin(self, word: int) -> None: ...

        def send(self, action: Any) -> None:
            heard.append("send")

        def step(self, action: Any) -> tuple[float, bool]:
            heard.append("answer")
            return 1.0, True

        def look(self) -> np.ndarray:
            return np.zeros(retro.SHAPE_CHW, np.uint8)

    monkeypatch.setattr(retro, "check_game", lambda *of: None)
    monkeypatch.setattr(retro, "Player", Told)
    world = make(2)
    world.reset()
    *_, terminated, _, info = world.step(np.array([1, 2]))
    assert heard == ["send", "send", "answer", "answer"]
    assert terminated.all() and "success" not in info


@with_retro
@pytest.mark.parametrize("kind", ["choices", "buttons"])
def test_a_step_is_the_packages_own_frame_by_frame(kind: str, tmp_path: Path) -> None:
    """300 random steps, which earn something."""
    world = make(1, AutoresetMode.SAME_STEP, buttons=kind == "buttons")
    draws = np.random.default_rng(2)
    actions = draws.integers(2, size=(300, 12)) if kind == "buttons" else draws.integers(126, size=300)
    np.save(tmp_path / "actions.npy", actions)
    plain = subprocess.run(
        [sys.executable, "-c", PLAIN, kind, str(tmp_path / "actions.npy"), str(tmp_path / "seen.npz")], timeout=300
    )
    assert plain.returncode == 0
    theirs = np.load(tmp_path / "seen.npz")
    np.testing.assert_array_equal(world.reset()[0][0], theirs["frames"][0])
    for t, action in enumerate(actions):
        seen, reward, over, _, _ = world.step(action[None])
        np.testing.assert_array_equal(seen[0], theirs["frames"][t + 1])
        assert (reward[0], over[0]) == (np.float32(theirs["rewards"][t]), theirs["ends"][t])
    assert theirs["rewards"].sum() > 0


@with_retro
def test_games_that_are_played_side_by_side_are_those_of_each_alone() -> None:
    together = make(3, horizon=20)
    alone = [make(1, horizon=20) for _ in range(3)]
    starts = together.reset()[0]
    for b, world in enumerate(alone):
        np.testing.assert_array_equal(world.reset()[0][0], starts[b])
    draws = np.random.default_rng(3)
    for _ in range(15):
        actions = draws.integers(126, size=3)
        rows = together.step(actions)
        for b, world in enumerate(alone):
            for mine, theirs in zip(world.step(actions[b : b + 1])[:4], rows[:4], strict=True):
                np.testing.assert_array_equal(mine[0], theirs[b])


@with_retro
def test_a_start_that_the_game_does_not_have_is_refused_at_once() -> None:
    make(1, starts=["Level1"])
    with pytest.raises(UserError, match="the game 'Airstriker-Genesis-v0' has no start 'Level9'") as refused:
        make(1, starts=["Level1", "Level9"])
    assert "Level1" in refused.value.do


@with_retro
def test_all_games_are_told_their_actions_before_one_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    world = make(2)
    world.reset()
    heard: list[str] = []
    for name in ("send", "answer"):
        plain = getattr(Worker, name)

        def noted(worker: Worker, what: str, *, name: str = name, plain: Any = plain) -> Any:
            heard.append(name)
            return plain(worker, what)

        monkeypatch.setattr(Worker, name, noted)
    world.step(np.array([1, 2]))
    assert heard == ["send", "send", "answer", "answer"]
    monkeypatch.undo()
    world.set_state(world.get_state())  # which plays one after the other
    assert not any(player.playing for player in world.players)  # type: ignore[attr-defined]
