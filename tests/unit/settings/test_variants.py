"""Variants: a method with a few settings changed is a name more in its file, and stands wherever a method does."""

from __future__ import annotations

from pathlib import Path

import fast_yaml
import pytest

from recollect.settings.errors import UserError
from recollect.settings.resolve import method_mapping, names, played_method, resolve
from recollect.stages import inputs, paths, provenance

ROOM = "dark_room_10x10"


def add(path: Path, content: dict) -> None:
    """Lay keys over a YAML file, without merging below the first level."""
    path.write_text(fast_yaml.dump({**fast_yaml.load(path.read_text()), **content}))


def test_a_variant_differs_from_its_method_in_what_it_says_and_its_name_only(workdir: Path) -> None:
    for scale in ("smoke", "demo", "paper"):
        base, variant = (method_mapping(scale, ROOM, name) for name in ("radt", "radt.task_weight_0"))
        changed = variant["hyperparameters"].pop("retrieval"), base["hyperparameters"].pop("retrieval", {})
        assert changed[0] == {**changed[1], "task_weight": 0}
        assert (variant.pop("name"), variant.pop("title")) == ("radt.task_weight_0", "RA-DT, task weight 0")
        assert (base.pop("name"), base.pop("title")) == ("radt", "RA-DT")
        assert variant == base and "variants" not in base


def test_its_own_settings_come_last(workdir: Path) -> None:
    scale = workdir / "config/scales/smoke.yaml"
    content = fast_yaml.load(scale.read_text())
    content["methods"]["ad"]["environments"] = {ROOM: {"hyperparameters": {"episodes_back": 3}}}
    content["methods"]["ad"]["hyperparameters"]["reward_scale"] = 4.0
    scale.write_text(fast_yaml.dump(content))
    assert resolve("smoke", ROOM, "ad", 0).method.hyperparameters.episodes_back == 3
    chosen = resolve("smoke", ROOM, "ad.k_50", 0).method.hyperparameters
    assert (chosen.episodes_back, chosen.reward_scale) == (50, 4.0)


def test_a_variant_may_differ_by_environment_remove_settings_and_have_a_title(workdir: Path) -> None:
    odd = {
        "title": "odd",
        "hyperparameters": {"context": "default", "episodes_back": 7},
        "environments": {ROOM: {"hyperparameters": {"episodes_back": 8}}},
    }
    add(workdir / "config/methods/ad.yaml", {"variants": {"odd": odd}})
    here, there = (resolve("paper", env, "ad.odd", 0).method for env in (ROOM, "dark_room_20x20"))
    assert here.title == "odd" and here.hyperparameters.episodes_back == 8
    assert there.hyperparameters.episodes_back == 7 and there.hyperparameters.context == 100  # the default again


def test_a_subtitle_stands_behind_the_title_of_the_method_unless_the_variant_has_a_title(workdir: Path) -> None:
    variants = {"odd": {"subtitle": "seven"}, "even": {"subtitle": "eight", "title": "mine"}}
    add(workdir / "config/methods/ad.yaml", {"title": "AD", "variants": variants})
    (workdir / "config/methods/ad_2.yaml").write_text("base: ad\ntitle: another\n")
    titles = [method_mapping("paper", ROOM, name)["title"] for name in ("ad.odd", "ad_2.odd", "ad.even", "ad_2.even")]
    assert titles == ["AD, seven", "another, seven", "mine", "mine"]
    assert resolve("paper", ROOM, "ad_2.odd", 0).method.title == "another, seven"


