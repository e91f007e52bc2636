"""Promises of the transformer: it is GPT-2, causal, blind to padding and absent contexts; its draws are its own."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from recollect.common.transformer import Transformer, TransformerSettings
from recollect.settings.errors import UserError

if TYPE_CHECKING:
    from transformers import GPT2Model

TIGHT = {"rtol": 1e-5, "atol": 1e-5}


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def small(**options: object) -> TransformerSettings:
    return TransformerSettings.model_validate({"width": 32, "layers": 2, "heads": 4, **options})


def scrambled(model: Transformer, std: float = 0.2) -> Transformer:
    """Weights large enough that a mistake in any part of the model shows in its output."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * std)
    return model.eval()


def gpt2_of(model: Transformer, length: int) -> GPT2Model:
    """A GPT2Model with the same weights and no positions."""
    from transformers import GPT2Config, GPT2Model

    s = model.settings
    config = GPT2Config(
        vocab_size=2,
        n_positions=length,
        n_embd=s.width,
        n_layer=s.layers,
        n_head=s.heads,
        activation_function="gelu" if s.activation == "gelu" else "gelu_new",
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        reference = GPT2Model(config).eval()
    with torch.no_grad():
        reference.wpe.weight.zero_()
        for ours, theirs in zip(model.blocks, reference.h, strict=True):
            for mine, other in [
                (ours.qkv, theirs.attn.c_attn),
                (ours.attention_out, theirs.attn.c_proj),
                (ours.mlp_in, theirs.mlp.c_fc),
                (ours.mlp_out, theirs.mlp.c_proj),
            ]:
                other.weight.copy_(mine.weight.t())
                other.bias.copy_(mine.bias)
            for mine, other in [(ours.norm_attention, theirs.ln_1), (ours.norm_mlp, theirs.ln_2)]:
                other.load_state_dict(mine.state_dict())
        reference.ln_f.load_state_dict(model.norm_final.state_dict())
    return reference


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("padding", ["none", "left"])
def test_it_computes_what_gpt2_computes(activation: str, padding: str) -> None:
    model = scrambled(Transformer(small(activation=activation)))
    reference, x = gpt2_of(model, 60), draws(3, 60, 32)
    mask = torch.ones(3, 60, dtype=torch.bool)
    if padding == "left":
        mask[0, :7], mask[2, :59] = False, False
    with torch.no_grad():
        expected = reference(inputs_embeds=x, attention_mask=mask.long()).last_hidden_state
        given = model(x, mask_BT=mask)
    torch.testing.assert_close(given[mask], expected[mask], **TIGHT)
    assert given[~mask].eq(0).all()


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("attention_dropout", [0.0, 1e-9])
def test_its_gradients_are_those_of_gpt2(activation: str, attention_dropout: float) -> None:
    # A dropout of 1e-9 drops nothing, but takes the path that training takes.
    settings = small(activation=activation, dropout=0.0, attention_dropout=attention_dropout, width=64)
    model = scrambled(Transformer(settings), std=0.1).train()
    reference, x, weight = gpt2_of(model, 130), draws(9, 130, 64), draws(9, 130, 64, seed=1)
    x_ours, x_theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    (model(x_ours) * weight).sum().backward()
    (reference(inputs_embeds=x_theirs).last_hidden_state * weight).sum().backward()
    torch.testing.assert_close(x_ours.grad, x_theirs.grad, rtol=1e-3, atol=1e-3)
    for ours, theirs in zip(model.blocks, reference.h, strict=True):
        torch.testing.assert_close(ours.qkv.weight.grad, theirs.attn.c_attn.weight.grad.t(), rtol=1e-3, atol=5e-3)
        torch.testing.assert_close(ours.mlp_in.bias.grad, theirs.mlp.c_fc.bias.grad, rtol=1e-3, atol=5e-3)
        torch.testing.assert_close(ours.mlp_out.weight.grad, theirs.mlp.c_proj.weight.grad.t(), rtol=1e-3, atol=5e-3)


@pytest.mark.parametrize("attention_dropout", [0.0, 1e-9])
def test_padding_anywhere_gives_what_the_tokens_alone_give_also_in_gradients(attention_dropout: float) -> None:
    settings = small(cross_attention="all", dropout=0.0, attention_dropout=attention_dropout)
    model = scrambled(Transformer(settings)).train()
    x, context = draws(3, 11, 32), draws(3, 5, 32, seed=1)
    mask = torch.ones(3, 11, dtype=torch.bool)
    mask[0, :4], mask[1, [2, 5, 10]] = False, False
    context_mask = torch.ones(3, 5, dtype=torch.bool)
    context_mask[0, :2] = False
    x_padded, context_padded = x.clone().requires_grad_(), context.clone().requires_grad_()
    h = model(x_padded, mask_BT=mask, context_BSD=context_padded, context_mask_BS=context_mask)
    (h * draws(3, 11, 32, seed=2)).sum().backward()
    assert x_padded.grad is not None and context_padded.grad is not None
    assert x_padded.grad[~mask].eq(0).all()
    assert context_padded.grad[~context_mask].eq(0).all()
    for b in range(3):
        x_alone = x[b : b + 1, mask[b]].clone().requires_grad_()
        context_alone = context[b : b + 1, context_mask[b]].clone().requires_grad_()
        alone = model(x_alone, context_BSD=context_alone)
        torch.testing.assert_close(h[b, mask[b]], alone[0], **TIGHT)
        (alone * draws(3, 11, 32, seed=2)[b : b + 1, mask[b]]).sum().backward()
        assert x_alone.grad is not None and context_alone.grad is not None
        torch.testing.assert_close(x_padded.grad[b, mask[b]], x_alone.grad[0], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(context_padded.grad[b, context_mask[b]], context_alone.grad[0], rtol=1e-3, atol=1e-4)


def test_a_row_of_padding_only_gives_zeros_and_finite_gradients() -> None:
    model = Transformer(small()).train()
    mask = torch.tensor([[True] * 4, [False] * 4])
    h = model(draws(2, 4, 32), mask_BT=mask)
    h.sum().backward()
    assert h[1].eq(0).all() and h[0].ne(0).any()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("heads, length", [(1, 130), (4, 130), (4, 1), (4, 49)])
def test_no_token_sees_the_future(heads: int, length: int) -> None:
    model = scrambled(Transformer(small(heads=heads, dropout=0.0, attention_dropout=1e-9))).train()
    x = draws(2, length, 32).requires_grad_()
    at = length // 2
    model(x)[:, at].square().sum().backward()
    assert x.grad is not None
    assert x.grad[:, at + 1 :].eq(0).all()
    assert x.grad[:, : at + 1].abs().sum(-1).gt(0).all()


def plain_block(model: Transformer, x: Tensor, context: Tensor) -> Tensor:
    """One layer with cross-attention, written out token by token and head by head."""
    block, s = model.blocks[0], model.settings
    width = s.width // s.heads

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = []
        for head in range(s.heads):
            cut = slice(head * width, (head + 1) * width)
            parts.append(((q[cut] @ k[:, cut].t()) / math.sqrt(width)).softmax(0) @ v[:, cut])
        return torch.cat(parts)

    q, k, v = block.qkv(block.norm_attention(x)).split(s.width, dim=-1)
    rows = [attend(q[t], k[: t + 1], v[: t + 1]) for t in range(len(x))]
    h = x + block.attention_out(torch.stack(rows))
    k, v = block.cross_kv(context).split(s.width, dim=-1)
    q = block.cross_q(block.norm_cross(h))
    read = block.cross_out(torch.stack([attend(row, k, v) for row in q]))
    h = h + (read if block.cross_gate is None else read / (1 + (-block.cross_gate(read)).exp()))
    h = h + block.mlp_out(torch.nn.functional.gelu(block.mlp_in(block.norm_mlp(h))))
    return model.norm_final(h)


@pytest.mark.parametrize("gated", [False, True])
def test_cross_attention_comes_after_self_attention_with_a_plain_residual_and_no_causal_mask(gated: bool) -> None:
    model = scrambled(Transformer(small(layers=1, cross_attention="all", cross_gate=gated)))
    x, context = draws(1, 6, 32), draws(1, 9, 32, seed=1)
    torch.testing.assert_close(model(x, context_BSD=context)[0], plain_block(model, x[0], context[0]), **TIGHT)


@pytest.mark.parametrize("training", [False, True])
def test_rows_without_context_are_as_in_a_model_that_never_had_one(training: bool) -> None:
    settings = small(cross_attention=(1,), dropout=0.0, attention_dropout=1e-9)
    model = scrambled(Transformer(settings)).train(training)
    x, context = draws(3, 6, 32), draws(3, 4, 32, seed=1)
    without, with_it = model(x), model(x, context_BSD=context)
    has = torch.tensor([True, False, True])
    mixed = model(x, context_BSD=context, has_context_B=has)
    torch.testing.assert_close(mixed[has], with_it[has], **TIGHT)
    torch.testing.assert_close(mixed[~has], without[~has], **TIGHT)
    assert (with_it - without).abs().max() > 0.1
    # A context of padding only is no context.
    masked = torch.tensor([[True] * 4, [False] * 4, [True] * 4])
    torch.testing.assert_close(model(x, context_BSD=context, context_mask_BS=masked), mixed, **TIGHT)


def test_the_computation_is_skipped_when_no_row_has_a_context() -> None:
    model = scrambled(Transformer(small(cross_attention="all")))
    calls: list[int] = []
    for block in model.blocks:
        block.cross_kv.register_forward_hook(lambda *_: calls.append(1))
    x, context = draws(2, 6, 32), draws(2, 4, 32, seed=1)
    h = model(x, context_BSD=context, has_context_B=torch.zeros(2, dtype=torch.bool))
    assert not calls
    torch.testing.assert_close(h, model(x), rtol=0, atol=0)
    model(x, context_BSD=context)
    assert len(calls) == 2


def test_only_the_named_layers_read_the_context_and_a_gate_starts_half_open() -> None:
    model = Transformer(small(layers=3, cross_attention=(0, 2), cross_gate=True))
    assert [block.cross for block in model.blocks] == [True, False, True]
    gated, plain = scrambled(model), scrambled(Transformer(small(layers=3, cross_attention=(0, 2))))
    plain.load_state_dict(gated.state_dict(), strict=False)
    with torch.no_grad():
        for block in gated.blocks:
            if block.cross:
                block.cross_gate.weight.zero_()  # with biases of zero, as it starts, what is read is halved
                block.cross_gate.bias.zero_()
        for block in plain.blocks:
            if block.cross:
                block.cross_out.weight.mul_(0.5)
                block.cross_out.bias.mul_(0.5)
    x, context = draws(2, 6, 32), draws(2, 4, 32, seed=1)
    torch.testing.assert_close(gated(x, context_BSD=context), plain(x, context_BSD=context), **TIGHT)


def test_attention_maps_are_what_the_output_was_made_of() -> None:
    model = scrambled(Transformer(small(cross_attention=(1,))))
    x, context = draws(2, 6, 32), draws(2, 4, 32, seed=1)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, :2] = False
    context_mask = torch.tensor([[True] * 4, [True, True, False, False]])
    h, maps = model(x, mask_BT=mask, context_BSD=context, context_mask_BS=context_mask, return_attention=True)
    torch.testing.assert_close(h, model(x, mask_BT=mask, context_BSD=context, context_mask_BS=context_mask), **TIGHT)
    assert [tuple(m.shape) for m in maps.self_BHTT] == [(2, 4, 6, 6)] * 2
    assert maps.cross_BHTS[0] is None
    cross = maps.cross_BHTS[1]
    assert cross is not None and cross.shape == (2, 4, 6, 4)
    for m in (*maps.self_BHTT, cross):
        torch.testing.assert_close(m.sum(-1), torch.ones(2, 4, 6))
    assert all(m.triu(1).eq(0).all() for m in maps.self_BHTT)
    assert maps.self_BHTT[0][1, :, 2:, :2].eq(0).all()
    assert cross[1, :, :, 2:].eq(0).all()
    # Layer 0 by hand: the map times the values.
    block = model.blocks[0]
    q, k, _ = block.qkv(block.norm_attention(x)).view(2, 6, 3, 4, 8).permute(2, 0, 3, 1, 4)
    scores = (q @ k.transpose(-1, -2) / math.sqrt(8)).masked_fill(torch.ones(6, 6).triu(1).bool(), -math.inf)
    torch.testing.assert_close(maps.self_BHTT[0][0], scores.softmax(-1)[0], **TIGHT)


def test_initial_weights_follow_the_named_scheme() -> None:
    for init, std in (("gpt2", 0.02 / math.sqrt(8)), ("plain", 0.02)):
        model = Transformer(TransformerSettings(width=128, layers=4, heads=4, init=init, cross_attention="all"))
        for block in model.blocks:
            for part in (block.qkv, block.mlp_in, block.cross_q, block.cross_kv):
                assert part.weight.std().item() == pytest.approx(0.02, rel=0.03)
            for part in (block.attention_out, block.mlp_out, block.cross_out):
                assert part.weight.std().item() == pytest.approx(std, rel=0.03)
            assert block.mlp_in.bias.eq(0).all() and block.norm_mlp.weight.eq(1).all()


def test_parameter_counts_are_those_of_ra_dt() -> None:
    def blocks(cross: str) -> int:
        settings = TransformerSettings.model_validate({"width": 512, "layers": 4, "heads": 8, "cross_attention": cross})
        return sum(p.numel() for p in Transformer(settings).blocks.parameters())

    assert blocks("none") == 4 * 3_152_384
    assert blocks("all") - blocks("none") == 4 * (1_050_624 + 2 * 512)


def test_weights_and_dropout_are_functions_of_the_seed_and_touch_no_global_generator() -> None:
    before = torch.random.get_rng_state()
    x = draws(4, 9, 32)
    first, same, other = (Transformer(small(dropout=0.3), seed=seed).train() for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), same.parameters(), strict=True))
    assert not torch.equal(first.blocks[0].qkv.weight, other.blocks[0].qkv.weight)
    a, b = first(x), first(x)
    assert not torch.equal(a, b)
    torch.testing.assert_close(same(x), a, rtol=0, atol=0)
    first.reseed_dropout(7)
    c = first(x)
    first(x)
    first.reseed_dropout(7)
    torch.testing.assert_close(first(x), c, rtol=0, atol=0)
    copied = copy.deepcopy(first)
    torch.testing.assert_close(copied(x), first(x), rtol=0, atol=0)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_each_dropout_can_be_set_alone_and_eval_has_none() -> None:
    x = draws(4, 9, 32)
    for name in ("embedding_dropout", "residual_dropout", "attention_dropout"):
        model = scrambled(Transformer(small(dropout=0.0, **{name: 0.5})))
        plain = model(x)
        torch.testing.assert_close(model(x), plain, rtol=0, atol=0)
        model.train()
        assert (model(x) - plain).abs().max() > 0.05, name
    model = scrambled(Transformer(small(dropout=0.0)))
    torch.testing.assert_close(model.train()(x), model.eval()(x), **TIGHT)


