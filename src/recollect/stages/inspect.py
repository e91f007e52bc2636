"""inspect: policy -> `trace.safetensors`, what a few tasks of its evaluation saw, did and read at every step."""

from __future__ import annotations

from collections.abc import Sequence

from recollect.artifacts.lock import run_lock
from recollect.artifacts.progress import Progress
from recollect.artifacts.sealed import read_arrays
from recollect.evaluation import tracing
from recollect.settings.resolve import algorithm_module, resolve
from recollect.settings.schema import Settings
from recollect.stages import paths, provenance
from recollect.stages.inputs import policy_method, run_inputs


def inspect(
    scale: str, env: str, method: str, seed: int, *, split: str = "eval", tasks: Sequence[int] = (), device: str = "cpu"
) -> None:
    """Play the environment's evaluation as `evaluate` does, and write down some of its tasks.

    Args:
        split: the task split that is played.
        tasks: indices within the split; none: a few that are spread evenly.

    Raises:
        UserError: the policy is missing or corrupted, or a task is not there.
    """
    settings: Settings = resolve(scale, env, method, seed)
    environment = settings.environment
    module = algorithm_module(settings.method.algorithm, where=f"config/methods/{method}.yaml")
    inputs = run_inputs(settings, device)
    source = paths.policy(scale, env, policy_method(scale, env, method), seed)
    known = provenance.describe(
        provenance.evaluate_settings(scale, env, method),
        provenance.inspect_code(scale, env, method),
        [
            source,
            inputs.language_model,
            inputs.vision_language_model,
            inputs.token_vocabulary,
            inputs.image_encoder,
            inputs.demonstrations,
        ],
        device,
    )
    chosen = tracing.chosen_tasks(environment, split, tasks)
    target = paths.trace(scale, env, method, seed)
    with run_lock(paths.checkpoints(scale, env, method, seed)):  # not of the run: its evaluation may be at work there
        policy = module.load_policy(settings, read_arrays(source, kind="policy"), inputs)
        with Progress(
            environment.evaluation.episodes, f"tracing {method} on {env}, seed {seed}", "episodes"
        ) as progress:
            trace = tracing.trace(
                policy,
                environment,
                about={"scale": scale, "method": method},
                split=split,
                tasks=chosen,
                seed=seed,
                progress=lambda done: progress.update(done),
            )
        trace.write(target, {**known, "seed": seed, "split": split, "tasks": chosen})
