"""Policies that a run keeps beside its own can be evaluated, and never pass for the run's scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recollect.artifacts.sealed import read_arrays, read_table
from recollect.evaluation.score_table import final_step
from recollect.settings.errors import UserError
from recollect.stages import paths
from recollect.stages.evaluate import evaluate, kept_policy
from recollect.stages.run import ended
from recollect.stages.train import train

RUN = ("smoke", "amago_tmaze_5", "amago_ff.keep_every=1", 0)


@pytest.mark.slow
def test_kept_policies_are_evaluated_into_tables_of_their_own(workdir: Path) -> None:
    train(*RUN)
    ended(*RUN)  # the checkpoints and the buffer of a finished run go, these policies stay
    left = {path.parent.name for path in paths.checkpoints(*RUN).rglob("*.safetensors")}
    assert left == {"policies"}
    table = read_table(paths.train_table(*RUN), kind="train")
    epochs = table[table["metric"] == "epoch"]
    assert len(epochs) > 1
    best = table[table["metric"] == "evaluation_return"]
    best_step = int(
        best[best["value"] == best["value"].max()]["step"].iloc[-1]
    )  # the later of equals, as training keeps
    expected = {"latest": final_step(table), "epoch_000001": int(epochs["step"].min()), "best": best_step}
    for asked, name in (("latest", "latest"), ("1", "epoch_000001"), ("best", "best")):
        evaluate(*RUN, checkpoint=asked)
        scores = read_table(paths.kept_scores(*RUN, name), kind="scores")
        assert set(scores["split"]) == {"eval"}
        assert set(scores["step"]) == {expected[name]}
    assert kept_policy(*RUN, "1") == paths.kept_policy(*RUN, "epoch_000001")  # so does `Run.policy` of the API
    assert not paths.scores(*RUN).exists()
    kept = [read_arrays(paths.kept_policy(*RUN, name), kind="policy") for name in ("epoch_000001", "latest")]
    assert any(not np.array_equal(kept[0][name], kept[1][name]) for name in kept[0])
    with pytest.raises(UserError, match=r"(?s)no policy 'epoch_000099'.*best, epoch_000001"):
        evaluate(*RUN, checkpoint="99")
