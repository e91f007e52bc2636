"""All stages, in the order in which data flow. Whatever asks about stages asks here."""

from __future__ import annotations

from recollect.stages import (
    embed,
    embed_images,
    embed_vocabulary,
    evaluate,
    fetch,
    figure,
    generate,
    index,
    inspect,
    measure,
    page,
    report,
    run,
    train,
    train_vision_language,
)
from recollect.stages.stage import Stage

_STAGES = (
    fetch.STAGE,
    fetch.DATA,
    generate.STAGE,
    embed_images.STAGE,
    train_vision_language.STAGE,
    embed_vocabulary.STAGE,
    embed.STAGE,
    index.STAGE,
    run.STAGE,
    train.STAGE,
    evaluate.STAGE,
    inspect.STAGE,
    page.STAGE,
    measure.STAGE,
    figure.STAGE,
    report.STAGE,
)
STAGES: dict[str, Stage] = {stage.name: stage for stage in _STAGES}
"""Name -> stage."""
