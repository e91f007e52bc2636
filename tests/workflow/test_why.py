"""`recollect why`: what is stale, in words. Real Snakemake and rules; a stand-in made the artifacts, whose manifests get the
provenance that the real commands write.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOM = "dark_room_7x7"
FIGURE = "radt_dark_room_10x10"
TRAIN = f"run {ROOM}"
# Run with the copy's own package: what the real commands would have written into the manifests.
SEAL = """
import json
from recollect.artifacts.sealed import manifest_path
from recollect.stages import paths
from recollect.stages.plan import plan
from recollect.stages.table import STAGES
steps = [step for job in plan("demo", ["radt_dark_room_10x10"]).needs for step in STAGES[job.stage].steps(job)]
for stage, job in steps:
    for path in stage.makes(job):
        manifest = manifest_path(path)
        known = json.loads(manifest.read_text())
        known["provenance"] = {"settings": stage.settings_text(job), "code": stage.code_text(job)}
        manifest.write_text(json.dumps(known))
"""


@pytest.fixture(scope="module")
def sealed_once(finished_once: tuple[Any, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A finished copy with manifests as the real commands write them."""
    workflow = copy_of(finished_once[0], tmp_path_factory.mktemp("why"))
    workflow.run(sys.executable, "-c", SEAL)
    return workflow


@pytest.fixture
def sealed(sealed_once: Any, tmp_path: Path) -> Any:
    return copy_of(sealed_once, tmp_path)


def copy_of(workflow: Any, folder: Path) -> Any:
    shutil.copytree(workflow.folder, folder / "repository", symlinks=True)
    return type(workflow)(folder / "repository", workflow.commands)


def why(workflow: Any, *figures: str, check: bool = True) -> str:
    """What `recollect why` says with the copy's package."""
    return str(workflow.run(sys.executable, "-m", "recollect.cli", "why", *figures, check=check).stdout)


@pytest.mark.slow
def test_of_what_is_done_it_says_so_and_words_change_nothing(sealed: Any) -> None:
    sealed.edit("src/recollect/radt/dt.py", '"""', '"""Other words. ')
    for path in [*sealed.folder.rglob("*.md"), *sealed.folder.rglob("*.yaml"), *sealed.folder.rglob("*.py")]:
        path.touch()
    assert why(sealed, FIGURE) == f"{FIGURE} (demo): up to date\n"


