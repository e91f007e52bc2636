"""Attention made for CPUs is plain attention: the same numbers and the same gradients, also of what dropout leaves."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from recollect.common.attention import Attention, Context, FusedAttention, PlainAttention
from recollect.common.cpu.attention import CPUAttention
from recollect.common.cpu.attention_kernels import cross_attention, self_attention
from recollect.common.cpu.dropout import Dropout
from recollect.common.cpu.packing import Packing, filled, gather, pack, spread, unpack

HEADS, WIDTH, READ = 2, 8, 6
LITTLE = 1e-9  # a dropout that drops nothing, but takes the path that training takes


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def results(make: Callable[[Context], Attention], rows: int, tokens: int) -> dict[str, Tensor]:
    """What tokens read of each other and of a context, and the gradients for all inputs."""
    inputs = {
        "qkv": draws(rows, tokens, 3 * WIDTH).requires_grad_(),
        "q": draws(rows, tokens, WIDTH, seed=1).requires_grad_(),
        "kv": draws(rows, READ, 2 * WIDTH, seed=2).requires_grad_(),
    }
    context_mask_BS = draws(rows, READ, seed=3) > 0
    context_mask_BS[:, 2] = True
    context = Context.of(inputs["kv"], context_mask_BS, None)
    assert context is not None
    attention = make(context)
    own = attention.leave(attention.own(0, attention.enter(inputs["qkv"])))
    read = attention.leave(attention.context(0, attention.enter(inputs["q"]), lambda tokens: tokens))
    ((own + 2 * read) * draws(rows, tokens, WIDTH, seed=4)).sum().backward()
    found = {"own": own, "read": read}
    for name, leaf in inputs.items():
        assert leaf.grad is not None
        found[f"gradient of {name}"] = leaf.grad
    return found


# Forty rows of unlike lengths are attended in groups; 130 tokens are more than two blocks of queries.
@pytest.mark.parametrize("rows, tokens", [(3, 5), (40, 11), (2, 130)])
@pytest.mark.parametrize(
    "padding, p", [("none", LITTLE), ("some", 0.0), ("some", LITTLE), ("much", 0.0), ("much", LITTLE)]
)
def test_it_equals_plain_attention_also_in_gradients(padding: str, p: float, rows: int, tokens: int) -> None:
    mask_BT = None
    if padding != "none":
        mask_BT = draws(rows, tokens, seed=7) > (0.5 if padding == "much" else -1.5)
        mask_BT[:, tokens // 2] = True
    drop_nothing: Callable[[Tensor], Tensor] = lambda weights: weights  # noqa: E731
    x_BTD = draws(rows, tokens, WIDTH)
    plain = results(lambda context: PlainAttention(x_BTD, mask_BT, context, HEADS, drop_nothing), rows, tokens)
    fast = results(lambda context: CPUAttention(mask_BT, context, HEADS, p, Dropout(0)), rows, tokens)
    # What GPUs run: it sorts padding behind the real tokens.
    fused = results(lambda context: FusedAttention(x_BTD, mask_BT, context, HEADS), rows, tokens)
    for name, expected in plain.items():
        torch.testing.assert_close(fast[name], expected, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: name + text)
        torch.testing.assert_close(fused[name], expected, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize("kind", ["own", "context"])
def test_with_dropout_gradients_are_the_slopes_of_what_was_drawn(kind: str) -> None:
    """The same seed draws the same masks, so that the output is a smooth function; its slope is taken by differences."""
    inputs = [draws(2, 60, 3 * WIDTH)] if kind == "own" else [draws(2, 60, WIDTH), draws(2, READ, 2 * WIDTH, seed=1)]
    weight_BTD = draws(2, 60, WIDTH, seed=2).double()

    def output(*given: Tensor) -> Tensor:
        if kind == "own":
            y_BTD = self_attention(given[0], HEADS, 0.4, Dropout(5))
        else:
            y_BTD = cross_attention(given[0], given[1], None, HEADS, 0.4, Dropout(5))
        return (y_BTD * weight_BTD).sum()

    leaves = [value.clone().requires_grad_() for value in inputs]
    gradients = torch.autograd.grad(output(*leaves), leaves)
    step = 1e-2
    for i, (value, gradient) in enumerate(zip(inputs, gradients, strict=True)):
        direction = gradient / gradient.norm()
        ahead, behind = ([*inputs[:i], value + sign * step * direction, *inputs[i + 1 :]] for sign in (1, -1))
        slope = (output(*ahead) - output(*behind)) / (2 * step)
        assert float(slope) == pytest.approx(float(gradient.norm()), rel=1e-2)


def test_packed_batches_have_few_sizes_and_what_fills_them_up_changes_nothing() -> None:
    sizes = [filled(count) for count in range(1, 4097)]
    assert all(count <= size <= max(count, 17 * count // 16) for count, size in enumerate(sizes, 1))
    assert len({size for size in sizes if 512 <= size < 1024}) == 16

    draws = torch.Generator().manual_seed(0)
    mask_BT = torch.rand(40, 20, generator=draws) < 0.6
    mask_BT[0] = False
    x_BTD = torch.randn(40, 20, 3, generator=draws, requires_grad=True)
    packing = Packing.of(mask_BT)
    packed = pack(x_BTD, packing)
    assert len(packed) == filled(int(mask_BT.sum())) > int(mask_BT.sum())
    assert not packed[int(mask_BT.sum()) :].any()
    back = unpack(gather(spread(packed + 1, packing), packing), packing)
    torch.testing.assert_close(back, (x_BTD + 1) * mask_BT[..., None])
    back.sum().backward()
    assert x_BTD.grad is not None
    torch.testing.assert_close(x_BTD.grad, mask_BT[..., None].float().expand(-1, -1, 3))
