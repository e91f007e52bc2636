"""What the tests of HELM's agents read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from recollect.artifacts.sealed import write_arrays
from recollect.common.contract import Inputs
from recollect.helm.vision.token_vocabulary import KIND
from recollect.helm.vision.vision_language import RandomModel


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    """A vocabulary of eight words of a random language model, with the random vision-language model's vectors."""
    strings = [f"word{i}" for i in range(8)]
    vectors = torch.nn.functional.normalize(RandomModel(32, 0, "cpu").texts(strings), dim=1).numpy()
    arrays = {"lm_ids": np.arange(40, 48), "embeddings": vectors}
    path = tmp_path / "words.safetensors"
    write_arrays(path, arrays, kind=KIND, metadata={"about": '{"strings": ' + str(strings).replace("'", '"') + "}"})
    return Inputs(token_vocabulary=path)
