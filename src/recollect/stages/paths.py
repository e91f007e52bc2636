"""Where every artifact lies. The rules, the commands and the documentation all read it here.

No time stamp, process id or random id stands in any path; names come from the wildcards `scale`, `env`, `method`,
`seed` and `figure` (and `model`, `dataset`, `vocabulary`). Paths are relative to the working directory.
"""

from __future__ import annotations

from pathlib import Path

from recollect.artifacts.checkpoints import POLICIES
from recollect.artifacts.sealed import MANIFEST_SUFFIX


def histories(scale: str, env: str) -> Path:
    """Learning histories of an environment."""
    return Path("data") / scale / env / "histories.safetensors"


def encoded_histories(scale: str, env: str) -> Path:
    """The same histories with encoded images, where observations are images."""
    return Path("data") / scale / env / "encoded_histories.safetensors"


def embeddings(scale: str, env: str, method: str) -> Path:
    """Keys of a method's memory, before the index."""
    return Path("data") / scale / env / method / "embeddings.safetensors"


def index(scale: str, env: str, method: str) -> Path:
    """Search index of a method's memory."""
    return Path("data") / scale / env / method / "memory.faiss"


def rows(scale: str, env: str, method: str) -> Path:
    """Row table beside the index: which window each entry is."""
    return Path("data") / scale / env / method / "memory_rows.safetensors"


def model(name: str) -> Path:
    """A frozen language model."""
    return Path("data") / "models" / name / "model.safetensors"


def trained_model(scale: str, name: str) -> Path:
    """A vision-language model that is trained here."""
    return Path("data") / scale / "models" / name / "model.safetensors"


def model_accuracy(scale: str, name: str) -> Path:
    """How often it is right, beside it."""
    return Path("data") / scale / "models" / name / "accuracy.json"


def token_vocabulary(scale: str, vocabulary: str) -> Path:
    """Words that a vision-language model and a language model share, embedded."""
    return Path("data") / scale / "token_vocabularies" / f"{vocabulary}.safetensors"


def published(dataset: str) -> Path:
    """The list of a published data set's files, which lie beside it."""
    return Path("data") / "published" / dataset / "index.json"


def run_folder(scale: str, env: str, method: str, seed: int | str) -> Path:
    """Results of one run."""
    return Path("results") / scale / "runs" / env / method / f"seed_{seed}"


def policy(scale: str, env: str, method: str, seed: int | str) -> Path:
    """A trained policy."""
    return run_folder(scale, env, method, seed) / "policy.safetensors"


def train_table(scale: str, env: str, method: str, seed: int | str) -> Path:
    """What was logged while training."""
    return run_folder(scale, env, method, seed) / "train.parquet"


def scores(scale: str, env: str, method: str, seed: int | str) -> Path:
    """Scores of a policy."""
    return run_folder(scale, env, method, seed) / "scores.parquet"


def kept_policy(scale: str, env: str, method: str, seed: int | str, checkpoint: str) -> Path:
    """A policy that a run kept while it trained: `best`, `latest`, `epoch_000050`."""
    return checkpoints(scale, env, method, seed) / POLICIES / f"{checkpoint}.safetensors"


def kept_scores(scale: str, env: str, method: str, seed: int | str, checkpoint: str) -> Path:
    """Scores of such a policy."""
    return run_folder(scale, env, method, seed) / f"scores_{checkpoint}.parquet"


def trace(scale: str, env: str, method: str, seed: int | str) -> Path:
    """What a policy saw, did and read in some tasks of its evaluation."""
    return run_folder(scale, env, method, seed) / "trace.safetensors"


def speed(scale: str, env: str, method: str, seed: int | str) -> Path:
    """How fast a run learns and acts: apart from the run itself, whose files are a function of its settings."""
    return Path("results") / scale / "speed" / env / method / f"seed_{seed}.parquet"


def page(scale: str, env: str, method: str, seed: int | str) -> Path:
    """The inspection page of a run."""
    return Path("results") / scale / "inspect" / env / method / f"seed_{seed}.html"


def checkpoints(scale: str, env: str, method: str, seed: int | str) -> Path:
    """Checkpoints of a run, outside declared outputs, so that the workflow engine never deletes them."""
    return Path("results") / scale / "checkpoints" / env / method / f"seed_{seed}"


def history_checkpoints(scale: str, env: str) -> Path:
    """Checkpoints of the generation of histories."""
    return Path("results") / scale / "checkpoints" / env / "_histories"


def image_checkpoints(scale: str, env: str) -> Path:
    """Images encoded so far."""
    return Path("results") / scale / "checkpoints" / env / "_images"


def model_checkpoints(scale: str, name: str) -> Path:
    """Checkpoints of a vision-language model."""
    return Path("results") / scale / "checkpoints" / "_models" / name


def vocabulary_checkpoints(scale: str, vocabulary: str) -> Path:
    """Words embedded so far."""
    return Path("results") / scale / "checkpoints" / "_token_vocabularies" / vocabulary


def figure(scale: str, name: str, suffix: str = "") -> Path:
    """A figure's files: `.pdf`, `.png`, `.csv`, `.json`; without suffix the stem."""
    return Path("results") / scale / "figures" / f"{name}{suffix}"


def report(scale: str) -> Path:
    """The report of a scale."""
    return Path("results") / scale / "report.html"


def manifest(path: Path) -> Path:
    """The manifest beside an artifact."""
    return path.with_name(path.name + MANIFEST_SUFFIX)
