"""What RA-DT remembers while it acts: the episodes that it has played, and a memory whose entries point into them.

Each row has a memory of its own, or all share one; demonstrations stand in it from the start. How an entry is found is
`episodic_memory`'s, how an episode is cut into entries `chunks`'.

Source: Schmied et al. (arXiv 2410.07071) sections 3-4; specification 4.1 and 4.7.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from recollect.common.acting_state import Acting
from recollect.common.transfer import sent
from recollect.environments.base import Task
from recollect.radt.actions import where
from recollect.radt.chunks import ChunkSettings, finished_chunks
from recollect.radt.demonstrations import Demonstrations
from recollect.radt.embedders import Embedder
from recollect.radt.episode_log import EpisodeLog
from recollect.radt.episodic_memory import EpisodicMemory, EpisodicSettings, Hits
from recollect.radt.experience import Experience
from recollect.settings.errors import UserError


class OwnEpisodes(Acting):
    """The memory of B rows, empty but for demonstrations.

    Args:
        like: name -> a tensor [B, T, ...] of the fields of an episode, for their shapes and types.
        episodes: most episodes of a row.
    """

    acting = ("memory", "log")

    def __init__(
        self,
        embedder: Embedder,
        chunks: ChunkSettings,
        acting: EpisodicSettings,
        like: Mapping[str, Tensor],
        no_action: float,
        *,
        episodes: int,
        demonstrations: Demonstrations | None,
    ) -> None:
        self.embedder, self.chunk_settings, self.settings, self.no_action = embedder, chunks, acting, no_action
        self.rows, horizon = like["observation"].shape[:2]
        self.device = like["observation"].device
        self.demonstrations = demonstrations
        memories, episodes_each = self.rows, episodes
        tasks_logged, episodes_logged = self.rows, episodes
        if acting.shared:
            memories, episodes_each = 1, self.rows * episodes
        if demonstrations is not None:
            shared_episodes = len(demonstrations.length_N)
            episodes_each += shared_episodes if acting.shared else acting.demonstration_episodes
            tasks_logged += len(demonstrations.names)  # they stand behind the rows
            episodes_logged = max(episodes_logged, acting.demonstration_episodes)
        capacity = episodes_each * math.ceil(horizon / chunks.stride)
        self.memory = EpisodicMemory(memories, capacity, embedder.width, acting, self.device)
        fields = {name: (tuple(field.shape[2:]), field.dtype) for name, field in like.items()}
        self.log = EpisodeLog(fields, tasks_logged, episodes_logged, horizon, self.device)
        self.demonstrated_task_B = np.full(self.rows, -1)  # which of the demonstrated tasks each row plays; see `brief`
        self.demonstrated_entries = None if demonstrations is None else self._demonstrate(demonstrations)

    def shelf(self, rows: Tensor) -> Tensor:
        """Which memory these rows have."""
        return torch.zeros_like(rows) if self.settings.shared else rows

    def add(self, row_M: Tensor, lengths: np.ndarray, fields: dict[str, Tensor]) -> None:
        """Store the windows of one whole episode [M, T, ...] of each of these rows."""
        entries = self.entries(row_M, lengths, fields)
        self.memory.add(self.shelf(entries["owner_M"]), **entries)

    def forget(self, mask_B: np.ndarray) -> None:
        if self.settings.shared:  # what a row has stored is everyone's
            return
        mask = torch.from_numpy(mask_B)
        self.memory.reset(mask)
        self.log.reset(F.pad(mask, (0, len(self.log.count_E) - len(mask))))  # demonstrations stay
        if mask_B.any():
            self._show(mask_B)

    def brief(self, tasks: Sequence[Task]) -> None:
        if self.demonstrations is not None:
            self.demonstrated_task_B = self.demonstrations.of(tasks)
            self._show(np.ones(len(tasks), bool))

    def _demonstrate(self, demonstrations: Demonstrations) -> dict[str, Tensor]:
        """Log all demonstrations; the entries that they make, in the order in which they were played.

        Raises:
            UserError: one is longer than the episodes that are played.
        """
        horizon, longest = self.log.horizon, int(demonstrations.length_N.max())
        if longest > horizon:
            raise UserError(
                f"a demonstration has {longest} steps, and the episodes that are played end after {horizon}",
                where=f"acting.demonstrations: {self.settings.demonstrations}",
                do=f"demonstrate with episodes of at most {horizon} steps",
            )
        rounds = []
        for episodes in demonstrations.rounds():
            place_M = sent(episodes, self.device)
            owner_M = sent(self.rows + demonstrations.task_N[episodes], self.device)
            fields = {name: getattr(demonstrations.steps, name)[place_M] for name in self.log.fields}
            rounds.append(self.entries(owner_M, demonstrations.length_N[episodes], fields))
        entries = {}
        for name in rounds[0]:
            entries[name] = torch.cat([columns[name] for columns in rounds])
        return entries

    def _show(self, mask_B: np.ndarray) -> None:
        """Put the demonstrations of these rows' tasks into their memory, or all into the shared one."""
        if self.demonstrated_entries is None:
            return
        if self.settings.shared:
            self.memory.add(torch.zeros_like(self.demonstrated_entries["owner_M"]), **self.demonstrated_entries)
            return
        for row in np.flatnonzero(mask_B & (self.demonstrated_task_B >= 0)):
            owner = len(mask_B) + int(self.demonstrated_task_B[row])
            own_M = self.demonstrated_entries["owner_M"] == owner
            entries = {name: column[own_M] for name, column in self.demonstrated_entries.items()}
            memory_M = torch.full_like(entries["owner_M"], int(row))
            self.memory.add(memory_M, **entries)

    def entries(self, owner_E: Tensor, lengths: np.ndarray, fields: dict[str, Tensor]) -> dict[str, Tensor]:
        """Log one whole episode for each owner; the M memory entries that they make, as `EpisodicMemory.add` takes them."""
        slot_E = self.log.write(owner_E, fields)
        total_return = fields["return_to_go"][:, 0].cpu().numpy()
        cut = finished_chunks(lengths, total_return, self.chunk_settings)

        def column(values: np.ndarray) -> Tensor:
            return sent(values, self.device)

        episode_M = column(cut.task)
        owner_M, slot_M = owner_E[episode_M], slot_E[episode_M]
        seen = self.logged(owner_M, slot_M, column(cut.key_first), column(cut.key_end), self.chunk_settings.key_context)
        return {
            # Not normalised here: the episodic memory does that, or not (`acting.similarity`).
            "key_MD": self.embedder.keys(seen, normalise=False),
            "slot_M": slot_M,
            "owner_M": owner_M,
            "first_M": column(cut.value_first),
            "end_M": column(cut.value_end),
            "last_M": column(cut.last),
            "total_return_M": column(cut.total_return),
        }

    def logged(self, owner_M: Tensor, slot_M: Tensor, first_M: Tensor, end_M: Tensor, length: int) -> Experience:
        """Windows [first, end) of logged episodes."""
        fields, mask_MT = self.log.windows(owner_M, slot_M, first_M, end_M, length)
        return Experience(
            observation=fields["observation"] * mask_MT[..., None],
            return_to_go=fields["return_to_go"] * mask_MT,
            action=where(mask_MT, fields["action"], self.no_action),
            reward=fields["reward"] * mask_MT,
            timestep=fields["timestep"] * mask_MT,
            mask=mask_MT,
        )

    def windows(self, hits: Hits) -> Experience:
        """The windows that were found for each row, one behind the other [B, K T]; padding where nothing was found."""
        places = (hits.owner_BK, hits.slot_BK, hits.first_BK, hits.end_BK)
        owner_M, slot_M, first_M, end_M = (place_BK.flatten() for place_BK in places)
        windows = self.logged(owner_M, slot_M, first_M, end_M, self.chunk_settings.value_length)
        return windows.map(lambda field: field.unflatten(0, hits.found_BK.shape).flatten(1, 2))
