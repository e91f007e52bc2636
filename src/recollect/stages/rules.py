"""What a Snakemake rule says of a stage: inputs, outputs, resources, params and command, all read off the stage.

Every job is one `recollect` command. A rule's params are two short hashes: `settings` (all of the configuration that the
job depends on) and `code` (all of the science that it can reach), so that a change reruns what depends on it and nothing
else. What the hashes stand for is written in the manifest beside each artifact.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from recollect.artifacts.sealed import manifest_path
from recollect.settings.resolve import environment_mapping, section, source_family
from recollect.stages import packs
from recollect.stages.packs import Seeds
from recollect.stages.provenance import digest
from recollect.stages.selection import JOB_HOURS, JobResources
from recollect.stages.stage import Job, is_large, job_of
from recollect.stages.table import STAGES

Wildcards = Mapping[str, str]
_DIRECTORY = {"figure": "figures/{figure}", "seed": "seed_{seed}", "task": "task_{task}"}


class StageRule:
    """One rule.

    Args:
        name: of the stage.
        figures: scale -> what more a job is about, of a stage that reads figures.
        seeds: of a job that takes these seeds; none: each has a job of its own.
        at_a_time: how many of its seeds a job trains side by side, at most.
        job_hours: of the longest job at scales of large runs.
        packages: the conda environment of jobs that make no world.
        jobs: what a job asks for of a cluster besides.
    """

    def __init__(
        self,
        name: str,
        *,
        figures: Callable[[str], tuple[str, ...]] | None = None,
        seeds: Seeds = (),
        at_a_time: int = 1,
        job_hours: float = JOB_HOURS,
        packages: str = "base",
        jobs: JobResources | None = None,
    ) -> None:
        self.stage, self.figures, self.seeds = STAGES[name], figures, seeds
        self.at_a_time = min(at_a_time, len(seeds) or 1)
        self.job_hours, self.packages = job_hours, packages
        self.jobs = jobs or JobResources()
        self.files = cache(self._files)
        self.hashes = cache(self._hashes)

    @property
    def writes(self) -> dict[str, str]:
        """Output name -> path, its manifest beside it."""
        found: dict[str, str] = {}
        for seed in self.seeds or ("{seed}",):
            for name, place in self.stage.writes.items():
                label = f"{name}_{seed}" if self.seeds else name
                path = place.template.replace("{seed}", str(seed))
                found |= {label: path, f"{label}_manifest": manifest_path(Path(path)).as_posix()}
        return found

    def outputs(self, update: Callable[[str], Any]) -> dict[str, Any]:
        """The same with Snakemake's flag `update`, by which it is not deleted before: where a job keeps what is of today, and where
        what is drawn stays if it cannot be drawn anew."""
        stays = self.stage.keeps or self.stage.local
        return {name: update(path) if stays else path for name, path in self.writes.items()}

    def reads(self, wildcards: Wildcards) -> list[str]:
        return self.files(self.job(wildcards))

    def _files(self, job: Job) -> list[str]:
        listed = self.stage.reads(*job.names(self.stage.over).values(), *self._figures(job))
        return [path.as_posix() for path in listed.values()]

    def settings(self, wildcards: Wildcards) -> str:
        return self.hashes(self.job(wildcards).shape)[0]

    def code(self, wildcards: Wildcards) -> str:
        return self.hashes(self.job(wildcards).shape)[1]

    def _hashes(self, job: Job) -> tuple[str, str]:
        settings = self.stage.settings(*job.names(self.stage.shared).values(), *self._figures(job))
        return f"settings {digest(settings)}", f"code {self.stage.code_text(job)}"

    def _figures(self, job: Job) -> tuple[str, ...]:
        return self.figures(job.scale) if self.figures else ()

    def _figure_words(self, wildcards: Wildcards) -> str:
        return " ".join(f"--figure {figure}" for figure in self._figures(self.job(wildcards)))

    @property
    def params(self) -> dict[str, Callable[..., str]]:
        found: dict[str, Callable[..., str]] = {"settings": self.settings}
        if self.stage.modules:
            found["code"] = self.code
        if self.figures:
            found["figures"] = self._figure_words
        return found

    @property
    def log(self) -> str:
        folders = [_DIRECTORY.get(wildcard, f"{{{wildcard}}}") for wildcard in self.stage.over]
        if self.seeds:
            folders[-1] = f"seeds_{self.seeds[0]}_to_{self.seeds[-1]}"
        return "/".join(["logs", *folders, f"{self.stage.name}.log"])

    @property
    def command(self) -> str:
        if self.stage.command:
            return f"recollect {self.stage.command} > {{log}} 2>&1"
        words = ["recollect", self.stage.name.replace("_", "-")]
        for wildcard in self.stage.over:
            if wildcard == "seed" and self.seeds:
                words += [f"--seed {seed}" for seed in self.seeds]
            else:
                words.append(f"--{wildcard} {{wildcards.{wildcard}}}")
        words += ["{params.figures}"] if self.figures else []
        words += ["--device auto"] if self.stage.asks.gpu else []
        words += ["--threads {threads}"] if not self.stage.local else []
        # A resource, as `threads` is: another number is no other command, so it makes nothing again.
        words += ["--at-a-time {resources.at_a_time}"] if self.seeds else []
        words += [self.stage.rule_words] if self.stage.rule_words else []
        return " ".join([*words, "> {log} 2>&1"])

    def conda(self, wildcards: Wildcards) -> str:
        family = self.packages
        if self.stage.packages != "base":
            content = environment_mapping(wildcards["scale"], wildcards["env"])
            family = content.get("family", family)
            if self.stage.packages == "source":
                family = source_family(str(section(content, "source").get("algorithm", "ppo"))) or family
        return f"../envs/{family}.yaml"

    def threads(self, wildcards: Wildcards) -> int:
        return self._at_scale(self.stage.asks.threads, wildcards)

    def mem_mb(self, wildcards: Wildcards, attempt: int) -> int:
        """RAM in MB, of all that train side by side.

        Twice as much from the second attempt on, and no more: most attempts end at their time limit, and go on.
        """
        one = self._at_scale(self.stage.asks.megabytes, wildcards) * min(attempt, 2)
        return one * packs.runs_in_ram(*self._shared(wildcards), self.at_a_time, len(self.seeds)) if self.seeds else one

    def seeds_at_a_time(self, wildcards: Wildcards, attempt: int = 1) -> int:
        """How many of a pack's seeds are at work at once, at every attempt."""
        return packs.side_by_side(*self._shared(wildcards), self.at_a_time)

    @staticmethod
    def _shared(wildcards: Wildcards) -> tuple[str, str, str]:
        return wildcards["scale"], wildcards["env"], wildcards["method"]

    def runtime(self, wildcards: Wildcards, attempt: int) -> int:
        """Wall time in minutes. What resumes needs no more at the next attempt. A pack asks for what one run does."""
        limit = self._at_scale(self.stage.asks.minutes, wildcards)
        if "seed" in self.stage.over:
            limit = int(limit * packs.share_of_limits(self.job_hours))
        return min(limit if self.stage.asks.resumes else limit * attempt, int(self.job_hours * 60))

    def gpu(self, wildcards: Wildcards, attempt: int = 1) -> int:
        """How many GPUs, at every attempt."""
        job = self.job(wildcards)
        return self.stage.gpus(job.names(self.stage.over)) if self.stage.on_gpu(job) else 0

    @property
    def resources(self) -> dict[str, Callable[..., Any]]:
        asked: dict[str, Callable[..., Any]] = {"mem_mb": self.mem_mb, "runtime": self.runtime}
        if self.stage.asks.gpu:
            asked["gpu"] = self.gpu
        if self.seeds:
            asked["at_a_time"] = self.seeds_at_a_time
        if not self.stage.local:
            for name in {**self.jobs.cpu, **self.jobs.gpu}:
                asked[name] = self._of_cluster(name, asked.get(name))
        return asked

    def _of_cluster(self, name: str, own: Callable[..., Any] | None) -> Callable[..., Any]:
        """What a kind of job asks for; where its kind says nothing, what the rule asks for itself."""

        def for_kind(wildcards: Wildcards, attempt: int = 1) -> str | int | None:
            kind = self.jobs.gpu if self.stage.on_gpu(self.job(wildcards)) else self.jobs.cpu
            if own is None:
                return kind.get(name)
            if name in kind:  # behind `--config` a number inside a mapping comes as text
                return int(kind[name]) if str(kind[name]).isdecimal() else kind[name]
            found: int = own(wildcards, attempt)
            return found

        return for_kind

    def priority(self, wildcards: Wildcards) -> int:
        """Of jobs that could start, the highest goes first."""
        chosen = self.stage.priority
        return chosen(*self.job(wildcards).names(self.stage.over).values()) if callable(chosen) else chosen

    def job(self, wildcards: Any) -> Job:
        """The job of some wildcards; of a pack that of its first seed, which shares everything with the others."""
        names = dict(wildcards)
        if self.seeds:
            names["seed"] = str(self.seeds[0])
        return job_of(self.stage.name, names)

    def _at_scale(self, asked: tuple[int, int], wildcards: Wildcards) -> int:
        return asked["scale" in dict(wildcards) and is_large(wildcards["scale"])]


def find_commands() -> None:
    """Let jobs find the command `recollect` of this Python: also where its .venv is not activated, or another one is."""
    own, found = Path(sys.executable).parent, shutil.which("recollect")
    if found is None or (Path(found).with_name("python").exists() and Path(found).parent != own):
        os.environ["PATH"] = os.pathsep.join([str(own), os.environ.get("PATH", os.defpath)])
