"""Promises of a run's one job: what is there and of today is kept, each seed stands for itself."""

from __future__ import annotations

import platform
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fast_yaml
import pytest
from typer.testing import CliRunner

from recollect import cli
from recollect.artifacts.lock import run_lock
from recollect.artifacts.set_aside import SetAside, remove_finished
from recollect.memory_rl import dqn
from recollect.settings.errors import UserError
from recollect.settings.schema import Settings
from recollect.stages import paths, records
from recollect.stages.run import ended, run
from recollect.stages.stage import Job
from recollect.stages.table import STAGES

OF = ("smoke", "tmaze_passive_5", "dqn_ff")
FILES = (paths.policy, paths.train_table, paths.scores)


def times() -> dict[str, int]:
    return {place(*OF, 0).name: place(*OF, 0).stat().st_mtime_ns for place in FILES}


@pytest.fixture
def made(workdir: Path) -> Path:
    """A working directory with one small run."""
    run(*OF, 0)
    return workdir


def test_one_job_makes_three_files_and_says_what_its_parts_took(made: Path) -> None:
    assert all(STAGES[stage].is_made(Job(stage, *OF, "0")) for stage in ("train", "evaluate"))
    assert {record.job.stage for record in records.records("smoke")} == {"train", "evaluate"}


def test_what_is_of_today_is_kept(made: Path) -> None:
    before = times()
    run(*OF, 0)
    assert times() == before


