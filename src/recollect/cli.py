"""The command line: one command per stage, each a thin call; every job of the workflow is one of these commands."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from recollect.settings.errors import UserError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Regenerates the results of four lines of research on memory in reinforcement learning.",
)

Scale = Annotated[str, typer.Option(help="smoke, demo, paper, or a file of yours in config/scales.")]
DefaultScale = Annotated[str | None, typer.Option(help="As `scale`; none: that of config/config.yaml.")]
Env = Annotated[str, typer.Option(help="Environment: a file of config/environments, e.g. dark_room_10x10.")]
Method = Annotated[str, typer.Option(help="Method: a file of config/methods, e.g. radt, or radt.VARIANT.")]
Change = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="A hyperparameter that differs, KEY=VALUE, again for more; results lie under another name."
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the run.")]
Device = Annotated[str, typer.Option(help="cpu, cuda (insist), or auto (a GPU where there is one).")]
Pack = Annotated[int, typer.Option(min=1, envvar="RECOLLECT_PACK", help="How many jobs may share one GPU.")]
Threads = Annotated[int, typer.Option(min=0, help="CPU threads; 0: as many as cores.")]


@contextmanager
def job(threads: int, device: str = "cpu", pack: int = 1) -> Iterator[str]:
    """What every job does around its work: end with its scheduler, use its threads, hold its device."""
    from recollect.artifacts.lease import device_lease
    from recollect.artifacts.lock import dies_with_scheduler

    dies_with_scheduler()
    print(f"$ {' '.join(['recollect', *sys.argv[1:]])}", file=sys.stderr, flush=True)
    if device not in ("cpu", "cuda", "auto"):
        raise UserError(f"unknown device '{device}'", where="--device", do="use cpu, cuda or auto")
    if threads:
        os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    with device_lease(device, pack) as held:  # type: ignore[arg-type]
        import torch

        if threads:
            torch.set_num_threads(threads)
        yield held


@app.command()
def generate(scale: Scale, env: Env, device: Device = "auto", pack: Pack = 1, threads: Threads = 0) -> None:
    """Make the learning histories of an environment; most source agents learn on the CPU, whatever the device."""
    from recollect.settings.resolve import environment_mapping, uses_gpu
    from recollect.stages.generate import generate as stage

    source = environment_mapping(scale, env).get("source") or {}
    with job(threads, device if uses_gpu(str(source.get("algorithm", "ppo"))) else "cpu", pack) as held:
        stage(scale, env, device=held)


@app.command()
def embed(
    scale: Scale, env: Env, method: Method, device: Device = "auto", pack: Pack = 1, threads: Threads = 0
) -> None:
    """Compute the keys of a method's memory."""
    with job(threads, device, pack) as held:
        from recollect.stages.embed import embed as stage

        stage(scale, env, method, device=held)


@app.command()
def embed_images(scale: Scale, env: Env, device: Device = "auto", pack: Pack = 1, threads: Threads = 0) -> None:
    """Encode the images of an environment's learning histories."""
    with job(threads, device, pack) as held:
        from recollect.stages.embed_images import embed_images as stage

        stage(scale, env, device=held)


@app.command()
def train_vision_language(
    scale: Scale,
    model: Annotated[str, typer.Option(help="A name of config/vision_language_models.yaml, source: trained.")],
    threads: Threads = 0,
) -> None:
    """Train a small model of images and texts, or go on with it."""
    with job(threads):
        from recollect.stages.train_vision_language import train_vision_language as stage

        stage(scale, model)


@app.command()
def embed_vocabulary(
    scale: Scale,
    vocabulary: Annotated[str, typer.Option(help="A name of config/token_vocabularies.yaml.")],
    device: Device = "auto",
    pack: Pack = 1,
    threads: Threads = 0,
) -> None:
    """Embed the words that a vision-language model and a language model share."""
    with job(threads, device, pack) as held:
        from recollect.stages.embed_vocabulary import embed_vocabulary as stage

        stage(scale, vocabulary, device=held)


@app.command()
def index(scale: Scale, env: Env, method: Method, threads: Threads = 0) -> None:
    """Build the search index of a method's memory."""
    with job(threads):
        from recollect.stages.index import index as stage

        stage(scale, env, method)


@app.command()
def train(
    scale: Scale,
    env: Env,
    method: Method,
    seed: Seed,
    change: Change = None,
    device: Device = "auto",
    pack: Pack = 1,
    threads: Threads = 0,
) -> None:
    """Train one run, or go on with it."""
    from recollect.settings.overrides import method_with

    chosen = method_with(method, change or ())
    with job(threads, device, pack) as held:
        from recollect.stages.train import train as stage

        stage(scale, env, chosen, seed, device=held)


@app.command()
def evaluate(
    scale: Scale,
    env: Env,
    method: Method,
    seed: Seed,
    change: Change = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="A policy that the run kept: best, latest or an epoch; none: the run's own.")
    ] = None,
    device: Device = "auto",
    pack: Pack = 1,
    threads: Threads = 0,
) -> None:
    """Score a trained policy."""
    from recollect.settings.overrides import method_with

    chosen = method_with(method, change or ())
    with job(threads, device, pack) as held:
        from recollect.stages.evaluate import evaluate as stage

        stage(scale, env, chosen, seed, checkpoint=checkpoint, device=held)


