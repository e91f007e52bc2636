"""Our Transformer-XL against what transformers 4.35.2 computed (its TransfoXLModel; later releases are broken or have none).

The file was recorded once: random weights of a model of width 16 under their published names, token ids, where memories were
set to zero, and the states at the last of 1, 2 or 4 new tokens, with a memory of 7 and distances clamped at 5.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from recollect.helm.language.published_transformer_xl import renamed
from recollect.helm.language.transformer_xl import TransformerXL, TransformerXLSettings, XLCache

RECORDED = Path(__file__).with_name("transfo_xl.safetensors")


@pytest.fixture(scope="module")
def arrays():
    return load_file(RECORDED)


@pytest.fixture(scope="module")
def model(arrays):
    with safe_open(RECORDED, framework="pt") as file:
        settings = TransformerXLSettings(**json.loads(file.metadata()["settings"]))
    published = {name.removeprefix("weights/"): value for name, value in arrays.items() if name.startswith("weights/")}
    made = TransformerXL(settings)
    made.load_state_dict({name: torch.from_numpy(value) for name, value in renamed(published, settings).items()})
    return made.eval().requires_grad_(False)


def test_token_embeddings_are_the_recorded_ones(model, arrays):
    torch.testing.assert_close(model.table(), arrays["table"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_history_vectors_are_the_recorded_ones(model, arrays, tokens):
    ids_TBK, done_TB, history_TBD = (arrays[f"{tokens}/{name}"] for name in ("ids_TBK", "done_TB", "history_TBD"))
    assert done_TB.any(0).all() and ids_TBK.shape[2] == tokens
    cache = XLCache(model, ids_TBK.shape[1], 7, tokens)
    for ids_BK, done_B, history_BD in zip(ids_TBK, done_TB, history_TBD, strict=True):
        torch.testing.assert_close(cache.read(model.table()[ids_BK.long()]), history_BD, rtol=0, atol=1e-5)
        cache.reset(done_B)


def test_the_records_are_sensitive_to_resets(model, arrays):
    ids_TBK, history_TBD = arrays["1/ids_TBK"], arrays["1/history_TBD"]
    cache = XLCache(model, ids_TBK.shape[1], 7)
    never = torch.stack([cache.read(model.table()[ids_BK.long()]) for ids_BK in ids_TBK])
    assert (never - history_TBD).abs().max() > 0.01
