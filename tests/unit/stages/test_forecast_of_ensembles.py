"""Seeds that are trained as one network: a seed's forecast is its share, the shares add up to the job, and nothing is divided
twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fast_yaml
import pytest

from recollect.amago.hyperparameters import MixSettings
from recollect.amago.work import trained
from recollect.common.work import FEW, UPDATE, Work, shape_of
from recollect.memory_rl import work as memory_rl
from recollect.memory_rl.stacked import FEW_LSTMS
from recollect.settings.resolve import figure_settings, resolve
from recollect.stages import device_speeds, packs, records, train
from recollect.stages.cost_text import cost_text
from recollect.stages.device_speeds import timed_job
from recollect.stages.estimating import Estimate, Estimator
from recollect.stages.forecast import Forecast, forecast
from recollect.stages.machines import Machine, machines
from recollect.stages.provenance import digest
from recollect.stages.records import Record
from recollect.stages.run import ahead
from recollect.stages.stage import Job
from recollect.stages.table import STAGES
from recollect.stages.wall_time import joined, wall_seconds
from recollect.stages.workload import settings_of, work_of

MAZE, OTHER, METHOD = "tmaze_passive_50", "tmaze_passive_100", "dqn_gpt"
SEEDS = (101, 102, 103, 104)  # that no other figure wants, so these four have a job together
# A pass takes a second and a kernel of a graph a hundredth; nothing else takes any time but 10 seconds to start.
MACHINE = {
    "name": "made up",
    "startup": 10,
    "pass": 1,
    "flop": 1e36,
    "world": 0,
    "worlds": {},
    "seconds": {"figure": 5},
}
CUDA = {**MACHINE, "basis": "assumed", "kernel": 0.01}
TRAIN, EVALUATE = Job("train", "paper", MAZE, METHOD), Job("evaluate", "paper", MAZE, METHOD)


@pytest.fixture
def made(workdir: Path) -> Path:
    """A working directory with a figure of four seeds of one ensemble, and a made-up GPU."""
    path = workdir / "config/speeds.yaml"
    both = {"cpu": {**MACHINE, "basis": "recorded"}, "cuda": CUDA}
    path.write_text(fast_yaml.dump({**fast_yaml.load(path.read_text()), "machines": both}))
    (workdir / "config/recorded_jobs.csv").unlink()
    shutil.rmtree(workdir / "config/speeds")
    figure = fast_yaml.load((workdir / "config/figures/memory_rl_passive_tmaze.yaml").read_text())
    small = {
        **figure,
        "environments": [MAZE],
        "methods": [METHOD],
        "seeds": list(SEEDS),
        "references": [],
        "options": {},
    }
    (workdir / "config/figures/one.yaml").write_text(fast_yaml.dump(small))
    return workdir


def run_of(seed: int, method: str = METHOD) -> Job:
    return Job("run", "paper", MAZE, method, str(seed))


def share(seeds: int) -> float:
    """What a seed's training takes on the made-up GPU once it has started, of so many as one network."""
    work = work_of(TRAIN)
    return ((work.passes - work.captured) + 0.01 * work.kernels) / seeds


def timed(folder: Path, *jobs: tuple[Job, float, int]) -> None:
    """`make gpu` timed these on the only GPU that it was run on: jobs, seconds of a seed's share, and seeds."""
    content = {"device": "Made-up GPU 80GB", "commit": "abc", "date": "2026-01-02", "torch": "2", "peaks": {}}
    path = folder / "config/speeds/made_up_gpu_80gb.yaml"
    path.parent.mkdir(exist_ok=True)
    listed = [timed_job(*one).model_dump(mode="json") for one in jobs]
    path.write_text(fast_yaml.dump({**content, "jobs": listed}))


def of_one_seed(cost: Forecast) -> Estimate:
    """The estimate that all four have."""
    first, *others = (cost.estimates[run_of(seed)] for seed in SEEDS)
    assert all(other == first for other in others)
    return first


