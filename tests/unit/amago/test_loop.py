"""AMAGO's loop: what actors record is what happened, a stopped run goes on to the bit, a policy file plays the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from odd_clock import ends_the_same
from playing import play
from pydantic import ValidationError
from tiny_amago import GOALS, MAZE, ROOM, Stopped, StoppingRun, collector_of, goes_on_to_the_bit, run_in, settings_of

from recollect.amago import amago, amago_multi_task
from recollect.amago import loop as amago_loop
from recollect.amago.amago import Agent
from recollect.amago.batch import Batch, padded
from recollect.amago.loop import Trainer
from recollect.amago.network import world_shape
from recollect.amago.policy import AmagoPolicy
from recollect.amago.terms import Draws, targets
from recollect.amago.trajectory_files import TrajectoryFiles
from recollect.artifacts.run import Run
from recollect.artifacts.sealed import read_arrays, write_arrays
from recollect.common.contract import Inputs
from recollect.common.learning_curve import make_worlds
from recollect.common.rollout import score_episodes
from recollect.environments import packaged
from recollect.settings.errors import UserError

# ---- collecting


def test_what_is_recorded_is_what_was_played_and_is_read_as_it_was_while_acting() -> None:
    """The states of a recorded rollout, computed whole, choose the very actions that were taken without exploration."""
    settings = settings_of(ROOM, sample_actions=False, exploration={"kind": "none"}, steps_per_epoch=50)
    collector, agent = collector_of(settings)
    trajectories = collector.collect(50)
    assert len(trajectories) == 4 * 2  # of 23 steps each
    batch = padded([dict(trajectory) for trajectory in trajectories])
    network = agent.network.eval()
    with torch.no_grad():
        raw = network.actor(network.states(network.window(batch, 1.0, torch.device("cpu"))))[:, :-1, -1]
    chosen = raw.argmax(-1).numpy()
    assert (chosen == batch.previous_action_BT[:, 1:]).mean() > 0.99  # ties of rounding aside
    assert len(np.unique(chosen)) > 1
    assert (batch.time_BT == np.arange(24)).all()
    assert batch.done_BT[:, -1].all()
    assert not batch.done_BT[:, :-1].any()


@pytest.mark.parametrize("timing", ["seed", "head"])
def test_soft_resets_are_told_alike_to_who_acts_and_who_learns(timing: str) -> None:
    """The seed code's flag is 1 at hard and soft resets; the newer code's world shows them and nothing tells of them."""
    settings = settings_of(("meta_key_door", {**ROOM[1], "timing": timing}))
    collector, agent = collector_of(settings)
    acted, begun, finished = [], [], []
    made = agent.network.steps

    def steps(*arguments: Any) -> Any:
        found = made(*arguments)
        acted.append(found.rl2[:, 0].numpy() > 0)
        return found

    agent.network.steps = steps  # type: ignore[method-assign]
    for _ in range(2 * 23):
        begun.append(collector.world.get_state()["episode_step"] == 0)  # also before the first reset
        finished += collector.collect(1)
    agent.network.steps = made  # type: ignore[method-assign]
    acted_TB, begun_TB = np.array(acted), np.array(begun)
    hard_TB = np.arange(46)[:, None] % 23 == np.zeros(4, int)
    assert (acted_TB == (begun_TB if timing == "seed" else hard_TB)).all()
    assert begun_TB.sum() > hard_TB.sum()
    learned = agent.network.window(padded([dict(t) for t in finished]), 1.0, torch.device("cpu"))
    for number in range(8):  # actors in turn
        rollout, b = divmod(number, 4)
        flags_T = learned.steps.rl2[number, :23, 0].numpy() > 0
        assert (flags_T == acted_TB[23 * rollout : 23 * rollout + 23, b]).all()


@pytest.mark.quick("bootstrap")
@pytest.mark.parametrize("truncation", ["end", "bootstrap"])
def test_targets_look_beyond_a_limit_of_steps_if_asked_and_never_beyond_an_end(truncation: str) -> None:
    settings = settings_of(
        ("goal_maze", {"size": 11, "horizon": 20, "most_goals": 1, "mazes": 4}), truncation=truncation
    )
    collector, agent = collector_of(settings)
    batch = padded([dict(t) for t in collector.collect(200)])
    last_B = batch.mask_BT.sum(1) - 1
    succeeded_B = batch.reward_BT.sum(1) > 0
    assert 0 < succeeded_B.sum() < len(succeeded_B)
    assert (last_B[~succeeded_B] == 20).all()
    done_B = batch.done_BT[np.arange(len(last_B)), last_B]
    assert (done_B == (succeeded_B | (truncation == "end"))).all()
    assert batch.done_BT.sum() == done_B.sum()
    window = agent.network.window(batch, 1.0, torch.device("cpu"))
    B, T = window.reward_BT.shape
    draws = Draws.of(agent.hp, 0, 0, B, T, "cpu")
    y_BTG = targets(agent.network, window, torch.ones(2, B, T, 2), draws, agent.hp)
    y_B = y_BTG[torch.arange(B), torch.as_tensor(last_B - 1), -1].numpy()
    np.testing.assert_allclose(y_B, np.where(succeeded_B, 1.0, 0.99 * (truncation == "bootstrap")), rtol=1e-6)


def test_windows_have_the_length_that_is_asked_for_and_end_only_where_the_rollout_does(tmp_path: Path) -> None:
    settings = settings_of(ROOM, context=6, save_length=10, stagger=False, steps_per_epoch=50)
    trainer = Trainer(Agent, settings, "cpu", run_in(tmp_path))
    trainer.store.add(trainer.collector.collect(50))
    lengths = set(trainer.store.lengths.tolist())
    assert lengths == {10, 3}  # 23 = 10 + 10 + 3
    ended = 0
    for counter in range(30):
        batch = trainer.store.sample(8, trainer.drawing.context, seed=0, counter=counter)
        for b in range(8):
            n = int(batch.mask_BT[b].sum())
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


def test_actors_explore_by_how_far_they_and_their_rollouts_are() -> None:
    """Every rollout of every actor has a factor of its own."""
    collector, _ = collector_of(settings_of(ROOM))
    asked, explored = [], collector.exploration.explored

    def asking(action_B: np.ndarray, actor_steps: int, t_B: np.ndarray, *rest: Any) -> np.ndarray:
        asked.append((actor_steps, t_B.tolist(), collector.exploration.factor().tolist()))
        return explored(action_B, actor_steps, t_B, *rest)

    collector.exploration.explored = asking
    for steps in (20, 30):
        collector.collect(steps)
    assert [(k, t) for k, t, _ in asked] == [(step, [step % 23] * 4) for step in range(50)]
    assert all(factors == asked[k - k % 23][2] for k, _, factors in asked)
    assert len({factor for k in (0, 23, 46) for factor in asked[k][2]}) == 12


@pytest.mark.parametrize("sample", [True, False])
def test_actors_draw_every_action_anew_or_take_the_likeliest(sample: bool) -> None:
    collector, _ = collector_of(settings_of(sample_actions=sample))
    drawn, chosen = list[Any](), collector.policy.chosen

    def choosing(raw_BP: torch.Tensor, uniform_BU: np.ndarray | None) -> np.ndarray:
        drawn.append(uniform_BU)
        return chosen(raw_BP, uniform_BU)

    collector.policy.chosen = choosing  # type: ignore[method-assign]
    collector.collect(20)
    assert (len(np.unique(np.stack(drawn))) == 20 * 4) if sample else (drawn == [None] * 20)


@pytest.mark.parametrize("sample", [True, False])
def test_a_policy_draws_its_actions_or_takes_the_likeliest(sample: bool) -> None:
    settings = settings_of(ROOM, sample_actions=sample)
    agent = Agent(settings.method.hyperparameters, world_shape(settings.environment), seed=0, device="cpu")
    policy = agent.policy()
    policy.start(np.arange(100, dtype=np.uint64))
    action_B = policy.act(np.zeros((100, 4), np.float32), np.zeros(100, np.float32), np.zeros(100, bool))
    assert (len(set(action_B.tolist())) > 1) == sample


def test_returns_are_of_one_rollout_each() -> None:
    collector, _ = collector_of(settings_of(ROOM))
    trajectories = collector.collect(3 * 23)
    returns = [row[0] for row in collector.ended]
    assert returns == [float(trajectory["reward"].sum()) for trajectory in trajectories]
    assert len(returns) == 3 * 4 and max(returns) > 0


def test_further_metrics_of_a_rollout_are_those_of_the_actor_whose_rollout_ended() -> None:
    collector, _ = collector_of(settings_of(("gymnasium", {"id": "CartPole-v1", "horizon": 30})))
    collector.world_metrics, step, paid_B = ("paid",), collector.world.step, np.zeros(4)

    def stepping(action_B: np.ndarray) -> Any:
        found = step(action_B)
        paid_B[:] += found[1]
        collector.world.latest_BM = paid_B[:, None].copy()
        paid_B[found[2] | found[3]] = 0.0
        return found

    collector.world.step = stepping
    collector.collect(80)
    assert len({row[0] for row in collector.ended}) > 4  # actors end at different steps
    assert all(row[2] == row[0] for row in collector.ended)


def test_a_world_that_gives_no_number_is_named_before_it_is_learned_from() -> None:
    collector, _ = collector_of(settings_of())
    step = collector.world.step

    def stepping(action_B: np.ndarray) -> Any:
        seen, reward_B, *rest = step(action_B)
        return seen, reward_B * np.nan, *rest

    collector.world.step = stepping
    with pytest.raises(UserError, match="the reward nan at step 1"):
        collector.collect(1)


def test_a_result_that_some_rollouts_lack_has_no_mean() -> None:
    collector, _ = collector_of(settings_of(ROOM))
    assert collector.means([[1.0, np.nan], [3.0, 1.0]]) == {"training_return": 2.0}
    assert collector.means([[1.0, 0.0], [3.0, 1.0]]) == {"training_return": 2.0, "training_success": 0.5}


def test_collected_goals_can_be_relabelled(tmp_path: Path) -> None:
    settings = settings_of(GOALS, relabelling="all", steps_per_epoch=45)
    trainer = Trainer(Agent, settings, "cpu", run_in(tmp_path))
    trainer.store.add(trainer.collector.collect(45))
    batch = trainer.store.sample(16, trainer.drawing.context, seed=0, counter=0, relabel=trainer.relabel)
    assert (batch.reward_BT.sum(1) >= 1).all()
    own = trainer.store.sample(16, trainer.drawing.context, seed=0, counter=0)
    assert own.reward_BT.sum() < batch.reward_BT.sum()
    empty = TrajectoryFiles(tmp_path / "empty", 9)
    empty.beside = trainer.store, 1.0  # trajectories of others with goals are relabelled, too
    others = empty.sample(16, trainer.drawing.context, seed=0, counter=0, relabel=trainer.relabel)
    assert (others.reward_BT.sum(1) >= 1).all()
    steps = trainer.agent.network.window(batch, 1.0, torch.device("cpu")).steps
    assert steps.goals.shape[2:] == (2, 2)
    assert steps.vector.shape[2] == 6
    rare = Trainer(Agent, settings_of(GOALS, relabelling="all", rare_goals=True), "cpu", run_in(tmp_path / "rare"))
    assert trainer.relabel is not None and rare.relabel is not None
    assert trainer.relabel.rarity is None and rare.relabel.rarity is not None


def test_relabelling_without_goals_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no goals"):
        Trainer(Agent, settings_of(relabelling="some"), "cpu", run_in(tmp_path))


@pytest.mark.parametrize("cut", [{"context": 4, "save_length": 10}, {"context": 4, "save_length": 20}, {"context": 5}])
def test_relabelling_of_trajectories_that_may_be_cut_is_refused_at_once(cut: dict[str, int], tmp_path: Path) -> None:
    """The horizon is 20; the second is cut early by staggering, the third is 4 contexts long by default."""
    with pytest.raises(UserError, match="save_length to 20 and stagger to false"):
        Trainer(Agent, settings_of(GOALS, relabelling="some", **cut), "cpu", run_in(tmp_path))
    whole = settings_of(GOALS, relabelling="some", stagger=False, context=4, save_length=20)
    assert Trainer(Agent, whole, "cpu", run_in(tmp_path)).relabel is not None


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
    for metric in ("critic_loss", "gradient_norm", "entropy", "target_most"):
        assert table[table["metric"] == metric]["step"].tolist() == [72, 108]
    rate = table[table["metric"] == "learning_rate"]["value"].tolist()
    assert rate == [0.003, 0.003]  # that of the last update: warmed up
    sizes = {name: table[table["metric"] == f"buffer_{name}"]["value"].iloc[-1] for name in ("trajectories", "files")}
    assert sizes == {"trajectories": len(trainer.store), "files": 3}
    files = (tmp_path / "checkpoints" / "buffer" / "fifo").glob("*.safetensors")
    assert table[table["metric"] == "buffer_bytes"]["value"].iloc[-1] == sum(path.stat().st_size for path in files)


def test_the_policy_of_the_best_evaluation_is_kept_the_later_one_of_equals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(Agent, settings_of(evaluate_every=1), "cpu", run_in(tmp_path))
    returns, seen = iter([1.0, 5.0, 2.0, 5.0, 0.0]), []  # before each of four epochs, and at the end

    def played(*arguments: Any) -> Any:
        seen.append(trainer.agent.network.policy_arrays())
        episodes = score_episodes(*arguments)
        paid = np.zeros_like(episodes.reward_BT)
        paid[:, 0] = next(returns)
        return replace(episodes, reward_BT=paid)

    monkeypatch.setattr(amago_loop, "score_episodes", played)
    policy = trainer.train()
    assert len(seen) == 5
    assert same(policy.arrays(), seen[3])
    assert not same(seen[1], seen[3])
    folder = tmp_path / "checkpoints" / "policies"
    assert same(read_arrays(folder / "best.safetensors", kind="policy"), seen[3])
    assert same(read_arrays(folder / "latest.safetensors", kind="policy"), seen[4])


@pytest.mark.parametrize("split", ["train", "eval"])
def test_evaluations_while_learning_play_the_tasks_of_the_split_that_is_asked_for(split: str, tmp_path: Path) -> None:
    trainer = Trainer(Agent, settings_of(evaluation_split=split), "cpu", run_in(tmp_path))
    assert {task.split for task in trainer.evaluation_world.tasks} == {split}
    assert {task.split for task in trainer.collector.world.tasks} == {"train"}


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_policies_are_kept_every_so_many_epochs_whatever_the_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "policies"
    folder.mkdir(parents=True)
    write_arrays(folder / "epoch_000009.safetensors", {"of an earlier run": np.zeros(1)}, kind="policy")
    settings = settings_of(keep_every=2, checkpoint_every=3, keep="last", evaluate_every=100)
    trainer = Trainer(Agent, settings, "cpu", run_in(tmp_path))
    after: dict[int, Any] = {}
    own = trainer.epoch

    def epoch() -> None:
        own()
        after[trainer.at.epoch] = trainer.agent.network.policy_arrays()

    trainer.epoch = epoch  # type: ignore[method-assign]
    asked, due = set[int](), trainer.run.due

    def asking(step: int, every: int) -> bool:
        asked.add(every)
        return due(step, every)

    trainer.run.due = asking  # type: ignore[method-assign]
    policy = trainer.train()
    assert asked == {0, 3 * 3}  # within epochs by time alone; of three epochs of three updates
    found = {path.stem: read_arrays(path, kind="policy") for path in folder.glob("*.safetensors")}
    assert found.keys() == {"best", "latest", "epoch_000002", "epoch_000004"}  # the final epoch too
    assert same(found["epoch_000002"], after[2])
    assert same(found["epoch_000004"], after[4])
    assert same(found["latest"], after[4])
    assert same(policy.arrays(), after[4])


@pytest.mark.quick("recollect.amago.amago_multi_task-world3-changes3")
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


def test_a_run_that_goes_on_plays_no_evaluation_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its next one is what it would have been."""
    settings = settings_of(("gymnasium", {"id": "CartPole-v1", "horizon": 30}))
    trainer = Trainer(Agent, settings, "cpu", run_in(tmp_path))
    trainer.evaluate()
    trainer.save()
    trainer.evaluate()
    again = Trainer(Agent, settings, "cpu", run_in(tmp_path))
    steps, step = [], packaged.Plain.step
    monkeypatch.setattr(packaged.Plain, "step", lambda *given: steps.append(given) or step(*given))
    again.resume()
    assert not steps
    again.evaluate()
    assert steps and same(again.evaluation_world.get_state(), trainer.evaluation_world.get_state())


