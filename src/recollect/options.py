"""What the words of the command line are: each option's type, help, completion, and what stands for it in examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from recollect import __version__
from recollect.settings.errors import UserError
from recollect.settings.loading import names
from recollect.settings.schema import LARGEST_SEED
from recollect.stages.stage import Stage

MOST_THREADS = 1024  # no job is faster with more, and a system cannot start any number of them


def _named(group: str) -> Callable[[str], list[str]]:
    """What a shell completes a word to: the names of a group that begin so."""
    return lambda incomplete: [name for name in names(group) if name.startswith(incomplete)]


Scale = Annotated[
    str, typer.Option(help="smoke, demo, paper, or a file of yours in config/scales.", autocompletion=_named("scales"))
]
Env = Annotated[
    str,
    typer.Option(
        help="Environment: a file of config/environments, e.g. dark_room_10x10.", autocompletion=_named("environments")
    ),
]
Method = Annotated[
    str,
    typer.Option(
        help="Method: a file of config/methods, e.g. radt, or radt.VARIANT.", autocompletion=_named("methods")
    ),
]
WILDCARDS: dict[str, Any] = {
    "scale": Scale,
    "env": Env,
    "method": Method,
    "seed": Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of the run.")],
    "task": Annotated[int, typer.Option(min=0, help="Place of a task in its split, from 0.")],
    "figure": Annotated[str, typer.Option(help="Figure: a file of config/figures.", autocompletion=_named("figures"))],
    "model": Annotated[str, typer.Option(help="A name of config/language_models.yaml or vision_language_models.yaml.")],
    "dataset": Annotated[str, typer.Option("--data", help="A name of config/published_data.yaml.")],
    "vocabulary": Annotated[str, typer.Option(help="A name of config/token_vocabularies.yaml.")],
}


class NamedOnce(TyperCommand):
    """A command in which what names its job stands once: else the last one would count, and the others be lost unsaid."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for option in self.params:
            if option.name in WILDCARDS and not getattr(option, "multiple", False):
                flag = option.opts[0]
                if sum(word == flag or word.startswith(f"{flag}=") for word in args) > 1:
                    several = "; `recollect run` takes several" if option.name == "seed" else ""
                    where = f"recollect {ctx.info_name} {flag}"
                    raise UserError(f"{flag} is given more than once", where=where, do=f"name one{several}")
        return super().parse_args(ctx, args)


Seeds = Annotated[
    list[int],
    typer.Option("--seed", min=0, max=LARGEST_SEED, help="Seed of the run, again for more, which are one job."),
]
DefaultScale = Annotated[
    str | None,
    typer.Option(
        help="smoke, demo, paper, or a file of yours in config/scales; none: that of config/config.yaml.",
        autocompletion=_named("scales"),
    ),
]
Change = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="A hyperparameter that differs, KEY=VALUE, again for more; results lie under another name."
    ),
]
Grid = Annotated[
    list[str],
    typer.Option("--set", help="A hyperparameter and its values, KEY=VALUE,VALUE; again for more: every combination."),
]
Device = Annotated[str, typer.Option(help="cpu, cuda (insist), or auto (a GPU where there is one).")]
Pack = Annotated[int, typer.Option(min=1, envvar="RECOLLECT_PACK", help="How many jobs may share one GPU.")]
AtATime = Annotated[
    int, typer.Option(min=1, help="How many of the seeds are at work at a time, each in a process of its own.")
]
Threads = Annotated[int, typer.Option(min=0, max=MOST_THREADS, help="CPU threads; 0: as many as cores.")]
Figures = Annotated[
    list[str] | None,
    typer.Argument(
        help="Figures of config/figures, a set of config/config.yaml, or `all`; none: the default ones.",
        autocompletion=_named("figures"),
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"recollect {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
]

USUAL = {
    "scale": "--scale demo",
    "env": "--env dark_room_7x7",
    "method": "--method radt",
    "seed": "--seed 0",
    "figure": "--figure radt_dark_room_10x10",
    "model": "--model tiles",
    "vocabulary": "--vocabulary tiles",
}
"""What stands for a name in the example of a command."""


def example(stage: Stage) -> str:
    """The last lines of a command's help."""
    words = stage.example or " ".join(USUAL[name] for name in stage.over)
    return f"Example: recollect {stage.name.replace('_', '-')} {words}"
