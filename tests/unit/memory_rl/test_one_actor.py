"""One actor's episode by hand is the one that the plain policy plays: same actions, outputs equal to 1e-6."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from recollect.common.rollout import Episodes, play_episodes
from recollect.memory_rl import dqn, sacd
from recollect.memory_rl.off_policy import OffPolicyTrainer
from recollect.memory_rl.one_actor import OneActor, play_alone
from recollect.settings.schema import EnvironmentSettings, MethodSettings, Settings

MAZE = ("tmaze", {"variant": "active", "length": 13})
ROOMS = ("key_to_door", {"length": 3})
TWO_HEADS = {"kind": "gpt", "width": 16, "layers": 2, "heads": 2, "dropout": 0.1}
LEARNED = {"kind": "gpt", "width": 16, "dropout": 0.0, "positions": "learned"}
LSTM = {"kind": "lstm", "width": 12, "layers": 2}


def trainer(
    algorithm: Any, world: tuple[str, dict[str, Any]], sequence: dict[str, Any], **more: Any
) -> OffPolicyTrainer:
    embeddings = {"observation_embedding": 8, "action_embedding": 8} if algorithm is dqn else {}
    if algorithm is dqn and sequence["kind"] == "lstm":
        embeddings["reward_embedding"] = 4
    if algorithm is sacd:
        embeddings = {"observation_embedding": 12, "action_embedding": 0, "reward_embedding": 4}
    hp = {"sequence": sequence, "head": [24, 24], "train_episodes": 1, **embeddings, **more}
    method = MethodSettings(
        name="agent",
        algorithm=algorithm.__name__.rpartition(".")[2],
        data="online",
        hyperparameters=algorithm.Hyperparameters.model_validate(hp),
    )
    environment = EnvironmentSettings(name="world", world=world[0], options=world[1])
    made: OffPolicyTrainer = algorithm.make_trainer(
        Settings(scale="smoke", seed=3, environment=environment, method=method)
    )
    return made


def lively(made: OffPolicyTrainer, seed: int) -> None:
    """Weights, written in place, with which outputs differ enough."""
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.learner.network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draws))


def rounds(made: OffPolicyTrainer) -> list[Episodes]:
    """Three episodes, with other weights for the last two: they are what an optimiser leaves behind."""
    found = []
    for number, seed in enumerate((0, 1, 1)):
        if number < 2:
            lively(made, seed)
        found.append(made.play_round(False, 1))
        made.at.rounds += 1
    return found


@pytest.mark.parametrize(
    ("algorithm", "world", "sequence"),
    [(dqn, MAZE, TWO_HEADS), (dqn, MAZE, LEARNED), (dqn, MAZE, LSTM), (sacd, ROOMS, TWO_HEADS), (sacd, ROOMS, LSTM)],
)
def test_an_episode_by_hand_is_the_plain_one(
    algorithm: Any, world: Any, sequence: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, by_hand = (trainer(algorithm, world, sequence, epsilon_start=0.2) if algorithm is dqn
                      else trainer(algorithm, world, sequence) for _ in range(2))  # fmt: skip
    assert plain.alone is not None and by_hand.alone is not None
    plain.alone = None
    seen: list[np.ndarray] = []
    expected: list[np.ndarray] = []
    outputs, plain_outputs = OneActor.outputs, plain.policy.outputs

    def keep(self: OneActor, *token: Any) -> np.ndarray:
        seen.append(outputs(self, *token).copy())
        return seen[-1]

    def keep_plain(*token: Any) -> torch.Tensor:
        found = plain_outputs(*token)
        expected.append(found[0].numpy())
        return found

    monkeypatch.setattr(OneActor, "outputs", keep)
    monkeypatch.setattr(plain.policy, "outputs", keep_plain)
    for one, other in zip(rounds(plain), rounds(by_hand), strict=True):
        for name in one.__dataclass_fields__:
            wanted, found = getattr(one, name), getattr(other, name)
            assert wanted.dtype == found.dtype
            np.testing.assert_array_equal(found, wanted, err_msg=name)
    size = np.abs(expected).max()
    np.testing.assert_allclose(np.array(seen), np.array(expected), rtol=0, atol=1e-6 * max(1.0, size))
    assert plain.at == by_hand.at
    for name, array in plain.world.get_state().items():
        np.testing.assert_array_equal(by_hand.world.get_state()[name], array)


class Ending:
    """A world of four steps, whose episode ends at the third: it terminates, or is cut off."""

    horizon, num_envs = 4, 1
    single_observation_space = Box(0, 9, (1,), np.float32)

    def __init__(self, terminates: bool) -> None:
        self.terminates, self.steps = terminates, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.steps = 0
        return np.zeros((1, 1), np.float32), {}

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        self.steps += 1
        ended = np.array([self.steps == 3])
        seen, reward = np.full((1, 1), self.steps, np.float32), np.array([self.steps / 2], np.float32)
        return seen, reward, ended & self.terminates, ended & (not self.terminates), {"success": ended}


@pytest.mark.parametrize("terminates", [True, False])
def test_an_episode_that_is_cut_off_does_not_terminate(terminates: bool) -> None:
    actor: Any = SimpleNamespace(no_action=4, outputs=lambda action, reward, seen: np.array([reward, seen[0]]))
    world: Any = Ending(terminates)
    found = play_alone(world, actor, lambda outputs, t: int(outputs.sum()))
    wanted = play_episodes(world, lambda seen, reward, done, t, live: (reward + seen[:, 0]).astype(np.int64))
    assert found.terminal_BT.tolist() == [[0, 0, int(terminates)]]
    for name in found.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)


def test_other_networks_and_more_actors_act_as_before() -> None:
    for kind in ("gru", "rnn", "ff"):
        assert trainer(dqn, MAZE, {"kind": kind, "width": 8}).alone is None
    sliding = trainer(dqn, MAZE, TWO_HEADS, sampled_seq_len=5)
    assert sliding.alone is None
    assert trainer(dqn, MAZE, LSTM, actors=2).alone is None
