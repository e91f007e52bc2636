"""train: histories and index, or nothing (online methods) -> `policy.safetensors` and `train.parquet` of one run.

Killed at any instant, the same command goes on from the newest checkpoint and ends with the same bytes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pandas as pd

from recollect.artifacts.lock import run_lock
from recollect.artifacts.run import Run
from recollect.artifacts.sealed import write_arrays, write_table
from recollect.settings.errors import UserError
from recollect.settings.resolve import algorithm_module, method_path, played_method, resolve
from recollect.settings.schema import Settings
from recollect.stages import paths, provenance
from recollect.stages.inputs import run_inputs


def evaluator(settings: Settings) -> Callable[[Any, int], pd.DataFrame]:
    """What judges a policy while it learns: the environment's protocol."""
    protocol = importlib.import_module(f"recollect.evaluation.{settings.environment.evaluation.protocol}")

    def evaluate(policy: Any, step: int) -> pd.DataFrame:
        frame: pd.DataFrame = protocol.evaluate(
            policy, settings.environment, method=settings.method.name, seed=settings.seed, step=step
        )
        return frame

    return evaluate


def train(scale: str, env: str, method: str, seed: int, *, device: str = "cpu") -> None:
    """Train one run, or go on with it.

    Raises:
        UserError: a setting or an input is wrong, or another process trains this run.
    """
    settings = resolve(scale, env, method, seed)
    if settings.method.evaluation_only:
        played = played_method(scale, env, method)
        raise UserError(
            f"'{method}' is not trained: it differs in acting only and plays the policy of '{played}'",
            where=f"{method_path(method)} (variant '{method}'): evaluation_only",
            do=f"train '{played}', then evaluate '{method}'",
        )
    module = algorithm_module(settings.method.algorithm, where=method_path(method))
    inputs = run_inputs(settings, device)
    text, code = provenance.train_settings(scale, env, method), provenance.train_code(scale, env, method)
    files = [
        inputs.histories,
        inputs.embeddings,
        inputs.index,
        inputs.rows,
        inputs.embedder_policy,
        inputs.language_model,
        inputs.image_encoder,
        inputs.demonstrations,
        inputs.vision_language_model,
        inputs.token_vocabulary,
    ]
    known = provenance.describe(text, code, files, device)
    with run_lock(paths.checkpoints(scale, env, method, seed)):
        run = Run(
            paths.run_folder(scale, env, method, seed),
            paths.checkpoints(scale, env, method, seed),
            settings_text=provenance.digest(repr(known)) + f" seed {seed}",
            evaluate=evaluator(settings),
            env=env,
            method=method,
            seed=seed,
        )
        policy = module.train(settings, inputs, run)
        known = {**known, "seed": seed}
        write_table(paths.train_table(scale, env, method, seed), run.table(), kind="train", provenance=known)
        write_arrays(paths.policy(scale, env, method, seed), policy.arrays(), kind="policy", provenance=known)
