"""What a stage is: one module of this folder, one rule, one command, one kind of artifact. And a job: a stage for some names.

Everything that asks about stages reads it off these objects (recollect.stages.table): the rules, the commands, the inputs in
manifests, `recollect why`, `recollect forecast` and dvc.yaml. Nothing here imports torch: Snakemake parses with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from recollect.artifacts.fingerprint import code_fingerprint, reachable
from recollect.artifacts.sealed import verify
from recollect.settings.errors import UserError
from recollect.settings.resolve import scale_settings
from recollect.settings.still import remembered
from recollect.stages import provenance
from recollect.stages.paths import Place

TRUSTED = "trusted_checkpoint"
"""In a manifest's provenance: checkpoints of other settings or code that the run went on with, told to."""
Trust = Annotated[bool, "--trust-checkpoint", "Go on with a checkpoint that other settings or code made."]
_OWN = ("scale", "env", "method", "seed", "task")
_ALIKE = ("seed", "task")  # of these, settings and code are no function


class Job(NamedTuple):
    """One job. What a stage makes one of stands under `env`: an environment, a figure, a model, a vocabulary."""

    stage: str
    scale: str
    env: str = ""
    method: str = ""
    seed: str = ""
    task: str = ""

    def __str__(self) -> str:
        return " ".join(word for word in (self.stage, *self[2:]) if word)

    def names(self, over: tuple[str, ...]) -> dict[str, str]:
        """Wildcard -> name."""
        return {wildcard: getattr(self, wildcard if wildcard in _OWN else "env") for wildcard in over}

    @property
    def shape(self) -> Job:
        """The same without what its settings and code are no function of: seed and task."""
        return self._replace(seed="", task="")


def job_of(stage: str, names: Mapping[str, str], scale: str = "") -> Job:
    """The job of a stage with such names. What no scale owns (a fetched model) is counted at `scale`."""
    other = next((name for wildcard, name in names.items() if wildcard not in _OWN), "")
    env, method, seed, task = (str(names.get(wildcard, "")) for wildcard in ("env", "method", "seed", "task"))
    return Job(stage, str(names.get("scale", scale)), env or str(other), method, seed, task)


class Resources(NamedTuple):
    """What a job asks of its machine, each number at scales of small and of large runs (`resources` of a scale).

    What a machine is (partitions, number of GPUs) stands in workflow/profiles.

    Args:
        megabytes: RAM; twice as much from the second attempt on. Not computed from sizes of inputs: that doubles the time of a
            large dry run.
        minutes: wall time; a generous limit at large scales, where jobs are killed at it.
        threads: one where jobs run side by side: two jobs of one thread do more than one job of two threads.
        gpu: whether it asks for a GPU at large scales, or a function of the job's names (without seed) that says so, or for how
            many.
        resumes: it goes on from a checkpoint, so it needs no more time at the next attempt.
    """

    megabytes: tuple[int, int]
    minutes: tuple[int, int]
    threads: tuple[int, int] = (1, 1)
    gpu: bool | Callable[..., int] = False
    resumes: bool = False


def is_large(scale: str) -> bool:
    """Whether the runs of a scale are large ones, which ask for GPUs and for more than two cores."""
    return scale_settings(scale).resources == "large"


def is_ensemble(scale: str, method: str) -> bool:
    """Whether seeds of a method that share a job are trained together."""
    return method in scale_settings(scale).ensembles


