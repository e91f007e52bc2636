"""Promises of the stages: the rules name exactly what the commands read, and wrong names are caught early."""

from __future__ import annotations

import importlib
import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fast_yaml
import pytest
from typer.main import get_command

from recollect.artifacts.fingerprint import reachable
from recollect.cli import app
from recollect.settings.errors import UserError
from recollect.settings.layers import method_layers
from recollect.settings.resolve import names, scale_settings
from recollect.settings.still import held_still
from recollect.stages import inputs, packs, paths, rules
from recollect.stages.figure import spec_of
from recollect.stages.forecast import forecast
from recollect.stages.plan import embedders, maker, plan
from recollect.stages.selection import (
    JobResources,
    check_targets,
    chosen_figures,
    default_config,
    default_selection,
    selection,
)
from recollect.stages.stage import Job, Stage
from recollect.stages.table import STAGES

ROOM = "dark_room_10x10"


def test_every_stage_is_one_module_one_rule_and_one_command(root: Path) -> None:
    rules = "\n".join(path.read_text() for path in (root / "rules").glob("*.smk"))
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for name, stage in STAGES.items():
        assert stage.run.__name__ == name and stage.run.__module__.startswith("recollect.stages.")
        assert f'rule_of("{name}"' in rules or name == "train"  # which is a part of `run`
        assert (stage.command or name).replace("_", "-").split()[0] in commands


def test_each_rule_takes_all_that_its_stage_says_and_nothing_of_another(root: Path) -> None:
    """What a rule leaves out reruns nothing, waits for nothing, or asks for nothing, without a word."""
    seen = set()
    for text in (path.read_text() for path in (root / "rules").glob("*.smk")):
        stages_of = dict(re.findall(r'(\w+) = rule_of\(\s*"(\w+)"', text))
        for variable, name in stages_of.items():
            (block,) = [part for part in re.split(r"^ *rule\b", text, flags=re.M) if f"{variable}.command" in part]
            stage, taken = STAGES[name], set(re.findall(rf"\b{variable}\.(\w+)", block))
            assert [other for other in stages_of if re.search(rf"\b{other}\.", block)] == [variable]
            wanted = {"log", "conda", "resources", "params", "command", *(["threads"] if not stage.local else [])}
            wanted |= {"reads"} if stage.reads is not Stage.reads else set()
            wanted |= {"priority"} if stage.priority else set()
            assert taken - {"outputs", "writes"} == wanted and taken & {"outputs", "writes"}, name
            # Snakemake deletes before a job what is not marked so, and with it what would be kept.
            marked = set(rules.StageRule(name).outputs(lambda path: "marked").values()) == {"marked"}
            assert ("outputs" in taken and marked) or not stage.keeps, name
            seen.add(name)
    assert seen == STAGES.keys() - {"train"}  # which is a part of `run`


def test_a_stage_says_nothing_that_imports_torch(root: Path) -> None:
    """Snakemake parses with it."""
    code = "import sys; from recollect.stages import plan, rules, selection, why, worlds; import recollect.cli"
    code += "; assert not {'torch', 'pandas', 'matplotlib'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_template_of_a_path_gives_the_path_and_the_names_in_it() -> None:
    names_of = {"scale": "demo", "env": "room", "method": "radt.context=25,x=[1,2]", "seed": "3", "figure": "one"}
    names_of |= {"model": "clip-rn50.1", "dataset": "d", "vocabulary": "v", "checkpoint": "best", "task": "7"}
    places = [place for place in vars(paths).values() if isinstance(place, paths.Place)]
    assert len(places) > 20
    for place in places:
        path = place.of(names_of)
        assert place.match(path) == {name: names_of[name] for name in place.names}
        assert path == place(*(names_of[name] for name in place.names))
    assert paths.policy.match("results/demo/runs/room/a/b/seed_3/policy.safetensors") is None


MEMORY_FILES = ("embeddings.safetensors", "memory.faiss", "memory_rows.safetensors")
EMBEDDER_RUN = "results/paper/runs/dark_room_10x10/dt.embedder/seed_42/policy.safetensors"


