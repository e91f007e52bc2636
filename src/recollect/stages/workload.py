"""How much work a job is, in numbers that hold on any machine: the rule by which a measured time is carried to another size.

Counted are floating-point operations of networks (forward 2 x parameters per token and what attention adds with the
length of the sequence; learning three times that), passes (what has to happen one after the other: an acting step of all
instances together is one, an update three), and environment steps. From the resolved settings alone, by the names that
families of methods share, so a new method of a family needs no entry here; one of no family counts its `steps`.

It is a rule of thumb: good for the ratio of two sizes of one method, less for the ratio of two methods.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from recollect.common.contract import facts_of
from recollect.environments import registry
from recollect.settings.errors import UserError
from recollect.settings.loading import config_folder, read_yaml, validated
from recollect.settings.resolve import algorithm_module, environment_settings, resolve
from recollect.settings.schema import EnvironmentSettings, Settings
from recollect.stages import provenance
from recollect.stages.plan import Job

LEARNING, UPDATE = 3, 3  # forward and backward in forwards; forward, backward and optimiser in passes
EPISODE = 500  # steps of an episode where nothing says it
WORDS = 30_000  # of a vocabulary that is embedded
FLOAT = 4  # bytes


class Work(NamedTuple):
    """What a job has to do. Fields add up."""

    flop: float = 0.0
    passes: float = 0.0
    env_steps: float = 0.0
    disk: float = 0.0  # bytes that it leaves behind
    own_steps: float = 0.0  # what the run itself counts, in which it logs; 0: unknown

    def __add__(self, other: Work) -> Work:  # type: ignore[override]
        return Work(*(a + b for a, b in zip(self, other, strict=True)))


class Net(NamedTuple):
    """A network: what one token costs forward, and what it weighs."""

    flop: float
    parameters: float


def kind_of(job: Job) -> str:
    """What must agree between two jobs for the time of one to say something about the other: `train dqn gpt`."""
    if job.rule == "generate":
        return f"generate {_source(job)[0]}"
    if not job.method:
        return job.rule
    settings = settings_of(job.scale, job.env, job.method)
    sequence = getattr(settings.method.hyperparameters, "sequence", None)
    words = [job.rule, settings.method.algorithm, getattr(sequence, "kind", "")]
    return " ".join(word for word in words if word)


@cache
def settings_of(scale: str, env: str, method: str) -> Settings:
    """The settings of a run, of whatever seed."""
    return resolve(scale, env, method, 0)


@cache
def shape_of(scale: str, env: str) -> tuple[int, int, int]:
    """(steps of an episode, numbers of an observation, pixels of an image or 0).

    Where the packages of a world are not here: what its options say, or `EPISODE` steps.
    """
    environment = environment_settings(scale, env)
    try:
        facts = facts_of(environment)
    except UserError:
        listed = read_yaml(config_folder() / "speeds.yaml").get("horizons") or {}
        known = next((steps for name, steps in listed.items() if env.startswith(name)), EPISODE)
        return int(environment.options.get("horizon") or known), 64, 0
    image = facts.image_shape
    return facts.horizon, facts.observation_size, prod(sorted(image)[1:]) if image else 0


@cache
def tasks_of(scale: str, env: str, split: str) -> int:
    """How many tasks a split has; 1 where the packages of the world are not here."""
    environment = environment_settings(scale, env)
    try:
        return len(registry.tasks(environment.world, environment.options, split))
    except UserError:
        return 1


def work_of(job: Job) -> Work:
    """What a job has to do; nothing for jobs that take seconds or wait for a network."""
    if job.rule == "generate":
        return _generated(job)
    if job.rule in ("train", "evaluate", "inspect", "measure", "embed", "index", "embed_images"):
        return _of_run(job._replace(seed="")) if job.method else _encoded(job)
    return Work()


@cache
def _of_run(job: Job) -> Work:
    settings = settings_of(job.scale, job.env, job.method)
    if job.rule == "train":
        return trained(settings)
    if job.rule in ("embed", "index"):
        return _memory(settings, job.rule)
    return played(settings)


# --------------------------------------------------------------------------------------------------------- networks


def transformer(width: int, layers: int, length: float, *, reads: bool = False) -> Net:
    """Blocks of a transformer; `reads`: with cross-attention. Attention: scores and sums over half of the sequence."""
    parameters = layers * (16 if reads else 12) * width**2
    return Net(2 * parameters + 2 * layers * width * length, parameters)


def dense(*widths: int) -> Net:
    """Linear layers from each width to the next."""
    parameters = sum(a * b for a, b in pairwise(widths))
    return Net(2 * parameters, parameters)


def network_of(settings: Settings, length: float) -> Net:
    """The network of a method on sequences of so many tokens."""
    hp: Any = settings.method.hyperparameters
    _, observation, pixels = shape_of(settings.scale, settings.environment.name)
    if hasattr(hp, "network"):  # DT and its kin
        return transformer(hp.network.width, hp.network.layers, length, reads=settings.method.memory is not None)
    if hasattr(hp, "updates_per_epoch"):  # AMAGO
        body = transformer(hp.sequence.width, hp.sequence.layers, length)
        ends = dense(hp.sequence.width, *hp.head)
        several = hp.critics * (1 + len(hp.further_discounts))
        return Net(body.flop + several * ends.flop, body.parameters + several * ends.parameters)
    if hasattr(hp, "sequence"):  # Memory-RL
        sequence = hp.sequence
        gates = {"lstm": 8, "gru": 6, "rnn": 2, "ff": 0}.get(sequence.kind)
        recurrent = Net(*[sequence.layers * (gates or 0) * sequence.width**2 * factor for factor in (2, 1)])
        body = transformer(sequence.width, sequence.layers, length) if gates is None else recurrent
        ends = dense(observation, hp.observation_embedding or 1, sequence.width, *hp.head)
        return Net(body.flop + ends.flop, body.parameters + ends.parameters)
    if hasattr(hp, "channel_scale"):  # HELM and its baselines: two layers of 3 x 3 and a wide one
        channels = 16 * hp.channel_scale
        ends = dense(pixels * channels // 8, hp.width, hp.actor + hp.critic)
        return Net(18 * pixels * channels * (3 + channels // 2) + ends.flop, 9 * 2 * channels**2 + ends.parameters)
    return dense(observation, 256, 256)


def tokens_of(hp: Any) -> int:
    """Tokens per time step."""
    return 4 if getattr(getattr(hp, "network", None), "tokens", "merged") == "interleaved" else 1


# ------------------------------------------------------------------------------------------------------------- jobs


def trained(settings: Settings) -> Work:
    """A training run, with the evaluations that it makes on its way."""
    hp: Any = settings.method.hyperparameters
    horizon, observation, _ = shape_of(settings.scale, settings.environment.name)
    if hasattr(hp, "optimisation"):  # from histories
        steps, tokens = hp.optimisation.steps, tokens_of(hp)
        window = hp.context + (_read_window(settings) if settings.method.memory is not None else 0)
        net = network_of(settings, window * tokens)
        flop = steps * hp.optimisation.batch_size * window * tokens * net.flop * LEARNING
        own = Work(flop, steps * UPDATE, 0, 3 * FLOAT * net.parameters, steps)
        every = hp.optimisation.evaluate_every
        once = played(settings)
        return own + Work(*(value * (steps // every) for value in once[:3])) if every else own
    if hasattr(hp, "train_episodes"):  # Memory-RL
        window = hp.window(horizon)
        net = network_of(settings, window)
        episodes = hp.warmup_episodes + hp.train_episodes
        updates = episodes * horizon * hp.updates_per_step
        judged = hp.train_episodes // hp.evaluate_every
        acted = (episodes + judged * hp.evaluation_episodes) * horizon
        flop = updates * hp.batch_size * (window + 1) * net.flop * (LEARNING + 1) + acted * net.flop
        passes = updates * UPDATE + episodes * horizon / hp.actors + judged * horizon
        stored = min(max(hp.replay_transitions, hp.replay_episodes * horizon), episodes * horizon)
        disk = 3 * FLOAT * net.parameters + stored * (observation + 3)
        return Work(flop, passes, acted, disk, episodes * horizon)
    if hasattr(hp, "channel_scale"):  # HELM and its baselines
        net, read = network_of(settings, 1), _reader(settings)
        updates = hp.steps / (hp.actors * hp.rollout) * hp.epochs * hp.batches
        flop = hp.steps * (net.flop * (1 + hp.epochs * LEARNING) + read)
        return Work(flop, hp.steps / hp.actors + updates * UPDATE, hp.steps, 3 * FLOAT * net.parameters, hp.steps)
    if hasattr(hp, "updates_per_epoch"):  # AMAGO
        window = hp.context_of(horizon)
        net = network_of(settings, window)
        updates, steps = hp.epochs * hp.updates_per_epoch, hp.epochs * hp.actors * hp.steps_per_epoch
        flop = updates * hp.batch_size * window * net.flop * (LEARNING + 1) + steps * net.flop
        stored = hp.buffer * hp.save_length_of(horizon) * (observation * FLOAT + 16)
        passes = updates * UPDATE + hp.epochs * hp.steps_per_epoch
        return Work(flop, passes, steps, 3 * FLOAT * net.parameters + stored, steps)
    steps = float(getattr(hp, "steps", 0))
    return Work(steps * network_of(settings, 1).flop * LEARNING, steps * UPDATE, steps, 0, steps)


def played(settings: Settings) -> Work:
    """The evaluation of a policy: all tasks, or all episodes, at once."""
    hp: Any = settings.method.hyperparameters
    environment: EnvironmentSettings = settings.environment
    horizon, _, _ = shape_of(settings.scale, environment.name)
    judged = environment.evaluation
    if judged.protocol != "in_context":
        net, steps = network_of(settings, horizon), judged.episodes * horizon
        return Work(steps * (net.flop + _reader(settings)), horizon, steps)
    window, tokens = getattr(hp, "context", horizon), tokens_of(hp)
    net = network_of(settings, window * tokens)
    tasks = sum(tasks_of(settings.scale, environment.name, split) for split in judged.splits)
    passes, flop = judged.episodes * horizon, net.flop * tokens
    if settings.method.memory is not None:  # a query, and the window that is read
        passes *= 1 + 1 / hp.retrieve_every
        flop += (_query(settings) + _read_window(settings) * tokens * net.flop / 4) / hp.retrieve_every
    steps = tasks * judged.episodes * horizon
    return Work(steps * flop, passes, steps)


def _read_window(settings: Settings) -> int:
    memory: Any = settings.method.memory
    return int(memory.past + memory.future)


def _query(settings: Settings) -> float:
    """Operations of embedding one window."""
    memory: Any = settings.method.memory
    tokens = 4 if memory.tokens == "interleaved" else 1
    kind, name, _ = provenance.embedder_of(settings.scale, settings.environment.name, settings.method.name)
    if kind == "lm":
        return 2 * _frozen(name) * memory.key_context * tokens
    embedder = settings_of(settings.scale, settings.environment.name, name)
    return (
        network_of(embedder, memory.key_context * tokens).flop
        * memory.key_context
        * tokens_of(embedder.method.hyperparameters)
    )


def _reader(settings: Settings) -> float:
    """Operations of a frozen language model for one more input, with its memory cached."""
    name = getattr(settings.method.hyperparameters, "language_model", None)
    return 0.0 if name is None else 2 * _frozen(name)


def _frozen(name: str) -> float:
    """Parameters that a frozen model computes with."""
    known = read_yaml(config_folder() / "speeds.yaml").get("models") or {}
    return float(known.get(name, 1e8))


@cache
def _source(job: Job) -> tuple[str, Any]:
    """(algorithm, hyperparameters) of what makes the histories of an environment."""
    source = environment_settings(job.scale, job.env).source
    assert source is not None  # else nothing would ask for histories
    where = f"config/environments/{job.env}.yaml: source"
    module = algorithm_module(source.algorithm, where=where, does="source")
    return source.algorithm, validated(module.Hyperparameters, source.hyperparameters, where=where)


def _rows(scale: str, env: str) -> float:
    """Time steps of an environment's learning histories."""
    environment = environment_settings(scale, env)
    if environment.source is None:
        return 0.0
    _, hp = _source(Job("generate", scale, env))
    kept = getattr(hp, "recorded", 1) / getattr(hp, "actors", 1) if hasattr(hp, "recorded") else 1
    return float(getattr(hp, "transitions", 100_000)) * tasks_of(scale, env, environment.source.split) * kept


