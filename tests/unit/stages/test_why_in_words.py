"""`recollect why` names one's own modules that changed, and calls made only what was made."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import fast_yaml
import pytest

from recollect.artifacts.sealed import manifest_path, write_json
from recollect.settings.errors import UserError
from recollect.stages import paths, records, why
from recollect.stages.plan import Plan
from recollect.stages.selection import check_targets
from recollect.stages.snakemake_records import record_path
from recollect.stages.stage import Job
from recollect.stages.table import STAGES
from recollect.stages.why import SNAPSHOTS, in_words, package

METHOD = """
from mine_of_why.helper import VALUE

Hyperparameters = train = load_policy = VALUE
"""
RUN = Job("run", "smoke", "tmaze_passive_5", "own_method", "0")


@pytest.fixture
def mine(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RECOLLECT_MINE", "mine_of_why")
    folder = workdir / "mine_of_why"
    folder.mkdir()
    (folder / "own_method.py").write_text(METHOD)
    (folder / "helper.py").write_text("VALUE = 1\n")
    return folder


@pytest.mark.slow
def test_own_modules_that_changed_are_named(mine: Path) -> None:
    (mine / "unfinished.py").write_text("def (\n")  # stops nothing that does not import it
    before = package()
    assert {"mine_of_why.own_method", "mine_of_why.helper", "recollect.radt.radt"} <= before.keys()
    write_json(SNAPSHOTS / "known.json", {"codes": ["then"], "modules": before}, kind="code")
    (mine / "helper.py").write_text("VALUE = 22\n")
    assert why._code_words(["mine_of_why.own_method"], "then") == "code changed: mine_of_why.helper"
    # Of a job by hand nothing was kept.
    assert why._code_words(["mine_of_why.own_method"], "by hand").endswith(
        "Snakemake did not run that job in this folder"
    )


def test_what_was_made_and_is_gone_is_told_from_what_was_never_made(workdir: Path) -> None:
    """By our record of a part of the job, or by Snakemake's of a file."""
    policy, _, scores = STAGES["run"].makes(RUN)
    assert in_words(RUN, "") == "never made"
    place = record_path(scores.as_posix())
    place.parent.mkdir(parents=True)
    place.write_text("{}")
    assert in_words(RUN, "") == f"missing: {scores} was made and is gone"
    write_json(records.place(RUN._replace(stage="train")), {}, kind=records.KIND)
    assert in_words(RUN, "") == f"missing: {policy} was made and is gone"


def test_a_job_that_was_interrupted_is_called_so_with_what_changed_before(workdir: Path) -> None:
    """Snakemake says of its own mark that the job is forced, which nobody did, and nothing else."""
    job = Job("figure", "demo", "helm_minigrid")
    interrupted = "interrupted: Snakemake was stopped while it ran"
    for known, said in (({}, interrupted), ({"settings": '{"figure": {}}'}, f"{interrupted}; settings changed: ")):
        for path in STAGES["figure"].makes(job):
            write_json(path, {}, kind="figure", provenance=known)
        assert str(in_words(job, "Forced execution")).startswith(said)
    manifest_path(STAGES["figure"].makes(job)[0]).write_text("no JSON")
    assert in_words(job, "Forced execution") == interrupted


@pytest.mark.parametrize(
    ("settings", "said"),
    [("no JSON", "the manifest that says which cannot be read"), ('{"figure": {}}', "settings changed: ")],
)
def test_what_changed_of_a_figure_with_stand_ins_is_said_as_far_as_its_manifest_can_be_read(
    workdir: Path, settings: str, said: str
) -> None:
    job = Job("figure", "demo", "helm_minigrid")
    for path in STAGES["figure"].makes(job):
        write_json(path, {}, kind="figure", provenance={"settings": settings})
    assert said in str(in_words(job, "Params have changed since last execution"))


