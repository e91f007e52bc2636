"""Which files each job reads, by name: one answer for the rules, the manifests and what a method is given.

A new input of a method is one line here. Nothing heavy is imported: Snakemake parses with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recollect.environments import registry
from recollect.helm.settings import token_vocabulary, vision_language_model
from recollect.settings.catalogue import declaration
from recollect.settings.claims import claims_of
from recollect.settings.layers import method_layers
from recollect.settings.resolve import (
    base_method,
    by_task,
    environment_mapping,
    figure_reads,
    figure_settings,
    language_model,
    method_mapping,
    names,
    played_method,
    published_data,
    section,
)
from recollect.stages import paths, provenance

Run = tuple[str, str, int]
"""(env, method, seed)"""


def generate_inputs(scale: str, env: str) -> dict[str, Path]:
    """What `recollect generate` reads: nothing, the published data set in whose folder the source's files lie, or the
    histories of each task where those are made by jobs of their own.
    """
    if makes_by_task(scale, env):
        tasks = registry.tasks(*source_tasks(scale, env))
        return {f"task_{task.index}": paths.task_histories(scale, env, task.index) for task in tasks}
    source = section(environment_mapping(scale, env), "source", "hyperparameters")
    folder = Path(str(source.get("folder", "")))
    fetched = paths.published("any").parent.parent
    if fetched not in folder.parents:
        return {}
    name = folder.relative_to(fetched).parts[0]
    published_data(name)
    return {"published": paths.published(name)}


def makes_by_task(scale: str, env: str) -> bool:
    return by_task(_source_of(scale, env))


def reads_files(scale: str, env: str) -> bool:
    """Whether the source of an environment reads what others have played: it has a function `files`."""
    return declaration("source", _source_of(scale, env), "files") is not None


def _source_of(scale: str, env: str) -> str:
    """The algorithm of an environment's source."""
    return str(section(environment_mapping(scale, env), "source").get("algorithm", "ppo"))


def source_tasks(scale: str, env: str) -> tuple[str, dict[str, Any], str]:
    """The tasks that a source plays, as `registry.tasks` takes them: world, options, split."""
    content = environment_mapping(scale, env)
    options = {**(content.get("options") or {}), **(content.get("training_options") or {})}
    return str(content["world"]), options, str(content["source"].get("split", "train"))


def learned_histories(scale: str, env: str) -> Path:
    """The histories that methods learn from: where observations are images, those with encoded ones."""
    images = environment_mapping(scale, env).get("images")
    return paths.histories(scale, env) if images is None else paths.encoded_histories(scale, env)


def image_encoder_inputs(scale: str, env: str) -> dict[str, Path]:
    """The file of trained weights that an environment's images are encoded with; nothing where they are random."""
    weights = section(environment_mapping(scale, env), "images").get("weights")
    return {} if weights is None else {"image_encoder": Path(str(weights))}


def embed_images_inputs(scale: str, env: str) -> dict[str, Path]:
    return {"histories": paths.histories(scale, env), **image_encoder_inputs(scale, env)}


def embed_inputs(scale: str, env: str, method: str) -> dict[str, Path]:
    return {"histories": learned_histories(scale, env), **embedder_inputs(scale, env, method)}


def embedder_inputs(scale: str, env: str, method: str) -> dict[str, Path]:
    """The file that a method's embedder is read from: another run's policy, or a fetched language model."""
    kind, name, seed = provenance.embedder_of(scale, env, method)
    if kind == "method":
        return {"embedder_policy": paths.policy(scale, env, name, seed)}
    return language_model_file(name) if kind == "lm" else {}


def language_model_file(name: str) -> dict[str, Path]:
    """The weights of a language model, where these are fetched."""
    return {"language_model": paths.model(name)} if language_model(name).source == "hub" else {}


def vision_language_file(scale: str, name: str) -> dict[str, Path]:
    """The weights of a vision-language model: fetched, or trained at this scale; nothing where they are random."""
    source = vision_language_model(name, scale).source
    if source == "random":
        return {}
    return {"vision_language_model": paths.model(name) if source == "hub" else paths.trained_model(scale, name)}


def vocabulary_inputs(scale: str, name: str) -> dict[str, Path]:
    chosen = token_vocabulary(name)
    return vision_language_file(scale, chosen.vision_language_model) | language_model_file(chosen.language_model)


def is_trained(scale: str, env: str, method: str) -> bool:
    """Whether a method is trained; a variant that differs in acting only is not."""
    return not method_mapping(scale, env, method).get("evaluation_only")


def untrained_methods(scale: str) -> list[str]:
    """Every listed variant of a scale that is not trained: `radt.every_25`."""
    found: list[str] = []
    env = any_environment()
    for method in names("methods"):
        contents = _own_contents(scale, method)
        candidates = [variant for variant in variants_of(scale, method) if _may_be_untrained(contents, variant)]
        found += [f"{method}.{variant}" for variant in candidates if not is_trained(scale, env, f"{method}.{variant}")]
    return found


def any_environment() -> str:
    """One to ask with for what is the same in all: a method's variants, and whether one is trained."""
    return names("environments")[0]


def variants_of(scale: str, method: str) -> list[str]:
    """The variants that the files list of a method at a scale, in their order."""
    return list(dict.fromkeys(variant for own in _own_contents(scale, method) for variant in own.get("variants") or {}))


def _own_contents(scale: str, method: str) -> list[Mapping[str, Any]]:
    """What the files say of a method itself at a scale, the general one first."""
    return [layer.content for layer in method_layers(scale, any_environment(), method).own]


