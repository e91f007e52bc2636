"""Configurations, command lines and inputs that are wrong: one message, status not zero, and nothing is left."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import preloaded
import yaml

from attack import bad_values
from attack.campaign import Plan, Trial, some
from attack.flips import SUFFIX, refused
from attack.jobs import ENVIRONMENT, JOBS, PATIENCE, ROOM, Failed, with_needs
from attack.trees import workflow

Change = Callable[[Path], Any]
Words = tuple[str, ...]
NAMES = "a misspelt or unknown name is refused, wherever it stands"
NUMBERS = "a number, a type or a list that cannot be is refused"
YAMLS = "a configuration file that is none is refused"
PATHS = "a path is no name"
LINES = "a command line that is wrong is refused"
INPUTS = "an input that is missing or damaged is refused"
SNAKEMAKE = "Snakemake is told what is wrong before any job"
DT, GENERATE, FIGURE = JOBS["dt"].command, JOBS["generate ppo"].command, JOBS["figure"].command
ONLINE = JOBS["dqn_gpt"].command  # needs nothing
FIGURE_NEEDS = tuple(with_needs("figure"))
HISTORIES = f"data/smoke/{ROOM}/histories.safetensors"
DT_FILE, ROOM_FILE, SMOKE_FILE = "methods/dt", f"environments/{ROOM}", "scales/smoke"


def trials(plan: Plan) -> Iterator[Trial]:
    made = []
    for row, name, change, words, needs in cases():
        attack = partial(one, plan, change, words, needs)
        made.append(Trial("bad inputs", row, f"bad input: {name}", attack))
    for name, words in bad_values.SNAKEMAKES.items():
        made.append(Trial("bad inputs", SNAKEMAKE, f"bad input: {name}", partial(snakemake, words)))
    yield from some(made, plan.share, plan.seed)


def one(plan: Plan, change: Change | None, words: Words, needs: Words, folder: Path) -> None:
    plan.reference.copy(folder, needs)
    if change:
        change(folder)
    refused(words, folder)


Case = tuple[str, str, Change | None, Words, Words]


def cases() -> Iterator[Case]:
    """Row of the table, name, what is changed in the folder, the command, and the jobs whose files stand there."""
    for file, keys in bad_values.MISSPELT.items():
        for key in keys:
            yield NAMES, f"{key} in {file}", edited(file, key, 1), *reader_of(file, key)
    for file, key, value in bad_values.UNKNOWN:
        yield NAMES, f"{key}: {value} in {file}", edited(file, key, value), *reader_of(file, key)
    for file, added in bad_values.TWICE:
        yield NAMES, f"twice in {file}: {added.strip()[:30]}", appended(file, added), *reader_of(file, "")
    for file, key, values in bad_values.IMPOSSIBLE:
        for value in values:
            yield NUMBERS, f"{key}: {value!r} in {file}", edited(file, key, value), *reader_of(file, key)
    for file in (DT_FILE, ROOM_FILE, SMOKE_FILE):
        for name, content in bad_values.NO_YAML.items():
            yield YAMLS, f"{name} in the place of {file}", written_as(file, content), DT, ("generate ppo",)
        for name, spoil in SPOILT.items():
            yield YAMLS, f"{name} in the place of {file}", partial(spoil, f"config/{file}.yaml"), DT, ("generate ppo",)
    for option, command in (("--scale", ONLINE), ("--env", GENERATE), ("--method", ONLINE), ("--figure", FIGURE)):
        for value in bad_values.PATHS[option]:
            yield PATHS, f"{option} {value!r}", None, replaced(command, option, value), FIGURE_NEEDS
    for option, values in bad_values.OPTIONS.items():
        for value in values:
            yield LINES, f"{option} {value!r}", None, replaced(DT, option, value), ("generate ppo",)
    for words in bad_values.LINES:
        yield LINES, " ".join(words) or "nothing", None, words, ()
    for name in ("dt", "embed", "index", "radt", "evaluate", "inspect", "page", "figure", "evaluate dqn_gpt"):
        yield INPUTS, f"nothing to read: {name}", None, JOBS[name].command, ()
    for name, spoil in SPOILT.items():
        yield INPUTS, f"{name} in the place of histories", partial(spoil, HISTORIES), DT, ("generate ppo",)
        manifest = HISTORIES + SUFFIX
        yield INPUTS, f"{name} in the place of their manifest", partial(spoil, manifest), DT, ("generate ppo",)
    for name, content in bad_values.NO_MANIFEST.items():
        yield INPUTS, f"{name} as a manifest", wrote(HISTORIES + SUFFIX, content), DT, ("generate ppo",)


def reader_of(file: str, key: str) -> tuple[Words, Words]:
    """A command that has to do with a key of a configuration file, and the jobs whose files it reads.

    All that it needs is there: what is refused is the mistake.
    """
    if key.startswith("figures.") or file.startswith(("language", "token", "methods/amago")):
        return ("check",), ()
    job = "figure" if file.startswith("figures/") else "generate ppo" if "source" in key else "dt"
    job = "embed" if "memory" in key else job
    return JOBS[job].command, tuple(with_needs(job))


# ---- what is spoilt --------------------------------------------------------------------------------------------------


def edited(file: str, key: str, value: Any) -> Change:
    """Set `a.b.c` in a configuration file; `a/b.c` where a key has dots itself."""

    def change(folder: Path) -> None:
        path = folder / f"config/{file}.yaml"
        content = yaml.safe_load(path.read_text()) or {}
        *above, last = key.split(".")
        inner = content
        for word in above:
            inner = inner.setdefault(word, {})
        inner[last] = value
        path.write_text(yaml.safe_dump(content))

    return change


def appended(file: str, text: str) -> Change:
    def change(folder: Path) -> None:
        with (folder / f"config/{file}.yaml").open("a") as page:
            page.write(text)

    return change


def written_as(file: str, content: bytes) -> Change:
    return wrote(f"config/{file}.yaml", content)


def wrote(file: str, content: bytes) -> Change:
    return lambda folder: (folder / file).write_bytes(content)


def replaced(words: Words, option: str, value: str) -> Words:
    """The command with another value of an option."""
    if option not in words:
        return (*words, option, value)
    at = words.index(option)
    return (*words[: at + 1], value, *words[at + 2 :])


def nothing(file: str, folder: Path) -> None:
    (folder / file).unlink()


def folder_there(file: str, folder: Path) -> None:
    (folder / file).unlink()
    (folder / file).mkdir()
    (folder / file / "inside").write_text("")


def loop(file: str, folder: Path) -> None:
    (folder / file).unlink()
    (folder / file).symlink_to((folder / file).name)


def dangling(file: str, folder: Path) -> None:
    (folder / file).unlink()
    (folder / file).symlink_to("nothing")


def half(file: str, folder: Path) -> None:
    content = (folder / file).read_bytes()
    at = len(content) // 2
    # Half of a configuration file may be a whole one: it is cut in the middle of a bracket.
    end = b"\nx: [1, {" if file.endswith(".yaml") else b""
    (folder / file).write_bytes(content[:at] + end)


SPOILT: dict[str, Callable[[str, Path], None]] = {
    "nothing": nothing,
    "a folder": folder_there,
    "a link to itself": loop,
    "a link to nothing": dangling,
    "half of it": half,
}


def snakemake(words: Words, folder: Path) -> None:
    """A Snakemake that must not begin; its own records do not count."""
    workflow(folder)
    try:
        done = preloaded.run(
            "snakemake", ["--cores", "1", *words], cwd=folder, env=ENVIRONMENT, together=True, timeout=PATIENCE
        )
    except preloaded.subprocess.TimeoutExpired:
        raise Failed("it did not end") from None
    said = " | ".join(done.stdout.splitlines()[-6:])[-400:]
    if not done.returncode:
        raise Failed(f"taken without a word: {said}")
    if "Traceback" in done.stdout or not any(word in done.stdout for word in ("error: ", "Error", "Exception:")):
        raise Failed(f"no message: {said}")
    if (folder / "results").exists() or (folder / "data").exists():
        shutil.rmtree(folder)
        raise Failed(f"it had begun: {said}")
