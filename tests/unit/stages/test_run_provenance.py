"""What a job is a function of: an edit of the code or the configuration changes what depends on it, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fast_yaml
import pytest

from recollect.artifacts.fingerprint import reachable
from recollect.artifacts.sealed import write_json
from recollect.figures.style import STYLE_FILE
from recollect.settings import catalogue
from recollect.settings.errors import UserError
from recollect.stages import provenance
from recollect.stages.stage import Job
from recollect.stages.table import STAGES

ROOM, MAZE = "dark_room_10x10", "tmaze_passive_5"
RUNS = [(ROOM, "dt"), (ROOM, "ad"), (ROOM, "radt"), (ROOM, "radt_agnostic"), (MAZE, "dqn_gpt")]
Texts = dict[str, str]


@pytest.fixture(autouse=True)
def one_online_method(workdir: Path) -> None:
    """An online method of this test's own, beside the configured ones that learn from histories."""
    path = workdir / "config/methods/dqn_gpt.yaml"
    content = {"algorithm": "dqn", "data": "online", "hyperparameters": {"train_episodes": 5}}
    variants = {name: {} for name in fast_yaml.load(path.read_text())["variants"]}  # which scale `paper` names
    path.write_text(fast_yaml.dump({**content, "variants": variants}))


@pytest.fixture
def source(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package whose code is fingerprinted in place of the repository's."""
    shutil.copytree(root / "src" / "recollect", tmp_path / "src" / "recollect", ignore=shutil.ignore_patterns("__py*"))
    monkeypatch.setattr(catalogue, "roots", lambda: {"recollect": tmp_path / "src"})
    return tmp_path / "src" / "recollect"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {path.name}"
    path.write_text(text.replace(old, new))


def edit_config(name: str, change: Callable[[dict[str, Any]], None]) -> None:
    path = Path("config") / f"{name}.yaml"
    content = fast_yaml.load(path.read_text())
    change(content)
    path.write_text(fast_yaml.dump(content))


def changed(before: Texts, after: Texts) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


def codes(scale: str = "demo") -> Texts:
    """Every fingerprint of the default figures' jobs, by a short name: `train radt`."""

    def code(stage: str, *names: str) -> str:
        return STAGES[stage].code_text(Job(stage, scale, *names))

    found = {"generate": code("generate", ROOM)}
    for env, method in RUNS:
        found[f"train {method}"] = code("train", env, method)
        found[f"evaluate {method}"] = code("evaluate", env, method)
    for method in ("radt", "radt_agnostic"):
        for stage in ("embed", "index"):
            found[f"{stage} {method}"] = code(stage, ROOM, method)
    return found | {"figure": code("figure", "radt_dark_room_10x10")}


def texts(scale: str = "demo") -> Texts:
    """Every text of settings of the default figures' jobs."""
    found = {"generate": provenance.generate_settings(scale, ROOM)}
    for env, method in RUNS:
        found[f"train {method}"] = provenance.train_settings(scale, env, method)
        found[f"evaluate {method}"] = provenance.evaluate_settings(scale, env, method)
    for method in ("radt", "radt_agnostic"):
        found[f"memory {method}"] = provenance.memory_settings(scale, ROOM, method)
    return found | {"figure": provenance.figure_text(scale, "radt_dark_room_10x10")}


def of(*methods: str, stages: tuple[str, ...] = ("train", "evaluate")) -> set[str]:
    return {f"{stage} {method}" for stage in stages for method in methods}


# ------------------------------------------------------------------------------------------------------------- code


def test_a_docstring_or_a_comment_changes_nothing(source: Path) -> None:
    before = codes()
    edit(
        source / "radt/dt.py",
        '"""Mean loss of the actions',
        '"""The mean loss of the actions',
    )
    line = "    loss = F.cross_entropy("
    edit(source / "radt/dt.py", line, "    # What is learned.\n" + line)
    assert not changed(before, codes())


def test_the_loss_of_dt_concerns_those_who_use_it(source: Path) -> None:
    before = codes()
    edit(source / "radt/dt.py", "    loss = F.cross_entropy(", "    loss = 2 * F.cross_entropy(")
    # AD and RA-DT have it too; RA-DT's keys come from DT's network, the other's from a language model.
    assert changed(before, codes()) == of("dt", "ad", "radt", "radt_agnostic") | {"embed radt"}


def test_the_embedder_of_a_memory_is_part_of_its_code(source: Path) -> None:
    (source / "radt/other.py").write_text("def build_network():\n    return 1\n")
    Path("config/methods/other.yaml").write_text("{algorithm: other, data: histories}")
    edit_config("methods/radt_agnostic", lambda c: c["memory"].update(embedder="method:other"))
    edit_config("scales/demo", lambda c: c["methods"].pop("radt_agnostic"))
    before = codes()
    edit(source / "radt/other.py", "return 1", "return 2")
    assert changed(before, codes()) == of("radt_agnostic", stages=("embed", "train", "evaluate"))


def test_a_world_concerns_its_own_environments(source: Path) -> None:
    before = codes()
    edit(source / "environments/dark_room.py", "TASK_COUNT = 100 ", "TASK_COUNT = 99 ")
    found = changed(before, codes())
    assert found == set(before) - of("dqn_gpt") - {"figure"}


def test_the_evaluator_concerns_training_only_where_training_evaluates(source: Path) -> None:
    line = "        return int(self.episode.min())"
    before, watched = codes(), codes("smoke")  # smoke: evaluate_every is set
    edit(source / "evaluation/in_context.py", line, line + " + 0")
    offline = of("dt", "ad", "radt", "radt_agnostic", stages=("evaluate",))
    assert changed(before, codes()) == offline
    assert changed(watched, codes("smoke")) == offline | of("dt", "ad", "radt", "radt_agnostic", stages=("train",))


def test_drawing_concerns_figures_only(source: Path) -> None:
    before = codes()
    (source / "figures/statistics.py").write_text((source / "figures/statistics.py").read_text() + "\nMORE = 1\n")
    assert changed(before, codes()) == {"figure"}


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("environments/dark_room.py", 'Mark("goal",', 'Mark("door",'),
        ("environments/dark_room.py", 'goal = ("goal",', 'goal = ("door",'),
        ("environments/scene.py", ".astype(np.int64)", ".astype(np.int32)"),
    ],
)
def test_what_a_world_looks_like_concerns_traces_only(source: Path, file: str, old: str, new: str) -> None:
    def trace() -> str:
        return STAGES["inspect"].code_text(Job("inspect", "demo", ROOM, "dt"))

    before, traced = codes(), trace()
    edit(source / file, old, new)
    assert not changed(before, codes()) and trace() != traced


