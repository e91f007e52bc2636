"""Builds the frozen embedder that a method's memory names: another method's network, or a language model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.artifacts.sealed import read_arrays
from recollect.common.acting_state import Acting
from recollect.common.contract import Facts, Inputs
from recollect.common.frozen_hopfield import MOST_JOINT, too_many_values
from recollect.common.language_models import load_language_model, most_tokens, too_long
from recollect.common.transfer import sent
from recollect.radt.acting import CachedSteps
from recollect.radt.chunks import memory_of
from recollect.radt.embedders import DomainAgnosticEmbedder, DomainSpecificEmbedder, Embedder, tokens_of
from recollect.radt.experience import Experience
from recollect.radt.memory_settings import MemorySettings
from recollect.radt.pooling import pooled
from recollect.settings.errors import UserError
from recollect.settings.resolve import algorithm_module, language_model, resolve
from recollect.settings.schema import Settings


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


def trained_embedder(settings: Settings) -> tuple[Settings, Any]:
    """The settings of the run whose network is the embedder, and the module of its algorithm.

    Raises:
        UserError: its network cannot be an embedder, or key windows are longer than those that it learns from.
    """
    memory, (_, name) = memory_of(settings), embedder_name(memory_of(settings))
    of = resolve(settings.scale, settings.environment.name, name, memory.embedder_seed)
    module = algorithm_module(of.method.algorithm, where=f"memory.embedder: {memory.embedder}", does="network")
    learned = of.method.hyperparameters.context
    if memory.key_context > learned:
        raise UserError(
            f"key windows have {memory.key_context} steps, and the windows that '{name}' learns from {learned}",
            where=f"memory.key_context of '{settings.method.name}' in '{settings.environment.name}'",
            do=f"set memory.key_context to {learned} or less, or the context of '{name}' to {memory.key_context}",
        )
    return of, module


def check_language_model(memory: MemorySettings, facts: Facts) -> None:
    """Raise a UserError where a language model cannot embed: before the first job, not when histories are made.

    Of one from the hub, which may be still to be fetched, only the kind is known.
    """
    most = most_tokens(language_model(embedder_name(memory)[1]), layers=memory.layers)
    steps = memory.key_context if memory.padding == "counted" else min(memory.key_context, facts.horizon)
    tokens = steps * len(tokens_of(memory))
    if most is not None and tokens > most:
        raise too_long(tokens, most)
    if math.prod(facts.observation_values) > MOST_JOINT:
        raise too_many_values(facts.observation_values)


def load_embedder(
    settings: Settings, inputs: Inputs, facts: Facts, arrays: Mapping[str, np.ndarray] | None = None
) -> Embedder:
    """The embedder, frozen and on the input's device.

    Args:
        settings: of the method whose memory it serves.
        inputs: `embedder_policy` or `language_model` must be given, unless `arrays` holds the network.
    """
    memory, precision = memory_of(settings), settings.method.hyperparameters.optimisation.precision
    kind, name = embedder_name(memory)
    if kind == "method":
        of, module = trained_embedder(settings)
        network = module.build_network(of, facts)
        if not arrays:
            arrays = read_arrays(inputs.need("embedder_policy"), kind="policy")
        module.load_network(network, arrays, of)
        return DomainSpecificEmbedder(network.to(inputs.device), memory, precision)
    model = load_language_model(
        language_model(name), folder=inputs.get("language_model"), layers=memory.layers, device=inputs.device
    )
    return DomainAgnosticEmbedder(
        model,
        memory,
        precision,
        settings.environment.returns,
        observation_values=facts.observation_values,
        observation_size=facts.observation_size,
        actions=facts.actions,
        action_size=facts.action_size,
    )


class SteppedQueries(Acting):
    """Query keys of the episodes being played, one cached timestep per call: the same keys as of whole windows.

    Only where a window holds the whole episode (nothing ever leaves it) and a timestep is one token.
    """

    acting = ("cached", "recent_BTD", "real_BT")

    def __init__(
        self, embedder: DomainSpecificEmbedder, rows: int, horizon: int, dtype: torch.dtype | None = None
    ) -> None:
        self.cached = CachedSteps(embedder.network, rows, horizon, dtype)
        self.steps = embedder.memory.pooled_steps
        if embedder.memory.pooling == "last":
            self.steps = 1
        device = embedder.network.action_head.weight.device
        self.recent_BTD = torch.zeros(rows, self.steps, embedder.width, device=device)
        self.real_BT = torch.zeros(rows, self.steps, dtype=torch.bool, device=device)

    @staticmethod
    def of(embedder: Embedder, rows: int, horizon: int, dtype: torch.dtype | None = None) -> SteppedQueries | None:
        """None where windows have to be embedded whole."""
        if not isinstance(embedder, DomainSpecificEmbedder):
            return None
        if embedder.memory.key_context < horizon or len(embedder.tokens) > 1 or not embedder.network.goes_on:
            return None
        return SteppedQueries(embedder, rows, horizon, dtype)

    def clear(self, mask_B: np.ndarray) -> None:
        self.cached.clear(mask_B)
        self.real_BT[sent(mask_B, self.real_BT.device)] = False

    def append(self, pair: Experience) -> Tensor:
        """Keys [B, width] of the windows up to now. `pair`: see `CachedSteps.hidden_now`."""
        hidden_B1D = self.cached.hidden_now(pair)[:, None]
        real_B1 = torch.ones_like(self.real_BT[:, :1])
        self.recent_BTD = torch.cat([self.recent_BTD[:, 1:], hidden_B1D], 1)
        self.real_BT = torch.cat([self.real_BT[:, 1:], real_B1], 1)
        recent_BT1D = self.recent_BTD[:, :, None]
        return pooled(recent_BT1D, self.real_BT, tokens=("s",), kind="s", steps=self.steps)
