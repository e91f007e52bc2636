"""inspect: policy -> `trace.safetensors`, what a few tasks of its evaluation saw, did and read at every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from recollect.artifacts.fingerprint import SCENE
from recollect.settings.resolve import algorithm_module, method_path, resolve
from recollect.settings.still import held_still
from recollect.stages import paths, provenance
from recollect.stages.inputs import inspect_inputs, plays_on_gpu
from recollect.stages.stage import Job, Resources, Stage

if TYPE_CHECKING:
    from recollect.common.contract import Policy
    from recollect.settings.schema import Settings


@held_still()
def inspect(
    scale: str,
    env: str,
    method: str,
    seed: int,
    *,
    split: Annotated[str, "Task split that is played."] = "eval",
    tasks: Annotated[list[int] | None, "--task", "Task to trace, again for more; none: a few of them."] = None,
    device: str = "cpu",
) -> None:
    """Trace some tasks of a policy's evaluation: what it saw, did and read."""
    from recollect.artifacts.lock import run_lock
    from recollect.artifacts.progress import Progress
    from recollect.evaluation import tracing

    settings = resolve(scale, env, method, seed)
    environment = settings.environment
    known = STAGE.provenance(Job("inspect", scale, env, method, str(seed)), device)
    chosen = tracing.chosen_tasks(environment, split, tasks or ())
    episodes, title = environment.evaluation.episodes, f"tracing {method} on {env}, seed {seed}"
    with run_lock(paths.checkpoints(scale, env, method, seed)):  # not of the run: its evaluation may be at work there
        policy = trained_policy(settings, device)
        with Progress(episodes, title, "episodes") as progress:
            trace = tracing.trace(
                policy,
                environment,
                about={"scale": scale, "method": method},
                split=split,
                tasks=chosen,
                seed=seed,
                progress=lambda done: progress.update(done),
            )
        target = paths.trace(scale, env, method, seed)
        trace.write(target, {**known, "seed": seed, "split": split, "tasks": chosen})


def trained_policy(settings: Settings, device: str) -> Policy:
    """The policy of a finished run, with all that it plays with."""
    from recollect.artifacts.inputs import Inputs
    from recollect.artifacts.sealed import read_arrays

    method = settings.method.name
    module = algorithm_module(settings.method.algorithm, where=method_path(method))
    files = inspect_inputs(settings.scale, settings.environment.name, method, settings.seed)
    inputs = Inputs(device=device, **files)
    policy: Policy = module.load_policy(settings, read_arrays(inputs["policy"], kind="policy"), inputs)
    return policy


STAGE = Stage(
    name="inspect",
    over=("scale", "env", "method", "seed"),
    reads=inspect_inputs,
    writes={"trace": paths.trace},
    settings=provenance.evaluate_settings,
    modules=lambda *of: [*provenance.evaluate_modules(*of), "recollect.evaluation.tracing", SCENE],
    # An evaluation, and what is written down of it.
    asks=Resources((1500, 12000), (60, 240), threads=(1, 4), gpu=plays_on_gpu),
    priority=25,  # the longest job of a demo that nothing else waits for: begun last, a core would idle beside it
    packages="world",
    run=inspect,
)
