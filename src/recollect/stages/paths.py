"""Where every artifact lies. The rules, the commands and the documentation all read it here.

No time stamp, process id or random id stands in any path; names come from the wildcards. Paths are relative to the
working directory. A path is written once: its template gives the path of given names, and the names of a given path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from recollect.artifacts.checkpoints import POLICIES
from recollect.settings.errors import UserError

WILDCARDS = {
    "scale": r"[\w-]+",
    "env": r"[\w-]+(?:\.[\w-]+)*",  # an environment, or one of gymnasium's by its id: gym.CartPole-v1
    "method": r"[\w-]+(?:\.[\w.,=+\[\]-]+)?",  # a method, method.variant or method.KEY=VALUE
    "seed": r"\d+",
    "task": r"\d+",
    "figure": r"[\w-]+",
    "model": r"[\w.-]+",
    "dataset": r"[\w-]+",
    "vocabulary": r"[\w-]+",
    "checkpoint": r"\w+",
}
"""What each name in a template may be, as a regular expression."""


class Place:
    """Where the artifacts of one kind lie.

    Args:
        template: a path with wildcards: `data/{scale}/{env}/histories.safetensors`.
    """

    def __init__(self, template: str) -> None:
        self.template = template
        self.names = tuple(re.findall(r"{(\w+)}", template))
        pattern = re.escape(template)
        for name in self.names:
            pattern = pattern.replace(re.escape(f"{{{name}}}"), f"(?P<{name}>{WILDCARDS[name]})")
        self._pattern = re.compile(pattern)

    def __call__(self, *names: object) -> Path:
        """The path of such names, in the order in which they stand in the template."""
        return self.of(dict(zip(self.names, names, strict=True)))

    def of(self, names: Mapping[str, object]) -> Path:
        """The path of such names, of which it takes its own."""
        return Path(self.template.format_map(names))

    def match(self, path: Path | str) -> dict[str, str] | None:
        """The names in a path; None where it is no such path."""
        text = path.as_posix() if isinstance(path, Path) else Path(path).as_posix()
        found = self._pattern.fullmatch(text)
        return None if found is None else found.groupdict()


def check_roots() -> None:
    """Raise a UserError where `data` or `results` is there and is no folder: nothing could be written below it."""
    for root in map(Path, ("data", "results")):
        if (root.exists() or root.is_symlink()) and not root.is_dir():
            what = f"`{root}` is a {'link that leads nowhere' if root.is_symlink() else 'file, and no folder'}"
            raise UserError(what, where=root.absolute(), do="move it away: all that the workflow makes lies below it")


_DATA, _RESULTS, _CHECKPOINTS = "data/{scale}/{env}", "results/{scale}", "results/{scale}/checkpoints"
_RUN = "{env}/{method}/seed_{seed}"

# Learning histories of an environment; the same with encoded images, where observations are images.
histories = Place(f"{_DATA}/histories.safetensors")
task_histories = Place(f"{_DATA}/tasks/{{task}}/histories.safetensors")  # of one task, where each has a job of its own
encoded_histories = Place(f"{_DATA}/encoded_histories.safetensors")
# The encoder of an environment's images, where that is trained on its histories, and what was logged meanwhile.
image_encoder = Place(f"{_DATA}/image_encoder.safetensors")
image_encoder_log = Place(f"{_DATA}/image_encoder.parquet")
# Of a method's memory: keys, their search index, and which window each entry of the index is.
embeddings = Place(f"{_DATA}/{{method}}/embeddings.safetensors")
index = Place(f"{_DATA}/{{method}}/memory.faiss")
rows = Place(f"{_DATA}/{{method}}/memory_rows.safetensors")
# Models: frozen and fetched; of images and texts and trained here, with how often it is right.
model = Place("data/models/{model}/model.safetensors")
trained_model = Place("data/{scale}/models/{model}/model.safetensors")
model_accuracy = Place("data/{scale}/models/{model}/accuracy.json")
# Words that a vision-language model and a language model share, embedded.
token_vocabulary = Place("data/{scale}/token_vocabularies/{vocabulary}.safetensors")
# The list of a published data set's files, which lie beside it.
published = Place("data/published/{dataset}/index.json")

# A run: its policy, what was logged while training, its scores, and what it saw, did and read in some tasks.
run_folder = Place(f"{_RESULTS}/runs/{_RUN}")
policy = Place(f"{_RESULTS}/runs/{_RUN}/policy.safetensors")
train_table = Place(f"{_RESULTS}/runs/{_RUN}/train.parquet")
scores = Place(f"{_RESULTS}/runs/{_RUN}/scores.parquet")
trace = Place(f"{_RESULTS}/runs/{_RUN}/trace.safetensors")
# A policy that a run kept while it trained (`best`, `latest`, `epoch_000050`), and the scores of one.
kept_policy = Place(f"{_CHECKPOINTS}/{_RUN}/{POLICIES}/{{checkpoint}}.safetensors")
kept_scores = Place(f"{_RESULTS}/runs/{_RUN}/scores_{{checkpoint}}.parquet")
# What trackers keep of a run (docs/watching.md).
tracking = Place(f"{_RESULTS}/tracking/{_RUN}")
# How fast a run learns and acts: apart from the run itself, whose files are a function of its settings.
speed = Place(f"{_RESULTS}/speed/{_RUN}.parquet")
# The inspection page of a run, and the report of a scale.
page = Place(f"{_RESULTS}/inspect/{_RUN}.html")
report = Place(f"{_RESULTS}/report.html")
# The final scores of a sweep's runs, and which runs it asked for, from its start on; `method` with the grid behind it.
sweep = Place(f"{_RESULTS}/sweeps/{{env}}/{{method}}.csv")
sweep_runs = Place(f"{_RESULTS}/sweeps/{{env}}/{{method}}.json")
# Whether the published claims hold at a scale.
claims = Place(f"{_RESULTS}/claims.json")

# Checkpoints lie outside declared outputs, so that the workflow engine never deletes them: of runs, of the generation of
# histories, of images, windows and words embedded so far, of vision-language models.
checkpoints = Place(f"{_CHECKPOINTS}/{_RUN}")
history_checkpoints = Place(f"{_CHECKPOINTS}/{{env}}/_histories")
task_checkpoints = Place(f"{_CHECKPOINTS}/{{env}}/_histories/task_{{task}}")
encoder_checkpoints = Place(f"{_CHECKPOINTS}/{{env}}/_image_encoder")
image_checkpoints = Place(f"{_CHECKPOINTS}/{{env}}/_images")
memory_checkpoints = Place(f"{_CHECKPOINTS}/{{env}}/_memories/{{method}}")
vocabulary_checkpoints = Place(f"{_CHECKPOINTS}/_token_vocabularies/{{vocabulary}}")
# What a scoring goes on from, while it plays: of a run's policy, and of one that it kept.
scoring = Place(f"{_CHECKPOINTS}/{_RUN}/scoring")
kept_scoring = Place(f"{_CHECKPOINTS}/{_RUN}/scoring_{{checkpoint}}")
model_checkpoints = Place(f"{_CHECKPOINTS}/_models/{{model}}")

figure_stem = Place(f"{_RESULTS}/figures/{{figure}}")
FIGURE_FILES = {suffix: Place(f"{figure_stem.template}.{suffix}") for suffix in ("pdf", "png", "csv", "json")}
PLACES = [*(place for place in tuple(vars().values()) if isinstance(place, Place)), *FIGURE_FILES.values()]
"""All of them."""


def figure(scale: str, name: str, suffix: str = "") -> Path:
    """A figure's files: `.pdf`, `.png`, `.csv`, `.json`; without suffix the stem."""
    place = FIGURE_FILES[suffix.removeprefix(".")] if suffix else figure_stem
    return place(scale, name)
