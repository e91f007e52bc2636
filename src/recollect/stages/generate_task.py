"""generate_task: environment config -> the learning histories of one task
(`data/{scale}/{env}/tasks/{task}/histories.safetensors`), of a source whose agents learn for hours each.

Killed at any instant, the same command goes on from the newest checkpoint and ends with the same bytes.
"""

from __future__ import annotations

from recollect.settings.errors import UserError
from recollect.settings.resolve import environment_mapping
from recollect.stages import paths, provenance
from recollect.stages.generate import file_hashes, make
from recollect.stages.inputs import makes_by_task
from recollect.stages.stage import Job, Resources, Stage, Trust


def generate_task(scale: str, env: str, task: int, *, trust_checkpoint: Trust = False) -> bool:
    """Make the learning histories of one task of an environment, on one core."""
    if environment_mapping(scale, env).get("source") and not makes_by_task(scale, env):
        do = f"run `recollect generate --scale {scale} --env {env}`"
        raise UserError("the histories of all tasks are made by one job", where=f"environment {env}", do=do)
    job = Job("generate_task", scale, env, task=str(task))
    target, checkpoints = paths.task_histories(scale, env, task), paths.task_checkpoints(scale, env, task)
    return make(STAGE, job, target, checkpoints, trust_checkpoint)


STAGE = Stage(
    name="generate_task",
    over=("scale", "env", "task"),
    hashes=file_hashes,
    writes={"histories": paths.task_histories},
    settings=provenance.generate_settings,
    modules=provenance.generate_modules,
    only=makes_by_task,
    # A replay of a million transitions and the history: a gigabyte each. Two million steps of SAC are half a day of a core.
    asks=Resources((2000, 4000), (60, 24 * 60), resumes=True),
    priority=75,
    packages="source",
    example="--scale paper --env meta_world --task 0",
    run=generate_task,
)
