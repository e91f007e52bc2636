"""All stages, in the order in which data flow. Whatever asks about stages asks here."""

from __future__ import annotations

from recollect.stages import claims, evaluate, fetch, figure, inspect, measure, page, report, run, train
from recollect.stages.of_data import OF_DATA
from recollect.stages.stage import Stage

_OF_RUNS = (run, train, evaluate, inspect, page, measure, figure, claims, report)
_STAGES = (fetch.STAGE, fetch.DATA, *OF_DATA, *(module.STAGE for module in _OF_RUNS))
STAGES: dict[str, Stage] = {stage.name: stage for stage in _STAGES}
