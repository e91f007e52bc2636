"""One changed byte: in an artifact or its manifest it is refused, in a checkpoint or a buffer the run goes on without it."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from attack.campaign import Plan, Trial, share_of
from attack.jobs import (
    CORRIDOR,
    DOOR,
    JOBS,
    PATIENCE,
    PUBLISHED,
    ROOM,
    WORDS,
    Failed,
    Said,
    hashes,
    run,
    start,
    with_needs,
    written,
)
from attack.kills import compare

ARTIFACT = "a changed byte in an artifact is refused before any work"
MANIFEST = "a changed byte in a manifest is refused before any work, also where it says what a file was made of"
CHECKPOINT = "a damaged checkpoint is reported, the one before is used, and the end has the same bytes"
BUFFER = "a run goes on without a damaged file of its buffer, and says so"
SUFFIX = ".manifest.json"
_RUNS, _DATA = "results/smoke/runs", "data/smoke"
# An artifact -> the job that reads it.
READERS = {
    f"{_DATA}/{ROOM}/histories.safetensors": "dt",
    f"{_DATA}/{DOOR}/histories.safetensors": "embed, key-door",
    f"{_DATA}/{PUBLISHED}/histories.safetensors": "dt, published",
    f"{_DATA}/{ROOM}/radt/embeddings.safetensors": "index",
    f"{_DATA}/{ROOM}/radt/memory.faiss": "radt",
    f"{_DATA}/{ROOM}/radt/memory_rows.safetensors": "radt",
    f"{_RUNS}/{ROOM}/dt/seed_0/policy.safetensors": "evaluate",
    f"{_RUNS}/{ROOM}/radt/seed_0/policy.safetensors": "evaluate radt",
    f"{_RUNS}/{CORRIDOR}/dqn_gpt/seed_0/policy.safetensors": "evaluate dqn_gpt",
    f"{_RUNS}/{CORRIDOR}/dqn_gpt/seed_0/train.parquet": "evaluate dqn_gpt",
    f"{_RUNS}/{WORDS}/shelm/seed_0/policy.safetensors": "evaluate shelm",
    f"{_RUNS}/{ROOM}/dt/seed_1/scores.parquet": "figure",
    f"{_RUNS}/{ROOM}/dt/seed_0/trace.safetensors": "page",
    f"{_DATA}/token_vocabularies/random.safetensors": "shelm",
    f"{_DATA}/models/tiles/model.safetensors": "embed-vocabulary",
}
# Jobs whose newest checkpoint is damaged: every family of methods, and what is no run.
WITH_CHECKPOINTS = (
    *("dt", "radt", "dpt", "dqn_gpt", "dqn_lstm", "sacd_gpt", "td3_gpt", "amago_transformer", "amago_gru"),
    *("ppo_cnn", "ppo_lstm", "helm", "shelm", "generate ppo", "train-vision-language"),
)
BUFFERED = ("amago_transformer", "amago_transformer, relabelled", "amago_gru", "amago_multi_task")


def trials(plan: Plan) -> Iterator[Trial]:
    for artifact, reader in READERS.items():
        for number in range(share_of(2, plan.share)):
            attack = partial(flip_artifact, plan, artifact, reader, plan.draws("flip", artifact, number))
            yield Trial("flips", ARTIFACT, f"flip in {artifact}, {number}", attack)
        for inside in (False, True):
            attack = partial(flip_manifest, plan, artifact, reader, inside, plan.draws("flip", artifact, inside))
            where = "what its manifest says it was made of" if inside else "its manifest"
            yield Trial("flips", MANIFEST, f"flip in {artifact}: {where}", attack)
    for name in WITH_CHECKPOINTS:
        for part in ("", SUFFIX):
            attack = partial(flip_checkpoint, plan, name, part, plan.draws("checkpoint", name, part))
            yield Trial(
                "flips", CHECKPOINT, f"flip in the newest checkpoint{' (manifest)' * bool(part)}: {name}", attack
            )
    for name in BUFFERED:
        for number in range(share_of(2, plan.share)):
            attack = partial(flip_buffer, plan, name, plan.draws("buffer", name, number))
            yield Trial("flips", BUFFER, f"flip in the buffer: {name}, {number}", attack)


def flip(path: Path, draws: random.Random, first: int = 0, last: int | None = None) -> None:
    """Change one bit of one byte of a file, between two offsets."""
    content = bytearray(path.read_bytes())
    content[draws.randrange(first, last or len(content))] ^= 1 << draws.randrange(8)
    path.write_bytes(bytes(content))


def everything(folder: Path) -> dict[str, bytes]:
    """What stands in a folder, without locks, logs and empty folders."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found if path.parts[-2] != "logs"}