@app.command()
def inspect(
    scale: Scale,
    env: Env,
    method: Method,
    seed: Seed,
    split: Annotated[str, typer.Option(help="Task split that is played.")] = "eval",
    task: Annotated[list[int] | None, typer.Option(help="Task to trace, again for more; none: a few of them.")] = None,
    device: Device = "auto",
    pack: Pack = 1,
    threads: Threads = 0,
) -> None:
    """Trace some tasks of a policy's evaluation: what it saw, did and read."""
    with job(threads, device, pack) as held:
        from recollect.stages.inspect import inspect as stage

        stage(scale, env, method, seed, split=split, tasks=task or (), device=held)


@app.command()
def page(scale: Scale, env: Env, method: Method, seed: Seed) -> None:
    """Write the inspection page of a traced run."""
    from recollect.stages.page import page as stage

    stage(scale, env, method, seed)


@app.command()
def measure(
    scale: Scale, env: Env, method: Method, seed: Seed, device: Device = "auto", pack: Pack = 1, threads: Threads = 0
) -> None:
    """Measure how fast a method learns and acts on this machine."""
    with job(threads, device, pack) as held:
        from recollect.stages.measure import measure as stage

        stage(scale, env, method, seed, device=held)


@app.command()
def figure(scale: Scale, figure: Annotated[str, typer.Option(help="Figure: a file of config/figures.")]) -> None:
    """Draw a figure from scores, traces or speeds."""
    from recollect.stages.figure import figure as stage

    stage(scale, figure)


@app.command()
def report(
    scale: DefaultScale = None,
    figure: Annotated[
        list[str] | None, typer.Option(help="Figure to show, again for more; none: default ones.")
    ] = None,
) -> None:
    """Write the report: one page with figures, captions, provenance and a table of all runs."""
    from recollect.stages.finished import default_figures, default_scale
    from recollect.stages.report import report as stage

    stage(scale or default_scale(), figure or default_figures())


@app.command()
def fetch(
    model: Annotated[
        str | None, typer.Option(help="A name of config/language_models.yaml or vision_language_models.yaml.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="A name of config/published_data.yaml.")] = None,
    revision: Annotated[str | None, typer.Option(help="With --data: a commit instead of the pinned one.")] = None,
) -> None:
    """Fetch a frozen language model or published data once, at a pinned revision, with checked hashes."""
    if (model is None) == (data is None) or (revision is not None and data is None):
        raise UserError("one thing is fetched at a time", where="recollect fetch", do="name --model or --data")
    from recollect.stages import fetch as stage

    if model is not None:
        stage.fetch(model)
    elif data is not None:
        print(stage.fetch_data(data, revision))


@app.command()
def check() -> None:
    """Check the whole configuration: every scale, environment, method and figure."""
    from recollect.stages.check import check as stage

    print(stage())


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
    """Show the settings of a run, an environment or a figure, every default included, and where each comes from."""
    from recollect.stages.settings import settings as stage

    print(stage(scale, env, method, figure, changes=change or (), why=why, as_json=as_json))


@app.command(context_settings={"ignore_unknown_options": True})
def warm(command: Annotated[list[str], typer.Argument(help="The command, e.g. snakemake --cores 2.")]) -> None:
    """Run a command, e.g. snakemake, whose jobs start without the imports of each."""
    from recollect.launch import warm as run

    typed = sys.argv[sys.argv.index("warm") + 1 :]  # not `command`, from which a `--` in the middle is gone
    raise typer.Exit(run(typed[1:] if typed[0] == "--" else typed))


@app.command()
def finished(scale: DefaultScale = None) -> None:
    """Name the figures and the report of a scale."""
    from recollect.stages.finished import default_scale
    from recollect.stages.finished import finished as stage

    print(stage(scale or default_scale()))


Figures = Annotated[
    list[str] | None, typer.Argument(help="Figures of config/figures, or `all`; none: the default ones.")
]


@app.command()
def forecast(
    figures: Figures = None,
    scale: DefaultScale = None,
    devices: Annotated[int, typer.Option(help="GPUs, or at scales without GPUs jobs at a time.")] = 1,
    device: Annotated[str, typer.Option(help="auto: GPUs where the rules ask for them; cpu: without.")] = "auto",
    measure: Annotated[bool, typer.Option("--measure", help="Try each kind of run for seconds, here and now.")] = False,
    threads: Threads = 1,
) -> None:
    """Say what figures will cost: jobs, hours, wall time, disk and memory, and how that is known."""
    from recollect.stages.finished import default_scale
    from recollect.stages.forecast import chosen_figures, measurements
    from recollect.stages.forecast import forecast as stage

    chosen, scale = chosen_figures(figures), scale or default_scale()
    known = measurements()
    if measure:
        with job(threads, device) as held:
            from recollect.stages.try_out import try_all

            known |= try_all(scale, chosen, known, held)
    print(stage(scale, chosen, devices=devices, device=device, measured=known).text())


@app.command()
def why(figures: Figures = None, scale: DefaultScale = None) -> None:
    """Say what of figures is stale, and the reason in words."""
    from recollect.stages.finished import default_scale
    from recollect.stages.forecast import chosen_figures
    from recollect.stages.why import why as stage

    print(stage(scale or default_scale(), chosen_figures(figures)))


def main() -> None:
    """Run a command; a `UserError` becomes one message and exit status 2."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("recollect").setLevel(logging.INFO)
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
