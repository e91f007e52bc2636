"""A copy of the workflow in which `recollect` is a stand-in that writes the declared outputs at once.

So the tests of the DAG run the real Snakemake and the real DVC on the real rules, in seconds. The stand-in's outputs are a
function of its command and of `salt`, and each command it ran stands in the file RAN.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import preloaded
import pytest
from made_once import made_once

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
WORKFLOW = [
    *("Snakefile", "rules", "workflow", "profiles", "cluster", "envs", "config", "plugins", "src", "pyproject.toml"),
    *("dvc.yaml", ".dvc", ".dvcignore", ".gitignore"),
]
STAND_IN = r"""#!PYTHON -ES
import hashlib, os, sys  # which take half of the time of json and pathlib
stage, words = sys.argv[1], sys.argv[2:]
pairs = [(k.removeprefix("--"), v) for k, v in zip(words[::2], words[1::2])]
o = dict(pairs)
with open("RAN", "a") as f:
    f.write(" ".join(["recollect", *sys.argv[1:]]) + "\n")
data = "data/{scale}/{env}/".format(**o) if "env" in o else ""
memory = data + o.get("method", "") + "/"
run = "results/{scale}/runs/{env}/{method}/seed_{seed}/".format(**o) if "seed" in o else ""
figure = "results/{scale}/figures/{figure}".format(**o) if "figure" in o else ""
seeing = "data/{scale}/models/{model}/".format(**o) if stage == "train-vision-language" else ""
outputs = {
    "generate-task": [data + "tasks/{}/histories.safetensors".format(o.get("task"))],
    "train-images": [data + "image_encoder.safetensors", data + "image_encoder.parquet"],
    "generate": [data + "histories.safetensors"],
    "embed": [memory + "embeddings.safetensors"],
    "index": [memory + "memory.faiss", memory + "memory_rows.safetensors"],
    "run": [
        "results/{scale}/runs/{env}/{method}/seed_{}/".format(seed, **o) + file
        for name, seed in pairs if name == "seed" and stage == "run"
        for file in ("policy.safetensors", "train.parquet", "scores.parquet")
    ],
    "evaluate": [run + "scores.parquet"],
    "inspect": [run + "trace.safetensors"],
    "page": [run.rstrip("/").replace("/runs/", "/inspect/") + ".html"],
    "measure": [run.rstrip("/").replace("/runs/", "/speed/") + ".parquet"],
    "claims": ["results/{scale}/claims.json".format(**o)],
    "report": ["results/{scale}/report.html".format(**o)],
    "figure": [figure + suffix for suffix in (".pdf", ".png", ".csv", ".json")],
    "fetch": ["data/models/{}/model.safetensors".format(o.get("model"))],
    "train-vision-language": [seeing + "model.safetensors", seeing + "accuracy.json"],
    "embed-vocabulary": ["data/{}/token_vocabularies/{}.safetensors".format(o.get("scale"), o.get("vocabulary"))],
}[stage]
if os.path.exists("fails") and stage in open("fails").read().split():
    sys.exit(2)
salt = open("salt").read() if os.path.exists("salt") else ""
for name in outputs:
    os.makedirs(os.path.dirname(name), exist_ok=True)
    content = ('{"claims": [], "salt": "%s"}' % salt if stage == "claims" else name + salt).encode()
    said = stage, hashlib.sha256(content).hexdigest(), len(content)
    with open(name, "wb") as f, open(name + ".manifest.json", "w") as beside:
        f.write(content)
        beside.write('{"format": 1, "kind": "%s", "provenance": {}, "sha256": "%s", "size": %d}' % said)
