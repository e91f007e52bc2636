"""The jobs that are attacked: a command for every kind of job, at scale smoke, what it needs and what it writes.

All of them are run once in one folder, which is the reference: what a job writes there is what it must write anywhere.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # a Python that has imported everything forks commands: 0.3 instead of 4 s each

import preloaded  # noqa: E402

LANGUAGE_MODELS = ("transformers.models.bert.modeling_bert", "transformers.models.gpt2.modeling_gpt2")
"""What HELM imports: seconds that a job would otherwise spend before there is anything to attack."""
PATIENCE = 300.0
"""Seconds after which a command hangs. The longest takes ten on a machine that does nothing else."""
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("SNAKEMAKE", "RECOLLECT", "PYTHONPATH"))} | {
    "OMP_NUM_THREADS": "1",
    "RECOLLECT_MINE": "no_own_code",
    "COLUMNS": "200",
}


class Failed(Exception):
    """A promise that did not hold; `trials`: how many attacks were made until then."""

    def __init__(self, what: str, trials: int = 1) -> None:
        super().__init__(what)
        self.trials = trials


@dataclass(frozen=True)
class Job:
    """One command: its words after `recollect`, the names of jobs it needs, and what it writes (patterns of paths)."""

    command: tuple[str, ...]
    writes: tuple[str, ...]
    needs: tuple[str, ...] = ()
    checkpoints: str = ""


@dataclass(frozen=True)
class Said:
    """How a command ended: its exit status, and what it wrote to stdout and stderr together."""

    status: int
    text: str

    def tail(self) -> str:
        return " | ".join(line for line in self.text.splitlines()[-4:] if line.strip())[-400:]


def _where(env: str, method: str = "", seed: int | None = None) -> tuple[str, ...]:
    words = ["--scale", "smoke", "--env", env]
    words += ["--method", method] if method else []
    words += ["--seed", str(seed)] if seed is not None else []
    return tuple(words)


def _generate(env: str, needs: tuple[str, ...] = ()) -> Job:
    words = ("generate", *_where(env), "--device", "cpu", "--threads", "1")
    return Job(words, (f"data/smoke/{env}/histories.*",), needs, f"results/smoke/checkpoints/{env}/_histories")


def _embed(env: str, method: str, needs: tuple[str, ...]) -> Job:
    words = ("embed", *_where(env, method), "--device", "cpu", "--threads", "1")
    return Job(words, (f"data/smoke/{env}/{method}/embeddings.*",), needs)


def _index(env: str, method: str, needs: tuple[str, ...]) -> Job:
    return Job(("index", *_where(env, method), "--threads", "1"), (f"data/smoke/{env}/{method}/memory*",), needs)


def _run(stage: str, env: str, method: str, seed: int, needs: tuple[str, ...], *files: str) -> Job:
    words = (stage, *_where(env, method, seed), "--device", "cpu", "--threads", "1")
    place = f"{env}/{method}/seed_{seed}"
    writes = tuple(f"results/smoke/runs/{place}/{file}" for file in files)
    return Job(words, writes, needs, f"results/smoke/checkpoints/{place}" if stage == "train" else "")


def train(env: str, method: str, *needs: str, seed: int = 0) -> Job:
    return _run("train", env, method, seed, needs, "policy.*", "train.*")


def evaluate(env: str, method: str, *needs: str, seed: int = 0) -> Job:
    job = _run("evaluate", env, method, seed, needs, "scores.*")
    return replace(job, checkpoints=f"results/smoke/checkpoints/{env}/{method}/seed_{seed}/scoring")


def inspect(env: str, method: str, *needs: str, seed: int = 0) -> Job:
    return _run("inspect", env, method, seed, needs, "trace.*")


ROOM, DOOR, MAZE, PUBLISHED = "dark_room_10x10", "key_door_10x10", "maze_runner_15x15", "attack_published"
WORDS, GRID, CORRIDOR, WIND = "mini_grid_MemoryS7", "random_maze", "tmaze_passive_5", "amago_wind"
JOBS: dict[str, Job] = {
    "generate ppo": _generate(ROOM),
    "generate ppo, key-door": _generate(DOOR),
    "generate policies": _generate(MAZE),
    "generate published": _generate(PUBLISHED),
    "dt": train(ROOM, "dt", "generate ppo"),
    "dt, key-door": train(DOOR, "dt", "generate ppo, key-door"),
    "dt, published": train(PUBLISHED, "dt", "generate published"),
    "dt, seed 1": train(ROOM, "dt", "generate ppo", seed=1),
    "ad": train(ROOM, "ad", "generate ppo"),
    "dpt": train(ROOM, "dpt", "generate ppo"),
    "embed": _embed(ROOM, "radt", ("generate ppo", "dt")),
    "embed, key-door": _embed(DOOR, "radt", ("generate ppo, key-door", "dt, key-door")),
    "embed language model": _embed(ROOM, "radt_agnostic", ("generate ppo",)),
    "index": _index(ROOM, "radt", ("generate ppo", "embed")),
    "index, key-door": _index(DOOR, "radt", ("generate ppo, key-door", "embed, key-door")),
    "index language model": _index(ROOM, "radt_agnostic", ("generate ppo", "embed language model")),
    "radt": train(ROOM, "radt", "generate ppo", "index", "dt"),
    "radt_agnostic": train(ROOM, "radt_agnostic", "generate ppo", "index language model"),
    "dqn_gpt": train(CORRIDOR, "dqn_gpt"),
    "dqn_gpt, seed 1": train(CORRIDOR, "dqn_gpt", seed=1),
    "dqn_gpt, longer": train("tmaze_passive_10", "dqn_gpt"),
    "dqn_lstm": train("tmaze_active_5", "dqn_lstm"),
    "sacd_gpt": train("visual_match_3", "sacd_gpt"),
    "td3_gpt": train(WIND, "td3_gpt.train_episodes=80"),
    "sac_lstm": train(WIND, "sac_lstm.train_episodes=80"),
    "sac_gpt": train(WIND, "sac_gpt.train_episodes=80"),
    "amago_transformer": train("amago_tmaze_5", "amago_transformer"),
    "amago_transformer, relabelled": train("amago_maze_11", "amago_transformer.relabel_all"),
    "amago_gru": train("amago_dark_key_door_3", "amago_gru"),
    "amago_ff": train("amago_dark_key_door_3", "amago_ff"),
    "amago_multi_task": train("amago_dark_key_door_3", "amago_multi_task"),
    "ppo_cnn": train(GRID, "ppo_cnn"),
    "ppo_lstm": train(GRID, "ppo_lstm"),
    "helm": train(GRID, "helm"),
    "helmv2": train(WORDS, "helmv2"),
    "shelm": train(WORDS, "shelm", "embed-vocabulary random"),
    "train-vision-language": Job(
        ("train-vision-language", "--scale", "smoke", "--model", "tiles", "--threads", "1"),
        ("data/smoke/models/tiles/*",),
        checkpoints="results/smoke/checkpoints/_models/tiles",
    ),
    "embed-vocabulary": Job(
        ("embed-vocabulary", "--scale", "smoke", "--vocabulary", "tiles", "--device", "cpu", "--threads", "1"),
        ("data/smoke/token_vocabularies/tiles.*",),
        ("train-vision-language",),
    ),
    "embed-vocabulary random": Job(
        ("embed-vocabulary", "--scale", "smoke", "--vocabulary", "random", "--device", "cpu", "--threads", "1"),
        ("data/smoke/token_vocabularies/random.*",),
    ),
    "evaluate": evaluate(ROOM, "dt", "dt", "generate ppo"),
    "evaluate, seed 1": evaluate(ROOM, "dt", "dt, seed 1", "generate ppo", seed=1),
    "evaluate, key-door": evaluate(DOOR, "dt", "dt, key-door", "generate ppo, key-door"),
    "evaluate dqn_gpt": evaluate(CORRIDOR, "dqn_gpt", "dqn_gpt"),
    "evaluate radt": evaluate(ROOM, "radt", "radt", "index", "generate ppo", "dt"),
    "evaluate shelm": evaluate(WORDS, "shelm", "shelm", "embed-vocabulary random"),
    "evaluate ad, many": evaluate(ROOM, "ad.many", "ad", "generate ppo"),
    "evaluate radt, many": evaluate(ROOM, "radt.many", "radt", "index", "generate ppo", "dt"),
    "evaluate shelm, many": evaluate(WORDS, "shelm.many", "shelm", "embed-vocabulary random"),
    "inspect": inspect(ROOM, "dt", "dt", "generate ppo"),
    "inspect, seed 1": inspect(ROOM, "dt", "dt, seed 1", "generate ppo", seed=1),
    "inspect, key-door": inspect(DOOR, "dt", "dt, key-door", "generate ppo, key-door"),
    "page": Job(
        ("page", *_where(ROOM, "dt", 0)), ("results/smoke/inspect/dark_room_10x10/dt/seed_0.*",), ("inspect", "dt")
    ),
    "figure": Job(
        ("figure", "--scale", "smoke", "--figure", "attack"),
        ("results/smoke/figures/attack.*",),
        ("evaluate", "evaluate, seed 1"),
    ),
}


def with_needs(name: str) -> list[str]:
    """The jobs that one needs, the needs of those first; without itself."""
    found: list[str] = []
    for need in JOBS[name].needs:
        found += [*with_needs(need), need]
    return list(dict.fromkeys(found))


MANY = {"ad": 10, "radt": 6, "shelm": 60}
"""Episodes of scorings that are long enough to be killed in their middle."""


def configuration(folder: Path) -> None:
    """The repository's configuration, with a figure, long scorings, and an environment of published files that only the
    attack has.
    """
    shutil.copytree(ROOT / "config", folder / "config")
    smoke = folder / "config/scales/smoke.yaml"
    scale = yaml.safe_load(smoke.read_text())
    scale["vision_language_models"]["tiles"]["hyperparameters"]["steps"] = 60  # long enough for some checkpoints
    smoke.write_text(yaml.safe_dump(scale))
    figures, environments = folder / "config/figures", folder / "config/environments"
    figure = yaml.safe_load((figures / "radt_dark_room_10x10.yaml").read_text())
    figure |= {"methods": ["dt"], "seeds": [0, 1], "references": []}
    (figures / "attack.yaml").write_text(yaml.safe_dump(figure))
    for method, episodes in MANY.items():
        path = folder / f"config/methods/{method}.yaml"
        content = yaml.safe_load(path.read_text())
        content.setdefault("variants", {})["many"] = {"evaluation_only": True, "evaluation": {"episodes": episodes}}
        path.write_text(yaml.safe_dump(content))
    room = yaml.safe_load((environments / f"{ROOM}.yaml").read_text())
    room["options"] |= {"width": 5, "height": 4}
    hyperparameters = {"folder": "files"}
    room["source"] = {"algorithm": "published_files", "split": "train", "hyperparameters": hyperparameters}
    (environments / f"{PUBLISHED}.yaml").write_text(yaml.safe_dump(room))


def start(words: Iterable[str], folder: Path, *, group: bool = False) -> preloaded.Process:
    """Start a command; what it says goes into the file `said` beside its folder."""
    said = folder.with_name(folder.name + ".said")
    return preloaded.start("recollect.cli", list(words), cwd=folder, env=ENVIRONMENT, said=said, group=group)


def run(words: Iterable[str], folder: Path) -> Said:
    """Run a command to its end.

    Raises:
        Failed: it does not end.
    """
    try:
        done = preloaded.run("recollect.cli", list(words), cwd=folder, env=ENVIRONMENT, together=True, timeout=PATIENCE)
    except preloaded.subprocess.TimeoutExpired:
        raise Failed(f"`recollect {' '.join(words)}` did not end in {PATIENCE:.0f} s") from None
    return Said(done.returncode, done.stdout)


class Reference:
    """What every job writes when nothing disturbs it, and how long it takes.

    Args:
        folder: where the jobs are run, each once, when it is asked for first.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self.seconds: dict[str, float] = {}
        self._pool = ThreadPoolExecutor(workers)
        self._made: dict[str, Future[None]] = {}
        self._lock = threading.Lock()
        configuration(folder)

    def make(self, names: Iterable[str]) -> None:
        """Run some jobs and what they need, several side by side; those that were run are kept."""
        wanted = [each for name in names for each in (*with_needs(name), name)]
        with self._lock:
            for name in dict.fromkeys(wanted):
                if name not in self._made:
                    self._made[name] = self._pool.submit(self._run, name)
        for name in wanted:
            self._made[name].result()

    def _run(self, name: str) -> None:
        for need in JOBS[name].needs:
            self._made[need].result()
        began = time.monotonic()
        said = run(JOBS[name].command, self.folder)
        if said.status:
            raise Failed(f"{name}: the job does not even run undisturbed: {said.tail()}")
        self.seconds[name] = time.monotonic() - began

    def copy(self, folder: Path, names: Iterable[str]) -> None:
        """A folder with the configuration and with what some jobs wrote."""
        names = list(names)
        self.make(names)
        shutil.copytree(self.folder / "config", folder / "config")
        if (self.folder / "files").exists():
            shutil.copytree(self.folder / "files", folder / "files")
        for name in names:
            for path in written(self.folder, JOBS[name]):
                target = folder / path.relative_to(self.folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)

    def bytes_of(self, name: str) -> dict[str, str]:
        """The sha256 of each file that a job writes, manifests too."""
        self.make([name])
        return hashes(self.folder, JOBS[name])

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def written(folder: Path, job: Job) -> list[Path]:
    """The files of a job that stand in a folder."""
    found = [path for pattern in job.writes for path in folder.glob(pattern)]
    return sorted(path for path in found if path.is_file() and not path.name.startswith("."))


def hashes(folder: Path, job: Job) -> dict[str, str]:
    """The sha256 of each file of a job that stands in a folder."""
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in written(folder, job)}
