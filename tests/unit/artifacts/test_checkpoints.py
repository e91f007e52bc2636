"""Promises of checkpoints: bit-exact, the newest that verifies, the one before when it does not."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.artifacts.checkpoints import Checkpoints
from recollect.artifacts.sealed import manifest_path

TORCH_DTYPES = [
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.complex64,
]


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 5)])
def test_tensors_of_every_dtype_come_back_bit_exactly(
    dtype: torch.dtype, shape: tuple[int, ...], tmp_path: Path
) -> None:
    size = math.prod(shape) * torch.empty((), dtype=dtype).element_size()
    raw = torch.from_numpy(
        np.random.default_rng(0).integers(0, 2 if dtype == torch.bool else 256, size, dtype=np.uint8)
    )
    tensor = raw.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
    Checkpoints(tmp_path).save(1, {"t": tensor}, {})
    found = Checkpoints(tmp_path).newest()
    assert found is not None
    back = found.arrays["t"]
    assert back.dtype == dtype and back.shape == shape
    if size:
        np.testing.assert_array_equal(back.reshape(-1).view(torch.uint8).numpy(), raw.numpy())


def test_numpy_stays_numpy_tensors_stay_tensors_and_both_are_writable(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    arrays = {"n": np.array([2**62, -1]), "flag": np.bool_(True), "w": weight, "turned": weight.detach().T}
    Checkpoints(tmp_path).save(7, arrays, {})
    found = Checkpoints(tmp_path).newest()
    assert found is not None and found.step == 7
    assert isinstance(found.arrays["n"], np.ndarray) and found.arrays["n"].tolist() == [2**62, -1]
    assert found.arrays["flag"].dtype == bool and found.arrays["flag"].item() is True
    assert isinstance(found.arrays["w"], torch.Tensor) and torch.equal(found.arrays["turned"], weight.detach().T)
    found.arrays["n"][0] = 0
    found.arrays["w"].add_(1)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=20, deadline=None)
@given(state=st.dictionaries(st.text(), json_values, max_size=4))
def test_the_state_comes_back_exactly(state: dict, tmp_path_factory) -> None:
    checkpoints = Checkpoints(tmp_path_factory.mktemp("state"))
    checkpoints.save(0, {}, state)
    found = checkpoints.newest()
    assert found is not None and found.state == state


def test_a_generator_state_goes_on_with_the_same_draws(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    generator.random(5)
    Checkpoints(tmp_path).save(1, {}, {"generator": generator.bit_generator.state, "best": np.float32(0.1)})
    found = Checkpoints(tmp_path).newest()
    assert found is not None and np.float32(found.state["best"]) == np.float32(0.1)
    other = np.random.default_rng()
    other.bit_generator.state = found.state["generator"]
    np.testing.assert_array_equal(other.random(5), generator.random(5))


@pytest.mark.parametrize("state", [{"a": {1: "x"}}, {"a": np.zeros(2)}, {"a": {1, 2}}])
def test_a_state_that_json_would_change_is_refused(state: dict, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"state\.a"):
        Checkpoints(tmp_path).save(1, {}, state)
    assert Checkpoints(tmp_path).newest() is None


def fill(folder: Path, *steps: int) -> Checkpoints:
    checkpoints = Checkpoints(folder)
    for step in steps:
        checkpoints.save(step, {"x": np.full(10, step)}, {"step": step})
    return checkpoints


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_an_empty_or_missing_folder_gives_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none").newest() is None
    assert Checkpoints(tmp_path).newest() is None


def test_two_are_kept_and_the_newest_is_by_number_not_by_name(tmp_path: Path) -> None:
    checkpoints = fill(tmp_path, 999_998, 999_999, 1_000_000)
    assert checkpoints.steps() == [999_999, 1_000_000]
    assert len(list(tmp_path.iterdir())) == 4
    found = checkpoints.newest()
    assert found is not None and found.step == 1_000_000


@pytest.mark.parametrize("damage", ["flip", "cut", "no manifest", "other kind"])
def test_a_corrupted_newest_falls_back_to_the_one_before_and_says_so(damage: str, tmp_path: Path, caplog) -> None:
    checkpoints = fill(tmp_path, 10, 20)
    path = tmp_path / "step_000020.safetensors"
    if damage == "flip":
        flip(path, -1)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    elif damage == "no manifest":
        manifest_path(path).unlink()
    else:
        manifest_path(path).write_text(manifest_path(path).read_text().replace('"checkpoint"', '"policy"'))
    with caplog.at_level(logging.WARNING):
        found = checkpoints.newest()
    assert found is not None and found.step == 10 and found.state == {"step": 10}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "step_000020.safetensors" in caplog.text


def test_a_damaged_one_takes_the_place_of_none_that_can_be_used(tmp_path: Path) -> None:
    for step in (8, 10):
        Checkpoints(tmp_path).save(step, {"x": np.zeros(2)}, {})
    (tmp_path / "step_000010.safetensors").write_bytes(b"damaged")
    resumed = Checkpoints(tmp_path)
    newest = resumed.newest()
    assert newest is not None and newest.step == 8
    resumed.save(12, {"x": np.zeros(2)}, {})  # behind the damaged one
    assert resumed.steps() == [8, 12]
    manifest_path(tmp_path / "step_000012.safetensors").unlink()  # as a kill leaves it
    Checkpoints(tmp_path).save(14, {"x": np.zeros(2)}, {})
    assert resumed.steps() == [8, 14]


def test_one_that_is_made_again_in_the_place_of_a_damaged_one_is_kept(tmp_path: Path) -> None:
    fill(tmp_path, 8, 10)
    flip(tmp_path / "step_000010.safetensors", -1)
    resumed = Checkpoints(tmp_path)
    newest = resumed.newest()
    assert newest is not None and newest.step == 8
    for step in (10, 12):
        resumed.save(step, {"x": np.zeros(2)}, {})
    assert resumed.steps() == [10, 12]


def test_with_both_corrupted_there_is_none_and_two_warnings(tmp_path: Path, caplog) -> None:
    checkpoints = fill(tmp_path, 10, 20)
    for path in tmp_path.glob("*.safetensors"):
        flip(path, 30)
    with caplog.at_level(logging.WARNING):
        assert checkpoints.newest() is None
    assert len(caplog.records) == 2


def test_a_run_that_starts_again_is_not_outlived_by_later_steps_of_the_old_one(tmp_path: Path) -> None:
    checkpoints = fill(tmp_path, 500, 600, 5)
    found = checkpoints.newest()
    assert found is not None and found.step == 5
    assert checkpoints.steps() == [5]


def test_a_manifest_without_its_file_is_swept(tmp_path: Path) -> None:
    checkpoints = fill(tmp_path, 1, 2)
    (tmp_path / "step_000001.safetensors").unlink()
    checkpoints.save(3, {}, {})
    assert not (tmp_path / "step_000001.safetensors.manifest.json").exists()
    assert checkpoints.steps() == [2, 3]


def test_the_same_checkpoint_has_the_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        fill(tmp_path / name, 3)
    assert (tmp_path / "a/step_000003.safetensors").read_bytes() == (
        tmp_path / "b/step_000003.safetensors"
    ).read_bytes()
