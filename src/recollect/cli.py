"""The command line: one command per stage, read off the stages, of which each job of the workflow is one; and others."""

from __future__ import annotations

import inspect
import os
import sys
from typing import Annotated, Any, get_origin, get_type_hints

import typer

from recollect.artifacts.threads import use_threads
from recollect.commands import own
from recollect.jobs import job, reported
from recollect.options import WILDCARDS, AtATime, Change, Device, NamedOnce, Pack, Seeds, Threads, Version, example
from recollect.settings.catalogue import check_mine_folder
from recollect.settings.overrides import method_with
from recollect.stages.outcome import outcome
from recollect.stages.play import COMMAND as PLAY
from recollect.stages.records import kept, timed
from recollect.stages.seeds import begin_alone, side_by_side, together
from recollect.stages.stage import Stage, job_of
from recollect.stages.table import STAGES

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def options(version: Version = False) -> None:
    """Regenerates the results of four lines of research on memory in reinforcement learning."""
    check_mine_folder()


# ---------------------------------------------------------------------------------------------------- one per stage


def add_command(stage: Stage) -> None:
    """Add the command of a stage: the names of a job, the options of its function, and those that all jobs have."""
    hints = get_type_hints(stage.run, include_extras=True)
    options = {
        name: (_option(hints[name]), parameter.default)
        for name, parameter in inspect.signature(stage.run).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and get_origin(hints[name]) is Annotated
    }
    parameters: dict[str, tuple[Any, Any]] = {name: (WILDCARDS[name], inspect.Parameter.empty) for name in stage.over}
    if stage.parts:
        parameters |= {"seed": (Seeds, inspect.Parameter.empty), "at_a_time": (AtATime, 1)}
    if stage.changes:
        parameters["change"] = (Change, None)
    parameters |= options
    if "device" in hints:
        parameters |= {"device": (Device, "auto"), "pack": (Pack, 1)}
    if not stage.local:
        parameters["threads"] = (Threads, 0)

    def command(**given: Any) -> None:
        own = {name: given.pop(name) for name in options}
        said = {name: value for name, value in own.items() if value or type(value) is int}  # 0 was said, False was not
        _do(stage, {name: value for name, value in said.items() if value != options[name][1]}, **given)

    command.__doc__ = f"{(stage.run.__doc__ or '').splitlines()[0]}\n\n{example(stage)}"
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in parameters.items()
        ]
    )
    panel = "Jobs of the workflow, each by itself" if stage.writes else None
    app.command(stage.name.replace("_", "-"), rich_help_panel=panel, cls=NamedOnce)(command)


def _option(hint: Any) -> Any:
    """`Annotated[type, (flag,) help]` of a stage's function as the command line has it."""
    *flags, said = hint.__metadata__
    return Annotated[hint.__origin__, typer.Option(*flags, help=said)]


def _do(
    stage: Stage,
    options: dict[str, Any],
    *,
    change: list[str] | None = None,
    device: str | None = None,
    pack: int = 1,
    threads: int | None = None,
    at_a_time: int = 1,
    **names: Any,
) -> None:
    """Run a stage for some names; of several seeds (see `Stage.ahead`) one that fails stops no other."""
    if "method" in names:
        names["method"] = method_with(names["method"], change or ())
    if device == "auto" and not stage.may_use_gpu(names):
        device = "cpu"
    if threads is None:
        return one(stage, names, options, None)
    with job(threads, device or "cpu", pack, max(1, stage.gpus(names))) as held:
        seeds = names.get("seed")
        if not isinstance(seeds, list):
            return one(stage, names, options, held if device else None)
        names["seed"] = seeds = list(dict.fromkeys(seeds))
        if len(seeds) > 1:
            stage.ahead(*names.values(), **options, device=held)
        if at_a_time > 1:
            side_by_side(stage, names, seeds, options, held, count=at_a_time, threads=threads, work=alone)
        together(seeds, lambda seed: one(stage, {**names, "seed": seed}, options, held))
        for seed in seeds:
            stage.ended(*{**names, "seed": seed}.values())
    return None


def one(stage: Stage, names: dict[str, Any], options: dict[str, Any], device: str | None) -> None:
    """Do one job."""

    def work() -> object:
        return stage.run(*names.values(), **options, **({"device": device} if device else {}))

    of = job_of(stage.name, {name: str(value) for name, value in names.items()})
    other = options.keys() - {"trust_checkpoint"}  # with which something else is made than by the workflow
    returned: object = None
    if not (stage.keeps and not stage.parts and kept(stage, of)):
        returned = work() if stage.parts or other else timed(stage, of, device or "cpu", work)
    print(returned if isinstance(returned, str) else outcome(stage, of, options), flush=True)


def alone(
    stage: str, names: dict[str, Any], options: dict[str, Any], device: str, threads: int, count: int, said: str
) -> None:
    """One job of several side by side, as a process."""
    from recollect.artifacts.stopping import saves_on_sigterm

    begin_alone(count, said)
    use_threads(threads)
    with reported(), saves_on_sigterm():
        one(STAGES[stage], names, options, device)


OWN_COMMANDS = (
    "fetch",
    "fetch_data",
    "claims",
    "report",
)  # of recollect.commands: they take what they are about in other ways
for _stage in STAGES.values():
    if _stage.name not in OWN_COMMANDS:
        add_command(_stage)
add_command(PLAY)


app.add_typer(own)


def main() -> None:
    _open_standard_streams()
    with reported():
        app()


def _open_standard_streams() -> None:
    """Give a closed stream the null device: else the next file opened gets its number, and messages go into that file."""
    for number, name, mode in (0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w"):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


if __name__ == "__main__":
    main()
