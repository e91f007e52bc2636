"""The table of what is timed. A new line is an entry of `LINES`; a new way of computing, an entry of a line's variants.

A variant changes settings by name, as `--set` does. One whose setting the code does not have is skipped, and the table says so;
so an entry may stand here before the setting does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from recollect.stages.device_speeds import WAYS

Peak = Literal["float32", "tf32", "bfloat16"]


@dataclass(frozen=True)
class Variant:
    """One way of computing.

    Args:
        changes: settings, by name.
        optional: settings that are changed where the code has them.
        extra: what is no setting of the method; see the family that reads it.
        peak: the product that a share of the roofline is against.
        tf32: whether products of float32 may be computed in TF32.
    """

    changes: Mapping[str, object] = field(default_factory=dict)
    peak: Peak = "float32"
    tf32: bool = False
    optional: Mapping[str, object] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)


Variants = Mapping[str, Variant]
AS_SET, *_ = COLUMNS = WAYS  # as set: what `recollect train` does on this device, with the settings of scale `paper`


def ways(key: str, as_set: Peak = "bfloat16", plain: Mapping[str, object] | None = None, **more: Variant) -> Variants:
    """Float32 and bfloat16 by the setting `key`, and more; `plain`: settings of the first, where there are such."""
    return {
        AS_SET: Variant(peak=as_set),
        "fp32": Variant({key: "float32"}, optional=plain or {}),
        "bf16": Variant({key: "bfloat16"}, "bfloat16"),
        **more,
    }


def in_tf32(changes: Mapping[str, object]) -> Variant:
    """Products of float32 in TF32; where a method says itself what it computes in, `changes` must say so, too."""
    return Variant(changes, "tf32", tf32=True)


BF16: Peak = "bfloat16"
KEY, LANGUAGE = "optimisation.precision", "language_precision"
# Scale `paper` compiles, which takes a minute: as set alone. Without TF32: the search beside a step wants whole float32.
WHOLE = {"acting_precision": "float32", "optimisation.compile": "false"}
SUPERVISED = {
    **ways(KEY, plain=WHOLE),
    "bf16": Variant({KEY: BF16}, BF16, optional={"optimisation.compile": "false"}),
}
# As set one run is an ensemble of one: its update is one CUDA graph. The others launch its kernels one by one.
ALONE: Mapping[str, object] = {"members": 1}
OFF_POLICY_GPT = ways("precision") | {AS_SET: Variant(peak=BF16, extra=ALONE)}
OFF_POLICY_LSTM = ways("precision") | {AS_SET: Variant(peak="tf32", extra=ALONE)}
# As set the loss is compiled.
TOGETHER: Variants = {AS_SET: Variant(peak="tf32"), "fp32": Variant({"precision": "float32", "compile": "false"})}
TOGETHER_GPT: Variants = {
    AS_SET: Variant(peak=BF16),
    "fp32": Variant({"precision": "float32", "compile": "false"}),
    "bf16": Variant({"precision": BF16, "compile": "false"}, BF16),
}
AMAGO = ways(
    "precision",
    BF16,
    {"tf32": "false", "cuda_graphs": "false"},
    bf16=Variant({"precision": BF16, "cuda_graphs": "false"}, BF16),
    TF32=in_tf32({"precision": "float32", "tf32": "true", "cuda_graphs": "false"}),
    graph=Variant({"precision": BF16, "cuda_graphs": "true"}, BF16, optional={"compile": "false"}),
)
FROZEN = ways(
    LANGUAGE,
    "tf32",
    {"language_graph": "false", "tf32": "false"},
    TF32=in_tf32({LANGUAGE: "float32", "tf32": "true", "language_graph": "false"}),
    graph=Variant({LANGUAGE: BF16, "language_graph": "true"}, BF16),
)
SIGHT = {
    AS_SET: Variant(peak=BF16),
    "fp32": Variant(extra={"precision": "float32"}),
    "TF32": replace(in_tf32({}), extra={"precision": "float32"}),
    "bf16": Variant(peak=BF16, extra={"precision": BF16}),
}
EXACT: Variants = {AS_SET: Variant()}  # a search sees to its precision itself


@dataclass(frozen=True)
class Line:
    """A kind of work.

    Args:
        what: in words.
        builds: `module.function` of this package that makes a `Subject` of a `Case`.
        env, method: of scale `paper`; what they stand for at scale `smoke` is `quick`.
        small: settings with which a few steps are compared with a CPU's: small batches, nothing dropped out or compiled.
        extra: what is no setting of the method.
        weight: of the time that there is.

    Attributes:
        compiles: whether it is compiled as the settings stand.
    """

    what: str
    builds: str
    env: str
    method: str
    quick: tuple[str, str]
    variants: Variants
    small: Mapping[str, object] = field(default_factory=dict)
    quick_changes: Mapping[str, object] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    weight: float = 1.0

    @property
    def compiles(self) -> bool:
        if self.builds == "off_policy.learning":
            return "gpt" in self.method or bool(self.extra.get("members"))  # one LSTM is cuDNN's
        return self.builds == "supervised.learning" or (self.builds == "amago.learning" and "gru" not in self.method)


STILL = {"optimisation.batch_size": 4, "optimisation.compile": "false", "network.dropout": 0, "acting_dropout": "false"}
READING = {**STILL, "query_dropout": 0}
FEW: Mapping[str, object] = {"batch_size": 2, "compile": "false"}
FEW_GPT: Mapping[str, object] = {**FEW, "sequence.dropout": 0}
ROOM, LONG_ROOM, ROOMS = "dark_room_10x10", "dark_room_40x20", "Dark-Room 10x10"
DOORS, LONG_MAZE, FRAMES = "amago_dark_key_door", "amago_tmaze_10000", "mini_grid_RedBlueDoors-6x6"


def t_maze(length: int, sequence: str, members: int = 0, layers: int = 1) -> Line:
    """Memory-RL at one memory length; with members: so many seeds as an ensemble in one process."""
    alone, together = (OFF_POLICY_GPT, TOGETHER_GPT) if sequence == "gpt" else (OFF_POLICY_LSTM, TOGETHER)
    small = FEW_GPT if sequence == "gpt" else FEW
    method, env = f"dqn_{sequence}" + f".layers_{layers}" * (layers > 1), f"tmaze_passive_{length}"
    weight = 1.0 if length < 1000 else 1.5
    deep = f", {layers} layers" * (layers > 1)
    what = f"DQN-{sequence.upper()}, T-Maze {length}{deep}" + f", {members} seeds" * (members > 0)
    return Line(
        what,
        "off_policy.learning",
        env,
        method,
        ("tmaze_passive_5", method),
        together if members else alone,
        small,
        extra={"members": members},
        weight=weight,
    )


SEEDS = 10  # that the figures of scale `paper` want: as many are one network there
T_MAZES = {
    f"{sequence}_{length}" + f"_of_{members}" * (members > 0): t_maze(length, sequence, members)
    for sequence in ("gpt", "lstm")
    for length in (50, 1500)
    for members in ((0, SEEDS, 64) if length < 1000 else (0, SEEDS))
}
DEEP = {f"{sequence}_1500_deep_of_{SEEDS}": t_maze(1500, sequence, SEEDS, layers=4) for sequence in ("gpt", "lstm")}


def pendulum(sequence: str, variant: str = "") -> Line:
    """Memory-RL's continuous control, ten seeds as an ensemble; PyBullet's robots need a package that may not be there."""
    together, small = (TOGETHER_GPT, FEW_GPT) if sequence == "gpt" else (TOGETHER, FEW)
    env, method = "gym_Pendulum-v1", f"td3_{sequence}" + f".{variant}" * bool(variant)
    what = f"TD3-{sequence.upper()}, windows of 64, " + f"{variant} encoders, " * bool(variant) + f"{SEEDS} seeds"
    return Line(what, "off_policy.learning", env, method, (env, method), together, small, extra={"members": SEEDS})


PENDULUMS = {
    f"td3_gpt_of_{SEEDS}": pendulum("gpt"),
    f"td3_lstm_of_{SEEDS}": pendulum("lstm"),
    f"td3_separate_of_{SEEDS}": pendulum("lstm", "separate"),
}


def visual_match(sequence: str) -> Line:
    """Memory-RL on images, ten seeds as an ensemble: SAC-D, whose image embedders go one after the other."""
    together, small = (TOGETHER_GPT, FEW_GPT) if sequence == "gpt" else (TOGETHER, FEW)
    method = f"sacd_{sequence}"
    what = f"SACD-{sequence.upper()}, Visual Match 500, {SEEDS} seeds"
    pair = ("visual_match_5", method)
    return Line(
        what,
        "off_policy.learning",
        "visual_match_500",
        method,
        pair,
        together,
        small,
        extra={"members": SEEDS},
        weight=1.5,
    )


IMAGES = {f"sacd_{sequence}_of_{SEEDS}": visual_match(sequence) for sequence in ("gpt", "lstm")}


def amago(what: str, env: str, quick: str, weight: float, method: str = "amago_transformer") -> Line:
    small: dict[str, object] = {"batch_size": 1, "actors": 1, "compile": "false"}
    if method != "amago_transformer":
        as_set: Variants = {AS_SET: Variant(peak="tf32")}
        return Line(
            f"AMAGO, {what} steps", "amago.learning", env, method, (quick, method), as_set, small, weight=weight
        )
    small["sequence.dropout"] = 0
    return Line(f"AMAGO, {what} steps", "amago.learning", env, method, (quick, method), AMAGO, small, weight=weight)


def ppo(method: str, what: str, members: int = 0) -> Line:
    """PPO on images without a language model; with members: so many seeds together."""
    pair, small = ("mini_grid_MemoryS7", method), {"actors": 2, "rollout": 8}
    if method == "ppo_cnn":
        small["batches"] = 4
    builds = "language.together" if members else "language.without_memory"
    what, more = f"{what}, MiniGrid" + f", {members} seeds" * (members > 0), {"members": members}
    return Line(what, builds, FRAMES, method, pair, {AS_SET: Variant(peak="tf32")}, small, extra=more)


def in_context(what: str, env: str, method: str, small: Mapping[str, object], weight: float) -> Line:
    return Line(what, "supervised.learning", env, method, (ROOM, method), SUPERVISED, small, weight=weight)


LINES: dict[str, Line] = {
    "radt": in_context(f"RA-DT, {ROOMS}", ROOM, "radt", READING, 4),
    "radt_agnostic": in_context(f"RA-DT with BERT, {ROOMS}", ROOM, "radt_agnostic", READING, 4),
    "ad": in_context(f"AD, {ROOMS}", ROOM, "ad", STILL, 2),
    "ad_40x20": in_context("AD, Dark-Room 40x20", LONG_ROOM, "ad", {**STILL, "optimisation.batch_size": 1}, 3),
    **T_MAZES,
    **DEEP,
    **PENDULUMS,
    **IMAGES,
    "amago_500": amago("500", DOORS, DOORS, 1.5),
    "amago_wind": amago("continuous actions, 75", "amago_wind", "amago_wind", 1),
    "amago_10000": amago("10,000", LONG_MAZE, "amago_tmaze_10", 2),
    "amago_10000_gru": amago("GRU, 10,000", LONG_MAZE, "amago_tmaze_10", 2, "amago_gru"),
    "amago_10000_ff": amago("no memory, 10,000", LONG_MAZE, "amago_tmaze_10", 2, "amago_ff"),
    "ppo_cnn": ppo("ppo_cnn", "CNN-PPO"),
    f"ppo_cnn_of_{SEEDS}": ppo("ppo_cnn", "CNN-PPO", SEEDS),
    "ppo_lstm": ppo("ppo_lstm", "LSTM-PPO"),
    f"ppo_lstm_of_{SEEDS}": ppo("ppo_lstm", "LSTM-PPO", SEEDS),
    "helm": Line(
        "HELM, memory 511",
        "language.learning",
        FRAMES,
        "helm",
        ("mini_grid_MemoryS7", "helm"),
        FROZEN,
        {"actors": 2},
        {"language_model": "random-transfo-xl"},
        weight=2,
    ),
    f"helm_of_{SEEDS}": Line(
        f"HELM, memory 511, {SEEDS} seeds",
        "language.together",
        FRAMES,
        "helm",
        ("mini_grid_MemoryS7", "helm"),
        {AS_SET: Variant(peak="tf32"), "graph": Variant({LANGUAGE: BF16}, BF16)},
        {"actors": 2, "rollout": 8, "batches": 4},
        {"language_model": "random-transfo-xl"},
        extra={"members": SEEDS},
        weight=2,
    ),
    "clip": Line(
        "CLIP ViT-B/16, 16 frames", "language.images", FRAMES, "shelm", ("mini_grid_MemoryS7", "shelm"), SIGHT
    ),
    "search": Line("search, 320,000 keys, 128 queries", "searching.searching", ROOM, "radt", (ROOM, "radt"), EXACT),
}
"""Name -> line."""
