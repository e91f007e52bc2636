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
    length = (_window(settings) + _read_in_training(settings)) * _tokens(settings)
    net = network(settings, length)
    row = length * net.flop * LEARNING
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
    tokens = _tokens(settings)
    net = network(settings, _window(settings) * tokens)
    flop, passes = net.flop * tokens * _encoded(settings), 1.0
    if settings.method.memory is not None:
        read = hp.acting.select * _retrieved(settings)
        flop += (query(settings) + read * tokens * net.flop / 4) / hp.retrieve_every
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
    return so_far + _window(settings) - hp.context  # AD reads an earlier episode in front of it


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
    return Work(entries * width * 1000, entries / 256, 0, entries * width * FLOAT)


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
