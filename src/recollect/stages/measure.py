"""measure: histories and index -> `speed.parquet`, how fast a method learns and acts on this machine.

A job of its own, because a run cannot say it: its files are a pure function of its settings, it may have been resumed,
and other runs shared its machine.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from recollect.settings.errors import UserError
from recollect.settings.resolve import algorithm_module, method_path, resolve
from recollect.stages import paths, provenance
from recollect.stages.inputs import train_inputs
from recollect.stages.stage import Job, Resources, Stage


def measure(scale: str, env: str, method: str, seed: int, *, device: str = "cpu") -> None:
    """Measure how fast a method learns and acts on this machine.

    Raises:
        UserError: a setting or an input is wrong, or nothing of such a method is measured.
    """
    from recollect.artifacts.inputs import Inputs
    from recollect.artifacts.sealed import write_table
    from recollect.evaluation import speed

    settings = resolve(scale, env, method, seed)
    module = algorithm_module(settings.method.algorithm, where=method_path(method))
    learns = hasattr(settings.method.hyperparameters, "optimisation")
    in_context = learns and settings.environment.evaluation.protocol == "in_context"
    if not in_context and not hasattr(module, "updates_per_second"):
        raise UserError(
            f"'{method}' on '{env}' does not learn from histories and act in context, and does not say how fast it updates",
            where=method_path(method),
            do="measure another method",
        )
    inputs = Inputs(device=device, **train_inputs(scale, env, method))
    known = STAGE.provenance(Job("measure", scale, env, method, str(seed)), device)
    with tempfile.TemporaryDirectory(prefix="recollect_") as scratch:
        if in_context:
            table = speed.speeds(settings, module.train, inputs, Path(scratch))
        else:
            table = speed.update_speed(settings, module.updates_per_second, inputs.device, Path(scratch))
    known |= {"seed": seed, "machine": speed.machine(device)}
    write_table(paths.speed(scale, env, method, seed), table, kind="speed", provenance=known)


STAGE = Stage(
    name="measure",
    over=("scale", "env", "method", "seed"),
    reads=lambda scale, env, method, seed: train_inputs(scale, env, method),
    writes={"speed": paths.speed},
    settings=provenance.evaluate_settings,
    modules=lambda *of: [*provenance.evaluate_modules(*of), "recollect.evaluation.speed"],
    # As training; as many threads as a small machine has, so that nothing runs beside it.
    asks=Resources((1500, 16000), (30, 120), threads=(2, 8), gpu=True),
    packages="world",
    run=measure,
)
