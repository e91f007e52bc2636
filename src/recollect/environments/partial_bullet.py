"""PyBullet's walking robots of which one sees half: positions alone (-P), or velocities alone (-V); Memory-RL, figure 8.

The robots are PyBullet's own (Ant, HalfCheetah, Hopper, Walker2D), with its rewards: progress towards a far target, a bonus
for staying upright, costs of motors and of joints at their limits. Episodes last 1000 steps; all but the cheetah's end
where the robot falls.

- The package is 3.2.7 with the robots' files in it; its environments are written for a gym that is gone, so they are written
  anew here on the bare simulator. They give the same observations and rewards to the bit.
- Every episode begins in a simulator that has loaded the robot afresh, so that an episode follows from its seed. Upstream
  restores a saved state; there the first step of the very first episode has another progress, because the floor
  counts as a part of the robot from the second reset on. Here it always does.
- Joints begin uniformly in +-0.1, drawn from the episode's word; the distribution is upstream's, the numbers are not.
- A robot that falls at the last step is cut off, not terminal: upstream's rule lets every end at the horizon bootstrap.
- `observation: all` is the fully observed task (-F). MuJoCo's robots of the same names have other rewards, so that the
  published returns would not be comparable; they are not used.

Source: specification 1.6 of Memory-RL.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from recollect.environments.base import Outcome, Task
from recollect.environments.simulated import SimulatedOptions, SimulatedWorld, needed

PACKAGES = ("pybullet", "pybullet_utils", "pybullet_data")
BODY = 8  # entries in front of the joints: height, sin and cos of the angle to the target, velocity (3), roll, pitch
GRAVITY, STEP, SUBSTEPS, SOLVER_STEPS = 9.8, 0.0165, 4, 5
TARGET_X = 1e3  # where the robot walks to, metres
SPREAD = 0.1  # of the joints at the start
POWER = 100.0  # of a motor that has no strength of its own below


@dataclass(frozen=True)
class Robot:
    """One of PyBullet's robots.

    Args:
        file: its model among PyBullet's data.
        joints: motors.
        power: of all motors.
        feet: parts whose contact with the floor is observed.
        strengths: of single motors.
        upright: what keeps it alive: `height` of its body above this, and `tilt` (pitch) below that; None: any.
        clean: places among the feet that must not touch the floor.
        falls: an episode ends where it is not upright.
    """

    file: str
    joints: int
    power: float
    feet: tuple[str, ...]
    strengths: dict[str, float] = field(default_factory=dict)
    height: float | None = None
    tilt: float | None = None
    clean: tuple[int, ...] = ()
    falls: bool = True

    @property
    def size(self) -> int:
        return BODY + 2 * self.joints + len(self.feet)

    def seen(self, observation: str) -> list[int]:
        first, end = BODY, BODY + 2 * self.joints
        velocities = [3, 4, 5, *range(first + 1, end, 2)]
        if observation == "all":
            return list(range(self.size))
        return velocities if observation == "velocities" else [i for i in range(self.size) if i not in velocities]

    def alive(self, height: float, pitch: float, contact_F: np.ndarray) -> bool:
        high = self.height is None or height > self.height
        return high and (self.tilt is None or abs(pitch) < self.tilt) and not contact_F[list(self.clean)].any()


ROBOTS = {
    "ant": Robot(
        "ant.xml", 8, 2.5, ("front_left_foot", "front_right_foot", "left_back_foot", "right_back_foot"), height=0.26
    ),
    "cheetah": Robot(
        "half_cheetah.xml",
        6,
        0.9,
        ("ffoot", "fshin", "fthigh", "bfoot", "bshin", "bthigh"),
        {"bthigh": 120.0, "bshin": 90.0, "bfoot": 60.0, "fthigh": 140.0, "fshin": 60.0, "ffoot": 30.0},
        tilt=1.0,
        clean=(1, 2, 4, 5),
        falls=False,
    ),
    "hopper": Robot("hopper.xml", 3, 0.75, ("foot",), height=0.8, tilt=1.0),
    "walker": Robot(
        "walker2d.xml",
        6,
        0.4,
        ("foot", "foot_left"),
        {"foot_joint": 30.0, "foot_left_joint": 30.0},
        height=0.8,
        tilt=1.0,
    ),
}


class Options(SimulatedOptions):
    """robot: which.
    observation: `positions` (-P): height, angles, joints and contacts; `velocities` (-V); `all` (-F).
    horizon: steps of an episode.
    """

    robot: Literal["ant", "cheetah", "hopper", "walker"]
    observation: Literal["positions", "velocities", "all"] = "positions"
    horizon: int = Field(default=1000, ge=1)
    goal: Literal["shown"] = "shown"  # there is nothing to hide
    only: None = None


def tasks(split: str, **options: Any) -> list[Task]:
    """One task, in both splits; needs no package."""
    chosen = Options.parse(options, "partial_bullet", split)
    return [Task(0, f"{chosen.robot}_{chosen.observation}", split)]


class Part(NamedTuple):
    """A link of a body in the simulator; -1 is its base."""

    body: int
    link: int


class Motor(NamedTuple):
    """A joint that is moved: where it is in the simulator, the middle and the width of its range, and its strength."""

    part: Part
    middle: float
    width: float
    strength: float


def _by_body(parts: Sequence[Part]) -> list[tuple[int, list[int], list[int]]]:
    """Of each body that some of the parts are links of: the body, their places among the parts, and the links."""
    found: dict[int, tuple[list[int], list[int]]] = {}
    for i, part in enumerate(parts):
        if part.link != -1:
            places, links = found.setdefault(part.body, ([], []))
            places.append(i)
            links.append(part.link)
    return [(body, *which) for body, which in found.items()]


@contextmanager
def _nothing_said() -> Iterator[None]:
    """PyBullet prints a line at its import and at each connection, into a forecast or a plan that a program reads."""
    library = ctypes.CDLL(None)
    sys.stdout.flush()
    library.fflush(None)
    kept = os.dup(1)
    try:
        with open(os.devnull, "w", encoding="utf-8") as nothing:
            os.dup2(nothing.fileno(), 1)
        yield
    finally:
        library.fflush(None)  # C keeps it until then
        os.dup2(kept, 1)
        os.close(kept)


class Simulator:
    """One robot; see `simulated.SimulatedWorld`. What it calls solved is that the robot has fallen."""

    def __init__(self, robot: Robot, observation: str) -> None:
        with _nothing_said():
            self.bullet = needed("pybullet", "partial_bullet", family="pybullet")
        client = needed("pybullet_utils.bullet_client", "partial_bullet", family="pybullet")
        self.data = Path(needed("pybullet_data", "partial_bullet", family="pybullet").getDataPath())
        self.robot = robot
        self.seen = robot.seen(observation)
        with _nothing_said():
            self.inner = client.BulletClient(connection_mode=self.bullet.DIRECT)  # disconnects when it is dropped
        # What each step calls, for all links or motors of a body at once. The client makes a function at each mention.
        self.joint_states, self.link_states = self.inner.getJointStates, self.inner.getLinkStates
        self.link_state, self.base_velocity = self.inner.getLinkState, self.inner.getBaseVelocity
        self.base_place, self.contacts = self.inner.getBasePositionAndOrientation, self.inner.getContactPoints
        self.push, self.simulate = self.inner.setJointMotorControlArray, self.inner.stepSimulation

    def begin(self, word: int) -> None:
        self._load()
        draws = np.random.default_rng(word)
        for motor in self.motors:
            angle = draws.uniform(-SPREAD, SPREAD)
            self.inner.resetJointState(*motor.part, targetValue=angle, targetVelocity=0)
            self._release(motor.part)
        self.contact_F = np.zeros(len(self.feet), np.float32)
        position, _, _ = self._body()
        self.first_height = position[2]
        self.observation_D = self._observe()
        self.distance = self._distance()

    def look(self) -> np.ndarray:
        return self.observation_D[self.seen]

    def step(self, action_A: np.ndarray) -> tuple[float, bool]:
        power, mode = self.robot.power, self.bullet.TORQUE_CONTROL
        torques = [power * motor.strength * x for x, motor in zip(action_A.tolist(), self.motors, strict=True)]
        for body, places, links in self.motors_of:
            self.push(body, links, controlMode=mode, forces=[torques[i] for i in places])
        self.simulate()

        self.observation_D = self._observe()
        height = self.observation_D[0] + self.first_height
        alive = self.robot.alive(height, self.pitch, self.contact_F)
        before = self.distance
        self.distance = self._distance()

        # Contacts of this step are seen at the next one.
        on_floor = {
            (contact[1], contact[3])
            for body in self.bodies
            for contact in self.contacts(body, self.floor)
            if contact[4] == -1
        }
        self.contact_F[:] = [foot in on_floor for foot in self.feet]

        # What pays: to be alive, to come nearer, little power, and joints away from their limits.
        staying = 1.0 if alive else -1.0
        progress = -self.distance / STEP + before / STEP
        effort = -2.0 * float(np.abs(action_A * self.speeds_A).mean())
        stall = 0.1 * float(np.square(action_A).mean())
        joints = self.observation_D[BODY : BODY + 2 * self.robot.joints]
        at_limit = -0.1 * np.count_nonzero(np.abs(joints[0::2]) > 0.99)
        reward = staying + progress + (effort - stall) + at_limit
        return reward, not alive

    def render(self) -> np.ndarray:
        position, _, _ = self._body()
        view = self.bullet.computeViewMatrixFromYawPitchRoll(position, 3, 0, -20, 0, 2)
        lens = self.bullet.computeProjectionMatrixFOV(60, 4 / 3, 0.1, 100)
        seen = self.inner.getCameraImage(384, 288, view, lens, renderer=self.bullet.ER_TINY_RENDERER)
        return np.reshape(seen[2], (288, 384, 4))[..., :3]

    def _load(self) -> None:
        """A new world with the floor and the robot, its motors off."""
        simulator = self.inner
        simulator.resetSimulation()
        simulator.setPhysicsEngineParameter(deterministicOverlappingPairs=1)
        simulator.setGravity(0, 0, -GRAVITY)
        simulator.setDefaultContactERP(0.9)
        simulator.setPhysicsEngineParameter(fixedTimeStep=STEP, numSolverIterations=SOLVER_STEPS, numSubSteps=SUBSTEPS)
        (self.floor,) = simulator.loadSDF(str(self.data / "plane_stadium.sdf"))
        simulator.changeDynamics(self.floor, -1, lateralFriction=0.8, restitution=0.5)

        flags = self.bullet.URDF_USE_SELF_COLLISION
        flags |= self.bullet.URDF_USE_SELF_COLLISION_EXCLUDE_ALL_PARENTS
        flags |= self.bullet.URDF_GOOGLEY_UNDEFINED_COLORS
        model = str(self.data / "mjcf" / self.robot.file)
        parts: dict[str, Part] = {}
        self.motors: list[Motor] = []
        for body in simulator.loadMJCF(model, flags=flags):
            parts.setdefault("torso", Part(body, -1))  # unless a link has this name
            for link in range(simulator.getNumJoints(body)):
                part = Part(body, link)
                self._release(part)
                info = simulator.getJointInfo(body, link)
                link_name = info[12].decode()
                parts[link_name] = part
                joint = info[1].decode()
                if joint.startswith(("ignore", "jointfix")):
                    continue
                low, high = info[8:10]
                strength = self.robot.strengths.get(joint, POWER)
                self.motors.append(Motor(part, 0.5 * (low + high), high - low, strength))
        self.torso = parts["torso"]
        self.feet = [parts[name] for name in self.robot.feet]
        everything = [*parts.values(), Part(self.floor, -1)]
        self.part_count = len(everything)
        self.bases = [(i, part.body) for i, part in enumerate(everything) if part.link == -1]
        self.links_of = _by_body(everything)
        self.motors_of = _by_body([motor.part for motor in self.motors])
        self.bodies = sorted({foot.body for foot in self.feet})

    def _release(self, part: Part) -> None:
        """Switch off the motor that every joint has."""
        gains = {"positionGain": 0.1, "velocityGain": 0.1, "force": 0}
        self.inner.setJointMotorControl2(*part, controlMode=self.bullet.POSITION_CONTROL, **gains)

    def _body(self) -> tuple[Any, Any, Any]:
        """Position, (roll, pitch, yaw) and velocity of the torso."""
        if self.torso.link == -1:
            position, orientation = self.base_place(self.torso.body)
            velocity = self.base_velocity(self.torso.body)[0]
        else:
            position, orientation, _, _, _, _, velocity = self.link_state(*self.torso, computeLinkVelocity=1)[:7]
        return position, self.bullet.getEulerFromQuaternion(orientation), velocity

    def _distance(self) -> float:
        """From the middle of all parts to the target."""
        return float(np.linalg.norm([-self.middle_2[1], TARGET_X - self.middle_2[0]]))

    def _observe(self) -> np.ndarray:
        places: list[Any] = [None] * self.part_count
        for i, robot in self.bases:
            places[i] = self.base_place(robot)[0]
        for robot, rows, links in self.links_of:
            for i, state in zip(rows, self.link_states(robot, links), strict=True):
                places[i] = state[0]
        place_P3 = np.array(places)
        self.middle_2 = place_P3[:, 0].mean(), place_P3[:, 1].mean()
        position, (roll, self.pitch, yaw), velocity = self._body()
        height = position[2] - self.first_height

        # Which way the target is, seen from where the robot looks.
        angle = np.arctan2(-self.middle_2[1], TARGET_X - self.middle_2[0]) - yaw
        cos = np.cos(-yaw)
        sin = np.sin(-yaw)
        turn_33 = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])
        velocity_3 = 0.3 * np.dot(turn_33, np.array(velocity))
        body = [height, np.sin(angle), np.cos(angle), *velocity_3, roll, self.pitch]

        # Of each joint where it stands between its limits, -1 to 1, and how fast it turns.
        joints = [0.0] * (2 * len(self.motors))
        for robot, rows, links in self.motors_of:
            for i, state in zip(rows, self.joint_states(robot, links), strict=True):
                motor = self.motors[i]
                at, speed = state[:2]
                joints[2 * i] = 2 * (at - motor.middle) / motor.width
                joints[2 * i + 1] = 0.1 * speed
        joints_J = np.array(joints, np.float32)
        self.speeds_A = joints_J[1::2]

        observation_D = np.concatenate([np.array(body, np.float32), joints_J, self.contact_F])
        return np.clip(observation_D, -5, 5)


class PartialBullet(SimulatedWorld):
    options: Options
    options_model = Options

    def _setup(self) -> None:
        chosen = self.options
        self.robot = ROBOTS[chosen.robot]
        self.horizon = chosen.horizon
        self._simulate(
            [Simulator(self.robot, chosen.observation) for _ in self.tasks],
            observation_size=len(self.robot.seen(chosen.observation)),
            action_size=self.robot.joints,
            goal_entries=(),
        )

    def _advance(self, actions_BA: np.ndarray, last_B: np.ndarray | None) -> Outcome:
        self._solved_B[:] = False
        rewards_B, _ = super()._advance(actions_BA, last_B)
        fallen_B = self._solved_B & self.robot.falls
        return rewards_B, fallen_B if last_B is None else fallen_B & ~last_B


World = PartialBullet
