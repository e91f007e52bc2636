"""Packs: as many seeds in one job of a cluster as fit by the forecast, and never reckoned twice for nothing."""

from __future__ import annotations

import re
from pathlib import Path

import fast_yaml
import pytest

from recollect.settings.errors import UserError
from recollect.stages import packs

ROOM, OTHER = "dark_room_10x10", "dark_room_20x20"


@pytest.fixture
def made(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with one figure about DT, on machines where every job takes an hour and nothing more."""
    monkeypatch.setattr(packs, "hours_of", packs.hours_of.__wrapped__)  # as in a process of its own, each time
    figure = fast_yaml.load((workdir / "config/figures/radt_dark_room_10x10.yaml").read_text())
    for other in (workdir / "config/figures").glob("*.yaml"):
        other.unlink()
    for scale in (workdir / "config/scales").glob("*.yaml"):  # what they say of those figures
        scale.write_text(fast_yaml.dump({**fast_yaml.load(scale.read_text()), "figures": {}}))
    small = {**figure, "environments": [ROOM], "methods": ["dt"], "seeds": [0, 1], "references": []}
    (workdir / "config/figures/one.yaml").write_text(fast_yaml.dump(small))
    (workdir / "config/recorded_jobs.csv").unlink()
    takes(workdir, hours=1)
    return workdir


def takes(folder: Path, hours: float) -> None:
    """From now on every job takes twice so long: runs, in which training and scores are one process."""
    path = folder / "config/speeds.yaml"
    machine = {"name": "made up", "startup": 2 * 3600 * hours, "pass": 0, "flop": 1e36, "world": 0}
    both = {"cpu": {**machine, "basis": "recorded"}, "cuda": {**machine, "basis": "assumed"}}
    path.write_text(fast_yaml.dump({**fast_yaml.load(path.read_text()), "machines": both}))


@pytest.mark.parametrize(("hours", "seeds"), [(1, 10), (2.4, 4), (10, 1), (30, 1)])
def test_as_many_seeds_go_together_as_are_trained_and_scored_within_the_limit(
    made: Path, hours: float, seeds: int
) -> None:
    takes(made, hours)
    assert packs.fitting("paper", ROOM, "dt") == seeds  # 20 hours; training and scores take `hours` each


def test_shorter_jobs_hold_fewer_seeds(made: Path) -> None:
    of = ("paper", ROOM, "dt")
    assert [packs.fitting(*of, job_hours) for job_hours in (64, 32, 16, 8, 1)] == [10, 10, 5, 2, 1]


def test_what_no_figure_is_about_stays_alone(made: Path) -> None:
    assert packs.fitting("paper", OTHER, "dt") == packs.fitting("paper", ROOM, "ad") == 1


def test_hours_are_forecast_again_when_the_configuration_changed_and_only_then(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert packs.hours_of("paper") == {f"{ROOM} dt": 2.0}
    reckon = packs.forecast
    monkeypatch.setattr(packs, "forecast", lambda scale: pytest.fail("forecast for nothing"))
    assert packs.fitting("paper", ROOM, "dt") == 10
    monkeypatch.setattr(packs, "forecast", reckon)
    takes(made, hours=5)
    assert packs.fitting("paper", ROOM, "dt") == 2
    assert packs.fitting("smoke", ROOM, "dt") == 2


def test_a_damaged_file_of_hours_is_made_again(made: Path) -> None:
    packs.hours_of("paper")
    (made / ".snakemake/recollect-hours-paper.json").write_text("{}")
    assert packs.fitting("paper", ROOM, "dt") == 10


def test_packs_hold_the_seeds_that_the_same_figures_want_and_every_run_once(made: Path) -> None:
    two = fast_yaml.load((made / "config/figures/one.yaml").read_text())
    (made / "config/figures/one.yaml").write_text(fast_yaml.dump({**two, "seeds": list(range(7))}))
    (made / "config/figures/two.yaml").write_text(fast_yaml.dump({**two, "seeds": [5, 6, 7]}))
    takes(made, hours=2.4)  # four fit
    found = packs.packs("paper")
    assert sorted(seed for seeds in found for seed in seeds) == [0, 1, 2, 3, 4, 5, 6]  # 7 alone is no pack
    assert (5, 6) in found and all(len(seeds) <= 4 for seeds in found)
    assert packs.packs("paper", most=1) == packs.packs("smoke") == {}  # small runs share a job as ensembles only
    assert all(len(seeds) <= 2 for seeds in packs.packs("paper", most=2))


def test_a_variant_that_is_not_trained_is_in_no_pack(made: Path) -> None:
    path, methods = made / "config/figures/one.yaml", ["radt", "radt.every_25"]
    path.write_text(fast_yaml.dump({**fast_yaml.load(path.read_text()), "methods": methods}))
    found = packs.packs("paper", hours={f"{ROOM} {method}": 1.0 for method in methods})
    assert found == {(0, 1): [(ROOM, "radt")]}


@pytest.mark.slow
def test_no_pack_is_lost_to_another_of_as_many_seeds_from_the_same_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = [(0, 1, 2), (0, 1, 5), (0, 2, 5), (1, 2, 7)]
    monkeypatch.setattr(packs, "packs", lambda *of: {seeds: [(ROOM, f"m_{place}")] for place, seeds in enumerate(sets)})
    found = packs.rules(["my-lab", "my_lab"])
    assert [seeds for seeds, _ in found.values()] == [*sets, *sets, ()]
    names = list(found)
    assert (names[0], names[3]) == ("run_my_lab_3_seeds_from_0", "run_my_lab_3_seeds_from_1")
    assert all(name.isidentifier() for name in names)


def test_the_rule_of_a_pack_matches_its_runs_only() -> None:
    pattern = re.compile(rf"results/paper/runs/(?P<env>{packs.pattern([(ROOM, 'dt'), (OTHER, 'ad.k_1')])})/")
    matched = [(ROOM, "dt"), (OTHER, "ad.k_1")]
    others = [(ROOM, "ad.k_1"), (OTHER, "dt"), (ROOM, "dtt"), (ROOM, "dt.x")]
    for env, method in matched + others:
        found = pattern.match(f"results/paper/runs/{env}/{method}/seed_1/policy.safetensors")
        assert (found is not None and found["env"] == env) == ((env, method) in matched)


def test_a_run_is_made_by_its_pack_or_alone_and_never_by_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two rules match Snakemake makes a job for each of them, of thousands of runs."""
    monkeypatch.setattr(
        packs, "packs", lambda *of: {(1, 2): [(ROOM, "dt")], (7, 10): [(ROOM, "dt"), (OTHER, "ad.k_1")]}
    )
    constraints = packs.rules(["paper"])["run"][1]
    alone = re.compile(rf"results/(?P<scale>{constraints['scale']})/runs/")

    def goes_alone(env: str, method: str, seed: int, scale: str = "paper") -> bool:
        return alone.match(f"results/{scale}/runs/{env}/{method}/seed_{seed}/policy.safetensors") is not None

    assert not any(goes_alone(ROOM, "dt", seed) for seed in (1, 2, 7, 10))
    assert not any(goes_alone(OTHER, "ad.k_1", seed) for seed in (7, 10))
    assert all(goes_alone(ROOM, "dt", seed) for seed in (0, 3, 11, 77, 100))
    assert goes_alone(OTHER, "ad.k_1", 1) and goes_alone(OTHER, "dt", 7) and goes_alone(ROOM, "dt.x", 1)
    assert goes_alone(ROOM, "dt", 1, "paper_cpu") and goes_alone(ROOM, "dt", 1, "demo")


def test_seeds_of_an_ensemble_are_one_pack_however_long_they_take(made: Path) -> None:
    takes(made, hours=30)
    assert packs.packs("paper") == {}
    path = made / "config/scales/paper.yaml"
    known = fast_yaml.load(path.read_text())
    path.write_text(fast_yaml.dump({**known, "ensembles": ["dt"]}))
    assert packs.packs("paper") == {(0, 1): [(ROOM, "dt")]}
    assert packs.packs("paper", most=1) == {}
    for name, meant in {"dqn_gtp": "dqn_gpt", "dqn_gpt.layer_1": "dqn_gpt.layers_1"}.items():
        path.write_text(fast_yaml.dump({**known, "ensembles": [name]}))
        with pytest.raises(UserError, match=f"`ensembles` name '{name}'") as refused:
            packs.packs("paper")
        assert meant in refused.value.do


def test_at_a_scale_of_small_runs_an_ensemble_holds_all_seeds_that_any_figure_wants(made: Path) -> None:
    one = fast_yaml.load((made / "config/figures/one.yaml").read_text())
    (made / "config/figures/one.yaml").write_text(fast_yaml.dump({**one, "methods": ["dt", "ad"], "seeds": [0, 1, 2]}))
    (made / "config/figures/two.yaml").write_text(fast_yaml.dump({**one, "seeds": [1, 2, 3, 4]}))
    path = made / "config/scales/demo.yaml"
    path.write_text(fast_yaml.dump({**fast_yaml.load(path.read_text()), "ensembles": ["dt"]}))
    assert packs.packs("demo") == {(0, 1, 2, 3, 4): [(ROOM, "dt")]}  # and AD's go alone
    assert packs.packs("demo", most=1) == {}
    assert not (made / ".snakemake").exists()  # nothing was forecast


@pytest.mark.usefixtures("in_the_repository")
def test_seeds_are_at_work_at_once_only_where_a_large_run_does_not_fill_its_gpu() -> None:
    memory = ("amago_popgym_AutoencodeEasy", "amago_transformer")
    assert packs.side_by_side("paper", *memory, 4) == 4
    assert packs.side_by_side("paper", ROOM, "dt", 4) == packs.side_by_side("smoke", *memory, 4) == 1
    assert [packs.runs_in_ram("paper", *memory, 4, seeds) for seeds in (1, 3, 9)] == [1, 3, 4]


@pytest.mark.usefixtures("in_the_repository")
def test_an_ensemble_needs_the_ram_of_one_run_but_for_worlds_that_other_processes_play(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packs, "is_ensemble", lambda *of: True)
    assert packs.runs_in_ram("paper", ROOM, "dt", 1, 30) == 1
    monkeypatch.setitem(packs.PLAYED_BY_OTHERS, "dark_room", 4)
    assert [packs.runs_in_ram("paper", ROOM, "dt", 1, seeds) for seeds in (1, 4, 5, 8, 9)] == [1, 1, 2, 2, 3]
