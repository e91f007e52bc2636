"""train_vision_language: nothing -> a small model of images and texts (`data/{scale}/models/{model}/model.safetensors`), and
how often it is right about pictures that it never saw (`accuracy.json` beside it).

Killed at any instant, the same command goes on from the newest checkpoint and ends with the same bytes.
"""

from __future__ import annotations

import json

from recollect.helm.settings import resolved_vision_language_model, trained_model
from recollect.settings.loading import validated
from recollect.settings.resolve import canonical
from recollect.stages import paths, provenance
from recollect.stages.begun import begun, with_trusted
from recollect.stages.stage import Job, Resources, Stage, Trust


def train_vision_language(scale: str, name: str, *, trust_checkpoint: Trust = False) -> bool:
    """Train a small model of images and texts, or go on with it."""
    from recollect.artifacts.finite import check_arrays
    from recollect.artifacts.sealed import write_arrays, write_json
    from recollect.helm.vision.dual_encoder import KIND, Hyperparameters
    from recollect.helm.vision.dual_encoder_training import trained_encoder

    model = trained_model(name, scale)
    where = f"config/vision_language_models.yaml: {name}: hyperparameters"
    chosen = validated(Hyperparameters, model.hyperparameters, where=where)
    job = Job("train_vision_language", scale, name)
    known = STAGE.provenance(job)
    target, checkpoints = paths.trained_model(scale, name), paths.model_checkpoints(scale, name)
    with begun(STAGE, job, known, target.parent, checkpoints, trust=trust_checkpoint) as run:
        with run.going_on():
            trained, about, judged = trained_encoder(chosen, model.language_model, run)
        arrays = {name: weight.detach().numpy() for name, weight in trained.network.state_dict().items()}
        check_arrays(arrays, target)
        known = with_trusted(known, run)
        write_json(paths.model_accuracy(scale, name), judged, kind="accuracy", provenance=known)
        write_arrays(
            target,
            arrays,
            kind=KIND,
            provenance=known,
            metadata={"about": json.dumps(about, sort_keys=True)},
        )
    return run.resumed


def settings(scale: str, name: str) -> str:
    model = resolved_vision_language_model(scale, name)
    return canonical({"model": model, "language_model": provenance.language_model_mapping(model["language_model"])})


STAGE = Stage(
    name="train_vision_language",
    over=("scale", "model"),
    writes={"model": paths.trained_model, "accuracy": paths.model_accuracy},
    settings=settings,
    modules=lambda scale, name: ["recollect.helm.vision.dual_encoder_training"],
    asks=Resources((2000, 2000), (60, 60), resumes=True),
    priority=58,
    run=train_vision_language,
)
