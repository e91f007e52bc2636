"""`recollect why` names one's own modules that changed, and calls made only what was made."""

from __future__ import annotations

import json
from pathlib import Path

import fast_yaml
import pytest

from recollect.artifacts.sealed import write_json
from recollect.settings.errors import UserError
from recollect.stages import paths, records, why
from recollect.stages.selection import check_targets
from recollect.stages.snakemake_records import record_path
from recollect.stages.stage import Job
from recollect.stages.table import STAGES
from recollect.stages.why import SNAPSHOTS, in_words, package

METHOD = """
from mine_of_why.helper import VALUE

Hyperparameters = train = load_policy = VALUE
"""
RUN = Job("run", "smoke", "tmaze_passive_5", "own_method", "0")


@pytest.fixture
def mine(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RECOLLECT_MINE", "mine_of_why")
    folder = workdir / "mine_of_why"
    folder.mkdir()
    (folder / "own_method.py").write_text(METHOD)
    (folder / "helper.py").write_text("VALUE = 1\n")
    return folder


@pytest.mark.slow
def test_own_modules_that_changed_are_named(mine: Path) -> None:
    (mine / "unfinished.py").write_text("def (\n")  # stops nothing that does not import it
    before = package()
    assert {"mine_of_why.own_method", "mine_of_why.helper", "recollect.radt.radt"} <= before.keys()
    write_json(SNAPSHOTS / "known.json", {"codes": ["then"], "modules": before}, kind="code")
    (mine / "helper.py").write_text("VALUE = 22\n")
    assert why._code_words(["mine_of_why.own_method"], "then") == "code changed: mine_of_why.helper"
    # Of a job by hand nothing was kept.
    assert why._code_words(["mine_of_why.own_method"], "by hand").endswith(
        "Snakemake did not run that job in this folder"
    )


def test_what_was_made_and_is_gone_is_told_from_what_was_never_made(workdir: Path) -> None:
    """By our record of a part of the job, or by Snakemake's of a file."""
    policy, _, scores = STAGES["run"].makes(RUN)
    assert in_words(RUN, "") == "never made"
    place = record_path(scores.as_posix())
    place.parent.mkdir(parents=True)
    place.write_text("{}")
    assert in_words(RUN, "") == f"missing: {scores} was made and is gone"
    write_json(records.place(RUN._replace(stage="train")), {}, kind=records.KIND)
    assert in_words(RUN, "") == f"missing: {policy} was made and is gone"


@pytest.mark.parametrize(
    ("settings", "said"),
    [("no JSON", "the manifest that says which cannot be read"), ('{"figure": {}}', "settings changed: ")],
)
def test_what_changed_of_a_figure_with_stand_ins_is_said_as_far_as_its_manifest_can_be_read(
    workdir: Path, settings: str, said: str
) -> None:
    job = Job("figure", "demo", "helm_minigrid")
    for path in STAGES["figure"].makes(job):
        write_json(path, {}, kind="figure", provenance={"settings": settings})
    assert said in str(in_words(job, "Params have changed since last execution"))


def test_a_damaged_file_is_told_with_its_seed_as_all_else_is(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(why, "stale", lambda scale, figures: {})
    monkeypatch.setattr(why, "_damage", lambda job: "it is damaged" if job.stage == "run" and job.seed == "1" else None)
    said = why.why("smoke", ["amago_dark_key_door"])
    assert "run amago_dark_key_door_3 amago_ff (seed 1): corrupted: it is damaged" in said


def test_the_first_six_of_the_seeds_that_have_one_reason_are_named_in_their_order() -> None:
    reasons: dict[Job, str | None] = {RUN._replace(seed=str(seed)): "never made" for seed in (10, 9, 100, 1, 30, 2, 20)}
    (line,) = why._grouped({**reasons, RUN._replace(seed="3"): None})
    assert line == "  run tmaze_passive_5 own_method (seeds 1, 2, 9, 10, 20, 30, ...): never made"


def test_a_wrong_claim_is_said_once_and_before_snakemake_plans(workdir: Path) -> None:
    path = workdir / "config/claims/ad_distance.yaml"
    content = fast_yaml.load(path.read_text())
    content["contrasts"] = [{**content["contrasts"][0], "margin": -5}]
    path.write_text(fast_yaml.dump(content))
    target = str(paths.FIGURE_FILES["pdf"]("paper", content["figure"]))
    for asked in (lambda: why.why("paper", [content["figure"]]), lambda: check_targets([target])):
        with pytest.raises(UserError) as raised:
            asked()
        assert raised.value.what == "'contrasts.0.margin' is -5: Input should be greater than or equal to 0"
        assert raised.value.do == "correct 'contrasts.0.margin'"


def test_of_snakemakes_words_the_last_whole_lines_are_shown_without_its_banner_or_a_traceback() -> None:
    said = "SNAKEMAKE\n=====\nBuilding DAG of jobs...\nError:\n  it broke\nTraceback:\n  File x"
    assert why._last_words(said) == "Error:\n  it broke"
    assert why._last_words("\n".join(map(str, range(30)))).splitlines() == [str(line) for line in range(10, 30)]


def test_tasks_that_have_one_reason_are_named_and_so_are_four_of_more_words() -> None:
    of_task = Job("generate_task", "paper", "meta_world")
    (line,) = why._grouped({of_task._replace(task=str(task)): "never made" for task in (10, 9)})
    assert line.endswith(" (tasks 9, 10): never made")
    assert why._first("abcd") == "a, b, c, d" and why._first("abcdef") == "a, b, c, d and 2 more"


@pytest.mark.parametrize("words", ["Updated input files", "Set of input files has changed since last execution"])
def test_an_input_that_changed_is_named(workdir: Path, words: str) -> None:
    stage = STAGES["figure"]
    job = Job("figure", "demo", "helm_minigrid")
    for path in stage.makes(job):
        write_json(path, {}, kind="figure")
    first = next(iter(stage.inputs(job).values())).as_posix()
    assert in_words(job, f"{words}: {first}") == f"an input changed: {first}"


def test_of_settings_the_changed_key_is_named_and_changed_code_beside_it(workdir: Path) -> None:
    stage = STAGES["train"]
    job = RUN._replace(stage="train", method="dqn_lstm")
    today = json.loads(stage.settings_text(job))
    changed = json.loads(json.dumps(today))
    changed["made_up"] = 3
    known = {"settings": json.dumps(changed, sort_keys=True), "code": "0123456789abcdef"}
    for path in stage.makes(job):
        write_json(path, {}, kind="made", provenance=known)
    settings, code = why._params(job)
    assert settings.startswith("settings changed: ") and "made_up" in settings and code.startswith("code changed; ")
