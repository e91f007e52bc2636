"""Which rows of the histories a training batch consists of: a pure function of (seed, step), with no loop over windows.

Windows are row numbers and a mask, not data: whoever holds the columns (in memory, memory-mapped, or on a GPU) gathers
them with one fancy index. Windows are padded on the left, so the newest step always stands last; a padded place repeats
the window's first row, so that a gather is valid everywhere and stays within the task.

Source: RA-DT (arXiv 2410.07071), specification 3.2 (windows), 3.4 (Algorithm Distillation) and 3.5 (DPT).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from recollect.common.histories import Histories
from recollect.settings.errors import UserError
from recollect.settings.seeding import generator

NONE = -1
EpisodesBy = Literal["length", "uniform", "return", "return_corrected", "top", "reward_std"]
Earlier = Literal["sequential", "task", "any"]


@dataclass(frozen=True)
class Windows:
    """B windows of C steps.

    Attributes:
        rows: int64 [B, C], rows of the histories.
        mask: bool [B, C], True where the step is real; real steps stand at the right end, in time order.
        episode: int64 [B], the current episode, as its place in `Histories.episodes`.
        end: int64 [B], exclusive end of the window within the current episode, in steps.
        earlier: int64 [B], the earlier episode in front of the current one, -1 where there is none.
    """

    rows: np.ndarray
    mask: np.ndarray
    episode: np.ndarray
    end: np.ndarray
    earlier: np.ndarray

    @property
    def current(self) -> np.ndarray:
        """bool [B, C]: True at steps of the current episode, False at those of the earlier one."""
        task_first = self.rows[:, -1:] - self.end[:, None] + 1  # the current episode's first row
        return (self.rows >= task_first) & (self.rows <= self.rows[:, -1:])

    def take(self, column: np.ndarray) -> np.ndarray:
        """The windows of a column: [N, ...] -> [B, C, ...], zero where padded."""
        taken = column.take(self.rows, axis=0)
        taken *= self.mask.reshape(self.mask.shape + (1,) * (taken.ndim - 2))
        return taken


def episode_chances(histories: Histories, by: EpisodesBy, top: int) -> np.ndarray:
    """The chance of every episode to be drawn, float64 [M] of sum 1.

    Args:
        by: `length`, `uniform`, or proportional to the min-max normalised return (`return`), return less length
            (`return_corrected`, where staying alive pays) or standard deviation of rewards (`reward_std`), all uniform
            where that is the same for all; `top`: uniform over the `top` episodes of highest return (of equal ones the
            first).
    """
    table = histories.episodes
    if by == "length":
        value = table.length.astype(np.float64)
    elif by == "top":
        value = np.zeros(len(table))
        value[np.argsort(-table.total_return, kind="stable")[:top]] = 1.0
    elif by == "uniform":
        value = np.ones(len(table))
    else:
        value = table.total_return.astype(np.float64)
        if by == "return_corrected":
            value = value - table.length
        elif by == "reward_std":
            value = np.array(
                [histories.reward[a:b].std() for a, b in zip(table.start, table.start + table.length, strict=True)]
            )
        value = value - value.min()
    return value / value.sum() if value.sum() else np.full(len(table), 1 / len(table))


class WindowSampler:
    """Sub-trajectories as in RA-DT: an episode with probability proportional to its length L, an exclusive end uniform
    in {1, …, L - 1}, and the at most `context` steps before it.

    Short prefixes are therefore common, as they are when acting, and an episode's last transition is in no window (an
    episode of one step is the exception: it is its only window).

    Args:
        histories: with at least one complete episode.
        context: C, most steps of a window.
        batch_size: B, windows per batch.
        seed: of the batches.
        episodes_by, top: chances of the episodes, see `episode_chances`.

    Raises:
        UserError: context or batch size is below 1.
    """

    purpose = "windows"

    def __init__(
        self,
        histories: Histories,
        *,
        context: int,
        batch_size: int,
        seed: int,
        episodes_by: EpisodesBy = "length",
        top: int = 5,
    ) -> None:
        for name, value in (("context", context), ("batch size", batch_size)):
            if value < 1:
                raise UserError(f"the {name} is {value}", where="window sampler", do="set it to at least 1.")
        self.context, self.batch_size, self.seed = context, batch_size, seed
        self.episodes = histories.episodes
        self._until = np.cumsum(self.episodes.length)
        by_length = episodes_by == "length"
        self._chances = None if by_length else episode_chances(histories, episodes_by, top)

    def batch(self, step: int) -> Windows:
        """The windows of a training step; the same for the same (histories, seed, step)."""
        return self.windows(*self.ends(generator(self.purpose, self.seed, step)))

    def ends(self, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Episodes and exclusive ends [B] that are drawn."""
        if self._chances is None:
            place_B = draw.integers(self._until[-1], size=self.batch_size)
            episode_B = np.searchsorted(self._until, place_B, side="right")
        else:
            episode_B = draw.choice(len(self._chances), size=self.batch_size, p=self._chances)
        return episode_B, draw.integers(1, np.maximum(self.episodes.length[episode_B], 2))

    def windows(self, episode_B: np.ndarray, end_B: np.ndarray) -> Windows:
        """The windows that end before step `end_B` of the episodes `episode_B`."""
        first_B1 = self.episodes.start[episode_B][:, None]
        rows_BC = first_B1 + end_B[:, None] + np.arange(-self.context, 0)
        mask_BC = rows_BC >= first_B1
        return Windows(np.maximum(rows_BC, first_B1), mask_BC, episode_B, end_B, np.full(len(end_B), NONE))