# --------------------------------------------------------------------------------------------------------- settings


def test_a_hyperparameter_of_one_method_concerns_that_method() -> None:
    before = texts()
    edit_config("methods/ad", lambda c: c["hyperparameters"].update(context=90))
    assert changed(before, texts()) == of("ad")
    before = texts()
    edit_config("methods/dt", lambda c: c["hyperparameters"].update(reward_scale=2.0))
    # RA-DT reads DT's trained network, a file: its settings do not change, its input will.
    assert changed(before, texts()) == of("dt")


def test_a_hyperparameter_of_a_base_concerns_what_is_built_on_it() -> None:
    before = texts()
    edit_config("methods/radt", lambda c: c["hyperparameters"].update(query_dropout=0.3))
    assert changed(before, texts()) == of("radt", "radt_agnostic")


def test_a_chosen_precision_of_keys_concerns_their_memory_and_that_of_the_device_needs_no_name() -> None:
    before = texts()
    edit_config("methods/radt", lambda c: c["hyperparameters"]["optimisation"].update(precision="bfloat16"))
    assert changed(before, texts()) == of("radt", "radt_agnostic", stages=("memory", "train", "evaluate"))
    assert "precision" not in before["memory radt"]


def test_how_a_memory_is_cut_concerns_its_index_and_its_runs() -> None:
    before = texts()
    edit_config("methods/radt_agnostic", lambda c: c["memory"].update(similarity="dot"))
    assert changed(before, texts()) == of("radt_agnostic", stages=("memory", "train", "evaluate"))


def test_a_reward_scale_concerns_the_keys_too() -> None:
    before = texts()
    edit_config("methods/radt_agnostic", lambda c: c.update(hyperparameters={"reward_scale": 2.0}))
    assert changed(before, texts()) == of("radt_agnostic", stages=("memory", "train", "evaluate"))


def test_a_frozen_model_concerns_the_keys_that_it_embeds_and_those_who_read_with_it() -> None:
    def helm() -> tuple[str, str]:
        of = ("demo", "mini_grid_MemoryS11", "helm")
        return provenance.train_settings(*of), provenance.evaluate_settings(*of)

    before, read = texts(), helm()
    edit_config("language_models", lambda c: c["minilm"].update(package="another"))
    assert changed(before, texts()) == {"memory radt_agnostic"} and helm() == read
    edit_config("language_models", lambda c: c["smollm2"].update(package="another"))
    assert all(now != then for now, then in zip(helm(), read, strict=True))


