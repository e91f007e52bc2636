"""A recorded run is files of numbers, and every table of the pages follows from these files alone."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import made_results
import numpy as np
import pandas as pd
import pytest
from made_results import SCALE

from recollect.artifacts.sealed import read_json, read_table, verify, write_json, write_table
from recollect.figures.spec import AGGREGATION
from recollect.settings.errors import UserError
from recollect.stages import paths, recorded_run, recorded_tables
from recollect.stages.between_marks import between, marks, put_between
from recollect.stages.figure import figure
from recollect.stages.gallery import gallery
from recollect.stages.of_today import in_words
from recollect.stages.recorded_run import record, renewed
from recollect.stages.recorded_tables import CLAIMS, COLUMNS, RUN, csv_text, tables
from recollect.stages.records import note, place
from recollect.stages.stage import Job

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path("docs/recorded") / SCALE
NAMES = [f"recorded {SCALE} {what}" for what in ("claims", "numbers")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A figure with a claim, and pages that have a place for both."""
    return made_results.made_in(tmp_path_factory.mktemp("recorded"), made_up)


def made_up() -> None:
    name = made_results.few_runs()
    made_results.claim("rises", name, headline=True)
    figure(SCALE, name)  # with the claim
    places = {"README.md": [f"recorded {SCALE} headline claims"], "docs/radt.md": NAMES, "docs/helm.md": []}
    for page, names in places.items():
        Path(page).parent.mkdir(exist_ok=True)
        Path(page).write_text("Before.\n\n" + "\n".join("\n".join(marks(one)) + "\nAfter.\n" for one in names))


