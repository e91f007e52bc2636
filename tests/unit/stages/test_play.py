"""Videos of a trained policy: they show the episodes that are scored, are whole or absent, and refuse what cannot be drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence

from recollect.artifacts.scores import scores_frame
from recollect.artifacts.sealed import write_arrays, write_table
from recollect.common.contract import facts_of
from recollect.environments import registry
from recollect.environments.drawing import AGENT
from recollect.evaluation import filming
from recollect.evaluation.episodic import play_split
from recollect.evaluation.filming import Step, pictures, play, world_of
from recollect.evaluation.in_context import play_in_context
from recollect.figures.video import LINE, captioned, check_video, write_video
from recollect.settings.errors import UserError
from recollect.settings.resolve import algorithm_module, resolve
from recollect.settings.schema import EnvironmentSettings, EvaluationSettings
from recollect.stages import paths
from recollect.stages.play import play as play_stage

MAZE = ("smoke", "tmaze_active_5", "dqn_lstm", 0)


class Walker:
    """Walks east and south in turn, other rows in other turns; what it does follows from the row's seed and its steps."""

    def start(self, seeds_B: np.ndarray, horizon: int, episodes: int) -> None:
        self.seeds_B, self.count_B = np.array(seeds_B), np.zeros(len(seeds_B), np.uint64)

    def reset(self, mask_B: np.ndarray) -> None:
        """Nothing to forget."""

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        self.count_B += np.uint64(1)
        return ((self.seeds_B >> (self.count_B % np.uint64(32))) % np.uint64(2) + np.uint64(1)).astype(np.int64)

    def arrays(self) -> dict[str, np.ndarray]:
        return {}


class Wanderer(Walker):
    """Goes anywhere."""

    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        self.count_B += np.uint64(1)
        return ((self.seeds_B >> (self.count_B % np.uint64(32))) % np.uint64(4)).astype(np.int64)


class North(Walker):
    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        return np.zeros(len(self.seeds_B), np.int64)


def room(protocol: str, episodes: int) -> EnvironmentSettings:
    options = {"width": 4, "height": 3}
    evaluation = EvaluationSettings(episodes=episodes, protocol=protocol)  # type: ignore[arg-type]
    return EnvironmentSettings(name="room", world="dark_room", options=options, evaluation=evaluation)


def returns(steps: list[Step], episodes: int) -> list[float]:
    return [sum(step.reward for step in steps if step.episode == episode) for episode in range(episodes)]


def test_the_episodes_in_context_are_those_of_the_evaluation() -> None:
    environment = room("in_context", 4)
    tasks = registry.tasks("dark_room", environment.options, "eval")
    scored = play_in_context(Walker(), environment, tasks, seed=3).return_RE
    for task in range(len(tasks)):
        steps = play(Walker(), environment, "eval", task, episodes=2, seed=3)
        assert len(steps) == 2 * 12 and returns(steps, 2) == scored[task, :2].tolist()
    assert scored.max() > 0


def test_single_episodes_are_those_of_the_evaluation() -> None:
    environment = room("episodic", 9)
    tasks, scored = play_split(Walker(), environment, "eval", seed=3)
    found = []
    for task in range(3):
        found += [(task, total) for total in returns(play(Walker(), environment, "eval", task, episodes=3, seed=3), 3)]
    assert sorted(found) == sorted(zip([task.index for task in tasks], scored.return_E.tolist(), strict=True))
    assert scored.return_E.max() > 0


@pytest.mark.parametrize("protocol", ["in_context", "episodic"])
def test_pictures_show_the_agent_at_each_step_and_at_the_end(protocol: str) -> None:
    environment = room(protocol, 6)
    steps = play(Walker(), environment, "eval", 0, episodes=2, seed=3)
    shown = list(pictures(environment, "eval", 0, steps, seed=3))
    assert len(shown) == 2 * (12 + 1)
    cell = shown[0][0].shape[0] // 3
    for number, (picture, words) in enumerate(shown):
        episode, at = divmod(number, 13)
        row, column = 0, 0
        for step in steps[12 * episode : 12 * episode + at]:
            row, column = min(row + (step.action == 2), 2), min(column + (step.action == 1), 3)
        assert tuple(picture[int((row + 0.5) * cell), int((column + 0.5) * cell)]) == AGENT
        total = sum(step.reward for step in steps[12 * episode : 12 * episode + at])
        assert words.endswith(f"episode {episode + 1} · step {at} · return {total:g}")


