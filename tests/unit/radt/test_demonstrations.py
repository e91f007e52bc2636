"""What RA-DT reads besides its own episodes: demonstrations, a memory shared by all tasks; and targets from memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_worlds
import numpy as np
import pytest
import torch
from test_radt import ENDS, FIELDS, Recorded, entries, play

from recollect.artifacts.sealed import write_arrays
from recollect.common.contract import Facts, Inputs, facts_of
from recollect.common.histories import Histories
from recollect.environments import registry
from recollect.environments.base import Task
from recollect.evaluation.in_context import play_in_context
from recollect.radt import demonstrations as module
from recollect.radt import radt
from recollect.radt.demonstrations import Demonstrations
from recollect.radt.episodic_memory import EpisodicMemory, EpisodicSettings
from recollect.settings.errors import UserError
from recollect.settings.schema import EnvironmentSettings, SourceSettings

TASKS = [Task(index, f"goal_{index}", "eval") for index in range(3)]


def taught(
    tiny: Any,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    episodes: int = 2,
    split: str = "eval",
    horizon: int | None = None,
    **acting: Any,
) -> tuple[Any, Any]:
    """A policy with the last episodes of tasks 0 and 2 as demonstrations, and their histories."""
    of_all = tiny().histories(tasks=3, episodes=4, lengths=(12, 7))
    histories = Histories({name: column[of_all.task != 1] for name, column in of_all.arrays().items()})
    write_arrays(folder / "shown.safetensors", histories.arrays(), kind="histories")
    monkeypatch.setattr(module, "environment_mapping", lambda scale, name: {"source": {"split": split}})
    chosen = EpisodicSettings(demonstrations="room_shown", demonstration_episodes=episodes, **acting)
    of = tiny().settings("radt", acting=chosen)
    shown = Demonstrations.load(of, Inputs(demonstrations=folder / "shown.safetensors"), tiny(horizon=horizon).facts)
    plain = tiny().policy(of)
    return radt.RetrievalPolicy(plain.network, plain.embedder, of, shown), histories


def started(policy: Any, *, episodes: int = 4) -> Any:
    """The policy at the start of an evaluation of `TASKS`, told of them."""
    policy.start(np.arange(3, dtype=np.uint64), 12, episodes)
    policy.brief(TASKS)
    return policy


def recorded_episodes(histories: Any, task: int, last: int) -> list[list[tuple[np.ndarray, float, int, float]]]:
    """The last episodes of a task's history as plain lists, as `test_radt.entries` takes them."""
    table = histories.episodes
    chosen = np.flatnonzero(table.task == task)[-last:]
    found = []
    for place in chosen:
        rows = range(table.start[place], table.start[place] + table.length[place])
        found.append(
            [(histories.observation[r], 0.0, int(histories.action[r]), float(histories.reward[r])) for r in rows]
        )
    return found


