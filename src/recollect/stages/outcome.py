"""The last line of a job that was done by hand, or of its log: what it made, where, and what a policy scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recollect.stages import paths
from recollect.stages.evaluate import name_of
from recollect.stages.stage import Job, Stage


def outcome(stage: Stage, job: Job, options: Mapping[str, Any]) -> str:
    """``return 0.9, 4 tasks: results/.../scores.parquet``, or ``results/.../x.pdf, and x.png, x.csv``.

    Args:
        options: of the command; `checkpoint` names a policy that a run kept, whose scores have a file of their own.
    """
    made = stage.makes(job)
    if options.get("checkpoint"):
        made = [paths.kept_scores(*job[1:5], name_of(options["checkpoint"]))]
    scores = next((path for path in made if path.name.startswith("scores")), None)
    if scores is None:
        others = ", ".join(path.name for path in made[1:])
        return f"{made[0]}{f', and {others}' * bool(others)}"
    from recollect.artifacts.sealed import read_table
    from recollect.stages.final_scores import final_scores

    table = read_table(scores, kind="scores")
    words = "; ".join(f"{words}: {value:.4g}" for words, value in final_scores(table, job.scale, job.env, ()).items())
    return f"{words} ({scores})"