def test_a_film_that_is_not_shown_to_its_end_leaves_no_world_open(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = room("episodic", 6)
    steps = play(Walker(), environment, "eval", 0, episodes=2, seed=3)
    worlds: list[Any] = []

    def opened(*about: Any, **more: Any) -> Any:
        worlds.append(world_of(*about, **more))
        monkeypatch.setattr(worlds[-1], "close", lambda: worlds.remove(world), raising=True)
        world = worlds[-1]
        return world

    monkeypatch.setattr(filming, "world_of", opened)
    shown = pictures(environment, "eval", 0, steps, seed=3)
    next(shown)
    assert len(worlds) == 1
    shown.close()  # type: ignore[attr-defined]
    assert not worlds


@pytest.mark.slow
def test_what_a_world_draws_once_for_all_its_episodes_is_filmed_as_it_was_scored() -> None:
    """The released Visual Match: the colors of the last room lie alike in all episodes of an evaluation."""
    options = {"explore_steps": 1, "length": 1, "reward_steps": 5, "color_map": "per_world"}
    evaluation = EvaluationSettings(episodes=6, protocol="episodic")
    environment = EnvironmentSettings(name="match", world="visual_match", options=options, evaluation=evaluation)
    for seed in range(3):
        _, scored = play_split(North(), environment, "eval", seed=seed)
        steps = play(North(), environment, "eval", 0, episodes=6, seed=seed)
        assert returns(steps, 6) == scored.return_E.tolist()
        shown = [picture for picture, _ in pictures(environment, "eval", 0, steps, seed=seed)]
        cell = shown[0].shape[0] // 7
        maps = {
            picture[int(1.5 * cell), [int((at + 0.5) * cell) for at in (2, 5, 8)]].tobytes() for picture in shown[2::8]
        }
        assert len(shown) == 6 * 8 and len(maps) == 1


@pytest.mark.slow
def test_an_episode_is_filmed_whole_where_the_one_beside_it_is_over_first() -> None:
    options = {"smallest": 5, "largest": 5, "horizon": 40}
    evaluation = EvaluationSettings(episodes=20, protocol="episodic")
    environment = EnvironmentSettings(name="maze", world="random_maze", options=options, evaluation=evaluation)
    _, scored = play_split(Wanderer(), environment, "eval", seed=3)
    steps = play(Wanderer(), environment, "eval", 0, episodes=20, seed=3)
    counts = np.bincount([step.episode for step in steps])
    assert counts.tolist() == scored.length_E.tolist() and len(set(counts)) > 2
    assert returns(steps, 20) == pytest.approx(scored.return_E)
    assert len(list(pictures(environment, "eval", 0, steps, seed=3))) == (counts + 1).sum()


def test_a_world_that_does_not_play_the_same_again_is_refused() -> None:
    environment = room("in_context", 1)
    steps = play(Walker(), environment, "eval", 0, episodes=1, seed=3)
    steps[4] = steps[4]._replace(reward=0.5)
    with pytest.raises(UserError, match=r"step 4 paid 0\.5"):
        list(pictures(environment, "eval", 0, steps, seed=3))


def many(count: int) -> Any:
    return ((np.full((31, 400, 3), 9 * number, np.uint8), f"step {number}") for number in range(count))


@pytest.mark.parametrize("suffix", [".gif", ".png", ".mp4"])
def test_a_video_holds_every_picture(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"some/where/out{suffix}"
    if suffix == ".mp4":
        package = pytest.importorskip("imageio_ffmpeg")
        write_video(path, many(20), 20)
        assert package.count_frames_and_secs(str(path))[0] == 20
        return
    write_video(path, many(20), 20)
    with Image.open(path) as made:
        if suffix == ".gif":
            assert made.n_frames == 20 and made.size == (400, 32 + LINE)  # type: ignore[attr-defined]
            shades = [frame.convert("RGB").getpixel((0, 0))[0] for frame in ImageSequence.Iterator(made)]  # type: ignore[index]
            assert shades == pytest.approx([9 * number for number in range(20)], abs=4)
        else:
            assert made.size == (8 * 400, 32 + LINE)
            shades = np.array(made)[0, ::400, 0].tolist()
            assert shades == sorted(set(shades)) and (shades[0], shades[-1]) == (0, 9 * 19)  # the first and the last


def test_a_video_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "out.gif"
    path.write_bytes(b"before")

    def failing() -> Any:
        yield from many(3)
        raise UserError("broken", where="here", do="that")

    with pytest.raises(UserError, match="broken"):
        write_video(path, failing(), 4)
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]


def test_words_stand_under_a_narrow_picture() -> None:
    frame = captioned(np.zeros((21, 33, 3), np.uint8), "task · episode 1 · step 3 · return 0")
    assert frame.shape == (22 + LINE, 360, 3) and (frame[-LINE:] < 100).any()


@pytest.mark.parametrize(("name", "said"), [("out", "does not say"), ("out.mp5", "did you mean '.mp4'"), (".", "kind")])
def test_a_path_that_is_no_video_is_refused(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_video(tmp_path / name)


def test_an_mp4_without_its_package_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.figures.video.find_spec", lambda name: None)
    with pytest.raises(UserError, match="python imageio-ffmpeg"):
        check_video(tmp_path / "out.mp4")
    check_video(tmp_path / "out.gif")


def test_a_trained_run_is_played_and_bad_input_stops_before_it(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="an input is missing"):
        play_stage(*MAZE, video="out.gif")
    settings = resolve(*MAZE)
    module = algorithm_module(settings.method.algorithm, where="dqn_lstm")
    network = module.make_network(settings.method.hyperparameters, facts_of(settings.environment), seed=0)
    arrays = {name: 4 * value.numpy() for name, value in network.state_dict().items()}
    write_arrays(paths.policy(*MAZE), arrays, kind="policy")
    table = scores_frame(env=MAZE[1], method=MAZE[2], seed=0, step=60, split="train", metric="loss", value=1.0)
    write_table(paths.train_table(*MAZE), table, kind="train")

    said = play_stage(*MAZE, video="out.gif", episodes=2)
    assert said.startswith("out.gif: task 0, returns ")
    with Image.open("out.gif") as made:
        assert made.n_frames == 2 * (8 + 1)  # type: ignore[attr-defined]

    for changed, match in (({"episodes": 0}, "0 episodes"), ({"task": 4}, "no task 4"), ({"split": "evla"}, "eval")):
        with pytest.raises(UserError, match=match):
            play_stage(*MAZE, video="other.gif", **changed)
    monkeypatch.setattr("recollect.environments.tmaze.TMaze.picture", lambda self, b: None)
    monkeypatch.setattr("recollect.stages.inspect.trained_policy", None)  # it is not even asked for
    with pytest.raises(UserError, match="cannot be drawn"):
        play_stage(*MAZE, video="other.gif")
    assert not Path("other.gif").exists()
