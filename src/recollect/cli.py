"""The command line: one command per stage, read off the stages; every job of the workflow is one of these commands."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import typer

from recollect.commands import COMMANDS
from recollect.jobs import job, reported, use_threads
from recollect.options import (
    WILDCARDS,
    AtATime,
    Change,
    DefaultScale,
    Device,
    Figures,
    Pack,
    Scale,
    Seeds,
    Threads,
    Version,
    example,
)
from recollect.settings.errors import UserError
from recollect.settings.overrides import method_with
from recollect.settings.resolve import scale_settings
from recollect.stages import check as checking
from recollect.stages import finished as ending
from recollect.stages import settings as showing
from recollect.stages import why as stale
from recollect.stages.pipeline import pipeline
from recollect.stages.play import COMMAND as PLAY
from recollect.stages.records import kept, timed
from recollect.stages.seeds import begin_alone, side_by_side, together
from recollect.stages.selection import chosen_figures, default_selection
from recollect.stages.stage import Stage, job_of
from recollect.stages.table import STAGES

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def options(version: Version = False) -> None:
    """Regenerates the results of four lines of research on memory in reinforcement learning."""


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
        _do(stage, {name: value for name, value in own.items() if value and value != options[name][1]}, **given)

    command.__doc__ = f"{(stage.run.__doc__ or '').splitlines()[0]}\n\n{example(stage)}"
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in parameters.items()
        ]
    )
    app.command(stage.name.replace("_", "-"))(command)


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
    if change:
        names["method"] = method_with(names["method"], change)
    wants_gpu = stage.asks.gpu
    if callable(wants_gpu):
        wants_gpu = wants_gpu(*(names[name] for name in stage.shared))
    if device == "auto" and not wants_gpu:
        device = "cpu"
    if threads is None:
        return one(stage, names, options, None)
    with job(threads, device or "cpu", pack) as held:
        seeds = names.get("seed")
        if not isinstance(seeds, list):
            return one(stage, names, options, held if device else None)
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
    if stage.keeps and not stage.parts and kept(stage, of):
        return
    returned = work() if stage.parts or options else timed(stage, of, device or "cpu", work)
    if isinstance(returned, str):
        print(returned)


def alone(
    stage: str, names: dict[str, Any], options: dict[str, Any], device: str, threads: int, count: int, said: str
) -> None:
    """One job of several side by side, as a process."""
    from recollect.artifacts.stopping import saves_on_sigterm

    begin_alone(count, said)
    use_threads(threads)
    with reported(), saves_on_sigterm():
        one(STAGES[stage], names, options, device)


OWN_COMMANDS = ("fetch", "fetch_data", "claims", "report")  # below: they take what they are about in other ways
for _stage in STAGES.values():
    if _stage.name not in OWN_COMMANDS:
        add_command(_stage)
add_command(PLAY)


@app.command()
def claims(
    scale: DefaultScale = None,
    figure: Annotated[
        list[str] | None, typer.Option(help="Of this figure, again for more; none: default ones.")
    ] = None,
    strict: Annotated[bool, typer.Option(help="Fail unless every claim holds.")] = False,
) -> None:
    """Say of each published claim that figures show whether it holds, is contradicted, or is undecided.

    Example: recollect claims --scale demo --figure radt_dark_room_10x10
    """
    figures = chosen_figures(figure)
    print(STAGES["claims"].run(scale or default_selection().scale, figures, strict=strict))


@app.command()
def report(
    scale: DefaultScale = None,
    figure: Annotated[
        list[str] | None, typer.Option(help="Figure to show, again for more; none: default ones.")
    ] = None,
) -> None:
    """Write the report: one page with figures, captions, provenance and a table of all runs.

    Example: recollect report --scale demo --figure radt_dark_room_10x10
    """
    STAGES["report"].run(scale or default_selection().scale, figure or default_selection().figures)


@app.command()
def fetch(
    model: Annotated[
        str | None, typer.Option(help="A name of config/language_models.yaml or vision_language_models.yaml.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="A name of config/published_data.yaml.")] = None,
    revision: Annotated[str | None, typer.Option(help="With --data: a commit instead of the pinned one.")] = None,
) -> None:
    """Fetch a frozen language model or published data once, at a pinned revision, with checked hashes.

    Example: recollect fetch --model transfo-xl-wt103
    """
    if (model is None) == (data is None) or (revision is not None and data is None):
        raise UserError("one thing is fetched at a time", where="recollect fetch", do="name --model or --data")
    if model is not None:
        STAGES["fetch"].run(model)
    elif data is not None:
        print(STAGES["fetch_data"].run(data, revision=revision))


# ------------------------------------------------------------------------------------------------ about the workflow


@app.command()
def check() -> None:
    """Check the whole configuration: every scale, environment, method and figure.

    Example: recollect check
    """
    print(checking.check())


@app.command()
def settings(
    scale: Scale,
    env: Annotated[str | None, typer.Option(help="Environment, e.g. dark_room_10x10.")] = None,
    method: Annotated[str | None, typer.Option(help="Method in this environment, e.g. radt.")] = None,
    figure: Annotated[str | None, typer.Option(help="Instead of an environment: a figure.")] = None,
    change: Change = None,
    why: Annotated[str | None, typer.Option(help="Only this key, and the file and line it comes from.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show the settings of a run, an environment or a figure, every default included, and where each comes from.

    Example: recollect settings --scale demo --env dark_room_7x7 --method radt --why optimisation.learning_rate
    """
    print(showing.settings(scale, env, method, figure, changes=change or (), why=why, as_json=as_json))


