"""Promises of workflow/provenance.py: records of how files were made travel, and never vouch for another file."""

from __future__ import annotations

import base64
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from recollect.artifacts import sealed
from recollect.settings.errors import UserError

SOURCE = Path(__file__).resolve().parents[2] / "workflow" / "provenance.py"


@pytest.fixture
def provenance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, working in an empty folder."""
    monkeypatch.chdir(tmp_path)
    specification = importlib.util.spec_from_file_location("provenance", SOURCE)
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def recorded(target: str, content: str, **record: object) -> Path:
    """A file and Snakemake's record of it, as Snakemake writes it; returns the record's path."""
    path = Path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    name = base64.urlsafe_b64encode(target.encode()).decode()
    pieces = [name[i : i + 254] for i in range(0, len(name), 254)]
    place = Path(".snakemake/metadata", *("@" + x for x in pieces[:-1]), pieces[-1])
    place.parent.mkdir(parents=True, exist_ok=True)
    whole = {"rule": "train", "params": ["3"], "shellcmd": f"make {target}", "incomplete": False, "job_hash": 5}
    place.write_text(json.dumps({**whole, **record}))
    return place


def as_in_a_fresh_clone() -> None:
    shutil.rmtree(".snakemake")


@pytest.mark.parametrize("target", ["results/a.txt", "results/" + "long/" * 80 + "ü?>.txt"])
def test_a_clone_gets_the_record_at_the_place_where_snakemake_looks(provenance: ModuleType, target: str) -> None:
    place = recorded(target, "made", code="abc")
    assert provenance.save() == 1
    as_in_a_fresh_clone()
    assert provenance.restore() == 1
    record = json.loads(place.read_text())
    assert record["rule"] == "train" and record["code"] == "abc" and "file" not in record


def test_the_same_records_give_the_same_bytes_whatever_process_made_them(provenance: ModuleType) -> None:
    recorded("a", "1", job_hash=5)
    provenance.save()
    before = provenance.TRACKED.read_bytes()
    recorded("a", "1", job_hash=-77)
    provenance.save()
    assert provenance.TRACKED.read_bytes() == before


def test_the_files_of_one_job_keep_one_job_hash_and_other_jobs_have_another(provenance: ModuleType) -> None:
    places = [recorded(name, "x", shellcmd=command) for name, command in [("a", "one"), ("b", "one"), ("c", "two")]]
    provenance.save()
    as_in_a_fresh_clone()
    provenance.restore()
    first, second, third = (json.loads(place.read_text())["job_hash"] for place in places)
    assert first == second != third


def test_unfinished_jobs_missing_files_and_half_written_records_are_not_packed(provenance: ModuleType) -> None:
    recorded("whole", "x")
    recorded("unfinished", "x", incomplete=True)
    recorded("gone", "x")
    Path("gone").unlink()
    recorded("torn", "x").write_text('{"rule": "tr')
    assert provenance.save() == 1
    assert list(provenance._unpack(provenance.TRACKED)) == ["whole"]


def test_a_record_does_not_vouch_for_a_file_with_other_content(
    provenance: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    place = recorded("a", "from lr=1", params=["lr=1"])
    provenance.save()
    as_in_a_fresh_clone()
    recorded("a", "from lr=2", params=["lr=2"])
    assert provenance.restore() == 0
    assert json.loads(place.read_text())["params"] == ["lr=2"]
    assert "a" in capsys.readouterr().err


def test_the_manifest_speaks_for_a_sealed_file(provenance: ModuleType) -> None:
    recorded("a.json", "")
    sealed.write_json("a.json", {"value": 1}, kind="test")
    manifest = json.loads(Path("a.json.manifest.json").read_text())
    assert provenance._identity(Path("a.json")) == {"size": manifest["size"], "sha256": manifest["sha256"]}
    Path("a.json").write_text("shorter")  # the manifest no longer fits: the bytes are read
    assert provenance._identity(Path("a.json"))["sha256"] != manifest["sha256"]


def test_a_partial_pull_restores_the_records_of_files_not_yet_here_and_a_save_keeps_them(
    provenance: ModuleType,
) -> None:
    recorded("pulled", "x")
    place = recorded("not_pulled", "x")
    provenance.save()
    as_in_a_fresh_clone()
    Path("not_pulled").unlink()
    assert provenance.restore() == 2 and place.exists()
    assert provenance.save() == 2


def test_restoring_is_done_once_for_each_version_of_the_tracked_file(provenance: ModuleType) -> None:
    place = recorded("a", "x", params=["old"])
    provenance.save()
    recorded("a", "x", params=["new"])  # made here since: nobody asked for the old record
    assert provenance.restore() == 0
    assert json.loads(place.read_text())["params"] == ["new"]


def test_another_version_of_the_tracked_file_brings_its_records(provenance: ModuleType) -> None:
    place = recorded("a", "x", params=["first"])
    provenance.save()
    first = {path: path.read_bytes() for path in Path("provenance").iterdir()}
    recorded("a", "x", params=["second"])
    provenance.save()
    for path, content in first.items():  # what `dvc checkout` of another commit does
        path.write_bytes(content)
    assert provenance.restore() == 1
    assert json.loads(place.read_text())["params"] == ["first"]
    recorded("a", "x", params=["third"])
    provenance.save()
    for path, content in first.items():
        path.write_bytes(content)
    provenance.save()  # by itself, before any Snakemake
    assert provenance._unpack(provenance.TRACKED)["a"]["params"] == ["first"]


def test_what_a_killed_restore_left_out_is_restored_by_the_next(
    provenance: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [recorded(name, "x") for name in ("a", "b")]
    provenance.save()
    as_in_a_fresh_clone()
    write = provenance.write_whole

    def killed(path: Path, text: str) -> None:
        if path == places[1]:
            raise KeyboardInterrupt
        write(path, text)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(provenance, "write_whole", killed)
        provenance.restore()
    assert provenance.restore() == 2 and all(place.exists() for place in places)


def test_nothing_is_done_where_nothing_is_tracked(provenance: ModuleType) -> None:
    assert provenance.restore() == 0
    assert not Path(".snakemake").exists()


@pytest.mark.parametrize("keep", [10, 0])
def test_a_damaged_tracked_file_stops_with_what_to_do_and_restores_nothing(provenance: ModuleType, keep: int) -> None:
    place = recorded("a", "x")
    provenance.save()
    as_in_a_fresh_clone()
    provenance.TRACKED.write_bytes(provenance.TRACKED.read_bytes()[:keep])
    with pytest.raises(UserError, match="to do"):
        provenance.restore()
    assert not place.exists()


SNAKEFILE = """
import sys
sys.path.insert(0, {folder!r})
import provenance
provenance.restore()
rule last:
    input: "middle.txt"
    output: "last.txt"
    shell: "cat {{input}} > {{output}}"
rule middle:
    output: "middle.txt"
    params: code="1"
    shell: "echo {{params.code}} > {{output}}"
"""


@pytest.mark.slow
def test_snakemake_has_nothing_to_do_in_a_clone_and_still_sees_what_changed(
    provenance: ModuleType, tmp_path: Path
) -> None:
    Path("Snakefile").write_text(SNAKEFILE.format(folder=str(SOURCE.parent)))
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--cores",
        "1",
        "--rerun-triggers",
        "code",
        "input",
        "mtime",
        "params",
    ]
    subprocess.run(command, check=True, capture_output=True)
    provenance.save()
    as_in_a_fresh_clone()
    for name in ("last.txt", "middle.txt"):  # pulled in the wrong order of time
        content = Path(name).read_bytes()
        Path(name).unlink()
        Path(name).write_bytes(content)

    def dry_run() -> str:
        result = subprocess.run([*command, "--dry-run"], check=True, capture_output=True, text=True)
        return result.stdout + result.stderr

    assert "Nothing to be done" in dry_run()
    Path("Snakefile").write_text(Path("Snakefile").read_text().replace('code="1"', 'code="2"'))
    assert "Params have changed" in dry_run()
