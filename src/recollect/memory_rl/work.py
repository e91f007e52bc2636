"""How much work the methods of this package are; see `recollect.common.work`."""

from __future__ import annotations

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
from recollect.settings.layers import scale_settings
from recollect.settings.schema import Settings

JOINTS = 8  # numbers of a robot's action, at most
GATES = {"lstm": 8, "gru": 6, "rnn": 2, "ff": 0}  # matrices of width x width in one layer

# Kernels of a pass of an ensemble's update (`recollect.memory_rl.ensemble`): of embedders, heads, loss and Adam; and of a layer.
# They rest on the operations of updates of several seeds that are no views, counted on a CPU. DQN's are 286 and 412 with GPTs of 1
# and 2 layers (bfloat16, no dropout), 124 and 162 with LSTMs of 1 and 3. The kernels of a GPU have not been counted.
# What a layer's recurrence takes at each time step stands as so many kernels more. An update of ten LSTMs had 27 of its 45 ms of it
# on an H200 with 1,500 steps. It takes 34 now (`lstm_kernels`), so 16 of it, and 3.6 microseconds for a step in a pass. Further
# layers go beside the first (`lstm_layers`): two took 1.21 times as long there as one, four 1.81. Few LSTMs are cuDNN's, one after
# the other: an update of one takes 1.07 ms with 50 steps and 15.2 with 1,500, so 3.2 microseconds.
ENDS, LAYER, CELLS, APART = 50, {"gpt": 45, "lstm": 7}, {"lstm": 1.2}, {"lstm": 1.1}
FURTHER = 0.25  # of a layer's time, for each layer beside it
HEADS = 3  # of an actor-critic: the actor's, and two critics'
SEPARATE, IN_TURNS = 2, 2.5  # updates with one encoder that an update with two is, and one where the critics step first


def network(settings: Settings, length: float) -> Net:
    hp: Any = settings.method.hyperparameters
    sequence = hp.sequence
    if sequence.kind in GATES:
        parameters = sequence.layers * GATES[sequence.kind] * sequence.width**2
        body = Net(2 * parameters, parameters)
    else:
        body = transformer(sequence.width, sequence.layers, length)
    ends = dense(shape_met(settings).observation, hp.observation_embedding or 1, sequence.width, *hp.head)
    return Net(body.flop + ends.flop, body.parameters + ends.parameters)


def learned(settings: Settings, length: float) -> float:
    """Operations of an update for one token: what learns goes forward and backward, and its targets forward.

    An actor-critic's critics are read once more, and backward, in the actor's loss. Separate encoders are two.
    """
    hp: Any = settings.method.hyperparameters
    whole, head = network(settings, length).flop, dense(hp.sequence.width, *hp.head).flop
    if not hasattr(hp, "shared_encoder"):
        return whole * (LEARNING + 1)
    encoders = 1 if hp.shared_encoder else 2
    return (whole - head) * encoders * (LEARNING + 1) + head * (HEADS * (LEARNING + 1) + (HEADS - 1) * LEARNING)


def kernels(settings: Settings, length: float) -> tuple[float, float, float]:
    """Kernels of an ensemble's update, where it is one CUDA graph: without cells, of cells, and of those of one seed by itself."""
    hp: Any = settings.method.hyperparameters
    kind, layers = hp.sequence.kind, hp.sequence.layers
    passes: float = UPDATE
    if not getattr(hp, "shared_encoder", True):
        passes *= IN_TURNS if hp.critics_first else SEPARATE
    beside = 1 + FURTHER * (layers - 1)
    cells, apart = (passes * many * table.get(kind, 0) * length for many, table in ((beside, CELLS), (layers, APART)))
    return passes * (ENDS + layers * LAYER.get(kind, 0)), cells, apart


def trained(settings: Settings) -> Work:
    hp: Any = settings.method.hyperparameters
    horizon, observation, _ = shape_met(settings)
    window = hp.window(horizon)
    net = network(settings, window)
    episodes = hp.warmup_episodes + hp.train_episodes
    updates = episodes * horizon * hp.updates_per_step
    judged = hp.train_episodes // hp.evaluate_every
    acted = (episodes + judged * hp.evaluation_episodes) * horizon
    flop = updates * hp.batch_size * (window + 1) * learned(settings, window) + acted * net.flop
    passes = updates * UPDATE + episodes * horizon / hp.actors + judged * horizon
    stored = min(max(hp.replay_transitions, hp.replay_episodes * horizon), episodes * horizon)
    action = 2 if has_choices(settings) else FLOAT * JOINTS
    row = observation * number_bytes(settings) + action + FLOAT + 1  # with its reward, and whether it ends
    saved = work.checkpoints(net.parameters, stored * row)
    own = Work(flop, passes, acted, FLOAT * net.parameters, episodes * horizon, saved)
    if settings.method.name not in scale_settings(settings.scale).ensembles:
        return own
    shared, cells, apart = (updates * each for each in kernels(settings, window))
    return own._replace(captured=updates * UPDATE, kernels=shared, cells=cells, apart=apart)


def played(settings: Settings) -> Work:
    return work.played(settings, network(settings, shape_met(settings).horizon).flop)
