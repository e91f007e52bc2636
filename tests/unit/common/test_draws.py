"""Draws: each choice as often as its share, none that has no share, and numbers of their own for each stream."""

from __future__ import annotations

import numpy as np
import torch

from recollect.common.draws import ACTION_STREAM, categorical_from_uniform, categorical_from_weights, uniform

LARGEST = 1 - 2.0**-24  # below 1 in float32, too


def test_choices_are_drawn_as_often_as_their_shares_say() -> None:
    numbers_B = (np.arange(16) + 0.5) / 16
    weights_BA = np.tile([1.0, 2.0, 5.0], (16, 1))
    expected = np.repeat([0, 1, 2], [2, 4, 10]).tolist()
    assert categorical_from_weights(weights_BA, numbers_B).tolist() == expected
    assert categorical_from_weights(torch.as_tensor(weights_BA), torch.as_tensor(numbers_B)).tolist() == expected
    assert categorical_from_uniform(np.log(weights_BA / 8), numbers_B).tolist() == expected


def test_a_choice_without_a_share_is_never_drawn() -> None:
    """Neither the first nor the last, by the smallest and the largest number."""
    weights_BA, numbers_B = np.tile(np.float32([0, 1, 0, 3, 0]), (2, 1)), np.float32([0, LARGEST])
    assert categorical_from_weights(torch.as_tensor(weights_BA), torch.as_tensor(numbers_B)).tolist() == [1, 3]
    with np.errstate(divide="ignore"):
        log_BA = np.log(weights_BA / 4)
    assert categorical_from_uniform(log_BA, numbers_B).tolist() == [1, 3]


def test_each_seed_counter_and_stream_has_a_number_of_its_own() -> None:
    seeds_B, counters_B = np.repeat(np.arange(20, dtype=np.uint64), 20), np.tile(np.arange(20), 20)
    numbers = np.stack([uniform(seeds_B, counters_B, stream) for stream in (0, ACTION_STREAM)])
    assert len(np.unique(numbers)) == numbers.size and 0 < numbers.min() < 0.01 and 0.99 < numbers.max() < 1
