"""A misspelt name is answered with the one that was meant: of environments with a size, sets, papers, rules and files."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from recollect import api
from recollect.settings.catalogue import check_mine_folder
from recollect.settings.errors import UserError
from recollect.settings.resolve import environment_mapping
from recollect.stages.paths import check_roots
from recollect.stages.selection import check_rules, check_targets, chosen_figures, default_config, selection

RULES = ("all", "report", "inspect", "claims")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("amago_dark_key_dor_2", "amago_dark_key_door_2"),
        ("tmaze_pasive_50", "tmaze_passive_50"),
        ("mini_gird_MemoryS7", "mini_grid_MemoryS7"),
        ("dark_rom_10x10", "dark_room_10x10"),
    ],
)
def test_a_misspelt_environment_keeps_its_size(typed: str, meant: str) -> None:
    with pytest.raises(UserError, match=f"no configuration named '{typed}'") as refused:
        environment_mapping("demo", typed)
    assert f"did you mean '{meant}'?" in refused.value.do


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("demo_al", "demo_all"), ("headline", "headlines"), ("amagoo", "amago"), ("helm_tokns", "helm_tokens")],
)
def test_hints_for_figures_know_sets_and_papers(typed: str, meant: str) -> None:
    for command in (lambda: chosen_figures("demo", [typed]), lambda: selection({**default_config(), "figures": typed})):
        with pytest.raises(UserError, match=f"no figure named '{typed}', and no set or paper") as refused:
            command()
        assert refused.value.do == f"did you mean '{meant}'?"


@pytest.mark.parametrize(
    ("figures", "what", "do"),
    [
        ([], "no figure is chosen", "a paper or `all`"),
        (None, "'figures' is None, and must be a list", r"write `figures: \[\.\.\.\]`"),
        (3, "'figures' is 3, and must be a list", r"write `figures: \[3\]`"),
        ("helm_tokens,headlines", "no figure named 'helm_tokens,headlines'", r"'figures=\[helm_tokens,headlines\]'"),
        ("helm_tokens headlines", "no figure named 'helm_tokens headlines'", r"`figures: \[helm_tokens, headlines\]`"),
    ],
)
def test_what_is_no_list_of_figures_is_answered_with_how_it_is_written(figures: object, what: str, do: str) -> None:
    with pytest.raises(UserError, match=what) as refused:
        selection({**default_config(), "figures": figures})
    assert re.search(do, refused.value.do)


def test_sets_and_papers_may_stand_beside_figures() -> None:
    chosen = chosen_figures("demo", ["headlines", "helm_tokens", "helm_minigrid"])
    assert chosen == [*chosen_figures("demo", ["headlines"]), "helm_tokens"]


def test_a_misspelt_rule_is_answered_with_the_nearest_and_values_of_options_are_none() -> None:
    with pytest.raises(UserError, match="no rule and no figure named 'reprt'") as refused:
        check_rules(["--cores", "2", "reprt"], RULES, lambda words: ["reprt"])
    assert refused.value.do == "did you mean 'report'?"
    check_rules(["--rerun-triggers", "input", "--", "report"], RULES, lambda words: ["report"])
    check_rules(["--cores", "2", "report"], RULES, lambda words: pytest.fail("nothing may be misspelt"))


def test_what_until_omit_from_and_forcerun_name_may_be_misspelt_too(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a misspelt --omit-from Snakemake runs what was to be left out."""
    monkeypatch.syspath_prepend(str(root / "workflow"))
    import snakemake_internals

    for option in ("--omit-from", "--until", "--forcerun", "-O", "-U", "-R"):
        with pytest.raises(UserError, match="no rule and no figure named 'inspct'") as refused:
            check_rules(["--cores", "2", option, "inspct"], RULES, snakemake_internals.named)
        assert refused.value.do == "did you mean 'inspect'?"
    check_rules(["--omit-from", "inspect", "claims", "--rerun-triggers", "input"], RULES, snakemake_internals.named)


def test_what_snakemake_takes_for_targets_is_known(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(root / "workflow"))
    import snakemake_internals

    words = [
        "--cores",
        "2",
        "--rerun-triggers",
        "code",
        "input",
        "-n",
        "--conda-prefix",
        "data/conda",
        "--config",
        "scale=paper",
        "--",
        "reprt",
        "results/x",
    ]
    assert snakemake_internals.targets(words) == ["reprt", "results/x"]
    sys.modules.pop("snakemake_internals")


def test_a_figure_without_a_suffix_is_told_which_file_to_ask_for() -> None:
    target = "results/demo/figures/amago_dark_key_door"
    with pytest.raises(UserError, match="no rule makes") as refused:
        check_targets([target])
    assert refused.value.do == f"ask for {target}.pdf"
    check_targets([f"{target}.pdf"])


@pytest.mark.parametrize(
    ("target", "what", "do"),
    [
        ("results/smoke/runs/tmaze_passive_5/dqn_lstm/seed_007/scores.parquet", "is called 7", "seed_7/scores.parquet"),
        (
            "results/smoke/runs/tmaze_passive_5/dqn_lstm/seed_98765432109876543210/scores.parquet",
            "is no seed",
            "from 0",
        ),
        ("data/smoke/dark_room_7x7/tasks/00/histories.safetensors", "is called 0", "tasks/0/histories"),
        ("data/smoke/tmaze_passive_5/histories.safetensors", "no source of histories", "source:"),
        ("data/smoke/dark_room_7x7/encoded_histories.safetensors", "how the images", "images:"),
        ("data/smoke/dark_room_7x7/dqn_lstm/embeddings.safetensors", "no memory", "memory:"),
    ],
)
def test_what_no_job_makes_is_refused_before_anything_runs(target: str, what: str, do: str) -> None:
    for asked in (target, f"{target}.manifest.json"):
        with pytest.raises(UserError, match=what) as refused:
            check_targets([asked])
        assert do in refused.value.do


def test_what_jobs_make_is_not_refused() -> None:
    run = "runs/tmaze_passive_5/dqn_lstm/seed_0"
    check_targets(
        [f"results/smoke/{run}/scores.parquet", "results/smoke/runs/dark_room_7x7/ad/seed_10/trace.safetensors"]
    )
    check_targets([f"data/smoke/dark_room_7x7/{name}" for name in ("histories.safetensors", "radt/memory.faiss")])
    check_targets(["data/smoke/models/tiles/accuracy.json"])


def test_a_file_or_a_dead_link_in_the_place_of_a_folder_that_is_written_to_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_roots()
    Path("results").touch()
    with pytest.raises(UserError, match="`results` is a file, and no folder") as refused:
        check_roots()
    assert refused.value.where == str(tmp_path / "results")
    Path("results").unlink()
    Path("disk").mkdir()
    Path("results").symlink_to("disk")  # as of those whose results lie on another disk
    check_roots()
    Path("disk").rmdir()
    with pytest.raises(UserError, match="`results` is a link that leads nowhere"):
        check_roots()


def test_a_folder_of_own_code_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_MINE", str(tmp_path / "nope"))
    for command in (check_mine_folder, lambda: api.run("demo", "dark_room_7x7", "radt")):
        with pytest.raises(UserError, match="RECOLLECT_MINE names no folder"):
            command()
    monkeypatch.setenv("RECOLLECT_MINE", str(tmp_path))
    check_mine_folder()
