"""How much work a run is, in numbers that hold on any machine: what the `work` module of each paper's package is written with.

Counted are floating-point operations of networks (forward 2 x parameters per token and what attention adds with the
length of the sequence; learning three times that), passes (what has to happen one after the other: an acting step of all
instances together is one, an update three), and environment steps. It is a rule of thumb: good for the ratio of two sizes
of one method, less for the ratio of two methods. No method imports this: it is no part of what a run is a function of.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import NamedTuple

from recollect.artifacts.checkpoints import KEPT
from recollect.common.contract import Facts, facts_of
from recollect.environments import registry
from recollect.settings.errors import UserError
from recollect.settings.loading import config_folder, read_yaml
from recollect.settings.resolve import environment_settings
from recollect.settings.schema import Settings
from recollect.settings.still import remembered

LEARNING, UPDATE = 3, 3  # forward and backward in forwards; forward, backward and optimiser in passes
FEW = 3  # most seeds of one network whose recurrent cells go one after the other on a GPU (recollect.memory_rl.stacked)
EPISODE = 500  # steps of an episode where nothing says it
FLOAT = 4  # bytes


class Work(NamedTuple):
    """What a job has to do. Fields add up."""

    flop: float = 0.0
    passes: float = 0.0
    env_steps: float = 0.0
    disk: float = 0.0  # bytes that it leaves behind
    own_steps: float = 0.0  # what the run itself counts, in which it logs; 0: unknown
    scratch: float = 0.0  # bytes that go when it has ended: checkpoints, and what a run keeps beside them
    captured: float = 0.0  # of the passes, those that are CUDA graphs where large runs are trained on a GPU,
    kernels: float = 0.0  # and how many kernels these graphs have;
    cells: float = 0.0  # those of recurrent cells that are not in `kernels`, where more than FEW seeds are one network,
    apart: float = 0.0  # and of each seed, where there are no more, as theirs go one after the other
    timed: float = 0.0  # seconds for which something is done as often as the machine can

    def __add__(self, other: Work) -> Work:  # type: ignore[override]
        return Work(*(a + b for a, b in zip(self, other, strict=True)))


class Net(NamedTuple):
    """A network: what one token costs forward, and what it weighs."""

    flop: float
    parameters: float


class Shape(NamedTuple):
    """Steps of an episode, numbers of an observation, and pixels of an image (0: it is none)."""

    horizon: int
    observation: int
    pixels: int


@remembered
def shape_of(scale: str, env: str) -> Shape:
    """What a world's episodes look like. Where its packages are not here: what its options say, or `EPISODE` steps.

    Episodes of POPGym end far from their horizon: config/speeds.yaml says where.
    """
    listed = read_yaml(config_folder() / "speeds.yaml").get("horizons") or {}
    known = next((steps for name, steps in listed.items() if env.startswith(name)), None)
    facts = _facts(scale, env)
    if facts is None:
        horizon = int(environment_settings(scale, env).options.get("horizon") or known or EPISODE)
        size, pixels = (int(known_of(table, env, default)) for table, default in (("observations", 64), ("pixels", 0)))
        return Shape(min(horizon, known or horizon), size, pixels)
    image = facts.image_shape
    horizon = min(facts.horizon, known or facts.horizon)
    return Shape(horizon, facts.observation_size, prod(sorted(image)[1:]) if image else 0)


def shape_met(settings: Settings) -> Shape:
    return shape_of(settings.scale, settings.environment.name)


def number_bytes(settings: Settings) -> int:
    """Bytes of a number of an observation, as the world gives it: images, and whole numbers up to 255, are one each."""
    return _number_bytes(settings.scale, settings.environment.name)


@remembered
def _number_bytes(scale: str, env: str) -> int:
    facts = _facts(scale, env)
    if facts is None:
        return int(known_of("bytes", env, 1 if shape_of(scale, env).pixels else FLOAT))
    whole = facts.observation_values
    return 1 if facts.image_shape or (whole and max(whole) <= 256) else FLOAT


def has_choices(settings: Settings) -> bool:
    """Whether an action is one of a number of choices; of worlds whose packages are not here config/speeds.yaml says it."""
    listed = read_yaml(config_folder() / "speeds.yaml").get("not_discrete") or ()
    name = settings.environment.name
    facts = _facts(settings.scale, name)
    return not any(name.startswith(start) for start in listed) and (facts is None or not facts.action_size)


@remembered
def _facts(scale: str, env: str) -> Facts | None:
    """What a world says of itself; None: its packages are not here."""
    try:
        return facts_of(environment_settings(scale, env))
    except UserError:
        return None


@remembered
def tasks_of(scale: str, env: str, split: str) -> int:
    """How many tasks a split has; 1 where the packages of the world are not here."""
    environment = environment_settings(scale, env)
    try:
        return len(registry.tasks(environment.world, environment.options, split))
    except UserError:
        return 1


def transformer(width: int, layers: int, length: float) -> Net:
    """Blocks of a transformer. Attention: scores and sums over half of the sequence."""
    parameters = layers * 12 * width**2
    return Net(2 * parameters + 2 * layers * width * length, parameters)


def dense(*widths: int) -> Net:
    parameters = sum(a * b for a, b in pairwise(widths))
    return Net(2 * parameters, parameters)


def checkpoints(parameters: float, beside: float = 0.0) -> float:
    """Bytes of a run's checkpoints: parameters, the optimiser's two numbers for each, and `beside`; the newest two, and one
    that is being written.
    """
    return (KEPT + 1) * (3 * FLOAT * parameters + beside)


def frozen_parameters(name: str) -> float:
    """Parameters that a frozen model computes with (config/speeds.yaml)."""
    known = read_yaml(config_folder() / "speeds.yaml").get("models") or {}
    return float(known.get(name, 1e8))


def known_of(table: str, name: str, default: float) -> float:
    """A number of config/speeds.yaml, listed by the beginning of a name."""
    listed = read_yaml(config_folder() / "speeds.yaml").get(table) or {}
    return float(next((number for start, number in listed.items() if name.startswith(start)), default))


def played(settings: Settings, flop_per_step: float, passes_per_step: float = 1.0) -> Work:
    """The evaluation of a policy: all tasks, or all episodes, at once."""
    horizon, judged = shape_met(settings).horizon, settings.environment.evaluation
    if judged.protocol != "in_context":
        steps = judged.episodes * horizon
        return Work(steps * flop_per_step, horizon, steps)
    tasks = sum(tasks_of(settings.scale, settings.environment.name, split) for split in judged.splits)
    steps = tasks * judged.episodes * horizon
    return Work(steps * flop_per_step, judged.episodes * horizon * passes_per_step, steps)