@pytest.mark.parametrize("residual", [False, True])
def test_what_is_read_is_dropped_out_as_what_a_residual_adds(residual: bool) -> None:
    shape = {"dropout": 0.0, "residual_dropout": 0.5, "cross_attention": "all", "cross_residual": residual}
    model = scrambled(Transformer(small(layers=1, **shape)))
    block, x, context = model.blocks[0], draws(2, 6, 32), draws(2, 4, 32, seed=1)
    with torch.no_grad():
        for part in (block.attention_out, block.mlp_out):  # so nothing else can be dropped
            part.weight.zero_()
            part.bias.zero_()
    plain = model(x, context_BSD=context)
    assert (model.train()(x, context_BSD=context) - plain).abs().max() > 0.05


@pytest.mark.parametrize("device_type", ["cpu"])
def test_bfloat16_autocast_trains(device_type: str) -> None:
    model = Transformer(small(cross_attention="all")).train()
    x, context = draws(2, 60, 32), draws(2, 4, 32, seed=1)
    mask = torch.ones(2, 60, dtype=torch.bool)
    mask[0, :3] = False
    with torch.autocast(device_type, torch.bfloat16):
        h = model(x, mask_BT=mask, context_BSD=context)
        h.float().square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.eval()
    exact = model(x, mask_BT=mask, context_BSD=context)
    with torch.autocast(device_type, torch.bfloat16):
        rounded = model(x, mask_BT=mask, context_BSD=context).float()
    assert 0 < (exact - rounded).abs().max() < 0.1


@pytest.mark.parametrize(
    "bad, says", [({"width": 33}, "33 cannot be split into 4 heads"), ({"cross_attention": (2,)}, r"layers \[2\]")]
)
def test_impossible_shapes_are_refused(bad: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        small(**bad)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("reads", ["nothing", "some rows", "all rows"])
def test_the_last_token_alone_is_what_the_whole_window_gives_it(layers: int, padded: bool, reads: str) -> None:
    model = scrambled(Transformer(small(layers=layers, cross_attention="all"), seed=2))
    x, context = draws(5, 7, 32), draws(5, 4, 32, seed=1)
    mask = torch.arange(7) >= torch.tensor([0, 6, 3, 1, 5])[:, None] if padded else None
    keywords = {} if reads == "nothing" else {
        "context_BSD": context,
        "context_mask_BS": torch.arange(4) >= torch.tensor([0, 3, 1, 0, 2])[:, None],
        "has_context_B": torch.tensor([True] * 5 if reads == "all rows" else [True, False, True, False, False]),
    }  # fmt: skip
    with torch.no_grad():
        torch.testing.assert_close(
            model.last(x, mask_BT=mask, **keywords), model(x, mask_BT=mask, **keywords)[:, -1], **TIGHT
        )
