"""train: histories and index, or nothing (online methods) -> `policy.safetensors` and `train.parquet` of one run.

Killed at any instant, the same command goes on from the newest checkpoint and ends with the same bytes.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.settings.errors import UserError, shown
from recollect.settings.resolve import algorithm_module, method_path, played_method, resolve
from recollect.settings.schema import Settings
from recollect.stages import paths, provenance
from recollect.stages.begun import begun, with_trusted
from recollect.stages.inputs import devices, is_trained, train_inputs
from recollect.stages.pairs import check_pair
from recollect.stages.stage import Job, Resources, Stage, Trust, is_ensemble

if TYPE_CHECKING:
    import pandas as pd

    from recollect.artifacts.inputs import Inputs
    from recollect.artifacts.run import Run
    from recollect.artifacts.scoring import Scoring

log = logging.getLogger(__name__)


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
    """Train one run, or go on with it; a finished one of today is kept."""
    with prepared(scale, env, method, seed, trust_checkpoint, device) as one:
        one.finish(learned(one))
    return one.run.resumed


def learned(one: Training) -> Any:
    """Train one run: on a GPU as an ensemble of itself, where its scale has ensembles of its method. Its policy."""
    settings, policy = one.settings, None
    if one.inputs.device != "cpu" and is_ensemble(settings.scale, settings.method.name):
        policy = as_ensemble(one)
    if policy is None:
        with one.run.going_on():
            policy = one.algorithm.train(settings, one.inputs, one.run)
    return policy


def as_ensemble(one: Training) -> Any:
    """Train a run as an ensemble of itself, whose updates and acting are CUDA graphs on a GPU; its policy.

    None where it cannot be one, which is said. Raises what broke the run.
    """
    policies: list[Any] = []
    try:
        failed = one.algorithm.train_together(
            [one.settings], one.inputs, [one.run], lambda place, policy: policies.append(policy)
        )
    except UserError as error:
        log.warning("it is trained without CUDA graphs, which is slower: %s", error)
        return None
    if failed:
        raise failed[0]
    return policies[0]


def train_together(
    scale: str, env: str, method: str, seeds: list[int], *, trust_checkpoint: bool = False, device: str = "cpu"
) -> tuple[int, dict[int, bool]]:
    """Train several seeds of a run as an ensemble, or go on with them; one that fails is said, and stops no other.

    Returns:
        how many were begun together, and the seeds that are trained now -> whether they went on from a checkpoint.
    """
    ended: dict[int, bool] = {}
    with ExitStack() as held:
        members: list[Training] = []
        for seed in seeds:
            try:
                members.append(held.enter_context(prepared(scale, env, method, seed, trust_checkpoint, device)))
            except UserError as error:
                log.warning("seed %d is not trained with the others: %s", seed, error)
        if not members:
            return 0, ended

        def finished(place: int, policy: Any) -> None:
            members[place].finish(policy)
            ended[members[place].settings.seed] = members[place].run.resumed

        settings, runs = [one.settings for one in members], [one.run for one in members]
        failed = members[0].algorithm.train_together(settings, members[0].inputs, runs, finished)
    for place, reason in failed.items():
        log.warning("seed %d is no longer trained with the others: %s", settings[place].seed, reason)
    return len(members), ended


@dataclass(frozen=True)
class Training:
    """A run that is about to be trained, whose folder this process holds."""

    algorithm: Any
    settings: Settings
    inputs: Inputs
    run: Run
    known: Mapping[str, Any]
    """What the manifests of its artifacts hold."""

    def finish(self, policy: Any) -> None:
        """Write its policy and its training table."""
        from recollect.artifacts.finite import check_arrays
        from recollect.artifacts.sealed import write_arrays, write_table

        of = (self.settings.scale, self.settings.environment.name, self.settings.method.name, self.settings.seed)
        if not hasattr(policy, "arrays"):
            returned = "nothing" if policy is None else f"a `{type(policy).__name__}`, which has no `arrays`"
            do = "return a policy: what it must be able to do stands in src/recollect/common/contract.py"
            raise UserError(f"`train` returned {returned}", where=shown(Path(self.algorithm.__file__)), do=do)
        arrays = policy.arrays()
        check_arrays(arrays, paths.policy(*of))
        known = {**with_trusted(self.known, self.run), "seed": self.settings.seed}
        write_table(paths.train_table(*of), self.run.table(), kind="train", provenance=known)
        write_arrays(paths.policy(*of), arrays, kind="policy", provenance=known)
        self.run.forget_scorings()
        if self.run.live is not None:
            self.run.live.done()


@contextmanager
def prepared(scale: str, env: str, method: str, seed: int, trust_checkpoint: bool, device: str) -> Iterator[Training]:
    """Everything that training one run needs; its folder is held for as long as the block lasts."""
    from recollect.artifacts.inputs import Inputs
    from recollect.artifacts.trackers import Tracked

    settings = resolve(scale, env, method, seed)
    if settings.method.evaluation_only:
        played = played_method(scale, env, method)
        raise UserError(
            f"'{method}' is not trained: it differs in acting only and plays the policy of '{played}'",
            where=f"{method_path(method)} (variant '{method}'): evaluation_only",
            do=f"train '{played}', then evaluate '{method}'",
        )
    check_pair(scale, env, method)
    module = algorithm_module(settings.method.algorithm, where=method_path(method))
    inputs = Inputs(device=device, **train_inputs(scale, env, method))
    job = Job("train", scale, env, method, str(seed))
    known = STAGE.provenance(job, device)
    names = {"scale": scale, "env": env, "method": method, "seed": seed}
    with begun(
        STAGE,
        job,
        known,
        paths.run_folder(scale, env, method, seed),
        paths.checkpoints(scale, env, method, seed),
        trust=trust_checkpoint,
        tracked=Tracked(names, paths.tracking.of(names), settings.method.hyperparameters),
        evaluate=evaluator(settings),
        env=env,
        method=method,
        seed=seed,
    ) as run:
        yield Training(module, settings, inputs, run, known)


STAGE = Stage(
    name="train",
    over=("scale", "env", "method", "seed"),
    reads=lambda scale, env, method, seed: train_inputs(scale, env, method),
    writes={"policy": paths.policy, "table": paths.train_table},
    settings=provenance.train_settings,
    modules=provenance.train_modules,
    only=is_trained,
    keeps=True,
    # Histories or replay, and the batch: activations of 128 windows of 1600 tokens where there is no GPU. Measured peaks at
    # smoke scale: 350 (online methods) to 680 MB (language model); torch alone takes 300. Long sequences are backpropagated
    # through, also by the online methods, so each run has a GPU.
    asks=Resources((1500, 16000), (120, 1440), threads=(1, 4), gpu=devices, resumes=True),
    packages="world",
    changes=True,
    run=train,
)
