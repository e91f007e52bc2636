"""HELM's parts against what the released code computed, on small random weights and inputs.

The file was recorded once, with ml-jku/helm at 7f101e3 (its packages as empty stand-ins, torch 2.13): `FrozenHopfield.forward`;
the inputs of the language model in `HELMv2.forward`; `SHELM.get_top_k_toks`; and `SHELMPPO.train` of trainers/shelm_trainer.py,
two passes of two minibatches, on a network of its `SmallImpalaCNN`, `DiscreteActor` and critic, with AdamW at 1e-3, an entropy
weight of 0.05, and values clipped at 0.2 or not. Weights and inputs are numbers that float16 holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from recollect.common.optimiser import Adam
from recollect.common.reward_scale import RunningVariance
from recollect.helm.eyes import Pixels
from recollect.helm.feature_rescaling import FeatureRescaling
from recollect.helm.helm import HopfieldReader
from recollect.helm.on_policy import OnPolicyHyperparameters, OnPolicyTrainer
from recollect.helm.sampled_policy import Agent
from recollect.helm.shelm import TokenReader
from recollect.helm.small_impala import ActorCritic
from recollect.helm.vision.token_vocabulary import TokenVocabulary

NAMES = {
    "query_encoder.block1.0": "encoder.first",
    "query_encoder.block2.0": "encoder.second",
    "query_encoder.fc": "encoder.linear",
    "actor.actor.0": "actor.hidden",
    "actor.actor.3": "actor.last",
    "critic.0": "critic.hidden",
    "critic.3": "critic.last",
}
METRICS = [
    "loss",
    "policy_gradient_loss",
    "value_loss",
    "entropy_loss",
    "approx_kl",
    "clip_fraction",
    "explained_variance",
]


@pytest.fixture(scope="module")
def arrays() -> dict[str, Tensor]:
    found = load_file(Path(__file__).with_name("helm_released.safetensors"))
    return {name: value.float() if value.dtype == torch.float16 else value for name, value in found.items()}


@pytest.mark.parametrize(
    ("images", "found", "beta"), [("images", "1", 1.0), ("images", "100", 100.0), ("last_images", "last", 100.0)]
)
def test_helm_mixes_words_as_released(arrays: dict[str, Tensor], images: str, found: str, beta: float) -> None:
    shown = arrays[f"hopfield/{images}"].numpy()
    reader = HopfieldReader(
        arrays["hopfield/words"], Pixels(shown.shape[1:], "cpu"), beta=beta, similarity="cosine", seed=0, frames=9
    )
    reader.hopfield.projection_DI = arrays["hopfield/" + images.replace("images", "projection")]
    torch.testing.assert_close(reader(shown)[:, 0], arrays[f"hopfield/{found}"], rtol=0, atol=3e-6)


def test_helmv2_standardises_a_step_by_its_own_statistics_as_released(arrays: dict[str, Tensor]) -> None:
    rescaling = FeatureRescaling.like(arrays["hopfield/words"], "batch")
    for features_ND, inputs_ND in zip(arrays["helmv2/features"], arrays["helmv2/inputs"], strict=True):
        torch.testing.assert_close(rescaling(features_ND), inputs_ND, rtol=0, atol=1e-6)


@pytest.mark.parametrize("k", [1, 4])
def test_shelm_retrieves_the_released_words_best_first(arrays: dict[str, Tensor], k: int) -> None:
    ids = [str(int(i)) for i in arrays["shelm/clip_ids"]]
    words = TokenVocabulary(tuple(ids), arrays["shelm/lm_ids"], F.normalize(arrays["shelm/embeddings"], dim=1), {})

    class Eyes:
        width = 8

        def images(self, images_NCHW: Tensor) -> Tensor:
            return arrays["shelm/features"][images_NCHW[:, 0, 0, 0].long()]

    frames = np.zeros((5, 3, 2, 2), np.uint8) + np.arange(5, dtype=np.uint8)[:, None, None, None]
    reader = TokenReader(Eyes(), words, arrays["hopfield/words"], topk=k, frames=9)  # type: ignore[arg-type]
    inputs_NKD = reader(frames)
    assert torch.equal(inputs_NKD, arrays[f"shelm/inputs_{k}"].view_as(inputs_NKD))
    released_NK = [[ids.index(str(clip_id)) for clip_id in row] for row in arrays[f"shelm/clip_ids_{k}"].tolist()]
    assert reader.traced(np.arange(5))["tokens"].tolist() == words.lm_ids_V[torch.tensor(released_NK)].tolist()


# ---- PPO's update


class Recorded(Agent):
    """Takes the recorded minibatches."""

    minibatches: Iterator[Tensor]

    def epoch(
        self, images: Any, moments: Mapping[str, Tensor], done_TE: np.ndarray, batches: int, draws: np.random.Generator
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for rows_M in next(self.minibatches):
            log_MA, value_M = self.network(moments["image"][rows_M], moments["history"][rows_M])
            yield rows_M, log_MA, value_M


def network(arrays: Mapping[str, Tensor], when: str) -> dict[str, Tensor]:
    found = {}
    for name, value in arrays.items():
        released, _, part = name.removeprefix(f"ppo/{when}/").rpartition(".")
        if name.startswith(f"ppo/{when}/"):
            found[f"{NAMES[released]}.{part}"] = value
    return found


@pytest.mark.parametrize(("when", "clip_value"), [("plain", None), ("clipped", 0.2)])
def test_four_updates_of_ppo_end_with_the_released_weights(
    arrays: dict[str, Tensor], when: str, clip_value: float | None
) -> None:
    moments = {name.removeprefix("ppo/"): value for name, value in arrays.items() if name.count("/") == 1}
    made = ActorCritic((3, 9, 9), 4, width=8, channel_scale=1, history=6, actor=8, critic=8)
    made.load_state_dict(network(arrays, "before"))
    with torch.no_grad():
        log_NA, value_N = made(moments["image"] if "image" in moments else moments["images"], moments["history"])
    log_N = log_NA.gather(1, moments["action"][:, None])[:, 0]
    torch.testing.assert_close(log_N, arrays["ppo/first_log"], rtol=0, atol=2e-6)
    torch.testing.assert_close(value_N, arrays["ppo/first_value"], rtol=0, atol=2e-6)

    hp = OnPolicyHyperparameters(
        steps=2400, actors=2, rollout=12, batches=2, epochs=2, learning_rate=1e-3, entropy=0.05, clip_value=clip_value
    )
    trainer = object.__new__(OnPolicyTrainer)  # without a world: what it learns from is recorded
    trainer.hp, trainer.seed, trainer.rollouts, trainer.minibatches, trainer.sums = hp, 0, 1, 0, {}
    trainer.agent, trainer.advantage_scale = Recorded(made, None, "cpu"), RunningVariance()
    trainer.agent.minibatches = iter(arrays["ppo/minibatches"])
    trainer.graph = None
    trainer.optimiser = Adam(made.named_parameters(), lr=1e-3, eps=hp.adam_epsilon, weight_decay=hp.weight_decay)
    trainer._learn({**moments, "image": moments["images"]}, np.zeros((12, 2), bool))

    for name, value in network(arrays, when).items():
        torch.testing.assert_close(
            made.state_dict()[name], value, rtol=0, atol=2e-6, msg=lambda said, n=name: f"{n}: {said}"
        )
    assert trainer.minibatches == 4
    means = torch.stack([trainer.sums[name] / 4 for name in METRICS]).float()
    torch.testing.assert_close(means, arrays[f"ppo/{when}_metrics"], rtol=0, atol=1e-5)
