"""How much work the methods of this room are; see `recollect.common.work`."""

from __future__ import annotations

from typing import Any

from recollect.common import work
from recollect.common.work import FLOAT, LEARNING, UPDATE, Net, Work, frozen_parameters, shape_met, transformer
from recollect.radt.chunks import memory_of
from recollect.radt.embedding import embedder_name
from recollect.settings.resolve import resolve
from recollect.settings.schema import Settings


def network(settings: Settings, length: float) -> Net:
    sizes = settings.method.hyperparameters.network
    return transformer(sizes.width, sizes.layers, length, reads=settings.method.memory is not None)


def trained(settings: Settings) -> Work:
    """A training run, with the evaluations that it makes on its way."""
    hp: Any = settings.method.hyperparameters
    steps = hp.optimisation.steps
    window = hp.context + _read_window(settings)
    tokens = _tokens(hp)
    net = network(settings, window * tokens)
    row = window * tokens * net.flop * LEARNING
    if settings.method.memory is not None and hp.queries == "computed":
        row += query(settings)
    flop = steps * hp.optimisation.batch_size * row
    saved = work.checkpoints(net.parameters)
    own = Work(flop, steps * UPDATE, 0, FLOAT * net.parameters, steps, saved)
    every = hp.optimisation.evaluate_every
    if not every:
        return own
    once = played(settings)
    return own + Work(*(value * (steps // every) for value in once[:3]))


def played(settings: Settings) -> Work:
    """The evaluation of a policy. One with a memory makes a query now and then, and reads what it finds."""
    hp: Any = settings.method.hyperparameters
    tokens = _tokens(hp)
    net = network(settings, hp.context * tokens)
    flop, passes = net.flop * tokens * _encoded(settings), 1.0
    if settings.method.memory is not None:
        flop += (query(settings) + _read_window(settings) * tokens * net.flop / 4) / hp.retrieve_every
        passes += 1 / hp.retrieve_every
    return work.played(settings, flop, passes)


def _encoded(settings: Settings) -> float:
    """Timesteps that are encoded at a step of acting, on average: one where they are kept in a cache, else the window so far."""
    hp: Any = settings.method.hyperparameters
    if getattr(hp.network, "padding", "hidden") == "hidden":
        return 1.0
    horizon = shape_met(settings).horizon
    most = min(hp.context, horizon)
    so_far = most - most * (most - 1) / (2 * horizon)
    return so_far + (hp.context if hasattr(hp, "episodes_back") else 0)  # AD reads an earlier episode in front of it


def query(settings: Settings) -> float:
    memory = memory_of(settings)
    kind, name = embedder_name(memory)
    if kind == "lm":
        tokens = 4 if memory.tokens == "interleaved" else 1
        return 2 * frozen_parameters(name) * memory.key_context * tokens
    embedder = resolve(settings.scale, settings.environment.name, name, memory.embedder_seed)
    tokens = 4 if memory.tokens == "interleaved" else 1
    flop = network(embedder, memory.key_context * tokens).flop
    return flop * memory.key_context * _tokens(embedder.method.hyperparameters)


def embedded(settings: Settings, rows: float, tasks: int) -> Work:
    """The keys of a memory, of so many time steps of histories of so many tasks."""
    entries, width = _entries(settings, rows, tasks), _width(settings)
    return Work(entries * query(settings), entries / 256, 0, entries * width * FLOAT)


def indexed(settings: Settings, rows: float, tasks: int) -> Work:
    entries, width = _entries(settings, rows, tasks), _width(settings)
    return Work(entries * width * 1000, entries / 256, 0, entries * width * FLOAT)


def _entries(settings: Settings, rows: float, tasks: int) -> float:
    memory = memory_of(settings)
    entries = rows / memory.stride
    return entries if memory.max_entries_per_task is None else min(entries, memory.max_entries_per_task * tasks)


def _width(settings: Settings) -> int:
    return int(getattr(settings.method.hyperparameters.network, "width", 512))


def _read_window(settings: Settings) -> int:
    memory = settings.method.memory
    return 0 if memory is None else memory.past + memory.future


def _tokens(hp: Any) -> int:
    return 4 if getattr(hp.network, "tokens", "merged") == "interleaved" else 1
