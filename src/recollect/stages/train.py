"""train: histories and index, or nothing (online methods) -> `policy.safetensors` and `train.parquet` of one run.

Killed at any instant, the same command goes on from the newest checkpoint and ends with the same bytes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from recollect.settings.errors import UserError
from recollect.settings.resolve import algorithm_module, method_path, played_method, resolve
from recollect.settings.schema import Settings
from recollect.stages import paths, provenance
from recollect.stages.inputs import is_trained, train_inputs
from recollect.stages.stage import TRUSTED, Job, Resources, Stage, Trust

if TYPE_CHECKING:
    import pandas as pd

    from recollect.artifacts.scoring import Scoring


def evaluator(settings: Settings) -> Callable[[Any, int, Scoring], pd.DataFrame]:
    """What judges a policy while it learns: the environment's protocol."""
    from recollect.environments import registry

    environment = settings.environment
    protocol = importlib.import_module(f"recollect.evaluation.{environment.evaluation.protocol}")
    for split in environment.evaluation.splits:  # one that there is not is found before any training
        registry.tasks(environment.world, environment.options, split)

    def evaluate(policy: Any, step: int, scoring: Scoring) -> pd.DataFrame:
        frame: pd.DataFrame = protocol.evaluate(
            policy, settings.environment, method=settings.method.name, seed=settings.seed, step=step, scoring=scoring
        )
        return frame

    return evaluate


def train(
    scale: str, env: str, method: str, seed: int, *, trust_checkpoint: Trust = False, device: str = "cpu"
) -> bool:
    """Train one run, or go on with it."""
    from recollect.artifacts.finite import check_arrays
    from recollect.artifacts.inputs import Inputs
    from recollect.artifacts.lock import run_lock
    from recollect.artifacts.run import Run
    from recollect.artifacts.sealed import write_arrays, write_table

    settings = resolve(scale, env, method, seed)
    if settings.method.evaluation_only:
        played = played_method(scale, env, method)
        raise UserError(
            f"'{method}' is not trained: it differs in acting only and plays the policy of '{played}'",
            where=f"{method_path(method)} (variant '{method}'): evaluation_only",
            do=f"train '{played}', then evaluate '{method}'",
        )
    module = algorithm_module(settings.method.algorithm, where=method_path(method))
    inputs = Inputs(device=device, **train_inputs(scale, env, method))
    job = Job("train", scale, env, method, str(seed))
    known = STAGE.provenance(job, device)
    checkpoints = paths.checkpoints(scale, env, method, seed)
    with run_lock(checkpoints):
        run = Run(
            paths.run_folder(scale, env, method, seed),
            checkpoints,
            settings_text=provenance.digest(repr(known)) + f" seed {seed}",
            made_of=STAGE.made_of(job, known),
            trust=trust_checkpoint,
            evaluate=evaluator(settings),
            env=env,
            method=method,
            seed=seed,
        )
        with run.going_on():
            arrays = module.train(settings, inputs, run).arrays()
        check_arrays(arrays, paths.policy(scale, env, method, seed))
        known = {**known, "seed": seed} | ({TRUSTED: run.trusted} if run.trusted else {})
        write_table(paths.train_table(scale, env, method, seed), run.table(), kind="train", provenance=known)
        write_arrays(paths.policy(scale, env, method, seed), arrays, kind="policy", provenance=known)
        run.forget_scorings()
    return run.resumed


STAGE = Stage(
    name="train",
    over=("scale", "env", "method", "seed"),
    reads=lambda scale, env, method, seed: train_inputs(scale, env, method),
    writes={"policy": paths.policy, "table": paths.train_table},
    settings=provenance.train_settings,
    modules=provenance.train_modules,
    only=is_trained,
    # Histories or replay, and the batch: activations of 128 windows of 1600 tokens where there is no GPU. Measured peaks at
    # smoke scale: 350 (online methods) to 680 MB (language model); torch alone takes 300. Long sequences are backpropagated
    # through, also by the online methods, so each run has a GPU.
    asks=Resources((1500, 16000), (120, 1440), threads=(1, 4), gpu=True, resumes=True),
    packages="world",
    changes=True,
    run=train,
)
