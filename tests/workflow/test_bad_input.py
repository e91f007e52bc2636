"""Bad input stops a command before any work: exit status 2, one message (what, where, what to do), nothing half-written."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fast_yaml
import numpy as np
import pytest

from recollect.artifacts.sealed import MANIFEST_SUFFIX, sealing

ENV = ["--scale", "smoke", "--env", "dark_room_10x10"]
DT = [*ENV, "--method", "dt", "--seed", "0", "--device", "cpu"]
RADT = [*ENV, "--method", "radt", "--seed", "0", "--device", "cpu"]
HISTORIES = "data/smoke/dark_room_10x10/histories.safetensors"
MEMORY = "data/smoke/dark_room_10x10/radt/memory.faiss"
POLICY = "results/smoke/runs/dark_room_10x10/dt/seed_0/policy.safetensors"

Change = Callable[[Path], Any]
Run = Callable[..., subprocess.CompletedProcess[str]]


def edited(file: str, **values: Any) -> Change:
    """A change of one config file: `hyperparameters__context=3` sets the key `context` under `hyperparameters`."""

    def change(folder: Path) -> None:
        path = folder / "config" / f"{file}.yaml"
        content = fast_yaml.load(path.read_text())
        for name, value in values.items():
            inner = content
            *above, last = name.split("__")
            for key in above:
                inner = inner.setdefault(key, {})
            inner[last] = value
        path.write_text(fast_yaml.dump(content))

    return change


def files(folder: Path) -> dict[str, bytes]:
    """What stands in a folder, without locks."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def refused(run: Run, folder: Path, command: list[str], *parts: str, **keywords: Any) -> None:
    """The command stops with one message that has these parts (regular expressions), and leaves no trace."""
    before = files(folder)
    done = run(*command, cwd=folder, **keywords)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""
    said = [line for line in done.stderr.splitlines() if line and not line.startswith("$ recollect")]
    if "evaluate" in command and said[0].startswith("warning: the policy of"):  # which is stale, too
        said = said[1:]
    assert [line.split(":")[0] for line in said] == ["error", "  where", "  to do"], done.stderr
    for part, line in zip(parts, said, strict=False):
        assert re.search(part, line), f"{part!r} is not in {line!r}"
    assert files(folder) == before


@pytest.fixture
def folder(root: Path, tmp_path: Path) -> Path:
    """A working directory with a configuration and nothing else."""
    shutil.copytree(root / "config", tmp_path / "config")
    return tmp_path


