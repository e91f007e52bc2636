"""why: what of a figure is stale, and the reason in words.

What would run is Snakemake's own answer (a dry run); the words come from the manifests, which hold the settings that a file
was made from, and from a list of the package's modules that is kept whenever something runs (`remember`). Files that a
manifest disowns (Snakemake trusts its records and does not look) are named as well.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from recollect.artifacts.differences import differences
from recollect.artifacts.fingerprint import reachable
from recollect.artifacts.sealed import manifest_path, read_json, verify, write_json
from recollect.settings.catalogue import own_packages
from recollect.settings.errors import UserError
from recollect.stages import provenance, records
from recollect.stages.plan import maker, plan, roots
from recollect.stages.snakemake_command import snakemake_command
from recollect.stages.snakemake_records import record_path
from recollect.stages.stage import Job
from recollect.stages.table import STAGES

SNAPSHOTS = Path(".snakemake") / "recollect-code"
_BLOCK = re.compile(r"^(?:local)?rule (\w+):\n((?:    .*\n?)+)", re.MULTILINE)
_FOLLOWS = "Input files updated by another job"


# ------------------------------------------------------------------------------------------- the code as it was then


def remember(jobs: Iterable[Job]) -> None:
    """Keep which modules there are, for those who ask later what has changed since these jobs ran."""
    codes: set[str] = set()
    for job in {job.shape for job in jobs}:
        for stage, step in STAGES[job.stage].steps(job):
            codes.add(stage.code_text(step))
    known = {"codes": sorted(codes - {""}), "modules": package()}
    path = SNAPSHOTS / f"{provenance.digest(json.dumps(known, sort_keys=True))}.json"
    if known["codes"] and not path.is_file():
        write_json(path, known, kind="code")


def package() -> dict[str, str]:
    """Every module of the package, of `mine/` and of plug-ins, and a hash of its syntax tree."""
    found = reachable(*_modules_in("recollect", Path(__file__).parents[1]))
    for package, place in own_packages().items():
        for name in _modules_in(package, place):
            with suppress(UserError):  # no valid Python: nothing that runs imports it
                found |= reachable(name)
    return {name: digest[:16] for name, digest in found.items()}


def _modules_in(package: str, place: Path) -> list[str]:
    """The modules of a package by its folder, or by its file."""
    if place.is_file():
        return [package]
    files = (path.relative_to(place).with_suffix("") for path in place.rglob("*.py"))
    return sorted({".".join((package, *path.parts)).removesuffix(".__init__") for path in files})


def modules_then(code: str) -> dict[str, str] | None:
    """The modules when a job with this fingerprint ran; None where nothing was kept (a clone, or a job run by hand)."""
    for path in sorted(SNAPSHOTS.glob("*.json")):
        with suppress(UserError):  # it is a manifest, or damaged
            known = read_json(path, kind="code")
            if code in known["codes"]:
                return dict(known["modules"])
    return None


# --------------------------------------------------------------------------------------------------- one job in words


def in_words(job: Job, reason: str) -> str | None:
    """Why a job runs, of Snakemake's reason; None where it only follows another job that runs."""
    stage = STAGES[job.stage]
    gone = [path for path in stage.makes(job) if not path.is_file()]
    if gone:
        return _gone(job, gone)
    words: list[str] = []
    for part in map(str.strip, reason.split(";")):
        if not part or _FOLLOWS in part:
            continue
        if part.startswith("Params have changed"):
            words += _params(job)
        elif part.startswith("Code has changed"):
            words.append("the rule's own command changed")
        elif part.startswith("Forced execution"):
            # Our command forces nothing: the mark of a job that did not end is there, and Snakemake says nothing else of it.
            words += ["interrupted: Snakemake was stopped while it ran", *(_changes(job) or [])]
        elif part.startswith(("Updated input files", "Set of input files has changed")):
            inputs = [path.as_posix() for path in stage.inputs(job).values()]
            listed = ", ".join([path for path in inputs if path in part][:3])
            words.append(f"an input changed: {listed}" if listed else "its inputs are others than they were")
        else:
            words.append(part[:1].lower() + part[1:])
    return "; ".join(dict.fromkeys(words)) or None


def _gone(job: Job, files: Sequence[Path]) -> str:
    """Why files are not there. A record, ours or Snakemake's, is of a job that ended well."""
    for stage, step in STAGES[job.stage].steps(job):
        for path in stage.makes(step):
            if path in files and (records.place(step).is_file() or record_path(path.as_posix()).is_file()):
                return f"missing: {path} was made and is gone"
    return "never made"


def _params(job: Job) -> list[str]:
    """Which of settings and code changed, where it is known that something did."""
    words = _changes(job)
    if words is None:
        return ["settings or code changed; the manifest that says which cannot be read"]
    return words or ["settings or code changed; the manifest does not say which"]


def _changes(job: Job) -> list[str] | None:
    """What changed, by the manifests beside what the job, or each of its parts, made; None where one cannot be read."""
    words: list[str] = []
    for stage, step in STAGES[job.stage].steps(job):
        manifest = manifest_path(stage.makes(step)[0])
        try:
            known = json.loads(manifest.read_text(encoding="utf-8"))["provenance"]
            then = json.loads(known.get("settings") or "{}")
        except (OSError, ValueError, KeyError):
            return None
        today = stage.settings_text(step)
        if known.get("settings", today) != today:
            changed = list(differences(then, json.loads(today)))
            words.append(f"settings changed: {_first(changed)}")
        code = provenance.code_of(known)
        if code is not None and code != stage.code_text(step):
            words.append(_code_words(stage.modules_of(step), code))
    return words


