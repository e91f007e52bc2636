"""What reruns and what does not: the real Snakemake on the real rules, with a stand-in for `recollect`."""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from recollect.settings.loading import read_yaml

BIN = Path(sys.executable).parent
FIGURE = "figure radt_dark_room_10x10"
CLAIMS = "claims radt_dark_room_10x10 radt_grid_worlds --write"
CHOICES = "figure radt_choice_of_actions"
ABLATIONS = "figure radt_ablations"
ROOM = "dark_room_7x7"
REPORT = "report radt_dark_room_10x10 radt_grid_worlds"


def of(commands: list[str], *patterns: str) -> list[str]:
    """The commands that any of the patterns matches whole."""
    return sorted(command for command in commands if any(re.fullmatch(pattern, command) for pattern in patterns))


def test_the_default_target_makes_every_default_figure_once_and_in_order(
    finished_once: tuple[Any, list[str]],
) -> None:
    workflow, ran = finished_once
    assert len(ran) == len(set(ran))
    default = read_yaml(workflow.folder / "config/config.yaml")["sets"]["demo_all"]
    assert FIGURE.split()[1] in default
    assert [c for c in sorted(ran) if c.startswith("figure")] == sorted(f"figure {name}" for name in default)
    for suffix in (".pdf", ".png", ".csv", ".json"):
        assert (workflow.folder / f"results/demo/figures/radt_dark_room_10x10{suffix}").is_file()


def test_the_longest_chain_goes_first(finished_once: tuple[Any, list[str]]) -> None:
    _, ran = finished_once
    chain = [
        f"generate {ROOM}",
        f"run {ROOM} dt 0",
        f"embed {ROOM} radt",
        f"index {ROOM} radt",
        f"run {ROOM} radt 0",
        "run tmaze_carried_\\d+ dqn_lstm 0 1 2 3 4",
        f"run {ROOM} ad 0",
    ]
    places = [next(i for i, command in enumerate(ran) if re.fullmatch(pattern, command)) for pattern in chain]
    assert places == sorted(places)
    histories = sum(command.startswith("generate") for command in ran)
    assert places[0] < histories and places[1] <= histories + 2  # there are two other worlds whose DT embeds


def test_a_second_run_does_nothing(untouched: Any) -> None:
    said = untouched.snakemake("--cores", "1")
    assert "Nothing to be done" in said
    assert untouched.ran() == []


@pytest.mark.slow
def test_garbage_is_looked_for_rarely_while_it_plans(untouched: Any) -> None:
    asks = untouched.folder / "asks.smk"
    asks.write_text('include: "Snakefile"\nimport gc\nprint("thresholds", *gc.get_threshold())\n')
    assert "thresholds 50000 " in untouched.snakemake("--snakefile", "asks.smk", "--list-rules")
    asks.unlink()


@pytest.mark.slow
def test_words_and_time_stamps_rerun_nothing(finished: Any) -> None:
    finished.edit("src/recollect/radt/dt.py", '"""', '"""Other words. ')
    finished.edit("src/recollect/memory_rl/dqn.py", '"""', '"""Other words. ')
    finished.edit("rules/run.smk", '"""', '"""Other words. ')
    for path in [
        *finished.folder.rglob("*.smk"),
        *finished.folder.rglob("*.yaml"),
        *finished.folder.rglob("*.parquet"),
    ]:
        path.touch()
    assert finished.planned() == []


@pytest.mark.slow
def test_an_edited_loss_retrains_what_uses_it_and_nothing_else(
    finished: Any, finished_once: tuple[Any, list[str]]
) -> None:
    with (finished.folder / "src/recollect/radt/dt.py").open("a") as file:
        file.write("\nLOSS_SCALE = 2.0\n")
    planned, everything = finished.planned(), finished_once[1]
    for pattern in (
        f"run {ROOM} dt .*",
        f"embed {ROOM} radt",
        f"index {ROOM} radt",
        f"run {ROOM} radt .*",
        FIGURE,
    ):
        assert of(planned, pattern) == of(everything, pattern) != []
    assert of(planned, "generate .*", ".*tmaze.*") == []


