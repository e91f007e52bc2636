"""What each stage is a function of: its part of the settings, the code it can reach, and its inputs.

The same texts are params of the rules, so that a change reruns what depends on it and nothing else. They stand in every
manifest. Checkpoints are found again by them. Nothing here imports torch: Snakemake parses with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recollect.artifacts.sealed import manifest_path, read_manifest, verify
from recollect.helm.settings import prompt_templates, token_vocabulary, vision_language_model
from recollect.settings.catalogue import KINDS, declaration, known, module_of, roots
from recollect.settings.claims import claims_of
from recollect.settings.errors import UserError
from recollect.settings.layers import environment_stem
from recollect.settings.loading import published_groups
from recollect.settings.resolve import (
    canonical,
    environment_mapping,
    environment_path,
    environment_settings,
    figure_settings,
    language_model,
    method_mapping,
    method_path,
    resolved,
    resolved_environment,
    scale_settings,
    section,
    titles,
)
from recollect.stages import identity

#: The inspection pages without their data; no Python, so no fingerprint of the code sees them.
TEMPLATES = [
    Path(__file__).parents[1] / "figures" / f"{page}.{suffix}"
    for page in ("page", "inspection", "token_page")
    for suffix in ("html", "css", "js")
]
#: How all figures look; no Python either.
STYLE = TEMPLATES[0].with_name("recollect.mplstyle")


def _without(mapping: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in keys}


def embedder_of(scale: str, env: str, method: str) -> tuple[str, str, int]:
    """(`method`, `lm` or ``""`` for none, name, seed) of the embedder of a method's memory.

    Raises:
        UserError: the networks that embed for each other lead back to one.
    """
    first = kind, name, _ = _named_embedder(scale, env, method)
    chain = [method]
    while kind == "method":
        if name in chain:
            what = f"the `embedder` of method '{method}' leads back to '{name}'"
            do = "name a network that reads no memory, such as method:dt"
            raise UserError(what, where=f"{method_path(method)}: memory.embedder", do=do)
        chain.append(name)
        kind, name, _ = _named_embedder(scale, env, name)
    return first


def _named_embedder(scale: str, env: str, method: str) -> tuple[str, str, int]:
    memory = section(method_mapping(scale, env, method), "memory")
    kind, _, name = str(memory.get("embedder", "")).partition(":")
    return kind, name, int(memory.get("embedder_seed", 0))


def uses_random_model(scale: str, env: str, method: str) -> bool:
    """Whether a random stand-in takes the place of a pretrained model that a method reads with."""
    kind, name, _ = embedder_of(scale, env, method)
    read = frozen_models(scale, env, method).values()
    return (kind == "lm" and language_model(name).source == "random") or any(m["source"] == "random" for m in read)


def frozen_models(scale: str, env: str, method: str) -> dict[str, dict[str, Any]]:
    """Where the models come from that a method's hyperparameters name: ``language_model``, ``vision_language_model``."""
    chosen = resolved(scale, env, method)["method"]["hyperparameters"]
    models: dict[str, dict[str, Any]] = {}
    if chosen.get("language_model") is not None:
        models["language_model"] = language_model_mapping(chosen["language_model"])
    seen_with, _ = sees_with(chosen)
    if seen_with is not None:
        models["vision_language_model"] = vision_language_model(seen_with, scale).model_dump(mode="json")
    return models


