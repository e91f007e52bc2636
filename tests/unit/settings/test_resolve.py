"""Settings: layers merge in the documented order, and every mistake is said with the place and the cure."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import fast_yaml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.settings import loading, resolve
from recollect.settings.errors import UserError, nearest
from recollect.settings.seeding import generator, seed_of
from recollect.stages import check
from recollect.stages.listing import listing
from recollect.stages.selection import default_selection

VALUES = st.recursive(
    st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)
MAPPINGS = st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)


def write(folder: Path, name: str, content: dict) -> None:
    path = folder / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(fast_yaml.dump(content))


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small configuration of two methods in one environment."""
    monkeypatch.setenv("RECOLLECT_CONFIG", str(tmp_path))
    write(tmp_path, "scales/demo", {"description": "d", "seeds": [0, 1]})
    write(
        tmp_path,
        "environments/room",
        {"world": "dark_room", "parameter": "width", "options": {"width": 4, "height": 4}},
    )
    write(
        tmp_path,
        "methods/dt",
        {"algorithm": "dt", "data": "histories", "hyperparameters": {"context": 7, "optimisation": {"steps": 5}}},
    )
    write(
        tmp_path,
        "methods/dt_long",
        {
            "base": "dt",
            "hyperparameters": {"context": 9},
            "environments": {"room": {"hyperparameters": {"optimisation": {"steps": 6}}}},
        },
    )
    return tmp_path


@given(MAPPINGS)
def test_merging_nothing_changes_nothing(base: dict) -> None:
    assert loading.merge(base) == base
    assert loading.merge(base, {}) == base


@given(MAPPINGS, MAPPINGS, MAPPINGS)
def test_merging_is_associative(a: dict, b: dict, c: dict) -> None:
    assert loading.merge(loading.merge(a, b), c) == loading.merge(a, b, c)


def test_lists_replace_mappings_merge_null_is_a_value_and_the_word_default_takes_back() -> None:
    base = {"list": [1, 2], "map": {"x": 1, "y": 2}, "gone": 1, "nothing": {"x": 1}}
    over = {"list": [3], "map": {"y": 5, "z": "default"}, "gone": "default", "nothing": None}
    assert loading.merge(base, over) == {"list": [3], "map": {"x": 1, "y": 5}, "nothing": None}
    assert loading.merge(base, {"map": "default"}, {"map": {"y": 7}})["map"] == {"y": 7}


def test_merging_copies_so_that_a_base_never_changes() -> None:
    base = {"map": {"x": {"y": 1}}}
    loading.merge(base, {"map": {"x": {"y": 2}}})["map"]["x"]["z"] = 3
    assert base == {"map": {"x": {"y": 1}}}


def test_a_method_inherits_its_base_and_its_environment_overrides_it(config: Path) -> None:
    settings = resolve.resolve("demo", "room_5", "dt_long", 3)
    assert settings.seed == 3
    assert settings.method.hyperparameters.context == 9
    assert settings.method.hyperparameters.optimisation.steps == 6
    assert settings.environment.options == {"width": 5, "height": 4}


def test_the_scale_wins_over_the_method_file(config: Path) -> None:
    write(
        config,
        "scales/demo",
        {
            "description": "d",
            "seeds": [0],
            "methods": {
                "dt": {
                    "hyperparameters": {"optimisation": {"steps": 11}},
                    "environments": {"room": {"hyperparameters": {"optimisation": {"steps": 12}}}},
                }
            },
        },
    )
    assert resolve.resolve("demo", "room", "dt", 0).method.hyperparameters.optimisation.steps == 12


def test_unknown_hyperparameter_names_the_file_and_the_nearest_known(config: Path) -> None:
    write(
        config, "methods/dt", {"algorithm": "dt", "data": "histories", "hyperparameters": {"optimisation": {"step": 5}}}
    )
    with pytest.raises(UserError) as error:
        resolve.resolve("demo", "room", "dt", 0)
    message = str(error.value)
    assert "unknown key 'optimisation.step'" in message
    assert "methods/dt.yaml" in message
    assert "did you mean 'optimisation.steps'?" in message


