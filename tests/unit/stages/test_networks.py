"""A network that cannot be made for what its environment shows is refused before the first job, and no other is."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect.settings.errors import UserError
from recollect.settings.loading import names
from recollect.settings.still import held_still
from recollect.stages.networks import check_networks
from recollect.stages.plan import plan
from recollect.stages.stage import Job

pytestmark = pytest.mark.usefixtures("in_the_repository")


@pytest.mark.parametrize("scale", ["smoke", pytest.param("paper", marks=pytest.mark.slow)])
@held_still()
def test_networks_of_all_figures_of_histories_can_be_made(scale: str) -> None:
    figures = [name for name in names("figures") if name.startswith("radt_")]
    jobs = plan(scale, figures).needs
    assert len({job.env for job in jobs if job.stage == "run"}) >= 4
    check_networks(jobs)


@pytest.mark.parametrize(
    ("env", "method", "said"),
    [
        ("maze_runner_15x15", "ad", "no small whole numbers"),
        ("meta_world", "radt", "no small whole numbers"),  # whether its packages are here or not
        ("dark_room_20x20", "ad.greedy", "128 timesteps, but needs 400"),
    ],
)
def test_what_the_settings_of_a_scale_are_not_for_is_refused_with_its_names(env: str, method: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        check_networks([Job("generate", "demo", env), Job("run", "demo", env, method, "0")])
    of = f"environment '{env}' with method '{method.split('.')[0]}' at scale demo: hyperparameters: network."
    assert refused.value.where.startswith(of)


def test_a_memory_that_no_embedder_can_key_is_refused_with_them(workdir: Path) -> None:
    """Else it is found when the embedder has been trained, which may take hours."""
    path, entries = Path("config/scales/demo.yaml"), "max_entries_per_task: 800"
    path.write_text(path.read_text().replace(f"key_context: 100, {entries}", f"key_context: 101, {entries}"))
    with pytest.raises(UserError, match="key windows have 101 steps, and the windows that 'dt' learns from 100"):
        check_networks([Job("run", "demo", "dark_room_10x10", "radt", "0")])


def test_a_network_whose_speed_alone_is_measured_is_tried_too() -> None:
    with pytest.raises(UserError, match="needs 400"):
        check_networks([Job("measure", "demo", "dark_room_20x20", "ad", "0")])


def test_what_runs_no_training_and_methods_that_make_no_such_network_are_passed_over() -> None:
    check_networks(
        [
            Job("generate", "demo", "meta_world"),
            Job("figure", "demo", "radt_meta_world"),
            Job("embed", "demo", "meta_world", "radt"),
            Job("run", "demo", "tmaze_passive_5", "dqn_lstm", "0"),
            Job("run", "demo", "bullet_ant_p", "td3_gpt", "0"),
        ]
    )
