"""HELM's configurations: what a run gets is what the released configuration of its task says (specification 6.1 to 6.3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recollect.helm import helm, helmv2, ppo_cnn, ppo_lstm, shelm
from recollect.settings.resolve import environment_mapping, environment_stem, method_mapping, resolve

MODULES: dict[str, Any] = {"helm": helm, "helmv2": helmv2, "shelm": shelm, "ppo_lstm": ppo_lstm, "ppo_cnn": ppo_cnn}
# environment, method, rollout, learning rate, entropy, memory in the file, words, sequences, steps
TUNED = """
mini_grid_DoorKey-5x5             helm      32   0.0001  0.005  255   -  -   500000
mini_grid_DoorKey-5x5             helmv2    32   0.0003  0.005  255   -  -   500000
mini_grid_DoorKey-5x5             shelm     32   0.0001  0.005  511   2  -   500000
mini_grid_DoorKey-5x5             ppo_lstm  32   0.0003  0.05   255   -  8   500000
mini_grid_DoorKey-5x5             ppo_cnn   64   5e-05   0.005  511   -  -   500000
mini_grid_DoorKey-6x6             helm      128  0.0003  0.01   255   -  -   500000
mini_grid_DoorKey-6x6             helmv2    128  0.0003  0.01   255   -  -   500000
mini_grid_DoorKey-6x6             shelm     128  0.0005  0.01   511   2  -   500000
mini_grid_DoorKey-6x6             ppo_lstm  64   5e-05   0.01   255   -  16  500000
mini_grid_DoorKey-6x6             ppo_cnn   64   0.0001  0.001  511   -  -   500000
mini_grid_Dynamic-Obstacles-5x5   helm      64   0.0003  0.005  63    -  -   500000
mini_grid_Dynamic-Obstacles-5x5   helmv2    64   0.0001  0.005  63    -  -   500000
mini_grid_Dynamic-Obstacles-5x5   shelm     64   0.0001  0.005  253   4  -   500000
mini_grid_Dynamic-Obstacles-5x5   ppo_lstm  128  0.0003  0.05   63    -  16  500000
mini_grid_Dynamic-Obstacles-5x5   ppo_cnn   64   0.0003  0.001  511   -  -   500000
mini_grid_KeyCorridorS3R1         helm      32   0.0003  0.05   255   -  -   500000
mini_grid_KeyCorridorS3R1         helmv2    32   0.0005  0.05   255   -  -   500000
mini_grid_KeyCorridorS3R1         shelm     32   5e-05   0.05   1021  4  -   500000
mini_grid_KeyCorridorS3R1         ppo_lstm  64   5e-05   0.05   511   -  8   500000
mini_grid_KeyCorridorS3R1         ppo_cnn   64   1e-05   0.005  511   -  -   500000
mini_grid_MemoryS11               helm      128  0.0001  0.005  15    -  -   2000000
mini_grid_MemoryS11               helmv2    128  0.0003  0.005  15    -  -   2000000
mini_grid_MemoryS11               shelm     128  0.0005  0.005  15    1  -   2000000
mini_grid_MemoryS11               ppo_lstm  128  5e-05   0.001  15    -  4   2000000
mini_grid_MemoryS11               ppo_cnn   256  5e-05   0.01   15    -  -   2000000
mini_grid_RedBlueDoors-6x6        helm      128  0.0003  0.05   511   -  -   500000
mini_grid_RedBlueDoors-6x6        helmv2    128  0.0003  0.05   511   -  -   500000
mini_grid_RedBlueDoors-6x6        shelm     128  0.0005  0.05   512   1  -   500000
mini_grid_RedBlueDoors-6x6        ppo_lstm  64   5e-05   0.05   511   -  8   500000
mini_grid_RedBlueDoors-6x6        ppo_cnn   256  5e-05   0.05   511   -  -   500000
mini_grid_Unlock                  helm      64   0.0003  0.01   255   -  -   500000
mini_grid_Unlock                  helmv2    64   0.0001  0.01   255   -  -   500000
mini_grid_Unlock                  shelm     64   5e-05   0.01   511   2  -   500000
mini_grid_Unlock                  ppo_lstm  128  5e-05   0.01   255   -  16  500000
mini_grid_Unlock                  ppo_cnn   64   5e-05   0.01   511   -  -   500000
mini_world_CollectHealth          helm      128  5e-05   0.001  63    -  -   500000
mini_world_CollectHealth          helmv2    128  0.0001  0.001  63    -  -   500000
mini_world_CollectHealth          shelm     128  5e-05   0.001  127   2  -   500000
mini_world_CollectHealth          ppo_lstm  64   0.0001  0.005  63    -  8   500000
mini_world_CollectHealth          ppo_cnn   128  0.0005  0.005  63    -  -   500000
mini_world_FourRooms              helm      128  5e-05   0.005  255   -  -   500000
mini_world_FourRooms              helmv2    128  5e-05   0.005  255   -  -   500000
mini_world_FourRooms              shelm     128  0.0001  0.005  1021  4  -   500000
mini_world_FourRooms              ppo_lstm  128  5e-05   0.01   255   -  4   500000
mini_world_FourRooms              ppo_cnn   128  5e-05   0.01   255   -  -   500000
mini_world_MazeS3Fast             helm      128  5e-05   0.05   255   -  -   500000
mini_world_MazeS3Fast             helmv2    128  0.0001  0.05   255   -  -   500000
mini_world_MazeS3Fast             shelm     64   5e-05   0.05   255   1  -   500000
mini_world_MazeS3Fast             ppo_lstm  128  5e-05   0.01   255   -  8   500000
mini_world_MazeS3Fast             ppo_cnn   128  5e-05   0.05   255   -  -   500000
mini_world_PickupObjects          helm      64   5e-05   0.001  511   -  -   500000
mini_world_PickupObjects          helmv2    64   5e-05   0.001  511   -  -   500000
mini_world_PickupObjects          shelm     64   5e-05   0.001  2045  4  -   500000
mini_world_PickupObjects          ppo_lstm  128  5e-05   0.005  511   -  16  500000
mini_world_PickupObjects          ppo_cnn   64   5e-05   0.01   511   -  -   500000
mini_world_PutNext                helm      32   5e-05   0.01   255   -  -   500000
mini_world_PutNext                helmv2    32   0.0005  0.01   255   -  -   500000
mini_world_PutNext                shelm     32   0.0003  0.01   256   1  -   500000
mini_world_PutNext                ppo_lstm  64   0.0003  0.05   255   -  4   500000
mini_world_PutNext                ppo_cnn   128  5e-05   0.005  255   -  -   500000
mini_world_Sign                   helm      64   0.0005  0.01   31    -  -   500000
mini_world_Sign                   helmv2    64   0.0005  0.01   31    -  -   500000
mini_world_Sign                   shelm     64   0.0001  0.01   63    2  -   500000
mini_world_Sign                   ppo_lstm  32   0.0003  0.01   31    -  8   500000
mini_world_Sign                   ppo_cnn   64   0.0001  0.01   31    -  -   500000
mini_world_TMaze                  helm      64   0.0001  0.001  255   -  -   500000
mini_world_TMaze                  helmv2    64   0.0001  0.001  255   -  -   500000
mini_world_TMaze                  shelm     64   0.0001  0.001  1021  4  -   500000
mini_world_TMaze                  ppo_lstm  128  5e-05   0.01   255   -  4   500000
mini_world_TMaze                  ppo_cnn   64   0.0001  0.01   255   -  -   500000
mini_world_YMaze                  helm      64   5e-05   0.005  255   -  -   500000
mini_world_YMaze                  helmv2    64   0.0001  0.005  255   -  -   500000
mini_world_YMaze                  shelm     64   0.0001  0.005  511   2  -   500000
mini_world_YMaze                  ppo_lstm  64   5e-05   0.01   255   -  4   500000
mini_world_YMaze                  ppo_cnn   64   0.0001  0.05   255   -  -   500000
continuous_recognition            helm      256  0.0007  0.01   255   -  -   10000000
continuous_recognition            helmv2    256  0.0007  0.01   255   -  -   10000000
continuous_recognition            shelm     256  0.0007  0.01   255   1  -   10000000
"""
ROWS = [line.split() for line in TUNED.split("\n") if line]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.chdir(root)


def chosen(env: str, method: str) -> Any:
    return MODULES[method].Hyperparameters(**method_mapping("paper", env, method)["hyperparameters"])


def test_there_are_as_many_as_released() -> None:
    assert len(ROWS) == 78 and len({tuple(row[:2]) for row in ROWS}) == 78


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1]}")
def test_a_tuned_configuration_is_the_released_one(row: list[str]) -> None:
    env, method, rollout, rate, entropy, memory, words, sequences, steps = row
    hp = chosen(env, method)
    assert (hp.rollout, hp.steps) == (int(rollout), int(steps))
    assert (hp.learning_rate, hp.entropy) == (float(rate), float(entropy))
    if method == "shelm":
        assert (hp.memory_length, hp.remembered, hp.topk) == (int(memory), int(memory), int(words))
    elif method.startswith("helm"):
        assert (hp.memory_length, hp.remembered) == (int(memory), 511)
    elif method == "ppo_lstm":
        assert hp.sequences == int(sequences)
    falls = "RedBlueDoors" in env
    assert hp.entropy_schedule.kind == ("linear" if falls else "none")
    assert not falls or (hp.entropy_schedule.minimum, hp.entropy_schedule.at(0.05, 1.0, 9)) == (1e-4, 1e-4)
    psychlab = env == "continuous_recognition"
    constants = {
        "actors": 64 if psychlab else 16,
        "epochs": 3,
        "batches": 8,
        "gamma": 0.99,
        "gae_lambda": 0.99,
        "clip": 0.2,
        "clip_schedule": "none",
        "clip_value": None,
        "value_coefficient": 0.5,
        "gradient_norm": 0.5,
        "adam_epsilon": 1e-8,
        "weight_decay": 0.01,
        "advantages": "minibatch",
        "target_kl": None,
        "normalise_rewards": True,
        "clip_reward": 1.0,
        "bootstrap_truncation": False,
        "channel_scale": 1 if method == "ppo_lstm" else 4,
        "width": 256 if method == "ppo_lstm" else 1024,
        "actor": 128,
        "critic": 512,
    }
    for name, value in constants.items():
        assert getattr(hp, name) == value, name
    assert hp.learning_rate_schedule.kind == "none"


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