def test_an_ensemble_starts_once_and_launches_once_and_each_seed_has_its_own_arithmetic(workdir: Path) -> None:
    """One seed of it is one, too; a step of acting takes a pass where nothing else is said of it."""
    machine = Machine(**{**CUDA, "flop": 10, "world": 0.1})
    work = Work(flop=500, passes=100, env_steps=20, captured=90, kernels=3000)
    alone, each = 10 + 100 + 50 + 2, (10 + 10 + 30) / 4 + 50 + 2
    for stage, scale, method, seconds in (
        ("train", "paper", METHOD, each),
        ("train", "paper", "sac_gpt", 10 + 10 + 30 + 50 + 2),  # its seeds are no network together
        ("evaluate", "paper", METHOD, alone),
        ("train", "demo", METHOD, alone),
    ):
        assert machine.takes(Job(stage, scale, MAZE, method), work, seeds=4) == pytest.approx(seconds)
    assert machine.takes(TRAIN, work) == machine.takes(TRAIN, work, seeds=1) == pytest.approx(10 + 10 + 30 + 50 + 2)
    quick = Machine(**{**CUDA, "flop": 10, "world": 0.1, "step": 0.5})
    assert quick.takes(TRAIN, work, seeds=4) == pytest.approx((10 + 5 + 30) / 4 + 50 + 2)
    one_by_one = Machine(**{**CUDA, "flop": 10, "world": 0.1, "kernel": None})
    assert one_by_one.takes(TRAIN, work, seeds=4) == pytest.approx(alone)


def test_cells_of_few_seeds_go_one_after_the_other_and_of_many_at_once(workdir: Path) -> None:
    assert FEW == FEW_LSTMS
    machine, job = Machine(**CUDA), Job("train", "paper", MAZE, "dqn_lstm")
    work = Work(passes=90, captured=90, kernels=1000, cells=7000, apart=500)
    for seeds, kernels in ((1, 1500), (FEW, 1000 + 500 * FEW), (FEW + 1, 8000), (20, 8000)):
        assert machine.works(job, work, seeds) == pytest.approx(0.01 * kernels / seeds)
    for method, shorter in (("dqn_lstm", "tmaze_passive_50"), ("td3_lstm", "bullet_ant_p")):
        found = work_of(Job("train", "paper", shorter, method))
        assert found.cells > found.apart > 0
    assert work_of(TRAIN).cells == work_of(TRAIN).apart == 0


def test_an_update_counts_each_head_as_often_as_it_is_read_and_both_encoders(workdir: Path) -> None:
    """Of DQN's its head forward and backward, and its target's forward. Of an actor-critic's three heads as often, and in the
    actor's loss both critics.
    """

    def counted(method: str) -> tuple[float, float, float]:
        settings = resolve("paper", "gym_Pendulum-v1" if method.startswith("td3") else MAZE, method, 0)
        hp: Any = settings.method.hyperparameters
        head = 2.0 * sum(a * b for a, b in pairwise((hp.sequence.width, *hp.head)))
        whole = memory_rl.network(settings, 64).flop
        return memory_rl.learned(settings, 64), whole - head, head

    for method, encoders, heads in (("dqn_lstm", 4, 4), ("td3_lstm", 4, 18), ("td3_lstm.separate", 8, 18)):
        found, encoder, head = counted(method)
        assert found == pytest.approx(encoders * encoder + heads * head), method


def test_a_step_of_acting_is_as_long_as_whoever_plays_the_world_takes(workdir: Path) -> None:
    machine = Machine(**{**CUDA, "step": 0.5, "steps": {"tmaze": 0.125}})
    work = Work(passes=100, captured=60)
    for env, step in ((MAZE, 0.125), ("visual_match_500", 0.5)):
        assert machine.works(Job("train", "paper", env, METHOD), work, 4) == pytest.approx(40 * step / 4)


