"""Acting on Passive T-Maze 1500 with the paper's GPT: a key/value cache, against encoding the episode so far anew.

Ours is timed over a whole episode. Encoding 1500 contexts anew takes minutes, so the plain way is timed at positions
spread evenly over the episode, of which the mean is taken. Both use the same network and the same fast kernels.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import Comparison, Goal, Side
from benchmarks.weights import lively
from recollect.common.contract import facts_of
from recollect.memory_rl.dqn import Hyperparameters, make_network
from recollect.memory_rl.history_policy import HistoryNetwork, HistoryPolicy
from recollect.settings.resolve import environment_settings

POSITIONS = 8


class PlainHistory:
    """Keeps the episode so far and runs the network over all of it."""

    def __init__(self, network: HistoryNetwork, episode: dict[str, Tensor]) -> None:
        self.network, self.episode = network, episode

    @torch.no_grad()
    def outputs(self, step: int) -> Tensor:
        """Outputs [B, A] after `step` steps."""
        parts = (self.episode[name][:, : step + 1] for name in ("action", "reward", "observation"))
        return self.network(*parts)[:, -1]


def random_episode(rows: int, steps: int, actions: int, width: int) -> dict[str, Tensor]:
    """What an agent may have lived through; the first token has no action and no reward."""
    draw = torch.Generator().manual_seed(0)
    action = torch.randint(0, actions, (rows, steps + 1), generator=draw)
    reward = torch.randn(rows, steps + 1, generator=draw)
    action[:, 0], reward[:, 0] = actions, 0.0
    return {
        "action": action,
        "reward": reward,
        "observation": torch.randint(-1, 2, (rows, steps + 1, width), generator=draw).float(),
    }


def replay(policy: HistoryPolicy, episode: dict[str, Tensor]) -> list[Tensor]:
    """The policy's outputs at every step of an episode in which other actions than its own may be taken."""
    rows, steps = episode["action"].shape
    policy.start(np.zeros(rows, np.uint64))
    observation, reward = episode["observation"].numpy(), episode["reward"].numpy()
    action, never = episode["action"].numpy(), np.zeros(rows, bool)
    found = []
    for step in range(steps):
        found.append(policy.outputs(observation[:, step], reward[:, step], never))
        if step + 1 < steps:
            policy.took(action[:, step + 1])
    return found


def comparisons(quick: bool) -> Iterator[Comparison]:
    """One actor as in the paper, and ten (an evaluation)."""
    for rows in (1, 2 if quick else 10):
        yield comparison(rows, 40 if quick else 1500)


def comparison(rows: int, length: int) -> Comparison:
    """An episode of so many rows side by side."""
    facts = facts_of(environment_settings("paper", f"tmaze_passive_{length}"))
    network = make_network(Hyperparameters(), facts, seed=0).eval()
    policy = HistoryPolicy(network)
    steps = facts.horizon
    episode = random_episode(rows, steps, facts.actions, facts.observation_size)
    plain = PlainHistory(network, episode)
    spots = [int(steps * (2 * n + 1) / (2 * POSITIONS)) for n in range(POSITIONS)]

    def theirs() -> None:
        for spot in spots:
            plain.outputs(spot)

    def difference() -> float:
        twin = lively(make_network(Hyperparameters(), facts, seed=0).eval())
        found, reference = torch.stack(replay(HistoryPolicy(twin), episode)), PlainHistory(twin, episode)
        places = [0, 1, spots[0], spots[-1], steps]
        worst = max(float((found[place] - reference.outputs(place)).abs().max()) for place in places)
        return worst / float(found.std())

    return Comparison(
        work=f"acting on T-Maze {length}, GPT d128 L1, batch {rows}",
        unit="env steps",
        plain="the context encoded anew",
        ours=Side(lambda: replay(policy, episode), rows * (steps + 1)),
        against=Side(theirs, rows * len(spots)),
        difference=difference,
        tolerance=1e-4,
        goal=Goal(30),
        notes=(f"the plain way was timed at {POSITIONS} positions spread over the episode, and scaled",),
    )
