"""Histories whose source gives each task a job of its own: the same bytes as in one job, and the workflow's plan names them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import fake_suite
import fast_yaml
import numpy as np
import pytest

from recollect.artifacts.sealed import read_arrays, verify, write_arrays
from recollect.settings.errors import UserError
from recollect.stages import paths
from recollect.stages.generate import generate
from recollect.stages.generate_task import generate_task
from recollect.stages.plan import maker, plan
from recollect.stages.rules import StageRule
from recollect.stages.stage import Job, job_of
from recollect.stages.table import STAGES
from recollect.stages.workload import work_of

ENV, ONLY = "dm_control", ["cartpole-swingup", "finger-spin", "reacher-easy"]
SOURCE = '''
"""A source that works for long at each task."""
from recollect.sources.source_policies import Hyperparameters, generate

BY_TASK = True
FAMILY = "sac"
'''


@pytest.fixture
def slow_source(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a source of one's own, and with a scale for each way."""
    fake_suite.install(monkeypatch)
    monkeypatch.setenv("RECOLLECT_MINE", str(workdir / "mine"))
    (workdir / "mine").mkdir()
    (workdir / "mine/slow_source.py").write_text(SOURCE)
    for scale, algorithm in (("apart", "slow_source"), ("together", "source_policies")):
        source = {"algorithm": algorithm, "hyperparameters": {"policy": "random", "transitions": 230}}
        environment = {"options": {"horizon": 20, "only": ONLY}, "source": source}
        content = {"description": "Short.", "seeds": [0], "environments": {ENV: environment}}
        (workdir / f"config/scales/{scale}.yaml").write_text(fast_yaml.dump(content))
    return workdir


def test_histories_made_task_by_task_are_those_made_at_once(slow_source: Path) -> None:
    jobs = STAGES["generate"].inputs(Job("generate", "apart", ENV))
    assert len(jobs) == 3
    for number, path in enumerate(jobs.values()):
        job = maker(path, "apart")
        assert job == Job("generate_task", "apart", ENV, task=str(number))
        generate_task("apart", ENV, number)
    assert generate("apart", ENV) is False
    generate("together", ENV)
    apart, together = (read_arrays(paths.histories(scale, ENV), kind="histories") for scale in ("apart", "together"))
    assert apart.keys() == together.keys()
    for name, array in together.items():
        assert apart[name].dtype == array.dtype
        np.testing.assert_array_equal(apart[name], array)
    assert len(verify(paths.histories("apart", ENV))["provenance"]["inputs"]) == 3
    assert STAGES["generate_task"].is_made(Job("generate_task", "apart", ENV, task="2"))
    assert STAGES["generate"].is_made(Job("generate", "apart", ENV))
    with pytest.raises(UserError, match="there is no task 3"):
        generate_task("apart", ENV, 3)


def test_the_histories_of_more_than_ten_tasks_stand_in_the_order_of_the_tasks(slow_source: Path) -> None:
    content = {"description": "All.", "seeds": [0], "environments": {ENV: {"source": {"algorithm": "slow_source"}}}}
    (slow_source / "config/scales/many.yaml").write_text(fast_yaml.dump(content))
    jobs = [maker(path, "many") for path in STAGES["generate"].inputs(Job("generate", "many", ENV)).values()]
    assert len(jobs) > 10
    for job in jobs:
        assert job is not None
        ones = {
            "observation": np.ones((1, 2), np.float32),
            "action": np.ones((1, 2), np.float32),
            "done": np.ones(1, bool),
        }
        arrays = {**ones, "reward": np.ones(1, np.float32), "task": np.array([int(job.task)], np.int32)}
        known = STAGES["generate_task"].provenance(job)
        write_arrays(paths.task_histories("many", ENV, job.task), arrays, kind="histories", provenance=known)
    generate("many", ENV)
    assert read_arrays(paths.histories("many", ENV), kind="histories")["task"].tolist() == list(range(len(jobs)))


def test_jobs_of_tasks_have_a_rule_packages_and_a_place_for_their_log(slow_source: Path) -> None:
    rule = StageRule("generate_task")
    wildcards = {"scale": "apart", "env": ENV, "task": "12"}
    assert rule.job(wildcards) == job_of("generate_task", wildcards) == Job("generate_task", "apart", ENV, task="12")
    assert rule.log == "logs/{scale}/{env}/task_{task}/generate_task.log"
    assert "--task {wildcards.task}" in rule.command and rule.conda(wildcards) == "../envs/sac.yaml"
    assert StageRule("generate").conda(wildcards) == "../envs/sac.yaml"
    assert StageRule("generate").conda({**wildcards, "scale": "together"}) == "../envs/control.yaml"
    other = {**wildcards, "task": "3"}
    assert rule.settings(wildcards) == rule.settings(other) and rule.code(wildcards) == rule.code(other)
    assert maker(paths.task_histories("together", ENV, 3), "together") is None


def test_at_paper_scale_a_job_is_one_task_of_less_than_a_day(workdir: Path) -> None:
    jobs = plan("paper", ["radt_meta_world", "radt_dmcontrol"]).needs
    assert Counter(job.env for job in jobs if job.stage == "generate_task") == {"meta_world": 45, "dm_control": 11}
    for env in ("meta_world", "dm_control"):
        one, all_of_them = (
            work_of(Job(stage, "paper", env, task=task)) for stage, task in (("generate_task", "0"), ("generate", ""))
        )
        hours = (
            one.passes * 0.0004 + one.flop / 3e10 + one.env_steps * 0.001
        ) / 3600  # on the core of config/speeds.yaml
        assert 4 < hours < 24 and all_of_them.flop == all_of_them.passes == 0 < all_of_them.disk
