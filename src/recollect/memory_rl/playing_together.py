"""Rounds and evaluations that all members of an ensemble play at once: one pass of the stacked network for all of them.

In T-Mazes and room games on a GPU they do so without the host (`rounds_on_device`). Each member's worlds, draws and counts are
its own, and see what they would see if it played alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from recollect.artifacts.checkpoints import joined, part
from recollect.common.rollout import Episodes, play_episodes
from recollect.environments.base import World
from recollect.memory_rl.history_policy import HistoryNetwork, HistoryPolicy
from recollect.memory_rl.off_policy import OffPolicyTrainer
from recollect.memory_rl.rounds_on_device import RoundsOnDevice
from recollect.settings.seeding import generator


class SideBySide:
    """Some worlds of one kind as one; the instances of each stand one behind the other.

    A world whose instances have all ended an episode is stepped no more, as nobody would step it if it were alone.
    """

    def __init__(self, worlds: Sequence[World]) -> None:
        self.worlds = worlds
        self.horizon, self.single_observation_space = worlds[0].horizon, worlds[0].single_observation_space
        self.num_envs = sum(world.num_envs for world in worlds)
        self._live_SB = np.ones((len(worlds), worlds[0].num_envs), bool)
        shape = (*self._live_SB.shape, *(self.single_observation_space.shape or ()))
        self._observation = np.zeros(shape, self.single_observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        assert options is not None
        mask_SB = options["reset_mask"].reshape(self._live_SB.shape)
        beginning = [place for place, mask_B in enumerate(mask_SB) if mask_B.any() and self._live_SB[place].any()]
        for place in beginning:  # in worlds that other processes play episodes begin side by side
            self.worlds[place].send_reset(mask_SB[place])
        for place in beginning:
            self._observation[place] = self.worlds[place].reset(options={"reset_mask": mask_SB[place]})[0]
        return self._observation.reshape(self.num_envs, *self._observation.shape[2:]).copy(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        shape = self._live_SB.shape
        reward, success = np.zeros(shape, np.float32), np.full(shape, np.nan)
        terminated, truncated = np.zeros(shape, bool), np.zeros(shape, bool)
        action_SB = actions.reshape(*shape, *actions.shape[1:])
        going = [place for place, live_B in enumerate(self._live_SB) if live_B.any()]
        for place in going:  # worlds that other processes play go on side by side
            self.worlds[place].send(action_SB[place])
        for place in going:
            stepped = self.worlds[place].step(action_SB[place])
            self._observation[place], reward[place], terminated[place], truncated[place], info = stepped
            success[place] = info.get("success", np.nan)
        self._live_SB &= ~(terminated | truncated)
        observation = self._observation.reshape(self.num_envs, *self._observation.shape[2:]).copy()
        return observation, reward.ravel(), terminated.ravel(), truncated.ravel(), {"success": success.ravel()}

    def get_state(self) -> dict[str, np.ndarray]:
        return joined(**{str(place): world.get_state() for place, world in enumerate(self.worlds)})

    def set_state(self, state: Any) -> None:
        for place, world in enumerate(self.worlds):
            world.set_state(part(state, str(place)))


def evaluated(policy: HistoryPolicy, members: Sequence[OffPolicyTrainer]) -> list[Episodes]:
    """The episodes of an evaluation of each member."""
    world = SideBySide([member.evaluation_world for member in members])
    policy.start(np.zeros(world.num_envs, np.uint64))
    episodes = play_episodes(world, lambda observation, reward, done, t, live: policy.act(observation, reward, done))
    return split_by_member(episodes, len(members))


def round_of(policy: HistoryPolicy, members: Sequence[OffPolicyTrainer]) -> list[Episodes]:
    """A round of episodes of each member after its warm-up, with the behaviour policy."""
    world = SideBySide([member.world for member in members])
    set_training(policy.network, members[0].hp.dropout_while_acting)
    policy.start(np.zeros(world.num_envs, np.uint64))
    draws = [generator("behaviour", member.seed, member.at.rounds) for member in members]
    counts = [member.next_round()[1] for member in members]
    actors = np.arange(members[0].world.num_envs)
    embedder = members[0].learner.network.encoder.embedder
    one_each = len(actors) == 1 and not embedder.action_size

    def explored_one_each(outputs_SA: np.ndarray, live_S: np.ndarray) -> np.ndarray:
        """`explore` of members with one actor each, in plain numbers: numpy's calls cost more than the choice."""
        action_S = np.zeros(len(members), np.int64)
        for place in live_S.nonzero()[0].tolist():
            at = members[place].at
            action_S[place] = members[place].learner.explore_one(outputs_SA[place], at.explored, draws[place])
            at.explored += 1
        return action_S

    def act(observation: np.ndarray, reward: np.ndarray, done: np.ndarray, t: int, live: np.ndarray) -> np.ndarray:
        whole = policy.outputs(observation, reward, done).cpu()
        if one_each:
            action_S = explored_one_each(whole.numpy(), live)
            policy.took(action_S)
            return action_S
        outputs, actions = whole.chunk(len(members)), []
        for place, live_B in enumerate(live.reshape(len(members), -1)):
            counted_B = live_B & (actors < counts[place])
            actions.append(members[place].explore(outputs[place], counted_B, draws[place]))
        policy.took(np.concatenate(actions))
        return np.concatenate(actions)

    return [
        part.first(count)
        for part, count in zip(split_by_member(play_episodes(world, act), len(members)), counts, strict=True)
    ]


def evaluated_on_device(rounds: RoundsOnDevice, members: Sequence[OffPolicyTrainer]) -> list[Episodes]:
    """`evaluated`, in worlds on the device."""
    set_training(rounds.network, False)
    return split_by_member(rounds.play(), len(members))


def round_on_device(rounds: RoundsOnDevice, members: Sequence[OffPolicyTrainer]) -> list[Episodes]:
    """`round_of` members with one actor each, in worlds on the device."""
    set_training(rounds.network, members[0].hp.dropout_while_acting)
    columns = []
    for member in members:
        draws = generator("behaviour", member.seed, member.at.rounds)
        column_T = member.learner.drawn_before(member.horizon, member.at.explored, draws)
        assert column_T is not None
        columns.append(column_T)
        member.at.explored += member.horizon
    return split_by_member(rounds.play(np.stack(columns, 1)), len(members))


def set_training(network: HistoryNetwork, training: bool) -> None:
    if network.training != training:  # setting it walks through all modules
        network.train(training)


def split_by_member(episodes: Episodes, members: int) -> list[Episodes]:
    """The episodes of each member."""
    columns = [np.split(getattr(episodes, name), members) for name in episodes.__dataclass_fields__]
    return [Episodes(*own) for own in zip(*columns, strict=True)]
