"""evaluate: policy -> `scores.parquet`, the one table that figures read.

Scores hold the final evaluation and every evaluation that was made while the method learned. A variant that is not
trained plays its method's policy, and has the final evaluation only.
"""

from __future__ import annotations

import importlib
import logging
import time
from pathlib import Path
from typing import Annotated

from recollect.settings.errors import UserError
from recollect.settings.resolve import algorithm_module, method_path, played_method, resolve
from recollect.settings.still import held_still
from recollect.stages import paths, provenance, train
from recollect.stages.inputs import evaluate_inputs, is_trained, plays_on_gpu
from recollect.stages.stage import Job, Resources, Stage

log = logging.getLogger(__name__)


def name_of(checkpoint: str | int) -> str:
    """The name of a kept policy: epochs may be given by their number."""
    said = str(checkpoint)
    return f"epoch_{int(said):06d}" if said.isdecimal() else said


def kept_policy(scale: str, env: str, method: str, seed: int, checkpoint: str | int) -> Path:
    """Where a kept policy lies, see `name_of`.

    Raises:
        UserError: the run kept none of this name.
    """
    path = paths.kept_policy(scale, env, method, seed, name_of(checkpoint))
    if not path.is_file():
        there = ", ".join(sorted(each.stem for each in path.parent.glob("*.safetensors"))) or "none"
        raise UserError(
            f"no policy '{checkpoint}' was kept of this run (there: {there})",
            where=path.parent,
            do="choose one of these; AMAGO's runs keep best and latest, and more with keep_every",
        )
    return path


def say_if_stale(scale: str, env: str, method: str, seed: int) -> None:
    """Warn where the policy that is played was not trained with today's settings and code."""
    from recollect.artifacts.sealed import read_manifest

    trained = played_method(scale, env, method)
    made = read_manifest(paths.policy(scale, env, trained, seed))["provenance"]
    if other := " and ".join(train.STAGE.others(made, Job("train", scale, env, trained, str(seed)))):
        what = f"the policy of '{trained}' in '{env}', seed {seed}, is not of today's {other}"
        log.warning("warning: %s; it is played as it lies there, and `recollect run` makes it anew", what)


@held_still()
def evaluate(
    scale: str,
    env: str,
    method: str,
    seed: int,
    *,
    checkpoint: Annotated[
        str | None, "A policy that the run kept: best, latest or an epoch; none: the run's own."
    ] = None,
    device: str = "cpu",
) -> None:
    """Score a trained policy: play the environment's evaluation with it. Killed, the same command goes on with it.

    The scores of a policy that was kept get a table of their own, without evaluations made while learning.
    """
    from recollect.artifacts.cadence import Cadence
    from recollect.artifacts.inputs import Inputs
    from recollect.artifacts.lock import run_lock
    from recollect.artifacts.progress import Progress
    from recollect.artifacts.scores import concat_scores
    from recollect.artifacts.scoring import Scoring
    from recollect.artifacts.sealed import read_arrays, read_table, write_table
    from recollect.evaluation.score_table import final_step, learning_rows, step_of

    settings = resolve(scale, env, method, seed)
    module = algorithm_module(settings.method.algorithm, where=method_path(method))
    files = evaluate_inputs(scale, env, method, seed)
    target = paths.scores(scale, env, method, seed)
    kept_at = paths.scoring(scale, env, method, seed)
    if checkpoint is not None:
        checkpoint = name_of(checkpoint)
        files["policy"] = kept_policy(scale, env, played_method(scale, env, method), seed, checkpoint)
        target = paths.kept_scores(scale, env, method, seed, checkpoint)
        kept_at = paths.kept_scoring(scale, env, method, seed, checkpoint)
    inputs = Inputs(device=device, **files)
    known = STAGE.provenance(Job("evaluate", scale, env, method, str(seed)), device, files)
    if checkpoint is None:
        say_if_stale(scale, env, method, seed)
    with run_lock(target.parent):
        train_table = read_table(inputs["train"], kind="train")
        step = final_step(train_table) if checkpoint is None else step_of(train_table, checkpoint)
        scoring = Scoring(kept_at, lambda: f"{provenance.digest(repr(known))} seed {seed}", Cadence(time.monotonic))
        policy = module.load_policy(settings, read_arrays(inputs["policy"], kind="policy"), inputs)
        protocol = importlib.import_module(f"recollect.evaluation.{settings.environment.evaluation.protocol}")
        episodes = settings.environment.evaluation.episodes
        with Progress(episodes, f"evaluating {method} on {env}, seed {seed}", "episodes") as progress:
            final = protocol.evaluate(
                policy,
                settings.environment,
                method=method,
                seed=seed,
                step=step,
                progress=lambda done: progress.update(done),
                scoring=scoring,
            )
        rows = [final]
        if checkpoint is None and is_trained(scale, env, method):
            rows = [learning_rows(train_table, final), final]
        write_table(target, concat_scores(rows), kind="scores", provenance={**known, "seed": seed})
        scoring.clear()


STAGE = Stage(
    name="evaluate",
    over=("scale", "env", "method", "seed"),
    reads=evaluate_inputs,
    writes={"scores": paths.scores},
    settings=provenance.evaluate_settings,
    modules=provenance.evaluate_modules,
    only=lambda *of: not is_trained(*of),  # what is trained is scored by the same job
    # The caches of all tasks at once, and their growing memories; or a frozen language model of 5 GB with its table of words,
    # and the memories of as many rows as 4 GB hold. Online methods without one play a few short episodes: no GPU.
    asks=Resources((1500, 12000), (60, 240), threads=(1, 4), gpu=plays_on_gpu),
    priority=10,
    packages="world",
    changes=True,
    run=evaluate,
)
