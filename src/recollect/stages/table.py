"""All stages, in the order in which data flow. Whatever asks about stages asks here."""

from __future__ import annotations

from recollect.stages import (
    claims,
    embed,
    embed_images,
    embed_vocabulary,
    evaluate,
    fetch,
    figure,
    generate,
    generate_task,
    index,
    inspect,
    measure,
    page,
    report,
    run,
    train,
    train_images,
    train_vision_language,
)
from recollect.stages.stage import Stage

_OF_DATA = (generate_task, generate, train_images, embed_images, train_vision_language, embed_vocabulary, embed, index)
_OF_RUNS = (run, train, evaluate, inspect, page, measure, figure, claims, report)
_STAGES = (fetch.STAGE, fetch.DATA, *(module.STAGE for module in (*_OF_DATA, *_OF_RUNS)))
STAGES: dict[str, Stage] = {stage.name: stage for stage in _STAGES}
