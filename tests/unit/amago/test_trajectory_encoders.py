"""AMAGO's trajectory encoders: stepping equals the whole pass, whoever is reset when; the ring forgets the oldest only."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from recollect.amago.sigma_reparam import SigmaLinear
from recollect.amago.trajectory_encoders import (
    Block,
    TrajectoryEncoderSettings,
    make_trajectory_encoder,
    turned_by_time,
)

HORIZON = 25


def encoder(kind: str = "transformer", *, context: int = HORIZON, **changes: Any) -> Any:
    settings = TrajectoryEncoderSettings.model_validate({"kind": kind, "width": 16, "layers": 2, "heads": 2, **changes})
    made = make_trajectory_encoder(settings, 6, horizon=HORIZON, context=context, seed=0)
    with torch.no_grad():  # so that every part matters
        for name, parameter in made.named_parameters():
            if "norm" in name or "head_scale" in name or "gamma" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))))
    return made.eval()


@pytest.mark.quick("transformer-changes0", "gru-changes6", "ff-changes7")
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("transformer", {}),
        ("transformer", {"positions": "sinusoid"}),
        ("transformer", {"positions": "rotary"}),
        ("transformer", {"window": 3}),
        ("transformer", {"positions": "rotary", "window": 4, "sigma_reparam": False}),
        ("transformer", {"normformer": False, "sigma_reparam": False, "head_scale": False, "activation": "gelu"}),
        ("gru", {}),
        ("ff", {}),
    ],
)
def test_steps_equal_the_whole_pass_with_actors_at_different_steps_and_random_resets(
    kind: str, changes: dict[str, Any]
) -> None:
    model, draws = encoder(kind, **changes), np.random.default_rng(0)
    B, steps = 4, 40
    state = model.initial_state(B, "cpu")
    histories: list[list[np.ndarray]] = [[] for _ in range(B)]
    lengths = set()
    for step in range(steps):
        ended = (
            (draws.random(B) < 0.12) | (np.array([len(h) for h in histories]) >= HORIZON) if step else np.zeros(B, bool)
        )
        state = model.reset(state, ended)
        for b in np.flatnonzero(ended):
            histories[b] = []
        x = draws.normal(size=(B, 6)).astype(np.float32)
        out, state = model.step(torch.as_tensor(x), state)
        for b in range(B):
            histories[b].append(x[b])
            whole = model(torch.as_tensor(np.stack(histories[b]))[None], torch.arange(len(histories[b]))[None])
            torch.testing.assert_close(out[b], whole[0, -1].detach(), atol=2e-5, rtol=1e-4)
        lengths.add(tuple(len(h) for h in histories))
    assert any(len(set(each)) == B for each in lengths)  # actors did stand at different steps


def test_positions_are_those_of_the_rollout_and_not_of_the_window() -> None:
    model = encoder()
    x = torch.randn(1, 8, 6, generator=torch.Generator().manual_seed(0))
    first = model(x, torch.arange(8)[None])
    later = model(x, torch.arange(15, 23)[None])
    assert float((first - later).abs().max().detach()) > 1e-2


def test_learned_positions_begin_as_torchs_embeddings_do() -> None:
    table = encoder(width=64).table_TD.detach()
    assert (float(table.mean()), float(table.std())) == (pytest.approx(0.0, abs=0.1), pytest.approx(1.0, abs=0.1))


def test_steps_beyond_the_horizon_share_its_position() -> None:
    """As where rollouts follow one another and memory is kept."""
    model, x = encoder(), torch.randn(1, 1, 6, generator=torch.Generator().manual_seed(0))
    before, last, *beyond = (model(x, torch.tensor([[HORIZON + t]])) for t in (-1, 0, 1, 40))
    assert all(torch.equal(out, last) for out in beyond) and not torch.equal(before, last)


def test_without_its_additions_the_transformer_is_torchs_pre_norm_layer() -> None:
    model = encoder(normformer=False, sigma_reparam=False, head_scale=False, activation="gelu", layers=1)
    block, x_BTD = model.blocks[0], torch.randn(2, 7, 6, generator=torch.Generator().manual_seed(0))
    plain: Any = torch.nn.TransformerEncoderLayer(16, 2, 64, 0.0, "gelu", batch_first=True, norm_first=True).eval()
    pairs = {
        "self_attn.in_proj_weight": block.qkv.weight,
        "self_attn.in_proj_bias": torch.zeros(48),
        "norm1": block.norm_attention,
        "norm2": block.norm_ff,
        "self_attn.out_proj": block.out,
        "linear1": block.ff_in,
        "linear2": block.ff_out,
    }
    with torch.no_grad():
        for name, ours in pairs.items():
            if isinstance(ours, torch.nn.Module):
                plain.get_submodule(name).load_state_dict(ours.state_dict())
            else:
                plain.get_parameter(name).copy_(ours)
        h = model.input(x_BTD) + model.table_TD[:7]
        causal = torch.ones(7, 7, dtype=torch.bool).triu(1)
        torch.testing.assert_close(model(x_BTD), model.norm(plain(h, src_mask=causal)), atol=1e-5, rtol=1e-4)
    assert sum(p.numel() for p in block.parameters()) == sum(p.numel() for p in plain.parameters()) - 48


def test_rotary_positions_turn_pairs_of_numbers_by_time_and_nothing_else() -> None:
    x_TD = torch.randn(5, 6, generator=torch.Generator().manual_seed(4)).double()
    for t, x in zip((0, 1, 7, 300, 9_999), x_TD, strict=True):
        expected = x.clone()
        for pair in range(3):
            angle = t * 10_000 ** (-2 * pair / 6)
            cos, sin = math.cos(angle), math.sin(angle)
            a, b = float(x[pair]), float(x[pair + 3])
            expected[pair], expected[pair + 3] = a * cos - b * sin, a * sin + b * cos
        found = turned_by_time(x[None, None].float(), torch.tensor([t]))[0, 0]
        torch.testing.assert_close(found, expected.float(), atol=2e-3 if t > 1000 else 1e-4, rtol=1e-4)
    # Attention then knows how far apart two steps are, and not when they were.
    model = encoder(positions="rotary", sigma_reparam=False)
    x_BTD = torch.randn(1, 8, 6, generator=torch.Generator().manual_seed(0))
    first, later, spread = (
        model(x_BTD, time[None]) for time in (torch.arange(8), torch.arange(9, 17), 2 * torch.arange(8))
    )
    torch.testing.assert_close(first, later, atol=1e-5, rtol=1e-4)
    assert float((first - spread).abs().max().detach()) > 1e-2


@pytest.mark.parametrize("window", [1, 3, 30])
def test_a_window_is_full_attention_with_a_banded_mask_and_acting_keeps_no_more_than_it(window: int) -> None:
    model, T = encoder(window=window), 12
    x_TD = torch.randn(T, 6, generator=torch.Generator().manual_seed(5))
    h = model.input(x_TD) + model.table_TD[:T]
    back_TT = torch.arange(T)[:, None] - torch.arange(T)
    for block in model.blocks:
        q, k, v = (part.transpose(0, 1) for part in block.project(h))
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill((back_TT < 0) | (back_TT > window), float("-inf"))
        h = h + block.attended((scores.softmax(-1) @ v).transpose(0, 1))
        h = h + block.feed_forward(h)
    torch.testing.assert_close(model(x_TD[None])[0], model.norm(h), atol=1e-5, rtol=1e-4)
    assert model.initial_state(2, "cpu").keys_values[0].shape[3] == min(window + 1, HORIZON)


def test_heads_with_an_odd_number_of_numbers_cannot_have_rotary_positions() -> None:
    with pytest.raises(ValueError, match="pairs of numbers"):
        encoder(positions="rotary", width=18, heads=6)


def rolled(model: Any, x_TD: torch.Tensor, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The documented semantics, plainly: keys and values are kept as they were computed, the oldest is dropped.

    The state of the last token, and how much it reads of those that are kept, [layers, S], the mean over heads.
    """
    kept: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in model.blocks]
    h = torch.zeros(0)
    for t, x in enumerate(x_TD):
        h, reads = model.input(x) + model.table_TD[t], []
        for cache, block in zip(kept, model.blocks, strict=True):
            assert isinstance(block, Block)
            q, k, v = block.project(h)
            cache.append((k, v))
            del cache[:-context]
            keys, values = (torch.stack([pair[i] for pair in cache], 1) for i in (0, 1))  # [H, S, Dh]
            weight = (keys @ q[..., None] / q.shape[-1] ** 0.5).softmax(1)
            reads.append(weight.mean((0, 2)))
            h = h + block.attended((weight * values).sum(1))
            h = h + block.feed_forward(h)
    return model.norm(h), torch.stack(reads)