def test_evaluation_settings_concern_training_only_where_training_evaluates() -> None:
    before, watched = texts(), texts("smoke")
    edit_config(f"environments/{ROOM}", lambda c: c["evaluation"].update(seed=9))
    offline = of("dt", "ad", "radt", "radt_agnostic", stages=("evaluate",))
    assert changed(before, texts()) == offline
    assert changed(watched, texts("smoke")) == offline | of("dt", "ad", "radt", "radt_agnostic", stages=("train",))


def test_how_a_policy_is_judged_concerns_the_jobs_that_score_it_and_not_its_training() -> None:
    jobs = [Job(stage, "demo", ROOM, "dt") for stage in ("train", "evaluate", "run")]
    before = {job.stage: STAGES[job.stage].settings_text(job) for job in jobs}
    edit_config(f"environments/{ROOM}", lambda c: c["evaluation"].update(seed=9))
    after = {job.stage: STAGES[job.stage].settings_text(job) for job in jobs}
    judge = "recollect.evaluation.in_context"
    with_judge = {job.stage for job in jobs if judge in STAGES[job.stage].modules_of(job)}
    assert changed(before, after) == with_judge == {"evaluate", "run"}


def test_an_online_method_is_always_judged_while_it_learns() -> None:
    before = texts()
    edit_config("environments/tmaze_passive", lambda c: c["evaluation"].update(seed=9))
    assert changed(before, texts()) == of("dqn_gpt")


def test_the_scale_of_returns_concerns_all_but_the_histories() -> None:
    before = texts()
    edit_config(f"environments/{ROOM}", lambda c: c["returns"].update(high=99))
    offline = of("dt", "ad", "radt", "radt_agnostic")
    assert changed(before, texts()) == offline | of("radt", "radt_agnostic", stages=("memory",))


def test_the_source_of_histories_concerns_histories_only() -> None:
    before = texts()
    edit_config(f"environments/{ROOM}", lambda c: c["source"].update(seed=9))
    assert changed(before, texts()) == {"generate"}


def test_titles_concern_figures_only() -> None:
    before = texts()
    edit_config(f"environments/{ROOM}", lambda c: c.update(title="another name"))
    assert not changed(before, texts())  # at scale demo the figure shows a smaller room
    for file in ("methods/radt", "environments/dark_room_7x7"):
        before = texts()
        edit_config(file, lambda c: c.update(title="another name"))
        assert changed(before, texts()) == {"figure"}


def test_a_corrected_published_value_concerns_figures_of_its_scale() -> None:
    demo, paper = texts(), texts("paper")
    edit_config("figures/references/radt", lambda c: c["radt_figures_3_4"].update(reading="table"))
    assert not changed(demo, texts()) and changed(paper, texts("paper")) == {"figure"}


def test_the_style_concerns_figures_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert provenance.STYLE == STYLE_FILE
    before = texts()
    Path("edited.mplstyle").write_text(STYLE_FILE.read_text() + "\naxes.grid: True\n")
    monkeypatch.setattr(provenance, "STYLE", Path("edited.mplstyle"))
    assert changed(before, texts()) == {"figure"}


def test_what_a_page_shows_concerns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = STYLE_FILE.parent
    files = {path.name for suffix in ("html", "css", "js") for path in folder.glob(f"*.{suffix}")}
    assert {path.name for path in provenance.TEMPLATES} == files - {"report.html"}
    seen = [provenance.page_text("demo", ROOM, "dt")]
    edit_config(f"environments/{ROOM}", lambda c: c.update(title="another room"))
    seen.append(provenance.page_text("demo", ROOM, "dt"))
    edit_config("methods/dt", lambda c: c.update(title="another method"))
    seen.append(provenance.page_text("demo", ROOM, "dt"))
    edit_config("scales/demo", lambda c: c.update(wiring_test=True))
    seen.append(provenance.page_text("demo", ROOM, "dt"))
    Path("page.js").write_text("other();")
    monkeypatch.setattr(provenance, "TEMPLATES", [Path("page.js"), *provenance.TEMPLATES[1:]])
    seen.append(provenance.page_text("demo", ROOM, "dt"))
    assert len(set(seen)) == 5