def test_a_run_that_begins_learns_from_nothing_that_an_earlier_one_left(tmp_path: Path) -> None:
    earlier = Trainer(Agent, settings_of(), "cpu", run_in(tmp_path))
    earlier.collect()
    begun = Trainer(Agent, settings_of(), "cpu", run_in(tmp_path))
    assert len(begun.store) == len(earlier.store) > 0
    begun.resume()
    assert len(begun.store) == 0


def test_a_run_goes_on_with_a_buffer_that_was_put_back_since_it_was_made(tmp_path: Path) -> None:
    """As one of a generation of checkpoints that is taken back."""
    again, before = (Trainer(Agent, settings_of(), "cpu", run_in(tmp_path)) for _ in range(2))
    before.store.add(before.collector.collect(9))
    before.save()
    again.resume()
    assert len(again.store) == len(before.store) > 0


def test_each_rollout_of_each_evaluation_draws_numbers_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(Agent, settings_of(), "cpu", run_in(tmp_path))
    seeds, start = list[int](), AmagoPolicy.start

    def starting(policy: AmagoPolicy, seeds_B: np.ndarray) -> None:
        seeds.extend(seeds_B.tolist())
        start(policy, seeds_B)

    monkeypatch.setattr(AmagoPolicy, "start", starting)
    trainer.evaluate()
    trainer.evaluate()
    assert len(set(seeds)) == len(seeds) == 2 * 3


