"""How a retrieved window is read: gate, no residual, no gradient, a context encoder, selected layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from recollect.common.transformer import Transformer, TransformerSettings
from recollect.radt.supervised import ExperienceStore
from recollect.radt.windows import WindowSampler


def windows(tiny: Any, rows: int = 6) -> tuple[Any, Any]:
    """A batch of windows, and one of contexts."""
    histories = tiny().histories(lengths=(12, 5))
    store = ExperienceStore(histories, actions=5)
    batches = [WindowSampler(histories, context=8, batch_size=rows, seed=seed).batch(0) for seed in (0, 1)]
    first, second = (store.windows(batch.rows, batch.mask) for batch in batches)
    return first, second


@pytest.mark.parametrize(
    "chosen", [{"cross_gate": True}, {"cross_residual": False}, {"context_layers": 2}, {"cross_layers": (1,)}], ids=str
)
@pytest.mark.parametrize("tokens", ["merged", "interleaved"])
def test_every_way_of_reading_acts_as_it_learns_and_skips_rows_without_context(
    tiny: Any, chosen: dict[str, Any], tokens: str
) -> None:
    room = tiny(tokens=tokens)
    network = room.network(room.settings("radt", network=chosen))
    window, context = windows(tiny)
    has_B = torch.tensor([True, False, True, True, False, True])
    with torch.no_grad():
        logits = network(window, context, has_B)[0][:, -1]
        torch.testing.assert_close(network.act(window, context, has_B), logits, atol=2e-5, rtol=0)
        alone = network(window)[0][:, -1]
        torch.testing.assert_close(logits[~has_B], alone[~has_B], atol=2e-5, rtol=0)
        assert (logits - alone)[has_B].abs().amax(1).min() > 1e-3


@pytest.mark.parametrize("tokens", ["merged", "interleaved"])
def test_the_last_action_and_reward_of_a_context_are_read_and_those_of_now_are_not(tiny: Any, tokens: str) -> None:
    room = tiny(tokens=tokens)
    network = room.network(room.settings("radt"))
    window, context = windows(tiny)
    has_B = torch.ones(6, dtype=torch.bool)
    with torch.no_grad():
        logits = network.act(window, context, has_B)
        for name in ("action", "reward"):

            def changed(steps: Any, name: str = name) -> Any:
                field = getattr(steps, name).clone()
                field[:, -1] = (field[:, -1] + 1) % 5
                return replace(steps, **{name: field})

            assert torch.equal(network.act(changed(window), context, has_B), logits)
            other = network.act(window, changed(context), has_B)
            assert (other - logits).abs().amax(1).min() > 1e-6


def test_without_residual_what_is_read_takes_the_place_of_the_hidden_state() -> None:
    """With one layer and an MLP that adds nothing, two inputs that differ in their hidden state only by a multiple that
    LayerNorm removes cannot be told apart; with the residual they can."""
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    context = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(1))
    apart = {}
    for residual in (True, False):
        shape = TransformerSettings(
            width=16, layers=1, heads=2, dropout=0.0, cross_attention="all", cross_residual=residual
        )
        model = Transformer(shape).eval()
        with torch.no_grad():
            for name in ("attention_out", "mlp_out"):  # neither changes the stream
                getattr(model.blocks[0], name).weight.zero_()
            x = x - x.mean(-1, keepdim=True)
            shifted = model(x * 3.0, context_BSD=context) - model(x, context_BSD=context)
        apart[residual] = float(shifted.abs().max())
    assert apart[False] < 1e-4 < 1e-3 < apart[True]


def test_a_detached_context_trains_no_table_of_its_own_and_reads_the_same(tiny: Any) -> None:
    window, context = windows(tiny)
    gradients, outputs = {}, []
    for detached in (False, True):
        network = tiny().network(tiny().settings("radt", network={"context_detached": detached}))
        logits = network(window, context, torch.ones(6, dtype=torch.bool))[0]
        logits.square().sum().backward()
        table = network.embed_context.observation.weight
        gradients[detached] = 0.0 if table.grad is None else float(table.grad.abs().sum())
        reads = network.transformer.blocks[0].cross_kv.weight.grad
        assert reads is not None and reads.abs().sum() > 0
        outputs.append(logits.detach())
    assert torch.equal(*outputs)
    assert gradients[True] == 0 < gradients[False]


def test_a_context_encoder_lets_context_steps_see_each_other_and_draws_the_same_after_a_resume(tiny: Any) -> None:
    chosen = {"context_layers": 1, "dropout": 0.3}
    network = tiny().network(tiny().settings("radt", network=chosen))
    window, context = windows(tiny)
    copied = network.context_encoder.blocks[
        0
    ].qkv.weight  # it starts as the policy's first block (and is scaled like it)
    assert torch.equal(copied, network.transformer.blocks[0].qkv.weight)
    encoded = network.reading(context, None)["context_BSD"]
    changed = torch.where(context.mask, (context.reward + 1), context.reward)
    first = context.mask & (context.mask.cumsum(1) == 1)  # only the first real step changes
    other = type(context)(
        **{
            name: torch.where(first, changed, context.reward) if name == "reward" else getattr(context, name)
            for name in context.__dataclass_fields__
        }
    )
    moved = (network.reading(other, None)["context_BSD"] - encoded).abs().amax(2)
    long = context.mask.sum(1) > 1
    assert (moved[:, -1][long] > 1e-6).all()  # the last step knows of the first
    network.train()
    has_B = torch.ones(6, dtype=torch.bool)
    runs = []
    for seed in (3, 3, 4):
        network.reseed_dropout(seed)
        runs.append(network(window, context, has_B)[0].detach())
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
    without = tiny().network(tiny().settings("radt"))
    assert without.context_encoder is None


def test_selected_layers_read_and_the_others_have_nothing_to_read_with(tiny: Any) -> None:
    network = tiny().network(tiny().settings("radt", network={"cross_layers": (1,), "cross_gate": True}))
    assert [hasattr(block, "cross_kv") for block in network.transformer.blocks] == [False, True]
    assert network.transformer.blocks[1].cross_gate is not None
