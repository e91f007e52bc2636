"""check: the whole configuration, before anything runs.

The Snakefile calls `check_once` while it is parsed. Checking imports every algorithm (seconds), so it is done only when
the configuration or the code differs from what was last found good; where only a scale's file does, of that scale and of those
that extend it. (What config.yaml chooses is checked each time.) What is resolved is kept: Snakemake plans with these settings
and need not import an algorithm, nor torch, to know the defaults.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from recollect.artifacts.sealed import read_json, write_json
from recollect.helm.settings import (
    prompt_templates,
    resolved_vision_language_model,
    token_vocabulary,
    vision_language_model,
)
from recollect.settings.catalogue import CannotImport, roots
from recollect.settings.claims import claims_of
from recollect.settings.errors import UserError
from recollect.settings.layers import extended_scales, method_file
from recollect.settings.loading import config_folders, entries_of, nothing_here, read_yaml
from recollect.settings.resolve import (
    base_method,
    dumped,
    environment_settings,
    figure_settings,
    language_model,
    names,
    played_method,
    resolve,
    resolved_environment,
    scale_settings,
    with_options,
    with_source,
)
from recollect.settings.still import held_still, prepare
from recollect.settings.strict_yaml import readable
from recollect.stages.figure import references
from recollect.stages.inputs import generate_inputs
from recollect.stages.pairs import check_figure, check_names, check_pair, named_by
from recollect.stages.provenance import digest, embedder_of
from recollect.stages.settings import checked_figure

KEPT = Path(".snakemake") / "recollect-settings.json"
"""Resolved settings of each scale, and the state of configuration and code that they are of."""


@held_still()
def check() -> str:
    """Resolve every figure and its runs at every scale; the first thing that is wrong is a UserError."""
    if not names("scales"):
        raise nothing_here()
    resolve_all()
    for scale in names("scales"):
        for figure in names("figures"):
            checked_figure(scale, figure)
            check_figure(scale, figure)
            with named_by(scale, figure):
                references(figure_settings(scale, figure))
        claims_of(scale)
    for env in names("environments"):  # also where no figure shows it
        environment = environment_settings(names("scales")[0], env)
        with_options(environment)
        with suppress(CannotImport):
            with_source(names("scales")[0], environment)
    return f"the configuration is in order: {len(_runs(names('scales')))} combinations of scale, environment and method"


@held_still()
def resolve_all(scales: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
    """All that Snakemake plans with, each under the names that it belongs to: `"demo dark_room_10x10 radt"`.

    Args:
        scales: of these; None: of all.

    Runs that cannot be made here stop nothing that does not need them, so they are left out: whoever asks for one looks again.
    What it lacks, a package for one, may have been installed since.
    """
    scales = names("scales") if scales is None else scales
    _read_all(scales)
    settings: dict[str, dict[str, Any]] = {}
    drawn = _runs(scales)
    runs: set[tuple[str, str, str]] = set()
    for run in drawn:
        runs |= _with_those_read(*run)
    for run in sorted(runs):
        with suppress(CannotImport):
            settings |= _resolve_run(*run, known=settings)
    for scale, env, method in sorted(drawn):
        try:
            check_pair(scale, env, method)
        except UserError:
            settings.pop(f"{scale} {env} {method}", None)
    return settings | _resolve_vision(scales)


def _resolve_run(scale: str, env: str, method: str, known: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A run, and the environments whose histories it reads, as far as they are not `known`."""
    settled = resolve(scale, env, method, seed=0)
    settings = {f"{scale} {env} {method}": dumped(settled)}
    if settled.method.data == "histories":
        acting = getattr(settled.method.hyperparameters, "acting", None)
        for read in (env, getattr(acting, "demonstrations", None)):
            if read is not None and f"{scale} {read}" not in known:
                settings[f"{scale} {read}"] = resolved_environment(scale, read)
                generate_inputs(scale, read)
    return settings


def _read_all(scales: Sequence[str]) -> None:
    """Read every file: one that no run needs may hold a doubled key, or overrides for an environment that there is not."""
    for folder in config_folders():
        for path in sorted(folder.rglob("*.yaml")):
            read_yaml(path)
    for method in names("methods"):
        method_file(method)
    for scale in scales:
        for env in scale_settings(scale).environments:
            with suppress(CannotImport):
                resolved_environment(scale, env)


def _runs(scales: Sequence[str]) -> set[tuple[str, str, str]]:
    """(scale, environment, method) of the runs of all figures."""
    runs: set[tuple[str, str, str]] = set()
    for scale in scales:
        for figure in names("figures"):
            chosen = figure_settings(scale, figure)
            with named_by(scale, figure):
                check_names(scale, chosen)
            runs |= {(scale, env, method) for env in chosen.environments for method in chosen.methods}
    return runs