@pytest.mark.slow
def test_an_edited_online_method_leaves_the_offline_methods_alone(finished: Any) -> None:
    with (finished.folder / "src/recollect/memory_rl/dqn.py").open("a") as file:
        file.write("\nLOSS_SCALE = 2.0\n")
    planned = finished.planned()
    assert of(planned, "run tmaze_carried_.* dqn_.*")
    assert of(planned, f".*{ROOM}.*") == []


@pytest.mark.slow
def test_a_changed_hyperparameter_retrains_its_method_alone(
    finished: Any, finished_once: tuple[Any, list[str]]
) -> None:
    finished.edit(
        "config/scales/demo.yaml", "context: 49, optimisation: {steps: 500}", "context: 48, optimisation: {steps: 500}"
    )
    variant = f"evaluate {ROOM} ad.greedy .*"  # plays the policies of its method
    assert finished.planned() == of(finished_once[1], f"run {ROOM} ad .*", variant, FIGURE, CHOICES)


@pytest.mark.slow
def test_a_changed_evaluation_retrains_no_offline_method(finished: Any, finished_once: tuple[Any, list[str]]) -> None:
    """Its runs are jobs again, and so is what reads the policy of one; each command keeps what is of today, so none trains
    (tests/unit/stages/test_run.py).
    """
    finished.edit(f"config/environments/{ROOM}.yaml", "episodes: 40", "episodes: 39")
    jobs = (f"(run|evaluate|inspect|page) {ROOM} .*", f"(embed|index) {ROOM} radt", FIGURE, CHOICES, ABLATIONS)
    again = of(finished_once[1], *jobs)
    assert finished.planned() == again and not of(again, "generate .*")


@pytest.mark.slow
def test_a_changed_caption_redraws_only_its_figure(finished: Any) -> None:
    finished.edit("config/scales/demo.yaml", "title: Dark-Room 7×7, unseen goals", "title: Again")
    assert finished.planned() == [FIGURE]


@pytest.mark.slow
def test_an_added_seed_trains_alone(finished: Any) -> None:
    entry = "seeds: [0, 1, 2, 3, 4{}]\n    environments: [dark_room_7x7]\n    methods: [radt, ad, ad.greedy, dt]"
    finished.edit("config/scales/demo.yaml", entry.format(""), entry.format(", 77"))
    planned = finished.planned()
    methods = ("ad", "dt", "radt")
    played = f"evaluate {ROOM} ad.greedy 77"  # what AD learned, with another choice of actions
    assert planned == sorted([FIGURE, played, *(f"run {ROOM} {m} 77" for m in methods)])


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["pdf", "csv"])
def test_a_figure_with_a_deleted_file_is_redrawn_alone(finished: Any, suffix: str) -> None:
    (finished.folder / f"results/demo/figures/radt_dark_room_10x10.{suffix}").unlink()
    finished.snakemake("--cores", "1")
    assert finished.ran() == [FIGURE]


@pytest.mark.slow
def test_changed_bytes_of_an_artifact_reach_all_that_read_it(finished: Any) -> None:
    """Which then stops with the message of a corrupted file: a manifest says what the bytes were."""
    policy = finished.folder / f"results/demo/runs/{ROOM}/dt/seed_0/policy.safetensors"
    policy.write_bytes(b"corrupted")
    runs = [f"run {ROOM} radt {seed}" for seed in range(5)]
    assert set(finished.planned()) >= {f"embed {ROOM} radt", f"index {ROOM} radt", *runs, FIGURE}
    scores = finished.folder / f"results/demo/runs/{ROOM}/ad/seed_0/scores.parquet"
    scores.write_bytes(b"corrupted")
    assert not [job for job in finished.planned() if " ad " in job]


@pytest.mark.slow
def test_a_figure_or_page_that_cannot_be_made_anew_stays(finished: Any) -> None:
    shown = [f"results/demo/figures/radt_dark_room_10x10.{suffix}" for suffix in ("pdf", "png", "csv", "json")]
    shown.append(f"results/demo/inspect/{ROOM}/radt/seed_0.html")
    before = {name: (finished.folder / name).read_bytes() for name in shown}
    for name in ("scores.parquet", "trace.safetensors"):
        (finished.folder / f"results/demo/runs/{ROOM}/radt/seed_0" / name).write_bytes(b"corrupted")
    (finished.folder / "fails").write_text("figure page")
    said = finished.snakemake("--cores", "1", "--keep-going", check=False)
    assert "Error in rule figure" in said and "Error in rule page" in said
    assert {name: (finished.folder / name).read_bytes() for name in shown} == before
    (finished.folder / "fails").unlink()
    assert {FIGURE, f"page {ROOM} radt 0"} <= set(finished.planned())


