"""Before the first job Snakemake says about how long all that it will do takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from recollect.settings.errors import UserError
from recollect.stages.estimating import Estimator
from recollect.stages.stage import Job

RUNS = [Job("run", "demo", "dark_room_7x7", "radt", str(seed)) for seed in range(5)]
AT_PAPER_SCALE = Job("run", "paper", "tmaze_passive_50", "dqn_gpt", "1")
Said = Callable[[Iterable[Job]], str]


@pytest.fixture
def said(root: Path, monkeypatch: pytest.MonkeyPatch, in_the_repository: None) -> Said:
    monkeypatch.syspath_prepend(str(root / "workflow"))
    import first_words

    return first_words.of  # type: ignore[no-any-return]


def test_time_of_cpus_and_gpus_is_said_apart(said: Said) -> None:
    both = said([*RUNS, AT_PAPER_SCALE, Job("figure", "paper", "memory_rl_passive_tmaze")])
    assert re.fullmatch(
        r"To do: about [\d,.]+ (min|h) of GPU time and [\d.]+ (s|min) of CPU time\. `recollect forecast` says of what\.",
        both,
    )
    assert "GPU" not in said(RUNS)


def test_nothing_is_said_where_all_takes_seconds(said: Said) -> None:
    assert (
        said([Job("run", "smoke", "tmaze_passive_5", "dqn_lstm", "0")])
        == said([])
        == said([Job("figure", "demo", "helm_tokens"), Job("report", "demo"), Job("claims", "demo")])
        == ""
    )


def test_a_world_that_is_not_here_stops_nothing(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Estimator, job: Job) -> None:
        raise UserError("its package is missing", where="here", do="run with `--sdm conda`")

    monkeypatch.setattr(Estimator, "__call__", refused)
    assert said(RUNS) == ""