def sees_with(hyperparameters: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """(vision-language model, token vocabulary) that a method names; a vocabulary brings the model that made it."""
    vocabulary = hyperparameters.get("token_vocabulary")
    if vocabulary is None:
        return hyperparameters.get("vision_language_model"), None
    return token_vocabulary(vocabulary).vision_language_model, vocabulary


def generate_settings(scale: str, env: str) -> str:
    return canonical(_without(resolved_environment(scale, env), "evaluation", "title", "returns", "images"))


def image_settings(scale: str, env: str) -> str:
    return canonical({"images": environment_settings(scale, env).model_dump(mode="json")["images"]})


def vocabulary_settings(scale: str, name: str) -> str:
    vocabulary = token_vocabulary(name)
    parts = {
        "vocabulary": vocabulary.model_dump(mode="json"),
        "templates": prompt_templates(vocabulary.templates),
        "model": vision_language_model(vocabulary.vision_language_model, scale).model_dump(mode="json"),
        "language_model": language_model_mapping(vocabulary.language_model),
    }
    return canonical(parts)


def language_model_mapping(name: str) -> dict[str, Any]:
    return language_model(name).model_dump(mode="json")


def memory_settings(scale: str, env: str, method: str) -> str:
    """Everything in the configuration that embeddings and the index depend on, besides the embedder's own run."""
    settings = resolved(scale, env, method)
    hyperparameters = settings["method"]["hyperparameters"]
    kind, name, _ = embedder_of(scale, env, method)
    parts = {
        "environment": _without(settings["environment"], "evaluation", "title", "source"),
        "memory": settings["method"]["memory"],
        "language_model": language_model_mapping(name) if kind == "lm" else None,
        "reward_scale": hyperparameters.get("reward_scale"),
    }
    precision = section(hyperparameters, "optimisation").get("precision", "auto")
    if precision != "auto":  # which follows from the device, and a manifest names that
        parts["precision"] = precision
    return canonical(parts)


def train_settings(scale: str, env: str, method: str) -> str:
    """Everything in the configuration that a run depends on, besides its seed."""
    settings = resolved(scale, env, method)
    judged_while_learning = evaluates_while_training(settings["method"])
    hidden = ("title", "source") if judged_while_learning else ("title", "source", "evaluation")
    return _run_settings(settings, hidden, frozen_models(scale, env, method))


def evaluate_settings(scale: str, env: str, method: str) -> str:
    return _run_settings(resolved(scale, env, method), ("title", "source"), frozen_models(scale, env, method))


def _run_settings(settings: Mapping[str, Any], hidden: Iterable[str], models: Mapping[str, Any]) -> str:
    """Settings of a run as text, without some keys of its environment and without the method's title."""
    environment = _without(settings["environment"], *hidden)
    return canonical({"environment": environment, "method": _without(settings["method"], "title"), **models})


def page_text(scale: str, env: str, method: str) -> str:
    """Everything that an inspection page depends on besides code and trace: titles, and the page that they go into."""
    titles = [
        environment_mapping(scale, env).get("title", env),
        method_mapping(scale, env, method).get("title", method),
    ]
    said = {"wiring_test": scale_settings(scale).wiring_test, "random_model": uses_random_model(scale, env, method)}
    known = {"titles": titles, **said}
    return canonical({**known, "templates": [digest(path.read_text(encoding="utf-8")) for path in TEMPLATES]})


def figure_text(scale: str, figure: str) -> str:
    chosen = figure_settings(scale, figure)
    called = {
        "methods": titles(scale, chosen.environments[0], chosen.methods),
        "environments": {e: environment_mapping(scale, e).get("title", e) for e in chosen.environments},
    }
    at_scale = scale_settings(scale)
    said = {
        "published": at_scale.published,
        "wiring_test": at_scale.wiring_test,
        "remarks": remarks(scale, chosen.environments),
    }
    drawn = {"published_values": published_values(scale, figure), "style": digest(STYLE.read_text(encoding="utf-8"))}
    asked = chosen.model_dump(mode="json", exclude={"pages"})
    return canonical({"figure": asked, "titles": called, "scale": said, **drawn})


def published_values(scale: str, figure: str) -> dict[str, Any]:
    """The groups of published values that a figure names and that are comparable with its scale, as their files have them."""
    wanted = {str(item["published"]) for item in figure_settings(scale, figure).references if "published" in item}
    of_scale = scale_settings(scale).published or scale
    named = {name: group for name, (group, _) in published_groups().items() if name in wanted}
    return {name: group for name, group in named.items() if group.get("scale", "paper") == of_scale}


def remarks(scale: str, environments: Sequence[str]) -> list[str]:
    """What the worlds of a figure say of themselves, with the names of their environments where they say several things."""
    said: dict[str, list[str]] = {}
    for env in environments:
        content = environment_mapping(scale, env)
        stem = environment_stem(env)[0]
        for option, sentences in (declaration("world", str(content.get("world")), "REMARKS") or {}).items():
            value = section(content, "options").get(option, next(iter(sentences)))
            if value in sentences:
                said.setdefault(sentences[value], []).append(env if stem == env else f"{stem}_*")
    if len(said) < 2:
        return list(said)
    return [f"{remark[:-1]} ({', '.join(dict.fromkeys(envs))})." for remark, envs in said.items()]


def report_text(scale: str, *figures: str) -> str:
    """Everything in the configuration that a report depends on besides what its figures do, and the page it is put into."""
    page = TEMPLATES[0].with_name("report.html")
    categories = {figure: figure_settings(scale, figure).category for figure in figures}
    return canonical({"figures": categories, "template": digest(page.read_text(encoding="utf-8"))})


def claims_text(scale: str, *figures: str) -> str:
    """The claims that figures show at a scale, with what they are judged by: seeds, and smoothing, ends and points of curves."""
    found = []
    for claim in claims_of(scale, figures):
        drawn = figure_settings(scale, claim.figure)
        curves = [drawn.options.get(name) for name in ("window", "ends", "points")]
        found.append([claim.model_dump(mode="json"), list(drawn.seeds), *curves])
    return canonical({"claims": found})


def evaluates_while_training(method: Mapping[str, Any]) -> bool:
    optimisation = section(method, "hyperparameters", "optimisation")
    return method.get("data") == "online" or bool(optimisation.get("evaluate_every"))


# ----------------------------------------------------------------------------------------- the code of each stage
# Names of modules; the fingerprint follows what they import (recollect.artifacts.fingerprint). No stage's own file is
# among them: what changes a result lies in the papers' rooms, in common, in worlds and in evaluation.


def generate_modules(scale: str, env: str) -> list[str]:
    """What makes histories: the source of them, and the world that it plays."""
    content = environment_mapping(scale, env)
    algorithm = section(content, "source").get("algorithm", "ppo")
    where = f"{environment_path(env)}: source.algorithm"
    return [*world_of(scale, env), module_of("source", algorithm, where=where)]


def train_modules(scale: str, env: str, method: str) -> list[str]:
    """What trains: the method, its memory's embedder, its world, and what judges it where it is judged while it learns."""
    modules = _playing(scale, env, method)
    if evaluates_while_training(method_mapping(scale, env, method)):
        modules += _evaluators(scale, env)
    return modules


def evaluate_modules(scale: str, env: str, method: str) -> list[str]:
    return [*_playing(scale, env, method), *_evaluators(scale, env), "recollect.evaluation.score_table"]


def _playing(scale: str, env: str, method: str) -> list[str]:
    found = [*world_of(scale, env), algorithm_of(scale, env, method), *embedder_network(scale, env, method)]
    return [*found, *own_parts(scale, env, method)]


def algorithm_of(scale: str, env: str, method: str) -> str:
    return module_of("method", str(method_mapping(scale, env, method)["algorithm"]), where=method_path(method))


def world_of(scale: str, env: str) -> list[str]:
    content = environment_mapping(scale, env)
    modules = [module_of("world", str(content.get("world")), where=f"environment {env}: world")]
    # The world `gymnasium` imports by name what registers an environment. Of own code that is followed, too.
    package = str(section(content, "options").get("package") or "")
    if package.partition(".")[0] in roots():
        modules.append(package)
    return modules


def image_encoder_module(scale: str, env: str) -> list[str]:
    images = environment_mapping(scale, env).get("images")
    where = f"environment {env}: images.encoder"
    return [] if images is None else [module_of("image encoder", images.get("encoder", "impala"), where=where)]


def embedder_network(scale: str, env: str, method: str) -> list[str]:
    """The network that a method's memory embeds with, where that is another method's."""
    kind, name, _ = embedder_of(scale, env, method)
    if kind != "method":
        return []
    algorithm = str(method_mapping(scale, env, name)["algorithm"])
    return [module_of("network", algorithm, where=method_path(name))]


def own_parts(scale: str, env: str, method: str) -> list[str]:
    """The user's own modules that hyperparameters name, e.g. as `sequence.kind`; of a name that is none, nothing."""
    mapping = method_mapping(scale, env, method)
    found: list[str] = []
    for kind, (*_, setting) in KINDS.items():
        part, _, key = setting.partition(".")
        name = section(mapping, "hyperparameters", part).get(key)
        if isinstance(name, str):
            found += known(kind, name).values()
    return found


def _evaluators(scale: str, env: str) -> list[str]:
    """What plays an environment: its protocol, and the encoder of its images."""
    evaluation = section(environment_mapping(scale, env), "evaluation")
    return [f"recollect.evaluation.{evaluation.get('protocol', 'in_context')}", *image_encoder_module(scale, env)]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe(settings: str, code: str, inputs: Iterable[Path], device: str = "cpu") -> dict[str, Any]:
    """The provenance that a manifest holds. Inputs are verified here, before any work.

    Raises:
        UserError: an input is missing, truncated, corrupted, or not the one that it should be.
    """
    manifests = {path: verify(path, input_from=identity.how_to_make(path)) for path in inputs}
    identity.check(manifests)
    hashes = {path.as_posix(): manifest["sha256"] for path, manifest in manifests.items()}
    return {"settings": settings, "code": code, "inputs": hashes, "device": device}


def code_of(made: Mapping[str, Any]) -> str | None:
    """The fingerprint of the code that a file was made with, by its provenance: a figure's has its own name. None: it says none."""
    return made.get("code") or made.get("code_fingerprint")


def devices_behind(files: Iterable[Path]) -> list[str]:
    """On which devices files were made, and what they were made of, as far as that is here: cpu, cuda or both."""
    found, seen, waiting = set[str](), set[Path](), list(files)
    while waiting:
        path = waiting.pop()
        if path in seen or not manifest_path(path).is_file():
            continue
        seen.add(path)
        made = read_manifest(path)["provenance"]
        found.add(str(made.get("device", "cpu")))
        waiting += map(Path, made.get("inputs", ()))
    return sorted(found)
