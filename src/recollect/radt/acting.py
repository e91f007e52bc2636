"""Acting in context for a batch of tasks at once: what DT, AD, DPT and RA-DT share.

`InContextPolicy` keeps each row's current episode as arrays, finishes episodes, draws target returns and picks actions;
a method says how the episode (and whatever it remembers) becomes action logits. Every draw is a function of the row's
seed and a counter, so a row plays the same whatever else stands in the batch.

Shapes: B rows (tasks), T steps of the current episode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from recollect.common.cache import KeyValueCache
from recollect.common.draws import ACTION_STREAM, categorical_from_weights, uniform
from recollect.environments.base import Task
from recollect.radt.actions import middles, where
from recollect.radt.decision_transformer import DecisionTransformer, Experience
from recollect.settings.errors import UserError
from recollect.settings.schema import ReturnSettings

ActionSelection = Literal["greedy", "top_half", "sample"]
TARGET_STREAM = 0x5EED_7A26  # keeps a row's target returns apart from its actions


def select_actions(logits_BA: Tensor, uniform_B: np.ndarray, selection: ActionSelection) -> np.ndarray:
    """Actions from logits.

    Args:
        logits_BA: action logits.
        uniform_B: numbers in (0, 1), used unless greedy.
        selection: `greedy`; `sample` from the softmax; `top_half` (RA-DT 3.6): keep logits strictly above their median
            (for five actions the best two), sample from the softmax of those.
    """
    logits = logits_BA.double().cpu().numpy()
    if selection == "greedy":
        return logits.argmax(1)
    weights = np.exp(logits - logits.max(1, keepdims=True))
    if selection == "top_half":
        middle = np.median(logits, axis=1, keepdims=True)
        weights = np.where(logits > middle, weights, 0.0)
        all_equal = weights.sum(1) == 0  # nothing lies above the median
        weights[all_equal] = 1.0
    return categorical_from_weights(weights, uniform_B)


class InContextPolicy(ABC):
    """A sequence model that plays episode after episode of a task and remembers what its method lets it remember.

    Args:
        network: the trained sequence model, in eval mode.
        returns: target return of an episode, and the scale of returns.
        selection: how actions are picked.
        reward_scale: rewards and returns are divided by it before the network sees them.
    """

    def __init__(
        self,
        network: DecisionTransformer,
        returns: ReturnSettings,
        *,
        selection: ActionSelection,
        reward_scale: float = 1.0,
    ) -> None:
        self.network, self.returns, self.selection, self.reward_scale = network, returns, selection, reward_scale
        self.device = network.action_head.weight.device
        self.no_action = network.settings.no_action
        if network.settings.action_size and network.settings.action_bins is None and selection != "greedy":
            raise UserError(
                f"selection '{selection}' chooses between tokens, but the actions are predicted as numbers",
                where="hyperparameters: selection",
                do="set `selection: greedy`, or `network: {action_bins: 64}`",
            )

    def start(self, seeds_B: np.ndarray, horizon: int, episodes: int) -> None:
        """See `contract.Policy.start`."""
        size, device = len(seeds_B), self.device
        self.seeds_B = np.asarray(seeds_B, np.uint64)
        self.horizon, self.episodes = horizon, episodes
        width = self.network.settings.observation_size
        whole = self.network.settings.observation_embedding == "one_hot"
        self.observation = torch.zeros(
            size, horizon, width, dtype=torch.int64 if whole else torch.float32, device=device
        )
        numbers = self.network.settings.action_size
        shape, dtype = ((numbers,), torch.float32) if numbers else ((), torch.int64)
        self.action = torch.full((size, horizon, *shape), self.no_action, dtype=dtype, device=device)
        self.own_BA = np.ones((size, *shape), bool)  # dimensions that a row's task has
        self.reward = torch.zeros(size, horizon, device=device)
        self.aim = torch.zeros(size, horizon, device=device)
        self.step_B = np.zeros(size, np.int64)
        self.target_B = np.zeros(size)
        self.listed_B = np.full(size, np.nan)  # target returns that tasks list
        self.draws_B = np.zeros(size, np.int64)
        self.episode_B = np.zeros(size, np.int64)
        self.fresh_B = np.ones(size, bool)
        self.begin(size)

    def brief(self, tasks: Sequence[Task]) -> None:
        """See `contract.Briefed.brief`."""
        if numbers := self.network.settings.action_size:
            own_B1 = np.array([[task.data.get("actions", numbers)] for task in tasks])
            self.own_BA = np.arange(numbers) < own_B1
        self.listed_B = np.array([task.data.get("target_return", np.nan) for task in tasks], np.float64)

    def reset(self, mask_B: np.ndarray) -> None:
        """See `contract.Policy.reset`."""
        self.step_B[mask_B] = 0
        self.episode_B[mask_B] = 0
        self.fresh_B |= mask_B
        self.forget(np.asarray(mask_B, bool))

    @torch.no_grad()
    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        """See `contract.Policy.act`."""
        rows = np.arange(len(self.seeds_B))
        going = ~self.fresh_B
        if going.any():
            here = torch.from_numpy(rows[going]).to(self.device)
            scaled = torch.from_numpy(np.asarray(reward_B, np.float32)[going] / np.float32(self.reward_scale))
            self.reward[here, torch.from_numpy(self.step_B[going]).to(self.device)] = scaled.to(self.device)
            self.target_B[going] -= np.asarray(reward_B)[going]
            self.step_B[going] += 1
        ended = going & np.asarray(done_B, bool)
        if ended.any():
            self.finish(np.flatnonzero(ended), self.step_B[ended])
            self.step_B[ended] = 0
            self.episode_B[ended] += 1
        begun = ended | self.fresh_B
        if begun.any():
            self.fresh_B[:] = False
            self.action[torch.from_numpy(begun).to(self.device)] = self.no_action
            self.target_B[begun] = self.target_returns(begun)
        at = torch.from_numpy(self.step_B).to(self.device)
        every = torch.from_numpy(rows).to(self.device)
        self.observation[every, at] = torch.from_numpy(np.asarray(observation_BD)).to(self.observation)
        self.aim[every, at] = torch.from_numpy((self.target_B / self.reward_scale).astype(np.float32)).to(self.device)
        action_B = self.choose(self.logits())
        self.draws_B += 1
        known_B = np.where(self.own_BA, action_B, self.no_action).astype(action_B.dtype)
        self.action[every, at] = torch.from_numpy(known_B).to(self.device)
        return action_B

    def choose(self, logits_BA: Tensor) -> np.ndarray:
        """Actions: int64 [B], or float32 [B, A]."""
        s = self.network.settings
        if not s.action_size:
            return select_actions(logits_BA, uniform(self.seeds_B, self.draws_B, ACTION_STREAM), self.selection)
        if s.action_bins is None:
            return logits_BA.float().cpu().numpy()
        counters_BA = self.draws_B[:, None] * s.action_size + np.arange(s.action_size)
        chance_N = uniform(self.seeds_B.repeat(s.action_size), counters_BA.reshape(-1), ACTION_STREAM)
        token_N = select_actions(logits_BA.flatten(0, 1), chance_N, self.selection)
        return middles(s.action_bins).numpy()[token_N].reshape(counters_BA.shape)

    def target_returns(self, mask_B: np.ndarray) -> np.ndarray:
        """A rounded normal draw per row of the mask: a function of the row's seed and its episode. Without a mean: what
        the row's task lists.
        """
        if self.returns.target_mean is None:
            listed = self.listed_B[mask_B]
            if np.isnan(listed).any():
                raise UserError(
                    "a task lists no target return", where="returns.target_mean: null", do="set returns.target_mean"
                )
            return listed
        chance = uniform(self.seeds_B[mask_B], self.episode_B[mask_B], TARGET_STREAM)
        normal = torch.special.ndtri(torch.from_numpy(chance)).numpy()
        return np.round(self.returns.target_mean + self.returns.target_std * normal)

    def window(self, steps: int, rows_B: np.ndarray | None = None) -> Experience:
        """The last steps of every row's current episode up to now, left padded; the action and reward of now are empty.

        Args:
            steps: how many; fewer where no episode is as long.
            rows_B: the rows of a mask only, if given.
        """
        step_B = self.step_B if rows_B is None else self.step_B[rows_B]
        longest = min(int(step_B.max()) + 1, steps)
        at_BT = torch.from_numpy(step_B[:, None] + np.arange(1 - longest, 1)).to(self.device)
        now_B = torch.from_numpy(step_B).to(self.device)
        rows = None if rows_B is None else torch.from_numpy(np.flatnonzero(rows_B)).to(self.device)
        return self.steps_of(at_BT, now_B=now_B, rows=rows)

    def now(self) -> Experience:
        """The previous step of every row's episode (padding where there is none) and the present one, for `CachedSteps`."""
        at_BT = torch.from_numpy(self.step_B[:, None] + np.array([-1, 0])).to(self.device)
        return self.steps_of(at_BT, now_B=at_BT[:, 1])

    def steps_of(self, at_BT: Tensor, now_B: Tensor | None, rows: Tensor | None = None) -> Experience:
        """The given steps of the current episode (of some rows, if given); negative ones are padding. At `now` there is
        no action or reward yet.
        """
        mask_BT = at_BT >= 0
        at_BT = at_BT.clamp(min=0)
        known_BT = mask_BT if now_B is None else mask_BT & (at_BT < now_B[:, None])
        rows = (torch.arange(len(at_BT), device=self.device) if rows is None else rows)[:, None]
        return Experience(
            observation=self.observation[rows, at_BT] * mask_BT[..., None],
            return_to_go=self.aim[rows, at_BT] * mask_BT,
            action=where(known_BT, self.action[rows, at_BT], self.no_action),
            reward=self.reward[rows, at_BT] * known_BT,
            timestep=at_BT,
            mask=mask_BT,
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """See `contract.Policy.arrays`."""
        return {f"network/{name}": value.detach().cpu().numpy() for name, value in self.network.state_dict().items()}

    def traced(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        """See `contract.Traced.traced`."""
        if not self.network.settings.return_to_go:
            return {}
        return {"return_to_go": self.target_B[rows_N].astype(np.float32)}

    def maps(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        """See `contract.Traced.maps`."""
        del rows_N
        return {}

    def begin(self, rows: int) -> None:
        """Make room for what the method remembers."""
        del rows

    def forget(self, mask_B: np.ndarray) -> None:
        """Drop what the method remembers of the rows in the mask."""
        del mask_B

    def finish(self, rows: np.ndarray, lengths: np.ndarray) -> None:
        """Episodes of these rows have ended after so many steps; they still stand in the arrays."""
        del rows, lengths

    @abstractmethod
    def logits(self) -> Tensor:
        """Action logits [B, A] (or see `nets.actions.ContinuousHead`) for now."""


class CachedSteps:
    """Feeds a network one timestep per call through its key/value cache, equal to encoding the whole window.

    Works while nothing leaves the window: the caller starts anew with `clear` where an episode ends.
    """

    def __init__(self, network: DecisionTransformer, rows: int, timesteps: int) -> None:
        self.network = network
        self.per_step = network.settings.tokens_per_step
        self.cache = KeyValueCache(network.transformer, rows, timesteps * self.per_step)

    def clear(self, mask_B: np.ndarray | None = None) -> None:
        """Forget all tokens of the rows in the mask (all rows if None)."""
        self.cache.reset(mask_B)

    def append_whole(self, block: Experience) -> None:
        """Append complete timesteps (all tokens) to the rows whose mask is True anywhere."""
        tokens_BND = self.network.embed(block, first_position_B=self.cache.lengths_B)
        self.cache.extend(tokens_BND, self.network.token_mask(block.mask))

    def append_now(self, pair: Experience, active_B: Tensor | None = None) -> Tensor:
        """Append the present timestep; action logits [B, A]. See `hidden_now`."""
        return self.network.action_head(self.hidden_now(pair, active_B))

    def hidden_now(self, pair: Experience, active_B: Tensor | None = None) -> Tensor:
        """Append the present timestep; the hidden state [B, D] that predicts its action.

        Args:
            pair: the previous timestep of the same episode (masked out where there is none) and the present one.
            active_B: rows that take part; the others keep their cache and their output means nothing. None: all do.
        """
        network, per_step = self.network, self.per_step
        follows_B = pair.mask[:, 0]
        seen = network.action_token + 1  # tokens of a timestep up to the one that predicts its action
        offset_B = self.cache.lengths_B - follows_B.long() * (1 if per_step == 1 else seen)
        if active_B is not None:
            offset_B = offset_B * active_B
        tokens_BND = network.embed(pair, first_position_B=offset_B)
        if per_step == 1:
            return self.cache.step(tokens_BND[:, -1], active_B)
        tokens_BND = tokens_BND[:, seen : per_step + seen]
        pending_BT = follows_B[:, None].expand(-1, per_step - seen)
        mask_BN = torch.cat([pending_BT, torch.ones_like(follows_B)[:, None].expand(-1, seen)], 1)
        if active_B is not None:
            mask_BN = mask_BN & active_B[:, None]
        return self.cache.extend(tokens_BND, mask_BN)[:, -1]
