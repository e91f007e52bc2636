"""Fetching published data: pinned, checked, whole or not there; against the real hub client and a server of our own."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import fast_yaml
import huggingface_hub
import pytest

from recollect import commands
from recollect.artifacts.sealed import read_json, verify
from recollect.settings.errors import UserError
from recollect.settings.resolve import published_data
from recollect.settings.schema import PublishedDataSettings
from recollect.sources import published_fetch
from recollect.sources.published_fetch import fetch, hashes
from recollect.stages import inputs
from recollect.stages.check import check
from recollect.stages.selection import check_targets

COMMIT, OTHER = "0123456789abcdef0123456789abcdef01234567", "f" * 40
FILES = {"10x10/[0,0]_[0,5].npz": b"one", "10x10/[0,0]_[2,0].npz": b"two", "README.md": b"text", "a/old.pkl": b"pickle"}
SHA256 = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
WANTED = {name: SHA256[name] for name in FILES if name.endswith(".npz")}
PINNED = PublishedDataSettings(repository="ml/room", revision=COMMIT)


@pytest.fixture
def hub(monkeypatch):
    """A faked hub: what it serves (which a test may change), and what was asked of it."""
    served, asked = dict(FILES), []

    def download(repo_id, filename, *, revision, local_dir, repo_type):
        assert (repo_id, repo_type) == ("ml/room", "dataset")
        asked.append((filename, revision))
        target = Path(local_dir) / filename
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(served[filename])
        return str(target)

    def tree(self, repo_id, *, recursive, revision, repo_type):
        asked.append(("tree", revision))
        for name in served:
            lfs = {"size": 1, "oid": SHA256[name], "pointerSize": 1} if name.endswith(".npz") else None
            yield huggingface_hub.RepoFile(path=name, size=1, oid="0" * 40, lfs=lfs)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_tree", tree)
    return SimpleNamespace(served=served, asked=asked)


@pytest.fixture
def index(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path("data/published/room/index.json")


def standing(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} - {".lock"}


def test_what_is_wanted_is_fetched_once_checked_and_listed(hub, index):
    said = fetch("room", PINNED, index)
    assert said == f"ml/room at {COMMIT}: 2 files in data/published/room, 2 of them fetched now"
    assert standing(index.parent) == {*WANTED, "index.json", "index.json.manifest.json"}
    assert all((index.parent / name).read_bytes() == FILES[name] for name in WANTED)
    content = read_json(index, kind="published data")
    assert content == {"repository": "ml/room", "revision": COMMIT, "files": WANTED}
    before = index.read_bytes()
    assert "0 of them fetched now" in fetch("room", PINNED, index)
    assert [name for name, _ in hub.asked].count("tree") == 2 and len(hub.asked) == 4
    assert index.read_bytes() == before


def test_the_index_is_written_before_anyone_else_may_fetch(hub, index, monkeypatch):
    held = []
    write = published_fetch.write_json

    def noting(path, *rest, **more):
        held.append((path.parent / ".lock").read_text())  # names who holds it, and is empty otherwise
        write(path, *rest, **more)

    monkeypatch.setattr(published_fetch, "write_json", noting)
    fetch("room", PINNED, index)
    assert [bool(text) for text in held] == [True]


def test_a_fetch_that_was_interrupted_goes_on_and_damage_is_mended(hub, index):
    missing = hub.served["10x10/[0,0]_[2,0].npz"]
    hub.served["10x10/[0,0]_[2,0].npz"] = b"cut"
    with pytest.raises(UserError, match="is expected"):
        fetch("room", PINNED, index)
    assert standing(index.parent) == {"10x10/[0,0]_[0,5].npz"}  # no index: not whole
    hub.served["10x10/[0,0]_[2,0].npz"] = missing
    hub.asked.clear()
    fetch("room", PINNED, index)
    assert [name for name, _ in hub.asked] == ["tree", "10x10/[0,0]_[2,0].npz"]
    (index.parent / "10x10/[0,0]_[0,5].npz").write_bytes(b"damaged")
    assert "1 of them fetched now" in fetch("room", PINNED, index)


def test_hashes_of_the_configuration_are_all_that_is_fetched(hub, index):
    chosen = PINNED.model_copy(update={"sha256": {"10x10/[0,0]_[2,0].npz": SHA256["10x10/[0,0]_[2,0].npz"]}})
    fetch("room", chosen, index)
    assert [name for name, _ in hub.asked] == ["10x10/[0,0]_[2,0].npz"]  # the hub's own list is not asked for
    with pytest.raises(UserError, match="is expected"):
        fetch("room", PINNED.model_copy(update={"sha256": {"10x10/[0,0]_[0,5].npz": "0" * 64}}), index)


def test_without_a_pinned_commit_nothing_is_fetched_and_the_message_says_how_to_pin_one(hub, index):
    with pytest.raises(UserError, match="no revision of ml/room is pinned") as error:
        fetch("room", PublishedDataSettings(repository="ml/room"), index)
    assert error.value.where == "config/published_data.yaml: room"
    assert "recollect fetch --data room --revision COMMIT" in error.value.do and "`revision:`" in error.value.do
    assert hub.asked == [] and not index.parent.exists()


def test_another_commit_can_be_asked_for_and_says_how_it_is_pinned(hub, index):
    chosen = PINNED.model_copy(
        update={"sha256": {"gone.npz": "0" * 64}}
    )  # hashes of the pinned commit, not of this one
    said = fetch("room", chosen, index, OTHER)
    assert f"write `revision: {OTHER}` in config/published_data.yaml: room" in said
    assert {revision for _, revision in hub.asked} == {OTHER}
    assert read_json(index)["revision"] == OTHER


@pytest.mark.parametrize(
    ("changes", "revision", "message"),
    [
        ({}, "main", "not a full commit hash"),
        ({"files": ("*.pkl",)}, None, "may hold a pickle"),
        ({"files": ("*.md",)}, None, "no expected sha256"),
        ({"files": ("*.hdf5",)}, None, r"no files like \*.hdf5 there \(4 others\)"),
        ({"sha256": {"../x.npz": "0" * 64}}, None, "outside"),
        ({"sha256": {"x.npz": "abc"}}, None, "no expected sha256"),
    ],
)
def test_unsafe_requests_are_refused_and_leave_nothing(hub, index, changes, revision, message):
    with pytest.raises(UserError, match=message):
        fetch("room", PINNED.model_copy(update=changes), index, revision)
    assert not index.parent.exists()


def test_files_are_known_again_by_the_index(hub, index):
    fetch("room", PINNED, index)
    path = index.parent / "10x10/[0,0]_[0,5].npz"
    assert hashes([path], index) == {path.as_posix(): SHA256["10x10/[0,0]_[0,5].npz"]}
    (of_folder,) = hashes([path.parent], index).values()
    assert of_folder == next(iter(hashes([path.parent]).values())) != SHA256["10x10/[0,0]_[0,5].npz"]
    path.write_bytes(b"other")
    for source in (path, path.parent):
        with pytest.raises(UserError, match="not as it was fetched") as error:
            hashes([source], index)
        assert error.value.where == path.as_posix() and "recollect fetch --data room" in error.value.do
    (index.parent / "new.npz").write_bytes(b"new")
    with pytest.raises(UserError, match="not as it was fetched"):
        hashes([index.parent / "new.npz"], index)


# ----------------------------------------------------------------------------------------- the workflow and the command


def test_the_rule_generate_waits_for_the_data_set_that_its_files_lie_in(workdir):
    def reads(folder):
        source = {"algorithm": "published_files", "hyperparameters": {"folder": folder}}
        (workdir / "config/environments/mine.yaml").write_text(fast_yaml.dump({"world": "dark_room", "source": source}))
        return inputs.generate_inputs("smoke", "mine")

    index = Path("data/published/dark_room/index.json")
    for folder in ("data/published/dark_room/10x10", "data/published/dark_room", "./data/published/dark_room/10x10/"):
        assert reads(folder) == {"published": index}
    for folder in ("downloads/dark_room", "data/published", "/elsewhere/data/published/dark_room"):
        assert reads(folder) == {}
    with pytest.raises(UserError, match="no published data set named 'dark_rom'") as error:
        reads("data/published/dark_rom/10x10")
    assert "'dark_room'" in error.value.do
    assert inputs.generate_inputs("paper", "dark_room_10x10") == {}
    check_targets([index.as_posix()])
    with pytest.raises(UserError, match="no published data set named 'dark_rom'"):
        check_targets(["data/published/dark_rom/index.json"])


@pytest.mark.slow
def test_an_unknown_data_set_is_found_before_anything_runs(workdir):
    path = workdir / "config/scales/smoke.yaml"
    content = fast_yaml.load(path.read_text())
    chosen = {"folder": "data/published/dark_rooms/10x10"}
    content["environments"]["dark_room_10x10"]["source"] = {"algorithm": "published_files", "hyperparameters": chosen}
    path.write_text(fast_yaml.dump(content))
    with pytest.raises(UserError, match="no published data set named 'dark_rooms'"):
        check()


def test_every_configured_data_set_is_sound(workdir):
    for name in fast_yaml.load((workdir / "config/published_data.yaml").read_text()):
        chosen = published_data(name)
        assert chosen.revision is None or len(chosen.revision) == 40
        assert chosen.repository == f"ml-jku/{name}"


@pytest.fixture
def server() -> Iterator[SimpleNamespace]:
    """A server that answers as the hub does."""

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            content, headers = b"", {}
            if path == f"/api/datasets/ml/room/tree/{COMMIT}":
                content = json.dumps([self.entry(name) for name in FILES]).encode()
                headers["Content-Type"] = "application/json"
            elif path.startswith(f"/datasets/ml/room/resolve/{COMMIT}/"):
                name = path.split(f"{COMMIT}/", 1)[1]
                content = FILES[name]
                headers = {"ETag": f'"{SHA256[name]}"', "X-Repo-Commit": COMMIT}
            else:
                self.send_error(404)
                return
            self.send_response(200)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def entry(self, name: str) -> dict:
            lfs = {"oid": SHA256[name], "size": len(FILES[name]), "pointerSize": 130}
            whole = {"type": "file", "path": name, "size": len(FILES[name]), "oid": "0" * 40}
            return whole | ({"lfs": lfs} if name.endswith(".npz") else {})

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield SimpleNamespace(url=f"http://127.0.0.1:{listening.server_port}")
        listening.shutdown()


def command(run, workdir, url, *arguments):
    environment = {
        "HF_ENDPOINT": url,
        "HF_HOME": str(workdir / "hub"),
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
    return run("fetch", "--data", "room", *arguments, cwd=workdir, env={**environment, "HF_HUB_DISABLE_XET": "1"})


@pytest.mark.slow
def test_the_command_fetches_from_a_hub_with_the_real_client(workdir, server, run_recollect):
    with (workdir / "config/published_data.yaml").open("a") as file:
        file.write("room: {repository: ml/room, revision: null}\n")
    done = command(run_recollect, workdir, server.url, "--revision", COMMIT)
    assert done.returncode == 0, done.stderr
    assert (
        f"2 files in data/published/room, 2 of them fetched now; to pin this commit, write `revision: {COMMIT}`"
        in done.stdout
    )
    folder = workdir / "data/published/room"
    assert standing(folder) == {*WANTED, "index.json", "index.json.manifest.json"}
    assert all((folder / name).read_bytes() == FILES[name] for name in WANTED)
    assert verify(folder / "index.json", kind="published data")["provenance"] == {
        "repository": "ml/room",
        "revision": COMMIT,
    }


def test_without_a_network_the_command_says_so_once(workdir, run_recollect):
    with (workdir / "config/published_data.yaml").open("a") as file:
        file.write(f"room: {{repository: ml/room, revision: {COMMIT}}}\n")
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(workdir / "hub")}  # as without a network, but at once
    done = run_recollect("fetch", "--data", "room", cwd=workdir, env=environment)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "error: The list of files could not be fetched (" in done.stderr
    assert "on a machine without network, copy the folder data/published/room" in done.stderr
    assert not (workdir / "data").exists()


def test_a_connection_that_fails_is_one_message(hub, index, monkeypatch):
    def fail(*args, **kwargs):
        raise ConnectionError("Name or service not known\nlong trace")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(
        UserError, match=r"could not be fetched \(ConnectionError: Name or service not known\)"
    ) as error:
        fetch("room", PINNED, index)
    assert "copy the folder data/published/room" in error.value.do and standing(index.parent) == set()


@pytest.mark.parametrize("named", [(None, None, None), ("minilm", "room", None), ("minilm", None, COMMIT)])
def test_one_thing_is_fetched_at_a_time(named):
    with pytest.raises(UserError, match="one thing is fetched at a time") as error:
        commands.fetch(*named)
    assert error.value.do == "--model, or --data [--revision]"