def _with_those_read(scale: str, env: str, method: str) -> set[tuple[str, str, str]]:
    """A run, and those whose policy it plays, whose memory it may share, and whose network embeds for it."""
    methods = {method, base_method(method), played_method(scale, env, method)}
    for reader in tuple(methods):
        kind, embedder, _ = embedder_of(scale, env, reader)
        if kind == "method":
            methods.add(embedder)
    return {(scale, env, name) for name in methods}


def _resolve_vision(scales: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Every vision-language model at these scales; every token vocabulary is checked as well."""
    settings: dict[str, dict[str, Any]] = {}
    models = entries_of("vision_language_models")
    for scale in scales:
        for name in (*models, *scale_settings(scale).vision_language_models):
            settings[f"{scale} model {name}"] = resolved_vision_language_model(scale, name)
    for name in entries_of("token_vocabularies", "vocabularies"):
        vocabulary = token_vocabulary(name)
        prompt_templates(vocabulary.templates)
        vision_language_model(vocabulary.vision_language_model, None)
        language_model(vocabulary.language_model)
    return settings


def state() -> str:
    """A hash of all configuration files and of all code."""
    return digest(f"{_common()} {_of_files('config')} {_of_scales(names('scales'))}")


def _common() -> str:
    """The same without the files of scales, and without config.yaml, which chooses figures and settles none of them."""
    total = hashlib.sha256()
    searched = [(folder, pattern) for folder in config_folders() for pattern in ("*.yaml", "*.csv")]
    searched += [(folder / package, "*.py") for package, folder in roots().items()]
    for folder, pattern in searched:
        # A copy elsewhere is the same configuration, so only the path inside the folder counts.
        total.update(pattern.encode())
        for path in sorted(folder.rglob(pattern)):
            inside = path.relative_to(folder).as_posix()
            if inside != "config.yaml" and not (pattern == "*.yaml" and inside.startswith("scales/")):
                total.update(inside.encode() + b"\0" + hashlib.sha256(readable(path)).digest())
    return total.hexdigest()


def _of_scales(scales: Sequence[str]) -> str:
    return _of_files(*(f"scales/{scale}" for scale in scales))


def _of_files(*files: str) -> str:
    """A hash of configuration files, named without their suffix, in whatever folder they are."""
    total = hashlib.sha256()
    for folder in config_folders():
        for path in (folder / f"{file}.yaml" for file in files):
            found = hashlib.sha256(readable(path)).digest() if path.is_file() else b""
            total.update(path.stem.encode() + b"\0" + found)
    return total.hexdigest()


def kept(path: Path, kind: str, make: Callable[[], Any]) -> Any:
    """What `make` gives of this very configuration and code, from a file where it was made here before and is whole."""
    current = state()
    made = _made_before(path, kind, current)
    if made is None:
        made = make()
        write_json(path, {"state": current, "made": made}, kind=kind, compact=True)
    return made


def _made_before(path: Path, kind: str, current: str) -> Any:
    """What was kept of such a state of configuration and code; None where nothing was, or it is damaged."""
    with suppress(UserError):
        known = read_json(path, kind=kind)
        return known["made"] if known["state"] == current else None
    return None


def check_once() -> None:
    """Check what was not yet found good here as configuration and code are now, and hand over what was resolved."""
    common = _common()
    good = _good(common)
    unchecked = [scale for scale in names("scales") if scale not in good]
    if unchecked:
        for scale in unchecked:
            chain = extended_scales(scale)
            good[scale] = {"scales": chain, "state": _of_scales(chain), "made": {}}
        for of, settings in resolve_all(unchecked).items():
            good[of.split()[0]]["made"][of] = settings
        for scale in unchecked:
            for figure in names("figures"):
                with suppress(CannotImport):
                    checked_figure(scale, figure)
        write_json(KEPT, {"state": common, "made": good}, kind="resolved settings", compact=True)
    _prepare(good)


def _good(common: str) -> dict[str, dict[str, Any]]:
    """Scale -> what was found good: the scales that it is made of, the state of their files, and its settings."""
    known = _made_before(KEPT, "resolved settings", common) or {}
    there = {scale: known[scale] for scale in names("scales") if scale in known}
    return {scale: part for scale, part in there.items() if _of_scales(part["scales"]) == part["state"]}


def _prepare(good: Mapping[str, Mapping[str, Any]]) -> None:
    prepare({of: settings for part in good.values() for of, settings in part["made"].items()})


def hand_over() -> None:
    """Hand over what Snakemake resolved of this very configuration and code; so a command need not import torch for defaults."""
    if good := _good(_common()):
        _prepare(good)
