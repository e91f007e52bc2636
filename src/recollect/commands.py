"""Commands beside those of the stages: what may be named and what settings do, what comes of them, and how runs get on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from recollect.jobs import job
from recollect.options import Change, DefaultScale, Env, Figures, Grid, Method, NamedOnce, Scale, Seeds, Threads
from recollect.settings.errors import UserError
from recollect.settings.overrides import method_with
from recollect.stages import check as checking
from recollect.stages import finished as ending
from recollect.stages import paths
from recollect.stages import settings as showing
from recollect.stages import why as reasons
from recollect.stages.pipeline import pipeline
from recollect.stages.selection import chosen_figures, default_selection
from recollect.stages.table import STAGES

own = typer.Typer()


def _asked(scale: str | None, figures: list[str] | None) -> tuple[str, list[str]]:
    """The scale and the figures that a command is about: those that it names, else those of config/config.yaml."""
    scale = scale or default_selection().scale
    return scale, chosen_figures(scale, figures)


@own.command("list")
def list_names(
    group: Annotated[
        str | None,
        typer.Argument(
            help="scales, figures, environments, methods, variants, claims, kinds, sources or worlds; none: all names."
        ),
    ] = None,
    chosen: Annotated[list[str] | None, typer.Argument(help="Names of that group; none: all of it.")] = None,
) -> None:
    """List what can be named: scales, figures, environments, methods, variants, claims; kinds of figures, sources, worlds.

    Example: recollect list environments dark_room_7x7 tmaze_passive_50
    """
    from recollect.stages.listing import listing

    print(listing(group, chosen or ()))


@own.command()
def init(
    kind: Annotated[str, typer.Argument(help="world, method, figure or claim.")],
    name: Annotated[str, typer.Argument(help="What it shall be called, e.g. hall.")],
    env: Annotated[str, typer.Option(help="Of a figure: the environment that it draws.")] = "",
    method: Annotated[str, typer.Option(help="Of a figure: the method that it draws.")] = "",
    figure: Annotated[str, typer.Option(help="Of a claim: the figure that shows it.")] = "",
    scale: DefaultScale = None,
) -> None:
    """Begin a world, a method, a figure or a claim of yours: the example of docs/adding.md, under your name, in mine/.

    Example: recollect init world hall
    """
    from recollect.stages.init import init as begin

    print(begin(kind, name, scale or default_selection().scale, env=env, method=method, figure=figure))


@own.command(cls=NamedOnce)
def sweep(
    scale: Scale,
    env: Env,
    method: Method,
    seed: Seeds,
    change: Grid,
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="Instead of every combination: so many that optuna proposes; also of KEY=LOW..HIGH."),
    ] = None,
    more: Annotated[
        list[str] | None, typer.Argument(help="Behind `--`: words for Snakemake, e.g. -- --profile cluster.")
    ] = None,
) -> None:
    """Run every combination of some settings, or a search, and write and print a table of their final scores.

    Example: recollect sweep --scale smoke --env tmaze_passive_5 --method dqn_lstm --seed 0 --set learning_rate=1e-3,3e-4
    """
    from recollect.stages.sweep import sweep as stage
    from recollect.warm import warm as start

    stage(scale, env, method_with(method), seed, change, trials=trials, more=more or (), start=start)


@own.command()
def reference() -> None:
    """Write docs/reference: every hyper-parameter with its default, what it does, and where it is published.

    Example: recollect reference
    """
    from recollect.stages.reference import write_reference

    print(write_reference())


@own.command()
def watch(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Folders of runs, or above them; none: what is in training.")
    ] = None,
    scale: Annotated[str | None, typer.Option(help="Of this scale; none: of all in which such runs are.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="Of this environment, again for more.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Of this method, again for more.")] = None,
    seed: Annotated[list[int] | None, typer.Option(min=0, help="Of this seed, again for more.")] = None,
    metric: Annotated[list[str] | None, typer.Option(help="Draw this, again for more; none: loss and return.")] = None,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two pictures.")] = 2.0,
    page: Annotated[Path | None, typer.Option(help="Write an HTML page instead, which loads itself again.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Show them as they stand, and end.")] = False,
) -> None:
    """Show the curves of runs while they learn, in the terminal or as a page; of finished runs, too.

    Example: recollect watch results/demo/runs/tmaze_passive_20
    """
    from recollect.stages.watch import watch as show

    methods = [method_with(one) for one in method or []]
    named = {"env": env or [], "method": methods, "seed": [str(one) for one in seed or []]}
    if scale:
        named["scale"] = [scale]
    show(runs or [], named, metrics=metric or [], every=every, target=page, once=once)


@own.command()
def claims(
    scale: DefaultScale = None,
    figure: Annotated[
        list[str] | None, typer.Option(help="Of this figure, again for more; none: default ones.")
    ] = None,
    strict: Annotated[bool, typer.Option(help="Fail unless every claim holds.")] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Also into claims.json of the scale, as Snakemake does.")
    ] = False,
    table: Annotated[bool, typer.Option("--table", help="As a table of Markdown.")] = False,
) -> None:
    """Say of each published claim that figures show whether it holds, is contradicted, or is undecided.

    Example: recollect claims --scale demo --figure radt_dark_room_10x10
    """
    from recollect.stages.claims import check_all_hold, stale, text, verdicts
    from recollect.stages.claims import claims as judge_and_write
    from recollect.stages.claims import table as markdown

    scale, figures = _asked(scale, figure)
    found = judge_and_write(scale, figures) if write else verdicts(scale, figures)
    print(markdown(found) if table else text(scale, figures, found), flush=True)
    checking.hand_over()
    if said := stale(scale, figures):
        print(f"warning: {said}", file=sys.stderr)
    if strict:
        check_all_hold(scale, figures, found)


@own.command(cls=NamedOnce)
def compare(
    this: Annotated[str, typer.Argument(help="A method.")],
    that: Annotated[str, typer.Argument(help="The method that it is compared with.")],
    env: Env,
    scale: DefaultScale = None,
    seed: Annotated[list[int] | None, typer.Option(min=0, help="A seed of both, again for more; none: all.")] = None,
    metric: Annotated[str, typer.Option(help="What was scored.")] = "return",
) -> None:
    """Say by how much one method scores above another in an environment, with its interval, of finished runs.

    Example: recollect compare radt ad --scale demo --env dark_room_7x7
    """
    from recollect.stages.compare import compare as stage

    print(stage(scale or default_selection().scale, env, method_with(this), method_with(that), seed or [], metric))


@own.command()
def report(
    scale: DefaultScale = None,
    figure: Annotated[
        list[str] | None, typer.Option(help="Figure to show, again for more; none: default ones.")
    ] = None,
) -> None:
    """Write the report: one page with figures, captions, provenance and a table of all runs.

    Example: recollect report --scale demo --figure radt_dark_room_10x10
    """
    scale, figures = _asked(scale, figure)
    STAGES["report"].run(scale, figures)
    print(paths.report(scale))


@own.command()
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
        raise UserError("one thing is fetched at a time", where="recollect fetch", do="--model, or --data [--revision]")
    if model is not None:
        print(STAGES["fetch"].run(model))
    elif data is not None:
        print(STAGES["fetch_data"].run(data, revision=revision))


@own.command()
def check(
    env: Annotated[
        str | None, typer.Option(help="Play this environment, and see whether it keeps what a world promises.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Train and judge this method in it, too, and keep nothing.")
    ] = None,
    scale: Annotated[str, typer.Option(help="With --env: how long the method learns.")] = "smoke",
) -> None:
    """Check the whole configuration: every scale, environment, method and figure; or try an environment of yours.

    Example: recollect check --env dark_room_7x7 --method dqn_lstm
    """
    from recollect.stages.check_own import check_own

    if env is None and method is not None:
        raise UserError(
            "a method is tried in an environment", where="recollect check --method", do="name it: --env ENV"
        )
    for line in [checking.check()] if env is None else check_own(scale, env, method and method_with(method)):
        print(line)


@own.command(cls=NamedOnce)
def settings(
    scale: DefaultScale = None,
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
    scale = scale or default_selection().scale
    print(showing.settings(scale, env, method, figure, changes=change or (), why=why, as_json=as_json))


@own.command(context_settings={"ignore_unknown_options": True})
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


@own.command()
def finished(figures: Figures = None, scale: DefaultScale = None) -> None:
    """Name the figures and the report of a scale, and say which of the claims that they show hold.

    Example: recollect finished --scale demo
    """
    print(ending.finished(*_asked(scale, figures)))


@own.command()
def clean(
    unused: Annotated[
        bool,
        typer.Option("--unused", help="Runs, checkpoints and data that no figure, sweep or claim has any use for."),
    ] = False,
    only_list: Annotated[
        bool, typer.Option("--dry-run", "-n", help="List them with their sizes, and delete none.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without a question.")] = False,
) -> None:
    """Delete results that the present configuration has no use for, after listing them.

    Example: recollect clean --unused -n
    """
    from recollect.stages import clean as stage

    if not unused:
        raise UserError(
            "nothing is named to be deleted", where="recollect clean", do="add --unused, and -n to see what"
        )
    found = stage.unused()
    print(found.text(), flush=True)
    if only_list or not found.files:
        return
    if not yes and not sys.stdin.isatty():
        raise UserError("nothing was deleted: nobody can be asked here", where="recollect clean", do="add --yes")
    if yes or typer.confirm("Delete all this for ever?"):
        left = stage.delete(found)
        print("\n".join([*left, stage.said_of(found, left)]))


@own.command()
def record(figures: Figures = None, scale: DefaultScale = None) -> None:
    """Write the verdicts and numbers of a scale into docs/recorded, and from there into README and docs.

    Example: recollect record --scale demo demo_all
    """
    from recollect.stages.recorded_run import record as write

    print(write(*_asked(scale, figures)))


@own.command()
def schema() -> None:
    """Write config/schemas: what may stand in the files of config/, for editors.

    Example: recollect schema
    """
    from recollect.stages.schemas import write

    print(write())


@own.command()
def dvc() -> None:
    """Print what dvc.yaml must be: `recollect dvc > dvc.yaml`.

    Example: recollect dvc > dvc.yaml
    """
    print(pipeline(), end="")


@own.command()
def forecast(
    figures: Figures = None,
    scale: DefaultScale = None,
    devices: Annotated[
        int, typer.Option("--devices", "--jobs", min=1, help="GPUs, or at scales without GPUs jobs at a time.")
    ] = 1,
    device: Annotated[
        str, typer.Option(help="auto: GPUs where the rules ask for them; cpu: without; or one of config/speeds/.")
    ] = "auto",
    measure: Annotated[bool, typer.Option("--measure", help="Try each kind of run for seconds, here and now.")] = False,
    remaining: Annotated[bool, typer.Option("--remaining", help="Count only what is not made yet, or stale.")] = False,
    table: Annotated[bool, typer.Option("--table", help="Only a row for each figure, as a table of Markdown.")] = False,
    write: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True, dir_okay=False, help="Put tables between a page's marks, as of a fresh clone; again for more."
        ),
    ] = None,
    threads: Threads = 1,
) -> None:
    """Say what figures will cost: jobs, hours, wall time, disk and memory, and how that is known.

    Example: recollect forecast --scale paper radt_grid_worlds
    """
    from recollect.stages import forecast as stage
    from recollect.stages.cost_table import cost_table, write_tables
    from recollect.stages.cost_text import cost_text

    scale, chosen = _asked(scale, figures)
    if write:
        others = {"--remaining": remaining, "--measure": measure, "--table": table, "--devices": devices != 1}
        if said := [option for option, given in {**others, "--threads": threads != 1}.items() if given]:
            what = f"a page has the tables of a fresh clone, whatever {', '.join(said)} says"
            raise UserError(what, where="recollect forecast --write", do="leave out one or the other")
        return write_tables(write, " ".join(figures or ()), stage.forecast(scale, chosen, device=device, measured={}))
    known = stage.measurements()
    if measure:
        with job(threads, device if device in ("auto", "cpu") else "auto") as held:
            from recollect.stages.try_out import try_all

            known |= try_all(scale, chosen, known, held)
    cost = stage.forecast(scale, chosen, devices=devices, device=device, measured=known, only_remaining=remaining)
    print(cost_table(cost) if table else cost_text(cost))


@own.command()
def why(figures: Figures = None, scale: DefaultScale = None) -> None:
    """Say what of figures is stale, and the reason in words.

    Example: recollect why --scale demo radt_dark_room_10x10
    """
    print(reasons.why(*_asked(scale, figures)))
