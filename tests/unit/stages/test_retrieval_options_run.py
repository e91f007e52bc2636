"""Retrieval's options go through every stage: from the configuration to scores, with demonstrations as a declared input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fast_yaml
import pytest

from recollect.artifacts.inputs import Inputs
from recollect.artifacts.sealed import read_arrays, read_table, verify
from recollect.settings.errors import UserError
from recollect.settings.resolve import algorithm_module, resolve
from recollect.stages import inputs, paths
from recollect.stages.embed import embed
from recollect.stages.evaluate import evaluate
from recollect.stages.generate import generate
from recollect.stages.index import index
from recollect.stages.train import train

ENV, SHOWN = "little_room", "little_room_shown"
ROOM = {
    "world": "dark_room",
    "options": {"width": 10, "height": 10, "horizon": 24},
    "returns": {"low": 0, "high": 24, "bins": 24, "target_mean": 12, "target_std": 1},
    "evaluation": {"protocol": "in_context", "episodes": 2, "splits": ["eval"]},
}
PPO = {"transitions": 96, "rollout": 48, "minibatch": 24, "epochs": 1, "hidden": [8]}
EXPERT = {"policy": "noise_annealed", "transitions": 72, "first_noise": 0.0}
NETWORK = {
    "width": 16, "layers": 1, "heads": 2, "tokens": "merged", "observation_embedding": "one_hot", "positions": 128, "timesteps": 24,
}  # fmt: skip
LEARNING = {"network": NETWORK, "optimisation": {"steps": 4, "batch_size": 8, "warmup": 2}, "context": 24}
EARLIER = {"earlier": "task", "earlier_random": 0.2, "context_drop": 0.2, "loss_on": "current"}
EVERYTHING: dict[str, Any] = {
    "network": {**NETWORK, "cross_gate": True, "context_layers": 1},
    "values": "dynamic",
    "null_document": 0.1,
    "context_drop": 0.1,
    "episodes_by": "return",
    "neighbours": "kept",
    "retrieval": {
        "blend": 0.5, "blends": 2, "noise": 0.5, "random_task": 0.1, "random_any": 0.1, "random_neighbour": 0.1, "choose": "sample",
    },
    "acting": {"select": 2, "demonstrations": SHOWN, "demonstration_episodes": 2, "target_factor": 1.2},
}  # fmt: skip


@pytest.fixture
def little(workdir: Path) -> Path:
    """A working directory with a scale `little`, a room, the same room as experts play it, and a DT that embeds."""
    config = workdir / "config"
    for name, source in ((ENV, {"algorithm": "ppo", "hyperparameters": PPO}),
                         (SHOWN, {"algorithm": "source_policies", "split": "eval", "hyperparameters": EXPERT})):  # fmt: skip
        (config / f"environments/{name}.yaml").write_text(fast_yaml.dump({**ROOM, "source": source}))
    memory = {"embedder_seed": 0, "stride": 6, "key_context": 24, "past": 6, "future": 6, "pooled_steps": 6}
    scale = {
        "description": "Seconds.",
        "seeds": [0],
        "methods": {
            "dt": {"hyperparameters": LEARNING},
            "ad": {"hyperparameters": {**LEARNING, **EARLIER}},
            "radt": {"memory": memory, "hyperparameters": {**LEARNING, **EVERYTHING}},
        },
    }  # fmt: skip
    (config / "scales/little.yaml").write_text(fast_yaml.dump(scale))
    generate("little", ENV)
    return workdir


@pytest.mark.slow
def test_everything_at_once_from_the_configuration_to_scores(little: Path) -> None:
    for method in ("dt.embedder", "ad"):  # as released: padding counts, and AD reads it
        train("little", ENV, method, 0)
    evaluate("little", ENV, "ad", 0)
    embed("little", ENV, "radt")
    index("little", ENV, "radt")
    with pytest.raises(UserError, match="an input is missing"):  # nobody has made the demonstrations yet
        train("little", ENV, "radt", 0)
    generate("little", SHOWN)
    train("little", ENV, "radt", 0)
    evaluate("little", ENV, "radt", 0)
    scores = read_table(paths.scores("little", ENV, "radt", 0), kind="scores")
    assert len(scores) == 20 * 2
    table = read_table(paths.train_table("little", ENV, "radt", 0), kind="train")
    assert {"memory_entries", "memory_return_mean", "retrieved_same_task", "learning_rate"} <= set(table["metric"])
    assert len(list(Path("kept").glob("*.safetensors"))) == 1
    first = read_arrays(paths.policy("little", ENV, "radt", 0))
    bytes_before = verify(paths.policy("little", ENV, "radt", 0))["sha256"]
    assert any(name.startswith("network/context_encoder") for name in first)
    train("little", ENV, "radt", 0)  # with the neighbours that were kept: the same bytes
    assert verify(paths.policy("little", ENV, "radt", 0))["sha256"] == bytes_before
    settings = resolve("little", ENV, "radt", 0)
    module = algorithm_module("radt", where="")
    policy = module.load_policy(settings, first, Inputs(**inputs.playing_inputs("little", ENV, "radt")))
    assert policy.demonstrations.names == tuple(("eval", task) for task in range(20))


def test_demonstrations_are_an_input_of_training_and_evaluation(little: Path) -> None:
    wanted = paths.histories("little", SHOWN)
    assert inputs.train_inputs("little", ENV, "radt")["demonstrations"] == wanted
    assert inputs.playing_inputs("little", ENV, "radt")["demonstrations"] == wanted
    assert "demonstrations" not in inputs.train_inputs("little", ENV, "dt")
    assert "demonstrations" not in inputs.playing_inputs("smoke", "dark_room_10x10", "radt")


@pytest.mark.parametrize(
    "wrong",
    [
        {"acting": {"demonstrations": "elsewhere"}},
        {"retrieval": {"kind": "nearest"}},
        {"episodes_by": "lenght"},
        {"values": "whole"},
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_before_any_work(little: Path, wrong: dict[str, Any]) -> None:
    file = little / "config/scales/little.yaml"
    scale = fast_yaml.load(file.read_text())
    for name, value in wrong.items():
        chosen = scale["methods"]["radt"]["hyperparameters"]
        chosen[name] = {**chosen[name], **value} if isinstance(value, dict) else value
    file.write_text(fast_yaml.dump(scale))
    with pytest.raises(UserError):
        train("little", ENV, "radt", 0)
    assert not paths.policy("little", ENV, "radt", 0).exists()


def test_dpt_draws_its_episodes_by_length_and_refuses_another_way(workdir: Path) -> None:
    file = workdir / "config/methods/dpt.yaml"
    file.write_text(file.read_text().replace("\nhyperparameters:\n", "\nhyperparameters:\n  episodes_by: uniform\n"))
    with pytest.raises(UserError, match="episodes_by"):
        resolve("smoke", "dark_room_10x10", "dpt", 0)
