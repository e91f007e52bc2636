"""A world of images that another Python plays goes through every stage: Procgen, in miniature, with a stand-in for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import fast_yaml
import numpy as np
import pandas as pd
import pytest

from recollect.artifacts.sealed import read_table
from recollect.common.contract import facts_of
from recollect.common.histories import Histories
from recollect.environments import procgen
from recollect.environments.worker import find_python
from recollect.settings.errors import UserError
from recollect.settings.resolve import environment_settings, resolve, uses_gpu
from recollect.stages import paths
from recollect.stages.embed import embed
from recollect.stages.embed_images import embed_images
from recollect.stages.evaluate import evaluate
from recollect.stages.generate import generate
from recollect.stages.index import index
from recollect.stages.stage import Job
from recollect.stages.train import train
from recollect.stages.worlds import check_worlds

ENV, EPISODES = "procgen", 3
OWN_READER = "def files(*of): ...\ndef generate(*of): ...\nclass Hyperparameters: ...\n"
LEARNING = {
    "network": {
        "width": 16,
        "layers": 1,
        "heads": 2,
        "tokens": "merged",
        "padding": "hidden",
        "positions": 256,
        "timesteps": 60,
    },
    "acting_dropout": False,
    "optimisation": {"steps": 6, "batch_size": 8, "warmup": 2},
    "context": 20,
}
SOURCE = {
    "transitions": 480, "actors": 4, "recorded": 2, "rollout": 15, "minibatch": 30, "epochs": 1, "encoder": "nature", "width": 8,
}  # fmt: skip
MEMORY = {
    "embedder": "method:dt",
    "embedder_seed": 0,
    "stride": 4,
    "key_context": 8,
    "past": 4,
    "future": 4,
    "pooled_steps": 4,
}
SCALE = {
    "description": "Four games that are over in a dozen steps.",
    "seeds": [0],
    "environments": {
        ENV: {
            "options": {"games": ["bigfish", "maze", "ninja", "jumper"], "horizon": 60, "evaluation_horizon": 10},
            "images": {"encoder": "nature", "width": 12, "weights": None},
            "source": {"hyperparameters": SOURCE},
            "evaluation": {"episodes": EPISODES},
        }
    },
    "methods": {
        "dt": {"environments": {ENV: {"hyperparameters": LEARNING}}},
        "ad": {"environments": {ENV: {"hyperparameters": {**LEARNING, "context": 12, "episodes_back": 2}}}},
        "radt": {
            "environments": {ENV: {"memory": MEMORY, "hyperparameters": {**LEARNING, "retrieve_every": 3}}},
        },
    },
}  # fmt: skip


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simple games in Procgen's place."""
    monkeypatch.setenv("RECOLLECT_PROCGEN_PYTHON", sys.executable)
    monkeypatch.setattr(procgen, "SCRIPT", Path(__file__).parents[1] / "fake_procgen_worker.py")


def write_scale(folder: Path) -> None:
    (folder / "config/scales/mini.yaml").write_text(fast_yaml.dump(SCALE))


def run_all() -> dict[str, pd.DataFrame]:
    generate("mini", ENV)
    embed_images("mini", ENV)
    found = {}
    for method in ("dt", "ad", "radt"):
        if method == "radt":
            embed("mini", ENV, method)
            index("mini", ENV, method)
        train("mini", ENV, method, 0)
        evaluate("mini", ENV, method, 0)
        found[method] = read_table(paths.scores("mini", ENV, method, 0), kind="scores")
    return found


def check(scores: dict[str, pd.DataFrame], tasks: dict[str, int]) -> None:
    for method, frame in scores.items():
        assert frame.groupby(["split", "metric"])["task"].nunique().to_dict() == {
            (split, metric): count for split, count in tasks.items() for metric in ("return", "hns")
        }, method
        assert len(frame) == 2 * EPISODES * sum(tasks.values())


