"""Which jobs a figure takes: the graph that Snakemake sees, walked in plain Python from the same input functions.

Snakemake stays the one that runs it; this is for questions about it (`recollect forecast`, `recollect why`). Nothing here
imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from recollect.settings.errors import UserError, nearest
from recollect.settings.resolve import figure_settings, names, scale_settings
from recollect.stages import dependencies, inputs, paths, provenance


class Job(NamedTuple):
    """One job: its rule, and the names that the rule's wildcards stand for."""

    rule: str
    scale: str
    env: str = ""
    method: str = ""
    seed: str = ""

    def __str__(self) -> str:
        return " ".join(word for word in (self.rule, *self[2:]) if word)


def job_of(rule: str, wildcards: dict[str, str], scale: str = "") -> Job:
    """The job of a rule with such wildcards. What a rule makes one of stands under `env`: a figure, a model."""
    only = next((wildcards[name] for name in ("figure", "model", "dataset", "vocabulary") if name in wildcards), "")
    found = {name: str(wildcards.get(name, "")) for name in ("env", "method", "seed")}
    return Job(rule, str(wildcards.get("scale", scale)), **{**found, **({"env": str(only)} if only else {})})


_NAME, _ENV, _METHOD = r"[\w-]+", r"[\w-]+(?:\.[\w-]+)*", r"[\w-]+(?:\.[\w.,=+\[\]-]+)?"
_IN_DATA = rf"data/(?P<scale>{_NAME})"
_RUN = rf"(?P<env>{_ENV})/(?P<method>{_METHOD})/seed_(?P<seed>\d+)"
_MAKERS: tuple[tuple[str, str], ...] = (
    ("fetch", r"data/models/(?P<model>[\w.-]+)/model\.safetensors"),
    ("fetch_data", rf"data/published/(?P<dataset>{_NAME})/index\.json"),
    ("train_vision_language", rf"{_IN_DATA}/models/(?P<model>[\w.-]+)/model\.safetensors"),
    ("embed_vocabulary", rf"{_IN_DATA}/token_vocabularies/(?P<vocabulary>{_NAME})\.safetensors"),
    ("generate", rf"{_IN_DATA}/(?P<env>{_ENV})/histories\.safetensors"),
    ("embed_images", rf"{_IN_DATA}/(?P<env>{_ENV})/encoded_histories\.safetensors"),
    ("embed", rf"{_IN_DATA}/(?P<env>{_ENV})/(?P<method>{_METHOD})/embeddings\.safetensors"),
    ("index", rf"{_IN_DATA}/(?P<env>{_ENV})/(?P<method>{_METHOD})/memory(\.faiss|_rows\.safetensors)"),
    ("train", rf"results/(?P<scale>{_NAME})/runs/{_RUN}/(policy\.safetensors|train\.parquet)"),
    ("evaluate", rf"results/(?P<scale>{_NAME})/runs/{_RUN}/scores\.parquet"),
    ("inspect", rf"results/(?P<scale>{_NAME})/runs/{_RUN}/trace\.safetensors"),
    ("measure", rf"results/(?P<scale>{_NAME})/speed/{_RUN}\.parquet"),
    ("figure", rf"results/(?P<scale>{_NAME})/figures/(?P<figure>{_NAME})\.(pdf|png|csv|json)"),
)


def maker(path: Path, scale: str) -> Job | None:
    """The job that makes a file; None for a file that no rule makes. What no scale owns is counted at `scale`."""
    for rule, pattern in _MAKERS:
        found = re.fullmatch(pattern, path.as_posix())
        if found:
            return job_of(rule, found.groupdict(), scale)
    return None


def reads(job: Job) -> list[Path]:
    """The artifacts that a job reads."""
    of = (job.scale, job.env, job.method)
    run = (*of[:2], inputs.policy_method(*of), job.seed) if job.rule in ("evaluate", "inspect") else (*of, job.seed)
    listed: dict[str, Callable[[], Iterable[Path]]] = {
        "generate": lambda: inputs.generate_inputs(*of[:2]).values(),
        "embed_images": lambda: inputs.embed_images_inputs(*of[:2]).values(),
        "embed_vocabulary": lambda: inputs.vocabulary_inputs(*of[:2]).values(),
        "embed": lambda: dependencies.embed_inputs(*of).values(),
        "index": lambda: [paths.embeddings(*of)],
        "train": lambda: inputs.train_inputs(*of).values(),
        "measure": lambda: inputs.train_inputs(*of).values(),
        "evaluate": lambda: [
            paths.train_table(*run), paths.policy(*run), *dependencies.evaluate_models(*of).values()
        ],
        "inspect": lambda: [paths.policy(*run), *dependencies.evaluate_models(*of).values()],
        "figure": lambda: inputs.figure_inputs(*of[:2]),
    }  # fmt: skip
    return list(listed.get(job.rule, list)())


