"""The report's rows say what the runs left, in words and numbers that a person reads, and which of it is not of today."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import made_results
import numpy as np
import pandas as pd
import pytest
from made_results import MAZE, ROOM, SCALE, configure, last_score, method_changed, write_run, write_time
from typer.testing import CliRunner

from recollect.artifacts.scores import concat_scores, scores_frame
from recollect.artifacts.sealed import manifest_path, read_json, read_table, sealing, verify, write_table
from recollect.cli import app
from recollect.figures.report import COLUMNS, duration
from recollect.settings.errors import UserError
from recollect.stages import paths, records, report_rows
from recollect.stages.circumstances import commit
from recollect.stages.claims import claims
from recollect.stages.report import report
from recollect.stages.report_rows import final_scores
from recollect.stages.stage import Job


def page(*figures: str) -> str:
    report(SCALE, figures)
    verify(paths.report(SCALE), kind="report")
    return paths.report(SCALE).read_text(encoding="utf-8")


def rows(html: str) -> list[dict[str, str]]:
    """The table as it is read: heading to text, the lines of a cell with a blank between them."""
    body = html.split("<tbody>")[1].split("</tbody>")[0]
    names = [name for name, _ in COLUMNS]
    found = []
    for row in re.findall(r"<tr.*?</tr>", body):
        cells = re.findall(r"<td[^>]*>(.*?)</td>", row)
        words = (" ".join(re.sub(r"<[^>]+>", " ", unescape(cell)).split()) for cell in cells)
        found.append(dict(zip(names, words, strict=True)))
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drawn figure of five runs."""
    return made_results.made_in(tmp_path_factory.mktemp("few"), made_results.few_runs)


def about_runs(name: str, environment: str, *methods: str, seeds: tuple[int, ...] = (0,), kind: str = "") -> None:
    """Let a drawn figure be about other runs than those it was drawn from: for tests of the table alone."""
    options = {"kind": kind or "in_context_curve", "options": {}}
    configure(name, [environment], methods, seeds, **options)


@pytest.mark.slow
def test_a_row_says_what_an_offline_run_left(few: str) -> None:
    found = rows(page(few))
    assert len(found) == 5
    row = found[3]
    assert (row["Environment"], row["Method"], row["Seed"]) == (f"Dark-Room 10×10 {ROOM}", "AD ad", "3")
    assert row["Final score"] == f"{last_score(3) - 1:.2f} return, last 3 episodes"
    assert (row["Env. steps"], row["Updates"]) == ("–", "200")
    assert (row["Wall time"], row["Device"], row["State"]) == ("1 min 47 s", "cpu", "current")
    made = verify(paths.scores(SCALE, ROOM, "ad", 3))["provenance"]
    assert row["Config, code"].split()[1] == made["code"][:8]
    assert row["Files"] == "folder"


def test_a_row_says_what_an_online_run_left(few: str) -> None:
    write_run(MAZE, "dqn_gpt", 2)
    about_runs(few, MAZE, "dqn_gpt", seeds=(2,), kind="length_aggregation")
    (row,) = rows(page(few))
    assert row["Final score"] == f"{last_score(2):.2f} return"  # not the evaluations on the way
    assert (row["Env. steps"], row["Updates"]) == ("2,560", "40")


def test_a_row_of_a_run_that_logged_nothing_says_no_step(few: str) -> None:
    path = paths.train_table(SCALE, ROOM, "ad", 3)
    write_table(path, concat_scores([]), kind="train", provenance=verify(path)["provenance"])
    assert rows(page(few))[3]["Updates"] == "0"


def test_a_variant_that_is_not_trained_has_the_updates_of_its_base_and_its_own_time(few: str) -> None:
    variant = "radt.every_25"
    for method in ("radt", variant):
        write_run(ROOM, method, 0)
    paths.train_table(SCALE, ROOM, variant, 0).unlink()
    about_runs(few, ROOM, variant)
    (row,) = rows(page(few))
    assert (row["Updates"], row["Wall time"], row["State"]) == ("200", "4.0 s", "current")


def test_a_measured_run_is_shown_with_its_speeds(few: str) -> None:
    metrics = ["samples_per_second", "steps_per_second_alone", "steps_per_second_together"]
    table = scores_frame(env=ROOM, method="ad", step=0, split="speed", metric=metrics, value=[12345.678, 9.87654, 2e5])
    write_table(paths.speed(SCALE, ROOM, "ad", 7), table.assign(seed=7), kind="speed", provenance={"device": "cuda"})
    about_runs(few, ROOM, "ad", seeds=(7,), kind="throughput")
    (row,) = rows(page(few))
    shown = "12,346 samples per second 9.88 steps per second alone 200,000 steps per second together"
    assert (row["Final score"], row["Device"], row["Files"]) == (shown, "cuda", "–")


