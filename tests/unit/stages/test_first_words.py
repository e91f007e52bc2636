"""Before the first job Snakemake says about how long all that it will do takes, and does not begin unasked what is too dear."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from recollect.settings import loading
from recollect.settings.errors import UserError
from recollect.settings.resolve import names
from recollect.stages import device_speeds, first_words
from recollect.stages.amounts import said_time
from recollect.stages.estimating import Estimate, Estimator
from recollect.stages.selection import default_selection
from recollect.stages.stage import Job

RUNS = [Job("run", "demo", "dark_room_7x7", "radt", str(seed)) for seed in range(5)]
SHORT = Job("run", "smoke", "tmaze_passive_5", "dqn_lstm", "0")
AT_PAPER_SCALE = Job("run", "paper", "tmaze_passive_50", "dqn_gpt", "1")
Said = Callable[..., str]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, in_the_repository: None) -> Said:
    """On a machine of two cores without a GPU."""
    monkeypatch.setattr(first_words, "usable", lambda wanted: [])
    return partial(first_words.of, local=True, cores=2, most_hours=None, selected=default_selection())


def test_time_of_cpus_and_gpus_is_said_apart(said: Said) -> None:
    both = said([*RUNS, AT_PAPER_SCALE, Job("figure", "demo", "memory_rl_passive_tmaze")], local=False)
    times = r"about [\d,.]+ (s|min|h) of GPU time and [\d.]+ (s|min) of CPU time"
    assert re.fullmatch(
        rf"To do: {times}\. `recollect forecast --scale demo memory_rl_passive_tmaze` says of what\.", both
    )
    assert "GPU" not in said(RUNS)


@pytest.mark.parametrize(
    ("drawn", "chosen", "named"),
    [
        (["helm_minigrid"], ("headlines",), "helm_minigrid"),
        pytest.param(default_selection().sets["demo_all"], ("demo_all",), "demo_all", marks=pytest.mark.slow),
        (default_selection().sets["demo_all"][:6], ("demo_all",), "demo_all"),  # the others are drawn
        pytest.param(names("figures"), ("all",), "all", marks=pytest.mark.slow),
        (names("figures"), ("headlines",), "all"),  # the target `paper`
    ],
)
def test_the_command_that_says_of_what_is_about_what_will_run(
    said: Said, drawn: Sequence[str], chosen: tuple[str, ...], named: str
) -> None:
    jobs = [*RUNS, *(Job("figure", "demo", figure) for figure in drawn)]
    selected = default_selection().model_copy(update={"figures": chosen})
    assert f"`recollect forecast --scale demo {named}` says of what." in said(jobs, selected=selected)
    assert "recollect forecast" not in said(RUNS, selected=selected)  # which is about figures only


def test_on_gpus_it_is_the_time_of_a_forecast(said: Said) -> None:
    """Of what a GPU was timed at, with the seeds of a job as one network."""
    runs = [Job("run", "paper", "tmaze_passive_50", "dqn_gpt", str(seed)) for seed in range(1, 11)]
    timed = device_speeds.speeds_of("auto")
    assert timed is not None
    together = Estimator({}, "auto", timed, dict.fromkeys(runs, len(runs)))
    assert said_time(sum(together(job).seconds for job in runs)) + " of GPU time" in said(runs, local=False)


def test_without_a_gpu_the_time_is_that_of_this_machine(said: Said) -> None:
    """It said what a GPU would take, hundreds of times less, and began."""
    here = said([AT_PAPER_SCALE])
    time = r"about [\d,.]+ h of CPU time without a GPU, for which the settings are meant"
    assert re.fullmatch(rf"To do: {time}\.", here)


def test_what_takes_too_long_here_does_not_begin_unasked(said: Said) -> None:
    with pytest.raises(UserError, match=r"this machine would work for .* h: about .* h of CPU time") as refused:
        said([AT_PAPER_SCALE], most_hours=1)
    assert (hours := re.search(r"`--config hours=(\d+)`", refused.value.do))
    assert said([AT_PAPER_SCALE], most_hours=float(hours[1])).startswith("To do: ")
    assert said([AT_PAPER_SCALE], most_hours=1, local=False)  # on a cluster there is a limit for each job
    assert said([AT_PAPER_SCALE], most_hours=1, cores=1000)


def test_nothing_is_said_where_all_takes_seconds(said: Said) -> None:
    assert said([]) == said([SHORT]) == said([Job("figure", "demo", "helm_tokens"), Job("report", "demo")]) == ""


def test_a_world_that_is_not_here_stops_nothing(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Any, job: Job) -> None:
        raise UserError("its package is missing", where="here", do="run with `--sdm conda`")

    monkeypatch.setattr(Estimator, "__call__", refused)
    assert said(RUNS) == ""


def test_no_file_is_read_twice(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    read: Counter[Path] = Counter()
    parse = loading._parse
    monkeypatch.setattr(loading, "_parse", lambda path, stamp: read.update([path]) or parse(path, stamp))
    assert said(RUNS)
    assert len(read) > 10 and set(read.values()) == {1}


@pytest.mark.usefixtures("in_the_repository")
def test_on_two_gpus_four_hours_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_words, "usable", lambda wanted: ["GPU-a", "GPU-b"])
    monkeypatch.setattr(Estimator, "__call__", lambda self, job: Estimate(3600.0, "measured", True, 0.0, 0.0))
    runs = [Job("run", "paper", "tmaze_passive_50", "dqn_gpt", str(seed)) for seed in range(4)]
    said = partial(first_words.of, runs, local=True, cores=8, selected=default_selection())
    assert said(most_hours=2.1).startswith("To do: ")
    with pytest.raises(UserError, match=r"this machine would work for 2\.0 h"):
        said(most_hours=1.9)
