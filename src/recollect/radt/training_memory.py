"""The training memory as retrieval sees it: keys, the table beside them, and what random draws need.

Source: RA-DT (arXiv 2410.07071), section 3; specification 4.1 and 4.6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from recollect.settings.errors import UserError

Search = Callable[[Tensor, int], tuple[Tensor, Tensor]]
NOTHING = float("-inf")


@dataclass(frozen=True)
class Queries:
    """A batch of queries: keys of length one, and what is known of the window each came from.

    ``episode`` is -1 where the trajectory is not in the memory; ``last`` is the window's last timestep.
    """

    key_BD: Tensor
    task_B: Tensor
    episode_B: Tensor
    total_return_B: Tensor
    last_B: Tensor

    def repeated(self, times: int) -> Queries:
        """Every query so many times, one behind the other."""
        return Queries(*(getattr(self, name).repeat_interleave(times, 0) for name in self.__dataclass_fields__))


class TrainingMemory:
    """The table beside the keys, on one device, with what random draws need.

    Args:
        search: ``search(queries_QD, k) -> (scores, ids)``: ``FlatIndex.search`` or a closure over ``matmul_search``.
        keys_ND: keys of length one (used by query blending).
        task_N, episode_N, total_return_N, last_N: the chunk table.
    """

    def __init__(
        self, search: Search, keys_ND: Tensor, task_N: Tensor, episode_N: Tensor, total_return_N: Tensor, last_N: Tensor
    ) -> None:
        columns = (task_N, episode_N, total_return_N, last_N)
        if any(len(column) != len(keys_ND) for column in columns) or len(keys_ND) == 0:
            raise UserError(
                f"The memory has {len(keys_ND)} keys but a table of {[len(column) for column in columns]} rows.",
                where="memory",
                do="Build the index and its row table together (`recollect index`).",
            )
        device = keys_ND.device
        self.search, self.keys_ND = search, keys_ND
        self.task_N, self.episode_N = task_N.to(device).long(), episode_N.to(device).long()
        self.total_return_N, self.last_N = total_return_N.to(device).float(), last_N.to(device).long()
        # Entries ordered by (task, episode), so that "of this task but not of this episode" is an interval with a hole.
        order = self.episode_N.argsort(stable=True)
        self._order = order[self.task_N[order].argsort(stable=True)]
        self._episodes = int(self.episode_N.max()) + 3  # one more for any episode that has no entry
        self._codes = self._code(self.task_N, self.episode_N)[self._order]

    @cached_property
    def spread_D(self) -> Tensor:
        """Standard deviation of the keys, entry by entry."""
        return self.keys_ND.std(0, unbiased=False)

    def _code(self, task: Tensor, episode: Tensor) -> Tensor:
        return task * self._episodes + episode + 1  # + 1: the unknown episode -1 sorts before all

    def _span(self, task: Tensor, own: Tensor, within: int | None) -> tuple[Tensor, Tensor]:
        """From where to where (not included) in `_order` the entries of each task stand, or those around code `own`."""
        lowest, highest = task * self._episodes, (task + 1) * self._episodes
        if within is not None:
            lowest, highest = torch.maximum(own - within, lowest), torch.minimum(own + within + 1, highest)
        return torch.searchsorted(self._codes, lowest), torch.searchsorted(self._codes, highest)

    def of_task(self, queries: Queries, within: int | None = None) -> Tensor:
        """All entries of each query's task (at most ``within`` trajectories away), in the order in which they were
        played; ids [B, S], -1 behind the last."""
        device = self._codes.device
        task, episode = queries.task_B.to(device).long(), queries.episode_B.to(device).long()
        first, past = self._span(task, self._code(task, episode), within)
        place = first[:, None] + torch.arange(max(int((past - first).max()), 1), device=device)
        return self._order[place.clamp_max(len(self._order) - 1)].masked_fill(place >= past[:, None], -1)

    def near(self, queries: Queries, key_BD: Tensor, within: int, k: int) -> tuple[Tensor, Tensor]:
        """The most similar entries of each query's task that are at most ``within`` trajectories away.

        Returns:
            similarity and ids [B, <= k], the most similar first, equal ones by id; -inf and -1 where there is none.
        """
        ids = self.of_task(queries, within)
        similarity = torch.bmm(self.keys_ND[ids.clamp_min(0)], key_BD[:, :, None]).squeeze(2)
        similarity = similarity.masked_fill(ids < 0, NOTHING)
        similarity, order = similarity.sort(dim=1, descending=True, stable=True)
        return similarity[:, :k], ids.gather(1, order)[:, :k]

    def draw(
        self,
        task_B: Tensor,
        episode_B: Tensor,
        generator: torch.Generator,
        *,
        exclude_own: bool,
        any_task: bool = False,
        within: int | None = None,
    ) -> Tensor:
        """One uniformly random entry per query, of its task (or of any), not of its own trajectory if asked.

        Returns:
            ids [B]; -1 where there is no such entry. Several draws for one query may give the same entry.
        """
        task_B, episode_B = task_B.to(self._codes.device).long(), episode_B.to(self._codes.device).long()
        own = self._code(task_B, episode_B.clamp(-1, self._episodes - 2))
        own_first = torch.searchsorted(self._codes, own)
        own_count = torch.searchsorted(self._codes, own, right=True) - own_first
        if not exclude_own:
            own_count = torch.zeros_like(own_count)
        if any_task:
            first, count = torch.zeros_like(own), torch.full_like(own, len(self._codes))
        else:
            first, past = self._span(task_B, own, within)
            count = past - first
        free = count - own_count
        chance = torch.rand(len(task_B), generator=generator, device=generator.device, dtype=torch.float64)
        place = first + torch.minimum((chance.to(free.device) * free).long(), free - 1).clamp_min(0)
        place = torch.where((own_count > 0) & (place >= own_first), place + own_count, place)
        ids = self._order[place.clamp_max(len(self._order) - 1)]
        return torch.where(free > 0, ids, torch.full_like(ids, -1))