GENERATE, TRAIN = ["generate", *ENV], ["train", *DT]
FIGURE = ["figure", "--scale", "smoke", "--figure", "radt_dark_room_10x10"]
CONFIGURATION: dict[str, tuple[Change | None, list[str], tuple[str, ...]]] = {
    # unknown keys
    "key of a method": (
        edited("methods/dt", hyperparameters__contxt=3),
        TRAIN,
        ("unknown key 'contxt'", "config/methods/dt.yaml", "did you mean 'context'"),
    ),
    "key of an environment": (
        edited("environments/dark_room_10x10", retuns={}),
        GENERATE,
        ("unknown key 'retuns'", "config/environments/dark_room_10x10.yaml", "did you mean 'returns'"),
    ),
    "option of a world": (
        edited("environments/dark_room_10x10", options__widht=3),
        GENERATE,
        ("unknown option 'widht'", "dark_room", "did you mean 'width'"),
    ),
    "key of a scale": (
        edited("scales/smoke", seedz=[1]),
        GENERATE,
        ("unknown key 'seedz'", "config/scales/smoke.yaml", "did you mean 'seeds'"),
    ),
    "key of a figure": (
        edited("figures/radt_dark_room_10x10", methodz=["dt"]),
        FIGURE,
        ("unknown key 'methodz'", "config/figures/radt_dark_room_10x10.yaml", "did you mean 'methods'"),
    ),
    "hyper-parameter of a source of histories": (
        edited("environments/dark_room_10x10", source__hyperparameters__epoch=3),
        GENERATE,
        ("unknown key 'epoch'", "source.hyperparameters", "did you mean 'epochs'"),
    ),
    # wrong types and values
    "type of a number": (
        edited("methods/dt", hyperparameters__reward_scale="many"),
        TRAIN,
        ("'reward_scale' is 'many'", "config/methods/dt.yaml", "correct 'reward_scale'"),
    ),
    "number where a list is needed": (
        edited("scales/smoke", seeds=3),
        GENERATE,
        ("'seeds' is 3, and must be a list", "config/scales/smoke.yaml", r"write `seeds: \[3\]`"),
    ),
    "number where a mapping is needed": (
        edited("scales/smoke", methods__dt__hyperparameters=7),
        TRAIN,
        ("mapping of keys to values here, not 7", "config/methods/dt.yaml: hyperparameters", "known keys: .*context"),
    ),
    "list where a mapping is needed": (
        edited("methods/dt", environments=["dark_room_10x10"]),
        TRAIN,
        ("`environments` must map", "config/methods/dt.yaml", "environments: {"),
    ),
    "number out of range": (
        edited("scales/smoke", methods__dt__hyperparameters__optimisation__checkpoint_every=0),
        TRAIN,
        ("'optimisation.checkpoint_every' is 0", "scale smoke"),
    ),
    # unknown names
    "method": (None, [*TRAIN[:6], "dtt", *TRAIN[7:]], ("no configuration named 'dtt'", "methods/dtt.yaml", "'dt'")),
    "environment": (
        None,
        ["generate", "--scale", "smoke", "--env", "dark_rom_10x10"],
        ("no configuration named 'dark_rom_10x10'", "environments", "'dark_room_10x10'"),
    ),
    "size of an environment that takes none": (
        None,
        ["generate", "--scale", "smoke", "--env", "dark_room_10x10_5"],
        ("takes no size", "dark_room_10x10.yaml", "write 'dark_room_10x10'"),
    ),
    "scale": (
        None,
        ["generate", "--scale", "smok", "--env", "dark_room_10x10"],
        ("no configuration named 'smok'", "scales/smok.yaml", "'smoke'"),
    ),
    "figure": (
        None,
        ["figure", "--scale", "smoke", "--figure", "radt_dark_rooms"],
        ("no configuration named 'radt_dark_rooms'", "figures", "'radt_dark_room_10x10'"),
    ),
    "kind of figure": (
        edited("figures/radt_dark_room_10x10", kind="in_context_curves"),
        FIGURE,
        ("'.*in_context_curves'", "", "in_context_curve'"),
    ),
    "algorithm": (
        edited("methods/dt", algorithm="dtt"),
        TRAIN,
        ("no algorithm named 'dtt'", "config/methods/dt.yaml", "did you mean 'dt'"),
    ),
    "list of words and models": (
        edited("token_vocabularies", vocabularys=1),
        ["embed-vocabulary", "--scale", "smoke", "--vocabulary", "random", "--device", "cpu"],
        ("unknown key 'vocabularys'", "config/token_vocabularies.yaml", "did you mean 'vocabularies'"),
    ),
    "command beneath warm": (
        None,
        ["warm", "no-such-command"],
        ("the command cannot be started", "no-such-command", "correct its name"),
    ),
    "algorithm that is a part of others": (
        edited("methods/dt", algorithm="acting"),
        TRAIN,
        ("no algorithm named 'acting'", "config/methods/dt.yaml"),
    ),
    "source of histories that makes none": (
        edited("environments/dark_room_10x10", source__algorithm="dt"),
        GENERATE,
        ("no source of histories named 'dt'", "source.algorithm", "ppo"),
    ),
    "world": (
        edited("environments/dark_room_10x10", world="dark_rom"),
        GENERATE,
        ("no world named 'dark_rom'", "config/environments/dark_room_10x10.yaml", "did you mean 'dark_room'"),
    ),
    "language model": (
        edited("scales/smoke", methods__radt_agnostic__memory__embedder="lm:minilmm"),
        ["embed", *ENV, "--method", "radt_agnostic", "--device", "cpu"],
        ("no language model named 'minilmm'", "language_models.yaml", "did you mean 'minilm'"),
    ),
    "embedder": (
        edited("scales/smoke", methods__radt__memory__embedder="method:dtt"),
        ["embed", *ENV, "--method", "radt", "--device", "cpu"],
        ("no configuration named 'dtt'", "methods/dtt.yaml", "did you mean 'dt'"),
    ),
    "memory of a method without one": (
        None,
        ["embed", *ENV, "--method", "dt", "--device", "cpu"],
        ("'dt' has no memory", "config/methods/dt.yaml", "add a `memory:` section"),
    ),
    "file that is not YAML": (
        lambda folder: (folder / "config/methods/dt.yaml").write_text("a: [1, 2"),
        TRAIN,
        ("not valid YAML: .* line 1, column", "config/methods/dt.yaml", "correct the file"),
    ),
    "file that is not text": (
        lambda folder: (folder / "config/methods/dt.yaml").write_bytes(b"\xff\xfe\x00"),
        TRAIN,
        ("not valid YAML", "config/methods/dt.yaml", "correct the file"),
    ),
    # what cannot be meant
    "environment that a scale overrides": (
        edited("scales/smoke", environments__dark_rom_10x10={}),
        TRAIN,
        ("'dark_rom_10x10' is overridden", "config/scales/smoke.yaml: environments", "'dark_room_10x10'"),
    ),
    "key that stands twice": (
        lambda folder: (folder / "config/methods/dt.yaml").write_text("data: histories\ntitle: a\ndata: online\n"),
        TRAIN,
        ("'data' stands twice", "config/methods/dt.yaml:1 and config/methods/dt.yaml:3", "remove one"),
    ),
    "infinity": (
        edited("scales/smoke", methods__dt__hyperparameters__optimisation__learning_rate=float("inf")),
        TRAIN,
        ("'optimisation.learning_rate' is inf", "scale smoke", "correct 'optimisation.learning_rate'"),
    ),
    "no number on the command line": (
        None,
        ["train", *DT, "--set", "optimisation.learning_rate=true"],
        ("'optimisation.learning_rate' is True", "variant", "correct 'optimisation.learning_rate'"),
    ),
    "path for the name of a scale": (
        None,
        ["train", "--scale", "../scales/smoke", *DT[2:]],
        ("'../scales/smoke' cannot be a name in scales", "config/scales", "did you mean 'smoke'"),
    ),
    # missing files
    "histories": (None, TRAIN, ("is missing", HISTORIES, f"snakemake {HISTORIES}")),
    "policy": (None, ["evaluate", *DT], ("is missing", POLICY, f"snakemake {POLICY}")),
    "scores": (None, FIGURE, ("is missing", "scores.parquet", "snakemake results/smoke/runs/")),
    # devices
    "device": (None, [*TRAIN[:-1], "tpu"], ("unknown device 'tpu'", "--device", "cpu, cuda or auto")),
    "GPU where there is none": (
        None,
        [*TRAIN[:-1], "cuda"],
        ("a GPU is asked for and there is none", "cuda", "run with device cpu or auto"),
    ),
}


