"""What Snakemake plans with: settings that the check resolved once, and no import of torch; and what a manifest says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import fast_yaml
import pytest

from recollect.artifacts.sealed import manifest_path
from recollect.settings import still
from recollect.settings.errors import UserError
from recollect.settings.resolve import canonical, dumped, resolve, resolved
from recollect.stages import check, paths, provenance

ROOM = "dark_room_10x10"

PLAN = """
import sys
from recollect.settings.still import hold_still
from recollect.stages import check, plan
from recollect.stages.table import STAGES
from recollect.settings.resolve import names
hold_still()
check.resolve_all = None  # what an earlier process found must be enough
check.check_once()
jobs = {job for scale in names("scales") for job in plan.plan(scale, names("figures")).needs}
texts = {STAGES[job.stage].settings_text(job) for job in jobs}
print(len(jobs), len(texts), "torch" in sys.modules)
"""


@pytest.fixture
def fresh(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory in a process that will be as it was."""
    monkeypatch.setattr(still, "_still", False)
    monkeypatch.setattr(still, "_prepared", {})
    return workdir


@pytest.fixture
def one_figure(fresh: Path) -> Path:
    """The same with one scale and one figure, which is checked in no time."""
    for path in (fresh / "config/scales").glob("*.yaml"):
        if path.stem != "smoke":
            path.unlink()
    scale = fresh / "config/scales/smoke.yaml"
    scale.write_text(scale.read_text().split("figures:")[0])
    for path in (fresh / "config/figures").glob("*.yaml"):
        if path.stem != "radt_dark_room_10x10":
            path.unlink()
    return fresh


def kept_of(scale: str) -> dict[str, Any]:
    """What was kept of a scale: its settings by their names."""
    return json.loads(check.KEPT.read_text())["made"][scale]["made"]


