"""Traces in, a checked grid out: a figure of traces draws one environment, all its methods and all its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recollect.common.traces import Trace
from recollect.figures.spec import FigureSpec
from recollect.settings.errors import UserError


def read_traces(files: Sequence[Path | str]) -> list[Trace]:
    """The traces of some runs.

    Raises:
        UserError: no file, or one that does not verify.
    """
    if not files:
        raise UserError("there are no traces", where="figure", do="name the trace.safetensors of the runs to draw")
    return [Trace.open(Path(file)) for file in files]


def grid_of(traces: Sequence[Trace], figure: FigureSpec) -> dict[str, list[Trace]]:
    """The traces that a figure draws: method -> one per seed, in the figure's order.

    Raises:
        UserError: more than one environment, a run without its trace, or one that stands twice.
    """
    where = f"figure '{figure.name}'"
    if len(figure.environments) != 1:
        do = "make one figure per environment"
        raise UserError(
            f"kind '{figure.kind}' draws one environment, not {len(figure.environments)}", where=where, do=do
        )
    found: dict[tuple[str, str, int], Trace] = {}
    for trace in traces:
        if trace.run in found:
            raise UserError(f"the trace of {_name(trace.run)} stands twice", where=where, do="give each file once")
        found[trace.run] = trace
    wanted = [(figure.environments[0], method, seed) for method in figure.methods for seed in figure.seeds]
    missing = [run for run in wanted if run not in found]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        do = f"run `recollect inspect` for it, or take it out of config/figures/{figure.name}.yaml"
        raise UserError(f"there is no trace of {_name(missing[0])}{more}", where=where, do=do)
    chosen = {method: [found[run] for run in wanted if run[1] == method] for method in figure.methods}
    first = found[wanted[0]]
    for run in wanted:
        if (found[run].about["split"], found[run].tasks) != (first.about["split"], first.tasks):
            raise UserError(
                f"{_name(run)} has tasks {found[run].tasks} of split '{found[run].about['split']}' traced, and "
                f"{_name(first.run)} has {first.tasks} of '{first.about['split']}'",
                where=where,
                do="run `recollect inspect` with the same tasks for both",
            )
    return chosen


def chosen_tasks(traces: Sequence[Trace], wanted: Sequence[int] | None, figure: FigureSpec) -> list[int]:
    """The tasks to draw: those wanted, or all that are traced.

    Raises:
        UserError: a wanted task is not traced.
    """
    traced = traces[0].tasks
    absent = [task for task in wanted or () if task not in traced]
    if absent:
        raise UserError(
            f"task {absent[0]} is not in the traces, which hold {', '.join(map(str, traced))}",
            where=f"figure '{figure.name}': options.tasks",
            do=f"run `recollect inspect` with `--task {absent[0]}` for every run of the figure",
        )
    return list(traced if wanted is None else wanted)


def _name(run: tuple[str, str, int]) -> str:
    env, method, seed = run
    return f"{method} on {env}, seed {seed}"