@app.command()
def watch(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Folders of runs, or above them; none: what is in training.")
    ] = None,
    scale: DefaultScale = None,
    env: Annotated[list[str] | None, typer.Option(help="Of this environment, again for more.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Of this method, again for more.")] = None,
    seed: Annotated[list[int] | None, typer.Option(min=0, help="Of this seed, again for more.")] = None,
    metric: Annotated[list[str] | None, typer.Option(help="Draw this, again for more; none: loss and return.")] = None,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two pictures.")] = 2.0,
    page: Annotated[Path | None, typer.Option(help="Write an HTML page instead, which loads itself again.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Show them as they stand, and end.")] = False,
) -> None:
    """Show the curves of runs while they learn, in the terminal or as a page; of finished runs, too."""
    from recollect.stages.watch import watch as show

    named = {"env": env or [], "method": method or [], "seed": [str(one) for one in seed or []]}
    if scale or any(named.values()):
        named["scale"] = [scale or default_selection().scale]
    show(runs or [], named, metrics=metric or [], every=every, target=page, once=once)


@app.command(context_settings={"ignore_unknown_options": True})
def warm(command: Annotated[list[str], typer.Argument(help="The command, e.g. snakemake --cores 2.")]) -> None:
    """Run a command, e.g. snakemake, whose jobs start without the imports of each.

    Example: recollect warm snakemake --cores 2
    """
    from recollect.warm import warm as run

    typed = sys.argv[sys.argv.index("warm") + 1 :]  # not `command`, from which a `--` in the middle is gone
    words = typed[1:] if typed[0] == "--" else typed
    try:
        raise typer.Exit(run(words))
    except FileNotFoundError as error:
        what = f"the command cannot be started: {error}"
        raise UserError(what, where=words[0], do="correct its name or path") from error


@app.command()
def finished(figures: Figures = None, scale: DefaultScale = None) -> None:
    """Name the figures and the report of a scale, and say which of the claims that they show hold.

    Example: recollect finished --scale demo
    """
    scale = scale or default_selection().scale
    scale_settings(scale)
    print(ending.finished(scale, chosen_figures(figures)))


@app.command()
def record(figures: Figures = None, scale: DefaultScale = None) -> None:
    """Write the verdicts and numbers of a scale into docs/recorded, and from there into README and docs.

    Example: recollect record --scale demo demo_all
    """
    from recollect.stages.recorded_run import record as write

    print(write(scale or default_selection().scale, chosen_figures(figures)))


@app.command()
def schema() -> None:
    """Write config/schemas: what may stand in the files of config/, for editors."""
    from recollect.stages.schemas import write

    print(write())


@app.command()
def dvc() -> None:
    """Print what dvc.yaml must be: `recollect dvc > dvc.yaml`.

    Example: recollect dvc > dvc.yaml
    """
    print(pipeline(), end="")


@app.command()
def forecast(
    figures: Figures = None,
    scale: DefaultScale = None,
    devices: Annotated[int, typer.Option(min=1, help="GPUs, or at scales without GPUs jobs at a time.")] = 1,
    device: Annotated[
        str, typer.Option(help="auto: GPUs where the rules ask for them; cpu: without; or one of config/speeds/.")
    ] = "auto",
    measure: Annotated[bool, typer.Option("--measure", help="Try each kind of run for seconds, here and now.")] = False,
    table: Annotated[bool, typer.Option("--table", help="Only a row for each figure, as a table of Markdown.")] = False,
    threads: Threads = 1,
) -> None:
    """Say what figures will cost: jobs, hours, wall time, disk and memory, and how that is known.

    Example: recollect forecast --scale paper radt_grid_worlds
    """
    from recollect.stages.cost_table import cost_table
    from recollect.stages.forecast import forecast as stage
    from recollect.stages.forecast import measurements

    chosen, scale = chosen_figures(figures), scale or default_selection().scale
    known = measurements()
    if measure:
        with job(threads, device if device in ("auto", "cpu") else "auto") as held:
            from recollect.stages.try_out import try_all

            known |= try_all(scale, chosen, known, held)
    cost = stage(scale, chosen, devices=devices, device=device, measured=known)
    print(cost_table(cost) if table else cost.text())


@app.command()
def why(figures: Figures = None, scale: DefaultScale = None) -> None:
    """Say what of figures is stale, and the reason in words.

    Example: recollect why --scale demo radt_dark_room_10x10
    """
    print(stale.why(scale or default_selection().scale, chosen_figures(figures)))


for _name, _command in COMMANDS.items():
    app.command(_name)(_command)


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
