"""Stands in for the package `pybullet` where it is not installed: its calls that the robots need, and toy physics.

A robot has a torso, its feet and its motors in one chain. Torques turn joints, turning joints push it forward, and bent joints
make it sink. Nothing is left of an earlier episode but a count of loads, on which nothing may depend.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from recollect.environments.partial_bullet import ROBOTS

FLOOR, ROBOT = 0, 1


class Client:
    """One simulator."""

    def __init__(self, connection_mode: int) -> None:
        assert connection_mode == 2
        self.loads = 0

    def resetSimulation(self) -> None:
        self.loads += 1
        self.links: list[str] = []

    def loadSDF(self, path: str) -> tuple[int, ...]:
        return (FLOOR,)

    def loadMJCF(self, path: str, flags: int) -> tuple[int, ...]:
        robot = next(each for each in ROBOTS.values() if each.file == Path(path).name)
        names = [*robot.strengths, *(f"motor_{i}" for i in range(robot.joints))][: robot.joints]
        self.links = ["torso", *robot.feet]
        self.joints = ["ignorex", *["jointfix_foot"] * len(robot.feet), *names]
        self.links += [f"part_{i}" for i in range(robot.joints)]
        self.angle, self.speed, self.torque = np.zeros((3, len(self.links)))
        self.x = self.drift = 0.0
        return (ROBOT,)

    def getNumJoints(self, body: int) -> int:
        return len(self.links)

    def getJointInfo(self, body: int, link: int) -> tuple[Any, ...]:
        return (link, self.joints[link].encode(), *[0] * 6, -1.0, 1.5, 0, 0, self.links[link].encode())

    def setJointMotorControl2(self, body: int, link: int, controlMode: int, force: float, **gains: float) -> None:
        self.torque[link] = force if controlMode == 1 else 0.0

    def setJointMotorControlArray(self, body: int, links: list[int], controlMode: int, forces: list[float]) -> None:
        for link, force in zip(links, forces, strict=True):
            self.setJointMotorControl2(body, link, controlMode, force)

    def resetJointState(self, body: int, link: int, targetValue: float, targetVelocity: float) -> None:
        self.angle[link], self.speed[link] = targetValue, targetVelocity

    def stepSimulation(self) -> None:
        self.speed = 0.9 * self.speed + 0.001 * self.torque
        self.angle = self.angle + 0.05 * self.speed
        self.drift = 0.02 * float(self.speed.sum())
        self.x += self.drift

    def getJointState(self, body: int, link: int) -> tuple[float, float, int, int]:
        return self.angle[link], self.speed[link], 0, 0

    def getJointStates(self, body: int, links: list[int]) -> list[tuple[float, float, int, int]]:
        return [self.getJointState(body, link) for link in links]

    def position(self) -> tuple[float, float, float]:
        return self.x, 0.01 * self.x, 1.3 - 2.0 * float(np.abs(self.angle).sum())

    def getLinkState(self, body: int, link: int, computeLinkVelocity: int = 0) -> tuple[Any, ...]:
        orientation = (float(self.angle.mean()), 0.0, 0.1 * self.x)
        return self.position(), orientation, 0, 0, 0, 0, (self.drift, 0.1, -0.2)

    def getLinkStates(self, body: int, links: list[int]) -> list[tuple[Any, ...]]:
        return [self.getLinkState(body, link) for link in links]

    def getBaseVelocity(self, body: int) -> tuple[Any, Any]:
        return (self.drift, 0.1, -0.2), (0.0, 0.0, 0.0)

    def getBasePositionAndOrientation(self, body: int) -> tuple[Any, Any]:
        return (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)

    def getContactPoints(self, body: int, other: int) -> list[tuple[int, ...]]:
        return [(0, body, other, link, -1) for link in range(len(self.links)) if self.angle[-1] > 0.05 * link]

    def setGravity(self, *numbers: float) -> None: ...
    def setDefaultContactERP(self, number: float) -> None: ...
    def setPhysicsEngineParameter(self, **numbers: float) -> None: ...
    def changeDynamics(self, body: int, link: int, **numbers: float) -> None: ...


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `import pybullet` and what comes with it find the fake."""
    names = ("URDF_USE_SELF_COLLISION", "URDF_USE_SELF_COLLISION_EXCLUDE_ALL_PARENTS", "URDF_GOOGLEY_UNDEFINED_COLORS")
    known: dict[str, Any] = {"DIRECT": 2, "TORQUE_CONTROL": 1, "POSITION_CONTROL": 0, **dict.fromkeys(names, 0)}
    known["getEulerFromQuaternion"] = lambda orientation: orientation
    for name, content in (
        ("pybullet", known),
        ("pybullet_data", {"getDataPath": lambda: "/nowhere"}),
        ("pybullet_utils", {}),
        ("pybullet_utils.bullet_client", {"BulletClient": Client}),
    ):
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