@pytest.mark.parametrize("case", list(CONFIGURATION))
@pytest.mark.quick(
    "key of a method",
    "option of a world",
    "type of a number",
    "method",
    "environment",
    "scale",
    "figure",
    "file that is not YAML",
    "file that is not text",
    "key that stands twice",
    "histories",
    "policy",
    "device",
    "GPU where there is none",
)
def test_a_mistake_is_said_before_any_work(case: str, folder: Path, run_recollect: Run) -> None:
    change, command, parts = CONFIGURATION[case]
    if change is not None:
        change(folder)
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if "cuda" in command else {}
    refused(run_recollect, folder, command, *parts, env=hidden)


@pytest.mark.parametrize(
    "case", ["scale", *(pytest.param(c, marks=pytest.mark.slow) for c in ("key of a method", "histories"))]
)
def test_the_installed_command_says_the_same(case: str, folder: Path) -> None:
    """In a Python of its own: other tests fork theirs from one that has imported all."""

    def installed(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "recollect.cli", *arguments]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600)

    change, command, parts = CONFIGURATION[case]
    if change is not None:
        change(folder)
    refused(installed, folder, command, *parts)


@pytest.mark.quick("command0-Missing option '--seed'", "command2---pack", "command6-No such command 'trian'")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (TRAIN[:7], "Missing option '--seed'"),
        ([*TRAIN[:8], "first"], "valid integer"),
        ([*TRAIN, "--pack", "0"], "--pack"),
        ([*TRAIN[:8], "-1"], "--seed"),
        ([*TRAIN[:8], str(2**63)], "--seed"),
        ([*TRAIN, "--threads", "100000"], "--threads"),
        (["trian"], "No such command 'trian'"),
    ],
)
def test_a_wrong_command_line_says_how_it_is_used(
    command: list[str], message: str, folder: Path, run_recollect: Run
) -> None:
    before = files(folder)
    done = run_recollect(*command, cwd=folder)
    assert done.returncode == 2
    said = " ".join(re.sub(r"[│╭╮╰╯─]", " ", done.stderr).split())
    assert message in said and "Usage:" in said and "Traceback" not in said
    assert files(folder) == before


