"""What a world needs is missed before anything runs, not in its first job."""

from __future__ import annotations

from pathlib import Path

import fast_yaml
import pytest

from recollect.environments.registry import world_names
from recollect.settings.catalogue import declaration
from recollect.settings.errors import UserError
from recollect.stages import forecast, worlds
from recollect.stages.cost_text import cost_text
from recollect.stages.stage import Job

ROOT = Path(__file__).resolve().parents[3]
JOBS = {
    "mini_world_TMaze": "miniworld",
    "amago_crafter": "amago",
    "bullet_hopper_p": "pybullet",
    "meta_world": "control",
    "dm_control": "control",
}


@pytest.mark.parametrize(("env", "family"), JOBS.items())
def test_a_missing_package_is_named_with_the_set_up_that_has_it_unless_jobs_run_in_an_environment_of_their_own(
    env: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job("run", "smoke", env, "dqn_lstm", "0")
    monkeypatch.setattr(worlds, "find_spec", lambda package: None)
    with pytest.raises(UserError, match=rf"needs the package '\w+'.*\n.*\n.*make setup FAMILY={family}`"):
        worlds.check_worlds([job])
    worlds.check_worlds([job], here=False)
    monkeypatch.setattr(worlds, "find_spec", lambda package: "there")
    worlds.check_worlds([job])


@pytest.mark.parametrize("stage", ["generate", "train_images", "run", "evaluate", "inspect", "measure"])
def test_every_job_that_plays_needs_the_packages_of_its_world(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "find_spec", lambda package: None)
    with pytest.raises(UserError, match="needs the package 'metaworld'"):
        worlds.check_worlds([Job(stage, "smoke", "meta_world", "dt", "0")])


def test_a_python_of_its_own_is_missed_wherever_jobs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_PROCGEN_PYTHON", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="'procgen' needs a Python of its own"):
        worlds.check_worlds([Job("run", "smoke", "procgen", "dt", "0")], here=False)


def test_histories_that_others_have_played_need_no_package_of_their_world(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments = {"meta_world": {"source": {"algorithm": "published_files"}}}
    content = {"description": "Read.", "seeds": [0], "environments": environments}
    (workdir / "config/scales/read.yaml").write_text(fast_yaml.dump(content))
    monkeypatch.setattr(worlds, "find_spec", lambda package: None)
    worlds.check_worlds([Job("generate", "read", "meta_world")])
    for job in (Job("generate", "paper", "meta_world"), Job("run", "read", "meta_world", "dt", "0")):
        with pytest.raises(UserError, match="needs the package"):
            worlds.check_worlds([job])


@pytest.mark.usefixtures("in_the_repository")
def test_a_forecast_says_which_packages_are_missing_and_what_must_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "find_spec", lambda package: None)
    said = cost_text(forecast.forecast("paper", ["helm_miniworld"]))
    assert "not all are installed here: `make setup FAMILY=miniworld`" in said
    assert "network     to fetch clip-rn50" in said and "transfo-xl-wt103" in said
    monkeypatch.setattr(worlds, "find_spec", lambda package: "there")
    assert "packages  " not in cost_text(forecast.forecast("demo", ["amago_dark_key_door"]))


def test_every_world_that_needs_a_package_of_a_family_declares_it() -> None:
    for name in world_names():
        module = ROOT / f"src/recollect/environments/{name}.py"
        if module.is_file() and "needed(" in module.read_text():
            assert declaration("world", name, "PACKAGES"), name
