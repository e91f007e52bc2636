"""Memory-RL's loop on Passive T-Maze 1500 with the paper's GPT: an update, collecting an episode, an evaluation.

The plain way is what the released code does, on the same weights: three passes per update with an attention of T x T that
is written out, batches from lists of row numbers, a number read back per metric, Polyak tensor by tensor; acting with a cache
that grows by concatenation; one environment after the other. Both train with dropout 0.1 and act in the same world.

On a CPU an update has an eighth of the paper's 64 windows, on both sides; rates are those of whole updates.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.harness import Comparison, Side, waiting
from benchmarks.weights import lively
from recollect.common.rollout import play_episodes
from recollect.memory_rl.dqn import Hyperparameters, loss_of, make_trainer
from recollect.memory_rl.history_policy import HistoryNetwork, tokens
from recollect.memory_rl.off_policy import OffPolicyTrainer
from recollect.memory_rl.replay import Batch
from recollect.settings.resolve import resolve
from recollect.settings.schema import Settings

PAPER_BATCH = 64
Cache = list[tuple[Tensor, Tensor]]


def plain_pass(
    network: HistoryNetwork, parts: tuple[Tensor, Tensor, Tensor], p: float, cache: Cache | None = None
) -> Tensor:
    """The network's outputs [B, T, A], written out; with a cache the tokens stand behind it, and it grows."""
    sequence: Any = network.encoder.sequence
    transformer, x = sequence.transformer, network.encoder.embedder(*parts)
    B, T, D = x.shape
    before = cache[0][0].shape[2] if cache else 0
    h = F.dropout(x + sequence.positions.table_LD[before : before + T], p, True)
    future = torch.ones(T, before + T, device=x.device).triu(before + 1) * -1e4
    for layer, block in enumerate(transformer.blocks):
        q, k, v = (
            F.linear(block.norm_attention(h), block.qkv.weight, block.qkv.bias)
            .view(B, T, 3, transformer.heads, -1)
            .permute(2, 0, 3, 1, 4)
        )
        if cache is not None:
            if before:
                k, v = torch.cat([cache[layer][0], k], 2), torch.cat([cache[layer][1], v], 2)
                cache[layer] = (k, v)
            else:
                cache.append((k, v))
        weights = F.dropout((q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + future).softmax(-1), p, True)
        y = (weights @ v).transpose(1, 2).reshape(B, T, D)
        h = h + F.dropout(F.linear(y, block.attention_out.weight, block.attention_out.bias), p, True)
        inner = F.gelu(F.linear(block.norm_mlp(h), block.mlp_in.weight, block.mlp_in.bias), approximate="tanh")
        h = h + F.dropout(F.linear(inner, block.mlp_out.weight, block.mlp_out.bias), p, True)
    return network.head(transformer.norm_final(h))


def plain_loss(online: HistoryNetwork, target: HistoryNetwork, batch: Batch, discount: float, p: float) -> Tensor:
    """Double DQN in three passes."""
    parts = tokens(batch, online)
    with torch.no_grad():
        best_BT = plain_pass(online, parts, p)[:, 1:].argmax(-1)
        next_BT = plain_pass(target, parts, p)[:, 1:].gather(-1, best_BT[..., None])[..., 0]
    first = (parts[0][:, :-1], parts[1][:, :-1], parts[2][:, :-1])
    q_BT = plain_pass(online, first, p).gather(-1, batch.action_BT[..., None])[..., 0]
    y_BT = batch.reward_BT + (1 - batch.terminal_BT) * discount * next_BT
    return (batch.mask_BT * (q_BT - y_BT) ** 2).sum() / batch.mask_BT.sum().clamp(min=1)


