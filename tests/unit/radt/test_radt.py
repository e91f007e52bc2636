"""RA-DT: what is stored, what is retrieved and who reads it, against plain loops written from the specification (4.1-4.7)."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recollect.artifacts.sealed import sealing, write_arrays, write_json
from recollect.common.contract import Inputs
from recollect.common.frozen_hopfield import one_hots
from recollect.common.index import FlatIndex
from recollect.radt import radt
from recollect.radt.chunks import Chunks, chunk_settings, cut_chunks
from recollect.radt.decision_transformer import bins_of
from recollect.radt.embedders import DomainSpecificEmbedder
from recollect.radt.episodic_memory import EpisodicSettings
from recollect.radt.experience import Experience
from recollect.radt.retrieval import RetrievalSettings
from recollect.radt.supervised import ExperienceStore
from recollect.radt.windows import WindowSampler
from recollect.settings.errors import UserError

FIELDS = tuple(Experience.__dataclass_fields__)
STRIDE, KEY, PAST, FUTURE = 4, 8, 4, 4  # of the room's memory, see `Tiny`


def stacked(rows: list[Experience]) -> Experience:
    return Experience(*(torch.stack([getattr(row, name) for row in rows]) for name in FIELDS))


def padded(window: Experience, steps: int) -> Experience:
    """The same windows with more padding on the left; what is seen there must not matter."""
    size = len(window.mask)
    left = Experience(
        observation=torch.ones(size, steps, 2, dtype=window.observation.dtype),
        return_to_go=torch.full((size, steps), 3.0),
        action=torch.full((size, steps), 5),
        reward=torch.zeros(size, steps),
        timestep=torch.zeros(size, steps, dtype=torch.long),
        mask=torch.zeros(size, steps, dtype=torch.bool),
    )
    return Experience(*(torch.cat([getattr(left, name), getattr(window, name)], 1) for name in FIELDS))


# ------------------------------------------------------------------------------------------------------- acting


class Recorded:
    """What a policy was shown and what it did, episode by episode, in plain lists: one row of a batch."""

    def __init__(self) -> None:
        self.episodes: list[list[tuple[np.ndarray, float, int, float]]] = [[]]  # observation, aim, action, reward

    def ended(self) -> list[list[tuple[np.ndarray, float, int, float]]]:
        return [episode for episode in self.episodes[:-1] if episode]


def play(policy: Any, steps: int, ends: list[set[int]], *, seed: int = 0, check: Any = None) -> list[Recorded]:
    """Act in a made-up world: random observations and rewards; row b's episodes end after the global steps `ends[b]`."""
    rows = len(ends)
    draws = np.random.default_rng(seed)
    policy.start(np.arange(rows).astype(np.uint64), 12, 4)
    recorded = [Recorded() for _ in range(rows)]
    reward, done = np.zeros(rows, np.float32), np.zeros(rows, bool)
    for step in range(steps):
        observation = draws.integers((3, 4), size=(rows, 2))
        action = policy.act(observation, reward, done)
        now = policy.step_B.copy()
        for b in range(rows):
            aim = float(policy.aim[b, now[b]])
            recorded[b].episodes[-1].append((observation[b], aim, int(action[b]), math.nan))
        if check is not None:
            check(step, recorded)
        reward = draws.integers(2, size=rows).astype(np.float32)
        done = np.array([step in ends[b] for b in range(rows)])
        for b in range(rows):
            last = recorded[b].episodes[-1]
            last[-1] = (*last[-1][:3], float(reward[b]))
            if done[b]:
                recorded[b].episodes.append([])
    return recorded


def experience(steps: list[tuple[np.ndarray, float, int, float]], first: int, length: int) -> Experience:
    """Plain left-padded window (batch of one) of steps (observation, return-to-go, action, reward) from timestep `first`."""
    missing = length - len(steps)
    return Experience(
        observation=torch.tensor(np.array([[0, 0]] * missing + [list(s[0]) for s in steps]))[None],
        return_to_go=torch.tensor([0.0] * missing + [s[1] for s in steps])[None],
        action=torch.tensor([5] * missing + [s[2] for s in steps])[None],
        reward=torch.tensor([0.0] * missing + [s[3] for s in steps])[None],
        timestep=torch.tensor([0] * missing + list(range(first, first + len(steps))))[None],
        mask=torch.tensor([False] * missing + [True] * len(steps))[None],
    )


def entries(episodes: list[Any], embedder: Any, **keys: bool) -> list[tuple[torch.Tensor, float, int, Experience]]:
    """(key, return, last timestep, value) of every chunk of finished episodes, with a loop (specification 4.1, 4.7)."""
    found = []
    for episode in episodes:
        rewards = [step[3] for step in episode]
        real = [(o, sum(rewards[t:]), a, r) for t, (o, _, a, r) in enumerate(episode)]
        for cut in range(0, len(real), STRIDE):
            end = min(max(cut, 2), len(real))
            first = max(0, end - KEY)
            key = embedder.keys(experience(real[first:end], first, KEY), **keys)[0]
            low, high = max(0, cut - PAST), min(len(real), cut + FUTURE)
            found.append((key, sum(rewards), end - 1, experience(real[low:high], low, PAST + FUTURE)))
    return found