@pytest.mark.parametrize(
    ("settings", "code", "state"),
    [(True, False, "other settings"), (False, True, "other code"), (True, True, "other settings and code")],
)
@pytest.mark.quick("True-True-other settings and code")
def test_runs_of_other_settings_or_code_are_named(few: str, settings: bool, code: bool, state: str) -> None:
    if settings:
        method_changed("ad")
    if code:
        for seed in range(5):
            path = manifest_path(paths.train_table(SCALE, ROOM, "ad", seed))
            without_seal = re.sub(r'  "seal": "\w+",\n', "", path.read_text())
            path.write_text(re.sub(r'"code": "\w+"', '"code": "0123456789abcdef"', without_seal))
    html = page(few)
    assert {row["State"] for row in rows(html)} == {state}
    assert f"5 × {state}" in html


def test_runs_that_lie_elsewhere_are_rows_without_links(few: str) -> None:
    shutil.rmtree("results/demo/runs")
    shutil.rmtree("logs")
    found = rows(page(few))
    assert [row["Seed"] for row in found] == list("01234")
    assert {row["State"] for row in found} == {"not here"}
    assert {row[name] for row in found for name in ("Final score", "Wall time", "Config, code", "Files")} == {"–"}


def test_an_interrupted_run_is_not_said_to_have_taken_its_last_part(few: str) -> None:
    write_time(ROOM, "ad", 0, "train", 30.0, resumed=True)
    assert [row["Wall time"] for row in rows(page(few))][:2] == ["≥ 34 s", "1 min 45 s"]


def test_of_a_run_whose_time_is_known_in_part_none_is_said(few: str) -> None:
    before = [row["Wall time"] for row in rows(page(few))]
    records.place(Job("train", SCALE, ROOM, "ad", "1")).unlink()
    assert [row["Wall time"] for row in rows(page(few))] == [before[0], "–", *before[2:]] != before


def test_a_run_of_two_figures_is_one_row(few: str) -> None:
    made_results.copy_of(few, "again")
    about_runs("again", ROOM, "ad", seeds=(3, 4))
    html = page(few, "again")
    assert len(rows(html)) == 5
    behind = {name: len(re.findall(rf'<tr data-words="[^"]*figure:{name}\b', html)) for name in (few, "again")}
    assert behind == {few: 5, "again": 2}
    assert len(re.findall('<figure id="(few|again)"', html)) == 2


def test_the_caption_is_text(workdir: Path) -> None:
    options = {"kind": "in_context_curve", "options": {"resamples": 100}, "caption": "Is <b>a < b</b>? </script>"}
    name = configure("few", [ROOM], ["ad"], [0, 1], **options)
    for seed in (0, 1):
        write_run(ROOM, "ad", seed)
    made_results.figure(SCALE, name)
    html = page(name)
    assert "Is &lt;b&gt;a &lt; b&lt;/b&gt;? &lt;/script&gt;" in html
    assert html.count("interval from 2 seeds is too narrow") == 1


@pytest.mark.slow
def test_what_intervals_do_not_cover_is_said_once_before_the_figures(workdir: Path) -> None:
    options = {"kind": "in_context_curve", "options": {"resamples": 100}}
    figures = [configure(name, [ROOM], ["ad"], [0, 1], **options) for name in ("few", "again")]
    figures.append(configure("band", [ROOM], ["ad"], [0, 1], **{**options, "options": {"band": "seeds"}}))
    for seed in (0, 1):
        write_run(ROOM, "ad", seed)
    for name in figures:
        made_results.figure(SCALE, name)
    before, *cards = page(*figures).split("<figure id=")
    warning = r'<p class="warning">Warning: interval from 2 seeds is too narrow: .* \((.*)\).</p>'
    assert re.findall(r'href="#(\w+)"', re.findall(warning, before)[0]) == ["few", "again"]
    assert not any("too narrow" in card for card in cards)


def test_what_else_a_figure_warns_of_is_said_once_below_it(few: str) -> None:
    warning = "Stale when drawn: the runs are of other code."
    made_results.copy_of(few, "again", warnings=[warning], caption=f"What it shows. {warning} The end.")
    about_runs("again", ROOM, "ad")
    html = page("again")
    assert html.count(warning) == 1 and f'<p>What it shows. The end.</p><p class="warning">{warning}</p>' in html


