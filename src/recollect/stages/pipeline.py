"""What dvc.yaml must be: the same stages for `dvc repro`, at demo scale with the figures of config/config.yaml.

A test compares the file with this; `recollect dvc > dvc.yaml` writes it. A DVC stage is a few of ours, with what they make
and, as dependencies, what other DVC stages make of what they read.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from recollect.artifacts.sealed import manifest_path
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
  # The scores in one small file that git keeps, for `dvc metrics diff` and `dvc exp show`.
  metrics:
    cmd: python workflow/metrics.py {SCALE}
    deps: [workflow/metrics.py, workflow/provenance.py, results/{SCALE}/figures]
    metrics:
      - metrics/{SCALE}.json: {{cache: false, persist: true}}

  # Snakemake's own records of how all this was made, so that a clone has nothing to redo after `dvc pull`.
  provenance:
    cmd: python workflow/provenance.py save
    deps: [workflow/provenance.py, Snakefile, rules, config, src/recollect, results/{SCALE}/figures]
    outs:
      - provenance: {{persist: true}}
"""


class Coarse(NamedTuple):
    """A stage of DVC: its targets, and the stages whose jobs it runs. A run's files share a folder, and DVC tracks folders."""

    targets: str
    stages: tuple[str, ...]


COARSE = {
    "generate": Coarse("data", ("generate", "embed_images", "fetch", "fetch_data")),
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
    """The outs that hold what a job makes."""
    stage = STAGES[job.stage]
    if job.stage in FOLDERS:
        return [FOLDERS[job.stage].format_map(job.names(stage.over))]
    return [file.as_posix() for path in stage.makes(job) for file in (path, manifest_path(path))]


def pipeline() -> str:
    """The text of dvc.yaml."""
    figures = default_selection().figures
    whole = plan(SCALE, figures)
    first = {job for path in embedders(SCALE, figures) if (job := maker(path, SCALE)) is not None}
    jobs_of = {name: [job for job in whole.needs if _belongs(job, name, first)] for name in COARSE}
    split = {job.env for job in first}  # environments whose runs are not all of one DVC stage

    def outs_of(job: Job) -> list[str]:
        return [
            str(Path(out).parent) if job.stage in COARSE["embedders"].stages and job.env not in split else out
            for out in _outs(job)
        ]

    outs = {name: list(dict.fromkeys(out for job in jobs for out in outs_of(job))) for name, jobs in jobs_of.items()}
    text = HEAD
    for name, coarse in COARSE.items():
        if not jobs_of[name]:
            continue
        rules = " ".join((coarse.targets, *coarse.stages))
        read = (other for job in jobs_of[name] for other in whole.needs[job])
        wanted = dict.fromkeys(out for other in read for out in outs_of(other) if not out.endswith(".manifest.json"))
        deps = [*CODE, *(out for out in wanted if out not in outs[name])]
        text += f"  {name}:\n    cmd: ${{run}} {rules} --cores ${{cores}} -- {coarse.targets}\n"
        text += f"    deps: [{', '.join(deps)}]\n    outs:\n"
        text += "".join(f"      - {out}: {{persist: true}}\n" for out in outs[name]) + "\n"
    return text + TAIL


def _belongs(job: Job, name: str, first: set[Job]) -> bool:
    """Whether a job is one of a DVC stage: the runs that memories embed with have their own."""
    if job.stage not in COARSE[name].stages:
        return False
    if name in ("embedders", "runs"):
        return (job in first) == (name == "embedders")
    return True
