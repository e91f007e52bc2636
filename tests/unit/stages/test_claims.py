"""A claim's verdict comes from the scores of its runs, by a rule, and says so where there are none."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import fast_yaml
import numpy as np
import pytest
from made_results import ROOM, SCALE, configure, described
from typer.testing import CliRunner

from recollect.artifacts.scores import scores_frame
from recollect.artifacts.sealed import read_json, write_table
from recollect.artifacts.sealed import read_table as read
from recollect.cli import app, main
from recollect.figures.reference import groups
from recollect.settings.claims import PAPERS, ArmSettings, claims_of, judged_elsewhere
from recollect.settings.errors import UserError
from recollect.settings.resolve import environment_settings, figure_settings, names
from recollect.stages import paths
from recollect.stages.check import check
from recollect.stages.claims import claims
from recollect.stages.figure import STAGE, figure, is_drawn, judged_claims
from recollect.stages.provenance import claims_text
from recollect.stages.stage import Job

FIGURE = "claimed"
CLAIM = {
    "paper": "RA-DT",
    "short": "AD above DT",
    "statement": "AD ends above DT.",
    "source": "figure 3",
    "figure": FIGURE,
    "contrasts": [{"says": "AD minus DT", "this": {"env": ROOM, "method": "ad"}, "that": {"method": "dt"}}],
    "scales": {SCALE: {}},
}


@pytest.fixture
def said(workdir: Path) -> dict[str, Any]:
    """One claim about one figure of AD and DT, five seeds."""
    configure(FIGURE, [ROOM], ["ad", "dt"], range(5), kind="in_context_curve")
    for path in Path("config/claims").glob("*.yaml"):
        path.unlink()
    return json.loads(json.dumps(CLAIM))


def scored(method: str, low: float, high: float, seeds: range = range(5), tasks: int = 3, episodes: int = 10) -> None:
    """Returns that rise from `low` to `high` over the episodes, with a little noise; and of an earlier evaluation, far off."""
    for seed in seeds:
        rng = np.random.default_rng([seed, *method.encode()])
        value_TE = np.linspace(low, high, episodes) + rng.normal(0, 0.1, (tasks, episodes))
        task_T1, episode_E = np.arange(tasks)[:, None], np.arange(episodes)
        frame = scores_frame(
            env=ROOM, method=method, seed=seed, step=np.array([5, 10])[:, None, None], split="eval", task=task_T1,
            episode=episode_E, metric="return", value=np.stack([-100 * value_TE, value_TE]),
        )  # fmt: skip
        made = described("evaluate", SCALE, ROOM, method)
        write_table(paths.scores(SCALE, ROOM, method, seed), frame, kind="scores", provenance=made)


def judged(claim: dict[str, Any], **differs: Any) -> dict[str, Any]:
    """The only contrast of a claim, with the claim's own verdict under `claim`."""
    path = Path("config/claims/one.yaml")
    path.parent.mkdir(exist_ok=True)
    path.write_text(fast_yaml.dump({**claim, **differs}))
    claims(SCALE, [FIGURE])
    (found,) = read_json(paths.claims(SCALE), kind="claims")["claims"]
    (contrast,) = found["contrasts"]
    assert found["verdict"] == contrast["verdict"]
    return dict(contrast)


def contrast(**words: Any) -> list[dict[str, Any]]:
    return [{**CLAIM["contrasts"][0], **words}]  # type: ignore[index]


def test_verdicts_of_scores_that_are_apart_and_the_other_way_round(said: dict[str, Any]) -> None:
    scored("ad", 5, 5)
    scored("dt", 3, 3)
    found = judged(said)
    assert found["verdict"] == "holds" and found["seeds"] == 5 and found["tasks"] == 3
    assert found["low"] < found["value"] < found["high"] and found["value"] == pytest.approx(2, abs=0.2)
    assert judged(said, contrasts=contrast(margin=4))["verdict"] == "contradicted"
    assert judged(said, contrasts=contrast(wanted="below"))["verdict"] == "contradicted"
    assert judged(said, contrasts=contrast(wanted="equal", margin=3))["verdict"] == "holds"
    assert judged(said, contrasts=contrast(that=5.0, wanted="equal", margin=0.5))["verdict"] == "holds"