def test_beyond_the_context_the_oldest_token_is_forgotten_and_nothing_else() -> None:
    model, context = encoder(context=4), 4
    x_BTD = torch.randn(2, 11, 6, generator=torch.Generator().manual_seed(1))
    state = model.initial_state(2, "cpu")
    with torch.no_grad():
        for t in range(11):
            if t == 3:
                state = model.reset(state, np.array([False, True]))  # rows roll at different times
            out, state = model.step(x_BTD[:, t], state)
            begun = x_BTD[1, 3 : t + 1] if t >= 3 else x_BTD[1, : t + 1]
            for b, seen in enumerate((x_BTD[0, : t + 1], begun)):
                expected, _ = rolled(model, seen, context)
                torch.testing.assert_close(out[b], expected, atol=1e-5, rtol=1e-4)
        exact = model(x_BTD[:1, -context:], torch.arange(7, 11)[None])[0, -1]
    assert float((out[0] - exact).abs().max()) > 1e-4  # not the same as encoding the last tokens anew


@pytest.mark.parametrize("context", [4, HORIZON])
def test_what_a_token_reads_is_what_a_plain_loop_says(context: int) -> None:
    """Rows stand at different steps, and are asked for in any order; asking changes nothing."""
    model = encoder(context=context)
    x_BTD = torch.randn(3, 11, 6, generator=torch.Generator().manual_seed(1))
    state = model.initial_state(3, "cpu")
    with torch.no_grad():
        for t in range(11):
            if t == 3:
                state = model.reset(state, np.array([False, True, False]))
            _, state = model.step(x_BTD[:, t], state)
            before = {name: value.copy() for name, value in state.arrays().items()}
            found = model.reads(x_BTD[[1, 0], t], state, torch.tensor([1, 0]))
            assert found.shape == (2, 2, context)
            begun = x_BTD[1, 3 : t + 1] if t >= 3 else x_BTD[1, : t + 1]
            for weights, seen in zip(found, (begun, x_BTD[0, : t + 1]), strict=True):
                _, expected = rolled(model, seen, context)
                torch.testing.assert_close(weights[:, -expected.shape[1] :], expected, atol=1e-5, rtol=1e-4)
                assert not weights[:, : -expected.shape[1]].any()
            assert all(np.array_equal(before[name], value) for name, value in state.arrays().items())