def test_a_time_is_carried_over_from_the_nearest_number_of_seeds(made: Path) -> None:
    """Of one seed, ten and 64 the ten tell of four; without them it is the one, which is nearer than 64."""
    other = Job("train", "paper", OTHER, METHOD)
    machine, work, own = Machine(**CUDA), work_of(other), work_of(TRAIN)
    for seeds, nearest in (((1, 10, 64), 10), ((1, 64), 1), ((64,), 64)):
        timed(made, *((other, 1000.0 * (of == 10) + of, of) for of in seeds))
        seconds = 1000.0 * (nearest == 10) + nearest
        ratio = machine.works(TRAIN, own, 4) / machine.works(other, work, nearest)
        estimator = Estimator({}, timed=device_speeds.speeds_of("auto"), together={TRAIN: 4})
        assert estimator(TRAIN).seconds == pytest.approx(10 / 4 + seconds * ratio)


def test_only_what_runs_as_a_graph_is_reckoned_as_one(workdir: Path) -> None:
    """AMAGO's updates but for Beta policies, and its steps of acting with a Transformer; DQN's where seeds are a network."""

    def captured(env: str, method: str, scale: str = "paper") -> tuple[bool, bool]:
        work = work_of(Job("train", scale, env, method))
        assert (work.captured > 0) == (work.kernels > 0)
        return work.captured == work.passes, work.captured > 0

    assert captured("amago_tmaze_50", "amago_transformer") == (True, True)
    assert captured("amago_tmaze_50", "amago_gru") == (False, True)
    assert captured("amago_meta_world_reach", "amago_transformer") == (True, True)  # its actions are continuous
    acts = work_of(Job("train", "paper", "amago_meta_world_reach", "amago_transformer.continuous=beta"))
    assert 0 < acts.captured < acts.passes / 2 and acts.kernels == 100 * acts.captured
    assert captured("amago_meta_world_reach", "amago_gru.continuous=beta") == (False, False)
    assert captured("amago_tmaze_50", "amago_transformer.cuda_graphs=false") == (False, False)
    assert captured("amago_tmaze_50", "amago_transformer.slow_inference=true") == (False, True)
    apart = work_of(Job("train", "paper", "amago_tmaze_50", "amago_transformer.processes=3"))
    whole = work_of(Job("train", "paper", "amago_tmaze_50", "amago_transformer"))
    hp = settings_of("paper", "amago_tmaze_50", "amago_transformer").method.hyperparameters
    assert whole.captured - apart.captured == hp.epochs * hp.steps_per_epoch  # collectors act on the CPU
    assert captured("amago_tmaze_50", "amago_transformer.inputs.augment=true") == (True, True)  # there is no image
    several = work_of(Job("train", "paper", "amago_tmaze_50", "amago_transformer.devices=2"))
    assert 0 < several.captured < several.passes / 2 and several.kernels == 100 * several.captured
    assert captured(MAZE, METHOD) == (False, True)
    assert captured(MAZE, METHOD, "paper_cpu") == captured("bullet_ant_p", "sac_gpt") == (False, False)


def test_a_run_that_learns_from_others_alone_is_reckoned_to_play_its_evaluations_alone(workdir: Path) -> None:
    """One before every so many epochs, and one at the end; each is a rollout of all instances together."""
    settings = settings_of("paper", "amago_tmaze_50", "amago_transformer")

    def with_share(share: float) -> Work:
        mix = {"mix": MixSettings(path="theirs", share=share)}
        method = settings.method.model_copy(
            update={"hyperparameters": settings.method.hyperparameters.model_copy(update=mix)}
        )
        return trained(settings.model_copy(update={"method": method}))

    whole, half = with_share(1.0), with_share(0.5)
    hp = settings.method.hyperparameters
    judged = len(range(0, hp.epochs, hp.evaluate_every)) + 1
    horizon = shape_of("paper", "amago_tmaze_50").horizon
    assert half == trained(settings)
    assert half.env_steps == whole.env_steps + hp.epochs * hp.steps_per_epoch * hp.actors
    assert whole.env_steps == judged * horizon * hp.evaluation_rollouts and whole.own_steps == 0
    assert whole.passes == hp.epochs * hp.updates_per_epoch * UPDATE + judged * horizon
    assert whole.passes == whole.captured == half.passes - hp.epochs * hp.steps_per_epoch


