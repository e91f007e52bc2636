"""The training memory as retrieval sees it: keys, the table beside them, and what random draws need.

Source: RA-DT (arXiv 2410.07071), section 3; specification 4.1 and 4.6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from recollect.common.transfer import sent
from recollect.settings.errors import UserError

Search = Callable[[Tensor, int], tuple[Tensor, Tensor]]
NOTHING = float("-inf")


@dataclass(frozen=True)
class Queries:
    """A batch of queries: keys, and what is known of the window each came from.

    ``key_BD`` are zeros where nothing is searched for. ``episode_B`` is -1 where the trajectory is not in the memory;
    ``last_B`` is the window's last timestep.
    """

    key_BD: Tensor
    task_B: Tensor
    episode_B: Tensor
    total_return_B: Tensor
    last_B: Tensor

    def repeated(self, times: int) -> Queries:
        columns = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return Queries(**{name: column.repeat_interleave(times, 0) for name, column in columns.items()})


class TrainingMemory:
    """The table beside the keys, on one device, with what random draws need.

    Args:
        search: ``search(queries_QD, k) -> (scores, ids)``: ``FlatIndex.search``, or that of an approximate index.
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
        self.search = search
        self.keys_ND = keys_ND
        self.task_N = task_N.to(device).long()
        self.episode_N = episode_N.to(device).long()
        self.total_return_N = total_return_N.to(device).float()
        self.last_N = last_N.to(device).long()
        # Entries ordered by (task, episode), so that "of this task but not of this episode" is an interval with a hole.
        order = self.episode_N.argsort(stable=True)
        self._order = order[self.task_N[order].argsort(stable=True)]
        self._episodes = int(self.episode_N.max()) + 3  # one more for any episode that has no entry
        self._codes = self._code(self.task_N, self.episode_N)[self._order]

    @cached_property
    def spread_D(self) -> Tensor:
        return self.keys_ND.std(0, unbiased=False)

    def _code(self, task: Tensor, episode: Tensor) -> Tensor:
        return task * self._episodes + episode + 1  # + 1: the unknown episode -1 sorts before all

    def _span(self, task_B: Tensor, own_B: Tensor, within: int | None) -> tuple[Tensor, Tensor]:
        """From where to where (not included) in `_order` the entries of each task stand, or those around code `own`."""
        lowest_B = task_B * self._episodes
        highest_B = lowest_B + self._episodes
        if within is not None:
            lowest_B = torch.maximum(own_B - within, lowest_B)
            highest_B = torch.minimum(own_B + within + 1, highest_B)
        first_B = torch.searchsorted(self._codes, lowest_B)
        past_B = torch.searchsorted(self._codes, highest_B)
        return first_B, past_B

    def of_task(self, queries: Queries, within: int | None = None) -> Tensor:
        """All entries of each query's task (at most ``within`` trajectories away), in the order in which they were
        played; ids [B, S], -1 behind the last."""
        device = self._codes.device
        task_B = queries.task_B.to(device).long()
        episode_B = queries.episode_B.to(device).long()
        first_B, past_B = self._span(task_B, self._code(task_B, episode_B), within)
        longest = max(int((past_B - first_B).max()), 1)
        place_BS = first_B[:, None] + torch.arange(longest, device=device)
        last_place = len(self._order) - 1
        id_BS = self._order[place_BS.clamp_max(last_place)]
        return id_BS.masked_fill(place_BS >= past_B[:, None], -1)

    def near(self, queries: Queries, key_BD: Tensor, within: int, k: int) -> tuple[Tensor, Tensor]:
        """The most similar entries of each query's task that are at most ``within`` trajectories away.

        Returns:
            similarity and ids [B, <= k], the most similar first, equal ones by id; -inf and -1 where there is none.
        """
        id_BS = self.of_task(queries, within)
        keys_BSD = self.keys_ND[id_BS.clamp_min(0)]
        similarity_BS = torch.bmm(keys_BSD, key_BD[:, :, None]).squeeze(2)
        similarity_BS = similarity_BS.masked_fill(id_BS < 0, NOTHING)
        similarity_BS, order_BS = similarity_BS.sort(dim=1, descending=True, stable=True)
        return similarity_BS[:, :k], id_BS.gather(1, order_BS)[:, :k]

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
        device = self._codes.device
        task_B = task_B.to(device).long()
        episode_B = episode_B.to(device).long().clamp(min=-1)
        around_B = self._code(task_B, episode_B)  # also of an episode behind all entries: `within` counts from it
        own_B = self._code(task_B, episode_B.clamp(max=self._episodes - 2))
        own_first_B = torch.searchsorted(self._codes, own_B)
        own_count_B = torch.searchsorted(self._codes, own_B, right=True) - own_first_B
        if not exclude_own:
            own_count_B = torch.zeros_like(own_count_B)
        if any_task:
            first_B = torch.zeros_like(own_B)
            past_B = torch.full_like(own_B, len(self._codes))
        else:
            first_B, past_B = self._span(task_B, around_B, within)
        free_B = past_B - first_B - own_count_B
        chance_B = torch.rand(len(task_B), generator=generator, device=generator.device, dtype=torch.float64)
        nth_B = torch.minimum((sent(chance_B, device) * free_B).long(), free_B - 1)
        place_B = first_B + nth_B.clamp_min(0)
        # One's own entries are stepped over.
        steps_over_B = (own_count_B > 0) & (place_B >= own_first_B)
        place_B = torch.where(steps_over_B, place_B + own_count_B, place_B)
        id_B = self._order[place_B.clamp_max(len(self._order) - 1)]
        return torch.where(free_B > 0, id_B, torch.full_like(id_B, -1))