@pytest.mark.slow
def test_what_is_only_touched_is_not_refused_for_its_hours(finished: Any) -> None:
    finished.edit(
        "config/scales/demo.yaml", "context: 49, optimisation: {steps: 500}", "context: 48, optimisation: {steps: 500}"
    )
    finished.snakemake("--touch", "--cores", "1", "--config", "hours=0.001")
    assert finished.ran() == finished.planned() == []


@pytest.mark.slow
def test_a_network_that_cannot_be_made_is_refused_before_its_histories_are(untouched: Any) -> None:
    said = untouched.snakemake("--cores", "1", "results/demo/figures/radt_efficiency.pdf", check=False)
    assert re.search(r"environment 'dark_room_.0x20' with method '\w+' at scale demo", said)
    assert "set network.timesteps to at least" in said
    assert untouched.ran() == []


@pytest.mark.quick("option0")
@pytest.mark.parametrize("option", [["--sdm=apptainer"], ["--use-singularity"], ["--sdm", "conda", "apptainer"]])
def test_jobs_are_not_run_outside_of_the_container_that_was_asked_for(untouched: Any, option: list[str]) -> None:
    assert "no container is named" in untouched.snakemake("--dry-run", *option, check=False)


@pytest.mark.slow
def test_one_figure_at_another_scale_is_a_target_of_its_own(untouched: Any) -> None:
    planned = untouched.planned("results/smoke/figures/memory_rl_passive_tmaze.pdf")
    assert planned and not of(planned, f".*{ROOM}.*")


def test_a_figure_of_traces_inspects_its_runs_and_nothing_else(untouched: Any) -> None:
    planned = untouched.planned("results/demo/figures/radt_visits.pdf")
    methods = ("ad", "dt", "radt", "radt_agnostic")
    new = [f"{stage} {ROOM} radt_agnostic" for stage in ("embed", "index", "run")]  # a method that was not drawn yet
    assert (
        planned
        == sorted(
            [
                "figure radt_visits",
                *(
                    f"inspect {ROOM} {m} {seed}" for m in methods for seed in (0, 1, 2) if (m, seed) != ("radt", 0)
                ),  # has a page
                *new[:2],
                *(f"{new[2]} {seed}" for seed in (0, 1, 2)),
            ]
        )
    )


@pytest.mark.slow
def test_a_variant_trains_what_differs_and_shares_the_rest(untouched: Any) -> None:
    runs = f"results/demo/runs/{ROOM}"
    assert untouched.planned(f"{runs}/radt.every_25/seed_0/scores.parquet") == [f"evaluate {ROOM} radt.every_25 0"]
    assert untouched.planned(f"{runs}/radt.task_weight_0/seed_0/scores.parquet") == [
        f"run {ROOM} radt.task_weight_0 0",
    ]
    own_memory = untouched.planned(f"{runs}/radt.pool_last/seed_0/policy.safetensors")
    assert own_memory == [
        f"{stage} {ROOM} radt.pool_last{seed}" for stage, seed in (("embed", ""), ("index", ""), ("run", " 0"))
    ]


@pytest.mark.slow
def test_speeds_are_measured_by_a_job_of_their_own(untouched: Any) -> None:
    assert untouched.planned(f"results/demo/speed/{ROOM}/radt/seed_0.parquet") == [f"measure {ROOM} radt 0"]


@pytest.mark.slow
def test_an_inspection_page_is_a_target_of_its_own(untouched: Any) -> None:
    planned = untouched.planned(f"results/demo/inspect/{ROOM}/radt/seed_1.html")
    assert planned == [f"inspect {ROOM} radt 1", f"page {ROOM} radt 1"]


@pytest.mark.slow
def test_the_default_target_is_named_all_and_follows_the_scale(untouched: Any) -> None:
    smoke = untouched.planned("--config", "scale=smoke")
    assert smoke == untouched.planned("smoke") != []
    assert FIGURE in smoke


