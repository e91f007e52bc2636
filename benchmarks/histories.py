"""Learning histories of 80 tasks: the ensemble, against one PPO after the other as Stable-Baselines3 runs it.

The plain PPO is written here: an environment in plain Python, one forward pass per step, autograd, one Adam per agent.
It gets the ensemble's initial weights, action noise and minibatch order, so both learn the same and their histories are
compared step by step. Only one of the 80 tasks is timed (they cost the same), one rollout at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.harness import Comparison, Goal, Side
from benchmarks.stepping import PlainRoom
from recollect.environments import registry
from recollect.environments.base import Task, World
from recollect.sources import ppo
from recollect.sources.cpu.plain import perceptron
from recollect.sources.recording import task_generators

SEED = 0
ROOM = 8  # rollouts that there is room for: more than are timed


def make_world(tasks: Any, seeds: np.ndarray) -> World:
    """Dark-Room 10x10."""
    return registry.make_world("dark_room", {}, tasks, seeds)


def tasks() -> list[Task]:
    """The train tasks whose start is fixed, 79 of 80: the plain environment has no random start."""
    found = registry.tasks("dark_room", {}, "train")
    return [task for task in found if task.data["goal"] != (0, 0)]


class PlainPPO:
    """One agent in one environment: a rollout step by step, then epochs of minibatches by autograd.

    Args:
        task: what it plays.
        settings: hyper-parameters.
    """

    def __init__(self, task: Task, settings: ppo.Hyperparameters) -> None:
        self.task, self.settings = task, settings
        twin = ppo.EnsemblePPO(make_world, [task], settings, SEED)  # for the initial weights
        self.actor, self.critic = perceptron(twin.networks, 0, 5), perceptron(twin.networks, 1, 1)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimiser = torch.optim.Adam(self.parameters, lr=settings.learning_rate, eps=settings.adam_epsilon)
        self.room = PlainRoom(task.data)
        self.observation, _ = self.room.reset()
        self.rollouts = 0
        self.actions: list[int] = []

    @torch.no_grad()
    def play(self) -> dict[str, Tensor]:
        """One rollout."""
        steps = self.settings.rollout
        noise = task_generators("ppo-actions", SEED, [self.task], self.rollouts)[0].random(steps, np.float32)
        kept: dict[str, list[Any]] = {name: [] for name in ("observation", "action", "log", "value", "reward", "done")}
        for t in range(steps):
            x = torch.as_tensor(self.observation, dtype=torch.float32)[None]
            log = self.actor(x)[0].log_softmax(-1)
            bounds = log.exp().numpy().cumsum()[:-1]
            action = int((noise[t] >= bounds).sum())
            kept["observation"].append(x[0])
            kept["value"].append(self.critic(x)[0, 0])
            kept["action"].append(action)
            kept["log"].append(log[action])
            self.observation, reward, _, ended, _ = self.room.step(action)
            if ended:
                self.observation, _ = self.room.reset()
            kept["reward"].append(reward)
            kept["done"].append(ended)
            self.actions.append(action)
        last = self.critic(torch.as_tensor(self.observation, dtype=torch.float32)[None])[0, 0]
        rewards, dones = kept["reward"], kept["done"]
        values = [float(value) for value in kept["value"]] + [float(last)]
        advantage, following = [0.0] * steps, 0.0
        for t in range(steps - 1, -1, -1):
            alive = 0.0 if dones[t] else 1.0
            delta = rewards[t] + self.settings.gamma * alive * values[t + 1] - values[t]
            following = delta + self.settings.gamma * self.settings.gae_lambda * alive * following
            advantage[t] = following
        return {
            "observation": torch.stack(kept["observation"]),
            "action": torch.tensor(kept["action"]),
            "log": torch.stack(kept["log"]),
            "advantage": torch.tensor(advantage),
            "return": torch.tensor(advantage) + torch.stack(kept["value"]),
        }

    def learn(self, rollout: dict[str, Tensor]) -> None:
        """All epochs."""
        settings = self.settings
        draw = task_generators("ppo-minibatches", SEED, [self.task], self.rollouts)[0]
        for order in [draw.permutation(settings.rollout) for _ in range(settings.epochs)]:
            for start in range(0, settings.rollout, settings.minibatch):
                chosen = torch.from_numpy(order[start : start + settings.minibatch])
                x, action, old, advantage, target = (part[chosen] for part in rollout.values())
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                log = self.actor(x).log_softmax(-1)
                entropy = -(log.exp() * log).sum(-1).mean()
                ratio = torch.exp(log.gather(1, action[:, None])[:, 0] - old)
                clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
                surrogate = torch.min(ratio * advantage, clipped * advantage).mean()
                value = nn.functional.mse_loss(self.critic(x)[:, 0], target)
                loss = settings.value_coefficient * value - surrogate - settings.entropy * entropy
                self.optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.parameters, settings.gradient_norm)
                self.optimiser.step()

    def advance(self) -> None:
        """One rollout, and what is learned from it."""
        self.learn(self.play())
        self.rollouts += 1


def comparisons(quick: bool) -> Iterator[Comparison]:
    """One row."""
    sizes: dict[str, Any] = {"rollout": 64, "minibatch": 16, "epochs": 2} if quick else {}
    settings = ppo.Hyperparameters(**sizes)
    settings = settings.model_copy(update={"transitions": ROOM * settings.rollout})
    played = tasks()[:4] if quick else [*tasks(), tasks()[0]][:80]
    if len({task.index for task in played}) < len(played):  # 79 tasks have a fixed start: the eightieth is one of them
        played[-1] = Task(len(played), played[-1].name, "train", played[-1].data)
    agents = ppo.EnsemblePPO(make_world, played, settings, SEED)
    plain = PlainPPO(played[0], settings)

    yield Comparison(
        work=f"learning histories of {len(played)} tasks, {settings.rollout} transitions each",
        unit="transitions",
        plain="one PPO after the other, plain PyTorch",
        ours=Side(agents.advance, len(played) * settings.rollout, once=True),
        against=Side(plain.advance, settings.rollout, once=True),
        difference=lambda: difference(played[1], settings),
        tolerance=1e-3,
        goal=Goal(50),
        released="histories",
        rounds=3,
        notes=("paper hyper-parameters; of the plain PPO one task is timed (all cost the same), a rollout per round",),
    )


def difference(task: Task, settings: ppo.Hyperparameters) -> float:
    """Three rollouts of one task in both ways: 1 if an action differs, else the largest difference of the weights."""
    few = {"rollout": min(settings.rollout, 128), "minibatch": min(settings.minibatch, 32), "epochs": 3}
    settings = settings.model_copy(update=few | {"transitions": 4 * few["rollout"]})
    agents = ppo.EnsemblePPO(make_world, [task, tasks()[5]], settings, SEED)
    plain = PlainPPO(task, settings)
    for _ in range(3):
        agents.advance()
        plain.advance()
    steps = 3 * settings.rollout
    if agents.recorder.action[:steps, 0].tolist() != plain.actions:
        return 1.0
    networks = agents.networks
    pairs = [(plain.actor, perceptron(networks, 0, 5)), (plain.critic, perceptron(networks, 1, 1))]
    return max(
        float((mine - theirs).detach().abs().max())
        for first, second in pairs
        for mine, theirs in zip(first.parameters(), second.parameters(), strict=True)
    )
