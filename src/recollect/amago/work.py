"""How much work the methods of this package are; see `recollect.common.work`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

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
FEATURES = 256  # about as many are read of an image


class Parts(NamedTuple):
    """The parts of an agent's network. Of critics `first` is the layer that reads a state, and `rest` the others."""

    encoders: Net
    actor: Net
    first: Net
    rest: Net

    @property
    def acting(self) -> Net:
        """What acts: a policy."""
        return _together(self.encoders, self.actor)

    @property
    def heads(self) -> Net:
        """What there are targets of."""
        return _together(self.actor, self.first, self.rest)

    @property
    def trained(self) -> Net:
        return _together(*self)


def _together(*nets: Net) -> Net:
    return Net(*(sum(numbers) for numbers in zip(*nets, strict=True)))


def _times(count: int, net: Net) -> Net:
    return Net(count * net.flop, count * net.parameters)


def parts(settings: Settings, length: float) -> Parts:
    """What a token of a window of so many costs forward in each part: without the convolutions of images."""
    hp: Any = settings.method.hyperparameters
    width, layers = hp.sequence.width, hp.sequence.layers
    horizon, observation, pixels = shape_met(settings)
    if hp.sequence.kind == "transformer":
        body = transformer(width, layers, length)
        positions = (horizon + 1) * width if hp.sequence.positions == "learned" else 0
        body = Net(body.flop, body.parameters + positions)
    else:  # a GRU's cells, or two matrices of width x 4 width
        body = _times(layers * (6 if hp.sequence.kind == "gru" else 8), dense(width, width))
    read = FEATURES if pixels or hp.inputs.encoder in ("crafter", "image") else observation
    hidden = (2 * read, 2 * read) if hp.inputs.hidden == "twice" else hp.inputs.hidden
    encoders = _together(dense(read, *hidden, hp.inputs.width, width), body)
    first = _times(hp.critics, dense(width, hp.head[0]))
    outputs = hp.bins if getattr(hp, "critic_loss", "") == "bins" else 1
    rest = _times(hp.critics, dense(*hp.head, outputs))
    return Parts(encoders, dense(width, *hp.head), first, rest)


def learned(settings: Settings, length: float) -> float:
    """Operations of an update on a token of a window of so many: forward and backward, and of the targets forward."""
    hp: Any = settings.method.hyperparameters
    encoders, actor, first, rest = parts(settings, length)
    flop = LEARNING * (encoders.flop + actor.flop)
    if hp.fake_filter and not hp.online_coefficient:
        return flop
    flop += actor.flop + LEARNING * first.flop + first.flop
    is_multi_task = hasattr(hp, "critic_loss")
    if has_choices(settings) and not is_multi_task:  # one pass gives the values of all discounts and actions
        return flop + (LEARNING + 1) * rest.flop
    each = len(hp.discounts) * rest.flop
    flop += first.flop + (LEARNING + hp.target_draws + hp.value_draws) * each
    online = hp.value_draws * each * (2 if is_multi_task else 1)  # through critics that are constants, to actions
    return flop + (online if hp.online_coefficient else 0)


def acted(settings: Settings, length: float) -> float:
    """Operations of a step of acting with a memory of so many steps; `slow_inference` encodes all that there are anew."""
    net, horizon = parts(settings, length), shape_met(settings).horizon
    if not settings.method.hyperparameters.slow_inference:
        return net.acting.flop
    remembered = length - length * (length - 1) / (2 * horizon)  # in the mean over a rollout
    return remembered * net.encoders.flop + net.actor.flop


def graphed(settings: Settings, window: float, updates: float, acts: float) -> tuple[float, float]:
    """Of updates and steps of acting: the passes that are CUDA graphs, and the kernels of these.

    Some updates are none (`recollect.amago.update_graphs.hindrance`). Neither is acting that encodes all steps anew.

    Args:
        acts: of the process that learns; those that only collect act on the CPU.
    """
    hp: Any = settings.method.hyperparameters
    sequence = hp.sequence
    if not hp.cuda_graphs or hp.inputs.own() is not None or sequence.own() is not None:
        return 0.0, 0.0
    passes = kernels = 0.0
    shifts = hp.inputs.augment and (hp.inputs.encoder == "crafter" or shape_met(settings).pixels)
    if hp.devices == 1 and not shifts and (has_choices(settings) or hp.continuous != "beta"):
        each = ENDS + sequence.layers * (LAYER[sequence.kind] + CELLS.get(sequence.kind, 0.0) * window)
        passes, kernels = updates * UPDATE, updates * each
    if sequence.kind == "transformer" and not hp.slow_inference:
        passes, kernels = passes + acts, kernels + acts * STEP
    return passes, kernels


def trained(settings: Settings) -> Work:
    """A training run, with its evaluations: before every so many epochs, and at the end."""
    hp: Any = settings.method.hyperparameters
    horizon, observation, _ = shape_met(settings)
    window = hp.context_of(horizon)
    net = parts(settings, window)
    updates, acts = hp.epochs * hp.updates_per_epoch, 0 if hp.offline else hp.epochs * hp.steps_per_epoch
    steps = acts * hp.actors
    judged = (math.ceil(hp.epochs / hp.evaluate_every) + 1) * horizon
    played_steps = steps + judged * hp.evaluation_rollouts
    flop = updates * hp.batch_size * window * learned(settings, window) + played_steps * acted(settings, window)
    kept = min(hp.buffer * hp.save_length_of(horizon), steps)
    stored = kept * (observation * number_bytes(settings) + 16)
    policy = net.acting.parameters
    beside = FLOAT * (net.heads.parameters + policy)  # targets, and the best policy
    saved = work.checkpoints(net.trained.parameters, beside) + stored
    policies = 3 + (hp.epochs // hp.keep_every if hp.keep_every else 0)  # with `best` and `latest`
    captured, kernels = graphed(settings, window, updates, judged + (acts if hp.processes == 1 else 0))
    passes = updates * UPDATE + acts + judged
    return Work(flop, passes, played_steps, policies * FLOAT * policy, steps, saved, captured, kernels)


def measured(settings: Settings, steps: int, episodes: int) -> Work:
    """The fewest updates that `recollect measure` makes, and its time. It counts neither steps of training nor episodes."""
    from recollect.amago.speed import FEWEST, SECONDS

    del steps, episodes
    hp: Any = settings.method.hyperparameters
    window = hp.context_of(shape_met(settings).horizon)
    captured, kernels = graphed(settings, window, FEWEST, 0)
    flop = FEWEST * hp.batch_size * window * learned(settings, window)
    return Work(flop, FEWEST * UPDATE, captured=captured, kernels=kernels, timed=SECONDS)


def played(settings: Settings) -> Work:
    hp: Any = settings.method.hyperparameters
    return work.played(settings, acted(settings, hp.context_of(shape_met(settings).horizon)))