@pytest.mark.slow
def test_all_figures_are_planned_without_torch(fresh: Path) -> None:
    gone = {"smoke", "middle", "middle_cpu", "paper_cpu"}  # the other scales are enough
    for scale in gone:
        (fresh / f"config/scales/{scale}.yaml").unlink()
    for claim in (fresh / "config/claims").glob("*.yaml"):
        if gone & fast_yaml.load(claim.read_text()).get("scales", {}).keys():
            claim.unlink()
    check.check_once()
    done = subprocess.run([sys.executable, "-c", PLAN], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    jobs, texts, torch = done.stdout.split()
    assert int(jobs) > 5000 and int(texts) > 1000 and torch == "False"


def test_a_check_hands_over_what_a_run_resolves_itself(one_figure: Path) -> None:
    check.check_once()
    assert kept_of("smoke").keys() >= {f"smoke {ROOM} radt", f"smoke {ROOM} dt"}
    own = {method: dumped(resolve("smoke", ROOM, method, 0)) for method in ("radt", "dt", "ad")}
    texts = {method: provenance.train_settings("smoke", ROOM, method) for method in own}
    still.hold_still()
    for method, values in own.items():
        assert canonical(resolved("smoke", ROOM, method)) == canonical(values)
        assert provenance.train_settings("smoke", ROOM, method) == texts[method]


def test_changed_configuration_is_checked_again_and_a_damaged_file_made_anew(one_figure: Path) -> None:
    check.check_once()
    before = check.KEPT.read_bytes()
    method = one_figure / "config/methods/radt.yaml"
    method.write_text(method.read_text().replace("  stride: 25", "  stride: 24"))
    check.check_once()
    kept = kept_of("smoke")
    assert kept[f"smoke {ROOM} radt"]["method"]["memory"]["stride"] == 24
    check.KEPT.write_bytes(before[:100])
    check.check_once()
    assert kept_of("smoke") == kept


def test_a_changed_scale_alone_is_checked_again_with_those_that_extend_it(
    one_figure: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_all, checked = check.resolve_all, list[list[str]]()
    monkeypatch.setattr(check, "resolve_all", lambda scales: checked.append(list(scales)) or resolve_all(scales))
    scales = one_figure / "config/scales"

    def check_after(file: Path, content: str) -> list[str]:
        """The scales that are resolved after a file was written."""
        file.write_text(content)
        del checked[:]
        check.check_once()
        return checked[0] if checked else []

    plain = (scales / "smoke.yaml").read_text()
    (scales / "other.yaml").write_text(plain)
    assert check_after(scales / "wider.yaml", "extends: smoke\n") == ["other", "smoke", "wider"]
    assert check_after(scales / "wider.yaml", "extends: smoke\n") == []
    assert check_after(scales / "new.yaml", "extends: other\n") == ["new"]
    shorter = plain.replace("      context: 20\n", "      context: 7\n", 1)
    assert check_after(scales / "smoke.yaml", shorter) == ["smoke", "wider"]
    contexts = {"smoke": 7, "wider": 7, "other": 20, "new": 20}
    with still.held_still():
        check.hand_over()
        for scale, context in contexts.items():
            values = still.prepared(f"{scale} {ROOM} dt")
            assert values["method"]["hyperparameters"]["context"] == context
    chosen, state = one_figure / "config/config.yaml", check.state()
    assert check_after(chosen, chosen.read_text().replace("hours: 100", "hours: 99")) == [] and check.state() != state
    method = one_figure / "config/methods/dt.yaml"
    assert check_after(method, method.read_text() + "# again\n") == ["new", "other", "smoke", "wider"]
    (scales / "new.yaml").unlink()
    assert check_after(scales / "smoke.yaml", plain + "# again\n") == ["smoke", "wider"]
    assert "new" not in json.loads(check.KEPT.read_text())["made"]
    with pytest.raises(Exception, match="unknown key 'methds'"):
        check_after(scales / "wider.yaml", "extends: smoke\nmethds: {}\n")


def test_what_was_kept_is_of_this_very_code_and_of_all_files_of_the_configuration(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = workdir / "src/recollect/radt/dt.py"
    code.parent.mkdir(parents=True)
    code.write_text("loss = 1\n")
    monkeypatch.setattr(check, "roots", lambda: {"recollect": workdir / "src"})
    count = iter(range(9))

    def kept() -> object:
        return check.kept(Path("kept.json"), "test", lambda: next(count))

    assert [kept(), kept()] == [0, 0]
    code.write_text("loss = 2\n")
    assert [kept(), kept()] == [1, 1]
    table = workdir / "config/world_steps.csv"
    table.write_text(table.read_text().replace("2", "3", 1))
    assert [kept(), kept()] == [2, 2]
    method = workdir / "config/methods/dt.yaml"
    method.rename(method.with_name("dt_2.yaml"))
    assert [kept(), kept()] == [3, 3]


def test_a_variant_that_nobody_listed_is_resolved_on_demand(one_figure: Path) -> None:
    check.check_once()
    still.hold_still()
    values = resolved("smoke", ROOM, "radt.retrieval.cut_off=null")
    assert values["method"]["hyperparameters"]["retrieval"]["cut_off"] is None


def test_a_wrong_option_of_a_figure_stops_before_any_work(one_figure: Path) -> None:
    figure = one_figure / "config/figures/radt_dark_room_10x10.yaml"
    content = fast_yaml.load(figure.read_text())
    figure.write_text(fast_yaml.dump(content | {"options": {"metrik": "return"}}))
    with pytest.raises(UserError, match="unknown key 'metrik'"):
        check.check_once()
    assert not check.KEPT.exists()
    figure.write_text(fast_yaml.dump(content))
    check.check_once()
    assert check.KEPT.exists()


def test_what_is_not_resolved_before_is_refused_before_anything_runs(one_figure: Path) -> None:
    method = one_figure / "config/methods/radt.yaml"
    method.write_text(method.read_text().replace("  context: 50\n", "  contxt: 50\n"))
    with pytest.raises(Exception, match=r"(?s)unknown key 'contxt'.*did you mean 'context'"):
        check.check_once()
    assert not check.KEPT.exists()


@pytest.mark.slow
def test_a_manifest_holds_every_default(smoke_data: Path) -> None:
    manifest = manifest_path(smoke_data / paths.policy("smoke", ROOM, "dt", 0))
    settings = json.loads(json.loads(manifest.read_text())["provenance"]["settings"])
    optimisation = settings["method"]["hyperparameters"]["optimisation"]
    assert {"learning_rate", "weight_decay", "beta2", "clip", "floor"} <= optimisation.keys()
    assert settings["environment"]["returns"]["bins"] == 100 and "title" not in settings["method"]
    histories = manifest_path(smoke_data / paths.histories("smoke", ROOM))
    made = json.loads(json.loads(histories.read_text())["provenance"]["settings"])
    assert made["source"]["hyperparameters"]["gae_lambda"] == 0.95 and "evaluation" not in made
    memory = manifest_path(smoke_data / paths.index("smoke", ROOM, "radt"))
    cut = json.loads(json.loads(memory.read_text())["provenance"]["settings"])["memory"]
    assert (cut["stride"], cut["deduplicate_above"]) == (25, 0.98)


def test_settings_of_radt_as_text_hold_its_cut_off_and_learning_rate(workdir: Path) -> None:
    text = json.loads(provenance.train_settings("paper", ROOM, "radt"))
    hyperparameters = text["method"]["hyperparameters"]
    assert hyperparameters["retrieval"]["cut_off"] == 0.98
    assert hyperparameters["optimisation"]["learning_rate"] == 1e-4
    assert "evaluation" in text["environment"] and {"source", "title"}.isdisjoint(text["environment"])
    not_judged_while_learning = json.loads(provenance.train_settings("demo", ROOM, "radt"))
    assert "evaluation" not in not_judged_while_learning["environment"]
