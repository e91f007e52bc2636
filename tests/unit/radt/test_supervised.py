"""What the supervised methods share: the schedule, what decays, windows on a device, and a loop that resumes bit-exactly."""

from __future__ import annotations

import math
import tracemalloc
from itertools import pairwise
from operator import attrgetter, itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from odd_clock import ends_the_same
from torch import nn

from recollect.artifacts.run import Run
from recollect.artifacts.sealed import write_arrays
from recollect.common import histories as histories_module
from recollect.common.contract import Inputs
from recollect.common.histories import Histories
from recollect.common.optimiser import Adam
from recollect.radt import ad, dpt, dt, radt, supervised
from recollect.radt.supervised import (
    ExperienceStore,
    Optimisation,
    load_optimiser_arrays,
    make_optimiser,
    open_histories,
    optimiser_arrays,
    train_supervised,
)
from recollect.radt.windows import WindowSampler
from recollect.settings.errors import UserError
from recollect.settings.seeding import seed_of

# ------------------------------------------------------------------------------------------------- learning rate


def test_the_learning_rate_is_the_published_schedule() -> None:
    rate = Optimisation().rate
    assert rate(0) == pytest.approx(1e-4 / 4000)
    assert rate(1999) == pytest.approx(0.5e-4)
    assert rate(3999) == rate(4000) == pytest.approx(1e-4)
    # The cosine starts at step 4000 with the period of the whole run, so that its middle is half way to the floor ...
    assert rate(54_000) == pytest.approx((1e-4 + 1e-6) / 2)
    # ... and the run ends a little above the floor (specification 3.1: about 1.4e-6).
    assert rate(99_999) == pytest.approx(1e-6 + 99e-6 * 0.5 * (1 + math.cos(math.pi * 0.95999)))
    assert rate(99_999) == pytest.approx(1.4e-6, abs=0.02e-6)
    assert rate(104_000) == rate(500_000) == pytest.approx(1e-6)
    falling = [rate(step) for step in range(4000, 104_000, 500)]
    assert all(later < earlier for earlier, later in pairwise(falling))


def test_without_warm_up_the_first_step_has_the_full_rate() -> None:
    assert Optimisation(warmup=0, steps=10, learning_rate=0.5).rate(0) == 0.5


# -------------------------------------------------------------------------------------------------- weight decay


def test_only_the_weights_of_linear_layers_decay(tiny: Any) -> None:
    network = tiny().network(tiny().settings("radt"))
    optimiser = make_optimiser(network, Optimisation(weight_decay=0.01))
    decay = dict(zip(optimiser.names, optimiser.decays, strict=True))
    assert set(decay.values()) == {0.01, 0.0}
    names = {name for name, _ in network.named_parameters()}
    linear = {f"{name}.weight" for name, module in network.named_modules() if isinstance(module, nn.Linear)}
    assert {name for name in decay if decay[name]} == linear
    assert {name for name in decay if not decay[name]} == names - linear
    assert any("norm" in name for name in names) and "embed.position.weight" in names
    assert "embed.reward.weight" in linear and "transformer.blocks.1.cross_kv.weight" in linear


def test_a_step_without_gradient_shrinks_linear_weights_and_nothing_else(tiny: Any) -> None:
    network = tiny().network(tiny().settings("dt"))
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    optimiser = make_optimiser(network, Optimisation(weight_decay=0.5, learning_rate=0.1))
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    linear = {f"{name}.weight" for name, module in network.named_modules() if isinstance(module, nn.Linear)}
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(
            parameter.detach(), before[name] * (0.95 if name in linear else 1.0), atol=1e-7, rtol=0
        )


# ------------------------------------------------------------------------------------------------------- windows


def test_windows_hold_the_rows_and_nothing_where_they_are_padded(tiny: Any) -> None:
    histories = tiny().histories(lengths=(12, 5))
    store = ExperienceStore(histories, actions=5, reward_scale=2.0)
    windows = WindowSampler(histories, context=9, batch_size=20, seed=1).batch(3)
    window = store.windows(windows.rows, windows.mask)
    padded = 0
    for b in range(20):
        for t in range(9):
            if not windows.mask[b, t]:
                padded += 1
                assert window.observation[b, t].tolist() == [0, 0]
                assert window.action[b, t] == 5  # the padding action
                assert window.reward[b, t] == window.return_to_go[b, t] == window.timestep[b, t] == 0
                continue
            row = windows.rows[b, t]
            last = row + int(np.flatnonzero(histories.done[row:])[0])
            assert window.observation[b, t].tolist() == histories.observation[row].tolist()
            assert window.action[b, t] == histories.action[row]
            assert window.reward[b, t] == histories.reward[row] / 2
            assert window.return_to_go[b, t] == histories.reward[row : last + 1].sum() / 2
            assert window.timestep[b, t] == windows.end[b] - (9 - t)
    assert 0 < padded < 180
    assert window.mask.tolist() == windows.mask.tolist()