def _code_words(entries: Iterable[str], code: str) -> str:
    then = modules_then(code)
    if then is None:
        return "code changed; which modules is not known, because Snakemake did not run that job in this folder"
    now = package()
    changed: list[str] = []
    for name in reachable(*entries):
        if now.get(name) != then.get(name):
            changed.append(name.removeprefix("recollect."))
    return f"code changed: {_first(changed) or 'other modules are imported'}"


def _first(words: Sequence[str]) -> str:
    """The first few words, and how many more there are."""
    more = len(words) - 4
    return ", ".join(words[:4]) + (f" and {more} more" if more > 0 else "")


# ----------------------------------------------------------------------------------------------------- all in words


def stale(scale: str, figures: Iterable[str]) -> dict[Job, str]:
    """The jobs that Snakemake would run for some figures, and its reason for each.

    Raises:
        UserError: Snakemake refuses.
    """
    jobs = [job for figure in figures for job in roots(scale, figure)]
    targets = list(dict.fromkeys(path.as_posix() for job in jobs for path in STAGES[job.stage].makes(job)))
    command = snakemake_command("--cores", "1", "--dry-run", "--nolock", "--", *targets)
    # A profile of the user's (SNAKEMAKE_PROFILE) groups jobs and prints them otherwise; what is stale is the same.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SNAKEMAKE_")}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=plain)
    if done.returncode:
        if own := _ERROR.search(done.stdout):
            raise UserError(own["what"], where=own["where"], do=own["do"].strip())
        raise UserError(
            f"Snakemake cannot plan {', '.join(map(str, jobs))}",
            where="the Snakefile of this folder, or what it reads; Snakemake's own words end with\n"
            + _last_words(done.stdout),
            do="mend what it names, and see the whole with `snakemake --dry-run --cores 1`",
        )
    found: dict[Job, str] = {}
    for _, block in _BLOCK.findall(done.stdout):
        said = dict(re.findall(r"^    (\w+): (.*)$", block, re.MULTILINE))
        # By what it makes: one job of Snakemake may take several seeds.
        for file in said.get("output", "").split(", "):
            path, _, _flags = file.partition(" (")
            job = maker(Path(path), scale)
            if job is not None:
                found[job] = said.get("reason", "")
    return found


_ERROR = re.compile(r"^error: (?P<what>.+?)\n  where: (?P<where>.+?)\n  to do: (?P<do>.+)", re.MULTILINE | re.DOTALL)
"""What our own part of the Snakefile says, behind which it ends."""


def _last_words(said: str) -> str:
    """Of what Snakemake printed: the last whole lines behind what it says of itself, and before a traceback."""
    behind = said.rpartition("Building DAG of jobs...\n")[2]
    return "\n".join(behind.partition("\nTraceback")[0].splitlines()[-20:])


def why(scale: str, figures: Iterable[str]) -> str:
    """Per figure: what is stale and why.

    Raises:
        UserError: an unknown scale or figure, or Snakemake refuses.
    """
    found = plan(scale, figures)
    running = stale(scale, found.figures)
    words = {job: in_words(job, reason) for job, reason in running.items()}
    damaged: dict[Job, str] = {}
    for job in found.needs:
        said = None if job in running else _damage(job)
        if said is not None:
            damaged[job] = said
    lines: list[str] = []
    for figure, jobs in found.figures.items():
        chosen = [job for job in jobs if job in running]
        broken = sorted(job for job in jobs if job in damaged)
        state = "nothing would run" if broken else "up to date"
        if chosen:
            state = f"{len(chosen)} of {len(jobs)} jobs would run"
        lines.append(f"{figure} ({scale}): {state}")
        lines += _grouped({job: words[job] for job in chosen})
        following = Counter(job.stage for job in chosen if words[job] is None)
        if following:
            listed = ", ".join(f"{count} {rule}" for rule, count in sorted(following.items()))
            lines.append(f"  and {following.total()} that read what those make: {listed}")
        lines += _grouped({job: f"corrupted: {damaged[job]}" for job in broken})
    if damaged:
        lines.append("Delete what is corrupted; Snakemake then makes it anew.")
    return "\n".join(lines)


def _damage(job: Job) -> str | None:
    for path in STAGES[job.stage].makes(job):
        if path.is_file():
            try:
                verify(path)
            except UserError as error:
                return f"{path}: {error.what}"
    return None


def _grouped(words: Mapping[Job, str | None]) -> Iterator[str]:
    """One line for all seeds of a run, or tasks of an environment, that have one reason."""
    seeds: dict[tuple[Job, str], list[str]] = {}
    for job, said in words.items():
        if said is not None:
            seeds.setdefault((job.shape, said), []).append(job.seed or job.task)
    for (job, said), listed in sorted(seeds.items()):
        numbers = sorted(filter(None, listed), key=int)
        few = ", ".join(numbers[:6]) + (", ..." if len(numbers) > 6 else "")
        plural = "s" if len(numbers) > 1 else ""
        noun = "task" if "task" in STAGES[job.stage].over else "seed"
        of = f" ({noun}{plural} {few})" if numbers else ""
        yield f"  {job}{of}: {said}"