def test_a_grus_kernels_grow_with_its_windows_and_an_agent_without_memory_has_none_to_grow(workdir: Path) -> None:
    short, long = (
        {name: work_of(Job("train", "paper", f"amago_tmaze_{steps}", f"amago_{name}")) for name in ("gru", "ff")}
        for steps in (50, 500)
    )
    assert long["gru"].kernels > 2 * short["gru"].kernels
    assert long["ff"].kernels == short["ff"].kernels


def test_the_shares_of_an_ensembles_seeds_add_up_to_its_job(made: Path) -> None:
    cost = forecast("paper", ["one"], measured={})
    work, scores = work_of(TRAIN), 4 * work_of(EVALUATE).passes
    job = 10 + (work.passes - work.captured) + 0.01 * work.kernels + scores  # of four seeds
    assert sum(cost.estimates[run_of(seed)].seconds for seed in SEEDS) == pytest.approx(job)
    assert work.captured > 0 and work.kernels > 0
    # It is one job on one device, however many there are.
    for devices in (1, 4):
        assert forecast("paper", ["one"], measured={}, devices=devices).wall == pytest.approx(job + 10 + 5)
    assert "1 figure at scale paper: 2 jobs, 5 with one for each seed" in cost_text(cost)
    scratch = cost.estimates[run_of(SEEDS[0])].scratch  # each seed has checkpoints of its own
    assert sorted(cost.scratch(cost.plan.needs)) == [0, 4 * scratch]


def test_without_gpus_or_with_a_job_for_each_seed_nothing_is_shared(made: Path) -> None:
    alone = 10 + work_of(TRAIN).passes + work_of(EVALUATE).passes
    assert of_one_seed(forecast("paper", ["one"], measured={}, device="cpu")).seconds == pytest.approx(alone)
    path = made / "config/config.yaml"
    path.write_text(fast_yaml.dump({**fast_yaml.load(path.read_text()), "seeds_together": 1}))
    cost = forecast("paper", ["one"], measured={}, devices=4)
    by_itself = 10 + share(1) + work_of(EVALUATE).passes
    assert of_one_seed(cost).seconds == pytest.approx(by_itself)
    assert cost.wall == pytest.approx(by_itself + 10 + 5) and cost.count(cost.plan.needs) == 5


@pytest.mark.slow
def test_the_seconds_of_the_demos_ensembles_are_those_of_the_rule_for_small_runs(workdir: Path) -> None:
    (workdir / "config/recorded_jobs.csv").unlink()
    cost, cpu = forecast("demo", ["memory_rl_passive_tmaze"], measured={}), machines()["cpu"]
    runs = [job for job in cost.plan.needs if job.stage == "run"]
    assert {job.method for job in runs} & {"dqn_gpt", "dqn_lstm"} and cost.shared
    for run in runs:
        work, scores = (work_of(run._replace(stage=stage)) for stage in ("train", "evaluate"))
        seconds = cpu.startup
        for of, factor in ((work, cpu.together), (scores, 1.0)):
            world = cpu.worlds.get("tmaze", cpu.world)
            passed = of.passes * cpu.pass_ + of.flop / cpu.flop
            seconds += passed * factor + of.env_steps * world
        assert cost.estimates[run].seconds == pytest.approx(seconds)
        assert cost.estimates[run].source == "recorded"


def test_a_timed_ensemble_counts_as_measured_and_its_share_is_not_divided_again(made: Path) -> None:
    timed(made, (TRAIN, 5000.0, 4), (TRAIN, 90_000.0, 1), (EVALUATE, 200.0, 1))
    found = of_one_seed(forecast("paper", ["one"], measured={}))
    assert (found.seconds, found.source) == (5000 + 10 / 4 + 200, "measured")


@pytest.mark.parametrize("seeds", [1, 8])
def test_what_was_timed_with_other_numbers_of_seeds_is_carried_over_by_the_rule(made: Path, seeds: int) -> None:
    timed(made, (TRAIN, 5000.0, seeds), (EVALUATE, 200.0, 1))
    found = of_one_seed(forecast("paper", ["one"], measured={}))
    assert found.source == "scaled"
    assert found.seconds == pytest.approx(5000 * share(4) / share(seeds) + 10 / 4 + 200)


