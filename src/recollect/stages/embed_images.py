"""embed_images: histories of images + image encoder -> histories of vectors
(`data/{scale}/{env}/encoded_histories.safetensors`), which every method of the environment learns from.

Killed at any instant, the same command goes on from the last part and ends with the same bytes.
"""

from __future__ import annotations

from recollect.settings.errors import UserError
from recollect.settings.resolve import environment_path, environment_settings
from recollect.stages import paths, provenance
from recollect.stages.inputs import embed_images_inputs
from recollect.stages.stage import Job, Resources, Stage


def not_encoded(env: str) -> UserError:
    """That an environment has no section `images:`."""
    do = "add a section `images:` (docs/formats.md, Image encoders), if its observations are images"
    return UserError("nothing says how the images of this environment are encoded", where=environment_path(env), do=do)


def embed_images(scale: str, env: str, *, device: str = "cpu") -> None:
    """Encode the images of an environment's learning histories."""
    from recollect.artifacts.lock import run_lock
    from recollect.artifacts.sealed import write_arrays
    from recollect.common.histories import Histories
    from recollect.common.image_encoders.registry import ImageEncoder
    from recollect.common.parts_on_disk import encode_in_parts, remove_parts

    images = environment_settings(scale, env).images
    if images is None:
        raise not_encoded(env)
    inputs = embed_images_inputs(scale, env)
    known = STAGE.provenance(Job("embed_images", scale, env), device)
    folder = paths.image_checkpoints(scale, env)
    with run_lock(folder):
        histories = Histories.open(inputs["histories"])
        encoder = ImageEncoder(images, histories.observation.shape[1:], device=device)
        encoded = encode_in_parts(histories.observation, encoder, folder, provenance=known)
        target = paths.encoded_histories(scale, env)
        write_arrays(target, {**histories.arrays(), "observation": encoded}, kind="histories", provenance=known)
        remove_parts(folder)


STAGE = Stage(
    name="embed_images",
    over=("scale", "env"),
    reads=embed_images_inputs,
    writes={"histories": paths.encoded_histories},
    settings=provenance.image_settings,
    modules=lambda *of: [
        "recollect.common.histories",
        "recollect.common.parts_on_disk",
        "recollect.common.image_encoders.registry",
        *provenance.image_encoder_module(*of),
    ],
    # One part of the images and its vectors; all else is mapped from disk. A network looks at millions of images.
    asks=Resources((1500, 6000), (120, 480), threads=(1, 4), gpu=True, resumes=True),
    priority=65,
    packages="world",
    example="--scale paper --env procgen",
    run=embed_images,
)
