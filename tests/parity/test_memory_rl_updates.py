"""Updates of DQN, SAC-D, TD3 and SAC against those of Memory-RL's released classes, from the same weights on the same batch.

`memory_rl_updates.safetensors` says in its header how it was recorded. Of each case it has the class, the weights before the
first of six updates (float16, which they are exactly), the batch, the metrics of each update, the first four numbers of
each array after the last, targets included, and where actions are continuous the noise that the released class drew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from recollect.common.contract import Facts
from recollect.memory_rl import continuous_actor_critic, dqn, sac, sacd, td3
from recollect.memory_rl.replay import Batch

FIRST = 4  # numbers of each array after the updates
with safe_open(Path(__file__).with_name("memory_rl_updates.safetensors"), framework="np") as file:
    ARRAYS = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
    CASES: dict[str, Any] = json.loads(file.metadata()["cases"])
    NAMES: dict[str, dict[str, list[int]]] = json.loads(file.metadata()["names"])
LEARNERS = {"dqn": dqn.DQN, "sacd": sacd.SACD, "td3": td3.TD3, "sac": sac.SAC}
OF_METHOD: dict[str, Any] = {"dqn": dqn, "sacd": sacd, "td3": td3, "sac": sac}
#: What a case's configuration was, beside the kind of its sequence model.
SHAPES: dict[str, dict[str, Any]] = {
    "dqn_gpt": {"sequence": {"layers": 2, "heads": 2}, "action_embedding": 4},
    "dqn_lstm": {"sequence": {"layers": 2}},
    "sacd_gpt": {"observation_embedding": 8, "action_embedding": 0},
    "sacd_gpt_free": {"observation_embedding": 8, "action_embedding": 0, "freeze_critic": False},
    "sacd_lstm_free": {"freeze_critic": False},
    "sacd_lstm_learned": {"target_entropy": 0.7},
    "sacd_lstm_separate": {"sequence": {"width": 6}, "shared_encoder": False, "critics_first": True},
    "td3_gpt": {"sequence": {"heads": 2}, "freeze_all": False, "freeze_critic": True},
    "td3_lstm_separate": {"shared_encoder": False, "critics_first": True},
}
RENAMED = [
    (r"^observ_embedder\.|^(action_embedder|seq_model|policy)\.", r"actor.\g<0>"),
    (r"^actor\.policy\.", "actor.head."),
    (r"^critic\.qf\.", "head."),
    (r"^(critic\.)?qf1\.", "critics.0."),
    (r"^(critic\.)?qf2\.", "critics.1."),
    (r"\b(action|observ)_embedder\.fc", r"encoder.embedder.\1.linear"),
    (r"\bobserv_embedder\.cnn\.0", "encoder.embedder.observ.first"),
    (r"\bobserv_embedder\.cnn\.2", "encoder.embedder.observ.second"),
    (r"\bobserv_embedder\.linear", "encoder.embedder.observ.linear"),
    (r"\.observ\.", ".observation."),
    (r"\bseq_model\.model\.", "encoder.sequence.stack.cells."),
    (r"\bseq_model\.transformer\.", "encoder.sequence.transformer."),
    (r"\bfc(\d)\.", r"hidden.\1."),
    (r"\blast_fc\.", "last."),
]
OF_FLAX = [
    (r"^\w*(actor|critic)/(?=.*(embedding_layer|seq_model|/MLP_0|action_))", r"\1/"),
    (r"act_embedding_layer/Dense_0", "encoder/embedder/action/linear"),
    (r"obs_embedding_layer/Dense_0", "encoder/embedder/observation/linear"),
    (r"actor/actor/MLP_0/Dense_", "actor/head/hidden/"),
    (r"actor/actor/action_(last|mean|logstd)_layer", r"actor/head/\1"),
    (r"seq_model/gpt_module/", "encoder/sequence/transformer/"),
    (r"/kernel$|/scale$", "/weight"),
]
OF_GPT = [
    (r"\bh\.", "blocks."), (r"ln_1", "norm_attention"), (r"ln_2", "norm_mlp"), (r"ln_f", "norm_final"),
    (r"attn\.c_attn", "qkv"), (r"attn\.c_proj", "attention_out"), (r"mlp\.c_fc", "mlp_in"), (r"mlp\.c_proj", "mlp_out"),
]  # fmt: skip


def renamed(name: str, rules: list[tuple[str, str]]) -> str:
    for pattern, ours in rules:
        name = re.sub(pattern, ours, name)
    return name


def from_torch(weights: dict[str, np.ndarray]) -> Iterator[tuple[str, str, np.ndarray]]:
    """(online or target, our name, value) of the released torch classes' parameters."""
    for name, value in weights.items():
        side = "target" if "_target" in name else "online"
        ours = renamed(renamed(name.replace("_target", ""), RENAMED), OF_GPT)
        if ours.startswith("critic."):
            ours = ours.removeprefix("critic.") if "critic.qf.fc0.weight" in weights else f"critic_{ours[7:]}"
        yield side, ours, value.T if re.search(r"c_\w+\.weight$", name) else value