def test_train_by_hand_keeps_a_finished_run_and_trains_it_when_settings_changed(
    made: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = ["train", "--scale", OF[0], "--env", OF[1], "--method", OF[2], "--seed", "0", "--device", "cpu"]
    before = times()
    with caplog.at_level("INFO", logger="recollect"):
        assert CliRunner().invoke(cli.app, words).exit_code == 0
    assert times() == before and "kept, it is of today's settings" in caplog.text
    path = made / "config/methods/dqn_ff.yaml"
    path.write_text(fast_yaml.dump(fast_yaml.load(path.read_text()) | {"hyperparameters": {"discount": 0.5}}))
    assert CliRunner().invoke(cli.app, words).exit_code == 0
    assert times()["policy.safetensors"] > before["policy.safetensors"]


def test_a_kill_behind_the_last_artifact_leaves_no_temporary_file_for_good(made: Path) -> None:
    """What was being written was the job's record, and a job that is kept writes none."""
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    record = records.place(Job("train", *OF, "0"))
    left = record.with_name(f".train.{platform.node()}-{int(gone.stdout)}-4.tmp.json")
    left.touch()
    run(*OF, 0)
    assert record.exists() and not left.exists()


def test_missing_or_damaged_scores_are_made_anew_without_training(made: Path) -> None:
    before, scores = times(), paths.scores(*OF, 0)
    content = scores.read_bytes()
    for damage in (scores.unlink, lambda: scores.write_bytes(b"x" * len(content))):
        damage()
        run(*OF, 0)
        now = times()
        assert scores.read_bytes() == content
        assert now.pop("scores.parquet") > before["scores.parquet"]
        assert now == {name: time for name, time in before.items() if name != "scores.parquet"}


def test_a_damaged_policy_or_other_settings_train_again(made: Path) -> None:
    content = paths.policy(*OF, 0).read_bytes()
    paths.policy(*OF, 0).write_bytes(b"x" * len(content))
    run(*OF, 0)
    assert paths.policy(*OF, 0).read_bytes() == content
    path = made / "config/methods/dqn_ff.yaml"
    known = fast_yaml.load(path.read_text())
    known.setdefault("hyperparameters", {})["discount"] = 0.5
    path.write_text(fast_yaml.dump(known))
    assert not STAGES["train"].is_made(Job("train", *OF, "0"))
    run(*OF, 0)
    assert paths.policy(*OF, 0).read_bytes() != content


def test_a_seed_that_fails_stops_no_other_and_is_named(workdir: Path) -> None:
    done: list[int] = []

    def work(seed: int) -> None:
        if seed == 2:
            raise UserError("it broke", where="here", do="mend it")
        done.append(seed)

    with pytest.raises(UserError, match=r"1 of 3 runs failed: seeds 2"):
        cli.together([1, 2, 3], work)
    assert done == [1, 3]
    with pytest.raises(UserError, match="it broke"):
        cli.together([2], work)


def test_a_finished_runs_checkpoints_go_when_all_seeds_of_its_job_have_ended_well(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "job", lambda *of: nullcontext("cpu"))
    names = dict(zip(("scale", "env", "method"), OF, strict=True)) | {"seed": [0, 1]}
    folders = [paths.checkpoints(*OF, seed) for seed in (0, 1)]
    aside = folders[0] / "set_aside/abc/step_000001.safetensors"
    aside.parent.mkdir(parents=True)
    aside.write_bytes(b"of other settings")
    load = dqn.load_policy

    def broken(settings: Settings, *of: Any) -> Any:
        if settings.seed == 1:
            raise UserError("it broke", where="here", do="mend it")
        return load(settings, *of)

    with monkeypatch.context() as patch, pytest.raises(UserError, match="seeds 1"):
        patch.setattr(dqn, "load_policy", broken)
        cli._do(STAGES["run"], {}, device="cpu", threads=0, **names)
    for folder in folders:
        assert list(folder.glob("step_*.safetensors"))  # Snakemake may take away what seed 0 made
    content = [paths.policy(*OF, seed).read_bytes() for seed in (0, 1)]
    cli._do(STAGES["run"], {}, device="cpu", threads=0, **names)
    assert [paths.policy(*OF, seed).read_bytes() for seed in (0, 1)] == content
    left = [path.relative_to(folder).as_posix() for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert sorted(left) == [".lock", ".lock", "set_aside/abc/step_000001.safetensors"]


def test_checkpoints_that_another_process_works_with_stay(workdir: Path) -> None:
    folder = paths.checkpoints(*OF, 0)
    with run_lock(folder):
        (folder / "step_000001.safetensors").touch()
        ended(*OF, 0)
        assert (folder / "step_000001.safetensors").is_file()
    ended(*OF, 0)
    assert not (folder / "step_000001.safetensors").exists()


def test_what_stays_of_a_finished_run(tmp_path: Path) -> None:
    stays = [
        "policies/best.safetensors",
        "set_aside/abc/buffer/fifo/1.safetensors",
        "buffer/protected/2.safetensors",
        ".lock",
    ]
    goes = [
        "step_000001.safetensors",
        "step_000001.safetensors.manifest.json",
        "buffer/fifo/3.safetensors",
        "scoring/4.json",
    ]
    for name in stays + goes:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    remove_finished(tmp_path)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()) == sorted(
        stays
    )
    assert not (tmp_path / "buffer/fifo").exists() and not (tmp_path / "scoring").exists()
    remove_finished(tmp_path / "never made")


@pytest.mark.slow
def test_a_job_works_with_its_standard_streams_closed(workdir: Path) -> None:
    """They were `None` in Python, which the progress line did not expect: status 1 without a word."""
    command = f"{sys.executable} -m recollect.cli generate --scale smoke --env dark_room_10x10 0<&- 1>&- 2>&-"
    assert subprocess.run(["sh", "-c", command], check=False, timeout=300).returncode == 0
    assert paths.histories("smoke", "dark_room_10x10").exists()


def test_checkpoints_go_before_the_buffer_that_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["step_000001.safetensors", "buffer/fifo/3.safetensors"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    gone: list[str] = []
    unlink = Path.unlink

    def noting(path: Path, missing_ok: bool = False) -> None:
        gone.append(path.relative_to(tmp_path).as_posix())
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", noting)
    remove_finished(tmp_path)
    assert gone == names


def test_a_generation_takes_the_place_of_an_older_one_of_its_name(tmp_path: Path) -> None:
    aside = SetAside(tmp_path / "checkpoints", tmp_path / "run")
    (tmp_path / "checkpoints").mkdir()
    for step in ("step_000009.safetensors", "step_000005.safetensors"):
        (tmp_path / "checkpoints" / step).touch()
        aside.put("abc")
    assert [path.name for path in aside.folder("abc").iterdir()] == ["step_000005.safetensors"]
