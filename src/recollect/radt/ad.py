"""Algorithm Distillation (AD): learn in context from one's own earlier episodes.

The context is a complete episode K episodes earlier in the same learning history, then the current episode so far;
imitating the histories' actions then means improving on the earlier episode. Differences, and why:

- While acting, the last complete episode is the context, re-encoded once per episode and extended through the key/value
  cache: the same numbers as encoding both episodes anew at every step, which upstream does.
- Positions count from the first real token, so the first episode (no context) sees the positions it was trained with.
- Upstream counts padding in positions, and its fast attention reads it and keeps attention dropout on while it evaluates
  (`network.padding: attended`, `acting_dropout`). Every step then moves all positions, so both episodes are encoded anew.
- With `tokens: merged` (not published) a token has the action and reward before it, and none where an episode begins: what the last
  step of the earlier episode did and earned stands in no token.

Source: Laskin et al. 2022; RA-DT (arXiv 2410.07071), specification 3.4 (K per environment, exact index rule).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from recollect.artifacts.run import Run
from recollect.common.contract import Facts, Inputs, facts_of
from recollect.common.transfer import sent
from recollect.radt import dt
from recollect.radt.acting import CachedSteps, InContextPolicy, check_policy
from recollect.radt.decision_transformer import DecisionTransformer
from recollect.radt.experience import Experience
from recollect.radt.supervised import open_experience, train_policy
from recollect.radt.windows import DistillationSampler, Earlier
from recollect.settings.schema import Settings


class Hyperparameters(dt.Hyperparameters):
    """DT's, and how far back the context lies. Defaults are the paper's for Dark-Room 10x10."""

    context: int = Field(
        100,
        ge=1,
        description="Most timesteps of each of the two episodes in training; the horizon shows them whole. While acting twice "
        "as many last steps of both together are read, as released.",
    )
    episodes_back: int = Field(
        100, ge=1, description="K. Paper: grids 100, MazeRunner 1000. Larger: bolder improvement."
    )
    earlier: Earlier = Field(
        "sequential", description="Earlier episode: K before (paper), any other of the task, or any other of all tasks."
    )
    earlier_random: float = Field(
        0.0, ge=0, le=1, description="Share of earlier episodes that are replaced by a random one of all tasks."
    )
    context_drop: float = Field(0.0, ge=0, le=1, description="Share of windows without an earlier episode.")
    loss_on: Literal["both", "current"] = Field("both", description="Episodes whose actions are learned. Paper: both.")


class DistillationPolicy(InContextPolicy):
    """Plays with the last complete episode in front of the current one."""

    acting = (*InContextPolicy.acting, "cached", "before")

    def __init__(self, network: DecisionTransformer, settings: Settings) -> None:
        super().__init__(network, settings)
        self.window_steps: int = settings.method.hyperparameters.context

    def begin(self, rows: int) -> None:
        self.cached: CachedSteps | None = None
        self.before: Experience | None = None  # each row's last complete episode, where it is encoded with every step
        if self.network.goes_on and self.window_steps >= self.horizon:  # else steps leave the window
            self.cached = CachedSteps(self.computing, rows, 2 * self.horizon, self.cache_dtype)
        else:
            nothing_BT = torch.full((rows, self.horizon), -1, device=self.device)
            self.before = self.steps_of(nothing_BT, now_B=None)

    def forget(self, mask_B: np.ndarray) -> None:
        if self.cached is not None:
            self.cached.clear(mask_B)
        else:
            self.remember(np.flatnonzero(mask_B), np.full((len(mask_B), 1), -1))

    def drop(self, ended_B: np.ndarray) -> None:
        self.forget(ended_B)

    def finish(self, rows: np.ndarray, lengths: np.ndarray) -> None:
        """The episode that has just ended becomes the context: encode it once, or with every step."""
        step_BT = self.ended_steps(rows, lengths, self.horizon)
        if self.cached is None:
            self.remember(rows, step_BT)
            return
        self.cached.clear(np.isin(np.arange(len(self.seeds_B)), rows))
        episode = self.steps_of(sent(step_BT, self.device), now_B=None)
        self.cached.append_whole(episode)

    def remember(self, rows: np.ndarray, step_BT: np.ndarray) -> None:
        """Keep these steps of the current episode as the last complete one of some rows."""
        steps = self.steps_of(sent(step_BT, self.device), now_B=None)
        episode = steps.left_padded(self.horizon, self.no_action)
        rows_N = sent(rows, self.device)
        assert self.before is not None
        self.before.put(rows_N, episode.select(rows_N))

    def logits(self) -> Tensor:
        if self.cached is not None:
            return self.cached.append_now(self.now())
        assert self.before is not None
        # What is read like experience stands in the window at once: it need not be put in front at each step.
        padded = self.network.settings.padding == "attended"
        both = self.before.joined(self.window(self.horizon, padded=padded))
        return self.act_on(both.last(2 * self.window_steps))


def build_network(settings: Settings, facts: Facts) -> DecisionTransformer:
    chosen = settings.method.hyperparameters
    # Of both episodes together; while acting what is further back is left out.
    steps = 2 * (min(chosen.context, facts.horizon) if chosen.network.padding == "hidden" else chosen.context)
    return chosen.network.build(
        settings.environment, facts, seed=settings.seed, return_to_go=False, steps=steps, window=2 * chosen.context
    )


check = partial(check_policy, build_network)


def train(settings: Settings, inputs: Inputs, run: Run) -> DistillationPolicy:
    """Learn to predict the histories' actions from (earlier episode, current episode); loss on the tokens of both."""
    chosen: Hyperparameters = settings.method.hyperparameters
    facts = facts_of(settings.environment)
    network = build_network(settings, facts).to(inputs.device)
    histories, store = open_experience("histories", settings, inputs, facts)
    sampler = DistillationSampler(
        histories,
        **chosen.sampling(settings.seed),
        episodes_back=chosen.episodes_back,
        earlier=chosen.earlier,
        random=chosen.earlier_random,
        drop=chosen.context_drop,
    )

    def batch_of(step: int) -> tuple[Experience, Experience]:
        windows = sampler.batch(step)
        window = store.windows(windows.rows, windows.mask)
        if chosen.loss_on == "both":
            return window, window
        learned = sent(windows.mask & windows.current, window.mask.device)
        return window, replace(window, mask=learned)

    def loss_of(model: Callable[..., Any], batch: tuple[Experience, Experience]) -> tuple[Tensor, dict[str, Tensor]]:
        window, learned = batch
        return dt.action_loss(model(window)[0], learned)

    policy = DistillationPolicy(network, settings)
    return train_policy(policy, settings, run, batch_of=batch_of, loss_of=loss_of, learned_of=lambda batch: batch[1])


load_policy = partial(dt.policy_of, DistillationPolicy, build_network)