def test_a_scale_can_add_variants_and_a_derived_method_has_those_of_its_base(workdir: Path) -> None:
    scale = workdir / "config/scales/smoke.yaml"
    content = fast_yaml.load(scale.read_text())
    content["methods"]["ad"]["variants"] = {"mine": {"hyperparameters": {"episodes_back": 9}}}
    scale.write_text(fast_yaml.dump(content))
    assert resolve("smoke", ROOM, "ad.mine", 0).method.hyperparameters.episodes_back == 9
    with pytest.raises(UserError, match="no variant named 'mine'"):
        resolve("paper", ROOM, "ad.mine", 0)
    agnostic = resolve("paper", ROOM, "radt_agnostic.no_cut_off", 0).method
    assert agnostic.memory is not None and agnostic.memory.embedder.startswith("lm:")
    assert agnostic.title == "RA-DT, domain-agnostic, no cut off"


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (
            "radt.task_wieght_0",
            r"(?s)'radt' has no variant named 'task_wieght_0'.*radt\.yaml.*did you mean 'task_weight_0'",
        ),
        ("ppo_cnn.anything", r"(?s)no variant named 'anything'.*known: none"),
        ("rdt.task_weight_0", r"(?s)no configuration named 'rdt'.*did you mean 'radt'"),
    ],
)
def test_unknown_variants_are_answered_with_the_nearest(workdir: Path, method: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve("smoke", ROOM, method, 0)


def test_mistakes_in_a_variant_name_it(workdir: Path) -> None:
    add(workdir / "config/methods/ad.yaml", {"variants": {"odd": {"hyperparameters": {"episodes_bck": 1}}}})
    with pytest.raises(UserError, match=r"(?s)unknown key 'episodes_bck'.*variant 'ad\.odd'.*'episodes_back'"):
        resolve("smoke", ROOM, "ad.odd", 0)
    resolve("smoke", ROOM, "ad", 0)
    add(workdir / "config/methods/ad.yaml", {"variants": ["odd"]})
    with pytest.raises(UserError, match="`variants` must map names to settings"):
        resolve("smoke", ROOM, "ad.odd", 0)


def test_listing_variants_retrains_nothing(workdir: Path) -> None:
    parts = (provenance.train_settings, provenance.evaluate_settings, provenance.memory_settings)
    before = [part("demo", ROOM, "radt") for part in parts]
    add(workdir / "config/methods/radt.yaml", {"variants": {"mine": {"hyperparameters": {"context": 3}}}})
    assert [part("demo", ROOM, "radt") for part in parts] == before
    assert provenance.train_settings("demo", ROOM, "radt.mine") != before[0]


@pytest.mark.usefixtures("in_the_repository")
def test_every_listed_variant_resolves() -> None:
    for method in names("methods"):
        for variant in fast_yaml.load(Path(f"config/methods/{method}.yaml").read_text()).get("variants", {}):
            differs = False
            for env in (
                ROOM,
                "tmaze_active_20",
                "key_to_door_60",
                "amago_maze_15",
                "mini_grid_MemoryS11",
                "mini_grid_KeyCorridorS3R1",
            ):  # some are the method itself elsewhere
                own, base = (resolve("paper", env, name, 42) for name in (f"{method}.{variant}", method))
                same = own.method.model_copy(update={"name": method, "title": "", "evaluation_only": False})
                differs |= same != base.method.model_copy(update={"title": ""})
                differs |= own.environment != base.environment  # a variant may be judged in another way
            assert differs, f"{method}.{variant}"


def test_an_equal_memory_is_shared_and_another_is_not(workdir: Path) -> None:
    own, base = paths.index("smoke", ROOM, "radt.pool_last"), paths.index("smoke", ROOM, "radt")
    assert inputs.train_inputs("smoke", ROOM, "radt.task_weight_0")["index"] == base
    assert inputs.train_inputs("smoke", ROOM, "radt.pool_last")["index"] == own
    assert inputs.memory_method("smoke", ROOM, "radt_agnostic") == "radt_agnostic"
    rounded = {"hyperparameters": {"optimisation": {"precision": "bfloat16"}}}
    add(workdir / "config/methods/radt.yaml", {"variants": {"rounded": rounded}})
    assert inputs.memory_method("smoke", ROOM, "radt.rounded") == "radt.rounded"  # its keys are others


def test_a_variant_that_differs_in_acting_plays_its_methods_policy(workdir: Path) -> None:
    assert played_method("smoke", ROOM, "radt.every_25") == "radt"
    assert played_method("smoke", ROOM, "radt_agnostic.every_25") == "radt_agnostic"
    assert played_method("smoke", ROOM, "radt.task_weight_0") == "radt.task_weight_0"


def test_a_variant_that_is_judged_in_another_way_plays_the_policy_of_the_variant_that_is_its_base(
    workdir: Path,
) -> None:
    own, base = (resolve("paper", ROOM, name, 0) for name in ("ad.k_50_episodes_200", "ad.k_50"))
    assert own.method.hyperparameters == base.method.hyperparameters
    assert (own.environment.evaluation.episodes, base.environment.evaluation.episodes) == (200, 40)
    assert played_method("paper", ROOM, "ad.k_50_episodes_200") == "ad.k_50"
    assert played_method("paper", ROOM, "dpt.episodes_200") == "dpt"
    assert inputs.train_inputs("paper", ROOM, "ad.k_50_episodes_200") == inputs.train_inputs("paper", ROOM, "ad.k_50")
    texts = [provenance.evaluate_settings("paper", ROOM, name) for name in ("ad.k_50_episodes_200", "ad.k_50")]
    assert texts[0] != texts[1]


def test_a_variant_that_is_judged_in_another_way_can_be_trained_with_other_settings(workdir: Path) -> None:
    own = resolve("paper", ROOM, "ad.k_50_episodes_200,optimisation.learning_rate=0.001", 0)
    assert own.environment.evaluation.episodes == 200
    assert own.method.hyperparameters.optimisation.learning_rate == 0.001
    assert played_method("paper", ROOM, own.method.name) == own.method.name


@pytest.mark.parametrize(
    "variant",
    [
        {"evaluation": {"episodes": 3}},  # it is trained, and what judges it while it learns would be another thing
        {"evaluation_only": True, "evaluation": {"protocol": "episodic"}},
        {"evaluation_only": True, "evaluation": 3},
    ],
)
def test_only_what_is_not_trained_can_be_judged_in_another_way(workdir: Path, variant: dict) -> None:
    add(workdir / "config/methods/ad.yaml", {"variants": {"odd": variant}})
    with pytest.raises(UserError, match="`evaluation` of a method may hold episodes, splits, seed"):
        resolve("paper", ROOM, "ad.odd", 0)


def test_a_circle_of_variants_is_refused(workdir: Path) -> None:
    add(workdir / "config/methods/ad.yaml", {"variants": {"odd": {"base": "even"}, "even": {"base": "odd"}}})
    with pytest.raises(UserError, match="leads back to 'odd'"):
        method_mapping("paper", ROOM, "ad.odd")


def test_variants_of_unlike_agents_of_amago_have_unlike_names(workdir: Path) -> None:
    """GRU and no memory have the variants of the Transformer, and may stand beside it in one figure."""
    agents = ("amago_transformer", "amago_gru", "amago_ff")
    for variant in ("greedy", "no_multigamma", "context_8"):
        titles = {method_mapping("paper", "amago_tmaze_10", f"{agent}.{variant}")["title"] for agent in agents}
        assert len(titles) == len(agents), titles
