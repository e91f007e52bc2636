"""Commands about names and settings: what there is, what it does, and what comes of other values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from recollect.options import Env, Grid, Method, Scale, Seeds


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


COMMANDS: dict[str, Callable[..., None]] = {"list": list_names, "sweep": sweep, "reference": reference}