class PlainAgent:
    """Learns and acts as the released code does, from the weights and the steps of one of our runs."""

    def __init__(self, trainer: OffPolicyTrainer, batch: int) -> None:
        self.hp, self.batch, self.horizon = trainer.hp, batch, trainer.horizon
        self.device = trainer.policy.device
        self.online = copy.deepcopy(trainer.learner.network)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.optimiser = torch.optim.Adam(self.online.parameters(), lr=self.hp.learning_rate)
        replay = trainer.replay
        self.steps = {name: values for name, values in replay.arrays().items() if name not in ("length", "next_row")}
        self.valid = np.zeros(len(self.steps["action"]), np.float32)
        self.valid[self.steps.pop("start")] = 1.0
        self.draws = np.random.default_rng(0)

    def sample(self) -> Batch:
        """Whole episodes, by lists of the rows of each."""
        starts = np.where(self.valid > 0)[0]
        chance = self.valid[starts] / self.valid[starts].sum()
        rows: list[int] = []
        for start in self.draws.choice(starts, self.batch, p=chance):
            rows += list(range(start, start + self.horizon))
        shape = (self.batch, self.horizon)

        def put(values: np.ndarray) -> Tensor:
            return torch.as_tensor(values).to(self.device)

        taken = {name: values[rows].reshape(*shape, *values.shape[1:]) for name, values in self.steps.items()}
        after = self.steps["observation"][[row + 1 for row in rows]].reshape(*shape, -1)
        seen = np.concatenate([taken["observation"][:, :1], after], 1)
        return Batch(
            put(seen),
            put(taken["action"]).long(),
            put(taken["reward"]),
            put(taken["terminal"]).float(),
            torch.ones(shape, device=self.device),
        )

    def update(self) -> None:
        """One update."""
        loss = plain_loss(self.online, self.target, self.sample(), self.hp.discount, self.hp.sequence.dropout)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
            slow.data.copy_(self.hp.polyak * fast.data + (1 - self.hp.polyak) * slow.data)
        loss.item()

    @torch.no_grad()
    def play(self, world: Any, p: float, epsilon: float) -> list[Tensor]:
        """One episode of a world of one instance; gives the outputs of each step."""
        cache: Cache = []
        action = self.online.encoder.embedder.no_action(1, self.device)
        found = []

        def act(seen: np.ndarray, reward: np.ndarray, done: np.ndarray, t: int, live: np.ndarray) -> np.ndarray:
            nonlocal action
            parts = (action[:, None], torch.as_tensor(reward).to(self.device)[:, None])
            observation = torch.as_tensor(seen).to(self.device)[:, None]
            found.append(plain_pass(self.online, (*parts, observation), p, cache)[:, -1])
            taken = np.array([int(found[-1].argmax())])
            if self.draws.random() < epsilon:
                taken = self.draws.integers(4, size=1)
            action = torch.as_tensor(taken).to(self.device)
            return taken

        play_episodes(world, act)
        return found


def settings_of(quick: bool, **changes: Any) -> Settings:
    """The run of the paper's command."""
    settings = resolve("paper", "tmaze_passive_20" if quick else "tmaze_passive_1500", "dqn_gpt", 42)
    hp: Hyperparameters = settings.method.hyperparameters
    method = settings.method.model_copy(update={"hyperparameters": hp.model_copy(update=changes)})
    return settings.model_copy(update={"method": method})


def filled(settings: Settings, device: str, episodes: int) -> OffPolicyTrainer:
    """A run whose replay holds random episodes."""
    trainer = make_trainer(settings, device)
    played, T = np.random.default_rng(0), trainer.horizon
    for _ in range(0, episodes, 100):
        size = (min(episodes, 100), T)
        seen = played.integers(-1, 2, (size[0], T + 1, 2)).astype(np.float32)
        end = np.broadcast_to(np.arange(T) == T - 1, size).astype(np.uint8)
        reward = played.random(size, np.float32)
        trainer.replay.add(seen, played.integers(0, 4, size), reward, end, np.full(size[0], T))
    return trainer


