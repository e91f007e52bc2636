"""What takes the place of a published part in the runs of a figure, in words: the figure says it below its panels.

A run at a small scale may read with another language model than the published method, see with other eyes, or pool and
scale what they give in another way. Found by comparing settings with those of scale `paper`; nothing is listed by hand.
Histories of agents that never learned, and image encoders that never did, are named at every scale: sources of histories
declare it (`STAND_INS`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from recollect.settings.catalogue import declaration
from recollect.settings.errors import UserError
from recollect.settings.resolve import (
    base_method,
    environment_mapping,
    figure_settings,
    language_model,
    method_mapping,
    scale_settings,
    section,
)
from recollect.stages.inputs import learns_from_histories
from recollect.stages.provenance import embedder_of, sees_with

PUBLISHED_SCALE = "paper"


def stand_ins(scale: str, figure: str) -> tuple[str, ...]:
    """One sentence for each group of methods of a figure with the same stand-ins; none where numbers mean nothing."""
    if scale_settings(scale).wiring_test:
        return ()
    chosen = figure_settings(scale, figure)
    methods_of: dict[str, list[str]] = {}
    for env, method in product(chosen.environments, chosen.methods):
        for what in stand_ins_of(scale, env, method):
            methods = methods_of.setdefault(what, [])
            if method not in methods:
                methods.append(method)
    by_methods: dict[tuple[str, ...], list[str]] = {}
    for what, methods in methods_of.items():
        by_methods.setdefault(tuple(methods), []).append(what)
    sentences = []
    for group, found in by_methods.items():
        names = _names(scale, chosen.environments[0], group)
        sentences.append(f"Not as published in {names}: {'; '.join(found)}.")
    return tuple(sentences)


def stand_ins_of(scale: str, env: str, method: str) -> list[str]:
    """What differs from scale `paper` in the frozen models of one run, and in how they are read; and what it learns from."""
    found = _data(scale, env, method)
    if scale == PUBLISHED_SCALE:
        return found
    ours = _reading(scale, env, method)
    if not any(ours.values()):
        return found
    theirs = _published(env, method)
    if ours["language model"] != theirs["language model"]:
        name = ours["language model"]
        pooling = ours["pooling"] if name and language_model(name).kind == "encoder" else None
        pooled = f" ({pooling} of its states)" if pooling else ""
        found.append(f"{name}{pooled} reads in place of {theirs['language model']}")
    if ours["layers"] != theirs["layers"]:
        found.append(
            {None: "all its layers read", 1: "only its first layer reads"}.get(
                ours["layers"], f"only its first {ours['layers']} layers read"
            )
        )
    if ours["eyes"] != theirs["eyes"]:
        found.append(f"{ours['eyes']} sees in place of {theirs['eyes']}")
    if ours["words"] != theirs["words"]:
        found.append(f"words are the vocabulary '{ours['words']}' in place of '{theirs['words']}'")
    if ours["history scale"] != theirs["history scale"]:
        times = "" if ours["history scale"] == 1 else f", times {ours['history scale']:g}"
        found.append(f"history vectors are standardised{times}")
    if ours["statistics"] != theirs["statistics"]:
        found.append(f"features have {ours['statistics']} statistics in place of {theirs['statistics']}")
    return found


def _data(scale: str, env: str, method: str) -> list[str]:
    """What stands in for the published source of a run's histories, and for the encoder of its images."""
    if not learns_from_histories(scale, env, method):
        return []
    content = environment_mapping(scale, env)
    title, source, images = content.get("title", env), section(content, "source"), content.get("images")
    words = declaration("source", str(source.get("algorithm", "ppo")), "STAND_INS") or {}
    policy = section(source, "hyperparameters").get("policy", "random")
    found = [f"the histories of {title} are those of {words[policy]}"] if policy in words else []
    if images is not None and images.get("weights") is None:
        found.append(f"a random network, which never learned, encodes the images of {title}")
    return found


def _published(env: str, method: str) -> dict[str, Any]:
    """The same of the published run; of a variant that scale `paper` does not have, of what it is a variant of."""
    try:
        return _reading(PUBLISHED_SCALE, env, method)
    except UserError:
        return _reading(PUBLISHED_SCALE, env, base_method(method))


def _reading(scale: str, env: str, method: str) -> dict[str, Any]:
    """What a run reads, sees and scales with; None where it has no such part."""
    mapping = method_mapping(scale, env, method)
    chosen = section(mapping, "hyperparameters")
    memory = section(mapping, "memory")
    kind, embedder, _ = embedder_of(scale, env, method)
    reads = chosen.get("language_model") or (embedder if kind == "lm" else None)
    eyes, words = sees_with(chosen)
    return {
        "language model": reads,
        "pooling": chosen.get("pooling"),
        "layers": (chosen if chosen.get("language_model") else memory).get("layers") if reads else None,
        "eyes": eyes,
        "words": words,
        "history scale": chosen.get("history_scale"),
        "statistics": chosen.get("statistics") if eyes else None,
    }


def _names(scale: str, env: str, methods: Sequence[str]) -> str:
    """Titles, as ``A, B and C``, or ``A; B, 2 layers; C``; a method with variants of it is ``A and variants``."""
    titles = []
    for method in methods:
        base = base_method(method)
        title = str(method_mapping(scale, env, method).get("title", method))
        if method != base and base in methods:
            continue
        if any(other.startswith(f"{method}.") for other in methods):
            title += " and variants"
        titles.append(title)
    if any("," in title for title in titles):
        return "; ".join(titles)
    return " and ".join([", ".join(titles[:-1]), titles[-1]] if len(titles) > 1 else titles)
