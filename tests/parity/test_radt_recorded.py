"""RA-DT's parts against what its released code computed (github.com/ml-jku/RA-DT at 40adec5), recorded once.

The file says of each array which class or function made it. Weights, windows and memories are drawn here by the same rule
as for the record, so that only answers lie in the file. Where the record has defects of the released code (positions that
count padding, candidates that are demoted), ours is told to do the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor

from recollect.common.frozen_hopfield import FrozenHopfield, LookupHopfield
from recollect.common.histories import Histories
from recollect.common.index import matmul_search
from recollect.common.transformer import TransformerSettings
from recollect.radt.chunks import ChunkSettings, cut_chunks
from recollect.radt.decision_transformer import DecisionTransformer, DecisionTransformerSettings
from recollect.radt.deduplication import deduplicate
from recollect.radt.episodic_memory import EpisodicMemory, EpisodicSettings
from recollect.radt.experience import Experience
from recollect.radt.pooling import normalised, pooled
from recollect.radt.retrieval import RetrievalSettings, retrieve
from recollect.radt.supervised import Optimisation
from recollect.radt.training_memory import Queries, TrainingMemory
from recollect.radt.windows import DistillationSampler

B, T = 4, 10
FULL, PADDED = [T] * B, [10, 7, 3, 1]
TOKENS = ("s", "rtg", "a", "r")


@pytest.fixture(scope="module")
def recorded() -> dict[str, np.ndarray]:
    return load_file(Path(__file__).with_name("radt.safetensors"))


# ---------------------------------------------------------------- networks


def network(cross: Any = "none", **settings: Any) -> DecisionTransformer:
    """A small network whose weights follow from their names."""
    shape = TransformerSettings(width=64, layers=2, heads=4, dropout=0.0, cross_attention=cross)
    chosen = DecisionTransformerSettings(positions=100, window=T, transformer=shape, **settings)
    made = DecisionTransformer(chosen, seed=0).eval().requires_grad_(False)
    for name, weight in made.named_parameters():
        draws = np.random.RandomState(sum(map(ord, name))).normal(0, 0.15, tuple(weight.shape))
        weight.copy_(torch.from_numpy(draws.astype(np.float32)))
        if "norm" in name and name.endswith("weight"):
            weight.add_(1.0)
    return made


def windows(seed: int, lengths: list[int]) -> Experience:
    draws = np.random.RandomState(seed)
    observation = draws.randint(0, 10, (B, T, 2))
    action, reward = draws.randint(0, 5, (B, T)), draws.randint(0, 2, (B, T))
    return_to_go = draws.randint(0, 100, (B, T))
    timestep = np.arange(T)[None] + draws.randint(0, 50, (B, 1))
    mask = np.arange(T)[None] >= T - np.array(lengths)[:, None]
    return Experience(
        observation=torch.from_numpy(observation * mask[..., None]),
        return_to_go=torch.from_numpy(return_to_go * mask).float(),
        action=torch.from_numpy(np.where(mask, action, 5)),
        reward=torch.from_numpy(reward * mask).float(),
        timestep=torch.from_numpy(timestep * mask),
        mask=torch.from_numpy(mask),
    )


def close(ours: Tensor, theirs: np.ndarray, atol: float = 2e-5) -> None:
    torch.testing.assert_close(ours, torch.from_numpy(theirs), rtol=0, atol=atol)


def test_radt_reads_and_predicts_as_released(recorded: dict[str, np.ndarray]) -> None:
    reader = network("all", padding="counted", return_embedding="bins", predict_return=True, context_positions=100)
    cases = {
        "radt_full": (windows(1, FULL), windows(2, FULL)),
        "radt_padded": (windows(1, PADDED), windows(2, PADDED[::-1])),
        "radt_no_context": (windows(1, FULL), None),
    }
    for name, (window, context) in cases.items():
        logits_BTA, returns_BTR = reader(window, context)
        assert returns_BTR is not None
        close(logits_BTA[window.mask], recorded[f"{name}/logits"])
        close(returns_BTR[window.mask][:, ::10], recorded[f"{name}/returns"])
        if context is not None:  # the way in which agents act
            close(reader.act(window, context), recorded[f"{name}/logits"][window.mask.sum(1).cumsum(0) - 1])


def test_the_records_tell_padding_that_counts_from_padding_that_does_not(recorded: dict[str, np.ndarray]) -> None:
    plain = network("all", return_embedding="bins", predict_return=True, context_positions=100)
    for name, lengths, differs in (("radt_full", FULL, False), ("radt_padded", PADDED, True)):
        window, context = windows(1, lengths), windows(2, lengths[::-1])
        off = plain(window, context)[0][window.mask] - torch.from_numpy(recorded[f"{name}/logits"])
        assert bool(off.abs().max() > 0.01) == differs


def test_dt_and_its_keys_are_the_released_ones(recorded: dict[str, np.ndarray]) -> None:
    embedder, window = network(padding="counted", return_embedding="bins"), windows(1, PADDED)
    close(embedder(window)[0][window.mask], recorded["dt_padded/logits"])
    hidden_BTKD = embedder.hidden(window)
    for kind in ("s", "a", "r", "rtg", "all"):
        key_BD = pooled(hidden_BTKD, window.mask, tokens=TOKENS, kind=kind, steps=5, normalise=False)
        close(key_BD, recorded[f"key/{kind}"])


def test_ad_attends_to_padding_as_released(recorded: dict[str, np.ndarray]) -> None:
    distilled, window = network(padding="attended", return_to_go=False), windows(1, PADDED)
    close(distilled(window)[0][window.mask], recorded["ad_attended/logits"])
    last = recorded["ad_attended/logits"][window.mask.sum(1).cumsum(0) - 1]
    close(distilled.act(window), last)
    close(distilled.act(window.select([2, 3]).last(3)), last[[2, 3]])  # what is missing in front is padding


def test_a_context_encoder_without_timesteps_is_the_released_one(recorded: dict[str, np.ndarray]) -> None:
    encoding = network((1,), padding="counted", context_positions=100, context_layers=1, timesteps=0)
    window, context = windows(1, PADDED), windows(2, PADDED[::-1])
    close(encoding(window, context)[0][window.mask], recorded["encoder/logits"])


def test_frozen_hopfield_is_the_released_one(recorded: dict[str, np.ndarray]) -> None:
    embeddings_VD = torch.from_numpy(np.random.RandomState(0).normal(0, 1, (40, 16)).astype(np.float32))
    hopfield = FrozenHopfield(embeddings_VD, 6, beta=10.0)
    projection_DI = np.random.RandomState(1).normal(0, (6 / 16) ** 0.5, (16, 6))
    hopfield.projection_DI = torch.from_numpy(projection_DI.astype(np.float32))
    raw = np.random.RandomState(2).normal(0, 1, (5, 6)).astype(np.float32)
    close(hopfield(torch.from_numpy(raw)), recorded["hopfield/raw"], 1e-6)
    close(hopfield.one_hot_table(), recorded["hopfield/one_hot"], 1e-6)
    close(LookupHopfield(hopfield, [6])(torch.arange(6)[:, None]), recorded["hopfield/lookup"], 1e-6)


def test_learning_rates_are_the_released_ones(recorded: dict[str, np.ndarray]) -> None:
    for total in (100_000, 200_000):
        optimisation = Optimisation(steps=total)
        rates = [optimisation.rate(int(step)) for step in recorded[f"rate/{total}/step"]]
        np.testing.assert_allclose(rates, recorded[f"rate/{total}/rate"], rtol=0, atol=1e-15)


# ---------------------------------------------------------------- what is cut and what is retrieved


def test_ad_reads_the_released_earlier_episode(recorded: dict[str, np.ndarray]) -> None:
    sizes = [5, 130, 1015]  # episodes of three tasks, of one step each
    total = sum(sizes)
    columns = {
        "observation": np.zeros((total, 2), np.int64),
        "action": np.zeros(total, np.int64),
        "reward": np.zeros(total, np.float32),
        "done": np.ones(total, bool),
        "task": np.repeat(np.arange(3), sizes),
        "episode": np.concatenate([np.arange(size) for size in sizes]),
    }
    histories = Histories(columns)
    for back in (1, 10, 100, 1000):
        sampler = DistillationSampler(histories, context=2, batch_size=1, seed=0, episodes_back=back)
        np.testing.assert_array_equal(sampler.episodes_before(np.arange(total)), recorded[f"contexts/{back}"])


def test_memory_is_cut_as_released(recorded: dict[str, np.ndarray]) -> None:
    length = np.array([24, 25, 49, 50, 51, 74, 100, 130, 400])
    nothing = np.zeros(len(length))
    for mode in ("cut", "full"):
        settings = ChunkSettings(stride=25, key_context=50, past=25, future=25, full_values=mode == "full")
        chunks = cut_chunks(np.zeros(len(length), np.int64), length, nothing.astype(np.int64), nothing, settings)
        ours = [chunks.episode, chunks.key_first, chunks.key_end, chunks.value_first, chunks.value_end]
        np.testing.assert_array_equal(np.stack(ours, 1), recorded[f"chunks/{mode}"])


def memory(seed: int, tasks: int, trajectories: int, spread: float) -> tuple[Tensor, ...]:
    """Keys of 4 cuts of each trajectory: a direction of the task, one of the cut, and noise; with their columns."""
    draws = np.random.RandomState(seed)
    count = tasks * trajectories * 4
    task = np.repeat(np.arange(tasks), trajectories * 4)
    trajectory = np.repeat(np.arange(tasks * trajectories), 4)
    cut = np.tile(np.arange(4), tasks * trajectories)
    keys = draws.normal(size=(tasks, 8))[task] + draws.normal(size=(4, 8))[cut] + spread * draws.normal(size=(count, 8))
    total_return = np.repeat(draws.randint(0, 90, tasks * trajectories), 4)
    last = np.maximum(cut * 25, 2) - 1
    columns = (keys.astype(np.float32), task, trajectory, total_return.astype(np.float32), last)
    keys_ND, *rest = (torch.from_numpy(column) for column in columns)
    return keys_ND, *rest


@pytest.mark.parametrize("spread", [0.3, 0.6])
def test_near_copies_are_removed_by_the_released_rule(recorded: dict[str, np.ndarray], spread: float) -> None:
    keys_ND, task_N, *_ = memory(3, 4, 60, spread)
    theirs = deduplicate(normalised(keys_ND), task_N, mode="upstream")
    np.testing.assert_array_equal(theirs.kept, recorded[f"deduplicated/{spread}"])
    assert not np.array_equal(deduplicate(normalised(keys_ND), task_N).kept, theirs.kept)


@pytest.mark.parametrize("spread", [0.05, 0.3, 1.0])
def test_training_retrieves_the_released_entry(recorded: dict[str, np.ndarray], spread: float) -> None:
    keys_ND, task_N, trajectory_N, return_N, last_N = memory(4, 4, 60, spread)
    draws = np.random.RandomState(5)
    own = torch.from_numpy(draws.choice(len(keys_ND), 64, replace=False))
    noise = torch.from_numpy(draws.normal(size=(64, 8)))
    query_BD = (keys_ND[own].double() + 0.3 * noise).float()
    keys_ND = normalised(keys_ND)

    def search(query: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return matmul_search(query, keys_ND, k)

    stored = TrainingMemory(search, keys_ND, task_N, trajectory_N, return_N, last_N)
    queries = Queries(normalised(query_BD), task_N[own], trajectory_N[own], return_N[own], torch.full((64,), 40))
    found = retrieve(queries, stored, RetrievalSettings(excluded="demote"), torch.Generator())
    close(found.score_BK[:, 0].float(), recorded[f"training/{spread}/score"])
    same = found.id_BK[:, 0].numpy() == recorded[f"training/{spread}/entry"]
    # Entries of the very same score may be taken in either order: those that were demoted.
    demoted = np.isclose(recorded[f"training/{spread}/score"], 1.0, atol=1e-5)
    assert same[~demoted].all() and (same | demoted).all()
    if spread == 1.0:
        assert same.mean() > 0.95


@pytest.mark.parametrize("entries", [4, 40, 100, 160])
def test_acting_retrieves_the_released_entry(recorded: dict[str, np.ndarray], entries: int) -> None:
    keys_ND, _, trajectory_N, return_N, last_N = memory(6, 1, entries // 4, 0.5)
    lengths = np.random.RandomState(7).uniform(1, 4, (entries, 1)).astype(np.float32)
    stored = EpisodicMemory(1, entries, 8, EpisodicSettings(similarity="inner_product"))
    zero_M = torch.zeros(entries, dtype=torch.long)
    stored.add(
        zero_M,
        keys_ND * torch.from_numpy(lengths),
        slot_M=trajectory_N,
        first_M=zero_M,
        end_M=zero_M,
        last_M=last_N,
        total_return_M=return_N,
        owner_M=zero_M,
    )
    query_BD = np.random.RandomState(8).normal(size=(48, 8)).astype(np.float32) * 3
    found = stored.search(torch.from_numpy(query_BD), torch.zeros(48, dtype=torch.long))
    close(found.score_BK[:, 0].float(), recorded[f"acting/{entries}/score"], 1e-4)
    np.testing.assert_array_equal(found.index_BK[:, 0].numpy(), recorded[f"acting/{entries}/entry"])
