"""What is made when no target is named, and whether the names in targets are known."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from recollect.helm.settings import fetched_model, token_vocabulary, trained_model
from recollect.settings.catalogue import PAPERS
from recollect.settings.claims import claims_of
from recollect.settings.errors import UserError, nearest, shown
from recollect.settings.loading import config_folder, read_yaml, validated
from recollect.settings.resolve import (
    environment_mapping,
    figure_settings,
    method_mapping,
    method_path,
    names,
    published_data,
    scale_settings,
    section,
)
from recollect.settings.schema import LARGEST_SEED, Frozen
from recollect.stages import paths
from recollect.stages.embed_images import not_encoded
from recollect.stages.generate import no_source
from recollect.stages.pairs import check_figure, check_pair, check_splits, lacking_splits
from recollect.stages.paths import Place

JOB_HOURS = 28  # of a run at a large scale: 24 of training and four for its scores


class JobResources(Frozen):
    """Resources of Snakemake that only a cluster knows, for jobs of either kind."""

    cpu: dict[str, str | int] = Field(default_factory=dict, description="Of jobs that need no GPU.")
    gpu: dict[str, str | int] = Field(default_factory=dict, description="Of jobs that need one.")


class Selection(Frozen):
    """What `snakemake` makes when no target is named: config/config.yaml, and `--config` on the command line."""

    scale: str = Field(description="One of config/scales.")
    figures: tuple[str, ...] = Field(
        description="Some of config/figures, one of `sets`, a paper (radt, memory_rl, amago, helm), or `all`."
    )
    sets: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="Figures that are asked for by one name."
    )
    hours: float | None = Field(
        100,
        gt=0,
        description="Snakemake begins nothing that takes longer on this machine, by the forecast; null: it does.",
    )
    job_hours: float = Field(JOB_HOURS, ge=1, description="Longest job at a large scale; docs/cluster.md.")
    seeds_together: int | None = Field(
        None, ge=1, description="At most so many seeds in one job; 1: each for itself; null: as many as fit."
    )
    seeds_at_a_time: int = Field(
        4, ge=1, description="How many seeds of one job train side by side on its GPU or cores; docs/cluster.md."
    )
    jobs: JobResources = Field(
        default_factory=JobResources, description="What a job asks for of a cluster: partition, kind of GPU."
    )
    container: str | None = Field(
        None,
        description="With `--sdm apptainer`: the image in which jobs run, a file or docker://...; docs/cluster.md.",
    )
    packages: Literal["base", "cpu", "gpu"] = Field(
        "base", description="With `--sdm conda`: envs/cpu.yaml or envs/gpu.yaml in place of base.yaml."
    )

    @model_validator(mode="before")
    @classmethod
    def _as_typed(cls, values: Any) -> Any:
        """One name alone, and the word null, as `--config figures=... hours=null` gives them."""
        values = {key: None if value == "null" else value for key, value in values.items()}
        chosen = values.get("figures")
        return {**values, "figures": [chosen]} if isinstance(chosen, str) else values

    def sets_at(self, scale: str) -> dict[str, tuple[str, ...]]:
        """`sets`, as a scale has them that is not sized for all figures of a set."""
        return {**self.sets, **scale_settings(scale).sets}

    def figures_at(self, scale: str | None = None, wanted: Iterable[str] = ()) -> tuple[str, ...]:
        """The names of the figures at a scale, each once; `wanted`: figures, sets, papers or `all`, in place of `figures`.

        Papers and `all` stand for those figures alone that the scale can draw (`left_out`).

        Raises:
            UserError: there is no such scale, figure, set or paper.
        """
        scale = scale or self.scale
        sets = self.sets_at(scale)
        return tuple(dict.fromkeys(figure for name in wanted or self.figures for figure in _of_name(name, sets, scale)))

    def left_out(self) -> tuple[str, ...]:
        """Figures of the named papers, or of `all`, that show tasks which the scale does not evaluate."""
        sets, drawn = self.sets_at(self.scale), self.figures_at()
        whole = (figure for name in self.figures if name not in sets for figure in _of_paper(name))
        return tuple(dict.fromkeys(figure for figure in whole if figure not in drawn))


def selection(config: Mapping[str, Any]) -> Selection:
    """The checked selection.

    Raises:
        UserError: an unknown key, scale or figure; the message names the nearest known one.
    """
    where = f"{config_folder() / 'config.yaml'} or --config"
    chosen = validated(Selection, config, where=where)
    for figure in itertools.chain(chosen.figures_at(), *chosen.sets.values()):
        figure_settings(chosen.scale, figure)
    if not chosen.figures:
        do = "name some: figures, one of `sets`, a paper or `all`"
        raise UserError("no figure is chosen, so nothing would be made", where=where, do=do)
    return chosen


def default_config() -> dict[str, Any]:
    return read_yaml(config_folder() / "config.yaml")


def default_selection() -> Selection:
    return selection(default_config())


def chosen_figures(scale: str, wanted: Iterable[str] | None) -> list[str]:
    """What a command names: figures, sets of config/config.yaml, papers, `all`, or nothing for what stands there.

    Raises:
        UserError: there is no such scale, figure, set or paper.
    """
    return list(default_selection().figures_at(scale, tuple(wanted or ())))


def snakemake_for(path: Path, scale: str, figures: Iterable[str]) -> str:
    """The command that makes what is about some figures, e.g. a report; without `--config` it is about the default ones."""
    default, figures = default_selection(), tuple(figures)
    if figures == default.figures_at(scale):
        return f"snakemake {path}"
    of_set = (name for name, listed in default.sets_at(scale).items() if listed == figures)
    chosen = figures[0] if len(figures) == 1 else next(of_set, f"'[{','.join(figures)}]'")
    return f"snakemake --config figures={chosen} -- {path}"


def _of_paper(name: str) -> list[str]:
    """All figures of a paper (`radt`, `helm`, ...), or of `all`; none for another name."""
    known = names("figures") if name == "all" or name in PAPERS else []
    return [figure for figure in known if name == "all" or figure.startswith(f"{name}_")]


def _of_name(name: str, sets: Mapping[str, Iterable[str]], scale: str) -> list[str]:
    """What `all`, a set, a paper or a figure stands for at a scale."""
    if name not in sets and (whole := _of_paper(name)):
        return [figure for figure in whole if not any(lacking_splits(scale, figure))]
    if name not in sets and name not in names("figures"):
        do = nearest(name, [*names("figures"), *sets, *PAPERS, "all"])
        if len(several := name.replace(",", " ").split()) > 1:
            do = f"write several as a list: `'figures=[{','.join(several)}]'` behind --config, or `figures: [{', '.join(several)}]`"
        what = f"no figure named '{name}', and no set or paper"
        raise UserError(what, where=f"{config_folder() / 'figures'}, `sets` of config.yaml", do=do)
    return list(sets.get(name, [name]))


_HISTORIES = (paths.histories, paths.task_histories)
_ENCODED = (paths.encoded_histories, paths.image_encoder, paths.image_encoder_log)
_MEMORY = (paths.embeddings, paths.index, paths.rows)


def check_targets(targets: Iterable[str]) -> None:
    """Check the names in targets that are paths of artifacts, and targets that are the name of a figure.

    Others are left to Snakemake: names of rules, other files.

    Raises:
        UserError: a target names a scale, environment, method, figure, model or data set that is not configured, or lies where
            nothing is made; a seed or task is no number as paths have it; or a figure is named without its file. An environment
            has no histories, or none with encoded images, or a method has no memory.
    """
    for word in targets:
        target = word.removeprefix("./").removesuffix(".manifest.json")
        for place in paths.PLACES:
            found = place.match(target)
            if found is not None:
                _check_names(found)
                if not Path(target).exists():
                    _check_made(place, found, word)
                if place is paths.figure_stem:
                    raise UserError(f"no rule makes '{word}'", where="the command line", do=f"ask for {target}.pdf")
                break
        else:
            if word in names("figures"):
                file = paths.FIGURE_FILES["pdf"](default_selection().scale, word)
                raise UserError(f"'{word}' is a figure and no file", where="the command line", do=f"ask for {file}")
            if target.startswith(("results/", "data/")) and not Path(target).exists():
                do = f"{nearest(target, [place.template for place in paths.PLACES])} All are listed in docs/formats.md"
                raise UserError(f"no rule makes '{word}'", where="the command line", do=do)


def check_rules(words: Iterable[str], rules: Iterable[str], targets: Callable[[list[str]], list[str]]) -> None:
    """Check that words of a command that are like the name of a rule are one, where they stand for a rule or a file.

    Args:
        targets: words of a command -> those that stand for one; is asked only where a word may be misspelt.

    Raises:
        UserError: there is no such rule and no such file.
    """
    words, known = list(words), [*rules, *names("figures")]
    plain = [word for word in words if not word.startswith("-") and not set(word) & set("/=.") and word not in known]
    misspelt = {word: said for word in plain if (said := nearest(word, known)).startswith("did you mean")}
    for word in targets(words) if misspelt else ():
        if word in misspelt and not Path(word).exists():
            raise UserError(f"no rule and no figure named '{word}'", where="the command line", do=misspelt[word])


def _check_names(found: Mapping[str, str]) -> None:
    scale, model = found.get("scale"), found.get("model")
    if scale is not None:
        scale_settings(scale)
    if model is not None and scale is None:
        fetched_model(model)
    elif model is not None:
        trained_model(model, str(scale))
    if "vocabulary" in found:
        token_vocabulary(found["vocabulary"])
    if "dataset" in found:
        published_data(found["dataset"])
    if scale is not None and "figure" in found:
        check_figure(scale, found["figure"])
        check_splits(scale, found["figure"])
        claims_of(scale, (found["figure"],))  # none is wrong
    if scale is not None and "env" in found:
        environment_mapping(scale, found["env"])
        if "method" in found:
            check_pair(scale, found["env"], found["method"])


def _check_made(place: Place, found: Mapping[str, str], word: str) -> None:
    """Check that a file has the name that its job gives it, and that there is such a job. Raises UserError: else."""
    for name in ("seed", "task"):
        number = int(found.get(name, "0"))
        if number > LARGEST_SEED:
            do = f"take a whole number from 0 to {LARGEST_SEED}"
            raise UserError(f"{found[name]} is no {name}", where=f"the command line: {word}", do=do)
        if str(number) != found.get(name, "0"):
            what = f"{name} {found[name]} is called {number} in paths, so no job makes this file"
            raise UserError(what, where=f"the command line: {word}", do=f"ask for {place.of({**found, name: number})}")
    if place not in (*_HISTORIES, *_ENCODED, *_MEMORY):
        return
    scale, env = found["scale"], found["env"]
    if not section(environment_mapping(scale, env), "source"):
        raise no_source(env)
    if place in _ENCODED and environment_mapping(scale, env).get("images") is None:
        raise not_encoded(env)
    if place in _MEMORY and method_mapping(scale, env, found["method"]).get("memory") is None:
        do = "add a `memory:` section (see config/methods/radt.yaml), or name a method that has one"
        what = f"'{found['method']}' has no memory to retrieve from"
        raise UserError(what, where=shown(method_path(found["method"])), do=do)