@pytest.mark.slow
def test_every_stage_works_on_images_and_scores_are_normalised(workdir: Path, stand_in: None) -> None:
    write_scale(workdir)
    scores = run_all()
    histories = Histories.open(paths.histories("mini", ENV))
    assert histories.observation.dtype == np.uint8 and histories.observation.shape[1:] == (3, 64, 64)
    assert not list(paths.histories("mini", ENV).parent.glob("*.rows"))  # what grew while it was made
    # An image is 12 kB, and little else stands in the file.
    assert paths.histories("mini", ENV).stat().st_size < len(histories) * (3 * 64 * 64 + 20) + 4096
    assert set(histories.episodes.task.tolist()) == {0, 1} and len(histories.episodes) > 10
    check(scores, {"seen": 2, "unseen": 2, "eval": 2})
    frame = scores["radt"]
    one = frame[(frame["split"] == "eval") & (frame["task"] == 0)].pivot(
        columns="metric", index="episode", values="value"
    )
    np.testing.assert_allclose(one["hns"], (one["return"] - 3.5) / (10 - 3.5))  # ninja
    assert frame["value"].nunique() > 2


@pytest.mark.slow
def test_every_stage_works_with_procgen_itself(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        monkeypatch.setenv("RECOLLECT_PROCGEN_PYTHON", str(find_python("procgen")))
    except UserError as error:
        pytest.skip(f"{error.what} (`make procgen`, or RECOLLECT_PROCGEN_PYTHON)")
    write_scale(workdir)
    path = workdir / "config/scales/mini.yaml"
    content: Any = fast_yaml.load(path.read_text())
    content["environments"][ENV]["options"]["games"] = ["bigfish", "ninja"]
    path.write_text(fast_yaml.dump(content))
    check(run_all(), {"seen": 1, "unseen": 1, "eval": 1})
    assert int(Histories.open(paths.histories("mini", ENV)).episodes.length.max()) <= 60


def test_the_published_settings_of_procgen_hold_at_the_paper_scale(workdir: Path) -> None:
    """RA-DT, specification 1.8, 2.1, 3.1, 3.4, 4.1 and 5."""
    environment = environment_settings("paper", ENV)
    assert environment.options.get("games") is None
    assert environment.evaluation.episodes == 30 and environment.evaluation.splits == ("seen", "unseen", "eval")
    assert environment.images is not None
    assert (environment.images.encoder, environment.images.width) == ("impala", 768)
    assert environment.source is not None and environment.source.algorithm == "ppo_images"
    facts = facts_of(environment)
    assert (facts.observation_size, facts.observation_values, facts.actions, facts.horizon) == (768, (), 15, 6000)
    for name in ("dt", "ad", "dpt", "radt", "radt_agnostic"):
        chosen = resolve("paper", ENV, name, 42).method.hyperparameters
        network = chosen.network
        assert (network.width, network.layers, network.heads) == (768, 6, 12), name
        assert chosen.optimisation.steps == 200_000
    assert resolve("paper", ENV, "ad", 42).method.hyperparameters.episodes_back == 250
    radt = resolve("paper", ENV, "radt", 42).method
    assert radt.memory is not None and radt.memory.stride == 50
    assert (radt.hyperparameters.retrieve_every, radt.hyperparameters.return_loss) == (25, 0)


def test_the_missing_python_is_said_before_any_work_where_it_plays_and_only_there(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RECOLLECT_PROCGEN_PYTHON", raising=False)
    write_scale(workdir)
    of = ("mini", ENV, "dt", "0")
    for stage in ("generate", "run", "evaluate", "inspect"):
        with pytest.raises(UserError, match="make procgen"):
            check_worlds([Job(stage, *of)])
    check_worlds([Job("embed_images", *of), Job("figure", "mini", "x")])
    check_worlds([Job("generate", "paper", "dark_room_10x10")])
    files = {"source": {"algorithm": "published_files", "hyperparameters": {"folder": "x", "layout": "episodes"}}}
    content = {**SCALE, "environments": {ENV: files}}
    (workdir / "config/scales/mini.yaml").write_text(fast_yaml.dump(content))
    check_worlds([Job("generate", *of)])  # reads what others have played
    with pytest.raises(UserError, match="make procgen"):
        check_worlds([Job("run", *of)])
    monkeypatch.setenv("RECOLLECT_MINE", str(workdir / "mine"))
    (workdir / "mine").mkdir()
    (workdir / "mine/own_reader.py").write_text(OWN_READER)
    content["environments"] = {ENV: {"source": {"algorithm": "own_reader"}}}
    (workdir / "config/scales/mini.yaml").write_text(fast_yaml.dump(content))
    check_worlds([Job("generate", *of)])  # so does a reader of one's own


def test_only_source_agents_that_look_at_images_ask_for_a_gpu() -> None:
    assert [uses_gpu(name) for name in ("ppo_images", "ppo", "recurrent_ppo", "published_files")] == [True] + [
        False
    ] * 3