def test_a_final_score_in_context_is_the_mean_of_the_last_five_episodes(workdir: Path) -> None:
    told = {"step": 200, "split": "eval", "metric": "return", "task": np.arange(2)[:, None], "episode": np.arange(8)}
    table = scores_frame(**told, value=np.arange(16.0).reshape(2, 8)).assign(env=ROOM, method="ad", seed=0)
    assert final_scores(table, SCALE, ROOM, ()) == {"return, last 5 episodes": (5 + 13) / 2}
    assert final_scores(table[table["episode"] == 0], SCALE, ROOM, ()) == {"return": 4.0}
    earlier = table.assign(step=100, value=-50.0)  # an evaluation on the way
    assert final_scores(pd.concat([earlier, table]), SCALE, ROOM, ()) == {"return, last 5 episodes": (5 + 13) / 2}


def test_in_a_final_score_tasks_count_alike_however_often_each_was_played(workdir: Path) -> None:
    told = {"step": 200, "split": "eval", "metric": "return", "episode": np.arange(4), "task": np.array([0, 0, 0, 1])}
    table = scores_frame(**told, value=np.array([0.0, 0, 0, 8])).assign(env="tmaze_passive_5", method="dqn_gpt", seed=0)
    assert final_scores(table, SCALE, "tmaze_passive_5", ()) == {"return": 4.0}


def test_environments_of_a_family_are_told_apart_by_their_titles(few: str) -> None:
    environments = [
        "tmaze_passive_5",
        "tmaze_active_5",
        "key_to_door_5",
        "visual_match_5",
        "visual_match_per_episode_5",
    ]
    configure(few, environments, ["dqn_gpt"], [0], kind="length_aggregation")
    titles = [row["Environment"] for row in rows(page(few))]
    assert titles[0] == "Passive T-Maze, length 5 tmaze_passive_5"
    assert len({title.rpartition(" ")[0] for title in titles}) == len(environments)


def test_a_page_of_wiring_tests_alone_says_so_at_the_top(few: str) -> None:
    made_results.copy_of(few, "again", wiring_test=True)
    about_runs("again", ROOM, "ad")
    assert "SMOKE: wiring test, not a result" in page("again").split("</header>")[0].split("<body>")[1]
    assert "SMOKE" not in page(few) and "SMOKE" not in page(few, "again").split("</header>")[0]


def test_a_missing_figure_and_a_corrupted_run_are_refused_and_no_page_is_written(few: str) -> None:
    with pytest.raises(UserError, match=r"figures/radt_dark_room_10x10\.pdf"):
        report(SCALE, ["radt_dark_room_10x10"])
    path = paths.scores(SCALE, ROOM, "ad", 0)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="cut short"):
        report(SCALE, [few])
    assert not paths.report(SCALE).exists()


def test_a_picture_of_another_drawing_than_its_words_is_refused(few: str) -> None:
    """As after a disk that became full, or a kill, between the files of a figure that is drawn anew."""
    path = paths.figure(SCALE, few, ".png")
    with sealing(path, kind="figure.png") as temporary:
        temporary.write_bytes(b"another picture")
    with pytest.raises(UserError, match=f"not the file that {few}.json was written with") as refused:
        report(SCALE, [few])
    assert refused.value.where == str(path)


def test_the_command_writes_the_named_figures(few: str) -> None:
    done = CliRunner().invoke(app, ["report", "--scale", SCALE, "--figure", few], catch_exceptions=False)
    assert done.exit_code == 0
    assert "What few shows." in paths.report(SCALE).read_text()


def test_the_page_opens_with_the_claims_each_linked_to_its_figure(few: str) -> None:
    assert "<h2>Claims</h2>" not in page(few)  # a figure without claims
    made_results.claim("rises", few, paper="HELM", statement="It rises & stays.")
    published = [{"says": "its end", "value": 79, "read": "table"}]
    made_results.claim("ends", few, statement="It ends high.", headline=True, published=published)
    with pytest.raises(UserError, match=r"claims\.json"):
        page(few)
    claims(SCALE, [few])
    made_results.claim("later", few, paper="AMAGO", statement="Nobody judged it.")
    html = page(few)
    opening = html.split("<main>")[1].split("<figure")[0]
    words = unescape(re.sub(r"<[^>]+>", "\n", opening)).replace("\xa0", " ")
    places = [words.index(said) for said in ("RA-DT", "It ends high.", "AMAGO", "Nobody", "HELM", "It rises & stays.")]
    assert places == sorted(places)
    assert "3 claims: 2 hold, 1 not run. Of the 1 headline ones (bold) 1 holds." in words
    assert opening.count(f'<a href="#{few}">') == 4 and f'<figure id="{few}"' in html  # three claims, and a warning
    assert (
        "✓ holds" in words
        and "– not run" in words
        and f"snakemake --config figures={few} -- results/demo/claims.json" in words
    )
    (judged,) = (one for one in read_json(paths.claims(SCALE))["claims"] if one["name"] == "ends")
    contrast = judged["contrasts"][0]
    assert f"{contrast['low']:.3g} to {contrast['high']:.3g}" in words
    assert judged["published"] and "published" not in words  # what the paper has is of other tasks than this scale's