def from_flax(weights: dict[str, np.ndarray]) -> Iterator[tuple[str, str, np.ndarray]]:
    """As above, of the JAX classes' parameters."""
    gates: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    for name, value in weights.items():
        side = "target" if name.startswith("target_") else "online"
        path = name.removeprefix("target_").replace("actorcritic/", "actor/")
        if name == "temp/log_temp":
            yield side, "log_alpha", value
        elif "/cell/" in path:
            whose, gate, part = path.replace("seq_model/cell/", "").split("/")
            kind = f"weight_{gate[0]}h" if part == "kernel" else "bias_hh"
            cells = f"{'actor.encoder' if whose == 'actor' else 'critic_encoder'}.sequence.stack.cells."
            kind = {"weight_ih": "weight_ih_l0", "weight_hh": "weight_hh_l0", "bias_hh": "bias_hh_l0"}[kind]
            gates.setdefault((side, cells + kind), {})[gate[1]] = value.T
        elif "VmapMarkovCritic" in path:
            layer, part = path.rsplit("/", 2)[1:]
            place = "last" if layer == "Dense_2" else f"hidden.{layer[-1]}"
            for k in range(2):
                yield side, f"critics.{k}.{place}.{'weight' if part == 'kernel' else 'bias'}", value[k].T
        else:
            is_dense = path.endswith("kernel") and "gpt_module" not in path
            ours = renamed(renamed(path, OF_FLAX).replace("/", "."), OF_GPT)
            ours = re.sub(r"^critic\.encoder", "critic_encoder", ours)
            yield side, ours, value.T if is_dense else value
    for (side, ours), of_gate in gates.items():
        yield side, ours, np.concatenate([of_gate[gate] for gate in "ifgo"])


def parameters(case: str, when: str) -> dict[str, np.ndarray]:
    """The released class's arrays under their own names; `after` with NaN where nothing was kept."""
    found, at = {}, 0
    flat = ARRAYS[f"{case if when == 'after' else CASES[case]['weights']}/{when}"].astype(np.float32)
    for name, shape in NAMES[CASES[case]["weights"]].items():
        size = int(np.prod(shape))
        kept = min(size, FIRST) if when == "after" else size
        value = np.full(size, np.nan, np.float32)
        value[:kept] = flat[at : at + kept]
        found[name], at = value.reshape(shape), at + kept
    assert at == len(flat)
    return found


def ours(case: str, when: str) -> dict[str, dict[str, np.ndarray]]:
    """The arrays under our names, of online and target networks."""
    sides: dict[str, dict[str, np.ndarray]] = {"online": {}, "target": {}}
    translate = from_flax if f"{case}/noise/0" in ARRAYS else from_torch
    for side, name, value in translate(parameters(case, when)):
        sides[side][name] = value
    for found in sides.values():  # SAC's head gives means, then log standard deviations
        for part in ("weight", "bias"):
            if f"actor.head.mean.{part}" in found:
                both = [found.pop(f"actor.head.{half}.{part}") for half in ("mean", "logstd")]
                found[f"actor.head.last.{part}"] = np.concatenate(both)
    return sides


def batch_of(case: str) -> Batch:
    """Ours has rows first and one more observation than actions."""
    if f"{case}/noise/0" in ARRAYS:
        given = {
            name: ARRAYS[f"jax/batch/{name}"] for name in ("observations", "next_observations", "actions", "rewards")
        }
        observation = np.concatenate([given["observations"][:, :1], given["next_observations"]], 1)
        reward, terminal, mask = given["rewards"][..., 0], ARRAYS["jax/batch/terminals"], ARRAYS["jax/batch/masks"]
        return Batch(*(torch.as_tensor(x) for x in (observation, given["actions"], reward, terminal, mask)))
    of = {
        name: ARRAYS[f"{CASES[case]['weights']}/batch/{name}"].swapaxes(0, 1)
        for name in ("obs", "obs2", "act", "rew", "term", "mask")
    }
    observation = np.concatenate([of["obs"][:, :1], of["obs2"]], 1)
    action = of["act"][..., 0].astype(np.int64)
    numbers = (of[name][..., 0].astype(np.float32) for name in ("rew", "term", "mask"))
    return Batch(torch.as_tensor(observation), torch.as_tensor(action), *(torch.as_tensor(x) for x in numbers))