@pytest.mark.slow
def test_a_scale_that_is_sized_for_one_figure_draws_that_alone(untouched: Any) -> None:
    planned = untouched.planned("--config", "scale=hour", "figures=headlines")
    assert of(planned, "figure .*") == ["figure radt_dark_room_10x10"] and not of(planned, ".*tmaze.*")


@pytest.mark.slow
def test_gpus_are_asked_for_at_paper_scale_only(untouched: Any) -> None:
    target = ["--", "results/paper/figures/radt_dark_room_10x10.pdf"]
    paper = untouched.snakemake("--dry-run", "--config", "seeds_together=1", *target)
    asked = dict(re.findall(r"^rule (\w+):.*?resources:[^\n]*gpu=(\d)", paper, re.MULTILINE | re.DOTALL))
    assert asked["run"] == "1"
    jobs = [job for job in re.split(r"\n(?=(?:local)?rule )", paper) if "env=dark_room_10x10, method=radt" in job]
    offline = re.findall(r"gpu=(\d)", "".join(jobs))
    assert offline and set(offline) == {"1"}
    two = "results/paper/runs/amago_dark_key_door/amago_transformer.devices=2/seed_0/policy.safetensors"
    assert set(re.findall(r"gpu=(\d)", untouched.snakemake("--dry-run", "--", two))) == {"2"}
    smoke = untouched.snakemake("--dry-run", "smoke")
    assert set(re.findall(r"gpu=(\d)", smoke)) == {"0"}


@pytest.mark.slow
def test_the_cluster_profile_plans_the_same_jobs(untouched: Any) -> None:
    assert untouched.planned("--profile", "cluster", "smoke") == untouched.planned("smoke")


@pytest.mark.quick("arguments0-did you mean 'radt_dark_room_10x10'?")
@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["results/demo/figures/radt_dark_rom_10x10.pdf"], "did you mean 'radt_dark_room_10x10'?"),
        (["--config", "scale=dmo"], "did you mean 'demo'?"),
        (["--config", "scael=demo"], "did you mean 'scale'?"),
    ],
)
def test_a_wrong_name_gives_one_message_with_the_nearest(untouched: Any, arguments: list[str], hint: str) -> None:
    done = untouched.run("snakemake", "--dry-run", *arguments, check=False)
    assert done.returncode != 0
    assert hint in done.stdout
    assert "Traceback" not in done.stdout and "rule " not in done.stdout


@pytest.mark.slow
def test_lint_and_formatter_find_nothing(untouched: Any) -> None:
    assert "Congratulations" in untouched.snakemake("--lint")
    untouched.run("snakefmt", "--check", "Snakefile", "rules")


@pytest.mark.slow
def test_the_report_is_made_of_the_selected_figures_and_again_when_one_changed(finished: Any) -> None:
    chosen = ("--config", "figures=[radt_dark_room_10x10,radt_grid_worlds]", "--", "report")
    finished.snakemake("--cores", "1", *chosen)
    assert finished.ran() == [CLAIMS, REPORT]
    assert finished.planned(*chosen) == []
    finished.edit("config/figures/radt_grid_worlds.yaml", "title: ", "title: Again, ")
    assert finished.planned(*chosen) == ["figure radt_grid_worlds", REPORT]  # no claim has another verdict


@pytest.mark.slow
def test_the_report_of_another_scale_has_the_pages_of_that_scale(untouched: Any) -> None:
    planned = untouched.planned("results/smoke/report.html")
    pages = untouched.planned("--config", "scale=smoke", "--", "pages")
    assert set(pages) < set(planned) and of(planned, "page .*") == of(pages, "page .*") != []
    assert "--scale demo" not in untouched.snakemake("--dry-run", "--forceall", "results/smoke/report.html")


@pytest.mark.slow
def test_the_report_has_the_inspection_pages_of_figures_of_traces(finished: Any) -> None:
    finished.snakemake("--cores", "1", "--config", "figures=radt_attention", "--", "report")
    room = f"{ROOM} radt"
    *before, last = finished.ran()
    assert last == "report radt_attention"
    assert set(before) == {
        "figure radt_attention",
        *(f"{stage} {room} {seed}" for stage in ("inspect", "page") for seed in (1, 2)),  # seed 0 has one by default
    }


