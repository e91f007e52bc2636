"""Builds the frozen embedder that a method's memory names: another method's network, or a language model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from recollect.artifacts.sealed import read_arrays
from recollect.memory.embedders import DomainAgnosticEmbedder, DomainSpecificEmbedder, Embedder
from recollect.memory.language_models import load_language_model
from recollect.methods.contract import Facts, Inputs
from recollect.settings.errors import UserError
from recollect.settings.resolve import algorithm_module, language_model, resolve
from recollect.settings.schema import MemorySettings, Settings


def embedder_name(memory: MemorySettings) -> tuple[str, str]:
    """(`method` or `lm`, name) of a memory's embedder."""
    kind, _, name = memory.embedder.partition(":")
    if kind not in ("method", "lm") or not name:
        raise UserError(
            f"'{memory.embedder}' names no embedder",
            where="memory.embedder",
            do="write `method:<name>` (a trained network) or `lm:<name>` (config/language_models.yaml)",
        )
    return kind, name


def load_embedder(
    settings: Settings, inputs: Inputs, facts: Facts, arrays: Mapping[str, np.ndarray] | None = None
) -> Embedder:
    """The embedder, frozen and on the input's device.

    Args:
        settings: of the method whose memory it serves.
        inputs: `embedder_policy` or `language_model` must be given, unless `arrays` holds the network.
        facts: of the environment.
        arrays: a network that travelled with a policy.
    """
    memory = settings.method.memory
    assert memory is not None
    kind, name = embedder_name(memory)
    if kind == "method":
        of = resolve(settings.scale, settings.environment.name, name, memory.embedder_seed)
        module = algorithm_module(of.method.algorithm, where=f"config/methods/{name}.yaml", does="build_network")
        network = module.build_network(of, facts)
        if not arrays:
            arrays = read_arrays(inputs.need("embedder_policy"), kind="policy")
        module.load_network(network, arrays, of)
        return DomainSpecificEmbedder(network.to(inputs.device), memory)
    model = load_language_model(
        language_model(name), folder=inputs.language_model, layers=memory.layers, device=inputs.device
    )
    return DomainAgnosticEmbedder(
        model,
        memory,
        settings.environment.returns,
        observation_values=facts.observation_values,
        observation_size=facts.observation_size,
        actions=facts.actions,
    )
