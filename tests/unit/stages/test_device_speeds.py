"""What `make gpu` writes of a device: forecasts take it, say so, and the page shows what the files say."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import fast_yaml
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # benchmarks is no part of the package

from benchmarks.gpu import speeds
from benchmarks.gpu.lines import LINES
from recollect.settings.errors import UserError
from recollect.stages import device_speeds
from recollect.stages.between_marks import between
from recollect.stages.cost_text import cost_text
from recollect.stages.device_speeds import DeviceSpeeds, TimedJob, TimedRow, timed_job, work_then
from recollect.stages.forecast import Forecast, forecast
from recollect.stages.stage import Job
from recollect.stages.workload import work_of

ROOM = "dark_room_10x10"
STARTUP = 1000
RUN = Job("run", "paper", ROOM, "dt", "42")


def part(stage: str, method: str = "dt", seconds: float = 5000.0) -> dict[str, object]:
    return timed_job(Job(stage, "paper", ROOM, method), seconds).model_dump(mode="json")


@pytest.fixture
def made(workdir: Path) -> Path:
    """A working directory with a figure of two runs of DT, and a GPU that takes 1000 seconds to start a job."""
    path = workdir / "config/speeds.yaml"
    speeds = fast_yaml.load(path.read_text())
    speeds["machines"]["cuda"] |= {"startup": STARTUP}
    path.write_text(fast_yaml.dump(speeds))
    shutil.rmtree(workdir / "config/speeds")
    figure = fast_yaml.load((workdir / "config/figures/radt_dark_room_10x10.yaml").read_text())
    small = {**figure, "environments": [ROOM], "methods": ["dt"], "seeds": [42, 43], "references": []}
    (workdir / "config/figures/one.yaml").write_text(fast_yaml.dump(small))
    return workdir


def reckoned(made: Path, *jobs: dict[str, object], device: str = "auto") -> Forecast:
    """The forecast with a device file that has these jobs."""
    content = {"device": "Made-up GPU 80GB", "commit": "abc", "date": "2026-01-02", "torch": "2", "peaks": {}}
    path = made / "config/speeds/made_up_gpu_80gb.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(fast_yaml.dump({**content, "jobs": list(jobs)}))
    return forecast("paper", ["one"], measured={}, device=device)


def test_a_forecast_takes_what_was_timed_on_a_device_as_measured_and_names_it(made: Path) -> None:
    for device in ("auto", "made_up_gpu_80gb"):
        cost = reckoned(made, part("train"), part("evaluate", seconds=200), device=device)
        run = cost.estimates[RUN]
        assert (run.seconds, run.source) == (5200 + STARTUP, "measured")
        rows = {line.split()[0]: line for line in cost_text(cost).splitlines() if line}
        assert rows["run"].endswith("measured 2") and rows["generate"].endswith("recorded 1")
        assert "Made-up GPU 80GB (2026-01-02, commit abc)" in cost_text(cost)
    assert reckoned(made, part("train"), device="cpu").estimates[RUN].source != "measured"


def test_what_was_not_timed_is_scaled_from_the_same_kind_and_else_from_the_same_paper(made: Path) -> None:
    near = reckoned(made, part("train"), part("evaluate", "ad", 2000)).estimates[RUN]
    assert near.source == "scaled"  # as sure as its least sure part: DT's evaluation, from AD's
    assert near.seconds > 5000 + STARTUP
    unlike = reckoned(made, part("train"), part("evaluate", seconds=200), part("evaluate", "ad", 1e9)).estimates[RUN]
    assert unlike.seconds == 5200 + STARTUP
    half = {**part("train"), "settings": "of another day"}
    half["work"] = [number / 2 for number in half["work"]]  # type: ignore[attr-defined]
    changed = reckoned(made, half, part("evaluate", seconds=200)).estimates[RUN]
    assert changed.source == "scaled" and changed.seconds > 5200 + STARTUP  # a run of twice the work


def test_a_job_of_todays_settings_is_counted_as_today_whatever_was_counted_when_it_was_timed(made: Path) -> None:
    ad = part("evaluate", "ad", 2000)
    half = {**ad, "work": [number / 2 for number in ad["work"]]}  # type: ignore[attr-defined]
    as_counted, otherwise = (reckoned(made, part("train"), evaluated).estimates[RUN] for evaluated in (ad, half))
    assert otherwise == as_counted and otherwise.source == "scaled"


def test_of_a_job_of_other_settings_the_work_is_what_was_counted_then(workdir: Path) -> None:
    job = Job("train", "paper", "tmaze_passive_50", "dqn_lstm")
    then, now = work_then(timed_job(job, 5.0).model_copy(update={"settings": "of another day"})), work_of(job)
    for name in ("flop", "passes", "env_steps", "captured", "kernels", "cells", "apart"):
        assert getattr(then, name) == getattr(now, name) > 0, name


def test_a_device_that_was_not_timed_is_refused_and_without_one_all_is_assumed(made: Path) -> None:
    assert forecast("paper", ["one"], measured={}).estimates[RUN].source == "assumed"
    with pytest.raises(UserError, match="made_up_gpu_80gb"):
        reckoned(made, part("train"), device="made_up_gpu_8gb")


def test_of_several_timed_devices_only_that_of_this_machine_is_reckoned_with(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made / "config/speeds"
    folder.mkdir()
    for name in ("Small GPU", "Large GPU"):
        content: dict[str, object] = {"device": name, "commit": "abc", "date": "2026-01-02", "torch": "2", "peaks": {}}
        device_speeds.path_of(name).write_text(fast_yaml.dump(content))
    for here in ("Small GPU", "Large GPU", "Another GPU", ""):
        monkeypatch.setattr(device_speeds, "device_model", lambda here=here: here)
        found = device_speeds.speeds_of("auto")
        assert (found and found.device) == (here if here in ("Small GPU", "Large GPU") else None)


def test_the_table_marks_the_fastest_and_says_where_a_number_is_missing() -> None:
    rates: dict[str, float | str] = {"as set": 10.0, "bf16": 20.5, "graph": "memory"}
    row = TimedRow(
        what="a line, update", unit="updates", rates=rates, best="bf16", gigabytes=1.5, roofline=40.0, agrees=True
    )
    one = DeviceSpeeds(device="G", commit="c", date="d", torch="t", peaks={"float32": 5e13, "copy": 2e12}, rows=(row,))
    text = device_speeds.markdown([one])
    assert "| a line, update: updates | 10 | – | – | **20.5** | memory | 1.5 GB | 40 % | yes |" in text
    assert "float32 50 TFLOP/s, copy 2 TB/s" in text and "**G**, torch t; commit c, d. " in text
    later = row.model_copy(update={"what": "another", "run": "e, f"})
    text = device_speeds.markdown([one.model_copy(update={"rows": (later, row)})])
    assert "**G**, torch t; run a: commit c, d; run b: commit e, f. " in text
    assert "| another: updates | 10 | – | – | **20.5** | memory | 1.5 GB | 40 % | yes | b |" in text
    assert "| a line, update: updates | 10 | – | – | **20.5** | memory | 1.5 GB | 40 % | yes | a |" in text
    assert device_speeds.markdown([]) == device_speeds.NOTHING


def test_a_later_run_of_a_few_lines_takes_the_place_of_these_alone() -> None:
    """Rows in the order of lines; of a row both runs' ways, and the fastest of both."""
    ppo, gpt = LINES["ppo_cnn"].what, LINES["gpt_50"].what
    first = (
        timed_row(f"{ppo}, training", {"as set": 5.0}),
        timed_row(f"{gpt}, update", {"as set": 10.0, "bf16": 30.0}, "bf16"),
        timed_row(f"{gpt}, acting", {"as set": 7.0}, run="old, day"),
    )
    jobs = [TimedJob.model_validate(part(stage, seconds=100)) for stage in ("train", "evaluate")]
    jobs.append(TimedJob.model_validate({**part("train", seconds=20), "seeds": 10}))
    earlier = DeviceSpeeds(device="G", commit="c", date="d", torch="t", peaks={}, rows=first, jobs=tuple(jobs))
    rows = (
        timed_row(f"{gpt}, update", {"as set": 20.0}),
        timed_row(f"{LINES['gpt_50_of_10'].what}, update", {"as set": 9.0}),
    )
    quicker = TimedJob.model_validate(part("train", seconds=60))
    later = DeviceSpeeds(device="G", commit="e", date="f", torch="t", peaks={}, rows=rows, jobs=(quicker,))
    found = speeds.beside(earlier, later)
    assert found.jobs == (quicker, *jobs[1:]) and found.commit == "e"
    assert [(row.what, row.best, row.run) for row in found.rows] == [
        (f"{gpt}, update", "bf16", "c, d"),
        (f"{gpt}, acting", "as set", "old, day"),
        (f"{LINES['gpt_50_of_10'].what}, update", "as set", "e, f"),
        (f"{ppo}, training", "as set", "c, d"),
    ]
    assert found.rows[0].rates == {"as set": 20.0, "bf16": 30.0}
    quickest = speeds.beside(
        earlier, later.model_copy(update={"rows": (timed_row(f"{gpt}, update", {"as set": 40.0}),)})
    )
    assert (quickest.rows[0].best, quickest.rows[0].run, quickest.rows[0].agrees) == ("as set", "e, f", True)


