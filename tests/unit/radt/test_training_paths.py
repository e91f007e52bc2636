"""The paths that a GPU trains on give what the plain one gives: without gathering, in parts, recomputed, made ahead."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_radt import batch, reader_of

from recollect.artifacts.run import Run
from recollect.common.transformer import TransformerSettings
from recollect.radt import radt
from recollect.radt.actions import NONE
from recollect.radt.ahead import batches
from recollect.radt.decision_transformer import DecisionTransformerSettings, ExperienceEmbedding
from recollect.radt.dt import action_loss, cross_entropy_where, loss_of_masked_steps, loss_of_steps
from recollect.radt.experience import Experience, numbers_learned
from recollect.radt.radt import return_loss
from recollect.radt.supervised import ExperienceStore, Gradients, Optimisation, train_supervised
from recollect.radt.windows import WindowSampler
from recollect.settings.errors import UserError

# ------------------------------------------------------------------------------------------- losses without gathering


@pytest.mark.parametrize("kind", ["five actions", "eight actions", "numbers", "tokens"])
def test_a_masked_loss_is_the_loss_of_the_real_steps(kind: str) -> None:
    """Up to the order in which a mean is summed: 1e-6; so are its gradients, which are 0 at padding."""
    draws = torch.Generator().manual_seed(0)
    real_N = torch.rand(40, generator=draws) < 0.6
    shape = {"five actions": (40, 5), "eight actions": (40, 8), "numbers": (40, 3), "tokens": (40, 3, 6)}[kind]
    predicted = torch.randn(shape, generator=draws).requires_grad_()
    action = torch.randint(shape[-1], (40,), generator=draws)
    if "actions" not in kind:
        action = torch.rand(40, 3, generator=draws) * 2 - 1
        action[torch.rand(40, 3, generator=draws) < 0.3] = NONE
    plain, metrics = loss_of_steps(predicted[real_N], action[real_N])
    masked, others = loss_of_masked_steps(predicted, action, real_N)
    torch.testing.assert_close(masked, plain, atol=1e-6, rtol=1e-6)
    assert metrics.keys() == others.keys() and metrics
    for name, value in metrics.items():
        torch.testing.assert_close(others[name], value, atol=1e-6, rtol=1e-6)
    wanted, found = (torch.autograd.grad(loss, predicted)[0] for loss in (plain, masked))
    torch.testing.assert_close(found, wanted, atol=1e-7, rtol=1e-6)
    assert not found[~real_N].any()


def test_a_masked_return_loss_is_that_of_the_real_steps(tiny: Any) -> None:
    histories = tiny().histories(lengths=(12, 3))
    window, _ = batch(histories, ExperienceStore(histories, actions=5), 0, size=8)
    draws = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 6, 12, generator=draws)
    bins = torch.randint(12, (8, 6), generator=draws)
    masked = cross_entropy_where(window.mask, logits, bins)
    torch.testing.assert_close(masked, return_loss(logits, bins, window), atol=1e-6, rtol=1e-6)
    assert not window.mask.all()


# --------------------------------------------------------------------------------------- in parts, and computed again


def learned(room: Any, of: Any, **chosen: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Loss and metrics, and gradients, of one batch of RA-DT that reads another batch as its context."""
    network, histories = room.network(of), room.histories(lengths=(12, 3))
    store = ExperienceStore(histories, actions=5)
    one = radt.Batch(*(batch(histories, store, step, size=10)[0] for step in (0, 1)), torch.arange(10) % 3 > 0)
    network.train().reseed_dropout(4)
    network.transformer.recomputes = chosen.pop("recompute", False)
    add = Gradients(
        lambda one: radt.radt_loss(network, one, 1.0, room.environment.returns),
        Optimisation(**chosen),
        "cpu",
        lambda one: one.window,
    ).add
    values = add(one)
    return values, {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("parts", [2, 3])
def test_a_batch_in_parts_gives_the_loss_and_the_gradients_of_the_whole(tiny: Any, parts: int) -> None:
    """Without dropout, whose masks are drawn for each part. Parts have unlike numbers of real steps."""
    room = tiny(tokens="interleaved")
    of = room.settings("radt", network={"dropout": 0.0, "return_embedding": "bins"})
    whole, gradients = learned(room, of)
    values, others = learned(room, of, micro_batches=parts)
    assert 0 < float(whole["with_context"]) < 1
    for name in ("loss", "action_accuracy", "return_loss", "with_context"):
        torch.testing.assert_close(values[name], whole[name], atol=1e-6, rtol=1e-6)
    assert gradients.keys() == others.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, atol=2e-6, rtol=1e-4)


def test_parts_of_continuous_actions_are_weighed_by_the_numbers_that_count() -> None:
    draws = torch.Generator().manual_seed(0)
    action = torch.rand(6, 4, 3, generator=draws)
    action[:2, :, 1:] = NONE  # tasks of one number
    mask = torch.rand(6, 4, generator=draws) < 0.7
    zero = torch.zeros(6, 4)
    window = Experience(zero[..., None], zero, action, zero, zero.long(), mask)
    assert int(numbers_learned(window)) == int((mask[..., None] & ~action.isnan()).sum())
    predicted = torch.randn(6, 4, 3, generator=draws).requires_grad_()
    whole = torch.autograd.grad(action_loss(predicted, window)[0], predicted)[0]
    values = Gradients(lambda one: action_loss(*one), Optimisation(micro_batches=3), "cpu", lambda one: one[1]).add(
        (predicted, window)
    )
    assert predicted.grad is not None and "action_error" in values
    torch.testing.assert_close(predicted.grad, whole, atol=1e-7, rtol=1e-5)


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(UserError, match="in parts"):
        Gradients(lambda one: (one, {}), Optimisation(micro_batches=2), "cpu", None)


