"""What training windows of RA-DT read: value windows, the null document, neighbours kept in a file, logs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_radt import FIELDS, batch, reader_of

from recollect.artifacts.fingerprint import reachable
from recollect.artifacts.run import Run
from recollect.artifacts.sealed import write_arrays
from recollect.common.contract import Inputs
from recollect.radt import ad, radt
from recollect.radt.retrieval import RetrievalSettings
from recollect.radt.supervised import train_supervised
from recollect.settings.errors import UserError

LENGTHS = (12, 3, 9)  # of the episodes; values have at most 8 steps: 4 before the cut and 4 after it


def steps_of(context: Any, row: int) -> list[int]:
    return context.timestep[row][context.mask[row]].tolist()


def test_full_values_have_as_many_steps_as_the_episode_allows_and_hold_what_was_read_before(
    tiny: Any, tmp_path: Path
) -> None:
    """Episodes of 12 steps are cut at 0, 4 and 8: [0, 4), [0, 8), [4, 12); full [0, 8) twice, then [4, 12)."""
    cut, store, histories = reader_of(tiny, tmp_path, lengths=LENGTHS)
    (tmp_path / "full").mkdir()
    full, _, _ = reader_of(tiny, tmp_path / "full", lengths=LENGTHS, values="full")
    longer = 0
    for step in range(1, 4):
        window, rows = batch(histories, store, step)
        before, after = cut.read(window, rows, step)[0], full.read(window, rows, step)[0]
        ids = cut.find(window, rows, step)[0].id_BK[:, 0]
        for b, entry in enumerate(ids.tolist()):
            length = int(histories.episodes.length[cut.chunks.episode[entry]])
            old, new = steps_of(before, b), steps_of(after, b)
            assert set(old) <= set(new) and len(new) == min(8, length)
            assert new == list(range(new[0], new[0] + len(new)))
            longer += len(new) > len(old)
    assert longer > 5
    acting = tiny().policy(tiny().settings("radt", values="full"))
    assert acting.chunk_settings.full_values and not tiny().policy(tiny().settings("radt")).chunk_settings.full_values


def test_dynamic_values_begin_and_end_at_random_around_the_cut(tiny: Any, tmp_path: Path) -> None:
    cut, store, histories = reader_of(tiny, tmp_path, lengths=LENGTHS)
    (tmp_path / "dynamic").mkdir()
    dynamic, _, _ = reader_of(tiny, tmp_path / "dynamic", lengths=LENGTHS, values="dynamic")
    sizes = []
    for step in range(1, 6):
        window, rows = batch(histories, store, step)
        whole, some = cut.read(window, rows, step)[0], dynamic.read(window, rows, step)[0]
        ids = cut.find(window, rows, step)[0].id_BK[:, 0]
        for b, entry in enumerate(ids.tolist()):
            old, new = steps_of(whole, b), steps_of(some, b)
            assert new and set(new) <= set(old) and new == list(range(new[0], new[0] + len(new)))
            assert min(int(cut.chunks.cut[entry]), old[-1]) in new
            sizes.append((len(old), len(new)))
        again = dynamic.read(window, rows, step)[0]
        assert torch.equal(again.mask, some.mask)  # drawn from (seed, step)
    assert len({new for old, new in sizes if old == 8}) >= 6


def test_a_null_document_is_read_and_says_nothing(tiny: Any, tmp_path: Path) -> None:
    reader, store, histories = reader_of(
        tiny, tmp_path, null_document=0.5, retrieval=RetrievalSettings(select=2, cut_off=None)
    )
    window, rows = batch(histories, store, 1, size=64)
    context, has, _ = reader.read(window, rows, 1)
    empty_BK = (context.action.unflatten(1, (2, 8)) == 5).all(2)  # no action anywhere
    assert 0.35 < empty_BK.float().mean() < 0.65 and bool(has.all())
    for name in FIELDS:
        values = getattr(context, name).unflatten(1, (2, 8))[empty_BK]
        assert bool((values == {"mask": 1, "action": 5}.get(name, 0)).all()), name
    assert (~context.mask.unflatten(1, (2, 8))[~empty_BK]).any()  # real windows keep their padding


def test_every_option_of_reading_is_off_by_default(tiny: Any) -> None:
    chosen = radt.Hyperparameters()
    assert chosen.values == "cut" and chosen.null_document == 0 and chosen.neighbours is None
    of = chosen.retrieval
    assert (of.engine, of.combine, of.choose, of.kind) == ("exact", "add", "best", "retrieval")
    assert not any((of.noise, of.random_task, of.random_any, of.random_neighbour, of.blend)) and of.places == 1


def test_neighbours_that_were_looked_up_ahead_are_read_instead_of_searched(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same contexts, step for step, and neither embedder nor search is asked again."""
    folder = tmp_path / "neighbours"
    chosen = {"context_drop": 0.3, "optimisation": {"steps": 4, "batch_size": 32}, "lengths": (12, 5)}
    searched, store, histories = reader_of(tiny, tmp_path, **chosen)
    (tmp_path / "kept").mkdir()
    reader, _, _ = reader_of(tiny, tmp_path / "kept", neighbours=str(folder), **chosen)
    chosen.pop("lengths")
    of = tiny().settings("radt", neighbours=str(folder), **chosen)
    inputs = Inputs(index=tmp_path / "memory.faiss", rows=tmp_path / "rows.safetensors")
    reader.look_up_ahead(of, inputs, lambda step: batch(histories, store, step))
    assert len(list(folder.glob("*.safetensors"))) == 1
    monkeypatch.setattr("recollect.radt.context_reader.retrieve", lambda *_: pytest.fail("searched again"))
    later, _, _ = reader_of(tiny, tmp_path / "kept", neighbours=str(folder), lengths=(12, 5), **chosen)
    later.look_up_ahead(of, inputs, lambda step: pytest.fail("made again"))
    monkeypatch.undo()
    for step in range(4):
        window, rows = batch(histories, store, step)
        wanted = searched.read(window, rows, step)
        for one in (reader, later):
            context, has, described = one.read(window, rows, step)
            for name in FIELDS:
                assert torch.equal(getattr(context, name), getattr(wanted[0], name))
            assert torch.equal(has, wanted[1]) and described == wanted[2]
        assert bool(has.any()) and not bool(has.all())


