"""generate: environment config -> learning histories (`data/{scale}/{env}/histories.safetensors`).

The source agents of all tasks learn at once; what they do is written down in time order. A source that reads files
instead has a function `files`, which names them: the histories' manifest then holds their hashes.
"""

from __future__ import annotations

from recollect.artifacts.lock import run_lock
from recollect.artifacts.run import Run
from recollect.artifacts.sealed import write_arrays
from recollect.environments import registry
from recollect.settings.errors import UserError
from recollect.settings.resolve import algorithm_module, environment_settings, source_hyperparameters, uses_gpu
from recollect.sources.columns import remove_growing
from recollect.sources.published_fetch import hashes
from recollect.stages import inputs, paths, provenance


def generate(scale: str, env: str, *, device: str = "cpu") -> None:
    """Make the learning histories of an environment.

    Args:
        device: where source agents learn that use a GPU; others learn on the CPU.

    Raises:
        UserError: the environment has no source of histories, or a setting is wrong.
    """
    environment = environment_settings(scale, env)
    source = environment.source
    if source is None:
        raise UserError(
            "this environment has no source of histories",
            where=f"config/environments/{env}.yaml",
            do="add a `source:` section, or use methods with `data: online`",
        )
    module = algorithm_module(
        source.algorithm, where=f"config/environments/{env}.yaml: source.algorithm", does="source"
    )
    chosen = source_hyperparameters(scale, env, source)
    settings, code = provenance.generate_settings(scale, env), provenance.generate_code(scale, env)
    read = inputs.generate_inputs(scale, env)
    on = {"device": device} if uses_gpu(source.algorithm) else {}
    known = provenance.describe(settings, code, read.values(), **on)
    options = {**environment.options, **environment.training_options}
    tasks = registry.tasks(environment.world, options, source.split)
    if hasattr(module, "files"):
        known["inputs"] |= hashes(module.files(environment.world, tasks, chosen), read.get("published"))
    target = paths.histories(scale, env)
    with run_lock(paths.history_checkpoints(scale, env)):
        run = Run(
            target.parent,
            paths.history_checkpoints(scale, env),
            settings_text=settings + code,
            env=env,
            method=source.algorithm,
            seed=source.seed,
        )
        arrays = module.generate(environment.world, options, tasks, chosen, seed=source.seed, run=run, **on)
        write_arrays(target, arrays, kind="histories", provenance=known)
        remove_growing(target.parent)