@pytest.mark.slow
def test_a_batch_that_no_memory_holds_is_a_message(smoke_workdir: Path, run_recollect: Run) -> None:
    done = run_recollect("train", *DT, "--set", f"optimisation.batch_size={10**15}", cwd=smoke_workdir)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert re.search(r"error: memory does not suffice\n.*Unable to allocate .*\n  to do: .*batch_size", done.stderr)
    assert not list(smoke_workdir.glob("results/smoke/runs/*/*batch_size*/**/policy*"))


# ----------------------------------------------------------------------------------------- files that are not right


def cut_short(folder: Path) -> None:
    path = folder / HISTORIES
    path.write_bytes(path.read_bytes()[:-100])


def flipped(folder: Path) -> None:
    content = bytearray((folder / POLICY).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / POLICY).write_bytes(bytes(content))


def without_manifest(folder: Path) -> None:
    (folder / (HISTORIES + MANIFEST_SUFFIX)).unlink()


def replaced(target: str, source: str) -> Change:
    def change(folder: Path) -> None:
        for suffix in ("", MANIFEST_SUFFIX):
            shutil.copyfile(folder / (source + suffix), folder / (target + suffix))

    return change


def pickled(folder: Path) -> None:
    """An npz with a pickled object, sealed as if it were histories."""
    with sealing(folder / HISTORIES, kind="histories") as temporary, temporary.open("wb") as file:
        np.savez(file, observation=np.array([{"a": 1}], dtype=object))


def a_file_in_the_way(folder: Path) -> None:
    shutil.rmtree(folder / "results/smoke/checkpoints")
    (folder / "results/smoke/checkpoints").write_text("")
    (folder / POLICY).unlink()  # else the run is kept


WRONG_FILES: dict[str, tuple[Change, list[str], tuple[str, ...]]] = {
    "truncated histories": (cut_short, TRAIN, ("cut short", HISTORIES, "delete it")),
    "corrupted policy": (flipped, ["evaluate", *DT], ("sha256", POLICY, "delete it")),
    "histories without their manifest": (without_manifest, TRAIN, ("no manifest", HISTORIES)),
    "a policy for histories": (replaced(HISTORIES, POLICY), TRAIN, ("of kind 'policy', not 'histories'", HISTORIES)),
    "histories for an index": (
        replaced(MEMORY, HISTORIES),
        ["train", *RADT],
        ("of kind 'histories', not 'index'", MEMORY),
    ),
    "histories for an embedder": (
        replaced(POLICY, HISTORIES),
        ["embed", *RADT[:6], "--device", "cpu"],
        ("of kind 'histories', not 'policy'", POLICY),
    ),
    "a pickled npz": (pickled, TRAIN, ("not a whole safetensors file", HISTORIES)),
    "a policy of a larger room": (
        edited("environments/dark_room_10x10", options={"width": 9, "height": 9}),
        ["evaluate", *DT],
        ("does not fit.*'embed.observation.weight' has shape", "dark_room_10x10 / dt / seed 0", "train it again"),
    ),
    "histories of a larger room": (
        edited("environments/dark_room_10x10", options={"width": 9, "height": 9, "horizon": 100}),
        TRAIN,
        ("an observation is above its range: row", HISTORIES, "make the histories again"),
    ),
    "a split that there is not": (
        edited("environments/dark_room_10x10", evaluation__splits=["evla"]),
        TRAIN,
        ("unknown split 'evla'", "tasks of the world dark_room", "did you mean 'eval'"),
    ),
    "histories of longer episodes": (
        edited("environments/dark_room_10x10", options__horizon=50),
        TRAIN,
        ("up to 100 steps, not 50", HISTORIES, "recollect generate"),
    ),
    "a network that is too small for the environment": (
        edited("scales/smoke", methods__dt__hyperparameters__network__timesteps=99),
        TRAIN,
        ("99 timesteps, but needs 100", "network.timesteps", "at least 100"),
    ),
    "a network of a width that its heads do not divide": (
        edited("scales/smoke", methods__dt__hyperparameters__network__heads=3),
        TRAIN,
        ("cannot be split into 3 heads", "hyperparameters", "correct 'network'"),
    ),
    "a file where a folder must be": (a_file_in_the_way, TRAIN, ("cannot be written", "checkpoints", "run the same")),
}


@pytest.mark.quick("truncated histories", "corrupted policy")
@pytest.mark.parametrize("case", list(WRONG_FILES))
def test_wrong_files_are_refused(case: str, smoke_workdir: Path, run_recollect: Run) -> None:
    change, command, parts = WRONG_FILES[case]
    change(smoke_workdir)
    refused(run_recollect, smoke_workdir, command, *parts)