def read(file: str) -> list[dict[str, str]]:
    with (FOLDER / f"{file}.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


def kept_of(rows: list[dict[str, str]], renewed_figure: str) -> list[dict[str, object]]:
    """What stays of a file of facts where a figure is recorded anew."""
    folder = Path("kept")
    folder.mkdir()
    for file, columns in COLUMNS.items():
        (folder / f"{file}.csv").write_text(csv_text(file, rows) if file == RUN else ",".join(columns) + "\n")
    return recorded_run._kept(folder, [renewed_figure])[RUN]


def test_verdicts_numbers_and_circumstances_are_written_down(few: str) -> None:
    said = record(SCALE, [few])
    assert "docs/radt.md" in said and "docs/helm.md" not in said
    known = {row["what"]: row["value"] for row in read("run")}
    assert (known["scale"], known["seeds"], known["device"]) == (SCALE, "0 to 4", "cpu") and known["processor"]
    (claim,) = read("claims")
    assert (claim["claim"], claim["verdict"], claim["headline"], claim["seeds"]) == ("rises", "holds", "yes", "5")
    assert float(claim["low"]) <= float(claim["value"]) == 2 <= float(claim["high"])
    points = read("numbers")
    assert [point["x"] for point in points] == ["1", "2", "3"] and {point["method"] for point in points} == {"AD"}
    assert points[-1]["of"] == "return: mean over seeds and tasks, by in-context episode, counted from 1"
    drawn = pd.read_csv(paths.figure(SCALE, few, ".csv"))
    assert np.allclose([float(point["high"]) for point in points], drawn["high"], rtol=1e-5, atol=0)


@pytest.mark.slow
def test_bounds_that_are_no_interval_are_recorded_as_what_they_are(few: str) -> None:
    content = {"kind": "in_context_curve", "options": {"band": "seeds"}}
    made_results.configure(few, [made_results.ROOM], ["ad"], range(5), **content)
    figure(SCALE, few)
    record(SCALE, [few])
    said = "counted from 1; bounds: the lowest and the highest seed's mean over tasks"
    assert {row["of"].partition(", by in-context episode, ")[2] for row in read("numbers")} == {said}


def test_a_run_that_another_machine_made_is_recorded_as_such(few: str) -> None:
    """What the records of jobs say counts, and not the machine that records them."""
    env, (first, second) = made_results.ROOM, ({"gpu": "NVIDIA H100", "torch": "2.9"}, {"torch": "2.10"})
    for seed in range(5):
        for stage in ("train", "evaluate"):
            made = {
                "commit": "older",
                "processor": "Xeon",
                "python": "3.12.1",
                **(first if stage == "train" else second),
            }
            made_results.write_time(env, "ad", seed, stage, 1.0, made_with=made)
    drawn_here = {"commit": "newer", "processor": "Ryzen"}  # a figure, and later than its runs
    note(Job("figure", SCALE, few), "cpu", "", drawn_here, seconds=1.0, resumed=False)
    record(SCALE, [few])
    known = {row["what"]: row["value"] for row in read("run")}
    assert [known[what] for what in ("commit of the runs", "gpu", "processor")] == ["older", "NVIDIA H100", "Xeon"]
    assert (known["python"], known["torch"]) == ("3.12.1", "2.10 and 2.9")
    assert "(NVIDIA H100, Xeon), run at commit older, recorded at commit " in Path("docs/radt.md").read_text()


@pytest.mark.parametrize("lacking", ["", "the beginning", "a record"])
def test_the_time_of_all_jobs_is_given_where_it_is_the_whole_of_it(few: str, lacking: str) -> None:
    for seed in range(5):
        for stage in ("train", "evaluate"):
            resumed = lacking == "the beginning" and seed == 3
            made_results.write_time(made_results.ROOM, "ad", seed, stage, 100.0, resumed=resumed)
    for job in (Job("generate", SCALE, made_results.ROOM), Job("figure", SCALE, few)):
        note(job, "cpu", "", {}, seconds=50.0, resumed=False)
    if lacking == "a record":
        place(Job("evaluate", SCALE, made_results.ROOM, "ad", "2")).unlink()
    record(SCALE, [few])
    seconds = [float(row["value"]) for row in read("run") if row["what"] == recorded_run.SECONDS]
    assert seconds == ([] if lacking else [1100])


def test_a_figure_of_runs_that_a_gpu_trained_says_so_although_a_cpu_evaluated_them(few: str) -> None:
    scores, policy = (at(SCALE, made_results.ROOM, "ad", 0) for at in (paths.scores, paths.train_table))
    write_table(policy, read_table(policy), kind="train", provenance={"device": "cuda", "inputs": {}})
    known = verify(scores)["provenance"]
    table = read_table(scores)
    write_table(scores, table, kind="scores", provenance={**known, "inputs": {policy.as_posix(): "of it"}})
    figure(SCALE, few)
    assert read_json(paths.figure(SCALE, few, ".json"))["device"] == "cpu and cuda"
    record(SCALE, [few])
    assert "device cpu and cuda (" in Path("docs/radt.md").read_text()


def test_pages_have_the_tables_between_their_marks_and_keep_the_rest(few: str) -> None:
    record(SCALE, [few])
    readme, page = (Path(name).read_text() for name in ("README.md", "docs/radt.md"))
    assert "| ✓ holds | [RA-DT](docs/radt.md): **[It rises.](config/claims/rises.yaml)** |" in readme
    assert "seeds 0 to 4, device cpu" in readme and page.startswith("Before.") and page.endswith("After.\n")
    assert "**[It rises.](../config/claims/rises.yaml)** Figure 3." in between(page, NAMES[0], "page")
    assert Path("docs/helm.md").read_text() == "Before.\n\n"
    assert renewed(FOLDER) == {Path("README.md"): readme, Path("docs/radt.md"): page}
    # Only the files count: another number there is another table.
    text = (FOLDER / "claims.csv").read_text()
    (FOLDER / "claims.csv").write_text(text.replace("holds", "undecided"))
    assert "? undecided" in renewed(FOLDER)[Path("README.md")]


@pytest.mark.slow
def test_the_readme_has_all_claims_of_a_figure_that_shows_a_headline_one_and_no_others(few: str) -> None:
    made_results.claim("ends", few, statement="It ends high.")
    figure(SCALE, few)
    other = made_results.configure("radt_other", [made_results.ROOM], ["ad"], range(5), kind="in_context_curve")
    made_results.claim("elsewhere", other, statement="It ends elsewhere.")
    figure(SCALE, other)
    record(SCALE, [few, other])
    readme, page = (Path(name).read_text() for name in ("README.md", "docs/radt.md"))
    assert ": [It ends high.](config/claims/ends.yaml) |" in readme and "**[It rises.]" in readme
    assert "It ends elsewhere." in page and "It ends elsewhere." not in readme


def test_where_not_all_contrasts_must_hold_readme_and_page_say_how_many(few: str) -> None:
    here = {"env": made_results.ROOM, "method": "ad"}
    up = {"says": "last minus first", "this": {**here, "episodes": [0.67, 1]}, "that": {"episodes": [0, 0.33]}}
    down = {**up, "says": "first minus last", "this": {**here, "episodes": [0, 0.33]}, "that": {"episodes": [0.67, 1]}}
    made_results.claim("moves", few, statement="It moves.", contrasts=[up, down], needed=1)
    figure(SCALE, few)
    record(SCALE, [few])
    rows = [row for row in read(CLAIMS) if row["claim"] == "moves"]
    assert [(row["verdict"], row["contrast"], row["needed"]) for row in rows] == [
        ("holds", "holds", "1"),
        ("holds", "contradicted", "1"),
    ]
    readme, page = (Path(name).read_text() for name in ("README.md", "docs/radt.md"))
    (short,) = [line for line in readme.splitlines() if "It moves." in line]
    assert short.startswith("| ✓ holds | ") and short.endswith(" (1 of 2 must hold) |")
    assert "[It moves.](../config/claims/moves.yaml) (1 of 2 must hold) " in page
    assert "must hold" not in "".join(line for line in page.splitlines() if "It rises." in line)


def test_figures_that_are_recorded_later_join_those_before_and_each_says_what_it_was_made_with(
    few: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_run, "commit", lambda: "first")
    record(SCALE, [few])
    alone = Path("docs/radt.md").read_text()
    assert alone.count("commit first ([numbers](") == 2

    other = made_results.configure("radt_other", [made_results.ROOM], ["ad"], range(5), kind="in_context_curve")
    made_results.claim("later", other)
    figure(SCALE, other)
    monkeypatch.setattr(recorded_run, "commit", lambda: "second")
    record(SCALE, [other])
    assert [(row["claim"], row["figure"]) for row in read("claims")] == [("rises", few), ("later", other)]
    assert {row["figures"] for row in read("run")} == {few, other}
    assert {row["figure"] for row in read("numbers")} == {few, other}
    found = between(Path("docs/radt.md").read_text(), NAMES[0], "page")
    assert f"commit first: `{few}`. Scale `{SCALE}`, seeds 0 to 4" in found
    assert "commit second: `radt_other` ([numbers](recorded/" in found

    together = [{"figures": f"{few} {other}", "what": what, "value": "1"} for what in ("scale", recorded_run.SECONDS)]
    assert {row["what"] for row in kept_of(together, other)} == {"scale"}, "the time was that of both"

    record(SCALE, [few])
    assert "commit first" not in Path("docs/radt.md").read_text()
    assert [row["claim"] for row in read("claims")] == ["rises", "later"]
    Path(f"config/figures/{other}.yaml").unlink()
    Path("config/claims/later.yaml").unlink()
    record(SCALE, [few])
    assert Path("docs/radt.md").read_text() == alone.replace("commit first", "commit second")


def test_published_numbers_and_pictures_of_their_own_are_for_the_published_settings(few: str) -> None:
    with Path("config/claims/rises.yaml").open("a") as claim:
        claim.write("published: [{says: AD, value: 3.5, read: off the figure}]\n")
    record(SCALE, [few])
    assert "Published" not in Path("docs/radt.md").read_text()
    for path, line in ((f"config/scales/{SCALE}.yaml", "published: paper\n"), ("config/config.yaml", "")):
        Path(path).write_text(line + Path(path).read_text().replace(f"scale: {SCALE}", "scale: smoke"))
    pictures = [Path("docs/figures") / name for name in (f"{few}.png", f"{SCALE}/{few}.png")]
    for picture in pictures:
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_bytes(b"old")
    record(SCALE, [few])
    assert "Figure 3. Published: AD 3.5. |" in Path("docs/radt.md").read_text()
    assert [picture.read_bytes() == b"old" for picture in pictures] == [True, False]


def test_nothing_is_written_of_results_that_are_not_there_or_damaged_or_not_of_one_another(few: str) -> None:
    scores = paths.scores(SCALE, made_results.ROOM, "ad", 0)
    write_table(scores, read_table(paths.scores(SCALE, made_results.ROOM, "ad", 1)).assign(seed=0), kind="scores")
    with pytest.raises(UserError, match=r"drawn from another .*seed_0/scores"):
        record(SCALE, [few])
    picture = paths.figure(SCALE, few, ".png")
    picture.write_bytes(picture.read_bytes()[:-1])
    with pytest.raises(UserError, match="cut short"):
        record(SCALE, [few])
    assert not FOLDER.exists()


def test_a_picture_with_other_claims_than_those_that_are_recorded_is_refused(few: str) -> None:
    made_results.claim("later", few)
    with pytest.raises(UserError, match="shows other claims or verdicts"):
        record(SCALE, [few])
    assert not FOLDER.exists()
    figure(SCALE, few)
    record(SCALE, [few])
    for name in ("later", "rises"):
        Path(f"config/claims/{name}.yaml").unlink()
    with pytest.raises(UserError, match="shows other claims or verdicts"):
        record(SCALE, [few])


def test_what_an_older_version_recorded_is_refused_and_stays(few: str) -> None:
    record(SCALE, [few])
    old = "what,value\nscale,demo\n"
    (FOLDER / f"{RUN}.csv").write_text(old)
    with pytest.raises(UserError, match="there is no column 'figures'"):
        record(SCALE, [few])
    assert (FOLDER / f"{RUN}.csv").read_text() == old


def test_of_a_long_curve_the_beginning_the_quarters_and_the_end_are_recorded() -> None:
    def places(steps: list[float]) -> list[float]:
        return [point["x"] for point in recorded_run._chosen(pd.DataFrame({"x": steps}))]

    assert places([1.0 * place for place in range(1, 41)]) == [1, 10, 20, 30, 40]
    assert places([0.0, 90, 240, 260, 510, 700, 1000]) == [0, 240, 510, 700, 1000]
    assert places([1.0, 2, 3, 4, 5, 6]) == [1, 2, 3, 4, 5, 6]


def test_of_a_figure_that_sums_curves_up_only_the_sum_is_recorded(workdir: Path) -> None:
    name = made_results.configure("sums", [made_results.MAZE], ["dqn_gpt"], [0, 1], kind="length_aggregation")
    axes = {"x": f"in '{AGGREGATION}': memory length", "y": "return", "low, high": "bounds of the 95 % interval"}
    write_json(paths.figure(SCALE, name, ".json"), {"axes": axes}, kind="figure.json", provenance={})
    lines = ["panel,method,x,y,low,high,seeds,tasks", f"{AGGREGATION},dqn_gpt,5,0.75,0.5,1,2,1",
             f"{AGGREGATION},published:dqn_gpt,5,1,,,0,0", f"{AGGREGATION},line:chance,5,0.5,,,0,0",
             f"{made_results.MAZE},dqn_gpt,0,0.25,,,2,1", f"{made_results.MAZE},dqn_gpt,9,0.75,,,2,1"]  # fmt: skip
    paths.figure(SCALE, name, ".csv").write_text("\n".join(lines) + "\n")
    (point,) = recorded_run._numbers(SCALE, name)
    assert (point["panel"], point["x"], point["y"], point["low"], point["seeds"]) == (AGGREGATION, 5, 0.75, 0.5, 2)


def test_numbers_below_zero_have_as_many_digits_as_those_above() -> None:
    known = {"panel": "p", "method": "AD", "x": "1", "low": "-251.5", "high": "-249"}
    for sign in ("", "-"):
        line = [{**known, "y": f"{sign}250.04"}, {**known, "x": "2", "y": f"{sign}9.25", "low": "", "high": ""}]
        row = recorded_tables._points(["1", "2"], [line], False).splitlines()[-1]
        assert row == f"| AD | {sign}250.0 | {sign}9.2 |".replace("-250", "−250").replace("-9", "−9")
    head, _, last = recorded_tables._points(["10000.5"], [[{**known, "y": "-250.04"}]], False).splitlines()
    assert (head, last) == ("|  | 10,000.5 |", "| AD | −250.0 (−251.5 to −249.0) |")


@pytest.mark.slow
def test_the_gallery_has_the_published_numbers_of_what_was_run_at_the_published_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    for scale in ("demo", "paper_cpu"):
        folder = Path("docs/recorded") / scale
        shown, rows = gallery(folder), recorded_tables.read(folder)[CLAIMS]
        pictured = [row for row in rows if Path(f"docs/figures/{row['figure']}.png").is_file()]
        for row in pictured:
            said = f" Published: {row['published']}." if scale != "demo" else ""
            assert f"| [{row['statement']}](../config/claims/{row['claim']}.yaml){said} |" in shown
        assert pictured
    text = "\n".join(marks("one"))
    assert put_between(text, "one", "new", "page") == f"{marks('one')[0]}\n\nnew\n\n{marks('one')[1]}"
    for wrong in ("", marks("one")[0], text + text, text + marks("one")[1], text.replace("one", "two")):
        with pytest.raises(UserError, match="no place for this text"):
            put_between(wrong, "one", "new", "page")


def test_seeds_far_apart_are_said_one_by_one() -> None:
    assert in_words([0, 1, 2]) == "0 to 2"
    assert in_words([1205178002, 2140537296, 4089113149]) == "1205178002, 2140537296 and 4089113149"


def test_a_paper_without_a_judged_claim_names_the_runs_of_its_own_figures_alone(tmp_path: Path) -> None:
    folder = tmp_path / "paper_cpu"
    shutil.copytree(ROOT / "docs/recorded/paper_cpu", folder)
    claims = [row for row in recorded_tables.read(folder)[CLAIMS] if row["paper"] == "HELM"]
    (folder / f"{CLAIMS}.csv").write_text(csv_text(CLAIMS, claims), encoding="utf-8")
    made = tables(folder)
    said = made["docs/memory_rl.md", "recorded paper_cpu claims"]
    assert said.startswith("No claim was judged.") and "seeds 1 and 2," in said and "helm_minigrid" not in said
    assert "KeyCorridor" in made["docs/helm.md", "recorded paper_cpu claims"]


def test_values_below_ten_have_two_decimals_and_larger_ones_one() -> None:
    known = {"panel": "p", "method": "AD", "x": "1", "low": "", "high": ""}
    for y, said in (("9.994", "9.99"), ("10.06", "10.1"), ("41.94", "41.9")):
        assert recorded_tables._points(["1"], [[{**known, "y": y}]], False).splitlines()[-1] == f"| AD | {said} |"


def test_no_point_of_an_uneven_curve_is_recorded_twice() -> None:
    points = pd.DataFrame({"x": [50, 100, 250, 500, 750, 1000, 10000]})
    assert [point["x"] for point in recorded_run._chosen(points)] == [50, 1000, 10000]
