"""What docs/adding.md says is done, and what docs/claims.md says of a claim of one's own: their files are copied out of the
pages into a folder outside the repository, and run there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from own_files import BLOCKS, files_of_the_page

from recollect.artifacts.sealed import read_arrays, read_table, verify

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]
PROVIDE = """
from pathlib import Path
from recollect.common.language_model_files import provide
from recollect.settings.schema import LanguageModelSettings
provide(LanguageModelSettings(source="random"), Path("data/models/my-bert"))
"""
RUN = """
import sys
from recollect.cli import app
from recollect.settings.still import held_still
lines, sys.argv = sys.argv[1:], []
for line in lines:
    sys.argv[:] = line.split()
    with held_still(anew=True):  # as every command does
        app(sys.argv[1:], standalone_mode=False)
"""


def run(folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RECOLLECT_CONFIG": str(ROOT / "config"), "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"OMP_NUM_THREADS": "1"}
    environment.pop("RECOLLECT_MINE", None)
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def plant(folder: Path) -> None:
    """The page's files, and nothing else."""
    for path, text in files_of_the_page().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside the repository in which the page's `recollect` commands were run, in their order."""
    folder = tmp_path_factory.mktemp("adding")
    plant(folder)
    run(folder, PROVIDE + RUN, *(line for line in COMMANDS if line.startswith("recollect ")))
    return folder


def test_the_page_shows_one_of_each() -> None:
    assert list(files_of_the_page()) == [
        "mine/bandit.py",
        "mine/config/environments/bandit.yaml",
        "mine/corridor.py",
        "mine/config/environments/corridor.yaml",
        "mine/best_action.py",
        "mine/config/methods/best_action.yaml",
        "mine/tried_action.py",
        "mine/config/methods/tried_action.yaml",
        "mine/first_move.py",
        "mine/config/methods/amago_first_move.yaml",
        "mine/config/scales/tiny.yaml",
        "mine/config/figures/corridor.yaml",
        "mine/first_and_last.py",
        "mine/config/figures/corridor_first_and_last.yaml",
        "mine/config/language_models.yaml",
        "mine/config/methods/radt_my_bert.yaml",
        "mine/config/claims/no_rise.yaml",
    ]


@pytest.mark.slow
def test_gymnasiums_environments_and_one_of_ones_own_are_played(tree: Path) -> None:
    for env, episodes, highest in (("gym.CartPole-v1", 100, 500), ("bandit", 4, 10)):
        scores = read_table(tree / f"results/smoke/runs/{env}/dqn_lstm/seed_0/scores.parquet", kind="scores")
        returns = scores[(scores["split"] == "eval") & (scores["metric"] == "return")]["value"]
        assert len(returns) == episodes and returns.between(0, highest).all()
    assert (tree / "bandit.gif").read_bytes().startswith(b"GIF8")


@pytest.mark.slow
def test_a_new_environment_and_a_new_method_run_through_all_stages(tree: Path) -> None:
    histories = read_arrays(tree / "data/tiny/corridor/histories.safetensors", kind="histories")
    assert histories["observation"].shape == (6 * 500, 1)  # six training cells of 500 transitions
    assert set(histories["observation"].ravel()) <= set(range(9))
    for seed in (0, 1, 2):
        folder = tree / f"results/tiny/runs/corridor/best_action/seed_{seed}"
        policy = read_arrays(folder / "policy.safetensors", kind="policy")
        assert policy["table"].shape == (9, 3)
        scores = read_table(folder / "scores.parquet", kind="scores")
        final = scores[(scores["split"] == "eval") & (scores["metric"] == "return")]
        assert len(final) == 2 * 3  # two held-out cells, three episodes
        assert final["value"].between(0, 50).all()
        assert set(final["env"]) == {"corridor"} and set(final["method"]) == {"best_action"}


@pytest.mark.slow
def test_a_method_that_acts_while_it_learns_has_a_learning_curve(tree: Path) -> None:
    table = read_table(tree / "results/tiny/runs/corridor/tried_action/seed_0/train.parquet", kind="train")
    curve = table[(table["split"] == "learning") & (table["metric"] == "return")]
    assert list(curve.groupby("step").size()) == 11 * [8] and curve["value"].between(0, 50).all()


@pytest.mark.slow
def test_a_part_of_amagos_agent_is_ones_own(tree: Path) -> None:
    manifest = verify(tree / "results/smoke/runs/bandit/amago_first_move/seed_0/policy.safetensors", kind="policy")
    settings = json.loads(manifest["provenance"]["settings"])["method"]["hyperparameters"]
    assert settings["exploration"]["kind"] == "first_move" and settings["exploration"]["options"] == {"every": 3}


@pytest.mark.slow
def test_a_variant_is_a_method_like_any_other(tree: Path) -> None:
    runs = tree / "results/tiny/runs/corridor"
    cautious, table = (
        read_arrays(runs / f"{m}/seed_0/policy.safetensors")["table"] for m in ("best_action.cautious", "best_action")
    )
    assert (cautious != table).any() and (cautious == -1).sum() > (table == -1).sum()
    scores = read_table(runs / "best_action.cautious/seed_0/scores.parquet", kind="scores")
    assert set(scores["method"]) == {"best_action.cautious"}


@pytest.mark.slow
def test_a_new_figure_and_a_new_kind_have_their_four_files(tree: Path) -> None:
    figures = tree / "results/tiny/figures"
    for name, rows in (("corridor", 3), ("corridor_first_and_last", 2)):
        assert (figures / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert (figures / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        lines = (figures / f"{name}.csv").read_text().splitlines()
        assert lines[0] == "panel,method,x,y,low,high,seeds,tasks"
        assert len(lines) == 1 + rows
        assert (figures / f"{name}.json").is_file()


@pytest.mark.slow
def test_a_claim_of_ones_own_is_judged_without_naming_paper_source_or_scales(tree: Path) -> None:
    said = run(tree, RUN, "recollect claims --scale tiny --figure corridor --table").stdout
    assert "Your own: A table of actions has no memory" in said and "✓" in said
    caption = json.loads((tree / "results/tiny/figures/corridor.json").read_text())
    assert "best action does not rise" in json.dumps(caption)


@pytest.mark.slow
def test_a_new_language_model_is_what_the_memory_is_embedded_with(tree: Path) -> None:
    embeddings = read_arrays(tree / "data/tiny/corridor/radt_my_bert/embeddings.safetensors", kind="embeddings")
    assert embeddings["keys"].shape == (6 * 4, 32)  # four entries per task, the width of the small random model
    scores = read_table(tree / "results/tiny/runs/corridor/radt_my_bert/seed_0/scores.parquet", kind="scores")
    assert len(scores[scores["split"] == "eval"]) == 2 * 3


@pytest.mark.slow
def test_what_is_begun_by_the_commands_of_the_page_lies_beside_it(tree: Path) -> None:
    begun = [
        "hall.py",
        "table_of_halls.py",
        *(f"config/{each}.yaml" for each in ("figures/halls", "claims/flat_halls")),
    ]
    assert all((tree / "mine" / file).is_file() for file in begun)


def test_own_code_in_a_clone_is_ignored_by_git() -> None:
    assert "/mine/" in (ROOT / ".gitignore").read_text().splitlines()
