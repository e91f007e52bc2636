"""What was made by hand or from Python has no record of Snakemake, and is made anew where it is not of today all the same."""

from __future__ import annotations

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