@pytest.mark.parametrize("kind", ["transformer", "gru", "ff"])
def test_a_saved_memory_goes_on_as_if_it_had_stayed(kind: str) -> None:
    model = encoder(kind, context=5)
    x_BTD = torch.randn(3, 9, 6, generator=torch.Generator().manual_seed(2))
    state = model.initial_state(3, "cpu")
    for t in range(9):
        out, state = model.step(x_BTD[:, t], state)
        if t == 6:
            other = model.state_from({name: value.copy() for name, value in model.state_arrays(state).items()})
        if t > 6:
            again, other = model.step(x_BTD[:, t], other)
            assert torch.equal(out, again)


@pytest.mark.parametrize("kind", ["transformer", "gru", "ff"])
def test_padding_on_the_right_changes_no_real_step(kind: str) -> None:
    model = encoder(kind)
    x_BTD = torch.randn(2, 7, 6, generator=torch.Generator().manual_seed(3))
    longer = torch.cat([x_BTD, 100 * torch.ones(2, 5, 6)], 1)
    short = model(x_BTD, torch.arange(7).expand(2, -1))
    padded = model(longer, torch.arange(12).expand(2, -1))
    torch.testing.assert_close(padded[:, :7], short, atol=1e-5, rtol=1e-5)


def test_sigma_reparametrised_weights_have_the_norm_gamma() -> None:
    layer = SigmaLinear(12, 20, generator=torch.Generator().manual_seed(0))
    assert float(torch.linalg.matrix_norm(layer.scaled(), 2).detach()) == pytest.approx(1.0, rel=1e-3)
    with torch.no_grad():
        layer.gamma.fill_(2.5)
        layer.weight.mul_(7.0)
    assert float(torch.linalg.matrix_norm(layer.scaled(), 2).detach()) == pytest.approx(2.5, rel=1e-3)