@pytest.mark.parametrize(
    ("scale", "method", "memory", "models"),
    [
        ("smoke", "radt", MEMORY_FILES, ["results/smoke/runs/dark_room_10x10/dt/seed_0/policy.safetensors"]),
        ("smoke", "radt_agnostic", MEMORY_FILES, []),
        ("smoke", "dt", (), []),
        ("paper", "radt", MEMORY_FILES, [EMBEDDER_RUN]),
        ("paper", "radt_agnostic", MEMORY_FILES, ["data/models/bert-base-uncased/model.safetensors"]),
        ("paper", "ad", (), []),
        ("paper", "dqn_lstm", (), []),
    ],
)
def test_rules_declare_what_training_opens(
    workdir: Path, scale: str, method: str, memory: tuple[str, ...], models: list[str]
) -> None:
    env = "tmaze_passive_10" if method.startswith("dqn") else ROOM
    data = f"data/{scale}/{ROOM}"
    histories = [] if method.startswith("dqn") else [f"{data}/histories.safetensors"]
    declared = STAGES["run"].inputs(Job("run", scale, env, method, "0"))
    opened = [*histories, *(f"{data}/{method}/{name}" for name in memory), *models]
    assert [path.as_posix() for path in declared.values()] == opened
    assert rules.StageRule("run").reads({"scale": scale, "env": env, "method": method, "seed": "0"}) == [
        path.as_posix() for path in declared.values()
    ]


@pytest.mark.parametrize("scale", ["smoke", "paper"])
def test_rules_declare_what_embedding_opens(workdir: Path, scale: str) -> None:
    for method in ("radt", "radt_agnostic"):
        declared = dict(STAGES["embed"].inputs(Job("embed", scale, ROOM, method)))
        assert declared.pop("histories") == paths.histories(scale, ROOM)
        assert declared == inputs.embedder_inputs(scale, ROOM, method) or scale == "smoke"


def test_domain_specific_memory_waits_for_its_embedders_run(workdir: Path) -> None:
    assert inputs.embed_inputs("smoke", ROOM, "radt")["embedder_policy"] == paths.policy("smoke", ROOM, "dt", 0)
    run = STAGES["run"].priority
    assert callable(run) and run("smoke", ROOM, "dt", "0") > run("smoke", ROOM, "radt", "0")
    assert "language_model" in inputs.embed_inputs("paper", ROOM, "radt_agnostic")
    assert "language_model" in inputs.playing_inputs("paper", ROOM, "radt_agnostic")


def test_a_run_of_two_figures_is_named_once(workdir: Path) -> None:
    figure = "radt_dark_room_10x10"
    once = plan("smoke", [figure]).files("run", "scores")
    assert plan("smoke", [figure, figure]).files("run", "scores") == once
    assert len(once) == len(set(once)) == len(inputs.figure_runs("smoke", figure))


def test_a_figure_of_traces_reads_traces_and_its_runs_have_pages(workdir: Path) -> None:
    run = (ROOM, "radt", 0)
    traces, scores = (inputs.figure_inputs("smoke", name) for name in ("radt_attention", "radt_dark_room_10x10"))
    assert next(iter(traces.values())) == paths.trace("smoke", *run)
    assert next(iter(scores.values())) == paths.scores("smoke", *run)
    made = plan("smoke", ["radt_attention"])
    assert paths.trace("smoke", *run) in made.files("inspect") and paths.page("smoke", *run) in made.files("page")
    assert paths.policy("smoke", *run) in made.files("run")
    assert plan("smoke", ["radt_dark_room_10x10"]).files("page") == []
    both = embedders("smoke", ["radt_visits", "radt_dark_room_10x10"])
    assert {paths.trace("smoke", ROOM, "dt", 0), paths.scores("smoke", ROOM, "dt", 0)} <= set(both)


def test_the_demo_makes_a_page_of_a_run_of_each_line_of_research(workdir: Path) -> None:
    runs = [("dark_room_7x7", "radt"), ("amago_dark_key_door_2", "amago_transformer"), ("mini_grid_MemoryS5", "shelm")]
    runs.append(("tmaze_carried_10", "dqn_gpt"))
    made = plan("demo", default_selection().figures_at()).files("page", "html")
    assert sorted(made) == sorted(paths.page("demo", *run, 0) for run in runs)
    config = workdir / "config/scales/demo.yaml"
    asked = config.read_text()
    for wrong, what in (
        ("{dpt: dark_room_7x7}", "'dpt' is none of .* methods"),
        ("{radt: maze}", "'maze' is none of .* env"),
    ):
        config.write_text(asked.replace("pages: {radt: dark_room_7x7}", f"pages: {wrong}"))
        with pytest.raises(UserError, match=what):
            plan("demo", ["radt_dark_room_10x10"])


