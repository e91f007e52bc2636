"""Another workflow, in a folder of its own, uses this one as a module, as Snakemake's documentation says it."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import shutil
from pathlib import Path
from typing import Any

import fast_yaml
import pytest

ROOT = Path(__file__).resolve().parents[2]
FIGURE = "results/smoke/figures/amago_dark_key_door.pdf"


@pytest.mark.slow
def test_a_workflow_in_another_folder_uses_this_one_as_a_module(untouched: Any, tmp_path: Path) -> None:
    """The example of docs/workflow.md."""
    page = (ROOT / "docs/workflow.md").read_text().split("## From another workflow")[1]
    example = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[0]
    outer = dataclasses.replace(untouched, folder=tmp_path / "outer")
    (outer.folder / ".snakemake").mkdir(parents=True)
    for path in (untouched.folder / ".snakemake").glob("recollect-settings.json*"):
        shutil.copy2(path, outer.folder / ".snakemake")  # the check of the configuration takes seconds
    (outer.folder / "src").symlink_to(untouched.folder / "src")
    example = example.replace("/path/to/recollect", str(untouched.folder))
    (outer.folder / "Snakefile").write_text(example)
    said = outer.snakemake("--cores", "1", "paper.pdf")
    assert "rule recollect_run:" in said and "localrule recollect_figure:" in said
    ran = outer.ran()
    assert ran[-1] == "figure amago_dark_key_door" and any(line.startswith("run amago") for line in ran)
    assert (outer.folder / "paper.pdf").read_bytes() == (outer.folder / FIGURE).read_bytes()
    assert "Nothing to be done" in outer.snakemake("--dry-run", "--cores", "1", "paper.pdf")

    (outer.folder / "Snakefile").write_text(example.replace('"smoke"}', '"smoek"}'))
    refused = outer.snakemake("--dry-run", "paper.pdf", check=False)
    assert "did you mean 'smoke'?" in refused and "Traceback" not in refused


def test_the_catalogue_finds_what_it_looks_for(root: Path) -> None:
    assert (root / "workflow/Snakefile").is_file() and (root / "config/README.md").is_file()
    usage = fast_yaml.load((root / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    assert usage["software-stack-deployment"] == {"conda": True, "apptainer": True, "apptainer+conda": False}
    assert usage["report"] is True and "min_version(" in (root / "Snakefile").read_text()
    assert "snakemake>=9.20,<" in (root / "pyproject.toml").read_text()


@pytest.mark.slow
def test_the_snakefile_where_the_catalogue_looks_plans_the_same_jobs(untouched: Any) -> None:
    arguments = ("--config", "scale=smoke", "--", "figures")
    assert untouched.planned("-s", "workflow/Snakefile", *arguments) == untouched.planned(*arguments) != []


def test_all_that_is_taken_from_inside_snakemake_is_used(root: Path) -> None:
    """Each is tried in a workflow of a few lines; a run that begins without one of them fails only where it is needed."""
    text = (root / "workflow/snakemake_internals.py").read_text()
    used = "".join((root / name).read_text() for name in ("Snakefile", "rules/common.smk"))
    offered = re.findall(r"^def ([a-z]\w+)", text, re.MULTILINE)
    assert len(offered) > 6 and not [name for name in offered if f"snakemake_internals.{name}" not in used]


def test_rules_are_not_planned_with_the_package_of_another_clone(root: Path, tmp_path: Path) -> None:
    specification = importlib.util.spec_from_file_location("own_package", root / "workflow/own_package.py")
    assert specification and specification.loader
    own_package = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(own_package)
    own_package.check(str(root))
    own_package.check(str(tmp_path))  # an installed package goes with a folder of rules alone
    (tmp_path / "src/recollect").mkdir(parents=True)
    with pytest.raises(SystemExit, match=r"(?s)the package of another place.*run `make setup` in that folder"):
        own_package.check(str(tmp_path))
