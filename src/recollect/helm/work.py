"""How much work the methods of this room are; see `recollect.common.work`."""

from __future__ import annotations

from typing import Any

from recollect.common import work
from recollect.common.work import FLOAT, LEARNING, UPDATE, Net, Work, dense, frozen_parameters, shape_met
from recollect.settings.schema import Settings


def network(settings: Settings) -> Net:
    """What is learned: two layers of 3 x 3 and a wide one."""
    hp: Any = settings.method.hyperparameters
    pixels, channels = shape_met(settings).pixels, 16 * hp.channel_scale
    ends = dense(pixels * channels // 8, hp.width, hp.actor + hp.critic)
    return Net(18 * pixels * channels * (3 + channels // 2) + ends.flop, 9 * 2 * channels**2 + ends.parameters)


def trained(settings: Settings) -> Work:
    hp: Any = settings.method.hyperparameters
    net = network(settings)
    updates = hp.steps / (hp.actors * hp.rollout) * hp.epochs * hp.batches
    flop = hp.steps * (net.flop * (1 + hp.epochs * LEARNING) + _reader(settings))
    return Work(flop, hp.steps / hp.actors + updates * UPDATE, hp.steps, 3 * FLOAT * net.parameters, hp.steps)


def played(settings: Settings) -> Work:
    return work.played(settings, network(settings).flop + _reader(settings))


def _reader(settings: Settings) -> float:
    """Operations of a frozen language model for one more input, with its memory cached."""
    name = getattr(settings.method.hyperparameters, "language_model", None)
    return 0.0 if name is None else 2 * frozen_parameters(name)