def test_a_run_that_never_learns_is_refused_or_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValidationError, match="of 4 epochs none is left to learn in"):
        settings_of(start_learning_at_epoch=4)
    amago.train(settings_of(start_collecting_at_epoch=4), Inputs(), run_in(tmp_path / "none"))
    assert "nothing was learned in 4 epochs" in caplog.text
    caplog.clear()
    amago.train(settings_of(start_learning_at_epoch=3), Inputs(), run_in(tmp_path / "last"))
    assert "nothing was learned" not in caplog.text


def test_a_run_goes_on_without_a_damaged_file_of_its_buffer_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_of(evaluate_every=100)
    StoppingRun.saves = 0
    with pytest.raises(Stopped):
        amago.train(settings, Inputs(), run_in(tmp_path, StoppingRun))
    path = min((tmp_path / "checkpoints/buffer/fifo").glob("*.safetensors"))
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    run = run_in(tmp_path)
    amago.train(settings, Inputs(), run)
    assert str(path) in caplog.text and "going on without it" in caplog.text
    table = run.table()
    lost = table[table["metric"] == "buffer_trajectories_lost"]
    assert lost["value"].tolist() == [int(path.stem.partition("-")[2])] and lost["step"].tolist() == [2 * 9 * 4]
    assert table[table["metric"] == "updates"]["value"].max() == 4 * 3  # to the end


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    one, other = (
        amago.train(settings_of(seed=seed), Inputs(), run_in(tmp_path / str(seed))).arrays() for seed in (0, 1)
    )
    assert any(not np.array_equal(one[name], other[name]) for name in one)


