"""evaluate: policy -> `scores.parquet`, the one table that figures read.

Scores hold the final evaluation and every evaluation that was made while the method learned. A variant that is not
trained plays its method's policy, and has the final evaluation only.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from recollect.artifacts.lock import run_lock
from recollect.artifacts.progress import Progress
from recollect.artifacts.scores import concat_scores
from recollect.artifacts.sealed import read_arrays, read_table, write_table
from recollect.evaluation.score_table import final_step, learning_rows, step_of
from recollect.settings.errors import UserError
from recollect.settings.resolve import algorithm_module, resolve
from recollect.settings.schema import Settings
from recollect.stages import paths, provenance
from recollect.stages.inputs import policy_method, run_inputs


def kept_policy(scale: str, env: str, method: str, seed: int, checkpoint: str) -> Path:
    """Where a kept policy lies.

    Raises:
        UserError: the run kept none of this name.
    """
    path = paths.kept_policy(scale, env, method, seed, checkpoint)
    if not path.is_file():
        there = ", ".join(sorted(each.stem for each in path.parent.glob("*.safetensors"))) or "none"
        raise UserError(
            f"no policy '{checkpoint}' was kept of this run (there: {there})",
            where=path.parent,
            do="choose one of these; AMAGO's runs keep best and latest, and more with keep_every",
        )
    return path


def evaluate(
    scale: str, env: str, method: str, seed: int, *, checkpoint: str | None = None, device: str = "cpu"
) -> None:
    """Play the environment's evaluation with a finished run's policy.

    Args:
        scale, env, method, seed: which run.
        checkpoint: a policy that it kept, `best`, `latest` or the number of an epoch. Its scores get a table of their own,
            without evaluations made while learning.
        device: where to play.

    Raises:
        UserError: the policy is missing, corrupted, or does not fit the environment.
    """
    settings: Settings = resolve(scale, env, method, seed)
    module = algorithm_module(settings.method.algorithm, where=f"config/methods/{method}.yaml")
    inputs = run_inputs(settings, device)
    trained = policy_method(scale, env, method)
    source, table = paths.policy(scale, env, trained, seed), paths.train_table(scale, env, trained, seed)
    target = paths.scores(scale, env, method, seed)
    if checkpoint is not None:
        checkpoint = f"epoch_{int(checkpoint):06d}" if checkpoint.isdecimal() else checkpoint
        source = kept_policy(scale, env, trained, seed, checkpoint)
        target = paths.kept_scores(scale, env, method, seed, checkpoint)
    known = provenance.describe(
        provenance.evaluate_settings(scale, env, method),
        provenance.evaluate_code(scale, env, method),
        [
            source,
            table,
            inputs.language_model,
            inputs.vision_language_model,
            inputs.token_vocabulary,
            inputs.image_encoder,
            inputs.demonstrations,
        ],
        device,
    )
    with run_lock(target.parent):
        train_table = read_table(table, kind="train")
        policy = module.load_policy(settings, read_arrays(source, kind="policy"), inputs)
        protocol = importlib.import_module(f"recollect.evaluation.{settings.environment.evaluation.protocol}")
        episodes = settings.environment.evaluation.episodes
        with Progress(episodes, f"evaluating {method} on {env}, seed {seed}", "episodes") as progress:
            final = protocol.evaluate(
                policy,
                settings.environment,
                method=method,
                seed=seed,
                step=final_step(train_table) if checkpoint is None else step_of(train_table, checkpoint),
                progress=lambda done: progress.update(done),
            )
        whole = trained == method and checkpoint is None
        rows = concat_scores([learning_rows(train_table, final), final] if whole else [final])
        write_table(target, rows, kind="scores", provenance={**known, "seed": seed})
