"""How much work the methods of this room are; see `recollect.common.work`."""

from __future__ import annotations

from typing import Any

from recollect.common import work
from recollect.common.work import FLOAT, LEARNING, UPDATE, Net, Work, dense, number_bytes, shape_met, transformer
from recollect.settings.schema import Settings


def network(settings: Settings, length: float) -> Net:
    hp: Any = settings.method.hyperparameters
    body = transformer(hp.sequence.width, hp.sequence.layers, length)
    ends = dense(hp.sequence.width, *hp.head)
    several = hp.critics * (1 + len(hp.further_discounts))
    return Net(body.flop + several * ends.flop, body.parameters + several * ends.parameters)


def trained(settings: Settings) -> Work:
    hp: Any = settings.method.hyperparameters
    horizon, observation, _ = shape_met(settings)
    window = hp.context_of(horizon)
    net = network(settings, window)
    updates, steps = hp.epochs * hp.updates_per_epoch, hp.epochs * hp.actors * hp.steps_per_epoch
    flop = updates * hp.batch_size * window * net.flop * (LEARNING + 1) + steps * net.flop
    kept = min(hp.buffer * hp.save_length_of(horizon), steps)
    stored = kept * (observation * number_bytes(settings) + 16)
    passes = updates * UPDATE + hp.epochs * hp.steps_per_epoch
    saved = work.checkpoints(net.parameters) + stored
    return Work(flop, passes, steps, 3 * FLOAT * net.parameters, steps, saved)  # with the policies `best` and `latest`


def played(settings: Settings) -> Work:
    horizon = shape_met(settings).horizon
    in_context = settings.environment.evaluation.protocol == "in_context"
    length = settings.method.hyperparameters.context_of(horizon) if in_context else horizon
    return work.played(settings, network(settings, length).flop)
