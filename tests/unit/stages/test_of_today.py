"""Whatever reads finished runs says which of them are not of today's settings, code or inputs, and reads them all the same."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import fast_yaml
import made_results
import numpy as np
import pytest
from made_results import ROOM, SCALE, described, method_changed, write_run
from typer.testing import CliRunner

from recollect.artifacts.sealed import manifest_path, read_json, sha256_of, write_arrays, write_json, write_table
from recollect.artifacts.sealed import read_table as read
from recollect.cli import app
from recollect.settings import still
from recollect.stages import check, evaluate, paths
from recollect.stages.figure import figure, is_drawn
from recollect.stages.making import make_job
from recollect.stages.of_today import not_of_today, stale_words
from recollect.stages.plan import are_of_today, manifests_differ
from recollect.stages.stage import Job
from recollect.stages.table import STAGES

SEEDS = range(6)
SAID = f"5 of 6 runs are not of today's settings: {ROOM}/ad seeds 1 to 5."


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A figure of AD, six seeds, all of them scored."""

    def make() -> None:
        for seed in SEEDS:
            write_run(ROOM, "ad", seed)
        made_results.configure("few", [ROOM], ["ad"], SEEDS, kind="in_context_curve", options={"resamples": 100})

    return made_results.made_in(tmp_path_factory.mktemp("few"), make)


def scores() -> list[Path]:
    return [paths.scores(SCALE, ROOM, "ad", seed) for seed in SEEDS]


def about(name: str) -> Any:
    return read_json(paths.figure(SCALE, name, ".json"))


def one_retrained() -> None:
    method_changed("ad")
    write_run(ROOM, "ad", 0)


def test_a_figure_of_stale_runs_is_drawn_and_warns_of_them(few: str, caplog: pytest.LogCaptureFixture) -> None:
    one_retrained()
    with caplog.at_level(logging.WARNING, "recollect"):
        figure(SCALE, few)
    do = f"`recollect why --scale {SCALE} {few}` says what changed; `snakemake results/{SCALE}/figures/{few}.pdf` makes them anew."
    assert caplog.messages == [f"warning: {SAID} {do}"]
    known = about(few)
    assert known["warnings"][-1] == f"Stale when drawn: {SAID}" and known["caption"].endswith(known["warnings"][-1])


@pytest.mark.slow
def test_a_figure_of_runs_of_today_says_nothing_of_it(few: str, caplog: pytest.LogCaptureFixture) -> None:
    figure(SCALE, few)
    assert not caplog.messages and not [note for note in about(few)["warnings"] if "today" in note]
    assert is_drawn(SCALE, few)


def test_manifests_of_runs_and_figures_say_whether_their_settings_are_those_of_today(few: str) -> None:
    figure(SCALE, few)
    drawn = [paths.figure(SCALE, few, ".pdf")]
    assert not manifests_differ([*scores(), *drawn], SCALE)
    one_retrained()
    assert not manifests_differ(scores()[:1], SCALE) and manifests_differ(scores()[1:2], SCALE)
    assert not manifests_differ(drawn, SCALE)
    path = Path(f"config/figures/{few}.yaml")
    path.write_text(path.read_text().replace("resamples: 100", "resamples: 101"))
    assert manifests_differ(drawn, SCALE)


@pytest.mark.slow
def test_a_figure_that_warns_is_of_today_only_as_long_as_its_warning_is_true(few: str) -> None:
    before = Path("config/methods/ad.yaml").read_text()
    one_retrained()
    figure(SCALE, few)
    assert is_drawn(SCALE, few)
    Path("config/methods/ad.yaml").write_text(before)
    assert not is_drawn(SCALE, few)


def test_a_figure_drawn_before_a_setting_of_its_runs_changed_is_not_drawn_anew_by_that_alone(few: str) -> None:
    figure(SCALE, few)
    method_changed("ad")
    assert is_drawn(SCALE, few)


def test_other_code_is_named(few: str) -> None:
    manifest = manifest_path(scores()[3])
    text = re.sub(r'  "seal": "\w+",\n', "", manifest.read_text())
    manifest.write_text(re.sub(r'"code": "\w+"', '"code": "0123456789abcdef"', text))
    assert stale_words(scores()) == f"1 of 6 runs is not of today's code: {ROOM}/ad seed 3."


