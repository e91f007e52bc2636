"""The table of what is timed. A new line is an entry of `LINES`; a new way of computing, an entry of a line's variants.

A variant changes settings by name, as `--set` does. One whose setting the code does not have is skipped, and the table says so;
so an entry may stand here before the setting does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Peak = Literal["float32", "tf32", "bfloat16"]


@dataclass(frozen=True)
class Variant:
    """One way of computing.

    Args:
        changes: settings, by name.
        peak: the product that a share of the roofline is against.
        tf32: whether products of float32 may be computed in TF32.
    """

    changes: Mapping[str, object] = field(default_factory=dict)
    peak: Peak = "float32"
    tf32: bool = False


Variants = Mapping[str, Variant]
AS_SET = "as set"  # what `recollect train` does on this device: the settings of scale `paper`
COLUMNS = (AS_SET, "fp32", "TF32", "bf16", "compiled", "graph")


def ways(key: str, as_set: Peak = "bfloat16", **more: Variant) -> Variants:
    """Float32, TF32 and bfloat16 by the setting `key`, and more."""
    return {
        AS_SET: Variant(peak=as_set),
        "fp32": Variant({key: "float32"}),
        "TF32": Variant({key: "float32"}, "tf32", tf32=True),
        "bf16": Variant({key: "bfloat16"}, "bfloat16"),
        **more,
    }


BF16, KEY = "bfloat16", "optimisation.precision"
SUPERVISED = ways(KEY, compiled=Variant({KEY: BF16, "optimisation.compile": "true"}, BF16))
OFF_POLICY_GPT = ways("precision", graph=Variant({"precision": BF16, "graph": "true"}, BF16))
OFF_POLICY_LSTM = ways("precision", "float32", graph=Variant({"precision": "float32", "graph": "true"}))
AMAGO = ways("precision", "float32", compiled=Variant({"precision": BF16, "compile": "true"}, BF16))
FROZEN = ways("precision", "float32", graph=Variant({"graph": "true"}))
SWITCH: Variants = {AS_SET: Variant(), "TF32": Variant(peak="tf32", tf32=True)}  # there is nothing to be set


@dataclass(frozen=True)
class Line:
    """A kind of work.

    Args:
        what: in words.
        builds: `module.function` of this package that makes a `Subject` of a `Case`.
        env, method: of scale `paper`; what they stand for at scale `smoke` is `quick`.
        small: settings with which a few steps are compared with a CPU's: small batches, nothing dropped out.
        weight: of the time that there is.
    """

    what: str
    builds: str
    env: str
    method: str
    quick: tuple[str, str]
    variants: Variants
    small: Mapping[str, object] = field(default_factory=dict)
    quick_changes: Mapping[str, object] = field(default_factory=dict)
    weight: float = 1.0


def ensembles(base: Line, setting: str, *counts: int) -> Mapping[str, Line]:
    """The same line with several seeds in one process."""
    found = {}
    for count in counts:
        more = {name: Variant({**one.changes, setting: count}, one.peak, one.tf32) for name, one in base.variants.items()}
        found[f"of_{count}"] = Line(
            f"{base.what}, {count} seeds", base.builds, base.env, base.method, base.quick, more, base.small,
            base.quick_changes,
        )  # fmt: skip
    return found


STILL = {"optimisation.batch_size": 4, "network.dropout": 0, "acting_dropout": "false"}
CALM = {"batch_size": 2, "sequence.dropout": 0}
ROOM, SMALL_ROOM = "dark_room_10x10", "dark_room_10x10"
MAZE = ("tmaze_passive_5", "dqn_gpt")

LINES: dict[str, Line] = {
    "radt": Line(
        "RA-DT, Dark-Room 10x10",
        "supervised.training",
        ROOM,
        "radt",
        (SMALL_ROOM, "radt"),
        SUPERVISED,
        {**STILL, "query_dropout": 0},
        weight=2,
    ),
    "radt_agnostic": Line(
        "RA-DT with BERT, Dark-Room 10x10",
        "supervised.training",
        ROOM,
        "radt_agnostic",
        (SMALL_ROOM, "radt_agnostic"),
        SUPERVISED,
        {**STILL, "query_dropout": 0},
        weight=2,
    ),
    "ad": Line(
        "AD, Dark-Room 10x10", "supervised.training", ROOM, "ad", (SMALL_ROOM, "ad"), SUPERVISED, STILL, weight=1.5
    ),
    "ad_40x20": Line(
        "AD, Dark-Room 40x20",
        "supervised.training",
        "dark_room_40x20",
        "ad",
        (SMALL_ROOM, "ad"),
        SUPERVISED,
        {**STILL, "optimisation.batch_size": 1},
        weight=2,
    ),
    "evaluation": Line(
        "RA-DT evaluated in context, Dark-Room 10x10",
        "supervised.evaluation",
        ROOM,
        "radt",
        (SMALL_ROOM, "radt"),
        SUPERVISED,
        {"acting_dropout": "false"},
        weight=1.5,
    ),
    "evaluation_ad": Line(
        "AD evaluated in context, Dark-Room 10x10",
        "supervised.evaluation",
        ROOM,
        "ad",
        (SMALL_ROOM, "ad"),
        SUPERVISED,
        {"acting_dropout": "false"},
        weight=1.5,
    ),
    "gpt_50": Line(
        "DQN-GPT, T-Maze 50", "off_policy.learning", "tmaze_passive_50", "dqn_gpt", MAZE, OFF_POLICY_GPT, CALM
    ),
    "gpt_1500": Line(
        "DQN-GPT, T-Maze 1500", "off_policy.learning", "tmaze_passive_1500", "dqn_gpt", MAZE, OFF_POLICY_GPT, CALM,
        weight=1.5,
    ),
    "lstm_50": Line(
        "DQN-LSTM, T-Maze 50",
        "off_policy.learning",
        "tmaze_passive_50",
        "dqn_lstm",
        ("tmaze_passive_5", "dqn_lstm"),
        OFF_POLICY_LSTM,
        {"batch_size": 2},
    ),
    "lstm_1500": Line(
        "DQN-LSTM, T-Maze 1500",
        "off_policy.learning",
        "tmaze_passive_1500",
        "dqn_lstm",
        ("tmaze_passive_5", "dqn_lstm"),
        OFF_POLICY_LSTM,
        {"batch_size": 2},
        weight=1.5,
    ),
    "amago_500": Line(
        "AMAGO, Dark Key-To-Door, 500 steps",
        "amago.learning",
        "amago_dark_key_door",
        "amago_transformer",
        ("amago_dark_key_door", "amago_transformer"),
        AMAGO,
        {"batch_size": 2, "actors": 2},
        weight=1.5,
    ),
    "amago_10000": Line(
        "AMAGO, T-Maze, 10,000 steps",
        "amago.learning",
        "amago_tmaze_10000",
        "amago_transformer",
        ("amago_tmaze_10", "amago_transformer"),
        AMAGO,
        {"batch_size": 1, "actors": 1},
        weight=2,
    ),
    "helm": Line(
        "HELM, memory 511",
        "language.learning",
        "mini_grid_RedBlueDoors-6x6",
        "helm",
        ("mini_grid_MemoryS7", "helm"),
        FROZEN,
        {"actors": 2},
        {"language_model": "random-transfo-xl"},
        weight=2,
    ),
    "clip": Line(
        "CLIP ViT-B/16, 16 frames",
        "language.images",
        "mini_grid_RedBlueDoors-6x6",
        "shelm",
        ("mini_grid_MemoryS7", "shelm"),
        SWITCH,
    ),
    "search": Line(
        "exact search, 320,000 x 512, 128 queries", "searching.searching", ROOM, "radt", (SMALL_ROOM, "radt"), SWITCH
    ),
}  # fmt: skip
"""Name -> line."""