def test_sigma_follows_the_weight_while_learning_and_its_gradient_is_through_the_weight_only() -> None:
    layer = SigmaLinear(6, 4, generator=torch.Generator().manual_seed(0)).train()
    with torch.no_grad():
        layer.weight.add_(torch.randn(4, 6, generator=torch.Generator().manual_seed(1)))
    for _ in range(60):
        layer(torch.ones(1, 6))
    sigma = torch.linalg.matrix_norm(layer.weight, 2).detach()
    assert float(layer.u @ layer.weight.detach() @ layer.v) == pytest.approx(float(sigma), rel=1e-3)
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(2))
    layer.eval()
    layer(x).square().sum().backward()
    u, v, weight = layer.u.clone(), layer.v.clone(), layer.weight.detach().clone().requires_grad_()
    scaled = layer.gamma.detach() * weight / (u @ weight @ v)
    (x @ scaled.T + layer.bias.detach()).square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, weight.grad)


def test_the_weight_kept_for_acting_is_dropped_when_the_parameters_change() -> None:
    layer = SigmaLinear(6, 4, generator=torch.Generator().manual_seed(0)).eval()
    x = torch.ones(1, 6)
    with torch.no_grad():
        before = layer(x)
        state = {name: value.clone() for name, value in layer.state_dict().items()}
        state["gamma"] = torch.tensor([3.0])
        layer.load_state_dict(state)
        after_loading = layer(x)
        layer.train()
        layer.gamma.fill_(5.0)
        layer.eval()
        after_learning = layer(x)
    bias = layer.bias.detach()
    torch.testing.assert_close(after_loading - bias, 3.0 * (before - bias))
    torch.testing.assert_close(after_learning - bias, 5.0 * (before - bias))


@pytest.mark.parametrize("of", ["embeddings", "feed-forward layers"])
def test_dropout_is_of_embeddings_and_of_feed_forward_layers(of: str) -> None:
    """All else is switched off, so that about half of the numbers are 0 and the others twice what they are without dropout."""
    model = encoder(dropout=0.5, layers=1, sigma_reparam=False, normformer=False)
    x, time = torch.randn(8, 6, 6, generator=torch.Generator().manual_seed(4)), torch.arange(6).expand(8, -1)
    block, model.norm = model.blocks[0], torch.nn.Identity()
    with torch.no_grad():
        for layer in (block.out, block.ff_out, *([] if of == "embeddings" else [model.input])):
            layer.weight.zero_()
            layer.bias.zero_()
        if of == "feed-forward layers":
            model.table_TD.zero_()
            block.ff_out.bias.fill_(1.0)
        whole = model(x, time)
        kept = model.train()(x, time) / whole
    assert set(kept.round(decimals=3).unique().tolist()) == {0.0, 2.0}
    assert float(kept.mean()) == pytest.approx(1.0, abs=0.15)


def test_dropout_is_a_function_of_its_seed_and_is_off_while_acting() -> None:
    model = encoder(dropout=0.5)
    x, time = torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(4)), torch.arange(6).expand(2, -1)
    model.train()
    outs = []
    for seed in (1, 1, 2):
        for block in model.modules():  # power iteration moves on with every pass; start it anew
            if isinstance(block, SigmaLinear):
                for _ in range(50):
                    block.iterate()
        model.reseed_dropout(seed)
        outs.append(model(x, time).detach())
    torch.testing.assert_close(outs[0], outs[1], atol=1e-4, rtol=1e-3)
    assert float((outs[0] - outs[2]).abs().max()) > 0.1
