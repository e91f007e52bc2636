"""What a scoring that was killed goes on from: when it is saved, what is used of it, and that it comes back bit for bit."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect.artifacts.cadence import Cadence
from recollect.artifacts.scoring import Scoring, digest


def still() -> float:
    return 0.0


def scoring_in(folder: Path, identity: str = "policy A, settings B") -> Scoring:
    return Scoring(folder, lambda: identity, Cadence(still))


def saved(folder: Path, **arrays: Any) -> None:
    """Two parts are over, and the third was saved twice."""
    scoring = scoring_in(folder)
    scoring.part("first").end({"returns": np.arange(3.0)})
    scoring.part("second").end({"returns": np.ones(2)})
    scoring.save("third", {"t": np.array(4), **arrays})
    scoring.save("third", {"t": np.array(5), **arrays})


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_what_was_saved_last_is_gone_on_with(tmp_path: Path) -> None:
    saved(tmp_path / "scoring")
    scoring = scoring_in(tmp_path / "scoring")
    first, third, fourth = (scoring.part(name) for name in ("first", "third", "fourth"))
    assert first.result is not None and first.result["returns"].tolist() == [0, 1, 2]
    assert third.result is None and int(third.take()["t"]) == 5
    assert third.take() == {} == fourth.take() == scoring.part("third").take()
    third.end({})
    scoring.save("fourth", {"t": np.array(0)})
    again = scoring_in(tmp_path / "scoring")
    assert again.saves == 3 and again.part("second").result is not None and again.part("third").result == {}
    again.clear()
    assert not (tmp_path / "scoring").exists()


def test_arrays_come_back_as_they_lay_in_memory(tmp_path: Path) -> None:
    images = np.arange(120, dtype=np.uint8).reshape(2, 3, 4, 5)
    keys = torch.arange(24.0).reshape(2, 3, 4)
    arrays = {"channels_last": np.moveaxis(images, 1, 3), "keys": keys.permute(2, 0, 1), "plain": images}
    arrays |= {"half": keys.bfloat16().mT, "nan": torch.tensor([np.nan, -0.0])}
    saved(tmp_path, **arrays)
    found = scoring_in(tmp_path).part("third").take()
    for name, array in arrays.items():
        assert type(found[name]) is type(array) and found[name].dtype == array.dtype
        if isinstance(array, np.ndarray):
            assert found[name].strides == array.strides and np.array_equal(found[name], array)
        else:
            assert found[name].stride() == array.stride()
            assert torch.equal(found[name].nan_to_num(7), array.nan_to_num(7))


def test_a_damaged_one_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    saved(tmp_path)
    before, newest = sorted(tmp_path.glob("*.safetensors"))
    flip(newest)
    assert int(scoring_in(tmp_path).part("third").take()["t"]) == 4
    flip(before)
    anew = scoring_in(tmp_path)
    assert anew.saves == 0 and anew.part("first").result is None and anew.part("third").take() == {}
    assert newest.name in caplog.text and "begins anew" in caplog.text


def test_one_of_another_policy_or_other_settings_is_passed_over(tmp_path: Path) -> None:
    saved(tmp_path)
    other = scoring_in(tmp_path, "policy A, settings C")
    assert other.saves == 0 and other.part("first").result is None and other.part("third").take() == {}
    assert not list(tmp_path.glob("*.safetensors"))


def test_the_identity_of_a_policy_is_that_of_its_arrays() -> None:
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.zeros(0, np.int32)}
    assert digest(arrays) == digest(dict(reversed(arrays.items())))
    others = [{**arrays, "a": arrays["a"].T}, {**arrays, "c": arrays["b"]}, {**arrays, "b": np.zeros(0)}]
    assert len({digest(arrays), *map(digest, others)}) == 4


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("behind", [0.0, 60.0, 230.0])
@pytest.mark.parametrize("cost", [0.05, 3.0])
def test_a_kill_costs_five_minutes_and_saves_a_twentieth(behind: float, cost: float) -> None:
    """Of a long run, a scoring that begins so many seconds after the last checkpoint of the training."""
    clock = Clock()
    clock.now = 10_000.0
    cadence = Cadence(clock, began=0.0, behind=behind)
    lost = spent = 0.0
    for _ in range(5_000):
        clock.now += 0.5
        lost = max(lost, clock.now - cadence.saved_at + behind)
        if cadence.due():
            began = clock.now
            clock.now += cost
            cadence.saved(began)
            spent += cost
    assert lost <= 300
    assert 0 < spent <= (clock.now - 10_000) / 20 + cost


def test_of_a_scoring_that_has_just_begun_a_tenth_is_lost() -> None:
    clock = Clock()
    cadence = Cadence(clock)
    for _ in range(4_000):
        clock.now += 0.1
        assert clock.now - cadence.saved_at <= max(1.2, clock.now / 10)
        if cadence.due():
            cadence.saved(clock.now)


def test_where_a_save_costs_little_it_comes_in_half_the_time() -> None:
    waited = []
    for early in (True, False):
        clock = Clock()
        clock.now = 10_000.0
        cadence = Cadence(clock, began=0.0)
        while not cadence.due(early=early):
            clock.now += 1
        waited.append(clock.now - 10_000)
    assert waited == [120, 240]


def test_nothing_is_kept_where_no_folder_is_named() -> None:
    part = Scoring().part("only")
    part.offer(lambda: pytest.fail("nobody needs the state"))
    assert part.take() == {} and part.end({"a": np.ones(1)}) == part.result


def test_a_save_that_takes_long_makes_no_kill_cost_more_than_five_minutes() -> None:
    clock = Clock()
    cadence = Cadence(clock, began=-10_000.0)
    cadence.saved(-30.0)  # it took half a minute, and twenty times that are ten
    while not cadence.due():
        clock.now += 1.0
    assert clock.now <= 300


def test_a_piece_of_minutes_is_saved_where_a_second_one_would_make_a_kill_cost_more_than_five() -> None:
    clock = Clock()
    cadence = Cadence(clock, began=-10_000.0)
    clock.now = 160.0
    assert cadence.due()