def update_difference() -> float:
    """Loss and gradients of one batch without dropout, relative."""
    settings = settings_of(True, merged_passes="never")
    hp = settings.method.hyperparameters
    still = hp.sequence.model_copy(update={"dropout": 0.0})
    trainer = filled(settings_of(True, merged_passes="never", sequence=still), "cpu", 20)
    online: HistoryNetwork = lively(trainer.learner.network)
    batch = trainer.replay.sample(4, trainer.horizon, seed=0, counter=0)
    target: HistoryNetwork = copy.deepcopy(online)
    gaps = []
    kept: list[dict[str, Tensor]] = []
    for plain in (False, True):
        online.zero_grad()
        loss = (
            plain_loss(online, target, batch, hp.discount, 0.0)
            if plain
            else loss_of(online, target, batch, trainer.hp)[0]
        )  # type: ignore[arg-type]
        loss.backward()
        kept.append({name: value.grad.clone() for name, value in online.named_parameters() if value.grad is not None})
        gaps.append(loss.detach())
    pairs = [(kept[0][name], kept[1][name]) for name in kept[0]] + [(gaps[0], gaps[1])]
    return max(float((a - b).norm() / (a.norm() + 1e-6)) for a, b in pairs)


def acting_difference() -> float:
    """The outputs of an episode without dropout, step by step."""
    trainer = filled(settings_of(True), "cpu", 20)
    lively(trainer.learner.network)
    agent = PlainAgent(trainer, 1)
    state = trainer.world.get_state()
    plain = agent.play(trainer.world, 0.0, 0.0)
    trainer.world.set_state(state)
    trainer.learner.network.eval()
    trainer.policy.start(np.zeros(1, np.uint64))
    found: list[Tensor] = []

    def act(seen: np.ndarray, reward: np.ndarray, done: np.ndarray, t: int, live: np.ndarray) -> np.ndarray:
        found.append(trainer.policy.outputs(seen, reward, done))
        taken = found[-1].argmax(-1).numpy()
        trainer.policy.took(taken)
        return taken

    play_episodes(trainer.world, act)
    return max(float((a - b).abs().max()) for a, b in zip(plain, found, strict=True))


def comparisons(quick: bool) -> Iterator[Comparison]:
    """An update, an episode that is collected, an evaluation of ten episodes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch = 4 if quick else PAPER_BATCH if device == "cuda" else PAPER_BATCH // 8
    trainer = filled(settings_of(quick, batch_size=batch), device, 20 if quick else 900)
    agent, T = PlainAgent(trainer, batch), trainer.horizon
    name = f"T-Maze {T - 1}, GPT"
    note = "the paper's settings, dropout 0.1" + ("" if device == "cuda" else f"; {batch} of {PAPER_BATCH} windows")
    yield Comparison(
        work=f"update, {name}",
        unit="updates",
        plain="three passes, T x T attention, row lists",
        ours=Side(waiting(trainer._update, device), batch / PAPER_BATCH),
        against=Side(waiting(agent.update, device), batch / PAPER_BATCH),
        difference=update_difference,
        tolerance=1e-3,
        rounds=2,
        notes=(note,),
    )
    dropout, one = trainer.hp.sequence.dropout, copy.deepcopy(trainer.world)
    yield Comparison(
        work=f"collecting one episode, {name}",
        unit="env steps",
        plain="a cache that grows by concatenation",
        ours=Side(waiting(partial(trainer.play_round, False, 1), device), T),
        against=Side(waiting(partial(agent.play, one, dropout, 0.1), device), T),
        difference=acting_difference,
        tolerance=1e-3,
        rounds=3,
    )

    def evaluate() -> None:
        trainer.policy.start(np.zeros(trainer.evaluation_world.num_envs, np.uint64))
        play_episodes(
            trainer.evaluation_world, lambda seen, reward, done, t, live: trainer.policy.act(seen, reward, done)
        )

    count = trainer.hp.evaluation_episodes
    yield Comparison(
        work=f"evaluating {count} episodes, {name}",
        unit="env steps",
        plain="one episode after the other (one is timed)",
        ours=Side(waiting(evaluate, device), count * T),
        against=Side(waiting(partial(agent.play, one, 0.0, 0.0), device), T),
        difference=acting_difference,
        tolerance=1e-3,
        rounds=3,
    )
