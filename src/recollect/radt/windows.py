"""Which rows of the histories a training batch consists of: a pure function of (seed, step), with no loop over windows.

Windows are row numbers and a mask, not data: whoever holds the columns (in memory, memory-mapped, or on a GPU) gathers
them with one fancy index. Windows are padded on the left, so the newest step always stands last; a padded place repeats
the window's first row, so that a gather is valid everywhere and stays within the task.

Source: RA-DT (arXiv 2410.07071), specification 3.2 (windows), 3.4 (Algorithm Distillation) and 3.5 (DPT).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from recollect.common.histories import Histories
from recollect.settings.errors import UserError
from recollect.settings.seeding import generator

NO_EPISODE = -1
EpisodesBy = Literal["length", "uniform", "return", "return_corrected", "top", "reward_std"]
Earlier = Literal["sequential", "task", "any"]


@dataclass(frozen=True)
class Windows:
    """B windows of C steps.

    Attributes:
        rows: int64 [B, C], rows of the histories; of windows with an earlier episode it stands in front, [B, 2 C].
        mask: bool, as `rows`: which are real; padding stands in front.
        episode: int64 [B], the current episode as its place in `Histories.episodes`.
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
        """bool, of the shape of `rows`: True at steps of the current episode, False at those of the earlier one."""
        last_B1 = self.rows[:, -1:]
        first_B1 = last_B1 - self.end[:, None] + 1
        return (self.rows >= first_B1) & (self.rows <= last_B1)


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
            for episode, (start, length) in enumerate(zip(table.start, table.length, strict=True)):
                value[episode] = histories.reward[start : start + length].std()
        value = value - value.min()
    if value.sum() == 0:
        return np.full(len(table), 1 / len(table))
    return value / value.sum()


class Sampler:
    """What all samplers know of the histories.

    Args:
        context: C, most steps of a window.

    Raises:
        UserError: context or batch size is below 1.
    """

    def __init__(self, histories: Histories, *, context: int, batch_size: int, seed: int) -> None:
        for name, value in (("context", context), ("batch size", batch_size)):
            if value < 1:
                raise UserError(f"the {name} is {value}", where="window sampler", do="set it to at least 1.")
        self.context = context
        self.batch_size = batch_size
        self.seed = seed
        self.episodes = histories.episodes
        self._until = np.cumsum(self.episodes.length)
        self._past_task = np.searchsorted(self.episodes.task, self.episodes.task, side="right")

    def windows(self, episode_B: np.ndarray, end_B: np.ndarray) -> Windows:
        """The windows that end before step `end_B` of the episodes `episode_B`."""
        first_B1 = self.episodes.start[episode_B][:, None]
        from_end_C = np.arange(-self.context, 0)
        rows_BC = first_B1 + end_B[:, None] + from_end_C
        mask_BC = rows_BC >= first_B1
        no_earlier_B = np.full(len(end_B), NO_EPISODE)
        return Windows(np.maximum(rows_BC, first_B1), mask_BC, episode_B, end_B, no_earlier_B)


class WindowSampler(Sampler):
    """Sub-trajectories as in RA-DT: an episode with probability proportional to its length L, an exclusive end uniform
    in {1, …, L - 1}, and the at most `context` steps before it.

    Short prefixes are therefore common, as they are when acting, and an episode's last transition is in no window (an
    episode of one step is the exception: it is its only window).
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
        super().__init__(histories, context=context, batch_size=batch_size, seed=seed)
        self._chances: np.ndarray | None = None
        if episodes_by != "length":
            self._chances = episode_chances(histories, episodes_by, top)

    def batch(self, step: int) -> Windows:
        return self.windows(*self.ends(generator(self.purpose, self.seed, step)))

    def ends(self, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Episodes and exclusive ends [B] that are drawn."""
        if self._chances is None:
            place_B = draw.integers(self._until[-1], size=self.batch_size)
            episode_B = np.searchsorted(self._until, place_B, side="right")
        else:
            episode_B = draw.choice(len(self._chances), size=self.batch_size, p=self._chances)
        past_last_end_B = np.maximum(self.episodes.length[episode_B], 2)
        return episode_B, draw.integers(1, past_last_end_B)