def test_more_parts_than_windows_are_refused() -> None:
    assert Optimisation(batch_size=8, micro_batches=8).micro_batches == 8
    with pytest.raises(ValueError, match="a batch of 8 cannot be learned in 9 micro_batches"):
        Optimisation(batch_size=8, micro_batches=9)


def test_recomputed_activations_give_the_same_bits(tiny: Any) -> None:
    """With dropout: the backward pass draws the masks of the forward pass again, and the stream goes on behind it."""
    room = tiny(tokens="interleaved")
    of = room.settings("radt", network={"dropout": 0.2, "return_embedding": "bins"})
    kept, gradients = learned(room, of, micro_batches=2)
    values, others = learned(room, of, micro_batches=2, recompute=True)
    assert all(torch.equal(values[name], kept[name]) for name in kept)
    assert all(torch.equal(others[name], gradient) for name, gradient in gradients.items())


def test_recomputing_keeps_less(tiny: Any) -> None:
    room = tiny(tokens="interleaved")
    of = room.settings("ad", network={"dropout": 0.2})
    network, histories = room.network(of).train(), room.histories()
    windows = WindowSampler(histories, context=12, batch_size=8, seed=0).batch(0)
    window = ExperienceStore(histories, actions=5).windows(windows.rows, windows.mask)
    kept: dict[bool, int] = {}
    for recompute in (False, True):
        network.transformer.recomputes = recompute
        sizes: list[int] = []

        def count(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            action_loss(network(window)[0], window)
        kept[recompute] = sum(sizes)
    assert kept[True] < 0.4 * kept[False]


# ---------------------------------------------------------------------------------------------------------- made ahead


def test_batches_made_ahead_are_the_same_in_the_same_order_and_one_ahead() -> None:
    made: list[tuple[int, str]] = []

    def batch_of(step: int) -> np.ndarray:
        made.append((step, threading.current_thread().name))
        return np.random.default_rng(step).random(3)

    plain = [(step, one.tolist()) for step, one in batches(batch_of, range(3, 8), "cpu", ahead=False)]
    made.clear()
    found = []
    for step, one in batches(batch_of, range(3, 8), "cpu", ahead=True):
        found.append((step, one.tolist()))
        assert len(made) <= step - 3 + 2  # the present one and the next
    assert found == plain and [step for step, _ in made] == list(range(3, 8))
    assert all(name.startswith("batches") for _, name in made)
    assert list(batches(batch_of, range(4, 4), "cpu", ahead=True)) == []


def test_what_fails_while_a_batch_is_made_is_raised_where_it_is_used() -> None:
    def batch_of(step: int) -> int:
        if step == 2:
            raise UserError("no such episode", where="histories", do="generate them")
        return step

    made = batches(batch_of, range(5), "cpu", ahead=True)
    assert [next(made), next(made)] == [(0, 0), (1, 1)]
    with pytest.raises(UserError, match="no such episode"):
        next(made)


def test_a_run_whose_batches_are_made_ahead_has_the_same_bytes(tiny: Any, tmp_path: Path) -> None:
    """Network and table, what is logged of retrieval included, also where a run goes on from a checkpoint."""
    found = []
    for ahead in (False, True):
        folder = tmp_path / str(ahead)
        folder.mkdir()
        reader, store, histories = reader_of(tiny, folder)
        of = tiny().settings("radt", optimisation={"steps": 5, "batch_size": 8, "warmup": 2, "ahead": ahead})
        chosen, network = of.method.hyperparameters, tiny().network(of)
        run = Run(folder, folder / "checkpoints", settings_text="")

        def batch_of(step: int, reader: Any = reader, store: Any = store, histories: Any = histories) -> radt.Batch:
            window, rows = batch(histories, store, step, size=8)
            return radt.Batch(window, *reader.read(window, rows, step))

        train_supervised(
            network,
            batch_of=batch_of,
            loss_of=lambda model, one, weight=chosen.return_loss: radt.radt_loss(
                model, one, weight, tiny().environment.returns
            ),
            settings=chosen.optimisation,
            run=run,
            seed=0,
            learned_of=lambda one: one.window,
            notes_of=lambda one: one.notes,
        )
        found.append((network.state_dict(), run.table()))
    (plain, table), (other, its_table) = found
    assert all(torch.equal(other[name], weight) for name, weight in plain.items())
    assert table.equals(its_table) and "same_task" in set(table["metric"])


def test_what_is_below_the_bounds_as_padding_may_be_is_in_the_lowest_bin() -> None:
    settings = DecisionTransformerSettings(
        observation_embedding="binned",
        observation_values=(4, 4),
        observation_bounds=((1.0, 3.0), (0.0, 1.0)),
        transformer=TransformerSettings(width=8, layers=1, heads=2),
    )
    embed = ExperienceEmbedding(settings, 10, whole_steps=False, generator=torch.Generator().manual_seed(0))
    below, lowest = (embed.observe(torch.tensor([[seen]])) for seen in ([0.5, -0.4], [1.0, 0.0]))
    assert torch.equal(below, lowest)
