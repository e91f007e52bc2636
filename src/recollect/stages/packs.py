"""packs: how many seeds of one method a job takes, by the forecast, at scales of large runs.

It trains them one after the other, or together, as an ensemble; then all that the same figures want are one pack. At
scales of small runs only ensembles are packs, and each holds all seeds that any figure wants.

Thousands of runs are minutes long and thousands take a day; which is which stands in no file, so it is forecast, for
all runs of all figures at once. That imports every algorithm (seconds), so it is done only when the configuration or
the code differs from what was last forecast here. What was measured is not asked: the packs of a workflow that is half
done stay what they were.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import chain, pairwise
from pathlib import Path

from recollect.settings.layers import scale_settings
from recollect.settings.resolve import environment_mapping, figure_reads, names
from recollect.stages.check import kept
from recollect.stages.inputs import figure_runs, is_trained, learns_from_histories, untrained_methods
from recollect.stages.paths import WILDCARDS
from recollect.stages.provenance import digest
from recollect.stages.selection import JOB_HOURS, default_selection
from recollect.stages.stage import Job, is_ensemble, is_large
from recollect.stages.world_steps import PLAYED_BY_OTHERS

PACK_HOURS = 20  # of a job's hours that a pack takes by the forecast, which may be wrong

NOTHING = r"(?!)"  # a regular expression that matches nothing
Seeds = tuple[int, ...]
Pair = tuple[str, str]
"""(env, method)"""


def share_of_limits(job_hours: float) -> float:
    """What is left of all limits where a job may take so many hours, at most 1."""
    return min(1.0, job_hours / JOB_HOURS)


def fitting(
    scale: str, env: str, method: str, job_hours: float = JOB_HOURS, hours: Mapping[str, float] | None = None
) -> int:
    """How many runs, trained and scored, fit into one job of so many hours; 1 for what no figure is about."""
    limit = PACK_HOURS * share_of_limits(job_hours)
    known = hours_of(scale) if hours is None else hours
    return max(1, int(limit / known.get(f"{env} {method}", limit)))


def packs(
    scale: str, job_hours: float = JOB_HOURS, most: int | None = None, hours: Mapping[str, float] | None = None
) -> dict[Seeds, list[Pair]]:
    """Seeds that share a job -> the runs that they do so for; at scales of small runs ensembles only.

    A function of the configuration alone, whatever is asked for, so that a job stays the same job. Large runs share one
    only where the same figures want them: who asks for one figure gets no other's seeds.

    Args:
        job_hours: of the longest job.
        most: seeds in one job.
        hours: as `hours_of` gives them, where only some runs are asked about; others go alone.
    """
    found: dict[Seeds, list[Pair]] = {}
    if most == 1 or not (is_large(scale) or scale_settings(scale).ensembles):
        return found
    for pair, seeds_of_figures in _seeds(scale).items():
        if not is_large(scale):  # a seed more of an ensemble of small networks costs little
            seeds_of_figures = [tuple(sorted(chain(*seeds_of_figures)))] if is_ensemble(scale, pair[1]) else []
        for seeds in seeds_of_figures:
            # All seeds of an ensemble are one pack: they are trained in one process, however long they take together.
            fit = len(seeds) if is_ensemble(scale, pair[1]) else fitting(scale, *pair, job_hours, hours)
            size = min(fit, most or len(seeds))
            for pack in _evenly(seeds, size):
                if len(pack) > 1:
                    found.setdefault(pack, []).append(pair)
    return found


def side_by_side(scale: str, env: str, method: str, most: int) -> int:
    """How many of a pack's seeds are at work at once; `most`: as many as may.

    What learns from histories fills a GPU with one, a small run a core.
    """
    return 1 if not is_large(scale) or learns_from_histories(scale, env, method) else most


def runs_in_ram(scale: str, env: str, method: str, most: int, seeds: int) -> int:
    """How many times the RAM of one run a pack of so many seeds needs.

    Each run at work has its own. An ensemble is one process, and needs that of one run, but for worlds that other processes play.

    Args:
        most: runs that may be at work at once.
    """
    if not is_ensemble(scale, method):
        return side_by_side(scale, env, method, min(most, seeds))
    of_one = PLAYED_BY_OTHERS.get(environment_mapping(scale, env)["world"], seeds)
    return -(-seeds // of_one)


def _seeds(scale: str) -> dict[Pair, list[Seeds]]:
    """The seeds of each trained run, those apart that different figures want."""
    wanted: dict[Pair, dict[int, list[str]]] = {}  # run -> seed -> figures
    for figure in names("figures"):
        if figure_reads(scale, figure) != "speeds":
            for env, method, seed in figure_runs(scale, figure):
                wanted.setdefault((env, method), {}).setdefault(seed, []).append(figure)
    found: dict[Pair, list[Seeds]] = {}
    for pair, figures_of in wanted.items():
        if not is_trained(scale, *pair):
            continue
        together: dict[tuple[str, ...], Seeds] = {}  # figures -> the seeds that they want
        for seed in sorted(figures_of):
            figures = tuple(figures_of[seed])
            together[figures] = (*together.get(figures, ()), seed)
        found[pair] = list(together.values())
    return found


def _evenly(seeds: Seeds, size: int) -> list[Seeds]:
    """As few packs as hold at most so many seeds each, of nearly one size."""
    count = -(-len(seeds) // size)
    cuts = [round(place * len(seeds) / count) for place in range(count + 1)]
    return [seeds[first:last] for first, last in pairwise(cuts)]


def pattern(pairs: Iterable[Pair]) -> str:
    """A regular expression for the `env` of a path in which `/method/` follows: it matches these pairs only."""
    methods, envs = defaultdict[str, list[str]](list), defaultdict[tuple[str, ...], list[str]](list)
    for env, method in pairs:
        methods[env].append(method)
    for env, listed in methods.items():
        envs[tuple(listed)].append(env)
    return "|".join(f"{one_of(alike)}(?=/{one_of(listed)}/)" for listed, alike in envs.items())


def one_of(texts: Iterable[str]) -> str:
    """A regular expression that matches these texts."""
    return f"(?:{'|'.join(map(re.escape, texts))})"


@cache
def hours_of(scale: str) -> dict[str, float]:
    """``env method`` -> hours of one seed, for the runs of all figures."""
    hours: dict[str, float] = kept(Path(f".snakemake/recollect-hours-{scale}.json"), "hours", lambda: forecast(scale))
    return hours


def forecast(scale: str) -> dict[str, float]:
    """The same, worked out anew."""
    from recollect.stages.estimating import Estimator  # imports torch
    from recollect.stages.plan import plan

    alone = Estimator({})
    return _hours(plan(scale, names("figures")).needs, lambda job: alone(job).seconds)


def _hours(jobs: Iterable[Job], seconds: Callable[[Job], float]) -> dict[str, float]:
    """``env method`` -> hours, of the runs among some jobs."""
    runs = {job._replace(seed="") for job in jobs if job.stage == "run"}
    return {f"{job.env} {job.method}": seconds(job) / 3600 for job in runs}


def sharing(scale: str, jobs: Iterable[Job], seconds: Callable[[Job], float]) -> dict[Job, tuple[Job, ...]]:
    """Each run that shares its job, by config/config.yaml -> all runs of that job, those that were not asked about included.

    Args:
        jobs: what is asked about.
        seconds: of a run alone, by the forecast of what nothing was measured for.
    """
    found: dict[Job, tuple[Job, ...]] = {}
    jobs, own = list(jobs), default_selection()
    for seeds, pairs in packs(scale, own.job_hours, own.seeds_together, _hours(jobs, seconds)).items():
        for env, method in pairs:
            whole = tuple(Job("run", scale, env, method, str(seed)) for seed in seeds)
            found |= dict.fromkeys(whole, whole)
    return {job: found[job] for job in jobs if job in found}


def rules(
    scales: Iterable[str], job_hours: float = JOB_HOURS, most: int | None = None
) -> dict[str, tuple[Seeds, dict[str, str]]]:
    """Name of a rule -> (seeds that it takes, what its wildcards must match); last the rule of runs that go alone.

    The last one leaves out the runs of the others: else Snakemake would make a job for each of them, too, and then choose.
    """
    found: dict[str, tuple[Seeds, dict[str, str]]] = {}
    elsewhere: list[str] = []
    for scale in scales:
        for seeds, pairs in packs(scale, job_hours, most).items():
            named = name(scale, seeds)
            if named in found:  # other seeds, as many and from the same one
                named += f"_{digest(f'{scale} {seeds}')[:8]}"
            found[named] = (seeds, {"scale": re.escape(scale), "env": pattern(pairs)})
            seed = one_of(map(str, seeds))
            elsewhere.append(f"{re.escape(scale)}(?=/runs/(?:{pattern(pairs)})/[^/]+/seed_{seed}/)")
    alone = f"(?!(?:{'|'.join(elsewhere)})){trained()}" if elsewhere else trained()
    return {**found, "run": ((), {"scale": alone})}


def name(scale: str, seeds: Seeds) -> str:
    return f"run_{scale.replace('-', '_')}_{len(seeds)}_seeds_from_{seeds[0]}"


@cache
def untrained() -> str:
    """A regular expression for the `scale` of a run's path that matches runs of variants which are not trained."""
    scales_of = defaultdict[tuple[str, ...], list[str]](list)
    for scale in names("scales"):
        scales_of[tuple(untrained_methods(scale))].append(scale)
    found = [f"{one_of(scales)}(?=/runs/[^/]+/{one_of(methods)}/)" for methods, scales in scales_of.items() if methods]
    return "|".join(found) or NOTHING


def trained() -> str:
    """The same for all other runs."""
    return rf"(?!(?:{untrained()})){WILDCARDS['scale']}"
