"""Decision-Pretrained Transformer (DPT) as RA-DT has it: from one whole episode of a task and a state, predict the action.

The context is a complete episode of the same task, then one empty separator step, then a single query step whose action
is predicted. Published are its curves and a switch of the data loader, but no configuration and no command, so most is
unknown [?]. What we chose:

- Labels are the logged actions, as in the released loader; DPT itself (Lee et al. 2023) has the optimal ones.
- [?] Contexts are drawn uniformly from the task's *other* episodes. The released loader means to leave out the query's
  own, but compares an index with an episode, so it never does.
- [?] One context episode. The released loader gives one less than its sequences per sample, which is two for AD; the paper says
  two episodes. It pads to the length of all sequences, and DPT's published speed of training is AD's, so two fits.
- The separator is all zero, timestep included. Released: its action is 0 as well, which is an action; here there is
  none. With merged tokens it takes the context's last timestep, so that it carries the last action and reward.
- [?] Loss on the query step only. The released loader's mask leaves the separator in, with label 0.
- [?] While acting, the last complete episode is the context, as in AD. It is encoded once; each step is then one query
  that is forgotten at once, so that no query sees another, as in training. The first episode has neither context nor
  separator; `context_drop` lets training see that too (published loader: an option, off).
- `queries` (not in the paper) trains that many query steps of the task behind one encoded context, exactly
  (`radt.shared_prefix`); with 1, as published, a whole episode is encoded for a single label. `recompute` has no effect.

Source: RA-DT (arXiv 2410.07071) and its released loader, specification 3.5; Lee et al. 2023 for the idea.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from recollect.artifacts.run import Run
from recollect.common.contract import Facts, Inputs, facts_of
from recollect.common.transfer import sent
from recollect.radt import dt
from recollect.radt.acting import CachedSteps, InContextPolicy, check_policy
from recollect.radt.decision_transformer import DecisionTransformer
from recollect.radt.experience import Experience
from recollect.radt.shared_prefix import hidden_behind
from recollect.radt.supervised import ExperienceStore, open_experience, train_policy
from recollect.radt.windows import ContextQueries, QuerySampler
from recollect.settings.errors import UserError
from recollect.settings.schema import Settings

LAST_EMPTY = ((0, 0), (0, 1))  # room for one step behind the windows of a batch


class Hyperparameters(dt.Hyperparameters):
    """DT's, and what is asked of a context. Defaults are ours for Dark-Room 10x10; the paper names none."""

    context: int = Field(100, ge=1, description="Most timesteps of the context episode; the horizon shows it whole.")
    episodes_by: Literal["length"] = Field("length", description="Contexts are uniform, queries by length.")
    top_episodes: int = Field(5, ge=1, description="No effect: DPT draws from all episodes.")
    acting_dropout: Literal[False] = Field(False, description="Not with DPT, which keeps its context in a cache.")
    queries: int = Field(
        1, ge=1, description="Query steps per context. Released: 1. More: more labels for one encoding."
    )
    context_drop: float = Field(
        0.0, ge=0, le=1, description="Share of queries without a context, as in a first episode."
    )


@dataclass(frozen=True)
class Batch:
    """A training step's input: contexts [B, C + 1] that end with the separator, and query steps [B, Q]."""

    context: Experience
    queries: Experience


class QueryPolicy(InContextPolicy):
    acting = (*InContextPolicy.acting, "cached")

    def __init__(self, network: DecisionTransformer, settings: Settings) -> None:
        super().__init__(network, settings)
        self.window_steps: int = settings.method.hyperparameters.context

    def begin(self, rows: int) -> None:
        self.cached = CachedSteps(self.computing, rows, min(self.window_steps, self.horizon) + 2, self.cache_dtype)

    def forget(self, mask_B: np.ndarray) -> None:
        self.cached.clear(mask_B)

    def drop(self, ended_B: np.ndarray) -> None:
        self.forget(ended_B)

    def finish(self, rows: np.ndarray, lengths: np.ndarray) -> None:
        """The episode that has just ended becomes the context: encode it and the separator once."""
        self.cached.clear(np.isin(np.arange(len(self.seeds_B)), rows))
        step_BT = self.ended_steps(rows, lengths, self.window_steps)
        step_BT = np.pad(step_BT, LAST_EMPTY, constant_values=-1)
        context = self.steps_of(sent(step_BT, self.device), now_B=None)
        merged = self.cached.per_step == 1
        self.cached.append_whole(with_separator(context, merged=merged))

    def logits(self) -> Tensor:
        cache = self.cached.cache
        query_B1D = query_tokens(self.computing, self.window(1), cache.lengths_B)
        hidden_BD = cache.peek(query_B1D[:, 0])
        return self.computing.action_head(hidden_BD)