def learner_of(case: str) -> Any:
    algorithm, kind = case.split("_")[:2]
    shape = SHAPES.get(case, {})
    is_flax = f"{case}/noise/0" in ARRAYS
    content = {
        "observation_embedding": 4, "action_embedding": 4 if is_flax else 3, "head": [8, 8], "learning_rate": 0.01, "discount": 0.9,
        "polyak": 0.05, **shape, "sequence": {"kind": kind, "width": 8, "dropout": 0.0, **shape.get("sequence", {})},
    }  # fmt: skip
    if algorithm in ("td3", "sac"):
        content |= {"network": "flax", "freeze_all": shape.get("freeze_all", True)}
    image = {"observation_size": 75, "image_shape": (3, 5, 5)} if case.startswith("sacd_gpt") else {}
    of_actions = (
        {"observation_size": 3, "actions": 0, "action_size": 2} if is_flax else {"observation_size": 2, "actions": 4}
    )
    facts = Facts(**{"observation_values": (), "horizon": 5, **of_actions, **image})
    hp = OF_METHOD[algorithm].Hyperparameters.model_validate(content)
    return LEARNERS[algorithm](hp, facts, seed=0, device="cpu")


def load(learner: Any, case: str) -> None:
    """Put the recorded weights in; every parameter that learns or follows has one, but the bias that we have besides."""
    given = ours(case, "before")
    with torch.no_grad():
        for module, found in ((learner.online, given["online"]), (learner.target, given["target"])):
            for name, parameter in module.named_parameters():
                if name == "log_alpha" and name not in found:
                    assert not parameter.any()  # released: it starts at 0
                elif "bias_ih" in name and name not in found:
                    assert not parameter.any() and (module is learner.target or not parameter.requires_grad)
                else:
                    parameter.copy_(torch.as_tensor(found[name]))


@pytest.mark.parametrize("case", CASES)
def test_six_updates_are_those_of_the_released_class(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, batch, expected = learner_of(case), batch_of(case), CASES[case]["metrics"]
    load(learner, case)
    for k in range(6):
        noises = [torch.as_tensor(ARRAYS[name][k]) for name in sorted(ARRAYS) if name.startswith(f"{case}/noise/")]

        def recorded(shape: Any, draws: Any, queue: list[torch.Tensor] = noises) -> torch.Tensor:
            assert tuple(shape) == queue[0].shape
            return queue.pop(0)

        monkeypatch.setattr(continuous_actor_critic, "normal", recorded)
        metrics = learner.step(batch, k)
        for name in set(expected) & set(metrics):
            assert float(metrics[name]) == pytest.approx(expected[name][k], rel=2e-4, abs=2e-5), (name, k)
        # The temperature is told after the update that moves it, or (JAX) before.
        if "temperature" in expected:
            assert float(metrics["alpha"]) == pytest.approx(expected["temperature"][k], rel=1e-5)
        elif learner.__class__ is sacd.SACD and learner.online.log_alpha is not None:
            assert float(learner.online.log_alpha.detach().exp()) == pytest.approx(expected["coef"][k], rel=1e-5)
    compared = 0
    after = ours(case, "after")
    for module, found in ((learner.online, after["online"]), (learner.target, after["target"])):
        for name, parameter in module.named_parameters():
            if name in found:
                kept = ~np.isnan(found[name])
                compared += int(kept.sum())
                np.testing.assert_allclose(parameter.detach().numpy()[kept], found[name][kept], atol=2e-4, err_msg=name)
    assert compared > 100


def test_the_records_tell_the_variants_apart() -> None:
    for one, other in (
        ("sacd_gpt", "sacd_gpt_free"),
        ("sacd_lstm", "sacd_lstm_free"),
        ("sacd_lstm", "sacd_lstm_learned"),
    ):
        assert abs(CASES[one]["metrics"]["critic_loss"][5] - CASES[other]["metrics"]["critic_loss"][5]) > 0.05
