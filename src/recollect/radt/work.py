"""How much work the methods of this package are; see `recollect.common.work`."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from recollect.common import work
from recollect.common.work import (
    FLOAT,
    LEARNING,
    UPDATE,
    Net,
    Work,
    frozen_parameters,
    shape_met,
    tasks_of,
    transformer,
)
from recollect.radt.chunks import memory_of
from recollect.radt.embedding import embedder_name
from recollect.settings.resolve import resolve
from recollect.settings.schema import Settings


def network(settings: Settings, length: float, read: float = 0.0) -> Net:
    """What one of so many tokens of a window costs, where each reads `read` tokens that were retrieved; see `_keys`."""
    sizes = settings.method.hyperparameters.network
    own = transformer(sizes.width, sizes.layers, length)
    crossing = _crossing(settings)
    parameters = own.parameters + crossing * 4 * sizes.width**2
    return Net(own.flop + crossing * (4 * sizes.width**2 + 4 * sizes.width * read), parameters)


def _crossing(settings: Settings) -> int:
    """Layers that read what is retrieved."""
    if settings.method.memory is None:
        return 0
    sizes = settings.method.hyperparameters.network
    return int(sizes.layers) if sizes.cross_layers == "all" else len(sizes.cross_layers)


def _keys(settings: Settings, read: float) -> float:
    """Operations of the keys and values of so many retrieved tokens: the network computes nothing else of them."""
    return _crossing(settings) * 4 * read * float(settings.method.hyperparameters.network.width) ** 2


def trained(settings: Settings) -> Work:
    """A training run, with the evaluations that it makes on its way."""
    optimisation = settings.method.hyperparameters.optimisation
    own = _learned(settings, optimisation.steps)
    every = optimisation.evaluate_every
    if not every:
        return own
    once = played(settings)
    return own + Work(*(value * (optimisation.steps // every) for value in once[:3]))


def measured(settings: Settings, steps: int, episodes: int) -> Work:
    """So many training steps, then so many episodes of one task alone and of the tasks of the first split together."""
    split = settings.environment.evaluation.splits[0]
    horizon = shape_met(settings).horizon
    flop, passes = _acted(settings)
    played_steps = (1 + tasks_of(settings.scale, settings.environment.name, split)) * episodes * horizon
    learned = _learned(settings, steps)
    return Work(
        learned.flop + played_steps * flop, learned.passes + 2 * episodes * horizon * passes, float(played_steps)
    )


def played(settings: Settings) -> Work:
    """The evaluation of a policy."""
    return work.played(settings, *_acted(settings))


def _learned(settings: Settings, steps: int) -> Work:
    """So many training steps."""
    hp: Any = settings.method.hyperparameters
    row = _forward(settings) * LEARNING
    if settings.method.memory is not None and hp.queries == "computed":
        row += query(settings)
    parameters = network(settings, 0).parameters
    flop = steps * hp.optimisation.batch_size * row
    return Work(flop, steps * UPDATE, 0, FLOAT * parameters, steps, work.checkpoints(parameters))


def _forward(settings: Settings) -> float:
    """Operations of a training window, and of what it reads."""
    hp: Any = settings.method.hyperparameters
    tokens = _tokens(settings)
    if settings.method.algorithm == "dpt":  # of the last layer only the context's keys and values are made
        length, sizes = (hp.context + 1) * tokens, hp.network
        context = transformer(sizes.width, sizes.layers - 1, length).flop + 4 * sizes.width**2
        return float(length * context + hp.queries * _asked(settings, length))
    length, read = _window(settings) * tokens, _read_in_training(settings) * tokens
    return length * network(settings, length, read).flop + _keys(settings, read)


def _acted(settings: Settings) -> tuple[float, float]:
    """Operations and passes of a step of acting. A policy with a memory makes a query now and then, and reads what it finds."""
    hp: Any = settings.method.hyperparameters
    tokens = _tokens(settings)
    if settings.method.algorithm == "dpt":
        horizon = shape_met(settings).horizon
        length = (min(hp.context, horizon) + 1) * tokens
        return _asked(settings, length) + length / horizon * network(settings, length).flop, 1.0
    read = hp.acting.select * _retrieved(settings) * tokens if settings.method.memory is not None else 0
    flop = _encoded(settings) * tokens * network(settings, _window(settings) * tokens, read).flop
    if settings.method.memory is None:
        return flop, 1.0
    return flop + (query(settings) + _keys(settings, read)) / hp.retrieve_every, 1 + 1 / hp.retrieve_every


def _asked(settings: Settings, length: float) -> float:
    """DPT: a query step's one token, behind a context and its separator of so many tokens, all of which it attends to."""
    return network(settings, 2 * length).flop