def test_neighbours_of_other_settings_are_another_file_and_a_broken_file_is_refused(tiny: Any, tmp_path: Path) -> None:
    folder, asked = tmp_path / "neighbours", {"optimisation": {"steps": 2, "batch_size": 32}}
    names: list[set[str]] = []
    for place, extra in enumerate(
        ({}, {"network": {"width": 8}}, {"retrieval": RetrievalSettings(select=2)}, {"seed": 1}, {"query_dropout": 0.5})
    ):
        here = tmp_path / str(place)
        here.mkdir()
        seed = {"seed": extra.pop("seed")} if "seed" in extra else {}
        of = tiny().settings("radt", neighbours=str(folder), **asked, **extra, **seed)
        extra.pop("network", None)  # the embedder of `reader_of` is not of this size
        reader, store, histories = reader_of(tiny, here, neighbours=str(folder), **asked, **extra)
        reader.look_up_ahead(of, Inputs(), partial(batch, histories, store))
        names.append({path.name for path in folder.glob("*.safetensors")})
    assert [len(found) for found in names] == [1, 1, 2, 3, 4]
    for path in folder.glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UserError, match="cut short"):
        reader.look_up_ahead(of, Inputs(), partial(batch, histories, store))


@pytest.mark.parametrize("engine", ["ivf", "hnsw"])
def test_an_approximate_engine_serves_the_reader(tiny: Any, tmp_path: Path, engine: str) -> None:
    chosen = RetrievalSettings(engine=engine, probe=64, cut_off=None)
    reader, store, histories = reader_of(tiny, tmp_path, retrieval=chosen, query_dropout=0.0)
    (tmp_path / "exact").mkdir()
    exact, _, _ = reader_of(tiny, tmp_path / "exact", retrieval=RetrievalSettings(cut_off=None), query_dropout=0.0)
    window, rows = batch(histories, store, 1)
    assert torch.equal(reader.find(window, rows, 1)[0].id_BK, exact.find(window, rows, 1)[0].id_BK)  # a small memory


