"""What dvc.yaml must be: the same stages for `dvc repro`, at demo scale with the figures of config/config.yaml.

A test compares the file with this; `recollect dvc > dvc.yaml` writes it. A DVC stage is a few of ours, with what they make
and, as dependencies, what other DVC stages make of what they read.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from recollect.artifacts.sealed import MANIFEST_SUFFIX, manifest_path
from recollect.stages import packs, paths
from recollect.stages.plan import embedders, maker, plan
from recollect.stages.selection import default_selection
from recollect.stages.stage import Job
from recollect.stages.table import STAGES

SCALE = "demo"
CODE = ("Snakefile", "rules", "config", "src/recollect")
HEAD = f"""\
# The same stages for `dvc repro`, at {SCALE} scale with the figures of config/config.yaml. Written by `recollect dvc > dvc.yaml`.
# DVC decides between stages, Snakemake inside one: `--allowed-rules` keeps a stage to its own rules, so that drawing a figure
# can never retrain. Outs are `persist: true`: DVC leaves them in place, and Snakemake redoes only what must be.
vars:
  - cores: all
  - run: snakemake --config scale={SCALE} --quiet host --allowed-rules

stages:
"""
TAIL = f"""\
  # Scores and verdicts in two small files that git keeps, for `dvc metrics show`, `dvc metrics diff` and `dvc exp show`.
  metrics:
    cmd: python workflow/metrics.py {SCALE}
    deps: [workflow/metrics.py, workflow/provenance.py, config, results/{SCALE}/figures, results/{SCALE}/claims.json]
    metrics:
      - metrics/{SCALE}.json: {{cache: false, persist: true}}
      - metrics/{SCALE}_claims.json: {{cache: false, persist: true}}

  # Snakemake's own records of how all this was made, so that a clone has nothing to redo after `dvc pull`.
  provenance:
    cmd: python workflow/provenance.py save
    deps: [workflow/provenance.py, Snakefile, rules, config, src/recollect, results/{SCALE}/figures, results/{SCALE}/claims.json]
    outs:
      - provenance: {{persist: true}}
"""


class Coarse(NamedTuple):
    """A stage of DVC: its targets, and the stages whose jobs it runs. A run's files share a folder, and DVC tracks folders."""

    targets: str
    stages: tuple[str, ...]


COARSE = {
    "generate": Coarse("data", ("generate_task", "generate", "train_images", "embed_images", "fetch", "fetch_data")),
    "embedders": Coarse("embedders", ("run", "evaluate", "inspect")),
    "memories": Coarse("memories", ("embed", "index")),
    "vocabularies": Coarse("vocabularies", ("train_vision_language", "embed_vocabulary")),
    "runs": Coarse("evaluated inspected measured", ("run", "evaluate", "inspect", "measure")),
    "figures": Coarse("figures pages", ("figure", "page")),
}


# Where all of a stage's files for a name lie in one folder, that is its out; else each file is, and its manifest.
_RUNS = "results/{scale}/runs/{env}/{method}"
FOLDERS = {
    **dict.fromkeys(("run", "evaluate", "inspect"), _RUNS),
    **dict.fromkeys(("embed", "index"), "data/{scale}/{env}/{method}"),
    "fetch": "data/models/{model}",
    "fetch_data": "data/published/{dataset}",
    "train_vision_language": "data/{scale}/models/{model}",
    "measure": "results/{scale}/speed",
    "figure": "results/{scale}/figures",
    "page": "results/{scale}/inspect",
}


def _outs(job: Job) -> list[str]:
    stage = STAGES[job.stage]
    if job.stage in FOLDERS:
        return [FOLDERS[job.stage].format_map(job.names(stage.over))]
    return [file.as_posix() for path in stage.makes(job) for file in (path, manifest_path(path))]


def pipeline() -> str:
    chosen = default_selection()
    figures = chosen.figures_at(SCALE)
    whole = plan(SCALE, figures)
    first = {maker(path, SCALE) for path in embedders(SCALE, figures)}
    split = {job.env for job in first if job is not None}  # environments whose runs are not all of one DVC stage

    def outs_of(job: Job) -> list[str]:
        if job.stage in COARSE["embedders"].stages and job.env not in split:
            return [str(Path(out).parent) for out in _outs(job)]
        return _outs(job)

    # Of each DVC stage what it makes and what its jobs read, each once and in order.
    outs: dict[str, dict[str, None]] = {name: {} for name in COARSE}
    read: dict[str, dict[str, None]] = {name: {} for name in COARSE}
    for job, waits_for in whole.needs.items():
        others = [name for name, coarse in COARSE.items() if job.stage in coarse.stages and name != "embedders"]
        name = "embedders" if job in first else others[0]
        outs[name] |= dict.fromkeys(outs_of(job))
        for other in waits_for:
            read[name] |= dict.fromkeys(outs_of(other))
    of_runs = list(packs.rules([SCALE], chosen.job_hours, chosen.seeds_together))
    text = HEAD
    for name, coarse in COARSE.items():
        if not outs[name]:
            continue
        own = [rule for stage in coarse.stages for rule in (of_runs if stage == "run" else [stage])]
        rules = " ".join((coarse.targets, *own))
        others = [out for out in read[name] if out not in outs[name] and not out.endswith(MANIFEST_SUFFIX)]
        text += f"  {name}:\n    cmd: ${{run}} {rules} --cores ${{cores}} -- {coarse.targets}\n"
        text += f"    deps: [{', '.join([*CODE, *others])}]\n    outs:\n"
        for out in outs[name]:
            text += f"      - {out}: {{persist: true}}\n"
        text += "\n"
    runs = [out for out in read["figures"] if not out.endswith(MANIFEST_SUFFIX)]
    return text + _claims(runs) + TAIL


def _claims(runs: list[str]) -> str:
    """The stage that judges the claims. It waits for the runs of all figures; which it reads, its rule knows."""
    path = paths.claims(SCALE)
    text = "  claims:\n    cmd: ${run} claims claims_table --cores ${cores} -- claims\n"
    text += f"    deps: [{', '.join([*CODE, *runs])}]\n    outs:\n"
    for out in (path, manifest_path(path)):
        text += f"      - {out}: {{persist: true}}\n"
    return text + "\n"
