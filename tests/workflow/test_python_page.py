"""The page about Python and the notebook run as they stand, from top to bottom, in a folder of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "python.md"
NOTEBOOK = ROOT / "docs" / "notebooks" / "first_steps.ipynb"


def run_in(folder: Path, blocks: list[str]) -> str:
    """Execute blocks of code one after the other, in one process, in a folder with a configuration above it."""
    shutil.copytree(ROOT / "config", folder / "config")
    (folder / "notebooks").mkdir()
    (folder / "blocks.py").write_text("\n\n".join(blocks), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RECOLLECT_")}
    environment |= {"MINARI_DATASETS_PATH": str(folder / "datasets"), "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(folder / "blocks.py")],
        cwd=folder / "notebooks",
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "results" / "smoke" / "runs").is_dir() and not list((folder / "notebooks").iterdir())
    return done.stdout


@pytest.mark.slow
def test_the_page_runs_from_top_to_bottom(tmp_path: Path) -> None:
    pytest.importorskip("minari")
    pytest.importorskip("h5py")
    page = PAGE.read_text(encoding="utf-8")
    for name, content in re.findall(r"^```yaml\n# (\S+)\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 8
    run_in(tmp_path, [*blocks, "print(len(steps.returns), learner)"])


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    blocks = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    said = run_in(tmp_path, [*blocks, "print(len(steps.returns), other)"])
    assert said.strip() == "4 Run('smoke', 'dark_room_10x10', 'radt.query_dropout=0.5', 0)"


def test_the_notebook_was_run_and_names_no_path_of_a_machine() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] or "axes =" not in "".join(cell["source"]) for cell in cells)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])
    assert not re.findall(r"(?<![\w.])/(?:work|home|root|tmp|Users|opt)/", text)