def test_a_variant_that_differs_in_acting_is_scored_by_a_job_of_its_own(workdir: Path) -> None:
    run = ("smoke", ROOM, "radt.every_25")
    assert maker(paths.scores(*run, 0), "smoke") == Job("evaluate", *run, "0")
    assert maker(paths.policy(*run, 0), "smoke") is None
    assert maker(paths.scores("smoke", ROOM, "radt", 0), "smoke") == Job("run", "smoke", ROOM, "radt", "0")
    trained, untrained = (re.compile(rf"results/(?P<scale>{p})/runs/") for p in (packs.trained(), packs.untrained()))
    for method, plays in (("radt.every_25", True), ("radt.every_25,network.layers=2", False), ("radt", False)):
        path = paths.scores("smoke", ROOM, method, 0).as_posix()
        assert (trained.match(path) is None) == (untrained.match(path) is not None) == plays


def test_every_variant_that_is_not_trained_is_found_wherever_that_is_said(workdir: Path) -> None:
    path, env = workdir / "config/methods/dt.yaml", names("environments")[0]
    said = fast_yaml.load(path.read_text())
    said.setdefault("variants", {}).update(
        acts={"evaluation_only": True, "hyperparameters": {"selection": "greedy"}},
        acts_too={"base": "acts"},
        learns={"base": "acts", "evaluation_only": False},
        in_one={"environments": {env: {"evaluation_only": True}}},
    )
    path.write_text(fast_yaml.dump(said))
    with held_still():
        for scale in names("scales"):
            listed = {
                f"{method}.{variant}"
                for method in names("methods")
                for layer in method_layers(scale, env, method).own
                for variant in layer.content.get("variants") or {}
            }
            found = set(inputs.untrained_methods(scale))
            assert found == {method for method in listed if not inputs.is_trained(scale, env, method)}
            assert {"dt.acts", "dt.acts_too", "dt.in_one"} <= found and "dt.learns" in listed - found


def test_a_scale_of_ones_own_asks_for_what_it_says_and_not_for_what_it_is_called(workdir: Path) -> None:
    shutil.copy("config/scales/paper.yaml", "config/scales/mylab.yaml")
    of_cluster = {"cpu": {"slurm_partition": "main"}, "gpu": {"slurm_partition": "fast", "gpu_model": "a100"}}
    train = rules.StageRule("run", jobs=JobResources.model_validate(of_cluster))
    asked = {}
    for scale in ("paper", "mylab", "demo"):
        wildcards = {"scale": scale, "env": ROOM, "method": "radt", "seed": "0"}
        asked[scale] = (
            train.gpu(wildcards),
            train.threads(wildcards),
            train.mem_mb(wildcards, 1),
            train.runtime(wildcards, 1),
            train.resources["slurm_partition"](wildcards),
            train.resources["gpu_model"](wildcards),
        )
    assert asked["mylab"] == asked["paper"] == (1, 4, 16000, 28 * 60, "fast", "a100")
    assert asked["demo"] == (0, 1, 1500, 180, "main", None)
    published = spec_of("mylab", "radt_dark_room_10x10")
    assert published.references_of(ROOM) and not spec_of("demo", "radt_dark_room_10x10").references_of(ROOM)
    shutil.copy("config/scales/smoke.yaml", "config/scales/toys.yaml")
    assert spec_of("toys", "memory_rl_passive_tmaze").wiring_test and not published.wiring_test


def test_no_attempt_of_any_job_asks_for_more_than_the_longest_job(workdir: Path) -> None:
    wildcards = {"scale": "paper", "env": ROOM, "method": "radt", "seed": "0", "task": "0", "vocabulary": "tiles"}
    for stage in STAGES.values():
        for hours in (12, 5, 1):
            rule = rules.StageRule(stage.name, job_hours=hours)
            assert all(rule.runtime(wildcards, attempt) <= 60 * hours for attempt in (1, 2, 3)), stage.name


