"""The loss of an ensemble that went through torch.compile is the loss; without a compiler the plain one goes on."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]  # benchmarks is no part of the package

import fake_worlds  # noqa: E402
from test_ensemble import TOLERANCE, begun, difference  # noqa: E402

from benchmarks.gpu.pretend import PretendGpu  # noqa: E402
from recollect.common.compiled import compiled  # noqa: E402
from recollect.memory_rl import dqn, sacd, td3  # noqa: E402
from recollect.memory_rl.ensemble import Ensemble  # noqa: E402
from recollect.memory_rl.stacked import spread_gradients, stacked  # noqa: E402

STILL: dict[str, Any] = {"precision": "float32", "sequence": {"dropout": 0.0}}
IN_TURNS: dict[str, Any] = {"shared_encoder": False, "critics_first": True}
AIM: dict[str, Any] = {"world": {"world": "aim", "options": {}}, "network": "flax"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    ("algorithm", "changes"), [(dqn, {}), (sacd, {}), (sacd, IN_TURNS), (td3, AIM), (td3, {**AIM, **IN_TURNS})]
)
def test_a_compiled_loss_makes_the_updates_of_the_plain_one(
    algorithm: Any, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where each of two turns leaves parameters without a gradient."""
    fake_worlds.install(monkeypatch)
    plain, members = (begun("gpt", algorithm, **STILL, **changes) for _ in range(2))
    ensemble, wanted = Ensemble(members), Ensemble(plain)
    torch.compiler.reset()
    turns = len(ensemble.learner.turns)
    ensemble.loss = compiled(ensemble.learner.loss, "cpu", whole=turns > 1)
    torch._dynamo.utils.counters.clear()
    for _ in range(3):
        ensemble.update()
        wanted.update()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == turns  # once each, and as a whole
    assert not torch._dynamo.utils.counters["graph_break"]
    assert max(map(difference, members, plain)) < 1e-4


@pytest.mark.parametrize("shape", [(12, 7, 5), (12, 5), (12, 2, 3, 5)])
def test_what_a_compiler_sees_of_stacked_layers_is_what_they_compute(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever number of axes a member's rows have; gradients, too."""
    torch.manual_seed(0)
    members = [nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 3)) for _ in range(3)]
    for member in members:
        for parameter in member.parameters():
            nn.init.normal_(parameter)
    whole, x = stacked(members), torch.randn(shape, requires_grad=True)
    weights = [x, *(parameter for member in members for parameter in member.parameters())]

    def computed() -> list[torch.Tensor]:
        whole.zero_grad()
        x.grad = None
        y = whole(x)
        y.square().sum().backward()
        spread_gradients(whole)
        return [y.detach(), *(weight.grad.clone() for weight in weights if weight.grad is not None)]

    alone = [member(part) for member, part in zip(members, x.detach().chunk(3), strict=True)]
    wanted = computed()
    torch.testing.assert_close(wanted[0], torch.cat(alone))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    found = computed()
    assert len(found) == len(wanted) == 2 + 3 * 6
    torch.testing.assert_close(found, wanted)


def test_products_that_are_compiled_write_no_bias_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(torch, "baddbmm", None)
    layer = stacked([nn.Linear(5, 8) for _ in range(3)])
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(torch.randn(12, 7, 5))
    assert y.dtype == torch.bfloat16  # as of the product: what follows reads half as much


@pytest.mark.slow
@pytest.mark.parametrize(("reason", "said"), [("no Triton\nat all", "no Triton"), ("", "RuntimeError")])
def test_without_a_compiler_an_ensemble_on_a_gpu_goes_on_with_a_warning(
    reason: str, said: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError(reason)

    monkeypatch.setattr(torch, "compile", fails)
    wanted = begun("gpt", **STILL)
    for _ in range(5):
        for trainer in wanted:
            trainer._update()
    with PretendGpu():
        members = begun("gpt", device="cuda", compile=True, **STILL)
        ensemble = Ensemble(members)
        for _ in range(5):
            ensemble.update()
    assert [record.getMessage() for record in caplog.records] == [
        f"`compile` is left off, as torch.compile does not work here: {said}"
    ]
    assert max(map(difference, members, wanted)) < TOLERANCE


@pytest.mark.parametrize("whole", [False, True])
def test_what_has_to_be_compiled_as_a_whole_is_not_compiled_in_pieces(
    whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of pieces, parameters that a turn's loss does not read get gradients of 0, by which Adam moves them on."""
    asked: list[bool] = []

    def compile(function: Any, *, fullgraph: bool = False, **_: Any) -> Any:
        asked.append(fullgraph)
        return function

    monkeypatch.setattr(torch, "compile", compile)
    assert compiled(abs, "cpu", whole=whole)(-1) == 1
    assert asked[-1] == whole


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", [dqn, sacd])
def test_on_a_gpu_a_compiled_graph_makes_the_updates_of_a_plain_one(algorithm: Any) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    plain = begun("gpt", algorithm, device="cuda", **STILL)
    members = begun("gpt", algorithm, device="cuda", compile=True, **STILL)
    wanted, ensemble = Ensemble(plain), Ensemble(members)
    for _ in range(6):  # of which the last three are replays
        wanted.update()
        ensemble.update()
    assert ensemble.compute.graph is not None
    for (
        name,
        total_S,
    ) in ensemble.sums.items():  # weights drift apart, as Adam's first steps are as long for what rounds to zero
        torch.testing.assert_close(total_S, wanted.sums[name], rtol=1e-3, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("compile", [False, True])
def test_on_a_gpu_each_replay_drops_what_its_seed_says(compile: bool) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    ensemble = Ensemble(begun("gpt", device="cuda", compile=compile, precision="float32", sequence={"dropout": 0.5}))
    for _ in range(5):
        ensemble.update()
    adam = ensemble.adam
    changed = [*adam.parameters, *adam.first, *adam.second, *adam.steps, *ensemble.targets]
    before = [tensor.detach().clone() for tensor in changed]

    def norm_of(seed: int) -> float:
        with torch.no_grad():
            for tensor, then in zip(changed, before, strict=True):
                tensor.copy_(then)
        ensemble.sums["gradient_norm"].zero_()
        torch.cuda.manual_seed(seed)
        ensemble.compute()
        return float(ensemble.sums["gradient_norm"][0])

    first, other, again = norm_of(1), norm_of(2), norm_of(1)
    assert again == pytest.approx(first, rel=1e-5)
    assert other != pytest.approx(first, rel=1e-3)
