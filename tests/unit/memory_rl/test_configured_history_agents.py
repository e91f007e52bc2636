"""Memory-RL's methods and variants as they stand in `config/`: one loss teaches all that acts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fast_yaml
import numpy as np
import pytest
import torch

from recollect.common.contract import Facts
from recollect.common.transformer import Transformer
from recollect.memory_rl import dqn, sac, sacd, td3
from recollect.memory_rl.replay import Batch
from recollect.settings.resolve import resolve

CONFIG = Path(__file__).resolve().parents[3] / "config/methods"
ENVIRONMENTS = {"dqn": "tmaze_active_5", "sacd": "key_to_door_3", "td3": "bullet_hopper_p", "sac": "bullet_hopper_p"}
DISCRETE = Facts(observation_size=2, observation_values=(), actions=4, horizon=5)
CONTINUOUS = Facts(observation_size=2, observation_values=(), actions=0, horizon=5, action_size=2)


def configured() -> list[str]:
    """Every method of the four algorithms, and every variant of it, those of its bases too."""
    read = {path.stem: fast_yaml.load(path.read_text(encoding="utf-8")) for path in CONFIG.glob("*.yaml")}
    found = []
    for name, content in read.items():
        layers = [content]
        while "base" in layers[-1]:
            layers.append(read[layers[-1]["base"]])
        if next(layer["algorithm"] for layer in layers if "algorithm" in layer) in ENVIRONMENTS:
            found += [name, *sorted({f"{name}.{variant}" for layer in layers for variant in layer.get("variants", {})})]
    return sorted(found)


def random_batch(facts: Facts) -> Batch:
    draws = np.random.default_rng(0)
    taken: Any = draws.integers(4, size=(8, 5)) if facts.actions else draws.uniform(-1, 1, (8, 5, 2)).astype(np.float32)
    return Batch(
        torch.as_tensor(draws.normal(size=(8, 6, 2)).astype(np.float32)),
        torch.as_tensor(taken),
        torch.as_tensor(draws.normal(size=(8, 5)).astype(np.float32)),
        torch.zeros(8, 5),
        torch.ones(8, 5),
    )


@pytest.mark.parametrize("name", configured())
def test_one_loss_of_every_configured_variant_reaches_all_parameters_of_what_acts(name: str) -> None:
    algorithm = resolve("smoke", "tmaze_active_5", name, 0).method.algorithm
    hp = resolve("smoke", ENVIRONMENTS[algorithm], name, 0).method.hyperparameters
    facts = DISCRETE if algorithm in ("dqn", "sacd") else CONTINUOUS
    if algorithm == "dqn":
        online, target = (dqn.make_network(hp, facts, seed=seed) for seed in (0, 1))
        loss, acting = dqn.loss_of(online, target, random_batch(facts), hp)[0], online
    else:
        method: Any = {"sacd": sacd, "td3": td3, "sac": sac}[algorithm]
        both = [method.make_actor_critic(hp, facts, seed=seed) for seed in (0, 1)]
        batch, draws = random_batch(facts), torch.Generator().manual_seed(0)
        windows, n = batch.action_BT.shape[:2]
        noise = [torch.randn(windows, steps, facts.action_size, generator=draws) for steps in (n + 1, n)]
        noise = noise[: {"sacd": 0, "td3": 1, "sac": 2}[algorithm]]
        critic_loss, actor_loss, _ = method.losses_of(*both, batch, hp, *noise)
        loss, acting = critic_loss + actor_loss, both[0].actor
    loss.backward()
    untaught = [part for part, value in acting.named_parameters() if value.grad is None or not value.grad.any()]
    assert not untaught


def test_the_list_of_variants_has_the_separate_encoders_of_every_actor_critic() -> None:
    separate = {f"{method}_{kind}.separate" for method in ("sacd", "td3", "sac") for kind in ("gpt", "lstm", "ff")}
    assert separate <= set(configured())


def test_titles_say_what_a_variant_is_and_no_two_agents_of_one_task_share_one() -> None:
    seen: dict[tuple[str, str], str] = {}
    for name in configured():
        method = resolve("paper", "tmaze_active_20", name, 0).method
        kind = {"gpt": "GPT", "lstm": "LSTM", "ff": "no memory"}[method.hyperparameters.sequence.kind]
        assert method.title.startswith(kind), name
        assert not name.startswith("sac_") or "SAC" in method.title
        tasks = "robots" if method.algorithm in ("td3", "sac") else method.algorithm
        assert seen.setdefault((tasks, method.title), name) == name
    assert resolve("paper", "tmaze_active_20", "sac_lstm.separate", 0).method.title == "LSTM, SAC, separate encoders"


@pytest.mark.parametrize("algorithm", ENVIRONMENTS)
def test_head_fan_scales_the_hidden_weights_of_every_head(algorithm: str) -> None:
    facts = DISCRETE if algorithm in ("dqn", "sacd") else CONTINUOUS
    method: Any = {"dqn": dqn, "sacd": sacd, "td3": td3, "sac": sac}[algorithm]
    for fan in ("default", "output", "input"):
        content = {"head": [256, 16], "sequence": {"kind": "lstm", "width": 8}}
        hp = method.Hyperparameters.model_validate(content if fan == "default" else {**content, "head_fan": fan})
        if algorithm == "dqn":
            heads = [method.make_network(hp, facts, seed=0).head]
        else:
            made = method.make_actor_critic(hp, facts, seed=0)
            heads = [made.actor.head, *made.critics]
        for head in heads:
            last = 1e-3 if algorithm != "dqn" and head is heads[0] else 3e-3  # of a policy, of values
            assert 0.8 * last < float(head.last.weight.detach().abs().max()) <= last
            layer = head.hidden[1]  # 256 -> 16
            bound = 1 / 16 if fan == "input" else 1 / 4
            assert 0.95 * bound < float(layer.weight.detach().abs().max()) <= bound


@pytest.mark.parametrize("algorithm", ENVIRONMENTS)
@pytest.mark.parametrize("on", [True, False])
def test_dropout_in_targets_is_that_of_passes_without_gradient(algorithm: str, on: bool) -> None:
    facts = DISCRETE if algorithm in ("dqn", "sacd") else CONTINUOUS
    method: Any = {"dqn": dqn, "sacd": sacd, "td3": td3, "sac": sac}[algorithm]
    content = {"sequence": {"width": 16}, "observation_embedding": 8, "action_embedding": 8, "dropout_in_targets": on}
    if algorithm != "dqn":
        content["shared_encoder"] = False
    learner = getattr(method, algorithm.upper())(
        method.Hyperparameters.model_validate(content), facts, seed=0, device="cpu"
    )
    passes: list[tuple[bool, bool]] = []

    def note(model: Any, *of: Any) -> None:
        passes.append((torch.is_grad_enabled(), model.training))

    for module in (*learner.online.modules(), *learner.target.modules()):
        if isinstance(module, Transformer):
            module.register_forward_hook(note)
    for counter in range(2):
        learner.online.train()
        learner.step(random_batch(facts), counter)
    assert set(passes) == {(True, True), (False, on)}


@pytest.mark.parametrize("algorithm", ENVIRONMENTS)
def test_runs_of_two_seeds_begin_with_other_weights_everywhere(algorithm: str) -> None:
    facts = DISCRETE if algorithm in ("dqn", "sacd") else CONTINUOUS
    method: Any = {"dqn": dqn, "sacd": sacd, "td3": td3, "sac": sac}[algorithm]
    content = {"sequence": {"width": 24, "positions": "learned"}, "head": [8]}
    content |= {f"{part}_embedding": 8 for part in ("observation", "action", "reward")}
    hp = method.Hyperparameters.model_validate(content)
    one, other = (getattr(method, algorithm.upper())(hp, facts, seed=seed, device="cpu").online for seed in (0, 1))
    for name, parameter in one.named_parameters():
        if parameter.dim() > 1:
            assert not (parameter == other.get_parameter(name)).any(), name


def test_each_update_and_its_targets_drop_out_anew() -> None:
    hp = dqn.Hyperparameters.model_validate(
        {"sequence": {"width": 16}, "observation_embedding": 8, "action_embedding": 8}
    )

    def passes(counter: int) -> list[torch.Tensor]:
        """Of an update of new networks, whose targets have their weights: the target's, and both of the online one."""
        learner = dqn.DQN(hp, DISCRETE, seed=0, device="cpu")
        found: list[torch.Tensor] = []
        for module in (*learner.online.modules(), *learner.target.modules()):
            if isinstance(module, Transformer):
                module.register_forward_hook(lambda model, x, y: found.append(y.detach()[:, :5].clone()))
        learner.online.train()
        learner.step(random_batch(DISCRETE), counter)
        return found

    first, second = passes(0), passes(1)
    every = [*first, *second]
    assert len(every) == 6
    assert not any(torch.equal(a, b) for i, a in enumerate(every) for b in every[:i])
