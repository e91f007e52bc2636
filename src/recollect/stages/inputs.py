"""Which artifacts a run reads: one answer for the rules, which parse with it (nothing heavy is imported), and the commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from recollect.settings.resolve import environment_mapping, language_model, method_mapping, published_data
from recollect.stages import paths, provenance

if TYPE_CHECKING:
    from recollect.methods.contract import Inputs
    from recollect.settings.schema import Settings


def generate_inputs(scale: str, env: str) -> dict[str, Path]:
    """What `recollect generate` reads: nothing, or the published data set in whose folder the source's files lie."""
    source = environment_mapping(scale, env).get("source") or {}
    folder = Path(str((source.get("hyperparameters") or {}).get("folder", "")))
    fetched = paths.published("_").parent.parent
    if fetched not in folder.parents:
        return {}
    name = folder.relative_to(fetched).parts[0]
    published_data(name)
    return {"published": paths.published(name)}


def embedder_inputs(scale: str, env: str, method: str) -> dict[str, Path]:
    """The file that a method's embedder is read from: another run's policy, or a fetched language model."""
    kind, name, seed = provenance.embedder_of(scale, env, method)
    if kind == "method":
        return {"embedder_policy": paths.policy(scale, env, name, seed)}
    if kind == "lm" and language_model(name).source == "hub":
        return {"language_model": paths.model(name)}
    return {}


def train_inputs(scale: str, env: str, method: str) -> dict[str, Path]:
    """What `recollect train` reads: histories where it learns from them, index and embedder where it has a memory."""
    content = method_mapping(scale, env, method)
    found: dict[str, Path] = {}
    if content.get("data") == "histories":
        found["histories"] = paths.histories(scale, env)
    if content.get("memory") is not None:
        found["embeddings"] = paths.embeddings(scale, env, method)
        found["index"], found["rows"] = paths.index(scale, env, method), paths.rows(scale, env, method)
        found |= embedder_inputs(scale, env, method)
    return found


def run_inputs(settings: Settings, device: str) -> Inputs:
    """The same as a method is given it."""
    from recollect.methods.contract import Inputs

    return Inputs(device=device, **train_inputs(settings.scale, settings.environment.name, settings.method.name))