def test_same_results_same_bytes(few: str) -> None:
    assert page(few) == page(few)


def test_the_commit_says_whether_files_differ_from_it(workdir: Path) -> None:
    assert commit() == ""
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    pages = [Path("README.md"), Path("docs/radt.md")]
    for page in pages:
        page.parent.mkdir(exist_ok=True)
        page.write_text("Before.\n")
    for words in (["init", "-q"], ["add", "config", *map(str, pages)], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], check=True)
    clean = commit()
    assert re.fullmatch("[0-9a-f]{12}", clean)
    for page in pages:
        page.write_text("After.\n")
    assert commit() == clean, "no result is made of a page"
    Path("config/methods/ad.yaml").write_text("")
    assert commit() == f"{clean} with changes"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.49, "0.5 s"), (9.96, "10 s"), (59.6, "1 min 00 s"), (141.8, "2 min 22 s"), (3599.7, "1 h 00 min"),
     (11094.0, "3 h 05 min")],
)  # fmt: skip
def test_times_are_said_as_people_say_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_tasks_count_alike_however_many_episodes_they_have() -> None:
    about = {"step": 9, "split": "eval", "metric": "return"}
    table = scores_frame(**about, task=np.array([0, 1, 0]), episode=np.arange(3), value=np.array([0.0, 3, 0]))
    assert final_scores(table, "demo", "tmaze_passive", ()) == {"return": 1.5}


def test_an_online_run_that_logs_no_updates_has_its_steps_alone() -> None:
    table = concat_scores([scores_frame(step=[100, 200], split="train", metric="loss", value=[2.0, 1.0])])
    assert report_rows._progress(table, is_online=True) == {"env_steps": 200, "updates": None}  # HELM's


def test_a_row_names_the_device_of_training_before_that_of_the_evaluation(few: str) -> None:
    path = paths.train_table(SCALE, ROOM, "ad", 3)
    known = verify(path)["provenance"]
    write_table(path, read_table(path), kind="train", provenance={**known, "device": "cuda"})
    assert rows(page(few))[3]["Device"] == "cuda / cpu"


def test_a_measured_run_says_nothing_of_a_training_beside_it(few: str) -> None:
    write_run(ROOM, "ad", 7)
    paths.scores(SCALE, ROOM, "ad", 7).unlink()
    table = scores_frame(env=ROOM, method="ad", step=0, split="speed", metric=["samples_per_second"], value=[5.0])
    write_table(paths.speed(SCALE, ROOM, "ad", 7), table.assign(seed=7), kind="speed", provenance={"device": "cuda"})
    about_runs(few, ROOM, "ad", seeds=(7,), kind="throughput")
    (row,) = rows(page(few))
    assert (row["Updates"], row["Device"]) == ("–", "cuda")


def test_what_is_drawn_stands_first_and_else_the_return_and_training_tasks_count_from_the_first(workdir: Path) -> None:
    about = {"step": 9, "task": [0, 1], "episode": 0}
    table = concat_scores([
        scores_frame(split="train", step=9, metric="loss", value=7.0),
        scores_frame(split="eval", metric="hns", value=[0.25, 0.75], **about),
        scores_frame(split="eval", metric="return", value=[1.0, 3.0], **about),
        scores_frame(split="train", metric="return", value=[4.0, 8.0], **about),
    ])  # fmt: skip
    found = final_scores(table, SCALE, ROOM, ())
    assert list(found.items()) == [
        ("return, unseen tasks", 2.0), ("return, training tasks", 6.0), ("hns, unseen tasks", 0.5),
    ]  # fmt: skip
    assert next(iter(final_scores(table, SCALE, ROOM, ("radt_grid_worlds_train",)))) == "return, training tasks"