def with_separator(context: Experience, *, merged: bool) -> Experience:
    """Make the last, still empty step of contexts [B, C + 1] the separator, where there is a context at all."""
    mask_BT = context.mask.clone()
    timestep_BT = context.timestep.clone()
    mask_BT[:, -1] = mask_BT.any(1)
    if merged:
        timestep_BT[:, -1] = timestep_BT[:, -2]
    return replace(context, mask=mask_BT, timestep=timestep_BT)


def batch_from(store: ExperienceStore, drawn: ContextQueries, *, merged: bool) -> Batch:
    """The steps that were drawn, with the separator behind each context."""
    rows_BT = np.pad(drawn.rows, LAST_EMPTY, mode="edge")
    mask_BT = np.pad(drawn.mask, LAST_EMPTY)
    context = store.windows(rows_BT, mask_BT)
    all_real_BQ = np.ones_like(drawn.queries, bool)
    queries = store.windows(drawn.queries, all_real_BQ)
    return Batch(with_separator(context, merged=merged), queries)


def query_tokens(network: DecisionTransformer, queries: Experience, position_B: Tensor) -> Tensor:
    """The tokens [B, Q, D] that predict the actions of query steps [B, Q], each at its row's position."""
    size = queries.mask.shape
    alone = queries.map(lambda field: field.flatten(0, 1)[:, None])  # each query is a window of its own
    position_M = position_B.repeat_interleave(size[1])
    tokens_MND = network.embed(alone, first_position_B=position_M)
    return tokens_MND[:, network.action_token].unflatten(0, size)


def logits_of(network: DecisionTransformer, batch: Batch) -> Tensor:
    mask_BN = network.token_mask(batch.context.mask)
    query_BQD = query_tokens(network, batch.queries, mask_BN.sum(1))
    context_BND = network.embed(batch.context)
    hidden_BQD = hidden_behind(network.transformer, context_BND, query_BQD, mask_BN=mask_BN)
    return network.action_head(hidden_BQD)


def build_network(settings: Settings, facts: Facts) -> DecisionTransformer:
    chosen: Hyperparameters = settings.method.hyperparameters
    if chosen.network.padding != "hidden":
        raise UserError(
            f"DPT's positions count from its first real step, so its padding cannot be {chosen.network.padding}",
            where="hyperparameters: network.padding",
            do="set network.padding: hidden",
        )
    steps = min(chosen.context, facts.horizon) + 2  # the separator and the query
    return chosen.network.build(settings.environment, facts, seed=settings.seed, return_to_go=False, steps=steps)


check = partial(check_policy, build_network)


def train(settings: Settings, inputs: Inputs, run: Run) -> QueryPolicy:
    """Learn to predict the logged action of a step from another episode of the same task."""
    chosen: Hyperparameters = settings.method.hyperparameters
    facts = facts_of(settings.environment)
    network = build_network(settings, facts).to(inputs.device)
    histories, store = open_experience("histories", settings, inputs, facts)
    sampler = QuerySampler(
        histories,
        context=chosen.context,
        queries=chosen.queries,
        batch_size=chosen.optimisation.batch_size,
        seed=settings.seed,
        drop=chosen.context_drop,
    )

    def batch_of(step: int) -> Batch:
        return batch_from(store, sampler.batch(step), merged=chosen.network.tokens == "merged")

    def loss_of(model: DecisionTransformer, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return dt.action_loss(logits_of(model, batch), batch.queries)

    policy = QueryPolicy(network, settings)
    return train_policy(
        policy, settings, run, batch_of=batch_of, loss_of=loss_of, learned_of=lambda batch: batch.queries
    )


load_policy = partial(dt.policy_of, QueryPolicy, build_network)
