"""The test-time memory: one per task or one for all, empty at first, growing by one episode at a time, batched over all tasks.

Upstream evaluates one task after another and rebuilds an index on disk; here all tasks of an evaluation search with one
batched product. Values are not copied: an entry is (episode slot, first step, end) into a log of the played episodes.

Differences from the released code: by default keys and queries are normalised, as in the paper and in training. Upstream's raw
inner product is ``similarity="inner_product"``, which config/methods/radt.yaml sets. Products are summed in float64, and scores
within 1e-6 of the best count as equal to it and the lowest index wins, so that the number of tasks in a batch cannot flip a tie.

Source: RA-DT (arXiv 2410.07071), section on in-context evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from recollect.common.acting_state import Device
from recollect.radt.pooling import normalised
from recollect.radt.scores import Combine, by_return, combined, drawn_places, minmax
from recollect.radt.training_memory import NOTHING
from recollect.settings.errors import UserError
from recollect.settings.schema import Frozen

TIE = 1e-6  # scores this near are equal; far above float64 rounding, far below a difference that means something


TABLES = (
    "keys_ECD",
    "total_return_EC",
    "slot_EC",
    "first_EC",
    "end_EC",
    "last_EC",
    "owner_EC",
)  # of a memory's entries


class EpisodicSettings(Frozen):
    """What is retrieved at test time. Defaults: the released grid configs with the paper's similarity."""

    similarity: Literal["cosine", "inner_product"] = Field(
        "cosine",
        description="cosine: keys and queries normalised (paper); inner_product: keys as they come (released code); "
        "queries have length one either way, which changes no choice",
    )
    candidates: int = Field(50, ge=1, description="nearest entries that are re-weighted")
    select: int = Field(1, ge=1, description="entries retrieved, k")
    similarity_weight: float = Field(1.0, description="weight of the min-max normalised similarity")
    return_weight: float = Field(
        1.0, description="weight of the min-max normalised return (paper's alpha at test time)"
    )
    minimum_return: float | None = Field(None, description="episodes below this return are not stored")
    kind: Literal["retrieval", "random", "return", "max_return", "last"] = Field(
        "retrieval",
        description="retrieval; a random entry; one drawn with a chance proportional to its return; that of highest "
        "return; the one stored last",
    )
    combine: Combine = Field(
        "add",
        description="multiply: similarity times return, each as it is; a term of weight 0 is left out (released option)",
    )
    choose: Literal["best", "sample"] = Field(
        "best",
        description="the entries of highest score, or a draw with chances proportional to scores (released option)",
    )
    shared: bool = Field(
        False,
        description="one memory for all tasks of an evaluation: each row reads what any row has stored. A row then "
        "depends on the others, and forgets nothing. The last episode of a row is not stored",
    )
    demonstrations: str | None = Field(
        None,
        description="name of an environment whose learning histories stand in the memory from the start: each task's own "
        "(by split and index), or with `shared` those of all tasks. The same environment: the training data",
    )
    demonstration_episodes: int = Field(
        10, ge=1, description="how many episodes of each task's history are read, counted from its end"
    )
    target_factor: float | None = Field(
        None,
        gt=0,
        description="target return = this times the highest return in memory, where that is above 0 (released option: "
        "1.2); null: drawn as without a memory",
    )

    @property
    def draws(self) -> bool:
        return self.kind in ("random", "return") or (self.kind == "retrieval" and self.choose == "sample")

    def with_returns_divided(self, reward_scale: float) -> EpisodicSettings:
        """The same for a memory whose returns are divided by `reward_scale`."""
        if self.minimum_return is None:
            return self
        return self.model_copy(update={"minimum_return": self.minimum_return / reward_scale})


