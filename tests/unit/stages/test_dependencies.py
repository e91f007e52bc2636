"""Promises of stages.dependencies: the rules name exactly what the commands read, and wrong names are caught early."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect.settings.errors import UserError
from recollect.settings.resolve import names, resolve
from recollect.stages import dependencies, embed, inputs, paths, train

ROOM = "dark_room_10x10"


@pytest.mark.parametrize("method", ["radt", "radt_agnostic", "ad", "dt", "dqn_lstm"])
@pytest.mark.parametrize("scale", ["smoke", "paper"])
def test_rules_declare_what_training_opens(workdir: Path, scale: str, method: str) -> None:
    env = "tmaze_passive_10" if method.startswith("dqn") else ROOM
    opened = train.run_inputs(resolve(scale, env, method, seed=0), "cpu")
    declared = inputs.train_inputs(scale, env, method)
    assert declared == {k: v for k, v in vars(opened).items() if k != "device" and v is not None}


@pytest.mark.parametrize("scale", ["smoke", "paper"])
def test_rules_declare_what_embedding_opens(workdir: Path, scale: str) -> None:
    for method in ("radt", "radt_agnostic"):
        declared = dependencies.embed_inputs(scale, ROOM, method)
        assert declared.pop("histories") == paths.histories(scale, ROOM)
        assert declared == embed.embedder_inputs(scale, ROOM, method) or scale == "smoke"


def test_domain_specific_memory_waits_for_its_embedders_run(workdir: Path) -> None:
    assert dependencies.embed_inputs("smoke", ROOM, "radt")["embedder_policy"] == paths.policy("smoke", ROOM, "dt", 0)
    assert ("dt", 0) in dependencies.embedder_runs("smoke", ROOM)
    assert "language_model" in dependencies.embed_inputs("paper", ROOM, "radt_agnostic")
    assert "language_model" in dependencies.evaluate_models("paper", ROOM, "radt_agnostic")


def test_a_run_of_two_figures_is_named_once(workdir: Path) -> None:
    figure = "radt_dark_room_10x10"
    once = dependencies.artifacts("evaluate", "smoke", [figure])
    assert dependencies.artifacts("evaluate", "smoke", [figure, figure]) == once
    assert len(once) == len(set(once)) == len(dependencies.figure_runs("smoke", figure))


def test_a_figure_of_traces_reads_traces_and_its_runs_have_pages(workdir: Path) -> None:
    run = (ROOM, "radt", 0)
    assert inputs.figure_inputs("smoke", "radt_attention")[0] == paths.trace("smoke", *run)
    assert inputs.figure_inputs("smoke", "radt_dark_room_10x10")[0] == paths.scores("smoke", *run)
    made = {stage: dependencies.artifacts(stage, "smoke", ["radt_attention"]) for stage in dependencies.STAGES}
    assert paths.trace("smoke", *run) in made["inspect"] and paths.page("smoke", *run) in made["page"]
    assert paths.policy("smoke", *run) in made["train"] and made["evaluate"] == []
    assert dependencies.artifacts("page", "smoke", ["radt_dark_room_10x10"]) == []
    both = dependencies.embedders("smoke", ["radt_visits", "radt_dark_room_10x10"])
    assert {paths.trace("smoke", ROOM, "dt", 0), paths.scores("smoke", ROOM, "dt", 0)} <= set(both)


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("results/demo/inspect/dark_rom_10x10/radt/seed_0.html", "'dark_room_10x10'"),
        ("results/dmo/figures/radt_dark_room_10x10.pdf", "'demo'"),
        ("results/demo/figures/radt_dark_rom_10x10.pdf", "'radt_dark_room_10x10'"),
        ("./results/demo/runs/dark_room_10x11/dt/seed_0/policy.safetensors", "'dark_room_10x10'"),
        ("results/demo/runs/dark_room_10x10/dtt/seed_0/scores.parquet", "'dt'"),
        ("data/demo/dark_rom_10x10/histories.safetensors", "'dark_room_10x10'"),
        ("data/demo/dark_room_10x10/rdt/memory.faiss", "did you mean"),
        ("data/models/bert-base-uncase/model.safetensors", "'bert-base-uncased'"),
        ("results/papr/report.html", "'paper'"),
    ],
)
def test_an_unknown_name_in_a_target_is_named_with_the_nearest(workdir: Path, target: str, hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        dependencies.check_targets(["-n", "all", target])


def test_a_model_that_is_not_fetched_is_no_target(workdir: Path) -> None:
    with pytest.raises(UserError, match="not fetched"):
        dependencies.check_targets(["data/models/minilm/model.safetensors"])


def test_known_targets_rules_and_options_pass(workdir: Path) -> None:
    dependencies.check_targets(
        [
            *("--cores", "2", "all", "smoke", "results/demo/report.html", "--config", "scale=demo"),
            "results/paper/figures/radt_dark_room_10x10.pdf",
            "results/smoke/runs/tmaze_passive_5/dqn_gpt/seed_0/scores.parquet",
        ]
    )


def test_all_selects_every_configured_figure(workdir: Path) -> None:
    assert dependencies.selection({"scale": "paper", "figures": "all"}).figures == tuple(names("figures"))
    one = dependencies.selection({"scale": "paper", "figures": "radt_dark_room_10x10"})
    assert one.figures == ("radt_dark_room_10x10",)


@pytest.mark.parametrize(
    ("config", "hint"),
    [
        ({"scale": "demo", "figures": ["radt_dark_rom_10x10"]}, "'radt_dark_room_10x10'"),
        ({"scale": "dmo", "figures": []}, "'demo'"),
        ({"scael": "demo", "figures": []}, "'scale'"),
    ],
)
def test_a_wrong_selection_is_refused(workdir: Path, config: dict[str, object], hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        dependencies.selection(config)
