"""machines: the rule by which the work of a job becomes seconds, with the constants of config/speeds.yaml.

One rule for all jobs and machines: startup + passes * pass + operations / flop + environment steps * world. Seeds that are
trained as one network (recollect.memory_rl.ensemble) share what a GPU does once for all of them; a seed's seconds are its
share, so those of all seeds add up to the job's.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from recollect.common.work import FEW, Work
from recollect.settings.errors import UserError
from recollect.settings.loading import config_folder, read_yaml, validated
from recollect.settings.resolve import environment_mapping
from recollect.settings.schema import Frozen
from recollect.stages import world_steps
from recollect.stages.stage import Job, is_ensemble, is_large


class Machine(Frozen):
    """Constants of one device."""

    name: str
    basis: Literal["recorded", "assumed"] = Field(description="recorded: fitted to runs on it; assumed: to nothing.")
    startup: float = Field(ge=0, description="Seconds before a job works.")
    pass_: float = Field(alias="pass", ge=0, description="Seconds of a pass of a small network.")
    kernel: float | None = Field(
        None,
        ge=0,
        description="Seconds of a kernel in a CUDA graph; null: there are none, and large runs are trained one by one here.",
    )
    step: float | None = Field(
        None, ge=0, description="Seconds of a step of acting of such an ensemble, a CUDA graph, too; null: as a pass."
    )
    steps: dict[str, float] = Field(
        default_factory=dict, description="The same in worlds that the device plays; it has their own steps in it."
    )
    flop: float = Field(gt=0, description="Operations per second of a large one.")
    world: float = Field(ge=0, description="Seconds of one step of one instance.")
    worlds: dict[str, float] = Field(default_factory=dict, description="The same for worlds that are slower.")
    processes: int = Field(1, ge=1, description="That play a slow world of a large run: as many as it has threads.")
    environments: dict[str, float] = Field(
        default_factory=dict, description="Seconds of a step of environments that were timed; see `machines`."
    )
    seen_again: dict[str, float] = Field(
        default_factory=dict,
        description="Beginning of an environment's name -> factor of training, where images come again.",
    )
    together: float = Field(
        1.0, gt=0, description="Factor of training where a scale of small runs trains a method's seeds as an ensemble."
    )
    seconds: dict[str, float] = Field(
        default_factory=dict,
        description="Rule, or rule and name of what it makes -> seconds of jobs whose work is not counted.",
    )

    def as_one(self, job: Job, seeds: int) -> int:
        """How many seeds are trained together, where so many have a job together; 1: each is trained alone."""
        joint = job.stage == "train" and is_large(job.scale) and is_ensemble(job.scale, job.method)
        return seeds if joint and self.kernel is not None else 1

    def takes(self, job: Job, work: Work, seeds: int = 1) -> float:
        """Seconds of a job by the rule, from the start of its process; see `works`."""
        shared = self.as_one(job, seeds) if any(work) else 1
        return self.startup / shared + self.works(job, work, seeds)

    def works(self, job: Job, work: Work, seeds: int = 1) -> float:
        """Seconds that a job works, once it has started; of a seed that is trained with others as one network, its share.

        The network of all seeds makes each pass once and launches each kernel once. Operations and environment steps are each
        seed's own.

        Args:
            seeds: that have a job together.
        """
        if not any(work):
            return self.seconds.get(f"{job.stage} {job.env}", self.seconds.get(job.stage, 0.0))
        computed = self._once(job, work, seeds) + work.flop / self.flop
        again = (factor for start, factor in self.seen_again.items() if job.env.startswith(start))
        if job.stage == "train":
            computed *= next(again, 1.0)
            computed *= self.together if is_ensemble(job.scale, job.method) and not is_large(job.scale) else 1.0
        return computed + work.timed + self.plays(job, work, seeds)

    def plays(self, job: Job, work: Work, seeds: int = 1) -> float:
        """Seconds of a job's environment steps, which `works` has, too.

        Args:
            seeds: that are trained together. Worlds that other processes play are then played side by side.
        """
        if not work.env_steps:
            return 0.0
        world = environment_mapping(job.scale, job.env)["world"]
        each = self.environments.get(job.env, self.worlds.get(world, self.world))
        together = self.as_one(job, seeds) if world in world_steps.PLAYED_BY_OTHERS else 1
        return work.env_steps * each / min(together, self.processes)

    def _once(self, job: Job, work: Work, seeds: int) -> float:
        """Seconds of passes; of those that are CUDA graphs, of their kernels.

        What seeds have once, where they are one network, is divided among them. HELM's are none: they share the steps of their
        language model alone, and what that saves on a GPU was not timed.
        """
        if self.kernel is None or not work.captured or job.stage != "train" or not is_large(job.scale):
            return work.passes * self.pass_
        is_network = is_ensemble(job.scale, job.method)
        step = self.pass_
        if is_network and self.step is not None:
            step = self.steps.get(environment_mapping(job.scale, job.env)["world"], self.step)
        kernels = work.kernels + (work.cells if seeds > FEW else work.apart * seeds)
        return ((work.passes - work.captured) * step + kernels * self.kernel) / (seeds if is_network else 1)


class Speeds(Frozen):
    """config/speeds.yaml."""

    machines: dict[str, Machine]
    models: dict[str, float]
    layers: dict[str, int]
    widths: dict[str, int]
    words: dict[str, int]
    images: dict[str, float]
    new_frames: dict[str, float]
    episode_steps: dict[str, int]
    horizons: dict[str, int]
    observations: dict[str, int]
    pixels: dict[str, int]
    bytes: dict[str, int]
    not_discrete: tuple[str, ...]


def machines() -> dict[str, Machine]:
    """The machines of config/speeds.yaml, `cpu` and `cuda`, with the steps of config/world_steps.csv."""
    path = config_folder() / "speeds.yaml"
    found = validated(Speeds, read_yaml(path), where=path).machines
    for device in ("cpu", "cuda"):
        if device not in found:
            raise UserError(f"there is no machine '{device}'", where=path, do="add it under `machines:`")
    steps = world_steps.read()

    def timed(one: Machine) -> Machine:
        environments, worlds = (of(steps, one.processes) for of in (world_steps.of_environments, world_steps.of_worlds))
        return one.model_copy(update={"environments": environments, "worlds": {**one.worlds, **worlds}})

    return {device: timed(one) for device, one in found.items()}
