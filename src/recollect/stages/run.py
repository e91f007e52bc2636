"""run: train and evaluate, in one process -> policy, training table and scores of one run.

What is there already, whole and made of today's settings, code and inputs, is kept: a change of how policies are judged
trains nothing again. Variants that are not trained are evaluated by a job of their own. Checkpoints go when the whole
command has ended well: where one of its seeds fails, Snakemake may take away what the others made.
"""

from __future__ import annotations

import logging
import time
from functools import partial

from recollect.settings.catalogue import message_of
from recollect.settings.errors import UserError
from recollect.settings.resolve import names
from recollect.settings.still import held_still
from recollect.stages import evaluate, paths, train
from recollect.stages.circumstances import made_with
from recollect.stages.inputs import devices, has_memory, is_trained, learns_from_histories, train_inputs
from recollect.stages.provenance import digest, embedder_of
from recollect.stages.records import kept, note, timed
from recollect.stages.stage import Job, Resources, Stage, Trust, is_ensemble, is_large

log = logging.getLogger(__name__)


@held_still()
def run(scale: str, env: str, method: str, seed: int, *, trust_checkpoint: Trust = False, device: str = "cpu") -> None:
    """Train one run and score its policy; what is there and of today is kept."""
    job = Job("run", scale, env, method, str(seed))
    for part, step in STAGE.steps(job):
        if not kept(part, step):
            told = {"trust_checkpoint": True} if part is train.STAGE and trust_checkpoint else {}
            timed(part, step, device, partial(part.run, scale, env, method, seed, device=device, **told))


def ahead(
    scale: str, env: str, method: str, seeds: list[int], *, trust_checkpoint: bool = False, device: str = "cpu"
) -> None:
    """Train several seeds as an ensemble, where the scale asks for it. Then `run` finds them trained, and scores them.

    Large runs are so on GPUs only: on a CPU their updates together take longer than one after the other (docs/together.md).
    What does not come to its end here is left to `run`, which trains it alone, from its newest checkpoint.
    """
    if not is_ensemble(scale, method):
        return
    if device == "cpu" and is_large(scale):
        log.info("on a CPU the seeds of scale %s are trained one after the other", scale)
        return
    jobs = {seed: Job("train", scale, env, method, str(seed)) for seed in seeds}
    wanted = [seed for seed, job in jobs.items() if not train.STAGE.is_made(job)]
    if len(wanted) < 2:
        return
    known = made_with(device)  # now: files may be edited while it works
    settings, start = digest(train.STAGE.settings_text(jobs[wanted[0]])), time.perf_counter()
    try:
        begun, trained = train.train_together(
            scale, env, method, wanted, trust_checkpoint=trust_checkpoint, device=device
        )
    except Exception as error:
        said = message_of(error)
        log.warning("seeds are trained one after the other: %s", said or error, exc_info=said is None)
        return
    share = (time.perf_counter() - start) / max(begun, 1)  # of the device, that each of them had
    for seed, resumed in trained.items():
        note(jobs[seed], device, settings, known, seconds=share, resumed=resumed, seeds=begun)


def ended(scale: str, env: str, method: str, seed: int) -> None:
    """Remove what only a run that goes on needs: its checkpoints, and the buffer beside them."""
    from recollect.artifacts.lock import run_lock
    from recollect.artifacts.set_aside import remove_finished

    folder = paths.checkpoints(scale, env, method, seed)
    try:
        with run_lock(folder):
            remove_finished(folder)
    except UserError as error:  # another process is at work there, or the folder cannot be written
        log.info("the checkpoints stay: %s", error)


def priority(scale: str, env: str, method: str, seed: str) -> int:
    """Longest chain first: generate (70), the embedder's run, embed (50), index (45), what reads a memory, the rest."""
    embeds = (("method", method, int(seed)) == embedder_of(scale, env, other) for other in names("methods"))
    if any(embeds):
        return 60
    if has_memory(scale, env, method):
        return 40
    return 20 if learns_from_histories(scale, env, method) else 30


STAGE = Stage(
    name="run",
    over=("scale", "env", "method", "seed"),
    reads=lambda scale, env, method, seed: train_inputs(scale, env, method),
    writes={**train.STAGE.writes, **evaluate.STAGE.writes},
    settings=lambda *of: f"{train.STAGE.settings(*of)} {evaluate.STAGE.settings(*of)}",
    modules=lambda *of: sorted({*train.STAGE.modules(*of), *evaluate.STAGE.modules(*of)}),  # type: ignore[misc]
    only=is_trained,
    parts=(train.STAGE, evaluate.STAGE),
    keeps=True,
    # As training; a day of it and four hours of scores at most.
    asks=Resources((1500, 16000), (180, 1680), threads=(1, 4), gpu=devices, resumes=True),
    priority=priority,
    packages="world",
    ahead=ahead,
    ended=ended,
    run=run,
)