class DistillationSampler(WindowSampler):
    """Windows of Algorithm Distillation: a complete earlier episode, then a sub-trajectory of the current one.

    The current part is drawn as by `WindowSampler`. The earlier episode is the one K places before it in the same
    task's history, or the task's first where fewer than K lie before; the task's first episode has none before it.
    (The published rule for S sequences: from start = max(i - K(S - 1), first of the task), every
    max((i - start) // (S - 1), 1)-th; here S = 2.) Windows have 2C places, padding is on the left of both parts. An
    earlier episode longer than C gives its last C steps.

    Args:
        episodes_back: K.
        earlier: the earlier episode is K places before (`sequential`), any other one of the task, or any other of all.

    Raises:
        UserError: a number is below 1.
    """

    purpose = "distillation windows"

    def __init__(
        self,
        histories: Histories,
        *,
        episodes_back: int,
        earlier: Earlier = "sequential",
        random: float = 0.0,
        drop: float = 0.0,
        **sampling: Any,
    ) -> None:
        super().__init__(histories, **sampling)
        if episodes_back < 1:
            raise UserError(
                f"episodes_back is {episodes_back}", where="distillation sampler", do="set it to at least 1."
            )
        self.episodes_back = episodes_back
        self.earlier = earlier
        self.random = random
        self.drop = drop

    def batch(self, step: int) -> Windows:
        draw = generator(self.purpose, self.seed, step)
        size = self.batch_size
        episode_B, end_B = self.ends(draw)
        first_of_all_B = np.zeros(size, np.int64)
        past_all_B = np.full(size, len(self.episodes))
        if self.earlier == "sequential":
            earlier_B = self.episodes_before(episode_B)
        elif self.earlier == "task":
            earlier_B = other_than(episode_B, self.episodes.first_of_task[episode_B], self._past_task[episode_B], draw)
        else:
            earlier_B = other_than(episode_B, first_of_all_B, past_all_B, draw)
        if self.random:
            any_B = other_than(episode_B, first_of_all_B, past_all_B, draw)
            replaced_B = (draw.random(size) < self.random) & (earlier_B != NO_EPISODE)
            earlier_B = np.where(replaced_B, any_B, earlier_B)
        if self.drop:
            dropped_B = draw.random(size) < self.drop
            earlier_B = np.where(dropped_B, NO_EPISODE, earlier_B)
        return self.windows(episode_B, end_B, earlier_B)

    def episodes_before(self, episode_B: np.ndarray) -> np.ndarray:
        """The episodes K places before, or the first of their task; -1 for the first itself."""
        earlier_B = np.maximum(episode_B - self.episodes_back, self.episodes.first_of_task[episode_B])
        return np.where(earlier_B < episode_B, earlier_B, NO_EPISODE)

    def windows(self, episode_B: np.ndarray, end_B: np.ndarray, earlier_B: np.ndarray | None = None) -> Windows:
        table = self.episodes
        if earlier_B is None:
            earlier_B = self.episodes_before(episode_B)
        # How many steps of each part are in the window.
        current_B1 = np.minimum(end_B, self.context)[:, None]
        earlier_length_B = np.where(earlier_B != NO_EPISODE, table.length[earlier_B], 0)
        before_B1 = np.minimum(earlier_length_B, self.context)[:, None]
        # Both parts stand at the right: the current one last, the end of the earlier one in front of it.
        from_end_C = np.arange(-2 * self.context, 0)
        current_end_B = table.start[episode_B] + end_B
        earlier_end_B = table.start[earlier_B] + table.length[earlier_B]
        current_BC = current_end_B[:, None] + from_end_C
        before_BC = earlier_end_B[:, None] + current_B1 + from_end_C
        rows_BC = np.where(from_end_C >= -current_B1, current_BC, before_BC)
        real_B1 = current_B1 + before_B1
        mask_BC = from_end_C >= -real_B1
        first_B1 = np.take_along_axis(rows_BC, 2 * self.context - real_B1, axis=1)
        return Windows(np.where(mask_BC, rows_BC, first_B1), mask_BC, episode_B, end_B, earlier_B)


def other_than(own_B: np.ndarray, first_B: np.ndarray, past_B: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """A uniformly random episode in [first, past) other than one's own, -1 where there is none."""
    others_B = past_B - first_B - 1
    place_B = first_B + draw.integers(np.maximum(others_B, 1))
    place_B = place_B + (place_B >= own_B)  # one's own is stepped over
    return np.where(others_B > 0, place_B, NO_EPISODE)


@dataclass(frozen=True)
class ContextQueries:
    """B contexts of C steps, and Q query steps of the same task for each.

    Attributes:
        rows: int64 [B, C], rows of the histories.
        mask: bool [B, C], which are real.
        queries: int64 [B, Q], rows of the histories.
        context: int64 [B], the context's episode as its place in `Histories.episodes`, -1 where there is none.
    """

    rows: np.ndarray
    mask: np.ndarray
    queries: np.ndarray
    context: np.ndarray


class QuerySampler(Sampler):
    """A complete episode as context, drawn uniformly from a task, and query steps from the task's other episodes.

    A query is the last step of a window of `WindowSampler`: an episode with probability proportional to its length L,
    then a step uniform in {0, …, L - 2}. A task with one episode has queries and no context. A context longer than C
    gives its last C steps.

    Args:
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
        super().__init__(histories, context=context, batch_size=batch_size, seed=seed)
        self.queries = queries
        self.drop = drop

    def batch(self, step: int) -> ContextQueries:
        draw = generator("context and queries", self.seed, step)
        table, until = self.episodes, self._until
        # A task with a chance proportional to its steps, and any of its episodes.
        step_of_all_B = draw.integers(until[-1], size=self.batch_size)
        episode_B = np.searchsorted(until, step_of_all_B, side="right")
        first_B, past_B = table.first_of_task[episode_B], self._past_task[episode_B]
        context_B = draw.integers(first_B, past_B)
        alone_B = past_B - first_B == 1
        # Queries: any of the task's steps that are not the context's; those behind it move up by its length.
        begin_B = until[first_B] - table.length[first_B]
        left_out_B = np.where(alone_B, 0, table.length[context_B])
        room_B = until[past_B - 1] - begin_B - left_out_B
        place_BQ = begin_B[:, None] + draw.integers(room_B[:, None], size=(self.batch_size, self.queries))
        context_begin_B = until[context_B] - table.length[context_B]
        behind_BQ = place_BQ >= context_begin_B[:, None]
        place_BQ = place_BQ + behind_BQ * left_out_B[:, None]
        episode_BQ = np.searchsorted(until, place_BQ, side="right")
        step_BQ = draw.integers(np.maximum(table.length[episode_BQ] - 1, 1))
        without_B = alone_B | (draw.random(self.batch_size) < self.drop)
        windows = self.windows(context_B, table.length[context_B])
        return ContextQueries(
            rows=windows.rows,
            mask=windows.mask & ~without_B[:, None],
            queries=table.start[episode_BQ] + step_BQ,
            context=np.where(without_B, NO_EPISODE, context_B),
        )
