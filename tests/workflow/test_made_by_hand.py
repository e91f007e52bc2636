"""What was made by hand or from Python, or by a job that failed, is made anew where it is not of today all the same.

Of the first Snakemake has no record, or one of other files; of the last it keeps one that says nothing of the files.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
RUN = ["run", "--scale", "smoke", "--env", "tmaze_passive_5", "--method", "dqn_ff.own", "--seed", "0"]
FIGURE = """
kind: curve_panels
title: Own
category: Own
caption: By hand.
environments: [tmaze_passive_5]
methods: [dqn_ff.own]
seeds: [0]
"""
PDF = "results/smoke/figures/own.pdf"
ROOT = Path(__file__).resolve().parents[2]
# A job copies the settings of today into a file that has a manifest. It fails where there is a file `fail`, before or behind that.
TOY = f"""
import sys
from pathlib import Path

sys.path.insert(0, "{ROOT}/workflow")
import snakemake_internals


def is_of_today(files):
    return Path("made").read_text() == Path("settings").read_text()


snakemake_internals.make_anew_what_was_made_by_hand(is_of_today, lambda files, asked: not is_of_today(files))
snakemake_internals.keep_no_record_of_what_failed()


rule one:
    output:
        update(["made", "made.manifest.json"]),
    params:
        settings=Path("settings").read_text(),
    shell:
        "echo >> ran; touch made.manifest.json; test before != $(cat fail); cp settings made; test behind != $(cat fail)"
"""


class Toy:
    """A folder with that workflow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("Snakefile", TOY)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def snakemake(self, settings: str, *words: str, fail: str = "no") -> tuple[str, int]:
        """What the file holds after a run with such settings, and how often the job was run."""
        self.write("settings", settings)
        self.write("fail", fail)
        self.write("ran", "")
        command = [sys.executable, "-m", "snakemake", "--cores", "1", *words]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) == (fail != "no"), done.stderr
        assert "Cannot restore" not in done.stderr and (
            "Restored" not in done.stderr or "--keep-incomplete" not in words
        )
        return (self.folder / "made").read_text(), len((self.folder / "ran").read_text())


@pytest.mark.parametrize("words", [(), ("--keep-incomplete",)])
def test_old_results_are_not_those_of_a_job_that_failed_while_it_remade_them(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    toy = Toy(tmp_path)
    assert toy.snakemake("old", *words) == ("old", 1)
    assert toy.snakemake("new", *words, fail="before") == ("old", 1)
    assert toy.snakemake("new", *words) == ("new", 1)
    assert toy.snakemake("new", *words) == ("new", 0)


@pytest.mark.parametrize("words", [(), ("--keep-incomplete",)])
def test_what_a_failed_job_had_remade_is_kept_and_counts(tmp_path: Path, words: tuple[str, ...]) -> None:
    toy = Toy(tmp_path)
    toy.snakemake("old", *words)
    assert toy.snakemake("new", *words, fail="behind") == ("new", 1)
    assert toy.snakemake("new", *words) == ("new", 0)


def test_a_file_that_was_remade_by_hand_with_other_settings_is_made_anew_although_its_record_is_of_today(
    tmp_path: Path,
) -> None:
    toy = Toy(tmp_path)
    toy.snakemake("old")
    toy.write("made", "by hand")
    assert toy.snakemake("old") == ("old", 1)
    (tmp_path / "made").touch()
    assert toy.snakemake("old") == ("old", 0)


def test_runs_and_figures_made_by_hand_are_made_anew_when_their_settings_change(
    real_workflow: Callable[[str], Any],
) -> None:
    workflow = real_workflow("by_hand")

    def says(*words: str) -> str:
        return str(workflow.run(sys.executable, "-m", "recollect.cli", *words).stdout)

    method: Path = workflow.folder / "config/methods/dqn_ff.yaml"
    known = method.read_text()

    def rate(value: float) -> None:
        own = f"variants:\n  own: {{hyperparameters: {{learning_rate: {value}}}, subtitle: own}}\n"
        assert "variants:" not in known
        method.write_text(known + own)

    rate(0.001)
    (workflow.folder / "config/figures/own.yaml").write_text(FIGURE)
    says(*RUN)
    says("figure", "--scale", "smoke", "--figure", "own")
    drawn = (workflow.folder / PDF).with_suffix(".csv").read_bytes()
    assert "own (smoke): up to date" in says("why", "--scale", "smoke", "own")

    rate(0.1)
    said = says("why", "--scale", "smoke", "own")
    assert "own (smoke): 2 of 2 jobs would run" in said
    assert "learning_rate from 0.001 to 0.1" in said
    workflow.run("snakemake", "--cores", "1", PDF)
    assert (workflow.folder / PDF).with_suffix(".csv").read_bytes() != drawn
    assert "own (smoke): up to date" in says("why", "--scale", "smoke", "own")
