"""`make gpu`: every line can be run, what fails is a row, and one that hangs loses nothing but itself."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from recollect.artifacts.sealed import read_json, write_json
from recollect.common.cuda_graphs import WARM_UP
from recollect.environments.base import World
from recollect.settings.errors import UserError
from recollect.stages import device_speeds, machines
from recollect.stages.between_marks import between
from recollect.stages.stage import Job
from recollect.stages.workload import work_of

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks is no part of the package

from benchmarks.gpu import (  # noqa: E402
    __main__,
    amago,
    case,
    device,
    lines,
    off_policy,
    one_line,
    rule,
    speeds,
    supervised,
    table,
)
from benchmarks.gpu.case import Case, NoSuchSetting, Part, Subject  # noqa: E402
from benchmarks.gpu.lines import AS_SET, COLUMNS, LINES, Line, Variant  # noqa: E402
from benchmarks.gpu.one_line import Row  # noqa: E402

pytestmark = pytest.mark.usefixtures("in_the_repository")


def measured(name: str, only: list[str] | None = None) -> tuple[list[Row], dict[str, Any]]:
    found: list[Any] = []
    one_line.measure(name, device="cpu", quick=True, seconds=math.inf, hand_on=found.append, only=only)
    return [one for one in found if isinstance(one, Row)], next((one for one in found if isinstance(one, dict)), {})


def test_a_line_of_training_is_timed_and_agrees_with_the_cpu_that_it_runs_on() -> None:
    rows, jobs = measured("gpt_50", [AS_SET, "fp32"])
    as_set = [(part, AS_SET) for part in ("update", "acting")]
    assert [(row.part, row.variant) for row in rows] == [*as_set, ("update", "fp32"), *as_set, ("update", "fp32")]
    assert all(row.rate and row.rate > 0 and row.flop > 0 for row in rows)
    assert all(row.difference == 0 and row.within for row in rows[3:])  # each once more when it was compared
    assert set(jobs["train"]) == {"update", "acting"}


@pytest.mark.parametrize(("seconds", "begun"), [(50.0, 20), (3.0, 14)])
@pytest.mark.parametrize(("joins", "rows"), [(True, 100), (False, 20)])
def test_an_evaluation_is_timed_as_it_is_played_and_not_from_its_first_episodes(
    joins: bool, rows: int, seconds: float, begun: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes of ten steps of a second: from the third on, or from so far in the second as is timed."""
    clock = SimpleNamespace(now=1.0)
    played: list[int] = []

    def play(policy: Any, environment: Any, tasks: list[Any], *, seed: int, watch: Any) -> None:
        everyone = np.ones(len(tasks), bool)
        for step in range(400):
            clock.now += 1
            played.append(len(tasks))
            watch(SimpleNamespace(playing_B=everyone, episode_B=everyone * (step // 10)))

    monkeypatch.setattr(supervised, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(supervised, "play_in_context", play)
    monkeypatch.setattr(supervised, "_policy", lambda case: SimpleNamespace(joins_splits=joins))
    assert supervised.acting_rate(Case("paper", lines.ROOM, "ad", "cpu", tmp_path, seconds=seconds)) == rows
    assert set(played) == {rows} and len(played) == begun + 1 + seconds + 1


@pytest.mark.parametrize("name", LINES)
def test_every_line_names_a_run_of_scale_paper_and_its_ways_are_columns(name: str, tmp_path: Path) -> None:
    line = LINES[name]
    assert set(line.variants) <= set(COLUMNS) and AS_SET in line.variants
    if line.builds not in ("language.images", "searching.searching"):
        for scale, of, changes in (
            ("paper", (line.env, line.method), line.small),
            ("smoke", line.quick, line.quick_changes),
        ):
            assert Case(scale, *of, "cpu", tmp_path, changes).settings.method.name.startswith(of[1])


@pytest.mark.quick("gpt_50", "ad", "gpt_50_of_10", "amago_500")
@pytest.mark.parametrize("name", ["gpt_50", "gpt_50_of_10", "amago_500", "ppo_cnn_of_10", "ad"])
def test_a_rate_counts_what_is_done_and_a_whole_job_what_a_forecast_counts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped, trainers, step = [0], list[Any](), World.step

    def counted(self: World, actions: np.ndarray) -> Any:
        stepped[0] += self.num_envs
        return step(self, actions)

    def rate(self: Case, call: Callable[[], object], units: float, *, least: int = 0) -> float:
        before, updates = stepped[0], sum(trainer.at.updates for trainer in trainers)
        call()
        assert stepped[0] - before + sum(trainer.at.updates for trainer in trainers) - updates == units
        return 1.0

    def remembered(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*of: Any) -> Any:
            trainers.append(make(*of))
            return trainers[-1]

        return made

    for family, maker in ((off_policy, "trainer_of"), (amago, "_trainer")):
        monkeypatch.setattr(family, maker, remembered(getattr(family, maker)))
    monkeypatch.setattr(World, "step", counted)
    monkeypatch.setattr(Case, "rate", rate)
    line = LINES[name]
    case = one_line.Cases(line, "cpu", True, tmp_path).case(line.variants[AS_SET])
    subject = one_line.subject_of(line, case)
    for part in subject.parts:
        if name != "ad" and part.unit != "images":
            part.rate()
    units = {part.name: part.unit for part in subject.parts}
    steps = sum(count for part, count in subject.jobs["train"].items() if units[part] == "env steps")
    assert steps == work_of(Job("train", case.scale, case.env, case.method)).env_steps


def broken(line: Line, case: Case) -> Subject:
    """Runs as set; a little off in fp32, out of memory in TF32, wrong in bf16, unknown as a graph."""
    way = case.changes.get("way", AS_SET)
    if way == "graph":
        raise NoSuchSetting("graphs")
    if way == "TF32":
        raise RuntimeError("CUDA error: something\nmore of it")
    numbers = np.array([1.0, {"fp32": 2.02, "bf16": 7.0}.get(str(way), 2.0)])
    return Subject((Part("", "things", lambda: 100.0, 1e9, 1e3),), lambda: numbers, {"train": {"": 5000.0}})


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> table.Found:
    """What is found of one line some of whose ways fail."""
    ways = {name: Variant({"way": name}) for name in (AS_SET, "fp32", "TF32", "bf16", "graph")}
    ways["bf16"] = replace(ways["bf16"], peak="bfloat16")
    line = Line("made up", "none.none", "dark_room_10x10", "dt", ("dark_room_10x10", "dt"), ways)
    monkeypatch.setitem(lines.LINES, "made_up", line)
    monkeypatch.setattr(one_line, "subject_of", broken)
    rows, jobs = measured("made_up")
    peaks = {"float32": 1e12, "tf32": 1e12, "bfloat16": 1e12, "copy": 1e12}
    return table.Found(
        "CPU", "abc", "2026-01-02", "2", False, peaks, rows, {"made_up": table.whole_jobs("made_up", jobs)}
    )


def test_what_fails_is_a_row_that_says_so_and_the_others_go_on(made: table.Found) -> None:
    made.rows = list({(row.part, row.variant): row for row in made.rows}.values())
    said = {row.variant: row for row in made.rows}
    assert said["TF32"].why == "RuntimeError: CUDA error: something" and said["graph"].why == "no such setting: graphs"
    assert said["bf16"].within is False and said[AS_SET].within and said[AS_SET].rate == 100
    assert said["fp32"].within is False, "a hundredth off is within what bf16 may be, not within what float32 may be"
    (row,) = made.timed()
    assert row.rates == {AS_SET: 100, "fp32": 100, "bf16": 100, "TF32": "failed", "graph": "·"}
    assert row.best == AS_SET and row.agrees is False
    assert row.roofline == pytest.approx(10)  # 100 a second of 1e9 operations, where 1e12 are possible
    text = table.text(made)
    assert "made_up TF32: RuntimeError: CUDA error: something" in text
    assert "made_up bf16: 2.2 of the CPU's numbers away from them" in text


def test_rates_are_handed_on_before_anything_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*unused: Any) -> tuple[None, str]:
        raise SystemExit("killed")

    monkeypatch.setattr(one_line.Cases, "compared", ended)
    found: list[Any] = []
    with pytest.raises(SystemExit):
        one_line.measure(
            "gpt_50", device="cpu", quick=True, seconds=math.inf, hand_on=found.append, only=[AS_SET, "fp32"]
        )
    rows = [row for row in found if isinstance(row, Row)]
    assert [(row.part, row.variant) for row in rows] == [("update", AS_SET), ("acting", AS_SET), ("update", "fp32")]
    assert all(row.rate and row.within is None for row in rows)


def test_a_row_that_came_twice_counts_as_it_came_last() -> None:
    first = Row("ad", "update", AS_SET, rate=1.0)
    values = [vars(first), vars(replace(first, difference=0.5, within=False)), {"train": {"update": 3.0}}]
    assert __main__.read(values) == one_line.Measured(
        [replace(first, difference=0.5, within=False)], {"train": {"update": 3.0}}
    )


@pytest.mark.parametrize("name", LINES)
def test_nothing_compiles_but_what_is_timed_as_set_and_tf32_is_what_its_column_says(name: str, tmp_path: Path) -> None:
    line = LINES[name]
    if line.builds in ("language.images", "searching.searching"):
        return
    for word, variant in line.variants.items():
        for small in (False, True):
            hp = (
                one_line.Cases(line, "cuda", False, tmp_path).case(variant, small=small).settings.method.hyperparameters
            )
            if hasattr(hp, "optimisation") and (word != AS_SET or small):
                assert hp.optimisation.compile is False
            if hasattr(hp, "tf32") and word != AS_SET and word != "bf16":
                assert hp.tf32 == variant.tf32 or word == "graph"
    assert ("TF32" in line.variants) <= hasattr(hp, "tf32")  # a method that cannot be told takes none


def test_a_call_that_the_host_does_not_wait_for_is_waited_for_when_it_is_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = SimpleNamespace(now=0.0, queued=0.0, calls=0)

    def call() -> None:
        clock.now += 0.001
        clock.queued += 0.1
        clock.calls += 1

    def waited(device: str) -> None:
        clock.now, clock.queued = clock.now + clock.queued, 0.0

    monkeypatch.setattr(case, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(case, "wait", waited)
    rate = Case("smoke", "dark_room_10x10", "dt", "cuda", tmp_path, seconds=1.5, warm=1).rate(call, 1)
    assert rate == pytest.approx(1 / 0.101) and clock.calls < 20


def test_calls_before_a_function_is_a_graph_are_not_timed_however_long_they_take(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = SimpleNamespace(now=0.0, calls=0)

    def call() -> None:
        """Four calls in the first third of the time, two in the second, eight in the last."""
        clock.calls += 1
        timed = clock.calls - WARM_UP - 2
        late = 0.125 if timed <= 4 else 0.25 if timed <= 6 else 0.0625
        clock.now += {1: 20.0, WARM_UP + 1: 3.0}.get(clock.calls, 0.5 if clock.calls <= WARM_UP else late)

    monkeypatch.setattr(case, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(case, "wait", lambda device: None)
    timed = Case("smoke", "dark_room_10x10", "dt", "cuda", tmp_path, seconds=1.5, warm=WARM_UP + 1)
    assert timed.rate(call, 1) == 8 and clock.calls == WARM_UP + 2 + 14


def test_the_peaks_count_multiplications_and_additions_and_bytes_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_fastest", lambda on, call: 0.5)
    monkeypatch.setitem(device.SIDES, "cpu", (8, 16))
    found = device.peaks("cpu")
    assert {found[kind] for kind in ("float32", "tf32", "bfloat16")} == {2 * 16**3 / 0.5}
    assert found["copy"] == 2 * device.COPIED["cpu"] / 0.5


def test_a_part_is_handed_on_before_the_next_one_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped() -> float:
        raise SystemExit("killed")

    parts = (Part("update", "updates", lambda: 5.0), Part("acting", "env steps", stopped))
    monkeypatch.setattr(one_line, "subject_of", lambda line, case: Subject(parts, lambda: np.zeros(1), {}))
    found: list[Any] = []
    with pytest.raises(SystemExit):
        one_line.measure("gpt_50", device="cpu", quick=True, seconds=math.inf, hand_on=found.append, only=[AS_SET])
    assert [(row.part, row.rate) for row in found if isinstance(row, Row)] == [("update", 5.0)]


def test_a_run_that_did_not_come_to_its_end_replaces_none_that_did(
    made: table.Found, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = device_speeds.path_of(made.device)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("whole")
    monkeypatch.setattr(speeds, "write", lambda found: [path])
    assert "some failed or were stopped: made_up" in __main__._written(made)
    made.rows = [row for row in made.rows if not row.why.startswith("RuntimeError")]
    made.rows.append(Row("made_up", "", "TF32", "things", 7.0, "tf32", why="not compared with the CPU: it was full"))
    assert __main__._written(made) == f"written: {path}"


def test_runs_of_one_device_are_one(tmp_path: Path, made: table.Found) -> None:
    later = replace(
        made,
        commit="a later one",
        rows=[Row("made_up", "", "TF32", "things", 7.0, "tf32"), Row("search", "", AS_SET, "", 1.0)],
    )
    files = [tmp_path / "1.json", tmp_path / "2.json"]
    for file, one in zip(files, (made, later), strict=True):
        write_json(file, one.as_json(), kind=__main__.KIND)
    found = table.joined([table.Found.from_json(read_json(file, kind=__main__.KIND)) for file in files])
    said = {(row.line, row.variant): row for row in found.rows}
    assert (
        said["made_up", "TF32"].rate == 7 and said["made_up", AS_SET].rate == 100 and said["search", AS_SET].rate == 1
    )
    assert found.jobs == made.jobs and found.peaks == made.peaks
    assert said["made_up", "TF32"].run == f"{later.commit}, {later.date}"
    assert said["made_up", AS_SET].run == f"{made.commit}, {made.date}"
    with pytest.raises(UserError, match="shrunk"):
        speeds.write(replace(made, quick=True))
    with pytest.raises(UserError, match="two devices"):
        table.joined([made, replace(later, device="another")])
    with pytest.raises(UserError, match="shrunk"):
        table.joined([made, replace(later, quick=True)])


def test_a_whole_job_is_the_sum_of_its_parts_as_the_settings_stand(
    made: table.Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = speeds.speeds_of(made).jobs
    assert (job.stage, job.env, job.method, job.seconds, job.seeds) == ("train", "dark_room_10x10", "dt", 50.0, 1)
    made.jobs["made_up"]["train"].units["acting"] = 30.0
    assert speeds.speeds_of(made).jobs == (), "a part was not timed"
    made.rows.append(Row("made_up", "acting", AS_SET, rate=2.0))
    monkeypatch.setitem(lines.LINES, "made_up", replace(lines.LINES["made_up"], extra={"members": 10}))
    (job,) = speeds.speeds_of(made).jobs
    assert (job.seconds, job.seeds) == (50.0 + 15.0, 10)
    made.rows = [row for row in made.rows if row.variant != AS_SET]
    assert speeds.speeds_of(made).jobs == ()


def test_a_job_keeps_the_settings_that_it_was_timed_with(
    made: table.Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    then = made.jobs["made_up"]["train"]
    write_json(tmp_path / "then.json", made.as_json(), kind=__main__.KIND)
    other = ("other settings", (1.0,) * 7)
    monkeypatch.setattr(table, "of_today", lambda job: other)
    monkeypatch.setattr(device_speeds, "of_today", lambda job: other)
    read = table.Found.from_json(read_json(tmp_path / "then.json", kind=__main__.KIND))
    (job,) = speeds.speeds_of(read).jobs
    assert (job.settings, job.work) == (then.settings, then.work)
    one_way = replace(made, rows=[Row("made_up", "", "bf16", "things", 7.0, "bfloat16")])
    one_way.jobs = {"made_up": table.whole_jobs("made_up", {"train": {"": 5000.0}})}
    (job,) = speeds.speeds_of(table.joined([read, one_way])).jobs
    assert job.settings == then.settings, "the later run timed another way alone"


def test_numbers_that_do_not_say_their_settings_are_refused(made: table.Found) -> None:
    older = {**made.as_json(), "jobs": {"made_up": {"train": {"": 5000.0}}}}
    with pytest.raises(UserError, match="which settings"):
        table.Found.from_json(older)


def test_a_line_of_seeds_is_held_to_the_tolerance_of_its_single_run() -> None:
    assert LINES["helm_of_10"].variants[AS_SET] == LINES["helm"].variants[AS_SET] == Variant(peak="tf32")


@pytest.mark.parametrize(
    "words", [["radt", "--of", "a.json"], ["--of", "a.json", "--json", "b.json"], ["radt", "--keep"]]
)
def test_words_that_would_do_nothing_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        __main__.main(["--device", "cpu", "--quick", *words])
    assert "--of" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_each_timed_job_is_reckoned_from_the_others_of_its_kind_and_not_from_itself(workdir: Path) -> None:
    """All are as fast as the rule says, but for one, which is off and puts off the job that it is nearest to."""
    machine = machines.machines()["cuda"]
    jobs = [Job("train", "paper", f"tmaze_passive_{steps}", "dqn_gpt") for steps in (50, 250, 1500)]
    jobs.append(Job("train", "paper", "amago_tmaze_50", "amago_ff"))  # the only one of its kind
    timed = [device_speeds.timed_job(job, machine.works(job, work_of(job), 10), 10) for job in jobs[:3]]
    timed.append(device_speeds.timed_job(jobs[3], 60.0))
    timed[0] = timed[0].model_copy(update={"seconds": timed[0].seconds * 3})
    found = device_speeds.DeviceSpeeds(device="Made-up", commit="a", date="b", torch="2", peaks={}, jobs=timed)
    rows = rule.rows_of(found)
    assert [row.job.env for row in rows] == ["tmaze_passive_50", "tmaze_passive_250", "tmaze_passive_1500"]
    assert [row.ratio for row in rows] == pytest.approx([1 / 3, 3.0, 1.0], rel=0.1)  # but for the steps of their worlds
    assert rows[1].timed == pytest.approx(10 * timed[1].seconds)
    assert "are right to a factor of 1.5" in rule.markdown([found])
    old = found.model_copy(update={"jobs": tuple(one.model_copy(update={"settings": "other"}) for one in timed)})
    assert rule.rows_of(old) == [], "these settings are not today's"
    assert "no two jobs of a kind were timed" in rule.markdown([old])


def test_the_page_says_how_near_the_rule_is_today() -> None:
    found = [device_speeds.read(path) for path in device_speeds.known().values()]
    assert between(rule.PAGE.read_text(encoding="utf-8"), rule.MARKS, rule.PAGE) == rule.markdown(found)


def test_the_table_of_all_lines_is_one_screen() -> None:
    rows = [
        Row(name, part, way, "updates", 1234.5, "float32")
        for name, line in LINES.items()
        for part in ("update", "acting")
        for way in line.variants
    ]
    text = table.text(table.Found("GPU", "abc", "2026-01-02", "2", False, {"float32": 1e12, "copy": 1e12}, rows))
    assert max(map(len, text.splitlines())) <= 140 and len(text.splitlines()) <= 80


def test_a_line_that_hangs_is_stopped_and_what_it_found_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = json.dumps({"line": "ad", "part": "update", "variant": AS_SET, "rate": 1.0})
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!/bin/sh\n[ $3 = peaks ] && exit 3\necho '{row}' > $5\necho '{{\"half' >> $5\nsleep 600\n")
    stand_in.chmod(0o755)
    now = [0.0]  # a clock of its own: how long a process takes to start says nothing here

    class Hanging(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            assert isinstance(self.args, list)
            if timeout is None or "ad" not in self.args:
                return super().wait()
            results = Path(self.args[self.args.index("--part-of") + 1])
            while not (results.exists() and "half" in results.read_text()):
                time.sleep(0.01)
            now[0] += timeout
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(sys, "executable", str(stand_in))
    monkeypatch.setattr(subprocess, "Popen", Hanging)
    monkeypatch.setattr(__main__, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    found = __main__.run(["ad", "radt"], __main__.Asked("cpu", True), __main__.LEAST)
    assert [(row.line, row.rate) for row in found.rows if row.rate] == [("ad", 1.0)]
    why = {row.line: row.why for row in found.rows if not row.rate}
    assert why == {"ad": "stopped after 20 s", "radt": "no time was left"}
    assert "peaks: its process ended with status 3: it said nothing\n" in capsys.readouterr().err
    assert __main__._missing(found) == ["ad", "peaks", "radt"]


@pytest.mark.parametrize("words", [[], ["--logs", "here", "--json", "found.json"]])
def test_a_profile_needs_a_place_and_keeps_no_rates(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        __main__.main(["--device", "cpu", "--quick", "--profile", *words, "clip"])
    assert "rates are none to keep" in capsys.readouterr().err


def test_fewer_lines_at_once_than_one_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        __main__.main(["--device", "cpu", "--quick", "--side-by-side", "0", "clip"])
    assert "1 or more" in capsys.readouterr().err


@pytest.mark.slow
def test_lines_of_one_process_are_measured_in_their_order_and_kept_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, seen = tmp_path / "found.json", []

    def measured(name: str, **of: Any) -> None:
        seen.append(name)
        if name == "radt":
            raise SystemExit("a crash")
        of["hand_on"](Row(name, "", AS_SET, rate=2.0))
        of["hand_on"]({"train": {"": 4.0}})

    monkeypatch.setattr(__main__, "measure", measured)
    asked = __main__.Asked("cpu", quick=True)
    with pytest.raises(SystemExit):
        __main__.run(["search", "ad", "radt", "clip"], asked, 60, keep=str(kept), apart=False)
    found = table.Found.from_json(read_json(kept, kind="benchmarks"))
    assert seen == ["search", "ad", "radt"]
    assert {(row.line, row.rate) for row in found.rows} == {("search", 2.0), ("ad", 2.0)} and found.peaks
    assert {name: jobs["train"].units for name, jobs in found.jobs.items()} == {"search": {"": 4.0}, "ad": {"": 4.0}}


@pytest.mark.slow
def test_all_lines_run_on_a_cpu(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    assert __main__.main(["--device", "cpu", "--quick", "--minutes", "20", "--json", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    absent = {row["line"] for row in rows if row["why"].startswith("no such setting")}
    assert {row["line"] for row in rows if row["rate"]} | absent == set(LINES)
    assert all(row["within"] for row in rows if row["rate"])