@dataclass(frozen=True)
class Hits:
    """What each query of a batch found, ascending by (return, last timestep); index -1 where nothing was found.

    ``owner``, ``slot``, ``first`` and ``end`` say where the value stands in the episode log: whose episode it is, which,
    and its steps; they are 0 where nothing was found.
    """

    index_BK: Tensor
    score_BK: Tensor
    similarity_BK: Tensor
    total_return_BK: Tensor
    slot_BK: Tensor
    first_BK: Tensor
    end_BK: Tensor
    owner_BK: Tensor

    @property
    def found_BK(self) -> Tensor:
        """True where there is an entry; False everywhere for a task whose memory is still empty."""
        return self.index_BK >= 0

    @classmethod
    def nothing(cls, queries: int, select: int, device: str | torch.device = "cpu") -> Hits:
        zero = torch.zeros((queries, select), dtype=torch.long, device=device)
        return cls(
            index_BK=zero - 1,
            score_BK=zero.double().fill_(NOTHING),
            similarity_BK=zero.double(),
            total_return_BK=zero.float(),
            slot_BK=zero.clone(),
            first_BK=zero.clone(),
            end_BK=zero.clone(),
            owner_BK=zero.clone(),
        )

    def select(self, queries: Tensor) -> Hits:
        return Hits(**{name: getattr(self, name)[queries] for name in self.__dataclass_fields__})

    def differ(self, found: Hits) -> Tensor:
        """Whether what new queries of the same rows found stands elsewhere in the episode log: bool [B]."""
        other_BK = self.found_BK != found.found_BK
        for name in ("owner_BK", "slot_BK", "first_BK", "end_BK"):
            other_BK = other_BK | (getattr(self, name) != getattr(found, name))
        return other_BK.any(1)

    def put(self, rows: Tensor, found: Hits) -> None:
        for name in self.__dataclass_fields__:
            getattr(self, name)[rows] = getattr(found, name)