def _generated(job: Job) -> Work:
    """Learning histories: one source agent per task, all at once."""
    _, hp = _source(job)
    environment = environment_settings(job.scale, job.env)
    _, observation, pixels = shape_of(job.scale, job.env)
    rows = _rows(job.scale, job.env)
    disk = rows * (20 if environment.images is None else 12 * 1024 + 20)
    if not hasattr(hp, "epochs"):  # files are read, or scripts play
        return Work(0, 0, rows, disk, getattr(hp, "transitions", 0))
    assert environment.source is not None
    tasks = tasks_of(job.scale, job.env, environment.source.split)
    actors = getattr(hp, "actors", 1)
    if hasattr(hp, "units"):
        net = Net(16 * hp.units**2, 8 * hp.units**2)
    elif hasattr(hp, "hidden"):
        net = dense(observation, *hp.hidden)
    else:
        net = Net(18 * (pixels or 4096) * 16 * 24 + 4 * 2048 * getattr(hp, "width", 256), 1e6)
    steps = hp.transitions * tasks
    updates = hp.transitions * hp.epochs / hp.minibatch
    flop = steps * net.flop * (1 + hp.epochs * LEARNING)
    return Work(flop, hp.transitions / actors + updates * UPDATE, steps, disk, hp.transitions)


def _memory(settings: Settings, rule: str) -> Work:
    """Keys of a memory, or their index."""
    memory: Any = settings.method.memory
    scale, env = settings.scale, settings.environment.name
    entries = _rows(scale, env) / memory.stride
    if memory.max_entries_per_task is not None and settings.environment.source is not None:
        entries = min(entries, memory.max_entries_per_task * tasks_of(scale, env, settings.environment.source.split))
    width = getattr(getattr(settings.method.hyperparameters, "network", None), "width", 512)
    flop = entries * _query(settings) if rule == "embed" else entries * width * 1000
    return Work(flop, entries / 256, 0, entries * width * FLOAT)


def _encoded(job: Job) -> Work:
    """The images of histories as vectors."""
    images = environment_settings(job.scale, job.env).images
    rows = _rows(job.scale, job.env)
    width = getattr(images, "width", 0)
    return Work(rows * 18 * 4096 * 16 * 24, rows / 1024, 0, rows * (width * FLOAT + 20))
