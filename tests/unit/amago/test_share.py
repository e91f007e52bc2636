"""What devices compute of their rows adds up to what one computes of the whole batch: losses, gradients, statistics, weights.

The devices are threads here, which add up what torch.distributed would.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_amago import DISCRETE, SHAPES, random_batch, small
from torch import Tensor

from recollect.amago import amago, amago_multi_task
from recollect.amago.batch import Batch, padded
from recollect.amago.images import random_shift
from recollect.amago.network import WorldShape
from recollect.amago.policy_distributions import Beta
from recollect.amago.share import ALONE, Numbers, RowsOfDropout, Share, own, uniform
from recollect.amago.terms import Draws
from recollect.amago.timestep_encoders import StepShape
from recollect.common.cpu.dropout import Dropout
from recollect.settings.errors import UserError

LENGTHS = (7, 2, 5, 3, 6)  # windows of very different lengths, whose means of means are not the mean


class Meeting:
    """All-reduce between threads."""

    def __init__(self, count: int) -> None:
        self.barrier, self.given = threading.Barrier(count, timeout=60), [torch.empty(0)] * count
        self.messages = 0

    def share(self, rank: int, batch: int) -> Share:
        share = Share(rank, len(self.given), batch)

        def reduce(tensor: Tensor, how: str) -> None:
            self.given[rank] = tensor.clone()
            self.messages += rank == 0
            self.barrier.wait()
            together = torch.stack(self.given)
            found = {"SUM": together.sum(0), "MIN": together.amin(0), "MAX": together.amax(0)}[how]
            self.barrier.wait()  # all have read it before another message comes
            tensor.copy_(found)

        share._reduce = reduce  # type: ignore[method-assign]
        return share


def at_once(count: int, batch: int, work: Callable[[Share], Any]) -> tuple[list[Any], Meeting]:
    """What each device's work gives."""
    meeting = Meeting(count)
    with ThreadPoolExecutor(count) as threads:
        found = [threads.submit(work, meeting.share(rank, batch)) for rank in range(count)]
        return [one.result() for one in found], meeting


def part_of(batch: Batch, share: Share) -> Batch:
    if share.alone:
        return batch
    arrays: dict[str, Any] = {name: array[share.rows] for name, array in vars(batch).items() if array is not None}
    return replace(batch, **arrays, whole_mask_BT=batch.mask_BT)


def learned(share: Share, hp: Any, shape: WorldShape, kind: str, module: Any = amago, updates: int = 3) -> Any:
    """The agent's arrays and the metrics of the last of some updates."""
    agent = module.Agent(hp, shape, seed=0, device="cpu", share=share)
    agent.optimiser.eps = (
        1e-4  # far above rounding: with 1e-8 Adam makes a whole step of a gradient that is nothing else
    )
    for counter in range(updates):
        batch = part_of(random_batch(kind, seed=counter, lengths=LENGTHS), share)
        metrics = agent.step(batch, counter, further=True)
    return {name: torch.as_tensor(a).clone() for name, a in agent.arrays().items()}, metrics


# Above rounding: where all drawn actions are the one that was taken, the advantage is 0, and so is AMAGO-2's threshold.
TIES = {"filter_threshold": 1e-4}
CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "as released": ("discrete", amago, {}),
    "dropout": ("discrete", amago, {"sequence": {"width": 8, "layers": 2, "heads": 2, "dropout": 0.3}}),
    "actor's mask as released": ("discrete", amago, {"actor_mask": "upstream", "targets_first": True}),
    "statistics as released": ("discrete", amago, {"inputs": {"hidden": [8], "width": 8, "input_norm": "upstream"}}),
    "no statistics": ("discrete", amago, {"popart": False, "inputs": {"hidden": [8], "width": 8, "input_norm": "off"}}),
    "exponential weights": ("discrete", amago, {"filter": "exp"}),
    "cloning alone": ("discrete", amago, {"fake_filter": True, "online_coefficient": 0.0}),
    "numbers": ("continuous", amago, {"value_draws": 3, "target_draws": 2}),
    "mixture": ("continuous", amago, {"continuous": "mixture", "online_coefficient": 0.0}),
    "bits": ("binary", amago, {"online_coefficient": 0.0}),
    "AMAGO-2": ("discrete", amago_multi_task, {"returns": (-50, 50), "bins": 16, **TIES}),
    "AMAGO-2, online": (
        "discrete",
        amago_multi_task,
        {"returns": (-50, 50), "bins": 16, "online_coefficient": 1.0, **TIES},
    ),
    "AMAGO-2, numbers": ("continuous", amago_multi_task, {"returns": (-50, 50), "bins": 16}),
}


