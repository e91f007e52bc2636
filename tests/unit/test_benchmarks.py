"""The benchmarks compare like with like: both ways of each pair give the same result, and a wrong one is noticed."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks is no part of the package

import benchmarks  # noqa: E402
from benchmarks import (  # noqa: E402
    __main__,
    acting,
    dry_run,
    harness,
    histories,
    history_vectors,
    hopfield,
    in_context,
    one_actor,
    plain_acting,
    plain_match,
    released,
    search,
    stepping,
    table,
    training,
    trajectories,
    windows,
)
from benchmarks.harness import Comparison, Goal, NotTheSame, Rates, Side  # noqa: E402
from benchmarks.long_run import long_run  # noqa: E402
from recollect.environments.base import World  # noqa: E402
from recollect.environments.tmaze import World as TMaze  # noqa: E402
from recollect.radt.cached_reading import CachedReading  # noqa: E402

pytestmark = pytest.mark.usefixtures("in_the_repository")
QUICK = [name for name in benchmarks.NAMES if name != "dry_run"]


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps all instances of all worlds have made."""
    found = [0]

    def counted(of: Any, name: str) -> None:
        step = getattr(of, name)

        def stepping_once(self: Any, *given: Any) -> Any:
            found[0] += getattr(self, "num_envs", 1)
            return step(self, *given)

        monkeypatch.setattr(of, name, stepping_once)

    for of, name in (
        (World, "step"),
        (TMaze, "_step_one"),
        (stepping.PlainRoom, "step"),
        (plain_match.PlainMatch, "step"),
    ):
        counted(of, name)
    return found


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.quick(
    "stepping",
    "histories",
    "training",
    "windows",
    "trajectories",
    "search",
    "history_vectors",
    "hopfield",
    "frozen_models",
    "bfloat16",
)
def test_both_ways_give_the_same_result_and_can_be_timed(
    name: str, stepped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rates are per unit; where a side plays worlds, its units are their steps."""
    rows, seconds = 0, harness.seconds

    def watched(side: Side, calls: int) -> float:
        before, lasted = stepped[0], seconds(side, calls)
        assert stepped[0] - before in (0, calls * side.units)
        return lasted

    monkeypatch.setattr(harness, "seconds", watched)
    for comparison in __main__.comparisons(name, True):
        result = harness.measure(comparison, rounds=1, at_least=0.0)
        assert result.difference <= comparison.tolerance
        assert len(result.ratios) == (comparison.against is not None)
        assert result.ours_seconds > 0
        if comparison.against is not None:
            assert result.ratio == pytest.approx(result.against_seconds / result.ours_seconds)
        rows += 1
    assert rows > 0


def wrong_room(patch: pytest.MonkeyPatch) -> Iterator[Comparison]:
    patch.setattr(stepping.PlainRoom, "moves", ((-1, 0), (0, 1), (1, 0), (0, 1), (0, 0)))
    return stepping.comparisons(True)


def wrong_apples(patch: pytest.MonkeyPatch) -> Iterator[Comparison]:
    patch.setattr(plain_match, "APPLE", b"k")
    return iter([stepping.visual_match(batch=16, episodes=1)])


def no_learning(patch: pytest.MonkeyPatch) -> Iterator[Comparison]:
    patch.setattr(histories.PlainPPO, "learn", lambda self, rollout: None)
    return histories.comparisons(True)


def no_earlier_episode(patch: pytest.MonkeyPatch) -> Iterator[Comparison]:
    patch.setattr(plain_acting, "joined", lambda first, second: second)
    return in_context.comparisons(True)


def worst_retrieved(patch: pytest.MonkeyPatch) -> Iterator[Comparison]:
    patch.setattr(plain_acting, "spread", lambda values: -values)
    found = list(in_context.comparisons(True))
    return iter([comparison for comparison in found if "RA-DT" in comparison.work])


def forgotten_step(patch: pytest.MonkeyPatch) -> Iterator[Comparison]:
    honest = acting.PlainHistory.outputs

    def outputs(self: acting.PlainHistory, step: int) -> torch.Tensor:
        if step > 0:
            self.episode["action"][:, step - 1] = 0
        return honest(self, step)

    patch.setattr(acting.PlainHistory, "outputs", outputs)
    return acting.comparisons(True)


def other_activation(patch: pytest.MonkeyPatch) -> Iterator[Comparison]:
    build = training.GPT2Config
    patch.setattr(training, "GPT2Config", lambda **options: build(**{**options, "activation_function": "gelu_new"}))
    return training.comparisons(True)


def late_window(patch: pytest.MonkeyPatch) -> Iterator[Comparison]:
    cut = windows.PlainSampler.windows
    patch.setattr(windows.PlainSampler, "windows", lambda self, chosen, ends: cut(self, chosen, [e + 1 for e in ends]))
    return windows.comparisons(True)


def missed_neighbour(patch: pytest.MonkeyPatch) -> Iterator[Comparison]:
    find = search.FlatIndex.search

    def shifted(self: Any, queries: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        scores, ids = find(self, queries, k + 1)
        return scores[:, 1:], ids[:, 1:]

    patch.setattr(search.FlatIndex, "search", shifted)
    return search.comparisons(True)


def swapped_cells(patch: pytest.MonkeyPatch) -> Iterator[Comparison]:
    encode = hopfield.one_hots
    patch.setattr(hopfield, "one_hots", lambda values, bins: encode(values.flip(-1), bins))
    return hopfield.comparisons(True)


def another_row(patch: pytest.MonkeyPatch) -> Iterator[Comparison]:
    read = trajectories.TrajectoryFiles._read

    def shifted(self: trajectories.TrajectoryFiles, file: Any) -> dict[str, np.ndarray]:
        columns = read(self, file)
        return columns | {"reward": np.roll(columns["reward"], 1)}

    patch.setattr(trajectories.TrajectoryFiles, "_read", shifted)
    return trajectories.comparisons(True)


def forgotten_reset(patch: pytest.MonkeyPatch) -> Iterator[Comparison]:
    patch.setattr(history_vectors.XLCache, "reset", lambda self, mask_B: None)
    return history_vectors.comparisons(True)


@pytest.mark.quick(
    "wrong_room",
    "no_learning",
    "no_earlier_episode",
    "forgotten_step",
    "late_window",
    "missed_neighbour",
    "forgotten_reset",
    "another_row",
    "other_activation",
    "wrong_apples",
    "swapped_cells",
)
@pytest.mark.parametrize(
    "mistake",
    [
        wrong_room,
        wrong_apples,
        no_learning,
        no_earlier_episode,
        worst_retrieved,
        forgotten_step,
        other_activation,
        late_window,
        missed_neighbour,
        swapped_cells,
        forgotten_reset,
        another_row,
    ],
)
def test_a_mistake_in_one_of_the_two_ways_is_noticed(
    mistake: Callable[[pytest.MonkeyPatch], Iterator[Comparison]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotTheSame, match="no time was taken"):
        harness.checked(next(mistake(monkeypatch)))


@pytest.mark.slow
def test_the_many_jobs_are_counted_exactly(tmp_path: Path) -> None:
    many = dry_run.working_folder(tmp_path / "many", 4)
    assert dry_run.dry_run(many, "many", "many") == 4 * 3 + 5


def pair(ours: Callable[[], object], against: Callable[[], object] | None, **options: Any) -> Comparison:
    return Comparison(
        work="something",
        unit="steps",
        plain="the plain way",
        ours=Side(ours, 10),
        against=None if against is None else Side(against, 2),
        **{"difference": lambda: 0.0, **options},
    )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that only moves when it is told to."""
    found = SimpleNamespace(now=0.0)
    monkeypatch.setattr(harness.time, "perf_counter", lambda: found.now)
    return found


def test_ratios_are_of_work_done_per_second_within_a_round(clock: SimpleNamespace) -> None:
    calls = iter(range(100))

    def lasting(seconds: float) -> Callable[[], None]:
        def work() -> None:
            number = max(0, next(calls) - 4) // 2  # of the round; four calls warm up
            clock.now += seconds * 2**number  # the machine slows down, for both alike

        return work

    result = harness.measure(pair(lasting(10.0), lasting(6.0)), rounds=3, at_least=0.0)
    assert result.ratios == pytest.approx((3.0, 3.0, 3.0))  # 6 s for 2 units against 10 s for 10
    assert result.ours_seconds == pytest.approx(2.0)
    assert result.against_seconds == pytest.approx(6.0)


def test_the_two_ways_take_turns_in_alternating_order() -> None:
    calls: list[str] = []
    comparison = pair(lambda: calls.append("ours"), lambda: calls.append("plain"))
    harness.measure(comparison, rounds=3, at_least=0.0)
    assert calls[-6:] == ["plain", "ours", "ours", "plain", "plain", "ours"]


def test_the_machines_rates_are_of_its_fastest_products(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lasting = iter([3.0, 0.5, 2.0, 5.0, 4.0])

    def work() -> None:
        clock.now += next(lasting)

    assert table.fastest(work) == 0.5
    for others, gflop in ((0.5, 2 * 3200 * 512 * 2048 / 1e9 / 0.5), (9.0, 2 * 1024**3 / 1e9 / 0.5)):
        taken = iter([0.5, others])
        monkeypatch.setattr(table, "fastest", lambda work, taken=taken: next(taken))
        found = table.rates()
        assert found.gemm_seconds == 0.5 and found.peak_gflops == pytest.approx(gflop)


def test_short_work_is_repeated_until_it_can_be_timed(clock: SimpleNamespace) -> None:
    def work() -> None:
        clock.now += 0.001

    calls = harness.calls_for(Side(work, 1), 0.2)
    assert calls >= 200
    assert harness.seconds(Side(work, 5), calls) == pytest.approx(0.0002)


def test_work_that_goes_on_from_where_it_stands_is_not_repeated() -> None:
    done: list[int] = []
    side = Side(lambda: done.append(1), 1, once=True)
    assert harness.calls_for(side, 10.0) == 1
    assert len(done) == 1  # the warm-up


@pytest.mark.parametrize("difference", [0.2, float("nan")])
def test_no_time_is_taken_of_different_results(difference: float) -> None:
    comparison = pair(lambda: pytest.fail("timed"), None, difference=lambda: difference, tolerance=0.1)
    with pytest.raises(NotTheSame):
        harness.measure(comparison)


def result(ratios: tuple[float, ...], goal: Goal | None, seconds: float = 0.5) -> harness.Result:
    theirs = seconds * ratios[0] if ratios else None
    return harness.Result("work", "steps", "plain", goal, ("a note",), 0.0, seconds, theirs, ratios)


def test_goals_are_at_least_a_ratio_or_below_a_time() -> None:
    assert result((40.0, 50.0, 60.0), Goal(50)).reached is True
    assert result((40.0, 49.0, 60.0), Goal(50)).reached is False
    assert result((), Goal(15, "seconds"), seconds=14.9).reached is True
    assert result((), Goal(15, "seconds"), seconds=15.0).reached is False
    assert result((1.0,), None).reached is None


def test_the_table_shows_everything() -> None:
    text = table.text([result((40.0, 50.0, 90.0), Goal(50)), result((), Goal(15, "seconds"), seconds=20.0)])
    first, second = text.splitlines()[2:4]
    for part in ("work (1)", "2 steps/s", "0.05 steps/s", "50× [40..90]", "≥ 50×", "yes"):
        assert part in first
    assert "< 15 s" in second and second.endswith("no")
    assert text.splitlines()[-1] == "(1) a note"
    assert [table.amount(value) for value in (1_234_567.0, 2e9, 999.0, 0.01234)] == ["1.23 M", "2 G", "999", "0.0123"]


def test_the_released_codes_time_is_scaled_by_the_machine_and_a_missed_goal_is_marked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    common = {"of": "a code", "unit": "steps", "threads": 1, "date": "2026-11-22", "limit": "its share of the peak"}
    lines = {
        "known": released.Line.model_validate(
            {**common, "per_second": 1.0, "gemm_seconds": 0.02, "goal": 3, "gflop": 10}
        ),
        "unknown": released.Line.model_validate({**common, "seconds": 1.0, "gemm_seconds": "unknown", "goal": 3}),
        "of two threads": released.Line.model_validate(
            {**common, "seconds": 1.0, "gemm_seconds": 0.02, "goal": 3, "threads": 2}
        ),
    }
    monkeypatch.setattr(released, "lines", lambda: lines)
    bare = dataclasses.replace(result((), None, seconds=0.2), rates=Rates(1, 0.01, 200.0))
    known, unknown, of_two = (dataclasses.replace(bare, released=name) for name in lines)
    # The matrix product takes half as long as then: so would the released code, 0.5 s and not 1 s.
    assert released.ratio_of(known) == pytest.approx(2.5) and released.met(known) is False
    assert released.ratio_of(unknown) == pytest.approx(5.0) and released.met(unknown) is True
    # Of two threads, beside ours with one, nothing says how much faster a machine is.
    assert released.ratio_of(of_two) == pytest.approx(5.0)
    assert "1 steps/s (2026-11-22, not scaled, 2 threads)" in table.text([of_two], with_released=True)
    assert released.ratio_of(bare) is None and released.met(bare) is None
    first, second, third = table.text([known, unknown, bare], with_released=True).splitlines()[2:5]
    assert "2 steps/s (2026-11-22, machine factor 0.50" in first and "2.5×" in first
    # 10 GFLOP in 0.2 s, of 200 GFLOP in one; at the peak it would take 0.05 s.
    assert "NOT MET" in first and first.endswith("25 % (all of it: 10×)")
    assert "1 steps/s (2026-11-22, not scaled" in second and "yes" in second
    assert third.endswith("–")
    assert "(2) its share of the peak" in table.text([known], with_released=True)
    # What was counted while it ran goes before what was counted by hand.
    assert released.share_of(dataclasses.replace(known, gflop=20.0)) == pytest.approx(0.5)
    # Without the machine's rates nothing is compared.
    assert released.ratio_of(dataclasses.replace(known, rates=None)) is None


def test_radt_is_timed_where_each_row_reads_another_window_than_before(monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = in_context.retrieval({"width": 16, "layers": 1, "heads": 2}, 3, {"width": 6, "height": 5})
    read, whole = [], CachedReading._read

    def watched(self: CachedReading, context: Any, has_context_B: torch.Tensor, changed_B: np.ndarray) -> None:
        read.append(int(changed_B.sum()))
        whole(self, context, has_context_B, changed_B)

    monkeypatch.setattr(CachedReading, "_read", watched)
    comparison.ours.run()
    comparison.ours.run()
    assert read == [3, 3]


def test_a_compiled_step_says_that_the_plain_one_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("trainer", "network_of", "twin_of"):
        monkeypatch.setattr(training, name, lambda *unused: print)
    monkeypatch.setattr(training, "waiting", lambda step, device: step)
    found = list(training.comparisons(False))
    assert any(one.work.endswith(", compiled") for one in found)
    assert all(one.work.endswith(", compiled") == one.plain.endswith(", not compiled") for one in found)


def test_every_recorded_line_is_well_formed_and_named_by_a_benchmark() -> None:
    sources = " ".join(path.read_text() for path in (ROOT / "benchmarks").glob("*.py"))
    built = {f"{run}_{part}" for _, _, run in one_actor.RUNS for part in ("update", "collecting")}
    built |= set(training.RELEASED.values()) | {f"{m}_d{d}_acting" for m in ("ad", "radt") for d in (64, 512)}
    built |= {"transformer_xl_511", "transformer_xl_15", "tmaze_stepping", "key_to_door_stepping", "dark_room_stepping"}
    for name, line in released.lines().items():
        assert line.scaled(Rates(1, 0.02, 200.0)) > 0
        assert name in built or f'"{name}"' in sources, name


def test_the_command_prints_the_table_and_seals_the_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.json"
    torch.set_num_threads(2)
    assert __main__.main(["hopfield", "windows", "--quick", "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "FrozenHopfield of 50 cells" in printed and "these are not results" in printed
    content = json.loads(path.read_text())
    assert [row["work"].split()[0] for row in content["rows"]] == ["FrozenHopfield", "128"]
    assert [row["benchmark"] for row in content["rows"]] == ["hopfield", "windows"]
    assert content["quick"] is True and content["failures"] == []
    assert content["runs"][0]["threads"] == torch.get_num_threads() == 1
    assert json.loads((tmp_path / "results.json.manifest.json").read_text())["kind"] == "benchmarks"


def test_a_pair_that_differs_is_reported_and_the_others_are_still_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    swapped_cells(monkeypatch)
    assert __main__.main(["hopfield", "windows", "--quick"]) == 1
    captured = capsys.readouterr()
    assert "error: hopfield: FrozenHopfield of 50 cells" in captured.err
    assert "128 windows of 50" in captured.out


def test_an_unknown_benchmark_is_named_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["steping"]) == 2
    assert "did you mean 'stepping'?" in capsys.readouterr().err


def test_the_plain_room_pays_the_key_once_and_then_the_door() -> None:
    room = stepping.PlainRoom({"key": (1, 0), "door": (1, 1)})
    rewards = stepping.trace_of_room(room, np.array([2, 1, 0, 2, 4, 3]))[:, 2]
    assert rewards.tolist() == [0, 0, 1, 1, 1, 0]


def test_a_long_run_stops_in_time_and_says_how_far_it_got() -> None:
    said = long_run(0.5, quick=True, comparisons=1)
    assert 0.5 <= said["seconds"] < 10
    assert 0 < said["updates"] < said["updates_of_the_run"] and said["environment_steps"] == 21 * said["episodes"]
    assert said["updates_per_second"] == pytest.approx(said["updates"] / said["seconds"])
    rates = [value for name, value in said.items() if "per_second" in name]
    assert len(rates) == 4 and all(rate > 0 for rate in rates)
