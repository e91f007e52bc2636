"""Returns on a scale that tasks share: 0 is one reference return of the task, 1 another.

Tasks list the two in ``data["normalisation"]``, by metric: ``{"data_normalised": (return of a random policy, mean return of
the data)}`` (Meta-World, DMControl), ``{"hns": (lowest, highest)}`` (Procgen). They become rows of the score
table beside `return`, one per episode, so that means and intervals over tasks are those of normalised scores.

Source: RA-DT (arXiv 2410.07071), specification 5.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recollect.environments.base import Task
from recollect.settings.errors import UserError


def normalised(returns_TE: np.ndarray, tasks: Sequence[Task]) -> dict[str, np.ndarray]:
    """Normalised returns [tasks, episodes] by metric, for the metrics that every task lists.

    Raises:
        UserError: the two references of a task are equal.
    """
    listed = [task.data.get("normalisation", {}) for task in tasks]
    metrics = sorted(set.intersection(*(set(each) for each in listed))) if listed else []
    by_metric = {}
    for metric in metrics:
        zero_T1, one_T1 = np.array([each[metric] for each in listed], np.float64).T[:, :, None]
        if (zero_T1 == one_T1).any():
            name = tasks[int((zero_T1 == one_T1).argmax())].name
            do = "list a lower and a higher return in the task's `normalisation`"
            raise UserError(f"the two reference returns of '{metric}' are equal", where=f"task {name}", do=do)
        by_metric[metric] = (returns_TE - zero_T1) / (one_T1 - zero_T1)
    return by_metric