def test_a_rise_within_an_evaluation_is_a_contrast_of_its_first_and_last_episodes(said: dict[str, Any]) -> None:
    scored("ad", 0, 9)
    scored("dt", 0, 0)
    rise = [{"says": "last minus first fifth", "this": {"env": ROOM, "method": "ad", "episodes": [0.8, 1]},
             "that": {"episodes": [0, 0.2]}}]  # fmt: skip
    assert judged(said, contrasts=rise)["value"] == pytest.approx(8, abs=0.2)


def learned(step: np.ndarray, value: np.ndarray, env: str = ROOM) -> None:
    """A learning curve of AD with each seed."""
    for seed in range(5):
        frame = scores_frame(env=env, method="ad", seed=seed, step=step, split="learning", task=0, episode=0,
                             metric="return", value=value)  # fmt: skip
        made = described("evaluate", SCALE, env, "ad")
        write_table(paths.scores(SCALE, env, "ad", seed), frame, kind="scores", provenance=made)


@pytest.mark.parametrize(("ends", "value"), [({}, 1), (2000, 0), ({ROOM: 2000}, 0), ({"another": 2000}, 1)])
def test_a_curve_is_judged_up_to_the_step_at_which_its_figure_ends(said: dict[str, Any], ends: Any, value: int) -> None:
    configure(FIGURE, [ROOM], ["ad", "dt"], range(5), kind="curve_panels", options={"ends": ends})
    late = np.arange(100, 4001, 100)
    learned(late, (late > 2500).astype(float))
    final = {"env": ROOM, "method": "ad", "split": "learning", "episodes": [0.95, 1]}
    assert judged(said, contrasts=contrast(this=final, that=0.0))["value"] == value
    before = claims_text(SCALE, FIGURE)
    configure(FIGURE, [ROOM], ["ad", "dt"], range(5), kind="curve_panels", options={"ends": 1000})
    assert claims_text(SCALE, FIGURE) != before


def test_of_two_environments_each_curve_is_judged_up_to_its_own_end(said: dict[str, Any]) -> None:
    ends = {ROOM: 2000, "key_door_10x10": 4000}
    configure(FIGURE, list(ends), ["ad"], range(5), kind="curve_panels", options={"ends": ends})
    late = np.arange(100, 4001, 100)
    for env in ends:
        learned(late, (late > 2500).astype(float), env)
    final = {"env": ROOM, "method": "ad", "split": "learning", "episodes": [0.95, 1]}
    assert judged(said, contrasts=contrast(this=final, that={"env": "key_door_10x10"}))["value"] == -1


def test_a_curve_is_judged_by_the_points_that_its_figure_draws(said: dict[str, Any]) -> None:
    """The mean over the whole curve, in which each point counts the same."""
    learned(100 * np.arange(11), np.linspace(0, 1, 11) ** 4)
    whole = {"env": ROOM, "method": "ad", "split": "learning", "episodes": [0, 1]}
    values, texts = [], []
    for points in (300, 3):
        options = {"points": points, "window": 1}
        configure(FIGURE, [ROOM], ["ad", "dt"], range(5), kind="curve_panels", options=options)
        values.append(judged(said, contrasts=contrast(this=whole, that=0.0))["value"])
        texts.append(claims_text(SCALE, FIGURE))
    assert values[1] == pytest.approx((0 + 0.5**4 + 1) / 3) != pytest.approx(values[0]) and texts[0] != texts[1]
    # A window of the claim's own counts before that of its figure: the last point is then the mean of two evaluations.
    last = contrast(this={**whole, "episodes": [0.9, 1]}, that=0.0)
    configure(FIGURE, [ROOM], ["ad", "dt"], range(5), kind="curve_panels", options={"points": 11, "window": 1})
    assert judged(said, contrasts=last)["value"] == 1
    assert judged(said, contrasts=last, window=2)["value"] == pytest.approx((0.9**4 + 1) / 2)


def test_what_was_not_run_is_said_with_a_run_that_is_missing(said: dict[str, Any]) -> None:
    scored("ad", 5, 5)
    found = judged(said)
    assert found["verdict"] == "not run" and "5 runs are missing" in found["why"] and "/dt/seed_0/" in found["why"]


