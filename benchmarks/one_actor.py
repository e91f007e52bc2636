"""Memory-RL's published schedule, which has one actor: its steps by hand, against the plain policy; and updates.

Both ways play the same episodes. Dropout is on, and exploration at its end, as in most of a run. Beside that stand single updates,
and stepping the worlds, which the released code was timed at. Updates are timed with random episodes alone, and as at half of
a run. Then a fifth are random and the others explore no more than at the end: they are read once up to where they part.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.harness import Comparison, Side
from recollect.common.rollout import Episodes
from recollect.environments import registry
from recollect.memory_rl import dqn, sacd
from recollect.memory_rl.off_policy import OffPolicyTrainer
from recollect.settings.resolve import resolve

EXPLORED = 10**9  # selections after which exploration has ended
RUNS = (
    ("tmaze_passive_50", "dqn_gpt", "gpt_50"),
    ("tmaze_passive_500", "dqn_gpt", "gpt_500"),
    ("tmaze_passive_50", "dqn_lstm", "lstm_50"),
    ("tmaze_passive_500", "dqn_lstm", "lstm_500"),
    ("key_to_door_60", "sacd_gpt", "sacd_gpt_60"),
    ("key_to_door_60", "sacd_lstm", "sacd_lstm_60"),
)
SHARED = (
    ("tmaze_passive_50", "dqn_lstm", "lstm_50_half_way"),
    ("tmaze_passive_500", "dqn_lstm", "lstm_500_half_way"),
    ("tmaze_passive_50", "dqn_ff", ""),
)
QUICK = (("tmaze_passive_20", "dqn_gpt", ""), ("tmaze_passive_20", "dqn_lstm", ""))


def trainer_of(environment: str, method: str, *, plain: bool, quick: bool, random: float = 1.0) -> OffPolicyTrainer:
    """A run at scale paper whose replay holds 400 episodes, of which so many are random and the others explore little."""
    settings = resolve("paper", environment, method, 42)
    if quick:
        hp = settings.method.hyperparameters.model_copy(update={"batch_size": 4})
        settings = settings.model_copy(update={"method": settings.method.model_copy(update={"hyperparameters": hp})})
    trainer: OffPolicyTrainer = {"dqn": dqn, "sacd": sacd}[settings.method.algorithm].make_trainer(settings)
    episodes = 5 if quick else 400  # so that hardly one is drawn twice
    trainer.at.explored = EXPLORED
    for number in range(episodes):
        trainer.at.rounds += 1
        played = trainer.play_round(number < random * episodes, 1)
        flat = played.observation_BTD.reshape(1, played.observation_BTD.shape[1], -1)
        trainer.replay.add(flat, played.action_BT, played.reward_BT, played.terminal_BT, played.length_B)
    if plain:
        trainer.alone = None
    return trainer


def episode(trainer: OffPolicyTrainer) -> Episodes:
    """One more."""
    trainer.at.rounds += 1
    return trainer.play_round(False, 1)


def collecting(environment: str, method: str, released: str, quick: bool) -> Iterator[Comparison]:
    """Steps and updates of a run."""
    ours, plain = (trainer_of(environment, method, plain=plain, quick=quick) for plain in (False, True))

    def difference() -> float:
        """Of rewards and observations of two episodes; actions decide on both."""
        pair = (trainer_of(environment, method, plain=plain, quick=True) for plain in (False, True))
        mine, theirs = ([episode(trainer) for _ in range(2)] for trainer in pair)
        return max(
            float(np.abs(np.subtract(getattr(a, name), getattr(b, name), dtype=np.float64)).max())
            for a, b in zip(mine, theirs, strict=True)
            for name in ("action_BT", "reward_BT", "observation_BTD")
        )

    yield Comparison(
        work=f"collecting with one actor, {environment}, {method}",
        unit="env steps",
        plain="the policy of many rows, with one",
        ours=Side(lambda: episode(ours), ours.horizon),
        against=Side(lambda: episode(plain), plain.horizon),
        difference=difference,
        released=released and f"{released}_collecting",
    )
    yield Comparison(
        work=f"an update, {environment}, {method}",
        unit="updates",
        plain="–",
        ours=Side(ours._update, 1),
        against=None,
        difference=lambda: 0.0,
        rounds=3,
        released=released and f"{released}_update",
    )


def reads_every_row(*tokens: object) -> None:
    """In the place of `HistoryEncoder.distinct`."""


def sharing(environment: str, method: str, released: str, quick: bool) -> Comparison:
    """An update half through a run."""
    ours, plain = (trainer_of(environment, method, plain=False, quick=quick, random=0.2) for _ in range(2))
    plain.learner.network.encoder.distinct = reads_every_row

    def difference() -> float:
        """Of the gradient's norm, as a share of it."""
        mine, theirs = (trainer_of(environment, method, plain=False, quick=True, random=0.2) for _ in range(2))
        theirs.learner.network.encoder.distinct = reads_every_row
        for trainer in (mine, theirs):
            trainer._update()
        norms = [float(trainer.sums["gradient_norm"]) for trainer in (mine, theirs)]
        return abs(norms[0] - norms[1]) / norms[1]

    return Comparison(
        work=f"an update half through a run, {environment}, {method}",
        unit="updates",
        plain="each row read by itself",
        ours=Side(ours._update, 1),
        against=Side(plain._update, 1),
        difference=difference,
        tolerance=1e-4,
        rounds=5,
        released=released,
    )


def stepping(world: str, batch: int, released: str) -> Comparison:
    """Whole episodes of random actions."""
    tasks = registry.tasks(world, {"length": 50} if world == "tmaze" else {}, "train")
    options = {"length": 50} if world == "tmaze" else {}
    made = registry.make_world(world, options, tasks * batch, np.arange(batch, dtype=np.uint64))
    actions_TB = np.random.default_rng(0).integers(0, 4, (made.horizon, batch))

    def ours() -> None:
        made.reset(options={"reset_mask": np.ones(batch, bool)})
        for actions_B in actions_TB:
            made.step(actions_B)

    return Comparison(
        work=f"stepping {world}, batch {batch}",
        unit="steps",
        plain="–",
        ours=Side(ours, batch * made.horizon),
        against=None,
        difference=lambda: 0.0,
        released=released,
    )


def comparisons(quick: bool) -> Iterator[Comparison]:
    """Runs, then worlds."""
    for environment, method, released in QUICK if quick else RUNS:
        yield from collecting(environment, method, released, quick)
    for environment, method, released in QUICK[1:] if quick else SHARED:
        yield sharing(environment, method, released, quick)
    yield stepping("tmaze", 1, "tmaze_stepping_one")
    for world in ("tmaze", "key_to_door"):
        yield stepping(world, 16 if quick else 1024, f"{world}_stepping")
