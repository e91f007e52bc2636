"""Settings that would be learned wrongly are refused, and the error says what to set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from recollect.artifacts.inputs import Inputs
from recollect.artifacts.run import Run
from recollect.artifacts.sealed import write_arrays
from recollect.common.contract import facts_of
from recollect.environments import registry
from recollect.radt import chunks, embedding, radt
from recollect.settings.errors import UserError


def test_key_windows_longer_than_what_their_embedder_learns_from_are_refused(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its places behind the last learned one mean nothing, and behind the table there is none."""
    room = tiny(horizon=24)
    of = room.settings("radt", memory={"key_context": 20})
    monkeypatch.setattr(embedding, "resolve", lambda *names: room.settings("dt", context=12))
    with pytest.raises(
        UserError, match="key windows have 20 steps, and the windows that 'dt' learns from 12"
    ) as refused:
        embedding.load_embedder(of, Inputs(), room.facts)
    assert "memory.key_context" in refused.value.where and "12 or less" in refused.value.do


def test_a_method_without_a_memory_is_named_and_no_file_that_is_not_there(tiny: Any) -> None:
    """A variant has no file of its own, and one's own methods lie in another folder."""
    settings = tiny().settings("dt")
    method = settings.method.model_copy(update={"name": "dt.embedder"})
    with pytest.raises(UserError, match="has no memory to retrieve from") as refused:
        chunks.memory_of(settings.model_copy(update={"method": method}))
    assert str(refused.value.where).endswith("config/methods/dt.yaml")


def test_an_embedder_without_a_network_is_refused_where_it_is_named(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file has the name of a variant, and nothing is wrong in the file of the other method."""
    room = tiny()
    of = room.settings("radt", memory={"embedder": "method:ppo_cnn.wide"})
    other = room.settings("dt")
    method = other.method.model_copy(update={"algorithm": "ppo_cnn"})
    monkeypatch.setattr(embedding, "resolve", lambda *names: other.model_copy(update={"method": method}))
    with pytest.raises(UserError, match="no algorithm with a network of its own named 'ppo_cnn'") as refused:
        embedding.load_embedder(of, Inputs(), room.facts)
    assert refused.value.where == "memory.embedder: method:ppo_cnn.wide"


class Below:
    """A world whose second number begins below 0."""

    single_observation_space = Box(np.array([0, -2], np.int16), np.array([4, 2], np.int16), dtype=np.int16)
    single_action_space, horizon = Discrete(3), 5


def test_whole_numbers_below_0_stand_in_no_table(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table has a row for each value from 0 on: -2 of the second number would read a row of the first."""
    room = tiny()
    assert facts_of(room.environment).observation_values
    monkeypatch.setattr(registry, "make_world", lambda *some, **named: Below())
    facts = facts_of(room.environment)
    assert facts.observation_values == () and facts.observation_bounds == ((0.0, 4.0), (-2.0, 2.0))
    with pytest.raises(UserError, match="no small whole numbers from 0 on"):
        radt.build_network(room.settings("radt", network={"observation_embedding": "one_hot"}), facts)


def test_parts_of_a_batch_are_refused_where_two_losses_count_differently(tiny: Any, tmp_path: Path) -> None:
    room = tiny()
    histories = room.histories(lengths=(12, 5))
    histories.action = np.zeros((len(histories), 2), np.float32)
    write_arrays(tmp_path / "histories.safetensors", histories.arrays(), kind="histories")
    of = room.settings("radt", optimisation={"steps": 1, "micro_batches": 2})
    facts = replace(room.facts, actions=0, action_size=2)
    run = Run(tmp_path, tmp_path / "checkpoints", settings_text="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(radt, "facts_of", lambda environment: facts)
        with pytest.raises(UserError, match="a mean over steps") as refused:
            radt.train(of, Inputs(histories=tmp_path / "histories.safetensors"), run)
    assert "micro_batches: 1" in refused.value.do


@pytest.mark.parametrize("wrong", [{"query_dropout": 7}, {"context_drop": -0.1}, {"retrieve_every": 0}])
def test_what_is_no_share_and_no_number_of_steps_is_refused(tiny: Any, wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        tiny().settings("radt", **wrong)
