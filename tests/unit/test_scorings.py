"""A scoring that is stopped at odd moments and goes on says and does the same, to the bit, as one that never was."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import fake_worlds
import numpy as np
import pytest
import test_fall_back as runs
import tiny_amago
from odd_clock import OddlyJudgedRun, OddScoring, Stopped, ends_the_same

from recollect.amago import amago
from recollect.artifacts.cadence import Cadence
from recollect.artifacts.scoring import Scoring
from recollect.common.batched_policy import BatchedPolicy
from recollect.common.contract import Inputs
from recollect.evaluation import episodic, in_context
from recollect.helm import helm, ppo_cnn, ppo_lstm
from recollect.memory_rl import dqn, sac
from recollect.radt import ad

STOPS = (2, 6, 9)
MAZE = {"variant": "passive", "length": 16}
SIGNAL = {"height": 9, "width": 9}
GPT = {"sequence": {"kind": "gpt", "width": 8, "heads": 2}}
IN_CONTEXT = ("dt", "dt, sliding", "ad", "dpt", "radt", "radt, agnostic", "radt, sliding", "radt, shared")


def of_room(tiny: Any, kind: str) -> tuple[Any, Callable[[], Any]]:
    name, _, how = kind.partition(", ")
    room = tiny(episodes=3, horizon=None)
    chosen: dict[str, Any] = {"network": {"return_embedding": "linear"}} if name == "radt" else {}
    if name == "radt" and how != "sliding":
        chosen["context"] = 12
    if how == "sliding":
        chosen["context"] = 5
    if how == "shared":
        chosen["acting"] = {"shared": True, "kind": "return"}
    memory = {"key_context": 12} if not how else None
    settings = room.settings("radt_agnostic" if how == "agnostic" else name, memory=memory, **chosen)
    return settings, lambda: room.policy(settings)


def of_trainer(module: Any, world: str, options: Any, chosen: dict[str, Any]) -> tuple[Any, Callable[[], Any]]:
    module, settings, inputs = runs.online(module, world, options, **chosen)
    settings = settings.model_copy(update={"environment": more_episodes(settings.environment)})
    if world == "signal":
        arrays = module.make_trainer(settings, inputs).agent.learned()
    else:
        arrays = module.make_trainer(settings).policy.arrays()
    return settings, lambda: module.load_policy(settings, arrays, inputs)


def more_episodes(environment: Any) -> Any:
    return environment.model_copy(update={"evaluation": environment.evaluation.model_copy(update={"episodes": 5})})


def of_amago(protocol: str = "episodic", **chosen: Any) -> tuple[Any, Callable[[], Any]]:
    settings = tiny_amago.settings_of(tiny_amago.ROOM, protocol=protocol, **chosen)
    arrays = amago.Agent(
        settings.method.hyperparameters, amago.agent.world_shape(settings.environment), seed=0, device="cpu"
    )
    learned = arrays.policy().arrays()
    return settings, lambda: amago.load_policy(settings, learned, Inputs())


MAKES: dict[str, Callable[[], tuple[Any, Callable[[], Any]]]] = {
    "dqn_lstm": lambda: of_trainer(dqn, "tmaze", MAZE, runs.HISTORY),
    "dqn_gpt": lambda: of_trainer(dqn, "tmaze", MAZE, runs.HISTORY | GPT),
    "dqn_gpt, sliding": lambda: of_trainer(dqn, "tmaze", MAZE, runs.HISTORY | GPT | {"sampled_seq_len": 6}),
    "sac_ff": lambda: of_trainer(sac, "aim", {}, runs.HISTORY | {"sequence": {"kind": "ff", "width": 8}}),
    "ppo_cnn": lambda: of_trainer(ppo_cnn, "signal", SIGNAL, runs.IMAGES),
    "ppo_lstm": lambda: of_trainer(ppo_lstm, "signal", SIGNAL, runs.IMAGES | {"units": 12, "sequences": 2}),
    "helm": lambda: of_trainer(
        helm, "signal", SIGNAL, runs.IMAGES | {"language_model": "random", "memory_length": 3, "mem_len": "config"}
    ),
    "amago_transformer": of_amago,
    "amago_gru": lambda: of_amago(sequence={"kind": "gru", "width": 16, "layers": 1}),
    "amago, slow": lambda: of_amago(slow_inference=True),
    "amago, in context": lambda: of_amago("in_context"),
}
QUICK = {"radt": None, "dqn_lstm": None, "ppo_lstm": 2, "amago_transformer": None}
KINDS: list[Any] = list(QUICK.items())  # and how many rows are played at once
for each in (*IN_CONTEXT, *MAKES):
    for at_once in (None, 2) if each in MAKES else (None,):
        if (each, at_once) not in KINDS:
            KINDS.append(pytest.param(each, at_once, marks=pytest.mark.slow))


def listened(policy: Any, said: list[bytes]) -> None:
    """Write down what the network says of the actions, and what is done."""
    name = "logits" if hasattr(policy, "logits") else "outputs"
    whose = policy
    if not hasattr(policy, name):
        whose, name = policy.agent, "act"
    inner, act = getattr(whose, name), policy.act

    def told(*arguments: Any) -> Any:
        found = inner(*arguments)
        of_network = found if name != "act" else found[0]
        said.append(np.asarray(of_network).tobytes())
        return found

    def acts(*arguments: Any) -> Any:
        done = act(*arguments)
        said.append(np.asarray(done).tobytes())
        return done

    setattr(whose, name, told)
    policy.act = acts


@pytest.mark.quick("radt-None", "dqn_lstm-None", "ppo_lstm-2")
@pytest.mark.parametrize(("kind", "rows"), KINDS)
def test_a_scoring_stopped_at_odd_moments_says_the_same_to_the_bit(
    kind: str, rows: int | None, tiny: Any, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    fake_worlds.install(monkeypatch)
    settings, make = of_room(tiny, kind) if kind in IN_CONTEXT else MAKES[kind]()
    protocol: Any = {"in_context": in_context, "episodic": episodic}[settings.environment.evaluation.protocol]

    def score(scoring: Scoring, said: list[bytes]) -> Any:
        policy = make()
        policy.rows_at_once = rows
        listened(policy, said)
        return protocol.evaluate(policy, settings.environment, method="m", seed=0, step=7, scoring=scoring)

    expected_said: list[bytes] = []
    expected = score(Scoring(), expected_said)
    said: list[bytes] = []
    resumed = 0
    until: dict[int, int] = {}  # save -> how much had been said by then
    for number, stop in enumerate((*STOPS, -1)):
        scoring = OddScoring(tmp_path / "scoring", stop=stop, seed=number)
        resumed += scoring.resumed
        del said[until.get(scoring.saves, 0) :]
        save = scoring.save

        def noted(*arguments: Any, save: Any = save, scoring: Any = scoring) -> None:
            save(*arguments)
            until[scoring.saves] = len(said)

        scoring.save = noted  # type: ignore[method-assign]
        with suppress(Stopped):
            found = score(scoring, said)
    assert resumed >= 2
    assert len(set(said)) > 3, "it always says the same"
    assert len(said) == len(expected_said) and said == expected_said
    assert found.equals(expected)
    scoring.clear()
    assert not (tmp_path / "scoring").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dt", "dqn", "amago"])
def test_what_is_judged_while_it_learns_goes_on_with_that_too(
    kind: str, tiny: Any, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(root)
    monkeypatch.setattr(
        runs, "OFFLINE", {"optimisation": {"steps": 6, "batch_size": 4, "warmup": 2, "evaluate_every": 2}}
    )
    monkeypatch.setattr(runs, "HISTORY", runs.HISTORY | {"train_episodes": 8, "evaluate_every": 3})
    caplog.set_level(logging.INFO)
    module, settings, inputs = runs.case(kind, tiny, tmp_path)
    if kind == "amago":
        hp = settings.method.hyperparameters.model_copy(update={"evaluate_every": 2})
        settings = settings.model_copy(update={"method": settings.method.model_copy(update={"hyperparameters": hp})})

    def evaluate(policy: Any, step: int, scoring: Scoring) -> Any:
        return in_context.evaluate(policy, settings.environment, method="m", seed=0, step=step, scoring=scoring)

    ends_the_same(
        lambda run: module.train(settings, inputs, run).arrays(),
        tmp_path,
        (1, 2, 4),
        kind=OddlyJudgedRun,
        evaluate=evaluate if kind == "dt" else None,
    )
    assert caplog.text.count("going on from the scoring's checkpoint") >= 2


def test_every_policy_says_what_changes_while_it_acts() -> None:
    waiting, silent = [BatchedPolicy], set()
    while waiting:
        for kind in waiting.pop().__subclasses__():
            waiting.append(kind)
            if not inspect.isabstract(kind) and kind.__module__.startswith("recollect."):
                silent |= set() if {"acting", "state_arrays"} & vars(kind).keys() else {kind.__name__}
    assert not silent


class Quiet(ad.DistillationPolicy):
    """Remembers more than its base class, and does not say so."""


def test_a_policy_that_does_not_say_what_changes_is_scored_as_a_whole(tiny: Any, tmp_path: Path) -> None:
    room = tiny()
    settings = room.settings("ad")
    scoring = OddScoring(tmp_path, stop=-1, seed=0)
    policy = Quiet(room.network(settings), settings)
    in_context.evaluate(policy, settings.environment, method="m", seed=0, step=7, scoring=scoring)
    assert scoring.asked == 0


@pytest.mark.parametrize("kind", ["dt", "ad", "dpt"])
def test_where_episodes_end_what_they_held_is_not_saved(kind: str, tiny: Any, tmp_path: Path) -> None:
    settings, make = of_room(tiny, kind)
    scoring = Scoring(tmp_path, lambda: "same", Cadence(lambda: 0.0))
    held: dict[bool, list[int]] = {True: [], False: []}

    def save(name: str, arrays: dict[str, Any]) -> None:
        held[bool(arrays["own/done"].all())].append(arrays["policy/cached/cache/layer/0"].numel())

    scoring.due = lambda **_: True  # type: ignore[method-assign]
    scoring.save = save  # type: ignore[method-assign]
    in_context.evaluate(make(), settings.environment, method="m", seed=0, step=7, scoring=scoring)
    assert max(held[True]) == 0 < max(held[False])
