"""A frozen language model as the memory of an agent: what HELM, HELMv2 and SHELM share. How images become words is theirs.

Every image becomes one or more input vectors in the space of the language model's embeddings (a `Reader`); the model reads
them behind those of the episode so far, and what it makes of all is the history vector. Nothing of it is trained: vectors
are stored when they are made, and updates never run the model. Specification 1 and 3.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from recollect.artifacts.checkpoints import joined, part
from recollect.common.contract import Inputs
from recollect.common.precision import Precision
from recollect.helm.asking import Answer, Asking, answered
from recollect.helm.feature_rescaling import FeatureRescaling
from recollect.helm.frame_cache import FrameCache
from recollect.helm.language.language_memory import LanguageMemory, language_memory
from recollect.helm.language.shared_memory import MemoryShare, SharedMemory, ring_of
from recollect.helm.on_policy import OnPolicyHyperparameters
from recollect.helm.small_impala import channels_of
from recollect.settings.schema import Settings

RELEASED_MEMORY = 511  # inputs that the released HELM and HELMv2 remember, whatever is configured
EVALUATION_BYTES = 4e9  # that the memories of the rows may take which an evaluation plays side by side


class LanguageHyperparameters(OnPolicyHyperparameters):
    """What the methods with a language model share; see also `OnPolicyHyperparameters`."""

    language_model: str = Field(
        "transfo-xl-wt103", description="A name of config/language_models.yaml. Paper: this one."
    )
    layers: int | None = Field(None, ge=1, description="Keep only its first layers; null, the paper's, keeps all 18.")
    pooling: Literal["mean", "last"] = Field(
        "mean",
        description="Of models that read both ways: mean of what they make of the window, or of the newest input.",
    )
    language_precision: Precision = Field(
        "float32",
        description="Of the language model's matrices and of what it remembers: bfloat16 halves both and moves history "
        "vectors by about 1 %; auto: on a GPU.",
    )
    language_graph: bool = Field(True, description="On a GPU a step of the language model is one CUDA graph.")
    memory_length: int = Field(511, ge=1, description="Inputs that are remembered. Paper: 15 to 2045, by task.")
    mem_len: Literal["upstream", "config"] = Field(
        "upstream", description="upstream: HELM and HELMv2 remember 511 whatever `memory_length` says, as released."
    )
    history_scale: float | None = Field(
        None,
        gt=0,
        description="History vectors are standardised number by number, by running statistics of training, and multiplied "
        "by this; null, the paper's: left as they are.",
    )
    cached_frames: int = Field(20_000, ge=1, description="Different images that are kept as read; saves time only.")

    @property
    def remembered(self) -> int:
        return RELEASED_MEMORY if self.mem_len == "upstream" else self.memory_length


class Reader:
    """Turns images into inputs of a language model.

    Attributes:
        cache: of the images that were read: what is in it can differ in the last bit from what would be made anew.
        rows_together: how many rows belong together, where what an image becomes depends on those beside it; None: it does not.
    """

    cache: FrameCache
    rows_together: int | None = None

    def __call__(self, images: np.ndarray, *, learn: bool = False) -> Tensor:
        """Inputs [B, K, D] of images uint8 [B, *shape]; `learn`: statistics may take them in."""
        return answered(self.reading(images, learn=learn), self.cache.function)

    def reading(self, images: np.ndarray, *, learn: bool = False) -> Asking:
        """The same by whoever answers in the place of the cache's `function`, which is the same for all seeds."""
        raise NotImplementedError

    def learned(self) -> dict[str, np.ndarray]:
        return {}

    def load_learned(self, arrays: Mapping[str, np.ndarray]) -> None:
        pass

    def traced(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        """Of the newest images of some rows: ``tokens`` int64 [N, K], rows of the language model's vocabulary, and
        ``token_scores`` float32 [N, K]; empty where there are none.
        """
        return {}


class LanguageHistory:
    """A `recollect.helm.sampled_policy.History`: a reader in front of a language model.

    It is `learning` where the statistics of reader and vectors take in its images.
    """

    def __init__(
        self,
        reader: Reader,
        memory: LanguageMemory,
        device: torch.device | str,
        *,
        learning: bool,
        scale: float | None = None,
    ) -> None:
        self.reader, self.memory, self.device = reader, memory, torch.device(device)
        self.learning, self.width = learning, memory.output_width
        self.rescaling: FeatureRescaling | None = None
        if scale is not None:
            mean_H = torch.zeros(self.width, device=self.device)
            self.rescaling = FeatureRescaling(mean_H + scale, mean_H, "running" if learning else "frozen")
        self._newest_BKD = torch.zeros(0)

    @property
    def row_bytes(self) -> float:
        return float(getattr(self.memory, "row_bytes", 0.0))

    @property
    def rows_at_once(self) -> int | None:
        """See `recollect.common.batched_policy.BatchedPolicy`."""
        fitting = max(1, int(EVALUATION_BYTES / self.row_bytes)) if self.row_bytes else None
        return min((rows for rows in (fitting, self.reader.rows_together) if rows is not None), default=None)

    def start(self, batch: int) -> None:
        self.memory.start(batch)

    def reset(self, mask_B: np.ndarray) -> None:
        self.memory.reset(torch.from_numpy(mask_B))

    def read(self, images: np.ndarray) -> Tensor:
        """History vectors [B, H] after one more image each."""
        return self.vectors(self.memory.step(answered(self.reading(images), self.answer)))

    def reading(self, images: np.ndarray) -> Asking:
        """What the language model reads of one more image each, [B, K, D], by whoever answers in the place of `answer`."""
        self._newest_BKD = yield from self.reader.reading(images, learn=self.learning)
        return self._newest_BKD

    @property
    def answer(self) -> Answer:
        """What a frozen model makes of what `reading` asks; the same for the histories of all seeds."""
        return self.reader.cache.function

    def vectors(self, states_BH: Tensor) -> Tensor:
        """History vectors [B, H] from what the language model made of the newest inputs."""
        return self._rescaled(states_BH, update=self.learning)

    def share(self, histories: Sequence[LanguageHistory]) -> SharedMemory | None:
        """Lay the memories of some histories, of which this is the first, into one; None: it is one with a memory of its own.

        Raises UserError: memories of such a kind are not shared.
        """
        if len(histories) == 1 and not isinstance(self.memory, MemoryShare):
            return None
        shared = SharedMemory([ring_of(history.memory) for history in histories])
        for history, own in zip(histories, shared.shares, strict=True):
            history.memory = own
        return shared

    def peek(self, images: np.ndarray) -> Tensor:
        return self._rescaled(self.memory.peek(self.reader(images, learn=False)), update=False)

    def _rescaled(self, vectors_BH: Tensor, *, update: bool) -> Tensor:
        return vectors_BH if self.rescaling is None else self.rescaling(vectors_BH, update=update)

    def arrays(self) -> dict[str, Any]:
        return joined(memory=self.memory.arrays(), cache=self.reader.cache.arrays()) | self.learned()

    def load(self, arrays: Mapping[str, Any]) -> None:
        self.memory.load(part(arrays, "memory"))
        self.reader.cache.load(part(arrays, "cache"), self.device)
        self.load_learned(arrays)

    def learned(self) -> dict[str, np.ndarray]:
        scales = {} if self.rescaling is None else self.rescaling.arrays()
        return joined(reader=self.reader.learned(), vectors=scales)

    def load_learned(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.reader.load_learned(part(arrays, "reader"))
        if self.rescaling is not None:
            self.rescaling.load_arrays(part(arrays, "vectors"))

    def traced(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        return self.reader.traced(rows_N)

    def maps(self, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        """What the newest images became, and how much the language model looks back from the last of it.

        Attention is that on all inputs of a step; what falls on steps before the episode is on the memory's zeros.
        """
        found = {"inputs": self._newest_BKD[rows_N].float().cpu().numpy()}
        attention_LNM = self.memory.attention(torch.from_numpy(rows_N).to(self.device))
        if attention_LNM is not None:
            tokens = self._newest_BKD.shape[1]
            weights_NLM = attention_LNM.float().cpu().numpy().swapaxes(0, 1)
            padded = np.pad(weights_NLM, ((0, 0), (0, 0), (-weights_NLM.shape[2] % tokens, 0)))
            by_step = padded.reshape(*padded.shape[:2], -1, tokens).sum(3)
            found["history_attention"] = by_step.astype(np.float16)
        return found

    def words(self, tokens: Sequence[int]) -> list[str]:
        return [self.memory.vocabulary[token] for token in tokens]


def memory_of(settings: Settings, inputs: Inputs, *, tokens: int = 1) -> LanguageMemory:
    """The language model that the settings describe; `tokens` inputs are read at each step."""
    hp: LanguageHyperparameters = settings.method.hyperparameters
    return language_memory(
        hp.language_model,
        model=inputs.get("language_model"),
        memory_length=hp.remembered,
        layers=hp.layers,
        batch_tokens=tokens,
        pooling=hp.pooling,
        precision=hp.language_precision,
        graphed=hp.language_graph,
        device=inputs.device,
    )


def history_of(
    reader: Reader, memory: LanguageMemory, settings: Settings, inputs: Inputs, arrays: Mapping[str, np.ndarray] | None
) -> LanguageHistory:
    """A history at the beginning of a training, or with what a policy's arrays say that was learned."""
    hp: LanguageHyperparameters = settings.method.hyperparameters
    history = LanguageHistory(reader, memory, inputs.device, learning=arrays is None, scale=hp.history_scale)
    if arrays is not None:
        history.load_learned(part(arrays, "history"))
    return history


def channels_first(images: np.ndarray) -> Tensor:
    """Images uint8 [B, *shape] with the channels, which are the shorter end, in front."""
    given = torch.from_numpy(images)
    return given if channels_of(images.shape[1:]) == "first" else given.permute(0, 3, 1, 2)
