"""`precision` of Memory-RL's methods: encoders in bfloat16 where it is asked for; all that is kept stays float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from recollect.common.contract import Facts
from recollect.common.precision import in_bfloat16
from recollect.memory_rl import dqn, sac, sacd, td3
from recollect.memory_rl.history_policy import HistoryPolicy
from recollect.memory_rl.lstm_operator import is_exact
from recollect.memory_rl.lstm_over_time import over_time
from recollect.memory_rl.networks import make_encoder
from recollect.memory_rl.replay import Batch

METHODS = {"dqn": dqn, "sacd": sacd, "td3": td3, "sac": sac}
DISCRETE = Facts(observation_size=75, observation_values=(), actions=4, horizon=5, image_shape=(3, 5, 5))
CONTINUOUS = Facts(observation_size=2, observation_values=(), actions=0, horizon=5, action_size=2)


def facts_of(name: str) -> Facts:
    return DISCRETE if name in ("dqn", "sacd") else CONTINUOUS


def learner_of(name: str, precision: str, kind: str = "gpt", dropout: float = 0.1) -> Any:
    content = {
        "sequence": {"kind": kind, "width": 16, "dropout": dropout},
        "observation_embedding": 8,
        "action_embedding": 8,
        "head": [8],
        **({} if precision == "default" else {"precision": precision}),
    }
    method: Any = METHODS[name]
    hp = method.Hyperparameters.model_validate(content)
    return getattr(method, name.upper())(hp, facts_of(name), seed=0, device="cpu")


def random_batch(facts: Facts) -> Batch:
    draws = np.random.default_rng(0)
    seen: Any = draws.integers(0, 256, (8, 6, 75)).astype(np.uint8)
    taken: Any = draws.integers(4, size=(8, 5))
    if not facts.actions:
        seen = draws.normal(size=(8, 6, 2)).astype(np.float32)
        taken = draws.uniform(-1, 1, (8, 5, 2)).astype(np.float32)
    reward = torch.as_tensor(draws.normal(size=(8, 5)).astype(np.float32))
    return Batch(torch.as_tensor(seen), torch.as_tensor(taken), reward, torch.zeros(8, 5), torch.ones(8, 5))


def after_two_steps(learner: Any, facts: Facts) -> tuple[dict[str, torch.Tensor], list[float]]:
    """All arrays, and what each step logged."""
    batch, logged = random_batch(facts), []
    for counter in range(2):
        logged += [float(value) for _, value in sorted(learner.step(batch, counter).items())]
    return {name: torch.as_tensor(value).clone() for name, value in learner.arrays().items()}, logged


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", ["gpt", "lstm"])
def test_on_a_cpu_the_default_is_float32_to_the_bit_and_bfloat16_is_close_to_it(name: str, kind: str) -> None:
    facts = facts_of(name)
    expected, values = after_two_steps(learner_of(name, "float32", kind), facts)
    arrays, same = after_two_steps(learner_of(name, "default", kind), facts)
    assert same == values and all(torch.equal(arrays[key], value) for key, value in expected.items())
    arrays, close = after_two_steps(learner_of(name, "bfloat16", kind), facts)
    assert close != values and close == pytest.approx(values, rel=0.03, abs=0.01)
    assert {value.dtype for value in arrays.values()} == {torch.float32}
    assert {value.shape for value in arrays.values()} == {value.shape for value in expected.values()}


@pytest.mark.parametrize("kind", ["gpt", "lstm"])
def test_products_are_rounded_inside_the_encoder_and_what_heads_read_is_float32(kind: str) -> None:
    learner, seen = learner_of("dqn", "bfloat16", kind, dropout=0.0), {}
    encoder = learner.network.encoder
    inside = encoder.sequence.transformer.blocks[0].qkv if kind == "gpt" else encoder.embedder.action.linear
    inside.register_forward_hook(lambda module, given, out: seen.update(inside=out.dtype))
    learner.network.head.register_forward_hook(
        lambda module, given, out: seen.update(read=given[0].dtype, head=out.dtype)
    )
    learner.step(random_batch(DISCRETE), 0)
    assert seen == {"inside": torch.bfloat16, "read": torch.float32, "head": torch.float32}
    assert all(value.dtype == torch.float32 for value in learner.optimiser.gradients())


@pytest.mark.parametrize("kind", ["gpt", "lstm"])
def test_acting_is_in_float32_whatever_training_is(kind: str) -> None:
    found = []
    for precision in ("float32", "bfloat16"):
        policy = HistoryPolicy(learner_of("dqn", precision, kind).network.eval())
        policy.start(np.zeros(3, np.uint64))
        seen = np.random.default_rng(0).integers(0, 256, (4, 3, 75)).astype(np.uint8)
        found.append([policy.outputs(each, np.zeros(3), np.zeros(3, bool)) for each in seen])
    assert all(torch.equal(*both) for both in zip(*found, strict=True))


@pytest.mark.parametrize("kind", ["gpt", "lstm", "ff"])
def test_on_a_gpu_only_a_gpt_is_in_bfloat16_unless_asked_for(kind: str) -> None:
    content = {"sequence": {"kind": kind, "width": 16}, "observation_embedding": 8, "action_embedding": 8}
    for precision, expected in (("auto", kind == "gpt"), ("bfloat16", True), ("float32", False)):
        hp = dqn.Hyperparameters.model_validate({**content, "precision": precision})
        assert in_bfloat16(make_encoder(hp, DISCRETE, seed=0).precision, "cuda") == expected


class Products(TorchDispatchMode):
    """In what PyTorch multiplies in batches, for each product."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "bmm" in (name := func.overloadpacket.__name__):
            self.seen.append((name, torch.get_float32_matmul_precision()))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("kind", "precision", "beside", "in_cudnn"),
    [
        ("lstm", "auto", "high", False),
        ("ff", "auto", "high", False),
        ("gpt", "auto", "high", True),
        ("lstm", "bfloat16", "high", True),
        ("lstm", "float32", "highest", False),
        ("gpt", "float32", "highest", False),
    ],
)
def test_on_a_gpu_products_beside_a_recurrent_state_are_in_tf32_and_those_with_it_are_not(
    kind: str, precision: str, beside: str, in_cudnn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    learner = learner_of("dqn", precision, kind)
    learner.device = torch.device("cuda")  # whose settings are asked for; nothing is computed there
    shapes = [(1, 2, 3, 8), (1, 64, 8), (1, 64, 16), (1, 64), (1, 64)]  # two rows of three steps; an LSTM's weights
    x, *weights = (torch.zeros(shape, requires_grad=True) for shape in shapes)
    with learner.products(), Products() as products:
        assert torch.get_float32_matmul_precision() == beside
        assert torch.backends.cudnn.allow_tf32 == in_cudnn
        assert is_exact() == (beside == "highest")  # else kernels of LSTMs read weights of 11 bits
        over_time(x, weights).sum().backward()
        assert torch.get_float32_matmul_precision() == beside
    (of_inputs, found), *others = products.seen
    assert (of_inputs, found) == ("baddbmm", beside)
    names = [name for name, found in others if found == "highest"]
    assert names[:4] == ["baddbmm_", "baddbmm_", "baddbmm", "baddbmm"]  # two steps after the first, and back
    assert torch.get_float32_matmul_precision() == "highest" and torch.backends.cudnn.allow_tf32