@pytest.mark.parametrize(
    "stage", ["generate", "train_images", "train_vision_language", "embed", "embed_vocabulary", "run"]
)
def test_what_goes_on_where_it_stopped_asks_for_no_more_time_at_the_next_attempt(workdir: Path, stage: str) -> None:
    rule, wildcards = rules.StageRule(stage), {"scale": "paper", "env": ROOM, "method": "radt", "seed": "0"}
    assert rule.runtime(wildcards, 1) == rule.runtime(wildcards, 3)


@pytest.mark.parametrize("stage", ["index", "evaluate", "inspect", "measure"])
def test_what_begins_anew_asks_for_more_time_at_the_next_attempt(workdir: Path, stage: str) -> None:
    rule, wildcards = rules.StageRule(stage), {"scale": "paper", "env": ROOM, "method": "radt", "seed": "0"}
    assert rule.runtime(wildcards, 2) == 2 * rule.runtime(wildcards, 1) > 0


def test_what_is_done_for_each_seed_asks_for_less_time_where_jobs_must_be_shorter(workdir: Path) -> None:
    wildcards = {"scale": "paper", "env": ROOM, "method": "radt", "seed": "0"}
    limits = [rules.StageRule("evaluate", job_hours=hours).runtime(wildcards, 1) for hours in (56, 28, 14, 7)]
    assert limits == [240, 240, 120, 60]


def test_a_command_is_told_of_the_threads_and_gpus_that_its_rule_asks_for() -> None:
    for name, stage in STAGES.items():
        rule = rules.StageRule(name)
        assert {"mem_mb", "runtime"} <= rule.resources.keys(), name
        assert ("gpu" in rule.resources) == bool(stage.asks.gpu), name
        if not stage.command:
            assert ("--device auto" in rule.command) == bool(stage.asks.gpu), name
            assert ("--threads {threads}" in rule.command) == (not stage.local), name


def test_packages_for_gpus_are_those_of_jobs_whose_world_names_none(workdir: Path) -> None:
    wildcards = {"scale": "smoke", "env": ROOM, "method": "dt", "seed": "0"}
    for stage in ("embed", "run"):
        assert rules.StageRule(stage, packages="gpu").conda(wildcards) == "../envs/gpu.yaml"
    of_a_family = rules.StageRule("run", packages="gpu").conda({**wildcards, "env": "meta_world"})
    assert of_a_family == "../envs/control.yaml"


