"""Normalised scores: 0 and 1 where the references lie, and only for metrics that every task lists."""

from __future__ import annotations

import numpy as np
import pytest

from recollect.environments import registry
from recollect.environments.base import Task
from recollect.evaluation.normalised_scores import normalised
from recollect.settings.errors import UserError


def task(index: int, **metrics: tuple[float, float]) -> Task:
    return Task(index, f"t{index}", "eval", {"normalisation": metrics})


def test_a_random_policy_scores_zero_and_the_reference_one() -> None:
    tasks = [task(0, data_normalised=(10, 20)), task(1, data_normalised=(-5, 5))]
    found = normalised(np.array([[10.0, 20, 25], [-5, 0, 5]]), tasks)
    assert {name: values.tolist() for name, values in found.items()} == {"data_normalised": [[0, 1, 1.5], [0, 0.5, 1]]}


def test_metrics_that_some_task_lacks_are_left_out() -> None:
    assert normalised(np.zeros((2, 1)), [task(0, a=(0, 1), b=(0, 2)), task(1, b=(1, 2))]).keys() == {"b"}
    assert normalised(np.zeros((1, 1)), [Task(0, "t", "eval")]) == {}


def test_the_published_normalised_scores_follow_from_the_published_returns() -> None:
    """RA-DT's tables: mean return 444.0 of RA-DT is .53 on DMControl, 154.6 of AD is .09. Normalised task by task, so
    that a policy with the mean's share everywhere is only near them.
    """
    tasks = registry.tasks("dm_control", {}, "eval")
    references = np.array([t.data["normalisation"]["data_normalised"] for t in tasks])
    for mean, published in ((444.0, 0.53), (154.6, 0.09), (311.4, 0.35)):
        share = (mean - references[:, 0].mean()) / (references[:, 1] - references[:, 0]).mean()
        returns = references[:, :1] + share * (references[:, 1:] - references[:, :1])
        assert abs(normalised(returns, tasks)["data_normalised"].mean() - published) < 0.03


def test_equal_references_are_refused() -> None:
    task = Task(0, "even", "eval", {"normalisation": {"hns": (2.0, 2.0)}})
    with pytest.raises(UserError, match="reference returns of 'hns' are equal") as error:
        normalised(np.ones((1, 3)), [task])
    assert error.value.where == "task even"
