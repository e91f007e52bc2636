"""AMAGO's loop: what actors record is what happened, a stopped run goes on to the bit, a policy file plays the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_amago import GOALS, MAZE, ROOM, collector_of, goes_on_to_the_bit, run_in, settings_of

from recollect.artifacts.sealed import read_arrays
from recollect.evaluation.episodic import play
from recollect.methods import amago, amago_multi_task
from recollect.methods.amago import Agent
from recollect.methods.amago_loop import Trainer
from recollect.methods.amago_network import world_shape
from recollect.methods.contract import Inputs
from recollect.methods.online import make_worlds
from recollect.settings.errors import UserError

# ---- collecting


def test_what_is_recorded_is_what_was_played_and_is_read_as_it_was_while_acting() -> None:
    """The states of a recorded rollout, computed whole, choose the very actions that were taken without exploration."""
    settings = settings_of(ROOM, sample_actions=False, exploration={"kind": "none"}, steps_per_epoch=50)
    collector, agent = collector_of(settings)
    trajectories = collector.collect(50)
    assert len(trajectories) == 4 * 2  # of 23 steps each
    from recollect.trajectories.trajectory_files import _padded

    batch = _padded([dict(trajectory) for trajectory in trajectories])
    network = agent.network.eval()
    with torch.no_grad():
        raw = network.actor(network.states(network.window(batch, 1.0, torch.device("cpu"))))[:, :-1, -1]
    chosen = raw.argmax(-1).numpy()
    assert (chosen == batch.previous_action_BT[:, 1:]).mean() > 0.99  # ties of rounding aside
    assert len(np.unique(chosen)) > 1
    assert (batch.time_BT == np.arange(24)).all()
    assert batch.done_BT[:, -1].all()
    assert not batch.done_BT[:, :-1].any()


def test_windows_have_the_length_that_is_asked_for_and_end_only_where_the_rollout_does(tmp_path: Path) -> None:
    settings = settings_of(ROOM, context=6, save_length=10, stagger=False, steps_per_epoch=50)
    trainer = Trainer(Agent, settings, "cpu", run_in(tmp_path))
    trainer.store.add(trainer.collector.collect(50))
    lengths = set(trainer.store.lengths.tolist())
    assert lengths == {10, 3}  # 23 = 10 + 10 + 3
    ended = 0
    for counter in range(30):
        batch = trainer.store.sample(8, trainer.context, seed=0, counter=counter)
        for b in range(8):
            n = int(batch.length_B[b])
            assert n in (7, 4)
            whole = batch.time_BT[b, n - 1] == 23
            assert batch.done_BT[b, :n].tolist() == [False] * (n - 1) + [bool(whole)]
            ended += whole
    assert ended > 0


def test_actors_go_on_where_they_stopped() -> None:
    """Two calls are one, wherever they are cut."""
    settings = settings_of(ROOM)
    (once, _), (twice, _) = collector_of(settings), collector_of(settings)
    whole = once.collect(47)
    parts = [*twice.collect(13), *twice.collect(34)]
    assert len(whole) == len(parts) > 0
    for one, other in zip(whole, parts, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_collected_goals_can_be_relabelled(tmp_path: Path) -> None:
    settings = settings_of(GOALS, relabelling="all", steps_per_epoch=45)
    trainer = Trainer(Agent, settings, "cpu", run_in(tmp_path))
    trainer.store.add(trainer.collector.collect(45))
    batch = trainer.store.sample(16, trainer.context, seed=0, counter=0, relabel=trainer.relabel)
    assert (batch.reward_BT.sum(1) >= 1).all()
    own = trainer.store.sample(16, trainer.context, seed=0, counter=0)
    assert own.reward_BT.sum() < batch.reward_BT.sum()
    steps = trainer.agent.network.window(batch, 1.0, torch.device("cpu")).steps
    assert steps.goals.shape[2:] == (2, 2)
    assert steps.vector.shape[2] == 6


def test_relabelling_without_goals_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no goals"):
        Trainer(Agent, settings_of(relabelling="some"), "cpu", run_in(tmp_path))


# ---- epochs


def test_an_epoch_collects_and_updates_as_often_as_it_says(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    trainer = Trainer(Agent, settings_of(start_learning_at_epoch=1, epochs=3), "cpu", run)
    trainer.train()
    assert trainer.at.updates == 2 * 3
    assert trainer.at.env_steps == 3 * 9 * 4
    assert trainer.collector.actor_steps == 27
    table = run.table()
    scores = table[table["split"] == "learning"]
    assert sorted(scores["step"].unique()) == [0, 2 * 36, 3 * 36]  # at epochs 0 and 2, and at the end
    assert (scores.groupby("step")["value"].size() == 3).all()
    logged = table[table["metric"] == "critic_loss"]
    assert logged["step"].tolist() == [72, 108]


def test_the_best_policy_is_kept(tmp_path: Path) -> None:
    settings = settings_of(keep_every=2, evaluate_every=1)
    trainer = Trainer(Agent, settings, "cpu", run_in(tmp_path))
    returns = iter([1.0, 5.0, 2.0, 5.0, 0.0])
    kept: list[dict[str, np.ndarray]] = []
    original = trainer.evaluate

    def evaluate() -> None:
        original()
        value = next(returns)
        kept.append(trainer.agent.network.policy_arrays())
        best = kept[1] if len(kept) == 2 else kept[3] if len(kept) >= 4 else trainer.best
        trainer.at.best, trainer.best = value, best

    trainer.evaluate = evaluate  # type: ignore[method-assign]
    policy = trainer.train()
    for name, value in policy.arrays().items():
        assert np.array_equal(value, kept[3][name]), name
    found = read_arrays(tmp_path / "checkpoints" / "policies" / "epoch_000002.safetensors", kind="policy")
    assert all(np.array_equal(found[name], kept[2][name]) for name in found)


@pytest.mark.parametrize(
    ("world", "changes"),
    [
        (MAZE, {"sample_actions": False, "exploration": {"kind": "window"}}),
        (ROOM, {"context": 6, "sequence": {"width": 16, "layers": 2, "heads": 2}}),
        (ROOM, {"sequence": {"kind": "gru", "width": 16, "layers": 1}}),
        (GOALS, {"relabelling": "some", "rare_goals": True, "sequence": {"kind": "ff", "width": 16}}),
    ],
)
@pytest.mark.parametrize("module", [amago, amago_multi_task])
def test_a_stopped_run_goes_on_to_the_bit(world: Any, changes: dict[str, Any], module: Any, tmp_path: Path) -> None:
    settings = settings_of(world, module=module, steps_per_epoch=14, **changes)
    goes_on_to_the_bit(module, settings, tmp_path)


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    one, other = (
        amago.train(settings_of(seed=seed), Inputs(), run_in(tmp_path / str(seed))).arrays() for seed in (0, 1)
    )
    assert any(not np.array_equal(one[name], other[name]) for name in one)


# ---- the policy


@pytest.mark.parametrize("sample", [True, False])
def test_a_policy_file_plays_as_the_policy_that_wrote_it(sample: bool, tmp_path: Path) -> None:
    settings = settings_of(ROOM, sample_actions=sample)
    trained = amago.train(settings, Inputs(), run_in(tmp_path))
    loaded = amago.load_policy(settings, trained.arrays(), Inputs())
    returns = []
    for policy in (trained, loaded):
        world, _ = make_worlds(settings.environment, 0, 6, 1)
        returns.append(play(world, policy, seed=4).return_E)
    assert np.array_equal(*returns)
    with pytest.raises(UserError, match="does not fit"):
        amago.load_policy(settings_of(ROOM, head=[9]), trained.arrays(), Inputs())


def test_a_row_acts_as_if_it_were_alone(tmp_path: Path) -> None:
    settings = settings_of(ROOM)
    agent = Agent(settings.method.hyperparameters, world_shape(settings.environment), seed=0, device="cpu")
    seeds, draws = np.arange(4, dtype=np.uint64) + 9, np.random.default_rng(0)
    seen = draws.random((20, 4, 4)).astype(np.float32)
    reward, done = draws.random((20, 4)).astype(np.float32), draws.random((20, 4)) < 0.2
    together, alone = agent.policy(), agent.policy()
    together.start(seeds)
    alone.start(seeds[2:3])
    for t in range(20):
        all_rows = together.act(seen[t], reward[t], done[t])
        assert all_rows[2] == alone.act(seen[t, 2:3], reward[t, 2:3], done[t, 2:3])[0]


def test_episodes_in_a_row_keep_the_memory_and_a_reset_loses_it() -> None:
    settings = settings_of(ROOM, inputs={"hidden": [16], "width": 16, "input_norm": "off"})
    agent = Agent(settings.method.hyperparameters, world_shape(settings.environment), seed=0, device="cpu")
    policy, none, row = agent.policy(), np.zeros(1, bool), np.full((1, 4), 0.5, np.float32)
    zero = np.zeros(1, np.float32)

    def last(first: float, *, ended: bool, reset: bool) -> torch.Tensor:
        policy.start(np.zeros(1, np.uint64))
        policy.outputs(np.full((1, 4), first, np.float32), zero, none)
        policy.took(np.array([1]))
        if reset:
            policy.reset(np.ones(1, bool))
        return policy.outputs(row, zero, np.array([ended]))

    assert not torch.equal(last(0.1, ended=True, reset=False), last(0.9, ended=True, reset=False))
    assert torch.equal(last(0.1, ended=False, reset=True), last(0.9, ended=False, reset=True))
    assert not torch.equal(last(0.1, ended=True, reset=False), last(0.1, ended=False, reset=False))  # it is told so