class EpisodicMemory:
    """Keys, returns and value places of E memories with room for ``capacity`` entries each.

    There is one for each row of an evaluation, or one that all share; ``task_*`` is the number of a memory.
    Keys are kept in float64: 100 tasks x 1280 entries x 768 is 0.8 GB, and a search then costs one batched product.
    """

    def __init__(
        self,
        tasks: int,
        capacity: int,
        width: int,
        settings: EpisodicSettings,
        device: str | torch.device = "cpu",
    ) -> None:
        self.settings = settings
        self.capacity = capacity
        self.width = width
        self.device = torch.device(device)
        self.keys_ECD = torch.zeros((tasks, capacity, width), dtype=torch.float64, device=device)
        self.total_return_EC = torch.zeros((tasks, capacity), dtype=torch.float32, device=device)
        zero_EC = torch.zeros((tasks, capacity), dtype=torch.long, device=device)
        self.slot_EC = zero_EC.clone()
        self.first_EC = zero_EC.clone()
        self.end_EC = zero_EC.clone()
        self.last_EC = zero_EC.clone()
        self.owner_EC = zero_EC
        self.count_E = torch.zeros(tasks, dtype=torch.long, device=device)
        self.most = 0  # entries of the fullest memory, as the host knows

    def state_arrays(self) -> dict[str, Tensor]:
        """See `Acting`; places without an entry are left out."""
        used = self.most
        return {"count": self.count_E} | {name: getattr(self, name)[:, :used] for name in TABLES}

    def load_state(self, arrays: Mapping[str, Tensor], device: Device = None) -> None:
        self.count_E.copy_(arrays["count"])
        self.most = int(self.count_E.max())
        for name in TABLES:
            table = getattr(self, name)
            table[:, : arrays[name].shape[1]] = arrays[name].to(table.device)

    def reset(self, mask_E: Tensor) -> None:
        self.count_E[mask_E.to(self.device)] = 0
        self.most = int(self.count_E.max())

    def add(
        self,
        task_M: Tensor | np.ndarray,
        key_MD: Tensor,
        *,
        slot_M: Tensor | np.ndarray,
        first_M: Tensor | np.ndarray,
        end_M: Tensor | np.ndarray,
        last_M: Tensor | np.ndarray,
        total_return_M: Tensor | np.ndarray,
        owner_M: Tensor | np.ndarray,
    ) -> None:
        """Append the chunks of episodes that have just ended, of any tasks at once, in the given order within a task.

        Args:
            slot_M, first_M, end_M: where the value stands in the episode log.
            last_M: last timestep of the key's window.
            total_return_M: return of the episode; below ``minimum_return`` the chunk is not stored.
            owner_M: whose row of the episode log the value stands in.

        Raises:
            UserError: a memory is full, or the keys have another width.
        """
        if key_MD.ndim != 2 or key_MD.shape[1] != self.width:
            raise UserError(
                f"Keys of shape {tuple(key_MD.shape)} do not fit a memory of width {self.width}.",
                where="episodic memory",
                do="Use the embedder that the policy was trained with.",
            )
        task = torch.as_tensor(task_M, device=self.device).long()
        total_return = torch.as_tensor(total_return_M, device=self.device).float()
        stored = torch.arange(len(task), device=self.device)
        if self.settings.minimum_return is not None:
            stored = stored[total_return >= self.settings.minimum_return]
        task = task[stored]
        if len(task) == 0:
            return
        place = self._free_places(task)
        if int(place.max()) >= self.capacity:
            raise UserError(
                f"The memory holds {self.capacity} entries per task and one task needs {int(place.max()) + 1}.",
                where="episodic memory",
                do="Give it room for episodes x ceil(horizon / stride) entries.",
            )
        self.keys_ECD[task, place] = self._comparable(key_MD)[stored]
        self.total_return_EC[task, place] = total_return[stored]
        columns = (
            (self.slot_EC, slot_M),
            (self.first_EC, first_M),
            (self.end_EC, end_M),
            (self.last_EC, last_M),
            (self.owner_EC, owner_M),
        )
        for table_EC, column_M in columns:
            table_EC[task, place] = torch.as_tensor(column_M, device=self.device).long()[stored]
        self.count_E += torch.bincount(task, minlength=len(self.count_E))
        self.most = int(self.count_E.max())

    def _free_places(self, task_M: Tensor) -> Tensor:
        added_E = torch.bincount(task_M, minlength=len(self.count_E))
        begin_E = added_E.cumsum(0) - added_E
        # Sorted by task, an entry's place among the new ones of its task is its distance from the task's first.
        order_M = task_M.argsort(stable=True)
        sorted_place_M = torch.arange(len(task_M), device=self.device) - begin_E[task_M[order_M]]
        place_M = torch.empty_like(task_M)
        place_M[order_M] = sorted_place_M
        return place_M + self.count_E[task_M]

    def _comparable(self, vectors_ND: Tensor) -> Tensor:
        """Keys or queries as their similarity is computed: in float64 and, for cosines, of length one."""
        vectors_ND = vectors_ND.detach().to(self.device, torch.float64)
        if self.settings.similarity == "cosine":
            return normalised(vectors_ND)
        return vectors_ND

    def search(
        self, query_BD: Tensor, task_B: Tensor | None = None, chance_BK: Tensor | np.ndarray | None = None
    ) -> Hits:
        """Retrieve for a batch of queries.

        Score = w_s * minmax(similarity) + w_r * minmax(return), both over the nearest ``candidates`` of the task.

        Args:
            task_B: the tasks asked for; all in order if not given, and then no key is copied.
            chance_BK: numbers in [0, 1) that decide what is drawn, where the settings say that something is.
        """
        rows = slice(None) if task_B is None else task_B.to(self.device)
        query_BD = self._comparable(query_BD)
        count_B = self.count_E[rows]
        used = max(self.most, 1)
        filled_BC = torch.arange(used, device=self.device) < count_B[:, None]
        if len(self.keys_ECD) == 1 and len(query_BD) > 1:  # a shared memory: not copied for each query
            similarity_BC = query_BD @ self.keys_ECD[0, :used].T
        else:
            # Sliced before rows are taken: there is room for all episodes, most of it still empty.
            keys_BCD = self.keys_ECD[:, :used][rows]
            similarity_BC = torch.bmm(keys_BCD, query_BD[:, :, None]).squeeze(2)
        similarity_BC = (similarity_BC / TIE).round() * TIE  # equal keys stay equal, and the lower index comes first
        return_BC, last_BC = self.total_return_EC[rows], self.last_EC[rows]
        score_BL, index_BL = self._scored(similarity_BC, return_BC, filled_BC)
        if self.settings.draws:
            chance = torch.as_tensor(chance_BK, dtype=torch.float64).to(self.device)
            drawn_BK = drawn_places(score_BL, chance)
            score_BK = score_BL.gather(1, drawn_BK)
            index_BK = index_BL.gather(1, drawn_BK).masked_fill(score_BK == NOTHING, -1)
        else:
            index_BK, score_BK = self._best(score_BL, index_BL)
        place_BK = index_BK.clamp_min(0)
        index_BK, score_BK = by_return(index_BK, score_BK, return_BC.gather(1, place_BK), last_BC.gather(1, place_BK))
        found_BK = index_BK >= 0
        place_BK = index_BK.clamp_min(0)

        def at(table_EC: Tensor) -> Tensor:
            return table_EC[rows].gather(1, place_BK) * found_BK

        return Hits(
            index_BK=index_BK,
            score_BK=score_BK,
            similarity_BK=similarity_BC.gather(1, place_BK) * found_BK,
            total_return_BK=at(self.total_return_EC),
            slot_BK=at(self.slot_EC),
            first_BK=at(self.first_EC),
            end_BK=at(self.end_EC),
            owner_BK=at(self.owner_EC),
        )

    def _scored(self, similarity_BC: Tensor, return_BC: Tensor, filled_BC: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (-inf: nothing there) and indices [B, L] of the entries that may be retrieved."""
        chosen = self.settings
        if chosen.kind != "retrieval":
            used = filled_BC.shape[1]
            index_BC = torch.arange(used, device=self.device).expand(filled_BC.shape)
            score_BC = return_BC[:, :used]
            if chosen.kind == "random":
                score_BC = torch.ones_like(similarity_BC)
            elif chosen.kind == "last":
                score_BC = index_BC
            return score_BC.double().masked_fill(~filled_BC, NOTHING), index_BC
        similarity_BC = similarity_BC.masked_fill(~filled_BC, NOTHING)
        similarity_BC, order_BC = similarity_BC.sort(dim=1, descending=True, stable=True)
        similarity_BL, index_BL = similarity_BC[:, : chosen.candidates], order_BC[:, : chosen.candidates]
        valid_BL = filled_BC.gather(1, index_BL)
        return_BL = return_BC.gather(1, index_BL).double()
        if chosen.combine == "add":
            similarity_BL, return_BL = minmax(similarity_BL, valid_BL), minmax(return_BL, valid_BL)
        terms = ((chosen.similarity_weight, similarity_BL), (chosen.return_weight, return_BL))
        score_BL = combined(chosen.combine, terms, like=similarity_BL)
        return score_BL.masked_fill(~valid_BL, NOTHING), index_BL

    def best_return(self, task_B: Tensor) -> Tensor:
        """The highest return stored [B]; -inf where the memory is empty."""
        filled_BC = torch.arange(self.capacity, device=self.device) < self.count_E[task_B][:, None]
        return self.total_return_EC[task_B].masked_fill(~filled_BC, NOTHING).amax(1)

    def _best(self, score_BL: Tensor, index_BL: Tensor) -> tuple[Tensor, Tensor]:
        """The k best, one after the other: the lowest index among the scores within TIE of the best that is left."""
        indices, scores = [], []
        for _ in range(self.settings.select):
            best_B1 = score_BL.amax(dim=1, keepdim=True)
            tied_BL = (score_BL >= best_B1 - TIE) & (score_BL > NOTHING)
            tied_index_BL = index_BL.masked_fill(~tied_BL, self.capacity)
            place_B1 = tied_index_BL.argmin(dim=1, keepdim=True)
            score_B1 = score_BL.gather(1, place_B1)
            index_B1 = index_BL.gather(1, place_B1).masked_fill(score_B1 == NOTHING, -1)
            scores.append(score_B1)
            indices.append(index_B1)
            score_BL = score_BL.scatter(1, place_B1, NOTHING)
        return torch.cat(indices, dim=1), torch.cat(scores, dim=1)