@pytest.mark.quick("as released-2", "AMAGO-2-2", "cloning alone-2")
@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_devices_learn_what_one_learns(case: str, devices: int) -> None:
    kind, module, changes = CASES[case]
    given = {**small().model_dump(exclude_unset=True), **changes, "batch_size": len(LENGTHS), "warmup": 0}
    hp = module.Hyperparameters.model_validate({**given, "learning_rate": 1e-3})
    expected, metrics = learned(ALONE, hp, SHAPES[kind], kind, module)
    found, _ = at_once(devices, len(LENGTHS), lambda share: learned(share, hp, SHAPES[kind], kind, module))
    start = module.Agent(hp, SHAPES[kind], seed=0, device="cpu").arrays()
    moved = 0.0
    for name, value in expected.items():
        scale = float(value.double().norm()) + 1e-6
        moved += float((value.double() - torch.as_tensor(start[name]).double()).norm())
        for arrays, _ in found:
            assert float((arrays[name].double() - value.double()).norm()) / scale < 2e-5, name
        # All devices have the same, to the bit: else they would drift apart.
        assert all(torch.equal(arrays[name], found[0][0][name]) for arrays, _ in found), name
    assert moved > 1e-2
    for name, value in metrics.items():
        for _, of_device in found:
            assert float(of_device[name]) == pytest.approx(float(value), rel=2e-5, abs=2e-6), name


def test_the_mean_of_the_devices_means_would_be_another_gradient() -> None:
    """What the sums over the whole batch are for: the test above can fail."""
    hp = small(batch_size=len(LENGTHS), warmup=0)
    expected, _ = learned(ALONE, hp, DISCRETE, "discrete", updates=1)

    def plainly(share: Share) -> Any:
        agent = amago.Agent(hp, DISCRETE, seed=0, device="cpu", share=share)
        batch = replace(part_of(random_batch(lengths=LENGTHS), share), whole_mask_BT=None)
        agent.step(batch, 0)
        return torch.as_tensor(agent.arrays()["adam/first/critics.first_bias"]).clone()

    (first, _), _ = at_once(2, len(LENGTHS), plainly)
    assert not torch.allclose(first / 2, expected["adam/first/critics.first_bias"], rtol=1e-2)


def test_an_update_asks_for_few_messages() -> None:
    """InputNorm, PopArt, metrics and gradients: each is one."""
    hp = small(batch_size=len(LENGTHS))

    def once(share: Share) -> None:
        agent = amago.Agent(hp, DISCRETE, seed=0, device="cpu", share=share)
        agent.step(part_of(random_batch(lengths=LENGTHS), share), 0)

    _, meeting = at_once(2, len(LENGTHS), once)
    assert meeting.messages == 4


def test_rows_of_a_batch_are_shared_as_evenly_as_can_be() -> None:
    rows = [Share(rank, 5, 24).rows for rank in range(5)]
    assert [b for part in rows for b in range(part.start, part.stop)] == list(range(24))
    assert {part.stop - part.start for part in rows} == {4, 5}


