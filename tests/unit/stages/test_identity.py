"""A job takes the file that it should, and no other one: whose it is, and of what it was made, stands in its manifest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import fast_yaml
import pytest

from recollect.artifacts.sealed import manifest_path, write_json
from recollect.settings.errors import UserError
from recollect.stages import identity, paths, provenance
from recollect.stages.records import place, timed
from recollect.stages.stage import Job
from recollect.stages.table import STAGES

SCALE, ROOM, DOOR = "smoke", "dark_room_10x10", "key_door_10x10"


def job(stage: str, *names: object) -> Job:
    return Job(stage, SCALE, *map(str, names))


def make(stage: str, *names: object, salt: str = "") -> None:
    """Seal tiny files where a job's artifacts lie, with the manifests that it would give them."""
    for part, step in STAGES[stage].steps(job(stage, *names)):
        known = part.provenance(step) | ({"seed": int(step.seed)} if step.seed else {})
        for path in part.makes(step):
            write_json(path, [str(step), salt], kind=stage, provenance=known)


def read(stage: str, *names: object) -> None:
    """What a job does before any work."""
    STAGES[stage].provenance(job(stage, *names))


def put(path: Path, *, over: Path) -> None:
    shutil.copy(path, over)
    shutil.copy(manifest_path(path), manifest_path(over))


