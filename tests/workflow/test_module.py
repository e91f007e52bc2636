"""Another workflow, in a folder of its own, uses this one as a module, as Snakemake's documentation says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

FIGURE = "results/smoke/figures/amago_dark_key_door.pdf"
OUTER = """
rule all:
    input:
        "paper.txt",

module recollect:
    snakefile:
        "{snakefile}"
    config:
        config["recollect"]

use rule * from recollect as recollect_*

rule paper:
    input:
        "{figure}",
    output:
        "paper.txt",
    shell:
        "cp {{input}} {{output}}"
"""


@pytest.mark.slow
def test_a_workflow_in_another_folder_uses_this_one_as_a_module(untouched: Any, tmp_path: Path) -> None:
    outer = type(untouched)(tmp_path / "outer", untouched.commands)
    outer.folder.mkdir()
    (outer.folder / "src").symlink_to(untouched.folder / "src")
    snakefile = untouched.folder / "workflow/Snakefile"
    (outer.folder / "Snakefile").write_text(OUTER.format(snakefile=snakefile, figure=FIGURE))
    (outer.folder / "config.yaml").write_text(yaml.safe_dump({"recollect": {"scale": "smoke"}}))
    said = outer.snakemake("--cores", "1", "--configfile", "config.yaml")
    assert "rule recollect_run:" in said and "localrule recollect_figure:" in said
    ran = outer.ran()
    assert ran[-1] == "figure amago_dark_key_door" and any(line.startswith("run amago") for line in ran)
    assert (outer.folder / "paper.txt").read_bytes() == (outer.folder / FIGURE).read_bytes()
    assert outer.planned("--configfile", "config.yaml") == []

    refused = outer.snakemake("--cores", "1", "--config", "recollect={scale: smoek}", check=False)
    assert "smoke" in refused and "Traceback" not in refused


def test_the_catalogue_finds_what_it_looks_for(root: Path) -> None:
    assert (root / "workflow/Snakefile").is_file() and (root / "config/README.md").is_file()
    usage = yaml.safe_load((root / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    assert usage["software-stack-deployment"] == {"conda": True, "apptainer": True, "apptainer+conda": False}
    assert usage["report"] is True and "min_version(" in (root / "Snakefile").read_text()
    assert "snakemake>=9.20,<" in (root / "pyproject.toml").read_text()


@pytest.mark.slow
def test_the_snakefile_where_the_catalogue_looks_plans_the_same_jobs(untouched: Any) -> None:
    arguments = ("--config", "scale=smoke", "--", "figures")
    assert untouched.planned("-s", "workflow/Snakefile", *arguments) == untouched.planned(*arguments) != []