# ---- the policy


@pytest.mark.quick("True")
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


@pytest.mark.parametrize("kind", ["transformer", "gru", "ff"])
def test_slow_inference_reads_the_last_steps_as_a_window_of_training_does(kind: str) -> None:
    """While a rollout fits the context this is what the cache gives; rows stand at different steps."""
    sequence = {"kind": kind, "width": 16, "layers": 2, "heads": 2}
    agent = Agent(settings_of(ROOM, context=6, sequence=sequence).method.hyperparameters,
                  world_shape(settings_of(ROOM).environment), seed=0, device="cpu")  # fmt: skip
    cached, slow = agent.policy(), agent.policy()
    slow.hp = agent.hp.model_copy(update={"slow_inference": True})
    draws, B, T = np.random.default_rng(0), 3, 20
    seen = draws.uniform(0.1, 1.0, (T, B, 4)).astype(np.float32)
    reward, action = draws.random((T, B)).astype(np.float32), draws.integers(5, size=(T, B))
    begins_TB = np.zeros((T, B), bool)
    begins_TB[[0, 0, 0, 4, 13], [0, 1, 2, 1, 2]] = True
    never_B, outputs = np.zeros(B, bool), []
    for policy in (cached, slow):
        policy.start(np.zeros(B, np.uint64))
        found = []
        for t in range(T):
            if t == 8:  # a checkpoint in between
                state, old = policy.state_arrays(), policy
                policy = agent.policy()
                policy.hp = old.hp
                policy.load_state(state)
            if t:
                policy.reset(begins_TB[t])
            found.append(policy.outputs(seen[t], reward[t], never_B).numpy())
            policy.took(action[t])
        outputs.append(np.stack(found))
    network, slid = agent.network.eval(), 0
    for b in range(B):
        for t in range(T):
            began = int(np.flatnonzero(begins_TB[: t + 1, b])[-1])
            first = max(began, t - 5)
            place = np.arange(first, t + 1)
            batch = Batch(
                seen[place, b][None],
                np.where(place > began, action[place - 1, b], -1)[None],
                np.where(place > began, reward[place, b], 0.0).astype(np.float32)[None],
                np.zeros((1, len(place)), bool),
                (place - began)[None],
                np.ones((1, len(place)), bool),
            )
            with torch.no_grad():
                whole = network.actor(network.states(network.window(batch, 1.0, torch.device("cpu"))))[0, -1, -1]
            np.testing.assert_allclose(outputs[1][t, b], whole.numpy(), atol=2e-6)
            if t - began < 6:
                np.testing.assert_allclose(outputs[0][t, b], outputs[1][t, b], atol=2e-6)
            else:
                slid += not np.allclose(outputs[0][t, b], outputs[1][t, b], atol=1e-5)
    assert (slid > 0) == (kind != "ff")


