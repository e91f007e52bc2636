"""Untrained networks whose outputs depend on every input, for comparing two ways of computing them."""

from __future__ import annotations

from typing import TypeVar

import torch

Network = TypeVar("Network", bound=torch.nn.Module)


def lively(network: Network, by: float = 3.0) -> Network:
    """Scale all weights in place: as initialised, a wrong token would hardly show in the outputs."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(by)
    return network
