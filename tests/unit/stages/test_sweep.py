"""A sweep asks for the runs of a grid by the names that `--set` makes, and sums up what they scored."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pandas as pd
import pytest

from recollect.artifacts.scores import concat_scores, scores_frame
from recollect.artifacts.sealed import read_json, write_table
from recollect.settings.errors import UserError
from recollect.settings.overrides import axes, method_with
from recollect.stages import paths, search
from recollect.stages.sweep import sweep
from recollect.stages.table import STAGES

ENV, METHOD = "tmaze_passive_5", "dqn_lstm"
pytestmark = pytest.mark.usefixtures("workdir")


class Runs:
    """Stands for Snakemake: makes the score files that it is asked for, all but some, and remembers the command."""

    def __init__(self, *failing: str) -> None:
        self.failing, self.commands = failing, list[list[str]]()

    def __call__(self, command: Sequence[str]) -> int:
        self.commands.append(list(command))
        wanted = command[command.index("--") + 1 :]
        for path in wanted:
            if not any(words in path for words in self.failing):
                of = paths.scores.match(path) or {}
                scored = 10 * ("0.001" in path) + int(of["seed"])
                frame = scores_frame(step=5, split="eval", task=0, episode=[0, 1], metric="return", value=float(scored))
                write_table(path, frame.assign(env=of["env"], method=of["method"], seed=int(of["seed"])), kind="scores")
        return 1 if any(words in path for words in self.failing for path in wanted) else 0


def swept(start: Any, *changes: str, seeds: Sequence[int] = (0, 1), more: Sequence[str] = ()) -> None:
    sweep("smoke", ENV, METHOD, seeds, changes, more=more, start=start)


def test_values_have_the_form_that_they_have_in_names() -> None:
    assert axes(["learning_rate=1e-3,3e-4,0.001", "head=[16],[16,8]", "context=default"]) == {
        "learning_rate": ["0.001", "0.0003"],
        "head": ["[16]", "[16,8]"],
        "context": ["default"],
    }
    with pytest.raises(UserError, match="not of the form KEY=VALUE"):
        axes(["learning_rate"])


def test_each_combination_and_seed_is_a_run_by_its_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    runs = Runs()
    swept(runs, "learning_rate=1e-3,3e-4", "sequence.width=8,16", more=["--cores", "1"])
    (command,) = runs.commands
    names = [method_with(METHOD, [f"learning_rate={a}", f"sequence.width={b}"]) for a in (1e-3, 3e-4) for b in (8, 16)]
    expected = [str(paths.scores("smoke", ENV, name, seed)) for name in names for seed in (0, 1)]
    assert command[command.index("--") + 1 :] == expected and command[command.index("--") - 1] == "1"
    (place,) = Path("results/smoke/sweeps").rglob("*.csv")
    table = pd.read_csv(place)
    assert list(table["return"]) == [10, 11, 10, 11, 0, 1, 0, 1] and list(table["seed"]) == [0, 1] * 4
    text = capsys.readouterr().out
    assert "10.5" in text and "0.0003" in text and str(place) in text


def test_a_wrong_key_or_value_is_refused_before_anything_runs() -> None:
    runs = Runs()
    for change, answer in (
        ("lerning_rate=1,2", "learning_rate"),
        ("learning_rate=0.1,fast", "'learning_rate' is"),
        ("learning_rate=0.1..1", "--trials"),
    ):
        with pytest.raises(UserError, match=answer):
            swept(runs, change)
    assert not runs.commands


def test_so_is_every_choice_and_both_ends_of_a_range_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", MagicMock())
    runs = Runs()
    for changes, answer in (
        (("learning_rate=1e-4..1e-2", "lerning_rate=1,2"), "learning_rate"),
        (("sequence.width=8,16,wide",), "'sequence.width' is"),
        (("discount=0.9..1.5",), "'discount' is"),
    ):
        with pytest.raises(UserError, match=answer):
            sweep("smoke", ENV, METHOD, (0,), changes, trials=3, start=runs)
    assert not runs.commands


def test_what_failed_is_said_and_what_was_made_is_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"^2 of 4 runs are not there\n.*\n.*give the same command again"):
        swept(Runs("0.0003"), "learning_rate=1e-3,3e-4")
    assert "10.5" in capsys.readouterr().out  # the table, where it can be put into a file
    swept(Runs(), "learning_rate=1e-3,3e-4")
    (place,) = Path("results/smoke/sweeps").rglob("*.csv")
    assert len(pd.read_csv(place)) == 4


def test_without_a_single_run_that_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError) as refused:
        swept(Runs("0.0003"), "learning_rate=3e-4", seeds=(0,))
    assert str(refused.value).count("1 of 1 runs are not there") == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err == "1 run: 1 setting\n"


def test_two_sweeps_have_tables_of_their_own_and_a_long_grid_a_short_name() -> None:
    long = [f"0.001234567{n}" for n in range(10, 28)]
    for values in ("1e-3,3e-4", "1e-3", ",".join(long), ",".join([*long[:-1], "0.002"])):
        swept(Runs(), f"learning_rate={values}", seeds=(0,))
    found = list(Path("results/smoke/sweeps").rglob("*.csv"))
    assert len(found) == 4 and max(len(path.name) for path in found) < 255


def test_what_an_earlier_sweep_of_the_same_grid_wanted_stays_wanted() -> None:
    """`recollect clean` keeps the runs that are named there, and deletes others."""
    for seed in (0, 1):
        swept(Runs(), "learning_rate=1e-3", seeds=(seed,))
    wanted = read_json(paths.sweep_runs("smoke", ENV, f"{METHOD}.learning_rate=0.001"), kind="sweep")["runs"]
    assert wanted == [str(paths.scores("smoke", ENV, f"{METHOD}.learning_rate=0.001", seed)) for seed in (0, 1)]


def test_a_search_tells_its_sampler_the_mean_over_seeds_and_of_a_setting_that_lacks_one_that_it_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where optuna is not installed: a stand-in proposes three settings, of which the second lacks a seed."""
    optuna, told = MagicMock(), list[Any]()
    study = optuna.create_study.return_value
    study.ask.side_effect = [SimpleNamespace(params={"learning_rate": rate}) for rate in (0.001, 0.0003, 0.0007)]
    study.tell.side_effect = lambda trial, *score, **state: told.append([trial.params["learning_rate"], *score, *state])
    monkeypatch.setitem(sys.modules, "optuna", optuna)
    grid = ("learning_rate=1e-4..1e-3",)
    with pytest.raises(UserError, match="1 of 6 runs"):
        sweep("smoke", ENV, METHOD, (2, 5), grid, trials=3, start=Runs("0.0003/seed_5"))
    assert told == [[0.001, 13.5], [0.0003, "state"], [0.0007, 3.5]]
    assert optuna.create_study.call_args.kwargs["direction"] == "maximize"


