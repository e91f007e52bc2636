"""How much work the methods of this room are; see `recollect.common.work`."""

from __future__ import annotations

import math
from typing import Any

from recollect.common import work
from recollect.common.work import (
    FLOAT,
    LEARNING,
    UPDATE,
    Net,
    Work,
    dense,
    has_choices,
    number_bytes,
    shape_met,
    transformer,
)
from recollect.settings.schema import Settings

# Kernels of an update (`recollect.amago.update_graphs`): of encoders, heads, loss and Adam; of a layer; and of a GRU's layer at a
# time step. The first two are operations of an update that are no views, counted on a CPU in float32: 498, 648 and 798 with
# Transformers of 1 to 3 layers, 364, 379 and 394 without memory. A GRU is cuDNN's. Of an LSTM's, an H200 took 3.4 microseconds for
# a time step in one direction (DQN-LSTM, 1,500 steps: 65.7 updates/s, twice forward and once backward); here it is once each.
ENDS, LAYER, CELLS = 350, {"transformer": 150, "gru": 20, "ff": 15}, {"gru": 2.3}
STEP = 100  # of a step of acting, where it is a graph (`recollect.amago.acting_graph`)


def network(settings: Settings, length: float) -> Net:
    hp: Any = settings.method.hyperparameters
    width, layers = hp.sequence.width, hp.sequence.layers
    if hp.sequence.kind == "transformer":
        body = transformer(width, layers, length)
    else:  # a GRU's cells, or two matrices of width x 4 width
        parameters = {"gru": 6, "ff": 8}.get(hp.sequence.kind, 8) * layers * width**2
        body = Net(2 * parameters, parameters)
    ends = dense(width, *hp.head)
    several = hp.critics * (1 + len(hp.further_discounts))
    return Net(body.flop + several * ends.flop, body.parameters + several * ends.parameters)


def graphed(settings: Settings, window: float, updates: float, acts: float) -> tuple[float, float]:
    """Of updates and steps of acting: the passes that are CUDA graphs, and the kernels of these.

    Some updates are none (`recollect.amago.update_graphs.hindrance`).
    """
    hp: Any = settings.method.hyperparameters
    sequence = hp.sequence
    if not hp.cuda_graphs or hp.inputs.own() is not None or sequence.own() is not None:
        return 0.0, 0.0
    passes = kernels = 0.0
    if hp.devices == 1 and not hp.inputs.augment and (has_choices(settings) or hp.continuous != "beta"):
        each = ENDS + sequence.layers * (LAYER[sequence.kind] + CELLS.get(sequence.kind, 0.0) * window)
        passes, kernels = updates * UPDATE, updates * each
    if sequence.kind == "transformer":
        passes, kernels = passes + acts, kernels + acts * STEP
    return passes, kernels


def trained(settings: Settings) -> Work:
    """A training run, with its evaluations: before every so many epochs, and at the end."""
    hp: Any = settings.method.hyperparameters
    horizon, observation, _ = shape_met(settings)
    window = hp.context_of(horizon)
    net = network(settings, window)
    updates, acts = hp.epochs * hp.updates_per_epoch, 0 if hp.offline else hp.epochs * hp.steps_per_epoch
    steps = acts * hp.actors
    judged = (math.ceil(hp.epochs / hp.evaluate_every) + 1) * horizon
    played_steps = steps + judged * hp.evaluation_rollouts
    flop = updates * hp.batch_size * window * net.flop * (LEARNING + 1) + played_steps * net.flop
    kept = min(hp.buffer * hp.save_length_of(horizon), steps)
    stored = kept * (observation * number_bytes(settings) + 16)
    saved = work.checkpoints(net.parameters) + stored
    policies = 3 * FLOAT * net.parameters  # with `best` and `latest`
    captured, kernels = graphed(settings, window, updates, acts + judged)
    passes = updates * UPDATE + acts + judged
    return Work(flop, passes, played_steps, policies, steps, saved, captured, kernels)


def played(settings: Settings) -> Work:
    horizon = shape_met(settings).horizon
    in_context = settings.environment.evaluation.protocol == "in_context"
    length = settings.method.hyperparameters.context_of(horizon) if in_context else horizon
    return work.played(settings, network(settings, length).flop)
