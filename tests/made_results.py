"""Made-up results that look like those of real runs: files of runs whose numbers are known, and figures drawn from them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fast_yaml
import numpy as np
import pandas as pd

from recollect.artifacts.scores import concat_scores, scores_frame
from recollect.artifacts.sealed import read_json, sealing, write_json, write_table
from recollect.settings.resolve import method_mapping
from recollect.stages import paths, records
from recollect.stages.figure import figure
from recollect.stages.inputs import figure_runs
from recollect.stages.stage import Job
from recollect.stages.table import STAGES

ROOT = Path(__file__).resolve().parents[1]
SCALE = "demo"
ROOM, MAZE = "dark_room_10x10", "tmaze_passive_5"
EPISODES = 3  # of in-context learning


def made_in(folder: Path, make: Callable[[], object]) -> Path:
    """A folder with a copy of the repository's configuration, in which something was made; each test takes a copy of it."""
    shutil.copytree(ROOT / "config", folder / "config")
    with contextlib.chdir(folder):
        make()
    return folder


def configure(name: str, environments: Sequence[str], methods: Sequence[str], seeds: Sequence[int], **more: Any) -> str:
    """Write a figure's configuration into the working directory."""
    content = {"title": name, "caption": f"What {name} shows.", "category": "Made up", **more}
    content |= {"environments": list(environments), "methods": list(methods), "seeds": list(seeds)}
    Path(f"config/figures/{name}.yaml").write_text(fast_yaml.dump(content))
    return name


def last_score(seed: int) -> float:
    """The last score of a made-up run: neither its seed nor in its order."""
    return float((seed * 7) % 5) + 0.123456789


def write_run(env: str, method: str, seed: int) -> None:
    """The files that training and evaluation leave, and what they say of their time."""
    of = (SCALE, env, method)
    if method_mapping(*of).get("data") == "online":
        rows = [
            scores_frame(step=640 * k, split="train", metric="updates", value=float(10 * k)) for k in range(1, seed + 3)
        ]
        learned = [scores_frame(step=640, split="learning", task=0, episode=[0, 1], metric="return", value=-1.0)]
        scores = scores_frame(
            step=640 * (seed + 2), split="eval", task=0, episode=np.arange(4), metric="return", value=last_score(seed)
        )
    else:
        rows = [scores_frame(step=[100, 200], split="train", metric="loss", value=[2.0, 1.0])]
        learned = []
        value_TE = last_score(seed) + np.array([[-3.0, -2.0, -1.0], [-1.0, 0.0, 1.0]])
        scores = scores_frame(
            step=200,
            split="eval",
            task=np.arange(2)[:, None],
            episode=np.arange(EPISODES),
            metric="return",
            value=value_TE,
        )
    tables: dict[str, tuple[Path, list[pd.DataFrame], dict[str, Any]]] = {
        "train": (paths.train_table(*of, seed), rows + learned, described("train", *of)),
        "scores": (paths.scores(*of, seed), [*learned, scores], described("evaluate", *of)),
    }
    for kind, (path, frames, known) in tables.items():
        table = concat_scores(frames).assign(env=env, method=method, seed=seed)
        write_table(path, table, kind=kind, provenance=known)
    for rule, seconds in (("train", 100.0 + seed), ("evaluate", 4.0)):
        write_time(env, method, seed, rule, seconds)


def described(stage: str, scale: str, env: str, method: str) -> dict[str, Any]:
    """What a manifest says that was written with today's settings and code."""
    return STAGES[stage].provenance(Job(stage, scale, env, method), inputs={})


def method_changed(method: str) -> None:
    """Another setting of a method, so that what it made before is not of today."""
    path = Path(f"config/methods/{method}.yaml")
    content = fast_yaml.load(path.read_text())
    content["hyperparameters"]["reward_scale"] = 1.25
    path.write_text(fast_yaml.dump(content))


def write_time(
    env: str,
    method: str,
    seed: int,
    stage: str,
    seconds: float,
    *,
    resumed: bool = False,
    made_with: dict[str, str] | None = None,
) -> None:
    """What a job leaves in `logs/`."""
    job = Job(stage, SCALE, env, method, str(seed))
    known = records.Record(job, seconds, resumed, megabytes=500.0, device="cpu", settings="", made_with=made_with)
    write_json(records.place(job), known._asdict(), kind=records.KIND)


def few_runs() -> str:
    """Five runs, and the figure that is drawn from them."""
    name = configure("few", [ROOM], ["ad"], range(5), kind="in_context_curve", options={"resamples": 100})
    for run in figure_runs(SCALE, name):
        write_run(*run)
    figure(SCALE, name)
    return name


def claim(name: str, figure: str, **more: Any) -> None:
    """Write a claim about a figure of `few_runs`, which holds: its last episode is above its first."""
    rise = {"says": "last minus first", "this": {"env": ROOM, "method": "ad", "episodes": [0.67, 1]},
            "that": {"episodes": [0, 0.33]}}  # fmt: skip
    content = {"paper": "RA-DT", "short": f"{name} it does", "statement": f"It {name}.", "source": "figure 3"}
    content |= {"figure": figure, "contrasts": [rise], "scales": {SCALE: {}}, **more}
    Path(f"config/claims/{name}.yaml").write_text(fast_yaml.dump(content))


def copy_of(name: str, other: str, picture: Path | None = None, **about: Any) -> None:
    """The files of a figure under another name, with another picture, and with what else its JSON shall say."""
    for suffix in (".pdf", ".png", ".csv"):
        source = picture if picture is not None and suffix == ".png" else paths.figure(SCALE, name, suffix)
        with sealing(paths.figure(SCALE, other, suffix), kind=f"figure{suffix}") as temporary:
            shutil.copyfile(source, temporary)
    known = read_json(paths.figure(SCALE, name, ".json"))
    write_json(
        paths.figure(SCALE, other, ".json"), {**known, "figure": other, "title": other, **about}, kind="figure.json"
    )


def many_runs(seeds: int = 500) -> str:
    """Two environments, two methods: four times as many runs, most of them copies of a few; drawn are only these."""
    of = ([ROOM, "key_door_10x10"], ["ad", "dt"])
    options: dict[str, Any] = {"kind": "in_context_curve", "options": {"resamples": 100}}
    name = configure("many", *of, range(5), **options)
    for run in figure_runs(SCALE, name):
        write_run(*run)
    figure(SCALE, name)
    configure("many", *of, range(seeds), **options)
    for env, method, seed in figure_runs(SCALE, name):
        if seed >= 5:
            shutil.copytree(paths.run_folder(SCALE, env, method, seed % 5), paths.run_folder(SCALE, env, method, seed))
    return name