def test_observations_that_would_fill_a_gpu_stay_on_the_host(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    histories = tiny().histories(lengths=(12, 5))
    windows = WindowSampler(histories, context=9, batch_size=20, seed=1).batch(3)
    plain, sending = (ExperienceStore(histories, actions=5) for _ in range(2))
    sending.observation = histories.observation
    for rows in (windows.rows, torch.from_numpy(windows.rows)):
        wanted, found = (store.windows(rows, windows.mask).observation for store in (plain, sending))
        assert torch.equal(wanted, found) and wanted.dtype == found.dtype
    monkeypatch.setattr(supervised, "MOST_ON_A_GPU", 0)
    assert isinstance(ExperienceStore(histories, actions=5).observation, torch.Tensor)
    store = ExperienceStore(histories, actions=5, device="meta")
    assert isinstance(store.observation, np.ndarray) and store.reward.device.type == "meta"
    assert store.windows(windows.rows, windows.mask).observation.device.type == "meta"


def test_a_table_goes_to_the_device_without_a_second_copy_on_the_host(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What numpy holds; tensors are not counted."""
    monkeypatch.setattr(histories_module, "BLOCK", 1 << 16)
    arrays = tiny().histories(lengths=(12, 5)).arrays()
    wide = np.arange(len(arrays["reward"]) * 20_000, dtype=np.float32).reshape(-1, 20_000)
    histories = Histories({**arrays, "observation": wide})
    tracemalloc.start()
    store = ExperienceStore(histories, actions=5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(store.observation, torch.Tensor) and np.array_equal(store.observation.numpy(), wide)
    assert peak < wide.nbytes / 10


def test_the_batches_are_a_pure_function_of_seed_and_step(tiny: Any) -> None:
    histories = tiny().histories()

    def rows(seed: int, *steps: int) -> list[list[list[int]]]:
        sampler = WindowSampler(histories, context=6, batch_size=8, seed=seed)
        return [sampler.batch(step).rows.tolist() for step in steps]

    straight = rows(0, 0, 1, 2, 3)
    assert rows(0, 3, 1) == [straight[3], straight[1]]  # neither what came before nor how often it was asked matters
    assert rows(1, 0) != straight[:1]
    assert straight[0] != straight[1]


def test_loss_and_accuracy_are_means_over_real_steps_only(tiny: Any) -> None:
    histories = tiny().histories(lengths=(12, 3))
    windows = WindowSampler(histories, context=8, batch_size=16, seed=0).batch(0)
    window = ExperienceStore(histories, actions=5).windows(windows.rows, windows.mask)
    logits = torch.randn(16, 8, 5, generator=torch.Generator().manual_seed(0))
    losses, right = [], []
    for b in range(16):
        for t in range(8):
            if windows.mask[b, t]:
                chances = np.exp(logits[b, t].double().numpy())
                action = int(histories.action[windows.rows[b, t]])
                losses.append(-math.log(chances[action] / chances.sum()))
                right.append(chances.argmax() == action)
    assert len(losses) < 16 * 8
    loss, metrics = dt.action_loss(logits, window)
    assert float(loss) == pytest.approx(np.mean(losses), abs=1e-6)
    assert float(metrics["action_accuracy"]) == pytest.approx(np.mean(right), abs=1e-6)
    changed = torch.where(window.mask[..., None], logits, 1e3)
    assert torch.equal(dt.action_loss(changed, window)[0], loss)


# ------------------------------------------------------------------------------------------------------ the loop


class Killed(Exception):
    """Stands for a kill."""


def trained(
    tiny: Any,
    folder: Path,
    *,
    steps: int = 20,
    die_at: int | None = None,
    evaluate_every: int | None = None,
    run: Run | None = None,
    learning_rate: float = 1e-2,
    seed: int = 0,
    **optimisation: Any,
) -> tuple[dict[str, np.ndarray], Any]:
    """Train a DT with dropout; returns everything that a checkpoint would hold, and the run's table."""
    room = tiny()
    chosen = Optimisation(
        steps=steps,
        batch_size=4,
        warmup=5,
        learning_rate=learning_rate,
        checkpoint_every=10,
        evaluate_every=evaluate_every,
        **optimisation,
    )
    settings = room.settings("dt", network={"dropout": 0.2})
    network = room.network(settings, scale=1.0)
    histories = room.histories()
    store, sampler = ExperienceStore(histories, actions=5), WindowSampler(histories, context=6, batch_size=4, seed=0)

    def batch_of(step: int) -> Any:
        if step == die_at:
            raise Killed
        windows = sampler.batch(step)
        return store.windows(windows.rows, windows.mask)

    def evaluate(step: int) -> None:
        assert not network.training
        with torch.no_grad():
            network(batch_of(0))

    run = run or Run(folder / "run", folder / "checkpoints", settings_text="same")
    train_supervised(
        network,
        batch_of=batch_of,
        loss_of=lambda model, window: dt.action_loss(model(window)[0], window),
        settings=chosen,
        run=run,
        seed=seed,
        evaluate=evaluate,
    )
    assert not network.training
    return {name: value.detach().cpu().numpy() for name, value in network.state_dict().items()}, run.table()


def test_a_killed_run_goes_on_bit_exactly(tiny: Any, tmp_path: Path) -> None:
    straight, table = trained(tiny, tmp_path / "straight")
    with pytest.raises(Killed):
        trained(tiny, tmp_path / "killed", die_at=15)
    again = Run(tmp_path / "killed" / "run", tmp_path / "killed" / "checkpoints", settings_text="same")
    resumed, resumed_table = trained(tiny, tmp_path / "killed", run=again)
    assert again.resumed and straight.keys() == resumed.keys()
    for name, value in straight.items():
        assert value.tobytes() == resumed[name].tobytes(), name
    assert table.equals(resumed_table)
    other, _ = trained(tiny, tmp_path / "shorter", steps=10)
    assert any(value.tobytes() != other[name].tobytes() for name, value in straight.items())


def test_checkpoints_at_odd_moments_change_nothing(tiny: Any, tmp_path: Path) -> None:
    assert ends_the_same(lambda run: trained(tiny, tmp_path, run=run)[0], tmp_path, (3, 7)) == 2


def test_runs_of_different_seeds_drop_different_weights(tiny: Any, tmp_path: Path) -> None:
    """Though all else that they learn from is the same here."""
    one, other = (trained(tiny, tmp_path / str(seed), steps=1, seed=seed)[0] for seed in (0, 1))
    assert any(not np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("module", [dt, ad, dpt, radt], ids=lambda module: module.__name__.rpartition(".")[2])
def test_each_seed_begins_with_weights_and_learns_from_windows_of_its_own(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    room, path, name = tiny(), tmp_path / "histories.safetensors", module.__name__.rpartition(".")[2]
    write_arrays(path, room.histories().arrays(), kind="histories")
    told: list[Any] = []
    monkeypatch.setattr(module, "train_policy", lambda policy, *_, **given: told.append((policy, given["batch_of"](0))))
    if module is radt:
        embedder = room.embedder(room.settings("radt"))
        reader = SimpleNamespace(read=lambda window, *_: (window, None, {}), memory_statistics=lambda: {})
        monkeypatch.setattr(radt, "load_embedder", lambda *_: embedder)
        monkeypatch.setattr(radt, "ContextReader", lambda *_: reader)
    for seed in (0, 1, 0):
        module.train(room.settings(name, seed=seed), Inputs(histories=path), None)
    learned = {
        "dt": lambda batch: batch,
        "ad": itemgetter(0),
        "dpt": attrgetter("queries"),
        "radt": attrgetter("window"),
    }
    one, other, same = ((policy.network.action_head.weight, learned[name](batch).observation) for policy, batch in told)
    for place in range(2):
        assert torch.equal(one[place], same[place]) and not torch.equal(one[place], other[place])


def test_a_step_is_of_the_gradient_cut_to_the_norm_that_settings_allow(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one step the moments are (1 - 0.9) g and (1 - beta2) g g, element by element."""
    made: list[Adam] = []
    make = supervised.make_optimiser
    monkeypatch.setattr(supervised, "make_optimiser", lambda *given: made.append(make(*given)) or made[0])
    _, table = trained(tiny, tmp_path, steps=1, clip=0.01, beta2=0.75)
    assert float(table["value"][table["metric"] == "gradient_norm"].iloc[0]) > 0.02  # as it was before
    first, second = (torch.cat([moment.flatten() for moment in moments]) for moments in (made[0].first, made[0].second))
    assert float(first.norm()) == pytest.approx(0.1 * 0.01, rel=1e-3)
    assert float(second.sum()) == pytest.approx(0.25 * 0.01**2, rel=1e-3)


def test_a_run_computes_in_the_precision_and_as_often_as_settings_say(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks: list[Any] = []
    make = supervised.make_optimiser
    monkeypatch.setattr(supervised, "make_optimiser", lambda network, of: networks.append(network) or make(network, of))
    plain, _ = trained(tiny, tmp_path / "plain", steps=1)
    rounded, _ = trained(tiny, tmp_path / "rounded", steps=1, precision="bfloat16", recompute=True)
    assert any(not np.array_equal(plain[name], rounded[name]) for name in plain)
    assert [network.transformer.recomputes for network in networks] == [False, True]


def test_a_run_that_diverges_stops_and_says_so(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="diverged"):
        trained(tiny, tmp_path, learning_rate=1e38)


def test_evaluating_changes_nothing(tiny: Any, tmp_path: Path) -> None:
    straight, _ = trained(tiny, tmp_path / "straight")
    watched, _ = trained(tiny, tmp_path / "watched", evaluate_every=3)
    for name, value in straight.items():
        assert value.tobytes() == watched[name].tobytes(), name


def test_optimiser_arrays_hold_everything_that_a_step_changes(tiny: Any) -> None:
    room = tiny()
    settings = room.settings("dt", network={"dropout": 0.2})
    histories = room.histories()
    store, sampler = ExperienceStore(histories, actions=5), WindowSampler(histories, context=6, batch_size=4, seed=0)

    def fresh() -> tuple[Any, Adam]:
        network = room.network(settings, scale=1.0).train()
        return network, make_optimiser(network, Optimisation(learning_rate=1e-2))

    def steps(network: Any, optimiser: Adam, first: int, end: int) -> None:
        for step in range(first, end):
            windows = sampler.batch(step)
            window = store.windows(windows.rows, windows.mask)
            network.transformer.reseed_dropout(seed_of("dropout", 0, step))
            loss, _ = dt.action_loss(network(window)[0], window)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    straight = fresh()
    steps(*straight, 0, 20)
    half = fresh()
    steps(*half, 0, 10)
    saved = {name: value.numpy().copy() for name, value in optimiser_arrays(*half).items()}
    second = fresh()
    load_optimiser_arrays(*second, saved)
    again = optimiser_arrays(*second)
    assert saved.keys() == again.keys() and all(np.array_equal(saved[n], again[n].numpy()) for n in saved)
    steps(*second, 10, 20)
    left, right = optimiser_arrays(*straight), optimiser_arrays(*second)
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].numpy().tobytes() == right[name].numpy().tobytes(), name
    assert {name.split("/")[1] for name in left if name.startswith("optimiser/")} == {"steps", "first", "second"}


def test_the_padding_action_is_never_trained(tiny: Any, tmp_path: Path) -> None:
    arrays, _ = trained(tiny, tmp_path)
    assert not arrays["embed.action.weight"][5].any()
    assert arrays["embed.action.weight"][:5].any()


# -------------------------------------------------------------------------------------- histories that do not fit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a | {"observation": a["observation"] + np.int8(3)}, "above its range"),
        (lambda a: a | {"observation": np.repeat(a["observation"], 2, 1)}, "observations have 4 entries, not 2"),
        (lambda a: a | {"action": a["action"] + np.int8(1)}, "no such action"),
    ],
)
def test_histories_of_another_environment_are_refused(tiny: Any, tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "histories.safetensors"
    arrays = tiny().histories().arrays()
    write_arrays(path, arrays, kind="histories")
    assert len(open_histories(path, tiny().facts)) == len(arrays["reward"])
    write_arrays(path, change(arrays), kind="histories")
    with pytest.raises(UserError, match=message):
        open_histories(path, tiny().facts)


def test_longer_episodes_than_the_environment_has_are_refused(tiny: Any, tmp_path: Path) -> None:
    path = tmp_path / "histories.safetensors"
    write_arrays(path, tiny().histories(lengths=(13,)).arrays(), kind="histories")
    with pytest.raises(UserError, match="up to 13 steps, not 12"):
        open_histories(path, tiny().facts)


def test_a_network_with_too_few_rows_is_refused_before_it_is_built(tiny: Any) -> None:
    with pytest.raises(UserError, match="11 timesteps, but needs 12"):
        dt.build_network(tiny().settings("dt", network={"timesteps": 11}), tiny().facts)
    with pytest.raises(UserError, match="11 positions, but needs 12"):
        dt.build_network(tiny().settings("dt", network={"positions": 11}), tiny().facts)
    dt.build_network(tiny().settings("dt", network={"positions": 12, "timesteps": 12}), tiny().facts)
