"""watch: what runs have logged so far, drawn again and again in a terminal or into a page, until they have ended.

It reads what a run logs while it learns (recollect.artifacts.live) or, when it has ended, its training table. It holds no
lock and writes nothing of a run.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recollect.artifacts.live import FILE, points_of, read_live
from recollect.artifacts.lock import worker
from recollect.artifacts.sealed import check_writable, read_table, write_bytes
from recollect.figures.live_curves import WatchedRun, known_metrics, page, terminal
from recollect.settings.errors import UserError, nearest
from recollect.settings.loading import names as known
from recollect.settings.resolve import base_method, environment_mapping, played_method, resolve, scale_settings
from recollect.stages import paths
from recollect.stages.selection import default_selection

_FOLDER = re.compile(
    r"results/(?P<scale>[^/]+)(/(runs|checkpoints)(/(?P<env>[^/]+)(/(?P<method>[^/]+)(/seed_(?P<seed>\d+))?)?)?)?"
)
_NAMES = ("scale", "env", "method", "seed")
Names = dict[str, str]


def watch(
    folders: Sequence[Path],
    names: Mapping[str, Sequence[str]],
    *,
    metrics: Sequence[str] = (),
    every: float = 2.0,
    target: Path | None = None,
    once: bool = False,
) -> None:
    """Show runs until all have ended, Ctrl-C is typed, or `once`; what is no terminal gets one picture.

    Args:
        folders: of runs, or of all runs of a method, an environment or a scale.
        names: wildcard -> some of its names; what is not named may be any that is there. A run that is not there yet, and of which
            only the scale is not named, is one of the default scale.
        target: a page that is written instead.

    Raises:
        UserError: a folder is none of runs; there is no such run; a run is not trained; none can have a metric; or the page
            cannot be written.
    """
    if target is not None:
        check_writable(target)
    runs = found(folders, names)

    def now() -> list[WatchedRun]:
        return [state_of(root, run) for root, run in runs]

    _check_metrics(now(), metrics)

    try:
        if target is not None:
            _into_page(now, target, metrics, every, once)
        else:
            _on_terminal(now, metrics, every, once)
    except KeyboardInterrupt:
        return


def found(folders: Sequence[Path], names: Mapping[str, Sequence[str]]) -> list[tuple[Path, Names]]:
    """The runs that are asked for, each with the folder in which its `results` lie; without any word those in training."""
    wanted = {name: [str(one) for one in names.get(name) or ()] for name in _NAMES}
    asked = [(str(folder), *_in_folder(folder)) for folder in folders]
    if any(wanted.values()) or not folders:
        asked.append(("", Path(), {name: given or ["*"] for name, given in wanted.items()}))
    runs: dict[str, tuple[Path, Names]] = {}
    for folder, root, selection in asked:
        for one in _each(selection):
            there = _there(root, one, live=not folders and not any(wanted.values()))
            if not there and one["scale"] == "*" and any(wanted.values()):
                one = {**one, "scale": default_selection().scale}  # of one to come
            if not there:
                _check(one, folder or " ".join(f"--{name} {value}" for name, value in one.items() if value != "*"))
            for run in there or [one]:
                runs[str(root / paths.run_folder.of(run))] = (root, run)
    return list(runs.values())


def _in_folder(folder: Path) -> tuple[Path, dict[str, Sequence[str]]]:
    path = folder.as_posix().rstrip("/")
    start = path.rfind("results/")
    match = _FOLDER.fullmatch(path[start:]) if start >= 0 and (not start or path[start - 1] == "/") else None
    if match is None:
        do = "name a folder such as results/demo/runs/tmaze_passive_5/dqn_gpt/seed_0, or one above it, or use --env and --method"
        raise UserError("this is no folder of runs", where=folder, do=do)
    return Path(path[:start]), {name: [match[name] or "*"] for name in _NAMES}


def _each(selection: Mapping[str, Sequence[str]]) -> list[Names]:
    return [dict(zip(selection, names, strict=True)) for names in itertools.product(*selection.values())]


def _there(root: Path, names: Names, *, live: bool) -> list[Names]:
    """The runs of such names of which something is there; with `live` those that are in training."""
    patterns = (
        [paths.checkpoints.of(names) / FILE] if live else [paths.run_folder.of(names), paths.checkpoints.of(names)]
    )
    runs: list[Names] = []
    for pattern in patterns:
        for path in sorted(root.glob(pattern.as_posix().replace("[", "[[]"))):
            folder = (path.parent if live else path).relative_to(root)
            run = paths.run_folder.match(folder) or paths.checkpoints.match(folder)
            if run is not None and run not in runs and _has_begun(path):
                runs.append(run)
    return sorted(runs, key=lambda run: (*(run[name] for name in _NAMES[:3]), int(run["seed"])))


def _has_begun(path: Path) -> bool:
    """Whether a folder of a run holds more than the lock that stays of one that was deleted, or a process holds it."""
    return not path.is_dir() or any(each.name != ".lock" for each in path.iterdir()) or bool(worker(path))


def _check(names: Names, said: str) -> None:
    """Refuse a run that can never be, and runs of which some name was left open and none is there.

    Args:
        said: what was typed.
    """
    scale, env, method = (names[name] for name in _NAMES[:3])
    try:
        _check_names(scale, env, method)
    except UserError as error:
        raise error.at(said) from error
    if "*" in names.values():
        do = "start one (`recollect run`), or name all of scale, env, method and seed of one to come"
        raise UserError("there is no such run" if said else "no run is in training", where=said or ".", do=do)
    if resolve(scale, env, method, int(names["seed"])).method.evaluation_only:
        played = played_method(scale, env, method)
        raise UserError(
            f"'{method}' is not trained", where=f"--method {method}", do=f"watch '{played}', which it plays"
        )


def _check_names(scale: str, env: str, method: str) -> None:
    """Refuse a name that is not configured; `*` stands for any."""
    if scale != "*":
        scale_settings(scale)
    if method != "*" and base_method(method) not in known("methods"):
        raise UserError(f"no method named '{method}'", where="config/methods", do=nearest(method, known("methods")))
    if "*" not in (scale, env):
        environment_mapping(scale, env)


def _check_metrics(runs: Sequence[WatchedRun], metrics: Sequence[str]) -> None:
    """Refuse a metric that no run has logged, where all have ended; others may log it yet."""
    logged = known_metrics(runs)
    for metric in metrics:
        if metric not in logged and all(run.ended for run in runs):
            raise UserError(f"no run has logged '{metric}'", where="--metric", do=nearest(metric, logged))


def state_of(root: Path, run: Names) -> WatchedRun:
    """A run as it stands."""
    checkpoints, table = root / paths.checkpoints.of(run), root / paths.train_table.of(run)
    name = f"{run['scale']} {run['env']} {run['method']} seed {run['seed']}"
    host = worker(checkpoints)
    _, points = read_live(checkpoints / FILE)
    if (checkpoints / FILE).exists():
        step = f", step {max(points):,}" if points else ""
        if host:
            return WatchedRun(name, f"training on {host}{step}", points, ended=False)
        return WatchedRun(name, f"stopped or failed{step}; the same command goes on", points, ended=False)
    if not table.exists():
        return WatchedRun(name, "starting" if host else "has not begun", {}, ended=False)
    points = points_of(read_table(table, kind="train"))
    scored = (root / paths.scores.of(run)).exists()
    said = "trained and scored" if scored else "trained, not scored"
    return WatchedRun(name, f"{said}, step {max(points, default=0):,}", points, ended=True)


def _on_terminal(now: Callable[[], list[WatchedRun]], metrics: Sequence[str], every: float, once: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()

    def drawn(runs: list[WatchedRun]) -> Any:
        return terminal(runs, metrics, console.width, console.height)

    runs = now()
    if not once and console.is_terminal:
        with Live(drawn(runs), console=console, screen=True, auto_refresh=False) as shown:
            while not all(run.ended for run in runs):
                time.sleep(every)
                runs = now()
                shown.update(drawn(runs), refresh=True)
    console.print(drawn(runs))


def _into_page(
    now: Callable[[], list[WatchedRun]], target: Path, metrics: Sequence[str], every: float, once: bool
) -> None:
    runs = now()
    write_bytes(target, page(runs, metrics, every=every).encode())
    print(f"{target}: open it in a browser", flush=True)
    while not once and not all(run.ended for run in runs):
        time.sleep(every)
        runs = now()
        write_bytes(target, page(runs, metrics, every=every).encode())