def test_padding_is_to_the_longest_window_of_all() -> None:
    windows = []
    for rows in (3, 6, 2):
        window = {name: np.arange(rows) for name in ("previous_action", "reward", "done", "time")}
        windows.append({**window, "observation": np.ones((rows, 2))})
    whole, last = padded(windows), padded(windows, slice(2, 3))
    assert last.mask_BT.tolist() == [[True] * 2 + [False] * 4]
    assert np.array_equal(last.observation_BTD, whole.observation_BTD[2:])  # type: ignore[index]
    assert np.array_equal(last.whole_mask_BT, whole.mask_BT)  # type: ignore[arg-type]
    assert whole.whole_mask_BT is None


def test_numbers_are_those_of_the_rows_in_the_whole_batch() -> None:
    share = Share(1, 2, 5)
    for shape, axis in (((5, 3), 0), ((2, 5, 3), 1)):
        own_shape = [*shape]
        own_shape[axis] = 3
        whole = uniform(ALONE.draws(9), shape, rows=axis)
        assert torch.equal(uniform(share.draws(9), own_shape, rows=axis), whole.narrow(axis, 2, 3))
    plain, rows = Dropout(4), RowsOfDropout(share)
    rows.reseed(4)
    for _ in range(3):
        assert torch.equal(rows.keep((3, 7, 2), 0.3), plain.keep((5, 7, 2), 0.3)[2:])
    index = Draws.of(small(), 3, 0, 5, 4, "cpu").index_KBTG
    assert torch.equal(Draws.of(small(), 3, 0, 3, 4, "cpu", share).index_KBTG, index[:, 2:])


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_images_are_shifted_as_in_the_whole_batch(rank: int) -> None:
    images = torch.randint(255, (7, 2, 1, 9, 9), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    share = Share(rank, 3, 7)
    whole = random_shift(images, ALONE.draws(5))
    assert torch.equal(random_shift(images[share.rows], share.draws(5)), whole[share.rows])
    assert not torch.equal(whole, images)


def test_what_is_not_drawn_row_by_row_differs_between_devices() -> None:
    raw = torch.zeros(3, 4)
    first, second = (Beta(2).reparameterised(raw, Share(rank, 2, 6).draws(1)) for rank in range(2))
    assert not torch.equal(first, second)
    plain: Numbers = ALONE.draws(1)
    assert own(plain) is plain


def test_the_least_number_is_that_of_all_devices_also_where_one_has_none() -> None:
    numbers = [torch.tensor([3.0, 2.0]), torch.tensor([])]
    found, _ = at_once(2, 4, lambda share: float(share.least(numbers[share.rank])))
    assert found == [2.0, 2.0]


@pytest.mark.parametrize("where", ["weights", "statistics"])
def test_devices_that_drift_apart_by_a_bit_are_noticed_by_all(where: str) -> None:
    shape = WorldShape(StepShape(vector=3, kind="discrete", actions=4, horizon=12))

    def drifted(share: Share, by: float) -> str:
        agent = amago.Agent(small(), shape, seed=0, device="cpu", share=share)
        if share.rank:
            changed = agent.network.critics.first_bias if where == "weights" else agent.network.popart.mean
            with torch.no_grad():
                changed[0] += by
        try:
            share.check_same(agent.modules)
        except UserError as error:
            return error.what
        return ""

    assert at_once(2, 4, lambda share: drifted(share, 0.0))[0] == ["", ""]
    assert (
        at_once(2, 4, lambda share: drifted(share, 1e-6))[0]
        == ["the devices of this run no longer have the same weights"] * 2
    )


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, torch.float16, torch.float32, torch.float64])
def test_statistics_of_any_kind_of_number_are_compared(kind: torch.dtype) -> None:
    """An encoder of one's own may keep a mask, or numbers of half the size."""

    def drifted(share: Share, changed: bool) -> bool:
        module = torch.nn.Module()
        module.register_buffer("kept", torch.zeros(3).to(kind))
        if changed and share.rank:
            module.kept[1] = 1
        try:
            share.check_same({"own": module})
        except UserError:
            return True
        return False

    for changed in (False, True):
        assert at_once(2, 4, lambda share, changed=changed: drifted(share, changed))[0] == [changed] * 2  # type: ignore[misc]
