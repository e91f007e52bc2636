"""What a GPU computes in bfloat16, computed in bfloat16 on a CPU: acting, and the embedder's keys and queries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_radt import batch

from recollect.common.contract import Inputs
from recollect.radt import acting, embedders, embedding
from recollect.radt.episodic_memory import EpisodicSettings
from recollect.radt.supervised import ExperienceStore


def logits_of(policy: Any, steps: int, ends: int) -> list[torch.Tensor]:
    """What a policy's network says of the actions while it is made to take given ones; episodes have `ends` steps."""
    draws = np.random.default_rng(0)
    said: list[torch.Tensor] = []

    def chosen(logits_BA: torch.Tensor) -> np.ndarray:
        said.append(logits_BA.float())
        return draws.integers(5, size=3)

    policy.choose = chosen
    policy.start(np.arange(3).astype(np.uint64), 12, 4)
    reward, done = np.zeros(3, np.float32), np.zeros(3, bool)
    for step in range(steps):
        policy.act(draws.integers((3, 4), size=(3, 2)), reward, done)
        reward, done = draws.integers(2, size=3).astype(np.float32), np.full(3, (step + 1) % ends == 0)
    return said


@pytest.mark.quick("dt hidden", "radt counted")
@pytest.mark.parametrize(
    "case", ["dt hidden", "dt counted", "ad hidden", "ad counted", "dpt hidden", "radt hidden", "radt counted"]
)
def test_acting_in_bfloat16_is_acting_up_to_rounding(tiny: Any, case: str) -> None:
    """From caches and from whole windows: within 5 % of the largest logit, at unit weights, and not the same bits."""
    method, padding = case.split()
    room = tiny(tokens="interleaved")
    chosen: dict[str, Any] = {"network": {"padding": padding}}
    if method == "radt":
        chosen["acting"] = EpisodicSettings(kind="last")  # what is read does not hang on rounding
    found = {}
    for precision in ("float32", "bfloat16"):
        policy = room.policy(room.settings(method, acting_precision=precision, **chosen), scale=1.0)
        found[precision] = torch.stack(logits_of(policy, 30, 9))
        cached = getattr(policy, "cached", None) or getattr(getattr(policy, "reading", None), "steps", None)
        if cached is not None and precision == "bfloat16":
            assert cached.cache.layers[0].dtype == torch.bfloat16
    exact, rounded = found["float32"], found["bfloat16"]
    assert 0 < (rounded - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.quick("radt-counted", "ad-hidden")
@pytest.mark.parametrize("padding", ["hidden", "counted"])
@pytest.mark.parametrize("method", ["dt", "ad", "dpt", "radt"])
def test_weights_that_are_rounded_once_say_the_same_bits(
    tiny: Any, method: str, padding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if method == "dpt" and padding != "hidden":
        pytest.skip("DPT has no such option")
    room = tiny(tokens="interleaved")
    both = {"acting_precision": "bfloat16", "optimisation": {"precision": "bfloat16"}}
    said = []
    for once in (True, False):
        if not once:
            for module in (acting, embedders):
                monkeypatch.setattr(module, "rounded_once", lambda network, *_: network)
        policy = room.policy(room.settings(method, **both, network={"padding": padding}), scale=1.0)
        said.append(torch.stack(logits_of(policy, 30, 9)))
        assert (policy.computing is policy.network) is not once
        assert policy.network.action_head.weight.dtype == torch.float32
        embedder = getattr(policy, "embedder", None)
        assert embedder is None or next(embedder.network.parameters()).dtype == torch.float32
    assert torch.equal(*said)


def test_an_embedder_computes_keys_as_it_is_told(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    room = tiny()
    of = room.settings("radt", optimisation={"precision": "bfloat16"})
    histories, embedder = room.histories(), room.embedder(of)
    window, _ = batch(histories, ExperienceStore(histories, actions=5), 0)
    exact = embedder.keys(window)
    monkeypatch.setattr(embedding, "resolve", lambda *_: room.settings("dt", seed=5))
    told = embedding.load_embedder(of, Inputs(), room.facts, arrays=embedder.arrays())
    rounded = told.keys(window)
    assert told.precision == "bfloat16" and rounded.dtype == torch.float32
    assert not torch.equal(rounded, exact) and (rounded * exact).sum(1).min() > 0.999
