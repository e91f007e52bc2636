"""Stand in for the packages `crafter`, `popgym` and `metaworld` where they are not installed: their interfaces, toy games."""

from __future__ import annotations

import itertools
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Tuple

ITEMS = ("health", "food", "drink", "energy", "sapling", "wood", "stone", "coal", "iron", "diamond", "wood_pickaxe",
         "stone_pickaxe", "iron_pickaxe", "wood_sword", "stone_sword", "iron_sword")  # fmt: skip


class Creature:
    """Its hash differs in every world, as the package's do, which are addresses: so does the order of a set of them."""

    made = itertools.count()

    def __init__(self, pos: tuple[int, int]) -> None:
        self.pos = np.array(pos)
        self._hash = next(self.made) * 0x9E3779B1 >> 7

    def __hash__(self) -> int:
        return self._hash


class Crafter:
    """The package's `Env` as far as it is used: action 1 walks along x, 2 along y; 5 collects wood, 8 places a table.

    Creatures stand around the player's first place. Every second step one goes and another comes. Of four steps the last
    two are night, when a picture has noise from the world's generator.
    """

    def __init__(self, reward: bool, length: int | None, seed: int) -> None:
        assert reward and length is None
        self._seed, self._episode = seed, 0
        self._view = np.array([9, 9])
        self._world = SimpleNamespace()

    def reset(self) -> Any:
        self._episode += 1
        draws = np.random.RandomState((self._seed + self._episode) % 2**31)
        self.map = draws.randint(0, 12, (64, 64))
        self.drawn = draws.randint(0, 250, (64, 64, 3)).astype(np.uint8)
        self._step = 0
        self._chunk: set[Creature] = set()
        self._world.random, self._world.daylight = draws, 0.5
        self._world._obj_map = np.zeros((64, 64), np.uint32)
        for _ in range(8):
            self._add()
        inventory = {name: 9 if i < 4 else 0 for i, name in enumerate(ITEMS)}
        self._player = SimpleNamespace(
            pos=np.array([32, 32]), inventory=inventory, facing=(0, 1),
            achievements={name: 0 for name in ("collect_wood", "place_table", "wake_up")},
        )  # fmt: skip
        return self._obs()

    def _obs(self) -> Any:
        raise AssertionError("nobody shall draw what nobody looks at")

    def _add(self) -> None:
        x, y = self._world.random.randint(29, 36, 2)
        if not self._world._obj_map[x, y]:
            self._world._obj_map[x, y] = self._world._obj_map.max() + 1
            self._chunk.add(Creature((x, y)))

    def _balance_chunk(self, chunk: tuple[int, int, int, int], objs: Any) -> None:
        assert chunk == (24, 36, 24, 36)
        creatures = list(objs)
        gone = creatures[self._world.random.randint(len(creatures))]
        self._world._obj_map[tuple(gone.pos)] = 0
        self._chunk.remove(gone)
        self._add()

    def _sem_view(self) -> np.ndarray:
        return np.where(self._world._obj_map > 0, 12, self.map)

    def render(self, size: tuple[int, int] | None = None) -> np.ndarray:
        image = self.drawn.copy()
        for creature in self._chunk:
            x, y = creature.pos
            image[y, x] = 255
        if self._world.daylight < 0.5:
            image = image // 2 + self._world.random.randint(0, 128, image.shape).astype(np.uint8)
        if size is None:
            return image
        rows, columns = (np.arange(side) * 64 // side for side in size)
        return image[rows][:, columns]

    def step(self, action: int) -> tuple[Any, float, bool, dict[str, Any]]:
        self._step += 1
        self._world.daylight = 0.5 if self._step % 4 < 2 else 0.25
        if self._step % 2 == 0:
            self._balance_chunk((24, 36, 24, 36), self._chunk)
        player = self._player
        player.pos = np.clip(player.pos + np.array([action == 1, action == 2]), 0, 63)
        if action == 5:
            player.inventory["wood"] = min(9, player.inventory["wood"] + 1)
            player.achievements["collect_wood"] += 1
        if action == 8:
            player.achievements["place_table"] += 1
        info = {
            "inventory": player.inventory.copy(),
            "achievements": player.achievements.copy(),
            "semantic": self._sem_view(),
            "player_pos": player.pos,
        }
        return self._obs(), float(action == 5), action == 16, info


def begin_crafter(game: Crafter, word: int) -> None:
    """Stands in for `crafter_worlds.begin`, which lays out the package's worlds."""
    game._seed, game._episode = word, 0
    game.reset()


class CrafterPainter:
    """Stands in for `crafter_image.Painter`, which needs the package's textures: the fake itself draws."""

    def __init__(self, game: Crafter, noise: np.random.RandomState) -> None:
        self.game, self.noise = game, noise

    def draw(self, word: int, image_CHW: np.ndarray) -> None:
        world = self.game._world
        draws, world.random = world.random, self.noise
        self.noise.seed([word, self.game._step])
        image_CHW[:] = self.game.render()[: image_CHW.shape[1]].transpose(2, 0, 1)
        world.random = draws


class Cards(gymnasium.Env):
    """A POPGym task: shows (0 or 1, a card), wants the card of the step before; draws from numpy's global generator."""

    def __init__(self) -> None:
        self.observation_space: Any = Tuple((Discrete(2), MultiDiscrete([4, 3])))
        self.action_space: Any = MultiDiscrete([4, 3])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.card = 0, self.dealt()
        return (0, self.card), {}

    def dealt(self) -> np.ndarray:
        return np.array([np.random.randint(4), self.np_random.integers(3)])

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        reward = float((action == self.card).all())
        self.time, self.card = self.time + 1, self.dealt()
        return (1, self.card), reward, False, self.time == 7, {}


class Lights(gymnasium.Env):
    """An environment of bits: each that is on pays 1 and is seen, behind a number of the seed."""

    def __init__(self) -> None:
        self.observation_space: Any = Box(-9, 9, (4,), np.float32)
        self.action_space: Any = MultiBinary(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.number = self.np_random.uniform()
        return self.seen(np.zeros(3)), {}

    def seen(self, lights: Any) -> np.ndarray:
        return np.array([self.number, *lights], np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return self.seen(action), float(action.sum()), False, False, {}


class Arm:
    """One of Meta-World's environments: the hand goes where it is told; solved near the goal."""

    def __init__(self) -> None:
        self._partially_observable, self.sawyer_observation_space = True, None
        self._freeze_rand_vec, self.seeded_rand_vec, self._set_task_called = True, False, False
        self.data = SimpleNamespace(body=lambda name: SimpleNamespace(xpos=np.zeros(3)))  # the simulator's parts

    def seed(self, word: int) -> None:
        self.draws = np.random.RandomState(word)

    def reset(self) -> tuple[np.ndarray, dict[str, Any]]:
        assert not self._partially_observable and "sawyer_observation_space" not in vars(self)
        # Positions follow from the seed: else they are those of a task that was set, or of numpy's global generator.
        assert self.seeded_rand_vec and self._set_task_called and not self._freeze_rand_vec
        self.goal, self.hand = self.draws.uniform(0.5, 1, 3), np.zeros(3)
        return self.seen(), {}

    def seen(self) -> np.ndarray:
        return np.concatenate([self.hand, np.ones(33), self.goal])

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.hand = self.hand + 0.2 * np.asarray(action)[:3]
        far = float(abs(self.goal - self.hand).max())
        return self.seen(), 10 - far, False, False, {"success": float(far < 0.25)}


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the imports find the fakes."""
    crafter, popgym = ModuleType("crafter"), ModuleType("popgym")
    crafter.Env = Crafter  # type: ignore[attr-defined]
    monkeypatch.setattr("recollect.environments.crafter.Painter", CrafterPainter)
    monkeypatch.setattr("recollect.environments.crafter_worlds.begin", begin_crafter)
    meta, meta_dict = ModuleType("metaworld"), ModuleType("metaworld.env_dict")
    names = ("reach", "push", "drawer-open", "door-close", "shelf-place", "sweep-into", "lever-pull")
    meta_dict.ALL_V3_ENVIRONMENTS = {f"{name}-v3": Arm for name in names}  # type: ignore[attr-defined]
    for module in (crafter, popgym, meta, meta_dict):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    lights = gymnasium.envs.registration.EnvSpec(id="Lights-v0", entry_point=Lights)
    monkeypatch.setitem(gymnasium.registry, lights.id, lights)
    for task in ("AutoencodeEasy", "AutoencodeMedium", "RepeatFirstHard"):
        spec = gymnasium.envs.registration.EnvSpec(id=f"popgym-{task}-v0", entry_point=Cards)
        monkeypatch.setitem(gymnasium.registry, spec.id, spec)