class DistillationSampler(WindowSampler):
    """Windows of Algorithm Distillation: a complete earlier episode, then a sub-trajectory of the current one.

    The current part is drawn as by `WindowSampler`. The earlier episode is the one K places before it in the same
    task's history, or the task's first where fewer than K lie before; the task's first episode has none before it.
    (The published rule for S sequences: from start = max(i - K(S - 1), first of the task), every
    max((i - start) // (S - 1), 1)-th; here S = 2.) Windows have 2C places, padding is on the left of both parts. An
    earlier episode longer than C gives its last C steps.

    Args:
        histories, context, batch_size, seed, episodes_by, top: see `WindowSampler`; `context` holds for each of the two
            parts.
        episodes_back: K.
        earlier: the earlier episode is K places before (`sequential`), any other one of the task, or any other of all.
        random: share of earlier episodes that are replaced by a random one of all tasks.
        drop: share of windows without an earlier episode.

    Raises:
        UserError: a number is below 1.
    """

    purpose = "distillation windows"

    def __init__(
        self,
        histories: Histories,
        *,
        context: int,
        episodes_back: int,
        batch_size: int,
        seed: int,
        episodes_by: EpisodesBy = "length",
        top: int = 5,
        earlier: Earlier = "sequential",
        random: float = 0.0,
        drop: float = 0.0,
    ) -> None:
        super().__init__(histories, context=context, batch_size=batch_size, seed=seed, episodes_by=episodes_by, top=top)
        if episodes_back < 1:
            raise UserError(
                f"episodes_back is {episodes_back}", where="distillation sampler", do="set it to at least 1."
            )
        self.episodes_back, self.earlier, self.random, self.drop = episodes_back, earlier, random, drop
        self._past_task = np.searchsorted(self.episodes.task, self.episodes.task, side="right")

    def batch(self, step: int) -> Windows:
        """See `WindowSampler.batch`."""
        draw = generator(self.purpose, self.seed, step)
        episode_B, end_B = self.ends(draw)
        every, size = len(self.episodes), self.batch_size
        earlier_B = self.episodes_before(episode_B)
        if self.earlier == "task":
            earlier_B = other_than(episode_B, self.episodes.first_of_task[episode_B], self._past_task[episode_B], draw)
        elif self.earlier == "any":
            earlier_B = other_than(episode_B, np.zeros(size, np.int64), np.full(size, every), draw)
        if self.random:
            any_B = other_than(episode_B, np.zeros(size, np.int64), np.full(size, every), draw)
            earlier_B = np.where((draw.random(size) < self.random) & (earlier_B != NONE), any_B, earlier_B)
        if self.drop:
            earlier_B = np.where(draw.random(size) < self.drop, NONE, earlier_B)
        return self.windows(episode_B, end_B, earlier_B)

    def episodes_before(self, episode_B: np.ndarray) -> np.ndarray:
        """The episodes K places before, or the first of their task; -1 for the first itself."""
        earlier_B = np.maximum(episode_B - self.episodes_back, self.episodes.first_of_task[episode_B])
        return np.where(earlier_B < episode_B, earlier_B, NONE)

    def windows(self, episode_B: np.ndarray, end_B: np.ndarray, earlier_B: np.ndarray | None = None) -> Windows:
        """The windows that end before step `end_B` of the episodes `episode_B`, with the earlier episode in front."""
        table = self.episodes
        earlier_B = self.episodes_before(episode_B) if earlier_B is None else earlier_B
        has_earlier_B = earlier_B != NONE
        now_B1 = np.minimum(end_B, self.context)[:, None]
        before_B1 = np.where(has_earlier_B, np.minimum(table.length[earlier_B], self.context), 0)[:, None]
        from_end_C = np.arange(-2 * self.context, 0)
        rows_BC = np.where(
            from_end_C >= -now_B1,
            (table.start[episode_B] + end_B)[:, None] + from_end_C,
            (table.start[earlier_B] + table.length[earlier_B])[:, None] + now_B1 + from_end_C,
        )
        mask_BC = from_end_C >= -(now_B1 + before_B1)
        first_B1 = np.take_along_axis(rows_BC, 2 * self.context - now_B1 - before_B1, axis=1)
        return Windows(np.where(mask_BC, rows_BC, first_B1), mask_BC, episode_B, end_B, earlier_B)


