"""Which jobs a figure takes: the graph that Snakemake sees, walked in plain Python from the same stages.

Snakemake stays the one that runs it; this is for questions about it (`recollect forecast`, `recollect why`, targets).
Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from recollect.artifacts.sealed import MANIFEST_SUFFIX, read_manifest
from recollect.settings.claims import claims_of
from recollect.settings.errors import UserError, nearest
from recollect.settings.resolve import names, scale_settings
from recollect.stages import paths
from recollect.stages.inputs import paged_runs
from recollect.stages.page import has_page
from recollect.stages.pairs import check_figure
from recollect.stages.provenance import digest
from recollect.stages.stage import Job, making
from recollect.stages.table import STAGES

_ANY_SEED = "0" * 20  # stands for the seed of a run in what is the same for all of its seeds


def maker(path: Path, scale: str) -> Job | None:
    """The job that makes a file; None for a file that none makes. What no scale owns is counted at `scale`."""
    for job in making(path, STAGES.values(), scale):
        stage = STAGES[job.stage]
        if stage.only(*job.names(stage.shared).values()):
            return job
    return None


def makers(files: Iterable[str], scale: str) -> list[Job]:
    """The jobs that make some files, each once; see `maker`."""
    found = (maker(Path(file), scale) for file in files if not file.endswith(MANIFEST_SUFFIX))
    return list(dict.fromkeys(job for job in found if job is not None))


def are_of_today(files: Iterable[Path], scale: str) -> bool:
    """Whether files are what their jobs would make today. What is not there, or is only fetched, counts as such.

    Claims and a report that were made by hand never do: which figures they are about, only their command knows.
    """
    return all(STAGES[job.stage].is_made(job) for job in _makers_of_those_there(files, scale))


def manifests_differ(files: Iterable[Path], scale: str, asked: str = "") -> bool:
    """Whether manifests of some files name other settings or code than those that their jobs have today. No file is read.

    What a manifest leaves out is not compared: of what is fetched, all.

    Args:
        asked: the parameter `settings` of the rule, which claims and a report are compared with: it knows their figures.
    """
    made = _makers_of_those_there(files, scale)
    return any(
        _differs_from_asked(job, asked) if job.stage in ("claims", "report") else _manifest_differs(job) for job in made
    )


def _differs_from_asked(job: Job, asked: str) -> bool:
    """Whether claims or a report were made of other figures or settings than those that are asked for; nothing: not known."""
    for path in STAGES[job.stage].makes(job):
        with suppress(UserError):
            settings = read_manifest(path)["provenance"].get("settings")
            if asked and settings is not None and asked != f"settings {digest(settings)}":
                return True
    return False


def _makers_of_those_there(files: Iterable[Path], scale: str) -> list[Job]:
    return makers((str(path) for path in files if path.is_file()), scale)


def _manifest_differs(job: Job) -> bool:
    for stage, step in STAGES[job.stage].steps(job):
        for path in stage.makes(step):
            try:
                made = read_manifest(path)["provenance"]
            except UserError:  # none, or damaged: `recollect why` says so
                continue
            if stage.others(made, step):
                return True
    return False


class Plan(NamedTuple):
    """The jobs of some figures, each once, and what each waits for; every job stands behind those."""

    needs: dict[Job, tuple[Job, ...]]
    figures: dict[str, tuple[Job, ...]]  # figure -> all the jobs that it takes, those of its inspection pages included

    def files(self, stage: str, *artifacts: str) -> list[Path]:
        """What the jobs of one stage make, or only some of its artifacts."""
        places = STAGES[stage].writes
        found: list[Path] = []
        for job in self.needs:
            if job.stage == stage:
                names_of_job = job.names(STAGES[stage].over)
                found += [places[name].of(names_of_job) for name in artifacts or places]
        return found


def roots(scale: str, figure: str) -> list[Job]:
    """The job of a figure, and the inspection pages of its runs that get some, where these can be shown."""
    runs = [run for run in paged_runs(scale, figure) if has_page(scale, *run[:2])]
    return [Job("figure", scale, figure), *(Job("page", scale, env, method, str(seed)) for env, method, seed in runs)]


def plan(scale: str, figures: Iterable[str]) -> Plan:
    """Walk from figures to everything that they need.

    Raises:
        UserError: an unknown scale or figure, or one with runs that cannot be made.
    """
    scale_settings(scale)
    graph = _Graph()
    taken: dict[str, tuple[Job, ...]] = {}
    for figure in dict.fromkeys(figures):
        if figure not in names("figures"):
            do = nearest(figure, names("figures"))
            raise UserError(f"no figure named '{figure}'", where="config/figures", do=do)
        check_figure(scale, figure)
        claims_of(scale, (figure,))  # none is wrong
        wanted = roots(scale, figure)
        for job in wanted:
            graph.visit(job)
        taken[figure] = tuple(graph.below(wanted))
    return Plan(graph.needs, taken)


def remaining(of: Plan) -> Plan:
    """Only the jobs that would run now: what they make is missing or not of today, or they wait for one that would run."""
    left: dict[Job, tuple[Job, ...]] = {}
    for job, waits_for in of.needs.items():
        before = tuple(other for other in waits_for if other in left)
        if before or not STAGES[job.stage].is_made(job):
            left[job] = before
    return Plan(left, {figure: tuple(job for job in jobs if job in left) for figure, jobs in of.figures.items()})


class _Graph:
    """Jobs and what they wait for, found from what they read."""

    def __init__(self) -> None:
        self.needs: dict[Job, tuple[Job, ...]] = {}
        self._of_all_seeds: dict[Job, tuple[Job, ...]] = {}

    def visit(self, job: Job) -> None:
        if job in self.needs:
            return
        waits_for = self._direct(job)
        for other in waits_for:
            self.visit(other)
        self.needs[job] = waits_for

    def _direct(self, job: Job) -> tuple[Job, ...]:
        """What a job waits for. Asked once for all seeds of a run."""
        shape = job._replace(seed=_ANY_SEED) if job.seed else job
        if shape not in self._of_all_seeds:
            made = [maker(path, job.scale) for path in STAGES[job.stage].inputs(shape).values()]
            self._of_all_seeds[shape] = tuple(dict.fromkeys(filter(None, made)))
        listed = self._of_all_seeds[shape]
        return tuple(other._replace(seed=job.seed) if other.seed == _ANY_SEED else other for other in listed)

    def below(self, jobs: Iterable[Job]) -> list[Job]:
        seen: dict[Job, None] = {}
        waiting = list(jobs)
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen[one] = None
                waiting.extend(self.needs[one])
        return list(seen)


def below(jobs: Iterable[Job]) -> list[Job]:
    """Some jobs and all that they need. Raises UserError: one is about what is not configured."""
    graph = _Graph()
    for job in jobs:
        graph.visit(job)
    return list(graph.needs)


def embedders(scale: str, figures: Iterable[str]) -> list[Path]:
    """What must be there before anything can be embedded: the runs that memories embed with.

    The scores and traces of all runs of those methods that the figures read are named as well: a run is one folder for DVC.
    """
    jobs = plan(scale, figures).needs
    embedding: set[tuple[str, ...]] = set()
    for job in jobs:
        policy = STAGES["embed"].inputs(job).get("embedder_policy") if job.stage == "embed" else None
        run = None if policy is None else maker(policy, scale)
        if run is not None:
            embedding.add((run.scale, run.env, run.method))
    found: list[Path] = []
    for job in jobs:
        if job.stage in ("run", "evaluate", "inspect") and (job.scale, job.env, job.method) in embedding:
            found += STAGES[job.stage].makes(job)
    return found


def files_of_figures(scale: str, figures: Iterable[str]) -> list[Path]:
    """All files of figures, without their manifests."""
    return [place(scale, figure) for figure in figures for place in paths.FIGURE_FILES.values()]
