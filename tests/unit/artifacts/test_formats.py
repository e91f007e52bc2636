"""What stands on disk is what its version number says: bytes that change without the number are found here."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch

from recollect.artifacts import formats
from recollect.artifacts.cadence import Cadence
from recollect.artifacts.checkpoints import Checkpoints
from recollect.artifacts.run import Run
from recollect.artifacts.scores import scores_frame
from recollect.artifacts.scoring import Scoring
from recollect.artifacts.sealed import manifest_path, write_arrays, write_json, write_table

ARRAYS = {
    "keys": np.arange(6, dtype=np.float32).reshape(2, 3),
    "task": np.array([3, 1], np.int32),
    "done": np.array([True, False]),
}


def scores() -> pd.DataFrame:
    return scores_frame(
        env="room", method="dt", seed=1, step=5, split="eval", task=0, episode=[0, 1], metric="return", value=[0.5, 1.0]
    )


def written(folder: Path) -> dict[str, Path]:
    """One file of each kind that is written."""
    write_arrays(folder / "arrays.safetensors", ARRAYS, kind="policy", provenance={"settings": "a"})
    write_json(folder / "value.json", {"b": [1, 2.5], "a": None}, kind="code")
    write_table(folder / "scores.parquet", scores(), kind="scores")
    state = {"counters": {"updates": 5}}
    checkpoint = Checkpoints(folder / "kept").save(5, {"w": torch.ones(2, dtype=torch.bfloat16), **ARRAYS}, state)
    run = Run(folder, folder / "run", settings_text="s", env="room", method="dt", seed=1)
    run.log(5, loss=0.25)
    run.save(5, {"w": torch.ones(2)}, state)
    scoring = Scoring(folder / "scoring", lambda: "s", Cadence(lambda: 0.0))
    scoring.part("eval 0").end(ARRAYS)
    scoring.save("eval 2", {"w": torch.ones(2, 3).T, **ARRAYS})
    return {
        "arrays": folder / "arrays.safetensors",
        "manifest": manifest_path(folder / "arrays.safetensors"),
        "json": folder / "value.json",
        "checkpoint": checkpoint,
        "run": folder / "run" / "step_000005.safetensors",
        "scoring": folder / "scoring" / "step_000001.safetensors",
    }


def table_layout(path: Path) -> str:
    """Columns, types and compression of a table. Its bytes name the version of the library that wrote it."""
    with pq.ParquetFile(path) as file:
        column = file.metadata.row_group(0).column(0)
        return f"{file.schema_arrow.remove_metadata()} {column.compression}"


#: Version -> sha256 of each kind of file. A change of bytes raises `formats.VERSION` and adds a line here.
#: One exception: manifests got their seal within version 1. It changes nothing of what they say, those without one are read
#: (test_sealed.py), and a new version would make everything again.
RECORDED: dict[int, dict[str, str]] = {
    1: {
        "arrays": "ace52554480dc460",
        "manifest": "ad66b0cea4d90674",
        "json": "33d7f6a50640c7ee",
        "checkpoint": "ee8866ae4d73550e",
        "run": "3e1b4f903e1321f0",
        "scoring": "1cf3f735343bcea6",  # new within version 1: no file of before is one
        "table": "ac4a38cbfb6de284",
    }
}


def test_the_bytes_of_every_kind_of_file_are_those_of_its_version(tmp_path: Path) -> None:
    found = {name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for name, path in written(tmp_path).items()}
    found["table"] = hashlib.sha256(table_layout(tmp_path / "scores.parquet").encode()).hexdigest()[:16]
    assert found == RECORDED[formats.VERSION], f"raise formats.VERSION and record: {json.dumps(found, indent=4)}"


def test_every_version_was_recorded_once() -> None:
    assert sorted(RECORDED) == list(range(1, formats.VERSION + 1))
    assert len({json.dumps(recorded, sort_keys=True) for recorded in RECORDED.values()}) == len(RECORDED)