@pytest.fixture(scope="module")
def other_context(sealed_once: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """A copy in which a hyperparameter was changed, and what is said of it."""
    workflow = copy_of(sealed_once, tmp_path_factory.mktemp("context"))
    workflow.edit(
        "config/scales/demo.yaml", "context: 49, optimisation: {steps: 500}", "context: 48, optimisation: {steps: 500}"
    )
    return workflow, why(workflow, FIGURE)


@pytest.fixture(scope="module")
def other_loss(sealed_once: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """The same of a loss."""
    workflow = copy_of(sealed_once, tmp_path_factory.mktemp("loss"))
    with (workflow.folder / "src/recollect/radt/ad.py").open("a") as file:
        file.write("\nLOSS_SCALE = 2.0\n")
    return workflow, why(workflow, FIGURE)


@pytest.mark.slow
def test_a_changed_hyperparameter_is_named_with_both_values(other_context: tuple[Any, str]) -> None:
    workflow, said = other_context
    seeds = sorted(
        path.name.removeprefix("seed_") for path in (workflow.folder / f"results/demo/runs/{ROOM}/ad").iterdir()
    )
    assert (
        f"{TRAIN} ad (seeds {', '.join(seeds)}): settings changed: method.hyperparameters.context from 49 to 48" in said
    )
    assert "that read what those make: " in said and "1 figure" in said
    assert " dt " not in said and "generate" not in said


@pytest.mark.slow
def test_a_profile_that_groups_jobs_hides_none_of_them(other_context: tuple[Any, str]) -> None:
    workflow, said = other_context
    groups = "groups: [run=a_run, inspect=a_run]\n"
    (workflow.folder / "grouping").mkdir()
    (workflow.folder / "grouping/config.yaml").write_text(groups)
    environment = {**workflow.environment, "SNAKEMAKE_PROFILE": "grouping"}
    command = [sys.executable, "-m", "recollect.cli", "why", FIGURE]
    under = subprocess.run(command, cwd=workflow.folder, env=environment, capture_output=True, text=True, check=True)
    assert under.stdout == said and f"{TRAIN} ad" in said


@pytest.mark.slow
def test_a_changed_loss_is_named_by_its_module(other_loss: tuple[Any, str]) -> None:
    _, said = other_loss
    assert f"{TRAIN} ad" in said and "code changed: radt.ad\n" in said
    assert "settings changed" not in said and f"{TRAIN} radt" not in said


@pytest.mark.slow
def test_without_the_list_of_modules_it_says_that_it_does_not_know(other_loss: tuple[Any, str]) -> None:
    workflow, _ = other_loss
    snapshots = workflow.folder / ".snakemake/recollect-code"
    snapshots.rename(snapshots.with_name("elsewhere"))
    assert "code changed; which modules is not known" in why(workflow, FIGURE)


@pytest.mark.slow
def test_missing_is_told_from_never_made(sealed: Any) -> None:
    policy = f"results/demo/runs/{ROOM}/dt/seed_0/policy.safetensors"
    (sealed.folder / policy).unlink()
    (sealed.folder / f"results/demo/figures/{FIGURE}.csv").unlink()
    said = why(sealed, FIGURE)
    assert f"figure {FIGURE}: missing: results/demo/figures/{FIGURE}.csv was made and is gone" in said
    entry = "seeds: [{}]\n    environments: [dark_room_7x7]\n    methods: [radt, ad, ad.greedy, dt]"
    sealed.edit("config/scales/demo.yaml", entry.format("0, 1, 2, 3, 4"), entry.format("0, 77"))
    assert f"{TRAIN} dt (seed 77): never made" in why(sealed, FIGURE)


@pytest.mark.slow
def test_corruption_that_snakemake_does_not_see_is_named(sealed: Any) -> None:
    scores = sealed.folder / f"results/demo/runs/{ROOM}/dt/seed_0/policy.safetensors"
    content = scores.read_bytes()
    manifest = json.loads(scores.with_name(scores.name + ".manifest.json").read_text())
    assert manifest["size"] == len(content)
    figure = sealed.folder / f"results/demo/figures/{FIGURE}.png"
    figure.write_bytes(b"X" + figure.read_bytes()[1:])
    said = why(sealed, FIGURE)
    assert (
        f"figure {FIGURE}: corrupted: results/demo/figures/{FIGURE}.png" in said and "Delete what is corrupted" in said
    )


@pytest.mark.slow
def test_an_unknown_figure_is_refused(sealed_once: Any) -> None:
    said = why(sealed_once, "radt_dark_rom_10x10", check=False)
    assert "did you mean 'radt_dark_room_10x10'?" in said and "Traceback" not in said


@pytest.mark.slow
def test_the_plan_has_the_jobs_that_snakemake_would_run(sealed_once: Any) -> None:
    code = (
        "from recollect.stages.plan import plan\nfrom recollect.settings.resolve import names\n"
        "from recollect.stages.pairs import lacking_splits\n"
        "chosen = [n for n in names('figures') if n.startswith('radt_') or 'tmaze' in n or n == 'helm_memory']\n"
        "chosen = [n for n in chosen if not any(lacking_splits('smoke', n))]\n"  # which are refused there
        "found = plan('smoke', chosen)\n"
        "print('\\n'.join(['results/smoke/figures/' + n + '.pdf' for n in chosen]))\n"
        "print('\\n'.join(str(path) for path in found.files('page')))\n"
        "print(len(found.needs))"
    )
    *targets, count = sealed_once.run(sys.executable, "-c", code).stdout.split()
    assert len(sealed_once.planned("--", *targets)) == int(count) > 100
