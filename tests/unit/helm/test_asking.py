"""A question is asked at most once, and goes on with whoever's answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recollect.helm.asking import Asking, Question, answered
from recollect.helm.frame_cache import FrameCache


def doubled(times: int) -> Asking:
    total = torch.zeros(2)
    for n in range(times):
        total = total + (yield torch.full((2,), float(n + 1)))
    return total


def test_what_asks_once_goes_on_with_the_answer_and_what_asks_nothing_is_there_at_once() -> None:
    none, once, twice = (Question(doubled(times)) for times in range(3))
    assert none.asked is None and none.result.tolist() == [0, 0]
    assert once.asked.tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="not told"):
        assert once.result is None
    once.told(torch.tensor([5.0, 7.0]))
    assert once.asked is None and once.result.tolist() == [5, 7]
    with pytest.raises(RuntimeError, match="a second time"):
        twice.told(torch.zeros(2))
    assert answered(doubled(1), lambda asked: 10 * asked).tolist() == [10, 10]
    assert answered(doubled(0), lambda asked: asked / 0).tolist() == [0, 0]


def test_caches_that_are_answered_together_hold_what_each_would_hold_alone() -> None:
    """New frames are prepared, asked for and finished; those that are known are not."""

    def made(asked: torch.Tensor) -> torch.Tensor:
        sizes.append(len(asked))
        return asked + 100

    def cache(factor: float) -> FrameCache:
        return FrameCache(
            made, 10, prepare=lambda frames: torch.from_numpy(frames).float() * factor, finish=lambda vectors: -vectors
        )

    sizes: list[int] = []
    frames = np.array([[1], [2], [1], [3]], np.uint8)
    (first, second), alone = (cache(1.0), cache(2.0)), cache(2.0)
    first(frames[:1])
    expected = alone(frames)
    del sizes[:]
    questions = [Question(each.reading(frames)) for each in (first, second)]
    assert [len(question.asked) for question in questions] == [2, 3]
    answers = made(torch.cat([question.asked for question in questions])).split([2, 3])
    for question, answer in zip(questions, answers, strict=True):
        question.told(answer)
    assert sizes == [5]
    assert questions[0].result.flatten().tolist() == [-101, -102, -101, -103]
    assert torch.equal(questions[1].result, expected)
    for name, array in alone.arrays().items():
        assert torch.equal(second.arrays()[name], array), name
    assert Question(second.reading(frames)).asked is None