@dataclass(frozen=True, eq=False)
class Stage:
    """One stage.

    Args:
        name: of its module and rule; its command is the same with dashes.
        over: the wildcards that name one job, in the order in which the functions below take their names.
        writes: name -> where the artifact lies.
        run: does the work of one job. Its keyword-only arguments are options of the command (recollect.cli). It may return
            True where it only went on from a checkpoint. It raises a UserError where a setting is wrong, an input is missing or
            corrupted, or another process is at work on the same artifacts.
        asks: what a job asks of its machine.
        reads: names of a job -> name -> file. The one list of a job's inputs: of its rule, its manifest and its method.
        hashes: names of a job -> path -> sha256, of files that it reads besides and that no rule makes.
        settings: names without seed -> everything in the configuration that the artifacts depend on.
        modules: names without seed -> the modules whose code they depend on; None: on none.
        made: names of a job -> whether its artifacts are there and of today, where that is not what their manifests say.
        only: names without seed -> whether there is such a job; another stage may make the same kind of artifact.
        parts: stages that a job runs one after the other.
        keeps: what is there and of today is kept, by each part; so its rule updates its outputs and does not delete them.
        ahead: names of a job with a list of seeds -> is called before the work of each seed, where a command has several.
        ended: names of a job -> is called when all jobs of a command have ended well.
        priority: of jobs that could start, the highest goes first: a number, or a function of the job's names.
        packages: the conda environment of its jobs: `base`, that of the world that they make, or that which the source of
            histories declares (`FAMILY`; else that of the world).
        local: it takes seconds or needs the network, so it runs where Snakemake runs.
        changes: its command takes `--set`.
        example: words behind its command that its help shows, where the usual names are none of its jobs.
        command: what its rule runs, where that is not the command of its name.
        rule_words: what its rule says to its command besides the names of the job.
    """

    name: str
    over: tuple[str, ...]
    writes: Mapping[str, Place]
    run: Callable[..., object]
    asks: Resources
    reads: Callable[..., Mapping[str, Path]] = lambda *names: {}
    hashes: Callable[..., Mapping[str, str]] = lambda *names: {}
    settings: Callable[..., str] = lambda *names: ""
    modules: Callable[..., list[str]] | None = None
    made: Callable[..., bool] | None = None
    only: Callable[..., bool] = lambda *names: True
    parts: tuple[Stage, ...] = ()
    keeps: bool = False
    ahead: Callable[..., None] = lambda *names, **options: None
    ended: Callable[..., None] = lambda *names: None
    priority: int | Callable[..., int] = 0
    packages: Literal["base", "world", "source"] = "base"
    local: bool = False
    changes: bool = False
    example: str = ""
    command: str = ""
    rule_words: str = ""

    @property
    def shared(self) -> tuple[str, ...]:
        """The wildcards without seed and task: what settings and code are a function of."""
        return tuple(wildcard for wildcard in self.over if wildcard not in _ALIKE)

    def makes(self, job: Job) -> list[Path]:
        """The artifacts of a job, without their manifests."""
        names = job.names(self.over)
        return [place.of(names) for place in self.writes.values()]

    def inputs(self, job: Job) -> Mapping[str, Path]:
        return self.reads(*job.names(self.over).values())

    def settings_text(self, job: Job) -> str:
        """What of the configuration a job depends on, as it stands in its manifest; empty where nothing does."""
        return self.settings(*job.names(self.shared).values())

    def modules_of(self, job: Job) -> list[str]:
        return [] if self.modules is None else self.modules(*job.names(self.shared).values())

    def code_text(self, job: Job) -> str:
        """The fingerprint of a job's code, as it stands in its manifest; empty where it depends on none."""
        return "" if self.modules is None else code_fingerprint(*self.modules_of(job))

    @remembered
    def today(self, shape: Job) -> dict[str, str]:
        """What settings and code jobs of one shape would be made of today; asked once for all seeds of a run."""
        return {"settings": self.settings_text(shape), "code": self.code_text(shape)}

    def others(self, made: Mapping[str, Any], job: Job) -> list[str]:
        """Which of settings and code a provenance names otherwise than a job has them today. What it leaves out is not compared."""
        named = {"settings": made.get("settings"), "code": provenance.code_of(made)}
        return [part for part, text in self.today(job.shape).items() if named[part] not in (None, text)]

    def provenance(self, job: Job, device: str = "cpu", inputs: Mapping[str, Path] | None = None) -> dict[str, Any]:
        """What the manifests of a job's artifacts hold, besides its seed. Inputs are verified here, before any work.

        Args:
            inputs: what it reads, where that differs from what such a job reads.
        """
        read = self.inputs(job) if inputs is None else inputs
        known = provenance.describe(self.settings_text(job), self.code_text(job), read.values(), device)
        known["inputs"] |= self.hashes(*job.names(self.over).values())
        return known

    def made_of(self, job: Job, known: Mapping[str, Any]) -> dict[str, Any]:
        """What a checkpoint keeps, to say later what has changed: a job's provenance, with a hash of each module."""
        modules = {name: digest[:16] for name, digest in reachable(*self.modules_of(job)).items()}
        return {**known, "modules": modules, "seed": job.seed}

    def steps(self, job: Job) -> list[tuple[Stage, Job]]:
        """What a job runs: its parts, or itself."""
        return [(part, job._replace(stage=part.name)) for part in self.parts] or [(self, job)]

    def gpus(self, names: Mapping[str, Any]) -> int:
        """How many GPUs a job of these names uses where there are some."""
        gpu = self.asks.gpu
        return int(gpu(*(names[name] for name in self.shared)) if callable(gpu) else gpu)

    def may_use_gpu(self, names: Mapping[str, Any]) -> bool:
        """Whether a job of these names uses a GPU where there is one."""
        return self.gpus(names) > 0

    def on_gpu(self, job: Job) -> bool:
        """Whether a job asks the scheduler for a GPU."""
        return is_large(job.scale) and self.may_use_gpu(job.names(self.over))

    def is_made(self, job: Job) -> bool:
        """Whether a job's artifacts are there, whole, and made of what is here today, on whatever device.

        What else they say of themselves does not matter: the machine of speeds, the tasks of a trace, or a checkpoint from
        before that a run was told to go on with (`--trust-checkpoint`).
        """
        if self.made is not None:
            return self.made(*job.names(self.over).values())
        if self.parts:
            return all(part.is_made(step) for part, step in self.steps(job))
        try:
            made: list[dict[str, Any]] = [verify(path)["provenance"] for path in self.makes(job)]
            today = self.provenance(job)
        except UserError:  # an artifact is missing or damaged; or an input is, which the job itself says best
            return False
        wanted = {**today, **({"seed": int(job.seed)} if job.seed else {})}
        del wanted["device"]
        return all(one.get(name) == value for one in made for name, value in wanted.items())


def making(path: Path, stages: Iterable[Stage], scale: str = "") -> Iterator[Job]:
    """The jobs of some stages that make a file. What no scale owns is counted at `scale`."""
    for stage in stages:
        for place in stage.writes.values():
            names = place.match(path)
            if names is not None:
                yield job_of(stage.name, names, scale)