def test_jobs_that_take_seconds_or_need_the_network_are_not_submitted(root: Path) -> None:
    (listed,) = re.findall(r"^LOCAL = \((.*)\)$", (root / "rules/common.smk").read_text(), re.M)
    rule_of = {"claims": "claims_table", "report": "report_page"}
    local = {rule_of.get(name, name) for name, stage in STAGES.items() if stage.local}
    assert set(re.findall(r"\w+", listed)) == local


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
        ("results/demo/runs/dark_room_10x10/rdat.context=25/seed_0/scores.parquet", "'radt'"),
        ("data/models/bert-base-uncase/model.safetensors", "'bert-base-uncased'"),
        ("results/papr/report.html", "'paper'"),
        ("radt_dark_room_10x10", "results/demo/figures/radt_dark_room_10x10.pdf"),
        ("results/demo/figure/radt_dark_room_10x10.pdf", "results/{scale}/figures/{figure}.pdf"),
        ("results/demo/runs/dark_room_10x10/dt/seed_0/policy.safetensor", "policy.safetensors"),
    ],
)
def test_an_unknown_name_in_a_target_is_named_with_the_nearest(workdir: Path, target: str, hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        check_targets(["all", target])


def test_a_model_that_is_not_fetched_is_no_target(workdir: Path) -> None:
    with pytest.raises(UserError, match="not fetched"):
        check_targets(["data/models/minilm/model.safetensors"])


def test_known_targets_and_rules_pass(workdir: Path) -> None:
    check_targets(
        [
            *("all", "smoke", "results/demo/report.html"),
            "results/paper/figures/radt_dark_room_10x10.pdf",
            "results/smoke/runs/tmaze_passive_5/dqn_gpt/seed_0/scores.parquet",
        ]
    )


def test_a_scale_says_which_figures_of_a_set_it_is_sized_for(workdir: Path) -> None:
    assert chosen_figures("hour", None) == chosen_figures("hour", ["headlines"]) == [f"radt_{ROOM}"]
    assert len(chosen_figures("demo", None)) == 5
    chosen = selection({**default_config(), "scale": "paper_cpu"})
    assert "helm_minigrid_memory" in chosen.figures_at() and f"radt_{ROOM}" in chosen.figures_at("demo")
    assert chosen_figures("hour", ["helm_tokens"]) == ["helm_tokens"]  # whoever names another gets it
    file = workdir / "config/scales/hour.yaml"
    file.write_text(file.read_text().replace(f"[radt_{ROOM}]", "[radt_dark_room_11x11]"))
    with pytest.raises(UserError, match="the scale names 'radt_dark_room_11x11', which is not among the figures"):
        chosen_figures("hour", None)


@pytest.mark.parametrize("scale", [name for name in names("scales") if scale_settings(name).resources == "small"])
def test_what_a_scale_for_cpus_draws_by_itself_takes_no_month_of_a_core(scale: str) -> None:
    """`snakemake --config scale=hour` began 49,000 hours of work: of the default figures it is sized for one."""
    assert forecast(scale, chosen_figures(scale, None), measured={}).seconds() < 30 * 24 * 3600


@pytest.mark.parametrize("target", ["report", "claims"])
def test_the_report_of_another_scale_is_about_the_figures_that_it_is_sized_for(target: str, workdir: Path) -> None:
    rule = rules.StageRule(target, figures=default_selection().figures_at)
    assert rule.params["figures"]({"scale": "hour"}) == f"--figure radt_{ROOM}"
    assert rule.params["figures"]({"scale": "demo"}).count("--figure") == 5


@held_still()  # as every command: else the whole configuration is read for each figure
def test_all_selects_every_configured_figure(workdir: Path) -> None:
    assert selection({"scale": "paper", "figures": "all"}).figures_at() == tuple(names("figures"))
    one = selection({"scale": "paper", "figures": "radt_dark_room_10x10", "hours": "null"})  # as `--config` gives them
    assert one.figures == ("radt_dark_room_10x10",) and one.hours is None


@held_still()  # as every command: else the whole configuration is read for each figure
def test_a_paper_selects_its_figures_and_every_figure_is_of_one(workdir: Path) -> None:
    papers = [
        selection({"scale": "paper", "figures": paper}).figures_at() for paper in ("radt", "memory_rl", "amago", "helm")
    ]
    assert sorted(itertools.chain(*papers)) == names("figures") and all(papers)
    assert chosen_figures("demo", ["helm"]) == list(papers[-1])


@held_still()  # as every command: else the whole configuration is read for each figure
def test_a_paper_leaves_out_the_figures_of_tasks_that_a_scale_does_not_evaluate(workdir: Path) -> None:
    at_demo = selection({"scale": "demo", "figures": "radt"})
    assert at_demo.left_out() == ("radt_grid_worlds_train", "radt_maze_runner", "radt_training_curve")
    drawn = at_demo.figures_at()
    assert not set(drawn) & set(at_demo.left_out()) and "radt_dark_room_10x10" in drawn
    assert set(drawn) <= set(selection({"scale": "demo", "figures": "all"}).figures_at())
    assert selection({"scale": "paper", "figures": "all"}).left_out() == ()
    by_name = selection(
        {"scale": "demo", "figures": "radt_training_curve"}
    )  # whoever names it is told why it cannot be
    assert by_name.figures_at() == by_name.figures and by_name.left_out() == ()


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
        selection(config)


@pytest.mark.parametrize(
    "rule", ["embed", "embed_images", "embed_vocabulary", "evaluate", "index", "inspect", "measure"]
)
def test_the_science_that_a_stage_calls_is_part_of_its_code(rule: str) -> None:
    """A stage's own file never counts, so whatever it calls must be reached from the modules that it names."""
    of = {"embed_images": ("paper", "procgen"), "embed_vocabulary": ("demo", "tiles")}
    names = of.get(rule, ("demo", "dark_room_10x10", "radt"))
    counted = reachable(*STAGES[rule].modules(*names))  # type: ignore[misc]
    text = Path(importlib.import_module(f"recollect.stages.{rule}").__file__ or "").read_text()
    rooms = "radt|memory_rl|amago|helm|sources|common|evaluation"
    called = set(re.findall(rf"from (recollect\.(?:{rooms})\.[\w.]+) import", text))
    called |= {f"{a}.{b}" for a, b in re.findall(r"from (recollect\.evaluation) import (\w+)", text)}
    assert called and called <= counted.keys()
