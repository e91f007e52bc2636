"""train_images: histories of images -> an image encoder (`data/{scale}/{env}/image_encoder.safetensors`), which learned them
together with a Decision Transformer; `embed_images` and all policies of the environment see with it.

Killed at any instant, the same command goes on from the newest checkpoint and ends with the same bytes.
"""

from __future__ import annotations

from recollect.settings.resolve import canonical, environment_mapping, resolve, resolved
from recollect.stages import paths, provenance
from recollect.stages.begun import begun, with_trusted
from recollect.stages.stage import Job, Resources, Stage, Trust

METHOD = "dt"  # whose hyperparameters it learns with


def train_images(scale: str, env: str, *, trust_checkpoint: Trust = False, device: str = "cpu") -> bool:
    """Train the image encoder of an environment, or go on with it."""
    from recollect.artifacts.finite import check_arrays
    from recollect.artifacts.sealed import write_arrays, write_table
    from recollect.common.histories import Histories
    from recollect.common.image_encoders.registry import KIND
    from recollect.radt.image_pretraining import train_encoder

    seed = (environment_mapping(scale, env).get("images") or {}).get("seed", 0)
    settings = resolve(scale, env, METHOD, int(seed))
    job, target = Job("train_images", scale, env), paths.image_encoder(scale, env)
    known = STAGE.provenance(job, device)
    with begun(
        STAGE,
        job,
        known,
        target.parent,
        paths.encoder_checkpoints(scale, env),
        trust=trust_checkpoint,
        env=env,
        method="image_encoder",
        seed=settings.seed,
    ) as run:
        with run.going_on():
            weights = train_encoder(settings, Histories.open(paths.histories(scale, env)), run, device=device)
        arrays = {name: weight.numpy() for name, weight in weights.items()}
        check_arrays(arrays, target)
        known = with_trusted(known, run)
        write_table(paths.image_encoder_log(scale, env), run.table(), kind="train", provenance=known)
        write_arrays(target, arrays, kind=KIND, provenance=known)
    return run.resumed


def settings(scale: str, env: str) -> str:
    chosen = resolved(scale, env, METHOD)
    environment = {key: chosen["environment"][key] for key in ("name", "world", "options", "returns", "images")}
    return canonical({"environment": environment, "hyperparameters": chosen["method"]["hyperparameters"]})


def is_trained_here(scale: str, env: str) -> bool:
    """Whether an environment's images are encoded with the weights that this stage makes."""
    images = environment_mapping(scale, env).get("images") or {}
    return str(images.get("weights")) == paths.image_encoder(scale, env).as_posix()


STAGE = Stage(
    name="train_images",
    over=("scale", "env"),
    reads=lambda scale, env: {"histories": paths.histories(scale, env)},
    writes={"weights": paths.image_encoder, "log": paths.image_encoder_log},
    settings=settings,
    modules=lambda scale, env: [
        "recollect.radt.image_pretraining",
        *provenance.world_of(scale, env),
        *provenance.image_encoder_module(scale, env),
    ],
    only=is_trained_here,
    # As the training of a method; images are read from disk, window by window.
    asks=Resources((1500, 16000), (120, 24 * 60), threads=(1, 4), gpu=True, resumes=True),
    priority=68,
    packages="world",
    example="--scale paper --env procgen",
    run=train_images,
)
