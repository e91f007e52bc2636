"""Folders, limits, variables and disks that are not as they should be: the same bytes, or a message before any work."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from attack.campaign import Plan, Trial, some
from attack.flips import refused
from attack.jobs import JOBS, PATIENCE, Failed, Said, hashes, run, with_needs
from attack.kills import compare
from attack.trees import BIN, WARM, begin, ended, environment, kill_session, results, tail, undisturbed, workflow

SAME = "hostile surroundings change no byte"
FULL = "a full disk is a message, and with space the same command ends with the same bytes"
CLOSED = "what cannot be written or read is found before training"
NO_PIDFD = "where the kernel has no pidfd_open, warm runs each job once, and ends"
STRANGE = "Über \"die\" 'Größe' von $HOME & #1; 100 %"
# What stands before the command in a shell.
SHELL = {
    "without HOME": "unset HOME;",
    "with a HOME that does not exist": "export HOME=/nonexistent/home;",
    "with umask 077": "umask 077;",
    "with a TMPDIR that does not exist": "export TMPDIR=/nonexistent/temporary;",
    "with 64 open files": "ulimit -n 64;",
    "with 3 GB of addresses": "ulimit -v 3145728;",
    "in the C locale": "export LC_ALL=C LANG=C PYTHONCOERCECLOCALE=0 PYTHONUTF8=0;",
    "with stdin closed": "exec 0<&-;",
    "with stdout closed": "exec 1>&-;",
    "with stderr closed": "exec 2>&-;",
    "in another time zone, without a user": "unset USER LOGNAME; export TZ=Asia/Kathmandu;",
}
PIDFD = {
    "refused": "def refused(*of):\n    raise PermissionError(1, 'Operation not permitted')\nos.pidfd_open = refused\n",
    "unknown to the kernel": "def unknown(*of):\n    raise OSError(38, 'Function not implemented')\nos.pidfd_open = unknown\n",
    "missing in Python": "del os.pidfd_open\n",
}
FILLING = ("dt", "amago_transformer", "dqn_gpt", "generate ppo", "figure")


def trials(plan: Plan) -> Iterator[Trial]:
    made = [(SAME, name, partial(in_a_shell, plan, words)) for name, words in SHELL.items()]
    made += [(SAME, "a job in a folder of strange name", partial(strange_folder, plan))]
    made += [(SAME, "a Snakemake in a folder of strange name", strange_tree)]
    made += [(NO_PIDFD, f"pidfd_open is {name}", partial(without_pidfd, plan, code)) for name, code in PIDFD.items()]
    made += [(FULL, f"no space: {name}", partial(full, plan, name, space(plan, name))) for name in FILLING]
    made += [(FULL, "no file above some size", partial(small_files, plan))]
    made += [
        (CLOSED, f"{place} cannot be written", partial(read_only, plan, place))
        for place in ("results", "results/smoke/runs")
    ]
    made += [
        (CLOSED, f"{file} cannot be read", partial(unreadable, plan, file))
        for file in ("config/methods/dt.yaml", "data/smoke/dark_room_10x10/histories.safetensors")
    ]
    yield from some([Trial("surroundings", row, name, attack) for row, name, attack in made], plan.share, plan.seed)


def shell(line: str, folder: Path, env: dict[str, str] | None = None) -> Said:
    """Run a line of a shell, as a person's terminal would.

    Raises:
        Failed: it does not end; it was killed with all that it started.
    """
    # A file takes what is said: a pipe would wait for whoever has it open, even where nobody is to be waited for.
    with folder.with_name(folder.name + ".said").open("wb+") as said:
        process = subprocess.Popen(
            ["sh", "-c", line], cwd=folder, env=env or environment(), stdout=said, stderr=said, start_new_session=True
        )
        try:
            process.wait(PATIENCE / 2)
        except subprocess.TimeoutExpired:
            kill_session(process.pid)
            process.wait()
            raise Failed(f"did not end in {PATIENCE / 2:.0f} s: {line[:100]}") from None
        said.seek(0)
        return Said(process.returncode, said.read().decode(errors="replace"))


def ends_the_same(plan: Plan, said: Said, name: str, folder: Path) -> None:
    if said.status:
        raise Failed(f"status {said.status}: {said.tail()}")
    compare(hashes(folder, JOBS[name]), plan.reference.bytes_of(name))


def in_a_shell(plan: Plan, before: str, folder: Path) -> None:
    plan.reference.copy(folder, with_needs("dt"))
    said = shell(f"{before} exec {shlex.join([str(BIN / 'recollect'), *JOBS['dt'].command])}", folder)
    ends_the_same(plan, said, "dt", folder)


def strange_folder(plan: Plan, folder: Path) -> None:
    inner = folder / STRANGE
    plan.reference.copy(inner, with_needs("dt"))
    ends_the_same(plan, run(JOBS["dt"].command, inner), "dt", inner)


def strange_tree(folder: Path) -> None:
    expected, _ = undisturbed(folder.parent)
    inner = folder / STRANGE
    workflow(inner)
    if ended(begin(inner, WARM), inner):
        raise Failed(f"Snakemake failed: {tail(inner)}")
    compare(results(inner), expected)


def without_pidfd(plan: Plan, code: str, folder: Path) -> None:
    plan.reference.copy(folder, with_needs("dt"))
    (folder / "python").mkdir()
    (folder / "python/sitecustomize.py").write_text(f"import os\n{code}")
    command = [str(BIN / "recollect"), *JOBS["dt"].command]
    env = environment() | {"PYTHONPATH": str(folder / "python")}
    ready = f'while [ ! -S "$RECOLLECT_WARM" ]; do sleep 0.1; done; exec {shlex.join(command)}'
    said = shell(shlex.join([str(BIN / "recollect"), "warm", "--", "sh", "-c", ready]), folder, env)
    ends_the_same(plan, said, "dt", folder)
    if (times := said.text.count("$ recollect train")) != 1:
        raise Failed(f"the job ran {times} times")


# ---- disks -----------------------------------------------------------------------------------------------------------


def space(plan: Plan, name: str) -> float:
    """The share of what a job writes for which there is space."""
    return plan.draws("space", name).uniform(0.15, 0.7)


@contextmanager
def own_disk(place: Path, kilobytes: int) -> Iterator[bool]:
    """A small file system of its own at a folder; False where this user must not mount one."""
    place.mkdir(parents=True, exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "attack", str(place)]
    mounted = os.geteuid() == 0 and subprocess.run(words, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], check=True)


def mount_again(place: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(place)], check=True)


def said_as_a_message(said: Said) -> None:
    if not said.status:
        raise Failed("it ended well, as if there were space")
    if "Traceback" in said.text or "error: " not in said.text:
        raise Failed(f"no message: {said.tail()}")


def full(plan: Plan, name: str, share: float, folder: Path) -> None:
    """Run a job on a disk that is too small; make it larger; run it again."""
    job, expected = JOBS[name], plan.reference.bytes_of(name)
    plan.reference.copy(folder, with_needs(name))
    top = job.writes[0].split("/")[0]
    held = sum(path.stat().st_size for path in (folder / top).rglob("*") if path.is_file())
    needed = sum((plan.reference.folder / path).stat().st_size for path in expected)
    kilobytes = int((held + share * needed) / 1024) + 16  # folders take some, too
    moved = folder / "before"
    if (folder / top).exists():
        (folder / top).rename(moved)
    with own_disk(folder / top, kilobytes + 64 * 1024) as mounted:
        if moved.exists():
            shutil.copytree(moved, folder / top, dirs_exist_ok=True)
        if mounted:
            mount_again(folder / top, f"size={kilobytes}k")
            said = run(job.command, folder)
        else:
            said = limited(job.command, folder, max(4, int(share * needed / 1024 / 2)))
        said_as_a_message(said)
        if mounted:
            mount_again(folder / top, "size=64m")
        said = run(job.command, folder)
        if said.status:
            raise Failed(f"with space: {said.tail()}")
        compare(hashes(folder, job), expected)


def limited(command: tuple[str, ...], folder: Path, kilobytes: int) -> Said:
    """Run a command that may write no file larger than this."""
    line = f"ulimit -f {kilobytes * 2}; exec {shlex.join([str(BIN / 'recollect'), *command])}"  # sh counts 512 bytes
    return shell(line, folder)


def small_files(plan: Plan, folder: Path) -> None:
    plan.reference.copy(folder, with_needs("dt"))
    said_as_a_message(limited(JOBS["dt"].command, folder, 8))
    ends_the_same(plan, run(JOBS["dt"].command, folder), "dt", folder)


def read_only(plan: Plan, place: str, folder: Path) -> None:
    """A folder that cannot be written is found before any training."""
    plan.reference.copy(folder, with_needs("dt"))
    with own_disk(folder / place, 1024) as mounted:
        if mounted:
            mount_again(folder / place, "ro")
        else:
            (folder / place).chmod(0o555)
        said = run(JOBS["dt"].command, folder)
        if not mounted:
            (folder / place).chmod(0o755)
    said_as_a_message(said)
    if "training:" in said.text:
        raise Failed(f"found only after training: {said.tail()}")


def unreadable(plan: Plan, file: str, folder: Path) -> None:
    """A file of a colleague that this user must not read."""
    plan.reference.copy(folder, with_needs("dt"))
    (folder / file).chmod(0)
    if os.geteuid():
        refused(JOBS["dt"].command, folder)
        return
    # Root reads everything, unless it may not.
    allowed = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    line = shlex.join([*allowed, str(BIN / "recollect"), *JOBS["dt"].command])
    said_as_a_message(shell(line, folder))