def test_a_key_that_lies_deeper_is_named_with_its_place(config: Path) -> None:
    write(config, "methods/dt", {"algorithm": "dt", "data": "histories", "hyperparameters": {"learning_rate": 1}})
    with pytest.raises(UserError, match=r"did you mean 'optimisation\.learning_rate'\?"):
        resolve.resolve("demo", "room", "dt", 0)


def test_wrong_type_names_key_and_value(config: Path) -> None:
    write(config, "methods/dt", {"algorithm": "dt", "data": "histories", "hyperparameters": {"context": "many"}})
    with pytest.raises(UserError, match=r"'context' is 'many'"):
        resolve.resolve("demo", "room", "dt", 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("dema", "room", "dt"), r"(?s)no configuration named 'dema'.*did you mean 'demo'"),
        (("demo", "rom", "dt"), r"(?s)no configuration named 'rom'.*did you mean 'room'"),
        (("demo", "rooms_5", "dt"), r"(?s)no configuration named 'rooms_5'.*room_5"),
        (("demo", "room", "d"), r"(?s)no configuration named 'd'.*did you mean 'dt'"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(config: Path, arguments: tuple, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve.resolve(*arguments, 0)


def test_unknown_algorithm_is_answered_with_the_nearest(config: Path) -> None:
    write(config, "methods/dt", {"algorithm": "dtt", "data": "histories"})
    with pytest.raises(UserError, match=r"(?s)no algorithm named 'dtt'.*did you mean 'dt'"):
        resolve.resolve("demo", "room", "dt", 0)


def test_a_scale_says_what_the_one_that_it_extends_says_then_its_own(config: Path) -> None:
    first = {"description": "d", "seeds": [0], "methods": {"dt": {"hyperparameters": {"optimisation": {"steps": 11}}}}}
    first["figures"] = {"curve": {"options": {"columns": 3, "lengths": "default"}}}
    first["environments"] = {"room": {"options": {"height": 6}}}
    write(config, "scales/demo", first)
    own = {"description": "e", "extends": "demo", "methods": {"dt": {"hyperparameters": {"context": 8}}}}
    own["environments"] = {"room": {"options": {"width": 5}}}
    write(config, "scales/again", {**own, "first_seed": 5})
    drawn = {"kind": "in_context_curve", "environments": ["room"], "methods": ["dt"], "seeds": [0, 2]}
    write(config, "figures/curve", {**drawn, "options": {"columns": 1, "lengths": 4}})
    settings = resolve.resolve("again", "room", "dt", 5)
    assert settings.method.hyperparameters.optimisation.steps == 11
    assert settings.method.hyperparameters.context == 8
    assert settings.environment.options == {"width": 5, "height": 6}
    figure = resolve.figure_settings("again", "curve")
    assert figure.seeds == (5, 7)
    assert figure.options == {"columns": 3}  # `default` takes back what the figure's own file says
    assert resolve.scale_settings("again").published == "demo"
    write(config, "scales/third", {**own, "published": "default", "seeds": "default"})
    with pytest.raises(UserError, match="'seeds'"):  # which the lowest must say
        resolve.scale_settings("third")
    write(config, "scales/third", {**own, "extends": "again", "published": "default"})
    assert resolve.scale_settings("third").published is None
    assert resolve.figure_settings("demo", "curve").seeds == (0, 2)


def test_what_is_said_of_a_size_wins_over_what_is_said_of_its_file_whichever_stands_first(config: Path) -> None:
    said = {"room_5": {"options": {"height": 9}}, "room": {"options": {"height": 8}}}
    write(config, "scales/demo", {"description": "d", "seeds": [0], "environments": said})
    chosen = {name: {"hyperparameters": {"context": context}} for name, context in (("room_5", 3), ("room", 2))}
    write(config, "methods/dt", {"algorithm": "dt", "data": "histories", "environments": chosen})
    for env, height, context in (("room_5", 9, 3), ("room_6", 8, 2)):
        settings = resolve.resolve("demo", env, "dt", 0)
        assert (settings.environment.options["height"], settings.method.hyperparameters.context) == (height, context)


def test_seeds_of_an_extending_scale_win_over_those_of_figures_at_the_extended_one(config: Path) -> None:
    drawn = {"kind": "in_context_curve", "environments": ["room"], "methods": ["dt"]}
    for name in ("curve", "other"):
        write(config, f"figures/{name}", drawn)
    write(config, "scales/demo", {"description": "d", "seeds": [0, 1], "figures": {"curve": {"seeds": [0, 1, 2, 3]}}})
    write(config, "scales/plain", {"description": "e", "extends": "demo"})
    write(config, "scales/few", {"description": "e", "extends": "demo", "seeds": [7], "first_seed": 10})
    write(config, "scales/own", {"description": "e", "extends": "few", "figures": {"other": {"seeds": [1, 4]}}})
    seeds = {
        scale: [resolve.figure_settings(scale, name).seeds for name in ("curve", "other")]
        for scale in ("demo", "plain", "few", "own")
    }
    assert seeds["demo"] == seeds["plain"] == [(0, 1, 2, 3), (0, 1)]
    assert seeds["few"] == [(17,), (17,)]
    assert seeds["own"] == [(17,), (11, 14)]


def test_the_word_default_for_a_group_takes_back_what_the_extended_scale_says(config: Path) -> None:
    first = {"description": "d", "seeds": [0], "methods": {"dt": {"hyperparameters": {"context": 8}}}}
    first["environments"] = {"room": {"options": {"height": 6}}}
    first["figures"] = {"curve": {"options": {"columns": 3}}}
    write(config, "scales/demo", first)
    write(config, "figures/curve", {"kind": "in_context_curve", "environments": ["room"], "methods": ["dt"]})
    own = dict.fromkeys(("methods", "environments", "figures"), "default")
    write(config, "scales/plain", {"description": "e", "extends": "demo", **own})
    settings = resolve.resolve("plain", "room", "dt", 0)
    assert settings.method.hyperparameters.context == 7 and settings.environment.options["height"] == 4
    assert resolve.figure_settings("plain", "curve").options == {}
    assert resolve.figure_settings("demo", "curve").options == {"columns": 3}


ROOM = {"world": "dark_room", "parameter": "width", "options": {"width": 4}}
WRONG_KINDS = {
    "a list of scales to extend": (
        "scales/demo",
        {"description": "d", "seeds": [0], "extends": ["a"]},
        "`extends` must be",
    ),
    "a number for a base": ("methods/dt", {"base": 5}, "`base` must be a name, not 5"),
    "a list for options": ("environments/room", {**ROOM, "options": [3]}, r"options. (must map|is \[3\])"),
    "a list for a parameter": ("environments/room", {**ROOM, "parameter": ["width"]}, "`parameter` must be a name"),
}


@pytest.mark.parametrize("case", list(WRONG_KINDS))
def test_what_should_be_a_name_or_a_mapping_and_is_not_is_refused(case: str, config: Path) -> None:
    file, content, message = WRONG_KINDS[case]
    write(config, file, content)
    for env in ("room", "room_5"):
        with pytest.raises(UserError, match=message) as refused:
            resolve.resolve("demo", env, "dt", 0)
        assert refused.value.where.startswith(str(config / f"{file}.yaml"))


def test_seeds_that_are_no_list_are_refused_where_a_first_seed_is_added_too(config: Path) -> None:
    scale = {"description": "d", "seeds": [0], "first_seed": 7, "figures": {"curve": {"seeds": 3}}}
    write(config, "scales/demo", scale)
    write(config, "figures/curve", {"kind": "in_context_curve", "environments": ["room"], "methods": ["dt"]})
    with pytest.raises(UserError, match="'seeds' is 3"):
        resolve.figure_settings("demo", "curve")


def test_a_title_may_name_a_parameter_that_no_option_sets(config: Path) -> None:
    write(config, "environments/room", {"world": "dark_room", "parameter": "width", "title": "Room {width}"})
    assert resolve.environment_settings("demo", "room").title == "Room "
    assert resolve.environment_settings("demo", "room_5").title == "Room 5"


@pytest.mark.parametrize("group", loading.UNDOTTED)
def test_a_dot_in_a_file_name_is_refused_but_of_environments(group: str, config: Path) -> None:
    write(config, f"{group}/my.own", {"description": "d", "seeds": [0]})
    for asks in (loading.names, partial(loading.config_path, name="my.own")):
        with pytest.raises(UserError, match=f"'my.own' cannot be a name in {group}: a dot") as refused:
            asks(group)
        assert refused.value.where == str(config / group / "my.own.yaml")
    write(config, "environments/my.own", {"world": "dark_room"})
    assert "my.own" in loading.names("environments")


def test_a_scale_is_read_again_when_the_one_that_it_extends_changes(config: Path) -> None:
    write(config, "scales/again", {"description": "e", "extends": "demo"})
    assert resolve.scale_settings("again").seeds == (0, 1)
    write(config, "scales/demo", {"description": "d", "seeds": [0, 1, 2]})
    assert resolve.scale_settings("again").seeds == (0, 1, 2)


def test_a_circle_of_scales_is_refused(config: Path) -> None:
    write(config, "scales/demo", {"description": "d", "seeds": [0], "extends": "again"})
    write(config, "scales/again", {"description": "e", "extends": "demo"})
    with pytest.raises(UserError, match="`extends` of scale 'demo' leads back"):
        resolve.scale_settings("demo")


def test_a_circle_of_bases_is_refused(config: Path) -> None:
    write(config, "methods/a", {"base": "b"})
    write(config, "methods/b", {"base": "a"})
    with pytest.raises(UserError, match="leads back"):
        resolve.method_mapping("demo", "room", "a")


def test_broken_yaml_names_the_file(config: Path) -> None:
    (config / "methods" / "dt.yaml").write_text("a: [1, 2")
    with pytest.raises(UserError, match=r"(?s)not valid YAML.*dt\.yaml"):
        resolve.resolve("demo", "room", "dt", 0)


def test_canonical_text_ignores_key_order() -> None:
    assert resolve.canonical({"a": 1, "b": {"c": 2, "d": 3}}) == resolve.canonical({"b": {"d": 3, "c": 2}, "a": 1})


def test_seeds_depend_on_purpose_and_keys_only() -> None:
    assert seed_of("batches", 1, 2) == seed_of("batches", 1, 2)
    assert (
        len({seed_of("batches", 1, 2), seed_of("batches", 2, 1), seed_of("dropout", 1, 2), seed_of("batches", 12)}) == 4
    )
    # Recorded: a seed must never change between versions, or no run could be repeated.
    assert seed_of("batches", 0, 0) == 1520746259572930882
    assert generator("batches", 0).integers(1 << 30) == generator("batches", 0).integers(1 << 30)


def test_nearest_lists_what_is_known_when_nothing_is_near() -> None:
    assert nearest("zzz", ["alpha", "beta"]) == "known: alpha, beta"


def test_outside_of_a_clone_every_command_says_where_to_run_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.delenv("RECOLLECT_CONFIG", raising=False)
    for command in (listing, check.check, default_selection, partial(resolve.scale_settings, "demo")):
        with pytest.raises(UserError, match="there is no configuration here") as refused:
            command()
        assert refused.value.do.startswith("run it in a clone")