def test_what_runs_were_made_of_counts_too(few: str) -> None:
    histories = paths.histories(SCALE, ROOM)
    write_arrays(histories, {"a": np.zeros(3)}, kind="histories", provenance=described("generate", SCALE, ROOM, ""))
    inputs = {histories.as_posix(): sha256_of(histories)}
    for path in scores()[:2]:
        made = {**described("evaluate", SCALE, ROOM, "ad"), "inputs": inputs}
        write_table(path, read(path), kind="scores", provenance=made)
    assert not_of_today(scores()) == {}
    write_arrays(histories, {"a": np.ones(3)}, kind="histories", provenance=described("generate", SCALE, ROOM, ""))
    assert stale_words(scores()) == f"2 of 6 runs are not of today's inputs: {ROOM}/ad seeds 0 and 1."
    write_arrays(histories, {"a": np.zeros(3)}, kind="histories", provenance=described("generate", SCALE, ROOM, ""))
    path = Path(f"config/environments/{ROOM}.yaml")
    content = fast_yaml.load(path.read_text())
    content["source"]["hyperparameters"]["entropy"] = 0.0123
    path.write_text(fast_yaml.dump(content))
    assert {frozenset(parts) for parts in not_of_today(scores()[:2]).values()} == {frozenset({"settings"})}
    histories.unlink()
    manifest_path(histories).unlink()
    assert not_of_today(scores()) == {}  # what is not here says nothing


@pytest.mark.parametrize(
    "job",
    [
        Job("generate_task", "paper", "meta_world", task="0"),
        Job("train_images", "paper", "procgen"),
        Job("embed_images", "paper", "procgen"),
        Job("train_vision_language", "demo", "tiles"),
        Job("embed_vocabulary", "demo", "tiles"),
    ],
    ids=lambda job: job.stage,
)
def test_data_of_other_code_that_snakemake_has_no_record_of_are_not_of_today(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, job: Job
) -> None:
    monkeypatch.setitem(vars(STAGES["train_images"]), "only", lambda *names: True)
    stage = STAGES[job.stage]
    for path in stage.inputs(job).values():
        write_json(path, {}, kind="input")
    today = stage.provenance(job)
    for code, is_of_today in ((today["code"], True), ("0123456789abcdef", False)):
        for path in stage.makes(job):
            write_json(path, {}, kind="made", provenance={**today, "code": code})
        assert are_of_today(stage.makes(job), job.scale) == is_of_today != manifests_differ(stage.makes(job), job.scale)


def test_what_was_only_fetched_counts_as_of_today_and_a_report_made_by_hand_does_not(workdir: Path) -> None:
    fetched, report = paths.model("bert-base-uncased"), paths.report("smoke")
    for path in (fetched, report):
        path.parent.mkdir(parents=True)
        path.touch()
    assert are_of_today([fetched, Path("not/there")], "smoke") and not are_of_today([report], "smoke")
    data = paths.published("dark_keydoor")
    write_json(data, {}, kind="published data")  # with a manifest that names neither settings nor code
    assert not manifests_differ([fetched, data, report], "smoke")


def test_python_makes_nothing_again_that_is_drawn_or_fetched(
    few: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    figure(SCALE, few)
    write_json(paths.published("dark_keydoor"), {}, kind="published data")  # of a commit that nothing pins
    monkeypatch.setattr("recollect.stages.making.maker", lambda *of: None)  # the runs are made up
    jobs = [Job("figure", SCALE, few), Job("fetch_data", "paper", "dark_keydoor")]
    with caplog.at_level(logging.INFO, "recollect"):
        for job in jobs:
            make_job(job, "cpu")
    assert caplog.messages == [f"{job}: kept, it is of today's settings, code and inputs" for job in jobs]


def test_all_seeds_of_a_run_are_asked_of_once(few: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    known = evaluate.STAGE.settings
    monkeypatch.setitem(vars(evaluate.STAGE), "settings", lambda *of: (asked.append(of), known(*of))[1])
    assert not_of_today(scores()) == {}
    assert asked == [(SCALE, ROOM, "ad")]


def test_the_command_claims_warns_beside_its_table(few: str) -> None:
    made_results.claim("rises", few)
    words = ["claims", "--scale", SCALE, "--figure", few]
    assert CliRunner().invoke(app, words, catch_exceptions=False).stderr == ""
    one_retrained()
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0 and "1 holds" in done.stdout and "not of today" not in done.stdout
    assert done.stderr.startswith(
        f"warning: {SAID} `recollect why --scale {SCALE} {few}` says what changed; `snakemake"
    )


def test_settings_that_snakemake_resolved_are_taken_where_nothing_changed_since(workdir: Path) -> None:
    check.KEPT.parent.mkdir()
    for change, taken in (("common", None), ("scale", None), ("", {"a": 1})):
        of_demo = {
            "scales": ["demo"],
            "state": check._of_scales(["demo"]) + change * (change == "scale"),
            "made": {"demo r": {"a": 1}},
        }
        state = check._common() + change * (change == "common")
        write_json(check.KEPT, {"state": state, "made": {"demo": of_demo}}, kind="resolved settings")
        with still.held_still():
            check.hand_over()
            assert still.prepared("demo r") == taken


def test_it_is_told_without_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, recollect.stages.of_today; print('torch' in sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "False\n"
