"""Whole files that are not the ones they should be: refused, or not used."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import yaml

from attack.campaign import Plan, Trial, some
from attack.flips import SUFFIX, refused, stopped_with_two
from attack.jobs import CORRIDOR, DOOR, JOBS, MAZE, ROOM, Failed, hashes, run, with_needs
from attack.kills import compare

ROW = "a file of another seed, environment, method or history is refused"
OLD = "a checkpoint of another run is not used"
_RUNS, _DATA = "results/smoke/runs", "data/smoke"


def policy(env: str, method: str, seed: int = 0, file: str = "policy.safetensors") -> str:
    return f"{_RUNS}/{env}/{method}/seed_{seed}/{file}"


HISTORIES = {env: f"{_DATA}/{env}/histories.safetensors" for env in (ROOM, DOOR, MAZE)}
MEMORY = {env: f"{_DATA}/{env}/radt/memory.faiss" for env in (ROOM, DOOR)}
ROWS = {env: f"{_DATA}/{env}/radt/memory_rows.safetensors" for env in (ROOM, DOOR)}
KEYS = {env: f"{_DATA}/{env}/radt/embeddings.safetensors" for env in (ROOM, DOOR)}
# What stands for what, who reads it, and which jobs made what is there. A pair is a file and the one that takes its place.
Swap = tuple[list[tuple[str, str]], str, tuple[str, ...]]
SWAPS: dict[str, Swap] = {
    "the policy of another seed, scored": ([(policy(ROOM, "dt"), policy(ROOM, "dt", 1))], "evaluate", ("dt, seed 1",)),
    "the policy of another seed, scored as the other": (
        [(policy(ROOM, "dt", 1), policy(ROOM, "dt"))],
        "evaluate, seed 1",
        ("dt",),
    ),
    "the policy of another seed of an online method": (
        [(policy(CORRIDOR, "dqn_gpt"), policy(CORRIDOR, "dqn_gpt", 1))],
        "evaluate dqn_gpt",
        ("dqn_gpt, seed 1",),
    ),
    "the policy of a longer corridor": (
        [(policy(CORRIDOR, "dqn_gpt"), policy("tmaze_passive_10", "dqn_gpt"))],
        "evaluate dqn_gpt",
        ("dqn_gpt, longer",),
    ),
    "the policy of another environment": (
        [(policy(ROOM, "dt"), policy(DOOR, "dt"))],
        "evaluate",
        ("dt, key-door",),
    ),
    "the policy of another method": ([(policy(ROOM, "dt"), policy(ROOM, "ad"))], "evaluate", ("ad",)),
    "the policy of another seed, traced": ([(policy(ROOM, "dt"), policy(ROOM, "dt", 1))], "inspect", ("dt, seed 1",)),
    "the policy of another seed, embedding": ([(policy(ROOM, "dt"), policy(ROOM, "dt", 1))], "embed", ("dt, seed 1",)),
    "the policy of another environment, embedding": (
        [(policy(ROOM, "dt"), policy(DOOR, "dt"))],
        "embed",
        ("dt, key-door",),
    ),
    **{
        f"histories of another environment, {how}": (
            [(HISTORIES[ROOM], HISTORIES[DOOR])],
            job,
            ("generate ppo, key-door",),
        )
        for how, job in (
            ("for DT", "dt"),
            ("for AD", "ad"),
            ("for DPT", "dpt"),
            ("embedded", "embed"),
            ("for RA-DT", "radt"),
        )
    },
    "histories of mazes": ([(HISTORIES[ROOM], HISTORIES[MAZE])], "dt", ("generate policies",)),
    "the memory of another environment": (
        [(MEMORY[ROOM], MEMORY[DOOR]), (ROWS[ROOM], ROWS[DOOR])],
        "radt",
        ("index, key-door",),
    ),
    "an index without its rows": ([(ROWS[ROOM], ROWS[DOOR])], "radt", ("index, key-door",)),
    "rows without their index": ([(MEMORY[ROOM], MEMORY[DOOR])], "radt", ("index, key-door",)),
    "embeddings of another environment": ([(KEYS[ROOM], KEYS[DOOR])], "index", ("embed, key-door",)),
    "the training table of another seed": (
        [(policy(CORRIDOR, "dqn_gpt", 0, "train.parquet"), policy(CORRIDOR, "dqn_gpt", 1, "train.parquet"))],
        "evaluate dqn_gpt",
        ("dqn_gpt, seed 1",),
    ),
    "the training table of a longer corridor": (
        [(policy(CORRIDOR, "dqn_gpt", 0, "train.parquet"), policy("tmaze_passive_10", "dqn_gpt", 0, "train.parquet"))],
        "evaluate dqn_gpt",
        ("dqn_gpt, longer",),
    ),
    "the scores of another seed": (
        [(policy(ROOM, "dt", 0, "scores.parquet"), policy(ROOM, "dt", 1, "scores.parquet"))],
        "figure",
        (),
    ),
    "the scores of another environment": (
        [(policy(ROOM, "dt", 0, "scores.parquet"), policy(DOOR, "dt", 0, "scores.parquet"))],
        "figure",
        ("evaluate, key-door",),
    ),
    "the trace of another seed": (
        [(policy(ROOM, "dt", 0, "trace.safetensors"), policy(ROOM, "dt", 1, "trace.safetensors"))],
        "page",
        ("inspect, seed 1",),
    ),
    "the trace of another environment": (
        [(policy(ROOM, "dt", 0, "trace.safetensors"), policy(DOOR, "dt", 0, "trace.safetensors"))],
        "page",
        ("inspect, key-door",),
    ),
}
# The run that takes up the checkpoints, and the run that made them.
TAKEN_UP = {
    "another seed": ("dt", "dt, seed 1"),
    "another method": ("ad", "dt"),
    "another environment": ("dt", "dt, key-door"),
    "a longer corridor": ("dqn_gpt", "dqn_gpt, longer"),
    "another encoder": ("amago_gru", "amago_ff"),
}


def trials(plan: Plan) -> Iterator[Trial]:
    made = [Trial("swaps", ROW, f"swap: {name}", partial(swap, plan, *SWAPS[name])) for name in SWAPS]
    for what, changes in NEW_HISTORIES.items():
        made.append(Trial("swaps", ROW, f"swap: {what}", partial(new_histories, plan, *changes)))
    for what, (mine, other) in TAKEN_UP.items():
        attack = partial(other_checkpoints, plan, mine, other, plan.draws("taken up", what))
        made.append(Trial("swaps", OLD, f"checkpoints of {what}", attack))
    yield from some(made, plan.share, plan.seed)


def swap(plan: Plan, pairs: list[tuple[str, str]], reader: str, more: tuple[str, ...], folder: Path) -> None:
    """Put whole files, with their manifests, in the place of others; who reads them must refuse."""
    jobs = [*with_needs(reader), *(each for name in more for each in (*with_needs(name), name))]
    plan.reference.copy(folder, dict.fromkeys(jobs))
    for place, taken in pairs:
        for suffix in ("", SUFFIX):
            (folder / (taken + suffix)).replace(folder / (place + suffix))
    refused(JOBS[reader].command, folder)


NEW_HISTORIES = {
    "an index of histories that were made anew since": ("radt", ("generate ppo",)),
    "an index of embeddings that were made anew since": ("radt", ("generate ppo", "dt", "embed")),
}


def new_histories(plan: Plan, reader: str, again: tuple[str, ...], folder: Path) -> None:
    """Make histories (and more) anew under other settings, but not the index: its rows are those of other histories."""
    plan.reference.copy(folder, with_needs(reader))
    scale = folder / "config/scales/smoke.yaml"
    content = yaml.safe_load(scale.read_text())
    content["environments"][ROOM]["source"]["hyperparameters"]["learning_rate"] = 0.001
    scale.write_text(yaml.safe_dump(content))
    for name in again:
        said = run(JOBS[name].command, folder)
        if said.status:
            raise Failed(f"{name} cannot be run anew: {said.tail()}")
    refused(JOBS[reader].command, folder)


def other_checkpoints(plan: Plan, mine: str, other: str, draws: random.Random, folder: Path) -> None:
    """Put the checkpoints of a killed run in the place of another's, which must begin anew and end with its bytes."""
    expected = plan.reference.bytes_of(mine)
    plan.reference.make([other])
    plan.reference.copy(folder, dict.fromkeys([*with_needs(mine), *with_needs(other)]))
    stopped_with_two(plan, other, draws, folder)
    place, taken = folder / JOBS[mine].checkpoints, folder / JOBS[other].checkpoints
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    taken.rename(place)
    said = run(JOBS[mine].command, folder)
    if said.status:
        raise Failed(f"the run ends: {said.tail()}")
    if "going on from" in said.text:
        raise Failed(f"it goes on from another's checkpoint: {said.tail()}")
    compare(hashes(folder, JOBS[mine]), expected)
