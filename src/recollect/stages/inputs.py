"""Which artifacts a run reads, from its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recollect.methods.contract import Inputs
from recollect.settings.resolve import language_model
from recollect.settings.schema import Settings
from recollect.stages import paths, provenance


def embedder_inputs(scale: str, env: str, method: str) -> dict[str, Path]:
    """The artifact that a method's embedder is read from: another run's policy, or a fetched language model."""
    kind, name, seed = provenance.embedder_of(scale, env, method)
    if kind == "method":
        return {"embedder_policy": paths.policy(scale, env, name, seed)}
    if kind == "lm" and language_model(name).source == "hub":
        return {"language_model": paths.model(name)}
    return {}


def run_inputs(settings: Settings, device: str) -> Inputs:
    """The artifacts that a method learns from."""
    scale, env, method = settings.scale, settings.environment.name, settings.method.name
    found: dict[str, Any] = {"device": device}
    if settings.method.data == "histories":
        found["histories"] = paths.histories(scale, env)
    if settings.method.memory is not None:
        found |= {
            "embeddings": paths.embeddings(scale, env, method),
            "index": paths.index(scale, env, method),
            "rows": paths.rows(scale, env, method),
        }
        found |= embedder_inputs(scale, env, method)
    return Inputs(**found)
