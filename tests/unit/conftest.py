"""Tiny in-context runs for unit tests: a small Dark-Room, networks of a few hundred weights, no files but in tmp_path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from recollect.artifacts.run import Run
from recollect.common.contract import Facts, facts_of
from recollect.common.histories import Histories
from recollect.common.language_models import load_language_model
from recollect.environments import parallel, registry
from recollect.radt import ad, dpt, dt, radt
from recollect.radt.decision_transformer import DecisionTransformer
from recollect.radt.embedders import DomainAgnosticEmbedder, DomainSpecificEmbedder, Embedder
from recollect.radt.memory_settings import MemorySettings
from recollect.settings.schema import (
    EnvironmentSettings,
    EvaluationSettings,
    LanguageModelSettings,
    MethodSettings,
    ReturnSettings,
    Settings,
)

MODULES: dict[str, Any] = {"dt": dt, "ad": ad, "dpt": dpt, "radt": radt, "radt_agnostic": radt}
NETWORK = {"width": 16, "layers": 2, "heads": 2, "observation_embedding": "one_hot", "positions": 160, "timesteps": 32}


@pytest.fixture(autouse=True)
def checkpoints_by_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine makes no checkpoint that a test does not ask for: clocks of runs stand still."""
    monkeypatch.setitem(Run.__init__.__kwdefaults__, "clock", lambda: 0.0)


@pytest.fixture
def in_other_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Let two other processes play the worlds of a kind from now on; at the end of the test they have, and they end."""

    def play(world: str) -> None:
        monkeypatch.setattr(registry.world_class(world), "slow", True)
        monkeypatch.setenv(parallel.VARIABLE, "2")

    yield play
    pool = parallel.pool()
    pids = pool.pids
    pool.close()
    assert len(pids) == 2


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs of a pretend GPU, one for each of their replays so far."""
    from benchmarks.gpu import pretend_graphs  # whose folder a test of a pretend GPU has put on the path

    found: list[Any] = []
    replay = pretend_graphs.Graph.replay
    monkeypatch.setattr(pretend_graphs.Graph, "replay", lambda graph: found.append(graph) or replay(graph))
    return found


class Tiny:
    """Builds settings, networks, policies and histories of one small room (4 x 3 cells, 12 steps an episode).

    Args:
        tokens: token layout of the networks and of the language model.
        horizon: steps of an episode; None: as many as cells.
    """

    def __init__(self, *, tokens: str = "merged", horizon: int | None = None, episodes: int = 3) -> None:
        options: dict[str, Any] = {"width": 4, "height": 3} | ({"horizon": horizon} if horizon else {})
        self.tokens = tokens
        self.environment = EnvironmentSettings(
            name="room",
            world="dark_room",
            options=options,
            returns=ReturnSettings(low=0, high=12, bins=12, target_mean=8, target_std=1),
            evaluation=EvaluationSettings(episodes=episodes),
        )

    @property
    def facts(self) -> Facts:
        return facts_of(self.environment)

    def settings(self, method: str, *, seed: int = 0, memory: dict[str, Any] | None = None, **chosen: Any) -> Settings:
        """Settings of a method; keywords are its hyperparameters."""
        module = MODULES[method]
        network = {**NETWORK, "tokens": self.tokens, **chosen.pop("network", {})}
        cut = {"stride": 4, "key_context": 8, "past": 4, "future": 4, "pooled_steps": 4}
        embedder = "lm:random" if method == "radt_agnostic" else "method:dt"
        return Settings(
            scale="tiny",
            seed=seed,
            environment=self.environment,
            method=MethodSettings(
                name=method,
                algorithm=module.__name__.rpartition(".")[2],
                data="histories",
                memory=MemorySettings(**{"embedder": embedder, "tokens": self.tokens, **cut, **(memory or {})})
                if module is radt
                else None,
                hyperparameters=module.Hyperparameters(
                    **{"context": 12 if method in ("dt", "ad", "dpt") else 6, "network": network, **chosen}
                ),
            ),
        )

    def network(self, settings: Settings, *, scale: float = 4.0) -> DecisionTransformer:
        """An untrained network with weights scaled up, so that what it sees decides what it does; in eval mode."""
        model: DecisionTransformer = MODULES[settings.method.name].build_network(settings, self.facts)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(scale)
            for name, parameter in model.named_parameters():
                if name.endswith("norm.weight") or ("norm_" in name and name.endswith("weight")):
                    parameter.fill_(1.0)
        return model.eval()

    def embedder(self, settings: Settings) -> Embedder:
        """The frozen embedder of a method's memory: a DT of this room, or the random language model."""
        memory = settings.method.memory
        assert memory is not None
        if memory.embedder.startswith("method:"):
            return DomainSpecificEmbedder(self.network(self.settings("dt", seed=5)), memory, "float32")
        return DomainAgnosticEmbedder(
            load_language_model(LanguageModelSettings(source="random")),
            memory,
            "float32",
            self.environment.returns,
            observation_values=self.facts.observation_values,
            observation_size=self.facts.observation_size,
            actions=self.facts.actions,
        )

    def policy(self, settings: Settings, *, scale: float = 4.0) -> Any:
        """A policy that acts, with a network as `network` makes it."""
        network = self.network(settings, scale=scale)
        kind = settings.method.name
        if kind == "dt":
            return dt.DecisionTransformerPolicy(network, settings)
        if kind == "ad":
            return ad.DistillationPolicy(network, settings)
        if kind == "dpt":
            return dpt.QueryPolicy(network, settings)
        return radt.RetrievalPolicy(network, self.embedder(settings), settings)

    def histories(
        self, *, tasks: int = 3, episodes: int = 4, lengths: tuple[int, ...] = (12,), seed: int = 0
    ) -> Histories:
        """Random histories of this room; episode i of a task has `lengths[i % len(lengths)]` steps."""
        draws = np.random.default_rng(seed)
        length = [lengths[i % len(lengths)] for i in range(episodes)]
        rows = sum(length)
        done = np.zeros(rows, bool)
        done[np.cumsum(length) - 1] = True
        return Histories(
            {
                "observation": np.concatenate([draws.integers((3, 4), size=(rows, 2)) for _ in range(tasks)]).astype(
                    np.int8
                ),
                "action": draws.integers(5, size=tasks * rows).astype(np.int8),
                "reward": draws.integers(2, size=tasks * rows).astype(np.float32),
                "done": np.tile(done, tasks),
                "task": np.repeat(np.arange(tasks, dtype=np.int32), rows),
                "episode": np.tile(np.repeat(np.arange(episodes, dtype=np.int32), length), tasks),
            }
        )


@pytest.fixture
def tiny() -> type[Tiny]:
    """The class `Tiny`."""
    return Tiny
