"""Splits and images that do not go with an environment's world are refused before the first job, and no others are."""

from __future__ import annotations

from pathlib import Path

import fast_yaml
import pytest

from recollect.settings.errors import UserError
from recollect.settings.loading import names
from recollect.settings.still import held_still
from recollect.stages.environments import check_environments
from recollect.stages.plan import plan
from recollect.stages.stage import Job


@pytest.mark.usefixtures("in_the_repository")
@pytest.mark.parametrize("scale", ["smoke", pytest.param("paper", marks=pytest.mark.slow)])
@held_still()
def test_environments_of_all_figures_go_with_their_worlds(scale: str) -> None:
    check_environments(plan(scale, names("figures")).needs)


@pytest.mark.parametrize(
    ("stage", "changed", "said", "where"),
    [
        ("run", {"evaluation": {"splits": ["eval", "evil"]}}, "unknown split 'evil'", "evaluation.splits"),
        ("generate", {"source": {"split": "trian"}}, "unknown split 'trian'", "source.split"),
        ("embed_images", {"images": {"width": 8}}, "are no images", "images"),
    ],
)
def test_what_a_world_has_not_is_refused(
    stage: str, changed: dict[str, object], said: str, where: str, workdir: Path
) -> None:
    """Else it is found when the histories are made."""
    a_scale({"environments": {"dark_room_10x10": changed}})
    with pytest.raises(UserError, match=said) as refused:
        check_environments([Job(stage, "late", "dark_room_10x10", "dt" if stage == "run" else "", "0")])
    assert refused.value.where.startswith(f"config/environments/dark_room_10x10.yaml (scale late): {where}")


@pytest.mark.parametrize(
    ("images", "method", "said"),
    [
        ({"encoder": "nature"}, {}, "too small for this encoder"),
        ({"channels": "last"}, {}, "set channels: first"),
        ({}, {"optimisation": {"micro_batches": 2}}, "'dt' learns it in parts"),
        ({}, {"network": {"observation_embedding": "one_hot"}}, "no small whole numbers"),
    ],
)
def test_images_that_their_encoder_cannot_learn_are_refused(
    images: dict[str, object], method: dict[str, object], said: str, workdir: Path
) -> None:
    seen = {"width": 8, "weights": "data/{scale}/{env}/image_encoder.safetensors", **images}
    a_scale(
        {
            "environments": {"visual_match_3": {"source": {"algorithm": "ppo_images"}, "images": seen}},
            "methods": {"dt": {"hyperparameters": {"network": {"observation_embedding": "linear"}, **method}}},
        }
    )
    with pytest.raises(UserError) as refused:
        check_environments([Job("train_images", "late", "visual_match_3")])
    assert said in str(refused.value)


def a_scale(content: dict[str, object]) -> None:
    scale = {"description": "late", "extends": "smoke", "seeds": [0], **content}
    Path("config/scales/late.yaml").write_text(fast_yaml.dump(scale))
