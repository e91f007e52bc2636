"""Encoding part by part: what stands is not made again, what is damaged or of something else is, and the bytes agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.artifacts.sealed import read_manifest
from recollect.common.parts_on_disk import encode_in_parts, remove_parts

FRAMES = np.random.default_rng(0).integers(256, size=(11, 3, 2, 2), dtype=np.uint8)
KNOWN = {"settings": "these"}


class Encoder:
    """Sums of each image's channels; remembers how many images it saw at a time, and dies when told."""

    def __init__(self, die_at: int | None = None) -> None:
        self.seen: list[int] = []
        self.die_at = die_at

    def __call__(self, frames: np.ndarray) -> np.ndarray:
        if len(self.seen) == self.die_at:
            raise KeyboardInterrupt
        self.seen.append(len(frames))
        return frames.sum((2, 3)).astype(np.float32) / 7


def encoded(folder: Path, encoder: Encoder, **changed: Any) -> np.ndarray:
    return encode_in_parts(FRAMES, encoder, folder, **{"provenance": KNOWN, "rows": 4, **changed})


def test_parts_make_the_whole_and_are_removed_when_it_is_sealed(tmp_path: Path) -> None:
    encoder = Encoder()
    whole = encoded(tmp_path, encoder)
    assert isinstance(whole, np.memmap) and whole.shape == (11, 3) and whole.dtype == np.float32
    np.testing.assert_array_equal(whole, FRAMES.sum((2, 3)).astype(np.float32) / 7)
    assert encoder.seen == [4, 4, 3]
    assert len(list(tmp_path.iterdir())) == 2 * 3  # parts and their manifests; the whole has no name
    remove_parts(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_stopped_run_goes_on_with_the_part_that_was_being_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        encoded(tmp_path, Encoder(die_at=2))
    second = Encoder()
    assert encoded(tmp_path, second).tobytes() == encoded(tmp_path / "other", Encoder()).tobytes()
    assert second.seen == [3]
    assert "11/11" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["flipped", "cut", "without manifest"])
def test_a_damaged_part_is_made_again(tmp_path: Path, damage: str) -> None:
    expected = encoded(tmp_path, Encoder()).tobytes()
    part = sorted(tmp_path.glob("rows_*.safetensors"))[1]
    content = bytearray(part.read_bytes())
    if damage == "flipped":
        content[-1] ^= 1
        part.write_bytes(content)
    elif damage == "cut":
        part.write_bytes(content[:-4])
    else:
        part.with_name(part.name + ".manifest.json").unlink()
    encoder = Encoder()
    assert encoded(tmp_path, encoder).tobytes() == expected
    assert encoder.seen == [4]


def test_parts_of_other_settings_or_inputs_are_made_again(tmp_path: Path) -> None:
    encoded(tmp_path, Encoder())
    encoder = Encoder()
    encoded(tmp_path, encoder, provenance={"settings": "others"})
    assert encoder.seen == [4, 4, 3]


def test_parts_of_another_kind_are_made_again(tmp_path: Path) -> None:
    encoded(tmp_path, Encoder())
    encoder = Encoder()
    encoded(tmp_path, encoder, what="windows")
    assert encoder.seen == [4, 4, 3]
    kinds = {read_manifest(path)["kind"] for path in tmp_path.glob("*.safetensors")}
    assert kinds == {"vectors of windows"}