@pytest.fixture(scope="module")
def once(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Histories of two rooms, some runs, and two memories."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(root / "config", folder / "config")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for env in (ROOM, DOOR):
            make("generate", env)
        for run in ((ROOM, "dt", 0), (ROOM, "dt", 1), (ROOM, "ad", 0), (DOOR, "dt", 0)):
            make("run", *run)
        for method in ("radt", "radt_agnostic"):
            make("embed", ROOM, method)
            make("index", ROOM, method)
        make("run", ROOM, "radt", 0)
    return folder


@pytest.fixture
def made(once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with copies of these. The configuration is only read, so it is read once for all tests."""
    for name in ("data", "results"):
        shutil.copytree(once / name, tmp_path / name)
    monkeypatch.setenv("RECOLLECT_CONFIG", str(once / "config"))
    monkeypatch.chdir(tmp_path)


POLICY, TABLE = paths.policy(SCALE, ROOM, "dt", 0), paths.train_table(SCALE, ROOM, "dt", 0)
MEMORY = (paths.embeddings, paths.index, paths.rows)
EMBEDDINGS, INDEX, ROWS = (of(SCALE, ROOM, "radt") for of in MEMORY)
OTHER_EMBEDDINGS, OTHER_INDEX, OTHER_ROWS = (of(SCALE, ROOM, "radt_agnostic") for of in MEMORY)
DT = ("evaluate", ROOM, "dt", 0)
RADT = ("train", ROOM, "radt", 0)


@pytest.mark.parametrize(
    ("there", "instead", "reader", "said"),
    [
        (POLICY, paths.policy(SCALE, ROOM, "dt", 1), DT, "of seed 1, not of seed 0"),
        (POLICY, paths.policy(SCALE, ROOM, "dt", 1), ("inspect", *DT[1:]), "of seed 1, not of seed 0"),
        (POLICY, paths.policy(SCALE, ROOM, "dt", 1), ("embed", ROOM, "radt"), "of seed 1, not of seed 0"),
        (POLICY, paths.policy(SCALE, ROOM, "ad", 0), DT, "of method ad, not of method dt"),
        (POLICY, paths.policy(SCALE, DOOR, "dt", 0), DT, f"of env {DOOR}, not of env {ROOM}"),
        (TABLE, paths.train_table(SCALE, ROOM, "dt", 1), DT, "of seed 1, not of seed 0"),
        (
            paths.histories(SCALE, ROOM),
            paths.histories(SCALE, DOOR),
            ("train", ROOM, "dt", 0),
            f"of env {DOOR}, not of env {ROOM}",
        ),
        (EMBEDDINGS, OTHER_EMBEDDINGS, ("index", ROOM, "radt"), "of embedder lm:minilm .*, not of embedder method:dt"),
        (INDEX, OTHER_INDEX, RADT, "of method radt_agnostic, not of method radt"),
        (ROWS, OTHER_ROWS, RADT, "of method radt_agnostic, not of method radt"),
    ],
)
def test_a_whole_file_of_another_run_is_refused_by_both_names(
    made: None, there: Path, instead: Path, reader: tuple[object, ...], said: str
) -> None:
    put(instead, over=there)
    with pytest.raises(UserError, match=said) as error:
        read(*reader)
    assert error.value.where == str(there) and f"`snakemake {there.as_posix()}`" in error.value.do


@pytest.mark.parametrize(
    ("again", "stays", "other"),
    [
        (("generate", ROOM), EMBEDDINGS, paths.histories(SCALE, ROOM)),
        (("run", ROOM, "dt", 0), EMBEDDINGS, POLICY),
        (("embed", ROOM, "radt"), INDEX, EMBEDDINGS),
    ],
)
def test_what_was_made_of_other_files_than_those_beside_it_is_refused(
    made: None, again: tuple[object, ...], stays: Path, other: Path
) -> None:
    """Rows of a memory are numbers of rows of the very histories that it was made of."""
    make(*again, salt="anew")
    with pytest.raises(UserError, match=f"made of another {other}") as error:
        read(*RADT)
    assert error.value.where == str(stays) and f"`snakemake {stays.as_posix()}`" in error.value.do
    # Made again in the order of the chain, all is taken.
    for step in (("run", ROOM, "dt", 0), ("embed", ROOM, "radt"), ("index", ROOM, "radt")):
        make(*step, salt="anew")
    read(*RADT)


def test_a_memory_that_another_seed_of_its_embedder_made_is_refused(made: None) -> None:
    memory = {"embedder": "method:dt", "embedder_seed": 1}
    manifest = {"sha256": "", "provenance": {"settings": json.dumps({"memory": memory})}}
    with pytest.raises(UserError, match=r"of embedder method:dt \(seed 1\), not of embedder method:dt \(seed 0\)"):
        identity.check({EMBEDDINGS: manifest})


def test_what_stands_in_the_place_of_another_seed_does_not_count_as_made(made: None) -> None:
    of_seed_1 = job("train", ROOM, "dt", 1)
    assert STAGES["train"].is_made(of_seed_1)
    put(POLICY, over=paths.policy(SCALE, ROOM, "dt", 1))
    assert not STAGES["train"].is_made(of_seed_1)


def test_scores_of_another_run_are_refused(made: None) -> None:
    scores = [paths.scores(SCALE, ROOM, "dt", seed) for seed in (0, 1)]
    provenance.describe("", "", scores)
    put(scores[1], over=scores[0])
    with pytest.raises(UserError, match="of seed 1, not of seed 0"):
        provenance.describe("", "", scores)


def test_encoded_images_of_another_environment_are_refused(workdir: Path) -> None:
    first, second = "procgen", "doodles"
    content = fast_yaml.load(Path("config/environments/procgen.yaml").read_text())
    del content["images"]["weights"]  # as scale smoke does for the first
    Path("config/environments/doodles.yaml").write_text(fast_yaml.dump(content))
    for env in (first, second):
        make("generate", env)
        make("embed_images", env)
    read("train", first, "dt", 0)
    put(paths.encoded_histories(SCALE, second), over=paths.encoded_histories(SCALE, first))
    with pytest.raises(UserError, match=f"of env {second}, not of env {first}"):
        read("train", first, "dt", 0)


def test_what_is_merely_stale_or_says_nothing_is_taken(once: Path, workdir: Path) -> None:
    """Which files are stale is Snakemake's to say: another learning rate makes no policy one of another run."""
    for name in ("data", "results"):
        shutil.copytree(once / name, name)
    for name in ("dt", "radt"):
        path = Path(f"config/methods/{name}.yaml")
        content = fast_yaml.load(path.read_text())
        content.setdefault("hyperparameters", {})["context"] = 7
        path.write_text(fast_yaml.dump(content))
    read(*DT)
    read(*RADT)
    # Variants play a policy, or read a memory, of another name.
    read("evaluate", ROOM, "radt.every_25", 0)
    read("train", ROOM, "radt.context=25", 0)
    write_json(POLICY, [1], kind="policy")
    write_json(TABLE, [1], kind="train", provenance={"settings": "of a stand-in", "inputs": "none"})
    read(*DT)


def test_a_damaged_or_missing_input_is_made_again_by_the_command_that_makes_it(made: None) -> None:
    made_by = f"make it with `snakemake {POLICY.as_posix()}`"
    POLICY.write_text("[]")
    with pytest.raises(UserError, match="bytes") as error:
        read(*DT)
    assert error.value.do == f"delete it and then {made_by}"
    POLICY.unlink()
    with pytest.raises(UserError, match="missing") as error:
        read(*DT)
    assert error.value.do == made_by
    write_json("own/weights.json", 1, kind="weights")
    Path("own/weights.json").write_text("2 ")
    with pytest.raises(UserError, match="sha256") as error:
        provenance.describe("", "", [Path("own/weights.json")])
    assert "no command makes it" in error.value.do and "snakemake" not in error.value.do


@pytest.mark.parametrize("in_the_way", [POLICY.parent, POLICY, place(job("train", ROOM, "dt", 0)).parent])
def test_a_place_that_cannot_be_written_is_found_before_the_work(workdir: Path, in_the_way: Path) -> None:
    if in_the_way == POLICY:
        in_the_way.mkdir(parents=True)
    else:
        in_the_way.parent.mkdir(parents=True)
        in_the_way.touch()
    before = sorted(Path().rglob("*"))
    work: Callable[[], object] = lambda: pytest.fail("it began")  # noqa: E731
    with pytest.raises(UserError, match="cannot be written"):
        timed(STAGES["train"], job("train", ROOM, "dt", 0), "cpu", work)
    assert sorted(Path().rglob("*")) == before


def test_a_flipped_byte_in_what_a_manifest_says_of_its_file_stops_the_job(made: None) -> None:
    path = manifest_path(POLICY)
    content = bytearray(path.read_bytes())
    content[content.index(b'"seed": 0') + len('"seed": ')] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="not as it was written"):
        read(*DT)