def refused(words: tuple[str, ...], folder: Path) -> Said:
    """Run a command that must be refused.

    Raises:
        Failed: it is not, or without a message, or it left something behind.
    """
    before = everything(folder)
    said = run(words, folder)
    if not said.status:
        raise Failed(f"taken without a word: {said.tail()}")
    if "Traceback" in said.text:
        raise Failed(f"a traceback instead of a message: {said.tail()}")
    if "error: " not in said.text and "Error" not in said.text:  # the second is of a command line that cannot be read
        raise Failed(f"status {said.status} without a message: {said.tail()}")
    after = everything(folder)
    changed = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    if changed:
        raise Failed(f"refused, but it left: {changed}")
    return said


def with_artifact(plan: Plan, artifact: str, reader: str, folder: Path) -> Path:
    """A folder in which a job can be run; the path of what it will read."""
    plan.reference.copy(folder, with_needs(reader))
    return folder / artifact


def flip_artifact(plan: Plan, artifact: str, reader: str, draws: random.Random, folder: Path) -> None:
    flip(with_artifact(plan, artifact, reader, folder), draws)
    refused(JOBS[reader].command, folder)


def flip_manifest(plan: Plan, artifact: str, reader: str, inside: bool, draws: random.Random, folder: Path) -> None:
    path = with_artifact(plan, artifact, reader, folder)
    manifest = path.with_name(path.name + SUFFIX)
    content = manifest.read_bytes()
    first = content.index(b'"provenance"') + len(b'"provenance": {') if inside else 0
    last = None
    if inside:
        size = len(json.dumps(json.loads(content)["provenance"]))
        last = min(first + size - 2, len(content))
    flip(manifest, draws, first, last)
    refused(JOBS[reader].command, folder)


def stopped_with_two(plan: Plan, name: str, draws: random.Random, folder: Path) -> list[Path]:
    """Kill a job a moment after it has at least two checkpoints; their paths, the newest last."""
    job = JOBS[name]
    place = folder / job.checkpoints
    end = time.monotonic() + PATIENCE
    later = draws.uniform(0, 0.5) * plan.reference.seconds[name]
    for _ in range(8):
        process = start(job.command, folder, group=True)
        seen = 0.0
        while process.poll() is None and time.monotonic() < end:
            if len(sealed(place)) >= 2:
                seen = seen or time.monotonic()
                if time.monotonic() >= seen + later:
                    break
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
        found = sealed(place)
        # What has written its results already is over, though its process was still there, and reads no checkpoint again.
        if process.returncode == -signal.SIGKILL and len(found) >= 2 and not written(folder, job):
            return found
        later /= 2
        for path in [*written(folder, job), *place.rglob("*")]:
            if path.is_file():
                path.unlink()
    raise Failed("the job never had two checkpoints")


def sealed(place: Path) -> list[Path]:
    """The checkpoints that have their manifests."""
    found = sorted(place.glob("step_*.safetensors"))
    return [path for path in found if path.with_name(path.name + SUFFIX).exists()]


def flip_checkpoint(plan: Plan, name: str, part: str, draws: random.Random, folder: Path) -> None:
    expected = plan.reference.bytes_of(name)
    plan.reference.copy(folder, with_needs(name))
    before, newest = stopped_with_two(plan, name, draws, folder)[-2:]
    flip(newest.with_name(newest.name + part), draws)
    said = run(JOBS[name].command, folder)
    if said.status:
        raise Failed(f"the run is lost: {said.tail()}")
    step = int(before.stem.removeprefix("step_"))
    if newest.name not in said.text or f"step {step}" not in said.text:
        raise Failed(f"not said that {newest.name} is damaged and that it goes on from {before.name}: {said.tail()}")
    compare(hashes(folder, JOBS[name]), expected)


def flip_buffer(plan: Plan, name: str, draws: random.Random, folder: Path) -> None:
    plan.reference.make([name])
    plan.reference.copy(folder, with_needs(name))
    stopped_with_two(plan, name, draws, folder)
    place = folder / JOBS[name].checkpoints
    files = sorted(
        path for path in place.rglob("buffer/**/*.safetensors") if path.with_name(path.name + SUFFIX).exists()
    )
    damaged = draws.choice(files)
    flip(damaged, draws)
    said = run(JOBS[name].command, folder)
    if said.status or not hashes(folder, JOBS[name]):
        raise Failed(f"the run is lost: {said.tail()}")
    if damaged.name not in said.text:  # then the checkpoint does not need it, and nothing is lost
        compare(hashes(folder, JOBS[name]), plan.reference.bytes_of(name))
