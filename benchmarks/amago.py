"""AMAGO: an update and acting at the published sizes, against the plain form.

- An update of Dark Key-To-Door (24 windows of 501 steps, width 256, 3 layers, 4 critics, 7 discounts), against one pass per
  critic and discount, a copy of the critics for the policy gradient, masked attention written out, and a for-loop over
  AdamW's parameters. Both begin with the same weights and give the same loss and gradient norm.
- Acting over a rollout of 500 steps with the cache, against encoding the rollout so far anew at each step.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.harness import Comparison, Goal, Side
from recollect.amago.amago import Agent, Hyperparameters
from recollect.amago.batch import Batch
from recollect.amago.network import Network, WorldShape
from recollect.amago.terms import Draws
from recollect.amago.timestep_encoders import StepShape

SPOTS = 8


def hyperparameters(width: int, layers: int) -> Hyperparameters:
    """Of Dark Key-To-Door, without dropout, so that both ways give the same."""
    return Hyperparameters.model_validate(
        {
            "inputs": {"hidden": [128, 128], "width": 64},
            "sequence": {"width": width, "layers": layers, "dropout": 0.0},
            "reward_multiplier": 100.0,
            "warmup": 0,
        }
    )


def windows(batch: int, steps: int, seed: int = 0) -> Batch:
    """Rollouts as the buffer gives them."""
    draws, L = np.random.default_rng(seed), steps + 1
    done = np.zeros((batch, L), bool)
    done[:, -1] = True
    previous = draws.integers(5, size=(batch, L)).astype(np.int16)
    previous[:, 0] = -1
    reward = (draws.random((batch, L)) < 0.02).astype(np.float32)
    reward[:, 0] = 0.0
    time = np.tile(np.arange(L, dtype=np.int32), (batch, 1))
    observation = draws.random((batch, L, 4)).astype(np.float32)
    return Batch(observation, previous, reward, done, time, np.ones((batch, L), bool))


def plain_states(network: Network, x_BLD: Tensor, time_BL: Tensor) -> Tensor:
    """The Transformer with masked attention written out."""
    encoder: Any = network.trajectory_encoder
    h, L = encoder.input(x_BLD) + encoder.table_TD[time_BL], x_BLD.shape[1]
    future = torch.ones(L, L, dtype=torch.bool).triu(1)
    for block in encoder.blocks:
        q, k, v = (part.transpose(1, 2) for part in block.project(h))
        scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(future, float("-inf"))
        h = h + block.attended((scores.softmax(-1) @ v).transpose(1, 2))
        h = h + block.feed_forward(h)
    return encoder.norm(h)


def plain_critics(critics: Any, s_BTE: Tensor) -> Tensor:
    """[C, B, T, G, A], one pass of one perceptron for each critic and discount."""
    found, (discounts, actions) = [], critics.shape
    hidden = len(critics.first_bias) // critics.critics
    for c in range(critics.critics):
        rows = slice(c * hidden, (c + 1) * hidden)
        of_critic = []
        for g in range(discounts):
            h = functional.linear(s_BTE, critics.first_weight[rows], critics.first_bias[rows])
            h = functional.leaky_relu(h) @ critics.weights[0][c] + critics.biases[0][c]
            columns = slice(g * actions, (g + 1) * actions)
            of_critic.append(
                functional.leaky_relu(h) @ critics.weights[1][c][:, columns] + critics.biases[1][c][:, columns]
            )
        found.append(torch.stack(of_critic, -2))
    return torch.stack(found)


class PlainAgent:
    """The same update in the plain form, from an agent's weights."""

    def __init__(self, agent: Agent) -> None:
        self.hp, self.policy = agent.hp, agent.distribution
        self.network, self.target = copy.deepcopy(agent.network), copy.deepcopy(agent.target)
        self.maximised = copy.deepcopy(self.network.critics)
        hp = self.hp
        self.optimiser = torch.optim.AdamW(
            self.network.parameters(), lr=hp.learning_rate, weight_decay=hp.weight_decay, foreach=False
        )

    def step(self, batch: Batch, counter: int) -> tuple[float, float]:
        """Loss and gradient norm of one update."""
        hp, network = self.hp, self.network.train()
        window = network.window(batch, hp.reward_multiplier, torch.device("cpu"))
        real_BT, B, T = window.mask_BL[:, 1:], *window.reward_BT.shape
        index = Draws.of(hp, 0, counter, B, T, "cpu").index_KBTG
        x_BLD = network.timestep_encoder(window.steps, window.mask_BL)
        s_BLE = plain_states(network, x_BLD, window.steps.time)
        s_BTE, next_BTE = s_BLE[:, :-1], s_BLE[:, 1:].detach()
        raw = network.actor(s_BTE)
        pi = self.policy.probabilities(raw)  # type: ignore[attr-defined]
        with torch.no_grad():
            next_pi = self.policy.probabilities(self.target.actor(next_BTE))  # type: ignore[attr-defined]
            next_q = network.popart((plain_critics(self.target.critics, next_BTE) * next_pi).sum(-1))
            alive = 1.0 - window.done_BT[..., None]
            y = window.reward_BT[..., None] + torch.tensor(hp.discounts) * alive * next_q.gather(0, index).amin(0)
            network.popart.update(y, real_BT)
            y = network.popart.normalise(y)
        one_hot = functional.one_hot(window.action, self.policy.size).float()[..., None, :]
        q = (plain_critics(network.critics, s_BTE) * one_hot).sum(-1)
        q_pi = (plain_critics(self.maximised, s_BTE.detach()) * pi).sum(-1)
        critic = ((network.popart.normalised(q) - y) ** 2).mean()
        keep = (q.mean(0) - q_pi.mean(0)).detach() > hp.filter_threshold
        log_pi = pi.gather(-1, window.action[..., None, None].expand(*pi.shape[:-1], 1))[..., 0].log()
        actor = (-network.popart.normalised(q_pi).amin(0) - hp.offline_coefficient * keep * log_pi).mean()
        loss = actor + hp.critic_weight * critic
        self.optimiser.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(network.parameters(), hp.gradient_clip)
        self.optimiser.step()
        with torch.no_grad():
            for mine, theirs in (
                (self.target.actor, network.actor),
                (self.target.critics, network.critics),
            ):
                for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
                    a.lerp_(b, hp.polyak)
            self.maximised.load_state_dict(network.critics.state_dict())
        return float(loss.detach()), float(norm)


