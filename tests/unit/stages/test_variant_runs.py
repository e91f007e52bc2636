"""Runs of variants: what is shared is made once, and what differs in acting only is evaluated from one policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recollect.artifacts.scores import concat_scores, scores_frame
from recollect.artifacts.sealed import manifest_path, read_table, write_arrays, write_table
from recollect.common.contract import facts_of
from recollect.settings.errors import UserError
from recollect.settings.resolve import algorithm_module, resolve
from recollect.stages import paths
from recollect.stages.evaluate import evaluate
from recollect.stages.plan import embedders, plan
from recollect.stages.selection import check_targets
from recollect.stages.table import STAGES
from recollect.stages.train import train

ROOM = "dark_room_10x10"
SMOKE = ("smoke", ROOM)
ABLATIONS = ["radt_ablations"]


@pytest.fixture
def trained(workdir: Path) -> Path:
    """A working directory with an untrained `radt` of seed 0, its embedder in it, and one evaluation in its table."""
    settings = resolve(*SMOKE, "radt", 0)
    facts = facts_of(settings.environment)
    networks = {
        name: algorithm_module(name, where=name).build_network(resolve(*SMOKE, name, 0), facts)
        for name in ("radt", "dt")
    }
    arrays = {f"network/{name}": 4 * value.numpy() for name, value in networks["radt"].state_dict().items()}
    arrays |= {f"embedder/network/{name}": value.numpy() for name, value in networks["dt"].state_dict().items()}
    write_arrays(paths.policy(*SMOKE, "radt", 0), arrays, kind="policy")
    about = {"env": ROOM, "method": "radt", "seed": 0, "value": 1.0}
    rows = [scores_frame(step=60, split="train", metric="loss", **about)]
    rows += [scores_frame(step=30, split="eval", task=0, episode=0, metric="return", **about)]
    write_table(paths.train_table(*SMOKE, "radt", 0), concat_scores(rows), kind="train")
    return workdir


@pytest.mark.slow
def test_a_variant_of_acting_is_evaluated_from_its_methods_policy(trained: Path) -> None:
    evaluate(*SMOKE, "radt", 0)
    evaluate(*SMOKE, "radt.every_5", 0)
    own, base = (read_table(paths.scores(*SMOKE, method, 0)) for method in ("radt.every_5", "radt"))
    assert set(own["method"]) == {"radt.every_5"} and set(own["step"]) == {60}
    assert set(base["step"]) == {30, 60}  # an evaluation while learning was not made by the variant
    manifest = manifest_of(paths.scores(*SMOKE, "radt.every_5", 0))
    assert paths.policy(*SMOKE, "radt", 0).as_posix() in manifest["provenance"]["inputs"]
    assert '"retrieve_every":5' in manifest["provenance"]["settings"]


def manifest_of(path: Path) -> dict:
    return dict(json.loads(manifest_path(path).read_text()))


def test_it_cannot_be_trained(workdir: Path) -> None:
    with pytest.raises(
        UserError, match=r"(?s)'radt.every_5' is not trained.*train 'radt', then evaluate 'radt.every_5'"
    ):
        train(*SMOKE, "radt.every_5", 0)
    assert not (workdir / "results").exists()


def test_what_ablations_share_is_made_once(in_the_repository: None) -> None:
    made = plan("paper", ABLATIONS)
    files = [path for stage in STAGES for path in made.files(stage)]
    trained, played = made.files("run", "scores"), made.files("evaluate")
    assert len({*files}) == len(files) - len(made.files("train"))
    policies = {path.parts[-3] for path in trained}
    scored = {path.parts[-3] for path in (*trained, *played)}
    assert {"radt.every_25", "radt.return_weight_0"} <= scored - policies
    assert {"radt", "radt.task_weight_0", "ad.k_1"} <= policies & scored
    memories = {path.parts[-2] for path in made.files("index")}
    assert {"radt", "radt_agnostic", "radt.pool_last"} <= memories and "radt.task_weight_0" not in memories
    first = embedders("paper", ABLATIONS)
    assert paths.policy("paper", "dark_room_10x10", "dt.embedder", 42) in first


def test_a_variant_is_a_target_and_an_unknown_one_is_named_with_the_nearest(workdir: Path) -> None:
    path = "results/smoke/runs/dark_room_10x10/radt.{}/seed_0/scores.parquet"
    check_targets([path.format("every_5"), "data/smoke/dark_room_10x10/radt.pool_last/memory.faiss"])
    with pytest.raises(UserError, match="did you mean 'every_5'"):
        check_targets([path.format("evry_5")])
