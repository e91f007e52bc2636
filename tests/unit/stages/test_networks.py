"""A network that cannot be made for what its environment shows is refused before the first job, and no other is."""

from __future__ import annotations

from pathlib import Path

import fast_yaml
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


RUN = Job("run", "late", "pendulum", "dt", "0")


@pytest.mark.parametrize(
    ("method", "said", "hyperparameters", "memory"),
    [
        ("dt", "selection 'sample' chooses between tokens", {"selection": "sample"}, {}),
        ("ad", "attention cannot drop weights while acting", {"acting_dropout": True}, {}),
        ("radt", "they end after 20 steps, and it is 25", {}, {"stride": 25}),
        ("radt_agnostic", "has 6 layers, not 99", {}, {"layers": 99}),
        (
            "radt_agnostic",
            "A window of 600 tokens is longer than the 512",
            {},
            {"padding": "counted", "key_context": 600},
        ),
        ("radt_agnostic", "reads step by step", {}, {"embedder": "lm:smollm2"}),
    ],
)
def test_what_no_policy_can_play_with_is_refused_with_them(
    method: str, said: str, hyperparameters: dict[str, object], memory: dict[str, object], workdir: Path
) -> None:
    """Else it is found when histories are made and the embedder has been trained."""
    a_pendulum(method, hyperparameters, {"stride": 5, **memory}, target_mean=0)
    with pytest.raises(UserError, match=said):
        check_networks([RUN._replace(method=method)])


def test_tasks_without_the_target_return_that_they_should_list_are_refused(workdir: Path) -> None:
    """Else it is found when the policy has been trained."""
    a_pendulum("dt", {}, {}, target_mean=None)
    with pytest.raises(UserError, match="a task lists no target return"):
        check_networks([RUN])


def test_a_variant_that_is_judged_alone_is_tried_as_it_acts(workdir: Path) -> None:
    a_pendulum("dt", {}, {}, target_mean=0, drawn={"evaluation_only": True, "hyperparameters": {"selection": "sample"}})
    check_networks([RUN])
    with pytest.raises(UserError, match="selection 'sample' chooses between tokens") as refused:
        check_networks([RUN, Job("evaluate", "late", "pendulum", "dt.drawn", "0")])
    assert "with method 'dt.drawn'" in refused.value.where


def a_pendulum(
    method: str,
    hyperparameters: dict[str, object],
    memory: dict[str, object],
    target_mean: int | None,
    **variants: object,
) -> None:
    """An environment of continuous actions, and a scale for it."""
    world = {
        "world": "gymnasium",
        "options": {"id": "Pendulum-v1", "horizon": 20},
        "returns": {"target_mean": target_mean},
    }
    source = {"source": {"algorithm": "source_policies"}, "evaluation": {"splits": ["eval"]}}
    Path("config/environments/pendulum.yaml").write_text(fast_yaml.dump({**world, **source}))
    plain = {"selection": "greedy", "network": {"observation_embedding": "linear"}}
    methods: dict[str, dict[str, object]] = {"dt": {"hyperparameters": plain}}
    methods[method] = {"hyperparameters": {**plain, **hyperparameters}, "variants": variants}
    if method.startswith("radt"):
        methods[method]["memory"] = memory
    scale = {"description": "late", "extends": "smoke", "seeds": [0], "methods": methods}
    Path("config/scales/late.yaml").write_text(fast_yaml.dump(scale))


@pytest.mark.parametrize(
    ("method", "changed", "said"),
    [
        ("helmv2", {"played_statistics": "batch"}, "one agent alone has no spread"),
        ("shelm", {"language_model": "random-transfo-xl"}, "the words are of the language model 'random'"),
        ("shelm_lstm", {"language_model": "random-transfo-xl"}, "the words are of the language model 'random'"),
    ],
)
def test_what_a_world_does_not_matter_to_is_refused_without_one(
    method: str, changed: dict[str, str], said: str, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else HELMv2 finds it when it has learned, and SHELM when its words are embedded."""
    alone = {"mini_grid": {"evaluation": {"episodes": 1}}}
    scale = {"description": "late", "extends": "smoke", "seeds": [0], "environments": alone}
    scale["methods"] = {method: {"hyperparameters": changed}}
    Path("config/scales/late.yaml").write_text(fast_yaml.dump(scale))
    monkeypatch.setattr("recollect.stages.networks._facts", None)
    with pytest.raises(UserError, match=said):
        check_networks([Job("run", "late", "mini_grid_MemoryS7", method, "0")])
    check_networks([Job("run", "smoke", "mini_grid_MemoryS7", method, "0")])
