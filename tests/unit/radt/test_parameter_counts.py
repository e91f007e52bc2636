"""Parameter counts of the published networks: recorded facts of RA-DT's grid configurations (specification section 9).

The specification gives 13.95 M for DT and 19.65 M for RA-DT, from terms rounded to 10 000; the tests spell the terms out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recollect.common.contract import facts_of
from recollect.radt import ad, dt, radt
from recollect.radt.memory_settings import MemorySettings
from recollect.settings.resolve import resolve
from recollect.settings.schema import EnvironmentSettings, MethodSettings, Settings

WIDTH, INNER, LAYERS, POSITIONS, TIMESTEPS, ACTIONS, BINS = 512, 2048, 4, 1600, 1000, 5, 100
NORM = 2 * WIDTH


def linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


SELF_ATTENTION = linear(WIDTH, 3 * WIDTH) + linear(WIDTH, WIDTH) + NORM
MLP = linear(WIDTH, INNER) + linear(INNER, WIDTH) + NORM
BLOCK = SELF_ATTENTION + MLP
CROSS_ATTENTION = linear(WIDTH, WIDTH) + linear(WIDTH, 2 * WIDTH) + linear(WIDTH, WIDTH) + NORM
TABLES = (POSITIONS + TIMESTEPS) * WIDTH
# State, action (with its padding row) and reward, and the LayerNorm of the tokens.
MODALITIES = linear(2, WIDTH) + (ACTIONS + 1) * WIDTH + linear(1, WIDTH) + NORM
ACTION_HEAD = linear(WIDTH, ACTIONS)
BACKBONE = LAYERS * BLOCK + NORM + TABLES + MODALITIES + ACTION_HEAD

EXPECTED = {
    # Return-to-go is one linear number in DT's released configuration, and absent in AD's.
    "dt": BACKBONE + linear(1, WIDTH),
    "ad": BACKBONE,
    # RA-DT bins it: a table here, a table for the context, and a head that predicts the bin (the return-to-go loss).
    "radt": BACKBONE
    + BINS * WIDTH
    + LAYERS * CROSS_ATTENTION
    + (TABLES + MODALITIES + BINS * WIDTH)
    + linear(WIDTH, BINS),
}
MODULES: dict[str, Any] = {"dt": dt, "ad": ad, "radt": radt}


def counted(settings: Settings) -> int:
    network = MODULES[settings.method.algorithm].build_network(settings, facts_of(settings.environment))
    return sum(parameter.numel() for parameter in network.parameters())


def test_the_terms_are_those_of_the_specification() -> None:
    assert round(LAYERS * BLOCK / 1e6, 2) == 12.61
    assert round(BLOCK / 1e6, 3) == 3.152
    assert round(POSITIONS * WIDTH / 1e6, 2) == 0.82
    assert round(LAYERS * CROSS_ATTENTION / 1e6, 2) == 4.21
    assert round((TABLES + MODALITIES + BINS * WIDTH) / 1e6, 2) == 1.39  # the context's own embeddings
    assert round(TABLES / 1e6, 2) == 1.33
    assert round(2 * BINS * WIDTH / 1e6, 2) == 0.10  # "RTG tables": the policy's and the head


@pytest.mark.parametrize(
    ("method", "exact", "specified"),
    [("dt", 13_952_005, 13.95), ("ad", 13_950_981, 13.95), ("radt", 19_649_129, 19.65)],
)
def test_default_hyperparameters_give_the_published_networks(method: str, exact: int, specified: float) -> None:
    settings = Settings(
        scale="paper",
        seed=0,
        environment=EnvironmentSettings(name="dark_room_10x10", world="dark_room"),
        method=MethodSettings(
            name=method,
            algorithm=method,
            data="histories",
            memory=MemorySettings(embedder="method:dt") if method == "radt" else None,
            hyperparameters=MODULES[method].Hyperparameters(),
        ),
    )
    assert counted(settings) == EXPECTED[method] == exact
    assert round(exact / 1e6, 2) == specified


@pytest.mark.parametrize("method", ["dt", "ad", "radt", "radt_agnostic"])
def test_the_paper_scale_is_those_networks(method: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_CONFIG", str(root / "config"))
    settings = resolve("paper", "dark_room_10x10", method, 42)
    assert counted(settings) == EXPECTED[settings.method.algorithm]
