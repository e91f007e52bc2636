"""Names of published files: which file is whose, and rewards that contradict a name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recollect.environments import registry
from recollect.environments.base import Task
from recollect.settings.errors import UserError
from recollect.sources import source_policies
from recollect.sources.columns import Rows
from recollect.sources.published_labels import Payments, check_rewards, find_files, payments_of

# Seen on the hub's pages of ml-jku/dark_room and ml-jku/mazerunner (the pages, not the files).
ON_THE_HUB = {
    (20, 20): ["[0,0]_[0,0]", "[0,0]_[1,10]", "[0,0]_[11,14]", "[0,0]_[15,6]", "[0,0]_[17,18]"],
    (40, 20): ["[0,0]_[2,17]", "[0,0]_[11,8]", "[0,0]_[14,13]", "[0,0]_[18,14]", "[0,0]_[19,12]", "[0,0]_[21,6]"],
}


def room(width, height, world="dark_room", split="train"):
    return registry.tasks(world, {"width": width, "height": height}, split)


def touch(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()
    return folder


def found(folder, world, tasks, layout="npz", pattern=None):
    return [[path.name for path in paths] for paths in find_files(folder, layout, world, tasks, pattern)]


@pytest.mark.parametrize("size", ON_THE_HUB)
def test_names_on_the_hub_are_those_of_our_tasks(tmp_path, size):
    cells = [tuple(map(int, name[7:-1].split(","))) for name in ON_THE_HUB[size]]
    tasks = [task for split in ("train", "eval") for task in room(*size, split=split) if task.data["goal"] in cells]
    assert len(tasks) == len(cells)
    folder = touch(tmp_path, *(f"{name}.npz" for name in ON_THE_HUB[size]))
    assert found(folder, "dark_room", tasks) == [[f"[0,0]_[{x},{y}].npz"] for x, y in (t.data["goal"] for t in tasks)]


def test_tasks_are_in_our_order_whatever_the_order_of_the_names(tmp_path):
    tasks = room(10, 10)[:4]  # goals (2,0), (0,2), (1,5), (2,2): specification 1.4
    names = ["[0,0]_[2,0].npz", "[0,0]_[0,2].npz", "[0,0]_[1,5].npz", "[0,0]_[2,2].npz"]
    folder = touch(tmp_path, *names, "[0,0]_[9,9].npz", "README.md", "notes.npz")
    assert found(folder, "dark_room", tasks) == [[name] for name in names]
    touch(tmp_path / "wget", *(name.replace("[", "%5B").replace(",", "%2C").replace("]", "%5D") for name in names))
    assert found(tmp_path / "wget", "dark_room", tasks)[0] == ["%5B0%2C0%5D_%5B2%2C0%5D.npz"]


def test_either_order_of_door_and_key_names_a_task(tmp_path):
    tasks = room(10, 10, "key_door")[:2]  # doors (2,0), (0,2); keys (8,3), (5,3)
    folder = touch(tmp_path, "[0,0]_[2,0]_[8,3].npz", "[0,0]_[5,3]_[0,2].npz", "[0,0]_[2,0].npz")
    assert found(folder, "key_door", tasks) == [["[0,0]_[2,0]_[8,3].npz"], ["[0,0]_[5,3]_[0,2].npz"]]
    touch(tmp_path, "[0,0]_[8,3]_[2,0].npz")
    assert len(found(folder, "key_door", tasks)[0]) == 2


def test_mazes_are_named_by_their_seed_and_others_by_a_pattern(tmp_path):
    mazes = [Task(i, f"maze_{seed}", "train", {"seed": seed}) for i, seed in enumerate((0, 121))]
    assert found(touch(tmp_path / "m", "0.npz", "121.npz", "300.npz"), "maze_runner", mazes) == [["0.npz"], ["121.npz"]]
    games = [Task(i, name, "train", {"levels": (0, 200)}) for i, name in enumerate(("bigfish", "maze"))]
    for game in ("bigfish", "maze", "coinrun"):
        (tmp_path / "procgen" / game).mkdir(parents=True)
    assert found(tmp_path / "procgen", "procgen", games, "episodes") == [["bigfish"], ["maze"]]
    folder = touch(tmp_path / "p", "task-0-bigfish.npz", "task-1-maze.npz")
    assert found(folder, "procgen", games, pattern="task-{index}-{name}") == [
        [n] for n in sorted(p.name for p in folder.iterdir())
    ]
    with pytest.raises(UserError, match=r"no pattern.*KeyError") as error:
        find_files(folder, "npz", "procgen", games, "{seed}")
    assert "levels" in error.value.do


@pytest.mark.parametrize(
    ("names", "message", "do"),
    [
        (
            ["[0,0]_[2,0].npz"],
            r"files of 3 of 4 tasks are missing: \[0,0\]_\[0,2\].npz, .*\[2,2\].npz\n",
            "whole data set",
        ),
        (["[0,0]_[2,0].pkl"], "files of 4 of 4 tasks are missing.*there are pickles instead", "by hand"),
        (["10x10/a.npz", "20x20/b.npz"], "files of 4 of 4", "name one of the folders in it: 10x10, 20x20"),
        ([], "files of 4 of 4", "whole data set"),
    ],
)
def test_missing_files_are_listed(tmp_path, names, message, do):
    for name in names:
        touch((tmp_path / name).parent, Path(name).name)
    with pytest.raises(UserError, match=message) as error:
        find_files(tmp_path, "npz", "dark_room", room(10, 10)[:4], None)
    assert do in error.value.do and error.value.where == str(tmp_path)


def test_many_missing_files_are_counted_and_a_missing_folder_is_one_message(tmp_path):
    with pytest.raises(UserError, match=r"80 of 80 tasks are missing: .* and 72 more"):
        find_files(tmp_path, "npz", "dark_room", room(10, 10), None)
    with pytest.raises(UserError, match="folder of the published files is missing") as error:
        find_files(tmp_path / "none", "npz", "dark_room", room(10, 10), None)
    assert "recollect fetch --data" in error.value.do
    touch(tmp_path, "0.npz")
    with pytest.raises(UserError, match="missing") as error:
        find_files(tmp_path, "episodes", "dark_room", room(10, 10), None)
    assert "layout: npz" in error.value.do


# ---------------------------------------------------------------------------------------------------------- rewards


def rows_of(*episodes):
    """Rows of episodes: each a list of (row, column, paid), the cell being the one that the reward was paid on."""
    observation, reward, done = [], [], []
    for episode in episodes:
        at = (0, 0)
        for row, column, paid in episode:
            observation.append(at)
            reward.append(paid)
            done.append(False)
            at = (row, column)
        observation.append(at)
        reward.append(1.0)  # at the end of an episode nobody sees where: it must not count
        done.append(True)
    count = len(reward)
    return Rows(np.array(observation, np.int8), np.zeros(count, np.int8), np.array(reward, np.float32), np.array(done))


def paid_of(task, world, *episodes):
    paid = payments_of(world, task)
    assert paid is not None
    paid.add(rows_of(*episodes[:1]))
    if episodes[1:]:
        paid.add(rows_of(*episodes[1:]))
    return paid


GOAL = Task(0, "g", "train", {"goal": (3, 1)})  # x, y
BOTH = Task(0, "k", "train", {"door": (3, 1), "key": (2, 5)})
HOME = Task(0, "h", "train", {"door": (3, 1), "key": (0, 0)})
ONE = Task(0, "o", "train", {"door": (4, 4), "key": (4, 4)})
DOOR, KEY = (1, 3, 1), (5, 2, 1)  # row, column, paid


def test_where_the_door_is_the_start_cell_a_key_may_be_taken_with_the_first_step():
    """Such episodes begin at random cells, sometimes on the key. Our own histories of such a task are accepted."""
    options = {"width": 4, "height": 4}
    listed = [*registry.tasks("key_door", options, "train"), *registry.tasks("key_door", options, "eval")]
    tasks = [task for task in listed if tuple(task.data["door"]) == (0, 0)]
    assert tasks
    for task in tasks[:2]:
        played = source_policies.Hyperparameters(policy="random", transitions=6400)
        told = source_policies.generate("key_door", options, [replace(task, index=0)], played, seed=0)
        paid = payments_of("key_door", task)
        assert paid is not None
        paid.add(Rows(told["observation"], told["action"], told["reward"], told["done"]))
        assert check_rewards(task, paid, Path("f"))


def test_rewards_on_the_goal_agree_with_the_name():
    assert check_rewards(GOAL, paid_of(GOAL, "dark_room", [(0, 1, 0), DOOR, DOOR], [DOOR]), Path("f"))
    assert not check_rewards(GOAL, paid_of(GOAL, "dark_room", [(0, 1, 0)]), Path("f"))  # nothing paid: unchecked
    assert payments_of("maze_runner", GOAL) is None


@pytest.mark.parametrize(
    ("episodes", "message"),
    [
        ([[(2, 2, 1), (2, 2, 1)]], r"2 of 2 are paid elsewhere, and \[2,2\] is where they repeat"),
        ([[DOOR, DOOR, (2, 2, 1)]], r"1 of 3 are paid elsewhere, and \[3,1\]"),
        ([[(3, 1, 1), (3, 1, 1)]], r"\[1,3\] is where they repeat, so rows and columns may be exchanged"),
    ],
)
def test_rewards_elsewhere_than_on_the_goal_refuse_the_file(episodes, message):
    with pytest.raises(UserError, match=message) as error:
        check_rewards(GOAL, paid_of(GOAL, "dark_room", *episodes), Path("f.npz"))
    assert error.value.where == "f.npz" and "mislabelled" in error.value.do


@pytest.mark.parametrize(
    ("task", "episodes"),
    [
        (BOTH, [[KEY, DOOR, DOOR], [DOOR, DOOR]]),  # sticky: the key pays once in the whole file
        (BOTH, [[KEY, DOOR, DOOR], [KEY, DOOR]]),  # once per episode
        (BOTH, [[KEY], [KEY]]),
        (HOME, [[(0, 1, 1), DOOR, DOOR], [(1, 0, 1), DOOR]]),  # a key under one's feet, wherever the first step leads
        (ONE, [[(4, 4, 1), (4, 4, 1)]]),
    ],
)
def test_rewards_of_a_key_and_a_door_agree_with_the_name(task, episodes):
    assert check_rewards(task, paid_of(task, "key_door", *episodes), Path("f"))


@pytest.mark.parametrize(
    ("task", "episodes", "message"),
    [
        (BOTH, [[DOOR, KEY, KEY], [KEY, KEY]], r"\[2,5\] is where they repeat, so key and door are exchanged"),
        (BOTH, [[KEY, DOOR, DOOR], [(4, 4, 1)]], r"door \[3,1\], key \[2,5\]\): 1 of 4 are paid elsewhere"),
        (HOME, [[(0, 1, 1), (0, 1, 1)]], "1 of 1 are paid elsewhere"),
    ],
)
def test_rewards_of_another_key_or_door_refuse_the_file(task, episodes, message):
    with pytest.raises(UserError, match=message):
        check_rewards(task, paid_of(task, "key_door", *episodes), Path("f"))


def test_what_repeats_within_an_episode_is_the_door():
    paid = Payments()
    paid.add(rows_of([KEY, DOOR, DOOR], [KEY], [KEY]))
    assert paid.total == {(2, 5): 3, (3, 1): 2} and paid.most == {(2, 5): 1, (3, 1): 2}
    assert paid.goal() == (3, 1)
    assert Payments().goal() is None
