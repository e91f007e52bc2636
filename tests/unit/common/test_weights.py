"""Arrays of a network: what is taken out stays as it was while the network goes on learning."""

from __future__ import annotations

import torch
from torch import nn

from recollect.common.weights import arrays_of, load_policy_arrays


def test_what_is_taken_out_or_put_in_is_no_part_of_the_network() -> None:
    network = nn.Linear(3, 2)
    taken = arrays_of(network)
    kept = {name: array.copy() for name, array in taken.items()}
    for change in (1.0, 2.0):
        with torch.no_grad():
            network.weight.add_(change)
        assert all((taken[name] == kept[name]).all() for name in kept)
        load_policy_arrays(network, taken)
        assert torch.equal(network.weight, torch.as_tensor(kept["weight"]))
