"""Acting as the released code does: positions that count padding, padding that is read, attention that drops weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from recollect.radt.experience import Experience
from recollect.radt.supervised import ExperienceStore
from recollect.settings.errors import UserError
from recollect.settings.resolve import figure_settings, resolve


def played(policy: Any, ends: list[int], steps: int) -> tuple[list[Experience], list[list[list[int]]]]:
    """Windows that the network is asked with, and each row's rewards by episode; row b's episodes have `ends[b]` steps."""
    asked: list[Experience] = []
    act = policy.network.act

    def recorded(window: Experience, *inputs: Any, **more: Any) -> torch.Tensor:
        asked.append(window)
        return act(window, *inputs, **more)

    policy.network.act = recorded
    rows = len(ends)
    draws = np.random.default_rng(0)
    policy.start(np.arange(rows).astype(np.uint64), 12, 4)
    reward, done = np.zeros(rows, np.float32), np.zeros(rows, bool)
    rewards: list[list[list[int]]] = [[[]] for _ in range(rows)]
    for step in range(steps):
        policy.act(draws.integers((3, 4), size=(rows, 2)), reward, done)
        reward = draws.integers(2, size=rows).astype(np.float32)
        done = np.array([(step + 1) % end == 0 for end in ends])
        for b in range(rows):
            rewards[b][-1].append(int(reward[b]))
            if done[b]:
                rewards[b].append([])
    return asked, rewards


@pytest.mark.parametrize("padding", ["counted", "attended"])
def test_ad_encodes_its_last_episode_and_this_one_at_every_step(tiny: Any, padding: str) -> None:
    room = tiny(tokens="interleaved")
    policy = room.policy(room.settings("ad", network={"padding": padding}))
    ends = [12, 5]
    asked, rewards = played(policy, ends, 30)
    for step, window in enumerate(asked):
        for b, end in enumerate(ends):
            episode, now = divmod(step, end)
            before = rewards[b][episode - 1] if episode else []
            expected = before + rewards[b][episode][:now] + [0]  # there is no reward of now
            real = window.mask[b]
            assert window.reward[b][real].int().tolist() == expected
            assert window.timestep[b][real].tolist() == [*range(len(before)), *range(now + 1)]
            assert bool(real[-len(expected) :].all())
            assert int(window.action[b, -1]) == 5


@pytest.mark.parametrize("padding", ["counted", "attended"])
def test_a_window_in_an_early_step_is_the_end_of_a_whole_one(tiny: Any, padding: str) -> None:
    room = tiny(tokens="interleaved")
    network = room.network(room.settings("dt", network={"padding": padding}))
    _, windows_asked = network, played(room.policy(room.settings("dt", network={"padding": padding})), [12, 12], 4)[0]
    short = windows_asked[3]
    assert short.mask.shape[1] == 4
    whole = short.left_padded(12, network.settings.no_action)
    assert whole.mask.shape[1] == 12 and torch.equal(whole.last(4).reward, short.reward)
    torch.testing.assert_close(network.act(short), network.act(whole), rtol=0, atol=1e-6)
    moved = replace(whole, mask=torch.ones_like(whole.mask))
    told_apart = (network.act(whole) - network.act(moved)).abs().max() > 1e-4
    assert bool(told_apart) == (padding == "counted")  # where padding is read, the mask says nothing


def test_attention_drops_weights_while_acting_where_told_to_and_the_same_again(tiny: Any) -> None:
    room = tiny(tokens="interleaved")
    logits = {}
    for name, drops in (("off", False), ("on", True), ("again", True)):
        chosen = room.settings("ad", acting_dropout=drops, network={"padding": "attended", "dropout": 0.4})
        policy = room.policy(chosen)
        policy.start(np.arange(2).astype(np.uint64), 12, 2)
        policy.act(np.zeros((2, 2), int), np.zeros(2, np.float32), np.zeros(2, bool))
        logits[name] = policy.logits()
    assert torch.equal(logits["on"], logits["again"])
    assert (logits["on"] - logits["off"]).abs().max() > 1e-3
    with pytest.raises(UserError, match="padding: attended"):
        room.policy(room.settings("ad", acting_dropout=True))


def test_dpt_refuses_positions_that_count_padding(tiny: Any) -> None:
    with pytest.raises(UserError, match=r"set network\.padding: hidden"):
        tiny().policy(tiny().settings("dpt", network={"padding": "attended"}))


def test_dpt_refuses_dropout_while_acting_for_which_no_padding_would_do(tiny: Any) -> None:
    with pytest.raises(ValueError, match=r"(?s)acting_dropout.*Input should be False"):
        tiny().settings("dpt", acting_dropout=True)


def test_radt_asks_with_action_zero_and_windows_that_count_padding(tiny: Any) -> None:
    room = tiny(tokens="interleaved")
    for present, expected in (("zero", 0), ("none", 5)):
        memory = {"present_action": present, "key_context": 6}
        settings = room.settings("radt", memory=memory, network={"padding": "counted"})
        policy = room.policy(settings)
        queries = []
        keys = policy.embedder.keys

        def asked(window: Experience, keys: Any = keys, queries: Any = queries, **more: Any) -> torch.Tensor:
            if "normalise" not in more:
                queries.append(window)
            return keys(window, **more)

        policy.embedder.keys = asked
        played(policy, [12, 12], 20)
        assert queries and all((window.action[:, -1] == expected).all() for window in queries)
        assert int(policy.action[0, int(policy.step_B[0])]) != 5  # what was done is remembered all the same


def test_a_language_model_counts_padding_where_told_to(tiny: Any) -> None:
    room = tiny(tokens="interleaved")
    windows_asked, _ = played(room.policy(room.settings("dt", network={"padding": "counted"})), [12], 4)
    short = windows_asked[3]
    keys = {}
    for padding in ("hidden", "counted"):
        embedder = room.embedder(room.settings("radt_agnostic", memory={"padding": padding}))
        keys[padding] = embedder.keys(short)
        whole = short.left_padded(8, 5)
        torch.testing.assert_close(embedder.keys(whole), keys[padding], rtol=0, atol=1e-5)
    assert (keys["hidden"] - keys["counted"]).abs().max() > 1e-4


def test_key_door_at_scale_paper_has_the_published_key_and_its_optimum() -> None:
    lines = figure_settings("paper", "radt_grid_worlds").options["optimum"]
    for size, optimum in (("10x10", 90.05), ("20x20", 377.25), ("40x20", 773.2)):
        assert resolve("paper", f"key_door_{size}", "radt", 42).environment.options["key_reset"] == "sticky"
        assert lines[f"key_door_{size}"] == lines[f"dark_room_{size}"] == optimum  # a held key leaves a Dark-Room
    for figure in ("radt_grid_worlds", "radt_grid_worlds_train"):
        assert "never taken back" in figure_settings("paper", figure).caption
    for figure in ("radt_dark_room_10x10", "radt_grid_worlds"):
        assert {"radt.greedy", "ad.sampled"} <= set(figure_settings("paper", figure).methods)
        assert not {"radt.greedy", "ad.sampled"} & set(figure_settings("demo", figure).methods)


def test_each_step_drops_other_weights(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    room = tiny(tokens="interleaved")
    policy = room.policy(room.settings("ad", acting_dropout=True, network={"padding": "attended", "dropout": 0.4}))
    policy.start(np.arange(2).astype(np.uint64), 12, 3)
    seeds: list[int] = []
    monkeypatch.setattr(policy.computing, "reseed_dropout", seeds.append)
    for step in range(9):
        policy.act(np.zeros((2, 2), int), np.zeros(2, np.float32), np.full(2, step in (3, 6)))
    assert len(set(seeds)) == 9


@pytest.mark.parametrize(("method", "steps"), [("ad", 24), ("radt", 6)])
def test_a_short_window_stands_at_the_end_of_one_as_long_as_in_training(tiny: Any, method: str, steps: int) -> None:
    room = tiny(tokens="interleaved")
    network = room.network(room.settings(method, network={"padding": "counted"}))
    histories = room.histories()
    rows = np.arange(3) + histories.episodes.start[:4, None]
    short = ExperienceStore(histories, actions=5).windows(rows, np.ones_like(rows, bool))
    torch.testing.assert_close(network.act(short), network.act(short.left_padded(steps, 5)), rtol=0, atol=1e-6)