def test_a_later_word_for_no_number_takes_no_number_away() -> None:
    what = f"{LINES['gpt_50'].what}, update"
    first = timed_row(what, {"as set": 10.0, "bf16": 30.0, "fp32": 5.0}, "bf16")
    second = timed_row(what, {"as set": 12.0, "bf16": "time", "fp32": "time", "graph": "memory"})
    nothing = timed_row(LINES["gpt_50"].what, {"as set": "time"}, "")
    earlier, later = (
        DeviceSpeeds(device="G", commit="c", date="d", torch="t", peaks={}, rows=rows)
        for rows in ((first,), (second, nothing))
    )
    (row,) = speeds.beside(earlier, later).rows
    assert row.rates == {"as set": 12.0, "bf16": 30.0, "fp32": 5.0, "graph": "memory"}
    assert row.best == "bf16"


def timed_row(what: str, rates: dict[str, float | str], best: str = "as set", run: str = "") -> TimedRow:
    agrees = True if len(rates) > 1 else None
    return TimedRow(what=what, unit="updates", rates=rates, best=best, agrees=agrees, run=run)


@pytest.mark.usefixtures("in_the_repository")
def test_the_page_shows_what_the_files_of_this_repository_say() -> None:
    page = device_speeds.PAGE.read_text(encoding="utf-8")
    found = [device_speeds.read(path) for path in device_speeds.known().values()]
    assert between(page, device_speeds.MARKS, device_speeds.PAGE) == device_speeds.markdown(found)
