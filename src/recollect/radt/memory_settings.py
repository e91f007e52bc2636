"""What can be set of RA-DT's external memory (`memory:` of a method)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from recollect.settings.schema import Frozen


class MemorySettings(Frozen):
    """The external memory of a method: what embeds, what is stored, and how it is cut (stages `embed`, `index`).

    Source: RA-DT sections 4.1-4.4 of our specification.
    """

    embedder: str = Field(
        description="`method:<name>` (domain-specific: the frozen network of that method's run) or "
        "`lm:<name>` (domain-agnostic: FrozenHopfield + a frozen language model of config/language_models.yaml)."
    )
    embedder_seed: int = Field(
        0,
        description="Domain-specific: the seed of the run that the embedder comes from. Domain-agnostic: FrozenHopfield's "
        "projections are drawn from it.",
    )
    stride: int = Field(25, ge=1, description="Steps between cuts. Released: 25 (grids), 50 (others).")
    key_context: int = Field(50, ge=1, description="Longest key window, steps. Paper: 50.")
    past: int = Field(
        25, ge=0, description="Steps before the cut that a value holds. Released: 25 (grids), 50 (others)."
    )
    future: int = Field(
        25, ge=1, description="Steps after the cut that a value holds. Released: 25 (grids), 50 (others)."
    )
    pooled_steps: int = Field(25, ge=1, description="Last steps of the key window whose state tokens are averaged.")
    pooling: Literal["state", "action", "reward", "return", "all", "last"] = Field(
        "state",
        description="Which tokens. An embedder of merged tokens has one a step: all but `last` are then the same.",
    )
    tokens: Literal["interleaved", "merged"] = Field("interleaved", description="Token layout in front of the LM.")
    padding: Literal["hidden", "counted"] = Field(
        "hidden",
        description="Positions of the LM: from the first real step, or from the window's beginning (released). A "
        "domain-specific embedder has a setting of its own, `network.padding`.",
    )
    present_action: Literal["none", "zero"] = Field(
        "none", description="While acting, the action of now in a query: there is none, or action 0 (released)."
    )
    layers: int | None = Field(
        None, ge=1, description="Keep only so many first layers of the language model; null: all."
    )
    beta: float = Field(10.0, gt=0, description="FrozenHopfield inverse temperature. Paper: 10.")
    similarity: Literal["cosine", "dot"] = Field("cosine", description="FrozenHopfield: code cosine, paper dot.")
    reward_high: float = Field(1.0, gt=0, description="Rewards are put into bins on [0, this] in front of the LM.")
    reward_bins: int = Field(2, ge=1, description="Number of those bins. Released: 2, Meta-World 40, DMControl 50.")
    deduplicate: Literal["none", "keep_first", "upstream"] = Field("keep_first", description="See radt.deduplication.")
    deduplicate_worse_only: bool = Field(
        False, description="An entry is a copy only of one whose return is at least as high."
    )
    deduplicate_neighbours: int = Field(10, ge=1, description="upstream: nearest entries looked at.")
    deduplicate_above: float = Field(0.98, description="Cosine above which two keys of one task are duplicates.")
    max_entries_per_task: int | None = Field(
        None, ge=1, description="Budget: about so many chunks per task, all of evenly spaced episodes; null: all."
    )
