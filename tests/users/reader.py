"""A user of the documentation, who does in a bare clone what the pages say, in their words and order."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PART = re.compile(r"^```(\w*)\n(.*?)^```$|^#+ ([^\n]+)$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
LEFT_OUT = {
    "make setup FAMILY=cpu": "680 MB more; tests/workflow/test_setup.py knows the families",
    "make demo": "a quarter of an hour; its figures are recorded in docs/recorded/demo",
    "make demo-all": "half an hour",
    "make test": "minutes; .ci/run does it in a fresh clone",
    "make test-all": "what these tests are part of",
    "make attack": "40 minutes",
    "make smoke": "minutes; tests/workflow/test_real_smoke.py runs the same",
    "make dry-run": "minutes; tests/workflow/test_dag.py plans the same scales",
    "make release": "a version with a date; tests/workflow/test_release.py",
    "make bench": "minutes, and its ratios mean nothing while other tests run",
    "make gpu": "a GPU",
    "recollect clean --unused": "it asks in a terminal; tests/unit/stages/test_clean.py answers",
    "recollect sweep --scale smoke --env tmaze_passive_5 --method dqn_lstm --seed 0 --trials 20"
    " --set learning_rate=1e-5..1e-2 --set sequence.width=8,16": "a package more, optuna, and 20 runs",
}
"""Command of a page -> why no user types it here: what it needs, or how long it takes."""


class Block(NamedTuple):
    """A block of a page: the heading above it, its language and its text."""

    heading: str
    language: str
    text: str


def blocks(page: str) -> Iterator[Block]:
    """The blocks of a page, from top to bottom."""
    heading = ""
    for found in PART.finditer((ROOT / page).read_text(encoding="utf-8")):
        if found[3]:
            heading = found[3]
        else:
            yield Block(heading, found[1], found[2])


def commands(block: Block) -> list[str]:
    """The commands of a block, without comments."""
    lines = [shlex.join(shlex.split(line, comments=True)) for line in block.text.splitlines()]
    return [line for line in lines if line] if block.language == "sh" else []


def at_smoke(text: str) -> str:
    """The one thing that is not as written, so that a path takes minutes: the scale. (`lab` is one of test_lab.py.)"""
    return re.sub(r"\bscale=paper\b", "scale=lab", re.sub(r"\bdemo\b", "smoke", text))


@dataclass
class User:
    """Somebody with a shell in a clone.

    Args:
        folder: the clone.
        environment: of the shell.
        warm: what runs on this machine is started by `recollect warm`, as `make demo` does, which saves the imports.
    """

    folder: Path
    environment: dict[str, str]
    warm: bool = True
    before: list[str] = field(default_factory=list)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def does(self, page: str, heading: str) -> str:
        """Do what a section says: write the files that its blocks name in their first line, and type its commands.

        Returns:
            What the commands said.
        """
        section = [block for block in blocks(page) if block.heading == heading]
        assert section, f"{page} has no section '{heading}' with a block"
        said = ""
        for block in section:
            named = re.match(r"# ((?:mine|config)/\S+)\n", block.text)
            if named and block.language in ("yaml", "python"):
                self.writes(named[1], block.text)
            for command in commands(block):
                said += "" if command in LEFT_OUT else self.shell(at_smoke(command))
        return said

    def types(self, page: str, command: str, status: int = 0) -> str:
        """Type a command, or a line of Python, that stands anywhere on a page."""
        return self.ended(self.started(self.on(page, command)), status=status)

    def on(self, page: str, command: str) -> str:
        """The command for the shell, if it stands on the page."""
        stands = [line for block in blocks(page) for line in commands(block)]
        assert command in [*stands, *INLINE.findall((ROOT / page).read_text(encoding="utf-8"))], f"{page}: {command}"
        if command.startswith("recollect."):
            command = shlex.join(["python", "-c", f"import recollect; {command}"])
        return at_smoke(command)

    def writes(self, file: str, text: str) -> None:
        """Write a file."""
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def edits(self, file: str, old: str, new: str) -> None:
        """Change a text that stands in a file."""
        text = (self.folder / file).read_text(encoding="utf-8")
        assert old in text, f"{old!r} is not in {file}"
        self.writes(file, text.replace(old, new))

    def started(self, command: str) -> subprocess.Popen[str]:
        """Start a command in the shell; `source` holds for all that follow."""
        if command.startswith("source "):
            self.before.append(command)
        if self.warm and command.startswith(("snakemake ", "recollect sweep ")):
            command = f"recollect warm {command}"
        # A file and not a pipe: what a command leaves running must not keep the test waiting.
        with (self.folder / ".git/said").open("w") as said:
            process = subprocess.Popen(
                ["bash", "-c", "; ".join([*self.before, command])],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def leaves(self) -> None:
        """Kill what still runs."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def shell(self, command: str) -> str:
        """Run a command, which must succeed; returns what it said."""
        return self.ended(self.started(command))

    def ended(self, process: subprocess.Popen[str], status: int = 0) -> str:
        """Wait for a command, which must end with this status; returns what it said."""
        process.wait(1800)
        said = (self.folder / ".git/said").read_text(encoding="utf-8", errors="replace")
        assert process.returncode == status and "Traceback" not in said, f"$ {process.args}\n{said}"
        return said