def test_acting_remembers_no_more_steps_than_the_context() -> None:
    """With one layer, as keys of deeper ones hold what they read of forgotten steps."""
    settings = settings_of(ROOM, context=6, sequence={"width": 16, "layers": 1, "heads": 2})
    agent = Agent(settings.method.hyperparameters, world_shape(settings.environment), seed=0, device="cpu")
    policy, outs = agent.policy(), []
    for first in (0.1, 0.9):
        policy.start(np.zeros(1, np.uint64))
        found = []
        for t in range(7):
            seen = np.full((1, 4), first if t == 0 else 0.5, np.float32)
            found.append(policy.outputs(seen, np.zeros(1, np.float32), np.zeros(1, bool)))
            policy.took(np.array([1]))
        outs.append(found)
    assert not torch.equal(outs[0][5], outs[1][5]) and torch.equal(outs[0][6], outs[1][6])


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


@pytest.mark.slow
def test_checkpoints_at_odd_moments_change_nothing(tmp_path: Path) -> None:
    settings = settings_of(GOALS, relabelling="some", rare_goals=True, steps_per_epoch=14, epochs=8, buffer=12)

    def train(run: Any) -> Any:
        return amago.train(settings, Inputs(), run).arrays()

    assert ends_the_same(train, tmp_path, (2, 6, 4, 5)) == 4


