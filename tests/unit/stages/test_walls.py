"""Walls are identity: what makes which of the paper's runs stale, over every run of every figure at paper scale."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import preloaded
import pytest

from recollect.artifacts import fingerprint
from recollect.settings import catalogue
from recollect.settings.resolve import environment_mapping, figure_settings, method_mapping, names
from recollect.settings.still import held_still
from recollect.stages import provenance

Pair = tuple[str, str]
SCALE = "paper"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package."""
    source = Path(fingerprint.__file__).resolve().parents[1]
    target = tmp_path_factory.mktemp("source") / "recollect"
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


@pytest.fixture(scope="module")
def modules() -> dict[Pair, tuple[str, ...]]:
    """The modules behind the training of every (environment, method) of every figure."""
    with held_still():
        figures = [figure_settings(SCALE, name) for name in names("figures")]
        pairs = {(env, method) for figure in figures for env in figure.environments for method in figure.methods}
        return {pair: tuple(sorted(provenance.train_modules(SCALE, *pair))) for pair in sorted(pairs)}


def codes(package: Path, modules: dict[Pair, tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """The fingerprints of all runs' modules in a copy of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "roots", lambda: {"recollect": package.parent})
        return {entries: fingerprint.code_fingerprint(*entries) for entries in set(modules.values())}


@pytest.fixture(scope="module")
def before(package: Path, modules: dict[Pair, tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """The fingerprints before any edit; each test takes its edit back."""
    return codes(package, modules)


@pytest.fixture
def stale(
    package: Path, modules: dict[Pair, tuple[str, ...]], before: dict[tuple[str, ...], str]
) -> Callable[..., set[Pair]]:
    """Edit a file of the copy and say which runs train anew."""

    def after(name: str, old: str, new: str) -> set[Pair]:
        path = package / name
        text = path.read_text()
        assert text.count(old) >= 1, f"{old!r} does not stand in {name}"
        path.write_text(text.replace(old, new, 1))
        try:
            now = codes(package, modules)
        finally:
            path.write_text(text)
        return {pair for pair, entries in modules.items() if now[entries] != before[entries]}

    return after


def of_algorithm(modules: dict[Pair, tuple[str, ...]], *algorithms: str) -> set[Pair]:
    return {pair for pair in modules if method_mapping(SCALE, *pair)["algorithm"] in algorithms}


def of_world(modules: dict[Pair, tuple[str, ...]], *worlds: str) -> set[Pair]:
    return {pair for pair in modules if environment_mapping(SCALE, pair[0])["world"] in worlds}


PLUMBING = {
    "a function beside progress": ("artifacts/progress.py", "\ndef ", "\ndef more():\n    return 1\n\n\ndef "),
    "a word of the progress line": ("artifacts/progress.py", '"steps"', '"training steps"'),
    "a new artifact": ("stages/paths.py", "\nhistories = ", "\nother = 1\nhistories = "),
    "a field of figures": ("settings/schema.py", "    category: str = ", "    more: int = 0\n    category: str = "),
    "a word of every hint": ("settings/errors.py", "did you mean", "perhaps you mean"),
    "a word of an error": ("settings/loading.py", "correct the file", "mend the file"),
    "how files are flushed": ("artifacts/sealed.py", "os.fsync(descriptor)", "os.fsync(descriptor + 0)"),
    "how many checkpoints stay": ("artifacts/checkpoints.py", "KEPT = 2", "KEPT = 3"),
    "drawing of scenes": ("environments/scene.py", "\nclass Scene", "\nMORE = 1\n\n\nclass Scene"),
    "how all are drawn": ("environments/drawing.py", "\ndef drawn", "\nMORE = 1\n\n\ndef drawn"),
    "how a world is drawn": ("environments/dark_room.py", 'goal = ("goal",', 'goal = ("door",'),
    "how a package draws": ("environments/mini_grid.py", "tile_size=max(TILE, 384", "tile_size=max(TILE, 385"),
    "finding worlds": ("environments/registry.py", "\ndef world_names", "\nMORE = 1\n\n\ndef world_names"),
    "figures' style": ("figures/style.py", "\ndef ", "\nMORE = 1\n\n\ndef "),
    "the commands": ("cli.py", "\ndef ", "\nMORE = 1\n\n\ndef "),
    "how commands start": ("launch.py", "\ndef ", "\nMORE = 1\n\n\ndef "),
    "an error that all papers share": ("common/contract.py", "chooses among a number of actions", "needs a choice"),
    "what a hyperparameter is": ("memory_rl/dqn.py", 'description="', 'description="In short: '),
}


@pytest.mark.quick(
    "a function beside progress", "a word of an error", "a new artifact", "the commands", "finding worlds"
)
@pytest.mark.parametrize("edit", PLUMBING)
def test_an_edit_of_plumbing_makes_no_run_stale(stale: Callable[..., set[Pair]], edit: str) -> None:
    assert stale(*PLUMBING[edit]) == set()


def test_an_edit_of_a_loss_makes_its_own_runs_stale(
    stale: Callable[..., set[Pair]], modules: dict[Pair, tuple[str, ...]]
) -> None:
    assert stale("memory_rl/dqn.py", "def loss_of(", "def unused():\n    return 1\n\n\ndef loss_of(") == of_algorithm(
        modules, "dqn"
    )
    assert stale("amago/terms.py", "import torch\n", "import torch\nMORE = 1\n") == of_algorithm(
        modules, "amago", "amago_multi_task"
    )
    assert stale("radt/dt.py", "    loss = F.cross_entropy(", "    loss = 2 * F.cross_entropy(") == of_algorithm(
        modules, "dt", "ad", "dpt", "radt"
    )


def test_an_edit_of_a_network_makes_its_own_runs_stale(
    stale: Callable[..., set[Pair]], modules: dict[Pair, tuple[str, ...]]
) -> None:
    changed = stale("helm/small_impala.py", "import torch\n", "import torch\nMORE = 1\n")
    assert changed == of_algorithm(modules, "helm", "helmv2", "shelm", "shelm_lstm", "ppo_cnn", "ppo_lstm")


@pytest.mark.slow
def test_how_helm_reads_a_language_model_is_nothing_to_other_papers(
    stale: Callable[..., set[Pair]], modules: dict[Pair, tuple[str, ...]]
) -> None:
    """RA-DT reads windows with such a model; the ones that read step by step, and their words, are no part of it."""
    helms = of_algorithm(modules, "helm", "helmv2", "shelm", "shelm_lstm")
    for name in ("rotary_transformer", "transformer_xl", "token_ring", "graphed_step"):
        assert stale(f"helm/language/{name}.py", "import torch\n", "import torch\nMORE = 1\n") == helms, name
    assert stale("helm/language/language_vocabulary.py", "import json\n", "import json\n\nMORE = 1\n") == helms
    reached = fingerprint.reachable("recollect.radt.radt", "recollect.radt.embedding")
    assert "recollect.common.language_models" in reached
    assert not [name for name in reached if "rotary" in name or name.endswith((".token_ring", ".language_vocabulary"))]


@pytest.mark.parametrize(
    ("world", "old", "new", "built_on_it"),
    [
        ("tmaze", "    def _advance(", "    def unused(self):\n        return 1\n\n    def _advance(", ()),
        ("dark_room", "TASK_COUNT = 100", "TASK_COUNT = 99", ("key_door",)),
        (
            "maze_runner",
            "    def _advance(",
            "    def unused(self):\n        return 1\n\n    def _advance(",
            ("goal_maze", "random_maze"),
        ),
    ],
)
def test_an_edit_of_a_world_makes_its_own_runs_stale(
    stale: Callable[..., set[Pair]],
    modules: dict[Pair, tuple[str, ...]],
    world: str,
    old: str,
    new: str,
    built_on_it: tuple[str, ...],
) -> None:
    assert stale(f"environments/{world}.py", old, new) == of_world(modules, world, *built_on_it)


def test_how_a_world_is_drawn_is_not_how_it_plays(stale: Callable[..., set[Pair]], package: Path) -> None:
    text = (package / "environments/dark_room.py").read_text()
    drawing = re.search(r"\ndef scene\(.*?:\n((?:    .*\n)+)", text)
    assert drawing is not None
    assert stale("environments/dark_room.py", drawing[0], drawing[0] + "    more = 1\n") == set()


@pytest.mark.slow
def test_a_checkpoint_from_before_an_edit_of_plumbing_is_used_after_it(package: Path, workdir: Path) -> None:
    """A real training process is killed, plumbing is edited, and the same command goes on; not so after a loss is."""
    run = [
        "train",
        "--scale",
        "smoke",
        "--env",
        "tmaze_passive_5",
        "--method",
        "dqn_gpt",
        "--seed",
        "0",
        "--set",
        "train_episodes=4000",
    ]
    environ = {**os.environ, "PYTHONPATH": str(package.parent), "OMP_NUM_THREADS": "1"}
    environ.pop("RECOLLECT_WARM", None)
    folder = workdir / "results/smoke/checkpoints"

    def killed_after_a_checkpoint(known: int) -> tuple[str, int]:
        """Start, wait for a newer checkpoint than `known`, kill; what was said, and the newest step."""
        log = workdir / "train.log"
        process = preloaded.start("recollect.cli", run, cwd=workdir, env=environ, said=log)
        try:
            until = time.monotonic() + 240
            while time.monotonic() < until:
                steps = [int(path.name[5:-26]) for path in folder.rglob("step_*.safetensors.manifest.json")]
                if steps and max(steps) > known:
                    return log.read_text(), max(steps)
                assert process.poll() is None, log.read_text()
                time.sleep(0.05)
            raise AssertionError(f"no checkpoint came: {log.read_text()}")
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()

    said, first = killed_after_a_checkpoint(-1)
    assert "going on from the checkpoint" not in said
    with (package / "artifacts/progress.py").open("a") as file:
        file.write("\n\ndef more() -> int:\n    return 1\n")
    said, _ = killed_after_a_checkpoint(first)
    assert f"going on from the checkpoint of step {first}" in said
    with (package / "memory_rl/dqn.py").open("a") as file:
        file.write("\n\nMORE = 1\n")
    said, _ = killed_after_a_checkpoint(-1)
    assert "going on from the checkpoint" not in said
