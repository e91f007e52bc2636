"""The stages that make what runs read, in the order in which data flow."""

from __future__ import annotations

from recollect.stages import (
    embed,
    embed_images,
    embed_vocabulary,
    generate,
    generate_task,
    index,
    train_images,
    train_vision_language,
)

OF_DATA = (
    generate_task.STAGE,
    generate.STAGE,
    train_images.STAGE,
    embed_images.STAGE,
    train_vision_language.STAGE,
    embed_vocabulary.STAGE,
    embed.STAGE,
    index.STAGE,
)
