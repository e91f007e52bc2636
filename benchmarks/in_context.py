"""In-context evaluation of 20 tasks: all in one batch (with a cache where the context only grows), against batch 1.

AD is timed over whole later episodes: each begins by encoding the one before it. RA-DT is timed where it is slowest, at
steps in the middle of its fourth episode, where its window is full and slides, and each row reads another window than before:
all of it is encoded anew (earlier steps are cached as long as what a row reads stays the same). The plain policies (see
`plain_acting`) are timed at steps spread over an episode, and their environment costs nothing. Networks are untrained: what
they compute costs the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import Comparison, Goal, Side
from benchmarks.plain_acting import PlainDistillation, PlainRetrieval, Trace
from benchmarks.weights import lively
from recollect.common.contract import facts_of
from recollect.environments import registry
from recollect.radt import ad, dt, radt
from recollect.radt.acting import InContextPolicy
from recollect.radt.embedders import DomainSpecificEmbedder
from recollect.settings.resolve import resolve
from recollect.settings.schema import Settings

ENVIRONMENT = "dark_room_10x10"


def settings_of(method: str, network: dict[str, Any], options: dict[str, Any]) -> Settings:
    """The paper's settings of a method with another network and room, without what the released code does while it acts: AD and
    DT drop attention weights and attend to padding, which no cache can repeat; RA-DT compares keys by their inner product.
    """
    settings = resolve("paper", ENVIRONMENT, method, 0)
    chosen = settings.method.hyperparameters
    network = {**network, "padding": "hidden"}
    changes: dict[str, Any] = {"network": chosen.network.model_copy(update=network), "acting_dropout": False}
    if method == "radt":
        changes["acting"] = chosen.acting.model_copy(update={"similarity": "cosine"})
    chosen = chosen.model_copy(update=changes)
    return settings.model_copy(
        update={
            "method": settings.method.model_copy(update={"hyperparameters": chosen}),
            "environment": settings.environment.model_copy(update={"options": options}),
        }
    )


class Play:
    """A policy that plays Dark-Room while everything is written down.

    Args:
        policy: any in-context policy.
        settings: of its environment.
        rows: number of tasks.
        episodes: room for so many.
    """

    def __init__(self, policy: InContextPolicy, settings: Settings, rows: int, episodes: int) -> None:
        tasks = registry.tasks("dark_room", settings.environment.options, "eval")
        seeds = np.arange(rows, dtype=np.uint64)
        played = [tasks[row % len(tasks)] for row in range(rows)]
        self.world = registry.make_world("dark_room", settings.environment.options, played, seeds)
        self.policy, self.rows, self.horizon = policy, rows, self.world.horizon
        policy.start(seeds, self.horizon, episodes)
        self.observation, _ = self.world.reset()
        self.reward, self.done = np.zeros(rows, np.float32), np.zeros(rows, bool)
        self.trace = Trace.empty(rows, episodes, self.horizon)
        self.number = self.step = 0

    def steps(self, count: int) -> None:
        """Play some steps; all rows end their episodes together."""
        trace = self.trace
        for _ in range(count):
            trace.observation[:, self.number, self.step] = self.observation
            action = self.policy.act(self.observation, self.reward, self.done)
            if self.step == 0:
                trace.target[:, self.number] = self.policy.target_B
            self.observation, self.reward, _, self.done, _ = self.world.step(action)
            trace.action[:, self.number, self.step], trace.reward[:, self.number, self.step] = action, self.reward
            self.step += 1
            if self.step == self.horizon:
                self.number, self.step = self.number + 1, 0
                self.observation, _ = self.world.reset()


def recording(policy: InContextPolicy) -> list[Tensor]:
    """From now on the policy's logits are kept in this list."""
    kept: list[Tensor] = []
    compute = policy.logits

    def logits() -> Tensor:
        kept.append(compute())
        return kept[-1]

    policy.logits = logits  # type: ignore[method-assign]
    return kept


def comparisons(quick: bool) -> Iterator[Comparison]:
    """AD in both token layouts and RA-DT, at the paper's size and at that of the demo."""
    large = {"width": 32, "layers": 2, "heads": 2} if quick else {"width": 512, "layers": 4, "heads": 8}
    small = {"width": 16, "layers": 1, "heads": 2} if quick else {"width": 64, "layers": 2, "heads": 4}
    rows = 3 if quick else 20
    room = {"width": 6, "height": 5} if quick else {"width": 10, "height": 10}
    for size in (large, small):
        for tokens in ("merged", "interleaved"):
            yield distillation({**size, "tokens": tokens}, rows, room)
    for size in (large, small):
        yield retrieval(size, rows, room)


def size_text(network: dict[str, Any]) -> str:
    """E.g. d512 L4."""
    return f"d{network['width']} L{network['layers']}"


