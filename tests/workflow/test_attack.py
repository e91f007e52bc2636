"""The campaign of `make attack`: its trials can be made, and what does not hold is counted and ends it with a status."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the attack is no part of the package

import attack  # noqa: E402
from attack import __main__, bad_input, campaign, flips, jobs, kills, surroundings, table, trees  # noqa: E402
from attack.campaign import Trial  # noqa: E402
from recollect.settings.errors import UserError  # noqa: E402
from recollect.stages.between_marks import marks  # noqa: E402


def test_the_campaign_is_as_large_as_it_must_be(tmp_path: Path) -> None:
    reference = jobs.Reference(tmp_path / "reference")
    planned = list(__main__.trials(campaign.Plan(reference), list(attack.KINDS)))
    counted = {kind: sum(trial.counts == kind for trial in planned) for kind in table.LEAST}
    # A trial of kills is one kill at least, and up to three.
    assert counted["kills"] * 2 >= table.LEAST["kills"]
    assert all(counted[kind] >= least for kind, least in table.LEAST.items() if kind != "kills"), counted
    names = [trial.name for trial in planned]
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_a_handful_of_trials_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["bad_input", "--only", "/dqn_gpt", "--workers", "1"]) == 0
    said = capsys.readouterr().out
    assert "| a path is no name |" in said and "Not the whole campaign" in said


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python that forks jobs is not started: no trial runs one."""
    monkeypatch.setattr(__main__.preloaded, "address", lambda: "")
    monkeypatch.setattr(__main__.preloaded, "MORE", [])


def test_what_does_not_hold_is_counted_and_gives_a_status(
    no_process: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def taken(folder: Path) -> None:
        folder.mkdir()
        flips.refused(("settings", "--help"), folder)

    def broken(folder: Path) -> None:
        raise ZeroDivisionError

    def hangs(folder: Path) -> None:
        jobs.run(("settings", "--help"), folder.parent)

    def late(*of: object, **how: object) -> None:
        raise subprocess.TimeoutExpired("recollect", 0.0)

    monkeypatch.setattr(flips, "run", lambda words, folder: jobs.Said(0, "its help"))
    monkeypatch.setattr(jobs.preloaded, "run", late)
    made = [Trial("bad inputs", "a promise", function.__name__, function) for function in (taken, broken)]
    made += [Trial("bad inputs", "another", "hangs", hangs), Trial("bad inputs", "another", "holds", lambda folder: 3)]
    monkeypatch.setattr(bad_input, "trials", lambda plan: iter(made))
    assert __main__.main(["bad_input", "--workers", "1"]) == 1
    said = capsys.readouterr()
    assert "| a promise | 2 | 2 |" in said.out and "| another | 4 | 1 |" in said.out and "| all | 6 | 3 |" in said.out
    assert "FAILED taken: taken without a word" in said.err and "ZeroDivisionError" in said.err
    assert "did not end in" in said.err


def test_a_campaign_of_too_few_trials_or_of_none_fails(
    no_process: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = [Trial("flips", "a promise", "holds", lambda folder: None)]
    monkeypatch.setattr(__main__, "trials", lambda plan, kinds: iter(few))
    assert __main__.main(["--workers", "1"]) == 1
    assert "FAILED only 1 flips; a whole campaign has" in capsys.readouterr().err
    assert __main__.main(["swaps"]) == 0
    assert __main__.main(["swaps", "--only", "another name"]) == 1


@pytest.mark.parametrize(
    ("status", "text", "left", "said"),
    [
        (2, "error: a word is wrong", "", ""),
        (2, "Error: no such option", "logs/of_the_job.log", ""),
        (0, "error: a word is wrong", "", "taken without a word"),
        (1, "error: Traceback", "", "a traceback"),
        (1, "Killed", "", "without a message"),
        (2, "error: a word is wrong", "results/half", "refused, but it left: ['results/half']"),
    ],
)
def test_refused_means_a_message_and_nothing_left(
    status: int, text: str, left: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(words: object, folder: Path) -> jobs.Said:
        if left:
            (folder / left).parent.mkdir()
            (folder / left).touch()
        return jobs.Said(status, text)

    monkeypatch.setattr(flips, "run", run)
    with pytest.raises(jobs.Failed, match=re.escape(said)) if said else nullcontext():
        flips.refused(("train",), tmp_path)
    if not left:  # where a disk is full, files of before stay
        with pytest.raises(jobs.Failed) if said else nullcontext():
            surroundings.said_as_a_message(jobs.Said(status, text))


@pytest.mark.parametrize("found", [{"a": "1"}, {"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "0"}])
def test_missing_files_and_other_ones_and_other_bytes_differ(found: dict[str, str]) -> None:
    kills.compare({"a": "1", "b": "2"}, {"b": "2", "a": "1"})
    with pytest.raises(jobs.Failed, match=r"after 3 attacks these differ .*\['[bc]'\]") as failed:
        kills.compare(found, {"a": "1", "b": "2"}, 3)
    assert failed.value.trials == 3


def test_trials_that_attack_nothing_do_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is to be killed or stopped has ended by then."""

    def ended(*_: object, **__: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["true"], start_new_session=True)
        process.wait()
        return process

    reference = SimpleNamespace(copy=lambda folder, needs: folder.mkdir(), seconds={})
    plan: Any = SimpleNamespace(reference=reference)
    monkeypatch.setattr(kills, "start", ended)
    with pytest.raises(jobs.Failed, match="ended before every attempt"):
        kills.kill_one_of_two(SimpleNamespace(uniform=lambda low, high: 0.0), plan, tmp_path / "two")  # type: ignore[arg-type]
    monkeypatch.setattr(trees, "begin", ended)
    monkeypatch.setattr(trees, "undisturbed", lambda place: ({}, 0.0))
    monkeypatch.setattr(trees, "workflow", lambda folder: folder.mkdir())
    for stop, _ in trees.STOPS.values():
        with pytest.raises(jobs.Failed, match="ended before every attempt"):
            trees.stop_and_go_on(stop, random.Random(0), tmp_path / "tree")
    with pytest.raises(jobs.Failed, match="ended before every attempt"):
        trees.second(tmp_path / "twice")
    gone = ended().pid
    assert not any(stop(gone) for stop, _ in trees.STOPS.values())


def test_every_bit_of_a_byte_is_flipped(tmp_path: Path) -> None:
    path, draws, found = tmp_path / "byte", random.Random(0), set()
    for _ in range(99):
        path.write_bytes(b"\0")
        flips.flip(path, draws)
        found.add(path.read_bytes()[0])
    assert found == {1 << bit for bit in range(8)}


def test_too_few_trials_are_no_whole_campaign() -> None:
    trial = Trial("flips", "a promise", "one", lambda folder: None)
    assert any("only 59 flips" in said for said in table.too_few([campaign.Result(trial, 59, None)]))
    assert not any("flips" in said for said in table.too_few([campaign.Result(trial, 60, None)]))


def test_the_table_is_written_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin, end = marks(table.NAME)
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    table.write(page, "new")
    assert page.read_text() == f"before\n{begin}\n\nnew\n\n{end}\nafter\n"
    with pytest.raises(UserError, match="no place"):
        table.write(Path(__file__).with_name("conftest.py"), "new")


@pytest.mark.slow
def test_every_promise_holds_under_the_whole_campaign() -> None:
    assert __main__.main([]) == 0
