"""Parts of AMAGO's newer released code that are options here, against numbers of that code: amago_head.json says which and how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect.amago.timestep_encoders import InputSettings, Steps, StepShape, make_timestep_encoder
from recollect.amago.trajectory_encoders import turned

ACTIONS = 5
RECORDED = json.loads(Path(__file__).with_name("amago_head.json").read_text())


@pytest.fixture(scope="module")
def found() -> dict[str, torch.Tensor]:
    """The same weights and inputs, drawn in the same order, through our classes."""
    draws = np.random.default_rng(0)

    def drawn(*shape: int) -> Any:
        return torch.as_tensor(draws.normal(size=shape).astype(np.float32))

    settings = InputSettings(encoder="image", width=8, layout="head", cnn="gridworld")
    shape = StepShape(vector=0, kind="discrete", actions=ACTIONS, horizon=10, image=(4, 4, 3))
    encoder = make_timestep_encoder(settings, shape, seed=0).eval()
    encoder.load_state_dict({name: 0.2 * drawn(*value.shape) for name, value in encoder.state_dict().items()})
    image = torch.as_tensor(draws.integers(256, size=(2, 3, 4, 4, 3)).astype(np.uint8))
    time, rl2 = torch.zeros(2, 3, dtype=torch.long), 5 * drawn(2, 3, ACTIONS + 1)
    queries, times = drawn(2, 3, 2, 6), torch.as_tensor(draws.integers(500, size=(2, 3)))
    seen = Steps(vector=None, rl2=rl2, time=time, image=image)
    return {"encoder": encoder(seen).detach(), "rotary": turned(queries, times)}


@pytest.mark.parametrize("part", ["encoder", "rotary"])
def test_it_gives_what_the_released_class_gives(part: str, found: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(found[part], torch.tensor(RECORDED[part]), atol=5e-6, rtol=1e-5)