def test_a_run_that_diverges_stops_and_says_so(tmp_path: Path) -> None:
    settings = settings_of(learning_rate=1e30, warmup=0, steps_per_epoch=14)
    with pytest.raises(UserError, match="diverged"):
        amago.train(settings, Inputs(), run_in(tmp_path))


@pytest.mark.slow
def test_a_buffer_is_set_aside_with_its_checkpoints_and_taken_back(tmp_path: Path) -> None:
    settings = settings_of(steps_per_epoch=14)
    expected = amago.train(settings, Inputs(), run_in(tmp_path / "whole")).arrays()

    class Stopped(Run):
        def save(self, step: int, *of: Any) -> None:
            super().save(step, *of)
            if step == 6:  # two epochs of three updates
                raise KeyboardInterrupt

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        amago.train(settings, Inputs(), run_in(folder, Stopped))
    with pytest.raises(KeyboardInterrupt):
        other = Stopped(folder, folder / "checkpoints", settings_text="other code")
        amago.train(settings_of(steps_per_epoch=14, seed=1), Inputs(), other)
    told = Run(folder, folder / "checkpoints", settings_text="other code", trust=True)
    assert same(amago.train(settings, Inputs(), told).arrays(), expected)
    assert [record["step"] for record in told.trusted] == [6]


