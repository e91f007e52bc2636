"""A world of real-numbered observations, whose episodes end early, goes through every stage: MazeRunner, in miniature."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import fast_yaml
import numpy as np
import pandas as pd
import pytest
import torch

from recollect.artifacts.inputs import Inputs
from recollect.artifacts.sealed import read_arrays, read_table
from recollect.common import language_models
from recollect.common.contract import facts_of
from recollect.common.histories import Histories
from recollect.environments import registry
from recollect.evaluation.in_context import play_in_context
from recollect.radt.chunks import Chunks
from recollect.radt.dt import Network, build_network
from recollect.settings.errors import UserError
from recollect.settings.resolve import algorithm_module, environment_settings, resolve
from recollect.settings.schema import LanguageModelSettings
from recollect.stages import paths
from recollect.stages.embed import embed
from recollect.stages.evaluate import evaluate
from recollect.stages.generate import generate
from recollect.stages.index import index
from recollect.stages.inputs import playing_inputs
from recollect.stages.train import train

ENV, EPISODES = "maze_runner_15x15", 3
NETWORK = {
    "width": 16,
    "layers": 1,
    "heads": 2,
    "tokens": "merged",
    "padding": "hidden",
    "positions": 128,
    "timesteps": 60,
}
LEARNING = {
    "network": NETWORK,
    "acting_dropout": False,
    "optimisation": {"steps": 6, "batch_size": 8, "warmup": 2},
    "context": 20,
    "selection": "sample",
}
SCALE = {
    "description": "A maze small enough that chance finds its goals.",
    "seeds": [0],
    "environments": {
        ENV: {
            "options": {"size": 7, "horizon": 60, "most_goals": 2},
            "source": {
                "hyperparameters": {
                    "transitions": 300, "rollout": 100, "minibatch": 50, "segment": 25, "epochs": 1, "units": 8, "hidden": [8],
                }
            },
            "evaluation": {"episodes": EPISODES},
        }
    },
    "methods": {
        "dt": {"hyperparameters": LEARNING},
        "ad": {"hyperparameters": LEARNING, "environments": {ENV: {"hyperparameters": {"context": 60, "episodes_back": 2}}}},
        "radt": {
            "memory": {
                "embedder": "method:dt", "embedder_seed": 0, "stride": 5, "key_context": 20,
                "past": 5, "future": 5, "pooled_steps": 5,
            },
            "hyperparameters": LEARNING,
        },
        "radt_agnostic": {"memory": {"embedder": "lm:minilm", "layers": 1, "max_entries_per_task": 2, "tokens": "merged"}},
    },
}  # fmt: skip


@pytest.fixture
def generated(workdir: Path) -> Path:
    """A working directory with the scale `mini`, and the histories of its mazes."""
    (workdir / "config/scales/mini.yaml").write_text(fast_yaml.dump(SCALE))
    generate("mini", ENV)
    return workdir


@pytest.fixture
def small_language_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random language model in place of the packaged one."""
    real = language_models.load_language_model

    def load(settings: LanguageModelSettings, **options: Any) -> Any:
        return real(LanguageModelSettings(source="random"), **options)

    monkeypatch.setattr("recollect.radt.embedding.load_language_model", load)


def scores_of(method: str) -> pd.DataFrame:
    train("mini", ENV, method, 0)
    evaluate("mini", ENV, method, 0)
    return read_table(paths.scores("mini", ENV, method, 0), kind="scores")


def returns_alone(method: str, task: int) -> list[float]:
    """The returns of a trained policy that plays one task, with no other beside it."""
    settings = resolve("mini", ENV, method, 0)
    module = algorithm_module(settings.method.algorithm, where=method)
    arrays = read_arrays(paths.policy("mini", ENV, method, 0), kind="policy")
    policy = module.load_policy(settings, arrays, Inputs(**playing_inputs("mini", ENV, method)))
    chosen = registry.tasks(settings.environment.world, settings.environment.options, "eval")[task]
    returns: list[float] = play_in_context(policy, settings.environment, [chosen], seed=0).return_RE[0].tolist()
    return returns


