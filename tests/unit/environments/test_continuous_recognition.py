"""Continuous recognition: what memory earns, what chance earns, the order of events, and that all stimuli differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from recollect.environments import continuous_recognition, registry
from recollect.environments.base import World
from recollect.settings.errors import UserError

STAY, LEFT, RIGHT = range(3)
GREY, BLACK, RED, GREEN = [128] * 3, [0] * 3, [255, 0, 0], [0, 255, 0]


def make(count: int, mode: AutoresetMode = AutoresetMode.DISABLED, **options: Any) -> World:
    listed = registry.tasks("continuous_recognition", options, "train") * count
    return registry.make_world("continuous_recognition", options, listed, np.arange(count), mode)


def play(world: World, answer: Any) -> tuple[np.ndarray, int]:
    """Returns of one episode, and its steps: fixate, answer, look back; `answer` (images) says who says "old"."""
    images, _ = world.reset()
    returns, looks = np.zeros(world.num_envs), world.options.reach  # type: ignore[attr-defined]
    for step in range(1, world.horizon + 1):
        place = (step - 1) % (1 + 2 * looks)
        if place == 1:
            side = np.where(answer(images), RIGHT, LEFT)
        actions = np.full(world.num_envs, STAY) if place == 0 else side if place <= looks else LEFT + RIGHT - side
        images, rewards, terminated, truncated, _ = world.step(actions)
        returns += rewards
        assert terminated.all() == terminated.any() and truncated.all() == truncated.any()
        if terminated[0] or truncated[0]:
            return returns, step
    raise AssertionError("no end")


class Memory:
    """Knows every image that it has seen."""

    def __init__(self, count: int) -> None:
        self.seen: list[set[bytes]] = [set() for _ in range(count)]

    def __call__(self, images: np.ndarray) -> np.ndarray:
        old = [image.tobytes() in seen for image, seen in zip(images, self.seen, strict=True)]
        for image, seen in zip(images, self.seen, strict=True):
            seen.add(image.tobytes())
        return np.array(old)


@pytest.mark.parametrize("reach", [1, 3])
def test_a_perfect_memory_earns_60_and_is_done_as_soon_as_can_be(reach: int) -> None:
    world = make(20, reach=reach)
    returns, steps = play(world, Memory(20))
    assert returns.tolist() == [60.0] * 20 == world.optimal_return().tolist()
    assert steps == 60 * (1 + 2 * reach) - reach
    cut = make(20, reach=reach, horizon=25)
    assert play(cut, Memory(20))[0].tolist() == cut.optimal_return().tolist()


def test_always_the_same_answer_earns_about_30() -> None:
    """The first image is new, so 30.5 for "new", 29.5 for "old"; standard error of the mean 3.84 / 14."""
    new, _ = play(make(200), lambda images: np.zeros(len(images), bool))
    old, _ = play(make(200), lambda images: np.ones(len(images), bool))
    assert new.mean() == pytest.approx(30.5, abs=1.1) and (new + old == 60).all()
    assert new.std() == pytest.approx(np.sqrt(59) / 2, rel=0.15)


def test_old_images_are_drawn_from_all_that_were_shown_and_new_ones_are_new() -> None:
    world, ages, firsts = make(150), [], []
    world.reset()
    order: list[list[int]] = [[] for _ in range(150)]
    for _ in range(60):
        world.step(np.full(150, STAY))
        state = world.get_state()
        for b, stimulus in enumerate(state["stimulus"].tolist()):
            assert (stimulus in order[b]) == state["old"][b]
            if state["old"][b]:
                ages.append((order[b].index(stimulus) + 0.5) / len(order[b]))
            else:
                order[b].append(stimulus)
                firsts.append(stimulus)
        world.step(np.full(150, LEFT))
        if not world.get_state()["ended"].all():
            world.step(np.full(150, RIGHT))
    # Uniform among the known ones, and among all others: mean and spread of many draws.
    assert np.mean(ages) == pytest.approx(0.5, abs=0.01) and 0.27 < np.std(ages) < 0.31
    counts = np.bincount(firsts, minlength=2400)
    assert len(counts) == 2400 and counts.std() == pytest.approx(np.sqrt(counts.mean()), rel=0.15)


def test_with_as_many_stimuli_as_trials_new_ones_never_run_out() -> None:
    world = make(30, trials=12, stimuli=12)
    assert play(world, Memory(30))[0].tolist() == [12.0] * 30


def colors(world: World, images: np.ndarray) -> tuple[list[int], list[int], list[int]]:
    """Of the one instance: left, middle and right of the view."""
    return tuple(images[0, :, 40, x].tolist() for x in (5, 40, 75))  # type: ignore[return-value]


def test_the_cross_the_image_the_answer_and_its_flash_follow_one_another() -> None:
    world = make(1)
    images, _ = world.reset()
    assert colors(world, images) == (GREY, RED, GREY)
    images, rewards, *_ = world.step(np.array([STAY]))
    assert images.dtype == np.uint8 and images.shape == (1, 3, 80, 80)
    image = images.copy()
    assert colors(world, images)[0] == colors(world, images)[2] == BLACK and rewards[0] == 0
    images, rewards, *_ = world.step(np.array([STAY]))  # it waits
    assert np.array_equal(images, image)
    images, rewards, *_ = world.step(np.array([LEFT]))  # the first is new
    assert rewards[0] == 1 and colors(world, images)[1] == GREEN
    images, *_ = world.step(np.array([STAY]))  # the flash is over; the cross is far right of the gaze
    assert colors(world, images) == (GREY, GREY, RED)
    images, *_ = world.step(np.array([RIGHT]))
    assert colors(world, images) == (GREY, RED, GREY)
    images, *_ = world.step(np.array([STAY]))
    wrong = LEFT if world.get_state()["old"][0] else RIGHT
    images, rewards, *_ = world.step(np.array([wrong]))
    assert rewards[0] == 0 and colors(world, images)[1] == RED and images[0, :, 32, 40].tolist() == RED
    assert world.get_state()["answered"].tolist() == [2]


def test_who_does_not_fixate_is_shown_nothing() -> None:
    world = make(2)
    world.reset()
    for t in range(20):  # from side to side, or never back
        _, rewards, *_ = world.step(np.array([LEFT if t % 2 == 0 else RIGHT, RIGHT]))
        assert not rewards.any() and not world.get_state()["shown"].any()


def test_all_stimuli_differ_by_many_pixels() -> None:
    """Two that share shape and pattern differ by a color; the others by 100 pixels at least."""
    shapes, patterns = continuous_recognition.figures()
    # A pattern is seen around the shape, and every shape leaves room for it.
    for shape in shapes:
        around = patterns & ~shape
        assert (around.sum((1, 2)) > 400).all() and 150 < shape.sum() < 1500
        for i, one in enumerate(around):
            assert all((one != other).sum() > 300 for other in around[:i])
    for i, one in enumerate(shapes):
        assert all((one != other).sum() > 100 for other in shapes[:i])
    images = continuous_recognition.stimuli()
    assert images.shape == (2400, 3, 60, 60) and len({image.tobytes() for image in images}) == 2400
    palette = np.array([*continuous_recognition.SHAPE_COLORS, *continuous_recognition.PATTERN_COLORS, (235, 235, 235)])
    assert min(abs(a - b).sum() for i, a in enumerate(palette) for b in palette[:i]) > 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 10, "stimuli": 9}, "10 trials need as many stimuli, there are 9"),
        ({"stimuli": 2401}, "less than or equal to 2400"),
        ({"trails": 10}, "did you mean 'trials'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        registry.tasks("continuous_recognition", options, "train")
