"""Forecasts: hours that a person can reckon by hand, and honest about where they come from."""

from __future__ import annotations

import math
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import fast_yaml
import numpy as np
import pytest
from typer.testing import CliRunner

from recollect import commands
from recollect.artifacts.sealed import write_json
from recollect.cli import app
from recollect.common import work
from recollect.common.work import Work
from recollect.helm import work as of_helm
from recollect.helm.language_history import EVALUATION_BYTES
from recollect.helm.ppo_lstm import pieces
from recollect.radt import work as of_radt
from recollect.settings.errors import UserError
from recollect.settings.resolve import resolve
from recollect.settings.schema import Settings
from recollect.stages import paths, records, try_out
from recollect.stages.amounts import said_bytes, said_time
from recollect.stages.cost_table import NBSP, cost_table
from recollect.stages.cost_text import cost_text
from recollect.stages.estimating import Estimate, Estimator, Known, least_sure
from recollect.stages.forecast import forecast, measurements, memory_of_largest
from recollect.stages.machines import Machine
from recollect.stages.plan import Plan
from recollect.stages.provenance import digest
from recollect.stages.records import Record
from recollect.stages.rules import StageRule
from recollect.stages.selection import default_selection
from recollect.stages.stage import Job, Stage
from recollect.stages.table import STAGES
from recollect.stages.train import train
from recollect.stages.wall_time import wall_seconds
from recollect.stages.workload import kind_of, settings_of, work_of

ROOM = "dark_room_10x10"
RUN = ("smoke", ROOM, "dt", "0")
GENERATE = Job("generate", "smoke", ROOM)
# A pass takes a second, and nothing else takes any time but 10 seconds to start.
MACHINE = {"name": "made up", "startup": 10, "pass": 1, "flop": 1e30, "world": 0, "seconds": {"figure": 5}}
TRAIN = 10 + 60 * 3 + 2 * 300  # 60 updates of three passes; twice on the way, three episodes of 100 steps
EVALUATE = 300  # in the process that trained
FIGURE = 10 + 5


def took(job: Job, seconds: float, megabytes: float = 0.0, settings: str = "", *, resumed: bool = False) -> Record:
    return Record(job, seconds, resumed, megabytes, "cpu", settings)


GENERATED = {GENERATE: took(GENERATE, 100.0)}


@pytest.fixture
def made(workdir: Path) -> Path:
    """A working directory whose figures `one` and `two` are about two seeds of DT, on a made-up machine."""
    path = workdir / "config/speeds.yaml"
    speeds = fast_yaml.load(path.read_text())
    both = {"cpu": {**MACHINE, "basis": "recorded"}, "cuda": {**MACHINE, "basis": "assumed", "startup": 1000}}
    path.write_text(fast_yaml.dump({**speeds, "machines": both}))
    (workdir / "config/recorded_jobs.csv").unlink()
    shutil.rmtree(workdir / "config/speeds")
    figure = fast_yaml.load((workdir / "config/figures/radt_dark_room_10x10.yaml").read_text())
    small = {**figure, "environments": [ROOM], "methods": ["dt"], "seeds": [0, 1], "references": []}
    for name in ("one", "two"):
        (workdir / f"config/figures/{name}.yaml").write_text(fast_yaml.dump(small))
    return workdir


def test_a_forecast_of_two_runs_is_what_a_person_reckons(made: Path) -> None:
    cost = forecast("smoke", ["one"], devices=2, measured=GENERATED)
    assert cost.seconds() == 100 + 2 * TRAIN + 2 * EVALUATE + FIGURE
    assert cost.wall == 100 + TRAIN + EVALUATE + FIGURE
    assert forecast("smoke", ["one"], devices=1, measured=GENERATED).wall == cost.seconds()
    assert "2 jobs at a time" in cost_text(cost) and "measured 1" in cost_text(cost) and "recorded 2" in cost_text(cost)


def test_what_a_forecast_says_adds_up(made: Path) -> None:
    said = cost_text(forecast("smoke", ["two", "one"], devices=2, measured=GENERATED))
    disk = next(line for line in said.splitlines() if line.startswith("disk "))
    expected = """
        2 figures at scale smoke: 5 jobs

        jobs count CPU time from
        run 2 36 min recorded 2
        generate 1 2 min measured 1
        figure 2 30 s recorded 2
        all 5 38 min

        figure jobs time not shared
        two 4 38 min 15 s
        one 4 38 min 15 s

        wall time 20 min with 2 jobs at a time
        DISK
        memory 2.0 GB for the largest job (asked for by the rules)

        4% of the time is measured: the same job was finished here
        96% of the time is recorded: from jobs that were finished on made up, by operations and passes
    """
    lines = [" ".join(line.split()) for line in said.replace(disk, "DISK").splitlines()]
    assert lines == [" ".join(line.split()) for line in expected.strip().splitlines()]


