"""Which artifacts a run reads: one answer for the rules, which parse with it (nothing heavy is imported), and the commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from recollect.settings.resolve import (
    base_method,
    environment_mapping,
    figure_reads,
    figure_settings,
    language_model,
    method_mapping,
    played_method,
    published_data,
    token_vocabulary,
    vision_language_model,
)
from recollect.stages import paths, provenance

if TYPE_CHECKING:
    from recollect.common.contract import Inputs
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


def learned_histories(scale: str, env: str) -> Path:
    """The histories that methods learn from: where observations are images, those with encoded ones."""
    images = environment_mapping(scale, env).get("images")
    return paths.histories(scale, env) if images is None else paths.encoded_histories(scale, env)


def image_encoder_inputs(scale: str, env: str) -> dict[str, Path]:
    """The file of trained weights that an environment's images are encoded with; nothing where they are random."""
    weights = (environment_mapping(scale, env).get("images") or {}).get("weights")
    return {} if weights is None else {"image_encoder": Path(str(weights))}


def demonstration_inputs(scale: str, env: str, method: str) -> dict[str, Path]:
    """The histories that stand in a method's memory before it acts; nothing where it starts empty."""
    acting = (method_mapping(scale, env, method).get("hyperparameters") or {}).get("acting") or {}
    name = acting.get("demonstrations")
    return {} if name is None else {"demonstrations": learned_histories(scale, str(name))}


def embed_images_inputs(scale: str, env: str) -> dict[str, Path]:
    """What `recollect embed-images` reads."""
    return {"histories": paths.histories(scale, env), **image_encoder_inputs(scale, env)}


def embedder_inputs(scale: str, env: str, method: str) -> dict[str, Path]:
    """The file that a method's embedder is read from: another run's policy, or a fetched language model."""
    kind, name, seed = provenance.embedder_of(scale, env, method)
    if kind == "method":
        return {"embedder_policy": paths.policy(scale, env, name, seed)}
    if kind == "lm" and language_model(name).source == "hub":
        return {"language_model": paths.model(name)}
    return {}


def language_memory_inputs(scale: str, env: str, method: str) -> dict[str, Path]:
    """The language model that reads what a method's agent sees; nothing where it needs no file."""
    name = (method_mapping(scale, env, method).get("hyperparameters") or {}).get("language_model")
    return {"language_model": paths.model(name)} if name is not None and language_model(name).source == "hub" else {}


def vision_language_file(scale: str, name: str) -> dict[str, Path]:
    """The weights of a vision-language model: fetched, or trained at this scale; nothing where they are random."""
    source = vision_language_model(name).source
    if source == "random":
        return {}
    return {"vision_language_model": paths.model(name) if source == "hub" else paths.trained_model(scale, name)}


def vocabulary_inputs(scale: str, name: str) -> dict[str, Path]:
    """What `recollect embed-vocabulary` reads."""
    chosen = token_vocabulary(name)
    found = vision_language_file(scale, chosen.vision_language_model)
    if language_model(chosen.language_model).source == "hub":
        found["language_model"] = paths.model(chosen.language_model)
    return found


def vision_names(scale: str, env: str, method: str) -> tuple[str | None, str | None]:
    """(token vocabulary, vision-language model) that a method's hyperparameters `token_vocabulary` and
    `vision_language_model` name; a vocabulary brings the model that it was made with.
    """
    chosen = method_mapping(scale, env, method).get("hyperparameters") or {}
    vocabulary, model = chosen.get("token_vocabulary"), chosen.get("vision_language_model")
    if vocabulary is not None:
        model = token_vocabulary(str(vocabulary)).vision_language_model
    return vocabulary, model


def vision_inputs(scale: str, env: str, method: str) -> dict[str, Path]:
    """The files that a method sees with; nothing where it has no vision-language model."""
    vocabulary, model = vision_names(scale, env, method)
    found = {} if model is None else vision_language_file(scale, model)
    if vocabulary is not None:
        found["token_vocabulary"] = paths.token_vocabulary(scale, vocabulary)
    return found


def policy_method(scale: str, env: str, method: str) -> str:
    """The method whose policy is played: a variant that is not trained plays that of the method it is a variant of."""
    return played_method(scale, env, method)


def memory_method(scale: str, env: str, method: str) -> str:
    """The method whose embeddings and index are read: a variant's base, where their memories are the same."""
    base = base_method(method)
    if base == method:
        return method
    same = provenance.memory_settings(scale, env, base) == provenance.memory_settings(scale, env, method)
    return base if same else method


def train_inputs(scale: str, env: str, method: str) -> dict[str, Path]:
    """What `recollect train` reads: histories where it learns from them, index and embedder where it has a memory."""
    content = method_mapping(scale, env, method)
    found: dict[str, Path] = {}
    if content.get("data") == "histories":
        found["histories"] = learned_histories(scale, env)
    if content.get("memory") is not None:
        of = (scale, env, memory_method(scale, env, method))
        found |= {"embeddings": paths.embeddings(*of), "index": paths.index(*of), "rows": paths.rows(*of)}
        found |= embedder_inputs(scale, env, method)
    found |= image_encoder_inputs(scale, env) | demonstration_inputs(scale, env, method)
    return found | language_memory_inputs(scale, env, method) | vision_inputs(scale, env, method)


def figure_runs(scale: str, figure: str) -> list[tuple[str, str, int]]:
    """(env, method, seed) of the runs that a figure is about."""
    chosen = figure_settings(scale, figure)
    return [(e, m, s) for e in chosen.environments for m in chosen.methods for s in chosen.seeds]


def figure_inputs(scale: str, figure: str) -> list[Path]:
    """What `recollect figure` reads: the scores of its runs, or their traces or speeds where its kind wants those."""
    of_run = {"scores": paths.scores, "traces": paths.trace, "speeds": paths.speed}[figure_reads(scale, figure)]
    return [of_run(scale, *run) for run in figure_runs(scale, figure)]


def run_inputs(settings: Settings, device: str) -> Inputs:
    """The same as a method is given it."""
    from recollect.common.contract import Inputs

    return Inputs(device=device, **train_inputs(settings.scale, settings.environment.name, settings.method.name))
