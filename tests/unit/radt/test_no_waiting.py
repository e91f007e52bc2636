"""A training step asks a device for nothing: it runs on a device that has no numbers to give.

Tensors of PyTorch's device "meta" have shapes only. Whatever would make the host wait for a GPU (to read a number, to find
where a mask is True, to copy a tensor back) raises there. What is not the CPU takes the same paths as a GPU.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from test_radt import batch, reader_of

from recollect.radt import dpt, radt
from recollect.radt.dt import action_loss
from recollect.radt.supervised import ExperienceStore, Gradients, Optimisation, make_optimiser, read_back
from recollect.radt.windows import DistillationSampler, QuerySampler, WindowSampler

META = torch.device("meta")


def moved(thing: Any) -> Any:
    """A copy of an object whose tensors stand on the meta device."""
    thing = copy.copy(thing)
    for name, value in vars(thing).items():
        if isinstance(value, torch.Tensor):
            setattr(thing, name, value.to(META))
    return thing


@pytest.mark.parametrize(
    "asks", [lambda x: float(x[0]), lambda x: x[x > 0], lambda x: x.cpu(), lambda x: bool(x.any())]
)
def test_the_meta_device_refuses_what_would_wait(asks: Any) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        asks(torch.ones(3, device=META))


def learns(network: Any, loss_of: Any, learned_of: Any, one: Any, micro_batches: int) -> dict[str, torch.Tensor]:
    """A training step as `train_supervised` takes it."""
    chosen = Optimisation(micro_batches=micro_batches)
    network.train()
    optimiser = make_optimiser(network, chosen)
    network.reseed_dropout(3)
    optimiser.zero_grad()
    values = Gradients(lambda one: loss_of(network, one), chosen, META, learned_of).add(one)
    values["norm"] = torch.nn.utils.clip_grad_norm_(network.parameters(), chosen.clip)
    optimiser.step()
    assert all(parameter.grad is not None for parameter in network.parameters() if parameter.requires_grad)
    return values


@pytest.mark.quick("dt-hidden-1", "ad-counted-2", "dpt-attended-1", "dt-attended-2")
@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("padding", ["hidden", "counted", "attended"])
@pytest.mark.parametrize("method", ["dt", "ad", "dpt"])
def test_a_step_never_waits_for_the_device(tiny: Any, method: str, padding: str, micro_batches: int) -> None:
    if method == "dpt" and padding != "hidden":
        pytest.skip("DPT's padding is hidden")
    room = tiny(tokens="interleaved")
    of = room.settings(method, network={"padding": padding})
    network, histories = room.network(of).to(META), room.histories(lengths=(12, 5))
    store = ExperienceStore(histories, actions=5, device=META)
    sampling: dict[str, Any] = {"context": 12, "batch_size": 6, "seed": 0}
    one: Any
    if method == "dpt":
        one = dpt.batch_from(store, QuerySampler(histories, queries=2, **sampling).batch(0), merged=False)
        values = learns(
            network, lambda model, one: action_loss(dpt.logits_of(model, one), one.queries), lambda one: one.queries,
            one, micro_batches,
        )  # fmt: skip
    else:
        sampler = WindowSampler(histories, **sampling)
        if method == "ad":
            sampler = DistillationSampler(histories, episodes_back=1, **sampling)
        windows = sampler.batch(0)
        one = store.windows(windows.rows, windows.mask)
        values = learns(
            network, lambda model, one: action_loss(model(one)[0], one), lambda one: one, one, micro_batches
        )
    assert {"loss", "action_accuracy", "norm"} <= set(values) and {value.device for value in values.values()} == {META}
    with pytest.raises((RuntimeError, NotImplementedError)):
        read_back(values)  # once per interval of the log


@pytest.mark.parametrize("values", ["cut", "dynamic"])
def test_a_batch_of_radt_is_made_and_learned_without_waiting(tiny: Any, tmp_path: Path, values: str) -> None:
    """All but the exact search itself, which asks once whether it ended in a tie."""
    chosen = {"values": values, "context_drop": 0.2, "null_document": 0.1, "network": {"return_embedding": "bins"}}
    reader, _, histories = reader_of(tiny, tmp_path, tokens="interleaved", lengths=(12, 5), **chosen)
    room = tiny(tokens="interleaved")
    of = room.settings("radt", **chosen)
    reader.store = ExperienceStore(histories, actions=5, device=META)
    keys_ND = torch.zeros(len(reader.chunks), 16, device=META)

    def search(query_QD: torch.Tensor, k: int) -> Any:
        return (query_QD @ keys_ND.T).topk(min(k, len(keys_ND)))

    memory = moved(reader.memory)
    memory.search, memory.keys_ND = search, keys_ND
    reader.memory = memory
    reader.values = moved(reader.values)
    reader.embedder = room.embedder(room.settings("radt"))
    reader.embedder.network.to(META)
    window, rows = batch(histories, reader.store, 1, size=6)
    context, has, notes = reader.read(window, rows, 1)
    assert notes == {} and {field.device for field in vars(context).values()} == {has.device} == {META}
    one = radt.Batch(window, context, has)
    found = learns(
        room.network(of).to(META),
        lambda model, one: radt.radt_loss(model, one, 1.0, room.environment.returns),
        lambda one: one.window,
        one,
        2,
    )
    assert "return_loss" in found and found["with_context"].device == META