def test_a_run_that_both_sides_read_is_missing_once_and_no_source_leaves_no_gap(said: dict[str, Any]) -> None:
    rise = contrast(this={"env": ROOM, "method": "ad", "episodes": [0.5, 1]}, that={"episodes": [0, 0.5]})
    said = {key: value for key, value in said.items() if key != "source"}
    assert "5 runs are missing" in judged({**said, "contrasts": rise})["why"]
    assert "AD ends above DT. (one)" in asked()


def test_scores_close_to_each_other_decide_nothing(said: dict[str, Any]) -> None:
    scored("ad", 5, 5)
    scored("dt", 5, 5)
    found = judged(said)
    assert found["verdict"] == "undecided" and "across" in found["why"]
    with pytest.raises(UserError, match="1 of 1 claims do not hold: one"):
        asked("--strict")


def test_a_claim_holds_where_as_many_contrasts_hold_as_it_needs(said: dict[str, Any]) -> None:
    scored("ad", 5, 5)
    scored("dt", 3, 3)
    two = [*contrast(), *contrast(wanted="below")]
    for needed, verdict in ((1, "holds"), (2, "contradicted"), (None, "contradicted")):
        Path("config/claims/one.yaml").write_text(fast_yaml.dump({**said, "contrasts": two, "needed": needed}))
        assert claims(SCALE, [FIGURE])[0]["verdict"] == verdict


def test_a_verdict_is_the_same_each_time(said: dict[str, Any]) -> None:
    scored("ad", 5, 5)
    scored("dt", 3, 3)
    first = judged(said)
    assert judged(said) == first


WORDS = ["claims", "--scale", SCALE, "--figure", FIGURE]