def test_a_forecast_names_what_it_reckons_with(made: Path) -> None:
    one = cost_text(forecast("smoke", ["one"], measured={}))
    assert "1 figure at scale smoke: 4 jobs\n" in one and "with 1 job at a time\n" in one
    assert "tries" not in one and "GPU" not in one and "network" not in one and "packages" not in one
    for devices, named in ((1, "1 GPU"), (2, "2 GPUs")):
        cost = forecast("paper", ["one"], devices=devices, measured=GENERATED)
        said = [" ".join(line.split()) for line in cost_text(cost).splitlines()]
        assert any(line.endswith(f"with {named}, CPU jobs beside them") for line in said)
        learned, rest = (said_time(cost.seconds(gpu=gpu)) for gpu in (True, False))
        assert f"all 4 {learned} {rest}" in said and f"run 2 {learned} 0 s assumed 2" in said
        assert f"generate 1 0 s {said_time(cost.estimates[GENERATE._replace(scale='paper')].seconds)} scaled 1" in said
        assert any(f"2 jobs of more than the {default_selection().job_hours:g} hours of a try" in line for line in said)


def test_a_notebook_that_changes_a_setting_gets_another_forecast(workdir: Path) -> None:
    path = workdir / "config/scales/smoke.yaml"
    before = forecast("smoke", [f"radt_{ROOM}"], measured={}).seconds()
    scale = fast_yaml.load(path.read_text())
    scale["methods"]["dt"]["hyperparameters"]["optimisation"]["steps"] *= 100
    path.write_text(fast_yaml.dump(scale))
    assert forecast("smoke", [f"radt_{ROOM}"], measured={}).seconds() > 2 * before


def test_what_remains_is_what_is_missing_or_stale_and_what_waits_for_it(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = forecast("smoke", ["one"], measured=GENERATED)
    assert forecast("smoke", ["one"], measured=GENERATED, only_remaining=True).plan == whole.plan
    there = {GENERATE, Job("run", *RUN)}  # one of two seeds; the figure waits for the other
    for job in whole.plan.needs:
        for path in STAGES[job.stage].makes(job):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    monkeypatch.setattr(Stage, "is_made", lambda self, job: job in there or job.stage == "figure")
    rest = forecast("smoke", ["one"], measured=GENERATED, only_remaining=True)
    assert [job.stage for job in rest.plan.needs] == ["run", "figure"]
    assert (
        rest.seconds() == TRAIN + EVALUATE + FIGURE
        and "figure" in cost_text(rest)
        and "| `one` | 2 |" in cost_table(rest)
    )
    monkeypatch.setattr(Stage, "is_made", lambda self, job: all(path.is_file() for path in self.makes(job)))
    done = forecast("smoke", ["one", "two"], measured=GENERATED, only_remaining=True)
    assert [job.env for job in done.plan.needs] == ["two"]
    for path in STAGES["figure"].makes(Job("figure", "smoke", "two")):
        path.touch()
    assert "nothing would run" in cost_text(forecast("smoke", ["one", "two"], only_remaining=True))


def test_what_is_made_of_what_is_here_today_is_not_forecast_again(made: Path) -> None:
    figure = fast_yaml.load(Path("config/figures/one.yaml").read_text())
    drawn_from_traces = {**figure, "kind": "state_visitation", "options": {}, "seeds": [0]}
    Path("config/figures/walks.yaml").write_text(fast_yaml.dump(drawn_from_traces))
    Path("config/figures/speed.yaml").write_text(
        fast_yaml.dump({**figure, "kind": "throughput", "options": {}, "seeds": [0]})
    )
    more = {"inspect": {"split": "eval", "tasks": [0, 6, 13]}, "measure": {"machine": "a CPU"}}
    for job in forecast("smoke", ["walks", "speed"], measured={}).plan.needs:
        for stage, step in STAGES[job.stage].steps(job) if job.stage != "figure" else ():
            known = {
                **stage.provenance(step),
                **({"seed": int(job.seed)} if job.seed else {}),
                **more.get(job.stage, {}),
            }
            for path in stage.makes(step):
                write_json(path, {}, kind="made", provenance=known)

    def rest() -> list[str]:
        left = forecast("smoke", ["walks", "speed"], measured={}, only_remaining=True).plan.needs
        return sorted(job.stage for job in left)

    assert rest() == ["figure", "figure"]
    method = Path("config/methods/dt.yaml")
    method.write_text(method.read_text().replace("\nhyperparameters:\n", "\nhyperparameters:\n  selection: sample\n"))
    assert rest() == ["figure", "figure", "inspect", "measure", "page", "run"]


def test_jobs_are_another_word_for_devices(made: Path) -> None:
    done = CliRunner().invoke(app, ["forecast", "one", "--scale", "smoke", "--jobs", "3"], catch_exceptions=False)
    assert "with 3 jobs at a time" in done.output


def test_a_page_gets_the_tables_that_it_has_marks_for(made: Path) -> None:
    shutil.copy("config/figures/one.yaml", "config/figures/radt_one.yaml")
    page = made / "page.md"
    places = ("forecast smoke radt_one two", "forecast smoke radt_one two by paper")
    begun = "\n".join(f"before\n<!-- {place}: begin -->\n<!-- {place}: end -->\nafter" for place in places)
    page.write_text(begun)
    asked = ["forecast", "radt_one", "two", "--scale", "smoke", "--write", str(page)]
    assert CliRunner().invoke(app, asked, catch_exceptions=False).exit_code == 0
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in page.read_text().splitlines() if line[:1] == "|"
    ]
    assert [row[0] for row in rows] == ["figure", "---", "`radt_one`", "`two`", "paper", "---", "RA-DT", "all"]
    hours = f"{2 * (TRAIN + EVALUATE) / 3600:,.0f}"
    assert rows[-2][1:4] == ["1", "4", "2"]
    assert rows[-4][5] == "at 400 TFLOP/s"
    assert rows[-1][1:7] == ["2", "5", "2", "0", "0", hours]  # runs that both share count once
    assert page.read_text().count("before") == page.read_text().count("after") == 2
    page.write_text("no marks")
    with pytest.raises(UserError, match="no place for this forecast"):
        CliRunner().invoke(app, asked, catch_exceptions=False)
    assert page.read_text() == "no marks"


