"""generate: environment config -> learning histories (`data/{scale}/{env}/histories.safetensors`).

The source agents of all tasks learn at once; what they do is written down in time order. A source that reads files
instead has a function `files`, which names them: the histories' manifest then holds their hashes.
"""

from __future__ import annotations

from recollect.settings.errors import UserError
from recollect.settings.resolve import (
    algorithm_module,
    environment_mapping,
    environment_settings,
    source_hyperparameters,
    uses_gpu,
)
from recollect.stages import inputs, paths, provenance
from recollect.stages.stage import TRUSTED, Job, Resources, Stage, Trust


def learns_on_gpu(scale: str, env: str) -> bool:
    """Source agents that look at images do; the others learn faster on CPU cores."""
    source = environment_mapping(scale, env).get("source") or {}
    return uses_gpu(str(source.get("algorithm", "ppo")))


def generate(scale: str, env: str, *, trust_checkpoint: Trust = False, device: str = "cpu") -> bool:
    """Make the learning histories of an environment; most source agents learn on the CPU, whatever the device."""
    from recollect.artifacts.lock import run_lock
    from recollect.artifacts.run import Run
    from recollect.artifacts.sealed import write_arrays
    from recollect.artifacts.set_aside import SetAside
    from recollect.environments import registry
    from recollect.sources.columns import remove_growing
    from recollect.sources.published_fetch import hashes

    environment = environment_settings(scale, env)
    source, where = environment.source, f"config/environments/{env}.yaml"
    if source is None:
        raise UserError(
            "this environment has no source of histories",
            where=where,
            do="add a `source:` section, or use methods with `data: online`",
        )
    module = algorithm_module(source.algorithm, where=f"{where}: source.algorithm", does="source")
    chosen = source_hyperparameters(scale, env, source)
    on = {"device": device} if uses_gpu(source.algorithm) else {}
    job = Job("generate", scale, env)
    known = STAGE.provenance(job, on.get("device", "cpu"))
    options = {**environment.options, **environment.training_options}
    tasks = registry.tasks(environment.world, options, source.split)
    if hasattr(module, "files"):
        listed = inputs.generate_inputs(scale, env).get("published")
        known["inputs"] |= hashes(module.files(environment.world, tasks, chosen), listed)
    target, checkpoints = paths.histories(scale, env), paths.history_checkpoints(scale, env)
    with run_lock(checkpoints):
        run = Run(
            target.parent,
            checkpoints,
            settings_text=known["settings"] + known["code"],
            made_of=STAGE.made_of(job, known),
            trust=trust_checkpoint,
            env=env,
            method=source.algorithm,
            seed=source.seed,
        )
        with run.going_on():
            arrays = module.generate(environment.world, options, tasks, chosen, seed=source.seed, run=run, **on)
        known |= {TRUSTED: run.trusted} if run.trusted else {}
        write_arrays(target, arrays, kind="histories", provenance=known)
        remove_growing(target.parent)
        SetAside(checkpoints, target.parent).clear()  # with images it can be larger than the histories
    return run.resumed


STAGE = Stage(
    name="generate",
    over=("scale", "env"),
    reads=inputs.generate_inputs,
    writes={"histories": paths.histories},
    settings=provenance.generate_settings,
    modules=provenance.generate_modules,
    # The histories of all tasks are held until they are written: 20 bytes for each of 16 M steps. All agents learn at once
    # as batched matrix products: two threads where two cores are the promise.
    asks=Resources((1500, 4000), (60, 480), threads=(2, 8), gpu=learns_on_gpu, resumes=True),
    priority=70,
    packages="world",
    run=generate,
)