def test_an_ensemble_is_estimated_from_an_ensemble_and_a_run_alone_from_one_alone(made: Path) -> None:
    other = TRAIN._replace(env=OTHER)
    timed(made, (other, 7e4, 1), (other, 5000.0, 8), (EVALUATE, 200.0, 1))
    together = of_one_seed(forecast("paper", ["one"], measured={})).seconds
    timed(made, (other, 7e9, 1), (other, 5000.0, 8), (EVALUATE, 200.0, 1))
    assert of_one_seed(forecast("paper", ["one"], measured={})).seconds == together
    path = made / "config/config.yaml"
    path.write_text(fast_yaml.dump({**fast_yaml.load(path.read_text()), "seeds_together": 1}))
    assert of_one_seed(forecast("paper", ["one"], measured={})).seconds > 1e9


def test_a_finished_seed_of_an_ensemble_says_what_the_others_take(made: Path) -> None:
    def record(seeds: int) -> dict[Job, Record]:
        job = TRAIN._replace(seed="101")
        return {job: Record(job, 700.0, False, 1.0, "cuda", digest(STAGES["train"].settings_text(job)), seeds)}

    scores = work_of(EVALUATE).passes
    assert of_one_seed(forecast("paper", ["one"], measured=record(4))).seconds == pytest.approx(700 + scores)
    by_rule = share(4) / share(1)  # alone, as `--measure` tries it
    assert of_one_seed(forecast("paper", ["one"], measured=record(1))).seconds == pytest.approx(700 * by_rule + scores)


def test_the_record_of_a_seed_says_how_many_were_trained_with_it(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = workdir / "config/scales/smoke.yaml"
    path.write_text(fast_yaml.dump({**fast_yaml.load(path.read_text()), "ensembles": ["dqn_ff"]}))
    monkeypatch.setattr(train, "train_together", lambda *of, **options: (2, {0: False, 2: False}))
    monkeypatch.setattr("recollect.stages.run.time", SimpleNamespace(perf_counter=iter([10.0, 22.0]).__next__))
    ahead("smoke", "tmaze_passive_5", "dqn_ff", [0, 1, 2])
    # Another process holds seed 1. Of 12 s each of the two others had its share.
    assert [(record.seeds, record.seconds) for record in records.records("smoke")] == 2 * [(2, 6.0)]
    path = records.place(Job("train", "smoke", "tmaze_passive_5", "dqn_ff", "0"))
    assert records.read(path) == records.records("smoke")[0]


def test_runs_that_share_a_job_wait_for_what_each_of_them_waits_for() -> None:
    data, more, last = (Job(name, "smoke") for name in ("data", "more", "last"))
    first, second = (Job("run", "smoke", "world", "method", seed) for seed in ("0", "1"))
    needs = {data: (), first: (data,), last: (first,), more: (), second: (more,)}
    whole = joined(needs, {first: first, second: first})
    assert {job: set(waits) for job, waits in whole.items()} == {
        data: set(),
        more: set(),
        first: {data, more},
        last: {first},
    }
    seconds: Callable[[Job], float] = {data: 1.0, more: 2.0, first: 10.0, last: 1.0}.__getitem__
    assert wall_seconds(whole, seconds, lambda job: job is first, 2) == 2 + 10 + 1


def test_the_jobs_of_a_figure_are_those_of_the_workflow(made: Path) -> None:
    known = forecast("paper", ["one", "memory_rl_passive_tmaze"], measured={})
    by_seeds = packs.packs("paper", hours={})  # ensembles only
    assert by_seeds[SEEDS] == [(MAZE, METHOD)]
    wanted = figure_settings("paper", "memory_rl_passive_tmaze")
    assert known.shared[run_of(101)] == run_of(101) and known.shared[run_of(104)] == run_of(101)
    runs = len(wanted.environments) * len(wanted.methods)
    assert known.count(job for job in known.plan.needs if job.stage == "run") == 1 + runs