def distillation(network: dict[str, Any], rows: int, room: dict[str, int]) -> Comparison:
    """AD: a whole episode with the one before it in front."""
    settings = settings_of("ad", network, room)
    model = ad.build_network(settings, facts_of(settings.environment)).eval()
    play = Play(ad.DistillationPolicy(model, settings), settings, rows, 16)
    play.steps(play.horizon)
    horizon = play.horizon
    spots = sorted({horizon // 8, 3 * horizon // 8, 5 * horizon // 8, 7 * horizon // 8})
    plain = PlainDistillation(model, play.trace)

    def ours() -> None:
        play.steps(horizon)

    def theirs() -> None:
        for spot in spots:
            plain.logits(0, max(play.number - 1, 1), spot)

    def difference() -> float:
        twin = lively(ad.build_network(settings, facts_of(settings.environment)).eval())
        few = min(rows, 3)
        check = Play(ad.DistillationPolicy(twin, settings), settings, few, 3)
        kept = recording(check.policy)
        check.steps(2 * horizon + 3)
        reference = PlainDistillation(twin, check.trace)
        pairs = [(row, 1, step) for row in (0, few - 1) for step in (0, *spots)] + [(1, 2, 2)]
        return max(
            float((kept[number * horizon + step][row] - reference.logits(row, number, step)).abs().max())
            for row, number, step in pairs
        )

    is_as_released = network["tokens"] == "interleaved"
    released = f"ad_d{network['width']}_acting" if is_as_released else ""
    return Comparison(
        work=f"evaluating AD, {rows} tasks, {size_text(network)}, {network['tokens']} tokens",
        unit="env steps",
        plain="one task, all encoded at every step",
        ours=Side(ours, rows * horizon, once=True),
        against=Side(theirs, len(spots)),
        difference=difference,
        tolerance=1e-4,
        goal=Goal(50),
        rounds=3,
        released=released,
        notes=(f"batch 1 was timed at {len(spots)} steps spread over an episode, and scaled",),
    )


def radt_policy(settings: Settings) -> radt.RetrievalPolicy:
    """An untrained policy whose embedder is an untrained DT of the same size."""
    facts = facts_of(settings.environment)
    network = settings.method.hyperparameters.network.model_dump(include={"width", "layers", "heads", "tokens"})
    embedder = dt.build_network(settings_of("dt.embedder", network, settings.environment.options), facts)
    assert settings.method.memory is not None
    frozen = DomainSpecificEmbedder(embedder, settings.method.memory, "float32")
    return radt.RetrievalPolicy(radt.build_network(settings, facts).eval(), frozen, settings)


def at_random(play: Play, steps: int) -> None:
    """Play without asking the network; what ends is remembered as usual."""
    policy = play.policy
    policy.logits = lambda: torch.zeros(play.rows, policy.no_action)  # type: ignore[method-assign]
    play.steps(steps)
    del policy.logits


def retrieval(network: dict[str, Any], rows: int, room: dict[str, int]) -> Comparison:
    """RA-DT: single steps in the middle of the fourth episode."""
    settings = settings_of("radt", {**network, "tokens": "interleaved"}, room)
    policy = radt_policy(settings)
    play = Play(policy, settings, rows, 5)
    assert settings.method.memory is not None
    chosen, memory = settings.method.hyperparameters, settings.method.memory
    middle = 3 * play.horizon // 4
    at_random(play, 3 * play.horizon + middle)
    play.steps(1)  # the policy now stands at step `middle` of its fourth episode; asking again gives the same
    embedder = policy.embedder
    assert isinstance(embedder, DomainSpecificEmbedder)
    plain = PlainRetrieval(policy.network, embedder, chosen, memory, play.trace, 3)
    plain.fill(0)

    @torch.no_grad()
    def ours() -> None:
        policy.changed_B[:] = True  # every row reads another window than at the step before
        policy.logits()

    @torch.no_grad()
    def difference() -> float:
        twin = radt_policy(settings)
        lively(twin.network)
        few = min(rows, 3)
        check = Play(twin, settings, few, 5)
        at_random(check, 2 * check.horizon)
        kept = recording(twin)
        check.steps(3)
        del twin.logits
        at_random(check, middle - 3)
        later = recording(twin)
        check.steps(2)
        assert isinstance(twin.embedder, DomainSpecificEmbedder)
        reference = PlainRetrieval(twin.network, twin.embedder, chosen, memory, check.trace, 2)
        worst = 0.0
        for row in (0, few - 1):
            reference.fill(row)
            for step, logits in [*enumerate(kept), (middle, later[0]), (middle + 1, later[1])]:
                worst = max(worst, float((logits[row] - reference.logits(row, step)).abs().max()))
        return worst

    return Comparison(
        work=f"evaluating RA-DT, {rows} tasks, {size_text(network)}, interleaved tokens",
        unit="env steps",
        plain="one task, all encoded at every step",
        ours=Side(ours, rows),
        against=Side(lambda: plain.logits(0, middle), 1),
        difference=difference,
        tolerance=1e-4,
        goal=Goal(50),
        rounds=3,
        released=f"radt_d{network['width']}_acting",
        notes=("one step in the middle of the fourth episode, where the window is full and all rows read anew",),
    )