"""


@dataclass(frozen=True)
class Workflow:
    """A copy of the repository's workflow; everything runs in it and with its own source."""

    folder: Path
    commands: Path

    @property
    def environment(self) -> dict[str, str]:
        """Finds the copy's package first, then the stand-in, then the tools of this Python."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SNAKEMAKE", "DVC", "GIT", "RECOLLECT"))}
        path = os.pathsep.join([str(self.commands), str(BIN), os.environ["PATH"]])
        alone = {"OMP_NUM_THREADS": "1", "DVC_NO_ANALYTICS": "1"}
        return {**kept, **alone, "PATH": path, "PYTHONPATH": str(self.folder / "src")}

    def run(self, *command: str, check: bool = True, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Run a command in the copy; stdout and stderr together."""
        where: dict[str, Any] = {"cwd": self.folder, "env": self.environment, "timeout": timeout}
        if command[0] == "snakemake":
            done = preloaded.run("snakemake", command[1:], together=True, **where)
        elif command[:2] == (sys.executable, "-m"):
            done = preloaded.run(command[2], command[3:], together=True, **where)
        else:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **where)
        assert not check or done.returncode == 0, done.stdout
        return done

    def snakemake(self, *arguments: str, check: bool = True) -> str:
        """What Snakemake says."""
        return self.run("snakemake", *arguments, check=check).stdout

    def planned(self, *arguments: str) -> list[str]:
        """The commands that Snakemake would run, without what is the same in all: device, threads, log."""
        said = self.snakemake("--dry-run", *arguments)
        return sorted(short(line) for line in re.findall(r"^Shell command: (recollect .*)$", said, re.MULTILINE))

    def ran(self) -> list[str]:
        """The commands that the stand-in ran since the last call, in order."""
        log = self.folder / "RAN"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return [short(line) for line in lines]

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace a text that must stand in a file of the copy."""
        path = self.folder / file
        content = path.read_text()
        assert old in content, f"{old!r} is not in {file}"
        path.write_text(content.replace(old, new, 1))


def short(command: str) -> str:
    """A job's command without redirection, device, threads and scale, so that tests can name it."""
    command = re.sub(r" (--device|--threads|--scale|--at-a-time) \S+", "", command.split(" > ")[0])
    return re.sub(r"--(env|method|seed|figure|model) ", "", command.removeprefix("recollect "))


def copy_of_workflow(folder: Path) -> None:
    """Copy what the workflow consists of, without results, records and caches; compiled modules save each copy a second."""
    folder.mkdir(parents=True, exist_ok=True)
    # A module that another test compiles has such a name until it is whole.
    ignore = shutil.ignore_patterns("*.pyc.*", "*.egg-info", "tmp", "cache", "config.local")
    for name in WORKFLOW:
        source, target = ROOT / name, folder / name
        if source.is_symlink():
            target.symlink_to(os.readlink(source))
        elif source.is_dir():
            shutil.copytree(source, target, ignore=ignore, symlinks=True)
        else:
            shutil.copy2(source, target)


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in for `recollect`, and the real Snakemake for those that call it, as DVC does."""
    command = tmp_path_factory.mktemp("bin") / "recollect"
    command.write_text(STAND_IN.replace("PYTHON", sys.executable))
    command.chmod(0o755)
    preloaded.script(command.with_name("snakemake"), "snakemake")
    return command.parent


@pytest.fixture(scope="session")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the check of the configuration and the reading of the code leave: seconds, and the same in all copies."""

    def make(folder: Path) -> None:
        copy_of_workflow(folder / "repository")
        Workflow(folder / "repository", BIN).snakemake("--dry-run", "--quiet", "all", "--config", "figures=demo_all")

    return made_once(tmp_path_factory, "checked", make) / "repository/.snakemake"


@pytest.fixture(scope="session")
def finished_once(
    tmp_path_factory: pytest.TempPathFactory, stand_in: Path, workflow_in: Callable[[Path], Workflow]
) -> tuple[Workflow, list[str]]:
    """A copy in which all figures of the demo were made with the stand-in, and the commands in the order they ran."""

    def make(folder: Path) -> None:
        workflow = Workflow(workflow_in(folder / "repository").folder, stand_in)
        workflow.edit("config/config.yaml", "figures: headlines", "figures: demo_all")
        workflow.snakemake("--cores", "1")

    folder = tmp_path_factory.mktemp("finished") / "repository"
    shutil.copytree(made_once(tmp_path_factory, "finished", make) / "repository", folder, symlinks=True)
    workflow = Workflow(folder, stand_in)
    return workflow, workflow.ran()


@pytest.fixture
def finished(finished_once: tuple[Workflow, list[str]], tmp_path: Path) -> Workflow:
    """A copy of its own for a test that changes something; times are kept, as the records know them."""
    folder = tmp_path / "repository"
    shutil.copytree(finished_once[0].folder, folder, symlinks=True)
    return Workflow(folder, finished_once[0].commands)


@pytest.fixture
def untouched(finished_once: tuple[Workflow, list[str]]) -> Workflow:
    """The finished copy itself, for tests that only ask for plans."""
    return finished_once[0]


@pytest.fixture(scope="session")
def workflow_in(checked: Path) -> Callable[[Path], Workflow]:
    """Makes a copy in a folder, in which the real commands run."""

    def make(folder: Path) -> Workflow:
        copy_of_workflow(folder)
        (folder / ".snakemake").mkdir()
        for path in checked.glob("recollect-*.json*"):
            shutil.copy2(path, folder / ".snakemake")
        return Workflow(folder, BIN)

    return make


@pytest.fixture
def real_workflow(tmp_path: Path, workflow_in: Callable[[Path], Workflow]) -> Callable[[str], Workflow]:
    """Makes such copies by name."""
    return lambda name: workflow_in(tmp_path / name)
