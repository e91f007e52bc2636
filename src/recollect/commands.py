"""Commands beside the stages: what can be named, what settings do, what comes of other values, and how runs get on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from recollect.options import DefaultScale, Env, Grid, Method, Scale, Seeds


def list_names(
    group: Annotated[
        str | None, typer.Argument(help="scales, figures, environments, methods, variants or claims; none: all names.")
    ] = None,
    chosen: Annotated[list[str] | None, typer.Argument(help="Names of that group; none: all of it.")] = None,
) -> None:
    """List what can be named: scales, figures, environments with ids, spaces and packages, methods, variants, claims.

    Example: recollect list environments dark_room_7x7 tmaze_passive_50
    """
    from recollect.stages.listing import listing

    print(listing(group, chosen or ()))


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

    print(stage(scale, env, method, seed, change, trials=trials, more=more or (), start=start))


def reference() -> None:
    """Write docs/reference: every hyper-parameter with its default, what it does, and where it is published.

    Example: recollect reference
    """
    from recollect.stages.reference import write_reference

    print(write_reference())


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
    """Show the curves of runs while they learn, in the terminal or as a page; of finished runs, too.

    Example: recollect watch results/demo/runs/tmaze_passive_20
    """
    from recollect.stages.selection import default_selection
    from recollect.stages.watch import watch as show

    named = {"env": env or [], "method": method or [], "seed": [str(one) for one in seed or []]}
    if scale or any(named.values()):
        named["scale"] = [scale or default_selection().scale]
    show(runs or [], named, metrics=metric or [], every=every, target=page, once=once)


COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_names,
    "sweep": sweep,
    "reference": reference,
    "watch": watch,
}