def test_what_a_scale_says_of_its_numbers_concerns_figures_and_their_pages_do_not(monkeypatch) -> None:
    def text() -> str:
        return provenance.figure_text("demo", "radt_dark_room_10x10")

    def of_figure(content: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = content["figures"]["radt_dark_room_10x10"]
        return found

    seen = [text()]
    edit_config("scales/demo", lambda c: of_figure(c).update(pages={"dt": "dark_room_7x7"}))
    assert text() == seen[0]
    edit_config("scales/demo", lambda c: c.update(wiring_test=True))
    seen.append(text())
    monkeypatch.setattr(provenance, "remarks", lambda scale, envs: ["The world is another."])
    seen.append(text())
    monkeypatch.setattr(provenance, "published_values", lambda scale, figure: {})
    edit_config("scales/demo", lambda c: c.update(published="paper"))
    seen.append(text())
    assert len(set(seen)) == 4


def test_published_values_are_those_of_the_scale_that_a_scale_is_compared_with(monkeypatch) -> None:
    group, name = {"rows": []}, "radt_figures_3_4"
    monkeypatch.setattr(provenance, "published_groups", lambda: {name: (group, Path()), "other": (group, Path())})
    shown = SimpleNamespace(references=[{"published": name}, {"value": 1.0}])
    monkeypatch.setattr(provenance, "figure_settings", lambda scale, figure: shown)
    of = ("radt_dark_room_10x10",)
    assert provenance.published_values("paper", *of) == {name: group}  # which a group is of that names no scale
    assert provenance.published_values("demo", *of) == {}
    edit_config("scales/demo", lambda c: c.update(published="paper"))
    assert provenance.published_values("demo", *of) == {name: group}
    group["scale"] = "hour"
    assert provenance.published_values("paper", *of) == {}


def test_the_page_of_a_report_and_the_categories_of_its_figures_concern_it(monkeypatch) -> None:
    def text() -> str:
        return provenance.report_text("demo", "radt_dark_room_10x10")

    seen = [text()]
    edit_config("figures/radt_dark_room_10x10", lambda c: c.update(category="AMAGO"))
    seen.append(text())
    Path("report.html").write_text("another page")
    monkeypatch.setattr(provenance, "TEMPLATES", [Path("page.html").absolute()])
    seen.append(text())
    assert len(set(seen)) == 3


def test_claims_are_judged_by_the_seeds_and_the_smoothing_of_their_figure() -> None:
    def text() -> str:
        return provenance.claims_text("demo", "radt_dark_room_10x10")

    def of_figure(content: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = content["figures"]["radt_dark_room_10x10"]
        return found

    seen = [text()]
    assert "claim" in seen[0]
    edit_config("scales/demo", lambda c: of_figure(c).update(seeds=[5, 6, 7]))
    seen.append(text())
    edit_config("figures/radt_dark_room_10x10", lambda c: c.setdefault("options", {}).update(window=3))
    seen.append(text())
    assert len(set(seen)) == 3


def test_seeds_are_no_part_of_a_run_s_settings() -> None:
    before = texts()
    edit_config("scales/demo", lambda c: c["figures"]["radt_dark_room_10x10"].update(seeds=[5, 6, 7]))
    assert changed(before, texts()) == {"figure"}


# ----------------------------------------------------------------------------------------------------------- inputs


def test_inputs_are_verified_and_named_by_their_hash(workdir: Path) -> None:
    write_json("a.json", [1], kind="test")
    first = provenance.describe("s", "c", [Path("a.json")])
    assert first["inputs"].keys() == {"a.json"} and len(first["inputs"]["a.json"]) == 64
    write_json("a.json", [2], kind="test")
    assert provenance.describe("s", "c", [Path("a.json")])["inputs"] != first["inputs"]
    Path("a.json").write_text("[3]\n")
    with pytest.raises(UserError, match=r"sha256|bytes"):
        provenance.describe("s", "c", [Path("a.json")])
    histories = Path(f"data/demo/{ROOM}/histories.safetensors")
    with pytest.raises(UserError, match=f"snakemake {histories}"):
        provenance.describe("s", "c", [histories])
    with pytest.raises(UserError, match="no command makes it"):
        provenance.describe("s", "c", [Path("data/b.json")])


def test_a_network_that_embeds_may_not_lead_into_a_circle_that_it_is_no_part_of(workdir: Path) -> None:
    for name, embedder in (("first", "own"), ("own", "other"), ("other", "own")):
        content = {"base": "radt", "memory": {"embedder": f"method:{embedder}"}}
        (workdir / f"config/methods/{name}.yaml").write_text(fast_yaml.dump(content))
    with pytest.raises(UserError, match="the `embedder` of method 'first' leads back to 'own'"):
        provenance.embedder_of("smoke", ROOM, "first")


def test_a_stand_in_is_known_whether_a_memory_or_a_policy_reads_with_it() -> None:
    room, memory = (ROOM, "radt_agnostic"), ("mini_grid_MemoryS11", "helm")
    assert not any(provenance.uses_random_model("demo", *of) for of in (room, memory, (ROOM, "dt")))
    edit_config("language_models", lambda c: c.update(minilm={"source": "random"}))
    assert provenance.uses_random_model("demo", *room) and not provenance.uses_random_model("demo", *memory)
    edit_config("language_models", lambda c: c.update(smollm2={"source": "random"}))
    assert provenance.uses_random_model("demo", *memory)


def test_the_model_that_a_policy_sees_with_is_part_of_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert provenance.sees_with({"vision_language_model": "clip-rn50"}) == ("clip-rn50", None)
    assert provenance.sees_with({"token_vocabulary": "tiles"}) == ("tiles", "tiles")
    of = ("demo", "mini_grid_MemoryS11", "shelm")
    assert provenance.frozen_models(*of).keys() == {"language_model", "vision_language_model"}
    for text in (provenance.train_settings(*of), provenance.evaluate_settings(*of)):
        assert '"vision_language_model"' in text and '"language_model"' in text


def test_what_a_figure_was_made_with_has_a_name_of_its_own_and_a_manifest_without_a_device_is_of_a_cpu(
    workdir: Path,
) -> None:
    assert provenance.code_of({"code": "a"}) == provenance.code_of({"code_fingerprint": "a"}) == "a"
    assert provenance.code_of({}) is None
    write_json("a.json", [], kind="test", provenance={"device": "cuda"})
    write_json("b.json", [], kind="test", provenance={"inputs": {"a.json": "0", "gone.json": "0"}})
    assert provenance.devices_behind([Path("a.json")]) == ["cuda"]
    assert provenance.devices_behind([Path("b.json"), Path("a.json")]) == ["cpu", "cuda"]


def test_a_job_runs_the_code_of_its_source_of_its_table_and_of_own_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "recollect.sources.ppo" in provenance.generate_modules("demo", ROOM)
    monkeypatch.setattr(provenance, "own_parts", lambda scale, env, method: ["mine.sequence"])
    assert "mine.sequence" in provenance.train_modules("demo", ROOM, "dt")
    evaluated = provenance.evaluate_modules("demo", ROOM, "dt")
    assert {"mine.sequence", "recollect.evaluation.score_table"} <= set(evaluated)


@pytest.mark.parametrize("circle", [("own",), ("own", "other")])
def test_networks_that_embed_for_each_other_are_refused(workdir: Path, circle: tuple[str, ...]) -> None:
    for name, embedder in zip(circle, circle[1:] + circle[:1], strict=True):
        content = {"base": "radt", "memory": {"embedder": f"method:{embedder}"}}
        (workdir / f"config/methods/{name}.yaml").write_text(fast_yaml.dump(content))
    for asked in (Job("embed", "smoke", ROOM, "own"), Job("run", "smoke", ROOM, "own", "0")):
        with pytest.raises(UserError, match="the `embedder` of method 'own' leads back to 'own'") as error:
            STAGES[asked.stage].inputs(asked)
    assert error.value.do == "name a network that reads no memory, such as method:dt"


@pytest.mark.usefixtures("in_the_repository")
def test_the_encoder_of_images_is_part_of_the_code_of_scores() -> None:
    (encoder,) = provenance.image_encoder_module("paper", "procgen")
    assert encoder in reachable(*provenance.evaluate_modules("paper", "procgen", "dt"))


def test_an_own_package_that_registers_an_environment_is_part_of_its_code(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workdir / "mine_of_walls").mkdir()
    for name, text in (("__init__", ""), ("bandit", "ARMS = 2\n")):
        (workdir / f"mine_of_walls/{name}.py").write_text(text)
    here = catalogue.roots()
    monkeypatch.setattr(provenance, "roots", lambda: {**here, "mine_of_walls": workdir})
    options = {"id": "mine/Bandit-v0", "package": "mine_of_walls.bandit"}
    (workdir / "config/environments/bandit.yaml").write_text(fast_yaml.dump({"world": "gymnasium", "options": options}))
    assert "mine_of_walls.bandit" in provenance.world_of("smoke", "bandit")


def test_a_page_is_made_anew_when_a_stand_in_becomes_a_model(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = set()
    for is_random in (True, False):
        monkeypatch.setattr(provenance, "uses_random_model", lambda *of, said=is_random: said)
        texts.add(provenance.page_text("smoke", "mini_grid_MemoryS11", "helm"))
    assert len(texts) == 2