@pytest.mark.slow
def test_every_method_learns_from_and_plays_a_world_of_real_numbers(
    generated: Path, small_language_model: None
) -> None:
    histories = Histories.open(paths.histories("mini", ENV))
    assert histories.observation.dtype == np.float32 and histories.observation.shape == (100 * 300, 6)
    table = histories.episodes
    assert set(table.task.tolist()) == set(range(100))
    early = table.length < 60
    # Episodes end at the last goal or at the horizon, and never pay more than there are goals.
    assert early.any() and not early.all() and int(table.length.max()) == 60
    assert (table.total_return[early] >= 1).all() and float(table.total_return.max()) <= 2

    scores = {method: scores_of(method) for method in ("dt", "ad")}
    for method in ("radt", "radt_agnostic"):
        embed("mini", ENV, method)
        index("mini", ENV, method)
        rows = Chunks.from_arrays(read_arrays(paths.rows("mini", ENV, method), kind="memory rows"))
        assert (rows.value_end <= (table.start + table.length)[rows.episode]).all()
        scores[method] = scores_of(method)
    for method, frame in scores.items():
        assert frame["metric"].value_counts().to_dict() == {"return": 20 * EPISODES, "success": 20 * EPISODES}, method
        assert frame[frame["metric"] == "success"]["value"].isin([0, 1]).all(), method
        returns = frame[frame["metric"] == "return"]
        assert returns["value"].between(0, 2).all() and returns["value"].nunique() > 1, method
        assert returns.groupby("task")["episode"].nunique().eq(EPISODES).all(), method
        for task in (4, 11):  # episodes that end early elsewhere in the batch change nothing
            assert returns[returns["task"] == task]["value"].tolist() == returns_alone(method, task), method


def test_the_published_settings_of_mazes_hold_at_the_paper_scale(workdir: Path) -> None:
    """RA-DT, specification 1.5, 2.1, 3.3 to 3.6, 4.3, 5 and 6 (runs 8 to 10)."""
    environment = environment_settings("paper", ENV)
    assert environment.returns.model_dump() == {"low": 0, "high": 3, "bins": 4, "target_mean": 3, "target_std": 0}
    assert environment.source is not None and environment.source.algorithm == "recurrent_ppo"
    assert environment.source.hyperparameters == {"transitions": 100_000, "stored_reward": "with_value"}
    assert environment.evaluation.episodes == 30
    facts = facts_of(environment)
    assert (facts.observation_size, facts.observation_values, facts.actions, facts.horizon) == (6, (), 5, 400)
    chosen = {
        name: resolve("paper", ENV, name, 42).method.hyperparameters for name in ("dt", "ad", "radt", "radt_agnostic")
    }
    assert (chosen["dt"].context, chosen["dt"].network.positions) == (800, 3200)  # two episodes (paper, appendix)
    assert resolve("paper", ENV, "dt.embedder", 42).method.hyperparameters.context == 50
    ad = chosen["ad"]
    assert (ad.context, ad.episodes_back, ad.network.positions) == (400, 1000, 2400)
    for name in ("radt", "radt_agnostic"):
        radt = chosen[name]
        assert (radt.context, radt.retrieve_every, radt.return_loss, radt.network.return_embedding) == (
            50,
            25,
            0,
            "linear",
        )


def test_tables_of_whole_numbers_are_refused_where_observations_are_real(generated: Path) -> None:
    path = generated / "config/scales/mini.yaml"
    content = fast_yaml.load(path.read_text())
    content["methods"]["dt"]["hyperparameters"]["network"]["observation_embedding"] = "one_hot"
    path.write_text(fast_yaml.dump(content))
    with pytest.raises(UserError, match="no small whole numbers"):
        train("mini", ENV, "dt", 0)


@pytest.mark.slow
def test_real_numbers_between_bounds_may_stand_in_tables(generated: Path) -> None:
    path = generated / "config/scales/mini.yaml"
    content = fast_yaml.load(path.read_text())
    network = content["methods"]["dt"]["hyperparameters"]["network"]
    network |= {"observation_embedding": "binned", "observation_bins": 8}  # a maze of 7 x 7 has multiples of 1/7
    path.write_text(fast_yaml.dump(content))
    embed = build_network(resolve("mini", ENV, "dt", 0), facts_of(environment_settings("mini", ENV))).embed
    table = embed.observation.weight.detach()
    assert table.shape == (6 * 8, NETWORK["width"])
    seventh = np.arange(8) / np.float32(7)
    for entry in range(6):
        observation = torch.zeros(8, 6)
        observation[:, entry] = torch.from_numpy(seventh)
        others = sum(table[8 * other] for other in range(6) if other != entry)
        torch.testing.assert_close(embed.observe(observation), table[8 * entry : 8 * entry + 8] + others)
    outside = embed.observe(torch.tensor([[-0.3, 1.7, 0.0, 0.0, 0.0, 0.0]]))  # the nearest value that there is
    torch.testing.assert_close(outside, embed.observe(torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0, 0.0]])))
    train("mini", ENV, "dt", 0)
    evaluate("mini", ENV, "dt", 0)


def test_tables_of_bounded_numbers_are_refused_where_there_are_no_bounds(generated: Path) -> None:
    environment = environment_settings("mini", ENV)
    free = replace(facts_of(environment), observation_bounds=())
    with pytest.raises(UserError, match="no numbers between bounds, which binned needs"):
        Network(observation_embedding="binned").build(environment, free, seed=0, return_to_go=True, steps=20)
