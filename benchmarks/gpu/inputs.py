"""Made-up inputs in the shapes of the real ones: learning histories, memories, frozen models with random weights.

They lie in sealed files, so that a method opens them as it opens its own. Learning histories are cut at `MOST_ROWS` steps: what
a batch costs does not depend on how many there are. What a search costs does, so a memory has its full size, 320,000 keys in
Dark-Room 10x10: windows stand in it several times, each with a key of its own.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu.case import Case
from recollect.artifacts.checkpoints import joined
from recollect.artifacts.inputs import Inputs
from recollect.artifacts.sealed import sealing, write_arrays, write_json
from recollect.common.contract import Facts, facts_of
from recollect.common.histories import KIND as HISTORIES
from recollect.common.histories import Histories
from recollect.common.index import FlatIndex
from recollect.common.language_models import KIND as LANGUAGE_MODEL
from recollect.common.language_models import WEIGHTS
from recollect.common.weights import arrays_of
from recollect.environments import registry
from recollect.helm.language.published_transformer_xl import CONFIG
from recollect.helm.language.transformer_xl import TransformerXL, TransformerXLSettings
from recollect.radt.chunks import chunk_settings, cut_chunks, memory_of
from recollect.radt.embedding import embedder_name, load_embedder
from recollect.settings.resolve import algorithm_module, language_model, resolve, source_hyperparameters
from recollect.settings.schema import Settings
from recollect.stages.inputs import train_inputs

MOST_ROWS = 1_000_000


def inputs_of(case: Case) -> Inputs:
    """What training reads; files that another case of the same line has made are taken as they are."""
    settings, folder = case.settings, case.folder
    wanted = train_inputs(case.scale, case.env, case.method)
    found = Inputs(device=case.device)
    if "histories" in wanted:
        found["histories"] = folder / "histories.safetensors"
        if not found["histories"].exists():
            _write_histories(found["histories"], settings)
    if "embedder_policy" in wanted:
        found["embedder_policy"] = folder / "embedder.safetensors"
        if not found["embedder_policy"].exists():
            _write_embedder(found["embedder_policy"], settings)
    if "language_model" in wanted:
        found["language_model"] = language_model_file(_language_model(settings), folder)
    if "index" in wanted:
        for name in ("index", "rows", "embeddings"):
            found[name] = folder / f"{name}.safetensors"
        if not found["index"].exists():
            _write_memory(settings, found)
    return found


def _write_histories(path: Path, settings: Settings) -> None:
    """Whole episodes of random actions."""
    environment = settings.environment
    facts: Facts = facts_of(environment)
    source = environment.source
    assert source is not None
    options = {**environment.options, **(environment.training_options or {})}
    tasks = len(registry.tasks(environment.world, options, source.split))
    each = min(_transitions(settings), MOST_ROWS // tasks)
    T = min(facts.horizon, each)
    episodes = max(each // T, 2)
    rows = tasks * episodes * T
    draws = np.random.default_rng(0)
    observation: np.ndarray
    if facts.observation_values:
        seen = [draws.integers(0, values, rows, dtype=np.int32) for values in facts.observation_values]
        observation = np.stack(seen, 1)
    else:
        observation = draws.random((rows, facts.observation_size), np.float32)
    action: np.ndarray = draws.integers(0, facts.actions or 1, rows, dtype=np.int32)
    if not facts.actions:
        action = draws.uniform(-1, 1, (rows, facts.action_size)).astype(np.float32)
    arrays = {
        "observation": observation,
        "action": action,
        "reward": (draws.random(rows, np.float32) < 0.05).astype(np.float32),
        "done": np.tile(np.arange(T) == T - 1, tasks * episodes),
        "task": np.repeat(np.arange(tasks, dtype=np.int32), episodes * T),
        "episode": np.tile(np.repeat(np.arange(episodes, dtype=np.int32), T), tasks),
    }
    write_arrays(path, arrays, kind=HISTORIES)


def _transitions(settings: Settings) -> int:
    """Steps of each task that the environment's source makes."""
    source = settings.environment.source
    assert source is not None
    return int(source_hyperparameters(settings.scale, settings.environment.name, source).transitions)


def _write_embedder(path: Path, settings: Settings) -> None:
    """The network of the run that embeds, as it is before it learns."""
    memory = memory_of(settings)
    _, name = embedder_name(memory)
    of = resolve(settings.scale, settings.environment.name, name, memory.embedder_seed)
    module = algorithm_module(of.method.algorithm, where=name, does="network")
    network = module.build_network(of, facts_of(of.environment))
    write_arrays(path, joined(network=arrays_of(network)), kind="policy")


def _language_model(settings: Settings) -> str:
    chosen = getattr(settings.method.hyperparameters, "language_model", None)
    return str(chosen) if chosen else embedder_name(memory_of(settings))[1]


def language_model_file(name: str, folder: Path) -> Path:
    """A model of the published shape of its kind (`bert` or `transformer_xl`), with random weights."""
    weights = folder / name / WEIGHTS
    if weights.exists():
        return weights
    weights.parent.mkdir(parents=True)
    if language_model(name).kind == "transformer_xl":
        shape = TransformerXLSettings()
        network = TransformerXL(shape, seed=0)
        write_arrays(weights, arrays_of(network), kind=LANGUAGE_MODEL)
        write_json(weights.with_name(CONFIG), shape.model_dump(mode="json"), kind=LANGUAGE_MODEL)
        words = [f"word{number}" for number in range(shape.vocabulary)]
    else:
        from transformers import BertConfig, BertModel

        bert = BertConfig()
        model = BertModel(bert, add_pooling_layer=False)
        write_arrays(weights, arrays_of(model), kind=LANGUAGE_MODEL)
        known = {**bert.to_dict(), "architectures": ["BertModel"]}
        with sealing(weights.with_name("config.json"), kind=LANGUAGE_MODEL) as path:
            Path(path).write_text(json.dumps(known), encoding="utf-8")
        words = [f"word{number}" for number in range(bert.vocab_size)]
    with sealing(weights.with_name("vocab.txt"), kind=LANGUAGE_MODEL) as path:
        Path(path).write_text("\n".join(words) + "\n", encoding="utf-8")
    return weights


def _write_memory(settings: Settings, found: Inputs) -> None:
    """The entries of all cuts of the histories, with random keys of length one."""
    memory, facts = memory_of(settings), facts_of(settings.environment)
    table = Histories.open(found["histories"]).episodes
    chunks = cut_chunks(table.start, table.length, table.task, table.total_return, chunk_settings(memory))
    rows = int(table.length.sum())
    times = max(1, round(_transitions(settings) * len(np.unique(table.task)) / rows))
    chunks = chunks.take(np.repeat(np.arange(len(chunks)), times))
    if memory.max_entries_per_task is not None:
        place = np.arange(len(chunks)) - np.searchsorted(chunks.task, chunks.task)
        chunks = chunks.take(place < memory.max_entries_per_task)
    on_cpu = Inputs(device="cpu", **{name: found.get(name) for name in ("embedder_policy", "language_model")})
    width = load_embedder(settings, on_cpu, facts).width
    keys = np.random.default_rng(0).standard_normal((len(chunks), width), np.float32)
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    index = FlatIndex(width)
    index.add(torch.from_numpy(keys))
    with sealing(found["index"], kind="index") as path:
        index.save(path)
    write_arrays(found["rows"], chunks.to_arrays(), kind="memory rows")
    if settings.method.hyperparameters.queries == "nearest_key":
        write_arrays(found["embeddings"], {"keys": keys, **chunks.to_arrays()}, kind="embeddings")