def test_the_memory_holds_each_tasks_own_demonstrations_before_anything_is_played(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, histories = taught(tiny, tmp_path, monkeypatch)
    started(policy)
    for b, task in ((0, 0), (2, 2)):
        wanted = entries(recorded_episodes(histories, task, 2), policy.embedder)
        assert int(policy.own.memory.count_E[b]) == len(wanted) > 0
        for place, (key, total, last, value) in enumerate(wanted):
            torch.testing.assert_close(policy.own.memory.keys_ECD[b, place].float(), key, atol=1e-5, rtol=0)
            assert float(policy.own.memory.total_return_EC[b, place]) == total
            assert int(policy.own.memory.last_EC[b, place]) == last
            owner, slot, first, end = (
                int(getattr(policy.own.memory, f"{name}_EC")[b, place]) for name in ("owner", "slot", "first", "end")
            )
            logged = policy.own.log.fields
            assert logged["observation"][owner, slot, first:end].tolist() == (
                value.observation[0][value.mask[0]].tolist()
            )
            assert logged["return_to_go"][owner, slot, first:end].tolist() == (
                value.return_to_go[0][value.mask[0]].tolist()
            )
    assert int(policy.own.memory.count_E[1]) == 0  # nobody showed this task


def test_demonstrations_are_read_in_the_first_step_of_the_first_episode(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = started(taught(tiny, tmp_path, monkeypatch)[0])
    policy.act(np.zeros((3, 2), int), np.zeros(3, np.float32), np.zeros(3, bool))
    assert policy.has_context_B.tolist() == [True, False, True]
    window, context = policy.window(6), policy.context
    with torch.no_grad():
        read, alone = policy.network.act(window, context, policy.has_context_B), policy.network.act(window)
    differs = (read - alone).abs().amax(1) > 1e-4
    assert differs.tolist() == [True, False, True]
    facts = policy.traced(np.arange(3))  # not the row's own episode
    assert (facts["retrieved_episode"] == -1).all()
    assert np.isfinite(facts["retrieved_similarity"][:, 0]).tolist() == [True, False, True]


@pytest.mark.parametrize("shared", [False, True])
def test_a_memory_has_room_for_all_episodes_beside_the_demonstrations(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    policy, _ = taught(tiny, tmp_path, monkeypatch, shared=shared)
    start = policy.start
    policy.start = lambda *given: (start(*given), policy.brief(TASKS))
    play(policy, 40, [{11, 23, 35}] * 3)  # nine windows a row
    assert policy.own.memory.count_E.tolist() == ([10 + 27] if shared else [5 + 9, 9, 5 + 9])


def test_there_may_be_more_demonstrations_than_episodes_that_are_played(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = taught(tiny, tmp_path, monkeypatch, episodes=4)[0]
    wanted, found = (started(policy, episodes=episodes).own.memory for episodes in (4, 1))
    assert found.count_E.tolist() == wanted.count_E.tolist() == [10, 0, 10]
    assert torch.equal(found.keys_ECD[:, :10], wanted.keys_ECD[:, :10])
    assert found.slot_EC[0, :10].tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]


def test_own_episodes_stand_beside_demonstrations_and_a_new_task_starts_with_these_again(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, _ = taught(tiny, tmp_path, monkeypatch)
    start = policy.start
    policy.start = lambda *given: (start(*given), policy.brief(TASKS))
    before = None

    def check(step: int, recorded: list[Recorded]) -> None:
        nonlocal before
        before = policy.own.memory.count_E.tolist() if before is None else before

    play(policy, 24, ENDS, check=check)
    assert before == [5, 0, 5]  # 12 and 7 steps, cut every 4
    assert policy.own.memory.count_E.tolist() == [5 + 7, 7, 5 + 6]
    assert policy.own.memory.owner_EC[0, 5:12].tolist() == [0] * 7
    assert policy.own.memory.slot_EC[0, 5:12].tolist() == [0, 0, 1, 1, 1, 2, 2]
    policy.reset(np.array([True, True, False]))
    assert policy.own.memory.count_E.tolist() == [5, 0, 11] and policy.own.log.count_E[:2].tolist() == [0, 0]


def test_demonstrations_of_another_split_are_not_shown(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = started(taught(tiny, tmp_path, monkeypatch, split="train")[0])
    assert policy.own.memory.count_E.tolist() == [0, 0, 0]


def test_a_shared_memory_holds_the_demonstrations_of_all_tasks_for_everyone(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = started(taught(tiny, tmp_path, monkeypatch, shared=True, split="train")[0])
    assert policy.own.memory.count_E.tolist() == [10]
    policy.act(np.zeros((3, 2), int), np.zeros(3, np.float32), np.zeros(3, bool))
    assert policy.has_context_B.all()


def test_histories_of_another_environment_are_refused_as_demonstrations(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "environment_mapping", lambda scale, name: {})
    of = tiny().settings("radt", acting=EpisodicSettings(demonstrations="elsewhere"))
    write_arrays(tmp_path / "shown.safetensors", tiny().histories().arrays(), kind="histories")
    with pytest.raises(UserError, match="another environment"):
        Demonstrations.load(of, Inputs(demonstrations=tmp_path / "shown.safetensors"), tiny(horizon=8).facts)
    with pytest.raises(UserError, match="demonstrations"):
        Demonstrations.load(of, Inputs(), tiny().facts)
    assert Demonstrations.load(tiny().settings("radt"), Inputs(), tiny().facts) is None


def test_demonstrations_of_a_source_that_names_no_split_are_of_the_train_tasks(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "environment_mapping", lambda scale, name: {"source": {"algorithm": "ppo"}})
    write_arrays(tmp_path / "shown.safetensors", tiny().histories().arrays(), kind="histories")
    of = tiny().settings("radt", acting=EpisodicSettings(demonstrations="room_shown"))
    shown = Demonstrations.load(of, Inputs(demonstrations=tmp_path / "shown.safetensors"), tiny().facts)
    assert shown is not None and {split for split, _ in shown.names} == {"train"}


def test_demonstrations_are_as_long_as_the_longest_and_end_before_the_episodes_that_are_played(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes of train tasks may be longer than those that are evaluated, as in Procgen."""
    wanted = started(taught(tiny, tmp_path, monkeypatch)[0]).own.memory
    policy, _ = taught(tiny, tmp_path, monkeypatch, horizon=20)
    assert policy.demonstrations.steps.mask.shape[1] == 12
    found = started(policy).own.memory
    assert torch.equal(found.keys_ECD, wanted.keys_ECD) and found.count_E.tolist() == [5, 0, 5]
    with pytest.raises(UserError, match=r"a demonstration has 12 steps, and the episodes .* end after 11") as error:
        policy.start(np.arange(3, dtype=np.uint64), 11, 4)
    assert "acting.demonstrations: room_shown" in str(error.value)


def test_demonstrations_have_the_actions_of_the_tasks_of_their_split(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DMControl's tasks differ in how many of the six numbers of an action are their own."""
    options = {"goal": "hidden", "initial_states": "random"}
    environment = EnvironmentSettings(name="control", world="dm_control", options=options)
    facts = Facts(observation_size=2, observation_values=(), actions=0, horizon=12, action_size=6)
    tasks = {split: registry.tasks("dm_control", options, split) for split in ("train", "eval")}
    chosen = EpisodicSettings(demonstrations="control_shown")
    of = tiny().settings("radt", acting=chosen).model_copy(update={"environment": environment})
    for split, own in (("train", (2, 5, 4, 2, 6)), ("eval", (1, 2, 1, 2, 6))):
        assert tuple(task.data["actions"] for task in tasks[split])[:5] == own
        task = np.arange(5)
        arrays = {
            "observation": np.zeros((5, 2), np.float32),
            "action": np.zeros((5, 6), np.float32),
            "reward": np.zeros(5, np.float32),
            "done": np.ones(5, bool),
            "task": task.astype(np.int32),
            "episode": np.zeros(5, np.int32),
        }
        write_arrays(tmp_path / "shown.safetensors", arrays, kind="histories")
        monkeypatch.setattr(
            module, "environment_mapping", lambda scale, name, split=split: {"source": {"split": split}}
        )
        shown = Demonstrations.load(of, Inputs(demonstrations=tmp_path / "shown.safetensors"), facts)
        assert shown is not None
        assert tuple((~shown.steps.action[:, 0].isnan()).sum(1).tolist()) == own


def test_histories_have_the_actions_of_the_tasks_that_their_source_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_worlds.install(monkeypatch)
    sizes = {"train": 2, "eval": 1}
    monkeypatch.setattr(
        registry, "tasks", lambda world, options, split: [Task(0, "only", split, {"actions": sizes[split]})]
    )
    for split, size in sizes.items():
        source = SourceSettings(split=split)
        assert facts_of(EnvironmentSettings(name="aim", world="aim", source=source)).own_actions == (size,)


# ----------------------------------------------------------------------------------------------- one memory for all


def test_a_shared_memory_lets_a_task_read_the_episodes_of_another(tiny: Any) -> None:
    """Row 1 is in its first episode when row 0 has ended one: it reads row 0's, word for word."""
    policy = tiny().policy(tiny().settings("radt", acting=EpisodicSettings(shared=True)))
    alone = tiny().policy(tiny().settings("radt"))
    ends = [{5}, {11}]
    seen = []

    def check(step: int, recorded: list[Recorded]) -> None:
        if step != 8:
            return
        other = recorded[0].ended()[0]
        slot_steps = policy.context.timestep[1][policy.context.mask[1]].tolist()
        read = policy.context.observation[1][policy.context.mask[1]].tolist()
        assert read == [other[t][0].tolist() for t in slot_steps] and slot_steps
        assert policy.has_context_B.all()
        assert policy.traced(np.arange(2))["retrieved_episode"].tolist() == [[0], [-1]]
        seen.append(step)

    play(policy, 11, ends, check=check)
    play(alone, 11, ends)
    assert seen and alone.has_context_B.tolist() == [True, False]


def test_a_shared_memory_forgets_nothing(tiny: Any) -> None:
    policy = tiny().policy(tiny().settings("radt", acting=EpisodicSettings(shared=True)))
    play(policy, 14, [{1, 3, 5, 7}, {8}])
    assert policy.own.log.count_E.tolist() == [4, 1]
    assert int(policy.own.memory.count_E[0]) == 4 * 1 + 3  # of two steps each, and of nine
    policy.reset(np.array([True, False]))
    assert int(policy.own.memory.count_E[0]) == 7


def test_a_shared_memory_serves_a_whole_evaluation_and_holds_all_but_the_last_episodes(tiny: Any) -> None:
    room = tiny(episodes=3)
    policy = room.policy(room.settings("radt", acting=EpisodicSettings(shared=True)))
    returns = play_in_context(policy, room.environment, _tasks(room)[:3], seed=0).return_RE
    assert returns.shape == (3, 3) and policy.own.log.count_E.tolist() == [2, 2, 2]


def _tasks(room: Any) -> list[Task]:
    from recollect.environments import registry

    return registry.tasks(room.environment.world, room.environment.options, "train")


# ------------------------------------------------------------------------------------------------ targets and draws


def test_the_target_is_a_multiple_of_the_highest_return_in_memory(tiny: Any) -> None:
    policy = tiny().policy(tiny().settings("radt", acting=EpisodicSettings(target_factor=1.2), reward_scale=2.0))
    drawn = tiny().policy(tiny().settings("radt", reward_scale=2.0))
    compared = 0

    def check(step: int, recorded: list[Recorded]) -> None:
        nonlocal compared
        for b, row in enumerate(recorded):
            if policy.step_B[b] != 0:
                continue
            best = max((sum(s[3] for s in episode) for episode in row.ended()), default=0.0)
            if best > 0:
                assert policy.target_B[b] == round(1.2 * best)
                compared += 1
            else:
                drawn.episode_B[:] = policy.episode_B
                assert policy.target_B[b] == drawn.target_returns(np.arange(3) == b)[0]

    drawn.start(np.arange(3, dtype=np.uint64), 12, 4)
    play(policy, 24, ENDS, check=check)
    assert compared >= 4


@pytest.mark.quick("{'kind': 'return', 'select': 2}")
@pytest.mark.parametrize("chosen", [{"kind": "random"}, {"kind": "return", "select": 2}, {"choose": "sample"}], ids=str)
def test_what_a_row_draws_to_read_depends_on_its_own_seed_only(tiny: Any, chosen: dict[str, Any]) -> None:
    of = tiny().settings("radt", acting=EpisodicSettings(**chosen))
    draws = np.random.default_rng(0)
    seen, paid = draws.integers((3, 4), size=(24, 3, 2)), draws.integers(2, size=(24, 3)).astype(np.float32)
    ended = np.array([[step in ends for ends in ENDS] for step in range(24)])

    def contexts(rows: int) -> list[list[Any]]:
        """What row 0 reads in each step, with so many rows in the batch."""
        policy, found = tiny().policy(of), []
        policy.start(np.arange(rows, dtype=np.uint64), 12, 4)
        reward, done = np.zeros(rows, np.float32), np.zeros(rows, bool)
        for step in range(24):
            policy.act(seen[step, :rows], reward, done)
            found.append([getattr(policy.context, field)[0].tolist() for field in FIELDS])
            reward, done = paid[step, :rows], ended[step, :rows]
        assert policy.traced(np.arange(rows))["retrieved_episode"][0].max() >= 0
        return found

    alone, among = contexts(1), contexts(3)
    assert alone == among
    assert len({str(context) for context in alone[6:]}) > 3


def test_every_step_and_place_draws_by_a_number_of_its_own(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny().policy(tiny().settings("radt", acting=EpisodicSettings(kind="random", select=2)))
    search = EpisodicMemory.search
    chances: list[float] = []

    def noted(memory: Any, query_BD: Any, task_B: Any, chance_BK: Any) -> Any:
        chances.extend(chance_BK.flatten().tolist())
        return search(memory, query_BD, task_B, chance_BK)

    monkeypatch.setattr(EpisodicMemory, "search", noted)
    play(policy, 12, ENDS)
    assert len(chances) == len(set(chances)) == 6 * 3 * 2  # the first episode ends after six steps
