"""What a run has logged so far, for whoever watches it: a file of JSON lines beside its checkpoints, and trackers.

Nothing else reads the file, and no result depends on it. A run that begins or goes on writes it anew, from the rows of its
checkpoint, so what a kill threw away stands in it no more. It goes when the run's training table is sealed. Where it cannot
be written, or a tracker fails, a warning says so and the run goes on.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.artifacts.sealed import write_bytes
from recollect.artifacts.trackers import Tracked, Trackers
from recollect.settings.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)
FILE = "live.jsonl"
Points = dict[int, dict[str, float]]
"""Step -> metric -> value. Metrics that were scored and not just logged stand behind their split: `eval/return`."""


def points_of(rows: pd.DataFrame, logged: str = "train") -> Points:
    """The rows of a score table, in their order; tasks and episodes are averaged.

    Args:
        logged: the split of what was logged, whose metrics keep their names.
    """
    values: dict[int, dict[str, list[float]]] = {}
    columns = (rows[name].tolist() for name in ("step", "split", "metric", "value"))
    for step, split, metric, value in zip(*columns, strict=True):
        name = metric if split == logged else f"{split}/{metric}"
        values.setdefault(step, {}).setdefault(name, []).append(value)
    return {step: {name: sum(many) / len(many) for name, many in at.items()} for step, at in values.items()}


def headline(names: Iterable[str]) -> list[str]:
    """The metrics that say first how a run does: its loss, or the parts of it; and its returns."""
    known = list(dict.fromkeys(names))
    losses = ["loss"] if "loss" in known else [name for name in known if name.endswith("_loss")]
    # What an agent logs as a return is mostly the mean of score rows that it logs, too.
    returns = [name for name in known if name.endswith("_return")] or [n for n in known if n.endswith("/return")]
    return losses + returns


class Live:
    """What a run tells those who watch it. As a context manager it lets go of trackers in the end.

    Args:
        folder: of the run's checkpoints, where the file stands.
        tracked: what trackers are told of the run, less its id.
    """

    def __init__(self, folder: Path, tracked: Tracked) -> None:
        self.path = folder / FILE
        self._tracked = tracked
        self._trackers: Trackers | None = None
        self._writes = False

    def __enter__(self) -> Live:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)

    def begin(self, points: Points, *, resumed: bool) -> None:
        """Write the file anew, with what the run has logged up to its checkpoint."""
        known = read_live(self.path)[0].get("id") if resumed else None
        ident = str(known or secrets.token_hex(4))
        if self._trackers is None:
            self._trackers = Trackers(self._tracked, ident, after=max(points, default=-1))
        head = {"id": ident, **self._tracked.names}
        lines = [json.dumps(head), *(json.dumps(_line(step, values)) for step, values in points.items())]
        try:
            write_bytes(self.path, ("\n".join(lines) + "\n").encode())
            self._writes = True
        except (OSError, UserError) as error:
            self._stop(error)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Append what the run has logged at a step; whole lines, which other processes see at once."""
        if self._trackers is None:
            self.begin({}, resumed=False)
        if self._writes:
            try:
                with open(self.path, "ab", buffering=0) as file:
                    file.write(json.dumps(_line(step, values)).encode() + b"\n")
            except OSError as error:
                self._stop(error)
        assert self._trackers is not None
        self._trackers.log(step, values)

    def close(self, *, failed: bool = False) -> None:
        """Let go of the trackers; the file stays for a run that goes on."""
        if self._trackers is not None:
            self._trackers.close(failed=failed)

    def done(self) -> None:
        """The run has written its table: the file goes."""
        self.close()
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            self._stop(error)

    def _stop(self, error: Exception) -> None:
        self._writes = False
        log.warning("the run cannot be watched, and goes on: %s", error)


def _line(step: int, values: Mapping[str, float]) -> dict[str, Any]:
    return {"step": int(step), "values": {name: float(value) for name, value in values.items()}}


def read_live(path: Path) -> tuple[dict[str, Any], Points]:
    """(what its first line says, points) of a file that may be missing, or being written; a torn line is left out."""
    head: dict[str, Any] = {}
    points: Points = {}
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return head, points
    for line in lines:
        try:
            read = json.loads(line)
            if "values" in read:
                points.setdefault(int(read["step"]), {}).update(read["values"])
            else:
                head = dict(read)
        except (ValueError, TypeError, KeyError):
            continue
    return head, points