@pytest.mark.slow
def test_snakemakes_own_report_shows_the_figures_with_their_captions(finished: Any) -> None:
    finished.snakemake("--report", "jobs.html")
    page = (finished.folder / "jobs.html").read_text()
    assert "radt_dark_room_10x10.png" in page
    assert "Evaluation starts with an empty memory" in page and "wiring test" not in page
    assert finished.ran() == []


@pytest.mark.slow
def test_snakemakes_own_report_says_so_where_numbers_mean_nothing(finished: Any) -> None:
    shutil.copy(finished.folder / "config/scales/smoke.yaml", finished.folder / "config/scales/toys.yaml")
    made = "results/toys/figures/radt_dark_room_10x10.png", "results/toys/inspect/dark_room_10x10/radt/seed_0.html"
    wanted = ("--config", "scale=toys", "--", *made)
    finished.snakemake("--cores", "1", *wanted)
    finished.snakemake("--report", "jobs.html", *wanted)
    assert (finished.folder / "jobs.html").read_text().count("SMOKE: wiring test, not a result") == 5


def leave_a_lock(folder: Path, host: str) -> Path:
    """What a Snakemake that was killed on a host leaves behind."""
    lock = folder / ".snakemake/locks/0.output.lock"
    lock.parent.mkdir(exist_ok=True)
    lock.write_text("results/demo/figures/radt_dark_room_10x10.pdf\n")
    (folder / ".snakemake/recollect-alive").write_text(f"{host} {lock.stat().st_mtime_ns} {lock.name}\n")
    (folder / "results/demo/figures/radt_dark_room_10x10.pdf").unlink(missing_ok=True)
    return lock


@pytest.mark.slow
def test_the_lock_of_a_killed_snakemake_is_no_hindrance(finished: Any) -> None:
    leave_a_lock(finished.folder, platform.node())
    finished.snakemake("--cores", "1")
    assert finished.ran() == [FIGURE]


@pytest.mark.slow
def test_the_lock_of_a_living_snakemake_or_of_another_host_holds(finished: Any) -> None:
    lock = leave_a_lock(finished.folder, platform.node())
    with (finished.folder / ".snakemake/recollect-alive").open() as alive:
        fcntl.flock(alive, fcntl.LOCK_SH)
        assert "cannot be locked" in finished.snakemake("--cores", "1", check=False)
    lock = leave_a_lock(finished.folder, "another-host")
    assert "cannot be locked" in finished.snakemake("--cores", "1", check=False)
    assert lock.exists() and finished.ran() == []


@pytest.mark.slow
def test_a_lock_that_was_made_after_one_of_this_host_with_its_name_holds(finished: Any) -> None:
    """Where flock does not reach: a plan of this host says nothing about lock files that another host makes later."""
    lock = leave_a_lock(finished.folder, platform.node())
    later = lock.stat().st_mtime_ns + 1_000_000_000
    os.utime(lock, ns=(later, later))
    assert "cannot be locked" in finished.snakemake("--cores", "1", check=False)
    assert lock.exists() and finished.ran() == []


@pytest.mark.slow
def test_a_real_snakemake_that_is_killed_leaves_a_lock_that_the_next_one_clears(finished: Any) -> None:
    figure = finished.folder / "results/demo/figures/radt_dark_room_10x10.pdf"
    figure.unlink()
    (finished.folder / ".snakemake/recollect-alive").write_text("")  # what the run before signed
    waiting = finished.folder / "bin"
    waiting.mkdir()
    (waiting / "recollect").write_text("#!/bin/sh\nsleep 60\n")
    (waiting / "recollect").chmod(0o755)
    environment = {**finished.environment, "PATH": f"{waiting}:{finished.environment['PATH']}"}
    with subprocess.Popen([BIN / "snakemake", "--cores", "1"], cwd=finished.folder, env=environment, start_new_session=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:  # fmt: skip
        end = time.monotonic() + 120
        while not (finished.folder / ".snakemake/recollect-alive").read_text():
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    assert list((finished.folder / ".snakemake/locks").glob("*.lock"))
    finished.snakemake("--cores", "1", "--rerun-incomplete")
    assert finished.ran() == [FIGURE] and figure.exists()