def test_the_training_table_says_what_the_memory_holds(tiny: Any, tmp_path: Path) -> None:
    reader, _, histories = reader_of(tiny, tmp_path, lengths=(12, 3, 5))
    held = reader.memory_statistics()
    long = histories.episodes.length >= 4  # shorter episodes are not cut
    returns = histories.episodes.total_return[long]
    assert held["entries"] == len(reader.chunks) == sum(histories.episodes.length // 4)
    assert held["episodes"] == long.sum()
    assert held["tasks"] == 3 and held["return_mean"] == pytest.approx(float(returns.mean()))
    assert (held["return_lowest"], held["return_highest"]) == (returns.min(), returns.max())


def test_a_run_logs_memory_retrieval_accuracy_and_learning_rate(tiny: Any, tmp_path: Path) -> None:
    reader, store, histories = reader_of(tiny, tmp_path)
    of = tiny().settings("radt", optimisation={"steps": 3, "batch_size": 4, "warmup": 2})
    run = Run(tmp_path, tmp_path / "checkpoints", settings_text="")
    network = tiny().network(of)

    def batch_of(step: int) -> radt.Batch:
        window, rows = batch(histories, store, step, size=4)
        context, has, _ = reader.read(window, rows, step)
        return radt.Batch(window, context, has)

    chosen = of.method.hyperparameters
    train_supervised(
        network,
        batch_of=batch_of,
        loss_of=lambda model, one: radt.radt_loss(model, one, chosen.return_loss, tiny().environment.returns),
        settings=chosen.optimisation,
        run=run,
        seed=0,
    )
    table = run.table()
    assert table["metric"].iloc[0] == "parameters"
    assert table["value"].iloc[0] == sum(p.numel() for p in network.parameters())
    rates = table[table["metric"] == "learning_rate"]
    np.testing.assert_allclose(rates["value"], [chosen.optimisation.rate(step) for step in range(3)])
    assert {"loss", "gradient_norm", "action_accuracy", "with_context"} <= set(table["metric"])
    assert "action_accuracy_top5" not in set(table["metric"])  # of five actions it is always 1


@pytest.mark.parametrize("loss_on", ["both", "current"])
def test_ad_learns_the_actions_of_both_episodes_or_of_the_current_one(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss_on: str
) -> None:
    histories = tiny().histories(lengths=(12, 5))
    write_arrays(tmp_path / "histories.safetensors", histories.arrays(), kind="histories")
    learned: list[Any] = []
    monkeypatch.setattr(ad.dt, "action_loss", lambda logits, window: learned.append(window) or (logits.sum() * 0.0, {}))
    of = tiny().settings("ad", loss_on=loss_on, episodes_back=1, optimisation={"steps": 3, "batch_size": 16})
    run = Run(tmp_path, tmp_path / "checkpoints", settings_text="")
    ad.train(of, Inputs(histories=tmp_path / "histories.safetensors"), run)
    sampler = ad.DistillationSampler(histories, context=12, episodes_back=1, batch_size=16, seed=0)
    assert len(learned) == 3
    for step, window in enumerate(learned):
        batch_ = sampler.batch(step)
        now = [int(min(end, 12)) for end in batch_.end]
        wanted = batch_.mask.sum(1).tolist() if loss_on == "both" else now
        assert window.mask.sum(1).tolist() == wanted
        assert window.mask[:, -1].all() and window.action.shape == window.mask.shape
    assert (batch_.mask.sum(1) > now).any()  # else nothing was told apart


def test_the_share_of_right_actions_among_the_best_five() -> None:
    logits = torch.tensor([[6.0, 5, 4, 3, 2, 1, 0]]).repeat(3, 1)
    _, metrics = radt.dt.loss_of_steps(logits, torch.tensor([0, 4, 5]))
    assert float(metrics["action_accuracy"]) == pytest.approx(1 / 3)
    assert float(metrics["action_accuracy_top5"]) == pytest.approx(2 / 3)


def test_neighbours_that_another_sampler_asked_for_are_not_read(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which windows a step learns is decided outside of the reader; a change there makes another file."""
    folder, asked = tmp_path / "neighbours", {"optimisation": {"steps": 2, "batch_size": 32}}
    reader, store, histories = reader_of(tiny, tmp_path, neighbours=str(folder), **asked)
    of = tiny().settings("radt", neighbours=str(folder), **asked)
    for code in ("old", "new"):
        changed = {"recollect.radt.windows": code, "recollect.radt.retrieval": "same"}
        monkeypatch.setattr(
            "recollect.radt.context_reader.code_fingerprint",
            lambda *modules, changed=changed: "".join(changed.get(name, "") for name in reachable(*modules)),
        )
        reader.look_up_ahead(of, Inputs(), partial(batch, histories, store))
    assert len(list(folder.glob("*.safetensors"))) == 2


def test_neighbours_of_another_memory_other_inputs_or_other_bins_of_returns_are_another_file(
    tiny: Any, tmp_path: Path
) -> None:
    folder, asked = tmp_path / "neighbours", {"optimisation": {"steps": 1, "batch_size": 2}}
    reader, store, histories = reader_of(tiny, tmp_path, neighbours=str(folder), **asked)
    of = tiny().settings("radt", neighbours=str(folder), **asked)
    returns = of.environment.returns.model_copy(update={"high": 24.0})
    other_bins = of.model_copy(update={"environment": of.environment.model_copy(update={"returns": returns})})
    other_memory = tiny().settings("radt", neighbours=str(folder), memory={"pooled_steps": 3}, **asked)
    files = []
    for name in ("histories", "index", "rows", "embeddings", "embedder_policy", "language_model"):
        files.append(tmp_path / f"{name}.safetensors")
        write_arrays(files[-1], {"of": np.array([len(files)])}, kind="some input")
    found = []
    for settings, inputs in (
        (of, Inputs()),
        (other_bins, Inputs()),
        (other_memory, Inputs()),
        *((of, Inputs(**{path.stem: path})) for path in files),
    ):
        reader.look_up_ahead(settings, inputs, partial(batch, histories, store, size=2))
        reader.stored = None
        found.append(len(list(folder.glob("*.safetensors"))))
    assert found == list(range(1, 10))


def test_what_is_drawn_for_a_step_is_drawn_apart(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which entry is found says nothing about where its value is cut off."""
    reader, store, histories = reader_of(tiny, tmp_path, values="dynamic", retrieval=RetrievalSettings(kind="task"))
    made: list[torch.Generator] = []
    generator = torch.Generator
    monkeypatch.setattr(torch, "Generator", lambda: made.append(generator()) or made[-1])
    for step in range(2):
        reader.read(*batch(histories, store, step), step)
    seeds = [draws.initial_seed() for draws in made]
    assert len(seeds) == len(set(seeds)) == 4


def test_a_query_is_of_as_many_steps_as_keys_are(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, store, histories = reader_of(tiny, tmp_path, memory={"key_context": 4})
    window, rows = batch(histories, store, 1)
    asked: list[Any] = []
    keys = reader.embedder.keys
    monkeypatch.setattr(reader.embedder, "keys", lambda seen, **how: asked.append(seen) or keys(seen, **how))
    reader.read(window, rows, 1)
    (seen,) = asked
    assert window.mask.shape[1] == 6 and torch.equal(seen.reward, window.reward[:, -4:])
