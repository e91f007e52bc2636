"""Checkpoints of a run: each one sealed file, the newest that verifies is used.

A checkpoint is one safetensors file with its manifest: arrays, and the rest of the state as JSON in the header. So there
is no pair of files that a kill could tear apart. The one before is kept until the new one is sealed, and one longer.
Should the newest not verify, that is reported and the one before is used.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recollect.artifacts.safetensors_format import map_arrays, read_header
from recollect.artifacts.sealed import MANIFEST_SUFFIX, manifest_path, remove_sealed, verify, write_arrays
from recollect.settings.errors import UserError

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)
KIND = "checkpoint"
KEPT = 2  # so that one corrupted file costs one interval and not the run
POLICIES = "policies"  # folder beside the checkpoints: policies that a run keeps by name
_FILE = re.compile(r"^step_(\d{6,})\.safetensors$")


@dataclass(frozen=True)
class Checkpoint:
    """What was saved at a step. Arrays are writable copies in memory: tensors as tensors (CPU), numpy as numpy."""

    step: int
    arrays: dict[str, Any]
    state: dict[str, Any]


def part(arrays: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The arrays of one part of a checkpoint: those named ``name/...``, without that prefix."""
    prefix = f"{name}/"
    return {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}


def joined(**parts: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of several parts, each part's under its name: what `part` takes apart."""
    return {f"{name}/{key}": value for name, arrays in parts.items() for key, value in arrays.items()}


class Checkpoints:
    """The checkpoints of one run in one folder: files ``step_000123.safetensors``.

    Args:
        folder: outside the declared outputs of a Snakemake rule, so that no clean-up takes it away.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._unusable: set[int] = set()  # steps of those that could not be read

    def save(self, step: int, arrays: dict[str, np.ndarray | torch.Tensor], state: dict[str, Any]) -> Path:
        """Seal one checkpoint (in the place of one of the same step), then remove those it replaces.

        Args:
            arrays: tensors on any device (any of torch's usual dtypes, bfloat16 included) and numpy arrays.
            state: JSON-able; keys are texts, tuples come back as lists, floats and large integers come back exactly.
        """
        if step < 0:
            raise ValueError(f"step must not be negative: {step}")
        plain: dict[str, np.ndarray] = {}
        dtypes: dict[str, str] = {}
        tensors = []
        for name, array in arrays.items():
            if isinstance(array, np.ndarray | np.generic):
                plain[name] = np.asarray(array)
                continue
            tensors.append(name)
            plain[name], is_bfloat16 = _from_torch(array)
            if is_bfloat16:
                dtypes[name] = "BF16"
        path = self._path(step)
        metadata = {"state": json.dumps(_jsonable(state, "state")), "tensors": json.dumps(sorted(tensors))}
        write_arrays(path, plain, kind=KIND, metadata=metadata, dtypes=dtypes)
        self._unusable.discard(step)
        self._prune(step)
        return path

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that verifies, or None. One that does not is reported by a logged warning."""
        for step in sorted(self.steps(), reverse=True):
            path = self._path(step)
            try:
                return self._read(step, path)
            except (UserError, OSError) as error:
                self._unusable.add(step)
                log.warning("this checkpoint cannot be used, trying the one before it: %s", error)
        return None

    def steps(self) -> list[int]:
        """The steps of the files that stand in the folder, ascending, verified or not."""
        if not self.folder.is_dir():
            return []
        matches = (_FILE.match(path.name) for path in self.folder.iterdir())
        return sorted(int(match.group(1)) for match in matches if match)

    def _path(self, step: int) -> Path:
        return self.folder / f"step_{step:06d}.safetensors"

    def _read(self, step: int, path: Path) -> Checkpoint:
        verify(path, kind=KIND)
        header = read_header(path)
        arrays: dict[str, Any] = {name: array.copy() for name, array in map_arrays(path, header).items()}
        try:
            state, tensors = json.loads(header.metadata["state"]), json.loads(header.metadata["tensors"])
            for name in tensors:
                arrays[name] = _to_torch(arrays[name], header.entries[name].dtype == "BF16")
        except (KeyError, ValueError) as error:
            do = "delete it; the run goes on from the one before"
            raise UserError("the file is not a checkpoint: its state is missing", where=path, do=do) from error
        return Checkpoint(step, arrays, state)

    def _prune(self, saved: int) -> None:
        """Keep the newest up to the saved step. Later steps belong to a past that this run does not continue."""
        steps = self.steps()
        # One without a manifest is what a kill left. Neither it nor a damaged one takes the place of one that can be used.
        whole = [step for step in steps if step not in self._unusable and manifest_path(self._path(step)).exists()]
        usable = [step for step in whole if step <= saved]
        for step in steps:
            if step not in usable[-KEPT:]:
                remove_sealed(self._path(step))
        # A manifest whose file a killed process removed just before it could remove the manifest.
        for manifest in self.folder.glob(f"step_*{MANIFEST_SUFFIX}"):
            owner = manifest.with_name(manifest.name.removesuffix(MANIFEST_SUFFIX))
            if not owner.exists() and manifest == manifest_path(owner):
                manifest.unlink(missing_ok=True)


def _from_torch(tensor: torch.Tensor) -> tuple[np.ndarray, bool]:
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a checkpoint holds numpy arrays and torch tensors, not {type(tensor).__name__}")
    whole = tensor.detach().cpu().contiguous()
    if whole.dtype == torch.bfloat16:
        return whole.view(torch.int16).numpy().view(np.uint16), True
    return whole.numpy(), False


def _to_torch(array: np.ndarray, is_bfloat16: bool) -> torch.Tensor:
    import torch

    if is_bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _jsonable(value: Any, where: str) -> Any:
    """The value in JSON's own types. JSON would turn a number as key into a text unsaid; here that is an error."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}: keys of a saved state are texts")
        return {key: _jsonable(inner, f"{where}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(inner, f"{where}[{index}]") for index, inner in enumerate(value)]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{where} is a {type(value).__name__}: put arrays among the arrays, the rest in JSON's types")