def test_a_range_is_drawn_in_its_logarithm_where_its_ends_are_more_than_ten_times_apart() -> None:
    space = search._space
    for values, kind, log in (
        (["0.001..0.01"], "FloatDistribution", False),
        (["0.001..0.02"], "FloatDistribution", True),
        (["-1..20"], "IntDistribution", False),
        (["2..32"], "IntDistribution", True),
    ):
        optuna = MagicMock()
        space(optuna, "key", values)
        (call,) = optuna.method_calls
        assert (call[0], call.kwargs) == (kind, {"log": log})


def test_a_search_counts_a_seed_that_is_named_twice_once(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    words = ("learning_rate=1e-5..0.1", "sequence.width=8..64")
    told = []
    for seeds in ((0,), (0, 0)):
        sweep("smoke", ENV, METHOD, seeds, words, trials=14, start=Runs())
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]


def test_a_search_proposes_towards_what_scores_high_and_the_same_again(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    told: list[str] = []

    class Peak(Runs):
        def __call__(self, command: Sequence[str]) -> int:
            self.commands.append(list(command))
            for path in command[command.index("--") + 1 :]:
                of = paths.scores.match(path) or {}
                rate = float(of["method"].partition("learning_rate=")[2].partition(",")[0])
                told.append(of["method"])
                frame = scores_frame(step=5, split="eval", task=0, episode=0, metric="return", value=-abs(rate - 0.01))
                write_table(path, frame.assign(env=of["env"], method=of["method"], seed=0), kind="scores")
            return 0

    words = ("learning_rate=1e-5..0.1", "sequence.width=8,16")
    sweep("smoke", ENV, METHOD, (0,), words, trials=8, start=Peak())
    first = capsys.readouterr().out
    sweep("smoke", ENV, METHOD, (0,), words, trials=8, start=Peak())
    assert first == capsys.readouterr().out and told[:8] == told[8:] and len(set(told)) > 4
    with pytest.raises(UserError, match="no range of numbers"):
        sweep("smoke", ENV, METHOD, (0,), ("learning_rate=low..high",), trials=1, start=Peak())


class Twice(Runs):
    """Every run has a return, and a success that goes the other way."""

    def __call__(self, command: Sequence[str]) -> int:
        self.commands.append(list(command))
        for path in command[command.index("--") + 1 :]:
            of = paths.scores.match(path) or {}
            known = {"step": 5, "split": "eval", "task": 0, "episode": 0}
            score = float(of["seed"])
            table = concat_scores([scores_frame(**known, metric=metric, value=value)
                                   for metric, value in (("success", -score), ("return", score))])  # fmt: skip
            write_table(path, table.assign(env=of["env"], method=of["method"], seed=int(of["seed"])), kind="scores")
        return 0


def test_a_search_goes_by_the_first_score_and_makes_the_seed_that_a_setting_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    optuna, told, runs = MagicMock(), list[Any](), Twice()
    study = optuna.create_study.return_value
    study.ask.side_effect = [SimpleNamespace(params={"learning_rate": 0.001})]
    study.tell.side_effect = lambda trial, *score, **state: told.append([*score, *state])
    monkeypatch.setitem(sys.modules, "optuna", optuna)
    monkeypatch.setitem(vars(STAGES["run"]), "is_made", lambda job: job.seed == "2")  # killed between two seeds
    sweep("smoke", ENV, METHOD, (2, 5), ("learning_rate=1e-4..1e-3",), trials=1, start=runs)
    assert len(runs.commands) == 1 and told == [[3.5]]


def test_no_number_of_a_search_is_rounded_out_of_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    optuna = MagicMock()
    asked = [SimpleNamespace(params={"discount": value}) for value in (0.99012, 0.9994, 0.9997)]
    optuna.create_study.return_value.ask.side_effect = asked
    monkeypatch.setitem(sys.modules, "optuna", optuna)
    runs = Runs()
    sweep("smoke", ENV, METHOD, (0,), ("discount=0.9901..0.9998",), trials=3, start=runs)
    values = [command[-1].partition("discount=")[2].partition("/")[0] for command in runs.commands]
    assert all(0.9901 <= float(value) <= 0.9998 for value in values), values