def scaled(values: list[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]


def expected_context(found: list[Any], query: torch.Tensor, candidates: int, k: int) -> list[Experience]:
    """Search, min-max, add, take the best (of equal ones the first stored): specification 4.7 with a loop."""
    similarity = [float(key.double() @ query.double()) for key, *_ in found]
    order = sorted(range(len(found)), key=lambda i: (-similarity[i], i))[:candidates]
    near, returns = scaled([similarity[i] for i in order]), scaled([found[i][1] for i in order])
    left = {i: near[j] + returns[j] for j, i in enumerate(order)}
    chosen = []
    while left and len(chosen) < k:
        highest = max(left.values())
        chosen.append(min(i for i, score in left.items() if score > highest - 1e-6))
        del left[chosen[-1]]
    chosen.sort(key=lambda i: (found[i][1], found[i][2]))
    return [found[i][3] for i in chosen]


ENDS = [{5, 16, 21}, {9, 11, 20}, {11, 22}]  # three rows whose episodes end at different times


def test_the_first_episode_reads_nothing(tiny: Any) -> None:
    policy = tiny().policy(tiny().settings("radt"))
    logits = policy.logits

    def compared() -> torch.Tensor:
        found = logits()
        torch.testing.assert_close(found, policy.network(policy.window(6))[0][:, -1], atol=2e-5, rtol=0)
        assert not policy.has_context_B.any() and not policy.own.memory.count_E.any()
        return found

    policy.logits = compared
    play(policy, 12, [{11}, {11}])


@pytest.mark.parametrize("similarity", ["cosine", "inner_product"])
def test_the_memory_holds_every_chunk_of_the_finished_episodes_with_their_real_returns(
    tiny: Any, similarity: str
) -> None:
    policy = tiny().policy(tiny().settings("radt", acting=EpisodicSettings(similarity=similarity)))
    recorded = play(policy, 24, ENDS)
    for b, row in enumerate(recorded):
        wanted = entries(row.ended(), policy.embedder, normalise=similarity == "cosine")
        lengths = [len(episode) for episode in row.ended()]
        assert int(policy.own.memory.count_E[b]) == len(wanted) == sum(-(-length // STRIDE) for length in lengths)
        for place, (key, total, last, value) in enumerate(wanted):
            torch.testing.assert_close(policy.own.memory.keys_ECD[b, place].float(), key, atol=1e-5, rtol=0)
            assert float(policy.own.memory.total_return_EC[b, place]) == total
            assert int(policy.own.memory.last_EC[b, place]) == last
            slot, first, end = (int(getattr(policy.own.memory, f"{n}_EC")[b, place]) for n in ("slot", "first", "end"))
            assert policy.own.log.fields["observation"][b, slot, first:end].tolist() == (
                value.observation[0][value.mask[0]].tolist()
            )
            assert policy.own.log.fields["return_to_go"][b, slot, first:end].tolist() == (
                value.return_to_go[0][value.mask[0]].tolist()
            )
    assert [len(row.ended()) for row in recorded] == [3, 3, 2]


def test_returns_that_are_asked_for_and_shown_are_those_of_the_world(tiny: Any) -> None:
    """Though the network sees rewards and returns divided by `reward_scale`."""
    policy = tiny().policy(tiny().settings("radt", reward_scale=10.0, acting=EpisodicSettings(minimum_return=4.0)))
    shown: list[float] = []

    def check(step: int, recorded: list[Recorded]) -> None:
        facts = policy.traced(np.arange(3))
        for b, row in enumerate(recorded):
            slot = int(facts["retrieved_episode"][b, 0])
            if slot >= 0:
                shown.append(float(facts["retrieved_total_return"][b, 0]))
                assert shown[-1] == pytest.approx(sum(step[3] for step in row.ended()[slot]))

    recorded = play(policy, 24, ENDS, check=check)
    played = [[(len(episode), sum(step[3] for step in episode)) for episode in row.ended()] for row in recorded]
    assert min(shown) >= 4 > min(total for row in played for _, total in row)
    for b, row in enumerate(played):
        stored = [-(-length // STRIDE) for length, total in row if total >= 4]
        assert int(policy.own.memory.count_E[b]) == sum(stored)


@pytest.mark.quick("50-1-radt")
@pytest.mark.parametrize("method", ["radt", "radt_agnostic"])
@pytest.mark.parametrize(("candidates", "k"), [(50, 1), (3, 1), (50, 2)])
def test_what_is_read_is_what_a_plain_loop_retrieves(tiny: Any, method: str, candidates: int, k: int) -> None:
    chosen = tiny().settings(method, acting=EpisodicSettings(candidates=candidates, select=k))
    policy = tiny().policy(chosen)
    read = 0

    def check(step: int, recorded: list[Recorded]) -> None:
        nonlocal read
        for b, row in enumerate(recorded):
            found = entries(row.ended(), policy.embedder)
            assert bool(policy.has_context_B[b]) == bool(found)
            if not found:
                continue
            episode = row.episodes[-1]
            seen = [*episode[:-1], (*episode[-1][:2], 5, 0.0)][-KEY:]  # now: no action and no reward yet
            query = policy.embedder.keys(experience(seen, len(episode) - len(seen), KEY))[0]
            wanted = expected_context(found, query, candidates, k)
            for name in FIELDS:
                expected = torch.cat([getattr(window, name) for window in wanted], 1)[0]
                assert getattr(policy.context, name)[b].tolist() == expected.tolist(), (step, b, name)
            read += 1

    play(policy, 24, ENDS, check=check)
    assert read > 30


@pytest.mark.parametrize("pooling", ["state", "last"])
def test_queries_of_whole_episodes_grow_step_by_step_and_equal_embedding_the_window_anew(
    tiny: Any, pooling: str
) -> None:
    memory = {"key_context": 12, "pooled_steps": 5, "pooling": pooling}
    policy = tiny().policy(tiny().settings("radt", memory=memory))
    asked: list[torch.Tensor] = []

    def check(step: int, recorded: list[Recorded]) -> None:
        torch.testing.assert_close(asked[-1], policy.embedder.keys(policy.window(12)), atol=2e-5, rtol=0)

    def note(pair: Experience, append: Any) -> torch.Tensor:
        asked.append(append(pair))
        return asked[-1]

    policy.start(np.zeros(3, np.uint64), 12, 4)
    assert policy.queries is not None
    begin = policy.begin

    def begin_noted(rows: int) -> None:
        begin(rows)
        append = policy.queries.append
        policy.queries.append = lambda pair: note(pair, append)

    policy.begin = begin_noted
    play(policy, 24, ENDS, check=check)
    assert len(asked) == 24


def test_with_several_steps_between_retrievals_a_row_keeps_its_context(tiny: Any) -> None:
    """Whenever other rows look something up: a row looks at its own steps 0, 5, 10 and keeps what it found."""
    policy = tiny().policy(tiny().settings("radt", retrieve_every=5))
    kept: list[list[list[float]]] = [[], [], []]
    changed = looked = 0

    def check(step: int, recorded: list[Recorded]) -> None:
        nonlocal changed, looked
        for b in range(3):
            now = [policy.context.timestep[b].tolist(), policy.context.return_to_go[b].tolist()]
            if policy.step_B[b] % 5 and kept[b]:
                assert now == kept[b], (step, b)
            elif kept[b]:
                looked += 1
                changed += now != kept[b]
            kept[b] = now

    play(policy, 24, ENDS, check=check)
    assert looked > changed > 0


@pytest.mark.quick("1-6-merged", "3-12-interleaved")
@pytest.mark.parametrize("tokens", ["merged", "interleaved"])
@pytest.mark.parametrize(("every", "context"), [(1, 6), (1, 12), (3, 6), (3, 12)])
def test_doing_only_what_a_step_changes_equals_encoding_all_windows_and_contexts_anew(
    tiny: Any, tokens: str, every: int, context: int
) -> None:
    """With windows that hold an episode (12 steps) and such that slide, of rows whose episodes end at different steps."""
    network = {"tokens": tokens}
    policy = tiny().policy(tiny().settings("radt", retrieve_every=every, context=context, network=network))
    logits, read, cached = policy.logits, 0, 0

    def compared() -> torch.Tensor:
        nonlocal read, cached
        before_B = policy.reading.steps.cache.lengths_B.clone()
        found = logits()
        whole = policy.network.act(policy.window(context), policy.context, policy.has_context_B)
        torch.testing.assert_close(found, whole, atol=2e-5, rtol=0)
        blind = policy.network.act(policy.window(context))
        read += int((policy.has_context_B & ((whole - blind).abs().amax(1) > 1e-4)).sum())
        cached += int((policy.has_context_B & (policy.reading.steps.cache.lengths_B > before_B)).sum())
        return found

    policy.logits = compared
    play(policy, 24, ENDS)
    policy.reset(np.array([False, True, False]))
    policy.act(np.zeros((3, 2), int), np.zeros(3, np.float32), np.zeros(3, bool))
    assert read > 10  # what is read changes the logits
    assert cached > (10 if context == 12 else 0)


@pytest.mark.parametrize("select", [1, 2])
def test_a_context_is_encoded_anew_only_where_something_else_was_retrieved(tiny: Any, select: int) -> None:
    policy = tiny().policy(tiny().settings("radt", acting=EpisodicSettings(select=select)))
    seen: dict[int, Any] = {}
    told = kept = 0

    def check(step: int, recorded: list[Recorded]) -> None:
        nonlocal kept
        for b in range(3):
            now = [getattr(policy.context, name)[b].tolist() for name in FIELDS], bool(policy.has_context_B[b])
            kept += seen.get(b) == now and now[1]
            assert (seen.get(b, (now[0], False)) == now) or changed[b], (step, b)
            seen[b] = now

    act = None
    changed = np.zeros(3, bool)

    def noted(policy_: Any, context: Experience, has_context_B: torch.Tensor, changed_B: np.ndarray) -> torch.Tensor:
        nonlocal changed, told
        changed, told = changed_B, told + int(changed_B.sum())
        return act(policy_, context, has_context_B, changed_B)

    begin = policy.begin

    def begin_noted(rows: int) -> None:
        nonlocal act
        begin(rows)
        act = policy.reading.act
        policy.reading.act = noted

    policy.begin = begin_noted
    play(policy, 24, ENDS, check=check)
    assert told > 3 and kept > 10


def test_a_row_that_begins_another_task_remembers_nothing(tiny: Any) -> None:
    policy = tiny().policy(tiny().settings("radt"))
    play(policy, 24, ENDS)
    policy.reset(np.array([False, True, False]))
    assert policy.own.memory.count_E.tolist() == [7, 0, 6]
    policy.act(np.zeros((3, 2), int), np.zeros(3, np.float32), np.zeros(3, bool))
    assert policy.has_context_B.tolist() == [True, False, True]
    policy.reset(np.ones(3, bool))
    logits = policy.logits

    def compared() -> torch.Tensor:
        found = logits()
        torch.testing.assert_close(found, policy.network.act(policy.window(6)), atol=2e-5, rtol=0)
        return found

    policy.logits = compared
    policy.act(np.zeros((3, 2), int), np.zeros(3, np.float32), np.zeros(3, bool))
    assert not policy.has_context_B.any()


def test_what_a_new_task_gives_is_read_also_where_it_stands_as_the_last_tasks_did(tiny: Any) -> None:
    policy = tiny().policy(tiny().settings("radt"))
    policy.start(np.zeros(1, np.uint64), 12, 4)
    for task in (1, 2):
        policy.reset(np.ones(1, bool))
        for step in range(3):  # an episode of two steps, and the first of the next
            assert not policy.has_context_B.any()
            policy.act(np.full((1, 2), task), np.zeros(1, np.float32), np.array([step == 2]))
        assert policy.has_context_B.all()
        assert policy.context.observation[policy.context.mask].tolist() == [[task, task]] * 2


def test_shared_context_tables_are_one_set_of_weights_that_survives_the_policy_file(tiny: Any) -> None:
    chosen = tiny().settings("radt", network={"context_embedding": "shared"})
    network = tiny().network(chosen)
    assert network.embed_context.observation is network.embed.observation
    assert network.embed_context.position is not network.embed.position
    count = sum(p.numel() for p in network.parameters())
    separate = sum(p.numel() for p in tiny().network(tiny().settings("radt")).parameters())
    own = ("observation", "action", "reward", "return_to_go", "timestep")
    tables = sum(p.numel() for name in own for p in getattr(network.embed, name).parameters())
    assert separate - count == tables
    policy = tiny().policy(chosen)
    again = tiny().network(chosen)
    radt.dt.load_network(again, policy.arrays(), chosen)
    for mine, theirs in zip(policy.network.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_tables_of_the_context_begin_as_copies_where_a_language_model_embeds(tiny: Any) -> None:
    for method, copied in (("radt_agnostic", True), ("radt", False)):
        network = tiny(tokens="interleaved").network(tiny(tokens="interleaved").settings(method))
        theirs = dict(network.embed_context.named_parameters())
        for name, table in network.embed.named_parameters():
            assert theirs[name] is not table
            if table.ndim > 1:
                assert torch.equal(theirs[name], table) == copied, name


def test_the_policy_file_holds_the_trained_embedder_and_no_language_model(tiny: Any) -> None:
    own = tiny().policy(tiny().settings("radt")).arrays()
    assert any(name.startswith("embedder/network/") for name in own)
    assert all(name.startswith("network/") for name in tiny().policy(tiny().settings("radt_agnostic")).arrays())


def test_neither_a_policy_that_is_loaded_nor_an_embedder_drops_anything(tiny: Any, in_the_repository: None) -> None:
    room = tiny()
    of = room.settings("radt_agnostic", network={"dropout": 0.5, "context_layers": 1})
    histories = room.histories()
    window, _ = batch(histories, ExperienceStore(histories, actions=5), 0, size=4)
    policy = room.policy(of)
    loaded = radt.load_policy(of, policy.arrays(), Inputs())
    reading = (window, window, torch.ones(4, dtype=torch.bool))
    assert torch.equal(loaded.network.act(*reading), policy.network.act(*reading))
    learned = room.network(room.settings("dt", network={"dropout": 0.5}))
    wanted, found = (
        DomainSpecificEmbedder(network, of.method.memory, "float32").keys(window)
        for network in (learned, copy.deepcopy(learned).train())
    )
    assert torch.equal(wanted, found)


# ----------------------------------------------------------------------------------------------------- training


def reader_of(
    tiny: Any, folder: Path, *, tokens: str = "merged", lengths: tuple[int, ...] = (12,), tasks: int = 3, **chosen: Any
) -> tuple[radt.ContextReader, ExperienceStore, Any]:
    """A reader over files as `embed` and `index` make them; nothing is deduplicated."""
    room = tiny(tokens=tokens)
    of = room.settings("radt", **chosen)
    histories = room.histories(tasks=tasks, lengths=lengths)
    table = histories.episodes
    chunks = cut_chunks(table.start, table.length, table.task, table.total_return, chunk_settings(of.method.memory))
    store, embedder = ExperienceStore(histories, actions=5), room.embedder(of)
    rows, mask = chunks.key_windows(np.arange(len(chunks)), KEY)
    keys = torch.cat([embedder.keys(store.windows(rows[i : i + 7], mask[i : i + 7])) for i in range(0, len(rows), 7)])
    index = FlatIndex(keys.shape[1])
    index.add(keys)
    with sealing(folder / "memory.faiss", kind="index") as temporary:
        index.save(temporary)
    write_arrays(folder / "rows.safetensors", chunks.to_arrays(), kind="memory rows")
    embeddings = folder / "embeddings.safetensors"
    write_arrays(embeddings, {"keys": keys.numpy(), **chunks.to_arrays()}, kind="embeddings")
    inputs = Inputs(index=folder / "memory.faiss", rows=folder / "rows.safetensors", embeddings=embeddings)
    return radt.ContextReader(of, inputs, store, histories, embedder), store, histories


def batch(histories: Any, store: ExperienceStore, step: int, size: int = 32) -> tuple[Experience, np.ndarray]:
    windows = WindowSampler(histories, context=6, batch_size=size, seed=0).batch(step)
    return store.windows(windows.rows, windows.mask), windows.rows[:, -1]


def test_training_reads_the_same_task_and_never_its_own_trajectory(tiny: Any, tmp_path: Path) -> None:
    reader, store, histories = reader_of(
        tiny, tmp_path, retrieval=RetrievalSettings(cut_off=None, shortest_query=3, task_weight=1.5)
    )
    random = computed = 0
    for step in range(1, 4):
        window, rows = batch(histories, store, step)
        context, has, described = reader.read(window, rows, step)
        assert bool(has.all()) and described == {}
        for b, row in enumerate(rows):
            # Which rows of the histories were read, found by their contents: returns-to-go and observations.
            value = [
                i
                for i in range(len(reader.chunks))
                if torch.equal(
                    store.windows(*reader.values.whole(torch.tensor([i]))).observation[0], context.observation[b]
                )
            ]
            assert len(value) == 1
            assert reader.chunks.task[value[0]] == histories.task[row]
            own = histories.episode_of_row(np.array([row]))[0]
            assert reader.chunks.episode[value[0]] != own
            random += int(window.timestep[b, -1] < 3)
            computed += int(window.timestep[b, -1] >= 3)
    assert random > 5 and computed > 30


def test_what_is_read_is_a_pure_function_of_seed_step_and_window(tiny: Any, tmp_path: Path) -> None:
    reader, store, histories = reader_of(tiny, tmp_path)
    window, rows = batch(histories, store, 1)
    first = reader.read(window, rows, 1)[0]
    reader.read(window, rows, 2)
    assert torch.equal(reader.read(window, rows, 1)[0].return_to_go, first.return_to_go)
    other = [reader.read(window, rows, step)[0].return_to_go for step in range(2, 6)]
    assert any(not torch.equal(returns, first.return_to_go) for returns in other)  # random entries, query dropout


def test_a_trajectory_that_is_alone_in_its_task_reads_nothing(tiny: Any, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    reader, store, histories = reader_of(tiny, alone, tasks=1, retrieval=RetrievalSettings(kind="task"))
    first = reader.chunks.take(reader.chunks.episode == 0)
    kept = FlatIndex(reader.memory.keys_ND.shape[1])
    kept.add(reader.memory.keys_ND[: len(first)])
    with sealing(alone / "memory.faiss", kind="index") as temporary:
        kept.save(temporary)
    write_arrays(alone / "rows.safetensors", first.to_arrays(), kind="memory rows")
    inputs = Inputs(index=alone / "memory.faiss", rows=alone / "rows.safetensors")
    of = tiny().settings("radt", retrieval=RetrievalSettings(kind="task"))
    lonely = radt.ContextReader(of, inputs, store, histories, reader.embedder)
    window, rows = batch(histories, store, 1)
    _, has, _ = lonely.read(window, rows, 1)
    assert has.tolist() == (histories.episode_of_row(rows) != 0).tolist()
    assert has.any() and not has.all()


def test_context_drop_keeps_some_windows_from_reading(tiny: Any, tmp_path: Path) -> None:
    reader, store, histories = reader_of(tiny, tmp_path, context_drop=0.25)
    window, rows = batch(histories, store, 1, size=200)
    context, has, _ = reader.read(window, rows, 1)
    assert 130 < int(has.sum()) < 170
    assert torch.equal(context.mask.any(1), has)


@pytest.mark.parametrize("tokens", ["merged", "interleaved"])
def test_the_query_of_a_key_window_is_the_stored_key(tiny: Any, tmp_path: Path, tokens: str) -> None:
    reader, store, _ = reader_of(tiny, tmp_path, tokens=tokens, query_dropout=0.0)
    chunks = reader.chunks
    rows, mask = chunks.key_windows(np.arange(len(chunks)), KEY)
    queries = reader.queries(store.windows(rows, mask), rows[:, -1], torch.Generator())
    torch.testing.assert_close(queries.key_BD, reader.memory.keys_ND, atol=1e-5, rtol=0)
    assert queries.task_B.tolist() == chunks.task.tolist()
    assert queries.episode_B.tolist() == chunks.episode.tolist()
    assert queries.last_B.tolist() == chunks.last.tolist()
    assert queries.total_return_B.tolist() == chunks.total_return.tolist()
    dropped, _, _ = reader_of(tiny, tmp_path / "dropped", tokens=tokens, query_dropout=0.5)
    other = dropped.queries(store.windows(rows, mask), rows[:, -1], torch.Generator().manual_seed(0))
    assert (other.key_BD - reader.memory.keys_ND).abs().amax(1).gt(1e-3).float().mean() > 0.5


def test_several_windows_are_read_one_behind_the_other(tiny: Any, tmp_path: Path) -> None:
    reader, store, histories = reader_of(tiny, tmp_path, retrieval=RetrievalSettings(select=3, shortest_query=0))
    window, rows = batch(histories, store, 1)
    context, has, _ = reader.read(window, rows, 1)
    assert context.mask.shape == (32, 3 * 8) and bool(has.all())
    parts = context.return_to_go.unflatten(1, (3, 8))
    single, _, _ = reader_of(tiny, tmp_path / "one", retrieval=RetrievalSettings(select=1, shortest_query=0))
    best = single.read(window, rows, 1)[0].return_to_go
    # The best window is one of the three; which one depends on its return, by which the three are ordered.
    assert bool((parts == best[:, None]).all(2).any(1).all())
    values = [store.windows(*reader.values.whole(torch.tensor([i]))).return_to_go[0] for i in range(len(reader.chunks))]
    for b in range(32):
        totals = [
            [reader.chunks.total_return[i] for i, value in enumerate(values) if torch.equal(value, parts[b, j])]
            for j in range(3)
        ]
        assert all(totals) and max(totals[0]) <= max(totals[1]) <= max(totals[2])


def nearest_by_loop(chunks: Chunks, task: int, episode: int, end: int) -> int:
    """Of the same task: the cut nearest in the episode's time, then the nearest episode, then the first."""
    own = [i for i in range(len(chunks)) if chunks.task[i] == task]
    return min(own, key=lambda i: (abs(int(chunks.last[i]) + 1 - end), abs(int(chunks.episode[i]) - episode), i))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_nearest_key_is_that_of_the_most_similar_cut_of_the_same_task(tiny: Any, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(4, 12), min_size=1, max_size=3).map(tuple))
    histories = tiny().histories(tasks=data.draw(st.integers(1, 4)), episodes=5, lengths=lengths)
    table = histories.episodes
    of = tiny().settings("radt")
    cut = cut_chunks(table.start, table.length, table.task, table.total_return, chunk_settings(of.method.memory))
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(cut), max_size=len(cut))))
    kept |= ~np.isin(cut.task, cut.task[kept]) & (np.diff(cut.task, prepend=-1) > 0)  # at least one of every task
    reader = radt.ContextReader.__new__(radt.ContextReader)
    reader.embedded, reader.histories = cut.take(kept), histories
    rows = np.array(data.draw(st.lists(st.integers(0, len(histories) - 1), min_size=1, max_size=20)))
    episode, last = histories.episode_of_row(rows), histories.timestep[rows]
    found = reader.nearest(rows, episode, last)
    wanted = [
        nearest_by_loop(reader.embedded, int(table.task[e]), int(e), int(t) + 1)
        for e, t in zip(episode, last, strict=True)
    ]
    assert found.tolist() == wanted


def test_nearest_key_queries_are_the_embedded_keys(tiny: Any, tmp_path: Path) -> None:
    reader, store, histories = reader_of(tiny, tmp_path, queries="nearest_key")
    window, rows = batch(histories, store, 1)
    queries = reader.queries(window, rows, torch.Generator())
    for b, row in enumerate(rows):
        own, end = int(histories.episode_of_row(rows[b : b + 1])[0]), int(histories.timestep[row]) + 1
        place = nearest_by_loop(reader.chunks, int(histories.task[row]), own, end)
        assert torch.equal(queries.key_BD[b], reader.memory.keys_ND[place])  # nothing was dropped from this index


def test_an_index_of_another_kind_or_size_is_refused(tiny: Any, tmp_path: Path) -> None:
    reader, store, histories = reader_of(tiny, tmp_path)
    of = tiny().settings("radt")
    inputs = Inputs(index=tmp_path / "memory.faiss", rows=tmp_path / "rows.safetensors")
    write_arrays(tmp_path / "rows.safetensors", reader.chunks.take(np.arange(3)).to_arrays(), kind="memory rows")
    with pytest.raises(UserError, match="table of"):
        radt.ContextReader(of, inputs, store, histories, reader.embedder)
    write_json(tmp_path / "memory.faiss", {}, kind="something else")
    with pytest.raises(UserError, match="not 'index'"):
        radt.ContextReader(of, inputs, store, histories, reader.embedder)


def test_the_return_loss_is_cross_entropy_of_bins_over_real_steps(tiny: Any) -> None:
    room = tiny(tokens="interleaved")
    of = room.settings("radt", network={"return_embedding": "bins"})
    network, histories = room.network(of), room.histories(lengths=(12, 3))
    binned = room.environment.returns.model_copy(update={"low": 1.5})
    store = ExperienceStore(histories, actions=5)
    window, _ = batch(histories, store, 0, size=8)
    nothing = torch.zeros(8, dtype=torch.bool)
    with torch.no_grad():
        loss, metrics = radt.radt_loss(network, radt.Batch(window, window, nothing), 1.0, binned)
        logits, returns = network(window)
    wanted = []
    for b, t in window.mask.nonzero().tolist():
        place = int((float(window.return_to_go[b, t]) - 1.5) / 0.875)  # of 12 bins on [1.5, 12]
        wanted.append(-float(torch.log_softmax(returns[b, t].double(), 0)[min(max(place, 0), 11)]))
    assert float(metrics["return_loss"]) == pytest.approx(np.mean(wanted), abs=1e-5)
    actions = radt.dt.action_loss(logits, window)[0]
    assert float(loss) == pytest.approx(float(actions + metrics["return_loss"]), abs=1e-5)
    assert float(metrics["with_context"]) == 0.0


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_the_loss_of_returns_weighs_what_settings_say(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weight: float
) -> None:
    room, path = tiny(tokens="interleaved"), tmp_path / "histories.safetensors"
    histories = room.histories()
    write_arrays(path, histories.arrays(), kind="histories")
    window, _ = batch(histories, ExperienceStore(histories, actions=5), 0, size=4)
    told: list[Any] = []
    monkeypatch.setattr(radt, "train_policy", lambda policy, *_, **given: told.extend((policy, given["loss_of"])))
    monkeypatch.setattr(radt, "load_embedder", lambda of, *_: room.embedder(of))
    monkeypatch.setattr(radt, "ContextReader", lambda *_: None)
    radt.train(room.settings("radt", return_loss=weight), Inputs(histories=path), None)  # type: ignore[arg-type]
    network, loss_of = told[0].network.eval(), told[1]
    with torch.no_grad():
        loss, metrics = loss_of(network, radt.Batch(window, window, torch.zeros(4, dtype=torch.bool)))
        actions, _ = radt.dt.action_loss(network(window)[0], window)
    of_returns = float(metrics["return_loss"]) if weight else 0.0
    assert float(loss) == pytest.approx(float(actions) + weight * of_returns, abs=1e-5)
    assert ("return_loss" in metrics) == (network.return_head is not None) == (weight > 0)


def test_aims_are_told_by_their_bins_between_the_bounds_of_returns(tiny: Any) -> None:
    room = tiny()
    returns = room.environment.returns.model_copy(update={"low": 1.5})  # 12 bins of 0.875
    room.environment = room.environment.model_copy(update={"returns": returns})
    embed = room.network(room.settings("radt", network={"return_embedding": "bins"})).embed
    told_TD = embed.aim(torch.tensor([-3.0, 1.5, 2.4, 5.1, 12.0, 99.0]))
    assert torch.equal(told_TD, embed.return_to_go.weight[[0, 0, 1, 4, 11, 11]])


# ----------------------------------------------------------------------------------------------------- embedders


@pytest.mark.parametrize("tokens", ["merged", "interleaved"])
@pytest.mark.parametrize("method", ["radt", "radt_agnostic"])
@pytest.mark.parametrize("pooling", ["state", "all", "last"])
def test_keys_have_length_one_and_depend_on_the_window_only(tiny: Any, method: str, tokens: str, pooling: str) -> None:
    room = tiny(tokens=tokens)
    embedder = room.embedder(room.settings(method, memory={"pooling": pooling}))
    histories = room.histories(lengths=(12, 5))
    store = ExperienceStore(histories, actions=5)
    window, _ = batch(histories, store, 0, size=9)
    keys = embedder.keys(window)
    assert keys.shape == (9, embedder.width)
    torch.testing.assert_close(keys.norm(dim=1), torch.ones(9), atol=1e-6, rtol=0)
    torch.testing.assert_close(embedder.keys(padded(window, 3)), keys, atol=1e-5, rtol=0)
    for b in range(9):
        real = int(window.mask[b].sum())
        alone = embedder.keys(window.select(slice(b, b + 1)).last(real))
        torch.testing.assert_close(alone[0], keys[b], atol=1e-5, rtol=0)
    spread = keys @ keys.T
    assert spread.min() < 1 - 1e-3  # keys of different windows differ, else nothing was tested


def test_the_key_of_a_merged_window_pooled_last_is_its_last_hidden_state(tiny: Any) -> None:
    room = tiny()
    embedder = room.embedder(room.settings("radt", memory={"pooling": "last"}))
    histories = room.histories()
    window, _ = batch(histories, ExperienceStore(histories, actions=5), 0, size=4)
    hidden = embedder.network.hidden(window)[:, -1, 0]
    torch.testing.assert_close(embedder.keys(window), hidden / hidden.norm(dim=1, keepdim=True))


def test_pooling_a_token_that_the_embedder_does_not_have_is_refused(tiny: Any) -> None:
    room = tiny(tokens="interleaved")
    memory = room.settings("radt", memory={"pooling": "return"}).method.memory
    network = room.network(room.settings("ad"))
    histories = room.histories()
    window, _ = batch(histories, ExperienceStore(histories, actions=5), 0, size=2)
    with pytest.raises(UserError, match="no return-to-go tokens"):
        type(room.embedder(room.settings("radt")))(network, memory, "float32").keys(window)


@pytest.mark.parametrize("tokens", ["merged", "interleaved"])
def test_the_lookup_tables_equal_the_direct_frozen_hopfield(tiny: Any, tokens: str) -> None:
    room = tiny(tokens=tokens)
    returns = room.environment.returns.model_copy(update={"low": 1.5})
    room.environment = room.environment.model_copy(update={"returns": returns})
    embedder = room.embedder(room.settings("radt_agnostic", memory={"reward_high": 2.0, "reward_bins": 3}))
    histories = room.histories(lengths=(12, 7))
    window, _ = batch(histories, ExperienceStore(histories, actions=5), 0, size=5)
    seen: list[torch.Tensor] = []
    forward = embedder.model.forward
    embedder.model.forward = lambda x, mask=None: seen.append((x, mask)) or forward(x, mask)
    embedder.keys(window)
    (given, mask_BN) = seen[0]
    hopfields = embedder.hopfields
    direct = torch.stack(
        [
            hopfields["s"](one_hots(window.observation, (3, 4))),
            hopfields["rtg"](one_hots(bins_of(window.return_to_go, 1.5, 12, 12)[..., None], (12,))),
            hopfields["a"](one_hots(window.action[..., None], (6,))),
            hopfields["r"](one_hots(bins_of(window.reward, 0, 2, 3)[..., None], (3,))),
        ],
        2,
    )
    if tokens == "merged":
        direct = direct.mean(2, keepdim=True)
    for b in range(5):
        real = direct[b][window.mask[b]].flatten(0, 1)
        torch.testing.assert_close(given[b, : len(real)], real, atol=1e-6, rtol=0)  # real tokens stand first
        assert mask_BN[b].tolist() == [True] * len(real) + [False] * (given.shape[1] - len(real))


def test_each_modality_and_seed_has_a_projection_of_its_own(tiny: Any) -> None:
    room = tiny()
    first = room.embedder(room.settings("radt_agnostic"))
    again = room.embedder(room.settings("radt_agnostic"))
    other = room.embedder(room.settings("radt_agnostic", memory={"embedder_seed": 1}))
    for name in ("s", "rtg", "a", "r"):
        mixtures, same, others = (one.hopfields[name].one_hot_table() for one in (first, again, other))
        assert torch.equal(mixtures, same) and not torch.equal(mixtures, others)
    assert not torch.equal(first.hopfields["a"].projection_DI[:, :2], first.hopfields["r"].projection_DI)


def test_a_mixture_is_as_sharp_and_as_similar_as_the_memory_says(tiny: Any) -> None:
    room = tiny()
    embedder = room.embedder(room.settings("radt_agnostic", memory={"beta": 3.0, "similarity": "dot"}))
    words_VD, hopfield = embedder.model.embeddings.double(), embedder.hopfields["a"]
    projected_ID = hopfield.projection_DI.double().T
    wanted = torch.softmax(3.0 * projected_ID @ words_VD.T, 1) @ words_VD
    torch.testing.assert_close(embedder.tables["a"].double(), wanted, atol=1e-5, rtol=0)