def other_than(own_B: np.ndarray, first_B: np.ndarray, past_B: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """A uniformly random episode in [first, past) other than one's own, -1 where there is none."""
    place_B = first_B + draw.integers(np.maximum(past_B - first_B - 1, 1))
    return np.where(past_B - first_B > 1, place_B + (place_B >= own_B), NONE)


@dataclass(frozen=True)
class ContextQueries:
    """B contexts of C steps, and Q query steps of the same task for each.

    Attributes:
        rows, mask: int64 and bool [B, C], the context's steps, padded on the left as in `Windows`.
        queries: int64 [B, Q], rows of the histories.
        context: int64 [B], the context's episode as its place in `Histories.episodes`, -1 where there is none.
    """

    rows: np.ndarray
    mask: np.ndarray
    queries: np.ndarray
    context: np.ndarray


class QuerySampler:
    """A complete episode as context, drawn uniformly from a task, and query steps from the task's other episodes.

    A query is the last step of a window of `WindowSampler`: an episode with probability proportional to its length L,
    then a step uniform in {0, …, L - 2}. A task with one episode has queries and no context. A context longer than C
    gives its last C steps.

    Args:
        histories, context, batch_size, seed: see `WindowSampler`.
        queries: Q, query steps per context.
        drop: share of contexts that are left out.

    Raises:
        UserError: a number is below 1.
    """

    def __init__(
        self, histories: Histories, *, context: int, queries: int, batch_size: int, seed: int, drop: float = 0.0
    ) -> None:
        if queries < 1:
            raise UserError(f"queries is {queries}", where="query sampler", do="set it to at least 1.")
        self._contexts = WindowSampler(histories, context=context, batch_size=batch_size, seed=seed)
        self.queries, self.batch_size, self.seed, self.drop = queries, batch_size, seed, drop
        self.episodes = histories.episodes
        self._until = np.cumsum(self.episodes.length)
        self._past_task = np.searchsorted(self.episodes.task, self.episodes.task, side="right")

    def batch(self, step: int) -> ContextQueries:
        """The contexts and queries of a training step; the same for the same (histories, seed, step)."""
        draw = generator("context and queries", self.seed, step)
        table, until = self.episodes, self._until
        some_B = np.searchsorted(until, draw.integers(until[-1], size=self.batch_size), side="right")
        first_B, past_B = table.first_of_task[some_B], self._past_task[some_B]
        context_B = draw.integers(first_B, past_B)
        alone_B = past_B - first_B == 1
        left_out_B = np.where(alone_B, 0, table.length[context_B])  # of the task's steps, as those of no query
        begin_B = until[first_B] - table.length[first_B]
        room_B1 = (until[past_B - 1] - begin_B - left_out_B)[:, None]
        place_BQ = begin_B[:, None] + draw.integers(room_B1, size=(self.batch_size, self.queries))
        behind_BQ = place_BQ >= (until[context_B] - table.length[context_B])[:, None]
        episode_BQ = np.searchsorted(until, place_BQ + behind_BQ * left_out_B[:, None], side="right")
        step_BQ = draw.integers(np.maximum(table.length[episode_BQ] - 1, 1))
        without_B = alone_B | (draw.random(self.batch_size) < self.drop)
        windows = self._contexts.windows(context_B, table.length[context_B])
        return ContextQueries(
            rows=windows.rows,
            mask=windows.mask & ~without_B[:, None],
            queries=table.start[episode_BQ] + step_BQ,
            context=np.where(without_B, NONE, context_B),
        )