def test_each_update_learns_from_windows_of_its_own(tmp_path) -> None:
    settings = settings_of(ROOM, context=3, save_length=10)
    trainer = Trainer(Agent, settings, "cpu", run_in(tmp_path))
    trainer.store.add(trainer.collector.collect(46))

    def drawn(first: int, count: int) -> list[bytes]:
        return [batch.observation_BTD.tobytes() for batch, _ in trainer.drawing.batches(first, count)]

    assert len(set(drawn(0, 4))) == 4 and drawn(2, 1) == drawn(0, 4)[2:3]


def test_actors_remember_the_actions_that_were_played_and_not_those_that_the_policy_chose() -> None:
    settings = settings_of(ROOM, exploration={"kind": "plain", "start": (1.0, 1.0), "randomize": False})
    collector, agent = collector_of(settings)
    remembered, made = [], agent.network.steps

    def steps(*arguments):
        remembered.append(arguments[1].numpy().copy())
        return made(*arguments)

    agent.network.steps = steps
    recorded = np.stack([t["previous_action"] for t in collector.collect(23)], 1)
    assert (np.stack(remembered) == recorded[:23]).all() and len(np.unique(recorded)) == 6


def test_the_reward_that_ended_an_episode_is_read_at_the_next_ones_first_step() -> None:
    settings = settings_of(ROOM, inputs={"hidden": [16], "width": 16, "input_norm": "off"})
    policy = Agent(settings.method.hyperparameters, world_shape(settings.environment), seed=0, device="cpu").policy()
    row, zero = np.full((1, 4), 0.5, np.float32), np.zeros(1, np.float32)

    def second(reward: float) -> torch.Tensor:
        policy.start(np.zeros(1, np.uint64))
        policy.outputs(row, zero, np.zeros(1, bool))
        policy.took(np.array([1]))
        return policy.outputs(row, np.full(1, reward, np.float32), np.ones(1, bool))

    assert not torch.equal(second(0.0), second(1.0))
