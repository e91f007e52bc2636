"""DPT: what is trained on and what is acted on are the same tokens, and a query sees its context and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect.artifacts.run import Run
from recollect.artifacts.sealed import write_arrays
from recollect.common.contract import Inputs
from recollect.common.histories import Histories
from recollect.radt import dpt, dt
from recollect.radt.experience import Experience
from recollect.radt.supervised import ExperienceStore
from recollect.radt.windows import QuerySampler
from recollect.settings.resolve import resolve

FIELDS = tuple(Experience.__dataclass_fields__)
Step = tuple[tuple[int, int], int, float]
"""(observation, action, reward)"""


def plain_window(context: list[Step], query: tuple[int, tuple[int, int]], *, first: int, merged: bool) -> Experience:
    """Context from timestep `first`, separator and query (timestep, observation), written down step by step; no padding."""
    steps = [(first + t, *step) for t, step in enumerate(context)]
    if context:
        steps.append((steps[-1][0] if merged else 0, (0, 0), 5, 0.0))
    steps.append((query[0], query[1], 5, 0.0))
    return Experience(
        observation=torch.tensor([[s[1] for s in steps]]),
        return_to_go=torch.zeros(1, len(steps)),
        action=torch.tensor([[s[2] for s in steps]]),
        reward=torch.tensor([[s[3] for s in steps]]),
        timestep=torch.tensor([[s[0] for s in steps]]),
        mask=torch.ones(1, len(steps), dtype=torch.bool),
    )


@pytest.mark.quick("5-merged", "12-interleaved")
@pytest.mark.parametrize("tokens", ["merged", "interleaved"])
@pytest.mark.parametrize("context", [12, 5])
def test_acting_equals_a_full_forward_over_the_last_episode_separator_and_query(
    tiny: Any, tokens: str, context: int
) -> None:
    policy = tiny(tokens=tokens).policy(tiny(tokens=tokens).settings("dpt", context=context))
    asked: list[torch.Tensor] = []
    answer = policy.logits
    policy.logits = lambda: asked.append(answer()) or asked[-1]
    ends = [{5, 16, 21}, {9, 11, 20}, {11, 22}]  # three rows whose episodes end at different times
    draws = np.random.default_rng(0)
    policy.start(np.arange(3).astype(np.uint64), 12, 4)
    episodes: list[list[list[Step]]] = [[[]] for _ in ends]
    reward, done = np.zeros(3, np.float32), np.zeros(3, bool)
    seen = 0
    for step in range(26):
        observation = draws.integers((3, 4), size=(3, 2))
        action = policy.act(observation, reward, done)
        reward = draws.integers(2, size=3).astype(np.float32)
        done = np.array([step in end for end in ends])
        for b, of in enumerate(episodes):
            here = (int(observation[b, 0]), int(observation[b, 1]))
            last = of[-2] if len(of) > 1 else []
            now = plain_window(
                last[-context:], (len(of[-1]), here), first=max(0, len(last) - context), merged=tokens == "merged"
            )
            with torch.no_grad():
                expected = policy.network(now)[0][0, -1]
            torch.testing.assert_close(asked[-1][b], expected, atol=2e-5, rtol=0)
            seen += bool(last)
            of[-1].append((here, int(action[b]), float(reward[b])))
            if done[b]:
                of.append([])
    assert seen == 20 + 16 + 14


@pytest.mark.parametrize("tokens", ["merged", "interleaved"])
@pytest.mark.parametrize("context", [12, 5])
def test_training_equals_a_full_forward_per_query(tiny: Any, tokens: str, context: int) -> None:
    room = tiny(tokens=tokens)
    settings = room.settings("dpt", context=context)
    network, histories = room.network(settings), room.histories(lengths=(12, 7, 1))
    store = ExperienceStore(histories, actions=5)
    sampler = QuerySampler(histories, context=context, queries=3, batch_size=6, seed=0, drop=0.3)
    drawn = sampler.batch(0)
    batch = dpt.batch_from(store, drawn, merged=tokens == "merged")
    logits = dpt.logits_of(network, batch)
    assert logits.shape == (6, 3, 5) and 0 < (drawn.context == -1).sum() < 6
    table = histories.episodes

    def steps(first: int, past: int) -> list[Step]:
        rows = range(first, past)
        seen = [tuple(histories.observation[r].tolist()) for r in rows]
        return [(seen[i], int(histories.action[r]), float(histories.reward[r])) for i, r in enumerate(rows)]

    for b, episode in enumerate(drawn.context):
        past = int(table.start[episode] + table.length[episode])
        begin = max(int(table.start[episode]), past - context)
        shown = [] if episode == -1 else steps(begin, past)
        for q, row in enumerate(drawn.queries[b]):
            query = (int(histories.timestep[row]), tuple(histories.observation[row].tolist()))
            window = plain_window(shown, query, first=int(begin - table.start[episode]), merged=tokens == "merged")
            torch.testing.assert_close(logits[b, q], network(window)[0][0, -1], atol=2e-5, rtol=0)
            assert int(batch.queries.action[b, q]) == histories.action[row]  # the label is the logged action


@pytest.mark.parametrize("tokens", ["merged", "interleaved"])
def test_neither_the_label_nor_the_reward_of_a_query_is_seen(tiny: Any, tokens: str) -> None:
    room = tiny(tokens=tokens)
    network, histories = room.network(room.settings("dpt")), room.histories()
    drawn = QuerySampler(histories, context=12, queries=2, batch_size=4, seed=0).batch(0)
    batch = dpt.batch_from(ExperienceStore(histories, actions=5), drawn, merged=tokens == "merged")
    with torch.no_grad():
        before = dpt.logits_of(network, batch)
        batch.queries.action[:] = (batch.queries.action + 1) % 5
        batch.queries.reward[:] = 1 - batch.queries.reward
        assert torch.equal(before, dpt.logits_of(network, batch))
        batch.context.action[:, -2] = (batch.context.action[:, -2] + 1) % 5  # the context's last action is seen
        assert not torch.allclose(before, dpt.logits_of(network, batch))


def told_by_the_task(tasks: int = 4) -> Histories:
    """Histories in which an agent does nothing but the one action of its task; states say nothing about it."""
    draws, rows = np.random.default_rng(0), 4 * 12
    return Histories(
        {
            "observation": draws.integers((3, 4), size=(tasks * rows, 2)).astype(np.int8),
            "action": np.repeat(np.arange(tasks, dtype=np.int8), rows),
            "reward": np.zeros(tasks * rows, np.float32),
            "done": np.tile(np.arange(rows) % 12 == 11, tasks),
            "task": np.repeat(np.arange(tasks, dtype=np.int32), rows),
            "episode": np.tile(np.repeat(np.arange(4, dtype=np.int32), 12), tasks),
        }
    )


@pytest.mark.slow
def test_it_learns_to_read_the_task_from_the_context_and_plays_so(tiny: Any, tmp_path: Path) -> None:
    room, path = tiny(), tmp_path / "histories.safetensors"
    write_arrays(path, told_by_the_task().arrays(), kind="histories")
    settings = room.settings(
        "dpt",
        queries=4,
        network={"dropout": 0.1},
        optimisation={"steps": 60, "batch_size": 8, "warmup": 5, "learning_rate": 1e-2, "clip": 1.0},
    )

    def trained(folder: str) -> tuple[Any, dict[str, float]]:
        run = Run(tmp_path / folder, tmp_path / folder / "checkpoints", settings_text="same")
        policy = dpt.train(settings, Inputs(histories=path), run)
        table = run.table()
        last = table[table["step"] == table["step"].max()]
        return policy, dict(zip(last["metric"], last["value"], strict=True))

    policy, metrics = trained("once")
    assert metrics["loss"] < 0.1 and metrics["action_accuracy"] == 1  # chance: 1.39 and 0.25
    again, _ = trained("again")
    arrays = policy.arrays()
    assert all(value.tobytes() == again.arrays()[name].tobytes() for name, value in arrays.items())

    loaded = dpt.load_policy(settings, arrays, Inputs())
    assert not loaded.network.training
    loaded.start(np.arange(4).astype(np.uint64), 12, 2)
    draws, done = np.random.default_rng(1), np.zeros(4, bool)
    for step in range(24):
        action = loaded.act(draws.integers((3, 4), size=(4, 2)), np.zeros(4, np.float32), done)
        if step >= 12:
            assert action.tolist() == [0, 1, 2, 3]
        done = np.full(4, step == 11)
        if step < 12:  # whatever it did in the first episode, let it have been the one action of a task
            loaded.action[torch.arange(4), step] = torch.arange(4)


def test_a_policy_of_other_settings_is_refused(tiny: Any) -> None:
    room = tiny()
    arrays = room.policy(room.settings("dpt")).arrays()
    with pytest.raises(dt.UserError, match=r"embed\.position\.weight"):
        dpt.load_policy(room.settings("dpt", network={"positions": 161}), arrays, Inputs())


def test_room_for_separator_and_query_is_asked_for(tiny: Any) -> None:
    room = tiny(tokens="interleaved")
    with pytest.raises(dt.UserError, match="41 positions, but needs 42"):
        dpt.build_network(room.settings("dpt", network={"positions": 41}), room.facts)
    dpt.build_network(room.settings("dpt", network={"positions": 42}), room.facts)


@pytest.mark.parametrize(
    ("env", "context", "batch"),
    [
        ("dark_room_10x10", 100, 128),
        ("dark_room_20x20", 400, 128),
        ("dark_room_40x20", 800, 32),
        ("key_door_10x10", 100, 128),
        ("key_door_20x20", 400, 128),
        ("key_door_40x20", 800, 32),
        ("maze_runner_15x15", 400, 128),
    ],
)
def test_at_paper_scale_the_context_is_a_whole_episode_and_fits_the_tables(
    workdir: Path, env: str, context: int, batch: int
) -> None:
    settings = resolve("paper", env, "dpt", 42)
    chosen = settings.method.hyperparameters
    options = settings.environment.options
    assert chosen.context == context == options.get("horizon", options.get("width", 0) * options.get("height", 0))
    assert chosen.network.positions >= 3 * (context + 2) and chosen.network.timesteps >= context
    assert (chosen.queries, chosen.optimisation.batch_size, chosen.selection) == (1, batch, "greedy")


@pytest.mark.parametrize("scale", ["smoke", "demo"])
def test_the_smaller_scales_show_it_whole_episodes_too(workdir: Path, scale: str) -> None:
    settings = resolve(scale, "dark_room_10x10", "dpt", 0)
    network = dpt.build_network(settings, dpt.facts_of(settings.environment))
    assert settings.method.hyperparameters.context == 100 and settings.method.hyperparameters.queries > 1
    assert sum(parameter.numel() for parameter in network.parameters()) < 200_000


def test_a_share_of_contexts_is_left_out_where_settings_say_so(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_arrays(tmp_path / "histories.safetensors", tiny().histories().arrays(), kind="histories")
    told: dict[str, Any] = {}
    monkeypatch.setattr(dpt, "train_policy", lambda *_, **given: told.update(given))
    for share in (0.0, 0.5, 1.0):
        of = tiny().settings("dpt", context_drop=share, optimisation={"batch_size": 64})
        dpt.train(of, Inputs(histories=tmp_path / "histories.safetensors"), None)  # type: ignore[arg-type]
        left_out = ~told["batch_of"](0).context.mask.any(1)
        assert float(left_out.float().mean()) == pytest.approx(share, abs=0.2 if 0 < share < 1 else 0)


def test_what_is_learned_from_is_drawn_as_the_settings_say_and_by_their_seed(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_arrays(tmp_path / "histories.safetensors", tiny().histories().arrays(), kind="histories")
    told: list[Any] = []
    monkeypatch.setattr(dpt, "train_policy", lambda policy, *_, **given: told.append((policy.network, given)))
    for seed in (0, 0, 1):
        of = tiny().settings("dpt", seed=seed, context=5, queries=3, optimisation={"batch_size": 4})
        dpt.train(of, Inputs(histories=tmp_path / "histories.safetensors"), None)  # type: ignore[arg-type]
    (one, same, other), batches = zip(*((net, given["batch_of"](0)) for net, given in told), strict=True)
    assert batches[0].context.mask.shape == (4, 5 + 1) and batches[0].queries.mask.shape == (4, 3)
    assert told[0][1]["learned_of"](batches[0]) is batches[0].queries
    seen = [batch.queries.observation for batch in batches]
    assert torch.equal(seen[0], seen[1]) and not torch.equal(seen[0], seen[2])
    weights = [net.action_head.weight for net in (one, same, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_padding_that_counts_is_refused(tiny: Any) -> None:
    room = tiny()
    for padding in ("attended", "counted"):
        with pytest.raises(dt.UserError, match=f"padding cannot be {padding}"):
            dpt.build_network(room.settings("dpt", network={"padding": padding}), room.facts)


def test_a_row_that_begins_another_task_has_no_context(tiny: Any) -> None:
    policy = tiny().policy(tiny().settings("dpt"))
    asked: list[torch.Tensor] = []
    answer = policy.logits
    policy.logits = lambda: asked.append(answer()) or asked[-1]
    nothing = np.zeros((3, 2), int), np.zeros(3, np.float32)
    policy.start(np.arange(3, dtype=np.uint64), 12, 4)
    policy.act(*nothing, np.zeros(3, bool))
    policy.act(*nothing, np.ones(3, bool))
    policy.reset(np.array([True, False, False]))
    policy.act(*nothing, np.zeros(3, bool))
    first, second, third = asked
    torch.testing.assert_close(third[0], first[0])
    assert all(not torch.allclose(after, first[b]) for after, b in ((second[0], 0), (third[1], 1), (third[2], 2)))