def _encoded(settings: Settings) -> float:
    """Timesteps that are encoded at a step of acting, on average. In front of its episode AD has an earlier one.

    All of a window with its padding, where that is attended; one, where steps are kept in a cache, and AD's episodes once more
    when they end; else the window so far.
    """
    hp: Any = settings.method.hyperparameters
    padding, horizon = getattr(hp.network, "padding", "hidden"), shape_met(settings).horizon
    distils = settings.method.algorithm == "ad"
    if padding == "attended":
        return float(_window(settings))
    if padding == "hidden" and hp.context >= horizon:
        return 2.0 if distils else 1.0
    before = horizon if distils else 0
    return fmean(min(before + step, _window(settings)) for step in range(1, horizon + 1))


def query(settings: Settings) -> float:
    memory = memory_of(settings)
    kind, name = embedder_name(memory)
    if kind == "lm":
        tokens = 4 if memory.tokens == "interleaved" else 1
        return 2 * frozen_parameters(name) * memory.key_context * tokens
    embedder = _embedding_run(settings, name)
    length = memory.key_context * _tokens(embedder)
    return network(embedder, length).flop * length


def _embedding_run(settings: Settings, name: str) -> Settings:
    """Settings of the run whose network embeds."""
    return resolve(settings.scale, settings.environment.name, name, memory_of(settings).embedder_seed)


def embedded(settings: Settings, rows: float, tasks: int) -> Work:
    """The keys of a memory, of so many time steps of histories of so many tasks."""
    entries, width = _entries(settings, rows, tasks), _width(settings)
    return Work(entries * query(settings), entries / 256, 0, entries * width * FLOAT)


def indexed(settings: Settings, rows: float, tasks: int) -> Work:
    entries, width = _entries(settings, rows, tasks), _width(settings)
    flop = entries * width * 1000
    if memory_of(settings).deduplicate == "upstream":  # each entry is compared with all
        flop += 2 * width * entries**2
    return Work(flop, entries / 256, 0, entries * width * FLOAT)


def _entries(settings: Settings, rows: float, tasks: int) -> float:
    memory = memory_of(settings)
    entries = rows / memory.stride
    return entries if memory.max_entries_per_task is None else min(entries, memory.max_entries_per_task * tasks)


def _width(settings: Settings) -> float:
    """Numbers of a key."""
    kind, name = embedder_name(memory_of(settings))
    if kind == "lm":
        return work.known_of("widths", name, 768)
    return float(_embedding_run(settings, name).method.hyperparameters.network.width)


def _window(settings: Settings) -> int:
    """Most timesteps of a window, without what is retrieved: AD's holds two episodes."""
    context = int(settings.method.hyperparameters.context)
    return 2 * context if settings.method.algorithm == "ad" else context


def _read_in_training(settings: Settings) -> int:
    """Timesteps of all that is retrieved for a window."""
    if settings.method.memory is None:
        return 0
    places: int = settings.method.hyperparameters.retrieval.places
    return places * _retrieved(settings)


def _retrieved(settings: Settings) -> int:
    """Timesteps of a window that a memory gives."""
    memory = memory_of(settings)
    return memory.past + memory.future


def _tokens(settings: Settings) -> int:
    """Tokens of a timestep. AD and DPT are told no return-to-go."""
    if getattr(settings.method.hyperparameters.network, "tokens", "merged") == "merged":
        return 1
    return 3 if settings.method.algorithm in ("ad", "dpt") else 4