def _may_be_untrained(contents: Sequence[Mapping[str, Any]], variant: str) -> bool:
    """Whether layers of a method say of a variant what can make it one that is not trained.

    Most say nothing of it, and to lay the layers of all variants of all scales over each other takes a fifth of a second.
    """
    if any("evaluation_only" in content for content in contents):
        return True
    said = [section(content, "variants", variant) for content in contents]
    return any(key in entry for entry in said for key in ("evaluation_only", "base", "environments"))


def learns_from_histories(scale: str, env: str, method: str) -> bool:
    """Whether a method learns from learning histories, and not by acting."""
    return method_mapping(scale, env, method).get("data") == "histories"


def devices(scale: str, env: str, method: str) -> int:
    """How many GPUs a run learns on: one, where its method knows nothing else (AMAGO does)."""
    found = section(method_mapping(scale, env, method), "hyperparameters").get("devices")  # not checked yet
    return found if isinstance(found, int) and found > 1 else 1


def plays_on_gpu(scale: str, env: str, method: str) -> bool:
    """Whether to play a policy is work for a GPU: thousands of windows in a batch, or a large frozen model."""
    return learns_from_histories(scale, env, method) or bool(frozen_models(scale, env, method))


def frozen_models(scale: str, env: str, method: str) -> set[str]:
    """Which frozen models a policy plays with that are fetched or made by a rule."""
    return playing_inputs(scale, env, method).keys() & {"language_model", "vision_language_model"}


def has_memory(scale: str, env: str, method: str) -> bool:
    return method_mapping(scale, env, method).get("memory") is not None


def memory_method(scale: str, env: str, method: str) -> str:
    """The method whose embeddings and index are read: a variant's base, where their memories are the same."""
    base = base_method(method)
    if base == method:
        return method
    same = provenance.memory_settings(scale, env, base) == provenance.memory_settings(scale, env, method)
    return base if same else method


def playing_inputs(scale: str, env: str, method: str) -> dict[str, Path]:
    """What a policy reads besides itself while it plays: frozen models, which do not travel in it, and demonstrations."""
    found = embedder_inputs(scale, env, method)
    found.pop("embedder_policy", None)  # this one does travel
    found |= image_encoder_inputs(scale, env)
    chosen = section(method_mapping(scale, env, method), "hyperparameters")
    demonstrations = section(chosen, "acting").get("demonstrations")
    if demonstrations is not None:  # they stand in its memory before it acts
        found["demonstrations"] = learned_histories(scale, str(demonstrations))
    if chosen.get("language_model") is not None:
        found |= language_model_file(chosen["language_model"])
    model, vocabulary = provenance.sees_with(chosen)
    if model is not None:
        found |= vision_language_file(scale, model)
    if vocabulary is not None:
        found["token_vocabulary"] = paths.token_vocabulary(scale, vocabulary)
    return found


def train_inputs(scale: str, env: str, method: str) -> dict[str, Path]:
    """What training reads: histories where it learns from them, index and embedder where it has a memory."""
    found: dict[str, Path] = {}
    if learns_from_histories(scale, env, method):
        found["histories"] = learned_histories(scale, env)
    if has_memory(scale, env, method):
        of = (scale, env, memory_method(scale, env, method))
        found |= {"embeddings": paths.embeddings(*of), "index": paths.index(*of), "rows": paths.rows(*of)}
        found |= embedder_inputs(scale, env, method)
    return found | playing_inputs(scale, env, method)


def evaluate_inputs(scale: str, env: str, method: str, seed: int | str) -> dict[str, Path]:
    """What evaluation reads: a finished run, and what its policy plays with."""
    played = (scale, env, played_method(scale, env, method), seed)
    run = {"policy": paths.policy(*played), "train": paths.train_table(*played)}
    return {**run, **playing_inputs(scale, env, method)}


def inspect_inputs(scale: str, env: str, method: str, seed: int | str) -> dict[str, Path]:
    policy = paths.policy(scale, env, played_method(scale, env, method), seed)
    return {"policy": policy, **playing_inputs(scale, env, method)}


def figure_runs(scale: str, figure: str) -> list[Run]:
    chosen = figure_settings(scale, figure)
    return [(e, m, s) for e in chosen.environments for m in chosen.methods for s in chosen.seeds]


def paged_runs(scale: str, figure: str) -> list[Run]:
    """The runs of a figure that get inspection pages: all of them where it draws traces, else those that it asks for."""
    chosen = figure_settings(scale, figure)
    if figure_reads(scale, figure) == "traces":
        return figure_runs(scale, figure)
    return [(env, method, chosen.seeds[0]) for method, env in chosen.pages.items()]


def report_inputs(scale: str, *figures: str) -> dict[str, Path]:
    """What `recollect report` must have of some figures; what it finds of their runs and pages is shown as well."""
    listed = [paths.figure(scale, figure, f".{suffix}") for figure in figures for suffix in paths.FIGURE_FILES]
    if claims_of(scale, figures):
        listed.append(paths.claims(scale))
    return {path.name: path for path in listed}


def figure_inputs(scale: str, figure: str) -> dict[str, Path]:
    """What `recollect figure` reads, by run: its scores, or what else the figure's kind wants, see `READ`."""
    places = {"scores": paths.scores, "training": paths.train_table, "traces": paths.trace, "speeds": paths.speed}
    place = places[figure_reads(scale, figure)]
    return {
        f"{env} {method} {seed}": place(scale, env, method, seed) for env, method, seed in figure_runs(scale, figure)
    }
