"""Promises of `begun`: what a stage that trains goes on from was made of the same settings, code, inputs, device and seed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import fast_yaml
import numpy as np
import pytest

import recollect
from recollect.artifacts.live import Live
from recollect.artifacts.scores import concat_scores, scores_frame
from recollect.artifacts.sealed import read_arrays, write_arrays, write_table
from recollect.settings.errors import UserError
from recollect.stages import paths
from recollect.stages.begun import begun, with_trusted
from recollect.stages.evaluate import evaluate
from recollect.stages.generate import generate
from recollect.stages.inputs import source_tasks
from recollect.stages.stage import Job
from recollect.stages.table import STAGES

ROOM = "dark_room_10x10"
OF = ("smoke", ROOM, "dt", "0")
KNOWN: dict[str, Any] = {"settings": "{}", "code": "c", "inputs": {"a.json": "f" * 64}, "device": "cpu"}
OWN_SOURCE = """
from pathlib import Path
import numpy as np
from recollect.settings.schema import Frozen
from recollect.sources.columns import Columns, Rows
USES_GPU = True

class Hyperparameters(Frozen):
    file: str = "played.txt"

def files(world, tasks, hyperparameters):
    return [Path(hyperparameters.file)]

def generate(world, options, tasks, hyperparameters, *, seed, run, device):
    run.resume()
    run.save(1, {}, {})
    if Path("stop").exists():
        raise KeyboardInterrupt
    columns = Columns(run.folder)
    for task in tasks:
        played = np.full((1, 1), options["width"], np.int8), np.zeros(1, np.int8), np.full(1, float(seed)), np.ones(1, bool)
        columns.append(task.index, Rows(*played), "here")
    return columns.arrays()
"""


def resumed(known: dict[str, Any], seed: str = "0", *, trust: bool = False) -> bool:
    """Whether a run goes on from a checkpoint; it saves one."""
    job = Job("train", *OF)._replace(seed=seed)
    with begun(STAGES["train"], job, known, Path("results"), Path("checkpoints"), trust=trust, seed=int(seed)) as run:
        found = run.resume()
        run.save(1, {"x": np.zeros(1)}, {})
        if found is not None:
            assert with_trusted(known, run) == {**known, **({"trusted_checkpoint": run.trusted} if trust else {})}
        return found is not None


@pytest.mark.parametrize(
    "other",
    [{"settings": '{"a": 1}'}, {"code": "d"}, {"inputs": {"a.json": "e" * 64}}, {"device": "cuda"}, {"seed": "1"}],
    ids=lambda other: next(iter(other)),
)
def test_a_checkpoint_of_another_making_is_not_taken_unless_it_is_trusted(other: dict[str, Any], workdir: Path) -> None:
    known, seed = {**KNOWN, **other}, other.get("seed", "0")
    known.pop("seed", None)
    assert not resumed(KNOWN)
    assert resumed(KNOWN)
    assert not resumed(known, seed)
    assert resumed(known, seed)
    assert not (workdir / "checkpoints/.lock").read_text()


def test_a_checkpoint_that_was_trusted_is_written_down(workdir: Path) -> None:
    resumed({**KNOWN, "code": "d"})
    assert resumed(KNOWN, trust=True)


def test_checkpoints_that_lie_about_are_still_taken(workdir: Path) -> None:
    job = Job("train", *OF)
    for seed, text in (("3", " seed 3"), ("", "")):  # stages whose jobs have no seed say none
        whole = hashlib.sha256(repr(KNOWN).encode()).hexdigest()[:16] + text
        with begun(STAGES["train"], job._replace(seed=seed), KNOWN, Path("a"), Path(f"b{seed}"), trust=False) as run:
            run.save(1, {}, {})
            newest = run._checkpoints.newest()
        assert newest is not None and newest.state["settings"] == hashlib.sha256(whole.encode()).hexdigest()


def test_a_run_is_watched_only_while_it_is_held(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    monkeypatch.setattr(Live, "close", lambda self, *, failed=False: closed.append(failed))
    of: Any = (STAGES["train"], Job("train", *OF), KNOWN, Path("results"), Path("checkpoints"))
    with pytest.raises(UserError, match="broke"), begun(*of, trust=False, tracked=object()) as run:  # type: ignore[arg-type]
        assert run.live is not None and not closed
        raise UserError("it broke", where="here", do="mend it")
    assert closed == [True]
    with begun(*of, trust=False) as run:
        assert run.live is None


# ------------------------------------------------------------------------------------------- sources of histories


@pytest.fixture
def own_source(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a source that reads a file, looks at a GPU, and stops while there is a file `stop`."""
    monkeypatch.setenv("RECOLLECT_MINE", str(workdir / "mine"))
    (workdir / "mine").mkdir()
    (workdir / "mine/own_source.py").write_text(OWN_SOURCE)
    content = {"description": "Short.", "seeds": [0], "environments": {ROOM: {"source": {"algorithm": "own_source"}}}}
    (workdir / "config/scales/mini.yaml").write_text(fast_yaml.dump(content))
    (workdir / "played.txt").write_text("one")
    return workdir


