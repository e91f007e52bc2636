"""check: the whole configuration, before anything runs.

The Snakefile calls `check_once` while it is parsed. Checking imports every algorithm (seconds), so it is done only when
the configuration or the code differs from what was last found good.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from recollect.artifacts.sealed import sealing
from recollect.settings.catalogue import roots
from recollect.settings.errors import UserError, nearest
from recollect.settings.loading import config_folders, config_path, entries_of, validated
from recollect.settings.resolve import (
    algorithm_module,
    figure_settings,
    language_model,
    names,
    prompt_templates,
    resolve,
    scale_settings,
    token_vocabulary,
    vision_language_model,
)
from recollect.stages.inputs import generate_inputs

STAMP = Path(".snakemake") / "recollect-config-checked"


def check() -> str:
    """Resolve every figure's runs at every scale.

    Raises:
        UserError: the first thing that is wrong.
    """
    runs: set[tuple[str, str, str]] = set()
    for scale in names("scales"):
        overrides = scale_settings(scale)
        for group in ("environments", "methods", "figures"):
            for name in getattr(overrides, group):
                if name not in names(group) and not (group == "environments" and ("_" in name or "." in name)):
                    raise UserError(
                        f"the scale overrides '{name}', which is not among the {group}",
                        where=config_path("scales", scale),
                        do=nearest(name, names(group)),
                    )
        for figure in names("figures"):
            chosen = figure_settings(scale, figure)
            runs |= {(scale, env, method) for env in chosen.environments for method in chosen.methods}
    for scale, env, method in sorted(runs):
        settings = resolve(scale, env, method, seed=0)
        source = settings.environment.source
        if settings.method.data == "histories" and source is not None:
            where = f"config/environments/{env}.yaml: source.hyperparameters (scale {scale})"
            module = algorithm_module(source.algorithm, where=where, does="source")
            validated(module.Hyperparameters, source.hyperparameters, where=where)
            generate_inputs(scale, env)
    check_vision()
    return f"the configuration is in order: {len(runs)} combinations of scale, environment and method"


def check_vision() -> None:
    """Check every vision-language model, at every scale, and every token vocabulary.

    Raises:
        UserError: the first thing that is wrong.
    """
    from recollect.helm import dual_encoder  # imports torch, which `check_once` mostly does without

    models = entries_of("vision_language_models")
    for scale in names("scales"):
        for name in (*models, *scale_settings(scale).vision_language_models):
            trained = vision_language_model(name, scale)
            where = f"{models[name][1]}: {name}.hyperparameters (scale {scale})"
            validated(dual_encoder.Hyperparameters, trained.hyperparameters, where=where)
    for name in entries_of("token_vocabularies", "vocabularies"):
        chosen = token_vocabulary(name)
        prompt_templates(chosen.templates)
        vision_language_model(chosen.vision_language_model)
        language_model(chosen.language_model)


def state() -> str:
    """A hash of all configuration files and of all code."""
    total = hashlib.sha256()
    files = [path for folder in config_folders() for path in folder.rglob("*.yaml")]
    files += [path for package, folder in roots().items() for path in (folder / package).rglob("*.py")]
    for path in sorted(files):
        total.update(path.as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def check_once() -> None:
    """Check unless this very configuration and code were already found good here."""
    current = state()
    if STAMP.is_file() and STAMP.read_text() == current:
        return
    check()
    STAMP.parent.mkdir(exist_ok=True)
    with sealing(STAMP, kind="configuration checked") as temporary:
        temporary.write_text(current)
