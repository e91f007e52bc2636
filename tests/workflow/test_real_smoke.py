"""The whole workflow with the real commands, at smoke scale: minutes, so run by `make test-all`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser import Unavailable, browser

from recollect.artifacts.sealed import verify
from recollect.settings.loading import read_yaml

pytestmark = pytest.mark.slow
RUN = Path("results/smoke/runs/dark_room_10x10/dt/seed_0")
CHECKPOINTS = Path("results/smoke/checkpoints/dark_room_10x10/dt/seed_0")


def test_smoke_makes_every_default_figure_and_the_report_and_stays_done(
    real_workflow: Callable[[str], Any], tmp_path: Path
) -> None:
    workflow = real_workflow("smoke")
    all_of_it = ["--config", "scale=smoke", "figures=demo_all", "--", "all", "report"]
    done = workflow.run("recollect", "warm", "snakemake", "--cores", "2", *all_of_it, timeout=1800)
    assert re.search(
        r"^To do: about \d+ min of CPU time\. `recollect forecast --scale smoke demo_all` says of what\.$",
        done.stdout,
        re.MULTILINE,
    )
    default = read_yaml(workflow.folder / "config/config.yaml")["sets"]["demo_all"]
    figures = workflow.folder / "results/smoke/figures"
    assert sorted(path.stem for path in figures.glob("*.pdf")) == sorted(default)
    about = {name: json.loads((figures / f"{name}.json").read_text()) for name in default}
    assert all(one["wiring_test"] and "SMOKE" in one["caption"] for one in about.values())
    assert workflow.planned(*all_of_it) == []
    check_report(workflow.folder, len(default), tmp_path)

    log = (workflow.folder / "logs/smoke/dark_room_10x10/radt/seed_0/run.log").read_text()
    assert log.startswith("$ recollect run --scale smoke --env dark_room_10x10 --method radt --seed 0")

    # A damaged policy stops what reads it with one message; nothing half-written is left.
    policy = workflow.folder / "results/smoke/runs/dark_room_10x10/dt/seed_0/policy.safetensors"
    policy.write_bytes(policy.read_bytes()[:-1] + b"x")
    said = workflow.snakemake("--cores", "1", "--show-failed-logs", *all_of_it, check=False)
    assert re.search(r"error: .*\n  where: .*dt/seed_0/policy\.safetensors\n  to do: ", said)
    assert "Traceback" not in said
    verify(workflow.folder / "data/smoke/dark_room_10x10/radt/embeddings.safetensors", kind="embeddings")


def check_report(folder: Path, figures: int, scratch: Path) -> None:
    """The report that the rule made: in a browser, where one is to be had, every figure decodes and every run has its row."""
    file = folder / "results/smoke/report.html"
    runs = {path.parent for path in (folder / "results/smoke/runs").rglob("scores.parquet")}
    page = file.read_text()
    assert page.count("<figcaption>") == figures and page.count("<tr data-words=") == len(runs)
    try:
        with browser(scratch / "browser") as tab:
            tab.open(file)
            tab.wait("[...document.images].every((image) => image.complete)")
            assert tab.evaluate("[...document.images].filter((image) => image.naturalWidth > 300).length") == figures
            shown = "[...document.querySelectorAll('tbody tr')].filter((row) => row.offsetHeight > 0).length"
            assert tab.evaluate(shown) == min(len(runs), 200)
            assert [url for url in tab.requests if not url.startswith(("file:", "data:"))] == [] == tab.errors
    except Unavailable as error:
        warnings.warn(f"the report was not opened: {error}", stacklevel=1)


def test_a_killed_scheduler_loses_nothing(real_workflow: Callable[[str], Any]) -> None:
    """SIGKILL of Snakemake in the middle of a training; the next call resumes and ends with the same bytes."""
    target = str(RUN / "policy.safetensors")
    whole = real_workflow("whole")
    whole.snakemake("--cores", "2", target)

    killed = real_workflow("killed")
    process = subprocess.Popen(
        ["snakemake", "--cores", "2", target],
        cwd=killed.folder,
        env=killed.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 300
    while not list((killed.folder / CHECKPOINTS).glob("step_*.safetensors.manifest.json")):
        assert process.poll() is None and time.monotonic() < deadline, "it ended before its first checkpoint"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (killed.folder / target).exists(), "too late: the run had ended"
    time.sleep(3)  # its job notices that the scheduler is gone, and lets go of the run's lock

    killed.snakemake("--cores", "2", "--show-failed-logs", target)
    assert (
        "going on from the checkpoint" in (killed.folder / "logs/smoke/dark_room_10x10/dt/seed_0/run.log").read_text()
    )
    for name in ("policy.safetensors", "policy.safetensors.manifest.json", "train.parquet"):
        assert (killed.folder / RUN / name).read_bytes() == (whole.folder / RUN / name).read_bytes(), name
