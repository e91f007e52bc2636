"""DVC for real: artifacts pushed to a folder and to an S3 server, pulled elsewhere, and a figure drawn without training.

The stages are those of dvc.yaml, cut down to one run of one figure at smoke scale, with the real commands. What S3 needs
(dvc-s3, and moto for a server of the test's own) is installed for the test alone, beside the locked packages.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import fast_yaml
import pytest

pytestmark = pytest.mark.slow
GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"]
FIGURE = "memory_rl_passive_tmaze"
CURVES = f"results/smoke/figures/{FIGURE}"
RUN = "results/smoke/runs/tmaze_carried_10/dqn_ff/seed_0"
STAGES = ("runs", "figures", "claims", "metrics", "provenance")


def cut_down(workflow: Any) -> None:
    """One figure of one run at smoke scale, and the stages of dvc.yaml that this takes."""
    where = workflow.folder / "config"
    (where / "config.yaml").write_text(f"scale: smoke\nfigures: [{FIGURE}]\n")
    smoke = fast_yaml.load((where / "scales/smoke.yaml").read_text())
    one = {"environments": ["tmaze_carried_10"], "methods": ["dqn_ff"], "seeds": [0]}
    smoke["figures"][FIGURE] = {**smoke["figures"][FIGURE], **one}
    (where / "scales/smoke.yaml").write_text(fast_yaml.dump(smoke, sort_keys=False))

    pipeline = fast_yaml.load((workflow.folder / "dvc.yaml").read_text().replace("demo", "smoke"))
    kept = {name: pipeline["stages"][name] for name in STAGES}
    for stage in kept.values():
        for part in ("outs", "deps"):
            stage[part] = [x for x in stage.get(part, []) if belongs(x if isinstance(x, str) else next(iter(x)))]
    (workflow.folder / "dvc.yaml").write_text(fast_yaml.dump({**pipeline, "stages": kept}, sort_keys=False))


def belongs(path: str) -> bool:
    """Whether it is code, of the one run, or of no run at all; the figure has no pages of runs."""
    elsewhere = ("data/", "results/smoke/runs/", "results/smoke/inspect")
    return not path.startswith(elsewhere) or path.startswith(str(Path(RUN).parents[1]))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, workflow_in: Callable[[Path], Any]) -> Any:
    """A repository in which `dvc repro` was run and committed."""
    workflow = workflow_in(tmp_path_factory.mktemp("made") / "repository")
    cut_down(workflow)
    workflow.run(*GIT, "init", "-q")
    workflow.run("dvc", "repro")
    workflow.run(*GIT, "add", "-A")
    workflow.run(*GIT, "commit", "-qm", "made")
    return workflow


@pytest.fixture
def repository(made: Any, tmp_path: Path) -> Any:
    """A copy of it for one test."""
    shutil.copytree(made.folder, tmp_path / "repository", symlinks=True)
    return replace(made, folder=tmp_path / "repository")


@pytest.fixture(scope="module")
def s3_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the DVC of the locks needs for S3, and a server."""
    folder = tmp_path_factory.mktemp("s3")
    names = ("dvc", "dvc-data", "dvc-objects")
    (folder / "pins.txt").write_text("".join(f"{name}=={metadata.version(name)}\n" for name in names))
    command = [Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", "--python", sys.executable]
    wanted = ["--target", folder / "packages", "--constraint", folder / "pins.txt", "dvc-s3", "moto[s3,server]"]
    done = subprocess.run([*command, *wanted], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "packages"


@pytest.fixture
def s3(s3_packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an S3 server with one empty bucket; DVC finds what it needs to talk to it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "of-the-test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    environment = {**os.environ, "PYTHONPATH": str(s3_packages)}
    code = "from moto.server import main; import sys; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "-H", "127.0.0.1", "-p", str(port)]
    address = f"http://127.0.0.1:{port}"
    with (tmp_path / "moto.log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    bucket = f"import boto3; boto3.client('s3', endpoint_url='{address}').create_bucket(Bucket='lab')"
    try:
        end = time.monotonic() + 60
        while True:
            with socket.socket() as line:
                if line.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < end and server.poll() is None, (tmp_path / "moto.log").read_text()
            time.sleep(0.1)
        subprocess.run([sys.executable, "-c", bucket], env=environment, check=True)
        yield address
    finally:
        server.terminate()
        server.wait(20)


class WithPackages:
    """A workflow that also finds packages in a folder, behind its own."""

    def __init__(self, workflow: Any, packages: Path) -> None:
        self.workflow, self.packages = workflow, packages

    def run(self, *command: str) -> str:
        own = self.workflow.environment
        environment = {**own, "PYTHONPATH": f"{own['PYTHONPATH']}:{self.packages}"}
        done = subprocess.run(command, cwd=self.workflow.folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def clone_of(repository: Any, name: str) -> Any:
    """A fresh clone at another path."""
    folder = repository.folder.parent / "elsewhere" / name
    repository.run(*GIT, "clone", "-q", str(repository.folder), str(folder))
    return replace(repository, folder=folder)


def test_a_clone_draws_its_figure_from_what_an_s3_server_keeps(repository: Any, s3: str, s3_packages: Path) -> None:
    here = WithPackages(repository, s3_packages)
    here.run("dvc", "remote", "add", "-d", "lab", "s3://lab/recollect")
    here.run("dvc", "remote", "modify", "lab", "endpointurl", s3)
    here.run("dvc", "push")
    assert "in sync" in here.run("dvc", "status", "--cloud")
    repository.run(*GIT, "commit", "-qam", "remote")
    policy = (repository.folder / RUN / "policy.safetensors").read_bytes()
    pdf = (repository.folder / f"{CURVES}.pdf").read_bytes()

    clone = clone_of(repository, "pulled")
    WithPackages(clone, s3_packages).run("dvc", "pull")
    assert (clone.folder / RUN / "policy.safetensors").read_bytes() == policy
    assert clone.planned() == []

    (clone.folder / f"{CURVES}.pdf").unlink()
    said = clone.snakemake("--cores", "1", f"{CURVES}.pdf")
    assert "rule figure:" in said and "rule train:" not in said and "rule evaluate:" not in said
    assert (clone.folder / f"{CURVES}.pdf").read_bytes() == pdf
    assert clone.planned() == []
    assert "up to date" in clone.run("dvc", "status").stdout


def test_a_damaged_object_is_noticed_before_anything_is_drawn_from_it(repository: Any, tmp_path: Path) -> None:
    repository.run("dvc", "remote", "add", "-d", "store", str(tmp_path / "store"))
    repository.run("dvc", "push")
    repository.run(*GIT, "commit", "-qam", "remote")
    scores = (repository.folder / RUN / "scores.parquet").read_bytes()
    (damaged,) = [path for path in (tmp_path / "store").rglob("*") if path.is_file() and path.read_bytes() == scores]
    damaged.chmod(0o644)
    damaged.write_bytes(scores[:-1] + bytes([scores[-1] ^ 1]))

    clone = clone_of(repository, "damaged")
    pulled = clone.run("dvc", "pull", check=False)  # DVC itself may or may not notice
    if not (clone.folder / RUN / "scores.parquet").exists():
        assert pulled.returncode != 0 and damaged.name in pulled.stdout, pulled.stdout
        return
    (clone.folder / f"{CURVES}.pdf").unlink()
    said = clone.snakemake("--cores", "1", f"{CURVES}.pdf", check=False)
    assert "scores.parquet" in said and "to do: " in said
    assert not (clone.folder / f"{CURVES}.pdf").exists()


def test_the_scores_of_two_commits_are_compared(repository: Any) -> None:
    before = json.loads((repository.folder / "metrics/smoke.json").read_text())[FIGURE]["aggregation"]["dqn_ff"]
    smoke = repository.folder / "config/scales/smoke.yaml"
    settings = fast_yaml.load(smoke.read_text())
    settings["figures"][FIGURE]["environments"] = ["tmaze_carried_10", "tmaze_carried_20"]
    smoke.write_text(fast_yaml.dump(settings, sort_keys=False))
    repository.run("dvc", "repro")
    after = json.loads((repository.folder / "metrics/smoke.json").read_text())
    repository.run(*GIT, "add", "-A")
    repository.run(*GIT, "commit", "-qm", "more")

    diff = json.loads(repository.run("dvc", "metrics", "diff", "HEAD~1", "--json", "--all").stdout)
    changed = diff["metrics/smoke.json"]
    assert changed[f"{FIGURE}.aggregation.dqn_ff"]["old"] == before
    assert changed[f"{FIGURE}.aggregation.dqn_ff"]["new"] == after[FIGURE]["aggregation"]["dqn_ff"]
    shown = repository.run("dvc", "exp", "show", "--num", "2", "--csv").stdout
    assert "aggregation.dqn_ff" in shown


def test_a_release_locks_and_pushes_results_that_a_clone_has_whole_and_later_code_finds_old(
    repository: Any, tmp_path: Path
) -> None:
    step = (sys.executable, "workflow/release.py", "results")
    assert "no default remote" in repository.run(*step).stdout
    repository.run("dvc", "remote", "add", "-d", "store", str(tmp_path / "store"))
    assert "a clone pulled them" in repository.run(*step).stdout
    repository.run(*GIT, "add", "dvc.lock", "metrics", ".dvc/config")
    repository.run(*GIT, "commit", "-qm", "release")
    policy = (repository.folder / RUN / "policy.safetensors").read_bytes()

    later = clone_of(repository, "later")
    code = later.folder / "src/recollect/memory_rl/dqn.py"
    code.write_text(code.read_text() + "# A comment.\n")
    assert "modified:           src/recollect" in later.run("dvc", "status").stdout, "DVC compares files as they are"
    later.run("dvc", "pull")
    assert later.planned() == [], "Snakemake compares what runs"
    later.run("dvc", "repro")
    assert (later.folder / RUN / "policy.safetensors").read_bytes() == policy
    assert "up to date" in later.run("dvc", "status").stdout

    code.write_text(code.read_text() + "UNUSED = 1\n")
    assert any(command.startswith("run ") for command in later.planned())