def test_what_a_page_would_not_show_is_refused_and_without_figures_its_marks_name_none(made: Path) -> None:
    page = made / "page.md"
    page.write_text("no marks")
    asked = ["forecast", "--scale", "smoke", "--write", str(page)]
    for words in (["--remaining"], ["--measure"], ["--jobs", "2"], ["--table"], ["--threads", "4"]):
        with pytest.raises(UserError, match="a page has the tables of a fresh clone, whatever --"):
            CliRunner().invoke(app, [*asked, *words], catch_exceptions=False)
    Path("config/config.yaml").write_text("scale: smoke\nfigures: [one]\n")
    with pytest.raises(UserError, match="<!-- forecast smoke: begin -->"):
        CliRunner().invoke(app, asked, catch_exceptions=False)


def test_worlds_that_are_not_here_have_observations_of_their_size(
    in_the_repository: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buffers of images are hundreds of gigabytes; a guess of 64 numbers said nine."""

    def absent(*unused: object) -> None:
        raise UserError("not installed", where="here", do="install it")

    monkeypatch.setattr(work, "facts_of", absent)
    shape_of = work.shape_of.__wrapped__
    found = {
        env: shape_of("paper", env)[1:] for env in ("amago_crafter", "amago_retro", "amago_popgym_ConcentrationHard")
    }
    assert found == {
        "amago_crafter": (9247, 0),
        "amago_retro": (24192, 8064),
        "amago_popgym_ConcentrationHard": (728, 0),
    }
    settings = [
        resolve("paper", env, "amago_transformer", 0)
        for env in ("amago_crafter", "amago_retro", "amago_popgym_RepeatFirstEasy")
    ]
    assert [work.number_bytes(each) for each in settings] == [1, 1, 4]


def unjudged(scale: str, method: str) -> Settings:
    """Settings of a run that is not evaluated while it learns."""
    settings = resolve(scale, ROOM, method, 0)
    chosen = settings.method.hyperparameters
    optimisation = chosen.optimisation.model_copy(update={"evaluate_every": None})
    method_settings = settings.method.model_copy(
        update={"hyperparameters": chosen.model_copy(update={"optimisation": optimisation})}
    )
    return settings.model_copy(update={"method": method_settings})


@pytest.mark.parametrize(("method", "tokens"), [("dt", 4 * 200), ("ad", 3 * 2 * 100)])
def test_a_training_window_has_the_tokens_that_its_method_reads(
    in_the_repository: None, method: str, tokens: int
) -> None:
    """AD reads two episodes of 100 steps, and no return-to-go."""
    settings = unjudged("paper", method)
    chosen = settings.method.hyperparameters.optimisation
    one = tokens * of_radt.network(settings, tokens).flop * work.LEARNING
    assert of_radt.trained(settings).flop == pytest.approx(chosen.steps * chosen.batch_size * one)


def test_a_method_that_acts_in_two_passes_a_step_takes_twice_as_many(in_the_repository: None) -> None:
    one, two = (work.played(unjudged("paper", "dt"), 1.0, passes) for passes in (1.0, 2.0))
    assert two == one._replace(passes=2 * one.passes)


def test_measuring_a_method_is_a_little_training_and_a_few_episodes(in_the_repository: None) -> None:
    """200 steps, then three episodes of one task and of the 20 of a split; not an evaluation of all tasks."""
    job = Job("measure", "paper", ROOM, "dt", "42")
    found, update = work_of(job), of_radt.trained(unjudged("paper", "dt"))
    steps = unjudged("paper", "dt").method.hyperparameters.optimisation.steps
    played = work_of(job._replace(stage="evaluate"))
    assert (found.passes, found.env_steps) == (200 * work.UPDATE + 2 * 3 * 100, 3 * 100 * (1 + 20))
    flop = update.flop * 200 / steps + played.flop * found.env_steps / played.env_steps
    assert found.flop == pytest.approx(flop) and found.disk == found.scratch == 0


@pytest.mark.parametrize(
    ("scale", "method", "per_step", "width"),
    [
        ("paper", "radt", 4, 512),
        ("demo", "radt", 1, 64),
        ("paper", "radt_agnostic", 4, 768),
        ("demo", "radt_agnostic", 1, 384),
    ],
)
def test_keys_are_counted_as_their_embedder_makes_them(
    in_the_repository: None, scale: str, method: str, per_step: int, width: int
) -> None:
    """At scale demo the trained embedder has one token a step, whatever layout a language model would be given."""
    settings = resolve(scale, ROOM, method, 0)
    memory = settings.method.memory
    assert of_radt.embedded(settings, memory.stride, 1).disk == 4 * width  # of one entry
    length = memory.key_context * per_step
    if method == "radt":
        embedder = resolve(scale, ROOM, memory.embedder.partition(":")[2], memory.embedder_seed)
        assert of_radt.query(settings) == length * of_radt.network(embedder, length).flop


def test_where_a_machine_sees_images_again_only_learning_from_them_takes_less_time(workdir: Path) -> None:
    machine = Machine(**{**MACHINE, "basis": "recorded", "startup": 3, "seen_again": {"mini_grid_MemoryS5": 0.2}})
    work = Work(flop=10 * machine.flop)
    for env, stage, seconds in (
        ("mini_grid_MemoryS5", "train", 3 + 2),
        ("mini_grid_MemoryS5", "evaluate", 3 + 10),
        ("mini_grid_MemoryS11", "train", 3 + 10),
    ):
        assert machine.takes(Job(stage, "demo", env, "ppo_cnn", "0"), work) == pytest.approx(seconds)


def test_seeds_of_a_small_scale_that_are_trained_together_take_less_time_each(workdir: Path) -> None:
    machine = Machine(**{**MACHINE, "basis": "recorded", "startup": 3, "together": 0.5})
    work = Work(flop=10 * machine.flop)
    for scale, stage, method, seconds in (
        ("demo", "train", "dqn_gpt", 3 + 5),
        ("demo", "train", "ppo_cnn", 3 + 10),
        ("demo", "evaluate", "dqn_gpt", 3 + 10),
        ("paper", "train", "dqn_gpt", 3 + 10),  # an ensemble too, but of large runs
    ):
        assert machine.takes(Job(stage, scale, "tmaze_passive_10", method, "0"), work) == pytest.approx(seconds)


def test_a_job_whose_work_is_not_counted_takes_the_seconds_of_its_name_or_of_its_rule(workdir: Path) -> None:
    machine = Machine(
        **{**MACHINE, "basis": "recorded", "seconds": {"embed_vocabulary": 300, "embed_vocabulary tiles": 2}}
    )
    for vocabulary, seconds in (("tiles", 2), ("another", 300)):
        job = Job("embed_vocabulary", "demo", vocabulary)
        assert machine.takes(job, Work()) == MACHINE["startup"] + seconds


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (89, "89 s"),
        (91, "2 min"),
        (140, "2 min"),
        (5399, "90 min"),
        (5401, "1.5 h"),
        (9000, "2.5 h"),
        (36_001, "10 h"),
        (9e6, "2,500 h"),
    ],
)
def test_a_time_is_said_in_its_own_unit(seconds: float, said: str) -> None:
    assert said_time(seconds) == said


@pytest.mark.parametrize(
    ("count", "said"), [(999, "999 B"), (12_000, "12 kB"), (3.4e8, "340 MB"), (7e9, "7 GB"), (1.25e12, "1.2 TB")]
)
def test_a_size_is_said_in_its_own_unit_of_a_thousand_of_the_next(count: float, said: str) -> None:
    assert said_bytes(count) == said


def test_a_run_shared_by_two_figures_is_counted_once(made: Path) -> None:
    cost = forecast("smoke", ["one", "two"], measured=GENERATED)
    assert cost.seconds() == 100 + 2 * TRAIN + 2 * EVALUATE + 2 * FIGURE
    assert cost.seconds(cost.plan.figures["one"]) == cost.seconds(cost.plan.figures["two"]) == cost.seconds() - FIGURE
    assert len(cost.plan.needs) == 1 + 2 + 2
    rows = {words[0]: words for line in cost_text(cost).splitlines() if len(words := line.split()) > 4}
    assert rows["one"][-2:] == rows["two"][-2:] == [str(FIGURE), "s"]  # what it does not share


def test_what_was_measured_beats_what_is_recorded_and_another_size_is_scaled(made: Path) -> None:
    train, evaluate = (Job(name, *RUN) for name in ("train", "evaluate"))
    measured = {**GENERATED, train: took(train, 7.0, 640.0), evaluate: took(evaluate, 2.0, 500.0)}
    cost = forecast("smoke", ["one"], measured=measured)
    run = cost.estimates[Job("run", *RUN)]
    assert (run.seconds, run.source) == (9.0, "measured")
    assert cost.estimates[Job("run", "smoke", ROOM, "dt", "1")] == run  # another seed
    only_one = forecast("smoke", ["one"], measured={**GENERATED, train: took(train, 7.0)})
    assert only_one.estimates[Job("run", *RUN)].source == "recorded"  # as sure as the least sure part
    assert only_one.estimates[Job("run", *RUN)].seconds == 7.0 + EVALUATE

    path = made / "config/scales/demo.yaml"  # the same job with twice the updates and nothing else
    smoke = fast_yaml.load((made / "config/scales/smoke.yaml").read_text())
    smoke["methods"]["dt"]["hyperparameters"]["optimisation"] |= {"steps": 120}
    path.write_text(fast_yaml.dump(smoke))
    larger = forecast("demo", ["one"], measured=measured).estimates[Job("run", "demo", *RUN[1:])]
    assert larger.source == "scaled"
    assert larger.seconds == pytest.approx(7.0 * (120 * 3 + 4 * 300) / (TRAIN - 10) + 2.0)


@pytest.mark.parametrize(("seconds", "source"), [(4.0, "measured"), (6.0, "assumed")])
def test_some_work_is_as_sure_as_the_least_sure_part_of_it_that_takes_a_twentieth_of_its_time(
    seconds: float, source: str
) -> None:
    measured = Estimate(100.0 - seconds, "measured", gpu=False, disk=0.0, scratch=0.0)
    assert least_sure([measured, Estimate(seconds, "assumed", gpu=False, disk=0.0, scratch=0.0)]) == source


def test_a_recorded_job_counts_only_where_the_nearest_of_here_is_three_times_as_far_from_the_size(made: Path) -> None:
    job, estimator = Job("train", *RUN[:3]), Estimator({})
    size = estimator.machines["cpu"].works(job, work_of(job))
    for times, source in ((2.9, "scaled"), (1 / 2.9, "scaled"), (3.1, "recorded"), (1 / 3.1, "recorded")):
        estimator._like[kind_of(job), "cpu"] = [Known(size * times, 0.0, 70.0, 1)]
        estimator._recorded[kind_of(job)] = [Known(size, 0.0, 7.0, 1)]
        estimator._known.clear()
        assert estimator(job).source == source, times


def test_the_largest_job_is_what_one_needed_here_or_asks_for(made: Path) -> None:
    train = Job("train", *RUN)
    asked = forecast("smoke", ["one"], measured=GENERATED)
    assert asked.memory == 2000 and "asked for by the rules" in cost_text(asked)  # that of a figure
    known = forecast("smoke", ["one"], measured={**GENERATED, train: took(train, 7.0, 2640.0)})
    assert known.memory == 2640.0 and "of a job that ran here" in cost_text(known)


def test_what_jobs_of_another_scale_needed_says_nothing_of_the_largest_job(made: Path) -> None:
    job = Job("train", "demo", ROOM, "dt", "0")
    large, none = (forecast("smoke", ["one"], measured=known) for known in ({job: took(job, 7.0, 9e6)}, {}))
    assert (large.memory, large.memory_measured) == (none.memory, False)


def test_a_part_that_ran_here_does_not_stand_for_the_whole_job(made: Path) -> None:
    job, asks = Job("run", *RUN), float(STAGES["run"].asks.megabytes[0])
    alone = Plan({job: ()}, {"one": (job,)})
    played, learned = Job("evaluate", *RUN), Job("train", *RUN)
    known = {played: took(played, 2.0, 500.0)}
    assert memory_of_largest(alone, known) == (asks, False)  # training may need more than playing did
    tried = {learned: took(learned, 7.0, 0.0)}  # as `--measure` does, which knows no memory
    assert memory_of_largest(alone, known | tried) == (asks, False)
    assert memory_of_largest(alone, {**known, learned: took(learned, 7.0, 640.0)}) == (640.0, True)
    other = learned._replace(seed="1")  # of two seeds the one that took most, whichever ended first
    assert (
        memory_of_largest(alone, {**known, learned: took(learned, 7.0, 640.0), other: took(other, 7.0, 630.0)})[0]
        == 640
    )
    both = Plan({job: (), job._replace(seed="1"): ()}, {"one": (job,)})
    assert memory_of_largest(both, {}, {job: 3}) == (3 * asks, False)


@pytest.mark.usefixtures("in_the_repository")
def test_the_memory_of_seeds_side_by_side_and_the_tries_of_long_jobs_are_counted() -> None:
    rule = StageRule("run", seeds=tuple(range(10)), at_a_time=default_selection().seeds_at_a_time)
    asked = rule.mem_mb({"scale": "paper", "env": "amago_popgym_AutoencodeEasy", "method": "amago_transformer"}, 1)
    popgym = forecast("paper", ["amago_popgym"], measured={})
    assert asked == 4 * STAGES["run"].asks.megabytes[1] and popgym.memory == 3 * asked / 4
    assert f"{popgym.memory / 1000:.0f}{NBSP}GB" in cost_table(popgym)
    mazes = forecast("paper", ["memory_rl_layers_passive_tmaze"], measured={})
    tries = math.ceil(max(mazes.hours()) / default_selection().job_hours)
    assert tries > 3 and f"`--retries {tries - 1}` is enough for the longest" in cost_text(mazes)


def test_a_cpu_says_nothing_about_a_gpu(made: Path) -> None:
    measured = {Job(name, *RUN): took(Job(name, *RUN), 7.0) for name in ("train", "evaluate")}
    measured |= GENERATED
    job = Job("run", "paper", *RUN[1:])
    on_gpu = forecast("paper", ["one"], measured=measured)
    assert on_gpu.estimates[job].gpu and on_gpu.estimates[job].source == "assumed"
    assert "GPU time" in cost_text(on_gpu) and "nothing timed" in cost_text(on_gpu)
    on_cpu = forecast("paper", ["one"], measured=measured, device="cpu")
    assert not on_cpu.estimates[job].gpu and on_cpu.estimates[job].source == "scaled"


@pytest.mark.parametrize(
    "job",
    [
        Job("train", *RUN),
        Job("train_vision_language", "demo", "tiles"),
        Job("embed_vocabulary", "demo", "tiles"),
        Job("figure", "demo", "radt_dark_room_10x10"),
        Job("evaluate", "demo", ROOM, "dt.context=5,episodes_by=return", "0"),
    ],
)
def test_a_finished_job_counts_only_with_todays_settings_and_if_it_was_timed_whole(job: Job, made: Path) -> None:
    def leave(settings: str, *, resumed: bool = False) -> None:
        write_json(records.place(job), took(job, 42.0, 512.0, settings, resumed=resumed)._asdict(), kind=records.KIND)

    today = digest(STAGES[job.stage].settings_text(job))
    leave(today)
    assert measurements() == {job: took(job, 42.0, 512.0, today)}
    leave(today, resumed=True)
    assert measurements() == {}
    leave("other")
    assert measurements() == {}


def test_the_record_of_what_is_configured_no_more_counts_for_nothing(made: Path) -> None:
    for job in (Job("train", "smoke", "no_such_world", "dt", "0"), Job("no_such_stage", "smoke", ROOM)):
        write_json(records.place(job), took(job, 42.0)._asdict(), kind=records.KIND)
    assert measurements() == {}


def test_a_job_writes_down_what_it_took_when_it_ends_well(made: Path) -> None:
    job = Job("train", *RUN)
    assert records.timed(STAGES["train"], job, "cpu", lambda: True) is True
    (record,) = records.records("smoke")
    assert record.job == job and record.resumed and record.megabytes > 1
    records.place(job).unlink()
    with pytest.raises(UserError):
        records.timed(STAGES["train"], job, "cpu", lambda: STAGES["fetch"].run("minilm"))
    assert records.records("smoke") == []


@pytest.mark.slow
def test_to_try_a_run_out_leaves_what_it_has_kept_as_it_is(workdir: Path) -> None:
    """AMAGO clears the buffer and the policies of whatever it begins anew: so a trial must not begin in a run's folder."""
    run = ("smoke", "amago_tmaze_5", "amago_ff.keep_every=1")
    train(*run, 0)
    before = {path: path.read_bytes() for path in paths.checkpoints(*run, 0).rglob("*") if path.is_file()}
    assert any(path.parent.name == "policies" for path in before) and any("buffer" in path.parts for path in before)
    record = try_out.try_out(Job("train", *run), "cpu")
    assert record is not None and record.seconds > 0
    assert {path: path.read_bytes() for path in paths.checkpoints(*run, 0).rglob("*") if path.is_file()} == before


def test_seconds_of_training_are_carried_to_the_whole_run(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 12.0, 14.0, 99.0])
    monkeypatch.setattr(try_out, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(try_out, "SECONDS", 13.0)
    watch = try_out.Stopwatch(Path("nowhere"))
    for step in (0, 5, 10):
        watch.log(step, loss=1.0)
    with pytest.raises(try_out._Enough):
        watch.log(15, loss=1.0)
    assert watch.seconds_of(1000) == pytest.approx(
        1000 * 4.0 / 10
    )  # behind the first noted point: 5 to 15 in 4 seconds


def test_one_seed_of_each_run_is_tried_that_was_not_measured_on_this_device(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[Job, str]] = []

    def try_one(job: Job, device: str) -> Record:
        tried.append((job, device))
        return took(job, 3.0)

    monkeypatch.setattr(try_out, "try_out", try_one)
    train = Job("train", *RUN)
    other_seed = train._replace(seed="7")
    assert try_out.try_all("smoke", ["one", "two"], {}, "cpu") == {train: took(train, 3.0)}
    assert try_out.try_all("smoke", ["one"], {other_seed: took(other_seed, 3.0)}, "cpu") == {}
    assert try_out.try_all("smoke", ["one"], {other_seed: took(other_seed, 3.0)}, "cuda").keys() == {train}
    assert tried == [(train, "cpu"), (train, "cuda")]
    monkeypatch.setattr(commands, "job", lambda *of: nullcontext("cpu"))
    asked = ["forecast", "--scale", "smoke", "one"]
    plain, after = (CliRunner().invoke(app, [*asked, *more]).output for more in ([], ["--measure"]))
    assert "wall time" in plain and plain != after, "what was tried is not reckoned with"


def test_devices_bound_only_what_takes_one() -> None:
    first, second, other, last = (Job(name, "smoke") for name in ("first", "second", "other", "last"))
    needs = {first: (), second: (), other: (), last: (first, second, other)}
    seconds = {first: 3.0, second: 4.0, other: 5.0, last: 1.0}.__getitem__
    assert wall_seconds(needs, seconds, lambda job: job not in (other, last), 1) == 3 + 4 + 1
    assert wall_seconds(needs, seconds, lambda job: job not in (other, last), 2) == 5 + 1
    assert wall_seconds(needs, seconds, lambda job: True, 1) == 3 + 4 + 5 + 1
    both = {first: 2, second: 1, other: 1, last: 0}.__getitem__  # the first job takes two devices
    assert wall_seconds(needs, seconds, both, 2) == 5 + 3 + 1
    assert wall_seconds(needs, seconds, both, 3) == 4 + 3 + 1
    chain = {first: (), second: (), last: (second,)}  # the longest goes first
    assert wall_seconds(chain, seconds, lambda job: job is not last, 1) == 4 + 3


@pytest.mark.parametrize(
    ("scale", "figure", "hint"),
    [("smoke", "radt_dark_rom_10x10", "'radt_dark_room_10x10'"), ("smok", "radt_dark_room_10x10", "'smoke'")],
)
def test_unknown_names_are_refused_with_the_nearest(workdir: Path, scale: str, figure: str, hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        forecast(scale, [figure])


def test_hours_of_a_job_on_several_gpus_count_for_each_of_them(workdir: Path) -> None:
    figure = {"kind": "bars", "environments": ["amago_tmaze_10"], "seeds": [0], "references": []}
    figure |= {"methods": ["amago_transformer", "amago_transformer.devices=8"], "title": "T", "category": "AMAGO"}
    Path("config/figures/eight.yaml").write_text(fast_yaml.dump({**figure, "caption": "C."}))
    scale = Path("config/scales/smoke.yaml")
    scale.write_text(fast_yaml.dump({**fast_yaml.load(scale.read_text()), "resources": "large"}))
    few, many = (forecast("smoke", ["eight"], devices=devices, device="nvidia_h200") for devices in (2, 8))
    one, eight = (job for job in many.plan.needs if job.stage == "run")
    assert (one.method, eight.method) == ("amago_transformer", "amago_transformer.devices=8")
    spent = [many.estimates[job].seconds for job in (one, eight)]
    assert many.seconds([one, eight], gpu=True) == few.seconds([one, eight], gpu=True) == spent[0] + 8 * spent[1]
    assert many.wall >= sum(spent)  # the eight are no longer free for the other
    alone = forecast("smoke", ["eight"], devices=8, device="cpu")  # where there are no GPUs none is counted eight times
    assert alone.seconds([one, eight]) == sum(alone.estimates[job].seconds for job in (one, eight)) and not alone.gpus


def test_no_devices_are_refused(workdir: Path) -> None:
    with pytest.raises(UserError, match="0 devices"):
        forecast("smoke", ["radt_dark_room_10x10"], devices=0)


@pytest.mark.parametrize(
    ("env", "method", "parameters", "gigaflop", "ring"),
    # Specification 4.1 and 11: parameters that are learned; operations of the language model for one step of one game (M, k of
    # 511, 1; 1021, 4; 2045, 4), of the Hopfield 1.10 and CLIP 33.7 for images that are new; keys and values of 16 games.
    [
        ("mini_grid_RedBlueDoors-6x6", "helm", 4_734_152, 0.510 + 0.05 * 1.10, 1.205e9),
        # Its `memory_length` is 15, and as released it remembers 511.
        ("mini_grid_MemoryS11", "helm", 4_734_152, 0.510 + 0.05 * 1.10, 1.205e9),
        ("mini_grid_KeyCorridorS3R1", "shelm", 4_734_152, 2.27 + 0.05 * 33.7, 1024 / 511 * 1.205e9),
        ("mini_world_PickupObjects", "shelm", 7_748_292, 2.72 + 0.6 * 33.7, None),
        ("mini_grid_RedBlueDoors-6x6", "ppo_cnn", 4_078_792, 0.0, 0.0),
        ("mini_grid_RedBlueDoors-6x6", "ppo_lstm", 908_600, 0.0, 0.0),
        ("mini_grid_MemoryS11", "shelm_lstm", 5_555_400, 0.05 * 33.7, 0.0),
    ],
)
def test_helm_counts_its_language_model_its_eyes_and_its_ring(
    workdir: Path, env: str, method: str, parameters: int, gigaflop: float, ring: float | None
) -> None:
    settings = settings_of("paper", env, method)
    assert of_helm.network(settings).parameters == pytest.approx(parameters, rel=0.4 if "world" in env else 0.01)
    assert of_helm.read(settings) / 1e9 == pytest.approx(gigaflop, rel=0.01)
    if ring is not None:
        assert of_helm.ring(settings) == pytest.approx(ring, rel=0.01)


@pytest.mark.parametrize(("env", "mean"), [("mini_grid_MemoryS11", 9), ("mini_grid_KeyCorridorS3R1", 42)])
def test_minibatches_of_lstm_ppo_are_counted_by_the_pieces_of_its_episodes(workdir: Path, env: str, mean: int) -> None:
    settings = settings_of("paper", env, "ppo_lstm")
    hp = settings.method.hyperparameters
    done_TE = np.random.default_rng(0).random((hp.rollout, hp.actors)) < 1 / mean
    first_S, _ = pieces(done_TE)
    assert of_helm.minibatches(settings) == pytest.approx(len(first_S) / hp.sequences, rel=0.15)
    without_memory = settings_of("paper", env, "ppo_cnn")
    assert of_helm.minibatches(without_memory) == hp.batches
    hp = without_memory.method.hyperparameters
    rollouts = hp.steps / (hp.actors * hp.rollout)  # and a minibatch is three passes
    assert of_helm.trained(without_memory).passes == rollouts * (hp.rollout + hp.epochs * hp.batches * 3)


@pytest.mark.parametrize("method", ["helm", "helmv2", "shelm"])
def test_a_job_asks_for_the_memory_that_its_frozen_models_and_rings_need(workdir: Path, method: str) -> None:
    models = 5e9  # measured at the published sizes, HELM with a ring of 1.2 GB: 4.9 GB at most
    for env in (
        "mini_grid_KeyCorridorS3R1",
        "mini_world_PickupObjects",
        "continuous_recognition",
        "procgen_memory_maze",
    ):
        settings = settings_of("paper", env, method)
        hp = settings.method.hyperparameters
        layers, width, slots = 18, 1024, hp.remembered + getattr(hp, "topk", 1) - 1
        full = 8 * layers * width * slots * hp.actors  # and once more while a checkpoint of it is made
        assert models + 2 * full <= 1e6 * STAGES["run"].asks.megabytes[1]
        assert models + EVALUATION_BYTES <= 1e6 * STAGES["evaluate"].asks.megabytes[1]
        for stage in ("run", "evaluate", "inspect"):
            assert STAGES[stage].on_gpu(Job(stage, "paper", env, method))
    assert not STAGES["inspect"].on_gpu(Job("inspect", "paper", "mini_grid_MemoryS11", "ppo_lstm"))


def test_what_goes_with_the_end_of_a_run_is_counted_for_the_jobs_that_run_at_once(made: Path) -> None:
    one, two = (forecast("smoke", ["one"], devices=devices, measured=GENERATED) for devices in (1, 2))
    scratch = one.estimates[Job("run", *RUN)].scratch
    assert scratch == 3 * 3 * one.estimates[Job("run", *RUN)].disk  # three checkpoints, of policy and optimiser
    assert [cost_text(cost).count("of checkpoints while jobs run") for cost in (one, two)] == [1, 1]
    kept = said_bytes(scratch)
    assert f", and {kept} of checkpoints" in cost_text(one) and f", and {kept} of checkpoints" not in cost_text(two)
    assert f"{2 * scratch / 1e3:,.0f} kB of checkpoints" in cost_text(
        two
    ) or f"{2 * scratch / 1e6:,.0f} MB of" in cost_text(two)


def test_of_several_finished_seeds_the_median_counts(made: Path) -> None:
    measured = dict(GENERATED)
    for seed, seconds in enumerate((7.0, 8.0, 900.0)):
        for name in ("train", "evaluate"):
            job = Job(name, "smoke", ROOM, "dt", str(seed))
            measured[job] = took(job, seconds)
    assert forecast("smoke", ["one"], measured=measured).estimates[Job("run", *RUN)].seconds == 8.0 + 8.0


def test_a_figure_is_drawn_beside_another_though_there_is_one_gpu(made: Path) -> None:
    one, both = (forecast("paper", figures, measured={}) for figures in (["one"], ["one", "two"]))
    assert one.estimates[Job("run", "paper", *RUN[1:])].gpu and both.wall == one.wall


def test_one_job_at_a_time_keeps_the_checkpoints_of_one(made: Path) -> None:
    cost = forecast("smoke", ["one"], measured=GENERATED)
    scratch = cost.estimates[Job("run", *RUN)].scratch
    assert f", and {said_bytes(scratch)} of checkpoints while jobs run" in cost_text(cost)