def test_a_damaged_file_is_told_with_its_seed_as_all_else_is(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(why, "stale", lambda scale, figures: {})
    monkeypatch.setattr(why, "_damage", lambda job: "it is damaged" if job.stage == "run" and job.seed == "1" else None)
    said = why.why("smoke", ["amago_dark_key_door"])
    assert "run amago_dark_key_door_3 amago_ff (seed 1): corrupted: it is damaged" in said


def test_the_first_six_of_the_seeds_that_have_one_reason_are_named_in_their_order() -> None:
    reasons: dict[Job, str | None] = {RUN._replace(seed=str(seed)): "never made" for seed in (10, 9, 100, 1, 30, 2, 20)}
    (line,) = why._grouped({**reasons, RUN._replace(seed="3"): None})
    assert line == "  run tmaze_passive_5 own_method (seeds 1, 2, 9, 10, 20, 30, ...): never made"


def test_a_wrong_claim_is_said_once_and_before_snakemake_plans(workdir: Path) -> None:
    path = workdir / "config/claims/ad_distance.yaml"
    content = fast_yaml.load(path.read_text())
    content["contrasts"] = [{**content["contrasts"][0], "margin": -5}]
    path.write_text(fast_yaml.dump(content))
    target = str(paths.FIGURE_FILES["pdf"]("paper", content["figure"]))
    for asked in (lambda: why.why("paper", [content["figure"]]), lambda: check_targets([target])):
        with pytest.raises(UserError) as raised:
            asked()
        assert raised.value.what == "'contrasts.0.margin' is -5: Input should be greater than or equal to 0"
        assert raised.value.do == "correct 'contrasts.0.margin'"


def test_of_snakemakes_words_the_last_whole_lines_are_shown_without_its_banner_or_a_traceback() -> None:
    said = "SNAKEMAKE\n=====\nBuilding DAG of jobs...\nError:\n  it broke\nTraceback:\n  File x"
    assert why._last_words(said) == "Error:\n  it broke"
    assert why._last_words("\n".join(map(str, range(30)))).splitlines() == [str(line) for line in range(10, 30)]


def test_tasks_that_have_one_reason_are_named_and_so_are_four_of_more_words() -> None:
    of_task = Job("generate_task", "paper", "meta_world")
    (line,) = why._grouped({of_task._replace(task=str(task)): "never made" for task in (10, 9)})
    assert line.endswith(" (tasks 9, 10): never made")
    assert why._first("abcd") == "a, b, c, d" and why._first("abcdef") == "a, b, c, d and 2 more"


@pytest.mark.parametrize("words", ["Updated input files", "Set of input files has changed since last execution"])
def test_an_input_that_changed_is_named(workdir: Path, words: str) -> None:
    stage = STAGES["figure"]
    job = Job("figure", "demo", "helm_minigrid")
    for path in stage.makes(job):
        write_json(path, {}, kind="figure")
    first = next(iter(stage.inputs(job).values())).as_posix()
    assert in_words(job, f"{words}: {first}") == f"an input changed: {first}"


def test_of_settings_the_changed_key_is_named_and_changed_code_beside_it(workdir: Path) -> None:
    stage = STAGES["train"]
    job = RUN._replace(stage="train", method="dqn_lstm")
    today = json.loads(stage.settings_text(job))
    changed = json.loads(json.dumps(today))
    changed["made_up"] = 3
    known = {"settings": json.dumps(changed, sort_keys=True), "code": "0123456789abcdef"}
    for path in stage.makes(job):
        write_json(path, {}, kind="made", provenance=known)
    settings, code = why._params(job)
    assert settings.startswith("settings changed: ") and "made_up" in settings and code.startswith("code changed; ")


FIGURE = Job("figure", "demo", "helm_minigrid")


def test_only_what_is_a_reason_of_its_own_is_said_and_each_once(workdir: Path) -> None:
    stage = STAGES["figure"]
    for path in stage.makes(FIGURE):
        write_json(path, {}, kind="figure")  # whose manifest names neither settings nor code
    follows = "Input files updated by another job: a, b"
    assert in_words(FIGURE, follows) is None
    assert in_words(FIGURE, f"{follows}; Some other reason") == "some other reason"
    code = "Code has changed since last execution"
    assert in_words(FIGURE, f"{code}; {code}") == "the rule's own command changed"
    assert in_words(FIGURE, "Updated input files: elsewhere") == "its inputs are others than they were"
    inputs = sorted({path.as_posix() for path in stage.inputs(FIGURE).values()})
    said = str(in_words(FIGURE, f"Updated input files: {', '.join(inputs)}"))
    assert len(inputs) > 3 and sum(path in said for path in inputs) == 3
    unsaid = "settings or code changed; the manifest does not say which"
    assert in_words(FIGURE, "Params have changed since last execution") == unsaid
    gone = stage.makes(FIGURE)[-1]
    gone.unlink()  # one of several
    assert in_words(FIGURE, "Missing output files") == "never made"
    write_json(records.place(FIGURE), {}, kind=records.KIND)
    assert in_words(FIGURE, "Missing output files") == f"missing: {gone} was made and is gone"


def test_the_modules_of_a_job_are_those_that_were_kept_with_its_code(workdir: Path, monkeypatch) -> None:
    job = RUN._replace(stage="train", method="dqn_lstm")
    code = STAGES["train"].code_text(job)
    monkeypatch.setattr(why, "package", lambda: {"recollect.now": "1"})
    write_json(SNAPSHOTS / "aaa.json", {"codes": ["of others"], "modules": {"recollect.others": "0"}}, kind="code")
    (SNAPSHOTS / "damaged.json").write_text("{")
    assert why.modules_then(code) is None
    why.remember([job, job._replace(seed="1")])
    assert why.modules_then(code) == {"recollect.now": "1"}
    assert why.modules_then("of others") == {"recollect.others": "0"}
    kept = sorted(SNAPSHOTS.iterdir())
    why.remember([Job("fetch", "smoke", "minilm")])  # made by no code of ours
    assert sorted(SNAPSHOTS.iterdir()) == kept


def test_a_module_that_is_new_counts_as_changed_and_so_does_only_what_a_job_can_reach(monkeypatch) -> None:
    then = {"recollect.a": "1", "recollect.b": "1", "recollect.elsewhere": "1"}
    now = {"recollect.a": "1", "recollect.b": "2", "recollect.new": "1", "recollect.elsewhere": "2"}
    monkeypatch.setattr(why, "package", lambda: now)
    monkeypatch.setattr(why, "modules_then", lambda code: then)
    monkeypatch.setattr(why, "reachable", lambda *entries: dict.fromkeys(entries, ""))
    assert why._code_words(["recollect.a", "recollect.b", "recollect.new"], "code") == "code changed: b, new"
    assert why._code_words(["recollect.a"], "code") == "code changed: other modules are imported"


def test_the_modules_of_a_package_are_named_as_they_are_imported(tmp_path: Path) -> None:
    for name in ("__init__", "one", "inner/__init__", "inner/two"):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert why._modules_in("own", tmp_path) == ["own", "own.inner", "own.inner.two", "own.one"]
    assert why._modules_in("own", tmp_path / "one.py") == ["own"]


def planned(monkeypatch: pytest.MonkeyPatch, said: str, status: int = 0) -> list[dict[str, str]]:
    """Let Snakemake say this; returned are the variables that it is given."""
    given: list[dict[str, str]] = []

    def run(command: list[str], *, env: dict[str, str], **options: object) -> SimpleNamespace:
        assert {"--dry-run", "--nolock"} < set(command[: command.index("--")])
        given.append(env)
        return SimpleNamespace(returncode=status, stdout=said)

    monkeypatch.setattr(why, "subprocess", SimpleNamespace(run=run, PIPE=None, STDOUT=None))
    monkeypatch.setattr(why, "roots", lambda scale, figure: [Job("figure", scale, figure)])
    return given


def test_every_run_that_a_job_of_snakemakes_makes_has_its_reason(workdir: Path, monkeypatch) -> None:
    monkeypatch.setenv("SNAKEMAKE_PROFILE", "cluster")
    runs = [RUN._replace(method="dqn_lstm", seed=seed) for seed in ("0", "1")]
    outputs = ", ".join(f"{path} (update)" for run in runs for path in STAGES["run"].makes(run))
    drawn = Job("figure", "smoke", "memory_rl_passive_tmaze")
    (plain, *_), foreign = STAGES["figure"].makes(drawn), "elsewhere/file.txt"
    given = planned(
        monkeypatch,
        "Building DAG of jobs...\n"
        f"rule run:\n    input: a, b\n    output: {outputs}\n    reason: Missing output files\n\n"
        f"localrule figure:\n    input: c\n    output: {plain}, {foreign}\n    reason: Forced execution\n\n",
    )
    found = why.stale("smoke", [drawn.env])
    assert found == {**dict.fromkeys(runs, "Missing output files"), drawn: "Forced execution"}
    assert [[name for name in env if name.startswith("SNAKEMAKE_")] for env in given] == [[]]
    assert "PATH" in given[0]


def test_what_snakemake_refuses_is_refused_in_our_own_words_where_there_are_such(workdir: Path, monkeypatch) -> None:
    ours = "Building DAG of jobs...\nerror: no such seed\n  where: config/a.yaml\n  to do: name another\n"
    planned(monkeypatch, ours, 1)
    with pytest.raises(UserError) as refused:
        why.stale("demo", [FIGURE.env])
    error = refused.value
    assert (error.what, error.where, error.do) == ("no such seed", "config/a.yaml", "name another")
    planned(monkeypatch, "Building DAG of jobs...\nSyntaxError in line 3", 1)
    with pytest.raises(UserError, match=r"Snakemake cannot plan .*helm_minigrid") as refused:
        why.stale("demo", [FIGURE.env])
    assert refused.value.where.endswith("SyntaxError in line 3")


def test_of_each_figure_it_is_said_what_would_run_what_follows_and_what_is_corrupted(monkeypatch) -> None:
    one, two = (FIGURE._replace(env=name) for name in ("one", "two"))
    first, second, other = (RUN._replace(seed=seed) for seed in ("0", "1", "2"))
    figures = {"one": (first, second, one), "two": (other, two)}
    running = {first: "Missing output files", one: "Input files updated by another job"}
    damaged: dict[Job, str] = {}
    asked: set[Job] = set()
    monkeypatch.setattr(why, "plan", lambda scale, names: Plan(dict.fromkeys(sum(figures.values(), ()), ()), figures))
    monkeypatch.setattr(why, "stale", lambda scale, names: running)
    monkeypatch.setattr(why, "_damage", lambda job: asked.add(job) or damaged.get(job))
    monkeypatch.setattr(why, "in_words", lambda job, reason: "never made" if job == first else None)
    assert why.why("smoke", figures).splitlines() == [
        "one (smoke): 2 of 3 jobs would run",
        "  run tmaze_passive_5 own_method (seed 0): never made",
        "  and 1 that read what those make: 1 figure",
        "two (smoke): up to date",
    ]
    assert asked == {second, other, two}  # what would run is made anew in any case
    running.clear()
    damaged[second] = "it is damaged"
    assert why.why("smoke", figures).splitlines() == [
        "one (smoke): nothing would run",
        "  run tmaze_passive_5 own_method (seed 1): corrupted: it is damaged",
        "two (smoke): up to date",
        "Delete what is corrupted; Snakemake then makes it anew.",
    ]


def test_a_file_that_its_manifest_disowns_is_damaged_and_one_that_is_not_there_is_not(workdir: Path) -> None:
    assert why._damage(FIGURE) is None
    for path in STAGES["figure"].makes(FIGURE):
        write_json(path, {}, kind="figure")
    assert why._damage(FIGURE) is None
    last = STAGES["figure"].makes(FIGURE)[-1]
    last.write_text("[]")
    assert str(why._damage(FIGURE)).startswith(f"{last}: ")
