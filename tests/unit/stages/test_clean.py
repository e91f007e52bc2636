"""Deleting what nothing has a use for: all else stays, and nothing goes without being listed and asked for."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import fast_yaml
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from recollect import commands
from recollect.artifacts.lock import run_lock
from recollect.artifacts.sealed import manifest_path, sealing, write_table
from recollect.cli import app
from recollect.settings.errors import UserError
from recollect.stages import clean as clean_stage
from recollect.stages import paths
from recollect.stages.clean import Unit, delete, said_of, unused
from recollect.stages.plan import Plan, plan
from recollect.stages.snakemake_records import ALIVE
from recollect.stages.sweep import sweep
from recollect.stages.table import STAGES

ROOM, MAZE = "dark_room_10x10", "tmaze_passive_5"


@pytest.fixture
def few(workdir: Path) -> Path:
    """A configuration of one scale, and of two figures: RA-DT and DT in a room, and an online agent."""
    for group, stay in (("figures", ()), ("scales", ("smoke",)), ("claims", ())):
        for path in (workdir / "config" / group).glob("*.yaml"):
            if path.stem not in stay:
                path.unlink()
    scale = Path("config/scales/smoke.yaml")
    scale.write_text(fast_yaml.dump({**fast_yaml.load(scale.read_text()), "figures": {}}))
    for name, env, methods in (("room", ROOM, ["radt"]), ("maze", MAZE, ["dqn_ff"])):
        content = {"kind": "bars", "title": name, "category": "c", "caption": name, "seeds": [0, 1]}
        content |= {"environments": [env], "methods": methods}
        Path(f"config/figures/{name}.yaml").write_text(fast_yaml.dump(content))
    Path("config/config.yaml").write_text("scale: smoke\nfigures: [room, maze]\n")
    for job in plan("smoke", ["room", "maze"]).needs:
        for path in STAGES[job.stage].makes(job):
            make(path)
    return workdir


def make(path: Path, **provenance: object) -> Path:
    with sealing(path, kind="made up", provenance=provenance) as temporary:
        temporary.write_bytes(b"1234")
    return path


def run(method: str = "dqn_ff", seed: int = 7, env: str = MAZE, scale: str = "smoke") -> list[Path]:
    """What a finished run leaves: checkpoints that it kept, its page and what a tracker has of it included."""
    of = (scale, env, method, seed)
    kept = paths.kept_policy(*of, "best")
    tracked = paths.tracking(*of) / "events.out"
    tracked.parent.mkdir(parents=True)
    tracked.write_text("of a tracker")
    left = (paths.policy, paths.train_table, paths.scores, paths.page)
    return [make(place(*of)) for place in left] + [make(kept), tracked]


def everything() -> set[Path]:
    return {path for root in ("data", "results") for path in Path(root).rglob("*") if path.is_file()}


def test_what_figures_need_stays_with_all_that_it_was_made_of(few: Path) -> None:
    before = everything()
    assert paths.embeddings("smoke", ROOM, "radt") in before  # made of DT's run, which no figure names
    assert unused().files == {} and "All is of use" in unused().text()
    make(paths.kept_policy("smoke", MAZE, "dqn_ff", 0, "best"))
    make(paths.trace("smoke", MAZE, "dqn_ff", 0))
    assert unused().files == {}  # of a run that is in use nothing goes


def test_unused_runs_memories_and_data_go_and_nothing_else(few: Path) -> None:
    run(scale="old")  # of no scale that is configured: a copy, perhaps
    before = everything()
    run()
    run(seed=8)
    run("dqn_ff.learning_rate=0.1", 0)
    make(paths.histories("smoke", "dark_room_7x7"))
    make(paths.history_checkpoints("smoke", "dark_room_7x7") / "step_1.safetensors")
    make(paths.index("smoke", ROOM, "radt.every_25"))
    make(paths.speed("smoke", MAZE, "dqn_ff", 7))
    stays = [
        make(paths.model("tiles")),
        make(paths.published("some")),
        make(Path("data/published/some/histories.safetensors")),
    ]
    for path in (paths.run_folder("smoke", MAZE, "dqn_ff", 7) / "notes.txt", Path("results/notes/a.csv")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
        stays.append(path)
    protected = paths.checkpoints("smoke", MAZE, "dqn_ff", 7) / "protected" / "demonstration"
    stays.append(make(protected))
    link = paths.run_folder("smoke", MAZE, "dqn_ff", 8) / "trace.safetensors"
    link.symlink_to(few / "elsewhere")
    found = unused()
    assert set(found.files) == {
        *(Unit("run", "smoke", MAZE, "dqn_ff", seed) for seed in "78"),
        Unit("run", "smoke", MAZE, "dqn_ff.learning_rate=0.1", "0"),
        Unit("speed", "smoke", MAZE, "dqn_ff", "7"),
        Unit("histories", "smoke", "dark_room_7x7"),
        Unit("memory", "smoke", ROOM, "radt.every_25"),
    }
    text = found.text()
    assert f"run smoke {MAZE} dqn_ff (seeds 7, 8)" in text and "left alone: scale old, none of that name" in text
    size = sum(path.stat().st_size for files in found.files.values() for path in files)
    assert f"{size / 1000:.0f} kB" in text.splitlines()[0]
    assert delete(found) == []
    manifests = {manifest_path(path) for path in stays}
    assert everything() - {link} - manifests == (before | set(stays)) - manifests and link.is_symlink()
    assert unused().files == {}


def test_the_runs_of_a_sweep_stay_with_what_they_learned_from_while_its_table_is_there(few: Path) -> None:
    of = ("smoke", "dark_room_7x7", "dt.context=10", 0)
    make(paths.histories(*of[:2]))
    swept = make(paths.scores(*of))
    assert {unit.kind for unit in unused().files} == {"run", "histories"}
    table = make(paths.sweep(*of[:2], "dt.context=10"), inputs={swept.as_posix(): "a hash"})
    assert unused().files == {}
    table.unlink()
    assert len(unused().files) == 2
    make(paths.sweep(*of[:2], "dt.context=10"), inputs={str(paths.scores("smoke", "gone", "dt", 0)): "a hash"})
    with pytest.raises(UserError, match="configured no more") as refused:
        unused()
    assert refused.value.where == str(table)


def test_the_runs_of_a_sweep_that_was_killed_stay_and_those_that_failed_half_way(few: Path) -> None:
    names = [f"dqn_ff.learning_rate={value}" for value in ("0.1", "0.01")]
    finished = ("smoke", MAZE, names[0], 0)

    def killed(command: Sequence[str]) -> int:
        make(paths.scores(*finished))
        make(paths.checkpoints("smoke", MAZE, names[1], 0) / "step_5.safetensors")
        raise KeyboardInterrupt

    def typed(start: Callable[[Sequence[str]], int], *more: str) -> None:
        sweep("smoke", MAZE, "dqn_ff", [0], ["learning_rate=0.1,0.01"], more=more, start=start)

    typed(lambda command: 0, "-n")
    assert not Path("results/smoke/sweeps").exists()  # a dry run writes nothing
    with pytest.raises(KeyboardInterrupt):
        typed(killed)
    assert unused().files == {}
    of_finished = pd.DataFrame(
        {"step": 1, "split": "eval", "metric": "return", "task": 0, "episode": [0], "value": 1.0}
    )
    write_table(paths.scores(*finished), of_finished.assign(env=MAZE, method=names[0], seed=0), kind="scores")
    with pytest.raises(UserError, match="1 of 2 runs are not there"):
        typed(lambda command: 1)
    assert paths.sweep("smoke", MAZE, "dqn_ff.learning_rate=0.1,0.01").is_file() and unused().files == {}
    for file in Path("results/smoke/sweeps").rglob("*"):
        if file.is_file():
            file.unlink()
    assert {unit.method for unit in unused().files} == set(names)


def test_a_scale_in_which_a_process_is_at_work_is_left_alone(few: Path) -> None:
    files = run()
    found = unused()
    with run_lock(paths.checkpoints("smoke", MAZE, "dqn_ff", 3)):
        assert unused().files == {} and "left alone: scale smoke" in unused().text()
        (said,) = delete(found)  # it began after the list was made
        assert "a process is at work" in said and all(path.is_file() for path in files)
        assert said_of(found, [said]) == "nothing was deleted"
    with run_lock(paths.run_folder("smoke", MAZE, "dqn_ff", 7)):
        assert unused().files == {}
    Path("results/smoke/checkpoints").rename("disk")
    Path("results/smoke/checkpoints").symlink_to(Path("disk").absolute())
    with run_lock(paths.checkpoints("smoke", MAZE, "dqn_ff", 3)):
        assert unused().files == {}
    assert delete(found) == [] and not any(path.exists() for path in files)
    assert (paths.run_folder("smoke", MAZE, "dqn_ff", 7) / ".lock").is_file()  # who waits for it must find the same one


def test_beside_a_living_snakemake_nothing_is_deleted(few: Path) -> None:
    files = run()
    ALIVE.parent.mkdir()
    with ALIVE.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        with pytest.raises(UserError, match="a Snakemake is at work"):
            delete(unused())
        assert all(path.is_file() for path in files)
    assert delete(unused()) == [] and not any(path.exists() for path in files)


def test_without_a_whole_configuration_nothing_is_unused(few: Path) -> None:
    run()
    Path("config/figures/wrong.yaml").write_text("kind: curve_panels\nmethods: [no_such]\n")
    with pytest.raises(UserError):
        unused()
    Path("config/figures/wrong.yaml").unlink()
    Path("config").rename("elsewhere")
    with pytest.raises(UserError, match="configuration"):
        unused()


@pytest.fixture
def clean(few: Path) -> Callable[..., str]:
    def typed(*words: str) -> str:
        done = CliRunner().invoke(app, ["clean", *words], catch_exceptions=False)
        assert done.exit_code == 0
        return done.output

    return typed


def test_only_scales_of_which_there_are_files_are_asked_what_they_need(
    few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planning all scales takes half a minute."""
    run()
    asked: list[str] = []

    def planned(scale: str, figures: Sequence[str]) -> Plan:
        asked.append(scale)
        return plan(scale, figures)

    monkeypatch.setattr(clean_stage, "plan", planned)
    Path("config/scales/other.yaml").write_text("description: d\nextends: smoke\n")
    unused()
    assert asked == ["smoke"]
    run(scale="other")
    assert {unit.scale for unit in unused().files} == {"smoke", "other"} and asked[1:] == ["other", "smoke"]


def test_nothing_goes_without_a_word(clean: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    files = run()
    with pytest.raises(UserError, match="add --unused"):
        clean()
    assert "(seed 7)" in clean("--unused", "-n") and "(seed 7)" in clean("--unused", "-n", "--yes")
    with pytest.raises(UserError, match="nobody can be asked"):
        clean("--unused")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(typer, "confirm", lambda question: False)
    commands.clean(unused=True)
    assert all(path.is_file() for path in files)
    assert "(seed 7)" in clean("--unused", "--yes")
    assert not any(path.exists() for path in files)
    assert "All is of use" in clean("--unused")
