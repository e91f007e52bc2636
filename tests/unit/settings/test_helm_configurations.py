"""HELM's configurations outside its figures, and in Psychlab; those of its figures: tests/parity/published_settings/helm.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recollect.helm import helm, helmv2, ppo_cnn, ppo_lstm, shelm
from recollect.settings.resolve import environment_mapping, environment_stem, method_mapping, resolve

MODULES: dict[str, Any] = {"helm": helm, "helmv2": helmv2, "shelm": shelm, "ppo_lstm": ppo_lstm, "ppo_cnn": ppo_cnn}


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.chdir(root)


def chosen(env: str, method: str) -> Any:
    return MODULES[method].Hyperparameters(**method_mapping("paper", env, method)["hyperparameters"])


def test_elsewhere_a_run_gets_the_released_root_configuration() -> None:
    for method in MODULES:
        hp = chosen("mini_grid_Empty-8x8", method)
        assert (hp.learning_rate, hp.entropy, hp.rollout, hp.actors, hp.steps) == (1e-4, 0.05, 128, 16, 500_000)
    assert chosen("mini_grid_Empty-8x8", "helm").beta == 100
    assert chosen("mini_grid_Empty-8x8", "ppo_lstm").sequences == 16
    assert chosen("mini_grid_Empty-8x8", "shelm").topk == 1
    maze, game = chosen("random_maze", "helm"), chosen("procgen_memory_maze", "helm")
    assert (maze.steps, maze.normalise_rewards) == (2_000_000, False)
    assert (game.steps, game.normalise_rewards, game.rollout) == (25_000_000, True, 128)


def test_the_first_release_had_key_corridor_in_the_root_configuration() -> None:
    """config.json of d54f774 (May 2022), the release that came with HELM's paper."""
    hp = resolve("paper", "mini_grid_KeyCorridorS3R1", "helm.first_release", 0).method.hyperparameters
    found = (hp.learning_rate, hp.entropy, hp.rollout, hp.actors, hp.steps, hp.beta, hp.remembered)
    assert found == (1e-4, 0.05, 128, 16, 500_000, 100, 511)


def test_psychlab_has_the_settings_of_the_world_that_stands_in_for_it() -> None:
    for method in MODULES:
        assert chosen("psychlab", method) == chosen("continuous_recognition", method)


def test_both_names_of_the_obstacles_have_the_tuned_settings() -> None:
    """The released files of DynamicObstacles have no id; the authors' blog shows the one with Random."""
    for method in MODULES:
        tuned = chosen("mini_grid_Dynamic-Obstacles-Random-5x5", method)
        assert tuned == chosen("mini_grid_Dynamic-Obstacles-5x5", method) != chosen("mini_grid_Empty-8x8", method)


def test_helm_and_helmv2_remember_511_and_entropy_falls_to_its_minimum() -> None:
    assert [chosen("mini_grid_MemoryS11", method).remembered for method in ("helm", "helmv2", "shelm")] == [
        511,
        511,
        15,
    ]
    assert chosen("mini_grid_RedBlueDoors-6x6", "helm").entropy_schedule.at(0.05, 1.0, 9) == 1e-4


def test_names_of_tasks_are_words_behind_the_name_of_their_file() -> None:
    assert environment_stem("mini_grid_RedBlueDoors-6x6") == ("mini_grid", "RedBlueDoors-6x6")
    assert environment_stem("procgen_memory_maze") == ("procgen_memory", "maze")
    assert environment_stem("tmaze_passive_50") == ("tmaze_passive", 50)
    assert environment_stem("key_door_10x10") == ("key_door_10x10", None)
    found = environment_mapping("paper", "mini_grid_DoorKey-5x5")
    assert (found["options"]["task"], found["title"]) == ("DoorKey-5x5", "MiniGrid DoorKey-5x5")
    assert environment_mapping("paper", "tmaze_passive_50")["options"]["length"] == 50


def test_a_run_of_a_task_resolves_whole() -> None:
    settings = resolve("paper", "mini_grid_MemoryS11", "shelm.layers_2", 0)
    assert settings.environment.world == "mini_grid" and settings.method.hyperparameters.layers == 2
    assert settings.method.title == "SHELM, 2 layers" and settings.method.hyperparameters.memory_length == 15