def interrupted(folder: Path, device: str) -> None:
    (folder / "stop").touch()
    with pytest.raises(KeyboardInterrupt):
        generate("mini", ROOM, device=device)
    (folder / "stop").unlink()


def test_histories_go_on_from_a_checkpoint_of_the_same_files_and_device(own_source: Path) -> None:
    interrupted(own_source, "cpu")
    assert generate("mini", ROOM, device="cpu") is True
    assert paths.histories("mini", ROOM).is_file()


@pytest.mark.parametrize("change", ["device", "file"])
def test_histories_begin_afresh_on_another_device_or_with_other_files(change: str, own_source: Path) -> None:
    interrupted(own_source, "cpu")
    if change == "file":
        (own_source / "played.txt").write_text("another")
    assert generate("mini", ROOM, device="cuda" if change == "device" else "cpu") is False


def test_a_source_plays_with_its_own_seed_in_the_options_of_training(own_source: Path) -> None:
    scale = own_source / "config/scales/mini.yaml"
    environment = {"source": {"algorithm": "own_source", "seed": 3}, "training_options": {"width": 7}}
    scale.write_text(fast_yaml.dump({**fast_yaml.load(scale.read_text()), "environments": {ROOM: environment}}))
    generate("mini", ROOM)
    arrays = read_arrays(paths.histories("mini", ROOM), kind="histories")
    assert set(arrays["reward"]) == {3.0} and set(arrays["observation"].ravel()) == {7}
    assert source_tasks("mini", ROOM)[1]["width"] == 7
    assert recollect.histories("mini", ROOM, folder=own_source).environment.options["width"] == 7  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------------------- scorings


def test_a_scoring_goes_on_only_with_the_same_policy_and_settings_of_the_same_seed(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def stopping(folder: Path, identity: Any, cadence: Any) -> None:
        told.append(identity())
        raise KeyboardInterrupt

    monkeypatch.setattr("recollect.artifacts.scoring.Scoring", stopping)

    def begin(seed: int = 0, weight: float = 0.0) -> None:
        run = ("smoke", "tmaze_passive_5", "dqn_ff", seed)
        logged = concat_scores([scores_frame(step=10, split="train", metric="loss", value=1.0)])
        write_table(paths.train_table(*run), logged.assign(env=run[1], method=run[2], seed=seed), kind="train")
        write_arrays(paths.policy(*run), {"weight": np.full(1, weight)}, kind="policy", provenance={"seed": seed})
        with pytest.raises(KeyboardInterrupt):
            evaluate(*run)

    begin()
    begin()
    begin(seed=1)
    begin(weight=1.0)
    path = workdir / "config/environments/tmaze_passive.yaml"
    content = fast_yaml.load(path.read_text())
    content["evaluation"]["seed"] = 9
    path.write_text(fast_yaml.dump(content))
    begin()
    assert told[0] == told[1] and len(set(told)) == 4


def test_generations_of_histories_go_when_they_are_whole(own_source: Path) -> None:
    interrupted(own_source, "cpu")
    (own_source / "played.txt").write_text("another")
    interrupted(own_source, "cpu")
    aside = paths.history_checkpoints("mini", ROOM) / "set_aside"
    assert len(list(aside.iterdir())) == 1
    generate("mini", ROOM)
    assert not list(aside.iterdir())
