"""What asks a frozen model at most once on its way to a result, so that several can ask it together.

An `Asking` is a generator that yields what it asks, is sent the answer, and returns its result. With everything remembered it asks
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from torch import Tensor

Asking = Generator[Any, Tensor, Tensor]
Answer = Callable[[Any], Tensor]
"""[N, ...] -> [N, ...], row by row."""


class Question:
    """An `Asking` that has begun.

    Attributes:
        asked: what it asks; None: nothing, and `result` is there.
    """

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self.asked: Any = None
        self._result: Tensor | None = None
        try:
            self.asked = next(asking)
        except StopIteration as end:
            self._result = end.value

    def told(self, answer: Tensor) -> None:
        """Go on to the result with what it asked for."""
        try:
            self._asking.send(answer)
        except StopIteration as end:
            self.asked, self._result = None, end.value
        else:
            raise RuntimeError("it asks a second time")

    @property
    def result(self) -> Tensor:
        if self._result is None:
            raise RuntimeError("it was not told what it asked for")
        return self._result


def answered(asking: Asking, answer: Answer) -> Tensor:
    """The result of one that asks alone."""
    question = Question(asking)
    if question.asked is not None:
        question.told(answer(question.asked))
    return question.result