def shape_of(horizon: int) -> WorldShape:
    """Of Dark Key-To-Door."""
    return WorldShape(StepShape(vector=4, kind="discrete", actions=5, horizon=horizon))


def comparisons(quick: bool) -> Iterator[Comparison]:
    """Updates, and acting with one actor and with as many as are published."""
    sizes = (16, 1, 3, 12) if quick else (256, 3, 24, 500)
    yield learning(*sizes)
    if not quick:
        yield learning(256, 3, 8, 500, released="amago_update")
    for rows in (1, 2 if quick else 24):
        yield acting(sizes[0], sizes[1], rows, sizes[3])


def learning(width: int, layers: int, batch: int, steps: int, released: str = "") -> Comparison:
    """One update."""
    hp, data = hyperparameters(width, layers), windows(batch, steps)
    agent = Agent(hp, shape_of(steps), seed=0, device="cpu")
    plain = PlainAgent(agent)
    counter = iter(range(10**9))

    def difference() -> float:
        ours = Agent(hp, shape_of(steps), seed=0, device="cpu")
        theirs, worst = PlainAgent(ours), 0.0
        few = windows(min(batch, 4), steps)  # whole batches take minutes
        for n in range(2):  # the second update has moved weights and targets
            found = ours.step(few, n)
            loss, norm = theirs.step(few, n)
            mine = float(found["actor_loss"] + hp.critic_weight * found["critic_loss"])
            worst = max(worst, abs(mine - loss) / abs(loss), abs(float(found["gradient_norm"]) - norm) / norm)
        return worst

    return Comparison(
        work=f"AMAGO update, Dark Key-To-Door, d{width} L{layers}, {batch} x {steps + 1}",
        unit="updates",
        plain="one pass per critic and discount, attention written out",
        ours=Side(lambda: agent.step(data, next(counter)), 1),
        against=Side(lambda: plain.step(data, next(counter)), 1),
        difference=difference,
        tolerance=1e-3,
        goal=Goal(1.5),
        rounds=3,
        released=released,
    )


def acting(width: int, layers: int, rows: int, steps: int) -> Comparison:
    """A rollout of so many rows side by side."""
    hp, data = hyperparameters(width, layers), windows(rows, steps)
    agent = Agent(hp, shape_of(steps), seed=0, device="cpu")
    network, policy, never = agent.network.eval(), agent.policy(), np.zeros(rows, bool)
    spots = [int(steps * (2 * n + 1) / (2 * SPOTS)) for n in range(SPOTS)]

    def ours() -> list[Tensor]:
        policy.start(np.zeros(rows, np.uint64))
        found = []
        for t in range(steps):
            found.append(policy.outputs(data.observation_BTD[:, t], data.reward_BT[:, t], never))  # type: ignore[call-overload]
            policy.took(data.previous_action_BT[:, t + 1])
        return found

    @torch.no_grad()
    def anew(t: int) -> Tensor:
        names = ("observation_BTD", "previous_action_BT", "reward_BT", "done_BT", "time_BT")
        so_far = [getattr(data, name)[:, : t + 1] for name in names]
        window = network.window(Batch(*so_far, data.mask_BT[:, : t + 1]), 1.0, torch.device("cpu"))
        return network.actor(network.states(window)[:, -1])[:, -1]

    def theirs() -> None:
        for spot in spots:
            anew(spot)

    def difference() -> float:
        found = ours()
        return max(float((found[t] - anew(t)).abs().max()) for t in (0, 1, *spots, steps - 1)) / float(found[-1].std())

    return Comparison(
        work=f"AMAGO acting, Dark Key-To-Door, d{width} L{layers}, batch {rows}",
        unit="env steps",
        plain="the rollout encoded anew",
        ours=Side(ours, rows * steps),
        against=Side(theirs, rows * len(spots)),
        difference=difference,
        tolerance=1e-3,
        goal=Goal(10),
        released="amago_acting" if rows == 24 else "",
        notes=(f"the plain way was timed at {SPOTS} positions spread over the rollout, and scaled",),
    )