def asked(*words: str) -> str:
    """What `recollect claims` prints."""
    done = CliRunner().invoke(app, [*WORDS, *words], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_strict_fails_unless_all_hold_and_a_table_is_markdown(
    said: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scored("ad", 5, 5)
    scored("dt", 3, 3)
    assert judged(said)["verdict"] == "holds"
    assert "| ✓ holds | RA-DT: AD ends above DT. (figure 3) | AD minus DT | 1.99" in asked("--strict", "--table")
    scored("dt", 9, 9)
    assert "contradicted" in asked()
    with pytest.raises(UserError, match="1 of 1 claims do not hold: one"):
        asked("--strict")
    # The table stands where it can be put into a file, the message beside it.
    monkeypatch.setattr("sys.argv", ["recollect", *WORDS, "--strict", "--table"])
    with pytest.raises(SystemExit, match="2"):
        main()
    told = capsys.readouterr()
    assert "| ✗ contradicted |" in told.out and "AD minus DT" not in told.err and "do not hold" in told.err
    paths.scores(SCALE, ROOM, "dt", 0).unlink()
    with pytest.raises(UserError, match="1 of 1 claims lack runs: one") as lacking:
        asked("--strict")
    assert f"`snakemake --config figures={FIGURE} -- results/{SCALE}/claims.json`" in lacking.value.do


def test_a_terminal_gets_the_columns_below_each_other(said: dict[str, Any]) -> None:
    scored("ad", 5, 5)
    scored("dt", 3, 3)
    Path("config/claims/one.yaml").parent.mkdir(exist_ok=True)
    two = contrast() + contrast(says="AD minus four, a number", that=4.0)
    Path("config/claims/one.yaml").write_text(fast_yaml.dump({**said, "contrasts": two}))
    lines = asked().splitlines()
    assert lines[2] == "✓ holds: RA-DT, AD ends above DT. (figure 3; one)" and lines[-1] == "1 holds"
    assert (
        len({line.index(cell) for line, cell in zip(lines[:1] + lines[3:5], ("wanted", "> 0", "> 0"), strict=True)})
        == 1
    )


def test_where_no_claim_is_judged_that_is_said_with_the_scales_at_which_it_is(said: dict[str, Any]) -> None:
    path = Path("config/claims/one.yaml")
    path.parent.mkdir(exist_ok=True)
    assert asked() == f"no claim about these figures is judged at scale {SCALE}\n"
    path.write_text(fast_yaml.dump({**said, "scales": {"smoke": {}}}))
    assert f"{path}: judged at " in asked() and "smoke" in asked() and "| claim |" in asked("--table")
    with pytest.raises(UserError, match=f"no claim is judged\n.*at scale {SCALE}"):
        asked("--strict")


def test_a_damaged_score_table_is_made_anew_by_snakemake(said: dict[str, Any]) -> None:
    scored("ad", 5, 5)
    scored("dt", 3, 3)
    judged(said)
    path = paths.scores(SCALE, ROOM, "dt", 0)
    path.write_bytes(path.read_bytes()[:-1])
    for command in (asked, lambda: figure(SCALE, FIGURE)):
        with pytest.raises(UserError, match=f"delete it and then make it with `snakemake {path}`"):
            command()


@pytest.mark.slow
def test_asking_about_claims_leaves_what_the_workflow_wrote_alone(said: dict[str, Any]) -> None:
    """The report, DVC's metrics and `recollect finished` read it: all claims of the figures that were asked for there."""
    scored("ad", 5, 5)
    scored("dt", 3, 3)
    judged(said)
    written = paths.claims(SCALE).read_bytes()
    scored("dt", 9, 9)
    text = asked()
    assert "✗ contradicted" in text and paths.claims(SCALE).read_bytes() == written
    assert asked("--write") == text
    (found,) = read_json(paths.claims(SCALE), kind="claims")["claims"]
    assert found["verdict"] == "contradicted"


def test_a_claim_of_a_run_that_its_figure_has_not_is_found_by_the_check(said: dict[str, Any]) -> None:
    for scale in set(names("scales")) - {SCALE, "paper"}:  # so that the check has less to read
        Path(f"config/scales/{scale}.yaml").unlink()
    path = Path("config/claims/one.yaml")
    path.write_text(fast_yaml.dump({**said, "contrasts": contrast(that={"method": "radtt"})}))
    with pytest.raises(UserError, match="has no radtt") as refused:
        check()
    assert str(path) in refused.value.where
    path.write_text(fast_yaml.dump({**said, "contrasts": contrast(wanted="equal")}))
    with pytest.raises(UserError, match="margin above zero"):
        claims_of(SCALE)
    path.write_text(fast_yaml.dump({**said, "scales": {"smok": {}}}))
    with pytest.raises(UserError, match="no scale 'smok'"):
        claims_of("paper")
    for wrong in ([SCALE], SCALE, {SCALE: 5}):
        path.write_text(fast_yaml.dump({**said, "scales": wrong}))
        with pytest.raises(UserError, match="must map names to settings"):
            claims_of(SCALE)
    path.write_text(fast_yaml.dump({**said, "scales": {SCALE: None}}))
    assert [claim.name for claim in claims_of(SCALE)] == ["one"]  # nothing differs there
    path.write_text(
        fast_yaml.dump({**said, "contrasts": contrast(this={"env": ROOM, "method": "ad", "episodes": [0.5, 0.2]})})
    )
    with pytest.raises(UserError, match="two shares that rise"):
        claims_of(SCALE)
    path.write_text(fast_yaml.dump({**said, "contrasts": contrast(this={"env": ROOM})}))
    with pytest.raises(UserError, match="needs `env` and `method`"):
        claims_of(SCALE)
    path.write_text(fast_yaml.dump({**said, "needed": 2}))
    with pytest.raises(UserError, match="there are 1 contrasts"):
        claims_of(SCALE)


def test_a_figure_that_there_is_not_is_refused_and_the_nearest_named(said: dict[str, Any]) -> None:
    with pytest.raises(UserError) as refused:
        CliRunner().invoke(app, ["claims", "--scale", SCALE, "--figure", "claimd"], catch_exceptions=False)
    assert FIGURE in str(refused.value)
    assert not paths.claims(SCALE).exists()


def test_scores_that_cannot_be_paired_are_refused_by_name(said: dict[str, Any]) -> None:
    scored("ad", 5, 5)
    scored("dt", 3, 3)
    scored("dt", 3, 3, seeds=range(1), tasks=2)
    with pytest.raises(UserError, match="scores of different tasks") as refused:
        judged(said)
    assert "AD minus DT" in refused.value.where
    with pytest.raises(UserError, match="no success of the split eval"):
        judged(said, contrasts=contrast(metric="success"))
    few = {"env": ROOM, "method": "ad", "episodes": [0.01, 0.02]}
    with pytest.raises(UserError, match=r"no episode of 10 lies from 0\.01 to 0\.02"):
        judged(said, contrasts=contrast(this=few))


def test_each_score_file_is_read_once(said: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    scored("ad", 5, 5)
    scored("dt", 3, 3)
    opened = []
    monkeypatch.setattr(
        "recollect.artifacts.sealed.read_table", lambda path, **how: opened.append(path) or read(path, **how)
    )
    path = Path("config/claims/one.yaml")
    path.parent.mkdir(exist_ok=True)
    path.write_text(fast_yaml.dump({**said, "contrasts": 3 * contrast()}))
    claims(SCALE, [FIGURE])
    assert len(opened) == len(set(opened)) == 10


def test_a_figure_judges_its_claims_by_its_own_scores_and_is_stale_when_one_changes(said: dict[str, Any]) -> None:
    scored("ad", 5, 5)
    scored("dt", 3, 3)
    judged(said)
    paths.claims(SCALE).unlink()
    figure(SCALE, FIGURE)
    known = read_json(paths.figure(SCALE, FIGURE, ".json"))
    assert "Claims: AD above DT: holds." in known["caption"]
    assert {Path(item["path"]).parts[4] for item in known["inputs"]} == {"ad", "dt"}
    job = Job("figure", SCALE, FIGURE)
    before = STAGE.settings_text(job), STAGE.code_text(job)
    assert is_drawn(SCALE, FIGURE)
    Path("config/claims/one.yaml").write_text(fast_yaml.dump({**said, "contrasts": contrast(margin=4)}))
    assert STAGE.settings_text(job) != before[0] and not is_drawn(SCALE, FIGURE)
    # Without claims, as at scale smoke, nothing of them is in a figure, nor in what it depends on.
    Path("config/claims/one.yaml").write_text(fast_yaml.dump({**said, "scales": {}}))
    assert "claims" not in json.loads(STAGE.settings_text(job)) and STAGE.code_text(job) != before[1]
    assert judged_claims(SCALE, FIGURE) == ()


def test_claims_stand_paper_by_paper_and_headline_ones_first(said: dict[str, Any]) -> None:
    kinds = {"a": ("HELM", False), "b": ("HELM", True), "c": ("RA-DT", False), "d": ("Memory-RL", True)}
    for name, (paper, headline) in kinds.items():
        Path(f"config/claims/{name}.yaml").write_text(fast_yaml.dump({**said, "paper": paper, "headline": headline}))
    assert [claim.name for claim in claims_of(SCALE, (FIGURE,))] == ["c", "d", "b", "a"]


def test_a_scale_that_draws_less_than_the_one_it_extends_has_not_the_claims_of_the_rest(said: dict[str, Any]) -> None:
    for name, that in (("one", 3.0), ("two", {"method": "dt"})):
        Path(f"config/claims/{name}.yaml").write_text(fast_yaml.dump({**said, "contrasts": contrast(that=that)}))
    Path("config/scales/less.yaml").write_text(
        fast_yaml.dump({"extends": SCALE, "description": "Less.", "figures": {FIGURE: {"methods": ["ad"]}}})
    )
    assert [claim.name for claim in claims_of(SCALE, (FIGURE,))] == ["one", "two"]
    assert [claim.name for claim in claims_of("less", (FIGURE,))] == ["one"]
    elsewhere = judged_elsewhere("less", (FIGURE,))  # so that none vanishes without a word
    assert list(elsewhere) == ["two"] and SCALE in elsewhere["two"] and "less" not in elsewhere["two"]
    Path("config/claims/two.yaml").write_text(fast_yaml.dump({**said, "contrasts": contrast(that={"method": "dtt"})}))
    with pytest.raises(UserError, match="has no dtt"):
        claims_of("less", (FIGURE,))


def test_our_claims_name_their_paper_and_where_it_says_so() -> None:
    folder = Path(__file__).resolve().parents[3] / "config/claims"
    said = [fast_yaml.load(path.read_text()) for path in sorted(folder.glob("*.yaml"))]
    assert said and all(claim["paper"] in PAPERS and claim["source"] for claim in said)


def test_what_our_claims_say_of_five_or_ten_episodes_is_what_they_compare() -> None:
    counts = {"five": 5, "ten": 10}
    found = 0
    for scale in ("demo", "hour_published_source", "paper"):
        contrasts = [(one, *one.arms) for claim in claims_of(scale) for one in claim.contrasts]
        for one, this, *that in contrasts:
            last, first = (re.search(rf"{end} (five|ten)", one.says) for end in ("last", "minus first"))
            if last is None:
                continue
            episodes = environment_settings(scale, this.env).evaluation.episodes
            compared = [[round(share * episodes) for share in arm.episodes] for arm in (this, *that)]
            ends = [episodes - counts[last[1]], episodes]
            assert compared == [ends, [0, counts[first[1]]] if first else ends], (scale, one.says)
            found += 1
    assert found > 20


def test_our_contrasts_differ_and_are_at_the_lengths_and_of_the_part_of_a_curve_that_their_figure_draws() -> None:
    for scale in ("demo", "middle", "paper"):
        for claim in claims_of(scale):
            numbers = [None if isinstance(one.that, ArmSettings) else one.that for one in claim.contrasts]
            compared = {(*one.arms, that, one.metric) for one, that in zip(claim.contrasts, numbers, strict=True)}
            assert len(compared) == len(claim.contrasts), claim.name
            few = claim.needed is not None and 2 * claim.needed <= len(claim.contrasts)
            assert not few or "at some" in claim.statement, claim.name
            if figure_settings(scale, claim.figure).kind != "length_aggregation":
                continue
            for said, arm in [(one.says, arm) for one in claim.contrasts for arm in one.arms]:
                assert arm.env.rpartition("_")[2] in re.findall(r"\d+", said.replace(",", "")), (claim.name, said)
                assert arm.split != "learning" or arm.episodes == (0.95, 1), (claim.name, said)


def test_the_published_numbers_of_our_claims_are_those_that_figures_draw_or_their_differences() -> None:
    drawn = [(panel, curves) for group in groups().values() for panel, curves in group.curves.items()]
    every = [(*one.x, *one.y, one.last_five) for _, curves in drawn for one in curves.values()]
    found = 0
    for claim in claims_of("paper"):
        for place, number in enumerate(claim.published):
            if "config/figures/references/" not in number.read:
                continue
            ends = every
            if " minus " in number.says:
                this, that = claim.contrasts[place].arms
                here = [curves for panel, curves in drawn if panel.split("/")[0] == this.env]
                pairs = [(one[this.method], one[that.method]) for one in here if {this.method, that.method} <= set(one)]
                ends = [(one.y[-1] - two.y[-1], (one.last_five or 0) - (two.last_five or 0)) for one, two in pairs]
            assert any(value == pytest.approx(number.value) for value in itertools.chain(*ends)), (
                claim.name,
                number.says,
            )
            found += 1
    assert found > 80


def test_a_claim_of_ones_own_that_names_no_scales_is_judged_where_its_figure_is_drawn(
    said: dict[str, Any], workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECOLLECT_MINE", "own_claims")
    folder = workdir / "own_claims/config/claims"
    folder.mkdir(parents=True)
    own = {key: said[key] for key in ("short", "statement", "figure", "contrasts")}
    (folder / "own.yaml").write_text(fast_yaml.dump({**own, "scales": None}))
    other = said | {"paper": "A paper of mine", "short": "other"}
    (folder / "other.yaml").write_text(fast_yaml.dump(other))
    assert [(claim.name, claim.paper) for claim in claims_of(SCALE)] == [
        ("other", "A paper of mine"),
        ("own", "Your own"),
    ]
    assert [claim.name for claim in claims_of("paper")] == ["other", "own"] and [
        c.name for c in claims_of("smoke")
    ] == ["own"]

    smoke = Path("config/scales/smoke.yaml")
    smoke.write_text(smoke.read_text().replace("\nfigures:\n", f"\nfigures:\n  {FIGURE}: {{methods: [ad]}}\n", 1))
    assert claims_of("smoke") == [] and claims_of(SCALE)
    assert SCALE in judged_elsewhere("smoke", (FIGURE,))["own"]

    own["contrasts"][0]["that"] = {"method": "dr"}
    (folder / "own.yaml").write_text(fast_yaml.dump(own))
    with pytest.raises(UserError, match=r"has no dr\n"):
        claims_of(SCALE)
