"""Our CLIP against openai/CLIP's own classes, on small random weights.

The file was recorded once with clip/model.py of openai/CLIP at d05afc4 (torch 2.13, float32): `VisionTransformer` and the text
encoder of `CLIP`, width 8 with two heads, and `ModifiedResNet` of 1, 2, 1 and 1 blocks and width 2 with statistics that are not
those of the beginning. Weights, under their published names, are numbers that float16 holds; images are uint8 over 255.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from recollect.helm.vision.clip import Clip, ClipShape

TEXT = {"text_width": 8, "text_layers": 1, "vocabulary": 30, "context": 10}
SHAPES = {
    "vit": ClipShape(width=8, image_width=8, image_layers=2, patch=8, image_size=16, head=4, **TEXT),
    "rn": ClipShape(
        width=8, image_width=2, image_layers=(1, 2, 1, 1), image_size=64, head=32, **{**TEXT, "text_width": 32}
    ),
}


@pytest.fixture(scope="module")
def arrays() -> dict[str, Tensor]:
    return load_file(Path(__file__).with_name("helm_clip.safetensors"))


def clip(arrays: dict[str, Tensor], kind: str) -> Clip:
    weights = {}
    for name, value in arrays.items():
        if name.startswith(f"weights_{kind}/"):
            weights[name.removeprefix(f"weights_{kind}/").replace("visual/", "visual.")] = value.float()
    made = Clip(SHAPES[kind])
    absent, unknown = made.load_state_dict(weights, strict=False)
    left = [name for name in absent if name.startswith("visual") and not name.endswith("num_batches_tracked")]
    assert not unknown and not left and (kind == "rn" or set(absent) == {"logit_scale"})
    return made.eval().requires_grad_(False)


@pytest.mark.parametrize("kind", ["vit", "rn"])
def test_images_become_the_recorded_vectors(arrays: dict[str, Tensor], kind: str) -> None:
    found = clip(arrays, kind).images(arrays[f"{kind}/images"].float() / 255)
    assert found.abs().mean() > 0.1
    torch.testing.assert_close(found, arrays[f"{kind}/found"], rtol=0, atol=5e-6)


def test_texts_become_the_recorded_vectors_read_at_their_ends(arrays: dict[str, Tensor]) -> None:
    made = clip(arrays, "vit")
    found = made.texts(arrays["text/ids"], arrays["text/last"])
    torch.testing.assert_close(found, arrays["text/found"], rtol=0, atol=5e-6)
    one = made.texts(arrays["text/ids"][:1, :4], arrays["text/last"][:1])  # what stands behind the end is never seen
    torch.testing.assert_close(one, found[:1], rtol=0, atol=5e-6)
