"""Acting in context for a batch of tasks at once: what DT, AD, DPT and RA-DT share.

`InContextPolicy` keeps each row's current episode as arrays, finishes episodes, draws target returns and picks actions;
a method says how the episode (and whatever it remembers) becomes action logits. Every draw is a function of the row's
seed and a counter, so a row plays the same whatever else stands in the batch (but for `acting_dropout`).

Shapes: B rows (tasks), T steps of the current episode.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from recollect.artifacts.checkpoints import joined
from recollect.common.acting_state import Acting
from recollect.common.attention import ReadContext
from recollect.common.batched_policy import BatchedPolicy
from recollect.common.cache import KeyValueCache
from recollect.common.contract import Facts
from recollect.common.draws import categorical_from_weights, uniform
from recollect.common.precision import Precision, autocast, in_bfloat16, rounded_once
from recollect.common.transfer import sent
from recollect.common.weights import arrays_of
from recollect.environments import registry
from recollect.environments.base import Task
from recollect.radt.actions import middles, where
from recollect.radt.decision_transformer import DecisionTransformer
from recollect.radt.experience import Experience
from recollect.settings.errors import UserError
from recollect.settings.schema import EnvironmentSettings, Settings
from recollect.settings.seeding import seed_of

ActionSelection = Literal["greedy", "top_half", "sample"]
TARGET_STREAM = 0x5EED_7A26  # keeps a row's target returns apart from its actions


def select_actions(logits_BA: Tensor, uniform_B: np.ndarray, selection: ActionSelection) -> np.ndarray:
    """Actions from logits.

    Args:
        logits_BA: action logits.
        uniform_B: numbers in (0, 1), used unless greedy.
        selection: `greedy`; `sample` from the softmax; `top_half` (RA-DT 3.6): keep logits strictly above their median
            (for five actions the best two), sample from the softmax of those; of all where none lies above it, as released.
    """
    logits = logits_BA.cpu().double().numpy()
    if selection == "greedy":
        return logits.argmax(1)
    weights = np.exp(logits - logits.max(1, keepdims=True))
    if selection == "top_half":
        kept = logits > np.median(logits, axis=1, keepdims=True)
        weights = np.where(kept | ~kept.any(1, keepdims=True), weights, 0.0)
    return categorical_from_weights(weights, uniform_B)


def check_policy(build: Callable[[Settings, Facts], DecisionTransformer], settings: Settings, facts: Facts) -> None:
    """Raise a UserError where no policy can be made, or none can play: before the first job, not when it has learned."""
    check_acting(settings, build(settings, facts))
    if settings.environment.returns.target_mean is None:
        _check_targets(settings.environment)


def check_acting(settings: Settings, network: DecisionTransformer) -> None:
    """Raise a UserError where a network cannot act as the settings say."""
    chosen = settings.method.hyperparameters
    if chosen.acting_dropout and network.goes_on:
        raise UserError(
            "attention cannot drop weights while acting where steps are kept in a cache",
            where="hyperparameters: acting_dropout",
            do="set `network: {padding: attended}` as well (or `counted`)",
        )
    predicts_numbers = network.settings.action_size and network.settings.action_bins is None
    if predicts_numbers and chosen.selection != "greedy":
        raise UserError(
            f"selection '{chosen.selection}' chooses between tokens, but the actions are predicted as numbers",
            where="hyperparameters: selection",
            do="set `selection: greedy`, or `network: {action_bins: 64}`",
        )


def _check_targets(environment: EnvironmentSettings) -> None:
    """Raise a UserError where a task that is played lists no target return. Nothing is said of worlds that are not here."""
    for split in environment.evaluation.splits:
        tasks: Sequence[Task] = ()
        with suppress(UserError):
            tasks = registry.tasks(environment.world, environment.options, split)
        if any(np.isnan(listed_target(task)) for task in tasks):
            raise no_target()


def listed_target(task: Task) -> float:
    """The target return that a task lists; NaN where it lists none."""
    return float(task.data.get("target_return", np.nan))


def no_target() -> UserError:
    return UserError("a task lists no target return", where="returns.target_mean: null", do="set returns.target_mean")


class InContextPolicy(BatchedPolicy):
    """A sequence model that plays episode after episode and remembers what its method lets it."""

    acting: ClassVar[tuple[str, ...]] = (
        *BatchedPolicy.acting,
        "observation",
        "action",
        "reward",
        "aim",
        "step_B",
        "target_B",
        "episode_B",
    )

    def __init__(self, network: DecisionTransformer, settings: Settings) -> None:
        chosen = settings.method.hyperparameters
        self.network = network
        self.precision: Precision = chosen.acting_precision
        self.returns = settings.environment.returns
        self.selection: ActionSelection = chosen.selection
        self.reward_scale: float = chosen.reward_scale  # the network sees rewards and returns divided by it
        self.device = network.action_head.weight.device
        # Of what is kept from step to step; else the kept float32 numbers would be rounded anew at each step.
        self.cache_dtype = torch.bfloat16 if in_bfloat16(self.precision, self.device) else None
        self.no_action = network.settings.no_action
        self.acting_dropout: bool = chosen.acting_dropout
        check_acting(settings, network)

    @property
    def joins_splits(self) -> bool:
        """Whether splits of an evaluation, of equally long episodes, are played as one batch: on GPUs, where more rows cost little.

        A row's scores are the same either way up to rounding (but for `acting_dropout`, whose masks are drawn for all rows).
        """
        return self.device.type != "cpu"

    def start(self, seeds_B: np.ndarray, horizon: int = 0, episodes: int = 1) -> None:
        size, device = len(seeds_B), self.device
        self.computing = rounded_once(self.network, self.precision, device)  # its weights stay while it plays
        s = self.network.settings
        dtype = torch.int64 if s.observation_embedding == "one_hot" else torch.float32
        self.observation = torch.zeros(size, horizon, s.observation_size, dtype=dtype, device=device)
        shape: tuple[int, ...] = ()
        dtype = torch.int64
        if s.action_size:
            shape = (s.action_size,)
            dtype = torch.float32
        self.action = torch.full((size, horizon, *shape), self.no_action, dtype=dtype, device=device)
        self.own_BA = np.ones((size, *shape), bool)  # dimensions that a row's task has
        self.reward = torch.zeros(size, horizon, device=device)
        self.aim = torch.zeros(size, horizon, device=device)
        self.step_B = np.zeros(size, np.int64)
        self.target_B = np.zeros(size)
        self.listed_B = np.full(size, np.nan)  # target returns that tasks list
        self.episode_B = np.zeros(size, np.int64)
        super().start(seeds_B, horizon, episodes)

    def brief(self, tasks: Sequence[Task]) -> None:
        numbers = self.network.settings.action_size
        if numbers:
            own_B = np.array([task.data.get("actions", numbers) for task in tasks])
            self.own_BA = np.arange(numbers) < own_B[:, None]
        self.listed_B = np.array([listed_target(task) for task in tasks], np.float64)

    def reset(self, mask_B: np.ndarray) -> None:
        self.step_B[mask_B] = 0
        self.episode_B[mask_B] = 0
        super().reset(mask_B)

    @torch.no_grad()
    def act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        with autocast(self.precision, self.device):
            return self._act(observation_BD, reward_B, done_B)

    def _act(self, observation_BD: np.ndarray, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        going = ~self.fresh_B
        ended, begun = self.next_step(done_B)
        if going.any():
            reward_N = np.asarray(reward_B)[going]
            scaled_N = reward_N.astype(np.float32) / np.float32(self.reward_scale)
            self.put(self.reward, self.places(going), scaled_N)
            self.target_B[going] -= reward_N
            self.step_B[going] += 1
        if ended.any():
            self.finish(np.flatnonzero(ended), self.step_B[ended])
            self.step_B[ended] = 0
            self.episode_B[ended] += 1
        if begun.any():
            self.action[sent(begun, self.device)] = self.no_action
            self.target_B[begun] = self.target_returns(begun)
        now = self.places()
        self.put(self.observation, now, np.asarray(observation_BD))
        self.put(self.aim, now, (self.target_B / self.reward_scale).astype(np.float32))
        action_B = self.choose(self.logits())
        known_B = np.where(self.own_BA, action_B, self.no_action).astype(action_B.dtype)
        self.put(self.action, now, known_B)
        return action_B

    def places(self, mask_B: np.ndarray | None = None) -> tuple[Tensor, Tensor]:
        """The rows of a mask (None: all) and their present steps, int64 [N] each, which go to the device as one array."""
        rows = np.arange(len(self.step_B)) if mask_B is None else np.flatnonzero(mask_B)
        row_N, step_N = sent(np.stack([rows, self.step_B[rows]]), self.device).unbind()
        return row_N, step_N

    def put(self, table_BT: Tensor, places: tuple[Tensor, Tensor], values_N: np.ndarray) -> None:
        """Write what rows have at their steps; see `places`."""
        table_BT[places] = sent(torch.as_tensor(values_N).to(table_BT.dtype), self.device)

    def choose(self, logits_BA: Tensor) -> np.ndarray:
        """Actions: int64 [B], or float32 [B, A]."""
        s = self.network.settings
        if not s.action_size:
            return select_actions(logits_BA, self.action_chances()[:, 0], self.selection)
        if s.action_bins is None:
            return logits_BA.float().cpu().numpy()
        chance_BA = self.action_chances(s.action_size)
        token_N = select_actions(logits_BA.flatten(0, 1), chance_BA.reshape(-1), self.selection)
        return middles(s.action_bins).numpy()[token_N].reshape(chance_BA.shape)

    def target_returns(self, mask_B: np.ndarray) -> np.ndarray:
        """A rounded normal draw per row of the mask: a function of the row's seed and its episode. Without a mean: what
        the row's task lists.
        """
        if self.returns.target_mean is None:
            listed = self.listed_B[mask_B]
            if np.isnan(listed).any():
                raise no_target()
            return listed
        chance = uniform(self.seeds_B[mask_B], self.episode_B[mask_B], TARGET_STREAM)
        normal = torch.special.ndtri(torch.from_numpy(chance)).numpy()
        return np.round(self.returns.target_mean + self.returns.target_std * normal)

    def window(self, steps: int, rows_B: np.ndarray | None = None, *, padded: bool = False) -> Experience:
        """The last steps of every row's current episode (of the rows of a mask, if given), left padded to the longest row's,
        or to all steps.
        """
        step_B = self.step_B if rows_B is None else self.step_B[rows_B]
        longest = steps if padded else min(int(step_B.max()) + 1, steps)
        rows, now_B = self.places(rows_B)
        until_now_T = torch.arange(1 - longest, 1, device=self.device)
        return self.steps_of(now_B[:, None] + until_now_T, now_B=now_B, rows=rows)

    def act_on(self, window: Experience, read: ReadContext | None = None) -> Tensor:
        """Action logits for the last step of windows that are encoded whole; see `DecisionTransformer.act`."""
        if self.acting_dropout:  # drawn for all rows at once, by the first one's seed and place
            place = (int(self.seeds_B[0]), int(self.episode_B[0]), int(self.step_B[0]))
            self.computing.reseed_dropout(seed_of("acting dropout", *place))
        whole = window.mask.shape[1] <= int(self.step_B.min()) + 1  # known here, so that nobody asks the device
        return self.computing.act(window, read=read, dropout=self.acting_dropout, whole=whole)

    def now(self) -> Experience:
        """The previous step of every row's episode (padding where there is none) and the present one, for `CachedSteps`."""
        step_BT = self.step_B[:, None] + np.array([-1, 0])
        at_BT = sent(step_BT, self.device)
        return self.steps_of(at_BT, now_B=at_BT[:, 1])

    def steps_of(self, at_BT: Tensor, now_B: Tensor | None, rows: Tensor | None = None) -> Experience:
        """The given steps of the current episode (of some rows, if given); negative ones are padding. At `now` there is
        no action or reward yet.
        """
        mask_BT = at_BT >= 0
        at_BT = at_BT.clamp(min=0)
        acted_BT = mask_BT
        if now_B is not None:
            acted_BT = mask_BT & (at_BT < now_B[:, None])
        if rows is None:
            rows = torch.arange(len(at_BT), device=self.device)
        row_B1 = rows[:, None]
        return Experience(
            observation=self.observation[row_B1, at_BT] * mask_BT[..., None],
            return_to_go=self.aim[row_B1, at_BT] * mask_BT,
            action=where(acted_BT, self.action[row_B1, at_BT], self.no_action),
            reward=self.reward[row_B1, at_BT] * acted_BT,
            timestep=at_BT,
            mask=mask_BT,
        )

    def ended_steps(self, rows: np.ndarray, lengths: np.ndarray, most: int) -> np.ndarray:
        """The at most so many last steps [B, T] of episodes that have just ended; negative in rows that play on."""
        lengths_B = np.zeros(len(self.seeds_B), np.int64)
        lengths_B[rows] = lengths
        longest = min(int(lengths.max()), most)
        return lengths_B[:, None] + np.arange(-longest, 0)

    def arrays(self) -> dict[str, np.ndarray]:
        return joined(network=arrays_of(self.network))

    def traced(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        if not self.network.settings.return_to_go:
            return {}
        return {"return_to_go": self.target_B[rows_N].astype(np.float32)}

    def maps(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        return {}

    @abstractmethod
    def finish(self, rows: np.ndarray, lengths: np.ndarray) -> None:
        """Episodes of these rows have ended after so many steps; they still stand in the arrays."""

    @abstractmethod
    def logits(self) -> Tensor:
        """Action logits [B, A] (or see `radt.actions.ContinuousHead`) for now."""


class CachedSteps(Acting):
    """Feeds a network one timestep per call through its key/value cache, equal to encoding the whole window.

    Works while nothing leaves the window: the caller starts anew with `clear` where an episode ends.
    """

    acting = ("cache",)

    def __init__(
        self, network: DecisionTransformer, rows: int, timesteps: int, dtype: torch.dtype | None = None
    ) -> None:
        self.network = network
        self.per_step = network.settings.tokens_per_step
        self.cache = KeyValueCache(network.transformer, rows, timesteps * self.per_step, dtype=dtype)

    def clear(self, mask_B: np.ndarray | None = None) -> None:
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
        seen = network.action_token + 1  # tokens of a timestep up to the one that predicts its action
        follows_B = pair.mask[:, 0]
        # Of the previous timestep the cache holds `seen` tokens, or all of a single one.
        first_position_B = self.cache.lengths_B - follows_B.long() * seen
        if active_B is not None:
            first_position_B = first_position_B * active_B
        tokens_BND = network.embed(pair, first_position_B=first_position_B)
        if per_step == 1:
            return self.cache.step(tokens_BND[:, -1], active_B)
        # What the previous timestep still lacks, then the present one up to its action.
        tokens_BND = tokens_BND[:, seen : per_step + seen]
        lacking_BN = follows_B[:, None].expand(-1, per_step - seen)
        present_BN = torch.ones_like(follows_B)[:, None].expand(-1, seen)
        mask_BN = torch.cat([lacking_BN, present_BN], 1)
        if active_B is not None:
            mask_BN = mask_BN & active_B[:, None]
        return self.cache.extend(tokens_BND, mask_BN)[:, -1]