def makes(job: Job) -> list[Path]:
    """The artifacts that a job makes, without their manifests."""
    of, run = (job.scale, job.env, job.method), (job.scale, job.env, job.method, job.seed)
    listed: dict[str, Callable[[], list[Path]]] = {
        "fetch": lambda: [paths.model(job.env)],
        "fetch_data": lambda: [paths.published(job.env)],
        "train_vision_language": lambda: [paths.trained_model(*of[:2]), paths.model_accuracy(*of[:2])],
        "embed_vocabulary": lambda: [paths.token_vocabulary(*of[:2])],
        "generate": lambda: [paths.histories(*of[:2])],
        "embed_images": lambda: [paths.encoded_histories(*of[:2])],
        "embed": lambda: [paths.embeddings(*of)],
        "index": lambda: [paths.index(*of), paths.rows(*of)],
        "train": lambda: [paths.policy(*run), paths.train_table(*run)],
        "evaluate": lambda: [paths.scores(*run)],
        "inspect": lambda: [paths.trace(*run)],
        "measure": lambda: [paths.speed(*run)],
        "figure": lambda: [paths.figure(job.scale, job.env, suffix) for suffix in (".pdf", ".png", ".csv", ".json")],
    }
    return listed[job.rule]()


class Plan(NamedTuple):
    """The jobs of some figures, each once, and what each waits for; every job stands behind those."""

    needs: dict[Job, tuple[Job, ...]]
    figures: dict[str, tuple[Job, ...]]  # figure -> all the jobs that it takes


def plan(scale: str, figures: Iterable[str]) -> Plan:
    """Walk from figures to everything that they need.

    Raises:
        UserError: an unknown scale or figure.
    """
    scale_settings(scale)
    needs: dict[Job, tuple[Job, ...]] = {}
    known: dict[Job, tuple[Job, ...]] = {}

    def direct(job: Job) -> tuple[Job, ...]:
        """What a job waits for. Asked once for all seeds: only the run that is played has the job's own."""
        shape = job._replace(seed="0") if job.seed else job
        if shape not in known:
            made = (maker(path, scale) for path in reads(shape))
            known[shape] = tuple(dict.fromkeys(other for other in made if other is not None))
        if job.rule not in ("evaluate", "inspect"):
            return known[shape]
        return tuple(other._replace(seed=job.seed) if other.rule == "train" else other for other in known[shape])

    def visit(job: Job) -> None:
        if job in needs:
            return
        found = direct(job)
        for other in found:
            visit(other)
        needs[job] = found

    taken: dict[str, tuple[Job, ...]] = {}
    for figure in dict.fromkeys(figures):
        if figure not in names("figures"):
            do = nearest(figure, names("figures"))
            raise UserError(f"no figure named '{figure}'", where="config/figures", do=do)
        figure_settings(scale, figure)
        last = Job("figure", scale, figure)
        visit(last)
        taken[figure] = tuple(dict.fromkeys(_below(last, needs)))
    return Plan(needs, taken)


def _below(job: Job, needs: dict[Job, tuple[Job, ...]]) -> list[Job]:
    seen: dict[Job, None] = {}
    waiting = [job]
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen[one] = None
            waiting.extend(needs[one])
    return list(seen)


# ------------------------------------------------------------------------------------------- what a job is made from

_TEXTS: dict[str, Callable[..., str]] = {
    "generate": provenance.generate_settings,
    "embed_images": provenance.image_settings,
    "train_vision_language": provenance.vision_language_settings,
    "embed_vocabulary": provenance.vocabulary_settings,
    "embed": provenance.memory_settings,
    "index": provenance.memory_settings,
    "train": provenance.train_settings,
    "evaluate": provenance.evaluate_settings,
    "inspect": provenance.evaluate_settings,
    "measure": provenance.evaluate_settings,
    "page": provenance.page_text,
    "figure": provenance.figure_text,
}


def settings_text(job: Job) -> str:
    """What of the configuration a job depends on, as it stands in its manifest; empty for what is fetched."""
    return _settings_text(job._replace(seed="")) if job.rule in _TEXTS else ""


@cache
def _settings_text(job: Job) -> str:
    return _TEXTS[job.rule](*(name for name in (job.scale, job.env, job.method) if name))
